"""``gnnx train``: train a model on a dataset within a budget."""

import contextlib
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Group
from rich.table import Table

from gnnx.cli import progress
from gnnx.cli.frame import (
    Answer,
    Device,
    DeviceMemory,
    Json,
    Memory,
    Quiet,
    Seed,
    Threads,
    check_device,
    facts,
    parse_list,
    set_threads,
)
from gnnx.errors import DataError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from gnnx.store import Dataset
    from gnnx.train import EpochReport, Plan, TrainReport

PLAIN_MODELS = ("gcn", "sage", "gin", "gat", "gatv2")
TYPED_MODELS = ("rgcn", "hetero-sage")


def train(
    dataset: Annotated[Path, typer.Argument(metavar="DATASET", help="Folder of the dataset.")],
    model: Annotated[
        Literal["gcn", "sage", "gin", "gat", "gatv2", "rgcn", "hetero-sage"],
        typer.Option(help="Kind of network; the last two are for several types."),
    ] = "gcn",
    bases: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", show_default="none", help="Bases of rgcn's matrices."),
    ] = None,
    edge_weight: Annotated[
        bool, typer.Option("--edge-weight", help="Use the weights of the edges; for gcn.")
    ] = False,
    aggr: Annotated[
        Literal["mean", "max"] | None,
        typer.Option(show_default="mean, of sage", help="How sage joins neighbours."),
    ] = None,
    heads: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", show_default="4, of gat, gatv2", help="Heads that attend apart."
        ),
    ] = None,
    fanouts: Annotated[
        str,
        typer.Option(metavar="N,N,…", help="Neighbours drawn a node, seeds' hop first; -1: all."),
    ] = "15,10",
    sampler: Annotated[
        Literal["neighbor", "cluster"],
        typer.Option(help="Draw neighbours of seeds, or take whole parts (gnnx partition)."),
    ] = "neighbor",
    clusters_per_batch: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", show_default="1, of cluster", help="Parts of a batch."),
    ] = None,
    layers: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", show_default="one a fanout", help="Number of layers."),
    ] = None,
    hidden: Annotated[int, typer.Option(min=1, metavar="N", help="Width between layers.")] = 256,
    dropout: Annotated[
        float, typer.Option(min=0, max=0.99, metavar="SHARE", help="Share dropped.")
    ] = 0.5,
    batch_size: Annotated[int, typer.Option(min=1, metavar="N", help="Seeds a step.")] = 1024,
    epochs: Annotated[
        int, typer.Option(min=1, metavar="N", help="Passes over the training nodes.")
    ] = 30,
    lr: Annotated[float, typer.Option(min=0, metavar="X", help="Learning rate.")] = 0.01,
    weight_decay: Annotated[float, typer.Option(min=0, metavar="X", help="Weight decay.")] = 5e-4,
    optimizer: Annotated[Literal["adamw", "adam"], typer.Option(help="Optimizer.")] = "adamw",
    schedule: Annotated[
        Literal["constant", "cosine"], typer.Option(help="Course of the learning rate.")
    ] = "constant",
    class_weights: Annotated[
        Literal["none", "balanced"], typer.Option(help="Weight of each class in the loss.")
    ] = "none",
    bf16: Annotated[bool, typer.Option("--bf16", help="Dense parts in bfloat16.")] = False,
    eval_every: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="Epochs between validations; 0: at the end only."),
    ] = 1,
    metric: Annotated[
        Literal["accuracy", "rocauc", "ap", "f1", "f1-macro"],
        typer.Option(help="What the best weights are chosen by, on validation."),
    ] = "accuracy",
    patience: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", show_default="never stop", help="Validations without gain to stop."
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the state of each epoch here.")
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="STEPS",
            show_default="after each epoch",
            help="Keep the state also after so many steps, to resume from there.",
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from --checkpoint.")] = False,
    memory: Memory = None,
    device_memory: DeviceMemory = None,
    threads: Threads = None,
    device: Device = "cpu",
    seed: Seed = 0,
    log: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a line of JSON an epoch here.")
    ] = None,
    log_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the epochs for TensorBoard here.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write when each step was sampled, fetched, computed."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan, as gnnx plan, and train nothing.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> Answer:
    """Train a model within a memory budget, and test the weights best on validation."""
    hops = parse_list(fanouts, "--fanouts")
    if layers is not None and layers != len(hops):
        raise UsageError(
            f"--fanouts {fanouts} has {len(hops)} numbers and --layers is {layers}",
            "Give one fanout a layer, or leave --layers out.",
        )
    own: dict[str, dict[str, Any]] = {
        "gcn": {"edge_weight": edge_weight},
        "sage": {"aggr": aggr or "mean"},
        "gat": {"heads": heads or 4},
        "gatv2": {"heads": heads or 4},
        "rgcn": {"num_bases": bases},
    }
    for name, value in ("aggr", aggr), ("heads", heads), ("bases", bases):
        key = "num_bases" if name == "bases" else name
        if value is not None and key not in own.get(model, {}):
            raise UsageError(f"--{name} {value} has no meaning for {model}", f"Leave --{name} out.")
    if clusters_per_batch is not None and sampler != "cluster":
        raise UsageError(
            f"--clusters-per-batch {clusters_per_batch} has no meaning without parts",
            "Give --sampler cluster, or leave it out.",
        )
    if edge_weight and model != "gcn":
        raise UsageError(f"--edge-weight has no meaning for {model}", "Use --model gcn.")
    if resume and checkpoint is None:
        raise UsageError("--resume has nothing to go on from", "Give --checkpoint DIR as well.")
    if checkpoint_every is not None and checkpoint is None:
        raise UsageError(
            f"--checkpoint-every {checkpoint_every} has no folder", "Give --checkpoint DIR as well."
        )
    import torch

    import gnnx
    from gnnx.loader import Trace

    set_threads(threads)
    check_device(device)
    torch.manual_seed(seed)
    with (
        gnnx.open(dataset, memory=memory, device_memory=device_memory) as opened,
        progress.shown(quiet=quiet) as report,
    ):
        config = _config(opened, model, hidden, len(hops), dropout) | own.get(model, {})
        options: dict[str, Any] = {
            "fanouts": hops,
            "batch_size": batch_size,
            "clusters_per_batch": (clusters_per_batch or 1) if sampler == "cluster" else None,
            "lr": lr,
            "weight_decay": weight_decay,
            "optimizer": optimizer,
            "schedule": schedule,
            "class_weights": None if class_weights == "none" else class_weights,
            "eval_every": eval_every,
            "metric": metric,
            "patience": patience,
            "seed": seed,
            "device": device,
        }
        trainer = gnnx.Trainer(
            _model(config, device),
            opened,
            autocast=torch.bfloat16 if bf16 else None,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
            **options,
        )
        document: dict[str, Any] = {
            "dataset": str(dataset),
            "model": config,
            "options": {**options, "epochs": epochs, "bf16": bf16},
        }
        plan = trainer.plan()
        if dry_run:
            return Answer(document | {"plan": dataclasses.asdict(plan)}, plan_table(plan, None))
        observe = _observers(log, log_dir, append=resume)
        with contextlib.nullcontext() if trace is None else Trace(trace) as spans:
            result = trainer.fit(
                epochs, resume=resume, progress=report, observe=observe, trace=spans
            )
    tables = epochs_table(result.epochs, metric), plan_table(plan, result), _totals(result)
    return Answer(document | result.as_dict(), Group(*tables))


