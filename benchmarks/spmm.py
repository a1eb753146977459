"""How fast is spmm on a CPU, beside torch and, where a Python with DGL is given, beside DGL?

usage: benchmarks/spmm.py [--graph rmat,community] [--width 32,64,128,256] [--dgl-python PATH]

All run on torch tensors and the same threads, in turns, round after round; medians are compared.
Every graph is in random node order. On a machine that others use too, --clock cpu takes the CPU
seconds of one thread in place of the time on the wall. docs/kernels.md says what the bars are.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from gnnx import ops, threads
from gnnx.graph import Graph
from gnnx.prepare import synth

if TYPE_CHECKING:
    from collections.abc import Callable

# Runs in a Python that has DGL: answers each line "width reduce" with the seconds of one pass.
_DGL = """
import sys, time
import numpy as np, torch, dgl
torch.set_num_threads(int(sys.argv[1]))
indptr, indices = (torch.from_numpy(np.load(path)) for path in sys.argv[2:])
graph = dgl.graph(("csc", (indptr, indices, [])), num_nodes=len(indptr) - 1)
x = None
for line in sys.stdin:
    width, reduce = line.split()
    if x is None or x.shape[1] != int(width):
        x = torch.randn(graph.num_nodes(), int(width))
    begin = time.perf_counter()
    dgl.ops.gspmm(graph, "copy_lhs", reduce, x, None)
    print(time.perf_counter() - begin, flush=True)
"""


def rmat(scale: int, num_edges: int, seed: int = 1) -> Graph:
    """Skewed graph (Chakrabarti et al., 2004), each edge once, in random node order."""
    rng = np.random.default_rng(seed)
    row, column = np.zeros(num_edges, np.int64), np.zeros(num_edges, np.int64)
    for _ in range(scale):
        draw = rng.random(num_edges)
        row = row * 2 + (draw >= 0.76)
        column = column * 2 + ((draw >= 0.57) & (draw < 0.76) | (draw >= 0.95))
    name = rng.permutation(1 << scale)
    pairs = np.unique(name[row] << scale | name[column])
    src, dst = (torch.from_numpy(part) for part in (pairs & ((1 << scale) - 1), pairs >> scale))
    return Graph.from_edges(src, dst, 1 << scale)


def community(num_nodes: int, num_edges: int) -> Graph:
    """Make the graph of `gnnx synth` with 16 classes and seed 0."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "community"
        counts = {"num_nodes": num_nodes, "num_edges": num_edges}
        synth(path, **counts, num_features=1, num_classes=16, seed=0)
        edges = path / "edges" / "node-edge-node"
        parts = (torch.from_numpy(np.load(edges / f"{name}.npy")) for name in ("indptr", "indices"))
        return Graph(*parts)


class Peer:
    """A process with DGL that runs one pass on demand, between the others' passes."""

    def __init__(self, python: str, graph: Graph, folder: str) -> None:
        paths = [f"{folder}/{name}.npy" for name in ("indptr", "indices")]
        for path, part in zip(paths, (graph.indptr, graph.indices.long()), strict=True):
            np.save(path, part.numpy())
        command = [python, "-c", _DGL, str(threads.num_threads()), *paths]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def seconds(self, width: int, reduce: str) -> float:
        """Time of one pass, taken by the process itself."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(width, reduce, file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def timed(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds of one call; what it returned is freed outside of them."""
    begin = clock()
    result = call()
    seconds = clock() - begin
    del result
    return seconds


def backward(graph: Graph, x: torch.Tensor, reduce: str) -> Callable[[], object]:
    """Make a call that runs the backward pass alone."""
    x = x.detach().requires_grad_()
    csr = graph.indptr, graph.indices
    out = ops.spmm(*csr, x, reduce=reduce, transpose=graph.transpose)
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, x, grad, retain_graph=True)


