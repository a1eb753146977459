"""Samples are what an independent oracle draws; uniform; functions of (key, node) alone."""

import itertools
import time
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import oracles
from gnnx.errors import BudgetError, DataError, UsageError
from gnnx.graph import Graph
from gnnx.memory import Budget, Ledger, Tier
from gnnx.random import Key
from gnnx.sample import NeighborSampler, _kernels, neighbor

SMALL = 1e-6  # p-value below which a spread is called uneven; draws are the same in every run
ODD6 = [(0, 1), (1, 2), (2, 0), (2, 0), (4, 4)]


class MemoryGraph:
    """A `gnnx.graph.Graph` with the methods of a GraphStore, all in RAM."""

    def __init__(self, graph, *, host=None, device=None, index_dtype=np.int32):
        self.indptr = graph.indptr.numpy()
        self.indices = graph.indices.numpy().astype(index_dtype)
        self.loops = graph.has_loop.numpy()
        self.num_nodes, self.num_edges = graph.num_nodes, graph.num_edges
        self.index_dtype = self.indices.dtype
        self.ledger = Ledger(Budget(host, device))
        self.num_taken = 0

    def rows(self, nodes):
        return self.indptr[nodes], self.indptr[nodes + 1] - self.indptr[nodes]

    def take(self, positions):
        self.num_taken += len(positions)
        return self.indices[positions]

    def has_loop(self, nodes):
        return self.loops[nodes]


def graph_of(edges, num_nodes):
    src, dst = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    return Graph.from_edges(src, dst, num_nodes)


def random_graph(num_nodes, num_edges, seed=0):
    indptr, indices = oracles.random_csr(seed, num_nodes, num_nodes, num_edges)
    return Graph(torch.from_numpy(indptr), torch.from_numpy(indices))


def regular_graph(num_nodes, degree):
    """Every node has `degree` in-edges, whose position tells which of the row's they are."""
    indices = torch.arange(num_nodes * degree) % num_nodes
    return Graph(torch.arange(num_nodes + 1) * degree, indices)


def as_lists(blocks):
    return [
        (b.indptr.tolist(), b.indices.tolist(), b.src_id.tolist(), b.e_id.tolist()) for b in blocks
    ]


def assert_equal_blocks(blocks, others):
    assert len(blocks) == len(others)
    for block, other in zip(blocks, others, strict=True):
        assert block.key == other.key
        for name in ("indptr", "indices", "src_id", "e_id", "src_degree", "dst_degree", "src_loop"):
            mine, its = getattr(block, name), getattr(other, name)
            assert (mine is None) == (its is None)
            assert mine is None or (mine.dtype == its.dtype and torch.equal(mine, its)), name
        assert all(map(torch.equal, block.transpose, other.transpose))


def assert_sound(blocks, graph, seeds):
    """What holds for the blocks of any sample of a graph."""
    indptr, indices = graph.indptr.numpy(), graph.indices.numpy()
    assert blocks[-1].src_id[: blocks[-1].num_dst].tolist() == list(seeds)
    for outer, inner in itertools.pairwise(blocks):
        assert torch.equal(outer.src_id[: outer.num_dst], inner.src_id)
        assert torch.equal(outer.dst_degree, inner.src_degree)
    for hop, block in enumerate(reversed(blocks)):
        assert block.key.layer == hop
        assert block.indptr.dtype == block.src_id.dtype == block.e_id.dtype == torch.int64
        assert block.indices.dtype == torch.int32
        assert all(tensor.is_contiguous() for tensor in (block.indptr, block.indices, block.src_id))
        src = block.src_id.numpy()
        assert len(np.unique(src)) == len(src)
        dst = np.repeat(src[: block.num_dst], np.diff(block.indptr.numpy()))
        e_id = block.e_id.numpy()
        assert len(np.unique(e_id)) == len(e_id)
        assert ((indptr[dst] <= e_id) & (e_id < indptr[dst + 1])).all()
        assert np.array_equal(src[block.indices.numpy()], indices[e_id])
        ascending = np.diff(e_id) > 0
        assert (ascending | (dst[1:] != dst[:-1])).all()
        assert np.array_equal(block.src_degree, np.diff(indptr)[src])
        assert np.array_equal(block.dst_degree, np.diff(indptr)[src[: block.num_dst]])
        assert np.array_equal(block.src_loop, graph.has_loop.numpy()[src])
        expected = oracles.transpose(block.indptr.numpy(), block.indices.numpy(), len(src))
        for part, right in zip(block.transpose, expected, strict=True):
            assert np.array_equal(part.numpy(), right)


