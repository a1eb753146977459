"""spmm on a CPU: rows are reduced in register tiles, edge ranges of hubs apart.

Shapes: D destinations, S sources, E edges, F feature width. A row is reduced by one thread in one
order, a hub in pieces of fixed length that are then joined in order, so that results depend on no
number of threads. Nothing of size E x F exists.

A tile is some vectors of one output row, which stay in registers while the row's edges pass by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import types
from numba.core import cgutils

from gnnx import threads
from gnnx.ops._numba.pages import empty
from gnnx.ops._numba.pieces import NO_HUBS, PIECE, cut, grain, hub_slots, is_hub, over_rows
from gnnx.ops._numba.vectors import INT64, Gather, Vectors, emitted, readable, stored
from gnnx.threads import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

_TILE = 8  # vectors: two passes of 8 are faster than one of 16
_LINE = 16  # float32 in a cache line


def spmm(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    weight: Tensor | None,
    reduce: str,
    t_indptr: Tensor | None = None,
    _t_indices: Tensor | None = None,
    _t_edge: Tensor | None = None,
    edge: Tensor | None = None,
) -> Tensor:
    """Sum over each row's edges; "mean" divides by the row's edges, "spread" by the source's."""
    rows, wide = readable(x), _wide(x.dtype)
    args = (
        indices.numpy(),
        stored(rows),
        None if weight is None else stored(weight.to(wide)),
        None if edge is None else edge.numpy(),
        None if reduce != "spread" else _reciprocals(t_indptr, wide),
    )
    out = empty(len(indptr) - 1, x.shape[1], dtype=rows.dtype)
    y, mean = stored(out), reduce == "mean"
    ends, slots = indptr.numpy(), hub_slots(indptr)
    over_rows(
        lambda begin, end: _sum_rows(begin, end, ends[:-1], ends[1:], slots, *args, mean, y),
        indptr,
        x.shape[1],
    )
    hubs = slots[slots >= 0]
    if len(hubs):
        starts, stops, first = cut(ends, hubs)
        sums = torch.empty(len(starts), x.shape[1], dtype=wide).numpy()
        threads.run(
            lambda begin, end: _sum_rows(begin, end, starts, stops, NO_HUBS, *args, False, sums),
            len(starts),
        )
        total = np.add.reduceat(sums, first)
        if mean:
            total /= np.diff(ends)[hubs, None]
        out[torch.from_numpy(hubs)] = torch.from_numpy(total).to(out.dtype)
    return out.to(x.dtype)


@kernel
def _sum_rows(
    begin: Any,
    end: Any,
    starts: Any,
    stops: Any,
    hubs: Any,
    indices: Any,
    x: Any,
    weight: Any,
    edge: Any,
    scale: Any,
    mean: Any,
    out: Any,
) -> None:
    last = stops[end - 1]
    for d in range(begin, end):
        start, stop = starts[d], stops[d]
        if is_hub(hubs, d, start, stop):
            continue
        divisor = max(stop - start, 1) if mean else 0
        f = 0
        while f < x.shape[1]:
            f = _sum_tile(out, d, indices, x, weight, edge, scale, start, stop, last, f, divisor)


@emitted
def _sum_tile(
    _: Any,
    out: Any,
    d: Any,
    indices: Any,
    x: Any,
    weight: Any,
    edge: Any,
    scale: Any,
    start: Any,
    stop: Any,
    last: Any,
    f: Any,
    divisor: Any,
) -> Any:
    """Write some columns of row d, from column f on; returns the next column.

    y_df = sum over k in [start, stop) of weight[edge[k]] scale[s] x[s, f], s = indices[k], divided
    by the divisor unless that is 0. Without weight or scale they are 1, without edge edge[k] = k.
    """

    def emit(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, b, x.dtype)
        start, stop, last, f, divisor = args[7:]
        gather = Gather(v, (x, args[3]), (indices, args[2]), last)
        y = b.gep(v.data(out, args[0]), [b.mul(args[1], gather.width)])
        factors = [
            None if kind == types.none else v.data(kind, value)
            for kind, value in zip((weight, edge, scale), args[4:7], strict=True)
        ]

        def tile(offsets: list[Any], lanes: int) -> None:
            sums = v.variables(v.constant(0.0, lanes), len(offsets))
            with cgutils.for_range_slice(b, start, stop, INT64(1), intp=INT64) as (k, _):
                gather.prefetch(k, offsets, lanes)
                source, row = gather.row(k)
                factor = _factor(v, factors, k, source)
                for offset, total in zip(offsets, sums, strict=True):
                    value, old = gather.load(row, offset, lanes), b.load(total)
                    if factor is None:
                        b.store(b.fadd(old, value), total)
                    else:
                        b.store(v.muladd(v.splat(factor, lanes), value, old), total)
            with b.if_then(b.icmp_signed(">", divisor, INT64(0))):
                by = v.splat(b.sitofp(divisor, v.element), lanes)
                for total in sums:
                    b.store(b.fdiv(b.load(total), by), total)
            for offset, total in zip(offsets, sums, strict=True):
                v.store(b.load(total), b.gep(y, [offset]), out.dtype)

        return v.tile(gather.width, f, _TILE, tile)

    int64s = [types.int64] * 5
    return types.int64(out, types.int64, indices, x, weight, edge, scale, *int64s), emit


