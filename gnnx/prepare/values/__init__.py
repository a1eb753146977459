"""Values of edges: weights, features and times, written in the order of the CSR.

Rows are taken in ranges, as many as the memory holds with all of their values; for each range the
edges are read once. Within a row equal sources stay in the order of the input, so that the result
does not depend on the memory. Letters: N nodes, E edges, F width, K entries of a range.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from gnnx import threads
from gnnx.errors import DataError
from gnnx.memory import Tier
from gnnx.prepare import _kernels as edge_kernels
from gnnx.prepare.values import _kernels

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from gnnx.prepare.arrays import Array, Workspace
    from gnnx.prepare.csr import EdgeRules
    from gnnx.prepare.edges import EdgeStream
    from gnnx.store import DatasetWriter
    from gnnx.threads import Progress

NAMES = ("weight", "attr", "time")
"""That options may name; a recipe may name ``relation`` as well."""
FOLDER = "edges/node-edge-node"
_GRAIN = 1 << 12  # rows
_ATTR = {
    "float64": "float32",
    "bool": "uint8",
    "uint16": "int32",
    "uint32": "int64",
    **{name: name for name in ("float32", "float16", "int8", "uint8", "int16", "int32", "int64")},
}
# What sums of values are stored as, where their own dtype soon overflows.
_SUMMED = {"float16": "float32", "int8": "int32", "uint8": "int32", "int16": "int32"}
_MERGED = {
    "weight": _kernels.ADD,
    "attr": _kernels.ADD,
    "time": _kernels.LEAST,
    "relation": _kernels.LEAST,
}
_DTYPES = {"weight": "float32", "time": "int64", "relation": "int32"}
_FILLS = {"weight": 1.0, "relation": -1.0}


class EdgeRows(Protocol):
    """(E,) or (E, F): a row an edge, in the order of the edges."""

    where: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    columns: list[int]
    """Which columns of `where` they are, for messages."""

    def __len__(self) -> int: ...

    def read_rows(self, begin: int, out: NDArray[Any]) -> None:
        """Fill `out`, (r, F) of the rows' own dtype, with rows from `begin` on."""


class ArrayRows:
    """Rows of an array, or some of its columns.

    Parameters
    ----------
    array
        (E,) or (E, F).
    columns
        Which columns; all by default.
    """

    def __init__(self, array: Array, columns: list[int] | None = None) -> None:
        self.where, self._array = array.where, array
        self.dtype = array.dtype.newbyteorder("=")
        self.columns = list(range(array.width)) if columns is None else columns
        self.shape: tuple[int, ...] = (len(array), len(self.columns))

    def __len__(self) -> int:
        return len(self._array)

    def read_rows(self, begin: int, out: NDArray[Any]) -> None:
        """Read rows from `begin` on.

        Parameters
        ----------
        begin
            The first.
        out
            (r, F), contiguous.
        """
        array, width = self._array, self._array.width
        if array.by_columns:
            column = array.workspace.empty(len(out), self.dtype, "edge values")
            for i, j in enumerate(self.columns):
                array.read_into(column, j * len(array) + begin)
                out[:, i] = column
        elif self.columns == list(range(width)):
            array.read_into(out.reshape(-1), begin * width)
        else:
            rows = array.workspace.empty((len(out), width), self.dtype, "edge values")
            array.read_into(rows.reshape(-1), begin * width)
            out[:] = rows[:, self.columns]


@dataclasses.dataclass
class _Value:
    """One kind of value on its way."""

    rows: EdgeRows
    dtype: str
    """Logical, as stored."""
    width: int
    fill: float
    """Of loops that are added."""
    how: int
    entries: NDArray[Any]
    """(K, F), in the order of the input."""


def write_edge_values(
    values: Mapping[str, EdgeRows],
    edges: EdgeStream,
    num_nodes: int,
    rules: EdgeRules,
    workspace: Workspace,
    writer: DatasetWriter,
    progress: Progress | None = None,
) -> None:
    """Write `weight` (E,) float32, `attr` (E, F), `time` (E,) int64, `relation` (E,) int32.

    With weights there is `strength` (N,) float32 as well, the sums of the rows.

    A reverse edge that is added carries the values of the edge it is the reverse of, the first
    where there are several; a loop that is added has weight 1, relation -1 and
    zeros. Parallel edges that are
    dropped leave the values of the first; those that are summed the sum of weights and features,
    and the earliest time and the least relation.

    Parameters
    ----------
    values
        By name, in the order of the edges.
    edges
        The same that the CSR was built of; ids are in [0, N).
    num_nodes
        N.
    rules
        The same that the CSR was built by.
    workspace
        Its ledger bounds the memory.
    writer
        Of the data set.
    progress
        Told the rows that are done.

    Raises
    ------
    DataError
        Rows and edges disagree, or values are no finite numbers.
    BudgetError
        The largest row does not fit the memory.
    """
    if values:
        EdgeValueWriter(values, edges, num_nodes, rules, workspace, progress).write(writer)


