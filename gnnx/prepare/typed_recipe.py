"""Recipes of typed graphs: [[nodes]] and [[edges]], a table a node type and an edge type."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from gnnx.errors import UsageError
from gnnx.prepare.recipe import EdgeTable, NodeTable, Options, document_of, parsed_file
from gnnx.store.manifest import check_name

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gnnx.graph import EdgeType
    from gnnx.prepare.recipe import Table

_NO_OPTIONS = Options()
_COLUMNS = ("key", "key_type", "features", "label", "split", "train", "val", "test")


@dataclasses.dataclass(frozen=True)
class TypedNodes(NodeTable):
    """Nodes of one type: a table, or their number, and files with a row a node."""

    files: tuple[str, ...] = ()
    """Of the table; none where `count` says how many nodes there are."""
    type: str = ""
    """Name of the node type."""
    count: int | None = None
    """Number of nodes, where there is no table; edges then give the id, from 0."""
    features_file: str | None = None
    """`.npy` or text with a row a node."""
    labels_file: str | None = None
    """Likewise, a class a node; -1 or NaN is none."""
    train_file: str | None = None
    """Ids of the training nodes, or a flag a node in `.npy`; likewise val and test."""
    val_file: str | None = None
    test_file: str | None = None

    def check(self, where: str) -> None:
        """Hold the keys against each other; `where` is the path to them."""
        if not self.type:
            raise UsageError(f"{where}.type: missing", "Name the node type.")
        if "/" in check_name(self.type) or "-" in self.type:
            raise UsageError(f"{where}.type: {self.type!r}", "Use letters, digits and _.")
        if bool(self.files) == (self.count is not None):
            raise UsageError(f"{where}: files or count", "Give one of them.")
        _refuse(self, where, ("labels", "tags"), "Give label, or labels_file: a class a node.")
        if self.count is not None:
            _refuse(self, where, _COLUMNS, "Give files, or features_file and its like.")
        for one, other in ((self.features, "features"), (self.label, "labels")):
            if one and getattr(self, f"{other}_file"):
                raise UsageError(
                    f"{where}: {other}_file and columns of {other}", "Give one of them."
                )


@dataclasses.dataclass(frozen=True)
class TypedEdges(EdgeTable):
    """Edges of one type: a table, or an `.npy` file of ids, (E, 2) or (2, E)."""

    files: tuple[str, ...] = ()
    """Paths and globs, relative to the root."""
    type: tuple[str, ...] = ()
    """Source type, relation, destination type."""
    reverse: str | None = None
    """Relation under which every edge is kept in the other direction as well."""

    def check(self, where: str, node_types: Sequence[str]) -> None:
        """Hold the keys against the node types; `where` is the path to them."""
        if not self.files:
            raise UsageError(f"{where}.files: missing", "Add it to the recipe.")
        if len(self.type) != 3:
            raise UsageError(
                f"{where}.type: {list(self.type)}",
                'Give source type, relation and destination type: ["a", "cites", "b"].',
            )
        _refuse(
            self,
            where,
            ("weight", "attr", "time", "relation"),
            "Leave it out: edges of typed graphs carry no values.",
        )
        for end in (self.type[0], self.type[2]):
            if end not in node_types:
                raise UsageError(
                    f"{where}.type: no node type {end!r}", f"Choose from {', '.join(node_types)}."
                )

    @property
    def edge_type(self) -> EdgeType:
        """`type`, which has three names."""
        src, relation, dst = self.type
        return src, relation, dst


@dataclasses.dataclass(frozen=True)
class TypedRecipe:
    """What a recipe file of a typed graph says."""

    nodes: tuple[TypedNodes, ...]
    edges: tuple[TypedEdges, ...]
    options: Options = _NO_OPTIONS

    def __post_init__(self) -> None:
        types = [node.type for node in self.nodes]
        for i, nodes in enumerate(self.nodes):
            nodes.check(f"nodes[{i}]")
            if types.index(nodes.type) < i:
                raise UsageError(f"nodes[{i}].type: {nodes.type!r} is there twice", "Name it once.")
        for i, edges in enumerate(self.edges):
            edges.check(f"edges[{i}]", types)

    @classmethod
    def load(cls, path: Path) -> TypedRecipe:
        """Read and check a recipe; errors as of `Recipe.load`."""
        recipe: TypedRecipe = parsed_file(cls, path)
        return recipe


def _refuse(table: Table, where: str, keys: Sequence[str], remedy: str) -> None:
    """Refuse keys of tables of graphs without types that nothing would read here."""
    for key in keys:
        if getattr(table, key):
            raise UsageError(f"{where}.{key}: not read from this table of a typed graph", remedy)


def is_typed(path: Path) -> bool:
    """Whether a recipe has lists of node and edge tables."""
    document = document_of(path)
    return any(isinstance(document.get(name), list) for name in ("nodes", "edges"))
