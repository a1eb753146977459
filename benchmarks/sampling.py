"""How fast are blocks made? Seeds a second with the graph in RAM, and where the time goes.

usage: benchmarks/sampling.py [--nodes N --edges E | --dataset FOLDER] [--fanouts 15,10,5] ...

Blocks are complete, transpose included. One batch a thread; the median of some repetitions.
With --resident SHARE, so much of the graph stays in RAM, the row pointers and the pages that are
wanted most: batches draw together (--window), which is held against all of it in RAM, in turns,
and against drawing batch by batch. It is timed from the first batch on, over some windows, while
the next ones are drawn.
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
from gnnx.cache import expected_access, expected_pages, hottest
from gnnx.prepare import synth
from gnnx.random import Key, permute
from gnnx.sample import (
    Draws,
    NeighborSampler,
    _kernels,  # noqa: PLC2701 - the stages are its functions
)
from gnnx.store import PAGE_BYTES

_AHEAD = 3
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


def compare(path: Path, args: argparse.Namespace, fanouts: list[int]) -> None:
    """Print the milliseconds a batch with a share of the graph in RAM, and with all of it."""
    size = args.batch_size
    threads.set_num_threads(max(map(int, args.threads.split(","))))
    with gnnx.open(path) as whole, gnnx.open(path) as partly:
        whole.graph.pin(1 << 62)
        keep_share(partly.graph, fanouts, size, args.resident)

        def batch(step: int) -> tuple[Any, Key]:
            places = np.arange(step * size, (step + 1) * size) % partly.num_nodes
            return permute(places, partly.num_nodes, Key(0)), Key(0, 0, step)

        in_ram = NeighborSampler(whole.graph, fanouts)
        by_itself, together = (NeighborSampler(partly.graph, fanouts) for _ in range(2))
        found: dict[str, list[tuple[float, float]]] = collections.defaultdict(list)
        for _ in range(args.repetitions + 1):
            found["in RAM"].append(paced(in_ram, batch, range(args.batches), None))
            draws = Draws(
                partly, fanouts, batch, [args.window] * (2 + args.windows),
                on_disk=not args.keep, buffer_bytes=32 << 20, timeout_s=600.0,
            )  # fmt: skip
            draws.of(0)
            steps = range(args.window * args.windows)
            found["together"].append(paced(together, batch, steps, draws))
            draws.close()
        found["by itself"].append(paced(by_itself, batch, range(4), None))
        host = partly.ledger.peak_bytes(gnnx.Tier.HOST) / 2**20
        print(f"HOST peak {host:.0f} MiB; ms a batch, and of CPU, medians after the first:")
        for name, times in found.items():
            wall, cpu = (
                statistics.median(column) for column in zip(*times[1:] or times, strict=True)
            )
            print(f"{name:10} {wall * 1e3:8.1f} {cpu * 1e3:8.1f}")
        ratios = [a[0] / b[0] for a, b in zip(found["in RAM"], found["together"], strict=True)][1:]
        print("in RAM / together:", " ".join(f"{ratio:.2f}" for ratio in ratios))


def keep_share(graph: gnnx.GraphStore, fanouts: list[int], batch_size: int, share: float) -> None:
    """Keep row pointers and pages of so much of a graph, for seeds from all of it."""
    pointers = 8 * (graph.num_nodes + 1)
    graph.pin(pointers)
    left = share * (pointers + graph.index_dtype.itemsize * graph.num_edges) - pointers
    nodes = np.arange(graph.num_nodes)
    scores = expected_pages(graph, expected_access(graph, nodes, fanouts[:-1], batch_size), fanouts)
    count = max(0, int(left) // PAGE_BYTES)
    graph.keep_pages(hottest(scores, count, graph.ledger))
    print(f"{graph}: row pointers and {count} of {graph.num_pages} pages in RAM")


def paced(
    sampler: NeighborSampler, batch: Any, steps: range, draws: Draws | None
) -> tuple[float, float]:
    """Seconds a batch, and of CPU, of sampling ahead of the taker, as a loader does."""
    jobs: collections.deque[Any] = collections.deque()
    coming = collections.deque(steps)

    def work(step: int) -> Any:
        return sampler.sample(*batch(step), None if draws is None else draws.of(step))

    begin, cpu = time.perf_counter(), time.process_time()
    for step in steps:
        while (
            coming
            and len(jobs) < _AHEAD
            and (not jobs or draws is None or draws.is_ready(coming[0]))
        ):
            jobs.append(threads.submit(work, coming.popleft()))
        jobs.popleft().result()
        if draws is not None:
            draws.done(step)
    seconds = time.perf_counter() - begin, time.process_time() - cpu
    return seconds[0] / len(steps), seconds[1] / len(steps)


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
    parser.add_argument("--resident", type=float, help="share of the graph in RAM, such as 0.25")
    parser.add_argument("--window", type=int, default=128, help="batches that draw together")
    parser.add_argument("--windows", type=int, default=2, help="of them that are measured")
    parser.add_argument(
        "--keep", action="store_true", help="what is drawn waits in RAM, not on disk"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.dataset or Path(folder) / "community"
        if args.dataset is None:
            counts = {"num_nodes": args.nodes, "num_edges": args.edges}
            synth(path, **counts, num_features=1, num_classes=16)
        fanouts = [int(fanout) for fanout in args.fanouts.split(",")]
        if args.resident is not None:
            compare(path, args, fanouts)
            return
        with gnnx.open(path) as dataset:
            dataset.graph.pin(dataset.ledger.free_bytes(gnnx.Tier.HOST) or 0)
            print(dataset.graph)
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
