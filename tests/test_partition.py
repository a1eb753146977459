"""Parts: every node in one, none empty, counted as they are; what each method promises."""

import dataclasses
import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnx
import oracles
from conformance import write_dataset
from gnnx.errors import DataError, UsageError
from gnnx.memory import Budget, Ledger, Tier
from gnnx.partition import (
    Problem,
    StreamSearch,
    build,
    fill_empty_parts,
    measure,
    multilevel,
    partition,
    random_parts,
)
from gnnx.prepare import synth
from gnnx.store.topology import Rows


@dataclasses.dataclass
class Case:
    """A graph on disk and in memory."""

    path: object
    indptr: np.ndarray
    indices: np.ndarray

    @property
    def num_nodes(self):
        return len(self.indptr) - 1


def write_graph(path, edges, num_nodes, **arrays):
    """Write (source, destination) pairs as a dataset."""
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    indptr, indices, loops, _ = oracles.csr_of_edges(pairs[:, 0], pairs[:, 1], num_nodes)
    write_dataset(
        path,
        overwrite=True,
        num_nodes=num_nodes,
        indptr=indptr,
        indices=indices.astype(np.int32),
        loops=np.array(loops, np.int64),
        **arrays,
    )
    return Case(path, indptr, indices)


@st.composite
def graphs(draw):
    """Directed graphs with loops, parallel edges, isolated nodes; one node, no edge."""
    num_nodes = draw(st.integers(1, 40))
    shape = draw(st.sampled_from(["random", "star", "path", "two halves", "none"]))
    nodes = range(num_nodes)
    if shape == "star":
        edges = [(v, 0) for v in nodes[1:]]
    elif shape == "path":
        edges = [(v, v + 1) for v in nodes[:-1]]
    elif shape == "none":
        edges = []
    else:
        node = st.integers(0, num_nodes - 1)
        edges = draw(st.lists(st.tuples(node, node), max_size=120))
        if shape == "two halves":
            edges = [(s, d) for s, d in edges if (2 * s < num_nodes) == (2 * d < num_nodes)]
    return num_nodes, edges


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parts")


def check_counts(quality, case, part, num_parts):
    """Hold what was counted against the oracle, and the parts against what is promised."""
    cut, nodes, edges, halos = oracles.part_counts(case.indptr, case.indices, part, num_parts)
    assert quality.cut == cut
    assert (quality.nodes, quality.edges) == (nodes, edges)
    assert quality.halo == [len(halo) for halo in halos]
    read = sum(len(halo) for halo in halos) + case.num_nodes
    assert quality.alpha == pytest.approx(read / case.num_nodes)
    assert min(nodes) >= 1
    assert sum(nodes) == case.num_nodes


class InMemory:
    """Stands for a GraphStore: passes over its rows in pieces of any size."""

    def __init__(self, num_nodes, edges, piece):
        pairs = np.array(edges, np.int64).reshape(-1, 2)
        self.indptr, indices, *_ = oracles.csr_of_edges(pairs[:, 0], pairs[:, 1], num_nodes)
        self.indices = indices.astype(np.int32)
        self.num_nodes, self.num_edges = num_nodes, len(indices)
        self.ledger, self._piece = Ledger(Budget()), piece

    def iter_rows(self):
        for first in range(0, self.num_nodes, self._piece):
            indptr = self.indptr[first : first + self._piece + 1]
            yield Rows(first, indptr - indptr[0], self.indices[indptr[0] : indptr[-1]])


@settings(max_examples=500)
@given(
    graph=graphs(),
    num_parts=st.integers(1, 40),
    method=st.sampled_from(["stream", "random", "refined"]),
    weights=st.sets(st.sampled_from(["nodes", "edges"]), min_size=1).map(tuple),
    pieces=st.tuples(st.integers(1, 50), st.integers(1, 50)),
)
def test_any_graph_falls_into_full_parts_that_are_counted_right(
    graph, num_parts, method, weights, pieces
):
    num_parts = min(num_parts, graph[0])
    found = []
    for piece in pieces:
        case = InMemory(*graph, piece)
        problem = Problem(case, num_parts, weights)
        part = np.full(case.num_nodes, 99, np.int32)
        if method == "stream":
            StreamSearch(problem).place(part)
        else:
            random_parts(part, num_parts, seed=3)
        if method == "refined":
            StreamSearch(problem).refine(part)
        fill_empty_parts(part, num_parts)
        check_counts(measure(problem, part), case, part, num_parts)
        found.append(part)
    assert np.array_equal(*found)  # whatever the pieces, and so the memory