@st.composite
def cases(draw):
    """A graph with hubs, duplicates, loops and empty rows, and what is asked of it."""
    num_nodes = draw(st.integers(1, 30))
    num_edges = draw(st.sampled_from([0, 1, 10, 60, 300]))
    graph = random_graph(num_nodes, num_edges, draw(st.integers(0, 10**6)))
    node = st.integers(0, num_nodes - 1)
    seeds = draw(st.lists(node, unique=True, max_size=num_nodes))
    fanout = st.sampled_from([-1, 1, 2, 3, 7, 10**9])
    fanouts = draw(st.lists(fanout, min_size=1, max_size=4))
    key = Key(*(draw(st.integers(-(2**63), 2**63)) for _ in range(3)))
    return graph, seeds, fanouts, key


@given(cases(), st.sampled_from([np.int32, np.int64]), st.sampled_from([1, 7, 1 << 18]), st.data())
@settings(max_examples=150)
def test_samples_are_the_oracle_s(case, index_dtype, piece, data):
    graph, seeds, fanouts, key = case
    store = MemoryGraph(graph, index_dtype=index_dtype)
    sampler = NeighborSampler(store, fanouts, degrees=True, edge_ids=True)
    ids = np.array(seeds, np.int64)
    with mock.patch.object(neighbor, "_PIECE", piece):  # where rows are cut makes no difference
        blocks = sampler.sample(data.draw(st.sampled_from([ids, torch.from_numpy(ids)])), key)
        assert sampler.reach(ids, key).tolist() == blocks[0].src_id.tolist()
    assert_sound(blocks, graph, seeds)
    indptr, indices = graph.indptr.tolist(), graph.indices.tolist()
    assert as_lists(blocks) == oracles.sample(indptr, indices, seeds, fanouts, key)
    assert [block.key for block in reversed(blocks)] == [
        key._replace(layer=hop) for hop in range(len(fanouts))
    ]


@pytest.mark.parametrize("fanout", [63, 64, 65, 511, 512, 513, 999, 1000])
def test_many_neighbours_of_a_hub(fanout):
    """Up to 512 picks and beyond, two ways of drawing."""
    rng = np.random.default_rng(0)
    indices = torch.from_numpy(rng.integers(0, 50, 3000))
    graph = Graph(torch.tensor([0, 1000, 2000, 3000] + [3000] * 47), indices)
    sampler = NeighborSampler(MemoryGraph(graph), [fanout], degrees=True, edge_ids=True)
    blocks = sampler.sample(np.array([2, 0, 1]), Key(9))
    assert_sound(blocks, graph, [2, 0, 1])
    assert as_lists(blocks) == oracles.sample(
        graph.indptr.tolist(), graph.indices.tolist(), [2, 0, 1], [fanout], Key(9)
    )


def test_optional_fields_are_filled_on_request():
    store = MemoryGraph(random_graph(20, 100))
    full = NeighborSampler(store, [3, 2], degrees=True, edge_ids=True).sample(np.arange(5), Key(1))
    bare = NeighborSampler(store, [3, 2]).sample(np.arange(5), Key(1))
    for block, complete in zip(bare, full, strict=True):
        assert torch.equal(block.indices, complete.indices)
        assert torch.equal(block.src_id, complete.src_id)
        for name in ("e_id", "src_degree", "dst_degree", "src_loop", "edge_weight", "edge_attr"):
            assert getattr(block, name) is None


