"""The operators below `gnnx.ops`: schema, kernels by device, shapes without data, gradients.

They are operators of `torch.library`, so that autograd, `torch.compile` and every device reach
them alike. `_reference` serves each device for which no faster kernel is registered; a new device
adds a file of kernels and a line in `_BACKENDS`.

Shapes: D destinations, S sources, E edges, F feature width. The gradients of spmm and sddmm are
made of the two, over the transposed order: nothing of size E x F, no atomics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gnnx.ops import _cuda, _numba, _reference
from gnnx.ops._numba.pages import empty

if TYPE_CHECKING:
    from collections.abc import Callable

# Schemas know no tuples, so a transpose is three tensors, each optional.
_CSR = "Tensor indptr, Tensor indices"
_TRANSPOSE = "Tensor? t_indptr, Tensor? t_indices, Tensor? t_edge"
_TIERS = "Tensor ids, Tensor slot, Tensor cache, Tensor host"
_SCHEMAS = {
    "transpose": f"({_CSR}, SymInt num_src) -> (Tensor, Tensor, Tensor)",
    "spmm": f"({_CSR}, Tensor x, Tensor? weight, str reduce, {_TRANSPOSE}, Tensor? edge=None)"
    " -> Tensor",
    "spmm_extremum": f"({_CSR}, Tensor x, Tensor? weight, str reduce) -> (Tensor, Tensor)",
    "extremum_grad_x": "(Tensor grad, Tensor arg, Tensor indices, Tensor? weight, SymInt num_src)"
    " -> Tensor",
    "extremum_grad_weight": "(Tensor grad, Tensor arg, Tensor indices, Tensor x) -> Tensor",
    "gather_tiers": f"({_TIERS}) -> Tensor",
    "spmm_tiers": f"({_CSR}, {_TIERS}, str reduce) -> Tensor",
    "sddmm": f"({_CSR}, Tensor x_dst, Tensor x_src, {_TRANSPOSE}) -> Tensor",
    "sddmm_add": f"({_CSR}, Tensor x_dst, Tensor x_src, {_TRANSPOSE}) -> Tensor",
    "edge_softmax": "(Tensor indptr, Tensor logits) -> Tensor",
    "edge_softmax_grad": "(Tensor indptr, Tensor out, Tensor grad) -> Tensor",
    "attention": f"({_CSR}, Tensor x, Tensor a_dst, Tensor a_src, float slope, bool keep, "
    f"{_TRANSPOSE}) -> (Tensor, Tensor, Tensor, Tensor)",
    "attention_grad": f"({_CSR}, Tensor x, Tensor a_dst, Tensor a_src, float slope, Tensor out, "
    "Tensor lse, Tensor positive, Tensor share, Tensor grad, Tensor t_indptr, Tensor t_indices)"
    " -> (Tensor, Tensor, Tensor)",
    "sage": f"({_CSR}, Tensor x, Tensor w_self, Tensor w_neigh, Tensor? bias, {_TRANSPOSE})"
    " -> (Tensor, Tensor)",
    "edge_scores": f"({_CSR}, Tensor x_dst, Tensor x_src, Tensor att, float slope, {_TRANSPOSE})"
    " -> Tensor",
    "edge_scores_grad": f"({_CSR}, Tensor x_dst, Tensor x_src, Tensor att, float slope, "
    "Tensor grad, Tensor t_indptr, Tensor t_indices, Tensor t_edge) -> (Tensor, Tensor, Tensor)",
    "dropout": "(Tensor x, Tensor row_id, float p, SymInt[] key) -> Tensor",
}


# Not `custom_op`: each kernel it wraps imports torch's compiler when first called, over a second.
_library: Any = torch.library.Library("gnnx", "DEF")  # type: ignore[no-untyped-call]
_BACKENDS = {
    "CPU": _numba,
    "CUDA": _cuda,
}  # by torch's dispatch key; a backend serves the operators it names


def _operator(
    name: str, fake: Callable[..., Any], composed: Callable[..., Any] | None = None
) -> Any:
    """Define gnnx::name with the kernel of that name in each backend that has one.

    `fake` gives outputs of the right shapes and dtypes without computing them. An operator that is
    `composed` of others here needs no kernel of its own.
    """
    _library.define(name + _SCHEMAS[name], tags=torch.Tag.pt2_compliant_tag)
    _library.impl(name, composed or getattr(_reference, name), "CompositeExplicitAutograd")
    for key, backend in _BACKENDS.items():
        if hasattr(backend, name):
            _library.impl(name, getattr(backend, name), key)
    torch.library.register_fake(f"gnnx::{name}", fake, lib=_library)
    return getattr(torch.ops.gnnx, name).default


def _differentiable(name: str, backward: Callable[..., Any], keep: Callable[..., Any]) -> None:
    """Give gnnx::name a gradient; `keep` saves in the forward pass what `backward` needs."""
    torch.library.register_autograd(f"gnnx::{name}", backward, setup_context=keep, lib=_library)


def _fake_transpose(indptr: Tensor, indices: Tensor, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    return indptr.new_empty(num_src + 1), torch.empty_like(indices), torch.empty_like(indices)


transpose = _operator("transpose", _fake_transpose)


# spmm: y_d = sum_e w_e x_src(e), for a mean divided by the row's edges. Its gradient dx is spmm of
# dy over the transpose, and where y_d was divided dy_d is: by the edges of what is a source there,
# which `reduce="spread"` says. So neither a scaled gradient nor a permuted copy of the weights is
# made: the transpose reads the weight of its edge e at t_edge[e], as this order does at edge[e] if
# it is itself a transpose. dw_e is dy_dst(e) . x_src(e).

_DUAL = {"sum": "sum", "mean": "spread", "spread": "mean"}


def _fake_spmm(indptr: Tensor, indices: Tensor, x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(indptr.shape[0] - 1, x.shape[1])


spmm = _operator("spmm", _fake_spmm)


def _keep_spmm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    indptr, indices, x, weight, ctx.reduce, *parts = inputs
    ctx.num_src, ctx.dtype = x.shape[0], x.dtype
    x = x if ctx.needs_input_grad[3] else None  # dx does not need it: let it go
    ctx.save_for_backward(indptr, indices, x, weight, *parts)


def _spmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    indptr, indices, x, weight, *parts, edge = ctx.saved_tensors
    grad = grad.contiguous()
    dx = dw = None
    if ctx.needs_input_grad[2]:
        t_indptr, t_indices, t_edge = _transposed(indptr, indices, ctx.num_src, parts)
        args = grad, weight, _DUAL[ctx.reduce], indptr, indices, edge, t_edge
        dx = spmm(t_indptr, t_indices, *args).to(ctx.dtype)
    if ctx.needs_input_grad[3]:
        t_indptr, t_indices, _ = parts
        grad = grad.to(torch.promote_types(grad.dtype, weight.dtype))
        if ctx.reduce == "mean":
            grad = _divided(grad, indptr)
        elif ctx.reduce == "spread":
            x = _divided(x, t_indptr)
        if edge is None:
            dw = sddmm(indptr, indices, grad, x, *parts)
        else:  # the weights are in the order of the transpose
            dw = sddmm(t_indptr, t_indices, x, grad, indptr, indices, edge)
        dw = dw.to(weight.dtype)
    return None, None, dx, dw, None, None, None, None, None


def _divided(x: Tensor, indptr: Tensor) -> Tensor:
    """Rows over their numbers of edges, in at least float32."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return x / indptr.diff().clamp(min=1).to(wide)[:, None]


