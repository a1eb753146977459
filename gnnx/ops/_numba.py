"""The operators on a CPU: serial numba kernels, spread over the pool by rows + edges.

Shapes: D destinations, S sources, E edges, F feature width. A row is summed by one thread in one
order, so that results depend on no number of threads. Nothing of size E x F exists. Types below
float32 are computed in float32 and rounded once at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from gnnx import threads
from gnnx.threads import inlined, kernel

if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE = 1 << 16  # elements that make a piece worth a thread's while: some 20 us


def transpose(indptr: Tensor, indices: Tensor, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    """CSR by source, by counting sort."""
    out = indptr.new_empty(num_src + 1), torch.empty_like(indices), torch.empty_like(indices)
    transpose_into(indptr, indices, num_src, out)
    return out


def transpose_into(
    indptr: Tensor, indices: Tensor, num_src: int, out: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Do the same into tensors at hand; the caller's thread does it all, without the GIL."""
    _count_sort(indptr.numpy(), indices.numpy(), num_src, *(part.numpy() for part in out))


@kernel
def _count_sort(
    indptr: Any, indices: Any, num_src: Any, t_indptr: Any, t_indices: Any, edge: Any
) -> None:
    t_indptr[:] = 0
    for e in range(indices.shape[0]):
        t_indptr[indices[e]] += 1
    start = 0
    for s in range(num_src + 1):
        count = t_indptr[s]
        t_indptr[s] = start
        start += count
    for d in range(indptr.shape[0] - 1):
        for e in range(indptr[d], indptr[d + 1]):
            s = indices[e]
            at = t_indptr[s]
            t_indices[at] = d
            edge[at] = e
            t_indptr[s] = at + 1
    for s in range(num_src, 0, -1):  # each entry has moved on to the start of the next row
        t_indptr[s] = t_indptr[s - 1]
    t_indptr[0] = 0


def spmm(
    indptr: Tensor, indices: Tensor, x: Tensor, weight: Tensor | None, reduce: str, *_: object
) -> Tensor:
    """Sum or mean over each row's edges."""
    wide, w = _wide(x), None if weight is None else _wide(weight).numpy()
    out = wide.new_empty(len(indptr) - 1, x.shape[1])
    args = indptr.numpy(), indices.numpy(), wide.numpy(), w, reduce == "mean", out.numpy()
    _run(lambda begin, end: _sum_rows(begin, end, *args), indptr, indices, x.shape[1])
    return out.to(x.dtype)


@kernel
def _sum_rows(
    begin: Any, end: Any, indptr: Any, indices: Any, x: Any, weight: Any, mean: Any, out: Any
) -> None:
    one = x.dtype.type(1)
    width = x.shape[1]
    for d in range(_first_row(indptr, begin), _first_row(indptr, end)):
        y = out[d]
        for f in range(width):
            y[f] = 0
        e, stop = indptr[d], indptr[d + 1]
        while e + 4 <= stop:  # the output row is read and written once for four edges
            x0, x1 = x[np.uint64(indices[e])], x[np.uint64(indices[e + 1])]
            x2, x3 = x[np.uint64(indices[e + 2])], x[np.uint64(indices[e + 3])]
            w0, w1 = _weight(weight, e, one), _weight(weight, e + 1, one)
            w2, w3 = _weight(weight, e + 2, one), _weight(weight, e + 3, one)
            for f in range(width):
                y[f] += (w0 * x0[f] + w1 * x1[f]) + (w2 * x2[f] + w3 * x3[f])
            e += 4
        while e < stop:
            x0, w0 = x[np.uint64(indices[e])], _weight(weight, e, one)
            for f in range(width):
                y[f] += w0 * x0[f]
            e += 1
        degree = stop - indptr[d]
        if mean and degree > 1:
            for f in range(width):
                y[f] /= degree


@inlined
def _first_row(indptr: Any, work: Any) -> Any:
    """First row d with indptr[d] + d >= work: where a piece begins that counts rows + edges."""
    low, high = 0, indptr.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        if indptr[middle] + middle < work:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def _weight(weight: Any, e: Any, one: Any) -> Any:
    """Weight of an edge, the constant 1 without weights: the product then vanishes."""
    if weight is None:
        return one
    return weight[e]


def _run(task: Callable[[int, int], Any], indptr: Tensor, indices: Tensor, width: int) -> None:
    """Spread a kernel over ranges of rows + edges."""
    threads.run(task, len(indptr) - 1 + len(indices), grain=_PIECE // max(width, 1) + 1)


def _wide(x: Tensor) -> Tensor:
    """Give the values a type that kernels compute in, and no history."""
    return x.detach().to(torch.promote_types(x.dtype, torch.float32))