def _model(config: dict[str, Any], device: str) -> Any:
    """Make the model, if its training fits the memory: the system would kill, and not tell."""
    import torch

    from gnnx.nn import build_model
    from gnnx.train import check_memory

    if torch.device(device).type == "cpu":
        with torch.device("meta"):  # where weights take nothing
            check_memory(build_model(config))
    return build_model(config)


def _observers(
    log: Path | None, log_dir: Path | None, *, append: bool
) -> "list[Callable[[EpochReport], None]]":
    from gnnx.train import JsonLines, TensorBoard

    found: list[Callable[[EpochReport], None]] = []
    if log is not None:
        found.append(JsonLines(log, append=append))
    if log_dir is not None:
        found.append(TensorBoard(log_dir))
    return found


def _config(
    dataset: "Dataset", model: str, hidden: int, num_layers: int, dropout: float
) -> dict[str, Any]:
    """Describe a model that fits the dataset's widths and, where it has several, its types."""
    typed, found = model in TYPED_MODELS, dataset.is_typed
    if typed != found:
        kinds = f"{len(dataset.node_types)} node types and {len(dataset.edge_types)} edge types"
        raise UsageError(
            f"{dataset.path}: {model} is for graphs of {'several types' if typed else 'one type'}, "
            f"and this one has {kinds if found else 'one'}",
            f"Choose --model {' or '.join(TYPED_MODELS if found else PLAIN_MODELS)}.",
        )
    for what, width in ("features", dataset.num_features), ("labels", dataset.num_classes):
        if width == 0 and not (typed and what == "features"):
            raise DataError(
                f"{dataset.path}: no {what} to train on", f"Prepare the dataset with --{what}."
            )
    config: dict[str, Any] = {
        "model": model,
        "in_features": dataset.widths if typed else dataset.num_features,
        "hidden_features": hidden,
        "out_features": dataset.num_classes,
        "num_layers": num_layers,
        "dropout": dropout,
    }
    if typed:
        config |= {"edge_types": sorted(dataset.edge_types), "target": dataset.target}
    return config


