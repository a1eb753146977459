"""The demo: 512 MB of features, 128 MiB of memory, a 3-layer GraphSAGE. `make demo` runs it.

Makes a random graph of 1 million nodes and 20 million edges in demo-data/, trains on it within the
budget, and compares the accuracy with that of a linear model of each node's own features: what is
above it comes from the edges. Fails unless the bars in the last table hold.
"""

import os
import subprocess
import sys
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: see docs/outofcore.md

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import gnnx
from gnnx.cli import progress
from gnnx.cli.train import epochs_table, percent
from gnnx.errors import GnnxError
from gnnx.memory import format_bytes, parse_bytes
from gnnx.train import TrainReport

FOLDER = "demo-data/graph"
SYNTH = "--nodes 1000000 --edges 20000000 --features 128 --classes 16 --split 0.02,0.001,0.979"
MEMORY = "128MiB"  # host: topology, cache, read buffers
DEVICE_MEMORY = "512MiB"  # where batches are computed; on a CPU this is RAM too
TOLERANCE = "64MiB"  # of the process beside gnnx's own buffers
FANOUTS, HIDDEN, BATCH_SIZE, EPOCHS = [5, 5, 5], 64, 512, 3

console = Console(highlight=False)


def main() -> int:
    began = time.perf_counter()
    if not is_whole(FOLDER):
        console.rule("a graph on disk")
        command = [sys.executable, "-m", "gnnx", "synth", FOLDER, *SYNTH.split()]
        subprocess.run([*command, "--memory", MEMORY, "--overwrite"], check=True)
    console.rule(f"a GraphSAGE in {MEMORY}")
    with gnnx.open(FOLDER, memory=MEMORY, device_memory=DEVICE_MEMORY) as dataset:
        console.print(dataset)
        torch.manual_seed(0)
        model = gnnx.nn.SAGE(dataset.num_features, HIDDEN, dataset.num_classes, len(FANOUTS))
        trainer = gnnx.Trainer(model, dataset, fanouts=FANOUTS, batch_size=BATCH_SIZE, eval_every=0)
        with progress.shown(quiet=False) as show:
            report = trainer.fit(EPOCHS, progress=show)
        console.rule("a linear model of the features alone")
        linear = linear_accuracy(dataset)
        features_bytes = dataset.num_nodes * dataset.features.row_bytes
    console.rule("what happened")
    console.print(epochs_table(report.epochs))
    return verdict(report, linear, features_bytes, time.perf_counter() - began)


def is_whole(folder: str) -> bool:
    """Whether an earlier run has left the graph, complete."""
    try:
        gnnx.open(folder).close()
    except GnnxError:
        return False
    return True


def linear_accuracy(dataset: gnnx.Dataset) -> float:
    """Test accuracy of multinomial logistic regression, streamed over the training rows."""
    model = nn.Linear(dataset.num_features, dataset.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    ids = dataset.split("train")
    train = torch.as_tensor(ids.read_range(0, ids.num_rows)).clone()
    for _ in range(20):
        for rows in train[torch.randperm(len(train))].split(2048):
            x, y = dataset.features.read(rows.numpy()), dataset.labels.read(rows.numpy())
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    ids, correct = dataset.split("test"), 0
    for begin in range(0, ids.num_rows, 32768):
        rows = ids.read_range(begin, min(begin + 32768, ids.num_rows)).numpy()
        with torch.no_grad():
            predicted = model(dataset.features.read(rows)).argmax(1)
        correct += int((predicted == dataset.labels.read(rows)).sum())
    return correct / ids.num_rows


def verdict(report: TrainReport, linear: float, features_bytes: int, seconds: float) -> int:
    """Show what was measured beside what was promised; 1 where a promise is broken."""
    first, *_, last = report.epochs
    memory, size = report.memory, format_bytes
    growth = memory.peak_rss_bytes - memory.base_rss_bytes
    allowed = sum(map(parse_bytes, (MEMORY, DEVICE_MEMORY, TOLERANCE)))
    hits = sum(e.rows_hit for e in report.epochs) / sum(e.rows_requested for e in report.epochs)
    read = sum(e.disk_read_bytes for e in report.epochs)
    accuracy, peak = report.test_accuracy, memory.peak_ledger_bytes
    bars = [
        ("loss", f"{last.loss:.3f}", f"below {first.loss:.3f}", last.loss < first.loss),
        ("test accuracy", percent(accuracy), f"linear model's {percent(linear)} and 10 points",
         accuracy >= linear + 0.1),
        ("peak of host memory", size(peak), f"budget {MEMORY}; features {size(features_bytes)}",
         peak <= parse_bytes(MEMORY)),
        ("growth of the process", size(growth), f"{size(allowed)} with the batches' memory",
         growth <= allowed),
        ("rows found in the cache", percent(hits), "", True),
        ("read from the disk", size(read), "", True),
        ("seconds, after installing", f"{seconds:.0f}", "", True),
    ]  # fmt: skip
    table = Table("", "measured", "bar", "holds")
    for name, measured, bar, holds in bars:
        table.add_row(name, measured, bar, ("yes" if holds else "NO") if bar else "")
    console.print(table)
    return 0 if all(holds for *_, holds in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
