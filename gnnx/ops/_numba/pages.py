"""Memory for results: kept from one to the next.

A large result is new memory from the system every time, and the first touch of its pages costs a
quarter to a third of an spmm that fills them. Results of a training step are freed and asked for
again in the next one: a ledger keeps their pages, never more than were held at once, and no more
than a quarter of what was free at first. Where a run has a DEVICE budget, they also stay within
what its batches leave of that.
"""

from __future__ import annotations

import functools
import os
import weakref

import torch
from torch import Tensor

from gnnx.errors import BudgetError
from gnnx.memory import Budget, Ledger, Tier, available_bytes

_SMALLEST = 4 << 20  # below it the C library keeps memory by itself
_runs: weakref.WeakSet[Ledger] = weakref.WeakSet()  # ledgers whose DEVICE budget has a limit


def keep_within(ledger: Ledger) -> None:
    """Hold results, while `ledger` lives, within what its DEVICE budget has free."""
    if ledger.budget.device is not None:
        _runs.add(ledger)


def peak_bytes() -> int:
    """Most bytes of results that were held at once in kept pages."""
    return _results().peak_bytes(Tier.DEVICE)


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """`torch.empty`, in pages that have been touched before if there are any."""
    size = torch.Size(shape).numel() * dtype.itemsize
    if size < _SMALLEST or not _make_room(size):
        return torch.empty(shape, dtype=dtype)
    try:
        held = _results().tensor(shape, dtype, Tier.DEVICE, "results")
    except BudgetError:  # so much is held that keeping more would be a burden
        return torch.empty(shape, dtype=dtype)
    # not a view: autograd lets nobody change a view that an operator returns
    return torch.empty(0, dtype=dtype).set_(held.untyped_storage(), 0, shape, held.stride())


def _make_room(size: int) -> bool:
    """Whether the runs' budgets leave `size` bytes beside the results; gives up pages for it."""
    free = [left for ledger in list(_runs) if (left := ledger.free_bytes(Tier.DEVICE)) is not None]
    if not free:
        return True
    results, room = _results(), min(free)
    held = results.held_bytes(Tier.DEVICE)
    if held + results.kept_bytes(Tier.DEVICE) + size > room:
        results.trim()
    return held + size <= room


@functools.cache
def _results() -> Ledger:
    return Ledger(Budget(device=available_bytes() // 4))


os.register_at_fork(after_in_child=_results.cache_clear)  # its lock may be held by a lost thread
