"""``gnnx infer``: outputs of a trained model for every node."""

import functools
from pathlib import Path
from typing import Annotated, Any

import typer

from gnnx.cli import progress
from gnnx.cli.frame import (
    Answer,
    Device,
    DeviceMemory,
    Json,
    Memory,
    Quiet,
    Threads,
    check_device,
    facts,
    set_threads,
)
from gnnx.errors import UsageError


def infer(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of the dataset.")],
    checkpoint: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder that gnnx train --checkpoint wrote.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Where the outputs go: .npy, or .parquet or .csv with keys."
        ),
    ],
    memory: Memory = None,
    device_memory: DeviceMemory = None,
    threads: Threads = None,
    device: Device = "cpu",
    quiet: Quiet = False,
    as_json: Json = False,
) -> Answer:
    """Write the model's outputs for all nodes, every neighbour counted, to a file."""
    import gnnx
    from gnnx import export
    from gnnx.inference import rehearse, stream
    from gnnx.nn import build_model
    from gnnx.store import smallest_named
    from gnnx.train import load_checkpoint

    if out.suffix not in {".npy", *export.SUFFIXES}:
        raise UsageError(
            f"{out}: outputs are written as .npy, .parquet or .csv",
            "Give --out a name that ends in one of them.",
        )
    set_threads(threads)
    check_device(device)
    state = load_checkpoint(checkpoint)
    if state.config is None:
        raise UsageError(
            f"{checkpoint}: the weights are of a model of your own",
            "Make that model in Python and call gnnx.infer on it.",
        )
    model = build_model(state.config)
    model.load_state_dict(state.weights)
    with (
        gnnx.open(dataset, memory=memory, device_memory=device_memory) as opened,
        progress.shown(quiet=quiet) as report,
    ):
        width = state.config["in_features"]
        found: Any = opened.widths if opened.is_typed else opened.num_features
        if found not in (0, width):
            raise UsageError(
                f"{dataset}: {found} features a node, {checkpoint}: {width}",
                "Give a dataset like the one of the training.",
            )
        if out.suffix in export.SUFFIXES:
            pieces = stream(model, opened, None, None, device, report)
            arrays = ((ids, rows.float().cpu().numpy()) for ids, rows in pieces)
            attempt = functools.partial(rehearse, model, whole=True, device=device)
            with smallest_named(opened, attempt):
                export.write_rows(opened, out, arrays)
        else:
            gnnx.infer(model, opened, out=out, device=device, progress=report)
        document = {
            "dataset": str(dataset),
            "out": str(out),
            "num_nodes": opened.num_nodes,
            "num_classes": opened.num_classes,
            "same_dataset": opened.fingerprint == state.fingerprint,
        }
    return Answer(document, facts("outputs", document))
