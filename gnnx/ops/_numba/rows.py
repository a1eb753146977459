"""Transpose of a CSR, and keyed dropout: loops that need no vectors of their own.

Shapes: D destinations, S sources, E edges, R rows, F feature width.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gnnx import threads
from gnnx.ops._numba.pieces import grain
from gnnx.random import GAMMA, Key, mix, mix_int
from gnnx.threads import kernel

_DROPOUT = 0x64726F706F757400  # "dropout": keeps its draws apart from a sampler's under one key


def transpose(indptr: Tensor, indices: Tensor, num_src: int) -> tuple[Tensor, Tensor, Tensor]:
    """CSR by source, by counting sort."""
    out = indptr.new_empty(num_src + 1), torch.empty_like(indices), torch.empty_like(indices)
    transpose_into(indptr, indices, num_src, out)
    return out


def transpose_into(
    indptr: Tensor, indices: Tensor, num_src: int, out: tuple[Tensor, Tensor, Tensor]
) -> None:
    """Do the same into tensors at hand; the caller's thread does it all, without the GIL."""
    _count_sort(indptr.numpy(), indices.numpy(), num_src, *(part.numpy() for part in out))


@kernel
def _count_sort(
    indptr: Any, indices: Any, num_src: Any, t_indptr: Any, t_indices: Any, edge: Any
) -> None:
    t_indptr[:] = 0
    for e in range(indices.shape[0]):
        t_indptr[indices[e]] += 1
    start = 0
    for s in range(num_src + 1):
        count = t_indptr[s]
        t_indptr[s] = start
        start += count
    for d in range(indptr.shape[0] - 1):
        for e in range(indptr[d], indptr[d + 1]):
            s = indices[e]
            at = t_indptr[s]
            t_indices[at] = d
            edge[at] = e
            t_indptr[s] = at + 1
    for s in range(num_src, 0, -1):  # each entry has moved on to the start of the next row
        t_indptr[s] = t_indptr[s - 1]
    t_indptr[0] = 0


def dropout(x: Tensor, row_id: Tensor, p: float, key: list[int]) -> Tensor:
    """Zero or scale each element by a draw of its key, row id and column."""
    wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    out = torch.empty_like(wide)
    values = wide.numpy()
    scale = values.dtype.type(1 / (1 - p) if p < 1 else 0)
    state = np.uint64(mix_int(Key(*key).fold() ^ _DROPOUT))
    args = values, row_id.numpy(), np.uint64(round(p * 2**32)), scale, state, out.numpy()
    threads.run(lambda begin, end: _drop_rows(begin, end, *args), len(x), grain=grain(x.shape[1]))
    return out.to(x.dtype)


@kernel
def _drop_rows(
    begin: Any, end: Any, x: Any, row_id: Any, threshold: Any, scale: Any, state: Any, out: Any
) -> None:
    zero = x.dtype.type(0)
    for r in range(begin, end):
        column = mix(state ^ np.uint64(row_id[r]))
        for f in range(x.shape[1]):
            column += np.uint64(GAMMA)
            kept = (mix(column) >> np.uint64(32)) >= threshold
            out[r, f] = x[r, f] * scale if kept else zero
