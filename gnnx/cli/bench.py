"""``gnnx bench io``: ways to read feature rows, compared on the disk where a dataset lies."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from gnnx.cli.frame import Answer, Json, Memory
from gnnx.errors import DataError

app = typer.Typer(help="Measure what the machine gives.", no_args_is_help=True)


def io(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of the dataset.")],
    seconds: Annotated[
        float, typer.Option(min=0.1, max=3600, metavar="S", help="Time limit, about.")
    ] = 10.0,
    memory: Memory = None,
    as_json: Json = False,
) -> Answer:
    """Compare ways to read feature rows of a dataset, where it lies; only reads."""
    import gnnx
    from gnnx.memory import format_bytes
    from gnnx.store import try_reads

    with gnnx.open(dataset, memory=memory) as opened:
        if opened.num_features == 0:
            raise DataError(f"{dataset}: no features to read", "Give a dataset with features.")
        trials = try_reads(opened, opened.features, seconds)
        row_bytes = opened.features.row_bytes
    total = sum(trial.bytes_read for trial in trials)
    document = {
        "dataset": str(dataset),
        "row_bytes": row_bytes,
        "bytes_read": total,
        "trials": [
            {**dataclasses.asdict(trial), "rows_per_s": trial.rows_per_s} for trial in trials
        ],
    }
    table = Table(title=f"rows of {row_bytes} bytes", title_justify="left")
    for name in ("wanted", "way", "rows/s", "MiB/s of them", "MiB/s read", "reads/s"):
        table.add_column(name, justify="right")
    for trial in trials:
        time_s = max(1e-9, trial.seconds)
        table.add_row(
            f"{100 * trial.density:g} %",
            trial.way,
            f"{trial.rows_per_s:,.0f}",
            f"{trial.rows_per_s * row_bytes / 2**20:,.1f}",
            f"{trial.bytes_read / time_s / 2**20:,.1f}",
            f"{trial.reads / time_s:,.0f}",
        )
    return Answer(document, Group(table, Text(f"{format_bytes(total)} were read")))
