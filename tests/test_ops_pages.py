"""Pages that results keep: what a run's DEVICE budget leaves, and not a byte more."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnx import ops
from gnnx.memory import Budget, Ledger, Tier
from gnnx.ops._numba import pages

MIB = 1 << 20
LIMIT = 64 * MIB


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """No pages and no runs of other tests."""
    monkeypatch.setattr(pages, "_runs", type(pages._runs)())
    pages._results.cache_clear()
    yield
    pages._results.cache_clear()


def resident():
    """Bytes of results that are held or kept."""
    results = pages._results()
    return results.held_bytes(Tier.DEVICE) + results.kept_bytes(Tier.DEVICE)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=30))
def test_results_and_batches_stay_within_the_budget(steps):
    """Whenever a result is made; batches of any size come and go before it."""
    pages._results.cache_clear()
    ledger, batch, held = Ledger(Budget(device=LIMIT)), None, []
    ops.keep_results_within(ledger)
    for is_batch, size in steps:
        if is_batch:
            del batch
            batch = ledger.empty(size * MIB, "u1", Tier.DEVICE, "batch")
            continue
        held = held[-2:]
        held.append(pages.empty(size * MIB, dtype=torch.uint8))
        assert len(held[-1]) == size * MIB
        within = ledger.held_bytes(Tier.DEVICE) + resident()
        given_back = resident() == pages._results().held_bytes(Tier.DEVICE)
        assert within <= LIMIT or given_back  # a batch came after results that still live


def test_pages_are_kept_where_there_is_room_and_given_up_where_not():
    ledger = Ledger(Budget(device=LIMIT))
    ops.keep_results_within(ledger)
    place = pages.empty(24 * MIB, dtype=torch.uint8).data_ptr()
    assert resident() == 24 * MIB
    assert pages.empty(24 * MIB, dtype=torch.uint8).data_ptr() == place
    batch = ledger.empty(48 * MIB, "u1", Tier.DEVICE, "batch")
    made = pages.empty(24 * MIB, dtype=torch.uint8)
    assert resident() == 0
    del batch, made
    assert pages.empty(24 * MIB, dtype=torch.uint8) is not None
    assert resident() == 24 * MIB
    assert ops.peak_results_bytes() == 24 * MIB


def test_a_run_that_has_ended_binds_nobody():
    ledger = Ledger(Budget(device=8 * MIB))
    ops.keep_results_within(ledger)
    del ledger
    pages.empty(24 * MIB, dtype=torch.uint8)
    assert resident() == 24 * MIB


def test_runs_without_a_limit_bind_nobody():
    ledger = Ledger(Budget())
    ops.keep_results_within(ledger)
    pages.empty(24 * MIB, dtype=torch.uint8)
    assert resident() == 24 * MIB
