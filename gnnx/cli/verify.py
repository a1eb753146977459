"""``gnnx verify``: find out whether every byte of a dataset is as it was written."""

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from gnnx.cli import progress
from gnnx.cli.frame import Answer, Json, Quiet, Threads, set_threads
from gnnx.errors import DataError


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
    document = {
        "dataset": str(dataset),
        "problems": [
            {
                "file": str(problem.file),
                "page": problem.page,
                "begin": problem.begin,
                "end": problem.end,
                "expected": problem.expected,
                "found": problem.found,
            }
            for problem in problems
        ],
    }
    if not problems:
        return Answer(document, Text(f"{dataset}: every page is as it was written"))
    lines = [str(problem) for problem in problems]
    return Answer(document, Text("\n".join(lines)), DataError.exit_code)
