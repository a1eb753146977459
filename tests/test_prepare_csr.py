"""Rows of in-edges from streams of edges: rules, budgets, forms of input."""

import contextlib
import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from gnnx import threads
from gnnx.errors import BudgetError, DataError
from gnnx.memory import Budget, Ledger, Tier
from gnnx.prepare.arrays import Workspace, open_npy
from gnnx.prepare.csr import CsrBuilder, EdgeRules
from gnnx.prepare.edges import CsrEdges, PairEdges
from gnnx.prepare.report import Report
from gnnx.prepare.sparse import SparseRows


class Collector:
    """Stands for a DatasetWriter: keeps the arrays."""

    def __init__(self):
        self.arrays, self.num_edges = {}, None

    def array(self, name, shape, dtype):
        rows = self.arrays[name.rpartition("/")[2]] = []

        class Sink:
            def append(self, values):
                assert values.dtype == dtype
                rows.append(values.copy())

        return Sink()

    def edges(self, edge_type, count):
        assert edge_type == ("node", "edge", "node")
        self.num_edges = count

    def get(self, name):
        pieces = self.arrays.get(name, [])
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


@contextlib.contextmanager
def workspace(folder, host=None, piece_bytes=256):
    with Workspace(folder, Ledger(Budget(host))) as made:
        made.piece_bytes = piece_bytes
        yield made


def build(space, edges, num_nodes, **rules):
    writer, report = Collector(), Report()
    builder = CsrBuilder(edges.load(num_nodes), num_nodes, EdgeRules(**rules), space)
    builder.write(writer, report)
    return writer, report


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("edges")


@st.composite
def graphs(draw):
    num_nodes = draw(st.integers(1, 40))
    node = st.integers(0, num_nodes - 1)
    return num_nodes, draw(st.lists(st.tuples(node, node), max_size=120))


RULES = st.fixed_dictionaries(
    {
        "undirected": st.booleans(),
        "self_loops": st.sampled_from(["keep", "drop", "add"]),
        "duplicates": st.sampled_from(["keep", "drop"]),
    }
)


@settings(max_examples=300)
@given(
    graph=graphs(),
    rules=RULES,
    host=st.sampled_from([None, 3_000, 4_000, 6_000]),
    form=st.sampled_from(["pairs", "rows", "pairs by columns", "rows by columns", "csr"]),
    dtype=st.sampled_from(["int32", "int64", "uint64", "uint16", ">i4"]),
)
def test_rows_equal_the_oracle(folder, graph, rules, host, form, dtype):
    num_nodes, edges = graph
    pairs = np.array(edges, dtype).reshape(-1, 2)
    with workspace(folder, host) as space:
        source = save(folder, space, pairs, num_nodes, form)
        try:
            writer, counts = build(space, source, num_nodes, **rules)
        except BudgetError:  # one range of rows alone may be too large
            assert host is not None
            return
    src, dst = pairs.astype(np.int64).T
    indptr, indices, loops, expected = oracles.csr_of_edges(src, dst, num_nodes, **rules)
    assert writer.get("indptr").tolist() == indptr.tolist()
    assert writer.get("indices").tolist() == indices.tolist()
    assert writer.get("loops").tolist() == loops
    assert writer.num_edges == len(indices)
    for name, value in expected.items():
        assert getattr(counts, name) == value, name


def save(folder, space, pairs, num_nodes, form):
    """Write edges in one of the forms, and open them."""
    if form == "csr":
        order = np.argsort(pairs[:, 0], kind="stable")
        counts = np.bincount(pairs[:, 0].astype(np.int64), minlength=num_nodes)
        np.save(folder / "indptr.npy", np.concatenate([[0], np.cumsum(counts)]))
        np.save(folder / "indices.npy", pairs[order, 1])
        indptr, indices = (
            open_npy(space, folder / f"{name}.npy") for name in ("indptr", "indices")
        )
        return CsrEdges(SparseRows(indptr, indices, None, num_nodes))
    layout = form.split()[0]
    array = pairs if layout == "pairs" else pairs.T
    order = "F" if "columns" in form else "C"
    np.save(folder / "edges.npy", np.asarray(array, order=order))
    return PairEdges(open_npy(space, folder / "edges.npy"), layout)


def note_stage(stages, stage, done, total):
    assert 0 < done <= total
    stages.append(stage)


