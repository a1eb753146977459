"""Folders as other projects lay them out: IGB, MAG240M, DGL's CSVDataset and GraphBolt.

Letters: N nodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gnnx.errors import DataError, UsageError
from gnnx.prepare.arrays import open_npy
from gnnx.prepare.edges import PairEdges
from gnnx.prepare.recipe import EdgeTable, NodeTable, Recipe
from gnnx.prepare.sources import Source

if TYPE_CHECKING:
    from pathlib import Path

    from gnnx.prepare.arrays import Workspace


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
    source.notes += [f"{name}: not read: graphs of one type only" for name in others]
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
    nodes, edges = meta.get("node_data", []), meta.get("edge_data", [])
    if len(nodes) != 1 or len(edges) != 1:
        raise DataError(
            f"{folder / 'meta.yaml'}: {len(nodes)} node files and {len(edges)} edge files",
            "Graphs of one node type and one edge type can be read.",
        )
    separator = meta.get("separator", ",")
    node_file, edge_file = nodes[0]["file_name"], edges[0]["file_name"]
    with (folder / node_file).open(encoding="utf-8") as file:
        names = file.readline().strip().split(separator)
    if "graph_id" in names:
        raise DataError(f"{node_file}: several graphs", "Give a folder with one graph.")

    def there(name: str) -> str | None:
        return name if name in names else None

    return Recipe(
        edges=EdgeTable((edge_file,), delimiter=separator, src="src_id", dst="dst_id"),
        nodes=NodeTable(
            (node_file,),
            delimiter=separator,
            key="node_id",
            key_type="integer" if meta.get("node_id_type", "integer") == "integer" else "string",
            features=("feat",) if "feat" in names else (),
            separator=",",
            label=there("label"),
            train=there("train_mask"),
            val=there("val_mask"),
            test=there("test_mask"),
        ),
    )


def refuse_typed(folder: Path) -> None:
    """Say of a GraphBolt folder what keeps it from being read, where it is one.

    Parameters
    ----------
    folder
        Perhaps with `metadata.yaml` in it.

    Raises
    ------
    DataError
        It is one: its graph has several types.
    """
    meta: dict[str, Any] | None = load_yaml(folder / "metadata.yaml")
    if meta is None:
        return
    graph = meta.get("graph", {})
    kinds = [len(graph.get(name, [])) for name in ("nodes", "edges")]
    raise DataError(
        f"{folder / 'metadata.yaml'}: {kinds[0]} node types and {kinds[1]} edge types",
        "Graphs of one type can be read, from a recipe or arrays.",
    )


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
