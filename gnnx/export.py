"""Tables out of a dataset: nodes and edges by the keys that the input gave them, in pieces.

Letters: N nodes, E edges, R rows of a piece.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch

from gnnx.errors import DataError, UsageError
from gnnx.store import value_bytes, whole_file
from gnnx.store.keys import class_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from gnnx.graph import EdgeType
    from gnnx.store import Dataset, DiskFeatures
    from gnnx.store.keys import Keys

_PIECE_BYTES = 4 << 20
_SPLITS = ("train", "val", "test")
SUFFIXES = (".parquet", ".csv")


def export(
    dataset: Dataset,
    out: Path,
    *,
    what: str = "nodes",
    kind: str | None = None,
    rows: Path | None = None,
) -> int:
    """Write a table with one row a node or an edge, named by the keys of the input.

    Parameters
    ----------
    dataset
        Whose nodes.
    out
        `.parquet` or `.csv`; it appears when it is whole.
    what
        ``"nodes"``: ``key``, and ``label``, ``split`` and ``x`` as far as there are any; lists
        become columns ``x0``, ``x1``, … in CSV. ``"edges"``: ``src``, ``dst`` and what
        edges carry.
    kind
        Of several types: a node type, `Dataset.target` by default, or an edge type, its three
        names with ``-`` between them.
    rows
        A `.npy` file of one row a node, such as `infer` writes, to write instead of the above.

    Returns
    -------
    int
        Rows written.

    Raises
    ------
    UsageError
        The suffix, `what` or type is another one.
    DataError
        The rows are no matrix of numbers, or not as many as the nodes.
    """
    if what not in {"nodes", "edges"}:
        raise UsageError(f"{what!r} cannot be exported", 'Choose "nodes" or "edges".')
    if what == "edges" and rows is None:
        return _write(out, _edges(dataset, _edge_type(dataset, kind)))
    node_type = dataset.target if kind is None else kind
    keys = dataset.keys_of(node_type)
    if rows is None:
        return _write(out, _nodes(dataset, node_type, keys))
    values, count = _rows(rows), dataset.node_counts[node_type]
    if len(values) != count:
        raise DataError(
            f"{rows.name}: {len(values)} rows, {count} nodes", "Give a row for every node."
        )
    return _write(out, _named(keys, _cut(values)))


def _edge_type(dataset: Dataset, kind: str | None) -> EdgeType:
    """Find the edge type of a name, or the only one."""
    known = {"-".join(edge_type): edge_type for edge_type in dataset.edge_types}
    if kind is None and len(known) == 1:
        return dataset.edge_types[0]
    if kind not in known:
        cause = f"{len(known)} edge types" if kind is None else f"no edge type {kind!r}"
        raise UsageError(
            f"{dataset.path}: {cause}", f"Give --type one of {', '.join(known) or 'none'}."
        )
    return known[kind]


def _rows(path: Path) -> NDArray[Any]:
    try:
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataError(f"{path}: {error}", "Give a .npy file of numbers.") from None
    if (
        not isinstance(values, np.ndarray)
        or values.ndim not in {1, 2}
        or values.dtype.kind in "OSUV"
    ):
        raise DataError(f"{path}: no rows of numbers", "Give a .npy file of shape (N,) or (N, C).")
    return values


def write_rows(
    dataset: Dataset, out: Path, pieces: Iterable[tuple[NDArray[np.int64], NDArray[Any]]]
) -> int:
    """Write rows of numbers by the keys of their nodes.

    Parameters
    ----------
    dataset
        Whose nodes.
    out
        `.parquet` or `.csv`.
    pieces
        Ids and rows.

    Returns
    -------
    int
        Rows written.
    """
    return _write(out, _named(dataset.keys, pieces))


def _named(
    keys: Keys, pieces: Iterable[tuple[NDArray[np.int64], NDArray[Any]]]
) -> Iterator[dict[str, Any]]:
    for ids, rows in pieces:
        yield {"key": keys.of(ids), "x": rows}


def _cut(values: NDArray[Any]) -> Iterator[tuple[NDArray[np.int64], NDArray[Any]]]:
    step = max(1, _PIECE_BYTES // max(1, values[:1].nbytes))
    for begin in range(0, len(values), step):
        piece = np.array(values[begin : begin + step])
        yield np.arange(begin, begin + len(piece)), piece


def _nodes(dataset: Dataset, node_type: str, keys: Keys) -> Iterator[dict[str, Any]]:
    arrays = {
        name: dataset.array(full)
        for name in ("x", "y", *_SPLITS)
        if (full := f"nodes/{node_type}/{name}") in dataset.manifest.arrays
    }
    x, labels = arrays.get("x"), arrays.get("y")
    x = x if x is not None and x.row_bytes else None
    names = class_names(dataset.path, dataset.manifest, node_type)
    row_bytes = 64 + (value_bytes(x) if x is not None else 0)
    step = max(1, _PIECE_BYTES // row_bytes)
    splits = {
        name: arrays[name].read_range(0, arrays[name].num_rows).numpy()
        for name in _SPLITS
        if name in arrays
    }
    num_nodes = dataset.node_counts[node_type]
    for begin in range(0, num_nodes, step):
        end = min(begin + step, num_nodes)
        columns: dict[str, Any] = {"key": keys.of(np.arange(begin, end))}
        if labels is not None:
            columns["label"] = _labels(labels.read_range(begin, end).numpy(), names)
        if any(len(ids) for ids in splits.values()):
            column = np.full(end - begin, None, object)
            for name, ids in splits.items():
                first, last = np.searchsorted(ids, [begin, end])
                column[ids[first:last] - begin] = name
            columns["split"] = pa.array(column, pa.string())
        if x is not None:
            values = x.read_range(begin, end)
            if x.scale is not None:
                values = values * x.scale
            columns["x"] = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
        yield columns


def _labels(labels: NDArray[np.int64], names: list[str] | None) -> Any:
    """Classes by name or number, null for none; a row of 0 and 1 where a node has several."""
    if labels.ndim > 1:
        return labels
    none = labels < 0
    if names is None:
        return pa.array(labels, mask=none)
    return pa.array([None if y < 0 else names[y] for y in labels.tolist()], pa.string())


def _edges(dataset: Dataset, edge_type: EdgeType) -> Iterator[dict[str, Any]]:
    src, _, dst = edge_type
    sources, destinations, done = dataset.keys_of(src), dataset.keys_of(dst), 0
    names: list[str] | None = None
    values: dict[str, DiskFeatures] = {}
    if not dataset.is_typed:  # edges of typed graphs carry nothing
        names = dataset.relation_names
        for name in ("weight", "attr", "time", "relation"):
            array = dataset.edge_values(name)
            if array is not None:
                values[name] = array
    for first, indptr, indices in dataset.graphs[edge_type].iter_rows():
        rows = np.repeat(np.arange(first, first + len(indptr) - 1), np.diff(indptr))
        columns: dict[str, Any] = {
            "src": sources.of(indices.astype(np.int64)),
            "dst": destinations.of(rows),
        }
        for name, array in values.items():
            columns[name] = array.read_range(done, done + len(rows)).numpy()
        done += len(rows)
        if names is not None:
            columns["relation"] = _labels(columns["relation"], names)
        yield columns


def _write(out: Path, pieces: Iterable[Mapping[str, Any]]) -> int:
    """Write pieces of a table under a temporary name; rename it when it is whole and synced."""
    if out.suffix not in SUFFIXES:
        raise UsageError(f"{out.name}: a table of unknown kind", "Name it .parquet or .csv.")
    count = 0
    with whole_file(out) as file, contextlib.ExitStack() as stack:
        writer: Any = None
        for piece in pieces:
            table = _table(piece, flat=out.suffix == ".csv")
            writer = writer or stack.enter_context(_writer(file, out.suffix, table.schema))
            writer.write_table(table)
            count += len(table)
    return count


def _writer(file: Any, suffix: str, schema: pa.Schema) -> Any:
    if suffix == ".csv":
        import pyarrow.csv

        return pyarrow.csv.CSVWriter(file, schema)
    import pyarrow.parquet

    return pyarrow.parquet.ParquetWriter(file, schema)


def _table(columns: Mapping[str, Any], *, flat: bool) -> pa.Table:
    arrays: dict[str, Any] = {}
    for name, values in columns.items():
        if not (isinstance(values, np.ndarray) and values.ndim > 1):
            arrays[name] = values if isinstance(values, pa.Array) else pa.array(values)
        elif flat:
            arrays |= {f"{name}{i}": pa.array(values[:, i]) for i in range(values.shape[1])}
        else:
            cells = pa.array(np.ascontiguousarray(values).reshape(-1))
            arrays[name] = pa.FixedSizeListArray.from_arrays(cells, values.shape[1])
    return pa.table(arrays)