def try_quality(folder, graph, num_parts):
    num_nodes, edges = graph
    case = write_graph(folder / "graph", edges, num_nodes)
    num_parts = min(num_parts, num_nodes)
    report = partition(case.path, folder / "out", num_parts=num_parts, order="id", overwrite=True)
    assert report.method == "quality"
    with gnnx.open(folder / "out") as made:
        ids = made.array("nodes/node/id").read_range(0, num_nodes).numpy()
        offsets = made.array("nodes/node/parts").read_range(0, num_parts + 1).numpy()
    part = np.empty(num_nodes, np.int64)
    part[ids] = np.searchsorted(offsets, np.arange(num_nodes), side="right") - 1
    check_counts(report.quality, case, part, num_parts)


@settings(max_examples=15)
@given(graph=graphs(), num_parts=st.integers(2, 45))
def test_kaminpar_s_parts_are_full_and_counted_right(folder, graph, num_parts):
    pytest.importorskip("kaminpar")
    try_quality(folder, graph, num_parts)


@pytest.mark.slow
@settings(max_examples=500)
@given(graph=graphs(), num_parts=st.integers(2, 45))
def test_kaminpar_s_parts_on_500_graphs(folder, graph, num_parts):
    pytest.importorskip("kaminpar")
    try_quality(folder, graph, num_parts)


@pytest.mark.parametrize("num_parts", [63, 64, 65, 130])
def test_more_parts_than_bits_of_a_word_are_counted(tmp_path, num_parts):
    indptr, indices = oracles.random_csr(5, 300, 300, 3000)
    write_dataset(tmp_path / "graph", num_nodes=300, indptr=indptr, indices=indices)
    case = Case(tmp_path / "graph", indptr, indices)
    with gnnx.open(case.path) as dataset:
        part = (np.random.default_rng(1).permutation(300) % num_parts).astype(np.int32)
        check_counts(measure(Problem(dataset.graph, num_parts), part), case, part, num_parts)
        StreamSearch(Problem(dataset.graph, num_parts)).place(part)
        fill_empty_parts(part, num_parts)
        check_counts(measure(Problem(dataset.graph, num_parts), part), case, part, num_parts)


def test_a_part_outside_is_named(folder):
    case = write_graph(folder / "outside", [(0, 1)], 3)
    with gnnx.open(case.path) as dataset:
        for bad in (-1, 2):
            part = np.array([0, bad, 1], np.int32)
            with pytest.raises(DataError, match=f"part {bad} of node 1"):
                measure(Problem(dataset.graph, 2), part)


@pytest.mark.parametrize("method", ["quality", "stream", "random"])
def test_a_path_of_seven_nodes_has_at_most_seven_parts(tmp_path, method):
    if method == "quality":
        pytest.importorskip("kaminpar")
    case = write_graph(tmp_path / "path", [(v, v + 1) for v in range(6)], 7)
    with pytest.raises(UsageError, match="64 parts of 7 nodes"):
        partition(case.path, tmp_path / "out", num_parts=64, method=method)
    assert not (tmp_path / "out").exists()
    report = partition(case.path, tmp_path / "out", num_parts=7, method=method)
    assert report.quality.nodes == [1] * 7
    assert report.quality.cut == 6


def test_a_directed_star_is_cut_as_its_edges_say(tmp_path):
    pytest.importorskip("kaminpar")
    case = write_graph(tmp_path / "star", [(leaf, 0) for leaf in range(1, 21)], 21)
    report = partition(case.path, tmp_path / "out", num_parts=4)
    (hub,) = [p for p, count in enumerate(report.quality.edges) if count]
    assert report.quality.cut == 21 - report.quality.nodes[hub]
    assert max(report.quality.nodes) <= 6
    assert sum(report.quality.nodes) == 21


