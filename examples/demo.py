"""The demo: 512 MB of features, 128 MiB of memory, a 3-layer GraphSAGE. `make demo` runs it.

Makes a random graph of 1 million nodes and 20 million edges in demo-data/, trains on it within the
budget, and compares the accuracy with that of a linear model on each node's own features, which is
what the edges are worth. Fails unless the bars at the end hold.
"""

import subprocess
import sys
import time
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import gnnx
from gnnx.cli import progress
from gnnx.cli.train import epochs_table, percent
from gnnx.errors import GnnxError
from gnnx.memory import format_bytes

FOLDER = Path("demo-data/graph")
SYNTH = "--nodes 1000000 --edges 20000000 --features 128 --classes 16 --split 0.1,0.1,0.8 --seed 0"
MEMORY, DEVICE_MEMORY = "128MiB", "1GiB"
FANOUTS, HIDDEN, BATCH, EPOCHS = [10, 5, 5], 64, 1024, 3
TOLERANCE_BYTES = 64 << 20  # thread stacks, torch's own small buffers

console = Console(highlight=False)


def main() -> int:
    began = time.perf_counter()
    if not whole(FOLDER):
        console.rule("a graph on disk")
        command = [sys.executable, "-m", "gnnx.cli", "synth", str(FOLDER), *SYNTH.split()]
        subprocess.run([*command, "--memory", MEMORY, "--overwrite"], check=True)
    console.rule(f"training within {MEMORY}")
    with gnnx.open(FOLDER, memory=MEMORY, device_memory=DEVICE_MEMORY) as dataset:
        torch.manual_seed(0)
        model = gnnx.nn.SAGE(dataset.num_features, HIDDEN, dataset.num_classes, len(FANOUTS))
        trainer = gnnx.Trainer(
            model, dataset, fanouts=FANOUTS, batch_size=BATCH, eval_every=0, seed=0
        )
        with progress.shown(quiet=False) as show:
            report = trainer.fit(EPOCHS, progress=show)
        console.rule("the features alone")
        linear = linear_accuracy(dataset)
        size = dataset.num_nodes * dataset.features.row_bytes
    return verdict(report, linear, size, time.perf_counter() - began)


def whole(folder: Path) -> bool:
    """Whether an earlier run has left the graph, complete."""
    try:
        gnnx.open(folder).close()
    except GnnxError:
        return False
    return True


def linear_accuracy(dataset: gnnx.Dataset) -> float:
    """Test accuracy of a linear model of each node's own features, the best without edges."""
    model = nn.Linear(dataset.num_features, dataset.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ids = dataset.split("train")
    train = ids.read_range(0, ids.num_rows).clone()
    for _ in range(3):
        for rows in train[torch.randperm(len(train))].split(4096):
            x, y = dataset.features.read(rows.numpy()), dataset.labels.read(rows.numpy())
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    ids, correct = dataset.split("test"), 0
    for begin in range(0, ids.num_rows, 32768):
        rows = ids.read_range(begin, min(begin + 32768, ids.num_rows)).numpy()
        with torch.no_grad():
            predicted = model(dataset.features.read(rows)).argmax(1)
        correct += int((predicted == dataset.labels.read(rows)).sum())
    return correct / ids.num_rows


def verdict(report: "gnnx.train.TrainReport", linear: float, size: int, seconds: float) -> int:
    """Show what happened beside what was promised; 1 where a promise is broken."""
    memory, epochs = report.memory, report.epochs
    growth = memory.peak_rss_bytes - memory.base_rss_bytes
    allowed = memory.budget_bytes + memory.device_budget_bytes + TOLERANCE_BYTES
    rows = sum(epoch.rows_requested for epoch in epochs)
    hits = sum(epoch.rows_hit for epoch in epochs) / rows
    read = sum(epoch.disk_read_bytes for epoch in epochs)
    console.print(epochs_table(epochs))
    table = Table("", "measured", "bar", "holds")
    bars = [
        (
            "loss",
            f"{epochs[0].loss:.3f} to {epochs[-1].loss:.3f}",
            "falls",
            epochs[-1].loss < epochs[0].loss,
        ),
        (
            "accuracy, test nodes",
            percent(report.test_accuracy),
            f"linear model's {percent(linear)} + 10",
            report.test_accuracy >= linear + 0.10,
        ),
        (
            "gnnx's buffers, peak",
            format_bytes(memory.peak_ledger_bytes),
            f"{MEMORY}, features are {format_bytes(size)}",
            memory.peak_ledger_bytes <= memory.budget_bytes,
        ),
        ("process over base, peak", format_bytes(growth), format_bytes(allowed), growth <= allowed),
        ("rows found in the cache", percent(hits), "", None),
        ("read from the disk", format_bytes(read), "", None),
        ("seconds", f"{seconds:.0f}", "", None),
    ]
    for name, measured, bar, holds in bars:
        table.add_row(name, measured, bar, {True: "yes", False: "NO", None: ""}[holds])
    console.print(table)
    return int(any(holds is False for *_, holds in bars))


if __name__ == "__main__":
    sys.exit(main())
