"""How fast is spmm on a CPU, beside torch and, where a Python with DGL is given, beside DGL?

usage: benchmarks/spmm.py [--graph rmat,community] [--width 32,64,128,256] [--dgl-python PATH]
       benchmarks/spmm.py --graph parts --random FOLDER --parts FOLDER

All run on torch tensors and the same threads, in turns, round after round; medians are compared.
RMAT and community are in random node order. "parts" compares a dataset in random order with itself
as `gnnx partition` has ordered it. On a machine that others use too, --clock cpu takes the CPU
seconds of one thread in place of the time on the wall. docs/kernels.md says what the bars are.
"""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import sides
import torch

from gnnx import ops
from gnnx.graph import Graph
from gnnx.prepare import synth

if TYPE_CHECKING:
    from collections.abc import Callable

# Runs in a Python that has DGL.
_DGL = """
import dgl
indptr, indices = (torch.from_numpy(np.load(path)) for path in arguments)
graph = dgl.graph(("csc", (indptr, indices, [])), num_nodes=len(indptr) - 1)
graph.create_formats_()
features = {}

def case(width, reduce):
    if width not in features:
        features.clear()
        features[width] = torch.randn(graph.num_nodes(), int(width))
    return lambda: dgl.ops.gspmm(graph, "copy_lhs", reduce, features[width], None)
"""
COLUMNS = (
    *("graph", "width", "sum ms", "/torch", "/dgl", "mean/torch", "max/torch", "max/dgl"),
    *("argmax/torch", "weighted/torch", "back/sum", "back/mean", "back/max", "bf16", "of copy"),
)


REDUCES = {"sum": "sum", "mean": "mean", "max": "amax"}  # gnnx's names and torch's


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
        return load(path)


def load(path: Path) -> Graph:
    """Read the edges of a dataset into memory."""
    edges = path / "edges" / "node-edge-node"
    parts = (torch.from_numpy(np.load(edges / f"{name}.npy")) for name in ("indptr", "indices"))
    return Graph(*parts)


def backward(graph: Graph, x: torch.Tensor, reduce: str) -> Callable[[], object]:
    """Make a call that runs the backward pass alone."""
    x = x.detach().requires_grad_()
    csr = graph.indptr, graph.indices
    out = ops.spmm(*csr, x, reduce=reduce, transpose=graph.transpose)
    grad = torch.randn_like(out)
    return lambda: torch.autograd.grad(out, x, grad, retain_graph=True)


def measure(
    graph: Graph, width: int, args: Any, clock: Callable[[], float], peer: sides.Peer | None
) -> dict[str, float]:
    """Median seconds of every case at one width, reduction after reduction."""
    x = torch.randn(graph.num_nodes, width)
    csr = graph.indptr, graph.indices
    size = (graph.num_nodes, graph.num_nodes)
    weight = torch.rand(graph.num_edges)
    matrix, weighted = (
        torch.sparse_csr_tensor(graph.indptr, graph.indices.long(), values, size=size)
        for values in (torch.ones(graph.num_edges), weight)
    )

    def cases(reduce: str, theirs: str) -> dict[str, Callable[[], float]]:
        calls: dict[str, Callable[[], object]] = {
            f"gnnx {reduce}": lambda: ops.spmm(*csr, x, reduce=reduce),
            f"torch {reduce}": lambda: torch.sparse.mm(matrix, x, theirs),
            f"gnnx {reduce} backward": backward(graph, x, reduce),
        }
        if reduce == "sum":
            narrow, out = x.bfloat16(), torch.empty_like(x)
            calls |= {
                "gnnx weighted": lambda: ops.spmm(*csr, x, weight),
                "torch weighted": lambda: torch.sparse.mm(weighted, x, "sum"),
                "gnnx sum bfloat16": lambda: ops.spmm(*csr, narrow),
                "copy": lambda: out.copy_(x),
            }
        if reduce == "max":  # torch keeps positions of edges where a gradient is asked for
            asked = x.detach().requires_grad_()
            calls["torch argmax"] = lambda: torch.sparse.mm(matrix, asked, theirs)
        made = {name: sides.timed(call, clock) for name, call in calls.items()}
        if peer is not None and reduce != "mean":
            made[f"dgl {reduce}"] = lambda: peer.seconds(width, reduce)
        return made

    found: dict[str, float] = {}
    reduces = args.reduce.split(",")
    for reduce in reduces:
        # what a backward pass keeps is as large as x, so one reduction goes before the next comes
        made = cases(reduce, REDUCES[reduce])
        found |= sides.medians(made, args.rounds, args.seconds / len(reduces))
        del made
    return found


