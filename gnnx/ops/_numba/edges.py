"""What is computed edge by edge: sddmm, edge softmax.

Shapes: D destinations, S sources, E edges, F feature width, H heads. sddmm's pieces are ranges of
edges, which may begin within a row: an edge depends on no other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numba import types
from numba.core import cgutils
from torch import Tensor

from gnnx import threads
from gnnx.ops._numba.pages import empty
from gnnx.ops._numba.pieces import grain, over_rows, row_of
from gnnx.ops._numba.vectors import AHEAD, INT64, Gather, Vectors, emitted, readable, stored
from gnnx.threads import inlined, kernel


def sddmm(indptr: Tensor, indices: Tensor, x_dst: Tensor, x_src: Tensor, *_: object) -> Tensor:
    """Dot product of the two ends' rows on every edge."""
    dtype = torch.promote_types(x_dst.dtype, x_src.dtype)
    left, right = readable(x_dst), readable(x_src)
    if dtype == torch.float64:
        left, right = left.double(), right.double()
    out = torch.zeros(len(indices), 1, dtype=torch.promote_types(dtype, torch.float32))
    args = indptr.numpy(), indices.numpy(), stored(left), stored(right), out.numpy()
    threads.run(
        lambda begin, end: _dot_edges(begin, end, *args),
        len(indices),
        grain=grain(x_dst.shape[1]),
    )
    return out[:, 0].to(dtype)


@kernel
def _dot_edges(
    begin: Any, end: Any, indptr: Any, indices: Any, x_dst: Any, x_src: Any, out: Any
) -> None:
    d, e = row_of(indptr, begin), begin
    while e < end:
        stop = min(indptr[d + 1], end)
        if e < stop:
            dot(out, 0, d, 0, x_src.shape[1], indices, x_dst, x_src, e, stop, end, AHEAD)
        e = stop
        d += 1


@inlined
def dot(
    out: Any,
    base: Any,
    d: Any,
    head: Any,
    width: Any,
    indices: Any,
    x_dst: Any,
    x_src: Any,
    start: Any,
    stop: Any,
    last: Any,
    ahead: Any,
) -> None:
    """Dot products of one head of row d with that of the rows of edges [start, stop).

    out[k - base, head] = sum over f in [head width, (head + 1) width) of x_dst[d, f] x_src[s, f],
    s = indices[k].
    """
    f = 0
    while f < width:
        f = _dot_tile(out, base, d, head, width, indices, x_dst, x_src, start, stop, last, f, ahead)


