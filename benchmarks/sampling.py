"""How fast are blocks made? Seeds a second with the graph in RAM, and where the time goes.

usage: benchmarks/sampling.py [--nodes N --edges E | --dataset FOLDER] [--fanouts 15,10,5]
                              [--threads N] [--dgl-python PATH]

Blocks are complete, transpose included; one batch a thread. Where a Python with DGL is given, its
classic sampler makes as many blocks of the same graph for the same seeds, in turns with ours: as it
gives them, and with the two orders of edges that a training step makes of each ("with orders").
"""

from __future__ import annotations

import collections
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sides

import gnnx
from gnnx import ops, threads
from gnnx.prepare import synth
from gnnx.random import Key, permute
from gnnx.sample import (
    NeighborSampler,
    _kernels,  # noqa: PLC2701 - the stages are its functions
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

# Runs in a Python that has DGL.
_DGL = """
import dgl
from dgl.dataloading import NeighborSampler
*paths, batch_size, fanouts = arguments
indptr, indices, seeds = (torch.from_numpy(np.load(path)) for path in paths)
graph = dgl.graph(("csc", (indptr, indices.long(), [])), num_nodes=len(indptr) - 1)
graph.create_formats_()
sampler = NeighborSampler([int(fanout) for fanout in reversed(fanouts.split(","))])

def case(way):
    def call():
        for batch in seeds.split(int(batch_size)):
            _, _, blocks = sampler.sample(graph, batch)
            if way == "all":
                for block in blocks:
                    block.create_formats_()
    return call
"""
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


def measure(
    args: argparse.Namespace,
    clock: Callable[[], float],
    sampler: NeighborSampler,
    batches: list[Any],
    peer: sides.Peer | None,
) -> None:
    """Print seeds a second on all threads, and the peer's: medians over the rounds."""
    num_edges = [0] * len(batches)

    def work(step: int) -> None:
        blocks = sampler.sample(batches[step], Key(0, 0, step))
        num_edges[step] = sum(block.num_edges for block in blocks)

    def ours() -> None:
        if args.clock == "cpu":  # what this thread does is what the clock sees
            for step in range(len(batches)):
                work(step)
        else:
            for job in [threads.submit(work, step) for step in range(len(batches))]:
                job.result()

    cases = {"gnnx": sides.timed(ours, clock)}
    if peer is not None:
        cases |= {"dgl": lambda: peer.seconds("plain"), "with orders": lambda: peer.seconds("all")}
    seconds = sides.medians(cases, args.rounds)
    rates = {name: sum(map(len, batches)) / median for name, median in seconds.items()}
    rows = [(name, f"{rate:,.0f}", rates["gnnx"] / rate) for name, rate in rates.items()]
    sides.show(("side", "seeds/s", "gnnx/side"), rows)
    print(f"gnnx: {sum(num_edges) / seconds['gnnx'] / 1e6:.1f} M edges/s")


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
    parser = sides.options(__doc__.splitlines()[0], rounds=5)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--dataset", type=Path, help="a prepared one, in place of a made one")
    parser.add_argument("--fanouts", default="15,10,5")
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--batches", type=int, default=40)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.dataset or Path(folder) / "community"
        if args.dataset is None:
            counts = {"num_nodes": args.nodes, "num_edges": args.edges}
            synth(path, **counts, num_features=1, num_classes=16)
        with gnnx.open(path) as dataset:
            dataset.graph.pin(dataset.ledger.free_bytes(gnnx.Tier.HOST) or 0)
            print(dataset.graph)
            clock = sides.start(args)
            fanouts = [int(fanout) for fanout in args.fanouts.split(",")]
            sampler = NeighborSampler(dataset.graph, fanouts)
            size = min(args.batches * args.batch_size, dataset.num_nodes)
            seeds = permute(np.arange(size), dataset.num_nodes, Key(0))
            batches = np.array_split(seeds, range(args.batch_size, size, args.batch_size))
            peer = None
            if args.dgl_python:
                np.save(Path(folder) / "seeds.npy", seeds)
                edges = path / "edges" / "node-edge-node"
                files = edges / "indptr.npy", edges / "indices.npy", Path(folder) / "seeds.npy"
                words = *map(str, files), str(args.batch_size), args.fanouts
                peer = sides.Peer(args.dgl_python, _DGL, args.clock, *words)
            measure(args, clock, sampler, batches, peer)
            if peer is not None:
                peer.close()
            profile(sampler, batches)


if __name__ == "__main__":
    main()
