"""Pages of the graph that batches read most are kept where the graph does not fit."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnx
from conformance import random_table, write_dataset
from gnnx.cache import Demand, expected_access, expected_pages, split
from gnnx.loader import Loader
from gnnx.memory import Tier

N, E, F = 8000, 600_000, 8
FANOUTS = (5, 4)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Skewed: node v has a degree that falls with v, sources anywhere."""
    rng = np.random.default_rng(0)
    degree = np.bincount((N * rng.random(E) ** 3).astype(int), minlength=N)
    return write_dataset(
        tmp_path_factory.mktemp("pages") / "graph",
        num_nodes=N,
        indptr=np.concatenate([[0], np.cumsum(degree)]),
        indices=(N * rng.random(E) ** 2).astype(np.int32),
        x=random_table(N, (F,), torch.float32),
        train=np.sort(rng.permutation(N)[:1000]),
    )


@pytest.mark.parametrize("fanouts", [(5,), (5, 4), (-1, 2)], ids=str)
def test_expected_pages_equal_the_formula(path, fanouts):
    with gnnx.open(path, memory="64MiB") as dataset:
        graph, seeds = dataset.graph, np.arange(0, N, 7)
        reached = expected_access(graph, seeds, fanouts[:-1], 30)
        got = expected_pages(graph, reached, fanouts)
        start, degree = graph.rows(np.arange(N))
        draws = np.zeros(graph.num_pages)
        for node in range(N):
            on = {edge // 1024 for edge in range(start[node], start[node] + degree[node])}
            for page in on:
                most = len(on) if -1 in fanouts else max(fanouts)
                draws[page] += reached[node] * min(1, most / len(on))
        assert graph.num_pages == math.ceil(E / 1024)
        np.testing.assert_allclose(got, 1 - np.exp(-draws), rtol=1e-4, atol=1e-7)
        assert not np.signbit(got).any()


@pytest.mark.parametrize("memory", ["1500KiB", "2MiB", "64MiB"])
@pytest.mark.parametrize("cache", ["expected", None])
def test_a_loader_keeps_pages_and_gives_the_same_batches(path, memory, cache):
    def digests(memory, cache):
        with gnnx.open(path, memory=memory) as dataset:
            loader = Loader(dataset, FANOUTS, 50, cache=cache)
            found = [
                (b.n_id.tolist(), [k.indices.tolist() for k in b.blocks], b.x.numpy().tobytes())
                for b in loader
            ]
            assert dataset.ledger.peak_bytes(Tier.HOST) <= dataset.ledger.budget.host
            held = dataset.ledger.owners(Tier.HOST).get("topology", 0)
            return found, held, dataset.graph._pages

    right, whole, none = digests("1GiB", "expected")
    found, held, pages = digests(memory, cache)
    assert found == right
    assert (whole >= 4 * E, none) == (True, None)
    if memory != "64MiB":
        assert 0 < held < whole
        assert pages is not None
        assert 0 < len(pages.pages) < math.ceil(E / 1024)


demand = st.lists(
    st.tuples(st.floats(1e-6, 1), st.integers(1, 50)), max_size=12, unique_by=lambda bin_: bin_[0]
).map(lambda bins: sorted(bins, reverse=True))


@given(demand, demand, st.integers(1, 60), st.integers(1, 60), st.integers(-5, 5000))
def test_a_room_goes_to_what_spares_most(rows, pages, row_bytes, page_bytes, room):
    """Against taking one after the other, the best first."""
    first, second = (
        Demand(np.array([p for p, _ in bins]), np.array([n for _, n in bins], np.int64))
        for bins in (rows, pages)
    )
    got = split(room, first, row_bytes, second, page_bytes)
    singles = [(p / row_bytes, 0, row_bytes) for p, n in rows for _ in range(n)]
    singles += [(p / page_bytes, 1, page_bytes) for p, n in pages for _ in range(n)]
    left, expected = room, 0
    for _, is_page, size in sorted(singles, key=lambda single: (-single[0], single[1])):
        if size > left:
            break
        left -= size
        expected += size * is_page
    assert got % page_bytes == 0
    assert expected <= got <= expected + max(0, left)
