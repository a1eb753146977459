"""Rows of in-edges from a stream of edges, in bounded memory.

Letters: N nodes, E edges. The stream is read once to check its ids and to count the entries of each
2^k rows, then once (k = 0) or twice for each range of rows that fits the memory: to count its rows,
and to scatter the sources to where they belong. Rows are sorted, so that the result depends neither
on the order of the edges nor on the memory. A later, faster way is an external sort.

An edge that is wanted only where it is absent (a reverse, a loop) goes into its row as a candidate,
marked by the lowest bit, and is dropped there if it meets its equal.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from gnnx import threads
from gnnx.memory import ALIGNMENT, Tier
from gnnx.prepare import _kernels
from gnnx.prepare.text import outside

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gnnx.prepare.arrays import Workspace
    from gnnx.prepare.edges import EdgePiece, EdgeStream
    from gnnx.prepare.report import Report
    from gnnx.store import DatasetWriter
    from gnnx.threads import Progress

_FOLDER = "edges/node-edge-node"
_FEWEST_BUCKETS = 1 << 10
_SORT_GRAIN = 1 << 12  # rows


@dataclasses.dataclass(frozen=True)
class EdgeRules:
    """What becomes of the edges of an input."""

    undirected: bool = False
    """Add an edge's reverse, once, where the input lacks it."""
    self_loops: Literal["keep", "drop", "add"] = "keep"
    """`add` gives a loop to every node that has none."""
    duplicates: Literal["keep", "drop"] = "keep"
    """`drop` keeps one of parallel edges."""


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
        shift, counts = self._new_counts()
        report.edges_read = self._edges.num_edges
        report.self_loops = self._count(shift, counts)
        report.isolated = self._num_nodes - int(_kernels.count_marks(self._touched))
        changes = np.zeros(3, np.int64)
        begin = num_ranges = num_stored = 0
        indptr.append(np.zeros(1, np.int64))
        while begin < len(counts):
            num_ranges += 1
            end = self._end_of_range(shift, counts, begin)
            first, last = begin << shift, min(end << shift, self._num_nodes)
            rows = counts[begin:end] if shift == 0 else self._count_rows(first, last, num_ranges)
            kept = self._fill(first, rows, num_ranges, num_stored, changes)
            num_stored += len(kept)
            indptr.append(rows)
            indices.append(kept)
            begin = end
            del kept, rows
        writer.edges(("node", "edge", "node"), num_stored)
        self._write_loops(writer)
        report.duplicates, report.reversed_added, report.loops_added = changes.tolist()
        report.edges_stored = num_stored
        report.dropped = report.edges_read + sum(changes[1:].tolist()) - num_stored

    def _zeros(self, size: int, dtype: type) -> NDArray[Any]:
        array = self._workspace.empty(size, dtype, "edges")
        array[:] = 0
        return array

    def _free_bytes(self) -> int:
        free = self._workspace.ledger.free_bytes(Tier.HOST)
        return 1 << 62 if free is None else free

    def _new_counts(self) -> tuple[int, NDArray[np.int64]]:
        """k, and a count for each 2^k rows: k = 0 where that takes a quarter of the memory."""
        most = max(_FEWEST_BUCKETS, self._free_bytes() // 4 // 8)
        shift = 0
        while self._num_nodes > most << shift:
            shift += 1
        counts = self._zeros(-(-self._num_nodes >> shift), np.int64)
        if self._rules.self_loops == "add":
            counts[:] = 1 << shift
            counts[-1:] -= (len(counts) << shift) - self._num_nodes
        return shift, counts

    def _pieces(self, stage: str) -> Iterator[EdgePiece]:
        done = 0
        for piece in self._edges.pieces():
            yield piece
            done += piece.num_edges
            if self._progress:
                self._progress(stage, done, self._edges.num_edges)

    def _count(self, shift: int, counts: NDArray[np.int64]) -> int:
        """Check all edges; returns the number of loops."""
        loops = done = 0
        for piece in self._pieces("checking edges"):
            checked, found = _kernels.count_entries(
                piece,
                self._num_nodes,
                self._rules.undirected,
                self._drop_loops,
                shift,
                counts,
                self._touched,
                self._looped,
            )
            if checked < piece.num_edges:
                at = [piece.src_at + checked * piece.step, piece.dst_at + checked * piece.step]
                ids = [int(piece.ids[i]) for i in at]
                wrong = next(i for i in ids if not 0 <= i < self._num_nodes)
                raise outside(f"{self._edges.where}: edge {done + checked}", wrong, self._num_nodes)
            loops, done = loops + found, done + checked
        return loops

    def _end_of_range(self, shift: int, counts: NDArray[np.int64], begin: int) -> int:
        capacity = self._free_bytes() - self._stream_bytes - 2 * ALIGNMENT  # of rows and entries
        row_bytes = 0 if shift == 0 else 8
        end: int = _kernels.end_of_range(
            counts, begin, 1 << shift, row_bytes, self._entry.itemsize, capacity
        )
        return end

    def _count_rows(self, first: int, last: int, num_ranges: int) -> NDArray[np.int64]:
        """Entries of each row of a range."""
        rows = self._zeros(last - first, np.int64)
        if self._rules.self_loops == "add":
            rows[:] = 1
        for piece in self._pieces(f"counting edges, range {num_ranges}"):
            _kernels.count_rows(piece, first, self._rules.undirected, self._drop_loops, rows)
        return rows

    def _fill(
        self,
        first: int,
        rows: NDArray[np.int64],
        num_ranges: int,
        offset: int,
        changes: NDArray[np.int64],
    ) -> NDArray[Any]:
        """Gather sorted sources of rows, whose lengths become ends, counted from `offset`."""
        mirror, merge = self._rules.undirected, self._rules.duplicates == "drop"
        with self._workspace.ledger.reserve(self._stream_bytes, Tier.HOST, "edges"):
            entries = self._workspace.empty(_kernels.start_rows(rows), self._entry, "edges")
        for piece in self._pieces(f"placing edges, range {num_ranges}"):
            _kernels.scatter(piece, first, mirror, self._drop_loops, rows, entries)
        if self._rules.self_loops == "add":
            _kernels.scatter_loops(first, rows, entries)
        threads.run(
            lambda begin, end: _kernels.sort_rows(entries, rows, begin, end),
            len(rows),
            grain=_SORT_GRAIN,
        )
        kept = _kernels.pack_rows(entries, rows, first, merge, offset, changes)
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