def test_a_batch_of_thousands_of_nodes():
    """The table of numbers grows several times, and starts at its last size the next time."""
    graph = random_graph(5000, 60_000)
    sampler = NeighborSampler(MemoryGraph(graph), [10, 10], degrees=True, edge_ids=True)
    for step in range(3):
        seeds = np.random.default_rng(step).permutation(5000)[: 1000 // (step + 1)]
        blocks = sampler.sample(seeds, Key(0, 0, step))
        assert blocks[0].num_src > 1500
        assert_sound(blocks, graph, seeds)
        assert as_lists(blocks) == oracles.sample(
            graph.indptr.tolist(), graph.indices.tolist(), seeds, [10, 10], Key(0, 0, step)
        )


def test_all_neighbours_are_the_graph():
    graph = random_graph(200, 1500)
    sampler = NeighborSampler(MemoryGraph(graph), [-1], degrees=True, edge_ids=True)
    (block,) = sampler.sample(np.arange(200), Key(0))
    whole = graph.block(Key(0))
    assert torch.equal(block.indices, whole.indices.int())
    assert all(map(torch.equal, block.transpose, (part for part in whole.transpose)))
    for name in ("indptr", "src_id", "e_id", "src_degree", "dst_degree", "src_loop"):
        assert torch.equal(getattr(block, name), getattr(whole, name))


def _offsets(degree, fanout, num_nodes, key):
    """Which of its edges each node drew, (num_nodes, fanout)."""
    store = MemoryGraph(regular_graph(num_nodes, degree))
    (block,) = NeighborSampler(store, [fanout], edge_ids=True).sample(np.arange(num_nodes), key)
    return block.e_id.numpy().reshape(num_nodes, fanout) % degree


def _uneven_inclusion(offsets, degree):
    """p-value of: each of a row's edges is drawn k times in d."""
    num_rows, fanout = offsets.shape
    share = fanout / degree
    counts = np.bincount(offsets.ravel(), minlength=degree)
    # a row's picks exclude one another, which shrinks the spread of the counts
    spread = num_rows * share * (1 - share) * degree / (degree - 1)
    return stats.chi2.sf(((counts - num_rows * share) ** 2).sum() / spread, degree - 1)


@pytest.mark.parametrize(
    ("degree", "fanout"), [(2, 1), (3, 2), (16, 15), (40, 5), (100, 15), (700, 600), (5000, 513)]
)
def test_every_edge_is_as_likely(degree, fanout):
    over_nodes = _offsets(degree, fanout, 3000 if degree <= 100 else 500, Key(4))
    assert _uneven_inclusion(over_nodes, degree) > SMALL
    assert (np.diff(over_nodes, axis=1) > 0).all()
    steps = [_offsets(degree, fanout, 10, Key(4, 0, step)) for step in range(100)]
    assert _uneven_inclusion(np.concatenate(steps), degree) > SMALL


@pytest.mark.parametrize(("degree", "fanout"), [(4, 2), (7, 3), (6, 5), (10, 3)])
def test_every_subset_is_as_likely(degree, fanout):
    counts = dict.fromkeys(itertools.combinations(range(degree), fanout), 0)
    for row in _offsets(degree, fanout, 200 * len(counts), Key(8)).tolist():
        counts[tuple(row)] += 1
    assert stats.chisquare(list(counts.values())).pvalue > SMALL


def test_draws_are_independent_of_one_another():
    """Of two edges one is drawn: nodes, layers, steps, epochs and seeds agree half of the time."""
    base = _offsets(2, 1, 20_000, Key(1, 1, 1))[:, 0]
    keys = [Key(2, 1, 1), Key(1, 2, 1), Key(1, 1, 2), Key(1, 1, 0), Key(1, 0, 1)]
    others = [_offsets(2, 1, 20_000, key)[:, 0] for key in keys]
    store = MemoryGraph(regular_graph(20_000, 2))
    outer, _ = NeighborSampler(store, [1, 1], edge_ids=True).sample(np.arange(20_000), Key(1, 1, 1))
    others += [outer.e_id.numpy() % 2, np.roll(base, 1)]
    for other in others:
        assert stats.binomtest(int((base == other).sum()), 20_000).pvalue > SMALL


def test_isolated_seed():
    """H01: one node, no edge; a seed outside the graph is named."""
    sampler = NeighborSampler(MemoryGraph(graph_of(ODD6, 6)), [2, 2], degrees=True, edge_ids=True)
    blocks = sampler.sample(np.array([5]), Key(0))
    for block in blocks:
        assert (block.num_src, block.num_dst, block.num_edges) == (1, 1, 0)
        assert block.src_id.tolist() == [5]
        assert block.src_loop.tolist() == [False]
        assert block.transpose.indptr.tolist() == [0, 0]
    short = NeighborSampler(MemoryGraph(graph_of(ODD6[:4], 4)), [2, 2])
    with pytest.raises(DataError) as caught:
        short.sample(np.array([5]), Key(0))
    assert str(caught.value) == (
        "seed 5 is outside the 4 nodes\nGive ids from 0 to one less than the number of nodes."
    )


def test_parallel_edges():
    """H04: three edges 0 -> 1 are three edges, told apart by their ids."""
    store = MemoryGraph(graph_of([(0, 1)] * 3, 2))
    (block,) = NeighborSampler(store, [-1], edge_ids=True).sample(np.array([1]), Key(0))
    assert block.e_id.tolist() == [0, 1, 2]
    assert block.indices.tolist() == [1, 1, 1]
    assert block.src_id.tolist() == [1, 0]
    sampler, counts = NeighborSampler(store, [2], edge_ids=True), np.zeros(3)
    for step in range(1000):
        (block,) = sampler.sample(np.array([1]), Key(0, 0, step))
        first, second = block.e_id.tolist()
        assert first < second
        counts[[first, second]] += 1
    assert np.abs(counts / 1000 - 2 / 3).max() < 0.05


@given(cases(), st.data())
@settings(max_examples=60)
def test_neighbours_do_not_depend_on_the_company(case, data):
    """A node draws the same edges in A alone and in A and B together, at every hop it is in."""
    graph, seeds, fanouts, key = case
    part = data.draw(st.lists(st.sampled_from(seeds), unique=True)) if seeds else []
    sampler = NeighborSampler(MemoryGraph(graph), fanouts, edge_ids=True)

    def edges_of(ids):
        drawn = {}
        for block in sampler.sample(np.array(ids, np.int64), key):
            rows = np.split(block.e_id.numpy(), block.indptr.numpy()[1:-1])
            for node, row in zip(block.src_id[: block.num_dst].tolist(), rows, strict=False):
                drawn[block.key.layer, node] = row.tolist()
        return drawn

    alone, together = edges_of(part), edges_of(seeds)
    assert alone.items() <= together.items()


def test_seeds_may_come_in_any_order():
    sampler = NeighborSampler(MemoryGraph(random_graph(50, 400)), [3], edge_ids=True)
    (block,) = sampler.sample(np.array([3, 40, 7]), Key(0))
    (turned,) = sampler.sample(np.array([7, 40, 3]), Key(0))
    rows = [torch.split(b.e_id, b.indptr.diff().tolist()) for b in (block, turned)]
    assert all(map(torch.equal, rows[0], reversed(rows[1])))


def test_no_seeds():
    sampler = NeighborSampler(MemoryGraph(graph_of(ODD6, 6)), [2, -1], degrees=True, edge_ids=True)
    for block in sampler.sample(np.empty(0, np.int64), Key(0)):
        assert (block.num_src, block.num_dst, block.num_edges) == (0, 0, 0)
    nothing = NeighborSampler(MemoryGraph(graph_of([], 0)), [2])
    assert nothing.sample(np.empty(0, np.int64), Key(0))[0].num_src == 0


@pytest.mark.parametrize(
    ("seeds", "cause"),
    [
        ([0, 6], "seed 6 is outside the 6 nodes"),
        ([-1], "seed -1 is outside the 6 nodes"),
        ([2**40, 0], "seed 1099511627776 is outside the 6 nodes"),
        ([4, 1, 3, 1, 4], "seed 1 is given twice"),
    ],
)
def test_bad_seeds_are_named(seeds, cause):
    sampler = NeighborSampler(MemoryGraph(graph_of(ODD6, 6)), [2])
    with pytest.raises(DataError) as caught:
        sampler.sample(np.array(seeds), Key(0))
    assert caught.value.cause == cause
    assert sampler.sample(np.array([1, 4]), Key(0))[0].num_dst == 2  # and it goes on


@pytest.mark.parametrize("seeds", [np.array([0.0, 1.0]), np.array([[0, 1]]), np.array([True])])
def test_seeds_are_a_vector_of_integers(seeds):
    with pytest.raises(UsageError, match=r"^seeds are .*\nGive a vector of node ids\.$"):
        NeighborSampler(MemoryGraph(graph_of(ODD6, 6)), [2]).sample(seeds, Key(0))


def test_seeds_of_other_integers():
    sampler = NeighborSampler(MemoryGraph(graph_of(ODD6, 6)), [2], edge_ids=True)
    right = as_lists(sampler.sample(np.array([0, 2]), Key(0)))
    assert as_lists(sampler.sample(torch.tensor([0, 2], dtype=torch.int32), Key(0))) == right
    assert as_lists(sampler.sample([0, 2], Key(0))) == right
    assert as_lists(sampler.sample(np.array([0, 9, 2])[::2], Key(0))) == right


@pytest.mark.parametrize(
    ("fanouts", "cause"),
    [
        ([], "no fanouts are given"),
        ([3, 0], "fanout 0 is no number of neighbours"),
        ([-2], "fanout -2 is no number of neighbours"),
    ],
)
def test_fanouts_are_positive_or_all(fanouts, cause):
    with pytest.raises(UsageError) as caught:
        NeighborSampler(MemoryGraph(graph_of(ODD6, 6)), fanouts)
    assert str(caught.value) == (
        f"{cause}\nGive one number a layer, such as 15,10,5; -1 takes all neighbours."
    )


def test_a_hub_costs_its_fanout_not_its_degree():
    seconds = {}
    for degree in (1000, 1_000_000):
        indptr = torch.tensor([0, degree, degree])
        store = MemoryGraph(Graph(indptr, torch.ones(degree, dtype=torch.int64)), host=1 << 20)
        sampler = NeighborSampler(store, [15])
        sampler.sample(np.array([0]), Key(0))
        begin, store.num_taken = time.thread_time(), 0
        for step in range(100):
            sampler.sample(np.array([0]), Key(0, 0, step))
        seconds[degree] = time.thread_time() - begin
        assert store.num_taken == 1500
    assert seconds[1_000_000] < 5 * seconds[1000]


class FormulaGraph:
    """Five in-edges a node, their sources computed: no array anywhere, whatever N is."""

    def __init__(self, num_nodes, index_dtype, host=None):
        self.num_nodes, self.index_dtype = num_nodes, np.dtype(index_dtype)
        self.ledger = Ledger(Budget(host))

    def rows(self, nodes):
        return nodes * 5, np.full(len(nodes), 5)

    def take(self, positions):
        return (positions * 2654435761 % self.num_nodes).astype(self.index_dtype)


@pytest.mark.parametrize(("num_nodes", "index_dtype"), [(2**31 - 1, np.int32), (2**45, np.int64)])
def test_scratch_is_sized_by_the_batch(num_nodes, index_dtype):
    """Ids beyond 2^31 and a graph of any size within a few kilobytes a batch of some thousand."""
    graph = FormulaGraph(num_nodes, index_dtype, host=256 << 10)
    sampler = NeighborSampler(graph, [3, 4, 5], edge_ids=True)
    seeds = np.arange(30) * (num_nodes // 31)
    blocks = sampler.sample(seeds, Key(0))
    assert blocks[0].num_src > 2500
    assert graph.ledger.peak_bytes(Tier.HOST) < 48 * blocks[0].num_src + 28 * blocks[0].num_edges
    for block in blocks:
        assert np.array_equal(block.src_id[block.indices], graph.take(block.e_id.numpy()))
        assert len(set(block.src_id.tolist())) == block.num_src
    held = graph.ledger.held_bytes(Tier.HOST)
    assert held <= 32 * blocks[0].num_src
    del sampler
    assert graph.ledger.held_bytes(Tier.HOST) == 0


def test_scratch_is_capped_by_the_graph():
    """A table for all nodes is enough, however often they are drawn."""
    store = MemoryGraph(random_graph(600, 20_000))
    sampler = NeighborSampler(store, [-1, -1])
    sampler.sample(np.arange(600), Key(0))
    assert store.ledger.owners(Tier.HOST)["sampler"] <= 600 * (2 * 4 + 4) + 128


@pytest.mark.parametrize("tier", [Tier.HOST, Tier.DEVICE])
def test_a_tiny_budget_is_refused_until_it_is_enough(tier):
    """Each refusal names a larger budget, nothing is kept by the failed call, and in the end the
    sample is that of a run without a limit."""
    graph = random_graph(3000, 40_000)
    seeds, options = np.arange(0, 3000, 7), {"degrees": True, "edge_ids": True}
    free = NeighborSampler(MemoryGraph(graph), [10, 10], **options).sample(seeds, Key(2))
    limit, refusals, blocks = 64, 0, None
    while blocks is None:
        store, refused = MemoryGraph(graph, **{tier.value: limit}), None
        sampler = NeighborSampler(store, [10, 10], **options)
        try:
            blocks = sampler.sample(seeds, Key(2))
        except BudgetError as error:
            refused = error.with_traceback(None)
        if refused is not None:
            assert store.ledger.held_bytes(Tier.HOST) == 0
            assert store.ledger.held_bytes(Tier.DEVICE) == 0
            assert refused.tier == tier.value
            assert refused.smallest_bytes == limit + refused.shortfall_bytes > limit
            limit, refusals = refused.smallest_bytes, refusals + 1
    assert 3 < refusals < 60
    assert_equal_blocks(blocks, free)
    assert store.ledger.peak_bytes(tier) <= limit


def test_blocks_are_of_exact_size_and_go_back():
    store = MemoryGraph(random_graph(300, 3000))
    blocks = NeighborSampler(store, [5, 5]).sample(np.arange(50), Key(0))
    sizes = [
        tensor.nbytes
        for block in blocks
        for tensor in (block.indptr, block.indices, block.src_id, *block.transpose)
    ]
    sizes.append(50 * 8)  # the ids of the seeds, which live as long as the call
    held = store.ledger.owners(Tier.DEVICE)
    assert set(held) == {"blocks"}
    assert held["blocks"] <= sum(-(-size // 64) * 64 for size in sizes)
    del blocks
    assert store.ledger.held_bytes(Tier.DEVICE) == 0


def test_wide_numbers():
    """Beyond 2^31 nodes or edges of one batch the same loops run on int64."""
    nodes = np.array([5, 9, 5, 2**40, 9, 7])
    slots, seen, local = np.empty(8, np.int64), np.empty(4, np.int64), np.empty(6, np.int64)
    _kernels.rebuild(slots, seen, 0)
    assert _kernels.number(nodes, 0, slots, seen, 0, local) == (6, 4)
    assert local.tolist() == [0, 1, 0, 2, 1, 3]
    assert seen.tolist() == [5, 9, 2**40, 7]
    _kernels.rebuild(slots, seen, 4)
    assert _kernels.number(nodes, 0, slots, seen, 4, local) == (6, 4)
    assert _kernels.number(np.array([7, 8]), 0, slots, seen, 4, local) == (1, 4)  # full
