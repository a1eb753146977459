"""What does each step bring to the sum of spmm on a CPU? One version after another, in turns.

usage: benchmarks/ladder.py [--width 64,128] [--rounds 7]

CPU seconds of one thread on the RMAT graph of benchmarks/spmm.py, float32.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch
from spmm import rmat

from gnnx import ops, threads
from gnnx.ops._numba import (  # noqa: PLC2701 - the steps are inside
    reduce,
    vectors,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gnnx.graph import Graph

compiled: Any = numba.njit(nogil=True, error_model="numpy", fastmath={"contract"})


@compiled
def loops(indptr: Any, indices: Any, x: Any, out: Any) -> None:
    for d in range(len(indptr) - 1):
        for f in range(x.shape[1]):
            out[d, f] = 0
        for e in range(indptr[d], indptr[d + 1]):
            for f in range(x.shape[1]):
                out[d, f] += x[indices[e], f]


@compiled
def fours(indptr: Any, indices: Any, x: Any, out: Any) -> None:
    for d in range(len(indptr) - 1):
        y, e, stop = out[d], indptr[d], indptr[d + 1]
        for f in range(x.shape[1]):
            y[f] = 0
        while e + 4 <= stop:
            x0, x1 = x[np.uint64(indices[e])], x[np.uint64(indices[e + 1])]
            x2, x3 = x[np.uint64(indices[e + 2])], x[np.uint64(indices[e + 3])]
            for f in range(x.shape[1]):
                y[f] += (x0[f] + x1[f]) + (x2[f] + x3[f])
            e += 4
        while e < stop:
            x0 = x[np.uint64(indices[e])]
            for f in range(x.shape[1]):
                y[f] += x0[f]
            e += 1


def versions(graph: Graph, x: torch.Tensor) -> dict[str, Callable[[], object]]:
    """Make one call for each version; each writes a new tensor."""
    indptr, indices = graph.indptr.numpy(), graph.indices.numpy()

    def simple(kernel: Any) -> Callable[[], object]:
        def call() -> object:
            out = torch.empty_like(x)
            kernel(indptr, indices, x.numpy(), out.numpy())
            return out

        return call

    def tiles(kernel: Any) -> Callable[[], object]:
        hubs, last = np.empty(0, np.int64), len(indptr) - 1
        ends, none = (indptr[:-1], indptr[1:]), (None, None, None)

        def call() -> object:
            out = torch.empty_like(x)
            kernel(0, last, *ends, hubs, indices, x.numpy(), *none, False, out.numpy())
            return out

        return call

    def without_prefetch(*_: object) -> None:
        """Ask for nothing."""

    prefetch, source = vectors.Gather.prefetch, reduce._sum_rows.py_func  # noqa: SLF001
    vectors.Gather.prefetch = without_prefetch  # while this one is compiled
    bare = compiled(source)
    made = {
        "torch.sparse.mm": torch_sum(graph, x),
        "loops": simple(loops),
        "four edges a pass": simple(fours),
        "register tiles": tiles(bare),
        "and prefetch": tiles(compiled(source)),
        "and kept pages": lambda: ops.spmm(graph.indptr, graph.indices, x),
    }
    made["register tiles"]()
    vectors.Gather.prefetch = prefetch
    return made


def torch_sum(graph: Graph, x: torch.Tensor) -> Callable[[], object]:
    """The way that torch has."""
    ones = torch.ones(graph.num_edges)
    size = (graph.num_nodes, graph.num_nodes)
    matrix = torch.sparse_csr_tensor(graph.indptr, graph.indices.long(), ones, size=size)
    return lambda: torch.sparse.mm(matrix, x, "sum")


def main() -> None:
    """Make the graph, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", default="64,128")
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    threads.set_num_threads(1)
    warnings.filterwarnings("ignore", message="Sparse ", category=UserWarning)
    graph = rmat(18, 1 << 22)
    for width in map(int, args.width.split(",")):
        x = torch.randn(graph.num_nodes, width)
        calls = versions(graph, x)
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        wanted = calls["loops"]()
        for turn in range(args.rounds + 1):
            for name, call in calls.items():
                begin = time.thread_time()
                out = call()
                spent = time.thread_time() - begin
                if turn:
                    seconds[name].append(spent)
                assert torch.allclose(out, wanted, rtol=1e-3, atol=1e-3), name
                del out
        for name, values in seconds.items():
            print(f"width {width}  {name:18} {1e3 * statistics.median(values):6.0f} ms")


if __name__ == "__main__":
    main()
