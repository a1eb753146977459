"""How much a typed graph holds, type by type, from headers and samples; nothing is written.

Letters: N nodes, F feature width, E edges, each of a type.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gnnx.prepare.columns import named_columns
from gnnx.prepare.counting import (
    EdgeCounts,
    NodeCounts,
    Reading,
    count,
    count_rows,
    only_number,
    pair_bytes,
)  # fmt: skip
from gnnx.prepare.layouts import named_where_wrong
from gnnx.prepare.recipe import Options
from gnnx.prepare.splits import NAMES
from gnnx.prepare.table_counts import columns_of, count_table
from gnnx.prepare.typed_layouts import GraphBolt, ogb_nodes, ogb_relations, read_graphbolt
from gnnx.prepare.typed_recipe import TypedRecipe

if TYPE_CHECKING:
    from pathlib import Path

    from gnnx.graph import EdgeType
    from gnnx.prepare.typed_recipe import TypedEdges, TypedNodes

_PAIR_BYTES = 16  # of an edge that comes from a table


@dataclasses.dataclass
class TypedCounts:
    """What a typed input holds."""

    nodes: dict[str, NodeCounts] = dataclasses.field(default_factory=dict)
    edges: dict[EdgeType, tuple[EdgeCounts, str | None]] = dataclasses.field(default_factory=dict)
    """By edge type, and the relation under which the reverse edges are kept as well."""
    options: Options = dataclasses.field(default_factory=Options)
    """Of the recipe."""


def count_typed(source: Path, root: Path | None = None) -> TypedCounts:
    """Count what a typed input holds.

    Parameters
    ----------
    source
        A recipe or a folder, of which `has_types` holds.
    root
        Folder in which the files of a recipe are; the recipe's own by default.

    Returns
    -------
    TypedCounts
        Of its node and edge types.

    Raises
    ------
    DataError
        A file cannot be read.
    UsageError
        The recipe is wrong.
    """
    if source.suffix == ".toml":
        return _recipe(TypedRecipe.load(source), source.absolute().parent if root is None else root)
    graphbolt = read_graphbolt(source)
    return _ogb(source) if graphbolt is None else _graphbolt(graphbolt)


def _recipe(recipe: TypedRecipe, root: Path) -> TypedCounts:
    found = TypedCounts(options=recipe.options)
    for nodes in recipe.nodes:
        found.nodes[nodes.type] = counts = _table_nodes(nodes, root)
        if nodes.features_file is not None:
            _take_features(counts, root / nodes.features_file)
        if nodes.labels_file is not None:
            _take_labels(counts, root / nodes.labels_file)
        counts.has_splits |= any(getattr(nodes, f"{name}_file") for name in NAMES)
    for edges in recipe.edges:
        found.edges[edges.edge_type] = (_table_edges(edges, root, found), edges.reverse)
    return found


def _table_nodes(nodes: TypedNodes, root: Path) -> NodeCounts:
    """Nodes of a table, whose columns go to scratch files as they are stored."""
    if not nodes.files:
        assert nodes.count is not None  # the recipe was checked
        return NodeCounts(nodes.count)
    table = count_table(nodes, root, "nodes")
    named = {"key": nodes.key, "label": nodes.label, "split": nodes.split}
    named |= {name: getattr(nodes, name) for name in NAMES}
    columns_of(nodes, table, [(f"nodes.{key}", name) for key, name in named.items()])
    num_nodes, scratch = table.num_rows, 0
    found = NodeCounts(num_nodes)
    if nodes.features:
        names = named_columns(table.sample.column_names, nodes, nodes.features, "nodes.features")
        width = sum(table.width(name, nodes.separator) for name in names)
        found.features, scratch = (num_nodes, width, 4), scratch + 4 * num_nodes * width
    if nodes.key is not None:  # by id, and ids in their order
        integer = table.is_integer(nodes.key)
        if nodes.key_type is not None:
            integer = nodes.key_type == "integer"
        if not integer:
            found.arrays.append(round(num_nodes * table.text_bytes(nodes.key)))
        found.arrays += [8 * num_nodes] * 2
    if nodes.label is not None:
        found.has_labels, scratch = True, scratch + 8 * num_nodes
        if table.has_names(nodes.label):
            found.arrays += [0, 0]  # their names are few
    found.has_splits = bool(nodes.split) or any(getattr(nodes, name) for name in NAMES)
    scratch += 3 * num_nodes * found.has_splits + sum(found.arrays)
    found.reading = Reading(
        table_bytes=table.num_bytes, table_rows=num_nodes, scratch_bytes=scratch, exact=table.exact
    )
    return found


def _table_edges(edges: TypedEdges, root: Path, found: TypedCounts) -> EdgeCounts:
    if edges.files[0].endswith(".npy"):
        return _edges(root / edges.files[0], edges.edge_type, found)
    table = count_table(edges, root, "edges")
    columns_of(edges, table, [("edges.src", edges.src), ("edges.dst", edges.dst)])
    reading = Reading(
        table_bytes=table.num_bytes,
        table_rows=table.num_rows,
        scratch_bytes=_PAIR_BYTES * table.num_rows,
        exact=table.exact,
    )
    return EdgeCounts(table.num_rows, reading)


def _ogb(folder: Path) -> TypedCounts:
    raw, found = folder / "raw", TypedCounts()
    for name, num_nodes in ogb_nodes(folder).items():
        found.nodes[name] = counts = NodeCounts(num_nodes)
        features = raw / "node-feat" / name / "node-feat.csv.gz"
        labels = raw / "node-label" / name / "node-label.csv.gz"
        if features.exists():
            _take_features(counts, features)
        if labels.exists():
            _take_labels(counts, labels)
        counts.has_splits = any(path.is_dir() for path in (folder / "split").glob(f"*/{name}"))
    for edge_type, path in ogb_relations(folder, found.nodes).items():
        stated = path / "num-edge-list.csv.gz"
        number = only_number(stated) if stated.exists() else None
        found.edges[edge_type] = (_edges(path / "edge.csv.gz", edge_type, found, number), None)
    return found


def _graphbolt(graphbolt: GraphBolt) -> TypedCounts:
    found = TypedCounts()
    with named_where_wrong(graphbolt.folder / "metadata.yaml"):
        found.nodes |= {name: NodeCounts(num) for name, num in graphbolt.nodes.items()}
        for name, path in graphbolt.features.items():
            _take_features(found.nodes[name], path)
        for name, parts in graphbolt.sets.items():
            counts = found.nodes[name]
            counts.has_splits = True
            if any("labels" in files for files in parts.values()):
                counts.has_labels = True
                counts.reading += Reading(
                    scratch_bytes=8 * counts.count, host_bytes=8 * counts.count
                )
        for edge_type, path in graphbolt.edges.items():
            found.edges[edge_type] = (_edges(path, edge_type, found), None)
    return found


def _edges(
    path: Path, edge_type: EdgeType, found: TypedCounts, stated: int | None = None
) -> EdgeCounts:
    """Count a file of edges in ids; `stated` is how many it is said to hold."""
    counts = count(path)
    num_edges = counts.num_edges if stated is None else stated
    largest = max(found.nodes[end].count for end in (edge_type[0], edge_type[2]))
    reading = Reading(
        text_bytes=counts.text_bytes,
        scratch_bytes=num_edges * pair_bytes(largest) * counts.from_text,
        exact=counts.exact or stated is not None,
    )
    return EdgeCounts(num_edges, reading)


def _take_features(counts: NodeCounts, path: Path) -> None:
    """Count a file of features; its rows are the nodes, whose number is known."""
    (_, width, size), text_bytes, _ = count_rows(path)
    counts.features = counts.count, width, size
    counts.reading += Reading(
        text_bytes=text_bytes, scratch_bytes=4 * counts.count * width * (text_bytes > 0)
    )


def _take_labels(counts: NodeCounts, path: Path) -> None:
    _, text_bytes, _ = count_rows(path)
    counts.has_labels = True
    counts.reading += Reading(
        text_bytes=text_bytes, scratch_bytes=8 * counts.count * (text_bytes > 0)
    )