def epochs_table(epochs: "list[EpochReport]", metric: str = "accuracy") -> Table:
    """One row an epoch: loss, metric, time, and how many rows the cache spared the disk."""
    from gnnx.memory import format_bytes

    table = Table(title="epochs", title_justify="left")
    names = "epoch", "loss", f"val {metric}", "time", "wait", "hits", "read", "/row"
    for name in names:  # 80 columns hold no more
        table.add_column(name, justify="right", no_wrap=True)
    for report in epochs:
        hits = report.rows_hit / max(1, report.rows_requested)
        table.add_row(
            str(report.epoch + 1),
            f"{report.loss:.4f}",
            percent(report.val_score),
            f"{report.seconds:.1f}",
            f"{report.wait_s:.1f}",
            percent(hits),
            format_bytes(report.disk_read_bytes),
            "-" if report.amplification is None else f"{report.amplification:.1f}x",
        )
    return table


def plan_table(plan: "Plan", report: "TrainReport | None") -> Table:
    """Show what is held and what an epoch reads, beside the facts where there are any."""
    from gnnx.memory import format_bytes

    # the first epoch compiles kernels, and a budget may be found out to be short in it
    epoch: Any = None if report is None else report.epochs[-1]
    peak = device_peak = None
    if report is not None:
        peak = report.memory.peak_ledger_bytes
        device_peak = report.memory.peak_device_ledger_bytes
    table = Table(title="plan", title_justify="left", show_header=report is not None)
    table.add_column("of an epoch", style="bold", no_wrap=True)
    table.add_column("planned", justify="right")
    if report is not None:
        table.add_column("found", justify="right")

    def row(name: str, planned: str, fact: str | None = None) -> None:
        table.add_row(name, planned, *([fact or ""] if report is not None else []))

    for tier, owners, budget, most in (
        ("host", plan.host, plan.host_budget_bytes, peak),
        ("device", plan.device, plan.device_budget_bytes, device_peak),
        ("disk", plan.disk, None, None),
    ):
        for owner, held in owners.items():
            if held:
                row(f"{tier}: {owner}", format_bytes(held))
        limit = "" if budget is None else f" of {format_bytes(budget)}"
        # batches and pieces of an evaluation are not held at the same time
        total = format_bytes((max if tier == "device" else sum)(owners.values())) + limit
        row(f"{tier} memory" if tier != "disk" else "disk scratch", total,
            None if most is None else format_bytes(most))  # fmt: skip
    row("parameters, gradients, optimizer", format_bytes(plan.parameter_bytes))
    steps = f" of {plan.steps_per_window} steps" if plan.strategy != "rows" else ""
    row("rows that stay", f"{plan.rows_kept:,} of {plan.num_rows:,}")
    row("others are read by", plan.strategy + steps)
    row("steps", f"{plan.num_steps:,}")
    for name, planned, fact in (
        ("rows asked for", plan.rows_requested, epoch and epoch.rows_requested),
        ("rows from the features' file", plan.rows_from_disk, epoch and epoch.rows_from_disk),
        ("rows from packs", plan.rows_from_packs, epoch and epoch.rows_from_packs),
        ("of both, by Belady's bound", None, epoch and epoch.rows_least),
    ):
        row(name, "" if planned is None else f"{planned:,}", None if fact is None else f"{fact:,}")
    for name, planned, read in (
        ("read from disk", plan.disk_read_bytes, epoch and epoch.disk_read_bytes),
        ("written to disk", plan.disk_written_bytes, epoch and epoch.disk_written_bytes),
    ):
        found = None if read is None else format_bytes(read)
        row(name, format_bytes(planned), found)
    for name, seconds, fact_s in (
        ("sampling", plan.sample_s, epoch and epoch.sample_s),
        ("computing", plan.compute_s, epoch and epoch.compute_s),
        ("reading", plan.disk_s, epoch and epoch.fetch_s),
        ("time", plan.seconds, epoch and epoch.seconds),
    ):
        row(name, f"{seconds:.2f} s", None if fact_s is None else f"{fact_s:.2f} s")
    return table


def percent(share: float | None) -> str:
    """Share in percent, a dash where there is none."""
    return "-" if share is None else f"{100 * share:.1f} %"


def _totals(report: "TrainReport") -> Table:
    from gnnx.memory import format_bytes

    memory = report.memory
    budget = "no limit" if memory.budget_bytes is None else format_bytes(memory.budget_bytes)
    growth = memory.peak_rss_bytes - memory.base_rss_bytes
    return facts(
        "result",
        {
            f"test {report.metric}": percent(report.test_score),
            f"validation {report.metric}": percent(report.val_score),
            "parameters": report.num_parameters,
            "peak of host buffers": f"{format_bytes(memory.peak_ledger_bytes)} of {budget}",
            "peak of batch buffers": format_bytes(memory.peak_device_ledger_bytes),
            "growth of the process": f"{format_bytes(growth)} over a base of "
            f"{format_bytes(memory.base_rss_bytes)}",
        },
    )
