"""A set of rows: a bit for each row of a store, and the slot of each member by its rank.

N rows, C of them in the set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gnnx.cache import _kernels
from gnnx.errors import DataError
from gnnx.memory import Tier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gnnx.memory import Ledger


def index_bytes(num_rows: int) -> int:
    """HOST bytes of a set of N rows: N/8 + N/64, in whole cache lines."""
    num_blocks = -(-num_rows // _kernels.BLOCK)
    return num_blocks * (_kernels.BLOCK // 8 + 8) + 2 * 64


class RowSet:
    """Distinct rows of a store; slots follow the order of the file.

    Members are added, then the set is sealed, then slots are looked up.

    Parameters
    ----------
    num_rows
        N.
    ledger
        Where the bits come from (HOST, owner "cache").

    Attributes
    ----------
    num_rows : int
        N.
    bits : ndarray
        (N/64,) uint64, in whole blocks: a bit set for each member.
    before : ndarray
        (N/512,) int64: members before each block, right once sealed.
    """

    def __init__(self, num_rows: int, ledger: Ledger) -> None:
        self.num_rows, self._ledger, self._count = num_rows, ledger, 0
        num_blocks = -(-num_rows // _kernels.BLOCK)
        self.bits = ledger.empty(num_blocks * _kernels.WORDS, np.uint64, Tier.HOST, "cache")
        self.before = ledger.empty(num_blocks, np.int64, Tier.HOST, "cache")
        self.bits[:] = 0

    @classmethod
    def of(cls, ids: NDArray[np.int64], num_rows: int, ledger: Ledger) -> RowSet:
        """Make the sealed set of distinct ascending ids.

        Parameters
        ----------
        ids
            (C,) int64.
        num_rows
            N.
        ledger
            As of the class.

        Returns
        -------
        RowSet
            Of no size where there are no ids.

        Raises
        ------
        DataError
            An id does not ascend, or is not in [0, N).
        """
        rows = cls(num_rows if len(ids) else 0, ledger)
        wrong = _kernels.index_kernel(ids, rows.num_rows, rows.bits)
        if wrong >= 0:
            raise DataError(
                f"cached ids: id {ids[wrong]} at {wrong} does not ascend, or is not one of the "
                f"{num_rows} rows",
                "Give distinct rows of the source in ascending order.",
            )
        rows._count = len(ids)
        rows.seal()
        return rows

    def __len__(self) -> int:
        """C."""
        return self._count

    def lacks(self, ids: NDArray[np.int64]) -> int:
        """Count the ids, distinct rows of the store, that are no members."""
        lacking: int = _kernels.count_kernel(ids, None, self.num_rows, len(ids), self.bits)
        return lacking

    def add(self, ids: NDArray[np.int64]) -> None:
        """Make distinct rows of the store members, those that are none."""
        self._count += self.lacks(ids)
        _kernels.set_kernel(ids, self.bits)

    def common(self, other: RowSet) -> int:
        """Count the rows of the same store that are members of both."""
        count: int = _kernels.common_kernel(self.bits, other.bits)
        return count

    def retain(self, other: RowSet, capacity: int) -> None:
        """Make members of another set of the same store members too, up to a number of members."""
        room = min(capacity - len(self), len(other) - self.common(other))
        _kernels.retain_kernel(self.bits, other.bits, room)
        self._count += room

    def count_members(self) -> None:
        """Count the members anew, after their bits were set from outside."""
        self._count = _kernels.num_set_kernel(self.bits)

    def seal(self) -> None:
        """Count what slots are made of; members are as they are from now on."""
        _kernels.rank_kernel(self.bits, self.before)

    def ids(self, start: int, count: int) -> tuple[NDArray[np.int64], int]:
        """List members in ascending order.

        Parameters
        ----------
        start
            Where to begin: 0, or what the call before gave.
        count
            How many; the set has as many from there on.

        Returns
        -------
        ids : ndarray
            (count,) int64 from the ledger (HOST, owner "cache").
        end : int
            Where to go on.
        """
        ids = self._ledger.empty(count, np.int64, Tier.HOST, "cache")
        end: int = _kernels.ids_kernel(self.bits, start, ids)
        return ids, end

    def absent(
        self, rows: NDArray[np.int64], places: NDArray[np.int64] | None, count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """List the rows that are no members, with their places.

        Parameters
        ----------
        rows
            (R,) int64, rows of the store.
        places
            (R,) int64; 0, 1, 2, … by default.
        count
            How many they are, as `lacks` counts them.

        Returns
        -------
        rows, places : ndarray
            (count,) int64 each from the ledger (HOST, owner "cache"), in the order given.
        """
        missing, missing_places = self._ledger.empty((2, count), np.int64, Tier.HOST, "cache")
        _kernels.misses_kernel(rows, places, self.bits, missing, missing_places)
        return missing, missing_places
