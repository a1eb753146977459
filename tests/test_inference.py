"""Layer-wise inference: each node once, with every neighbour, whatever the budget."""

import time

import numpy as np
import pytest
import torch
from torch import nn

import gnnx
from gnnx import inference, ops
from gnnx.errors import BudgetError, DataError, RunError, UsageError
from gnnx.inference import infer, pieces, stream
from gnnx.memory import Budget, Ledger, Tier
from gnnx.nn import GCN, SAGE
from gnnx.prepare import prepare, synth
from gnnx.store import Dataset


class AddMean(nn.Module):
    """h + mean of in-neighbours: a layer without parameters."""

    def forward(self, block, h):
        mean = ops.spmm(block.indptr, block.indices, h, reduce="mean", transpose=block.transpose)
        return h[: block.num_dst] + mean


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([AddMean(), AddMean()])


@pytest.fixture
def path4(tmp_path):
    np.save(tmp_path / "edges.npy", np.array([[0, 1, 2], [1, 2, 3]]))
    np.save(tmp_path / "x.npy", np.array([[1], [2], [4], [8]], np.float32))
    prepare(
        tmp_path / "edges.npy", tmp_path / "path4", features=tmp_path / "x.npy", undirected=True
    )
    with gnnx.open(tmp_path / "path4", memory="16MiB") as dataset:
        yield dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("inference") / "synth"
    synth(path, num_nodes=30_000, num_edges=200_000, num_features=64, num_classes=3, seed=2)
    return path


@pytest.mark.parametrize("most", [1, 2, 4, 100])
def test_path_by_hand(path4, monkeypatch, most):
    monkeypatch.setattr(inference, "most_entries", lambda *_: most)
    found = infer(Twice(), path4)
    assert found.flatten().tolist() == [7.5, 10.5, 17.25, 21.0]


@pytest.mark.parametrize("memory", ["6MiB", "64MiB", "4GiB"])
@pytest.mark.parametrize("device_memory", ["4MiB", None])
def test_budgets_change_nothing(folder, memory, device_memory):
    torch.manual_seed(0)
    model = SAGE(64, 8, 3, num_layers=3).double()
    with gnnx.open(folder, memory="4GiB") as dataset:
        expected = infer(model, dataset).clone()
    with gnnx.open(folder, memory=memory, device_memory=device_memory) as dataset:
        found = infer(model, dataset)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        for tier in (Tier.HOST, Tier.DEVICE):
            limit = dataset.ledger.budget.limit(tier)
            assert limit is None or dataset.ledger.peak_bytes(tier) <= limit
        del found
        assert dataset.ledger.held_bytes(Tier.DISK) == 0


def test_some_nodes_are_the_same_as_all(folder):
    torch.manual_seed(0)
    model = GCN(64, 8, 3, num_layers=3)
    nodes = np.array([0, 7, 8, 4000, 29_999])
    with gnnx.open(folder, memory="64MiB") as dataset:
        some, every = infer(model, dataset, nodes=nodes), infer(model, dataset)
        torch.testing.assert_close(some, every[torch.from_numpy(nodes)])


def test_rows_that_nobody_needs_are_not_computed(folder):
    seen = []

    class Counting(AddMean):
        def forward(self, block, h):
            seen.append(block.num_dst)
            return super().forward(block, h)

    model = Twice()
    model.layers[0] = Counting()
    with gnnx.open(folder, memory="64MiB") as dataset:
        infer(model, dataset, nodes=np.array([5]))
        _, degree = dataset.graph.rows(np.array([5]))
    assert 1 <= sum(seen) <= degree[0] + 1


def test_a_file_holds_the_rows_and_appears_when_whole(folder, tmp_path):
    model = SAGE(64, 8, 3, num_layers=2)
    out = tmp_path / "out.npy"
    with gnnx.open(folder, memory="64MiB") as dataset:
        assert infer(model, dataset, out=out) is None
        np.testing.assert_array_equal(np.load(out), infer(model, dataset).numpy())
        model.layers[1].forward = lambda *_: 1 / 0
        before = out.read_bytes()
        with pytest.raises(ZeroDivisionError):
            infer(model, dataset, out=out)
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out.npy"]


