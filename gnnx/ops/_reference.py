"""Every operator in plain torch: slow, obvious, on any device. The others are tested against it.

Shapes: D destinations, S sources, E edges, R rows, F feature width. Messages are E x F tensors
here. Types below float32 are computed in float32 and rounded once at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gnnx.random import GAMMA, Key, mix_int

_DROPOUT = 0x64726F706F757400  # "dropout": keeps its draws apart from a sampler's under one key


def transpose(indptr: Tensor, indices: Tensor, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    """CSR by source of a CSR by destination, by a stable sort."""
    order = torch.sort(indices, stable=True).indices
    counts = torch.bincount(indices, minlength=num_src)
    t_indptr = torch.zeros(num_src + 1, dtype=torch.int64, device=indptr.device)
    t_indptr[1:] = torch.cumsum(counts, 0)
    return t_indptr, _rows(indptr)[order].to(indices.dtype), order.to(indices.dtype)


def spmm(  # noqa: PLR0913 - as the operator has them
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    weight: Tensor | None,
    reduce: str,
    t_indptr: Tensor | None = None,
    t_indices: Tensor | None = None,
    t_edge: Tensor | None = None,
    edge: Tensor | None = None,
) -> Tensor:
    """Sum over each row's edges; "mean" divides by the row's edges, "spread" by the source's."""
    if weight is not None and edge is not None:
        weight = weight.index_select(0, edge)
    messages = _messages(indices, x, weight)
    if reduce == "spread" and t_indptr is not None:
        messages /= t_indptr.diff().clamp(min=1).index_select(0, indices)[:, None]
    out = messages.new_zeros(len(indptr) - 1, x.shape[1]).index_add(0, _rows(indptr), messages)
    if reduce == "mean":
        out /= indptr.diff().clamp(min=1)[:, None]
    return out.to(x.dtype)


def spmm_extremum(
    indptr: Tensor, indices: Tensor, x: Tensor, weight: Tensor | None, reduce: str
) -> tuple[Tensor, Tensor]:
    """Max or min over each row's edges, and the position of the first edge that has it."""
    messages = _messages(indices, x, weight)
    rows = _rows(indptr)[:, None].expand_as(messages)
    shape = len(indptr) - 1, x.shape[1]
    best = messages.new_zeros(shape).scatter_reduce(
        0, rows, messages, f"a{reduce}", include_self=False
    )
    reached = best.gather(0, rows)
    won = (messages == reached) | (messages.isnan() & reached.isnan())
    edges = torch.arange(len(indices), device=x.device)[:, None]
    first = torch.full(shape, -1, device=x.device).scatter_reduce(
        0, rows, torch.where(won, edges, len(indices)), "amin", include_self=False
    )
    return best.to(x.dtype), first.to(indices.dtype)


def extremum_grad_x(
    grad: Tensor, arg: Tensor, indices: Tensor, weight: Tensor | None, num_src: int
) -> Tensor:
    """Hand each gradient to the one source it came from."""
    row, column = torch.nonzero(arg >= 0, as_tuple=True)
    edge = arg[row, column].long()
    share = _wide(grad)[row, column]
    if weight is not None:
        share = share * weight[edge]
    out = share.new_zeros(num_src, grad.shape[1])
    return out.index_put((indices[edge].long(), column), share, accumulate=True).to(grad.dtype)


def extremum_grad_weight(grad: Tensor, arg: Tensor, indices: Tensor, x: Tensor) -> Tensor:
    """Sum over the columns that an edge won: gradient times feature, (E,)."""
    row, column = torch.nonzero(arg >= 0, as_tuple=True)
    edge = arg[row, column].long()
    share = _wide(grad)[row, column] * x[indices[edge].long(), column]
    return share.new_zeros(len(indices)).index_add(0, edge, share).to(grad.dtype)


