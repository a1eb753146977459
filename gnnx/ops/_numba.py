"""The operators on a CPU: serial numba kernels, spread over the pool by rows + edges.

Shapes: D destinations, S sources, E edges, F feature width. A row is summed by one thread in one
order, so that results depend on no number of threads. Nothing of size E x F exists. Types below
float32 are computed in float32 and rounded once at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
import torch
from torch import Tensor

from gnnx import threads
from gnnx.random import GAMMA, Key, mix, mix_int
from gnnx.threads import inlined, kernel

if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE = 1 << 16  # elements that make a piece worth a thread's while: some 20 us
_LINE = 16  # float32 in a cache line
_DROPOUT = 0x64726F706F757400  # "dropout": keeps its draws apart from a sampler's under one key


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


def spmm_extremum(
    indptr: Tensor, indices: Tensor, x: Tensor, weight: Tensor | None, reduce: str
) -> tuple[Tensor, Tensor]:
    """Max or min over each row's edges, and the position of the first edge that has it."""
    wide, w = _wide(x), None if weight is None else _wide(weight).numpy()
    out = wide.new_empty(len(indptr) - 1, x.shape[1])
    arg = indices.new_empty(out.shape)
    values = wide.numpy()
    sign = values.dtype.type(1 if reduce == "max" else -1)  # min x = -max -x, exactly
    args = indptr.numpy(), indices.numpy(), values, w, sign, out.numpy(), arg.numpy()
    _run(lambda begin, end: _extreme_rows(begin, end, *args), indptr, indices, x.shape[1])
    return out.to(x.dtype), arg


@kernel
def _extreme_rows(
    begin: Any,
    end: Any,
    indptr: Any,
    indices: Any,
    x: Any,
    weight: Any,
    sign: Any,
    out: Any,
    arg: Any,
) -> None:
    one = x.dtype.type(1)
    width = x.shape[1]
    for d in range(_first_row(indptr, begin), _first_row(indptr, end)):
        y, at = out[d], arg[d]
        first, stop = indptr[d], indptr[d + 1]
        if first == stop:
            for f in range(width):
                y[f] = 0
                at[f] = -1
            continue
        xe, w = x[np.uint64(indices[first])], sign * _weight(weight, first, one)
        for f in range(width):
            y[f] = w * xe[f]
            at[f] = first
        for e in range(first + 1, stop):
            xe, w = x[np.uint64(indices[e])], sign * _weight(weight, e, one)
            position = arg.dtype.type(e)
            for f in range(width):
                v, best = w * xe[f], y[f]
                better = not (v <= best) and best == best  # a NaN wins, and stays
                y[f] = v if better else best
                at[f] = position if better else at[f]
        for f in range(width):
            y[f] *= sign


def extremum_grad_x(
    grad: Tensor, arg: Tensor, indices: Tensor, weight: Tensor | None, num_src: int
) -> Tensor:
    """Hand each gradient to the one source it came from.

    Threads share the columns, not the rows: no two write to one place, and each place is summed
    in the order of the rows.
    """
    wide, w = _wide(grad), None if weight is None else _wide(weight).numpy()
    out = wide.new_zeros(num_src, grad.shape[1])
    args = wide.numpy(), arg.numpy(), indices.numpy(), w, out.numpy()
    grain = max(_LINE, _PIECE // max(len(grad), 1))
    threads.run(lambda begin, end: _scatter_columns(begin, end, *args), grad.shape[1], grain=grain)
    return out.to(grad.dtype)


@kernel
def _scatter_columns(
    begin: Any, end: Any, grad: Any, arg: Any, indices: Any, weight: Any, out: Any
) -> None:
    one = grad.dtype.type(1)
    for d in range(grad.shape[0]):
        for f in range(begin, end):
            e = arg[d, f]
            if e >= 0:
                out[indices[e], f] += _weight(weight, e, one) * grad[d, f]


def extremum_grad_weight(grad: Tensor, arg: Tensor, indices: Tensor, x: Tensor) -> Tensor:
    """Sum over the columns that an edge won: gradient times feature, (E,)."""
    wide = _wide(grad)
    out = wide.new_zeros(len(indices))
    args = wide.numpy(), arg.numpy(), indices.numpy(), _wide(x).numpy(), out.numpy()
    grain = _PIECE // max(grad.shape[1], 1) + 1
    threads.run(lambda begin, end: _dot_winners(begin, end, *args), len(grad), grain=grain)
    return out.to(grad.dtype)


@kernel
def _dot_winners(begin: Any, end: Any, grad: Any, arg: Any, indices: Any, x: Any, out: Any) -> None:
    for d in range(begin, end):  # a row's edges are no other row's
        for f in range(grad.shape[1]):
            e = arg[d, f]
            if e >= 0:
                out[e] += grad[d, f] * x[indices[e], f]


def sddmm(indptr: Tensor, indices: Tensor, x_dst: Tensor, x_src: Tensor, *_: object) -> Tensor:
    """Dot product of the two ends' rows on every edge."""
    dtype = torch.promote_types(x_dst.dtype, x_src.dtype)
    left, right = _wide(x_dst.to(dtype)), _wide(x_src.to(dtype))
    out = left.new_empty(len(indices))
    args = indptr.numpy(), indices.numpy(), left.numpy(), right.numpy(), out.numpy()
    _run(lambda begin, end: _dot_rows(begin, end, *args), indptr, indices, x_dst.shape[1])
    return out.to(dtype)


@kernel
def _dot_rows(
    begin: Any, end: Any, indptr: Any, indices: Any, x_dst: Any, x_src: Any, out: Any
) -> None:
    for d in range(_first_row(indptr, begin), _first_row(indptr, end)):
        a = x_dst[d]
        for e in range(indptr[d], indptr[d + 1]):
            out[e] = _dot(a, x_src[np.uint64(indices[e])])


@numba.njit(nogil=True, cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def _dot(a: Any, b: Any) -> Any:
    """Dot product; may be summed in another order, without which it is one chain of additions."""
    total = a.dtype.type(0)
    for f in range(a.shape[0]):
        total += a[f] * b[f]
    return total


def dropout(x: Tensor, row_id: Tensor, p: float, key: list[int]) -> Tensor:
    """Zero or scale each element by a draw of its key, row id and column."""
    wide = _wide(x)
    out = torch.empty_like(wide)
    values = wide.numpy()
    scale = values.dtype.type(1 / (1 - p) if p < 1 else 0)
    state = np.uint64(mix_int(Key(*key).fold() ^ _DROPOUT))
    args = values, row_id.numpy(), np.uint64(round(p * 2**32)), scale, state, out.numpy()
    grain = _PIECE // max(x.shape[1], 1) + 1
    threads.run(lambda begin, end: _drop_rows(begin, end, *args), len(x), grain=grain)
    return out.to(x.dtype)


@kernel
def _drop_rows(
    begin: Any, end: Any, x: Any, row_id: Any, threshold: Any, scale: Any, state: Any, out: Any
) -> None:
    zero = x.dtype.type(0)
    for r in range(begin, end):
        column = mix(state ^ np.uint64(row_id[r]))
        for f in range(x.shape[1]):
            column += np.uint64(GAMMA)
            kept = (mix(column) >> np.uint64(32)) >= threshold
            out[r, f] = x[r, f] * scale if kept else zero


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