@pytest.fixture(scope="module")
def star(tmp_path_factory):
    """A hub that 200,000 leaves read and that reads them."""
    path, leaves = tmp_path_factory.mktemp("star") / "graph", 200_000
    indptr = np.concatenate([[0], leaves + np.arange(leaves + 1)])
    indices = np.concatenate([np.arange(1, leaves + 1), np.zeros(leaves, np.int64)])
    return write_dataset(
        path, num_nodes=leaves + 1, indptr=indptr, indices=indices.astype(np.int32)
    )


def test_a_star_ends_and_its_cut_is_said_aloud(star, tmp_path, caplog):
    pytest.importorskip("kaminpar")
    with caplog.at_level(logging.WARNING, logger="gnnx"):
        report = partition(star, tmp_path / "out", num_parts=8)
    assert report.quality.cut_share >= 0.87
    assert report.quality.balance["nodes"] <= 1.031
    assert "of the edges join two parts" in caplog.text
    assert report.notes == caplog.messages


def test_without_time_for_kaminpar_the_parts_are_by_stream(star, tmp_path, caplog):
    pytest.importorskip("kaminpar")
    with caplog.at_level(logging.WARNING, logger="gnnx"):
        report = partition(star, tmp_path / "out", num_parts=8, time_limit_s=0, imbalance=0)
    assert report.method == "stream"
    assert "KaMinPar was not done after 0 s: the parts are by the method stream" in caplog.text
    assert max(report.quality.nodes) - min(report.quality.nodes) <= 1


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("raise SystemExit('no memory')", "KaMinPar ended with code 1: no memory"),
        ("import os; os.kill(os.getpid(), 9)", "KaMinPar ended with code -9: no message"),
        ("import time; time.sleep(60)", "KaMinPar was not done after 2 s"),
        ("import sys; open(sys.argv[2], 'wb').write(bytes(36))", "KaMinPar gave no parts to some"),
        ("import sys; open(sys.argv[2], 'wb').write(b'\\2' * 40)", "KaMinPar gave no parts to"),
    ],
)
def test_a_partitioner_that_fails_leaves_the_parts_to_stream(
    folder, tmp_path, monkeypatch, script, cause
):
    child = tmp_path / "child.py"
    child.write_text(script)
    monkeypatch.setattr(multilevel, "_CHILD", child)
    monkeypatch.setattr(multilevel.importlib.util, "find_spec", lambda name: name)
    case = write_graph(folder / "path", [(v, v + 1) for v in range(9)], 10)
    report = partition(case.path, tmp_path / "out", num_parts=2, time_limit_s=2)
    assert report.method == "stream"
    assert report.notes[0].startswith(cause)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "edges",
        "manifest.json",
        "nodes",
    ]


