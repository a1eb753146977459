"""``gnnx prepare``: turn raw files into a dataset."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gnnx.cli import progress
from gnnx.cli.frame import Answer, Json, Memory, Quiet, Seed, facts


def prepare(
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", help="Edge list, .npy, .npz, or OGB folder.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Folder to make.")],
    features: Annotated[Path | None, typer.Option(help="Features, one row a node.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Labels, one a node.")] = None,
    train: Annotated[Path | None, typer.Option(help="Ids of the training nodes.")] = None,
    val: Annotated[Path | None, typer.Option(help="Ids of the validation nodes.")] = None,
    test: Annotated[Path | None, typer.Option(help="Ids of the test nodes.")] = None,
    num_nodes: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", show_default="rows of --features or --labels", help="Nodes."
        ),
    ] = None,
    undirected: Annotated[
        bool, typer.Option("--undirected", help="Add each edge's reverse where it is absent.")
    ] = False,
    self_loops: Annotated[
        Literal["keep", "drop", "add"], typer.Option(help="Edges from a node to itself.")
    ] = "keep",
    duplicates: Annotated[Literal["keep", "drop"], typer.Option(help="Parallel edges.")] = "keep",
    split: Annotated[
        str | None,
        typer.Option(
            metavar="SPLIT",
            show_default="the source's, else 0.6,0.2,0.2",
            help="Shares, such as 0.6,0.2,0.2, or per-class:20,30,rest.",
        ),
    ] = None,
    nonfinite: Annotated[
        Literal["refuse", "warn", "zero"], typer.Option(help="Features that are NaN or infinite.")
    ] = "refuse",
    unlabeled: Annotated[
        Literal["refuse", "ignore"], typer.Option(help="Nodes of a split that have no label.")
    ] = "refuse",
    delimiter: Annotated[
        str | None,
        typer.Option(metavar="CHAR", show_default="by the file", help="Between two columns."),
    ] = None,
    layout: Annotated[
        str | None,
        typer.Option(metavar="NAME", show_default="by the input", help="Kind of input."),
    ] = None,
    seed: Seed = 0,
    memory: Memory = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> Answer:
    """Turn edges and node arrays into a dataset, checked on the way; input is only read."""
    raise NotImplementedError
