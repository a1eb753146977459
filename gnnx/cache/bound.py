"""How few rows a cache could have fetched: the optimum for an epoch, from a sample of its rows.

Belady's rule, that the row goes whose next use is farthest, is optimal (Belady, "A study of
replacement algorithms for a virtual-storage computer", 1966), and can be told when the epoch is
over. A sample of the rows in a cache that is smaller in proportion behaves as all of them do
(Waldspurger et al., "Cache modeling and optimization using miniature simulations", 2017), so that
a few MiB follow any epoch. Letters: N rows, S entries of the sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gnnx import threads
from gnnx.cache import _kernels
from gnnx.memory import Tier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gnnx.memory import Ledger

_ENTRY_BYTES = 4 * 8 + 1  # a use, its place by row, the next use, the heap, a flag
_ALL = 1 << 32  # hashes


def bound_bytes(num_entries: int) -> int:
    """HOST bytes of a bound with so many entries, at most."""
    return num_entries * _ENTRY_BYTES + 2 * 64


class BeladyBound:
    """The uses of some rows of a store in an epoch; how many fetches they need at least.

    A row is followed if its hash is below a threshold. Where the entries do not hold the uses of
    all rows that are, the threshold is halved.

    Parameters
    ----------
    num_rows
        N.
    num_entries
        S; about 1 / sqrt(S) is the relative error.
    ledger
        Where they come from (HOST, owner "cache").

    Raises
    ------
    BudgetError
        HOST does not hold `bound_bytes`.
    """

    def __init__(self, num_rows: int, num_entries: int, ledger: Ledger) -> None:
        self._num_rows, self._ledger = num_rows, ledger
        # the others are of `least_fetched`, which must not want for room at the end of an epoch
        self._entries, *self._work = ledger.empty((4, num_entries), np.int64, Tier.HOST, "cache")
        self._kept = ledger.empty(num_entries, np.bool_, Tier.HOST, "cache")
        self._count, self._threshold = 0, _ALL
        self._lock = threads.Lock()

    def add(self, step: int, rows: NDArray[np.int64]) -> None:
        """Take in what a step wants.

        Parameters
        ----------
        step
            Of the epoch; steps come in any order, each once.
        rows
            (R,) int64, distinct.
        """
        base = step * self._num_rows
        with self._lock:
            done = 0
            while True:
                done, self._count = _kernels.follow_kernel(
                    rows, done, base, self._threshold, self._entries, self._count
                )
                if done == len(rows):
                    return
                self._threshold //= 2
                self._count = _kernels.thin_kernel(
                    self._entries, self._count, self._num_rows, self._threshold
                )

    def least_fetched(self, capacity: int) -> int:
        """Estimate the rows that any cache fetches in these steps, empty at first.

        Parameters
        ----------
        capacity
            Rows that the cache holds from one step to the next.

        Returns
        -------
        int
            Exact where all rows are followed.
        """
        with self._lock:
            share = self._threshold / _ALL
            entries, order, following, heap, kept = (
                array[: self._count] for array in (self._entries, *self._work, self._kept)
            )
            entries.sort()
            _kernels.by_row_kernel(entries, self._num_rows, order)
            order.sort()
            _kernels.following_kernel(order, following)
            fetched: int = _kernels.belady_kernel(
                entries, following, self._num_rows, round(capacity * share), heap, kept
            )
        return round(fetched / share)
