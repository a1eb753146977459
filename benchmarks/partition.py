"""How good are parts, how fast are they made, and how much denser are reads in their order?

usage: benchmarks/partition.py DATASET [--parts 8,16,32,64] [--methods random,stream,kaminpar,…]
       benchmarks/partition.py DATASET --reads    what batches read before and after ordering
       benchmarks/partition.py DATASET --whole    one `gnnx partition`, in a process of its own
       benchmarks/partition.py DATASET --rmat 18  as the first, on a skewed graph of 2^18 nodes

The first prints alpha, cut, balance and seconds of each method on the same graph: `kaminpar` as it
comes, `refined` by gnnx (`gnnx partition --method quality` is the better of `refined` and
`stream`); where pymetis is installed, `metis` with the volume of communication as its objective
and `metis-cut` with the edge cut, which takes a tenth of its time. The second makes an epoch of
batches under a memory budget on the dataset, on its order by readers, and on its parts. The third
prints time and memory; where there is no dataset, it makes the community graph of --nodes and
--edges with one feature. The fourth makes its dataset, too: R-MAT with 0.57, 0.19, 0.19, 0.05, 4
million edges, in random order (Chakrabarti et al., 2004).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import gnnx
from gnnx.memory import Tier
from gnnx.partition import Problem, StreamSearch, measure, partition, random_parts
from gnnx.partition.multilevel import Symmetric, multilevel_parts
from gnnx.prepare import prepare, synth

METIS_OBJECTIVES = {"metis-cut": 0, "metis": 1}


def assign(problem: Problem, method: str, folder: Path) -> Any:
    """Part of each node, by one method."""
    part = np.zeros(problem.graph.num_nodes, np.int32)
    if method == "random":
        random_parts(part, problem.num_parts, seed=1)
    elif method == "stream":
        StreamSearch(problem).place(part)
    elif method in METIS_OBJECTIVES:
        part[:] = metis(problem, folder, METIS_OBJECTIVES[method])
    else:
        multilevel_parts(problem, part, folder=folder, seed=0, time_limit_s=3600.0)
        if method == "refined":
            StreamSearch(problem).refine(part)
    return part


def metis(problem: Problem, folder: Path, objective: int) -> Any:
    """Parts by METIS, where pymetis is installed."""
    import pymetis

    with tempfile.NamedTemporaryFile(dir=folder) as file:
        Symmetric(problem).write(Path(file.name))
        data = np.fromfile(file.name, np.uint32)
    num_nodes = problem.graph.num_nodes
    starts = data[6 : 6 + 2 * (num_nodes + 1)].view(np.int64)
    ids = data[6 + 2 * (num_nodes + 1) :].view(np.int32)
    options = pymetis.Options()
    options._set(1, objective)  # noqa: SLF001 - objtype; pymetis has no name for it
    rows = pymetis.CSRAdjacency((starts - starts[0]) // 4, ids)
    _, part = pymetis.part_graph(
        problem.num_parts, adjacency=rows, recursive=False, options=options
    )
    return part


def compare(path: Path, all_parts: list[int], methods: list[str], weights: list[str]) -> None:
    """Print what the parts of each method cost."""
    with gnnx.open(path) as dataset:
        dataset.graph.pin((dataset.ledger.free_bytes(Tier.HOST) or 0) // 2)
        for num_parts in all_parts:
            problem = Problem(dataset.graph, num_parts, weights, train=dataset.split("train"))
            by_chance = None
            for method in methods:
                begin = time.perf_counter()
                part = assign(problem, method, path.parent)
                seconds = time.perf_counter() - begin
                quality = measure(problem, part)
                by_chance = quality.alpha if method == "random" else by_chance
                balance = ", ".join(f"{k} {v:.2f}" for k, v in quality.balance.items())
                print(
                    f"P {num_parts:3} {method:8} alpha {quality.alpha:6.3f}"
                    f" ({quality.alpha / (by_chance or np.nan):.3f} of chance)"
                    f"  cut {100 * quality.cut_share:4.1f} %  {balance}  {seconds:5.1f} s",
                    flush=True,
                )


def reads(path: Path, memory: str, fanouts: list[int], num_parts: int) -> None:
    """Print what an epoch reads from the disk in the dataset's order, by readers, and by parts."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        orders = {"as it is": path}
        for name, parts in (("by readers", 1), (f"{num_parts} parts", num_parts)):
            out = Path(folder) / name.replace(" ", "-")
            partition(path, out, num_parts=parts, method="stream")
            orders[name] = out
        for name, each in orders.items():
            with gnnx.open(each, memory=memory) as dataset:
                loader = gnnx.Loader(dataset, fanouts, 1024)
                for _ in loader:
                    pass
                stats = loader.stats
                row_bytes = dataset.features.row_bytes
                asked = stats.rows_from_disk * row_bytes
                print(
                    f"{name:12} {stats.rows_requested:,} rows asked, {stats.rows_from_disk:,} from"
                    f" disk ({asked >> 20} MiB), read {stats.disk_read_bytes >> 20} MiB:"
                    f" {stats.disk_read_bytes / max(1, asked):.2f} bytes a byte wanted",
                    flush=True,
                )


