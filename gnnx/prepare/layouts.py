"""Folders as other projects lay them out: IGB, MAG240M, DGL's CSVDataset and GraphBolt.

Letters: N nodes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx.errors import DataError, UsageError
from gnnx.prepare.arrays import open_npy
from gnnx.prepare.edges import PairEdges
from gnnx.prepare.recipe import EdgeTable, NodeTable, Recipe
from gnnx.prepare.sources import Reader, Source
from gnnx.prepare.splits import NAMES
from gnnx.prepare.tables import header, matches
from gnnx.prepare.text import outside
from gnnx.prepare.values import ArrayRows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from gnnx.prepare.arrays import Array, Workspace
    from gnnx.prepare.text import TextTable


def read_papers(folder: Path, workspace: Workspace) -> Source | None:
    """Read the papers and citations of an IGB or a MAG240M folder.

    Parameters
    ----------
    folder
        With `processed/paper` in it.
    workspace
        Keeps the files open.

    Returns
    -------
    Source or None
        None where it is neither.

    Raises
    ------
    DataError
        An array is missing or damaged.
    """
    processed = folder / "processed"
    for cites in ("paper__cites__paper", "paper___cites___paper"):
        if (processed / cites).is_dir():
            break
    else:
        return None
    source = Source(PairEdges(open_npy(workspace, processed / cites / "edge_index.npy")))
    source.features = open_npy(workspace, processed / "paper" / "node_feat.npy")
    for name in ("node_label_19.npy", "node_label.npy", "node_label_2K.npy"):
        if (processed / "paper" / name).exists():
            source.labels = open_npy(workspace, processed / "paper" / name)
            break
    others = sorted(p.name for p in processed.iterdir() if p.name not in {"paper", cites})
    source.notes += [
        f"{name}: not read: of this layout papers and citations are" for name in others
    ]
    if (folder / "split_dict.pt").exists():
        source.notes.append("split_dict.pt: not read: a pickle; give --train, --val and --test")
    return source


def csv_dataset(folder: Path) -> Recipe | None:
    """Describe a folder of DGL's CSVDataset as a recipe.

    Parameters
    ----------
    folder
        With `meta.yaml` in it.

    Returns
    -------
    Recipe or None
        None where it is no such folder.

    Raises
    ------
    DataError
        It has several types or graphs, or contradicts itself.
    """
    meta = load_yaml(folder / "meta.yaml")
    if meta is None:
        return None
    where = folder / "meta.yaml"
    with named_where_wrong(where, "CSVDataset"):
        nodes, edges = meta.get("node_data", []), meta.get("edge_data", [])
        if len(nodes) != 1 or len(edges) != 1:
            raise DataError(
                f"{where}: {len(nodes)} node files and {len(edges)} edge files",
                "Graphs of one node type and one edge type can be read.",
            )
        separator = meta.get("separator", ",")
        if len(separator) != 1:
            raise DataError(
                f"{where}: separator: {separator!r} is not one character", "Give one character."
            )
        node_file, edge_file = nodes[0]["file_name"], edges[0]["file_name"]
        matches(folder, edge_file)
        table = NodeTable((node_file,), delimiter=separator)
        names = header(matches(folder, node_file)[0], table)
        if "graph_id" in names:
            raise DataError(f"{node_file}: several graphs", "Give a folder with one graph.")

        def there(name: str) -> str | None:
            return name if name in names else None

        integers = meta.get("node_id_type", "integer") == "integer"
        return Recipe(
            edges=EdgeTable((edge_file,), delimiter=separator, src="src_id", dst="dst_id"),
            nodes=dataclasses.replace(
                table,
                key="node_id",
                key_type="integer" if integers else "string",
                features=("feat",) if "feat" in names else (),
                separator=",",
                label=there("label"),
                train=there("train_mask"),
                val=there("val_mask"),
                test=there("test_mask"),
            ),
        )


def graphbolt(folder: Path, reader: Reader, workspace: Workspace) -> Source | None:
    """Read a folder of DGL's GraphBolt whose graph has one node type and one edge type.

    Parameters
    ----------
    folder
        With `metadata.yaml` in it.
    reader
        Reads tables.
    workspace
        Takes labels.

    Returns
    -------
    Source or None
        None where it is no such folder. Labels are those of the seeds of its first task; its other
        tasks and features are noted.

    Raises
    ------
    DataError
        Its graph has several types, or it contradicts itself.
    """
    meta = load_yaml(folder / "metadata.yaml")
    if meta is None:
        return None
    where = folder / "metadata.yaml"
    graph = meta.get("graph", {})
    nodes, edges = graph.get("nodes", []), graph.get("edges", [])
    if len(nodes) != 1 or len(edges) != 1:
        raise DataError(
            f"{where}: {len(nodes)} node types and {len(edges)} edge types",
            "Graphs of one type can be read, from a recipe or arrays.",
        )
    with named_where_wrong(where):
        path = folder / edges[0]["path"]
        if edges[0].get("format") == "numpy":
            found = Source(PairEdges(open_npy(workspace, path), "rows"))
        else:
            found = reader.source(path, None, None)
        num_nodes = int(nodes[0]["num"])
        found.num_nodes.append((where.name, num_nodes))
        for data in meta.get("feature_data") or []:
            _take_features(folder, data, found, reader)
        tasks = meta.get("tasks") or []
        found.notes += [f"{where.name}: task {t.get('name')}: not read" for t in tasks[1:]]
        for parts in parts_of(folder, tasks[0], typed=False).values() if tasks else ():
            found.splits, found.labels = read_seeds(parts, num_nodes, workspace)
    return found


def _take_features(folder: Path, data: dict[str, Any], found: Source, reader: Reader) -> None:
    name, path = data.get("name"), folder / data["path"]
    if data.get("format") != "numpy":
        raise DataError(f"{path.name}: format {data.get('format')}", "Save it with numpy.save.")
    if data.get("domain") == "edge":
        found.values["attr"] = ArrayRows(reader.rows(path, np.float32))
    elif found.features is None:
        found.features = reader.rows(path, np.float32)
    else:
        found.notes.append(f"{name}: not read: features are {found.features.where}")


@contextlib.contextmanager
def named_where_wrong(path: Path, layout: str = "GraphBolt") -> Iterator[None]:
    """Refuse a description of a folder that lacks what is looked for in it, by its path."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{path}: not as {layout} lays it out: {type(error).__name__}: {error}",
            "Correct the file.",
        ) from None