def row(name: str, graph: Graph, width: int, s: dict[str, float]) -> tuple[object, ...]:
    """How the times of one width compare, in the order of `COLUMNS`."""

    def ratio(slower: str, faster: str) -> float | str:
        return s[slower] / s[faster] if slower in s and faster in s else "-"

    def than(side: str, reduce: str) -> float | str:
        return ratio(f"{side} {reduce}", f"gnnx {reduce}")

    moved = 4 * width * (graph.num_edges + graph.num_nodes) + 4 * graph.num_edges
    share = ratio("copy", "gnnx sum")
    if isinstance(share, float):
        share *= moved / (2 * 4 * width * graph.num_nodes)
    ms = 1e3 * s["gnnx sum"] if "gnnx sum" in s else "-"
    return (
        *(name, width, ms, than("torch", "sum"), than("dgl", "sum"), than("torch", "mean")),
        *(than("torch", "max"), than("dgl", "max")),
        *(ratio("torch argmax", "gnnx max"), than("torch", "weighted")),
        *(ratio(f"gnnx {reduce} backward", f"gnnx {reduce}") for reduce in REDUCES),
        *(ratio("gnnx sum", "gnnx sum bfloat16"), share),
    )


def compare_orders(args: Any, clock: Callable[[], float]) -> None:
    """Time a sum over one graph in two orders of its nodes, in turns."""
    random, parts = load(args.random), load(args.parts)
    rows, found = [], {}
    for width in map(int, args.width.split(",")):
        x = torch.randn(random.num_nodes, width)
        cases = {
            name: sides.timed(lambda g=g, x=x: ops.spmm(g.indptr, g.indices, x), clock)
            for name, g in (("random", random), ("parts", parts))
        }
        s = found[width] = sides.medians(cases, args.rounds, args.seconds)
        rows.append((width, 1e3 * s["random"], 1e3 * s["parts"], s["random"] / s["parts"]))
    sides.show(("width", "random ms", "parts ms", "times as fast"), rows)
    sides.document(args, seconds=found)


def main() -> None:
    """Make the graphs, measure, print."""
    parser = sides.options(__doc__.splitlines()[0], rounds=7)
    parser.add_argument("--graph", default="rmat", help="some of rmat, community; or parts")
    parser.add_argument("--width", default="32,64,128,256")
    parser.add_argument("--reduce", default=",".join(REDUCES), help="some of them")
    parser.add_argument("--nodes", type=int, default=1_000_000, help="of the community graph")
    parser.add_argument("--edges", type=int, default=20_000_000, help="of the community graph")
    parser.add_argument("--scale", type=int, default=18, help="log2 of the RMAT graph's nodes")
    parser.add_argument(
        "--random", type=Path, help="a dataset in random order, for parts; in place of community"
    )
    parser.add_argument("--parts", type=Path, help="the same in part order")
    parser.add_argument("--seconds", type=float, default=60, help="most a width; 3 rounds least")
    args = parser.parse_args()
    clock = sides.start(args)
    warnings.filterwarnings("ignore", message="Sparse ", category=UserWarning)
    if args.graph == "parts":
        compare_orders(args, clock)
        return
    rows, found = [], {}
    for name in args.graph.split(","):
        if name == "rmat":
            graph = rmat(args.scale, (1 << args.scale) * 16)
        else:
            graph = load(args.random) if args.random else community(args.nodes, args.edges)
        empty = float((graph.degree == 0).float().mean())
        print(f"{name}: {graph.num_nodes} nodes, {graph.num_edges} edges, ", end="")
        print(f"largest degree {int(graph.degree.max())}, {empty:.2f} empty", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            peer = with_dgl(args, graph, folder) if args.dgl_python else None
            for width in map(int, args.width.split(",")):
                found[f"{name} {width}"] = s = measure(graph, width, args, clock, peer)
                rows.append(row(name, graph, width, s))
                sides.show(COLUMNS, rows[-1:])
            if peer is not None:
                peer.close()
    sides.show(COLUMNS, rows)
    sides.document(args, seconds=found)


def with_dgl(args: Any, graph: Graph, folder: str) -> sides.Peer:
    """Start the peer on a graph."""
    paths = [f"{folder}/{name}.npy" for name in ("indptr", "indices")]
    for path, part in zip(paths, (graph.indptr, graph.indices.long()), strict=True):
        np.save(path, part.numpy())
    return sides.Peer(args.dgl_python, _DGL, args.clock, *paths)


if __name__ == "__main__":
    main()
