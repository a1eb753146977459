"""A dataset with its nodes in another order: parts as ranges of ids, with their halos.

Letters: N nodes, E edges, P parts, H nodes of a halo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch

from gnnx import threads
from gnnx.errors import UsageError
from gnnx.memory import Tier
from gnnx.partition import _kernels
from gnnx.partition.problem import pieces_of
from gnnx.partition.transpose import TRANSPOSE
from gnnx.store.manifest import HEADER_BYTES, disk_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gnnx.store import ArrayWriter, Dataset, DatasetWriter, DiskFeatures
    from gnnx.threads import Progress

Order: TypeAlias = Literal["readers", "id"]
"""Of the nodes of a part: those that most rows read first, or as they were."""

_VALUES = ("weight", "attr", "time", "relation")
_RELATIONS = ("relation_offsets", "relation_bytes")
_SPLITS = ("train", "val", "test")
_TEXTS, _CLASSES = ("key_offsets", "key_bytes"), ("class_offsets", "class_bytes")
_EDGE_BYTES, _ROW_BYTES = 48, 64  # of a piece of the graph: positions, sorted and not, and sources
_LEAST, _MOST = 1 << 6, 1 << 26  # rows or edges of a piece
_KEY_BYTES = 64  # of a key: a guess, the longer ones take more of the half of HOST that is spare
_IDS = 1 << 12  # that are listed at a time
_GRAIN = 1 << 12  # rows
_DIGIT = 11


class Relabeller:
    """Writes a dataset again with its nodes in order of part and, in a part, of readers.

    Each array is gathered in pieces as large as HOST allows, whose reads the engine sorts: with
    half of a file in a piece, the file is read twice, from its begin to its end.

    Parameters
    ----------
    dataset
        One node type and one edge type.
    part
        (N,) int32. The part of each node.
    num_nodes
        (P,) The nodes of each part.
    order
        Of the nodes of a part.
    progress
        Called with (stage, done, total).

    Raises
    ------
    UsageError
        The dataset has an array whose place in a new order is not known.
    """

    def __init__(
        self,
        dataset: Dataset,
        part: NDArray[np.int32],
        num_nodes: list[int],
        order: Order,
        progress: Progress | None = None,
    ) -> None:
        self._dataset, self._graph = dataset, dataset.graph
        self._progress = progress
        self._offsets = np.cumsum([0, *num_nodes])
        self._node_type, self._edge_type = dataset.node_types[0], dataset.edge_types[0]
        self._nodes = f"nodes/{self._node_type}"
        self._edges = "edges/" + "-".join(self._edge_type)
        self._check_arrays()
        self._num_parts = len(num_nodes)
        self._order, self._rank = self._sorted(part, order)
        self._bits = self._empty(-(-dataset.num_nodes // 8), np.uint8)
        self._bits[:] = 0

    def write_nodes(self, writer: DatasetWriter) -> None:
        """Write all arrays of the nodes; those of the order are `id` and `parts`.

        Parameters
        ----------
        writer
            Of the new dataset.

        Raises
        ------
        ResourceError
            The disk is full.
        """
        num_nodes = self._dataset.num_nodes
        writer.nodes(self._node_type, num_nodes, num_classes=self._dataset.num_classes)
        names = self._dataset.manifest.arrays
        for name in ("x", "y", "id", "key"):
            if f"{self._nodes}/{name}" in names:
                self._write_rows(writer, name)
        self._copy(writer, f"{self._nodes}/x_scale")
        self._write_keys(writer)
        if f"{self._nodes}/id" not in names:
            original = writer.array(f"{self._nodes}/id", (num_nodes,), "int64")
            for begin, end in self._pieces(num_nodes, 8):
                original.append(self._old_ids(begin, end))
            original.finish()
        self._write_offsets(writer, f"{self._nodes}/parts", self._offsets)
        for split in _SPLITS:
            self._write_ids(writer, f"{self._nodes}/{split}")

    def _write_keys(self, writer: DatasetWriter) -> None:
        """Write what the input called the nodes and the classes, from files that are mapped."""
        if f"{self._nodes}/{_TEXTS[0]}" in self._dataset.manifest.arrays:
            offsets, text = (self._mapped(name) for name in _TEXTS)
            ends = writer.array(f"{self._nodes}/{_TEXTS[0]}", offsets.shape, "int64")
            out = writer.array(f"{self._nodes}/{_TEXTS[1]}", text.shape, "uint8")
            ends.append(np.zeros(1, np.int64))
            for begin, end in self._pieces(len(offsets) - 1, _KEY_BYTES):
                ids = self._order[begin:end]
                last = self._empty(len(ids), np.int64)
                size = _kernels.lengths_of(offsets, ids, last)
                piece = self._empty(size, np.uint8)
                _kernels.copy_texts(offsets, text, ids, piece)
                ends.append(np.add(last, out.num_rows, out=last))
                out.append(piece)
            ends.finish()
            out.finish()
        if self._has_keys:
            order = writer.array(f"{self._nodes}/key_order", (self._dataset.num_nodes,), "int64")
            before = self._mapped("key_order")
            for begin, end in self._pieces(self._dataset.num_nodes, 8):
                ids = self._empty(end - begin, np.int64)
                # without that array keys ascend with the ids
                np.copyto(ids, self._rank[before[begin:end] if len(before) else slice(begin, end)])
                order.append(ids)
            order.finish()
        for name in _CLASSES:
            values = self._mapped(name)
            if len(values):
                out = writer.array(f"{self._nodes}/{name}", values.shape, values.dtype.name)
                out.append(np.array(values))
                out.finish()

    @property
    def _has_keys(self) -> bool:
        names = {f"{self._nodes}/key", f"{self._nodes}/{_TEXTS[0]}"}
        return not names.isdisjoint(self._dataset.manifest.arrays)

    def _mapped(self, name: str) -> NDArray[Any]:
        """Array of the nodes; an absent one is empty."""
        path = f"{self._nodes}/{name}"
        entry = self._dataset.manifest.arrays.get(path)
        if entry is None or entry.num_bytes == 0:
            return np.zeros(0, np.int64 if entry is None else disk_dtype(entry.dtype))
        file = self._dataset.path / f"{path}.npy"
        return np.memmap(file, disk_dtype(entry.dtype), "r", HEADER_BYTES, entry.shape)

    def _write_ids(self, writer: DatasetWriter, name: str) -> None:
        """Write the new ids of a list of nodes, ascending, where the dataset has it."""
        entry = self._dataset.manifest.arrays.get(name)
        if entry is None:
            return
        for ids in pieces_of(self._dataset.array(name)):
            _kernels.set_new_bits(ids, self._rank, self._bits)
        out = writer.array(name, entry.shape, "int64")
        self._append_marked(out, np.int64)
        out.finish()

    def _check_arrays(self) -> None:
        of_nodes = ("x", "x_scale", "y", "id", "parts", "key", "key_order")
        others = (*_TEXTS, *_SPLITS, *_CLASSES)
        known = {f"{self._nodes}/{name}" for name in (*of_nodes, *others)}
        graph = ("indptr", "indices", "loops", "halo", "halo_offsets", *TRANSPOSE)
        known |= {f"{self._edges}/{name}" for name in (*graph, *_VALUES, *_RELATIONS, "strength")}
        for name in self._dataset.manifest.arrays:
            if name not in known:
                raise UsageError(
                    f"{self._dataset.path / name}.npy: not known how its rows follow the nodes",
                    "Partition the dataset before such arrays are added.",
                )

    def _empty(self, size: int, dtype: Any) -> NDArray[Any]:
        return self._dataset.ledger.empty(size, dtype, Tier.HOST, "partition")

    def _old_ids(self, begin: int, end: int) -> NDArray[np.int64]:
        """Ids before of the nodes [begin, end)."""
        ids = self._empty(end - begin, np.int64)
        np.copyto(ids, self._order[begin:end])
        return ids

    def _tell(self, stage: str, done: int, total: int) -> None:
        if self._progress:
            self._progress(stage, done, total)

    def _rows_of(self, row_bytes: int) -> int:
        """Rows of so many bytes that fit a half of what HOST has left."""
        free = self._dataset.ledger.free_bytes(Tier.HOST)
        rows = _MOST if free is None else free // (2 * row_bytes)
        return max(_LEAST, min(_MOST, rows))

    def _pieces(self, num_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
        size = self._rows_of(row_bytes)
        for begin in range(0, num_rows, size):
            yield begin, min(begin + size, num_rows)

    def _sorted(self, part: NDArray[np.int32], order: Order) -> tuple[NDArray[Any], NDArray[Any]]:
        """Old ids in their new order, and the new id of each old one."""
        num_nodes = self._dataset.num_nodes
        index = np.dtype(np.int32 if num_nodes <= 2**31 else np.int64)
        source, target = self._empty(num_nodes, index), self._empty(num_nodes, index)
        _kernels.count_up(source)
        if order == "readers":
            readers = self._empty(num_nodes, np.uint32)
            readers[:] = 0
            for rows in self._graph.iter_rows():
                _kernels.count_sources(rows.indices, readers)
                self._tell("counting readers", rows.first + len(rows.indptr) - 1, num_nodes)
            for shift in range(0, int(readers.max(initial=0)).bit_length(), _DIGIT):
                _kernels.sort_by_digit(readers, shift, True, source, target)
                source, target = target, source
        for shift in range(0, self._num_parts.bit_length(), _DIGIT):
            _kernels.sort_by_digit(part, shift, False, source, target)
            source, target = target, source
        _kernels.invert(source, target)
        return source, target

    def _write_rows(self, writer: DatasetWriter, name: str) -> None:
        """Gather the rows of an array of the nodes."""
        rows: DiskFeatures = self._dataset.array(f"{self._nodes}/{name}")
        out = writer.array(f"{self._nodes}/{name}", rows.entry.shape, rows.entry.dtype)
        for begin, end in self._pieces(rows.num_rows, rows.row_bytes + 32):
            found = rows.read(self._old_ids(begin, end))
            out.append(_stored(found))
            self._tell(f"moving {name}", end, rows.num_rows)
            del found
        out.finish()

    def write_graph(self, writer: DatasetWriter) -> tuple[int, list[int]]:
        """Write the rows of the graph, part by part, with the halos of the parts.

        Parameters
        ----------
        writer
            Of the new dataset.

        Returns
        -------
        cut : int
            Edges between two parts.
        halo : list of int
            Nodes of other parts that each part reads.

        Raises
        ------
        BudgetError
            The largest row of the graph does not fit the memory.
        ResourceError
            The disk is full.
        """
        writer.edges(self._edge_type, self._dataset.num_edges)
        self._write_ids(writer, f"{self._edges}/loops")
        graph, num_edges = self._graph, self._graph.num_edges
        index = graph.index_dtype
        indptr = writer.array(f"{self._edges}/indptr", (graph.num_nodes + 1,), "int64")
        indices = writer.array(f"{self._edges}/indices", (num_edges,), index.name)
        halo = writer.array(f"{self._edges}/halo", (None,), index.name)
        values = self._value_arrays(writer)
        indptr.append(np.zeros(1, np.int64))
        done = cut = 0
        sizes = []
        for p in range(self._num_parts):
            begin, end = int(self._offsets[p]), int(self._offsets[p + 1])
            for ends, sources, before in self._rows(begin, end, with_edges=bool(values)):
                for array, out in values:
                    out.append(_stored(array.read(before)))
                cut += int(_kernels.mark_outside(sources, begin, end, self._bits))
                indptr.append(np.add(ends, done, out=ends))
                indices.append(sources)
                done += len(sources)
                self._tell("moving edges", done, num_edges)
                del ends, sources, before
            sizes.append(self._append_marked(halo, index))
        for each in (indptr, indices, halo, *(out for _, out in values)):
            each.finish()
        self._write_strength(writer)
        self._write_offsets(writer, f"{self._edges}/halo_offsets", np.cumsum([0, *sizes]))
        return cut, sizes

    def _value_arrays(self, writer: DatasetWriter) -> list[tuple[DiskFeatures, ArrayWriter]]:
        """Open what edges carry, and where it goes; names of relations are copied."""
        names = self._dataset.manifest.arrays
        for name in _RELATIONS:
            self._copy(writer, f"{self._edges}/{name}")
        found = [f"{self._edges}/{each}" for each in _VALUES if f"{self._edges}/{each}" in names]
        return [
            (self._dataset.array(name), writer.array(name, names[name].shape, names[name].dtype))
            for name in found
        ]

    def _copy(self, writer: DatasetWriter, name: str) -> None:
        """Copy an array that the order of the nodes does not change, if it is there."""
        entry = self._dataset.manifest.arrays.get(name)
        if entry is None:
            return
        copied = writer.array(name, entry.shape, entry.dtype)
        for piece in pieces_of(self._dataset.array(name)):
            copied.append(piece)
        copied.finish()

    def _write_strength(self, writer: DatasetWriter) -> None:
        """Write the sums of weights in the new order of the nodes."""
        name = f"{self._edges}/strength"
        entry = self._dataset.manifest.arrays.get(name)
        if entry is None:
            return
        out = writer.array(name, entry.shape, entry.dtype)
        for begin, end in self._pieces(self._dataset.num_nodes, 48):
            out.append(_stored(self._dataset.array(name).read(self._old_ids(begin, end))))
        out.finish()

    @staticmethod
    def _write_offsets(writer: DatasetWriter, name: str, offsets: NDArray[np.int64]) -> None:
        out = writer.array(name, offsets.shape, "int64")
        out.append(offsets)
        out.finish()

    def _rows(
        self, begin: int, end: int, *, with_edges: bool
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[Any], NDArray[np.int64]]]:
        """Gather new rows [begin, end): their ends, from 0 in each piece, and sorted sources.

        With `with_edges`, positions of these edges before as well, parallel ones in their order.
        """
        while begin < end:
            stop = min(end, begin + self._rows_of(_ROW_BYTES))
            start, degree = self._graph.rows(self._old_ids(begin, stop))
            ends = self._empty(stop - begin, np.int64)
            np.cumsum(degree, out=ends)
            row = 0
            while row < len(ends):
                before = int(ends[row - 1]) if row else 0
                limit = before + self._rows_of(_EDGE_BYTES)
                last = max(row + 1, int(np.searchsorted(ends, limit, side="right")))
                positions = self._empty(int(ends[last - 1]) - before, np.int64)
                _kernels.positions_of(start[row:last], degree[row:last], positions)
                sources = self._graph.take(positions)
                _kernels.rename(sources, self._rank)
                here = self._empty(last - row, np.int64)
                np.subtract(ends[row:last], before, out=here)
                if with_edges:
                    with self._dataset.ledger.reserve(40 * len(sources), Tier.HOST, "partition"):
                        rows = np.repeat(np.arange(last - row), degree[row:last])
                        order = np.lexsort((sources, rows))
                        sources[:], positions[:] = sources[order], positions[order]
                        del rows, order
                else:
                    positions = self._empty(0, np.int64)
                    self._sort(here, sources)
                yield here, sources, positions
                del here, sources, positions
                row = last
            begin = stop

    @staticmethod
    def _sort(ends: NDArray[np.int64], sources: NDArray[Any]) -> None:
        threads.run(
            lambda first, last: _kernels.sort_rows(ends, sources, first, last),
            len(ends),
            grain=_GRAIN,
        )

    def _append_marked(self, out: ArrayWriter, dtype: Any) -> int:
        """Append the nodes whose bits are set, ascending, and clear the bits."""
        num_nodes = self._dataset.num_nodes
        ids = self._empty(_IDS, dtype)
        node = total = 0
        while node < num_nodes:
            count, node = _kernels.take_bits(self._bits, node, num_nodes, ids)
            out.append(ids[:count])
            total += count
        return total


def _stored(rows: torch.Tensor) -> NDArray[Any]:
    """Rows as they are stored: NumPy has no bfloat16."""
    plain = rows.view(torch.uint16) if rows.dtype == torch.bfloat16 else rows
    found: NDArray[Any] = plain.numpy()
    return found