def _factor(v: Vectors, factors: list[Any], k: Any, source: Any) -> Any:
    """Emit what the row of edge k is multiplied by; None for 1."""
    b = v.builder
    weight, edge, scale = factors
    parts = []
    if weight is not None:
        at = k if edge is None else v.index(edge, k)
        parts.append(b.load(b.gep(weight, [at])))
    if scale is not None:
        parts.append(b.load(b.gep(scale, [source])))
    return b.fmul(*parts) if len(parts) == 2 else parts[0] if parts else None


def spmm_extremum(
    indptr: Tensor, indices: Tensor, x: Tensor, weight: Tensor | None, reduce: str
) -> tuple[Tensor, Tensor]:
    """Max or min over each row's edges, and the position of the first edge that has it."""
    rows, wide = readable(x), _wide(x.dtype)
    out = empty(len(indptr) - 1, x.shape[1], dtype=rows.dtype)
    arg = empty(*out.shape, dtype=indices.dtype)
    w = None if weight is None else stored(weight.to(wide))
    y, at = stored(out), arg.numpy()
    # a weight of the wide type, since min x = -max -x, exactly
    sign = np.ones(1, y.dtype if wide == rows.dtype else np.float32) * (
        1 if reduce == "max" else -1
    )
    args = indices.numpy(), stored(rows), w, sign
    ends, slots = indptr.numpy(), hub_slots(indptr)
    over_rows(
        lambda begin, end: _extreme_rows(begin, end, ends[:-1], ends[1:], slots, *args, y, at),
        indptr,
        x.shape[1],
    )
    hubs = slots[slots >= 0]
    if len(hubs):
        starts, stops, first = cut(ends, hubs)
        part = torch.empty(len(starts), x.shape[1], dtype=wide).numpy()
        part_at = np.empty(part.shape, at.dtype)
        threads.run(
            lambda begin, end: _extreme_rows(
                begin, end, starts, stops, NO_HUBS, *args, part, part_at
            ),
            len(starts),
        )
        for hub, begin, end in zip(hubs, first, [*first[1:], len(starts)], strict=True):
            best = (part[begin:end] * sign).argmax(0)[None]  # the first, or the first NaN
            (value,) = np.take_along_axis(part[begin:end], best, 0)
            out[hub] = torch.from_numpy(value)
            (at[hub],) = np.take_along_axis(part_at[begin:end], best, 0)
    return out.to(x.dtype), arg


@kernel
def _extreme_rows(
    begin: Any,
    end: Any,
    starts: Any,
    stops: Any,
    hubs: Any,
    indices: Any,
    x: Any,
    weight: Any,
    sign: Any,
    out: Any,
    arg: Any,
) -> None:
    last = stops[end - 1]
    for d in range(begin, end):
        start, stop = starts[d], stops[d]
        if is_hub(hubs, d, start, stop):
            continue
        if start == stop:
            for f in range(x.shape[1]):
                out[d, f] = 0
                arg[d, f] = -1
            continue
        f = 0
        while f < x.shape[1]:
            f = _extreme_tile(out, arg, d, indices, x, weight, sign, start, stop, last, f)


