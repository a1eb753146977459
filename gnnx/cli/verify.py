"""``gnnx verify``: find out whether every byte of a dataset is as it was written."""

from pathlib import Path
from typing import Annotated

import typer

from gnnx.cli import progress
from gnnx.cli.frame import Answer, Json, Quiet, Threads, facts, set_threads


def verify(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of the dataset.")],
    threads: Threads = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> Answer:
    """Read all of a dataset and compare it with its checksums; damage is exit code 3."""
    from gnnx import store

    set_threads(threads)
    with progress.shown(quiet=quiet) as report:
        problems = store.verify(dataset, progress=report)
