"""``gnnx info``: what a dataset holds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.table import Table

from gnnx.cli.frame import Answer, Json, facts

if TYPE_CHECKING:
    from gnnx.store import Dataset


def info(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of the dataset.")],
    as_json: Json = False,
) -> Answer:
    """Show counts, types and sizes of a dataset; reads its manifest only."""
    import gnnx

    with gnnx.open(dataset) as opened:
        document = described(opened)
    counts = {name: value for name, value in document.items() if not isinstance(value, dict)}
    summary = facts("dataset", counts | document["splits"] | document["report"])
    tables = [_arrays_table(document["arrays"])]
    if "nodes" in document:
        tables.insert(0, types_table(document["nodes"], document["edges"]))
    return Answer(document, Group(summary, *tables))


def described(dataset: "Dataset") -> dict[str, Any]:
    """Describe a dataset by its counts and arrays, as the verbs that make or show one do."""
    manifest = dataset.manifest
    arrays = manifest.arrays
    counts = {
        "num_nodes": sum(kind.count for kind in manifest.nodes.values()),
        "num_edges": sum(manifest.edges.values()),
    }
    labelled = [name for name, kind in manifest.nodes.items() if kind.num_classes]
    if not dataset.is_typed or len(labelled) == 1:  # there is a node type to be predicted
        counts |= {"num_features": dataset.num_features, "num_classes": dataset.num_classes}
        splits = {name: dataset.split(name).num_rows for name in ("train", "val", "test")}
    else:
        splits = {}
    return {
        "dataset": str(dataset.path),
        "fingerprint": dataset.fingerprint,
        **counts,
        "bytes": sum(entry.num_bytes for entry in arrays.values()),
        "splits": splits,
        **(_types(dataset) if dataset.is_typed else {}),
        "arrays": {
            name: {"shape": entry.shape, "dtype": entry.dtype, "bytes": entry.num_bytes}
            for name, entry in arrays.items()
        },
        "report": manifest.report,
    }


def _types(dataset: "Dataset") -> dict[str, Any]:
    """Node types, edge types, and the node type that splits and labels are of."""
    manifest = dataset.manifest
    nodes = {}
    for name, kind in manifest.nodes.items():
        x = manifest.arrays.get(f"nodes/{name}/x")
        nodes[name] = {
            "count": kind.count,
            "num_features": x.shape[1] if x else 0,
            "num_classes": kind.num_classes,
        }
    labelled = [name for name, kind in manifest.nodes.items() if kind.num_classes]
    return {
        "target": labelled[0] if len(labelled) == 1 else None,
        "nodes": nodes,
        "edges": {"-".join(kind): count for kind, count in manifest.edges.items()},
    }


def types_table(nodes: dict[str, dict[str, int]], edges: dict[str, int]) -> Table:
    """One row a node type and an edge type."""
    table = Table(title="types", title_justify="left")
    table.add_column("type", overflow="fold")
    for name in ("count", "features", "classes"):
        table.add_column(name, justify="right")
    for name, kind in nodes.items():
        cells = (kind["count"], kind["num_features"], kind["num_classes"])
        table.add_row(name, *(f"{cell:,}" for cell in cells))
    for name, count in edges.items():
        table.add_row(name, f"{count:,}", "", "")
    return table


def _arrays_table(arrays: dict[str, dict[str, Any]]) -> Table:
    from gnnx.memory import format_bytes

    table = Table(title="arrays", title_justify="left")
    table.add_column("name", overflow="fold")
    for name in ("shape", "dtype", "size"):
        table.add_column(name, justify="right")
    for name, entry in arrays.items():
        shape = " x ".join(f"{size:,}" for size in entry["shape"])
        table.add_row(name, shape, entry["dtype"], format_bytes(entry["bytes"]))
    return table
