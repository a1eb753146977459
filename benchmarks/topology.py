"""How fast are batches sampled where a share of the graph is in RAM, against all of it?

usage: benchmarks/topology.py DATASET [--resident 0.25] [--fanouts 15,10,5] [--batch-size 1024] ...

So much of the graph stays in RAM: the row pointers, and the pages that are wanted most. Batches
draw together (--window), which is held against all of it in RAM, in turns, and against drawing
batch by batch. It is timed from the first batch on, over some windows, while the next ones are
drawn. Seeds are nodes from all over the graph.
"""

from __future__ import annotations

import argparse
import collections
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import gnnx
from gnnx import threads
from gnnx.cache import expected_access, expected_pages, hottest
from gnnx.random import Key, permute
from gnnx.sample import Draws, NeighborSampler
from gnnx.store import PAGE_BYTES

_AHEAD = 3  # batches under way, as a loader has them


def compare(args: argparse.Namespace, fanouts: list[int]) -> None:
    """Print the milliseconds a batch with a share of the graph in RAM, and with all of it."""
    size = args.batch_size
    with gnnx.open(args.dataset) as whole, gnnx.open(args.dataset) as partly:
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
            for step in range(4):
                check(in_ram.sample(*batch(step)), together.sample(*batch(step), draws.of(step)))
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


def check(blocks: list[Any], others: list[Any]) -> None:
    """Hold two samples against each other, bit by bit."""
    for block, other in zip(blocks, others, strict=True):
        for name in ("indptr", "indices", "src_id"):
            if not getattr(block, name).equal(getattr(other, name)):
                raise SystemExit(f"{name} of {block.key} differs")


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
    """Measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--resident", type=float, default=0.25, help="share of the graph in RAM")
    parser.add_argument("--fanouts", default="15,10,5")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=64, help="sampled from RAM")
    parser.add_argument("--window", type=int, default=128, help="batches that draw together")
    parser.add_argument("--windows", type=int, default=2, help="of them that are timed")
    parser.add_argument("--keep", action="store_true", help="draws wait in RAM, not on disk")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    threads.set_num_threads(args.threads)
    compare(args, [int(fanout) for fanout in args.fanouts.split(",")])


if __name__ == "__main__":
    main()
