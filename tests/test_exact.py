"""Mini-batches with all neighbours equal a dense reference: outputs and gradients in float64.

The reference knows no blocks: it multiplies dense matrices made from the edge list.
"""

import numpy as np
import pytest
import torch

import gnnx
import oracles
from gnnx.inference import infer
from gnnx.nn import GCN, SAGE
from gnnx.prepare import prepare

KINDS = {
    "gcn": lambda f, c, layers: GCN(f, 5, c, num_layers=layers, dropout=0.0),
    "sage mean": lambda f, c, layers: SAGE(f, 5, c, num_layers=layers, dropout=0.0),
    "sage max": lambda f, c, layers: SAGE(f, 5, c, num_layers=layers, aggr="max", dropout=0.0),
}


def random_graph(rng):
    """Edges with duplicates and loops; about a third of the nodes have no edge."""
    num_nodes = int(rng.integers(1, 40))
    touched = rng.permutation(num_nodes)[: max(1, num_nodes * 2 // 3)]
    edges = rng.choice(touched, size=(int(rng.integers(0, 4 * num_nodes)), 2))
    again = edges[rng.integers(0, len(edges), len(edges) // 4)] if len(edges) else edges
    loops = np.repeat(rng.choice(touched, 2)[:, None], 2, axis=1)
    return num_nodes, np.concatenate([edges, again, loops]).astype(np.int64)


def dense_forward(kind, model, adjacency, x):
    """Apply the model's weights by dense products; adjacency[d, s] counts the edges s -> d."""
    matrices = {"gcn": oracles.gcn_matrix, "sage mean": oracles.mean_matrix}
    h = x
    for layer in model.layers:
        conv = layer.conv
        if kind == "gcn":
            h = torch.from_numpy(matrices[kind](adjacency)) @ h @ conv.weight.T + conv.bias
        else:
            if kind == "sage mean":
                neighbours = torch.from_numpy(matrices[kind](adjacency)) @ h
            else:
                rows = [h[np.flatnonzero(row)] for row in adjacency]
                nothing = torch.zeros(h.shape[1], dtype=h.dtype)
                neighbours = torch.stack([r.amax(0) if len(r) else nothing for r in rows])
            h = conv.linear_self(h) + conv.linear_neigh(neighbours)
        if layer.activation is not None:
            h = torch.relu(h)
    return h


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_of_graphs", range(10))
def test_all_neighbours_equal_a_dense_reference(kind, batch_of_graphs, tmp_path):
    for case in range(7):  # 3 kinds x 10 x 7 = 210 graphs
        rng = np.random.default_rng([batch_of_graphs, case, list(KINDS).index(kind)])
        num_nodes, edges = random_graph(rng)
        x = rng.standard_normal((num_nodes, 4)).astype(np.float32)
        train = np.sort(rng.permutation(num_nodes)[: max(1, num_nodes // 2)])
        arrays = {"edges": edges, "x": x, "y": rng.integers(0, 3, num_nodes), "train": train}
        paths = {name: tmp_path / f"{case}-{name}.npy" for name in arrays}
        for name, path in paths.items():
            np.save(path, arrays[name])
        prepare(
            paths["edges"],
            tmp_path / f"{case}",
            features=paths["x"],
            labels=paths["y"],
            train=paths["train"],
            layout="pairs",
        )
        adjacency = np.zeros((num_nodes, num_nodes))
        np.add.at(adjacency, (edges[:, 1], edges[:, 0]), 1)
        check(kind, tmp_path / f"{case}", adjacency, torch.from_numpy(x).double(), train, rng)


def check(kind, folder, adjacency, x, train, rng):
    num_layers = int(rng.integers(1, 4))
    torch.manual_seed(0)
    model = KINDS[kind](x.shape[1], 3, num_layers).double()
    expected = dense_forward(kind, model, adjacency, x)
    direction = torch.from_numpy(rng.standard_normal((len(train), 3)))
    (expected[train] * direction).sum().backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with gnnx.open(folder, memory="16MiB") as dataset:
        loader = gnnx.Loader(
            dataset, [-1] * num_layers, int(rng.integers(1, 10)), degrees=kind == "gcn"
        )
        seen = 0
        for batch in loader:
            out = model(batch.blocks, batch.x.double())
            torch.testing.assert_close(out, expected[batch.seeds], rtol=1e-10, atol=1e-10)
            assert torch.equal(torch.from_numpy(train)[batch.input_id], batch.seeds)
            (out * direction[batch.input_id]).sum().backward()
            seen += batch.batch_size
        assert seen == len(train)
        streamed = infer(model, dataset)
        torch.testing.assert_close(streamed, expected.detach(), rtol=1e-10, atol=1e-10)
        del batch, streamed
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-10, atol=1e-10)
