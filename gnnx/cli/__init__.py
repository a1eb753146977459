"""The command line: one file a verb, which parses, calls the library and shows what came back.

Importing this package loads neither torch nor numba, so that ``gnnx --help`` answers at once; a
verb imports what it needs when it runs.
"""

from collections.abc import Callable
from typing import Annotated

import typer

import gnnx
from gnnx.cli import (
    bench,
    doctor,
    export,
    infer,
    info,
    partition,
    plan,
    prepare,
    synth,
    train,
    verify,
)
from gnnx.cli.frame import Answer, guarded

app = typer.Typer(
    name="gnnx",
    help="Train graph neural networks on graphs larger than memory, within a stated budget.",
    epilog="Exit codes: 0 done, 1 the run failed, 2 usage, 3 bad input data, "
    "4 memory, disk or lock, 130 interrupted.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_EXAMPLES: dict[Callable[..., Answer], str] = {
    synth.synth: "gnnx synth graph --nodes 100000 --edges 2000000",
    prepare.prepare: "gnnx prepare edges.csv graph --features x.npy --labels y.npy",
    partition.partition: "gnnx partition graph parts --parts 16",
    info.info: "gnnx info graph",
    verify.verify: "gnnx verify graph",
    plan.plan: "gnnx plan graph --fanouts 15,10,5 --memory 128MiB",
    train.train: "gnnx train graph --fanouts 15,10,5 --memory 128MiB",
    infer.infer: "gnnx infer graph --checkpoint run --out logits.npy",
    export.export: "gnnx export graph nodes.parquet",
    doctor.doctor: "gnnx doctor",
}
for _verb, _example in _EXAMPLES.items():
    app.command(epilog=f"Example: {_example}")(guarded(_verb))
bench.app.command(epilog="Example: gnnx bench io graph --seconds 10")(guarded(bench.io))
app.add_typer(bench.app, name="bench")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"gnnx {gnnx.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    pass