def gather_tiers(ids: Tensor, slot: Tensor, cache: Tensor, host: Tensor) -> Tensor:
    """Row ids[r] of two tiers: cache[slot[id]], or host[id] where that slot is below 0."""
    place = slot.index_select(0, ids)
    out = host.index_select(0, ids.to(host.device)).to(cache.device)
    held = torch.nonzero(place >= 0)[:, 0]
    return out.index_copy(0, held, cache.index_select(0, place[held]))


def sddmm(indptr: Tensor, indices: Tensor, x_dst: Tensor, x_src: Tensor, *_: object) -> Tensor:
    """Dot product of the two ends' rows on every edge."""
    dtype = torch.promote_types(x_dst.dtype, x_src.dtype)
    ends = _wide(x_dst)[_rows(indptr)] * _wide(x_src).index_select(0, indices)
    return ends.sum(1).to(dtype)


def sddmm_add(indptr: Tensor, indices: Tensor, x_dst: Tensor, x_src: Tensor, *_: object) -> Tensor:
    """Sum of the two ends' rows on every edge."""
    ends = _wide(x_dst)[_rows(indptr)] + _wide(x_src).index_select(0, indices)
    return ends.to(x_dst.dtype)


def edge_softmax(indptr: Tensor, logits: Tensor) -> Tensor:
    """Softmax of each head over each row's edges."""
    return _softmax(indptr, _wide(logits))[0].to(logits.dtype)


def edge_softmax_grad(indptr: Tensor, out: Tensor, grad: Tensor) -> Tensor:
    """Gradient by the logits: y (dy - sum over the row of y dy)."""
    y, dy, rows = _wide(out), _wide(grad), _rows(indptr)
    total = y.new_zeros(len(indptr) - 1, y.shape[1]).index_add(0, rows, y * dy)
    return (y * (dy - total[rows])).to(out.dtype)


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
    """Weighted sums, log-sum-exp of the scores, and the part and share of positive scores."""
    rows, score = _rows(indptr), sddmm_add(indptr, indices, _wide(a_dst), _wide(a_src))
    weights, lse = _softmax(indptr, torch.where(score > 0, score, slope * score))
    messages = weights[:, :, None] * _wide(x).index_select(0, indices)
    out = messages.new_zeros(len(indptr) - 1, *x.shape[1:]).index_add(0, rows, messages)
    above = (score > 0).to(out.dtype)
    positive = torch.zeros_like(out).index_add(0, rows, messages * above[:, :, None])
    share = torch.zeros_like(lse).index_add(0, rows, weights * above)
    kept = slice(None if keep else 0)
    return out.to(x.dtype), lse, positive[kept], share[kept]


