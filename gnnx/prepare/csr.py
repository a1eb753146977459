"""Rows of in-edges from a stream of edges, in bounded memory.

Letters: N nodes, E edges. The stream is read once to check its ids, and to count the entries of
each row where all of them fit a cache, else to sort edges into buckets of rows on disk. Then
sources are scattered to where they belong, of all rows or of several buckets side by side. Rows
are sorted, so that the result depends neither on the order of the edges nor on the memory or the
threads.

An edge that is wanted only where it is absent (a reverse, a loop) goes into its row as a candidate,
marked by the lowest bit, and is dropped there if it meets its equal.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from gnnx import threads
from gnnx.memory import ALIGNMENT, Tier
from gnnx.prepare import _kernels
from gnnx.prepare.buckets import Buckets
from gnnx.prepare.text import outside

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from gnnx.prepare.arrays import Workspace
    from gnnx.prepare.edges import EdgePiece, EdgeStream
    from gnnx.prepare.report import Report
    from gnnx.store import DatasetWriter
    from gnnx.threads import Progress

_FOLDER = "edges/node-edge-node"
WHOLE_BYTES = 32 << 20
"""Of rows that are built at once, at most: what a last-level cache holds, or near. Edges scattered
over more of the memory take twice the time of those sorted into buckets first."""
_SORT_GRAIN = 1 << 12  # rows
_Built: TypeAlias = tuple[list[tuple["NDArray[np.int64]", "NDArray[Any]"]], "NDArray[np.int64]"]
"""Pieces of rows, each with their ends and sources, and what changed."""


@dataclasses.dataclass(frozen=True)
class EdgeRules:
    """What becomes of the edges of an input."""

    undirected: bool = False
    """Add an edge's reverse, once, where the input lacks it."""
    self_loops: Literal["keep", "drop", "add"] = "keep"
    """`add` gives a loop to every node that has none."""
    duplicates: Literal["keep", "drop", "sum"] = "keep"
    """`drop` and `sum` keep one of parallel edges; `sum` adds up their values."""


