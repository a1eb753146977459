"""Memory for results: kept from one to the next.

A large result is new memory from the system every time, and the first touch of its pages costs a
quarter to a third of an spmm that fills them. Results of a training step are freed and asked for
again in the next one: a ledger keeps their pages, never more than were held at once, and no more
than an eighth of what was free at first.
"""

from __future__ import annotations

import functools
import os

import torch
from torch import Tensor

from gnnx.errors import BudgetError
from gnnx.memory import Budget, Ledger, Tier, available_bytes

_SMALLEST = 4 << 20  # below it the C library keeps memory by itself


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """`torch.empty`, in pages that have been touched before if there are any."""
    if torch.Size(shape).numel() * dtype.itemsize < _SMALLEST:
        return torch.empty(shape, dtype=dtype)
    try:
        held = _results().tensor(shape, dtype, Tier.DEVICE, "results")
    except BudgetError:  # so much is held that keeping more would be a burden
        return torch.empty(shape, dtype=dtype)
    # not a view: autograd lets nobody change a view that an operator returns
    return torch.empty(0, dtype=dtype).set_(held.untyped_storage(), 0, shape, held.stride())


@functools.cache
def _results() -> Ledger:
    return Ledger(Budget(device=available_bytes() // 8))


os.register_at_fork(after_in_child=_results.cache_clear)  # its lock may be held by a lost thread
