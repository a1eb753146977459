"""Train a SAGE on part of a large data set within a budget, beside a model that sees no neighbours.

python benchmarks/large.py debian --memory 1GiB --steps 200
python benchmarks/large.py parts --memory 1GiB --clusters-per-batch 4 --epochs 2

Prints one JSON document: losses, bytes read, memory, and the accuracy on some test nodes of the
majority class, of a linear model of the nodes' own features, and of a SAGE with all neighbours.
The second trains on batches of whole parts, and so on all training nodes; the linear model is
trained on the same drawn ones in both, and a dataset has the same ones drawn in its parts.

With --confined, all of it runs once more, in a memory cgroup of base, budget and DEVICE part
(batches, activations, parameters: the first run's growth less the peak of its host ledger).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

import cgroup
import numpy as np
import torch

import gnnx
from gnnx.memory import Tier, format_bytes, parse_bytes, peak_rss_bytes
from gnnx.nn import SAGE
from gnnx.train import base_rss_bytes

FIRST_IDS = "nodes/node/id"


def draw(dataset: gnnx.Dataset, split: Any, count: int, seed: int) -> np.ndarray:
    """Some ids of a split, ascending: the same nodes before and after the dataset is cut."""
    rows = dataset.split(split)
    ids = rows.read_range(0, rows.num_rows).numpy()
    if FIRST_IDS in dataset.manifest.arrays:
        ids = ids[np.argsort(dataset.array(FIRST_IDS).read(ids).numpy())]
    return np.sort(ids[np.random.default_rng(seed).permutation(len(ids))[:count]])


def step(optimizer: torch.optim.Optimizer, logits: torch.Tensor, y: torch.Tensor) -> float:
    """Take a step of the mean loss; returns the loss."""
    loss = torch.nn.functional.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.item())


def linear(dataset: gnnx.Dataset, seeds: Any, nodes: Any, batch_size: int) -> torch.Tensor:
    """Classes of nodes by a linear model, after five passes over the seeds."""
    model = torch.nn.Linear(dataset.num_features, dataset.num_classes)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for epoch in range(5):
        order = torch.randperm(len(seeds), generator=torch.Generator().manual_seed(epoch)).numpy()
        for begin in range(0, len(seeds), 16 * batch_size):  # read many, in the order of the file
            ids = seeds[order[begin : begin + 16 * batch_size]]
            x, y = dataset.features.read(ids), dataset.labels.read(ids)
            for rows in torch.split(torch.arange(len(ids)), batch_size):
                step(optimizer, model(x[rows]), y[rows])
    return model(dataset.features.read(nodes)).argmax(1)


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Train both models on the same seeds, then compare them on the same test nodes."""
    torch.manual_seed(0)
    with gnnx.open(
        given.dataset, memory=given.memory, device_memory=given.device_memory
    ) as dataset:
        base = base_rss_bytes(None, dataset)
        model = SAGE(dataset.num_features, 64, dataset.num_classes, 2)
        seeds = draw(dataset, "train", given.steps * given.batch_size, 0)
        nodes = draw(dataset, "test", given.test, 1)
        clusters = given.clusters_per_batch
        loader = gnnx.Loader(
            dataset,
            [10, 5],
            given.batch_size,
            split="train" if clusters else seeds,
            clusters_per_batch=clusters,
        )
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        begin, cpu = time.perf_counter(), time.process_time()
        losses, passes = [], []
        for _ in range(given.epochs):
            losses += [step(optimizer, model(batch.blocks, batch.x), batch.y) for batch in loader]
            passes.append(loader.stats)
        wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
        trained, stats = peak_rss_bytes() - base, sum(passes[1:], passes[0])
        with loader.released():
            outputs = gnnx.infer(model, dataset, nodes=nodes)
            plain = linear(dataset, seeds, nodes, given.batch_size)
        y = dataset.labels.read(nodes)
        found = {"majority": torch.bincount(y).argmax(), "linear": plain, "sage": outputs.argmax(1)}
        return {
            "steps": len(losses),
            "losses": [losses[0], *losses[-2:]],
            "train_s": wall_s,
            "train_cpu_s": cpu_s,
            "rows_requested": stats.rows_requested,
            "rows_from_disk": stats.rows_from_disk,
            "disk_read_bytes": stats.disk_read_bytes,
            "accuracy": {name: float((each == y).float().mean()) for name, each in found.items()},
            "peak_ledger_bytes": dataset.ledger.peak_bytes(Tier.HOST),
            "peak_device_ledger_bytes": dataset.ledger.peak_bytes(Tier.DEVICE),
            "base_bytes": base,
            "train_growth_bytes": trained,
            "growth_bytes": peak_rss_bytes() - base,
        }


def confined(words: list[str], memory: str) -> None:
    """Run twice, the second time in a group that holds what the first one accounts for."""
    command = [sys.executable, __file__, *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(done.stdout, flush=True)
    free = json.loads(done.stdout)
    device = free["growth_bytes"] - free["peak_ledger_bytes"]
    limit = free["base_bytes"] + device + parse_bytes(memory)
    outcome = cgroup.run_limited(command, limit, timeout_s=3600)
    print(outcome.stdout)
    print(
        f"DEVICE part {format_bytes(device)}; cgroup of {format_bytes(limit)}: peak charge "
        f"{format_bytes(outcome.peak_charge_bytes)}, {outcome.oom_kills} kills"
    )
    if outcome.returncode:
        sys.exit(outcome.stderr)


def main() -> None:
    """Parse the arguments, run, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dataset")
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--device-memory", help="what batches may take on top; default: no limit")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--clusters-per-batch", type=int, help="batches are so many whole parts")
    parser.add_argument("--epochs", type=int, default=1, help="passes over the batches")
    parser.add_argument("--test", type=int, default=20_000, help="nodes to infer for")
    parser.add_argument("--confined", action="store_true", help="once more, in a cgroup")
    given = parser.parse_args()
    if given.confined:
        confined([word for word in sys.argv[1:] if word != "--confined"], given.memory)
    else:
        print(json.dumps(run(given), indent=2))


if __name__ == "__main__":
    main()
