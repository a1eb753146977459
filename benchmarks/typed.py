"""Train a typed SAGE on part of a typed data set within a budget: losses, bytes, memory, accuracy.

python benchmarks/typed.py debian --memory 1GiB --steps 200
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import torch

import gnnx
from gnnx.memory import Tier, peak_rss_bytes
from gnnx.nn import HeteroSAGE
from gnnx.train import base_rss_bytes


def draw(rows: Any, count: int, seed: int) -> np.ndarray:
    """Some ids of a split, ascending."""
    order = np.random.default_rng(seed).permutation(rows.num_rows)[:count]
    return rows.read(np.sort(order)).numpy().copy()


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Train for some steps, then infer for some test nodes, exactly."""
    torch.manual_seed(0)
    with gnnx.open(given.dataset, memory=given.memory) as dataset:
        base = base_rss_bytes(None, dataset)
        model = HeteroSAGE(
            dataset.widths, 64, dataset.num_classes, 2, dataset.edge_types, dataset.target, 0.0
        )
        seeds = draw(dataset.split("train"), given.steps * given.batch_size, 0)
        loader = gnnx.HeteroLoader(dataset, [10, 5], given.batch_size, split=seeds)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        losses, begin, cpu = [], time.perf_counter(), time.process_time()
        for batch in loader:
            logits = model(batch.blocks, {name: x.float() for name, x in batch.x.items()})
            loss = torch.nn.functional.cross_entropy(logits, batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        del batch, logits, loss
        wall_s, cpu_s = time.perf_counter() - begin, time.process_time() - cpu
        stats = loader.stats
        trained = peak_rss_bytes() - base
        nodes = draw(dataset.split("test"), given.test, 1)
        with loader.released():
            outputs = gnnx.infer(model, dataset, nodes=nodes)
        y = dataset.labels.read(nodes)
        return {
            "losses": [losses[0], *losses[-2:]],
            "train_s": wall_s,
            "train_cpu_s": cpu_s,
            "rows_requested": stats.rows_requested,
            "rows_hit": stats.rows_hit,
            "disk_read_bytes": stats.disk_read_bytes,
            "test_accuracy": float((outputs.argmax(1) == y).float().mean()),
            "majority": float((y == torch.bincount(y).argmax()).float().mean()),
            "peak_ledger_bytes": dataset.ledger.peak_bytes(Tier.HOST),
            "peak_device_ledger_bytes": dataset.ledger.peak_bytes(Tier.DEVICE),
            "train_growth_bytes": trained,
            "growth_bytes": peak_rss_bytes() - base,
        }


def main() -> None:
    """Parse the arguments, run, and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dataset")
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--test", type=int, default=20_000, help="nodes to infer for")
    print(json.dumps(run(parser.parse_args()), indent=2))


if __name__ == "__main__":
    main()