class EdgeValueWriter:
    """Writes values of edges; see `write_edge_values`."""

    def __init__(
        self,
        values: Mapping[str, EdgeRows],
        edges: EdgeStream,
        num_nodes: int,
        rules: EdgeRules,
        workspace: Workspace,
        progress: Progress | None,
    ) -> None:
        self._edges, self._num_nodes, self._rules = edges, num_nodes, rules
        self._workspace, self._progress = workspace, progress
        self._drop_loops = rules.self_loops == "drop"
        self._values = {name: self._checked(name, rows) for name, rows in values.items()}

    def _checked(self, name: str, rows: EdgeRows) -> _Value:
        if len(rows) != self._edges.num_edges:
            raise DataError(
                f"{rows.where}: {len(rows)} rows of values, {self._edges.num_edges} edges",
                "Give one row to every edge, in the order of the edges.",
            )
        width = int(np.prod(rows.shape[1:], dtype=np.int64))
        stored = _ATTR.get(rows.dtype.name)
        if stored is None or (name != "attr" and width != 1):
            raise DataError(
                f"{rows.where}: edge {name} of {rows.dtype} and shape {rows.shape}",
                "Give a matrix of numbers." if name == "attr" else "Give one number to an edge.",
            )
        if self._rules.duplicates == "sum":
            stored = _SUMMED.get(stored, stored)
        dtype = _DTYPES.get(name, stored)
        none = np.empty((0, width), dtype)
        return _Value(rows, dtype, width, _FILLS.get(name, 0.0), _MERGED[name], none)

    def write(self, writer: DatasetWriter) -> None:
        """Write all values.

        Parameters
        ----------
        writer
            Of the data set.
        """
        outs = {
            name: writer.array(
                f"{FOLDER}/{name}",
                (None, value.width) if name == "attr" else (None,),
                value.dtype,
            )
            for name, value in self._values.items()
        }
        strength = None
        if "weight" in outs:
            strength = writer.array(f"{FOLDER}/strength", (self._num_nodes,), "float32")
        counts = self._counts()
        begin = 0
        while begin < self._num_nodes:
            end = int(
                edge_kernels.end_of_range(counts, begin, 1, 0, self._entry_bytes, self._room())
            )
            rows = counts[begin:end]
            for name, kept in self._range(begin, rows):
                outs[name].append(kept if name == "attr" else kept.reshape(-1))
                if strength is not None and name == "weight":
                    sums = self._workspace.empty(len(rows), np.float32, "edge values")
                    _kernels.sum_rows(kept, rows, sums)
                    self._check_strength(begin, kept, rows, sums)
                    strength.append(sums)
            begin = end
            if self._progress:
                self._progress("edge values", begin, self._num_nodes)

    @property
    def _entry_bytes(self) -> int:
        """Of an entry: row, source, place, order, and its values before and after."""
        values = self._values.values()
        return 32 + 2 * sum(value.width * np.dtype(value.dtype).itemsize for value in values)

    def _room(self) -> int:
        """Bytes that a range may take, beside the buffers of streams of edges and values."""
        free = self._workspace.ledger.free_bytes(Tier.HOST)
        streams = (4 + 4 * len(self._values)) * self._workspace.piece_bytes
        return (1 << 40) if free is None else max(1 << 16, free - streams) // 2

    def _counts(self) -> NDArray[np.int64]:
        counts = self._workspace.empty(self._num_nodes, np.int64, "edge values")
        counts[:] = self._rules.self_loops == "add"
        for piece in self._edges.pieces():
            edge_kernels.count_rows(piece, 0, self._rules.undirected, self._drop_loops, counts)
        return counts

    def _range(self, first: int, rows: NDArray[np.int64]) -> list[tuple[str, NDArray[Any]]]:
        """Values of a range of rows; the lengths of the rows become ends of what is kept."""
        empty, merge = self._workspace.empty, self._rules.duplicates
        size = int(rows.sum())
        at_row = empty(size, np.int64, "edge values")
        entries = empty(size, np.int64, "edge values")
        for value in self._values.values():
            value.entries = empty((size, value.width), value.dtype, "edge values")
        self._collect(first, len(rows), at_row, entries)
        order, slot = empty(size, np.int64, "edge values"), at_row
        edge_kernels.start_rows(rows)
        _kernels.place(at_row, rows, order)
        threads.run(
            lambda begin, end: _kernels.sort_rows(order, entries, rows, begin, end),
            len(rows),
            grain=_GRAIN,
        )
        kept = int(
            _kernels.assign_slots(order, entries, rows, merge != "keep", merge == "sum", slot)
        )
        found = []
        for name, value in self._values.items():
            out = empty((kept, value.width), value.dtype, "edge values")
            plain = np.uint16 if value.dtype == "float16" else value.dtype  # numba has no halves
            _kernels.deposit(order, slot, value.entries.view(plain), value.how, out.view(plain))
            value.entries = value.entries[:0].copy()
            if merge == "sum" and value.how == _kernels.ADD:
                self._check_sums(name, first, rows, out)
            found.append((name, out))
        return found

    def _check_sums(
        self, name: str, first: int, ends: NDArray[np.int64], sums: NDArray[Any]
    ) -> None:
        """Refuse sums of parallel edges that the dtype does not hold."""
        infinite = _first_infinite(sums)
        if infinite is not None:
            at, j = infinite
            rows = self._values[name].rows
            node = first + int(np.searchsorted(ends, at, side="right"))
            raise DataError(
                f"{rows.where}: column {rows.columns[j]}: {name} of parallel edges to node {node} "
                f"add up to more than {sums.dtype} holds, {np.finfo(sums.dtype).max:.8g}",
                "Scale the values.",
            )

    def _check_strength(
        self, first: int, weight: NDArray[Any], ends: NDArray[np.int64], sums: NDArray[Any]
    ) -> None:
        """Refuse rows of weights whose sum float32 does not hold."""
        infinite = _first_infinite(sums[:, None])
        if infinite is not None:
            at, _ = infinite
            total = weight[ends[at - 1] if at else 0 : ends[at], 0].sum(dtype=np.float64)
            raise DataError(
                f"{self._values['weight'].rows.where}: node {first + at}: the weights of its edges "
                f"add up to {total:.8g}, more than float32 holds, {np.finfo(np.float32).max:.8g}",
                "Scale the weights.",
            )

    def _collect(
        self, first: int, num_rows: int, at_row: NDArray[np.int64], entries: NDArray[np.int64]
    ) -> None:
        """Take the entries of a range of rows and their values, in the order of the input."""
        size = self._workspace.rows_of(8)
        some_rows, some_entries, origin = (
            self._workspace.empty(size, np.int64, "edge values") for _ in range(3)
        )
        done = filled = 0
        for piece in self._edges.pieces():
            read = {name: self._read(name, done, piece.num_edges) for name in self._values}
            begin = 0
            while begin < piece.num_edges:
                count, begin = _kernels.collect(
                    piece,
                    first,
                    self._rules.undirected,
                    self._drop_loops,
                    num_rows,
                    begin,
                    some_rows,
                    some_entries,
                    origin,
                    0,
                )
                end = filled + count
                at_row[filled:end] = some_rows[:count]
                entries[filled:end] = some_entries[:count]
                for name, value in self._values.items():
                    value.entries[filled:end] = read[name][origin[:count]]
                filled = end
            done += piece.num_edges
        if self._rules.self_loops == "add":
            _kernels.collect_loops(first, num_rows, at_row, entries, filled)
            for value in self._values.values():
                value.entries[filled:] = value.fill

    def _read(self, name: str, begin: int, count: int) -> NDArray[Any]:
        """Values of edges in a row, as they are stored."""
        value = self._values[name]
        rows = value.rows
        raw = self._workspace.empty((count, value.width), rows.dtype, "edge values")
        rows.read_rows(begin, raw)
        infinite = _first_infinite(raw)
        if infinite is not None:
            raise DataError(
                f"{_cell(name, rows, begin, infinite, raw)} is not finite",
                "Give a finite number to every edge.",
            )
        if raw.dtype == np.dtype(value.dtype):
            return raw
        out = self._workspace.empty(raw.shape, value.dtype, "edge values")
        with np.errstate(over="ignore"):
            np.copyto(out, raw, casting="unsafe")
        infinite = _first_infinite(out)
        if infinite is not None:
            raise DataError(
                f"{_cell(name, rows, begin, infinite, raw)} is beyond the largest {value.dtype}, "
                f"{np.finfo(value.dtype).max:.8g}",
                "Scale the values.",
            )
        if name == "time" and not np.array_equal(out, raw):
            at = int(np.flatnonzero((out != raw).any(axis=1))[0])
            raise DataError(
                f"{rows.where}: edge {begin + at}: time {raw[at, 0]} is no whole number",
                "Give whole numbers, such as seconds.",
            )
        return out


def _first_infinite(values: NDArray[Any]) -> tuple[int, int] | None:
    """Row and column of the first number that is not finite; takes no memory where all are."""
    if values.dtype.kind != "f" or not values.size:
        return None
    if np.isfinite(values.min()) and np.isfinite(values.max()):  # a NaN is both
        return None
    row, column = np.argwhere(~np.isfinite(values))[0].tolist()
    return row, column


def _cell(name: str, rows: EdgeRows, begin: int, at: tuple[int, int], values: NDArray[Any]) -> str:
    row, column = at
    where = f"{rows.where}: edge {begin + row}, column {rows.columns[column]}"
    return f"{where}: {name} {values[at].item()!r}"