@emitted
def _extreme_tile(
    _: Any,
    out: Any,
    arg: Any,
    d: Any,
    indices: Any,
    x: Any,
    weight: Any,
    sign: Any,
    start: Any,
    stop: Any,
    last: Any,
    f: Any,
) -> Any:
    """Write some columns of row d, which has edges, from column f on; returns the next column.

    y_df = sign[0] max over k in [start, stop) of sign[0] weight[k] x[s, f], s = indices[k], and
    arg_df the first k that has it. A NaN is greater than all, and the first one stays.
    """

    def emit(context: Any, b: Any, signature: Any, args: Any) -> Any:
        v = Vectors(context, b, x.dtype)
        start, stop, last, f = args[7:]
        gather = Gather(v, (x, args[4]), (indices, args[3]), last)
        at = b.mul(args[2], gather.width)
        y = b.gep(v.data(out, args[0]), [at])
        y_arg = b.gep(v.data(arg, args[1]), [at])
        weights = None if weight == types.none else v.data(weight, args[5])
        unit = b.load(v.data(sign, args[6]))

        def signed(k: Any, row: Any, offset: Any, lanes: int) -> Any:
            w = unit if weights is None else b.fmul(unit, b.load(b.gep(weights, [k])))
            return b.fmul(v.splat(w, lanes), gather.load(row, offset, lanes))

        def tile(offsets: list[Any], lanes: int) -> None:
            best = v.variables(v.constant(0.0, lanes), len(offsets))
            where = v.variables(v.constant(0, lanes, v.integer), len(offsets))
            _, row = gather.row(start)
            for offset, value in zip(offsets, best, strict=True):
                b.store(signed(start, row, offset, lanes), value)
            after = b.add(start, INT64(1))
            with cgutils.for_range_slice(b, after, stop, INT64(1), intp=INT64) as (k, _):
                gather.prefetch(k, offsets, lanes)
                _, row = gather.row(k)
                position = b.sub(k, start)  # within the row: it fits 32 bits
                position = v.splat(
                    b.trunc(position, v.integer) if v.bits == 32 else position, lanes
                )
                for offset, value, place in zip(offsets, best, where, strict=True):
                    new, old = signed(k, row, offset, lanes), b.load(value)
                    better = b.and_(
                        b.fcmp_unordered("ugt", new, old), b.fcmp_ordered("ord", old, old)
                    )
                    b.store(b.select(better, new, old), value)
                    b.store(b.select(better, position, b.load(place)), place)
            for offset, value, place in zip(offsets, best, where, strict=True):
                result = b.fmul(v.splat(unit, lanes), b.load(value))
                v.store(result, b.gep(y, [offset]), out.dtype)
                v.store_integers(b.load(place), start, b.gep(y_arg, [offset]))

        return v.tile(gather.width, f, v.registers // 4, tile)

    int64s = [types.int64] * 4
    return types.int64(out, arg, types.int64, indices, x, weight, sign, *int64s), emit


def extremum_grad_x(
    grad: Tensor, arg: Tensor, indices: Tensor, weight: Tensor | None, num_src: int
) -> Tensor:
    """Hand each gradient to the one source it came from.

    Threads share the columns, not the rows: no two write to one place, and each place is summed
    in the order of the rows.
    """
    wide = grad.to(_wide(grad.dtype))
    w = None if weight is None else weight.detach().to(wide.dtype).numpy()
    out = wide.new_zeros(num_src, grad.shape[1])
    args = wide.numpy(), arg.numpy(), indices.numpy(), w, out.numpy()
    threads.run(
        lambda begin, end: _scatter_columns(begin, end, *args),
        grad.shape[1],
        grain=max(_LINE, PIECE // max(len(grad), 1)),
    )
    return out.to(grad.dtype)


@kernel
def _scatter_columns(
    begin: Any, end: Any, grad: Any, arg: Any, indices: Any, weight: Any, out: Any
) -> None:
    for d in range(grad.shape[0]):
        for f in range(begin, end):
            e = arg[d, f]
            if e >= 0:
                g = grad[d, f]
                out[indices[e], f] += g if weight is None else weight[e] * g


def extremum_grad_weight(grad: Tensor, arg: Tensor, indices: Tensor, x: Tensor) -> Tensor:
    """Sum over the columns that an edge won: gradient times feature, (E,)."""
    wide = grad.to(_wide(grad.dtype))
    out = wide.new_zeros(len(indices))
    rows = x.detach().to(_wide(x.dtype))
    args = wide.numpy(), arg.numpy(), indices.numpy(), rows.numpy(), out.numpy()
    threads.run(
        lambda begin, end: _dot_winners(begin, end, *args), len(grad), grain=grain(grad.shape[1])
    )
    return out.to(grad.dtype)


@kernel
def _dot_winners(begin: Any, end: Any, grad: Any, arg: Any, indices: Any, x: Any, out: Any) -> None:
    for d in range(begin, end):  # a row's edges are no other row's
        for f in range(grad.shape[1]):
            e = arg[d, f]
            if e >= 0:
                out[e] += grad[d, f] * x[indices[e], f]


def _reciprocals(indptr: Tensor | None, dtype: torch.dtype) -> NDArray[Any]:
    """1 / degree of every row, 1 where it has none."""
    if indptr is None:
        raise ValueError('reduce="spread" divides by degrees of the transpose: it must be given')
    out = torch.empty(len(indptr) - 1, dtype=dtype).numpy()
    args = indptr.numpy(), out
    threads.run(lambda begin, end: _invert_degrees(begin, end, *args), len(out), grain=PIECE)
    return out


@kernel
def _invert_degrees(begin: Any, end: Any, indptr: Any, out: Any) -> None:
    for d in range(begin, end):
        out[d] = 1 / max(indptr[d + 1] - indptr[d], 1)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Type that sums are kept in."""
    return torch.promote_types(dtype, torch.float32)