def test_memory_changes_the_way_and_not_the_bytes(folder):
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 5000, (60_000, 2), dtype=np.int32)
    np.save(folder / "edges.npy", pairs)
    results = {}
    for host in (60_000, 120_000, None):
        stages = []
        with workspace(folder, host, piece_bytes=4096) as space:
            edges = PairEdges(open_npy(space, folder / "edges.npy"))
            writer = Collector()
            told = functools.partial(note_stage, stages)
            CsrBuilder(edges, 5000, EdgeRules(undirected=True), space, told).write(writer, Report())
            if host is not None:
                assert space.ledger.peak_bytes(Tier.HOST) <= host
            on_disk = space.ledger.peak_bytes(Tier.DISK)
        assert set(stages) == {"checking edges", "placing edges"}
        # an edge of a pair of int32, once or for each of its ends
        assert on_disk == 0 if host is None else 60_000 * 8 <= on_disk <= 60_000 * 16
        results[host] = [writer.get(name).tobytes() for name in ("indptr", "indices", "loops")]
    assert results[60_000] == results[120_000] == results[None]


def test_rows_larger_than_a_cache_go_through_buckets(folder, monkeypatch):
    """Without a limit, too; and neither that nor the threads change the bytes."""
    pairs = np.random.default_rng(1).integers(0, 4000, (50_000, 2), dtype=np.int32)
    np.save(folder / "many.npy", pairs)
    results, before = [], threads.num_threads()
    for num_threads, whole in ((2, 32 << 20), (1, 100_000), (2, 100_000), (5, 100_000)):
        monkeypatch.setattr("gnnx.prepare.csr.WHOLE_BYTES", whole)
        monkeypatch.setattr("gnnx.prepare.buckets._TARGET_BYTES", 20_000)
        threads.set_num_threads(num_threads)
        try:
            with workspace(folder, piece_bytes=4096) as space:
                edges = PairEdges(open_npy(space, folder / "many.npy"))
                writer, report = build(space, edges, 4100, undirected=True, duplicates="drop")
                assert (space.ledger.peak_bytes(Tier.DISK) >= 50_000 * 8) == (whole == 100_000)
        finally:
            threads.set_num_threads(before)
        assert report.isolated >= 100
        arrays = [writer.get(name).tobytes() for name in ("indptr", "indices", "loops")]
        results.append((arrays, report))
    assert all(result == results[0] for result in results)


def test_hub_longer_than_the_memory(folder):
    np.save(folder / "edges.npy", np.zeros((50_000, 2), np.int32))
    with workspace(folder, 40_000) as space:
        edges = PairEdges(open_npy(space, folder / "edges.npy"))
        with pytest.raises(BudgetError) as failure:
            build(space, edges, 1)
    smallest = failure.value.smallest_bytes
    with workspace(folder, smallest) as space:
        edges = PairEdges(open_npy(space, folder / "edges.npy"))
        writer, counts = build(space, edges, 1)
    assert writer.num_edges == 50_000
    assert counts.duplicates == 49_999


@pytest.mark.parametrize("wrong", [-1, 4, 2**40])
@pytest.mark.parametrize("place", [0, 1])
def test_id_outside(folder, wrong, place):
    pairs = np.zeros((100, 2), np.int64)
    pairs[77, place] = wrong
    np.save(folder / "edges.npy", pairs)
    with workspace(folder) as space:
        edges = PairEdges(open_npy(space, folder / "edges.npy"))
        with pytest.raises(DataError) as failure:
            build(space, edges, 4)
    assert failure.value.cause == f"edges.npy: edge 77: node {wrong} is outside the 4 nodes"


def test_rows_of_many_edges_are_sorted(folder):
    """Long rows take another sort than short ones."""
    rng = np.random.default_rng(1)
    pairs = np.stack([rng.integers(0, 10_000, 20_000), rng.integers(0, 3, 20_000) ** 4 % 3], 1)
    np.save(folder / "edges.npy", pairs)
    with workspace(folder, piece_bytes=8192) as space:
        edges = PairEdges(open_npy(space, folder / "edges.npy"))
        writer, _ = build(space, edges, 10_000)
    order = np.lexsort((pairs[:, 0], pairs[:, 1]))
    assert (writer.get("indices") == pairs[order, 0]).all()


@pytest.mark.parametrize(
    ("indptr", "message"),
    [
        ([0, 2, 1, 3], "indptr.npy: entry 2 is 1: rows do not ascend from 0 to 3"),
        ([1, 2, 2, 3], "indptr.npy: entry 0 is 1: rows do not ascend from 0 to 3"),
        ([0, 2, 2, 2], "indptr.npy: 2 entries, indices.npy: 3"),
        ([0, 2, 9, 9], "indptr.npy: entry 2 is 9: rows do not ascend from 0 to 3"),
    ],
)
def test_csr_that_contradicts_itself(folder, indptr, message):
    np.save(folder / "indptr.npy", np.array(indptr))
    np.save(folder / "indices.npy", np.array([0, 1, 2]))
    with workspace(folder) as space:
        arrays = [open_npy(space, folder / f"{name}.npy") for name in ("indptr", "indices")]
        edges = CsrEdges(SparseRows(*arrays, None, 3))
        with pytest.raises(DataError) as failure:
            build(space, edges, 3)
    assert failure.value.cause == message
