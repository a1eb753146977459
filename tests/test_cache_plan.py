"""HOST memory is shared out within what is free, in a stated order, all of it where it fits."""

from hypothesis import given
from hypothesis import strategies as st

from gnnx.cache import HostNeeds, overhead_bytes, plan

sizes = st.integers(0, 1 << 40)
needs = st.builds(
    HostNeeds,
    batch=sizes,
    num_batches=st.integers(1, 8),
    seeds=sizes,
    topology=st.tuples(sizes, sizes),
    num_rows=st.integers(0, 1 << 32),
    row_bytes=st.integers(0, 1 << 12),
)


def total(shared, asked):
    rows = shared.num_kept * (asked.row_bytes + 8)
    index = overhead_bytes(asked.num_rows) if shared.num_kept else 0
    return shared.batches + shared.seeds + shared.topology + rows + index


@given(needs, sizes)
def test_the_parts_fit_within_what_is_free(asked, free):
    assert total(plan(free, asked), asked) <= free


@given(needs, sizes)
def test_one_batch_comes_first(asked, free):
    assert plan(free, asked).batches >= min(asked.batch, free)


@given(needs)
def test_all_is_kept_where_all_fits(asked):
    rows = asked.num_rows * (asked.row_bytes + 8) + overhead_bytes(asked.num_rows)
    ample = 16 * (asked.batch * asked.num_batches + asked.seeds + sum(asked.topology) + rows)
    for free in (ample, None):
        shared = plan(free, asked)
        assert shared.num_kept == asked.num_rows
        assert shared.topology == sum(asked.topology)
        assert shared.seeds == asked.seeds
        assert shared.batches == asked.batch * asked.num_batches


@given(needs, sizes, sizes)
def test_more_memory_keeps_more(asked, one, other):
    """The topology never shrinks; nor, beside the same topology and seeds, do rows."""
    less, more = plan(min(one, other), asked), plan(max(one, other), asked)
    if less.seeds == more.seeds:
        assert less.topology <= more.topology
        if less.topology == more.topology:
            assert less.num_kept <= more.num_kept
            assert less.batches <= more.batches


def test_an_example():
    """128 MiB for the topology of 1 M nodes and 20 M edges, and rows of 512 bytes."""
    asked = HostNeeds(
        batch=4 << 20,
        num_batches=3,
        seeds=1_600_000,
        topology=(8_000_008, 80_000_000),
        num_rows=1_000_000,
        row_bytes=512,
    )
    shared = plan(128 << 20, asked)
    assert shared.topology == 88_000_008
    assert shared.seeds == 1_600_000
    assert shared.batches == 12 << 20
    assert 55_000 < shared.num_kept < 65_000
