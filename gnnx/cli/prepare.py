"""``gnnx prepare``: turn raw files into a dataset."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.table import Table

from gnnx.cli import progress
from gnnx.cli.frame import Answer, Json, Memory, Quiet, Seed, facts
from gnnx.cli.info import described

if TYPE_CHECKING:
    from gnnx.prepare import Forecast


def prepare(
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", help="Recipe, edge list, .npy, .npz, .mtx or folder.")
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
    edge_weight: Annotated[
        str | None,
        typer.Option(metavar="VALUES", help="Weights of the edges: file, array or column."),
    ] = None,
    edge_attr: Annotated[
        str | None,
        typer.Option(metavar="VALUES", help="Features of the edges: file, array or columns."),
    ] = None,
    edge_time: Annotated[
        str | None,
        typer.Option(metavar="VALUES", help="Times of the edges: file, array or column."),
    ] = None,
    undirected: Annotated[
        bool, typer.Option("--undirected", help="Add each edge's reverse where it is absent.")
    ] = False,
    self_loops: Annotated[
        Literal["keep", "drop", "add"], typer.Option(help="Edges from a node to itself.")
    ] = "keep",
    duplicates: Annotated[
        Literal["keep", "drop", "sum"], typer.Option(help="Parallel edges; sum adds up weights.")
    ] = "keep",
    split: Annotated[
        str | None,
        typer.Option(
            metavar="SPLIT",
            show_default="the source's, else 0.6,0.2,0.2",
            help="Shares, such as 0.6,0.2,0.2, or per-class:20,30,rest.",
        ),
    ] = None,
    dtype: Annotated[
        Literal["source", "float32", "float16", "bfloat16", "int8"],
        typer.Option(help="In what features are stored, rounded."),
    ] = "source",
    nonfinite: Annotated[
        Literal["refuse", "keep", "zero"], typer.Option(help="Features that are NaN or infinite.")
    ] = "refuse",
    unlabeled: Annotated[
        Literal["refuse", "ignore"], typer.Option(help="Nodes of a split that have no label.")
    ] = "refuse",
    delimiter: Annotated[
        str | None,
        typer.Option(metavar="CHAR", show_default="by the file", help="Between two columns."),
    ] = None,
    layout: Annotated[
        Literal["pairs", "rows"] | None,
        typer.Option(
            show_default="by the shape", help="Edges as (E, 2) or (2, E), where both would fit."
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", show_default="the recipe's", help="Where the files of a recipe are."
        ),
    ] = None,
    remap: Annotated[
        bool | None,
        typer.Option(
            show_default="only where nothing says how many nodes there are",
            help="Take ids for keys: number those that occur, and keep the keys.",
        ),
    ] = None,
    pickles: Annotated[
        bool,
        typer.Option("--pickles", help="Read pickled files, .pt and ind.*: plain data, no code."),
    ] = False,
    bad_lines: Annotated[
        Literal["refuse", "drop"], typer.Option(help="Lines of an edge list that are no edge.")
    ] = "refuse",
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse data with anything the report calls a problem.")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Forecast memory, disk and time; nothing is written."),
    ] = False,
    seed: Seed = 0,
    memory: Memory = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> Answer:
    """Turn edges and node arrays into a dataset, checked on the way; input is only read."""
    import gnnx
    from gnnx import prepare as preparation

    if dry_run:
        told = preparation.forecast(
            source,
            features=features,
            labels=labels,
            num_nodes=num_nodes,
            edge_weight=edge_weight,
            edge_attr=edge_attr,
            edge_time=edge_time,
            undirected=undirected,
            self_loops=self_loops,
            dtype=dtype,
            root=root,
            memory=memory,
        )
        return _forecast(told)
    with progress.shown(quiet=quiet) as show:
        report = preparation.prepare(
            source,
            out,
            features=features,
            labels=labels,
            train=train,
            val=val,
            test=test,
            num_nodes=num_nodes,
            edge_weight=edge_weight,
            edge_attr=edge_attr,
            edge_time=edge_time,
            undirected=undirected,
            self_loops=self_loops,
            duplicates=duplicates,
            split=split,
            dtype=dtype,
            nonfinite=nonfinite,
            unlabeled=unlabeled,
            delimiter=delimiter,
            layout=layout,
            root=root,
            remap=remap,
            pickles=pickles,
            bad_lines=bad_lines,
            strict=strict,
            seed=seed,
            memory=memory,
            overwrite=overwrite,
            progress=show,
        )
    with gnnx.open(out) as made:
        document = described(made) | {"report": dataclasses.asdict(report)}
    return Answer(document, facts(f"{out}", _worth_telling(document["report"])))


def _forecast(told: "Forecast") -> Answer:
    """Stages as rows, their peak or sum below."""
    from gnnx.memory import format_bytes

    total = {
        "memory_bytes": told.memory_bytes,
        "scratch_bytes": told.disk_bytes - told.written_bytes,
        "written_bytes": told.written_bytes,
        "seconds": told.seconds,
    }
    table = Table(title=f"{told.num_edges:,} edges", title_justify="left")
    for name in ("stage", "memory", "scratch", "written", "seconds"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    stages = [dataclasses.asdict(stage) for stage in told.stages]
    for row in (*stages, {"name": "all", **total}):
        sizes = [format_bytes(row[f"{name}_bytes"]) for name in ("memory", "scratch", "written")]
        table.add_row(row["name"], *sizes, f"{row['seconds']:.1f}")
    counts = {"num_nodes": told.num_nodes, "num_edges": told.num_edges, "exact": told.exact}
    document = {**counts, **total, "disk_bytes": told.disk_bytes, "stages": stages}
    return Answer({"forecast": document}, table)


def _worth_telling(report: dict[str, Any]) -> dict[str, Any]:
    """Leave out what was not found, and show lists, and what is told by type, as lines."""
    told = {name: value for name, value in report.items() if value and name != "examples"}
    lines = {"problems": list(report["problems"].values()), "notes": report["notes"]}
    if "nodes" in report:  # of a typed graph
        found = report["problems"].items()
        lines["problems"] = [f"{name.rpartition(': ')[0]}: {text}" for name, text in found]
        for name in ("nodes", "edges"):
            lines[name] = [f"{kind}: {_listed(counts)}" for kind, counts in report[name].items()]
    return told | {name: "\n".join(texts) for name, texts in lines.items() if texts}


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in counts.items())