def make_rmat(path: Path, scale: int, num_edges: int = 4_000_000) -> None:
    """Prepare a graph of 2^scale nodes whose degrees are skewed."""
    rng = np.random.default_rng(1)
    pairs = np.zeros((2, num_edges), np.int32)
    for _ in range(scale):
        draw = rng.random(num_edges)
        pairs *= 2
        pairs[0] += draw >= 0.76
        pairs[1] += ((draw >= 0.57) & (draw < 0.76)) | (draw >= 0.95)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        np.save(f"{folder}/pairs.npy", rng.permutation(1 << scale).astype(np.int32)[pairs])
        prepare(f"{folder}/pairs.npy", path, num_nodes=1 << scale)


WHOLE = """
import json, sys, time
import gnnx
from gnnx.memory import peak_rss_bytes
from gnnx.partition import partition

path, out, parts, method, memory = sys.argv[1:]
begin, stages = time.perf_counter(), {}
def told(stage, done, total):
    stages[stage.split(",")[0]] = time.perf_counter() - begin, time.process_time()
report = partition(path, out, num_parts=int(parts), method=method, overwrite=True, progress=told,
                   memory=memory if memory != "-" else None)
print(json.dumps({"seconds": time.perf_counter() - begin, "cpu": time.process_time(),
                  "peak": peak_rss_bytes(), "alpha": report.quality.alpha, "stages": stages}))
"""


def whole(path: Path, num_parts: int, method: str, memory: str, sizes: tuple[int, int]) -> None:
    """Print what a partition takes, from opening the dataset to the last synced byte."""
    if not path.exists():
        synth(path, num_nodes=sizes[0], num_edges=sizes[1], num_features=1, num_classes=16)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        words = [str(path), f"{folder}/parts", str(num_parts), method, memory]
        done = subprocess.run(
            [sys.executable, "-c", WHOLE, *words], stdout=subprocess.PIPE, text=True, check=True
        )
    found = json.loads(done.stdout)
    print(
        f"P {num_parts} {method}: {found['seconds']:.1f} s, CPU {found['cpu']:.1f} s, "
        f"peak {found['peak'] >> 20} MiB, interpreter and all, alpha {found['alpha']:.3f}"
    )
    for stage, (at, cpu) in found["stages"].items():
        print(f"  {stage} until {at:.1f} s (CPU {cpu:.1f})")


def main() -> None:
    """Measure one of the three."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--parts", default="8,16,32,64")
    parser.add_argument("--methods", default="random,stream,kaminpar,refined")
    parser.add_argument("--balance", default="nodes")
    parser.add_argument("--reads", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--rmat", type=int, metavar="SCALE")
    parser.add_argument("--nodes", type=int, default=5_000_000)
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--memory", default="128MiB")
    parser.add_argument("--fanouts", default="15,10,5")
    args = parser.parse_args()
    all_parts = [int(parts) for parts in args.parts.split(",")]
    methods = args.methods.split(",")
    if args.rmat and not args.dataset.exists():
        make_rmat(args.dataset, args.rmat)
    if args.whole:
        sizes = args.nodes, args.edges
        whole(args.dataset, all_parts[-1], methods[-1], args.memory, sizes)
    elif args.reads:
        fanouts = [int(fanout) for fanout in args.fanouts.split(",")]
        reads(args.dataset, args.memory, fanouts, all_parts[-1])
    else:
        compare(args.dataset, all_parts, methods, args.balance.split(","))


if __name__ == "__main__":
    main()
