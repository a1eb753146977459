"""Losses with all neighbours equal torch_geometric's own full-graph loss, on real graphs.

Its models get the same weights, and edges and features read from the files by NumPy alone. Three
ways through gnnx: batches of a loader, evaluation layer by layer, and a trainer's epoch.
"""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import gnnx
from gnnx.cli import app
from gnnx.nn import GAT, GCN, GIN, SAGE

HIDDEN, FANOUTS, BOUND = 16, [-1, -1], 1e-6
functional = torch.nn.functional


class Case(NamedTuple):
    dataset: gnnx.Dataset
    x: torch.Tensor
    edge_index: torch.Tensor
    y: torch.Tensor


def cora(folder):
    raw = folder / "layouts/ogb-raw-cora/raw"
    x, y, edges = (
        np.loadtxt(raw / f"{name}.csv.gz", delimiter=",")
        for name in ("node-feat", "node-label", "edge")
    )
    return folder / "layouts/ogb-raw-cora", [], x, y, edges.T.astype(int)


def photo(folder):
    path = folder / "amazon-photo/amazon_electronics_photo.npz"
    with np.load(path, allow_pickle=True) as file:
        x = np.zeros(file["attr_shape"], np.float32)
        rows = np.repeat(np.arange(len(x)), np.diff(file["attr_indptr"]))
        x[rows, file["attr_indices"]] = file["attr_data"]
        src = np.repeat(np.arange(len(x)), np.diff(file["adj_indptr"]))
        return path, ["--split", "0.6,0.2,0.2"], x, file["labels"], (src, file["adj_indices"])


def minesweeper(folder):
    path = folder / "heterophilous/minesweeper.npz"
    with np.load(path) as file:
        return path, [], file["node_features"], file["node_labels"], file["edges"].T


@pytest.fixture(scope="module", params=[cora, photo, minesweeper], ids=lambda f: f.__name__)
def case(request, shared_data, tmp_path_factory):
    path, options, x, y, edges = request.param(shared_data)
    out = tmp_path_factory.mktemp("graphs") / "graph"
    words = ["prepare", path, out, "--undirected", "--duplicates", "drop", *options]
    result = CliRunner().invoke(app, [*map(str, words), "--quiet"])
    assert result.exit_code == 0, result.output
    pairs = {(int(s), int(d)) for s, d in zip(*edges, strict=True)}
    pairs |= {(d, s) for s, d in pairs}
    edge_index = torch.tensor(sorted(pairs)).T.contiguous()
    with gnnx.open(out, memory="256MiB") as dataset:
        assert dataset.num_edges == edge_index.shape[1]
        x, y = torch.from_numpy(np.asarray(x, np.float64)), torch.from_numpy(np.asarray(y, int))
        yield Case(dataset, x, edge_index, y)


def copied(kind, num_features, num_classes):
    """Make one of our models and one of torch_geometric's, with the weights of the former."""
    theirs = pytest.importorskip("torch_geometric.nn")
    torch.manual_seed(0)
    widths = num_features, HIDDEN, num_classes, 2
    its_widths = num_features, HIDDEN, 2, num_classes
    if kind == "gcn":
        ours, other = GCN(*widths, dropout=0), theirs.GCN(*its_widths)
        names = {"weight": "lin.weight", "bias": "bias"}
    elif kind == "sage":
        ours, other = SAGE(*widths, dropout=0), theirs.GraphSAGE(*its_widths)
        names = {"linear_neigh.weight": "lin_l.weight", "linear_self.bias": "lin_l.bias"}
        names["linear_self.weight"] = "lin_r.weight"
    elif kind == "gin":
        ours, other = GIN(*widths, dropout=0), theirs.GIN(*its_widths)
        names = {"eps": "eps"}
        for mine, its in (0, 0), (2, 1):
            for part in "weight", "bias":
                names[f"mlp.{mine}.{part}"] = f"nn.lins.{its}.{part}"
    else:
        ours = GAT(*widths, heads=4, dropout=0)
        other = theirs.GAT(*its_widths, heads=4, act="elu")
        names = {name: name for name in ("att_src", "att_dst", "bias")}
        names["linear.weight"] = "lin.weight"
    state, wanted = ours.state_dict(), other.state_dict()
    for layer in range(2):
        for mine, its in names.items():
            target = wanted[f"convs.{layer}.{its}"]
            target.copy_(state[f"layers.{layer}.conv.{mine}"].view_as(target))
    assert len(state) == len(wanted) == 2 * len(names)
    return ours.double(), other.double()


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat"])
def test_loss_equals_torch_geometric_s(case, kind):
    dataset, x, edge_index, y = case
    ours, theirs = copied(kind, dataset.num_features, dataset.num_classes)
    train = dataset.split("train").read_range(0, dataset.split("train").num_rows)
    with torch.no_grad():
        wanted = functional.cross_entropy(theirs(x, edge_index)[train], y[train]).item()
    close = BOUND * max(1.0, wanted)

    loss, loader = 0.0, gnnx.Loader(dataset, FANOUTS, 512, degrees=ours.needs_degrees)
    for batch in loader:
        assert torch.equal(batch.y, y[batch.seeds])
        with torch.no_grad():
            out = ours(batch.blocks, batch.x.double())
        loss += functional.cross_entropy(out, batch.y, reduction="sum").item() / len(train)
    assert abs(loss - wanted) <= close

    assert abs(gnnx.evaluate(ours, dataset, "train").loss - wanted) <= close

    options = {"lr": 0.0, "weight_decay": 0.0, "eval_every": 0, "batch_size": len(train)}
    trainer = gnnx.Trainer(ours, dataset, fanouts=FANOUTS, **options)
    assert abs(trainer.fit(1).epochs[0].loss - wanted) <= close
