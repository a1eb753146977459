"""A window of batches in memory: their rows, read once and in disk order, in one pool of places.

C places. Two windows share them, the one in use and the one that is read: a place is free for the
next window's rows as soon as the last batch that wants its row is done, so that a window may fill
the pool, and reading it follows the batches of the window before. Rows that both want stay where
they are. What neither wants stays while there is room, longest what windows keep wanting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gnnx.cache import _kernels
from gnnx.cache.features import FeatureCache
from gnnx.cache.rows import RowSet, index_bytes
from gnnx.memory import Tier

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable
    from typing import Any

    from numpy.typing import NDArray

    from gnnx.memory import Ledger
    from gnnx.store import FeatureStore, Pending

MOST_STEPS = 1 << 14
"""Batches of a window, at most: a row's last use is an int16."""
_PIECE_ROWS = 1 << 14  # rows read at a time, at most; two pieces are under way
_PIECES = 16  # of a window, at least, so that reading follows the batches that make room
_PLACE_BYTES = 2 * (4 + 2 + 1) + 4  # where, last use and heat, for two windows; and its free list


def pool_bytes(capacity: int, num_rows: int, row_bytes: int) -> int:
    """HOST bytes of a pool and its windows, at most, without the ids of batches."""
    fixed = 3 * index_bytes(num_rows) + 2 * 16 * min(num_rows, _PIECE_ROWS) + 16 * 64
    return fixed + capacity * (row_bytes + _PLACE_BYTES)


class Pool:
    """C places for rows of a store, and which of them are free.

    Parameters
    ----------
    source
        Where the rows are.
    capacity
        C.
    ledger
        Where all comes from (HOST, owner "cache").
    changed
        Whose lock guards the places; notified when some become free, and when `stopped` changes.
    stopped
        Whether nobody wants the rows any more.

    Attributes
    ----------
    table : Tensor
        (C, ...), the rows.
    free : ndarray
        (C,) int32; the first `num_free` are the places that are free.
    """

    def __init__(
        self,
        source: FeatureStore,
        capacity: int,
        ledger: Ledger,
        changed: threading.Condition,
        stopped: Callable[[], bool],
    ) -> None:
        self.source, self.capacity, self.ledger = source, capacity, ledger
        self.changed, self.stopped = changed, stopped
        self.table = ledger.tensor((capacity, *source.row_shape), source.dtype, Tier.HOST, "cache")
        self.free = ledger.empty(capacity, np.int32, Tier.HOST, "cache")
        self.free[:] = 1
        self.free[:1] = 0
        np.cumsum(self.free, out=self.free)
        self.num_free = capacity

    def take(self, slots: NDArray[np.int64]) -> bool:
        """Wait for as many places as there are slots, and take them; False where it stops."""
        with self.changed:  # without a time limit: places come from whoever uses the batches
            self.changed.wait_for(lambda: self.stopped() or self.num_free >= len(slots))
            if self.stopped():
                return False
            self.num_free -= len(slots)
            slots[:] = self.free[self.num_free : self.num_free + len(slots)]
            return True


