"""Expected access equals a slow oracle, ranks as true frequencies do, and selection is exact."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from gnnx.cache import access_bytes, every, expected_access, hottest
from gnnx.errors import BudgetError, DataError
from gnnx.memory import Budget, Ledger, Tier


class MemoryGraph:
    """A graph store in memory; passes over it come in pieces of at most `max_edges`."""

    def __init__(self, indptr, indices, ledger=None, piece=None):
        self.indptr, self.indices = indptr, indices
        self.num_nodes, self.num_edges = len(indptr) - 1, len(indices)
        self.ledger = ledger or Ledger(Budget())
        self.piece = piece

    def rows(self, nodes):
        return self.indptr[nodes], self.indptr[nodes + 1] - self.indptr[nodes]

    def iter_rows(self, begin, end, max_edges):
        max_edges = self.piece or max_edges
        while begin < end:
            last = begin + 1
            while last < end and self.indptr[last + 1] - self.indptr[begin] <= max_edges:
                last += 1
            start, stop = self.indptr[begin], self.indptr[last]
            yield begin, self.indptr[begin : last + 1] - start, self.indices[start:stop]
            begin = last


def random_graph(seed, num_nodes, num_edges):
    indptr, indices = oracles.random_csr(seed, num_nodes, num_nodes, num_edges)
    return indptr, indices.astype(np.int32)


def ids_of(num_nodes, count, seed=0):
    return np.sort(np.random.default_rng(seed).choice(num_nodes, count, replace=False))


@pytest.mark.parametrize("fanouts", [(5,), (3, 2), (15, 10, 5), (-1, 4), ()], ids=str)
@pytest.mark.parametrize(("num_nodes", "num_edges"), [(1, 0), (40, 0), (60, 400), (300, 1500)])
def test_equals_the_formula(fanouts, num_nodes, num_edges):
    indptr, indices = random_graph(num_edges, num_nodes, num_edges)
    seeds = ids_of(num_nodes, max(1, num_nodes // 5))
    got = expected_access(MemoryGraph(indptr, indices), seeds, fanouts, 4)
    expected = oracles.expected_access(indptr, indices, seeds, fanouts, 4)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-7)
    assert not np.signbit(got).any()


def test_a_batch_of_all_seeds_wants_each_of_them():
    indptr, indices = random_graph(0, 50, 300)
    got = expected_access(MemoryGraph(indptr, indices), np.array([3, 7]), (-1,), 100)
    neighbours = {3, 7, *indices[indptr[3] : indptr[4]], *indices[indptr[7] : indptr[8]]}
    assert set(np.flatnonzero(got == 1)) == neighbours
    assert set(np.flatnonzero(got)) == neighbours


def test_no_seeds_want_nothing():
    indptr, indices = random_graph(0, 50, 300)
    assert not expected_access(MemoryGraph(indptr, indices), np.arange(0), (5, 5), 10).any()


def test_the_same_bits_in_any_pieces():
    indptr, indices = random_graph(1, 2000, 20_000)
    seeds = ids_of(2000, 300)
    whole = expected_access(MemoryGraph(indptr, indices), seeds, (10, 5), 32)
    for piece in (1, 7, 1000):
        got = expected_access(MemoryGraph(indptr, indices, piece=piece), seeds, (10, 5), 32)
        assert got.tobytes() == whole.tobytes()


@pytest.mark.parametrize("source", [-1, 50, 2**31 - 1])
def test_a_source_that_is_no_node_is_told(source):
    indptr, indices = random_graph(0, 50, 300)
    indices[indptr[3]] = source
    with pytest.raises(DataError, match=f"source {source} of an edge is outside the 50 nodes"):
        expected_access(MemoryGraph(indptr, indices), np.array([3, 7]), (-1,), 2)


def test_seeds_may_be_a_store():
    class Ids:
        num_rows = 300

        def read(self, rows):
            import torch

            return torch.from_numpy(seeds[rows])

    indptr, indices = random_graph(1, 2000, 20_000)
    seeds = ids_of(2000, 300)
    graph = MemoryGraph(indptr, indices)
    from_store = expected_access(graph, Ids(), (10, 5), 32)
    assert from_store.tobytes() == expected_access(graph, seeds, (10, 5), 32).tobytes()


def test_holds_two_numbers_a_node_within_the_budget():
    indptr, indices = random_graph(1, 50_000, 100_000)
    ledger = Ledger(Budget(host=access_bytes(50_000)))
    graph = MemoryGraph(indptr, indices, ledger)
    scores = expected_access(graph, ids_of(50_000, 500), (10, 5), 32)
    assert ledger.peak_bytes(Tier.HOST) >= 2 * 4 * 50_000
    assert ledger.held_bytes(Tier.HOST) == -(-scores.nbytes // 64) * 64
    small = MemoryGraph(indptr, indices, Ledger(Budget(host=300_000)))
    with pytest.raises(BudgetError, match="access"):
        expected_access(small, ids_of(50_000, 500), (10, 5), 32)
    assert small.ledger.held_bytes(Tier.HOST) == 0


def test_ranks_as_true_frequencies_do():
    """The rows that analysis would keep serve nearly as many accesses as the best kept set."""
    indptr, indices = random_graph(3, 3000, 30_000)
    seeds, fanouts, batch_size = ids_of(3000, 150), (10, 5), 10
    scores = expected_access(MemoryGraph(indptr, indices), seeds, fanouts, batch_size)
    rng = np.random.default_rng(0)
    counts = np.zeros(3000)
    num_batches = 2000
    for _ in range(num_batches):
        batch = rng.choice(seeds, batch_size, replace=False)
        counts[oracles.sampled_nodes(indptr, indices, batch, fanouts, rng)] += 1
    # the number of rows of a batch, and the hits of a tenth and a third of the rows
    assert scores.sum() == pytest.approx(counts.sum() / num_batches, rel=0.01)
    for kept in (300, 1000):
        chosen = hottest(scores, kept, Ledger(Budget()))
        best = np.sort(counts)[-kept:].sum()
        by_degree = np.argsort(-np.bincount(indices, minlength=3000), kind="stable")[:kept]
        assert counts[chosen].sum() > 0.99 * best
        assert counts[chosen].sum() > counts[by_degree].sum()


@given(st.data())
def test_hottest_equals_a_stable_sort(data):
    values = data.draw(st.lists(st.floats(0, 1, width=32) | st.sampled_from([0.0, 0.5, 1.0])))
    count = data.draw(st.integers(0, len(values)))
    scores = np.array(values, np.float32)
    expected = np.sort(np.argsort(-scores, kind="stable")[:count])
    assert hottest(scores, count, Ledger(Budget())).tolist() == expected.tolist()


@pytest.mark.parametrize("scores", [np.zeros(5000), np.ones(5000), -np.zeros(5000)])
def test_ties_go_to_the_lower_ids(scores):
    got = hottest(scores.astype(np.float32), 1234, Ledger(Budget()))
    assert got.tolist() == list(range(1234))


def test_hottest_needs_no_memory_but_the_answer():
    scores = np.random.default_rng(0).random(200_000).astype(np.float32)
    ledger = Ledger(Budget())
    ids = hottest(scores, 1000, ledger)
    assert ledger.peak_bytes(Tier.HOST) == ids.nbytes
    assert ids.tolist() == np.sort(np.argsort(-scores, kind="stable")[:1000]).tolist()


@pytest.mark.parametrize(("count", "first"), [(0, 0), (0, 7), (1, 0), (1, 9), (1000, 0), (50, 3)])
def test_every_id_in_order(count, first):
    ids = every(count, Ledger(Budget()), first=first)
    assert ids.dtype == np.int64
    assert ids.tolist() == list(range(first, first + count))
