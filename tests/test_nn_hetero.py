"""Typed layers and models: dense matrices, PyTorch Geometric, and what a model is made of."""

import numpy as np
import pytest
import torch

import gnnx
import oracles
from conformance import write_typed_dataset
from gnnx import ops
from gnnx.errors import UsageError
from gnnx.graph import Block, Graph, HeteroBlock
from gnnx.nn import (
    RGCN,
    HeteroDropout,
    HeteroSAGE,
    HeteroSAGEConv,
    RGCNConv,
    build_model,
)
from gnnx.random import Key
from gnnx.sample import HeteroSampler

COUNTS = {"author": 9, "paper": 12, "venue": 1, "nobody": 0}
ENDS = [
    ("author", "writes", "paper"),
    ("nobody", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "in", "venue"),
    ("paper", "written_by", "author"),
    ("venue", "has", "paper"),  # without edges
]
KEY = Key(0)
WIDTHS = {"author": 3, "paper": 7, "venue": 1, "nobody": 2}
MODELS = {
    "rgcn": lambda **options: RGCN(WIDTHS, 5, 4, 3, ENDS, "paper", **options),
    "bases": lambda **options: RGCN(WIDTHS, 5, 4, 3, ENDS, "paper", num_bases=2, **options),
    "sage": lambda **options: HeteroSAGE(WIDTHS, 5, 4, 3, ENDS, "paper", **options),
}


def random_typed(seed):
    return {
        (src, relation, dst): oracles.random_csr(
            seed + i,
            COUNTS[dst],
            COUNTS[src],
            40 if COUNTS[src] and relation != "has" else 0,
        )
        for i, (src, relation, dst) in enumerate(ENDS)
    }


def whole(graphs, key=KEY):
    """The typed graph as one block: every node is a row and a destination."""
    src_id = {name: torch.arange(count) for name, count in COUNTS.items()}
    blocks = {}
    for edge_type, (indptr, indices) in graphs.items():
        csr = torch.from_numpy(indptr), torch.from_numpy(indices)
        transpose = ops.transpose(*csr, COUNTS[edge_type[0]])
        ids = src_id[edge_type[0]]
        blocks[edge_type] = Block(
            indptr=csr[0], indices=csr[1], src_id=ids, key=key, transpose=transpose
        )
    return HeteroBlock(blocks=blocks, src_id=src_id, num_dst=dict(COUNTS), key=key)


def means(graphs):
    """Dense float64 matrices of means by edge type."""
    return {
        name: torch.from_numpy(
            oracles.mean_matrix(oracles.adjacency(indptr, indices, COUNTS[name[0]]))
        )
        for name, (indptr, indices) in graphs.items()
    }


def inputs(seed=0, widths=WIDTHS):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(COUNTS[name], width, generator=generator, dtype=torch.float64)
        for name, width in widths.items()
    }


def dense_rgcn(conv, matrices, h):
    weights = conv.weight
    if conv.coefficient is not None:
        weights = torch.einsum("rk,kgf->rgf", conv.coefficient, conv.weight)
    own = conv.linear_self
    out = {t: h[t] @ own.weight.T + own.bias for t in conv.out_types}
    for weight, (src, relation, dst) in zip(weights, conv.edge_types, strict=True):
        out[dst] = out[dst] + matrices[src, relation, dst] @ h[src] @ weight.T
    return out


def dense_sage(conv, matrices, h):
    out = {}
    for t, own in zip(conv.linear_self.node_types, conv.linear_self.linears, strict=True):
        out[t] = h[t] @ own.weight.T + own.bias
    for linear, (src, relation, dst) in zip(conv.linear_neigh, conv.edge_types, strict=True):
        out[dst] = out[dst] + matrices[src, relation, dst] @ h[src] @ linear.weight.T
    return out


def dense_model(model, matrices, h):
    for layer in model.layers:
        if layer.encoder is not None:
            pairs = zip(layer.encoder.node_types, layer.encoder.linears, strict=True)
            h = {name: h[name] @ one.weight.T + one.bias for name, one in pairs}
        dense = dense_rgcn if isinstance(layer.conv, RGCNConv) else dense_sage
        h = dense(layer.conv, matrices, h)
        if layer.activation is not None:
            h = {name: rows.relu() for name, rows in h.items()}
    return h[model.target]