def parts_of(
    folder: Path, task: Mapping[str, Any], *, typed: bool
) -> dict[str, dict[str, dict[str, Path]]]:
    """Find the files of the sets of a GraphBolt task.

    Parameters
    ----------
    folder
        Where their paths begin.
    task
        Of metadata.yaml.
    typed
        Whether the graph has several node types.

    Returns
    -------
    dict
        By node type, "" where there is one, by split and by name, such as ``seeds``.
    """
    found: dict[str, dict[str, dict[str, Path]]] = {}
    for split, name in zip(NAMES, ("train_set", "validation_set", "test_set"), strict=True):
        for part in task.get(name) or []:
            files = found.setdefault(part["type"] if typed else "", {}).setdefault(split, {})
            files |= {one["name"]: folder / one["path"] for one in part["data"]}
    return found


def read_seeds(
    parts: Mapping[str, Mapping[str, Path]], num_nodes: int, workspace: Workspace
) -> tuple[dict[str, Array | TextTable], Array | None]:
    """Read the seeds of each set as a split, and put their labels where the nodes are.

    Parameters
    ----------
    parts
        Files of ``seeds`` and ``labels`` by split; a set without seeds is left out.
    num_nodes
        N, of their type.
    workspace
        Takes labels.

    Returns
    -------
    tuple
        Splits by name, and labels, (N,) int64, -1 where there is none; None where no set has any.

    Raises
    ------
    DataError
        Seeds and labels disagree, are no whole numbers, or a seed is no node.
    """
    splits: dict[str, Array | TextTable] = {}
    labels = workspace.empty(num_nodes, np.int64, "labels")
    labels[:] = -1
    some = False
    for split, files in parts.items():
        if "seeds" not in files:
            continue
        seeds = splits[split] = open_npy(workspace, files["seeds"])
        if "labels" not in files:
            continue
        values = open_npy(workspace, files["labels"])
        kinds = seeds.dtype.kind + values.dtype.kind
        if len(values) != len(seeds) or values.width * seeds.width != 1 or set(kinds) - set("iu"):
            raise DataError(
                f"{seeds.where}: {seeds.dtype} {seeds.shape}, {values.where}: {values.dtype} "
                f"{values.shape}",
                "Give one node, and one class, in each row.",
            )
        some = True
        rows = workspace.rows_of(8)
        ids, known = (workspace.empty(rows, np.int64, "labels") for _ in range(2))
        for begin in range(0, len(seeds), rows):
            count = min(rows, len(seeds) - begin)
            seeds.read_into(ids[:count], begin)
            values.read_into(known[:count], begin)
            wrong = np.flatnonzero((ids[:count] < 0) | (ids[:count] >= num_nodes))
            if len(wrong):
                where = f"{seeds.where}: entry {begin + wrong[0]}"
                raise outside(where, int(ids[wrong[0]]), num_nodes)
            labels[ids[:count]] = known[:count]
    if not some:
        return splits, None
    scratch = workspace.scratch()
    scratch.append(labels)
    return splits, scratch.array("metadata.yaml: labels", labels.shape, labels.dtype)


def load_yaml(path: Path) -> dict[str, Any] | None:
    """Read a YAML file that holds a mapping; None where there is none."""
    if not path.exists():
        return None
    try:
        import yaml
    except ImportError:
        raise UsageError(
            f"{path.name} needs PyYAML, which is not installed", "pip install 'gnnx[tables]'."
        ) from None
    try:
        meta = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, ValueError) as error:
        cause = " ".join(str(error).split())
        raise DataError(f"{path.name}: not YAML: {cause}", "Correct the file.") from None
    if not isinstance(meta, dict):
        raise DataError(f"{path.name}: not a mapping", "Correct the file.")
    return meta
