"""A window of batches in memory: their rows, read once and in disk order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gnnx.cache.features import FeatureCache
from gnnx.cache.rows import RowSet

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gnnx.memory import Ledger
    from gnnx.store import FeatureStore


class StagedWindow:
    """The union of what batches want, in HOST memory.

    Parameters
    ----------
    source
        Where the rows are.
    capacity
        Most rows.
    ledger
        Where rows and index come from (HOST, owner "cache").
    before
        The window before, whose rows are at hand while this one is read.

    Attributes
    ----------
    cache : FeatureCache or None
        The rows, once read.
    lasting : RowSet or None
        Those of the rows that the window before had as well.
    rows_read : int
        Distinct rows that came from the source: those that the window before did not have.
    rows_packed : int
        None.
    """

    rows_packed = 0

    def __init__(
        self, source: FeatureStore, capacity: int, ledger: Ledger, before: StagedWindow | None
    ) -> None:
        self._source, self._capacity, self._ledger = source, capacity, ledger
        self._rows, self._before = RowSet(source.num_rows, ledger), before
        self.lasting: RowSet | None = None
        self.cache: FeatureCache | None = None
        self.rows_read = 0

    def add(self, ids: NDArray[np.int64]) -> bool:
        """Take in the distinct rows that the next batch misses, if they fit."""
        if len(self._rows) + self._rows.lacks(ids) > self._capacity:
            return False
        self._rows.add(ids)
        return True

    def read(self) -> None:
        """Bring the rows; `store` has them from now on."""
        before, self._before = self._before, None
        at_hand = None
        self.rows_read = len(self._rows)
        if before is not None and before.cache is not None:
            at_hand = before.cache.apart()
            # what has room stays: first what two windows in a row have had, which is most popular
            for rows in (before.lasting, at_hand.rows):
                if rows is not None:
                    self._rows.retain(rows, self._capacity)
            self.lasting = self._rows.both(at_hand.rows)
            self.rows_read = len(self._rows) - len(self.lasting)
        self._rows.seal()
        self.cache = FeatureCache(self._source, self._rows, self._ledger, through=at_hand)

    def store(self, _index: int) -> FeatureCache:
        """Tell where a batch of the window finds its rows."""
        assert self.cache is not None  # it was read
        return self.cache

    @property
    def rows_served(self) -> int:
        """Rows that batches have found here so far."""
        return 0 if self.cache is None else self.cache.counts.rows_hit

    def close(self) -> None:
        """Nothing to do: memory goes back with the last batch that uses it."""