def test_without_kaminpar_the_remedy_is_said(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(multilevel.importlib.util, "find_spec", lambda _: None)
    case = write_graph(folder / "path", [(v, v + 1) for v in range(9)], 10)
    with pytest.raises(UsageError, match=r"gnnx\[partition\], or give --method stream"):
        partition(case.path, tmp_path / "out", num_parts=2)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def community(tmp_path_factory):
    path = tmp_path_factory.mktemp("community") / "graph"
    synth(
        path,
        num_nodes=20_000,
        num_edges=400_000,
        num_features=1,
        num_classes=16,
        split="0.1,0.1,0.8",
    )
    return path


@pytest.fixture(scope="module")
def opened(community):
    with gnnx.open(community) as dataset:
        yield dataset


def alpha_of(problem, method):
    part = np.empty(problem.graph.num_nodes, np.int32)
    if method == "random":
        random_parts(part, problem.num_parts, seed=0)
    else:
        StreamSearch(problem).place(part)
    return measure(problem, part)


@pytest.mark.parametrize("num_parts", [8, 32, 64])
def test_stream_reads_far_less_than_chance(opened, num_parts):
    problem = Problem(opened.graph, num_parts, train=opened.split("train"))
    by_chance, found = alpha_of(problem, "random"), alpha_of(problem, "stream")
    assert found.alpha <= 0.65 * by_chance.alpha
    assert found.balance["nodes"] <= 1.03 + num_parts / 20_000


@pytest.mark.parametrize("weights", [("edges",), ("nodes", "edges"), ("nodes", "edges", "train")])
def test_stream_shares_evenly_what_it_is_told(opened, weights):
    problem = Problem(opened.graph, 8, weights, train=opened.split("train"))
    balance = alpha_of(problem, "stream").balance
    for name in weights:
        assert balance[name] <= 1.04, name


def test_stream_takes_16_bytes_a_node(community):
    held = []
    with gnnx.open(community, memory="16MiB") as dataset:

        def watch(*_):
            held.append(dataset.ledger.owners(Tier.HOST)["partition"])

        problem = Problem(dataset.graph, 40, progress=watch)
        part = dataset.ledger.empty(dataset.num_nodes, np.int32, Tier.HOST, "partition")
        StreamSearch(problem).place(part)
        measure(problem, part)
    assert len(held) > 10
    assert 4 * 20_000 < max(held) <= 16 * 20_000 + 256


@pytest.mark.parametrize("weights", [("nodes",), ("nodes", "edges", "train")])
@pytest.mark.parametrize("num_parts", [5, 40])
def test_refinement_never_makes_even_parts_worse(opened, num_parts, weights):
    problem = Problem(opened.graph, num_parts, weights, train=opened.split("train"))
    part = np.empty(20_000, np.int32)
    StreamSearch(problem).place(part)
    before = measure(problem, part).alpha
    for _ in range(2):
        StreamSearch(problem).refine(part)
        after = measure(problem, part).alpha
        assert after <= before
        before = after


@settings(max_examples=60)
@given(graph=graphs(), num_parts=st.integers(2, 40), seed=st.integers(0, 9))
def test_refinement_never_makes_a_small_graph_worse(folder, graph, num_parts, seed):
    num_nodes, edges = graph
    case = write_graph(folder / "graph", edges, num_nodes)
    num_parts = min(num_parts, num_nodes)
    with gnnx.open(case.path) as dataset:
        problem = Problem(dataset.graph, num_parts)
        part = np.empty(num_nodes, np.int32)
        random_parts(part, num_parts, seed)
        before = measure(problem, part)
        StreamSearch(problem).refine(part)
        assert measure(problem, part).alpha <= before.alpha


def test_parts_do_not_depend_on_the_memory(community):
    found = []
    for memory in ("64MiB", "4MiB"):
        with gnnx.open(community, memory=memory) as dataset:
            part = np.empty(dataset.num_nodes, np.int32)
            StreamSearch(Problem(dataset.graph, 12)).place(part)
            found.append(part)
    assert np.array_equal(*found)


def test_chance_depends_on_the_seed_alone():
    parts = np.empty((3, 1000), np.int32)
    for row, seed in enumerate((0, 0, 1)):
        random_parts(parts[row], 7, seed)
    assert np.array_equal(parts[0], parts[1])
    assert (parts[0] != parts[2]).mean() > 0.8
    sizes = np.bincount(parts[0], minlength=7)
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"num_parts": 0}, "0 parts of 3 nodes"),
        ({"method": "metis"}, "method 'metis' is not a choice"),
        ({"order": "x"}, "order 'x' is not a choice"),
        ({"balance": ()}, "cannot share nothing"),
        ({"balance": ("rows",)}, "cannot share rows"),
        ({"imbalance": -0.1}, "imbalance of -0.1"),
    ],
)
def test_wrong_options_are_refused(folder, tmp_path, options, cause):
    case = write_graph(folder / "three", [(0, 1)], 3)
    with pytest.raises(UsageError, match=cause):
        partition(case.path, tmp_path / "out", **options)
    assert list(tmp_path.iterdir()) == []


def test_a_dataset_without_nodes_is_one_empty_part(folder, tmp_path):
    case = write_graph(folder / "none", [], 0)
    report = partition(case.path, tmp_path / "out")
    assert report.quality.nodes == [0]
    with pytest.raises(UsageError, match="2 parts of 0 nodes"):
        partition(case.path, tmp_path / "two", num_parts=2)


def test_a_defect_in_relabelling_would_be_found(folder, tmp_path, monkeypatch):
    def miscounted(*args):
        quality = measure(*args)
        return dataclasses.replace(quality, cut=quality.cut + 1)

    monkeypatch.setattr(build, "measure", miscounted)
    case = write_graph(folder / "three", [(0, 1)], 3)
    with pytest.raises(gnnx.errors.RunError, match="cut 1 counted before, 0 after"):
        partition(case.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
