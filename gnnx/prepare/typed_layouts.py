"""Folders of typed graphs as other projects lay them out: OGB's raw folders and GraphBolt's.

Letters: N nodes of a type.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx.errors import DataError, UsageError
from gnnx.prepare.arrays import open_npy
from gnnx.prepare.layouts import load_yaml, named_where_wrong, parts_of, read_seeds
from gnnx.prepare.sources import Reader
from gnnx.prepare.splits import NAMES
from gnnx.prepare.text import TextFormat
from gnnx.prepare.typed_tables import NodeInput, TypedSource

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from gnnx.graph import EdgeType
    from gnnx.prepare.arrays import Workspace
    from gnnx.threads import Progress

_PLAIN = TextFormat(",", header=False, comment="")
_OGB_SPLITS = ("train", "valid", "test")


def read_ogb(
    folder: Path, split_name: str | None, workspace: Workspace, progress: Progress | None = None
) -> TypedSource:
    """Read a raw folder of a typed graph of OGB, such as ogbn-mag's.

    Parameters
    ----------
    folder
        With ``raw/relations``, ``raw/num-node-dict.csv.gz``, labels and splits.
    split_name
        Of several splits.
    workspace
        Takes what is read.
    progress
        Told how far it is.

    Returns
    -------
    TypedSource
        Features, labels and splits of the types that have them.

    Raises
    ------
    DataError
        A file is missing or wrong.
    UsageError
        There are several splits, and none is named.
    """
    raw, reader = folder / "raw", Reader(workspace, _PLAIN, progress)
    found = TypedSource()
    for name, count in ogb_nodes(folder).items():
        nodes = found.nodes[name] = NodeInput(count)
        features = raw / "node-feat" / name / "node-feat.csv.gz"
        labels = raw / "node-label" / name / "node-label.csv.gz"
        if features.exists():
            nodes.features = reader.rows(features, np.float32)
        if labels.exists():
            nodes.labels = reader.rows(labels, np.float64)
    for edge_type, path in ogb_relations(folder, found.nodes).items():
        found.edges[edge_type] = (reader.source(path / "edge.csv.gz", None, None).edges, None)
    _read_ogb_splits(folder / "split", split_name, reader, found)
    return found


def _read_ogb_splits(
    splits: Path, split_name: str | None, reader: Reader, found: TypedSource
) -> None:
    names = sorted(path.name for path in splits.iterdir()) if splits.is_dir() else []
    if split_name is not None and split_name not in names:
        raise UsageError(f"split {split_name!r} is not in {splits}", f"Choose from {names}.")
    if split_name is None and len(names) > 1:
        raise UsageError(f"{splits}: several splits: {', '.join(names)}", "Give --split NAME.")
    for name, nodes in found.nodes.items():
        chosen = splits / (split_name or (names or [""])[0]) / name
        if names and chosen.is_dir():
            for split, file in zip(NAMES, _OGB_SPLITS, strict=True):
                nodes.splits[split] = reader.split(chosen / f"{file}.csv.gz")


def ogb_nodes(folder: Path) -> dict[str, int]:
    """Nodes of each type, from a table with a line of names and a line of numbers."""
    path = folder / "raw" / "num-node-dict.csv.gz"
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = list(csv.reader(file))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}", "Fetch it again.") from None
    if len(rows) != 2 or len(rows[0]) != len(rows[1]) or not all(map(str.isdecimal, rows[1])):
        raise DataError(
            f"{path}: {len(rows)} lines, not one of node types and one of numbers",
            "Give a folder with one graph.",
        )
    return {name: int(count) for name, count in zip(*rows, strict=True)}


def ogb_relations(folder: Path, node_types: Collection[str]) -> dict[EdgeType, Path]:
    """Folders of the edge types, whose ends have to be among the node types."""
    found: dict[EdgeType, Path] = {}
    for path in sorted((folder / "raw" / "relations").iterdir()):
        parts = path.name.split("___")
        if len(parts) != 3 or not {parts[0], parts[2]} <= set(node_types):
            raise DataError(
                f"{path}: not a relation between node types {', '.join(node_types)}",
                "Name it source___relation___destination.",
            )
        found[parts[0], parts[1], parts[2]] = path
    return found


@dataclasses.dataclass(frozen=True)
class GraphBolt:
    """A GraphBolt folder with several types, and what its metadata.yaml says."""

    folder: Path
    meta: dict[str, Any]

    def read(self, workspace: Workspace, progress: Progress | None = None) -> TypedSource:
        """Read graph, features and the task of node classification.

        Parameters
        ----------
        workspace
            Takes what is read.
        progress
            Told how far it is.

        Returns
        -------
        TypedSource
            Whose labels are those of the task's seeds.

        Raises
        ------
        DataError
            A file is missing or wrong, or of another format than numpy and csv.
        """
        found, reader = TypedSource(), Reader(workspace, _PLAIN, progress)
        with named_where_wrong(self.folder / "metadata.yaml"):
            self._read(found, reader, workspace)
        return found

    @property
    def nodes(self) -> dict[str, int]:
        """Nodes of each type."""
        return {nodes["type"]: int(nodes["num"]) for nodes in self.meta["graph"]["nodes"]}

    @property
    def edges(self) -> dict[EdgeType, Path]:
        """Files of the edge types."""
        found: dict[EdgeType, Path] = {}
        for edges in self.meta["graph"]["edges"]:
            src, relation, dst = edges["type"].split(":")
            found[src, relation, dst] = self.folder / edges["path"]
        return found

    @property
    def features(self) -> dict[str, Path]:
        """Files of features by node type: the first one of each."""
        chosen: dict[str, Path] = {}
        for feature in self.meta.get("feature_data") or []:
            if feature["domain"] == "node":
                chosen.setdefault(feature["type"], self.folder / feature["path"])
        return chosen

    @property
    def sets(self) -> dict[str, dict[str, dict[str, Path]]]:
        """Files of the sets of node classification, as of `parts_of`."""
        found: dict[str, dict[str, dict[str, Path]]] = {}
        for task in self.meta.get("tasks") or []:
            if task["name"] == "node_classification":
                found |= parts_of(self.folder, task, typed=True)
        return found

    def _read(self, found: TypedSource, reader: Reader, workspace: Workspace) -> None:
        found.nodes |= {name: NodeInput(count) for name, count in self.nodes.items()}
        for edge_type, path in self.edges.items():
            found.edges[edge_type] = (reader.source(path, None, None).edges, None)
        features = self.features
        for name, path in features.items():
            found.nodes[name].features = open_npy(workspace, path)
        for feature in self.meta.get("feature_data") or []:
            if self.folder / feature["path"] not in features.values():
                found.notes.append(f"{feature['path']}: {feature['name']}: not taken over")
        for task in self.meta.get("tasks") or []:
            if task["name"] != "node_classification":
                found.notes.append(f"metadata.yaml: task {task['name']}: not taken over")
        for name, parts in self.sets.items():
            of_type = found.nodes[name]
            of_type.splits, of_type.labels = read_seeds(parts, len(of_type), workspace)


def read_graphbolt(folder: Path) -> GraphBolt | None:
    """Describe a GraphBolt folder whose graph has several types; None where it is none."""
    meta = load_yaml(folder / "metadata.yaml")
    if meta is None:
        return None
    graph = meta.get("graph", {})
    typed = max(len(graph.get("nodes", [])), len(graph.get("edges", []))) > 1
    return GraphBolt(folder, meta) if typed else None
