"""Keys kept once each, or looked up, in bounded memory: dealt by hash to buckets in a file.

The table of a bucket's keys fits the cache, or nearly, and files are read and written in order. For
10 million edges between a million keys of text this takes 5 s of a core; DuckDB's DISTINCT and its
two joins took 25 s, and at times more memory than they had been given.

Letters: K keys in a list.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa

from gnnx import threads
from gnnx.memory import Tier
from gnnx.prepare import _hashing
from gnnx.prepare._hashing import BUCKETS, SPARE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from gnnx.prepare.arrays import Scratch, Workspace

T = TypeVar("T")

_LARGEST_SLOT, _SMALLEST_SLOT = 64 << 10, 512
_ID_BYTES = 8


class KeyList:
    """A list of keys, all of text or all integers, some of which may be missing.

    Parameters
    ----------
    workspace
        Takes the keys in scratch files; its ledger's HOST gives buffers.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        free = workspace.ledger.free_bytes(Tier.HOST)
        share = _LARGEST_SLOT if free is None else free // 8 // BUCKETS
        # an odd number of cache lines: the ends of slots then lie in different sets of the cache
        size = max(_SMALLEST_SLOT, min(_LARGEST_SLOT, share)) // 128 * 128 + 64
        self._slots = workspace.empty((BUCKETS, size), np.uint8, "keys")
        self._used = np.zeros(BUCKETS, np.int64)
        self._records = _Streams(workspace)
        self._buckets = workspace.scratch()  # of each key, in order
        self._counts = np.zeros(BUCKETS, np.int64)
        self._shapes: list[tuple[int, int]] = []  # columns and rows that were added together
        self._type: pa.DataType = pa.int64()
        self._extra_bytes = 0

    def __len__(self) -> int:
        return int(self._counts.sum())

    def add(self, columns: Sequence[pa.Array], ids: NDArray[np.int64] | None = None) -> None:
        """Append keys.

        Parameters
        ----------
        columns
            (r,) int64 or text each, null where a key is missing.
        ids
            (r,) of keys in one column: what `look_up` finds.
        """
        self._type = columns[0].type
        self._extra_bytes = 0 if ids is None else _ID_BYTES
        self._shapes.append((len(columns), len(columns[0])))
        ids = np.zeros(0, np.int64) if ids is None else ids
        buckets = np.empty(len(columns[0]), np.uint8)
        for column in columns:
            self._deal(column, ids, buckets)
            self._buckets.append(buckets)
            _hashing.count_buckets(buckets, self._counts)

    def _deal(self, keys: pa.Array, ids: NDArray[np.int64], buckets: NDArray[np.uint8]) -> None:
        data, bounds, present = _bytes_of(keys)
        done = 0
        while done < len(keys):
            done = _hashing.deal(
                data,
                bounds,
                present,
                ids,
                done,
                buckets,
                self._slots,
                self._used,
            )
            if done < len(keys):
                bucket = int(buckets[done])
                self._flush(bucket)
                key = data[bounds[done] : bounds[done + 1]]
                if len(key) + SPARE > self._slots.shape[1]:
                    record = [np.array([len(key)], "<u4").view(np.uint8), key]
                    record.append(ids[done : done + 1].view(np.uint8))
                    self._records.append(bucket, np.concatenate(record))
                    done += 1

    def _flush(self, bucket: int) -> None:
        self._records.append(bucket, self._slots[bucket, : self._used[bucket]])
        self._used[bucket] = 0

    def close(self) -> None:
        """Write what is left, and give the memory back: no more keys are added."""
        for bucket in range(BUCKETS):
            self._flush(bucket)
        self._slots = self._slots[:0].copy()

    @property
    def _filled(self) -> list[int]:
        """Buckets with keys."""
        found: list[int] = np.flatnonzero(self._counts).tolist()
        return found

    def _pieces(self, bucket: int) -> Iterator[NDArray[np.uint8]]:
        """Read the records of a bucket, whole ones."""
        rest = self._records.size(bucket)
        buffer = self._workspace.empty(min(rest, self._workspace.piece_bytes), np.uint8, "keys")
        reader, kept = self._records.reader(bucket), 0
        while rest:
            step = min(rest, len(buffer) - kept)
            reader.read_into(buffer[kept : kept + step])
            filled, rest = kept + step, rest - step
            size = _hashing.whole_records(buffer[:filled], self._extra_bytes)
            yield buffer[:size]
            kept = filled - size
            before = buffer[size:filled]
            if size == 0:  # a record larger than a piece
                buffer = self._workspace.empty(2 * len(buffer), np.uint8, "keys")
            buffer[:kept] = before

    def distinct(self) -> Iterator[pa.Array]:
        """Keys, each once, in an order of no meaning.

        Yields
        ------
        pyarrow.Array
            Of a bucket.

        Raises
        ------
        BudgetError
            The keys of a bucket, one of 256, do not fit the memory.
        """
        yield from _side_by_side(self._distinct_of, self._filled)

    def _distinct_of(self, bucket: int) -> pa.Array:
        space, size = self._workspace, 1 << 8
        table = space.empty(size, np.int32, "keys")
        table[:] = 0
        ends = space.empty(size // 2 + 1, np.int64, "keys")
        ends[0] = count = 0
        kept = space.empty(16 * size, np.uint8, "keys")
        for piece in self._pieces(bucket):
            at = 0
            while True:
                count, at = _hashing.collect(piece, at, table, kept, ends, count)
                if at == len(piece):
                    break
                if 2 * (count + 1) > len(table):
                    table = space.empty(2 * len(table), np.int32, "keys")
                    table[:] = 0
                    _hashing.rebuild(kept, ends, count, table)
                    ends = _grown(space, ends, len(table) // 2 + 1)
                else:
                    kept = _grown(space, kept, 2 * len(kept) + len(piece))
        return self._array(ends[: count + 1], kept[: ends[count]])

    def _array(self, ends: NDArray[np.int64], kept: NDArray[np.uint8]) -> pa.Array:
        if pa.types.is_integer(self._type):
            return pa.array(kept.view(self._type.to_pandas_dtype()))
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(kept)]
        return pa.Array.from_buffers(pa.large_utf8(), len(ends) - 1, buffers)

    def look_up(self, known: KeyList, index: np.dtype[Any]) -> Iterator[NDArray[Any]]:
        """Ids of the keys, in their order.

        Parameters
        ----------
        known
            Keys with ids, each once, none missing.
        index
            Type of the ids.

        Yields
        ------
        ndarray
            (columns, r), as they were added; -1 where a key is missing or not known.

        Raises
        ------
        BudgetError
            The known keys of a bucket, one of 256, do not fit the memory.
        """
        found = _Streams(self._workspace)

        def work(bucket: int) -> None:
            records, table = known._table(bucket)
            for piece in self._pieces(bucket):
                ids = self._workspace.empty(len(piece) // 4, index, "keys")
                count = _hashing.look_up(piece, records, table, ids)
                found.append(bucket, ids[:count].view(np.uint8))

        for _ in _side_by_side(work, self._filled):
            pass
        readers = [found.reader(bucket) for bucket in range(BUCKETS)]
        stored = self._buckets.array("keys", (len(self),), np.uint8)
        begin = 0
        for shapes in self._grouped(self._workspace.rows_of(2 * index.itemsize + 1)):
            size = sum(columns * rows for columns, rows in shapes)
            buckets = self._workspace.empty(size, np.uint8, "keys")
            ids, out = (self._workspace.empty(size, index, "keys") for _ in range(2))
            stored.read_into(buckets, begin)
            counts = np.zeros(BUCKETS, np.int64)
            _hashing.count_buckets(buckets, counts)
            cursor = np.cumsum(counts) - counts
            for bucket in np.flatnonzero(counts).tolist():
                part = ids[cursor[bucket] : cursor[bucket] + counts[bucket]]
                readers[bucket].read_into(part.view(np.uint8))
            _hashing.put_back(buckets, ids, cursor, out)
            begin, at = begin + size, 0
            for columns, rows in shapes:
                yield out[at : at + columns * rows].reshape(columns, rows)
                at += columns * rows

    def _grouped(self, most: int) -> Iterator[list[tuple[int, int]]]:
        """Shapes of what was added, as many together as have so many keys; at least one."""
        group: list[tuple[int, int]] = []
        total = 0
        for columns, rows in self._shapes:
            if group and total + columns * rows > most:
                yield group
                group, total = [], 0
            group.append((columns, rows))
            total += columns * rows
        if total:
            yield group

    def _table(self, bucket: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """All records of a bucket, and a table of them."""
        records = self._workspace.empty(self._records.size(bucket), np.uint8, "keys")
        self._records.reader(bucket).read_into(records)
        places = 1 << max(4, int(2 * self._counts[bucket]).bit_length())
        table = self._workspace.empty(places, np.int64, "keys")
        table[:] = 0
        _hashing.enter(records, table)
        return records, table


def _bytes_of(keys: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]:
    """Bytes of keys, where each begins and the last ends, and which are there."""
    if pa.types.is_integer(keys.type):
        data = keys.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64).view(np.uint8)
        bounds = np.arange(len(keys) + 1) * 8
    else:
        text = keys.cast(pa.large_binary())
        bounds = np.frombuffer(text.buffers()[1], np.int64)[text.offset :][: len(text) + 1].copy()
        data = np.frombuffer(text.buffers()[2] or b"", np.uint8)
    data = data.view()
    data.flags.writeable = False  # of one type for all columns
    return data, bounds, keys.is_valid().to_numpy(zero_copy_only=False)


def _side_by_side(work: Callable[[int], T], buckets: list[int]) -> Iterator[T]:
    """Call a function for each bucket, some ahead on the pool; results come in order."""
    jobs = (functools.partial(work, bucket) for bucket in buckets)
    return threads.ahead(jobs, threads.num_threads() - 1)


def _grown(space: Workspace, array: NDArray[Any], size: int) -> NDArray[Any]:
    found = space.empty(size, array.dtype, "keys")
    found[: len(array)] = array
    return found


class _Streams:
    """Bytes appended to a stream for each bucket, all in one scratch file."""

    def __init__(self, workspace: Workspace) -> None:
        self._scratch = workspace.scratch()
        self._blocks: list[list[tuple[int, int]]] = [[] for _ in range(BUCKETS)]

    def append(self, bucket: int, data: NDArray[np.uint8]) -> None:
        if len(data):
            self._blocks[bucket].append((self._scratch.append(data), len(data)))

    def size(self, bucket: int) -> int:
        return sum(size for _, size in self._blocks[bucket])

    def reader(self, bucket: int) -> _Reader:
        return _Reader(self._scratch, self._blocks[bucket])


class _Reader:
    """Reads a stream from its begin to its end."""

    def __init__(self, scratch: Scratch, blocks: list[tuple[int, int]]) -> None:
        self._stored = scratch.array("keys", (scratch.size,), np.uint8)
        self._blocks, self._next, self._done = blocks, 0, 0

    def read_into(self, out: NDArray[np.uint8]) -> None:
        """Read the next bytes, as many as fill `out`."""
        filled = 0
        while filled < len(out):
            at, size = self._blocks[self._next]
            step = min(size - self._done, len(out) - filled)
            self._stored.read_into(out[filled : filled + step], at + self._done)
            filled, self._done = filled + step, self._done + step
            if self._done == size:
                self._next, self._done = self._next + 1, 0