def gradients(loss, model, x):
    wanted = [*model.parameters(), *x.values()]
    found = torch.autograd.grad(loss, wanted, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients_are_the_dense_ones(name, seed):
    torch.manual_seed(seed)
    model = MODELS[name]().double().eval()
    graphs, x = random_typed(seed), inputs(seed)
    for rows in x.values():
        rows.requires_grad_()
    found = model([whole(graphs)] * 3, x)
    right = dense_model(model, means(graphs), x)
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)
    weight = torch.randn_like(found)
    pairs = zip(
        gradients((found * weight).sum(), model, x),
        gradients((right * weight).sum(), model, x),
        strict=True,
    )
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("out_features", [2, 9])
@pytest.mark.parametrize("num_bases", [None, 1, 3])
def test_wide_and_narrow_relational_convolutions(out_features, num_bases):
    graphs, x = random_typed(1), inputs(widths=dict.fromkeys(COUNTS, 4))
    conv = RGCNConv(4, out_features, ENDS, COUNTS, num_bases).double()
    found = conv(whole(graphs), x)
    right = dense_rgcn(conv, means(graphs), x)
    for t in COUNTS:
        torch.testing.assert_close(found[t], right[t], rtol=1e-10, atol=1e-10)
    bases = 0 if num_bases is None else num_bases * len(ENDS)
    assert (0 if conv.coefficient is None else conv.coefficient.numel()) == bases


@pytest.mark.parametrize("name", MODELS)
def test_sampled_blocks_with_all_neighbours_give_the_same(name, tmp_path):
    model = MODELS[name]().double().eval()
    graphs, x = random_typed(2), inputs()
    path = write_typed_dataset(
        tmp_path / "d", {t: (count, 0, {}) for t, count in COUNTS.items()}, graphs
    )
    seeds = np.array([5, 0, 11])
    with gnnx.open(path, memory="32MiB") as dataset:
        sampler = HeteroSampler(dataset.graphs, dataset.node_counts, "paper", [-1, -1, -1])
        blocks = sampler.sample(seeds, Key(0))
    found = model(blocks, {t: x[t][ids] for t, ids in blocks[0].src_id.items()})
    right = dense_model(model, means(graphs), x)[torch.from_numpy(seeds)]
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)


def test_torch_geometric_s_relational_convolution_agrees():
    pyg = pytest.importorskip("torch_geometric.nn")
    edges = [torch.randint(0, 30, (2, 100)), torch.randint(0, 30, (2, 40))]
    names = [("n", "a", "n"), ("n", "b", "n")]
    ids = torch.arange(30)
    blocks = {}
    for edge_type, (src, dst) in zip(names, edges, strict=True):
        graph = Graph.from_edges(src, dst, 30)
        blocks[edge_type] = graph.block()
    block = HeteroBlock(blocks=blocks, src_id={"n": ids}, num_dst={"n": 30}, key=Key(0))
    conv = RGCNConv(6, 5, names, ["n"], num_bases=2).double()
    theirs = pyg.RGCNConv(6, 5, 2, num_bases=2).double()
    with torch.no_grad():
        theirs.weight.copy_(conv.weight.transpose(1, 2))
        theirs.comp.copy_(conv.coefficient)
        theirs.root.copy_(conv.linear_self.weight.T)
        theirs.bias.copy_(conv.linear_self.bias)
    x = torch.randn(30, 6, dtype=torch.float64)
    kinds = torch.cat([torch.full((pair.shape[1],), i) for i, pair in enumerate(edges)])
    right = theirs(x, torch.cat(edges, 1), kinds)
    torch.testing.assert_close(conv(block, {"n": x})["n"], right, rtol=1e-10, atol=1e-10)


