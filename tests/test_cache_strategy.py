"""The way to read rows is chosen within the room, and costs no more where there is more room."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnx.cache import Demand, choose, held_bytes, read_cost
from gnnx.cache.strategy import lengths

KINDS = [("rows", "windows", "packs"), ("windows",), ("packs",), ("rows",)]


@st.composite
def demands(draw):
    size = draw(st.integers(0, 40))
    probability = sorted(draw(st.sets(st.floats(1e-7, 1.0), min_size=size, max_size=size)))[::-1]
    counts = draw(st.lists(st.integers(1, 10**6), min_size=size, max_size=size))
    demand = Demand(np.array(probability), np.array(counts, np.int64))
    return demand, int(demand.count.sum()) + draw(st.integers(0, 10**6))


cases = {
    "case": demands(),
    "row_bytes": st.integers(1, 1 << 13),
    "num_steps": st.integers(1, 300),
    "kinds": st.sampled_from(KINDS),
    "disk": st.none() | st.integers(0, 1 << 36),
}


@given(room=st.integers(0, 1 << 36), **cases)
def test_what_is_held_fits_in_the_room(room, case, row_bytes, num_steps, kinds, disk):
    demand, num_rows = case
    found = choose(room, demand, num_rows, row_bytes, num_steps, disk_bytes=disk, kinds=kinds)
    assert held_bytes(found, num_rows, row_bytes) <= room
    assert 0 <= found.num_kept <= num_rows
    assert 1 <= found.steps <= num_steps
    assert found.kind == "rows" or found.kind in kinds
    assert found.kind == "rows" or found.steps >= 2
    if found.kind == "packs" and disk is not None:
        missed = demand.beyond(1)
        edges = np.append(0, np.cumsum(demand.count))
        batch = np.interp(found.num_kept, edges, missed)
        assert 2 * found.steps * batch * row_bytes <= disk


@given(rooms=st.tuples(st.integers(0, 1 << 36), st.integers(0, 1 << 36)), **cases)
def test_more_room_costs_no_more(rooms, case, row_bytes, num_steps, kinds, disk):
    """Nor does another way, but for what must be gained to leave rows for windows."""
    demand, num_rows = case
    less, more = (
        choose(room, demand, num_rows, row_bytes, num_steps, disk_bytes=disk, kinds=kinds)
        for room in sorted(rooms)
    )
    if "rows" in kinds or less.kind == more.kind:
        slack = 1 / 0.75 if less.kind != more.kind else 1
        assert more.cost_bytes <= less.cost_bytes * slack * (1 + 1e-6) + 1


@given(case=demands(), row_bytes=st.integers(1, 4096), num_steps=st.integers(1, 100))
def test_where_all_fits_all_stays(case, row_bytes, num_steps):
    demand, num_rows = case
    found = choose(1 << 40, demand, num_rows, row_bytes, num_steps)
    assert (found.kind, found.num_kept) == ("rows", demand.count.sum())
    assert found.cost_bytes == 0


@given(st.integers(1, 500), st.integers(0, 2000))
def test_windows_cover_an_epoch_in_equal_parts(steps, num_steps):
    cover = list(lengths(steps, num_steps))
    assert sum(cover) == num_steps
    assert len(cover) == -(-num_steps // steps)
    assert all(1 <= length <= steps for length in cover)
    assert max(cover, default=0) - min(cover, default=0) <= 1


def test_bins_keep_the_sums_of_scores():
    scores = np.random.default_rng(0).random(10_000).astype(np.float32) ** 8
    scores[::3] = 0
    demand = Demand.of(scores)
    assert demand.count.sum() == np.count_nonzero(scores)
    assert (demand.count * demand.probability).sum() == pytest.approx(scores.sum(), rel=1e-4)
    assert (np.diff(demand.probability) < 0).all()
    for batches in (2, 10, 100):
        exact = (1 - (1 - scores.astype(np.float64)) ** batches).sum()
        assert demand.beyond(batches)[0] == pytest.approx(exact, rel=0.01)
        assert demand.beyond(batches)[-1] == 0


def test_reading_some_rows_costs_between_nothing_and_the_whole_file():
    costs = [read_cost(count, 10**6, 512) for count in (0, 1, 1000, 10**5, 10**6, 10**9)]
    assert costs[0] == 0
    assert costs == sorted(costs)
    assert costs[1] == pytest.approx(36 << 10, rel=0.01)
    assert costs[-1] == pytest.approx(512e6, rel=1e-6)
    assert read_cost(0, 0, 512) == 0


def test_small_budgets_take_packs_and_large_ones_keep_rows():
    """1 M rows of 512 bytes, of which a batch wants 70,000: the demo's figures."""
    scores = np.random.default_rng(0).pareto(1.5, 10**6)
    demand = Demand.of(np.minimum(scores * 70_000 / scores.sum(), 1).astype(np.float32))
    found = [choose(mib << 20, demand, 10**6, 512, 40) for mib in (1, 24, 600)]
    assert [strategy.kind for strategy in found] == ["rows", "packs", "rows"]
    assert found[2].num_kept == demand.count.sum()
    assert found[1].steps > 10
    assert found[1].cost_bytes < 0.5 * found[0].cost_bytes
