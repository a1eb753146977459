"""GIN, GAT and GATv2 against loops over rows, and against torch_geometric with equal weights."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnx import ops
from gnnx.errors import UsageError
from gnnx.graph import Block, Graph
from gnnx.nn import GATConv, GATv2Conv, GINConv
from gnnx.random import Key
from test_nn_conv import LargestTensor, assert_equal_with_gradients, block_of, random_graph

leaky = torch.nn.functional.leaky_relu


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def mlp(*widths):
    first, second = torch.nn.Linear(*widths), torch.nn.Linear(widths[1], widths[1])
    return torch.nn.Sequential(first, torch.nn.ReLU(), second)


def neighbours(block, d, looped):
    row = block.indices[block.indptr[d] : block.indptr[d + 1]].tolist()
    return [s for s in row if s != d] + [d] if looped else row


def slow_gin(conv, block, h):
    drawn = block.indptr.diff()
    rows = []
    for d in range(block.num_dst):
        total = sum((h[s] for s in neighbours(block, d, looped=False)), torch.zeros_like(h[0]))
        if drawn[d]:
            total = total * (int(block.dst_degree[d]) / int(drawn[d]))
        rows.append(total + (1 + conv.eps) * h[d])
    return conv.mlp(torch.stack(rows))


def slow_attention(conv, block, h):
    """Row after row, head after head; loops of the graph replaced by one a node."""
    v2 = isinstance(conv, GATv2Conv)
    shape = len(h), conv.heads, conv.out_features
    x = (conv.linear_src if v2 else conv.linear)(h).view(shape)
    own = conv.linear_dst(h).view(shape) if v2 else x
    rows = []
    for d in range(block.num_dst):
        s = neighbours(block, d, looped=True)
        if v2:
            scores = (leaky(own[d] + x[s], conv.slope) * conv.att).sum(2)
        else:
            scores = (x[d] * conv.att_dst).sum(1) + (x[s] * conv.att_src).sum(2)
            scores = leaky(scores, conv.slope)
        rows.append((scores.softmax(0)[:, :, None] * x[s]).sum(0))
    out = torch.stack(rows)
    out = out.flatten(1) if conv.concat else out.mean(1)
    return out if conv.bias is None else out + conv.bias


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_nodes=st.integers(1, 14),
    num_edges=st.integers(0, 60),
    widths=st.sampled_from([(3, 5), (5, 3), (1, 1)]),
    heads=st.integers(1, 3),
    concat=st.booleans(),
    bias=st.booleans(),
    shared=st.booleans(),
    sampled=st.booleans(),
)
def test_against_loops(seed, num_nodes, num_edges, widths, heads, concat, bias, shared, sampled):
    """Empty rows, isolated nodes, loops and parallel edges; whole graphs and rows drawn of them."""
    graph = random_graph(seed, num_nodes, num_edges)
    block = graph.block()
    if sampled:
        rows = list(range(0, num_nodes, 2))
        edges = [range(graph.indptr[d], graph.indptr[d + 1])[::2] for d in rows]
        block = block_of(graph, rows, edges)
    h = torch.randn(block.num_src, widths[0], dtype=torch.float64)
    more = {"heads": heads, "concat": concat, "bias": bias}
    cases = [
        (GINConv(mlp(*widths), 0.3, train_eps=bias), slow_gin),
        (GATConv(*widths, **more), slow_attention),
        (GATv2Conv(*widths, share_weights=shared, slope=0.1, **more), slow_attention),
    ]
    for conv, slow in cases:
        conv.double()
        for name, parameter in conv.named_parameters():  # a bias of 0 would hide a missing one
            if name == "bias":
                torch.nn.init.normal_(parameter)
        assert_equal_with_gradients(
            conv, lambda h, conv=conv, slow=slow, block=block: slow(conv, block, h), block, h
        )


def pair(name, theirs, dtype):
    """One of our layers and one of torch_geometric's with the same weights."""
    if name == "gin":
        ours = GINConv(mlp(6, 5), 0.2, train_eps=True)
        other = theirs.GINConv(mlp(6, 5), 0.2, train_eps=True)
        names = {f"mlp.{i}.{part}": f"nn.{i}.{part}" for i in (0, 2) for part in ("weight", "bias")}
        names["eps"] = "eps"
    elif name == "gat":
        ours, other = GATConv(6, 5, 3), theirs.GATConv(6, 5, 3)
        names = {"linear.weight": "lin.weight", "att_src": "att_src", "att_dst": "att_dst"}
        names["bias"] = "bias"
    else:
        ours, other = GATv2Conv(6, 5, 3, concat=False), theirs.GATv2Conv(6, 5, 3, concat=False)
        names = {"att": "att", "bias": "bias"}
        for end, letter in ("src", "l"), ("dst", "r"):
            for part in "weight", "bias":
                names[f"linear_{end}.{part}"] = f"lin_{letter}.{part}"
    ours, other = ours.to(dtype), other.to(dtype)
    mine, its = dict(ours.named_parameters()), dict(other.named_parameters())
    assert set(names) == set(mine)
    assert set(names.values()) == set(its)
    for a, b in names.items():
        if a == "bias":
            torch.nn.init.normal_(its[b])
        mine[a].data.copy_(its[b].data.view_as(mine[a]))
    return ours, other, [(mine[a], its[b]) for a, b in names.items()]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize("name", ["gin", "gat", "gatv2"])
