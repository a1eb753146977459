"""Packs: the rows of many batches, read once in disk order and written so that a batch is a range.

A window in memory must hold its rows; a packing holds 4 bytes for each row of a batch. The source
is read in ascending pieces, and each piece is written to the ranges of all batches that want some
of it, so that a batch's rows lie in ascending order in its range of a scratch file.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING

import numpy as np

from gnnx.cache import _kernels
from gnnx.cache.access import every
from gnnx.cache.features import words_of
from gnnx.cache.rows import RowSet
from gnnx.memory import Tier
from gnnx.store import FeatureStore, ScratchRows

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import torch
    from numpy.typing import NDArray

    from gnnx.store import Dataset, Pending


class PackedWindow:
    """What batches want of a store, each batch's rows in one range of a scratch file.

    Parameters
    ----------
    dataset
        Whose readers and ledger serve the scratch file.
    source
        Where the rows are.
    piece_rows
        Rows read at a time.
    id_bytes
        HOST bytes that the ids may take.
    stopped
        Whether nobody wants the packs any more.

    Attributes
    ----------
    rows_read : int
        Distinct rows that came from the source.
    rows_packed : int
        Rows written, those that several batches want as many times.
    rows_served : int
        Rows that batches have found here so far.
    """

    def __init__(
        self,
        dataset: Dataset,
        source: FeatureStore,
        piece_rows: int,
        id_bytes: int,
        stopped: Callable[[], bool],
    ) -> None:
        self._dataset, self._source, self._ledger = dataset, source, dataset.ledger
        self._piece_rows, self._id_bytes, self._stopped = piece_rows, id_bytes, stopped
        self._rows: RowSet | None = RowSet(source.num_rows, self._ledger)
        self._dtype = np.int32 if source.num_rows <= 2**31 else np.int64
        self._ids: list[NDArray[Any]] = []
        self._first = [0]  # of each batch in the scratch file
        self._scratch: ScratchRows | None = None
        self.rows_read = self.rows_served = 0
        self._lock = threading.Lock()

    @property
    def rows_packed(self) -> int:  # noqa: D102 - see Attributes
        return self._first[-1] if self._scratch is not None else 0

    def add(self, ids: NDArray[np.int64]) -> bool:
        """Take in the distinct rows that the next batch misses, if their ids fit."""
        assert self._rows is not None  # nothing was read yet
        total = self._first[-1] + len(ids)
        if total * np.dtype(self._dtype).itemsize > self._id_bytes:
            return False
        ascending = self._ledger.empty(len(ids), self._dtype, Tier.HOST, "cache")
        ascending[:] = ids
        ascending.sort()
        self._rows.add(ids)
        self._ids.append(ascending)
        self._first.append(total)
        return True

    def read(self) -> None:
        """Read the rows and write them out; `store` has them from now on."""
        rows, self._rows = self._rows, None
        assert rows is not None  # it is done once
        rows.seal()
        source, count = self._source, min(self._piece_rows, max(1, len(rows)))
        self._scratch = ScratchRows(
            self._dataset, max(1, self._first[-1]), source.row_shape, source.dtype
        )
        pieces = [self._piece(count) for _ in range(2)]
        out, done = self._piece(count), [0] * len(self._ids)
        start, waiting = 0, None
        for turn, begin in enumerate(range(0, len(rows), count)):
            if self._stopped():
                break
            ids, start = rows.ids(start, min(count, len(rows) - begin))
            pending = source.fetch(ids, pieces[turn % 2][: len(ids)])
            if waiting is not None:  # the next piece is read while this one is written
                self._write(*waiting, rows, out, done)
            waiting = pending, begin, int(ids[-1])
        if waiting is not None:
            self._write(*waiting, rows, out, done)
        self.rows_read = len(rows)
        self._ids.clear()

    def _piece(self, count: int) -> torch.Tensor:
        shape = (count, *self._source.row_shape)
        return self._ledger.tensor(shape, self._source.dtype, Tier.HOST, "cache")

    def _write(
        self,
        pending: Pending,
        begin: int,
        last: int,
        rows: RowSet,
        out: torch.Tensor,
        done: list[int],
    ) -> None:
        """Write the rows of a piece, members from number `begin` to row `last`, to all batches."""
        assert self._scratch is not None  # made before the first piece
        piece, target = words_of(pending.wait(), out)
        for batch, ids in enumerate(self._ids):
            first = done[batch]
            done[batch] = int(np.searchsorted(ids, last, side="right"))
            mine = ids[first : done[batch]]
            if len(mine):
                _kernels.pick_kernel(mine, rows.bits, rows.before, begin, piece, target)
                self._scratch.write_range(self._first[batch] + first, out[: len(mine)])

    def store(self, index: int) -> FeatureStore:
        """Tell where a batch of the window finds its rows."""
        return _Pack(self._source, functools.partial(self._fetch, index))

    def _fetch(
        self,
        index: int,
        rows: NDArray[np.int64],
        out: torch.Tensor | None = None,
        slots: NDArray[np.int64] | None = None,
    ) -> Pending:
        """Fetch all rows of a batch, in any order; other rows come from the source."""
        first, end = self._first[index : index + 2]
        if self._scratch is None or len(rows) != end - first:  # other rows stay than when packed
            return self._source.fetch(rows, out, slots)
        # places in the order of the rows: a sort of rows with their places behind them
        bits = max(1, len(rows) - 1).bit_length()
        places = every(len(rows), self._ledger)
        keys = self._ledger.empty(len(rows), np.int64, Tier.HOST, "cache")
        np.left_shift(rows, bits, out=keys)
        keys |= places
        keys.sort()
        keys &= (1 << bits) - 1
        if slots is not None:
            np.take(slots, keys, out=places)
            places, keys = keys, places
        places[:] = 1
        places[:1] = first
        np.cumsum(places, out=places)
        with self._lock:
            self.rows_served += len(rows)
        return self._scratch.fetch(places, out, keys)

    def done(self, index: int) -> None:
        """Nothing to do: the file goes back as a whole."""

    def close(self) -> None:
        """Give the file back; no batch is being read any more."""
        if self._scratch is not None:
            with self._scratch:
                self._scratch = None


class _Pack(FeatureStore):
    """The source, with the rows that one batch misses at hand."""

    def __init__(self, source: FeatureStore, fetch: Callable[..., Pending]) -> None:
        self._source, self._fetch = source, fetch

    @property
    def num_rows(self) -> int:
        return self._source.num_rows

    @property
    def row_shape(self) -> tuple[int, ...]:
        return self._source.row_shape

    @property
    def dtype(self) -> torch.dtype:
        return self._source.dtype

    @property
    def row_bytes(self) -> int:
        return self._source.row_bytes

    def fetch(
        self,
        rows: NDArray[np.int64],
        out: torch.Tensor | None = None,
        slots: NDArray[np.int64] | None = None,
    ) -> Pending:
        """As of `FeatureStore`."""
        return self._fetch(rows, out, slots)
