"""How few rows a cache could have fetched: the optimum for an epoch, from a sample of its rows.

Belady's rule, that the row goes whose next use is farthest, is optimal (Belady, "A study of
replacement algorithms for a virtual-storage computer", 1966), and can be told when the epoch is
over. A sample of the rows in a cache that is smaller in proportion behaves as all of them do
(Waldspurger et al., "Cache modeling and optimization using miniature simulations", 2017), so that
any epoch is followed in few MiB, the more roughly the fewer rows these hold. Letters: N rows, S
entries of the sample.
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
_SHARE, _FEWEST, _MOST = 256, 64, 1 << 16  # a 256th of the budget, 2 MiB at most


def entries_within(budget: int) -> int:
    """Entries of a bound that takes a small part of so many HOST bytes; 0 where too few."""
    count = min(_MOST, budget // _SHARE // _ENTRY_BYTES)
    return count if count >= _FEWEST else 0


def bound_bytes(num_entries: int) -> int:
    """HOST bytes of a bound with so many entries, at most."""
    return num_entries * _ENTRY_BYTES + 2 * 64 if num_entries else 0


class BeladyBound:
    """The uses of some rows of a store in an epoch; how many fetches they need at least.

    A row is followed if its hash is below a threshold. Where the entries do not hold the uses of
    all rows that are, the threshold is halved.

    Parameters
    ----------
    num_rows
        N.
    num_entries
        S, at least 1. With all uses of r rows the relative error is some 1 / sqrt(r).
    capacity
        Rows that the cache holds from one step to the next.
    ledger
        Where entries come from (HOST, owner "cache").
    spare
        Rows that it may hold before the first step, whichever it likes, beside those of `hold`.

    Raises
    ------
    BudgetError
        HOST does not hold `bound_bytes`.
    """

    def __init__(
        self, num_rows: int, num_entries: int, capacity: int, ledger: Ledger, *, spare: int = 0
    ) -> None:
        self._capacity, self._spare = capacity, spare
        self._num_rows, self._ledger = num_rows, ledger
        # the others are of `least_fetched`, which must not want for room at the end of an epoch
        self._entries, *self._work = ledger.empty((4, num_entries), np.int64, Tier.HOST, "cache")
        self._kept = ledger.empty(num_entries, np.bool_, Tier.HOST, "cache")
        self._count, self._threshold = 0, _ALL
        self._lock = threads.Lock()

    def begin(self) -> None:
        """Forget all, for another epoch."""
        with self._lock:
            self._count, self._threshold = 0, _ALL

    def hold(self, rows: NDArray[np.int64]) -> None:
        """Let rows be in the cache before the first step.

        Parameters
        ----------
        rows
            (R,) int64, distinct, in this call and those before.
        """
        self._enter(-self._num_rows, rows)

    def add(self, step: int, rows: NDArray[np.int64]) -> None:
        """Take in what a step wants.

        Parameters
        ----------
        step
            Of the epoch; steps come in any order, each once.
        rows
            (R,) int64, distinct.
        """
        self._enter(step * self._num_rows, rows)

    def _enter(self, base: int, rows: NDArray[np.int64]) -> None:
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

    def least_fetched(self) -> int:
        """Estimate the rows that any cache fetches in these steps.

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
                entries,
                following,
                self._num_rows,
                round(self._capacity * share),
                round(self._spare * share),
                heap,
                kept,
            )
        return round(fetched / share)
