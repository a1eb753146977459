"""Message passing on tensors: spmm, sddmm, edge softmax, attention, gather, sage, and their kin.

Shapes: D destinations, S sources, E edges, R rows, F feature width, H heads. A CSR is ``indptr
(D + 1,) int64`` and ``indices (E,) int32 or int64``: row d lists the sources of d, in any order,
duplicates and loops included. Its transpose lists the same edges by source, with each edge's
position in the CSR: a backward pass walks it without atomics, so that results are repeatable to
the last bit.

Arguments are checked here, once: types, shapes, devices. The entries of `indptr` and `indices` are
trusted. Below the public functions stand the operators of `gnnx.ops._operators`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from gnnx.errors import UsageError
from gnnx.ops import _operators
from gnnx.ops._numba import transpose_into
from gnnx.ops._numba.pages import keep_within as keep_results_within
from gnnx.ops._numba.pages import peak_bytes as peak_results_bytes

if TYPE_CHECKING:
    from gnnx.random import Key

__all__ = [
    "attention",
    "dropout",
    "edge_scores",
    "edge_softmax",
    "gather",
    "gather_tiers",
    "keep_results_within",
    "peak_results_bytes",
    "sage",
    "sddmm",
    "spmm",
    "spmm_tiers",
    "transpose",
]

Reduce: TypeAlias = Literal["sum", "mean", "max", "min"]
Csr: TypeAlias = tuple[Tensor, Tensor, Tensor]

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
_NO_TRANSPOSE = (None, None, None)


def spmm(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    weight: Tensor | None = None,
    *,
    reduce: Reduce = "sum",
    transpose: Csr | None = None,
) -> Tensor:
    """Reduce what arrives over each destination's edges: y_d = reduce_e w_e x_src(e).

    Parameters
    ----------
    indptr
        (D + 1,) int64; row d spans ``indices[indptr[d]:indptr[d + 1]]``.
    indices
        (E,) int32 or int64, sources, each in [0, S).
    x
        (S, F) float32, float64, float16 or bfloat16; the last two are summed in float32 and
        rounded once. Copied where it is not contiguous.
    weight
        (E,) of the dtype of `x`; float32 goes with float16 and bfloat16 too.
    reduce
        The mean divides by the number of edges, whatever their weights. The gradient of a max or
        min goes to one source a column: that of the first edge of the row that reaches it.
    transpose
        What `gnnx.ops.transpose` gives; without it the backward pass builds one.

    Returns
    -------
    Tensor
        (D, F) of the dtype of `x`; rows without edges are 0. Differentiable in `x` and `weight`,
        sum and mean any number of times.

    Raises
    ------
    UsageError
        A dtype, shape or device is wrong, or `reduce` is unknown.
    """
    _check_csr(indptr, indices)
    _check_features("spmm", "x", x, indptr)
    if weight is not None:
        _check_weight(weight, indices, x)
        weight = weight.contiguous()
    if reduce in {"sum", "mean"}:
        parts = transpose or _NO_TRANSPOSE
        out: Tensor = _operators.spmm(indptr, indices, x.contiguous(), weight, reduce, *parts)
    elif reduce in {"max", "min"}:
        _check_positions("spmm", indices)
        out, _ = _operators.spmm_extremum(indptr, indices, x.contiguous(), weight, reduce)
    else:
        raise UsageError(f"spmm: reduce is {reduce!r}", 'Give "sum", "mean", "max" or "min".')
    return out


def sddmm(
    indptr: Tensor,
    indices: Tensor,
    x_dst: Tensor,
    x_src: Tensor,
    *,
    op: Literal["dot", "add"] = "dot",
    transpose: Csr | None = None,
) -> Tensor:
    """Combine the rows of the two ends of every edge: x_dst(e) . x_src(e), or their sum.

    Parameters
    ----------
    indptr
        (D + 1,) int64; row d spans ``indices[indptr[d]:indptr[d + 1]]``.
    indices
        (E,) int32 or int64, sources, each in [0, S).
    x_dst
        (D, F), types as in `spmm`.
    x_src
        (S, F) of the dtype of `x_dst`.
    op
        The dot product of the rows, or their sum, such as scores of F heads.
    transpose
        As in `spmm`.

    Returns
    -------
    Tensor
        (E,) for a dot product, (E, F) for a sum, of the dtype of `x_dst`, in the order of
        `indices`. Differentiable in both, any number of times.

    Raises
    ------
    UsageError
        A dtype, shape or device is wrong, or `op` is unknown.
    """
    _check_csr(indptr, indices)
    _check_features("sddmm", "x_dst", x_dst, indptr)
    _check_features("sddmm", "x_src", x_src, indptr)
    if len(x_dst) != len(indptr) - 1:
        raise UsageError(
            f"sddmm: x_dst has {len(x_dst)} rows, the graph {len(indptr) - 1} destinations",
            "Give one row for every destination.",
        )
    if x_dst.shape[1] != x_src.shape[1] or x_dst.dtype != x_src.dtype:
        raise UsageError(
            f"sddmm: x_dst is {x_dst.shape[1]} wide, {x_dst.dtype}; "
            f"x_src is {x_src.shape[1]} wide, {x_src.dtype}",
            "Give both one width and one dtype.",
        )
    if op not in {"dot", "add"}:
        raise UsageError(f"sddmm: op is {op!r}", 'Give "dot" or "add".')
    operator = _operators.sddmm if op == "dot" else _operators.sddmm_add
    parts = transpose or _NO_TRANSPOSE
    out: Tensor = operator(indptr, indices, x_dst.contiguous(), x_src.contiguous(), *parts)
    return out


def edge_softmax(indptr: Tensor, logits: Tensor) -> Tensor:
    """Softmax over each destination's edges: y_e = exp(z_e) / sum over the row's e' of exp(z_e').

    Parameters
    ----------
    indptr
        (D + 1,) int64; row d spans ``logits[indptr[d]:indptr[d + 1]]``.
    logits
        (E,) or (E, H), types as in `spmm`; each head by itself.

    Returns
    -------
    Tensor
        Of the shape and dtype of `logits`. Differentiable once.

    Raises
    ------
    UsageError
        A dtype, shape or device is wrong.
    """
    _check_csr(indptr, indptr)
    columns = logits[:, None] if logits.dim() == 1 else logits
    _check_features("edge_softmax", "logits", columns, indptr)
    out: Tensor = _operators.edge_softmax(indptr, columns.contiguous())
    return out.view(logits.shape)


def attention(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    a_dst: Tensor,
    a_src: Tensor,
    *,
    slope: float = 0.2,
    transpose: Csr | None = None,
) -> Tensor:
    """Graph attention (Velickovic et al., 2018), fused: y_dh = sum_e w_eh x_src(e)h.

    The weights w are the softmax over the row of LeakyReLU(a_dst(e)h + a_src(e)h). They are not
    stored: one log-sum-exp a row and head is, and the backward pass computes them again.

    Parameters
    ----------
    indptr
        (D + 1,) int64; row d spans ``indices[indptr[d]:indptr[d + 1]]``.
    indices
        (E,) int32 or int64, sources, each in [0, S).
    x
        (S, H, F), types as in `spmm`.
    a_dst
        (D, H) of the dtype of `x`; float32 goes with float16 and bfloat16 too.
    a_src
        (S, H), likewise.
    slope
        Of the LeakyReLU below 0, at least 0.
    transpose
        As in `spmm`.

    Returns
    -------
    Tensor
        (D, H, F) of the dtype of `x`; rows without edges are 0. Differentiable once, in `x`,
        `a_dst` and `a_src`.

    Raises
    ------
    UsageError
        A dtype, shape or device is wrong, or the slope is negative.
    """
    _check_csr(indptr, indices)
    if x.dim() != 3:
        raise UsageError(f"attention: x is {tuple(x.shape)}", "Give (S, H, F): heads apart.")
    _check_features("attention", "x", x[:, :, 0], indptr)
    for name, a, num_rows in (("a_dst", a_dst, len(indptr) - 1), ("a_src", a_src, len(x))):
        _check_features("attention", name, a, indptr)
        if a.shape != (num_rows, x.shape[1]):
            raise UsageError(
                f"attention: {name} is {tuple(a.shape)}, ({num_rows}, {x.shape[1]}) is needed",
                "Give one number for every row and head.",
            )
        if a.dtype not in {x.dtype, torch.promote_types(x.dtype, torch.float32)}:
            raise UsageError(
                f"attention: {name} is {a.dtype}, x is {x.dtype}", f"Give {name}.to(x.dtype)."
            )
    if not slope >= 0:
        raise UsageError(f"attention: slope is {slope}", "Give a slope of at least 0.")
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (x, a_dst, a_src))
    args = x.contiguous(), a_dst.contiguous(), a_src.contiguous(), float(slope), keep
    out: Tensor = _operators.attention(indptr, indices, *args, *(transpose or _NO_TRANSPOSE))[0]
    return out


def edge_scores(
    indptr: Tensor,
    indices: Tensor,
    x_dst: Tensor,
    x_src: Tensor,
    att: Tensor,
    *,
    slope: float = 0.2,
    transpose: Csr | None = None,
) -> Tensor:
    """Score edges as GATv2 (Brody et al., 2022): z_eh = att_h . LeakyReLU(x_dst(e)h + x_src(e)h).

    Parameters
    ----------
    indptr
        (D + 1,) int64; row d spans ``indices[indptr[d]:indptr[d + 1]]``.
    indices
        (E,) int32 or int64, sources, each in [0, S).
    x_dst
        (D, H, F), types as in `spmm`.
    x_src
        (S, H, F) of the dtype of `x_dst`.
    att
        (H, F) of the dtype of `x_dst`; float32 goes with float16 and bfloat16 too.
    slope
        Of the LeakyReLU below 0, at least 0.
    transpose
        As in `spmm`.

    Returns
    -------
    Tensor
        (E, H) of the dtype of `x_src`, in the order of `indices`. Differentiable once, in `x_dst`,
        `x_src` and `att`.

    Raises
    ------
    UsageError
        A dtype, shape or device is wrong, or the slope is negative.
    """
    _check_csr(indptr, indices)
    if att.dim() != 2:
        raise UsageError(f"edge_scores: att is {tuple(att.shape)}", "Give (H, F): heads apart.")
    _check_features("edge_scores", "att", att, indptr)
    for name, x, num_rows in (("x_dst", x_dst, len(indptr) - 1), ("x_src", x_src, len(x_src))):
        if x.shape != (num_rows, *att.shape):
            raise UsageError(
                f"edge_scores: {name} is {tuple(x.shape)}, {(num_rows, *att.shape)} is needed",
                "Give one row for every node, with the heads and width of att.",
            )
        _check_features("edge_scores", name, x[:, :, 0], indptr)
    if x_dst.dtype != x_src.dtype or att.dtype not in {
        x_src.dtype,
        torch.promote_types(x_src.dtype, torch.float32),
    }:
        raise UsageError(
            f"edge_scores: x_dst is {x_dst.dtype}, x_src {x_src.dtype}, att {att.dtype}",
            "Give all one dtype.",
        )
    if not slope >= 0:
        raise UsageError(f"edge_scores: slope is {slope}", "Give a slope of at least 0.")
    args = x_dst.contiguous(), x_src.contiguous(), att.contiguous(), float(slope)
    out: Tensor = _operators.edge_scores(indptr, indices, *args, *(transpose or _NO_TRANSPOSE))
    return out


def gather(x: Tensor, index: Tensor) -> Tensor:
    """Copy rows: y_r = x_index(r).

    Parameters
    ----------
    x
        (S, F), types as in `spmm`.
    index
        (R,) int32 or int64, each in [0, S), in any order, duplicates included.

    Returns
    -------
    Tensor
        (R, F) of the dtype of `x`. Differentiable any number of times: the gradients of a row
        are summed in the order of `index`.

    Raises
    ------
    UsageError
        A dtype, shape or device is wrong.
    """
    indptr = torch.arange(len(index) + 1, device=index.device)  # a sum over one edge a row
    return spmm(indptr, index.contiguous(), x)


def gather_tiers(ids: Tensor, slot: Tensor, cache: Tensor, host: Tensor) -> Tensor:
    """Copy rows of two tiers: y_r = cache_slot(id), or host_id where that slot is below 0.

    On a GPU each row is read where it lies, over the link if that is the host. A row that is asked
    for twice crosses the link twice.

    Parameters
    ----------
    ids
        (R,) int64, each in [0, N), on the device.
    slot
        (N,) int32, the row of `cache` that has a node's features, below 0 for none; on the device.
    cache
        (C, F) of any dtype, on the device.
    host
        (N, F) of the dtype of `cache`, on the CPU, pinned where the device is a GPU. Rows that are
        in the cache are not read.

    Returns
    -------
    Tensor
        (R, F), on the device. No gradient: these are the features of a dataset.

    Raises
    ------
    UsageError
        A dtype, shape or device is wrong.
    """
    _check_tiers("gather_tiers", ids, slot, cache, host)
    out: Tensor = _operators.gather_tiers(ids, slot, cache, host)
    return out


def spmm_tiers(
    indptr: Tensor,
    indices: Tensor,
    ids: Tensor,
    slot: Tensor,
    cache: Tensor,
    host: Tensor,
    *,
    reduce: Literal["sum", "mean"] = "sum",
) -> Tensor:
    """Reduce over edges rows of two tiers: `spmm` of `gather_tiers`, which is never made on a GPU.

    For the first layer's block, where its sources have few edges each: a row crosses the link once
    an edge. Where a source is used more than twice, gather first.

    Parameters
    ----------
    indptr
        (D + 1,) int64; row d spans ``indices[indptr[d]:indptr[d + 1]]``.
    indices
        (E,) int32 or int64, sources, each in [0, S).
    ids
        (S,) int64, the node of each source, as in `gather_tiers`.
    slot
        As in `gather_tiers`.
    cache
        As in `gather_tiers`, of the types of `spmm`.
    host
        As in `gather_tiers`.
    reduce
        "sum" or "mean".

    Returns
    -------
    Tensor
        (D, F) of the dtype of `cache`, on the device. No gradient.

    Raises
    ------
    UsageError
        A dtype, shape or device is wrong, or `reduce` is unknown.
    """
    _check_csr(indptr, indices)
    _check_tiers("spmm_tiers", ids, slot, cache, host)
    _check_features("spmm_tiers", "cache", cache, indptr)
    if reduce not in {"sum", "mean"}:
        raise UsageError(f"spmm_tiers: reduce is {reduce!r}", 'Give "sum" or "mean".')
    out: Tensor = _operators.spmm_tiers(indptr, indices, ids, slot, cache, host, reduce)
    return out


def sage(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    w_self: Tensor,
    w_neigh: Tensor,
    bias: Tensor | None = None,
    *,
    transpose: Csr | None = None,
) -> Tensor:
    """Layer of GraphSAGE, fused: y_d = W_self x_d + b + W_neigh mean_e x_src(e).

    The first D sources are the destinations. It computes what `spmm` and torch's products would,
    without their temporaries: products are added into one another, and the gradient of the own
    rows into that of the neighbours.

    Parameters
    ----------
    indptr
        (D + 1,) int64; row d spans ``indices[indptr[d]:indptr[d + 1]]``.
    indices
        (E,) int32 or int64, sources, each in [0, S).
    x
        (S, F), S at least D, types as in `spmm`.
    w_self
        (G, F) of the dtype of `x`.
    w_neigh
        (G, F) of the dtype of `x`.
    bias
        (G,) of the dtype of `x`.
    transpose
        As in `spmm`.

    Returns
    -------
    Tensor
        (D, G) of the dtype of `x`, or of autocast's, as of torch's products; the mean of no
        neighbours is 0. Differentiable in `x` and the parameters, any number of times.

    Raises
    ------
    UsageError
        A dtype, shape or device is wrong, or x has fewer rows than there are destinations.
    """
    _check_csr(indptr, indices)
    x, w_self, w_neigh = _autocast(x), _autocast(w_self), _autocast(w_neigh)
    bias = None if bias is None else _autocast(bias)
    _check_features("sage", "x", x, indptr)
    if len(x) < len(indptr) - 1:
        raise UsageError(
            f"sage: x has {len(x)} rows, the graph {len(indptr) - 1} destinations",
            "Give the rows of the destinations first, then the other sources'.",
        )
    shape = w_self.shape[0], x.shape[1]
    given: list[tuple[str, Tensor, tuple[int, ...]]]
    given = [("w_self", w_self, shape), ("w_neigh", w_neigh, shape)]
    given += [] if bias is None else [("bias", bias, shape[:1])]
    for name, part, wanted in given:
        if part.shape != wanted or part.dtype != x.dtype or part.device != x.device:
            raise UsageError(
                f"sage: {name} is {tuple(part.shape)} {part.dtype} on {part.device}, "
                f"{wanted} {x.dtype} on {x.device} is needed",
                "Give weights (G, F) and a bias (G,) like x.",
            )
    args = x.contiguous(), w_self, w_neigh, bias, *(transpose or _NO_TRANSPOSE)
    out: Tensor = _operators.sage(indptr, indices, *args)[0]
    return out


def transpose(indptr: Tensor, indices: Tensor, num_src: int, out: Csr | None = None) -> Csr:
    """List the same edges by source: a stable counting sort on one thread, without the GIL.

    Parameters
    ----------
    indptr
        (D + 1,) int64; row d spans ``indices[indptr[d]:indptr[d + 1]]``.
    indices
        (E,) int32 or int64, sources, each in [0, S).
    num_src
        S.
    out
        CPU tensors of the shapes and dtypes below to write into.

    Returns
    -------
    tuple
        ``indptr (S + 1,) int64``, ``indices (E,)`` the destinations, ascending in a row, and
        ``edge (E,)`` their positions in the order by destination; the latter two as `indices`.

    Raises
    ------
    UsageError
        A dtype or shape is wrong, or positions of edges do not fit int32 indices.
    """
    _check_csr(indptr, indices)
    _check_positions("transpose", indices)
    if out is None:
        result: Csr = _operators.transpose(indptr, indices, num_src)
        return result
    shapes = ((num_src + 1,), indices.shape, indices.shape)
    dtypes = (torch.int64, indices.dtype, indices.dtype)
    for part, shape, dtype in zip(out, shapes, dtypes, strict=True):
        if part.shape != shape or part.dtype != dtype or not part.is_contiguous():
            raise UsageError(
                f"transpose: out is {tuple(part.shape)} {part.dtype}, "
                f"{tuple(shape)} {dtype} is needed",
                "Give three contiguous tensors: indptr (S + 1,), indices (E,), edge (E,).",
            )
    transpose_into(indptr, indices, num_src, out)
    return out


def dropout(x: Tensor, row_id: Tensor, p: float, key: Key) -> Tensor:
    """Zero each element with probability p, scale the others by 1 / (1 - p).

    What happens to an element is a pure function of the key, its row's id and its column: it
    depends neither on threads nor on which other rows are there. Its bits are the high word of
    SplitMix64's stream, started at mix(id ^ state(key)), at the column; it is kept where they are
    at least p 2^32.

    Parameters
    ----------
    x
        (R, F), types as in `spmm`.
    row_id
        (R,) int64, distinct names of the rows, such as global node ids.
    p
        In [0, 1].
    key
        What the draws belong to.

    Returns
    -------
    Tensor
        (R, F) of the dtype of `x`; `x` itself where p is 0. Differentiable: the backward pass
        draws the same mask again, and nothing is stored for it.

    Raises
    ------
    UsageError
        A dtype, shape or device is wrong, or `p` is outside [0, 1].
    """
    _check_features("dropout", "x", x, row_id)
    if row_id.dtype != torch.int64 or row_id.shape != x.shape[:1]:
        raise UsageError(
            f"dropout: row_id is {tuple(row_id.shape)} {row_id.dtype}, x has {len(x)} rows",
            "Give one int64 id for every row.",
        )
    if not 0 <= p <= 1:
        raise UsageError(f"dropout: p is {p}", "Give a probability from 0 to 1.")
    if p == 0:
        return x
    out: Tensor = _operators.dropout(x.contiguous(), row_id.contiguous(), p, list(key))
    return out


def _autocast(x: Tensor) -> Tensor:
    """Cast an operand as autocast does those of torch's products: all but float64."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64:
        return x
    return x.to(torch.get_autocast_dtype(kind))


