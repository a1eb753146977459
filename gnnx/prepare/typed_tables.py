"""Tables of a typed recipe: nodes of each type numbered by their keys, edges between them.

Letters: N nodes of a type, E edges of a type.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx.errors import DataError
from gnnx.prepare.arrays import open_npy
from gnnx.prepare.columns import NodeColumns
from gnnx.prepare.edges import PairEdges
from gnnx.prepare.keys import NodeKeys
from gnnx.prepare.sources import Reader
from gnnx.prepare.splits import NAMES
from gnnx.prepare.tables import Tables
from gnnx.prepare.text import TextFormat

if TYPE_CHECKING:
    from pathlib import Path

    from gnnx.graph import EdgeType
    from gnnx.prepare.arrays import Array, Workspace
    from gnnx.prepare.edges import Edges
    from gnnx.prepare.nodes import Rows
    from gnnx.prepare.text import TextTable
    from gnnx.prepare.typed_recipe import TypedEdges, TypedNodes, TypedRecipe
    from gnnx.threads import Progress


@dataclasses.dataclass
class NodeInput:
    """What an input holds of the nodes of one type."""

    count: int
    """N."""
    features: Rows | None = None
    labels: Array | None = None
    splits: dict[str, Array | TextTable] = dataclasses.field(default_factory=dict)
    arrays: dict[str, Array] = dataclasses.field(default_factory=dict)
    """What else is kept, by name: their keys, the names of their classes."""

    def __len__(self) -> int:
        return self.count


@dataclasses.dataclass
class TypedSource:
    """What a typed input holds."""

    nodes: dict[str, NodeInput] = dataclasses.field(default_factory=dict)
    edges: dict[EdgeType, tuple[Edges, str | None]] = dataclasses.field(default_factory=dict)
    """By edge type, and the relation under which the reverse edges are kept as well."""
    unknown_ends: dict[EdgeType, int] = dataclasses.field(default_factory=dict)
    """Edges left out since they name nodes that are not there, where there are any."""
    notes: list[str] = dataclasses.field(default_factory=list)


def read_recipe(
    recipe: TypedRecipe, root: Path, workspace: Workspace, progress: Progress | None = None
) -> TypedSource:
    """Read the tables and arrays of a recipe; nodes get ids in the order of their table.

    Parameters
    ----------
    recipe
        What is where.
    root
        Where its relative paths begin.
    workspace
        Takes what is read.
    progress
        Told how far it is.

    Returns
    -------
    TypedSource
        All of it as arrays.

    Raises
    ------
    DataError
        A file is missing or wrong.
    """
    found, reader = TypedSource(), Reader(workspace, TextFormat(), progress)
    with contextlib.ExitStack() as stack:
        tables: Tables | None = None
        if any(nodes.files for nodes in recipe.nodes) or not all(map(_is_array, recipe.edges)):
            tables = stack.enter_context(Tables(workspace, root, progress))
        keys: dict[str, NodeKeys] = {}
        for nodes in recipe.nodes:
            found.nodes[nodes.type] = _read_nodes(nodes, tables, keys)
            _read_files(nodes, root, reader, found.nodes[nodes.type])
        for edges in recipe.edges:
            if _is_array(edges):
                pairs = PairEdges(open_npy(workspace, root / edges.files[0]))
            else:
                assert tables is not None  # there is a table
                joined, unknown = _join(edges, tables, keys)
                pairs = PairEdges(joined, "pairs")
                if unknown:
                    found.unknown_ends[edges.edge_type] = unknown
            found.edges[edges.edge_type] = (pairs, edges.reverse)
    return found


def _is_array(edges: TypedEdges) -> bool:
    return edges.files[0].endswith(".npy")


def _read_nodes(nodes: TypedNodes, tables: Tables | None, keys: dict[str, NodeKeys]) -> NodeInput:
    """Give the nodes of a table their numbers, and read its columns."""
    if not nodes.files:
        assert nodes.count is not None  # the recipe was checked
        return NodeInput(nodes.count)
    assert tables is not None  # there is a table
    numbering, columns = NodeKeys(tables), NodeColumns(tables)
    if nodes.key is None:
        found = NodeInput(tables.count(nodes))
    else:
        numbering.number_nodes(nodes)
        found = NodeInput(numbering.num_nodes, arrays=numbering.key_arrays(ordered=False))
        tables.run(f"ALTER TABLE node RENAME TO node_{nodes.type}")
        keys[nodes.type] = numbering
    if nodes.features:
        found.features = columns.features(nodes)
    if nodes.label is not None:
        arrays = columns.labels(nodes)
        tables.run("DROP TABLE IF EXISTS class")
        found.labels = arrays.pop("y")
        found.arrays |= arrays
    found.splits |= columns.splits(nodes)
    return found


def _read_files(nodes: TypedNodes, root: Path, reader: Reader, found: NodeInput) -> None:
    """Open the files with a row a node."""
    if nodes.features_file is not None:
        found.features = reader.rows(root / nodes.features_file, np.float32)
    if nodes.labels_file is not None:
        found.labels = reader.rows(root / nodes.labels_file, np.float64)
    for name in NAMES:
        file = getattr(nodes, f"{name}_file")
        if file is not None:
            found.splits[name] = reader.split(root / file)


def _join(edges: TypedEdges, tables: Tables, keys: dict[str, NodeKeys]) -> tuple[Array, int]:
    """Edges in ids, (E, 2) int64, and how many of the table name unknown nodes."""
    src, _, dst = edges.edge_type
    plain = NodeKeys(tables)  # ends without keys are ids
    scan, s, _ = keys.get(src, plain).ends_of(edges, numbered=True)
    _, _, d = keys.get(dst, plain).ends_of(edges, numbered=True)
    joined = f"(SELECT {s} AS s, {d} AS d FROM {scan}) e"
    chosen = ["e.s", "e.d"]
    for i, (name, end) in enumerate(((src, "s"), (dst, "d"))):
        if name in keys:
            joined += f" LEFT JOIN node_{name} n{i} ON e.{end} = n{i}.key"
            chosen[i] = f"n{i}.id"
    tables.run("SET preserve_insertion_order = false")  # the CSR is sorted anyway
    scratch, count, unknown = tables.workspace.scratch(), 0, 0
    where = edges.files[0]
    for batch in tables.stream(f"SELECT {', '.join(chosen)} FROM {joined}", f"edges of {where}"):
        columns: Any = batch.columns
        ends = [column.fill_null(-1).to_numpy(zero_copy_only=False) for column in columns]
        pairs = np.stack(ends, axis=1)
        known = (pairs >= 0).all(axis=1)
        unknown += len(pairs) - int(np.count_nonzero(known))
        pairs = np.ascontiguousarray(pairs[known], np.int64)
        scratch.append(pairs)
        count += len(pairs)
    if unknown and edges.unknown == "refuse":
        for i, (name, end) in enumerate(((src, "s"), (dst, "d"))):
            ((key,),) = tables.fetch(
                f"SELECT min(coalesce(e.{end}::VARCHAR, '')) FROM {joined} "
                f"WHERE {chosen[i]} IS NULL"
            )
            if key is not None:
                raise DataError(
                    f"{where}: {unknown} of {count + unknown} edges name nodes that are not there, "
                    f"such as the {name} {key!r}",
                    'Add the nodes, or leave these edges out with unknown = "drop".',
                )
        raise DataError(f"{where}: {unknown} edges with ids below 0", "Count from 0.")
    return scratch.array(where, (count, 2), np.int64), unknown
