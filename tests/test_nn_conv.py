"""Convolutions against dense float64 algebra, on whole graphs and on sampled rows."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import oracles
from gnnx import ops
from gnnx.errors import UsageError
from gnnx.graph import Block, Graph, Transpose
from gnnx.nn import GCNConv, SAGEConv
from gnnx.random import Key


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def random_graph(seed, num_nodes, num_edges):
    indptr, indices = oracles.random_csr(seed, num_nodes, num_nodes, num_edges)
    return Graph(torch.from_numpy(indptr), torch.from_numpy(indices).int())


def block_of(graph, rows, edges):
    """What a sampler would make: row i of the block has the edges at positions ``edges[i]``."""
    sources = [graph.indices[list(picked)].tolist() for picked in edges]
    src_id = list(dict.fromkeys([*rows, *itertools.chain(*sources)]))
    local = {node: i for i, node in enumerate(src_id)}
    indptr = torch.tensor([0, *itertools.accumulate(map(len, sources))])
    indices = torch.tensor([local[s] for s in itertools.chain(*sources)], dtype=torch.int32)
    src_id = torch.tensor(src_id)
    return Block(
        indptr=indptr,
        indices=indices,
        src_id=src_id,
        key=Key(0),
        transpose=Transpose(*ops.transpose(indptr, indices, len(src_id))),
        src_degree=graph.degree[src_id],
        dst_degree=graph.degree[list(rows)],
        src_loop=graph.has_loop[src_id],
    )


def dense_gcn(conv, adjacency, h):
    """The same parameters with a dense matrix."""
    out = torch.from_numpy(oracles.gcn_matrix(adjacency)) @ h @ conv.weight.t()
    return out if conv.bias is None else out + conv.bias


def dense_sage(conv, adjacency, h):
    if conv.aggr == "mean":
        neighbours = torch.from_numpy(oracles.mean_matrix(adjacency)) @ h
    else:
        rows = [torch.from_numpy(np.flatnonzero(row)) for row in adjacency]
        zero = torch.zeros_like(h[0])
        neighbours = torch.stack([h[s].max(0).values if len(s) else zero for s in rows])
    bias = 0 if conv.linear_self.bias is None else conv.linear_self.bias
    return h @ conv.linear_self.weight.t() + bias + neighbours @ conv.linear_neigh.weight.t()


def assert_equal_with_gradients(conv, dense, block, h):
    h = h.requires_grad_()
    inputs = h, *conv.parameters()
    out, wanted = conv(block, h), dense(h)
    seed = torch.randn_like(out)
    assert torch.allclose(out, wanted, rtol=1e-10, atol=1e-10)
    pairs = zip(
        torch.autograd.grad(out, inputs, seed),
        torch.autograd.grad(wanted, inputs, seed),
        strict=True,
    )
    for got, want in pairs:
        assert torch.allclose(got, want, rtol=1e-10, atol=1e-10)


@settings(max_examples=200)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_nodes=st.integers(1, 14),
    num_edges=st.integers(0, 60),
    widths=st.sampled_from([(3, 5), (5, 3), (4, 4), (1, 1)]),
    bias=st.booleans(),
)
def test_whole_graph_against_dense_algebra(seed, num_nodes, num_edges, widths, bias):
    """Empty rows, isolated nodes, loops and parallel edges included."""
    graph = random_graph(seed, num_nodes, num_edges)
    adjacency = oracles.adjacency(graph.indptr.numpy(), graph.indices.numpy(), num_nodes)
    h = torch.randn(num_nodes, widths[0], dtype=torch.float64)
    cases = [(GCNConv(*widths, bias=bias), dense_gcn)]
    cases += [(SAGEConv(*widths, aggr=aggr, bias=bias), dense_sage) for aggr in ("mean", "max")]
    for conv, dense in cases:
        conv.double()
        assert_equal_with_gradients(
            conv, lambda h, conv=conv, dense=dense: dense(conv, adjacency, h), graph.block(), h
        )


def test_self_loops_are_neither_lost_nor_doubled():
    """Edges 0->0, 1->0, 2->0, 0->1 with x = 1, 2, 4: nodes 1 and 2 get a loop, node 0 has one."""
    graph = Graph.from_edges(torch.tensor([0, 1, 2, 0]), torch.tensor([0, 0, 0, 1]), 3)
    conv = GCNConv(1, 1, bias=False)
    torch.nn.init.ones_(conv.weight)
    out = conv(graph.block(), torch.tensor([[1.0], [2.0], [4.0]]))
    wanted = [1 / 3 + 2 / 6**0.5 + 4 / 3**0.5, 1 / 6**0.5 + 2 / 2, 4.0]
    assert torch.allclose(out.flatten(), torch.tensor(wanted))


@pytest.mark.parametrize("widths", [(2, 3), (3, 2)])
def test_sampled_rows_are_right_on_average(widths):
    """The mean over all draws of two edges of each row is the full row, for linear layers."""
    src = torch.tensor([1, 2, 3, 3, 0, 2, 4, 1])
    dst = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])  # 3->0 twice, and a loop on 1
    graph = Graph.from_edges(src, dst, 6)
    h = torch.randn(6, widths[0], dtype=torch.float64)
    for conv in (GCNConv(*widths).double(), SAGEConv(*widths).double()):
        whole = conv(graph.block(), h)[:2]
        outs = []
        for a in itertools.combinations(range(4), 2):
            for b in itertools.combinations(range(4, 8), 2):
                block = block_of(graph, [0, 1], [a, b])
                outs.append(conv(block, h[block.src_id]))
        assert not torch.allclose(outs[0], whole)
        assert torch.allclose(torch.stack(outs).mean(0), whole, rtol=1e-12, atol=1e-12)


def test_rows_without_a_drawn_edge():
    """A sampler that draws nothing of a row leaves it its own part; no division by zero."""
    graph = Graph.from_edges(torch.tensor([1, 2]), torch.tensor([0, 0]), 3)
    block = block_of(graph, [0, 1], [[], []])
    h = torch.randn(2, 4, requires_grad=True)
    out = GCNConv(4, 4)(block, h)
    out.sum().backward()
    assert out.isfinite().all()
    assert h.grad.isfinite().all()


class LargestTensor(TorchDispatchMode):
    """Records how many elements the largest output of an operator has."""

    num_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, tuple | list) else [out]:
            if isinstance(part, torch.Tensor):
                self.num_elements = max(self.num_elements, part.numel())
        return out


@pytest.mark.parametrize("conv", [GCNConv(16, 4), GCNConv(4, 16), SAGEConv(16, 4), SAGEConv(4, 16)])
def test_no_edge_carries_features(conv):
    graph = random_graph(0, 50, 5000)
    block, h = graph.block(), torch.randn(50, conv.in_features, requires_grad=True)
    with LargestTensor() as largest:
        conv(block, h).sum().backward()
    assert largest.num_elements < 5000 * 4


@pytest.mark.parametrize(
    "conv",
    [GCNConv(16, 4), GCNConv(4, 16), SAGEConv(16, 4), SAGEConv(4, 16), SAGEConv(16, 4, "max")],
    ids=str,
)
def test_under_autocast(conv):
    """Products run in bfloat16, sums take it; values and gradients are near those without."""
    graph = random_graph(1, 60, 600)
    block = graph.block()
    h = torch.randn(60, conv.in_features, requires_grad=True)
    inputs = h, *conv.parameters()
    seed = torch.randn(60, conv.out_features)
    wanted = conv(block, h)
    wanted_grads = torch.autograd.grad(wanted, inputs, seed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = conv(block, h)
    got_grads = torch.autograd.grad(out, inputs, seed.to(out.dtype))
    for got, want in zip((out, *got_grads), (wanted, *wanted_grads), strict=True):
        assert (got - want).norm() < 0.02 * want.norm()


@pytest.mark.parametrize(("num_others", "rows"), [(0, 60), (6000, 60)])
def test_sage_projects_first_where_that_is_less_work(num_others, rows):
    """A layer that narrows sums its narrow rows, unless most sources are no destinations."""
    num_src = rows + num_others
    indptr, indices = (torch.from_numpy(t) for t in oracles.random_csr(0, rows, num_src, 600))
    indices = indices.int()
    block = Block(
        indptr=indptr,
        indices=indices,
        src_id=torch.arange(num_src),
        key=Key(0),
        transpose=Transpose(*ops.transpose(indptr, indices, num_src)),
    )
    conv, h = SAGEConv(64, 16), torch.randn(num_src, 64)
    summed = []

    class Widths(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func in {torch.ops.gnnx.spmm.default, torch.ops.gnnx.sage.default}:
                summed.append(args[2].shape[1])
            return func(*args, **(kwargs or {}))

    with Widths():
        out = conv(block, h)
    assert summed == [64 if num_others else 16]
    neighbours = ops.spmm(indptr, indices, h, reduce="mean")
    assert torch.allclose(
        out, conv.linear_self(h[:rows]) + conv.linear_neigh(neighbours), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_output_has_the_type_of_the_layer(dtype):
    graph = random_graph(2, 20, 100)
    for conv in (GCNConv(4, 3), GCNConv(3, 4), SAGEConv(4, 3), SAGEConv(3, 4)):
        out = conv.to(dtype)(graph.block(), torch.randn(20, conv.in_features, dtype=dtype))
        assert out.dtype == dtype


def test_what_a_layer_lacks_is_named():
    graph = random_graph(3, 20, 100)
    rows = Block(
        indptr=graph.indptr,
        indices=graph.indices,
        src_id=torch.arange(20),
        key=Key(0),
        transpose=graph.transpose,
    )
    h = torch.randn(20, 4)
    assert SAGEConv(4, 4)(rows, h).shape == (20, 4)
    with pytest.raises(UsageError, match=r"no degrees[^\n]*\n.*Loader\(\.\.\., degrees=True\)"):
        GCNConv(4, 4)(rows, h)
    for conv in (GCNConv(4, 4), SAGEConv(4, 4), SAGEConv(4, 4, "max"), SAGEConv(4, 2)):
        with pytest.raises(UsageError, match="h has 19 rows, the block 20 sources"):
            conv(graph.block(), h[:19])
    with pytest.raises(UsageError, match="aggr is 'sum'"):
        SAGEConv(4, 4, aggr="sum")


def test_gcn_refuses_edge_weights():
    import dataclasses

    block = random_graph(4, 20, 100).block()
    weighted = dataclasses.replace(block, edge_weight=torch.ones(100))
    with pytest.raises(UsageError, match="edge weights"):
        GCNConv(4, 4)(weighted, torch.randn(20, 4))


def test_like_torch_geometric():
    pyg = pytest.importorskip("torch_geometric.nn")
    rng = np.random.default_rng(0)
    pairs = np.unique(rng.integers(0, 40, (300, 2)), axis=0)  # its loops are never parallel
    src, dst = torch.from_numpy(pairs.T)
    graph, edge_index = Graph.from_edges(src, dst, 40), torch.stack([src, dst])
    h = torch.randn(40, 6, dtype=torch.float64)
    for widths in ((6, 4), (6, 9)):
        ours, theirs = GCNConv(*widths).double(), pyg.GCNConv(*widths).double()
        theirs.lin.weight.data, theirs.bias.data = ours.weight.data, ours.bias.data
        assert torch.allclose(ours(graph.block(), h), theirs(h, edge_index), atol=1e-10)
        for aggr in ("mean", "max"):
            ours, theirs = SAGEConv(*widths, aggr).double(), pyg.SAGEConv(*widths, aggr).double()
            theirs.lin_l.weight.data = ours.linear_neigh.weight.data
            theirs.lin_l.bias.data = ours.linear_self.bias.data
            theirs.lin_r.weight.data = ours.linear_self.weight.data
            assert torch.allclose(ours(graph.block(), h), theirs(h, edge_index), atol=1e-10)
