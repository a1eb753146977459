"""How fast are blocks made? Seeds a second with the graph in RAM, and where the time goes.

usage: benchmarks/sampling.py [--nodes N --edges E | --dataset FOLDER] [--fanouts 15,10,5] ...

Blocks are complete, transpose included. One batch a thread; the median of some repetitions.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import gnnx
from gnnx import ops, threads
from gnnx.prepare import synth
from gnnx.random import Key, permute
from gnnx.sample import (
    NeighborSampler,
    _kernels,  # noqa: PLC2701 - the stages are its functions
)

# what a hop calls, in its order
STAGES = {
    "rows": (gnnx.GraphStore, "rows"),
    "row ends": (_kernels, "row_ends"),
    "draw": (_kernels, "draw"),
    "take": (gnnx.GraphStore, "take"),
    "clear, grow": (_kernels, "rebuild"),
    "number": (_kernels, "number"),
    "transpose": (ops, "transpose"),
}


def measure(sampler: NeighborSampler, batches: list[Any], repetitions: int) -> tuple[float, float]:
    """Seeds and edges a second on the pool, medians."""

    def work(step: int) -> int:
        return sum(block.num_edges for block in sampler.sample(batches[step], Key(0, 0, step)))

    seconds = []
    for _ in range(repetitions + 1):  # the first compiles, and sizes the scratch
        begin = time.perf_counter()
        jobs = [threads.submit(work, step) for step in range(len(batches))]
        num_edges = sum(job.result() for job in jobs)
        seconds.append(time.perf_counter() - begin)
    median = statistics.median(seconds[1:])
    return sum(map(len, batches)) / median, num_edges / median


def profile(sampler: NeighborSampler, batches: list[Any]) -> None:
    """Print the CPU time of each stage on one thread."""
    spent: dict[str, float] = collections.defaultdict(float)

    def timed(stage: str, call: Any) -> Any:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            begin = time.thread_time()
            result = call(*args, **kwargs)
            spent[stage] += time.thread_time() - begin
            return result

        return wrapper

    for stage, (home, name) in STAGES.items():
        setattr(home, name, timed(stage, getattr(home, name)))
    begin, num_edges = time.thread_time(), 0
    for step, seeds in enumerate(batches):
        num_edges += sum(block.num_edges for block in sampler.sample(seeds, Key(0, 0, step)))
    spent["the rest"] = time.thread_time() - begin - sum(spent.values())
    print(f"{'stage':12} {'ms/batch':>9} {'ns/edge':>8}")
    for stage, seconds in spent.items():
        print(f"{stage:12} {seconds / len(batches) * 1e3:9.2f} {seconds / num_edges * 1e9:8.1f}")


def main() -> None:
    """Make the graph, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--dataset", type=Path, help="a prepared one, in place of a made one")
    parser.add_argument("--fanouts", default="15,10,5")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--threads", default="1,2")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.dataset or Path(folder) / "community"
        if args.dataset is None:
            counts = {"num_nodes": args.nodes, "num_edges": args.edges}
            synth(path, **counts, num_features=1, num_classes=16)
        with gnnx.open(path) as dataset:
            dataset.graph.pin(dataset.ledger.free_bytes(gnnx.Tier.HOST) or 0)
            print(dataset.graph)
            fanouts = [int(fanout) for fanout in args.fanouts.split(",")]
            sampler = NeighborSampler(dataset.graph, fanouts)
            size = min(args.batches * args.batch_size, dataset.num_nodes)
            seeds = permute(np.arange(size), dataset.num_nodes, Key(0))
            batches = [
                seeds[begin : begin + args.batch_size] for begin in range(0, size, args.batch_size)
            ]
            for count in map(int, args.threads.split(",")):
                threads.set_num_threads(count)
                seeds_s, edges_s = measure(sampler, batches, args.repetitions)
                print(f"{count} threads: {seeds_s:,.0f} seeds/s, {edges_s / 1e6:.1f} M edges/s")
            profile(sampler, batches)


if __name__ == "__main__":
    main()
