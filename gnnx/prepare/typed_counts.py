"""How much a typed graph holds, type by type, from headers and samples; nothing is written.

Letters: N nodes, F feature width, E edges, each of a type.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gnnx.prepare.counting import (
    EdgeCounts,
    NodeCounts,
    Reading,
    count,
    label_bytes,
    only_number,
    pair_bytes,
)  # fmt: skip
from gnnx.prepare.layouts import named_where_wrong
from gnnx.prepare.recipe import Options
from gnnx.prepare.splits import NAMES
from gnnx.prepare.table_counts import count_edges, count_nodes
from gnnx.prepare.typed_layouts import GraphBolt, ogb_nodes, ogb_relations, read_graphbolt
from gnnx.prepare.typed_recipe import TypedRecipe

if TYPE_CHECKING:
    from pathlib import Path

    from gnnx.graph import EdgeType

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
        counts = count_nodes(nodes, root) if nodes.count is None else NodeCounts(nodes.count)
        found.nodes[nodes.type] = counts
        if nodes.features_file is not None:
            counts.take_features(root / nodes.features_file)
        if nodes.labels_file is not None:
            counts.take_labels(root / nodes.labels_file)
        counts.has_splits |= any(getattr(nodes, f"{name}_file") for name in NAMES)
    for edges in recipe.edges:
        if edges.files[0].endswith(".npy"):
            number = _edges(root / edges.files[0], edges.edge_type, found)
        else:
            number = count_edges(edges, root, _PAIR_BYTES)
        found.edges[edges.edge_type] = (number, edges.reverse)
    return found


def _ogb(folder: Path) -> TypedCounts:
    raw, found = folder / "raw", TypedCounts()
    for name, num_nodes in ogb_nodes(folder).items():
        found.nodes[name] = counts = NodeCounts(num_nodes)
        features = raw / "node-feat" / name / "node-feat.csv.gz"
        labels = raw / "node-label" / name / "node-label.csv.gz"
        if features.exists():
            counts.take_features(features)
        if labels.exists():
            counts.take_labels(labels)
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
            found.nodes[name].take_features(path)
        for name, parts in graphbolt.sets.items():
            counts = found.nodes[name]
            counts.has_splits = True
            if any("labels" in files for files in parts.values()):
                counts.label_bytes = label_bytes(1)
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
