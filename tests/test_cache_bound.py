"""Belady's bound of an epoch: exact where all rows are followed, near where a sample is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from gnnx.cache.bound import BeladyBound, bound_bytes
from gnnx.errors import BudgetError
from gnnx.memory import Budget, Ledger, Tier

N = 1000


def skewed(num_batches, size, seed, num_rows=N):
    """Distinct rows of each batch, the low ones likelier."""
    rng = np.random.default_rng(seed)
    chance = 1 / np.arange(10, num_rows + 10)
    chance /= chance.sum()
    return [rng.choice(num_rows, size, replace=False, p=chance) for _ in range(num_batches)]


def bound(batches, num_entries, capacity, num_rows=N, order=None, spare=0):
    ledger = Ledger(Budget.parse("64MiB"))
    found = BeladyBound(num_rows, num_entries, capacity, ledger, spare=spare)
    for step in range(len(batches)) if order is None else order:
        found.add(int(step), np.asarray(batches[step], np.int64))
    return found


@given(
    st.lists(st.sets(st.integers(0, 30), max_size=12), max_size=25),
    st.integers(0, 35),
    st.sets(st.integers(0, 30)),
    st.integers(0, 20),
    st.randoms(use_true_random=False),
)
def test_it_is_the_optimum_where_all_rows_are_followed(batches, capacity, held, spare, random):
    batches = [sorted(batch) for batch in batches]
    order = list(range(len(batches)))
    random.shuffle(order)  # several threads add
    found = bound(batches, 400, capacity, num_rows=31, order=order).least_fetched()
    assert found == oracles.least_fetches(batches, capacity)
    windows = [(0, len(batches))]
    assert found <= oracles.belady_fetches(batches, windows, set(), capacity)
    followed = bound(batches, 800, capacity, num_rows=31, order=order, spare=spare)
    followed.hold(np.asarray(sorted(held), np.int64))
    assert followed.least_fetched() == oracles.least_fetches(batches, capacity, held, spare)
    followed.begin()
    assert followed.least_fetched() == 0


@pytest.mark.parametrize("capacity", [0, 100, 400, 900, N])
def test_a_sample_is_near(capacity):
    batches = skewed(80, 200, seed=1)
    whole = bound(batches, 80 * 200, capacity).least_fetched()
    errors = []
    for seed in range(8):  # another numbering is another sample
        names = np.random.default_rng(seed).permutation(N)
        found = bound([names[batch] for batch in batches], 80 * 200 // 5, capacity).least_fetched()
        errors.append(found / whole - 1)
    assert abs(np.mean(errors)) < 0.05
    assert np.max(np.abs(errors)) < 0.25


def test_memory_is_what_was_said():
    ledger = Ledger(Budget.parse("1MiB"))
    found = BeladyBound(N, 4096, 100, ledger)
    for step, rows in enumerate(skewed(50, 200, seed=2)):
        found.add(step, rows)
    found.least_fetched()
    assert 33 * 4096 <= ledger.peak_bytes(Tier.HOST) <= bound_bytes(4096)
    with pytest.raises(BudgetError):
        BeladyBound(N, 1 << 20, 100, ledger)
