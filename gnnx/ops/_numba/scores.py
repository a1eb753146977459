"""Scores of GATv2: a product of both ends' rows with a LeakyReLU between, nothing of size E x F.

Shapes: D destinations, S sources, E edges, H heads, F width of a head. The gradients walk the edges
twice, by destination and by source, and compute the sums u of both rows again: only their signs
are needed, and for `att` the sums themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import types
from numba.core import cgutils

from gnnx import threads
from gnnx.ops._numba.pages import empty
from gnnx.ops._numba.pieces import over_rows
from gnnx.ops._numba.vectors import INT64, Gather, Vectors, emitted
from gnnx.threads import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_ROWS = 256  # destinations whose part of att's gradient is one sum, whatever the threads


def edge_scores(
    indptr: Tensor,
    indices: Tensor,
    x_dst: Tensor,
    x_src: Tensor,
    att: Tensor,
    slope: float,
    *_: object,
) -> Tensor:
    """Sum over a head's columns of att LeakyReLU(x_dst + x_src), on every edge."""
    wide = torch.promote_types(x_src.dtype, torch.float32)
    out = empty(len(indices), x_src.shape[1], dtype=wide)
    rows = _matrix(x_dst, wide), _matrix(x_src, wide), _row(att, wide)
    args = indptr.numpy(), indices.numpy(), *rows, out.numpy().dtype.type(slope), out.numpy()
    over_rows(lambda begin, end: _score_rows(begin, end, *args), indptr, att.numel())
    return out.to(x_src.dtype)


def _matrix(x: Tensor, dtype: torch.dtype) -> NDArray[Any]:
    """Heads side by side, (R, H F)."""
    array: NDArray[Any] = x.detach().to(dtype).reshape(len(x), x.shape[1] * x.shape[2]).numpy()
    return array


def _row(att: Tensor, dtype: torch.dtype) -> NDArray[Any]:
    array: NDArray[Any] = att.detach().to(dtype).reshape(1, att.numel()).numpy()
    return array


@kernel
def _score_rows(
    begin: Any,
    end: Any,
    indptr: Any,
    indices: Any,
    x_dst: Any,
    x_src: Any,
    att: Any,
    slope: Any,
    out: Any,
) -> None:
    num_heads = out.shape[1]
    width = x_src.shape[1] // max(num_heads, 1)
    last = indptr[end]
    for d in range(begin, end):
        start, stop = indptr[d], indptr[d + 1]
        for h in range(num_heads):
            f = 0
            while f < width:
                f = _score_tile(
                    out, d, h, width, indices, x_dst, x_src, att, slope, start, stop, last, f
                )


