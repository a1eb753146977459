"""The community graph: exact counts, its statistics, bytes that depend on the seed alone."""

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import oracles
from gnnx import threads
from gnnx.errors import BudgetError, UsageError
from gnnx.prepare import synth
from gnnx.prepare.community import _kernels
from gnnx.store import verify

KNOWN = {
    "indices": "51a0c40547d3",
    "indptr": "57cbc1c01b75",
    "x": "24021edd08b5",
    "y": "784d69615323",
}


def make(folder, **options):
    sizes = {"num_nodes": 20_000, "num_edges": 400_000, "num_features": 32, "num_classes": 8}
    synth(folder, overwrite=True, **{**sizes, **options})
    return {path.stem: np.load(path) for path in folder.rglob("*.npy")}


def digest(arrays):
    return {name: hashlib.sha256(values.tobytes()).hexdigest() for name, values in arrays.items()}


def rows_of(arrays):
    return np.repeat(np.arange(len(arrays["indptr"]) - 1), np.diff(arrays["indptr"]))


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    folder = tmp_path_factory.mktemp("synth") / "graph"
    arrays = make(folder)
    assert verify(folder) == []
    return arrays


def test_edges(graph):
    indptr, indices, rows = graph["indptr"], graph["indices"], rows_of(graph)
    assert indptr[0] == 0
    assert indptr[-1] == len(indices) == 400_000
    assert (np.diff(indptr) >= 0).all()
    assert indices.dtype == np.int32
    assert 0 <= indices.min() <= indices.max() < 20_000
    assert not (rows == indices).any()
    assert "loops" not in graph
    keys = rows * 20_000 + indices
    assert (np.diff(keys) >= 0).all()  # rows ascend
    assert len(keys) - len(np.unique(keys)) < 100  # of the few hubs longer than their community


def test_degrees_have_a_power_law(graph):
    """Exponent 7/3 in the tail, by Hill's estimator; the out-degrees follow the same popularity."""
    into, out = np.diff(graph["indptr"]), np.bincount(graph["indices"], minlength=20_000)
    assert into.min() >= 5
    for degree in (into, out):
        tail = degree[(degree >= 20)]
        exponent = 1 + len(tail) / np.log(tail / 19.5).sum()
        assert 2.1 < exponent < 2.7
        assert degree.max() > 40 * degree.mean()
    assert np.corrcoef(np.log1p(into), np.log1p(out))[0, 1] > 0.8


def test_most_edges_stay_inside(graph):
    """With 8 classes in 16 communities: 0.9² of 0.7 + 0.3 / 15, and chance for the rest."""
    y, rows = graph["y"], rows_of(graph)
    together = 0.7 + 0.3 / 15
    same_class = together * (0.9 + 0.1 / 8) ** 2 + 7 * together * (0.1 / 8) ** 2
    assert abs((y[rows] == y[graph["indices"]]).mean() - same_class) < 0.04
    counts = np.bincount(y, minlength=8)
    assert counts.min() > 0.9 * counts.mean()


def test_node_order_is_random(graph):
    y, rows = graph["y"], rows_of(graph)
    assert abs((y[1:] == y[:-1]).mean() - 1 / 8) < 0.01
    distance = np.abs(rows - graph["indices"]) / 20_000
    assert abs(distance.mean() - 1 / 3) < 0.01
    assert abs(np.corrcoef(np.arange(20_000), np.diff(graph["indptr"]))[0, 1]) < 0.03


@pytest.mark.parametrize(
    ("num_features", "num_classes"), [(32, 2), (64, 4), (128, 16), (16, 40), (256, 7)]
)
def test_features_hint_and_neighbours_tell(tmp_path, num_features, num_classes):
    options = {"num_features": num_features, "num_classes": num_classes}
    arrays = make(tmp_path / "g", num_edges=300_000, **options, split="0.5,0,0.5")
    x, y, parts = arrays["x"], arrays["y"], (arrays["train"], arrays["test"])
    assert x.dtype == np.float32
    assert abs(x.std(axis=0).mean() - 1) < 0.25
    own = oracles.ridge_accuracy(x, y, *parts, num_classes)
    mean = oracles.neighbour_mean(arrays["indptr"], arrays["indices"], x)
    both = oracles.ridge_accuracy(np.hstack([x, mean]), y, *parts, num_classes)
    assert 0.40 <= own <= 0.75
    assert both >= own + 0.10


def test_bytes_depend_on_the_seed_alone(tmp_path, graph):
    before = threads.num_threads()
    try:
        for count, memory in ((1, "8MiB"), (3, "64MiB")):
            threads.set_num_threads(count)
            assert digest(make(tmp_path / "g", memory=memory)) == digest(graph)
    finally:
        threads.set_num_threads(before)
    other = digest(make(tmp_path / "g", seed=1))
    assert all(other[name] != digest(graph)[name] for name in graph)


def test_bytes_are_known(graph):
    """The same on every machine: nothing in them is rounded in a library's own way."""
    assert {name: digest(graph)[name][:12] for name in KNOWN} == KNOWN


def test_splits(graph):
    sizes = [len(graph[name]) for name in ("train", "val", "test")]
    assert sizes == [2000, 2000, 16_000]
    together = np.concatenate([graph[name] for name in ("train", "val", "test")])
    assert (np.sort(together) == np.arange(20_000)).all()


def test_small_graphs(tmp_path):
    arrays = make(
        tmp_path / "g", num_nodes=64, num_edges=256, num_features=8, num_classes=172
    )  # more classes than nodes
    assert len(arrays["indices"]) == 256
    assert arrays["y"].max() < 172
    arrays = make(tmp_path / "g", num_nodes=3, num_edges=100, num_features=0, num_classes=1)
    assert len(arrays["indices"]) == 100  # sources have to repeat
    assert (rows_of(arrays) != arrays["indices"]).all()
    assert "x" not in arrays
    arrays = make(tmp_path / "g", num_nodes=1, num_edges=0, num_classes=2)
    assert arrays["indptr"].tolist() == [0, 0]
    assert arrays["x"].shape == (1, 32)


def test_many_classes_are_in_the_budget(tmp_path):
    """A number for each two classes, of which 2000 take 32 MB."""
    sizes = {"num_nodes": 5000, "num_edges": 9000, "num_features": 4, "num_classes": 2000}
    with pytest.raises(BudgetError, match="features needs 32000000 bytes"):
        synth(tmp_path / "graph", **sizes, memory="16MiB")
    synth(tmp_path / "graph", **sizes, memory="64MiB")


@pytest.mark.parametrize(
    "options", [{"num_nodes": 1}, {"num_nodes": -1}, {"num_classes": 0}, {"split": "1,1,1"}]
)
def test_sizes_that_cannot_be(tmp_path, options):
    with pytest.raises(UsageError, match=r"without loops|cannot be"):
        make(tmp_path / "g", **options)
    assert not (tmp_path / "g").exists()


@given(num_nodes=st.integers(1, 5000), key=st.integers(0, 2**63))
def test_order_is_a_permutation(num_nodes, key):
    keys = np.array([key, key + 1, key + 2, key + 3], np.uint64)
    half_bits = max(1, -(-(num_nodes - 1).bit_length() // 2))
    plan = _kernels.Plan(num_nodes, 1, half_bits, keys)
    nodes = [_kernels.node_at(position, plan) for position in range(num_nodes)]
    assert sorted(nodes) == list(range(num_nodes))
    assert [_kernels.position_of(node, plan) for node in nodes] == list(range(num_nodes))
