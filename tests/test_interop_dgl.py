"""Graphs and blocks of DGL: by what they show, and with DGL itself where GNNX_DGL_PYTHON is set."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import gnnx
from gnnx.errors import DataError, UsageError
from gnnx.prepare import prepare

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = """
import sys
import dgl, torch
from dgl.nn import SAGEConv
from torch.nn.functional import cross_entropy
import gnnx
from gnnx.prepare import prepare, synth

class Model(torch.nn.Module):
    def __init__(self, num_in, hidden, num_out):
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [SAGEConv(num_in, hidden, "mean"), SAGEConv(hidden, num_out, "mean")])
    def forward(self, blocks, x):
        for i, (layer, block) in enumerate(zip(self.layers, blocks)):
            x = layer(block, x) if i else layer(block, x).relu()
        return x

folder = sys.argv[1]
synth(folder + "/graph", num_nodes=2000, num_edges=16000, num_features=16, num_classes=4)
torch.manual_seed(0)
with gnnx.open(folder + "/graph", memory="64MiB") as dataset:
    model = Model(16, 32, 4)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses = []
    for epoch in range(5):
        total = 0.0
        for batch in gnnx.Loader(dataset, [5, 5], 256):
            out = model([gnnx.to_dgl(block) for block in batch.blocks], batch.x)
            loss = cross_entropy(out, batch.y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        losses.append(total)
    assert losses[-1] < 0.8 * losses[0], losses

    # DGL's layer and gnnx's with equal weights, on a sampled block
    ours = gnnx.nn.SAGEConv(16, 32)
    theirs = model.layers[0]
    ours.linear_self.load_state_dict(
        {"weight": theirs.fc_self.weight, "bias": theirs.fc_self.bias}, strict=True)
    ours.linear_neigh.load_state_dict({"weight": theirs.fc_neigh.weight})
    (batch, *_) = gnnx.Loader(dataset, [5, 5], 256, edge_ids=True)
    block = batch.blocks[0]
    made = gnnx.to_dgl(block)
    assert made.is_block and made.num_src_nodes() == block.num_src
    assert torch.equal(made.srcdata[dgl.NID], block.src_id)
    assert torch.equal(made.dstdata[dgl.NID], block.src_id[: block.num_dst])
    assert torch.equal(made.edata[dgl.EID], block.e_id)
    assert torch.equal(made.edges()[0], block.indices)
    difference = (theirs(made, batch.x) - ours(block, batch.x)).abs().max().item()
    assert difference < 1e-5, difference

    # and the way back: the whole graph through DGL is the same data set
    whole = [(first, indptr, indices) for first, indptr, indices in dataset.graph.iter_rows()]
    src = torch.cat([torch.from_numpy(indices) for _, _, indices in whole]).long()
    dst = torch.cat([torch.repeat_interleave(
        torch.arange(first, first + len(indptr) - 1), torch.from_numpy(indptr).diff())
        for first, indptr, _ in whole])
    graph = dgl.graph((src, dst), num_nodes=2000)
    graph.ndata["feat"] = dataset.features.read_range(0, 2000).clone()
    graph.ndata["label"] = dataset.labels.read_range(0, 2000).clone()
    for split in ("train", "val", "test"):
        ids = dataset.split(split).read_range(0, dataset.split(split).num_rows)
        mask = torch.zeros(2000, dtype=torch.bool)
        mask[ids] = True
        graph.ndata[split + "_mask"] = mask
    prepare(gnnx.from_dgl(graph), folder + "/again")
    with gnnx.open(folder + "/again") as again:
        mine, its = again.manifest.arrays, dataset.manifest.arrays
        assert mine == its, [(name, mine.get(name), its.get(name)) for name in mine | its
                             if mine.get(name) != its.get(name)]
print("equal")
"""


def test_with_dgl_itself(tmp_path):
    python = os.environ.get("GNNX_DGL_PYTHON")
    if not python:
        pytest.skip("DGL is not at hand: GNNX_DGL_PYTHON names no interpreter that has it")
    done = subprocess.run(
        [python, "-c", SCRIPT, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "equal"


class Fake:
    """What `from_dgl` reads of a graph."""

    ntypes, canonical_etypes = ["_N"], [("_N", "_E", "_N")]

    def __init__(self, **ndata):
        self.ndata, self.edata = ndata, {"w": torch.ones(3)}

    def edges(self, order):
        assert order == "eid"
        return torch.tensor([0, 1, 3]), torch.tensor([1, 2, 0])

    def num_nodes(self):
        return 5


def test_what_is_taken_of_a_graph(tmp_path):
    masks = torch.tensor([[1, 0], [0, 1], [1, 1], [0, 0], [0, 0]], dtype=torch.uint8)
    y = torch.tensor([0, 1, 2, 1, 0])
    fake = Fake(feat=torch.arange(10.0).view(5, 2), label=y, train_mask=masks, year=torch.ones(5))
    report = prepare(gnnx.from_dgl(fake), tmp_path / "out")
    assert report.num_nodes == 5
    with gnnx.open(tmp_path / "out") as dataset:
        assert dataset.num_edges == 3
        assert dataset.features.read(np.arange(5)).flatten().tolist() == list(range(10))
        assert dataset.labels.read(np.arange(5)).tolist() == y.tolist()
        assert dataset.split("train").read_range(0, 2).tolist() == [0, 2]
    graph = gnnx.from_dgl(Fake(x=torch.ones(5, 3)), features="x")
    assert graph.features.shape == (5, 3)
    assert (graph.labels, graph.splits) == (None, {})
    assert gnnx.from_dgl(fake).notes == [
        "graph.edata['w']: not taken over",
        "graph.ndata['year']: not taken over",
    ]


def test_typed_graphs_are_refused():
    typed = SimpleNamespace(ntypes=["author", "paper"], canonical_etypes=[("a", "b", "c")])
    with pytest.raises(DataError, match=r"a graph of 2 node types"):
        gnnx.from_dgl(typed)


def test_without_dgl_it_is_said(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "dgl", None)
    block = gnnx.Graph.from_edges(torch.tensor([1]), torch.tensor([0]), 2).block()
    with pytest.raises(UsageError, match="DGL is not to be had"):
        gnnx.to_dgl(block)
