"""Every operator in plain torch: slow, obvious, on any device. The others are tested against it.

Shapes: D destinations, S sources, E edges, F feature width. Messages are E x F tensors here. Types
below float32 are computed in float32 and rounded once at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor


def transpose(indptr: Tensor, indices: Tensor, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    """CSR by source of a CSR by destination, by a stable sort."""
    order = torch.sort(indices, stable=True).indices
    counts = torch.bincount(indices, minlength=num_src)
    t_indptr = torch.zeros(num_src + 1, dtype=torch.int64, device=indptr.device)
    t_indptr[1:] = torch.cumsum(counts, 0)
    return t_indptr, _rows(indptr)[order].to(indices.dtype), order.to(indices.dtype)


def spmm(
    indptr: Tensor, indices: Tensor, x: Tensor, weight: Tensor | None, reduce: str, *_: object
) -> Tensor:
    """Sum or mean over each row's edges."""
    wide = _messages(indices, x, weight)
    out = wide.new_zeros(len(indptr) - 1, x.shape[1]).index_add(0, _rows(indptr), wide)
    if reduce == "mean":
        out /= indptr.diff().clamp(min=1)[:, None]
    return out.to(x.dtype)


def _rows(indptr: Tensor) -> Tensor:
    """Destination of every edge, (E,) int64."""
    rows = torch.arange(len(indptr) - 1, device=indptr.device)
    return torch.repeat_interleave(rows, indptr.diff())


def _messages(indices: Tensor, x: Tensor, weight: Tensor | None) -> Tensor:
    """Gather what every edge carries, (E, F) in at least float32."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32)).index_select(0, indices)
    return wide if weight is None else wide * weight[:, None]
