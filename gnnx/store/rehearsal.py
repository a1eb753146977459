"""The smallest budget that works, found by trying: a true bound, not a sum of estimates."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING

from gnnx.errors import BudgetError
from gnnx.memory import Ledger, Tier, available_bytes
from gnnx.store.dataset import Dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_NEAR = 1.02  # the search ends when what works and what does not are this close
_SPARE = 1.04  # batches to come may be a little larger than those that were tried
_SHARE = 0.8  # of the bytes that are available, as of a budget's default
_OPTIONS = {Tier.HOST: "--memory", Tier.DEVICE: "--device-memory"}
_log = logging.getLogger("gnnx")


@contextlib.contextmanager
def smallest_named(dataset: Dataset, attempt: Callable[[Dataset], None]) -> Iterator[None]:
    """Let a BudgetError of HOST or DEVICE name the smallest budget with which the work gets done.

    The ledger knows only the allocation that failed. Here the work is rehearsed in other budgets
    of that tier, until one that works lies 2 % above one that does not; 4 % are added. Where a
    rehearsal would take more than 80 % of the RAM that is available, the error stands as it is.

    Parameters
    ----------
    dataset
        Opened with the budget that may fail.
    attempt
        Does what takes memory, quickly, on the same dataset opened with another budget, or raises
        BudgetError.

    Raises
    ------
    BudgetError
        With the first line of the one met, and the smallest budget in the second.
    """
    try:
        yield
    except BudgetError as error:
        smallest = _smallest(dataset, attempt, error)
        if smallest is None:
            raise
        tier = Tier(error.tier)
        limit = dataset.ledger.budget.limit(tier) or 0
        raise BudgetError(
            error.cause,
            f"Give {_OPTIONS[tier]} at least {-(-smallest // 1024)}KiB: with that it works.",
            tier=error.tier,
            shortfall_bytes=smallest - limit,
            smallest_bytes=smallest,
        ) from error


def _smallest(
    dataset: Dataset, attempt: Callable[[Dataset], None], error: BudgetError
) -> int | None:
    """Find enough bytes of the failed tier; None where another or the machine is short too.

    Nor are there rehearsals of typed graphs.
    """
    tier, limit = Tier(error.tier), dataset.ledger.budget.limit(Tier(error.tier))
    if tier not in _OPTIONS or limit is None or dataset.is_typed:
        return None
    low, high = limit, error.smallest_bytes
    while True:
        if high > _SHARE * available_bytes():  # it is taken beside what the first dataset holds
            return None
        needed = _needed(dataset, attempt, tier, high)
        if needed is None:
            break
        if needed < 0:
            return None
        low, high = high, max(needed, high + high // 2)
    while high > _NEAR * low + 1024:
        middle = (low + high) // 2
        if _needed(dataset, attempt, tier, middle) is None:
            high = middle
        else:
            low = middle
    return -(-int(_SPARE * high) // 1024) * 1024


def _needed(
    dataset: Dataset, attempt: Callable[[Dataset], None], tier: Tier, num_bytes: int
) -> int | None:
    """Try a budget: None where it works, else what it lacks asks for; -1 for another tier."""
    budget = dataclasses.replace(dataset.ledger.budget, **{tier.value: num_bytes})
    level = _log.level
    _log.setLevel(logging.ERROR)  # what a rehearsal gives up is nobody's concern
    try:
        with Dataset(dataset.path, Ledger(budget), io_threads=dataset.io_threads) as other:
            attempt(other)
    except BudgetError as error:
        return error.smallest_bytes if error.tier == tier.value else -1
    finally:
        _log.setLevel(level)
    return None
