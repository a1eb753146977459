"""Models and convolutions of torch_geometric: unchanged on batches, and as layers of a Stack."""

import re
import runpy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gnnx
from gnnx import PyGConv
from gnnx.errors import UsageError
from gnnx.nn import ConvLayer, SAGEConv, Stack
from gnnx.prepare import synth

pyg = pytest.importorskip("torch_geometric.nn")
SCRIPT = Path(__file__).resolve().parents[1] / "examples/pyg_model.py"
CONVS = {
    "sage": pyg.SAGEConv,
    "gat": lambda f, g: pyg.GATConv(f, g, heads=2, concat=False),
    "gatv2": lambda f, g: pyg.GATv2Conv((f, f), g),
    "gin": lambda f, g: pyg.GINConv(torch.nn.Linear(f, g)),
    "graph": pyg.GraphConv,
    "transformer": pyg.TransformerConv,
    "edge": lambda f, g: pyg.EdgeConv(torch.nn.Linear(2 * f, g)),
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("pyg") / "graph"
    synth(path, num_nodes=2000, num_edges=16000, num_features=16, num_classes=4)
    with gnnx.open(path, memory="64MiB") as dataset:
        yield dataset


def whole(dataset):
    """Features, edges and labels of the whole graph, as PyG keeps them."""
    x = dataset.features.read_range(0, dataset.num_nodes)
    parts = [
        np.stack([indices, first + np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))])
        for first, indptr, indices in dataset.graph.iter_rows()
    ]
    return x.clone(), torch.from_numpy(np.concatenate(parts, 1)).long()


@pytest.mark.parametrize("name", CONVS)
def test_exact_outputs_are_those_of_the_whole_graph(dataset, name):
    torch.manual_seed(0)
    convs = [CONVS[name](16, 8).double(), CONVS[name](8, 4).double()]
    model = Stack([ConvLayer(PyGConv(convs[0]), 0.3, torch.nn.ReLU()), PyGConv(convs[1])])
    x, edge_index = whole(dataset)
    with torch.no_grad():
        wanted = convs[1](convs[0](x.double(), edge_index).relu(), edge_index)
    out = gnnx.infer(model, dataset)
    assert (out - wanted).abs().max() <= 1e-10 * max(1.0, wanted.abs().max())


@pytest.mark.parametrize("name", ["sage", "gat", "gin"])
def test_a_stack_of_them_is_trained(dataset, name):
    """Beside a layer of gnnx; it learns, and evaluation finds what the report says."""
    torch.manual_seed(0)
    first = ConvLayer(PyGConv(CONVS[name](16, 16)), 0.1, torch.nn.ReLU())
    model = Stack([first, SAGEConv(16, 4)])
    before = [p.clone() for p in model.parameters()]
    model.reset_parameters()
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    trainer = gnnx.Trainer(model, dataset, fanouts=[5, 5], batch_size=256, lr=0.01)
    report = trainer.fit(4)
    assert report.epochs[-1].loss < report.epochs[0].loss
    assert gnnx.evaluate(model, dataset, "test").accuracy == report.test_accuracy > 0.4


class Weighted(torch.nn.Module):
    """Takes what a block may carry of its edges; has no types that say so."""

    def forward(self, x, edge_index, edge_weight=None):
        (source, target), count = edge_index, len(x[1])
        weight = torch.ones(len(source)) if edge_weight is None else edge_weight
        return (
            x[1]
            .new_zeros(count, x[0].shape[1])
            .index_add(0, target, weight[:, None] * x[0][source])
        )


def test_edge_weights_reach_the_convolution():
    import dataclasses

    graph = gnnx.Graph.from_edges(torch.tensor([1, 2, 2]), torch.tensor([0, 0, 1]), 3)
    layer, block, h = PyGConv(Weighted()), graph.block(), torch.tensor([[1.0], [10.0], [100.0]])
    assert layer(block, h).flatten().tolist() == [110.0, 100.0, 0.0]
    weighted = dataclasses.replace(block, edge_weight=torch.tensor([2.0, 3.0, 4.0]))
    assert layer(weighted, h).flatten().tolist() == [320.0, 400.0, 0.0]


@pytest.mark.parametrize("conv", ["GCNConv", "ChebConv"])
def test_convolutions_without_a_bipartite_form_are_refused(conv):
    made = pyg.GCNConv(4, 4) if conv == "GCNConv" else pyg.ChebConv(4, 4, K=2)
    with pytest.raises(UsageError, match=rf"{conv} has no bipartite form[^\n]*\n.*gnnx\.nn"):
        PyGConv(made)


@pytest.mark.parametrize("model", ["sage", "gcn", "gat", "own"])
def test_example(dataset, model, monkeypatch, capsys):
    """Stock models and one of somebody's own learn from batches as they are."""
    words = [str(SCRIPT), str(dataset.path), "--model", model, "--epochs", "8"]
    monkeypatch.setattr(sys, "argv", words)
    runpy.run_path(str(SCRIPT), run_name="__main__")
    shown = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", shown)]
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    assert float(re.search(r"test accuracy ([\d.]+)", shown)[1]) > 0.5


def test_example_is_short():
    assert len(SCRIPT.read_text().splitlines()) < 80