class StagedWindow:
    """The union of what batches want, in a pool.

    Parameters
    ----------
    pool
        Where the rows go.
    id_bytes
        HOST bytes that the ids of its batches may take.
    before
        The window before, in the same pool; its batches may be under way.

    Attributes
    ----------
    rows_read : int
        Distinct rows that came from the source: those that the pool did not have.
    rows_packed : int
        None.
    """

    rows_packed = 0

    def __init__(self, pool: Pool, id_bytes: int, before: StagedWindow | None) -> None:
        self._pool, self._id_bytes, self._before = pool, id_bytes, before
        self._rows = RowSet(pool.source.num_rows, pool.ledger)  # wanted; then all in the pool
        self._ids: list[NDArray[Any]] = []
        self._dtype = np.int32 if pool.source.num_rows <= 2**31 else np.int64
        self._num_ids = self._num_done = 0
        self._is_planned = False  # whether it is settled what stays for the next window
        self._slot: NDArray[np.int32]
        self._last: NDArray[np.int16]
        self._heat: NDArray[np.uint8]
        self._cache: FeatureCache | None = None
        self.rows_read = 0

    def add(self, ids: NDArray[np.int64]) -> bool:
        """Take in the distinct rows that the next batch misses, if they fit."""
        num_ids = self._num_ids + len(ids)
        if (
            len(self._rows) + self._rows.lacks(ids) > self._pool.capacity
            or num_ids * np.dtype(self._dtype).itemsize > self._id_bytes
            or len(self._ids) == MOST_STEPS
        ):
            return False
        kept = self._empty(len(ids), self._dtype)
        kept[:] = ids
        self._rows.add(ids)
        self._ids.append(kept)
        self._num_ids = num_ids
        return True

    def read(self) -> None:
        """Bring the rows, as places become free; `store` has them from now on."""
        pool, before = self._pool, self._before
        wanted, self._before = self._rows, None
        if before is None:
            wanted.seal()
            self._slot, self._heat = (
                self._empty(len(wanted), dtype) for dtype in (np.int32, np.uint8)
            )
            self._slot[:], self._heat[:] = -1, 0
            self.rows_read = len(wanted)
        else:
            self._rows = before.leave(wanted)
            self._rows.retain(wanted, pool.capacity)
            self._rows.seal()
            self._slot, self._heat = (
                self._empty(len(self._rows), dtype) for dtype in (np.int32, np.uint8)
            )
            self.rows_read = before.carry(self._rows, self._slot, self._heat)
        rows = self._rows
        self._last = self._empty(len(rows), np.int16)
        self._last[:] = 0
        for step, ids in enumerate(self._ids):
            _kernels.use_kernel(
                ids, np.int16(step + 1), rows.bits, rows.before, self._last, self._heat
            )
        self._fill()
        self._cache = FeatureCache.over(pool.source, rows, pool.table, self._slot, pool.ledger)

    def _fill(self) -> None:
        """Read the rows that have no place yet, in disk order."""
        pool = self._pool
        most = min(_PIECE_ROWS, max(1, pool.capacity // _PIECES))
        pending: Pending | None = None
        at = np.zeros(2, np.int64)  # the id to go on from, and the members before it
        for begin in range(0, self.rows_read, most):
            count = min(most, self.rows_read - begin)
            ids, slots = (self._empty(count, np.int64) for _ in range(2))
            if not pool.take(slots):
                break
            _kernels.place_kernel(self._rows.bits, at, self._slot, slots, ids)
            following = pool.source.fetch(ids, pool.table, slots)
            if pending is not None:  # two pieces are under way, so that the disk never idles
                pending.wait()
            pending = following
        if pending is not None:
            pending.wait()

    def leave(self, wanted: RowSet) -> RowSet:
        """Settle which rows stay when the next window wants some; the others leave when used."""
        pool, rows = self._pool, self._rows
        counts = np.zeros(_kernels.HEATS, np.int64)
        _kernels.heat_kernel(rows.bits, wanted.bits, self._heat, counts)
        missing = len(wanted) - rows.common(wanted)
        stay = RowSet(rows.num_rows, pool.ledger)
        with pool.changed:
            spare = pool.capacity - len(rows)
            for heat, count in enumerate(counts.tolist()):  # the coldest leave
                counts[heat] = min(count, max(0, missing - spare))
                spare += int(counts[heat])
            freed = _kernels.leave_kernel(
                rows.bits, wanted.bits, self._heat, counts, self._num_done, self._last,
                self._slot, stay.bits, pool.free[pool.num_free :],
            )  # fmt: skip
            pool.num_free += freed
            self._is_planned = True
            pool.changed.notify_all()
        stay.count_members()
        return stay

    def carry(self, rows: RowSet, slot: NDArray[np.int32], heat: NDArray[np.uint8]) -> int:
        """Tell the next window where its rows are, -1 where they are not; counts the latter."""
        missing: int = _kernels.carry_kernel(
            self._rows.bits, self._slot, self._heat, rows.bits, slot, heat
        )
        return missing

    def done(self, index: int) -> None:
        """Tell that a batch of the window, and those before, have their rows; the lock is held."""
        pool = self._pool
        while self._num_done <= index:
            step, ids = self._num_done, self._ids[self._num_done]
            self._num_done += 1
            self._ids[step] = ids[:0].copy()
            if self._is_planned:
                pool.num_free += _kernels.done_kernel(
                    ids, np.int16(step + 1), self._rows.bits, self._rows.before, self._last,
                    self._slot, pool.free[pool.num_free :],
                )  # fmt: skip

    def store(self, _index: int) -> FeatureCache:
        """Tell where a batch of the window finds its rows."""
        assert self._cache is not None  # it was read
        return self._cache

    @property
    def rows_served(self) -> int:
        """Rows that batches have found here so far."""
        return 0 if self._cache is None else self._cache.counts.rows_hit

    def close(self) -> None:
        """Nothing to do: memory goes back with the last batch that uses it."""

    def _empty(self, size: int, dtype: Any) -> NDArray[Any]:
        return self._pool.ledger.empty(size, dtype, Tier.HOST, "cache")