@pytest.mark.parametrize("bipartite", [False, True])
def test_like_torch_geometric(name, dtype, bound, bipartite):
    theirs = pytest.importorskip("torch_geometric.nn")
    src, dst = torch.randint(0, 40, (300,)), torch.randint(0, 40, (300,))
    graph = Graph.from_edges(src, dst, 40)
    block = graph.block()
    if bipartite:
        rows = list(range(0, 40, 3))
        block = block_of(graph, rows, [range(graph.indptr[d], graph.indptr[d + 1]) for d in rows])
    ours, other, weights = pair(name, theirs, dtype)
    h = torch.randn(block.num_src, 6, dtype=dtype, requires_grad=True)
    again = h.detach().clone().requires_grad_()
    to = torch.repeat_interleave(torch.arange(block.num_dst), block.indptr.diff())
    edge_index = torch.stack([block.indices.long(), to])
    out, wanted = ours(block, h), other((again, again[: block.num_dst]), edge_index)
    grad = torch.randn_like(out)
    out.backward(grad)
    wanted.backward(grad)
    pairs = [(out, wanted), (h.grad, again.grad)]
    pairs += [(mine.grad, its.grad.view_as(mine)) for mine, its in weights]
    for got, right in pairs:
        assert (got - right).abs().max() <= bound * max(1, right.abs().max())


def test_a_sampled_sum_is_right_on_average():
    """The mean over all draws of two of four edges is the full sum, for a linear network."""
    graph = Graph.from_edges(torch.tensor([1, 2, 3, 4]), torch.zeros(4, dtype=torch.int64), 5)
    conv, h = GINConv(torch.nn.Linear(2, 3)).double(), torch.randn(5, 2, dtype=torch.float64)
    draws = torch.combinations(torch.arange(4)).tolist()
    outs = []
    for draw in draws:
        block = block_of(graph, [0], [draw])
        outs.append(conv(block, h[block.src_id]))
    assert torch.allclose(torch.stack(outs).mean(0), conv(graph.block(), h)[:1], atol=1e-12)


@pytest.mark.parametrize(
    "conv",
    [GINConv(mlp(16, 16)), GATConv(16, 16), GATv2Conv(16, 16), GATConv(16, 8, 2)],
    ids=lambda conv: type(conv).__name__,
)
def test_no_edge_carries_features(conv):
    """Nothing of 5000 edges is as wide as a row, forward or backward."""
    graph = random_graph(0, 50, 5000)
    block, h = graph.block(), torch.randn(50, 16, requires_grad=True)
    with LargestTensor() as largest:
        conv(block, h).sum().backward()
    assert largest.num_elements < 5000 * 4