class CsrBuilder:
    """Writes the rows of in-edges of a graph.

    Parameters
    ----------
    edges
        The input.
    num_nodes
        N.
    rules
        What becomes of loops, parallel and missing edges.
    workspace
        Its ledger bounds the memory.
    progress
        Told the edges that have been read, passes counted.
    """

    def __init__(
        self,
        edges: EdgeStream,
        num_nodes: int,
        rules: EdgeRules,
        workspace: Workspace,
        progress: Progress | None = None,
    ) -> None:
        self._edges, self._num_nodes, self._rules = edges, num_nodes, rules
        self._workspace, self._progress = workspace, progress
        self._drop_loops = rules.self_loops == "drop"
        narrow = num_nodes <= 2**31
        self._index = np.dtype(np.int32 if narrow else np.int64)
        self._entry = np.dtype(np.uint32 if narrow else np.uint64)  # one bit more
        # what comes and goes beside the rows: buffers of the stream, room for the last array
        self._stream_bytes = 6 * workspace.piece_bytes
        bitmap_bytes = -(-num_nodes // 8)
        self._touched = self._zeros(bitmap_bytes, np.uint8)
        self._looped = self._zeros(bitmap_bytes, np.uint8)

    def write(self, writer: DatasetWriter, report: Report) -> None:
        """Write `indptr`, `indices` and, where there are loops, `loops`.

        Parameters
        ----------
        writer
            Of the data set.
        report
            Told what became of the edges.

        Raises
        ------
        DataError
            An id is outside [0, N).
        BudgetError
            The largest row does not fit the memory.
        """
        indptr = writer.array(f"{_FOLDER}/indptr", (self._num_nodes + 1,), "int64")
        indices = writer.array(f"{_FOLDER}/indices", (None,), self._index.name)
        report.edges_read = self._edges.num_edges
        changes = np.zeros(4, np.int64)
        num_stored = 0
        indptr.append(np.zeros(1, np.int64))
        for rows, kept in self._rows(report, changes):
            indptr.append(np.add(rows, num_stored, out=rows))
            indices.append(kept)
            num_stored += len(kept)
            del kept, rows
        writer.edges(("node", "edge", "node"), num_stored)
        self._write_loops(writer)
        duplicates, reverses, loops, report.isolated = changes.tolist()
        report.duplicates, report.reversed_added, report.loops_added = duplicates, reverses, loops
        report.edges_stored = num_stored
        report.dropped = report.edges_read + reverses + loops - num_stored

    def _zeros(self, size: int, dtype: type) -> NDArray[Any]:
        array = self._workspace.empty(size, dtype, "edges")
        array[:] = 0
        return array

    def _free_bytes(self) -> int:
        free = self._workspace.ledger.free_bytes(Tier.HOST)
        return 1 << 62 if free is None else free

    def _rows(
        self, report: Report, changes: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """Build rows in pieces: their ends, counted from 0, and their sorted sources."""
        num_entries = self._edges.num_edges * (2 if self._rules.undirected else 1)
        if self._rules.self_loops == "add":
            num_entries += self._num_nodes
        room = self._free_bytes() - self._stream_bytes - 2 * ALIGNMENT
        if num_entries * self._entry.itemsize + 8 * self._num_nodes <= min(room, WHOLE_BYTES):
            rows = self._new_counts(0, self._num_nodes)
            report.self_loops = self._count(rows)
            changes[3] = self._num_nodes - int(_kernels.count_marks(self._touched))
            yield rows, self._fill(0, rows, self._pieces("placing edges"), changes)
            return
        buckets = Buckets(self._num_nodes, num_entries, self._index, self._workspace)
        report.self_loops = self._distribute(buckets)
        yield from self._bucket_rows(buckets, changes)

    def _bucket_rows(
        self, buckets: Buckets, changes: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """Rows of all buckets in order; small ones are built ahead, side by side."""
        num_ahead = threads.num_threads()
        share = self._free_bytes() // (num_ahead + 2) - self._stream_bytes
        ahead: collections.deque[Future[_Built]] = collections.deque()
        begun = 0

        def begin() -> None:
            nonlocal begun
            while (
                begun < buckets.count
                and len(ahead) < num_ahead
                and self._bytes_of(buckets, begun) <= share
            ):
                ahead.append(threads.submit(self._build, buckets, begun))
                begun += 1

        try:
            for bucket in range(buckets.count):
                begin()
                if ahead:
                    built, found = ahead[0].result()  # an interrupt may come meanwhile
                    ahead.popleft()
                    begin()  # all threads have work while these are written
                    changes += found
                    while built:
                        yield built.pop(0)
                else:  # too large to be one of several
                    begun += 1
                    yield from self._rows_of(buckets, bucket, changes)
                if self._progress:
                    last = min((bucket + 1) << buckets.shift, self._num_nodes)
                    self._progress("placing edges", last, self._num_nodes)
        finally:
            concurrent.futures.wait([job for job in ahead if not job.cancel()])

    def _bytes_of(self, buckets: Buckets, bucket: int) -> int:
        """HOST bytes that building a bucket at once takes, at most."""
        num_rows = 1 << buckets.shift
        num_entries = buckets.num_edges(bucket) * (2 if self._rules.undirected else 1) + num_rows
        return 8 * num_rows + num_entries * self._entry.itemsize + self._workspace.piece_bytes

    def _build(self, buckets: Buckets, bucket: int) -> _Built:
        changes = np.zeros(4, np.int64)
        return list(self._rows_of(buckets, bucket, changes)), changes

    def _rows_of(
        self, buckets: Buckets, bucket: int, changes: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
        """Rows of one bucket, in as many ranges as the memory demands."""
        first = bucket << buckets.shift
        counts = self._new_counts(first, min(first + (1 << buckets.shift), self._num_nodes))
        for piece in buckets.pieces(bucket):
            _kernels.count_rows(piece, first, self._rules.undirected, self._drop_loops, counts)
        loops = self._rules.self_loops == "add"
        changes[3] += _kernels.count_isolated(counts, int(loops), first, self._touched)
        begin = 0
        while begin < len(counts):
            capacity = self._free_bytes() - self._stream_bytes - 2 * ALIGNMENT
            size = self._entry.itemsize
            end = int(_kernels.end_of_range(counts, begin, 1, 0, size, capacity))
            rows = counts[begin:end]
            kept = self._fill(first + begin, rows, buckets.pieces(bucket), changes)
            yield rows, kept
            del kept
            begin = end

    def _new_counts(self, first: int, last: int) -> NDArray[np.int64]:
        """Entries of rows before any edge is counted."""
        counts = self._zeros(last - first, np.int64)
        if self._rules.self_loops == "add":
            counts[:] = 1
        return counts

    def _pieces(self, stage: str) -> Iterator[EdgePiece]:
        done = 0
        for piece in self._edges.pieces():
            yield piece
            done += piece.num_edges
            if self._progress:
                self._progress(stage, done, self._edges.num_edges)

    def _count(self, counts: NDArray[np.int64]) -> int:
        """Check all edges and count the entries of all rows; returns the number of loops."""
        loops = done = 0
        for piece in self._pieces("checking edges"):
            checked, found = _kernels.count_entries(
                piece,
                self._num_nodes,
                self._rules.undirected,
                self._drop_loops,
                0,
                counts,
                self._touched,
                self._looped,
            )
            self._refuse(piece, checked, done)
            loops, done = loops + found, done + checked
        return loops

    def _distribute(self, buckets: Buckets) -> int:
        """Check all edges and sort them into buckets; returns the number of loops."""
        loops = done = 0
        mirror, drop_loops = self._rules.undirected, self._drop_loops
        for piece in self._pieces("checking edges"):
            checked, found = buckets.add(piece, mirror=mirror, drop_loops=drop_loops)
            self._refuse(piece, checked, done)
            loops, done = loops + found, done + checked
        buckets.close(self._touched, self._looped)
        return loops

    def _refuse(self, piece: EdgePiece, checked: int, done: int) -> None:
        """Name the first edge of a piece that was not taken, where there is one."""
        if checked < piece.num_edges:
            at = [piece.src_at + checked * piece.step, piece.dst_at + checked * piece.step]
            ids = [int(piece.ids[i]) for i in at]
            wrong = next(i for i in ids if not 0 <= i < self._num_nodes)
            raise outside(f"{self._edges.where}: edge {done + checked}", wrong, self._num_nodes)

    def _fill(
        self,
        first: int,
        rows: NDArray[np.int64],
        pieces: Iterator[EdgePiece],
        changes: NDArray[np.int64],
    ) -> NDArray[Any]:
        """Gather sorted sources of rows, whose lengths become ends, counted from 0."""
        mirror, merge = self._rules.undirected, self._rules.duplicates != "keep"
        with self._workspace.ledger.reserve(self._stream_bytes, Tier.HOST, "edges"):
            entries = self._workspace.empty(_kernels.start_rows(rows), self._entry, "edges")
        for piece in pieces:
            _kernels.scatter(piece, first, mirror, self._drop_loops, rows, entries)
        if self._rules.self_loops == "add":
            _kernels.scatter_loops(first, rows, entries)
        threads.run(
            lambda begin, end: _kernels.sort_rows(entries, rows, begin, end),
            len(rows),
            grain=_SORT_GRAIN,
        )
        kept = _kernels.pack_rows(entries, rows, first, merge, 0, changes)
        return entries[:kept].view(self._index)

    def _write_loops(self, writer: DatasetWriter) -> None:
        if self._rules.self_loops == "drop":
            return
        if self._rules.self_loops == "add":
            self._looped[:] = 0xFF
        if not self._looped.any():
            return
        loops = writer.array(f"{_FOLDER}/loops", (None,), "int64")
        buffer = self._workspace.empty(self._workspace.rows_of(8), np.int64, "edges")
        node = 0
        while node < self._num_nodes:
            count, node = _kernels.list_marks(self._looped, node, self._num_nodes, buffer)
            loops.append(buffer[:count])
