"""Packs: the rows of many batches, read once in disk order and written so that a batch is a range.

A window in memory must hold its rows; a packing holds 4 bytes for each row of a batch. The source
is read in ascending pieces, rows straight to their places in a buffer that has a region for each
batch, and regions go to the ranges of their batches in a scratch file: whole blocks, past the page
cache. What a piece leaves of a block of a batch waits for the next one. So a batch's rows lie in
ascending order in its range.

W batches, K rows that they want, the same row as often as batches want it.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gnnx.cache import _kernels
from gnnx.cache.access import every
from gnnx.cache.rows import RowSet, index_bytes
from gnnx.memory import Tier
from gnnx.store import WAIT_S, DiskFeatures, FeatureStore, ScratchFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import torch
    from numpy.typing import NDArray

    from gnnx.store import Dataset, Job, Pending

_NUM_PIECES = 3  # one is read, one waits for a buffer or is read too, one is written
_BLOCK = 4 << 10
_ROW_BYTES = 8 + 8 + 16  # of a piece: its id, its place, and the order of both while it is sorted
_STEP_BYTES = (2 * _NUM_PIECES + 1) * _BLOCK + 128


def pack_bytes(num_rows: int, steps: int, store_rows: int, row_bytes: int) -> int:
    """HOST bytes of making packs, at most, without the ids of batches.

    Parameters
    ----------
    num_rows
        Rows of a piece.
    steps
        W, at most.
    store_rows
        Rows of the source.
    row_bytes
        Of one of them.

    Returns
    -------
    int
        Of pieces, blocks that are not full, and what counts rows.
    """
    counts = index_bytes(store_rows) + 4 * (store_rows // _kernels.WORD + 1)
    return counts + _NUM_PIECES * num_rows * (row_bytes + _ROW_BYTES) + steps * _STEP_BYTES + 1024


class _Piece(NamedTuple):
    """Rows of all batches on their way through a buffer."""

    buffer: NDArray[np.uint8]
    job: Job
    """That reads them."""
    region: NDArray[np.int64]
    """(W,) where the region of each batch begins."""
    begin: NDArray[np.int64]
    """(W,) the first row of each batch."""
    end: NDArray[np.int64]
    """(W,) after the last one."""


class PackedWindow:
    """What batches want of a store, each batch's rows in one range of a scratch file.

    Parameters
    ----------
    dataset
        Whose readers and ledger serve.
    source
        Where the rows are.
    steps
        W, at most.
    piece_rows
        Rows read at a time.
    id_bytes
        HOST bytes that the ids may take.
    files
        Of windows that are closed, one of which is written to again; whoever owns them closes them.
    stopped
        Whether nobody wants the packs any more.

    Attributes
    ----------
    rows_read : int
        Distinct rows that came from the source.
    rows_packed : int
        K: rows written, those that several batches want as many times.
    rows_served : int
        Rows that batches have found here so far.
    """

    def __init__(
        self,
        dataset: Dataset,
        source: DiskFeatures,
        steps: int,
        piece_rows: int,
        id_bytes: int,
        files: list[ScratchFile],
        stopped: Callable[[], bool],
    ) -> None:
        self._dataset, self._source, self._ledger = dataset, source, dataset.ledger
        self._files = files
        self._steps, self._piece_rows, self._stopped = steps, piece_rows, stopped
        dtype = np.dtype(np.int32 if source.num_rows <= 2**31 else np.int64)
        self._ids: NDArray[Any] | None = self._empty(id_bytes // dtype.itemsize, dtype)
        self._rows: RowSet | None = RowSet(source.num_rows, self._ledger)
        self._counts: NDArray[np.int32] | None = self._empty(
            source.num_rows // _kernels.WORD + 1, np.int32
        )
        self._counts[:] = 0
        self._first = [0]  # of each batch in the ids
        self._packs: list[DiskFeatures] = []
        self._scratch: ScratchFile | None = None
        self.rows_read = self.rows_packed = self.rows_served = 0
        self._lock = threading.Lock()

    def add(self, ids: NDArray[np.int64]) -> bool:
        """Take in the distinct rows that the next batch misses, if they fit."""
        assert self._ids is not None  # nothing was read yet
        assert self._rows is not None
        assert self._counts is not None
        first, total = self._first[-1], self._first[-1] + len(ids)
        if total > len(self._ids) or len(self._first) > self._steps:
            return False
        if _kernels.tally_kernel(ids, self._counts, 1) > self._piece_rows:
            _kernels.tally_kernel(ids, self._counts, -1)
            return False
        ascending = self._ids[first:total]
        ascending[:] = ids
        ascending.sort()
        self._rows.add(ids)
        self._first.append(total)
        return True

    def read(self) -> None:
        """Read the rows and write them out; `store` has them from now on."""
        assert self._rows is not None  # it is done once
        source, first = self._source, np.array(self._first)
        num_blocks = -(-np.diff(first) * source.row_bytes // _BLOCK)
        place = np.append(0, np.cumsum(num_blocks)) * _BLOCK  # of each batch in the file
        self.rows_read, self._rows = len(self._rows), None
        if self._files:
            self._scratch = self._files.pop()
            self._scratch.grow(int(place[-1]))
        else:
            self._scratch = ScratchFile(self._dataset, int(place[-1]), direct=True)
        self._copy(first, place)
        for begin, count in zip(place.tolist(), np.diff(first).tolist(), strict=False):
            self._packs.append(self._scratch.rows(begin, count, source.row_shape, source.dtype))
        self.rows_packed = self._first[-1]
        self._ids = self._counts = None

    def _copy(self, first: NDArray[np.int64], place: NDArray[np.int64]) -> None:
        """Copy all rows from the source to the scratch file, piece by piece."""
        num_steps = len(first) - 1
        size = self._piece_rows * self._source.row_bytes + 2 * _BLOCK * num_steps
        buffers = [
            self._ledger.empty(size, np.uint8, Tier.HOST, "cache", align=_BLOCK)
            for _ in range(_NUM_PIECES)
        ]
        writes: list[Job | None] = [None] * _NUM_PIECES
        rest = self._empty(num_steps * _BLOCK, np.uint8)  # of each batch, a block that is not full
        done, word, turn = first[:-1].copy(), 0, 0
        piece: _Piece | None = None
        try:
            while not self._stopped():
                if (written := writes[turn]) is not None:
                    written.wait(WAIT_S)
                word, following = self._read_piece(buffers[turn], first, done, word)
                if piece is not None:  # the next piece is read while this one is written
                    writes[turn - 1] = self._write_piece(piece, first, place, rest)
                if following is None:
                    break
                piece, turn = following, (turn + 1) % _NUM_PIECES
            for job in writes:
                if job is not None:
                    job.wait(WAIT_S)
        finally:  # the file is closed next, unless a write is stuck in it for ever
            for job in writes:
                if job is not None and not self._dataset.io.is_dead:
                    job.settled(WAIT_S)

    def _read_piece(
        self,
        buffer: NDArray[np.uint8],
        first: NDArray[np.int64],
        done: NDArray[np.int64],
        word: int,
    ) -> tuple[int, _Piece | None]:
        """Begin to read the rows of the next words; none where all are read."""
        assert self._counts is not None
        word, count = _kernels.words_kernel(self._counts, word, self._piece_rows)
        if not count:
            return word, None
        rows, offsets = self._empty(count, np.int64), self._empty(count, np.int64)
        begin, region = done.copy(), np.empty_like(done)
        _kernels.regions_kernel(
            self._ids, first, done, word * _kernels.WORD, self._source.row_bytes, _BLOCK,
            rows, offsets, region,
        )  # fmt: skip
        job = self._source.scatter(rows, buffer, offsets)
        return word, _Piece(buffer, job, region, begin, done.copy())

    def _write_piece(
        self,
        piece: _Piece,
        first: NDArray[np.int64],
        place: NDArray[np.int64],
        rest: NDArray[np.uint8],
    ) -> Job | None:
        """Begin to write the whole blocks of a piece, when they are read."""
        assert self._scratch is not None  # made before the first piece
        piece.job.wait(WAIT_S)
        at, begin, size = np.empty((3, len(piece.begin)), np.int64)
        count = _kernels.blocks_kernel(
            first, piece.begin, piece.end, self._source.row_bytes, _BLOCK, place, piece.region,
            piece.buffer, rest, at, begin, size,
        )  # fmt: skip
        if not count:
            return None
        return self._scratch.write(piece.buffer, at[:count], begin[:count], size[:count])

    def _empty(self, size: int, dtype: Any) -> NDArray[Any]:
        return self._ledger.empty(size, dtype, Tier.HOST, "cache")

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
        pack = self._packs[index]
        if len(rows) != pack.num_rows:  # other rows stay than when packed
            return self._source.fetch(rows, out, slots)
        # places in the order of the rows: a sort of rows with their places behind them
        bits = max(1, len(rows) - 1).bit_length()
        places = every(len(rows), self._ledger)
        keys = self._empty(len(rows), np.int64)
        np.left_shift(rows, bits, out=keys)
        keys |= places
        keys.sort()
        keys &= (1 << bits) - 1
        if slots is not None:
            np.take(slots, keys, out=places)
            keys[:] = places
            places[:] = 1
            places[:1] = 0
            np.cumsum(places, out=places)
        with self._lock:
            self.rows_served += len(rows)
        return pack.fetch(places, out, keys)

    def done(self, index: int) -> None:
        """Nothing to do: the file goes back as a whole."""

    def close(self) -> None:
        """Leave the file to the next window; no batch is being read any more."""
        if self._scratch is not None:
            self._files.append(self._scratch)
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