def test_degrees_are_looked_up_for_layers_that_need_them(path4):
    seen = []

    class Looking(AddMean):
        def forward(self, block, h):
            seen.append(None if block.src_degree is None else block.src_degree.tolist())
            return super().forward(block, h)

    model = Twice()
    model.layers = nn.ModuleList([Looking(), Looking()])
    model.layers[1].needs_degrees = True
    infer(model, path4)
    assert seen == [None, [1, 2, 2, 1]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_file_keeps_the_precision(folder, tmp_path, dtype):
    model = SAGE(64, 8, 3, num_layers=1).to(dtype)
    with gnnx.open(folder, memory="64MiB") as dataset:
        infer(model, dataset, out=tmp_path / "out.npy")
        expected = infer(model, dataset)
        found = torch.from_numpy(np.load(tmp_path / "out.npy"))
        assert torch.equal(found.to(dtype), expected)


def test_a_scratch_file_goes_when_the_next_layer_is_done(folder):
    model = Twice()
    model.layers = nn.ModuleList(AddMean() for _ in range(5))
    with gnnx.open(folder, memory="64MiB") as dataset:
        infer(model, dataset)
        one = 30_000 * 64 * 4
        assert dataset.ledger.peak_bytes(Tier.DISK) == 2 * one  # of the layer below and this one


def test_a_piece_that_never_comes_is_named(folder, monkeypatch):
    monkeypatch.setattr(pieces, "TIMEOUT_S", 0.1)
    monkeypatch.setattr(inference, "_load", lambda *_: time.sleep(0.5))
    with gnnx.open(folder, memory="64MiB") as dataset:
        with pytest.raises(RunError, match="layer 1 of 2: its next rows were not"):
            infer(Twice(), dataset)
        time.sleep(0.5)


def test_progress_counts_every_row_of_every_layer(folder):
    calls = []
    with gnnx.open(folder, memory="64MiB") as dataset:
        model = SAGE(64, 8, 3, num_layers=2)
        infer(model, dataset, progress=lambda *call: calls.append(call))
    assert calls[-1] == ("layer 2 of 2", 30_000, 30_000)
    assert ("layer 1 of 2", 30_000, 30_000) in calls


def test_the_mode_of_the_model_is_given_back(folder):
    model = SAGE(64, 8, 3, num_layers=2).train()
    with gnnx.open(folder, memory="64MiB") as dataset:
        pieces = stream(model, dataset, None)
        next(pieces)
        assert not model.training
        pieces.close()
        assert model.training
        assert dataset.ledger.held_bytes(Tier.DEVICE) == 0  # left early, nothing is held


def test_errors_name_what_is_wrong(folder):
    with gnnx.open(folder, memory="64MiB") as dataset:
        with pytest.raises(UsageError, match="Linear shows no layers"):
            infer(nn.Linear(1, 1), dataset)
        with pytest.raises(UsageError, match="no nodes"):
            infer(Twice(), dataset, nodes=np.empty(0, np.int64))
        for nodes, word in (([3, 3], "do not ascend"), ([5, 3], "do not ascend")):
            with pytest.raises(UsageError, match=word):
                infer(Twice(), dataset, nodes=np.array(nodes))
        for node in (-1, 30_000):
            with pytest.raises(DataError, match=f"node {node} is outside the 30000 nodes"):
                infer(Twice(), dataset, nodes=np.array([node]))
    tiny = Dataset(folder, Ledger(Budget(host=64 << 20, device=512)))
    with tiny, pytest.raises(BudgetError, match="device memory") as error:
        infer(Twice(), tiny)
    assert error.value.smallest_bytes > 512


@pytest.mark.parametrize("place", ["", ".", "/dev/null", "nowhere/out.npy"])
def test_what_is_no_place_for_a_file_is_refused_before_computing(folder, place):
    with gnnx.open(folder, memory="64MiB") as dataset:
        model = SAGE(64, 8, 3, num_layers=2)
        model.layers[0].forward = lambda *_: 1 / 0
        with pytest.raises(UsageError, match="no place for a file"):
            infer(model, dataset, out=place)