def _check_csr(indptr: Tensor, indices: Tensor) -> None:
    if indptr.dtype != torch.int64 or indptr.dim() != 1 or not indptr.shape[0]:
        raise UsageError(
            f"indptr is {tuple(indptr.shape)} {indptr.dtype}, (D + 1,) torch.int64 is needed",
            "Give the row starts of a CSR, one more than it has rows.",
        )
    if indices.dtype not in {torch.int32, torch.int64} or indices.dim() != 1:
        raise UsageError(
            f"indices is {tuple(indices.shape)} {indices.dtype}, "
            "(E,) torch.int32 or torch.int64 is needed",
            "Give one source for every edge.",
        )
    if not (indptr.is_contiguous() and indices.is_contiguous()):
        raise UsageError("indptr or indices is not contiguous", "Give .contiguous() of both.")


def _check_positions(op: str, indices: Tensor) -> None:
    """Positions of edges are kept in the dtype of the indices."""
    if indices.dtype == torch.int32 and len(indices) >= 2**31:
        raise UsageError(
            f"{op}: positions of {len(indices)} edges do not fit int32",
            "Give indices.to(torch.int64).",
        )


def _check_features(op: str, name: str, x: Tensor, like: Tensor) -> None:
    if x.dtype not in _FLOATS or x.dim() != 2:
        raise UsageError(
            f"{op}: {name} is {tuple(x.shape)} {x.dtype}, a matrix of floats is needed",
            f"Give {name}.float(), or {name}[:, None] where a row is one number.",
        )
    if x.device != like.device:
        raise UsageError(
            f"{op}: {name} is on {x.device}, the rest on {like.device}",
            "Move one to the other's device.",
        )


