"""The graph of a dataset: in-edges as CSR, read from RAM or from disk with the same results.

Letters: N nodes, E edges, R rows or positions asked. Row d of the CSR lists the sources of d.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from gnnx import threads
from gnnx.errors import DataError
from gnnx.memory import Tier
from gnnx.store import _kernels
from gnnx.store.engine import WAIT_S, Layout
from gnnx.store.features import Pending
from gnnx.store.manifest import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gnnx.memory import Ledger
    from gnnx.store.engine import Job, ReadEngine
    from gnnx.store.features import DiskFeatures

PAGE_BYTES = _kernels.BLOCK
"""Of a page of sources: the block that a read brings, at least."""
_PIECE_EDGES = 1 << 18
_PIECE_SHARE = 128  # two pieces are alive, of 16 bytes an edge and as many for its row


class Rows(NamedTuple):
    """Consecutive rows of a CSR."""

    first: int
    """The first row."""
    indptr: NDArray[np.int64]
    """Where the rows begin in `indices`, from 0 to its length."""
    indices: NDArray[Any]
    """Their sources; not to be written to."""


class Stretch(NamedTuple):
    """Consecutive positions of a CSR."""

    begin: int
    """The first position."""
    end: int
    """The position after the last one."""
    sources: NDArray[Any]
    """Their sources, of wanted pages alone, until the next stretch is asked for."""


class _Pages(NamedTuple):
    """Pages of the sources that are kept."""

    slot: NDArray[np.int32]
    """Where each page is, -1 where it is not kept."""
    pages: NDArray[Any]
    """The kept ones, (K, entries)."""


_DAMAGED = "The file is damaged: find where with gnnx verify."


class GraphStore:
    """In-edges of one edge type; made by `Dataset`.

    Everything is on disk until `pin` keeps it in RAM, or `keep_pages` some pages of the sources;
    results do not depend on it. Arrays come
    from the ledger (HOST): resident ones under ``"topology"``, results under ``"sampler"``.

    Parameters
    ----------
    indptr
        (N + 1,) int64: where rows begin.
    indices
        (E,) int32 or int64: the sources, row after row.
    loops
        Ids of the nodes that have an edge to themselves, ascending.
    num_sources
        Nodes that the sources are of.
    engine
        Who reads.
    ledger
        Where arrays come from.

    Attributes
    ----------
    num_nodes : int
        N, of destinations.
    num_edges : int
        E.
    ledger : Ledger
        As given.
    index_dtype : dtype
        Of the sources: int32 or int64.
    """

    def __init__(
        self,
        indptr: DiskFeatures,
        indices: DiskFeatures,
        loops: DiskFeatures,
        num_sources: int,
        engine: ReadEngine,
        ledger: Ledger,
    ) -> None:
        self.num_nodes, self.num_edges = indptr.num_rows - 1, indices.num_rows
        self.index_dtype = np.dtype(indices.entry.dtype)
        self.ledger = ledger
        self._indptr, self._indices, self._loops = indptr, indices, loops
        self._engine, self._num_sources = engine, num_sources
        self._resident_indptr: NDArray[np.int64] | None = None
        self._resident_indices: NDArray[Any] | None = None
        self._pages: _Pages | None = None
        self._loop_bits: NDArray[np.uint8] | None = None
        self._lock = threads.Lock()

    def __repr__(self) -> str:
        return f"GraphStore({self.num_nodes} nodes, {self.num_edges} edges)"

    def rows(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where rows begin, and how long they are.

        Parameters
        ----------
        nodes
            (R,) int64. Destinations, in any order.

        Returns
        -------
        start, degree : ndarray, (R,) int64
            The sources of ``nodes[i]`` are at positions ``start[i]`` to ``start[i] + degree[i]``.

        Raises
        ------
        DataError
            A node is outside the N nodes, or the row pointers are damaged.
        """
        ascending = self._check(self._indptr, nodes, self.num_nodes, "node")
        start = self._empty(len(nodes), np.dtype(np.int64))
        degree = self._empty(len(nodes), np.dtype(np.int64))
        if self._resident_indptr is not None:
            _kernels.spans(self._resident_indptr, nodes, start, degree)
        elif len(nodes):
            # two neighbouring entries are one row of 16 bytes, and rows overlap
            pairs = self._empty(2 * len(nodes), np.dtype(np.int64))
            layout = Layout(HEADER_BYTES, 8, 16, HEADER_BYTES + 8 * (self.num_nodes + 1))
            self._engine.submit(
                self._indptr.file,
                layout,
                nodes,
                pairs.view(np.uint8),
                size=None if ascending else self.num_nodes,
                num_rows=len(nodes),
            ).wait(WAIT_S)
            start[:] = pairs[::2]
            np.subtract(pairs[1::2], start, out=degree)
        bad = _kernels.check_spans(start, degree, self.num_edges)
        if bad >= 0:
            begin = int(start[bad])
            raise self._bad_row(int(nodes[bad]), begin, begin + int(degree[bad]))
        return start, degree

    def take(self, positions: NDArray[np.int64]) -> NDArray[Any]:
        """Take sources at positions of the CSR.

        Parameters
        ----------
        positions
            (R,) int64. In any order, duplicates allowed.

        Returns
        -------
        ndarray, (R,) of `index_dtype`
            ``indices[positions]``.

        Raises
        ------
        DataError
            A position is outside the E edges.
        """
        if self._resident_indices is None and self._pages is None:
            out = self._empty(len(positions), self.index_dtype)
            self._indices.read(positions, torch.from_numpy(out))
            self.check_sources(out)
            return out
        self._check(self._indices, positions, self.num_edges, "position")
        out = self._empty(len(positions), self.index_dtype)
        if self._resident_indices is not None:
            _kernels.gather(self._resident_indices, positions, out)
            return out
        kept = self._pages
        assert kept is not None  # else all was read above
        count = _kernels.count_absent(positions, self.page_entries, kept.slot)
        absent, places = (self._empty(count, np.dtype(np.int64)) for _ in range(2))
        _kernels.gather_pages(
            positions, self.page_entries, kept.slot, kept.pages, out, absent, places
        )
        self._indices.read(absent, torch.from_numpy(out), places)
        self.check_sources(out)
        return out

    def has_loop(self, nodes: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which nodes have an edge to themselves.

        The first call reads the ids of those that have into a bitmap of N / 8 bytes.

        Parameters
        ----------
        nodes
            (R,) int64. In any order.

        Returns
        -------
        ndarray, (R,) bool
            All false where the dataset stores no loops.

        Raises
        ------
        DataError
            A node is outside the N nodes.
        """
        self._check(self._indptr, nodes, self.num_nodes, "node")
        found: NDArray[np.bool_] = self._empty(len(nodes), np.dtype(np.bool_))
        if self._loops.num_rows in {0, self.num_nodes}:
            found[:] = self._loops.num_rows > 0
            return found
        with self._lock:
            if self._loop_bits is None:
                self._loop_bits = self._read_loops()
        _kernels.get_bits(self._loop_bits, nodes, found)
        return found

    def _read_loops(self) -> NDArray[np.uint8]:
        bits = self.ledger.empty(-(-self.num_nodes // 8), np.uint8, Tier.HOST, "topology")
        bits[:] = 0
        step = max(1024, len(bits) // 8)  # no more bytes than the bitmap itself
        for begin in range(0, self._loops.num_rows, step):
            end = min(begin + step, self._loops.num_rows)
            ids = self._loops.read_range(begin, end).numpy()
            self._check(self._loops, ids, self.num_nodes, "node")
            _kernels.set_bits(ids, bits)
        return bits

    @property
    def page_entries(self) -> int:
        """Sources of a page."""
        return PAGE_BYTES // self.index_dtype.itemsize

    @property
    def num_pages(self) -> int:
        """Pages of the sources; the last one may be short."""
        return -(-self.num_edges // self.page_entries)

    def page_bytes(self, count: int) -> int:
        """HOST bytes of keeping so many pages: them, and a number for each page there is."""
        return count * PAGE_BYTES + 4 * self.num_pages + 2 * 64

    def keep_pages(self, pages: NDArray[np.int64]) -> None:
        """Keep some pages of the sources in RAM, beside the disk; `take` reads the others.

        Parameters
        ----------
        pages
            (K,) int64, distinct and ascending, of the `num_pages`.

        Raises
        ------
        DataError
            A page is outside of them.
        BudgetError
            HOST does not hold `page_bytes` of K.
        """
        self._check(self._indices, pages, self.num_pages, "page")
        slot = self.ledger.empty(self.num_pages, np.int32, Tier.HOST, "topology")
        shape = len(pages), self.page_entries
        kept = self.ledger.empty(shape, self.index_dtype, Tier.HOST, "topology")
        slot[:] = -1
        slot[pages] = np.arange(len(pages), dtype=np.int32)
        layout = Layout(
            HEADER_BYTES, PAGE_BYTES, PAGE_BYTES, HEADER_BYTES + self._indices.entry.num_bytes
        )
        if len(pages):
            raw = kept.reshape(-1).view(np.uint8)
            self._engine.submit(self._indices.file, layout, pages, raw, num_rows=len(pages)).wait(
                WAIT_S
            )
            end = self.num_edges - int(pages[-1]) * self.page_entries  # the last page may be short
            self.check_sources(kept[:-1].reshape(-1))
            self.check_sources(kept[-1, :end])
        self._pages = _Pages(slot, kept)

    def drop_pages(self) -> None:
        """Give back what `keep_pages` keeps."""
        self._pages = None

    def pointers(self) -> NDArray[np.int64]:
        """Give the row pointers, which are in RAM, for kernels that look nothing up.

        Returns
        -------
        ndarray
            (N + 1,) int64, ascending from 0 to E at most; not to be written to.

        Raises
        ------
        DataError
            They are damaged.
        """
        indptr = self._resident_indptr
        assert indptr is not None  # whoever asks has seen to it
        bad = _kernels.check_pointers(indptr, self.num_edges)
        if bad >= 0:
            raise self._bad_row(bad, int(indptr[bad]), int(indptr[bad + 1]))
        return indptr

    def sweep(self, wanted: NDArray[np.bool_], buffer_bytes: int) -> Iterator[Stretch]:
        """Bring wanted pages in the order of the file; the next ones are read meanwhile.

        Parameters
        ----------
        wanted
            (`num_pages`,) bool.
        buffer_bytes
            HOST bytes that two stretches may take; a page each is the least.

        Yields
        ------
        Stretch
            Each wanted page is in one of them.

        Raises
        ------
        BudgetError
            HOST does not hold two stretches.
        """
        most = max(1, min(buffer_bytes // (2 * PAGE_BYTES), self.num_pages))
        shape = most, self.page_entries
        buffers = [
            self.ledger.empty(shape, self.index_dtype, Tier.HOST, "sampler") for _ in range(2)
        ]
        waiting: tuple[int, NDArray[Any], Job | None] | None = None
        page, turn = _next(wanted, 0), 0
        while page < self.num_pages or waiting is not None:
            ready, waiting = waiting, None
            if page < self.num_pages:
                buffer = buffers[turn][: self.num_pages - page]
                waiting = page, buffer, self._stage(wanted, page, buffer)
                page, turn = _next(wanted, page + most), 1 - turn
            if ready is not None:
                first, buffer, job = ready
                if job is not None:
                    job.wait(WAIT_S)
                begin = first * self.page_entries
                yield Stretch(begin, begin + buffer.size, buffer.reshape(-1))

    def _stage(self, wanted: NDArray[np.bool_], first: int, buffer: NDArray[Any]) -> Job | None:
        """Begin to bring the wanted pages from `first` on to their places in a buffer."""
        kept = self._pages or _Pages(np.empty(0, np.int32), buffer[:0])
        absent = self._empty(len(buffer), np.dtype(np.int64))
        count = _kernels.stage_pages(wanted[first:], kept.slot[first:], kept.pages, buffer, absent)
        if not count:
            return None
        absent = absent[:count]
        base, size = HEADER_BYTES + first * PAGE_BYTES, HEADER_BYTES + self._indices.entry.num_bytes
        layout, raw = Layout(base, PAGE_BYTES, PAGE_BYTES, size), buffer.reshape(-1).view(np.uint8)
        return self._engine.submit(
            self._indices.file, layout, absent, raw, num_rows=count, slots=absent
        )

    @property
    def unpinned(self) -> tuple[int, ...]:
        """Bytes of each array that is not in RAM, in the order in which `pin` takes them."""
        arrays = (self._indptr, self._resident_indptr), (self._indices, self._resident_indices)
        return tuple(array.entry.num_bytes for array, resident in arrays if resident is None)

    def pin(self, limit_bytes: int) -> int:
        """Keep the CSR in RAM: the row pointers, then the sources, each if it fits as a whole.

        Parameters
        ----------
        limit_bytes
            What may be taken, beside the arrays that are in RAM already.

        Returns
        -------
        int
            Bytes that are held now.

        Raises
        ------
        BudgetError
            HOST has less room than the limit promises.
        """
        pointers, sources = self._indptr.entry.num_bytes, self._indices.entry.num_bytes
        with self._lock:
            if self._resident_indptr is None and pointers <= limit_bytes:
                self._resident_indptr = self._load(self._indptr)
                limit_bytes -= pointers
            whole = self._resident_indptr is not None
            if whole and self._resident_indices is None and sources <= limit_bytes:
                indices = self._load(self._indices)
                self.check_sources(indices)
                self._resident_indices = indices
        return pointers + sources - sum(self.unpinned)

    def _load(self, array: DiskFeatures) -> NDArray[Any]:
        dtype = np.dtype(array.entry.dtype)
        values = self.ledger.empty(array.num_rows, dtype, Tier.HOST, "topology")
        array.read_range(0, array.num_rows, torch.from_numpy(values))
        return values

    def iter_rows(
        self, begin: int = 0, end: int | None = None, max_edges: int | None = None
    ) -> Iterator[Rows]:
        """Consecutive rows, in order, for passes over the whole graph; one piece is read ahead.

        Parameters
        ----------
        begin
            The first row.
        end
            The row after the last one; by default N.
        max_edges
            Most edges, and most rows, of a piece; a row with more edges is a piece of its own.
            By default 2^18, or fewer where HOST has little free.

        Yields
        ------
        Rows
            Together all rows, none twice.

        Raises
        ------
        DataError
            The range is not inside the graph.
        """
        end = self.num_nodes if end is None else end
        if max_edges is None:
            free = self.ledger.free_bytes(Tier.HOST)
            share = _PIECE_EDGES if free is None else free // _PIECE_SHARE
            max_edges = max(1, min(_PIECE_EDGES, share))
        if not 0 <= begin <= end <= self.num_nodes:
            raise DataError(
                f"{self._indptr.path}: rows {begin} to {end} of {self.num_nodes} rows",
                "Give a range inside the graph.",
            )
        ahead: tuple[int, NDArray[np.int64], Pending] | None = None
        row = begin
        while row < end or ahead is not None:
            now, ahead = ahead, None
            if row < end:
                stop = min(end, row + max_edges)
                indptr = _range(self._indptr, self._resident_indptr, row, stop + 1).wait().numpy()
                bad = _kernels.check_pointers(indptr, self.num_edges)
                if bad >= 0:
                    raise self._bad_row(row + bad, int(indptr[bad]), int(indptr[bad + 1]))
                count = int(np.searchsorted(indptr, indptr[0] + max_edges, side="right")) - 1
                count = max(1, min(count, stop - row))
                local = self._empty(count + 1, np.dtype(np.int64))
                np.subtract(indptr[: count + 1], indptr[0], out=local)
                first_edge, last_edge = int(indptr[0]), int(indptr[count])
                edges = _range(self._indices, self._resident_indices, first_edge, last_edge)
                ahead = row, local, edges
                row += count
            if now is not None:
                first, local, edges = now
                indices = edges.wait().numpy()
                self.check_sources(indices)
                yield Rows(first, local, indices)

    def check_sources(self, sources: NDArray[Any]) -> None:
        """Hold what came from the disk against the number of sources."""
        bad, _ = _kernels.check_ids(sources, self._num_sources)
        if bad >= 0:
            raise DataError(
                f"{self._indices.path}: node {sources[bad]} among {self._num_sources} nodes",
                _DAMAGED,
            )

    def _bad_row(self, row: int, begin: int, end: int) -> DataError:
        return DataError(
            f"{self._indptr.path}: row {row} is edges {begin} to {end} of {self.num_edges}",
            _DAMAGED,
        )

    @staticmethod
    def _check(array: DiskFeatures, ids: NDArray[np.int64], size: int, what: str) -> bool:
        """Hold ids against their number; tells whether they ascend."""
        bad, ascending = _kernels.check_ids(ids, size)
        if bad >= 0:
            raise DataError(
                f"{array.path}: {what} {ids[bad]} among {size} {what}s",
                f"They run from 0 to {size - 1}; if the dataset has it so, run gnnx verify.",
            )
        return bool(ascending)

    def _empty(self, size: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        return self.ledger.empty(size, dtype, Tier.HOST, "sampler")


def _next(wanted: NDArray[np.bool_], page: int) -> int:
    """Find the first wanted page from one on, or the number of pages."""
    there = wanted[page:]
    found = int(there.argmax()) if len(there) else 0
    return page + (found if len(there) and there[found] else len(there))


def _range(array: DiskFeatures, resident: NDArray[Any] | None, begin: int, end: int) -> Pending:
    """Entries of an array, from RAM without a copy where it is resident."""
    if resident is None:
        return array.fetch_range(begin, end)
    return Pending(torch.from_numpy(resident[begin:end]))