@emitted
def _score_tile(
    _: Any,
    out: Any,
    d: Any,
    head: Any,
    width: Any,
    indices: Any,
    x_dst: Any,
    x_src: Any,
    att: Any,
    slope: Any,
    start: Any,
    stop: Any,
    last: Any,
    f: Any,
) -> Any:
    """Add the part of some of the head's columns, from f on; returns the next column."""

    def emit(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, b, x_src.dtype)
        d, head, width = args[1:4]
        slope, start, stop, last, f = args[8:]
        gather = Gather(v, (x_src, args[6]), (indices, args[4]), last)
        column = b.mul(head, width)
        own_row = b.gep(v.data(x_dst, args[5]), [b.add(b.mul(d, gather.width), column)])
        factors = b.gep(v.data(att, args[7]), [column])
        scores, num_heads = v.data(out, args[0]), v.shape(out, args[0], 1)
        first = b.icmp_signed("==", f, INT64(0))

        def tile(offsets: list[Any], lanes: int) -> None:
            new = v.new_lanes(f, offsets, lanes)
            zero = v.constant(0.0, lanes)
            steep = v.splat(slope, lanes)
            own = [v.load(b.gep(own_row, [at]), x_dst.dtype, lanes) for at in offsets]
            factor = [v.load(b.gep(factors, [at]), att.dtype, lanes) for at in offsets]
            there = [b.add(column, at) for at in offsets]
            with cgutils.for_range_slice(b, start, stop, INT64(1), intp=INT64) as (k, _):
                gather.prefetch(k, there, lanes)
                _, row = gather.row(k)
                total = zero
                for i, at in enumerate(there):
                    both = b.fadd(own[i], gather.load(row, at, lanes))
                    above = b.fcmp_unordered(">", both, zero)  # a NaN stays one
                    bent = b.fmul(factor[i], b.select(above, both, b.fmul(both, steep)))
                    if i == len(there) - 1:  # columns of the tile before have had theirs
                        bent = b.select(new, bent, zero)
                    total = b.fadd(total, bent)
                score = b.gep(scores, [b.add(b.mul(k, num_heads), head)])
                before = b.select(first, v.element(0.0), b.load(score))
                b.store(b.fadd(before, v.sum(total)), score)

        return v.tile(width, f, v.registers // 4, tile)

    i64 = types.int64
    numbers = (i64, i64, i64, indices, x_dst, x_src, att, out.dtype, i64, i64, i64, i64)
    return i64(out, *numbers), emit


def edge_scores_grad(
    indptr: Tensor,
    indices: Tensor,
    x_dst: Tensor,
    x_src: Tensor,
    att: Tensor,
    slope: float,
    grad: Tensor,
    t_indptr: Tensor,
    t_indices: Tensor,
    t_edge: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by x_dst, x_src and att."""
    wide = torch.promote_types(x_src.dtype, torch.float32)
    num_rows = len(x_dst)
    d_dst, d_src = empty(*x_dst.shape, dtype=wide), empty(*x_src.shape, dtype=wide)
    parts = torch.zeros(-(-num_rows // _ROWS), att.numel(), dtype=wide)
    rows = _matrix(x_dst, wide), _matrix(x_src, wide), _row(att, wide)
    factor, g = parts.numpy().dtype.type(slope), grad.detach().to(wide).numpy()
    by_dst = indptr.numpy(), indices.numpy(), *rows, factor, g, _matrix(d_dst, wide), parts.numpy()
    threads.run(lambda begin, end: _grad_by_dst(begin, end, *by_dst), len(parts))
    csr = t_indptr.numpy(), t_indices.numpy(), t_edge.numpy()
    by_src = *csr, *rows, factor, g, _matrix(d_src, wide)
    over_rows(lambda begin, end: _grad_by_src(begin, end, *by_src), t_indptr, att.numel())
    d_att = parts.sum(0).view(att.shape)
    return d_dst.to(x_dst.dtype), d_src.to(x_src.dtype), d_att.to(att.dtype)


@kernel
def _grad_by_dst(
    begin: Any,
    end: Any,
    indptr: Any,
    indices: Any,
    x_dst: Any,
    x_src: Any,
    att: Any,
    slope: Any,
    grad: Any,
    d_dst: Any,
    parts: Any,
) -> None:
    num_heads = grad.shape[1]
    width = x_src.shape[1] // max(num_heads, 1)
    total = np.empty(x_src.shape[1], x_src.dtype)
    bent = np.empty(x_src.shape[1], x_src.dtype)
    for block in range(begin, end):
        bent[:] = 0
        for d in range(block * _ROWS, min((block + 1) * _ROWS, x_dst.shape[0])):
            total[:] = 0
            for e in range(indptr[d], indptr[d + 1]):
                s = np.uint64(indices[e])
                for h in range(num_heads):
                    g = grad[e, h]
                    low = slope * g
                    for f in range(h * width, (h + 1) * width):
                        both = x_dst[d, f] + x_src[s, f]
                        share = low if both <= 0 else g
                        total[f] += share
                        bent[f] += share * both
            for f in range(x_src.shape[1]):
                d_dst[d, f] = att[0, f] * total[f]
        for f in range(x_src.shape[1]):
            parts[block, f] = bent[f]


@kernel
def _grad_by_src(
    begin: Any,
    end: Any,
    t_indptr: Any,
    t_indices: Any,
    t_edge: Any,
    x_dst: Any,
    x_src: Any,
    att: Any,
    slope: Any,
    grad: Any,
    d_src: Any,
) -> None:
    num_heads = grad.shape[1]
    width = x_src.shape[1] // max(num_heads, 1)
    total = np.empty(x_src.shape[1], x_src.dtype)
    for s in range(begin, end):
        total[:] = 0
        for k in range(t_indptr[s], t_indptr[s + 1]):
            d, e = np.uint64(t_indices[k]), np.uint64(t_edge[k])
            for h in range(num_heads):
                g = grad[e, h]
                low = slope * g
                for f in range(h * width, (h + 1) * width):
                    total[f] += low if x_dst[d, f] + x_src[s, f] <= 0 else g
        for f in range(x_src.shape[1]):
            d_src[s, f] = att[0, f] * total[f]
