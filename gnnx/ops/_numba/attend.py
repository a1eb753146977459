"""Graph attention in one pass: scores, softmax and weighted sum, nothing of size E.

Shapes: D destinations, S sources, E edges, H heads, F width of a head. Edges of a row are taken
in chunks: their scores and exponentials, then head by head their rows, which are in cache by
then. Rows are asked for a chunk ahead.

The gradient by a_dst would need the products of the gradient with every source, in the order of
the rows, and so a second gather. It follows instead from `positive`, the part of the output that
came over edges with a positive score, and its `share` of the weights: as the gradient of a
softmax sums to 0 over a row, only the difference between the two slopes is left,
(1 - slope) (dy . positive - (dy . y) share).

A hub is cut into pieces of fixed length, each a row of its own with its log-sum-exp. The weights of
a piece as a whole, exp(lse_piece - lse), then join them, in order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import types
from numba.core import cgutils

from gnnx import threads
from gnnx.ops._numba.edges import dot, exponentials, larger
from gnnx.ops._numba.pages import empty
from gnnx.ops._numba.pieces import NO_HUBS, cut, grain, hub_slots, is_hub, over_rows
from gnnx.ops._numba.vectors import INT64, Gather, Vectors, emitted, readable, stored
from gnnx.threads import inlined, kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_CHUNK = 32  # edges whose rows stay in the first caches while head after head passes


def attention(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    a_dst: Tensor,
    a_src: Tensor,
    slope: float,
    keep: bool,
    *_: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weighted sums, log-sum-exp of the scores, and for a gradient `positive` and `share`."""
    rows, wide = readable(x), torch.promote_types(x.dtype, torch.float32)
    results = _results(len(indptr) - 1, keep, x.shape[1:], rows.dtype, wide)
    a_wide, ends, slots = stored(a_dst.to(wide)), indptr.numpy(), hub_slots(indptr)
    a_source = stored(a_src.to(wide))
    args = indices.numpy(), _matrix(rows), a_source, a_source.dtype.type(slope)
    whole = _arrays(results)
    over_rows(
        lambda begin, end: _attend_rows(
            begin, end, ends[:-1], ends[1:], slots, a_wide, *args, *whole
        ),
        indptr,
        x.shape[1] * x.shape[2],
    )
    hubs = slots[slots >= 0]
    if len(hubs):
        starts, stops, first = cut(ends, hubs)
        hub = np.repeat(np.arange(len(hubs)), np.diff(first, append=len(starts)))
        parts = _arrays(_results(len(starts), keep, x.shape[1:], wide, wide))
        a_hub = a_wide[hubs[hub]]
        threads.run(
            lambda begin, end: _attend_rows(
                begin, end, starts, stops, NO_HUBS, a_hub, *args, *parts
            ),
            len(starts),
        )
        joined = _joined(first, hub, *parts)
        for result, value in zip(results, joined, strict=True):
            if len(result):
                whole_rows = torch.from_numpy(value).view(len(hubs), *result.shape[1:])
                result[torch.from_numpy(hubs)] = whole_rows.to(result.dtype)
    out, lse, positive, share = results
    return out.to(x.dtype), lse, positive, share