@pytest.mark.parametrize(
    "make",
    [lambda: GINConv(mlp(6, 4)), lambda: GATConv(6, 4, 2), lambda: GATv2Conv(6, 4, 2)],
    ids=["GINConv", "GATConv", "GATv2Conv"],
)
def test_under_autocast_and_in_narrow_types(make):
    torch.manual_seed(1)  # one draw in ten leaves 3 to 4 % of GAT's gradients to rounding
    conv = make()
    block = random_graph(1, 60, 600).block()
    h = torch.randn(60, 6, requires_grad=True)
    inputs = h, *conv.parameters()
    wanted = conv(block, h)
    seed = torch.randn_like(wanted)
    wanted_grads = torch.autograd.grad(wanted, inputs, seed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = conv(block, h)
    got_grads = torch.autograd.grad(out, inputs, seed.to(out.dtype))
    assert (out - wanted).norm() < 0.03 * wanted.norm()
    size = max(want.norm() for want in wanted_grads)  # att_dst's is a difference of large ones
    for got, want in zip(got_grads, wanted_grads, strict=True):
        assert (got - want).norm() < 0.03 * size
    narrow = conv.bfloat16()(block, h.detach().bfloat16())
    assert narrow.dtype == torch.bfloat16
    assert (narrow - wanted).norm() < 0.03 * wanted.norm()
    conv.float()


def test_what_a_layer_lacks_is_named():
    graph = random_graph(3, 20, 100)
    block = graph.block()
    for conv in (GINConv(mlp(4, 4)), GATConv(4, 4), GATv2Conv(4, 4)):
        with pytest.raises(UsageError, match="h has 19 rows, the block 20 sources"):
            conv(block, torch.randn(19, 4))
    bare = dataclasses.replace(block, dst_degree=None)
    with pytest.raises(UsageError, match="GINConv: the block has no degrees"):
        GINConv(mlp(4, 4))(bare, torch.randn(20, 4))


def test_initial_parameters():
    conv = GATConv(300, 25, 4)
    for weight, bound in (conv.linear.weight, (6 / 400) ** 0.5), (conv.att_src, (6 / 29) ** 0.5):
        assert 0.9 * bound < weight.abs().max() <= bound
    assert not conv.bias.any()
    gin = GINConv(mlp(4, 4), 0.5, train_eps=True)
    before = [p.clone() for p in gin.parameters()]
    gin.eps.data += 1
    gin.reset_parameters()
    assert gin.eps.item() == 0.5
    assert not torch.equal(before[1], gin.mlp[0].weight)


@given(seed=st.integers(0, 2**32 - 1), num_nodes=st.integers(1, 10), num_edges=st.integers(0, 60))
def test_looped_blocks(seed, num_nodes, num_edges):
    """One loop a destination, the others' edges in order; the transpose belongs to them."""
    graph = random_graph(seed, num_nodes, num_edges)
    rows = list(range(0, num_nodes, 2))
    block = block_of(graph, rows, [range(graph.indptr[d], graph.indptr[d + 1]) for d in rows])
    looped = block.looped
    for d in range(block.num_dst):
        row = looped.indices[looped.indptr[d] : looped.indptr[d + 1]].tolist()
        assert row == [d, *neighbours(block, d, looped=True)[:-1]]
    assert int(looped.indptr[-1]) == looped.num_edges
    wanted = ops.transpose(looped.indptr, looped.indices, block.num_src)
    assert all(torch.equal(a, b) for a, b in zip(looped.transpose, wanted, strict=True))
    assert isinstance(looped, Block)
    assert looped.e_id is None
    assert looped.key == Key(0)
