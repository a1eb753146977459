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
    return Answer(document, Group(summary, _arrays_table(document["arrays"])))


def described(dataset: "Dataset") -> dict[str, Any]:
    """Describe a dataset by its counts and arrays, as the verbs that make or show one do."""
    arrays = dataset.manifest.arrays
    return {
        "dataset": str(dataset.path),
        "fingerprint": dataset.fingerprint,
        "num_nodes": dataset.num_nodes,
        "num_edges": dataset.num_edges,
        "num_features": dataset.num_features,
        "num_classes": dataset.num_classes,
        "bytes": sum(entry.num_bytes for entry in arrays.values()),
        "splits": {name: dataset.split(name).num_rows for name in ("train", "val", "test")},
        "arrays": {
            name: {"shape": entry.shape, "dtype": entry.dtype, "bytes": entry.num_bytes}
            for name, entry in arrays.items()
        },
        "report": dataset.manifest.report,
    }


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
