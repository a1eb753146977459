"""How many batches draw together, and where what they draw waits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gnnx.cache import Demand, DrawNeeds, choose_draws

PAGE = 4096


def needs(num_pages, chance, num_nodes, num_steps):
    pages = Demand(np.array([chance]), np.array([num_pages], np.int64))
    return DrawNeeds(num_nodes, 5 * num_nodes, 3, 4, num_pages, pages, num_steps)


def keep(left):
    return max(0, left) // PAGE


@given(
    st.integers(1, 100_000),
    st.floats(1e-4, 1.0),
    st.floats(1, 200_000),
    st.integers(1, 1000),
    st.integers(0, 1 << 30),
    st.booleans(),
    st.sampled_from([None, 0, 1 << 20, 1 << 30]),
)
def test_a_window_fits_and_pays(num_pages, chance, num_nodes, num_steps, room, in_memory, disk):
    case = needs(num_pages, chance, num_nodes, num_steps)
    plan = choose_draws(room, case, keep, in_memory=in_memory, disk_bytes=disk)
    if plan is None:
        return
    assert 2 <= plan.steps <= num_steps
    assert plan.held_bytes <= room // 2
    assert plan.num_kept == keep(room - plan.held_bytes)
    assert plan.on_disk or in_memory
    assert not (plan.on_disk and disk == 0)
    assert 0 <= plan.read_bytes <= plan.cost_bytes + plan.written_bytes
    assert (plan.written_bytes > 0) == plan.on_disk
    alone = num_pages * chance * (PAGE + (32 << 10))  # were each page a read of its own
    assert plan.cost_bytes < 0.75 * alone


def test_the_window_grows_with_the_room():
    """100 M edges, all pages wanted: passes are shared by as many batches as there is room for."""
    case = needs(100_000, 0.99, 120_000, 1000)
    rooms = [1 << 26, 3 << 25, 1 << 27, 1 << 28]
    found = [choose_draws(room, case, keep, in_memory=True) for room in rooms]
    steps = [plan.steps for plan in found]
    assert steps == sorted(steps)
    assert steps[0] < steps[-1]
    assert [plan.cost_bytes for plan in found] == sorted(
        (plan.cost_bytes for plan in found), reverse=True
    )


def test_where_all_pages_stay_nothing_is_to_be_drawn_together():
    assert choose_draws(1 << 30, needs(1000, 0.9, 100, 50), keep, in_memory=True) is None