def _check_tiers(op: str, ids: Tensor, slot: Tensor, cache: Tensor, host: Tensor) -> None:
    if ids.dtype != torch.int64 or slot.dtype != torch.int32:
        raise UsageError(
            f"{op}: ids are {ids.dtype}, slots {slot.dtype}", "Give ids of int64, slots of int32."
        )
    if cache.dtype != host.dtype or cache.shape[1:] != host.shape[1:] or len(slot) != len(host):
        raise UsageError(
            f"{op}: cache is {tuple(cache.shape)} {cache.dtype}, host {tuple(host.shape)} "
            f"{host.dtype}, with {len(slot)} slots",
            "Give rows of one width and dtype, and a slot for every row of the host.",
        )
    if not (ids.device == slot.device == cache.device) or not host.is_cpu:
        raise UsageError(
            f"{op}: ids are on {ids.device}, slots on {slot.device}, the cache on {cache.device}, "
            f"the host's rows on {host.device}",
            "Give the host's rows on the CPU and the rest on one device.",
        )
    if not cache.is_cpu and not host.is_pinned():
        raise UsageError(f"{op}: the host's rows are not pinned", "Give host.pin_memory().")
    if not all(t.is_contiguous() for t in (ids, slot, cache, host)):
        raise UsageError(f"{op}: an argument is not contiguous", "Give .contiguous() of all.")


def _check_weight(weight: Tensor, indices: Tensor, x: Tensor) -> None:
    if weight.shape != indices.shape:
        raise UsageError(
            f"spmm: weight is {tuple(weight.shape)}, the graph has {len(indices)} edges",
            "Give one weight for every edge.",
        )
    if weight.dtype not in {x.dtype, torch.promote_types(x.dtype, torch.float32)}:
        raise UsageError(
            f"spmm: weight is {weight.dtype}, x is {x.dtype}", "Give weight.to(x.dtype)."
        )
