"""``gnnx synth``: make a random graph with communities."""

from pathlib import Path
from typing import Annotated

import typer

from gnnx.cli import progress
from gnnx.cli.frame import Answer, Json, Memory, Quiet, Seed, Threads, facts, set_threads
from gnnx.cli.info import described


def synth(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make.")],
    nodes: Annotated[int, typer.Option(min=1, metavar="N", help="Number of nodes.")] = 100_000,
    edges: Annotated[int, typer.Option(min=0, metavar="N", help="Number of edges.")] = 2_000_000,
    features: Annotated[
        int, typer.Option(min=1, metavar="N", help="Numbers a node, float32.")
    ] = 128,
    classes: Annotated[int, typer.Option(min=1, metavar="N", help="Number of classes.")] = 16,
    split: Annotated[
        str, typer.Option(metavar="TRAIN,VAL,TEST", help="Shares of the nodes.")
    ] = "0.1,0.1,0.8",
    seed: Seed = 0,
    memory: Memory = None,
    threads: Threads = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> Answer:
    """Make a random graph: power-law degrees, communities, features that hint at the class."""
    import gnnx
    from gnnx import prepare

    set_threads(threads)
    with progress.shown(quiet=quiet) as report:
        prepare.synth(
            out,
            num_nodes=nodes,
            num_edges=edges,
            num_features=features,
            num_classes=classes,
            split=split,
            seed=seed,
            memory=memory,
            overwrite=overwrite,
            progress=report,
        )
    with gnnx.open(out) as made:
        document = described(made)
    counts = {name: value for name, value in document.items() if isinstance(value, int)}
    return Answer(document, facts(str(out), counts | document["splits"]))
