"""The graph on disk and in RAM: the same rows, sources and loops, one by one and in passes."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gnnx
from conformance import write_dataset
from gnnx.errors import BudgetError, DataError
from gnnx.memory import Tier
from oracles import random_csr

NUM_NODES, NUM_EDGES = 700, 9000
PLACES = ["disk", "indptr", "RAM"]


def written(path, indptr, indices, dtype=np.int32):
    """Write a graph with its loops, found row by row."""
    loops = [d for d in range(len(indptr) - 1) if d in indices[indptr[d] : indptr[d + 1]]]
    return write_dataset(
        path,
        num_nodes=len(indptr) - 1,
        indptr=indptr,
        indices=indices.astype(dtype),
        loops=np.array(loops, np.int64),
    )


@pytest.fixture(scope="module")
def csr():
    return random_csr(3, NUM_NODES, NUM_NODES, NUM_EDGES)


@pytest.fixture(scope="module", params=[np.int32, np.int64], ids=["int32", "int64"])
def path(csr, request, tmp_path_factory):
    return written(tmp_path_factory.mktemp("graph") / "dataset", *csr, request.param)


# nothing, the row pointers alone, all of it
@pytest.fixture(params=[0, 8 * (NUM_NODES + 1), 1 << 30], ids=PLACES)
def graph(path, request):
    with gnnx.open(path, memory="4MiB") as dataset:
        held = dataset.graph.pin(request.param)
        indices_bytes = NUM_EDGES * dataset.graph.index_dtype.itemsize
        assert held == {0: 0, 1 << 30: 8 * (NUM_NODES + 1) + indices_bytes}.get(
            request.param, 8 * (NUM_NODES + 1)
        )
        assert dataset.ledger.owners(Tier.HOST).get("topology", 0) // 64 == -(-held // 64)
        yield dataset.graph


def requests(size):
    rng = np.random.default_rng(4)
    return [
        np.arange(size),
        np.arange(0),
        np.arange(size)[::-1].copy(),
        np.array([size - 1]),
        rng.integers(0, size, 3 * size),
    ]


def test_rows_and_sources_are_the_csr_s(graph, csr):
    indptr, indices = csr
    assert (graph.num_nodes, graph.num_edges) == (NUM_NODES, NUM_EDGES)
    for nodes in requests(NUM_NODES):
        start, degree = graph.rows(nodes)
        assert start.dtype == degree.dtype == np.int64
        assert np.array_equal(start, indptr[nodes])
        assert np.array_equal(degree, np.diff(indptr)[nodes])
    for positions in requests(NUM_EDGES):
        sources = graph.take(positions)
        assert sources.dtype == graph.index_dtype
        assert np.array_equal(sources, indices[positions])


def test_loops_are_found(graph, csr):
    indptr, indices = csr
    for nodes in requests(NUM_NODES):
        expected = [d in indices[indptr[d] : indptr[d + 1]] for d in nodes]
        found = graph.has_loop(nodes)
        assert found.dtype == np.bool_
        assert found.tolist() == expected
    assert 0 < sum(expected) < len(expected)


@pytest.mark.parametrize("loops", ["none", "all", "absent"])
def test_loops_of_no_or_every_node_need_no_memory(tmp_path, loops):
    ids = {"none": np.zeros(0, np.int64), "all": np.arange(100)}
    arrays = {} if loops == "absent" else {"loops": ids[loops]}
    path = write_dataset(tmp_path / "dataset", num_nodes=100, **arrays)
    with gnnx.open(path, memory="4MiB") as dataset:
        found = dataset.graph.has_loop(np.array([3, 99, 0]))
        assert found.tolist() == [loops == "all"] * 3
        assert "topology" not in dataset.ledger.owners(Tier.HOST)


@pytest.mark.parametrize("bad", [-1, NUM_NODES])
def test_a_node_or_position_outside_is_named(graph, bad):
    with pytest.raises(DataError, match=rf"indptr.npy: node {bad} among {NUM_NODES} nodes"):
        graph.rows(np.array([0, bad]))
    with pytest.raises(DataError, match=rf"indptr.npy: node {bad} among {NUM_NODES} nodes"):
        graph.has_loop(np.array([0, bad]))
    bad = bad if bad < 0 else NUM_EDGES
    with pytest.raises(DataError, match=rf"indices.npy: (position|row) {bad} .*\b{NUM_EDGES}\b"):
        graph.take(np.array([0, bad]))


@pytest.fixture(scope="module", params=[0, 8 * (NUM_NODES + 1), 1 << 30], ids=PLACES)
def kept(path, request):
    with gnnx.open(path, memory="4MiB") as dataset:
        dataset.graph.pin(request.param)
        yield dataset.graph


@settings(max_examples=40)
@given(
    begin=st.integers(0, NUM_NODES),
    length=st.integers(0, 60),
    max_edges=st.sampled_from([1, 7, 100, 1000, 1 << 20]),
)
@example(begin=0, length=NUM_NODES, max_edges=300)
def test_a_pass_gives_every_row_once_in_order(kept, csr, begin, length, max_edges):
    indptr, indices = csr
    end = min(begin + length, NUM_NODES)
    row = begin
    for piece in kept.iter_rows(begin, end, max_edges):
        count = len(piece.indptr) - 1
        assert piece.first == row
        assert 1 <= count <= max_edges
        assert len(piece.indices) <= max_edges or count == 1
        assert np.array_equal(piece.indptr, indptr[row : row + count + 1] - indptr[row])
        assert np.array_equal(piece.indices, indices[indptr[row] : indptr[row + count]])
        row += count
    assert row == end


def test_a_pass_by_default_is_over_all_rows(path, csr):
    with gnnx.open(path, memory="4MiB") as dataset:
        pieces = list(dataset.graph.iter_rows())
        assert np.array_equal(np.concatenate([piece.indices for piece in pieces]), csr[1])
        with pytest.raises(DataError, match="rows 0 to 701"):
            list(dataset.graph.iter_rows(0, NUM_NODES + 1))


def test_a_graph_without_nodes_or_edges(tmp_path):
    with gnnx.open(write_dataset(tmp_path / "empty", num_nodes=0), memory="4MiB") as dataset:
        assert list(dataset.graph.iter_rows()) == []
        assert dataset.graph.pin(1 << 20) == 8
    with gnnx.open(write_dataset(tmp_path / "edgeless", num_nodes=9), memory="4MiB") as dataset:
        for _ in range(2):
            start, degree = dataset.graph.rows(np.array([8, 0]))
            assert not start.any()
            assert not degree.any()
            assert [len(piece.indices) for piece in dataset.graph.iter_rows(max_edges=4)] == [0] * 3
            assert dataset.graph.pin(1 << 20) == 80


def test_pinning_more_than_the_budget_is_refused_and_leaves_the_graph_readable(path, csr):
    with gnnx.open(path, memory="32KiB") as dataset:
        absent = dataset.graph.unpinned
        assert absent == (8 * (NUM_NODES + 1), NUM_EDGES * dataset.graph.index_dtype.itemsize)
        with pytest.raises(BudgetError, match="topology"):
            dataset.graph.pin(1 << 30)
        assert np.array_equal(dataset.graph.take(np.array([5, 2])), csr[1][[5, 2]])


def test_damaged_loops_are_told(tmp_path):
    loops = np.array([2, 100], np.int64)
    path = write_dataset(tmp_path / "dataset", num_nodes=100, loops=loops)
    with (
        gnnx.open(path, memory="4MiB") as dataset,
        pytest.raises(DataError, match=r"loops\.npy: node 100 among 100 nodes"),
    ):
        dataset.graph.has_loop(np.array([3]))


@pytest.mark.parametrize("limit_bytes", [0, 1 << 30], ids=["disk", "RAM"])
def test_damaged_row_pointers_are_told(csr, tmp_path, limit_bytes):
    path = written(tmp_path / "dataset", *csr)
    damaged = path / "edges" / "node-edge-node" / "indptr.npy"
    data = bytearray(damaged.read_bytes())
    data[4096 + 8 * 5 : 4096 + 8 * 6] = np.int64(-7).tobytes()
    damaged.write_bytes(data)
    with gnnx.open(path, memory="4MiB") as dataset:
        dataset.graph.pin(limit_bytes)
        with pytest.raises(DataError, match=r"indptr\.npy: row 4 is edges \d+ to -7 of"):
            dataset.graph.rows(np.arange(10))


@pytest.mark.parametrize("share", [0, 0.3, 1])
def test_pages_in_ram_change_nothing_but_what_is_read(path, csr, share):
    with gnnx.open(path, memory="4MiB") as dataset:
        graph, file = dataset.graph, dataset.array("edges/node-edge-node/indices").file
        graph.pin(8 * (NUM_NODES + 1))
        kept = np.flatnonzero(np.random.default_rng(0).random(graph.num_pages) < share)
        if share == 1:
            kept = np.arange(graph.num_pages)
        graph.keep_pages(kept)
        topology = dataset.ledger.owners(Tier.HOST)["topology"] - -(-8 * (NUM_NODES + 1) // 64) * 64
        assert topology <= graph.page_bytes(len(kept))
        before = file.num_rows
        for positions in requests(NUM_EDGES):
            assert np.array_equal(graph.take(positions), csr[1][positions])
            absent = ~np.isin(positions // graph.page_entries, kept)
            assert file.num_rows - before == absent.sum()
            before = file.num_rows
        for bad in (-1, NUM_EDGES):
            with pytest.raises(DataError, match=f"position {bad} "):
                graph.take(np.array([0, bad]))


def test_a_page_outside_the_graph_is_named(path):
    with gnnx.open(path, memory="4MiB") as dataset:
        number = dataset.graph.num_pages
        with pytest.raises(DataError, match=f"page {number} among {number} pages"):
            dataset.graph.keep_pages(np.array([0, number]))


def test_pages_beyond_the_budget_are_refused(path):
    with gnnx.open(path, memory="256KiB") as dataset:
        free = dataset.ledger.free_bytes(Tier.HOST)
        with (
            dataset.ledger.reserve(free - 4096, Tier.HOST, "somebody"),
            pytest.raises(BudgetError, match="topology"),
        ):
            dataset.graph.keep_pages(np.arange(dataset.graph.num_pages))