def _results(
    num_rows: int, keep: bool, head: torch.Size, dtype: torch.dtype, wide: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, log-sum-exp, `positive` and `share`; the latter two without rows if not kept."""
    kept = num_rows if keep else 0
    return (
        empty(num_rows, *head, dtype=dtype),
        torch.empty(num_rows, head[0], dtype=wide),
        empty(kept, *head, dtype=wide),
        torch.empty(kept, head[0], dtype=wide),
    )


def _arrays(results: tuple[Tensor, ...]) -> tuple[NDArray[Any], ...]:
    out, lse, positive, share = results
    return _matrix(out), lse.numpy(), _matrix(positive), share.numpy()


def _joined(
    first: NDArray[np.int64],
    hub: NDArray[np.int64],
    out: NDArray[Any],
    lse: NDArray[Any],
    positive: NDArray[Any],
    share: NDArray[Any],
) -> tuple[NDArray[Any], ...]:
    """Results of hubs from those of their pieces: piece i is of hub ``hub[i]``."""
    highest = np.maximum.reduceat(lse, first)
    weight = np.exp(lse - highest[hub])
    total = np.add.reduceat(weight, first)
    weight /= total[hub]
    num_heads = lse.shape[1]

    def mean(part: NDArray[Any]) -> NDArray[Any]:
        if not len(part):
            return part
        heads = part.reshape(len(part), num_heads, -1)
        return np.add.reduceat(weight[:, :, None] * heads, first)

    return mean(out), highest + np.log(total), mean(positive), mean(share)


def _matrix(x: Tensor) -> NDArray[Any]:
    """Heads side by side, (R, H F)."""
    return stored(x).reshape(len(x), x.shape[1] * x.shape[2])


@kernel
def _attend_rows(
    begin: Any,
    end: Any,
    starts: Any,
    stops: Any,
    hubs: Any,
    a_dst: Any,
    indices: Any,
    x: Any,
    a_src: Any,
    slope: Any,
    out: Any,
    lse: Any,
    positive: Any,
    share: Any,
) -> None:
    num_heads = a_src.shape[1]
    width = x.shape[1] // max(num_heads, 1)
    zero = lse.dtype.type(0)
    keep = share.shape[0] > 0
    weights = np.empty((_CHUNK, num_heads), lse.dtype)
    above = np.empty((_CHUNK, num_heads), lse.dtype)  # weights of positive scores, else 0
    sums = np.empty((2, x.shape[1]), lse.dtype)
    highest, total, part = (
        np.empty(num_heads, lse.dtype),
        np.empty(num_heads, lse.dtype),
        np.empty(num_heads, lse.dtype),
    )
    last = stops[end - 1]
    for d in range(begin, end):
        start, stop = starts[d], stops[d]
        if is_hub(hubs, d, start, stop):
            continue
        highest[:] = -np.inf
        for k in range(start, stop):
            s = np.uint64(indices[k])
            for h in range(num_heads):
                highest[h] = larger(a_src[s, h], highest[h])
        for h in range(num_heads):  # scores grow with a_src, so this edge has the highest one
            highest[h] = _leaky(highest[h] + a_dst[d, h], slope)
        total[:] = 0
        part[:] = 0
        sums[:] = 0
        for first in range(start, stop, _CHUNK):
            num_edges = min(stop - first, _CHUNK)
            for i in range(num_edges):
                s = np.uint64(indices[first + i])
                for h in range(num_heads):
                    score = a_src[s, h] + a_dst[d, h]
                    weights[i, h] = _leaky(score, slope) - highest[h]
                    above[i, h] = score
            exponentials(weights, 0, num_edges)
            for i in range(num_edges):
                for h in range(num_heads):
                    total[h] += weights[i, h]
                    above[i, h] = weights[i, h] if above[i, h] > 0 else zero
                    part[h] += above[i, h]
            for h in range(num_heads):
                f = 0
                while f < width:
                    f = _add_tile(
                        sums, indices, x, weights, above, h, width, first, num_edges, last, f, keep
                    )
        for h in range(num_heads):
            one = lse.dtype.type(1)
            scale = one / total[h] if stop > start else one
            lse[d, h] = highest[h] + np.log(total[h]) if stop > start else zero
            f = 0
            while f < width:
                f = _scale_tile(out, d, sums, 0, scale, h, width, f)
            if keep:
                share[d, h] = part[h] * scale
                f = 0
                while f < width:
                    f = _scale_tile(positive, d, sums, 1, scale, h, width, f)


@inlined
def _leaky(score: Any, slope: Any) -> Any:
    return score if score > 0 else slope * score


@emitted
def _add_tile(
    _: Any,
    sums: Any,
    indices: Any,
    x: Any,
    weights: Any,
    above: Any,
    h: Any,
    width: Any,
    first: Any,
    num_edges: Any,
    last: Any,
    f: Any,
    keep: Any,
) -> Any:
    """Add a chunk's rows to some columns of head h, from f on; returns the next column.

    sums[0, h width + f] += sum over i < num_edges of weights[i, h] x[s, h width + f], where s =
    indices[first + i]; the same of `above` to sums[1] if asked for.
    """

    def emit(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, b, x.dtype)
        h, width, first, num_edges, last, f, keep = args[5:]
        gather = Gather(v, (x, args[2]), (indices, args[1]), last, INT64(_CHUNK))
        num_heads = v.shape(weights, args[3], 1)
        total = v.data(sums, args[0])
        pairs = (
            (total, v.data(weights, args[3])),
            (
                b.gep(total, [gather.width]),
                v.data(above, args[4]),
            ),
        )
        column = b.mul(h, width)

        def add(offsets: list[Any], lanes: int, pairs: tuple[Any, ...]) -> None:
            there = [b.add(column, offset) for offset in offsets]
            new = v.new_lanes(f, offsets, lanes)
            slots = []
            for target, _ in pairs:
                slots.append(v.variables(v.constant(0.0, lanes), len(offsets)))
                for slot, at in zip(slots[-1], there, strict=True):
                    b.store(v.load(b.gep(target, [at]), sums.dtype, lanes), slot)
            with cgutils.for_range(b, num_edges, intp=INT64) as loop:
                k = b.add(first, loop.index)
                gather.prefetch(k, there, lanes)
                _, row = gather.row(k)
                place = b.add(b.mul(loop.index, num_heads), h)
                factors = [v.splat(b.load(b.gep(p, [place])), lanes) for _, p in pairs]
                for i, at in enumerate(there):
                    value = gather.load(row, at, lanes)
                    if len(there) == 1:  # columns of the tile before have had theirs
                        value = b.select(new, value, v.constant(0.0, lanes))
                    for factor, slot in zip(factors, slots, strict=True):
                        b.store(v.muladd(factor, value, b.load(slot[i])), slot[i])
            for (target, _), slot in zip(pairs, slots, strict=True):
                for value, at in zip(slot, there, strict=True):
                    v.store(b.load(value), b.gep(target, [at]), sums.dtype)

        def tile(offsets: list[Any], lanes: int) -> None:
            with b.if_else(keep) as (both, one):
                with both:
                    add(offsets, lanes, pairs)
                with one:
                    add(offsets, lanes, pairs[:1])

        return v.tile(width, f, v.registers // 4, tile)

    i64 = types.int64
    numbers = (i64, i64, i64, i64, i64, i64, types.boolean)
    return i64(sums, indices, x, weights, above, *numbers), emit


@emitted
def _scale_tile(
    _: Any, out: Any, d: Any, sums: Any, row: Any, scale: Any, h: Any, width: Any, f: Any
) -> Any:
    """out[d, h width + f] = scale sums[row, h width + f] for some f; returns the next one."""

    def emit(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, b, sums.dtype)
        d, sums_value, row, scale, h, width, f = args[1:]
        row_width = v.shape(sums, sums_value, 1)
        column = b.mul(h, width)
        source = b.gep(v.data(sums, sums_value), [b.add(b.mul(row, row_width), column)])
        target = b.gep(v.data(out, args[0]), [b.add(b.mul(d, row_width), column)])

        def tile(offsets: list[Any], lanes: int) -> None:
            for at in offsets:
                value = v.load(b.gep(source, [at]), sums.dtype, lanes)
                v.store(b.fmul(value, v.splat(scale, lanes)), b.gep(target, [at]), out.dtype)

        return v.tile(width, f, v.registers // 4, tile)

    i64 = types.int64
    return i64(out, i64, sums, i64, sums.dtype, i64, i64, i64), emit


def attention_grad(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    a_dst: Tensor,
    a_src: Tensor,
    slope: float,
    out: Tensor,
    lse: Tensor,
    positive: Tensor,
    share: Tensor,
    grad: Tensor,
    t_indptr: Tensor,
    t_indices: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by x, a_dst and a_src, over the transposed order."""
    rows, wide = readable(x), torch.promote_types(x.dtype, torch.float32)
    num_rows, num_heads, width = out.shape
    g = _matrix(readable(grad))
    terms = torch.empty(num_rows, 3 * num_heads, dtype=wide)  # together, since read together
    d_dst = torch.empty(num_rows, num_heads, dtype=wide)
    parts = terms.numpy(), d_dst.numpy()
    a_wide, factor = stored(a_dst.to(wide)), d_dst.numpy().dtype.type(slope)
    y, pos = _matrix(readable(out)), _matrix(positive)
    threads.run(
        lambda begin, end: _sum_terms(
            begin, end, a_wide, factor, g, y, lse.numpy(), pos, share.numpy(), *parts
        ),
        num_rows,
        grain=grain(num_heads * width),
    )
    dx = empty(*x.shape, dtype=rows.dtype)
    d_src = torch.empty(len(x), num_heads, dtype=wide)
    ends, slots, x_all, a_all = (
        t_indptr.numpy(),
        hub_slots(t_indptr),
        _matrix(rows),
        stored(a_src.to(wide)),
    )
    args = t_indices.numpy(), terms.numpy(), factor, g
    whole = x_all, a_all, *args, _matrix(dx), d_src.numpy()
    over_rows(
        lambda begin, end: _attend_back(begin, end, ends[:-1], ends[1:], slots, *whole),
        t_indptr,
        num_heads * width,
    )
    hubs = slots[slots >= 0]
    if len(hubs):
        starts, stops, first = cut(ends, hubs)
        hub = hubs.repeat(np.diff(first, append=len(starts)))
        sums = np.empty((len(hub), x_all.shape[1]), a_all.dtype), a_all[hub]
        pieces = x_all[hub], a_all[hub], *args, *sums
        threads.run(
            lambda begin, end: _attend_back(begin, end, starts, stops, NO_HUBS, *pieces),
            len(starts),
        )
        for result, part in zip((dx, d_src), sums, strict=True):
            total = np.add.reduceat(part, first).reshape(len(hubs), *result.shape[1:])
            result[torch.from_numpy(hubs)] = torch.from_numpy(total).to(result.dtype)
    return dx.to(x.dtype), d_dst.to(a_dst.dtype), d_src.to(a_src.dtype)


@kernel
def _sum_terms(
    begin: Any,
    end: Any,
    a_dst: Any,
    slope: Any,
    grad: Any,
    out: Any,
    lse: Any,
    positive: Any,
    share: Any,
    terms: Any,
    d_dst: Any,
) -> None:
    """Collect what edges ask of a destination, a_dst, lse and dy . y; its own gradient."""
    num_heads = lse.shape[1]
    width = out.shape[1] // max(num_heads, 1)
    own = np.empty(1, np.int64)
    products = np.zeros((2, num_heads), lse.dtype)
    one = lse.dtype.type(1)
    for d in range(begin, end):
        own[0] = d
        for h in range(num_heads):
            dot(products, 0, d, h, width, own, grad, out, 0, 1, 1, 0)
            dot(products, -1, d, h, width, own, grad, positive, 0, 1, 1, 0)
            terms[d, h] = a_dst[d, h]
            terms[d, num_heads + h] = lse[d, h]
            terms[d, 2 * num_heads + h] = products[0, h]
            d_dst[d, h] = (one - slope) * (products[1, h] - products[0, h] * share[d, h])


@kernel
def _attend_back(
    begin: Any,
    end: Any,
    starts: Any,
    stops: Any,
    hubs: Any,
    x: Any,
    a_src: Any,
    t_indices: Any,
    terms: Any,
    slope: Any,
    grad: Any,
    dx: Any,
    d_src: Any,
) -> None:
    num_heads = a_src.shape[1]
    width = x.shape[1] // max(num_heads, 1)
    one = a_src.dtype.type(1)
    weights = np.empty((_CHUNK, num_heads), a_src.dtype)
    products = np.zeros((_CHUNK, num_heads), a_src.dtype)
    sums = np.empty((2, x.shape[1]), a_src.dtype)
    last = stops[end - 1]
    for s in range(begin, end):
        start, stop = starts[s], stops[s]
        if is_hub(hubs, s, start, stop):
            continue
        sums[0] = 0
        for h in range(num_heads):
            d_src[s, h] = 0
        for first in range(start, stop, _CHUNK):
            num_edges = min(stop - first, _CHUNK)
            for i in range(num_edges):
                d = np.uint64(t_indices[first + i])
                for h in range(num_heads):
                    score = a_src[s, h] + terms[d, h]
                    weights[i, h] = _leaky(score, slope) - terms[d, num_heads + h]
            exponentials(weights, 0, num_edges)
            for h in range(num_heads):
                dot(
                    products,
                    first,
                    s,
                    h,
                    width,
                    t_indices,
                    x,
                    grad,
                    first,
                    first + num_edges,
                    last,
                    _CHUNK,
                )
            for i in range(num_edges):
                d = np.uint64(t_indices[first + i])
                for h in range(num_heads):
                    steep = one if a_src[s, h] + terms[d, h] > 0 else slope
                    share = products[i, h] - terms[d, 2 * num_heads + h]
                    d_src[s, h] += weights[i, h] * share * steep
            for h in range(num_heads):
                f = 0
                while f < width:
                    f = _add_tile(
                        sums,
                        t_indices,
                        grad,
                        weights,
                        weights,
                        h,
                        width,
                        first,
                        num_edges,
                        last,
                        f,
                        False,
                    )
        for h in range(num_heads):
            f = 0
            while f < width:
                f = _scale_tile(dx, s, sums, 0, one, h, width, f)