def attention_grad(  # noqa: PLR0913 - as the operator has them
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
    *_: object,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by x, a_dst and a_src, edge by edge: `positive` and `share` are not needed."""
    rows, score = _rows(indptr), sddmm_add(indptr, indices, _wide(a_dst), _wide(a_src))
    weights = (torch.where(score > 0, score, slope * score) - lse[rows]).exp()
    dy = _wide(grad)
    mean = (dy * _wide(out)).sum(2)
    product = (dy[rows] * _wide(x).index_select(0, indices)).sum(2)
    steep = torch.where(score > 0, torch.ones_like(score), slope)
    d_score = weights * (product - mean[rows]) * steep
    dx = _wide(torch.zeros_like(x)).index_add(0, indices, weights[:, :, None] * dy[rows])
    d_dst = _wide(torch.zeros_like(a_dst)).index_add(0, rows, d_score)
    d_src = _wide(torch.zeros_like(a_src)).index_add(0, indices, d_score)
    return dx.to(x.dtype), d_dst.to(a_dst.dtype), d_src.to(a_src.dtype)


def edge_scores(
    indptr: Tensor,
    indices: Tensor,
    x_dst: Tensor,
    x_src: Tensor,
    att: Tensor,
    slope: float,
    *_: object,
) -> Tensor:
    """Product of att with LeakyReLU(x_dst + x_src) on every edge; some edges at a time."""
    rows, parts = _rows(indptr), []
    for edges in _few(len(indices), att.numel()):
        both = _wide(x_dst)[rows[edges]] + _wide(x_src).index_select(0, indices[edges])
        parts.append((torch.where(both > 0, both, slope * both) * _wide(att)).sum(2))
    return torch.cat([_wide(x_src).new_empty(0, att.shape[0]), *parts]).to(x_src.dtype)


def edge_scores_grad(
    indptr: Tensor,
    indices: Tensor,
    x_dst: Tensor,
    x_src: Tensor,
    att: Tensor,
    slope: float,
    grad: Tensor,
    *_: object,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by x_dst, x_src and att; some edges at a time."""
    rows = _rows(indptr)
    d_dst, d_src, d_att = (_wide(torch.zeros_like(x)) for x in (x_dst, x_src, att))
    for edges in _few(len(indices), att.numel()):
        both = _wide(x_dst)[rows[edges]] + _wide(x_src).index_select(0, indices[edges])
        share = torch.where(both > 0, torch.ones_like(both), slope) * _wide(grad)[edges, :, None]
        d_dst.index_add_(0, rows[edges], share * _wide(att))
        d_src.index_add_(0, indices[edges], share * _wide(att))
        d_att += (share * both).sum(0)
    return d_dst.to(x_dst.dtype), d_src.to(x_src.dtype), d_att.to(att.dtype)


def dropout(x: Tensor, row_id: Tensor, p: float, key: list[int]) -> Tensor:
    """Zero or scale each element by a draw of its key, row id and column."""
    state = _signed(mix_int(Key(*key).fold() ^ _DROPOUT))
    column = torch.arange(1, x.shape[1] + 1, device=x.device) * _signed(GAMMA)
    draws = _shifted(_mix(_mix(row_id ^ state)[:, None] + column), 32)
    scaled = _wide(x) * (1 / (1 - p) if p < 1 else 0.0)
    return torch.where(draws >= round(p * 2**32), scaled, 0.0).to(x.dtype)


def _few(num_edges: int, width: int) -> list[slice]:
    """Cut the edges so that a tensor of that width over a piece has about 4 M elements."""
    step = max(1, (1 << 22) // max(width, 1))
    return [slice(begin, begin + step) for begin in range(0, num_edges, step)]


def _rows(indptr: Tensor) -> Tensor:
    """Destination of every edge, (E,) int64."""
    rows = torch.arange(len(indptr) - 1, device=indptr.device)
    return torch.repeat_interleave(rows, indptr.diff())


def _softmax(indptr: Tensor, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Softmax (E, H) over each row's edges, and log-sum-exp (D, H), 0 in empty rows."""
    rows = _rows(indptr)
    highest = logits.new_zeros(len(indptr) - 1, logits.shape[1]).scatter_reduce(
        0, rows[:, None].expand_as(logits), logits, "amax", include_self=False
    )
    power = (logits - highest[rows]).exp()
    total = torch.zeros_like(highest).index_add(0, rows, power)
    filled = (indptr.diff() > 0)[:, None]
    return power / total[rows], torch.where(filled, highest + total.log(), 0.0)


def _messages(indices: Tensor, x: Tensor, weight: Tensor | None) -> Tensor:
    """Gather what every edge carries, (E, F) in at least float32."""
    wide = _wide(x).index_select(0, indices)
    return wide if weight is None else wide * weight[:, None]


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _mix(value: Tensor) -> Tensor:
    """`gnnx.random.mix` on int64: products wrap as those of uint64 do."""
    value = (value ^ _shifted(value, 30)) * _signed(0xBF58476D1CE4E5B9)
    value = (value ^ _shifted(value, 27)) * _signed(0x94D049BB133111EB)
    return value ^ _shifted(value, 31)


def _shifted(value: Tensor, bits: int) -> Tensor:
    """Shift right, filling with zeros."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """Read 64 bits as an int64."""
    return value - (1 << 64) if value >> 63 else value