_differentiable("spmm", _spmm_backward, _keep_spmm)


# spmm, max and min: y_d = w_e x_src(e) of the one edge e = arg_d, column by column.


def _fake_spmm_extremum(
    indptr: Tensor, indices: Tensor, x: Tensor, *_: Any
) -> tuple[Tensor, Tensor]:
    shape = indptr.shape[0] - 1, x.shape[1]
    return x.new_empty(shape), indices.new_empty(shape)


spmm_extremum = _operator("spmm_extremum", _fake_spmm_extremum)


def _fake_extremum_grad_x(
    grad: Tensor, arg: Tensor, indices: Tensor, weight: Any, num_src: int
) -> Tensor:
    return grad.new_empty(num_src, grad.shape[1])


extremum_grad_x = _operator("extremum_grad_x", _fake_extremum_grad_x)


def _fake_extremum_grad_weight(grad: Tensor, arg: Tensor, indices: Tensor, x: Tensor) -> Tensor:
    return grad.new_empty(indices.shape[0])


extremum_grad_weight = _operator("extremum_grad_weight", _fake_extremum_grad_weight)


def _keep_extremum(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    _, indices, x, weight, _ = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.num_src = x.shape[0]
    x = x if ctx.needs_input_grad[3] else None
    ctx.save_for_backward(output[1], indices, x, weight)


def _extremum_backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
    arg, indices, x, weight = ctx.saved_tensors
    grad = grad.contiguous()
    dx = dw = None
    if ctx.needs_input_grad[2]:
        dx = extremum_grad_x(grad, arg, indices, weight, ctx.num_src)
    if ctx.needs_input_grad[3]:
        grad = grad.to(torch.promote_types(grad.dtype, weight.dtype))
        dw = extremum_grad_weight(grad, arg, indices, x).to(weight.dtype)
    return None, None, dx, dw, None


_differentiable("spmm_extremum", _extremum_backward, _keep_extremum)


# Rows of two tiers: the features of nodes, which ask for no gradient.


def _fake_gather_tiers(ids: Tensor, slot: Tensor, cache: Tensor, host: Tensor) -> Tensor:
    return cache.new_empty(ids.shape[0], *cache.shape[1:])


def _fake_spmm_tiers(
    indptr: Tensor, indices: Tensor, ids: Tensor, slot: Tensor, cache: Tensor, *_: Any
) -> Tensor:
    return cache.new_empty(indptr.shape[0] - 1, cache.shape[1])


gather_tiers = _operator("gather_tiers", _fake_gather_tiers)


def _spmm_tiers(indptr: Tensor, indices: Tensor, *rows_and_reduce: Any) -> Tensor:
    *rows, reduce = rows_and_reduce
    out: Tensor = spmm(indptr, indices, gather_tiers(*rows), None, reduce, None, None, None)
    return out


spmm_tiers = _operator("spmm_tiers", _fake_spmm_tiers, _spmm_tiers)


# sddmm: s_e = a_dst(e) . b_src(e), so da is spmm of b weighted by ds, and db the same, transposed.


def _fake_sddmm(indptr: Tensor, indices: Tensor, x_dst: Tensor, x_src: Tensor, *_: Any) -> Tensor:
    dtype = torch.promote_types(x_dst.dtype, x_src.dtype)
    return x_dst.new_empty(indices.shape[0], dtype=dtype)


sddmm = _operator("sddmm", _fake_sddmm)


def _keep_sddmm(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _sddmm_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    indptr, indices, x_dst, x_src, *parts = ctx.saved_tensors
    grad = grad.contiguous()
    d_dst = d_src = None
    if ctx.needs_input_grad[2]:
        d_dst = spmm(indptr, indices, x_src, grad, "sum", *parts).to(x_dst.dtype)
    if ctx.needs_input_grad[3]:
        t_indptr, t_indices, t_edge = _transposed(indptr, indices, x_src.shape[0], parts)
        args = x_dst, grad, "sum", indptr, indices, None, t_edge
        d_src = spmm(t_indptr, t_indices, *args).to(x_src.dtype)
    return None, None, d_dst, d_src, None, None, None


_differentiable("sddmm", _sddmm_backward, _keep_sddmm)


# sddmm_add: z_e = a_dst(e) + b_src(e), so da and db are sums of dz over the edges of either order.


def _fake_sddmm_add(
    indptr: Tensor, indices: Tensor, x_dst: Tensor, x_src: Tensor, *_: Any
) -> Tensor:
    return x_dst.new_empty(indices.shape[0], x_dst.shape[1])


sddmm_add = _operator("sddmm_add", _fake_sddmm_add)


def _keep_sddmm_add(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    indptr, indices, _, x_src, *parts = inputs
    ctx.num_src = x_src.shape[0]
    ctx.save_for_backward(indptr, indices, *parts)


def _sddmm_add_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    indptr, indices, *parts = ctx.saved_tensors
    grad = grad.contiguous()
    d_dst = d_src = None
    if ctx.needs_input_grad[2]:
        edges = torch.arange(indices.shape[0], dtype=indices.dtype, device=indices.device)
        d_dst = spmm(indptr, edges, grad, None, "sum", None, None, None)
    if ctx.needs_input_grad[3]:
        t_indptr, _, t_edge = _transposed(indptr, indices, ctx.num_src, parts)
        d_src = spmm(t_indptr, t_edge, grad, None, "sum", None, None, None)
    return None, None, d_dst, d_src, None, None, None


_differentiable("sddmm_add", _sddmm_add_backward, _keep_sddmm_add)


# edge_softmax: y_e = exp(z_e) / sum over the row, so dz_e = y_e (dy_e - sum over the row of y dy).


def _fake_edge_softmax(indptr: Tensor, logits: Tensor) -> Tensor:
    return torch.empty_like(logits)


def _fake_edge_softmax_grad(indptr: Tensor, out: Tensor, grad: Tensor) -> Tensor:
    return torch.empty_like(out)


edge_softmax = _operator("edge_softmax", _fake_edge_softmax)
edge_softmax_grad = _operator("edge_softmax_grad", _fake_edge_softmax_grad)


def _keep_edge_softmax(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0], output)


def _edge_softmax_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return None, edge_softmax_grad(*ctx.saved_tensors, grad.contiguous())


_differentiable("edge_softmax", _edge_softmax_backward, _keep_edge_softmax)


# attention: weights exp(score - lse) are computed again in the backward pass; what is stored is of
# the size of the nodes.


def _fake_attention(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    a_dst: Tensor,
    a_src: Tensor,
    slope: float,
    keep: bool,
    *_: Any,
) -> tuple[Tensor, ...]:
    wide = torch.promote_types(x.dtype, torch.float32)
    num_rows, *head = indptr.shape[0] - 1, *x.shape[1:]
    kept = num_rows if keep else 0
    return (
        x.new_empty(num_rows, *head),
        x.new_empty(num_rows, head[0], dtype=wide),
        x.new_empty(kept, *head, dtype=wide),
        x.new_empty(kept, head[0], dtype=wide),
    )


attention = _operator("attention", _fake_attention)


def _fake_attention_grad(
    indptr: Tensor, indices: Tensor, x: Tensor, a_dst: Tensor, a_src: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(a_dst), torch.empty_like(a_src)


attention_grad = _operator("attention_grad", _fake_attention_grad)


def _keep_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.slope, ctx.keep, t_indptr, t_indices, t_edge = inputs
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*tensors, *output, t_indptr, t_indices, t_edge)


def _attention_backward(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    indptr, indices, x, a_dst, a_src, out, lse, positive, share, *parts = ctx.saved_tensors
    args = indptr, indices, x, a_dst, a_src, ctx.slope
    if not ctx.keep:
        _, _, positive, share = attention(*args, True, *parts)
    t_indptr, t_indices, _ = _transposed(indptr, indices, x.shape[0], parts)
    kept = out, lse, positive, share, grad.contiguous()
    gradients = attention_grad(*args, *kept, t_indptr, t_indices)
    return None, None, *gradients, None, None, None, None, None


_differentiable("attention", _attention_backward, _keep_attention)


# edge_scores: z_eh = att_h . LeakyReLU(x_dst(e)h + x_src(e)h); both gradients walk the edges again.


def _fake_edge_scores(
    indptr: Tensor, indices: Tensor, x_dst: Tensor, x_src: Tensor, *_: Any
) -> Tensor:
    return x_src.new_empty(indices.shape[0], x_src.shape[1])


edge_scores = _operator("edge_scores", _fake_edge_scores)


def _fake_edge_scores_grad(
    indptr: Tensor, indices: Tensor, x_dst: Tensor, x_src: Tensor, att: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(x_dst), torch.empty_like(x_src), torch.empty_like(att)


edge_scores_grad = _operator("edge_scores_grad", _fake_edge_scores_grad)


def _keep_edge_scores(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, ctx.slope, t_indptr, t_indices, t_edge = inputs
    ctx.save_for_backward(*tensors, t_indptr, t_indices, t_edge)


def _edge_scores_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    indptr, indices, x_dst, x_src, att, *parts = ctx.saved_tensors
    transposed = _transposed(indptr, indices, x_src.shape[0], parts)
    args = indptr, indices, x_dst, x_src, att, ctx.slope, grad.contiguous()
    return None, None, *edge_scores_grad(*args, *transposed), None, None, None, None


_differentiable("edge_scores", _edge_scores_backward, _keep_edge_scores)


# dropout: y = x m / (1 - p), and so is its gradient, with the same mask.


def _fake_dropout(x: Tensor, row_id: Tensor, p: float, key: list[int]) -> Tensor:
    return torch.empty_like(x)


dropout = _operator("dropout", _fake_dropout)


def _keep_dropout(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, row_id, ctx.p, ctx.key = inputs
    ctx.save_for_backward(row_id)


def _dropout_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    (row_id,) = ctx.saved_tensors
    return dropout(grad.contiguous(), row_id, ctx.p, ctx.key), None, None, None


_differentiable("dropout", _dropout_backward, _keep_dropout)


# sage: y_d = W_self x_d + b + W_neigh n_d with the mean n of the neighbours. Written in autograd's
# own operators the gradient of x[:D] is a tensor of size S x F, zero but for D rows, that is added
# to another. Here each product is added into what is there, and n is kept, as an output that a
# second derivative may pass through.


def _sage(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    w_self: Tensor,
    w_neigh: Tensor,
    bias: Tensor | None,
    *parts: Tensor | None,
) -> tuple[Tensor, Tensor]:
    neigh = spmm(indptr, indices, x, None, "mean", *parts)
    shape, own = (len(neigh), len(w_self)), x[: len(neigh)]
    out = empty(*shape, dtype=x.dtype) if x.is_cpu else x.new_empty(shape)
    if bias is None:
        torch.mm(own, w_self.t(), out=out)
    else:
        torch.addmm(bias, own, w_self.t(), out=out)
    return out.addmm_(neigh, w_neigh.t()), neigh


def _fake_sage(
    indptr: Tensor, indices: Tensor, x: Tensor, w_self: Tensor, *_: Any
) -> tuple[Tensor, Tensor]:
    num_rows = indptr.shape[0] - 1
    return x.new_empty(num_rows, w_self.shape[0]), x.new_empty(num_rows, x.shape[1])


sage = _operator("sage", _fake_sage, _sage)


def _keep_sage(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    indptr, indices, x, w_self, w_neigh, _, *parts = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(indptr, indices, x, w_self, w_neigh, output[1], *parts)


def _sage_backward(
    ctx: Any, grad: Tensor | None, grad_neigh: Tensor | None
) -> tuple[Tensor | None, ...]:
    indptr, indices, x, w_self, w_neigh, neigh, *parts = ctx.saved_tensors
    _, _, need_x, need_self, need_neigh, need_bias, *_ = ctx.needs_input_grad
    if grad is None:
        grad = x.new_zeros(len(neigh), len(w_self))
    dx = None
    if need_x:
        t_indptr, t_indices, t_edge = _transposed(indptr, indices, len(x), parts)
        d_neigh = grad @ w_neigh if grad_neigh is None else torch.addmm(grad_neigh, grad, w_neigh)
        args = d_neigh, None, "spread", indptr, indices, None, t_edge
        dx = spmm(t_indptr, t_indices, *args)
        dx[: len(neigh)].addmm_(grad, w_self)
    d_self = grad.t() @ x[: len(neigh)] if need_self else None
    d_weight = grad.t() @ neigh if need_neigh else None
    d_bias = grad.sum(0) if need_bias else None
    return None, None, dx, d_self, d_weight, d_bias, None, None, None


_differentiable("sage", _sage_backward, _keep_sage)


def _transposed(
    indptr: Tensor, indices: Tensor, num_src: int, parts: list[Tensor | None]
) -> tuple[Any, Any, Any]:
    """Give the transpose that came with the call, or build one."""
    if parts[0] is None:
        parts = list(transpose(indptr, indices, num_src))
    return parts[0], parts[1], parts[2]