@emitted
def _dot_tile(
    _: Any,
    out: Any,
    base: Any,
    d: Any,
    head: Any,
    width: Any,
    indices: Any,
    x_dst: Any,
    x_src: Any,
    start: Any,
    stop: Any,
    last: Any,
    f: Any,
    ahead: Any,
) -> Any:
    """Add the products of some of the head's columns, from f on; returns the next column."""

    def emit(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, b, x_src.dtype)
        base, d, head, width = args[1:5]
        start, stop, last, f, ahead = args[8:]
        gather = Gather(v, (x_src, args[7]), (indices, args[5]), last, ahead)
        column = b.mul(head, width)
        own_row = b.gep(v.data(x_dst, args[6]), [b.add(b.mul(d, gather.width), column)])
        scores, num_heads = v.data(out, args[0]), v.shape(out, args[0], 1)
        first = b.icmp_signed("==", f, INT64(0))

        def tile(offsets: list[Any], lanes: int) -> None:
            new = v.new_lanes(f, offsets, lanes)
            own = [v.load(b.gep(own_row, [at]), x_dst.dtype, lanes) for at in offsets]
            zero = v.constant(0.0, lanes)
            own[-1] = b.select(new, own[-1], zero)
            there = [b.add(column, at) for at in offsets]
            with cgutils.for_range_slice(b, start, stop, INT64(1), intp=INT64) as (k, _):
                gather.prefetch(k, there, lanes)
                _, row = gather.row(k)
                others = [gather.load(row, at, lanes) for at in there]
                others[-1] = b.select(new, others[-1], zero)  # or 0 times infinity were added
                total = b.fmul(own[0], others[0])
                for mine, other in zip(own[1:], others[1:], strict=True):
                    total = v.muladd(mine, other, total)
                score = b.gep(scores, [b.add(b.mul(b.sub(k, base), num_heads), head)])
                before = b.select(first, v.element(0.0), b.load(score))
                b.store(b.fadd(before, v.sum(total)), score)

        return v.tile(width, f, v.registers // 4, tile)

    i64 = types.int64
    numbers = (i64, i64, i64, i64, indices, x_dst, x_src, i64, i64, i64, i64, i64)
    return i64(out, *numbers), emit


def edge_softmax(indptr: Tensor, logits: Tensor) -> Tensor:
    """Softmax of each head over each row's edges."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    values = logits.detach().to(wide)
    out = empty(*logits.shape, dtype=wide)
    args = indptr.numpy(), values.numpy(), out.numpy()
    over_rows(lambda begin, end: _softmax_rows(begin, end, *args), indptr, 8 * logits.shape[1])
    return out.to(logits.dtype)


@kernel
def _softmax_rows(begin: Any, end: Any, indptr: Any, logits: Any, out: Any) -> None:
    num_heads = logits.shape[1]
    highest = np.empty(num_heads, logits.dtype)
    total = np.empty(num_heads, logits.dtype)
    for d in range(begin, end):
        start, stop = indptr[d], indptr[d + 1]
        highest[:] = -np.inf
        for e in range(start, stop):
            for h in range(num_heads):
                highest[h] = larger(logits[e, h], highest[h])
        total[:] = 0
        for e in range(start, stop):
            for h in range(num_heads):
                out[e, h] = logits[e, h] - highest[h]
        exponentials(out, start, stop)
        for e in range(start, stop):
            for h in range(num_heads):
                total[h] += out[e, h]
        for e in range(start, stop):
            for h in range(num_heads):
                out[e, h] /= total[h]


@inlined
def larger(value: Any, other: Any) -> Any:
    """Larger of the two; a NaN if `value` or `other` is one."""
    return value if not value <= other and other == other else other


@emitted
def exponentials(_: Any, values: Any, start: Any, stop: Any) -> Any:
    """Replace rows [start, stop) of a matrix by e to their power."""

    def emit(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, b, values.dtype)
        width = v.shape(values, args[0], 1)
        first, last = b.mul(args[1], width), b.mul(args[2], width)
        data = v.data(values, args[0])
        whole = b.sub(last, b.srem(b.sub(last, first), INT64(v.lanes)))
        for begin, end, lanes in ((first, whole, v.lanes), (whole, last, 1)):
            with cgutils.for_range_slice(b, begin, end, INT64(lanes), intp=INT64) as (i, _):
                pointer = b.gep(data, [i])
                v.store(v.exp(v.load(pointer, values.dtype, lanes)), pointer, values.dtype)
        return context.get_dummy_value()

    return types.void(values, types.int64, types.int64), emit


def edge_softmax_grad(indptr: Tensor, out: Tensor, grad: Tensor) -> Tensor:
    """Gradient by the logits: y (dy - sum over the row of y dy)."""
    wide = torch.promote_types(out.dtype, torch.float32)
    result = empty(*out.shape, dtype=wide)
    args = indptr.numpy(), out.detach().to(wide).numpy(), grad.detach().to(wide).numpy()
    over_rows(
        lambda begin, end: _softmax_grad_rows(begin, end, *args, result.numpy()),
        indptr,
        4 * out.shape[1],
    )
    return result.to(out.dtype)


@kernel
def _softmax_grad_rows(begin: Any, end: Any, indptr: Any, y: Any, grad: Any, out: Any) -> None:
    num_heads = y.shape[1]
    total = np.empty(num_heads, y.dtype)
    for d in range(begin, end):
        total[:] = 0
        for e in range(indptr[d], indptr[d + 1]):
            for h in range(num_heads):
                total[h] += y[e, h] * grad[e, h]
        for e in range(indptr[d], indptr[d + 1]):
            for h in range(num_heads):
                out[e, h] = y[e, h] * (grad[e, h] - total[h])


def sddmm_add(indptr: Tensor, indices: Tensor, x_dst: Tensor, x_src: Tensor, *_: object) -> Tensor:
    """Sum of the two ends' rows on every edge."""
    wide = torch.promote_types(x_dst.dtype, torch.float32)
    out = empty(len(indices), x_dst.shape[1], dtype=wide)
    rows = x_dst.detach().to(wide).numpy(), x_src.detach().to(wide).numpy()
    args = indptr.numpy(), indices.numpy(), *rows, out.numpy()
    threads.run(
        lambda begin, end: _add_edges(begin, end, *args),
        len(indices),
        grain=grain(x_dst.shape[1]),
    )
    return out.to(x_dst.dtype)


@kernel
def _add_edges(
    begin: Any, end: Any, indptr: Any, indices: Any, x_dst: Any, x_src: Any, out: Any
) -> None:
    d = row_of(indptr, begin)
    for e in range(begin, end):
        while indptr[d + 1] <= e:
            d += 1
        s = np.uint64(indices[e])
        for f in range(out.shape[1]):
            out[e, f] = x_dst[d, f] + x_src[s, f]
