"""Models: compositions of their layers, keyed dropout, parameters from torch's generator."""

import pytest
import torch

from gnnx import ops
from gnnx.errors import UsageError
from gnnx.graph import Graph
from gnnx.nn import GAT, GCN, GIN, SAGE, ConvLayer, Dropout, GATv2, GCNConv, Stack, build_model
from gnnx.random import Key

MODELS = {
    "gcn": lambda **more: GCN(5, 8, 3, 3, **more),
    "sage": lambda **more: SAGE(5, 8, 3, 3, **more),
    "sage max": lambda **more: SAGE(5, 8, 3, 3, aggr="max", **more),
    "gin": lambda **more: GIN(5, 8, 3, 3, **more),
    "gat": lambda **more: GAT(5, 8, 3, 3, heads=2, **more),
    "gatv2": lambda **more: GATv2(5, 8, 3, 3, heads=2, **more),
}


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def graph():
    return Graph.from_edges(torch.randint(0, 30, (150,)), torch.randint(0, 30, (150,)), 30)


def blocks_of(graph, num_layers, step=0):
    """As an engine numbers them: the seeds' hop is layer 0."""
    return [graph.block(Key(1, 2, step, layer)) for layer in reversed(range(num_layers))]


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_the_composition_of_its_layers(name, graph):
    model, blocks = MODELS[name](), blocks_of(graph, 3)
    x = torch.randn(30, 5)
    for training in (True, False):
        model.train(training)
        h = x
        for layer, block in zip(model.layers, blocks, strict=True):
            h = layer(block, h)
        assert torch.equal(model(blocks, x), h)
        assert h.shape == (30, 3)


def test_what_a_layer_is_made_of(graph):
    """Dropout of the input too, ReLU between, none at the end."""
    model = GCN(5, 8, 3, 2, dropout=0.25)
    first, last = blocks_of(graph, 2)
    x = torch.randn(30, 5)
    dropped = ops.dropout(x, first.src_id, 0.25, first.key)
    hidden = model.layers[0].conv(first, dropped).relu()
    out = model.layers[1].conv(last, ops.dropout(hidden, last.src_id, 0.25, last.key))
    assert torch.equal(model([first, last], x), out)
    assert (out < 0).any()


@pytest.mark.parametrize("name", MODELS)
def test_dropout_follows_the_key_in_training_only(name, graph):
    model, x = MODELS[name](dropout=0.5), torch.randn(30, 5)
    once, again = model(blocks_of(graph, 3), x), model(blocks_of(graph, 3), x)
    assert torch.equal(once, again)
    assert not torch.equal(once, model(blocks_of(graph, 3, step=1), x))
    model.eval()
    once = model(blocks_of(graph, 3), x)
    assert torch.equal(once, model(blocks_of(graph, 3, step=1), x))
    assert torch.equal(Dropout(0.9).eval()(graph.block(), x), x)


@pytest.mark.parametrize("name", MODELS)
def test_parameters_follow_torch_s_generator(name):
    def drawn(model):
        torch.manual_seed(3)
        model.reset_parameters()
        return [p.clone() for p in model.parameters()]

    torch.manual_seed(3)
    model = MODELS[name]()
    at_first = [p.clone() for p in model.parameters()]
    again, other = drawn(model), drawn(MODELS[name]())
    for a, b in zip(again, other, strict=True):
        assert torch.equal(a, b)
    if name == "gcn":  # made and drawn again in one order: torch's layers draw when made
        assert all(torch.equal(a, b) for a, b in zip(at_first, again, strict=True))
    assert all(p.requires_grad for p in model.parameters())


def test_glorot_bounds():
    weight = GCNConv(300, 100).weight
    bound = (6 / 400) ** 0.5
    assert weight.abs().max() <= bound
    assert abs(weight.std().item() - bound / 3**0.5) < 0.02 * bound
    assert not GCNConv(3, 4).bias.any()


def test_number_of_layers(graph):
    assert [tuple(p.shape) for p in GCN(5, 8, 3, 1).parameters()] == [(3, 5), (3,)]
    widths = [layer.conv.weight.shape for layer in GCN(5, 8, 3, 4).layers]
    assert [tuple(w) for w in widths] == [(8, 5), (8, 8), (8, 8), (3, 8)]
    with pytest.raises(UsageError, match="0 layers"):
        SAGE(5, 8, 3, 0)
    with pytest.raises(UsageError, match="3 heads for a hidden width of 8"):
        GAT(5, 8, 3, 2, heads=3)
    with pytest.raises(UsageError, match="2 blocks for a model of 3 layers"):
        GCN(5, 8, 3, 3)(blocks_of(graph, 2), torch.randn(30, 5))
    with pytest.raises(UsageError, match=r"p is 1\.5"):
        GCN(5, 8, 3, 3, dropout=1.5)


def test_degrees_are_asked_for_where_they_are_needed():
    assert GCN(5, 8, 3, 2).needs_degrees
    assert GIN(5, 8, 3, 2).needs_degrees
    assert not any(model(5, 8, 3, 2).needs_degrees for model in (SAGE, GAT, GATv2))

    class Own(torch.nn.Module):
        def forward(self, block, h):
            return h[: block.num_dst]

    assert not Stack([Own()]).needs_degrees
    assert Stack([Own(), ConvLayer(GCNConv(3, 3))]).needs_degrees


def test_state_dict_names_and_round_trip(graph):
    model, x = SAGE(5, 8, 3, 2).eval(), torch.randn(30, 5)
    state = model.state_dict()
    assert sorted(state) == sorted(
        f"layers.{i}.conv.linear_{part}"
        for i in range(2)
        for part in ("self.weight", "self.bias", "neigh.weight")
    )
    other = SAGE(5, 8, 3, 2).eval()
    other.load_state_dict(state)
    assert torch.equal(other(blocks_of(graph, 2), x), model(blocks_of(graph, 2), x))


@pytest.mark.parametrize("name", MODELS)
def test_learns(name):
    """Two groups of nodes with edges inside them and a feature that tells them apart, noisily."""
    y = torch.arange(30) % 2
    dst = torch.randint(0, 30, (150,))
    graph = Graph.from_edges((dst + 2 * torch.randint(0, 15, (150,))) % 30, dst, 30)
    x = torch.randn(30, 5)
    x[:, 0] += 2 * y
    model = MODELS[name](dropout=0.2)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for step in range(60):
        loss = torch.nn.functional.cross_entropy(model(blocks_of(graph, 3, step), x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    predicted = model.eval()(blocks_of(graph, 3), x).argmax(1)
    assert (predicted == y).double().mean() > 0.9


@pytest.mark.parametrize(
    "model",
    [
        GCN(5, 4, 3, 2, 0.1),
        SAGE(5, 4, 3, 2, aggr="max"),
        GIN(5, 4, 3, 2, train_eps=True),
        GAT(5, 4, 3, 2, heads=2),
        GATv2(5, 4, 3, 3, dropout=0.2),
    ],
)
def test_a_config_makes_an_equal_model(model):
    again = build_model(model.config)
    assert type(again) is type(model)
    assert again.config == model.config
    again.load_state_dict(model.state_dict())


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        ({"model": "gpt"}, "model 'gpt' is unknown"),
        ({}, "model None is unknown"),
        ({"model": "gcn", "heads": 2}, "model gcn: .*heads"),
    ],
)
def test_a_wrong_config_is_named(config, cause):
    with pytest.raises(UsageError, match=cause):
        build_model(config)
