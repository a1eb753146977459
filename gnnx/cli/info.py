"""``gnnx info``: what a dataset holds."""

from pathlib import Path
from typing import Annotated

import typer

from gnnx.cli.frame import Answer, Json, facts


def info(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of the dataset.")],
    as_json: Json = False,
) -> Answer:
    """Show counts, types and sizes of a dataset; reads its manifest only."""
    import gnnx

    with gnnx.open(dataset, memory="1MiB") as opened:
        document = {
            "dataset": str(dataset),
            "fingerprint": opened.fingerprint,
            "num_nodes": opened.num_nodes,
            "num_edges": opened.num_edges,
            "num_features": opened.num_features,
            "num_classes": opened.num_classes,
            "feature_dtype": str(opened.feature_dtype),
            "splits": {name: opened.split(name).num_rows for name in ("train", "val", "test")},
        }
    return Answer(document, facts(str(dataset), document))
