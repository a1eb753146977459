"""``gnnx export``: tables of nodes or edges, named by the keys of the input."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from gnnx.cli.frame import Answer, Json, Memory, facts


def export(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of the dataset.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to make: .parquet or .csv.")],
    what: Annotated[
        Literal["nodes", "edges"], typer.Option(help="One row a node, or one an edge.")
    ] = "nodes",
    kind: Annotated[
        str | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            show_default="the one with labels",
            help="Of several types: author, or author-writes-paper.",
        ),
    ] = None,
    rows: Annotated[
        Path | None,
        typer.Option(metavar="FILE.npy", help="One row a node to write, as gnnx infer makes them."),
    ] = None,
    memory: Memory = None,
    as_json: Json = False,
) -> Answer:
    """Write nodes or edges as a table with the keys that the input gave them."""
    import gnnx
    from gnnx.export import export as write

    with gnnx.open(dataset, memory=memory) as opened:
        count = write(opened, out, what=what, kind=kind, rows=rows)
    document = {"dataset": str(dataset), "out": str(out), "what": what, "num_rows": count}
    if kind is not None:
        document["type"] = kind
    return Answer(document, facts("table", document))