def measure(
    graph: Graph, width: int, rounds: int, clock: Callable[[], float], peer: Peer | None
) -> dict[str, float]:
    """Median seconds of every case at one width."""
    x = torch.randn(graph.num_nodes, width)
    csr = graph.indptr, graph.indices
    ones = torch.ones(graph.num_edges)
    size = (graph.num_nodes, graph.num_nodes)
    matrix = torch.sparse_csr_tensor(graph.indptr, graph.indices.long(), ones, size=size)
    weight = torch.rand(graph.num_edges)
    weighted = torch.sparse_csr_tensor(graph.indptr, graph.indices.long(), weight, size=size)
    narrow = x.bfloat16()
    cases: dict[str, Callable[[], float]] = {}

    def add(name: str, call: Callable[[], object]) -> None:
        cases[name] = lambda: timed(call, clock)

    for reduce, theirs in (("sum", "sum"), ("mean", "mean"), ("max", "amax")):
        add(f"gnnx {reduce}", lambda reduce=reduce: ops.spmm(*csr, x, reduce=reduce))
        add(f"torch {reduce}", lambda theirs=theirs: torch.sparse.mm(matrix, x, theirs))
        if peer is not None and reduce != "mean":
            cases[f"dgl {reduce}"] = lambda reduce=reduce: peer.seconds(width, reduce)
    add("gnnx weighted", lambda: ops.spmm(*csr, x, weight))
    add("torch weighted", lambda: torch.sparse.mm(weighted, x, "sum"))
    add("gnnx sum bfloat16", lambda: ops.spmm(*csr, narrow))
    for reduce in ("sum", "mean", "max"):
        add(f"gnnx {reduce} backward", backward(graph, x, reduce))
    out = torch.empty_like(x)
    add("copy", lambda: out.copy_(x))

    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(rounds + 1):
        for name, case in cases.items():
            spent = case()
            if turn:  # the first compiles, and touches the pages
                seconds[name].append(spent)
    return {name: statistics.median(values) for name, values in seconds.items()}


def report(graph: Graph, width: int, ms: dict[str, float]) -> None:
    """Print the times of one width and how they compare."""
    print(f"  width {width}: " + ", ".join(f"{k} {1e3 * v:.0f}" for k, v in ms.items()) + " ms")
    ratios = {
        f"{reduce} / {side}": ms[f"{side} {reduce}"] / ms[f"gnnx {reduce}"]
        for reduce in ("sum", "mean", "max", "weighted")
        for side in ("torch", "dgl")
        if f"{side} {reduce}" in ms
    }
    print("    times as fast: " + ", ".join(f"{k} {v:.2f}" for k, v in ratios.items()))
    parts = [
        f"{r} {ms[f'gnnx {r} backward'] / ms[f'gnnx {r}']:.2f}" for r in ("sum", "mean", "max")
    ]
    print(f"    backward / forward: {', '.join(parts)}", end="; ")
    print(f"bfloat16 {ms['gnnx sum'] / ms['gnnx sum bfloat16']:.2f} times as fast as float32")
    moved = 4 * width * (graph.num_edges + graph.num_nodes) + 4 * graph.num_edges
    rate, copy = moved / ms["gnnx sum"], 2 * 4 * width * graph.num_nodes / ms["copy"]
    print(f"    {rate / 1e9:.1f} GB/s without reuse, {rate / copy:.2f} of a copy's")


def main() -> None:
    """Make the graphs, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", default="rmat,community")
    parser.add_argument("--width", default="32,64,128,256")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--nodes", type=int, default=1_000_000, help="of the community graph")
    parser.add_argument("--edges", type=int, default=20_000_000, help="of the community graph")
    parser.add_argument("--scale", type=int, default=18, help="log2 of the RMAT graph's nodes")
    parser.add_argument("--threads", type=int, default=threads.num_threads())
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--dgl-python", help="a Python that has DGL")
    args = parser.parse_args()
    alone = args.clock == "cpu"
    threads.set_num_threads(1 if alone else args.threads)
    clock = time.thread_time if alone else time.perf_counter
    warnings.filterwarnings("ignore", message="Sparse ", category=UserWarning)
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, ", end="")
    print(f"{threads.num_threads()} threads, {args.clock} clock, {args.rounds} rounds, ", end="")
    print(f"load {os.getloadavg()[0]:.1f}")
    for name in args.graph.split(","):
        rmat_edges = (1 << args.scale) * 16
        graph = (
            rmat(args.scale, rmat_edges) if name == "rmat" else community(args.nodes, args.edges)
        )
        degree = graph.degree
        print(f"{name}: {graph.num_nodes} nodes, {graph.num_edges} edges, ", end="")
        print(
            f"largest degree {int(degree.max())}, {float((degree == 0).float().mean()):.2f} empty"
        )
        with tempfile.TemporaryDirectory() as folder:
            peer = Peer(args.dgl_python, graph, folder) if args.dgl_python else None
            for width in map(int, args.width.split(",")):
                report(graph, width, measure(graph, width, args.rounds, clock, peer))
            if peer is not None:
                peer.close()


if __name__ == "__main__":
    main()
