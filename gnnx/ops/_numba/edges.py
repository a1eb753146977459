"""What is computed edge by edge: sddmm.

Shapes: D destinations, S sources, E edges, F feature width. Pieces are ranges of edges, which may
begin within a row: an edge depends on no other.
"""

from __future__ import annotations

from typing import Any

import torch
from numba import types
from numba.core import cgutils
from torch import Tensor

from gnnx import threads
from gnnx.ops._numba.vectors import INT64, Gather, Vectors, emitted, readable, stored
from gnnx.threads import kernel

_PIECE = 1 << 16  # elements that make a piece worth a thread's while: some 20 us


def sddmm(indptr: Tensor, indices: Tensor, x_dst: Tensor, x_src: Tensor, *_: object) -> Tensor:
    """Dot product of the two ends' rows on every edge."""
    dtype = torch.promote_types(x_dst.dtype, x_src.dtype)
    left, right = readable(x_dst), readable(x_src)
    out = torch.zeros(len(indices), dtype=torch.promote_types(dtype, torch.float32))
    if torch.float64 in {left.dtype, right.dtype}:
        left, right = left.double(), right.double()
    args = indptr.numpy(), indices.numpy(), stored(left), stored(right), out.numpy()
    grain = _PIECE // max(x_dst.shape[1], 1) + 1
    threads.run(lambda begin, end: _dot_edges(begin, end, *args), len(indices), grain=grain)
    return out.to(dtype)


@kernel
def _dot_edges(
    begin: Any, end: Any, indptr: Any, indices: Any, x_dst: Any, x_src: Any, out: Any
) -> None:
    d, e = row_of(indptr, begin), begin
    while e < end:
        stop = min(indptr[d + 1], end)
        f = 0
        while e < stop and f < x_src.shape[1]:
            f = _dot_tile(out, d, indices, x_dst, x_src, e, stop, end, f)
        e = stop
        d += 1


@emitted
def _dot_tile(
    _: Any,
    out: Any,
    d: Any,
    indices: Any,
    x_dst: Any,
    x_src: Any,
    start: Any,
    stop: Any,
    last: Any,
    f: Any,
) -> Any:
    """Add some columns' products, from column f on, to edges of row d; returns the next column."""

    def emit(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, b, x_src.dtype)
        start, stop, last, f = args[5:]
        gather = Gather(v, (x_src, args[4]), (indices, args[2]), last)
        left = b.gep(v.data(x_dst, args[3]), [b.mul(args[1], gather.width)])
        scores = v.data(out, args[0])

        def tile(offsets: list[Any], lanes: int) -> None:
            new = v.new_lanes(f, offsets, lanes)
            own = [v.load(b.gep(left, [at]), x_dst.dtype, lanes) for at in offsets]
            zero = v.constant(0.0, lanes)
            own[-1] = b.select(new, own[-1], zero)
            with cgutils.for_range_slice(b, start, stop, INT64(1), intp=INT64) as (k, _):
                gather.prefetch(k, offsets, lanes)
                _, row = gather.row(k)
                others = [gather.load(row, at, lanes) for at in offsets]
                others[-1] = b.select(new, others[-1], zero)  # or 0 times infinity were added
                total = b.fmul(own[0], others[0])
                for mine, other in zip(own[1:], others[1:], strict=True):
                    total = v.muladd(mine, other, total)
                score = b.gep(scores, [k])
                b.store(b.fadd(b.load(score), v.sum(total)), score)

        return v.tile(gather.width, f, v.registers // 4, tile)

    int64s = [types.int64] * 4
    return types.int64(out, types.int64, indices, x_dst, x_src, *int64s), emit


@kernel
def row_of(indptr: Any, edge: Any) -> Any:
    """Row that an edge belongs to."""
    low, high = 0, indptr.shape[0] - 2
    while low < high:
        middle = (low + high) // 2
        if indptr[middle + 1] <= edge:
            low = middle + 1
        else:
            high = middle
    return low
