"""Message passing on tensors: spmm over a CSR, and the transpose of one.

Shapes: D destinations, S sources, E edges, F feature width. A CSR is ``indptr (D + 1,) int64`` and
``indices (E,) int32 or int64``: row d lists the sources of d, in any order, duplicates and loops
included. Its transpose lists the same edges by source, with each edge's position in the CSR: a
backward pass walks it without atomics, so that results are repeatable to the last bit.

Arguments are checked here, once: types, shapes, devices. The entries of `indptr` and `indices` are
trusted. Below the public functions stand operators of `torch.library`, so that autograd,
`torch.compile` and every device reach them alike: `_reference` serves any device for which no
faster kernel is registered.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from gnnx.errors import UsageError
from gnnx.ops import _numba, _reference

__all__ = ["spmm", "transpose"]

Reduce = Literal["sum", "mean"]
Csr = tuple[Tensor, Tensor, Tensor]

_FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

# Schemas know no tuples, so a transpose is three tensors, each optional.
_TRANSPOSED = "Tensor? t_indptr, Tensor? t_indices, Tensor? t_edge"

_transpose = torch.library.custom_op(
    "gnnx::transpose",
    _reference.transpose,
    mutates_args=(),
    schema="(Tensor indptr, Tensor indices, SymInt num_src) -> (Tensor, Tensor, Tensor)",
)
_transpose.register_kernel("cpu")(_numba.transpose)

_spmm = torch.library.custom_op(
    "gnnx::spmm",
    _reference.spmm,
    mutates_args=(),
    schema="(Tensor indptr, Tensor indices, Tensor x, Tensor? weight, str reduce, "
    f"{_TRANSPOSED}) -> Tensor",
)
_spmm.register_kernel("cpu")(_numba.spmm)


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
    if indices.dtype == torch.int32 and len(indices) >= 2**31:
        raise UsageError(
            f"transpose: positions of {len(indices)} edges do not fit int32",
            "Give indices.to(torch.int64).",
        )
    if out is None:
        result: Csr = _transpose(indptr, indices, num_src)
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
    _numba.transpose_into(indptr, indices, num_src, out)
    return out


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
        (S, F) float32, float64, float16 or bfloat16; the last two are summed in float32.
    weight
        (E,) of the dtype of `x`; float32 goes with float16 and bfloat16 too.
    reduce
        The mean divides by the number of edges, whatever their weights.
    transpose
        What `gnnx.ops.transpose` gives; without it the backward pass builds one.

    Returns
    -------
    Tensor
        (D, F) of the dtype of `x`; rows without edges are 0. Differentiable in `x` and `weight`.

    Raises
    ------
    UsageError
        A dtype, shape or device is wrong, or `reduce` is unknown.
    """
    _check_csr(indptr, indices)
    _check_features("spmm", "x", x, indptr)
    if weight is not None:
        _check_weight(weight, indices, x)
    if reduce not in {"sum", "mean"}:
        raise UsageError(f"spmm: reduce is {reduce!r}", 'Give "sum" or "mean".')
    out: Tensor = _spmm(
        indptr, indices, x.contiguous(), weight, reduce, *(transpose or (None, None, None))
    )
    return out


@_transpose.register_fake
def _(indptr: Tensor, indices: Tensor, num_src: int) -> Csr:
    return indptr.new_empty(num_src + 1), torch.empty_like(indices), torch.empty_like(indices)


@_spmm.register_fake
def _(indptr: Tensor, indices: Tensor, x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(indptr.shape[0] - 1, x.shape[1])


def _check_csr(indptr: Tensor, indices: Tensor) -> None:
    if indptr.dtype != torch.int64 or indptr.dim() != 1 or not len(indptr):
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


def _check_features(op: str, name: str, x: Tensor, indptr: Tensor) -> None:
    if x.dtype not in _FLOATS or x.dim() != 2:
        raise UsageError(
            f"{op}: {name} is {tuple(x.shape)} {x.dtype}, a matrix of floats is needed",
            f"Give {name}.float(), or {name}[:, None] where a row is one number.",
        )
    if x.device != indptr.device:
        raise UsageError(
            f"{op}: {name} is on {x.device}, the graph on {indptr.device}",
            "Move one to the other's device.",
        )


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
