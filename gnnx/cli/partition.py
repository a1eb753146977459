"""``gnnx partition``: cut a dataset into parts, and write it part by part."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gnnx.cli import progress
from gnnx.cli.frame import (
    Answer,
    Json,
    Memory,
    Quiet,
    Seed,
    Threads,
    facts,
    parse_list,
    set_threads,
)
from gnnx.cli.info import described


def partition(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of the dataset.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make.")],
    parts: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of parts; 1 only orders the nodes.")
    ] = 1,
    method: Annotated[
        Literal["quality", "stream", "random"],
        typer.Option(help="The best of KaMinPar and stream; passes over the edges; chance."),
    ] = "quality",
    order: Annotated[
        Literal["readers", "id"],
        typer.Option(help="Inside a part: nodes that most others read first, or as they were."),
    ] = "readers",
    balance: Annotated[
        str,
        typer.Option(metavar="WHAT,…", help="What parts share evenly: nodes, edges, train."),
    ] = "nodes",
    imbalance: Annotated[
        float,
        typer.Option(min=0, metavar="SHARE", help="What a part may have over the mean part."),
    ] = 0.03,
    time_limit: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="For KaMinPar; then the parts are by stream."),
    ] = 600,
    seed: Seed = 0,
    memory: Memory = None,
    threads: Threads = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> Answer:
    """Cut the nodes into parts that read little from each other, and renumber them so."""
    import gnnx
    from gnnx import partition as partitioning

    set_threads(threads)
    with progress.shown(quiet=quiet) as show:
        report = partitioning.partition(
            dataset,
            out,
            num_parts=parts,
            method=method,
            order=order,
            balance=parse_list(balance, "--balance", str),
            imbalance=imbalance,
            seed=seed,
            time_limit_s=time_limit,
            memory=memory,
            overwrite=overwrite,
            progress=show,
        )
    with gnnx.open(out) as made:
        document = described(made) | report.as_dict()
    return Answer(document, facts(str(out), _worth_telling(document)))


def _worth_telling(document: dict[str, Any]) -> dict[str, Any]:
    shares = document["halo_share"]
    told = {
        "parts": document["num_parts"],
        "method": document["method"],
        "alpha": f"{document['alpha']:.3f}: nodes that the parts read, own and halo, over all",
        "cut": f"{document['cut']:,} edges, {100 * document['cut_share']:.1f} %",
        "halo share": f"{100 * min(shares):.1f} to {100 * max(shares):.1f} % of a part's reads",
        "largest part": ", ".join(
            f"{name} {share:.3f}" for name, share in document["balance"].items()
        )
        + " of the mean",
    }
    return told | {"notes": "\n".join(document["notes"])} if document["notes"] else told