@pytest.mark.filterwarnings("ignore:There exist node types")
def test_torch_geometric_s_sage_a_relation_agrees():
    pyg = pytest.importorskip("torch_geometric.nn")
    graphs, x = random_typed(3), inputs()
    conv = HeteroSAGEConv(WIDTHS, 4, ENDS, ["author", "paper", "venue"]).double()
    theirs = pyg.HeteroConv(
        {name: pyg.SAGEConv((WIDTHS[name[0]], WIDTHS[name[2]]), 4) for name in ENDS}, "sum"
    ).double()
    pairs = {}
    with torch.no_grad():
        for i, name in enumerate(ENDS):
            one = theirs.convs[name]
            one.lin_l.weight.copy_(conv.linear_neigh[i].weight)
            into = sum(dst == name[2] for _, _, dst in ENDS)
            own = conv.linear_self.linears[conv.out_types.index(name[2])]
            one.lin_r.weight.copy_(own.weight / into)
            one.lin_l.bias.copy_(own.bias / into)
            indptr, indices = graphs[name]
            rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
            pairs[name] = torch.from_numpy(np.stack([indices, rows]))
    found, right = conv(whole(graphs), x), theirs(x, pairs)
    for t in ("author", "paper", "venue"):
        torch.testing.assert_close(found[t], right[t], rtol=1e-10, atol=1e-10)


def test_layers_hold_what_the_target_depends_on():
    chain = [("a", "r", "b"), ("b", "r", "c"), ("c", "r", "d"), ("d", "r", "d")]
    model = HeteroSAGE(dict.fromkeys("abcd", 2), 3, 5, 2, chain, "c")
    first, last = model.layers
    assert (last.conv.edge_types, last.conv.out_types) == ([("b", "r", "c")], ["c"])
    assert first.conv.edge_types == [("a", "r", "b"), ("b", "r", "c")]
    assert first.conv.out_types == ["b", "c"]
    assert RGCN(dict.fromkeys("abcd", 2), 3, 5, 1, chain, "c").layers[0].encoder.node_types == [
        "b",
        "c",
    ]


def test_dropout_is_keyed_by_type():
    block, x = whole(random_typed(0), Key(1, 2, 3, 1)), inputs()
    x = {name: torch.ones(COUNTS[name], 50) for name in x}
    once = HeteroDropout(0.5)(block, x)
    for number, name in enumerate(sorted(COUNTS)):
        key = Key(1, 2, 3, 4 + number)
        right = oracles.dropout(x[name].numpy(), range(COUNTS[name]), 0.5, key)
        assert np.array_equal(once[name].numpy(), right)
    assert not torch.equal(once["author"], once["paper"][:9])
    assert HeteroDropout(0.5).eval()(block, x) is x


@pytest.mark.parametrize("name", MODELS)
def test_a_config_makes_an_equal_model(name):
    model = MODELS[name](dropout=0.1)
    again = build_model(model.config)
    assert again.config == model.config
    again.load_state_dict(model.state_dict())
    torch.manual_seed(1)
    model.reset_parameters()
    torch.manual_seed(1)
    again.reset_parameters()
    for one, other in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
        assert torch.isfinite(one).all()


def test_wrong_arguments_are_named():
    block, x = whole(random_typed(0)), inputs()
    conv = HeteroSAGEConv({**WIDTHS, "x": 1}, 4, [("x", "y", "paper")], ["paper"]).double()
    with pytest.raises(UsageError, match=r"no edges of type \('x', 'y', 'paper'\)"):
        conv(block, x)
    with pytest.raises(UsageError, match="h has 11 rows of 'paper', the block 12"):
        MODELS["rgcn"]().double().eval()([block] * 3, {**x, "paper": x["paper"][1:]})
    with pytest.raises(UsageError, match="2 blocks for a model of 3 layers"):
        MODELS["sage"]()([block] * 2, x)
    with pytest.raises(UsageError, match="0 bases"):
        RGCN(WIDTHS, 5, 4, 3, ENDS, "paper", num_bases=0)
    with pytest.raises(UsageError, match="0 layers"):
        HeteroSAGE(WIDTHS, 5, 4, 0, ENDS, "paper")
    with pytest.raises(UsageError, match=r"p is 1\.5"):
        HeteroDropout(1.5)
