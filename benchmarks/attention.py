"""How fast is fused attention on a CPU, and what memory does it take, beside other libraries?

usage: benchmarks/attention.py [--nodes N] [--rounds 3] [--dgl-python PATH]

A layer of 8 heads of 32 on 128 features, forward and backward, projections included, on a graph
of mean degree 20 with skewed degrees, beside torch_geometric's and DGL's GATConv. All sides run in
turns, on the same threads, graph and parameters. Peak memory is the growth of the resident size
over its value before the pass.
"""

from __future__ import annotations

import ctypes
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import sides
import torch

from gnnx import ops
from gnnx.ops._numba import pages  # noqa: PLC2701 - see step

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

# Runs in a Python that has DGL; its layer's scores are those of torch_geometric's.
_DGL = """
import dgl
from dgl.nn import GATConv
indptr, indices, x, grad, weight, a_dst, a_src = torch.load(arguments[0])
heads, width = a_dst.shape
edges = torch.arange(len(indices))  # DGL's own sum over edges wants them by name
graph = dgl.graph(("csc", (indptr, indices.long(), edges)), num_nodes=len(x)).int()
graph.create_formats_()
conv = GATConv(x.shape[1], width, heads, bias=False, allow_zero_in_degree=True)
with torch.no_grad():
    conv.fc.weight.copy_(weight)
    conv.attn_l.copy_(a_src[None])
    conv.attn_r.copy_(a_dst[None])
leaves = [conv.fc.weight, conv.attn_r, conv.attn_l]

def case():
    return lambda: torch.autograd.grad(conv(graph, x), leaves, grad)
"""
HEADS, WIDTH, FEATURES = 8, 32, 128
MIB = 1 << 20


def graph(num_nodes: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """CSR of mean degree 20, skewed on both sides."""
    rng = np.random.default_rng(seed)
    degree = np.minimum((rng.pareto(1.8, num_nodes) + 1) * 9, 20_000)
    degree = (degree * 20 / degree.mean()).astype(np.int64)
    indptr = np.concatenate([[0], np.cumsum(degree)])
    place = (num_nodes * rng.random(indptr[-1]) ** 1.5).astype(np.int64)
    return torch.from_numpy(indptr), torch.from_numpy(rng.permutation(num_nodes)[place]).int()


def status_bytes(key: str) -> int:
    """Read a size that the system keeps of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key))


def step(call: Callable[[], list[torch.Tensor]], clock: Callable[[], float]) -> tuple[float, int]:
    """Seconds and peak bytes of one pass, which starts with no memory of the last one."""
    pages._results().trim()  # noqa: SLF001 - or what is kept for reuse would not be counted
    ctypes.CDLL(None).malloc_trim(0)
    before = status_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    begin = clock()
    call()
    return clock() - begin, status_bytes("VmHWM") - before


def main() -> None:
    """Make the graph, measure, compare gradients, print."""
    parser = sides.options(__doc__.splitlines()[0], rounds=3)
    parser.add_argument("--nodes", type=int, default=100_000)
    args = parser.parse_args()
    clock = sides.start(args)
    torch.manual_seed(0)
    n = args.nodes
    indptr, indices = graph(n)
    transpose = ops.transpose(indptr, indices, n)
    x, grad = torch.randn(n, FEATURES), torch.randn(n, HEADS, WIDTH)
    weight = (torch.randn(HEADS * WIDTH, FEATURES) / FEATURES**0.5).requires_grad_()
    a_dst, a_src = (torch.randn(HEADS, WIDTH, requires_grad=True) for _ in range(2))
    leaves = [weight, a_dst, a_src]
    print(f"{n} nodes, {len(indices)} edges")

    def fused() -> list[torch.Tensor]:
        # scores through the folded weight: nothing of size N x H x F but the rows themselves
        heads = weight.view(HEADS, WIDTH, FEATURES)
        terms = [x @ torch.einsum("hf,hfi->ih", a, heads) for a in (a_dst, a_src)]
        rows = (x @ weight.t()).view(n, HEADS, WIDTH)
        out = ops.attention(indptr, indices, rows, *terms, transpose=transpose)
        return list(torch.autograd.grad(out, leaves, grad))

    calls: dict[str, Callable[[], list[torch.Tensor]]] = {"gnnx": fused}
    try:
        from torch_geometric.nn import GATConv
    except ImportError:
        print("torch_geometric is not installed: nothing to compare with")
    else:
        conv = GATConv(FEATURES, WIDTH, heads=HEADS, add_self_loops=False, bias=False)
        conv.lin.weight, conv.att_dst, conv.att_src = (
            torch.nn.Parameter(t.detach().view(shape))
            for t, shape in zip(
                leaves, (weight.shape, (1, *a_dst.shape), (1, *a_src.shape)), strict=True
            )
        )
        rows = torch.repeat_interleave(torch.arange(n), indptr.diff())
        edge_index = torch.stack([indices.long(), rows])
        theirs = [conv.lin.weight, conv.att_dst, conv.att_src]

        def plain() -> list[torch.Tensor]:
            out = conv(x, edge_index).view(n, HEADS, WIDTH)
            return list(torch.autograd.grad(out, theirs, grad))

        calls["torch_geometric"] = plain
        pairs = zip(fused(), plain(), strict=True)
        gaps = [float((a.flatten() - b.flatten()).norm() / b.norm()) for a, b in pairs]
        print("gradients differ by " + ", ".join(f"{gap:.1e}" for gap in gaps))
    fused()
    tensors = [t.detach() for t in (indptr, indices, x, grad, weight, a_dst, a_src)]
    compare(args, clock, calls, tensors)


def compare(
    args: argparse.Namespace,
    clock: Callable[[], float],
    calls: dict[str, Callable[[], list[torch.Tensor]]],
    tensors: list[torch.Tensor],
) -> None:
    """Time all sides in turns, and show how they compare."""
    found: dict[str, list[tuple[float, int]]] = {side: [] for side in calls}
    with tempfile.TemporaryDirectory() as folder:
        peer = None
        if args.dgl_python:
            torch.save(tensors, f"{folder}/case.pt")
            peer = sides.Peer(args.dgl_python, _DGL, args.clock, f"{folder}/case.pt")
            peer.seconds()  # makes the graph
            found["dgl"] = []
        for _ in range(args.rounds):
            for side, call in calls.items():
                found[side].append(step(call, clock))
            if peer is not None:
                found["dgl"].append((peer.seconds(), 0))
        if peer is not None:
            peer.close()
    seconds = {s: statistics.median(t for t, _ in pairs) for s, pairs in found.items()}
    peak = {s: statistics.median(p for _, p in pairs) for s, pairs in found.items()}
    sides.show(
        ("side", "s", "gnnx is times as fast", "MiB above the start", "gnnx's share of it"),
        [
            (
                *(side, seconds[side], seconds[side] / seconds["gnnx"]),
                *((peak[side] / MIB, peak["gnnx"] / peak[side]) if peak[side] else ("-", "-")),
            )
            for side in found
        ],
    )
    sides.document(args, seconds=seconds, peak_bytes=peak)


if __name__ == "__main__":
    main()
