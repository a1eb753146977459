"""Graphs, blocks and batches hold what they were given, and move as a whole."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from gnnx.errors import DataError
from gnnx.graph import Block, Graph, MiniBatch, Transpose
from gnnx.random import Key


@st.composite
def edge_lists(draw, max_nodes=12, max_edges=40):
    num_nodes = draw(st.integers(1, max_nodes))
    node = st.integers(0, num_nodes - 1)
    edges = draw(st.lists(st.tuples(node, node), max_size=max_edges))
    return num_nodes, edges


def _graph(num_nodes, edges):
    src, dst = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    return Graph.from_edges(src, dst, num_nodes)


@given(edge_lists())
def test_rows_keep_the_order_of_their_edges(case):
    num_nodes, edges = case
    graph = _graph(num_nodes, edges)
    assert (graph.num_nodes, graph.num_edges) == (num_nodes, len(edges))
    assert graph.indptr.dtype == torch.int64
    assert graph.indices.dtype == torch.int32
    for d in range(num_nodes):
        row = graph.indices[graph.indptr[d] : graph.indptr[d + 1]]
        assert row.tolist() == [src for src, dst in edges if dst == d]


@given(edge_lists())
def test_what_is_derived(case):
    num_nodes, edges = case
    graph = _graph(num_nodes, edges)
    assert graph.degree.tolist() == [sum(dst == d for _, dst in edges) for d in range(num_nodes)]
    assert graph.has_loop.tolist() == [(d, d) in edges for d in range(num_nodes)]
    expected = oracles.transpose(graph.indptr.numpy(), graph.indices.numpy(), num_nodes)
    for part, right in zip(graph.transpose, expected, strict=True):
        assert np.array_equal(part.numpy(), right)
    assert graph.transpose is graph.transpose


def test_a_graph_without_nodes_and_one_without_edges():
    none = torch.empty(0, dtype=torch.int64)
    for num_nodes in (0, 3):
        graph = Graph.from_edges(none, none, num_nodes)
        assert graph.indptr.tolist() == [0] * (num_nodes + 1)
        assert graph.block().num_src == num_nodes
        assert graph.has_loop.tolist() == [False] * num_nodes


@pytest.mark.parametrize(
    ("src", "dst", "cause"),
    [
        ([0, 1], [1, 4], "edge dst 4 is outside the 4 nodes"),
        ([0, 5], [1, 4], "edge src 5 is outside the 4 nodes"),
        ([-1, 0], [1, 1], "edge src -1 is outside the 4 nodes"),
        ([2**40], [1], "edge src 1099511627776 is outside the 4 nodes"),
        ([0, 1, 2], [1], "3 edge sources, 1 edge destinations"),
    ],
)
def test_edges_outside_the_graph_are_refused(src, dst, cause):
    with pytest.raises(DataError) as caught:
        Graph.from_edges(torch.tensor(src), torch.tensor(dst), 4)
    assert caught.value.cause == cause


def test_a_graph_is_immutable():
    graph = _graph(2, [(0, 1)])
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.indices = graph.indices


@given(edge_lists())
def test_the_whole_graph_as_a_block(case):
    num_nodes, edges = case
    graph = _graph(num_nodes, edges)
    block = graph.block(Key(3, 1, 4, 1))
    assert (block.num_src, block.num_dst, block.num_edges) == (num_nodes, num_nodes, len(edges))
    assert block.key == (3, 1, 4, 1)
    assert graph.block().key == (0, 0, 0, 0)
    assert torch.equal(block.src_id, torch.arange(num_nodes))
    assert torch.equal(block.e_id, torch.arange(len(edges)))
    assert torch.equal(block.src_degree, graph.degree)
    assert torch.equal(block.dst_degree, graph.degree)
    assert torch.equal(block.src_loop, graph.has_loop)
    assert block.edge_weight is None
    assert repr(block) == f"Block({num_nodes} -> {num_nodes}, {len(edges)} edges)"


def _tensors(record):
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Transpose):
            yield from value
        elif isinstance(value, list):
            for block in value:
                yield from _tensors(block)


def test_a_batch_moves_as_a_whole():
    block = _graph(3, [(0, 1), (1, 1), (2, 0)]).block(Key(5))
    block = dataclasses.replace(block, edge_weight=torch.rand(3), edge_attr=torch.rand(3, 2))
    ids = torch.arange(3)
    batch = MiniBatch(
        seeds=ids,
        blocks=[block, block],
        x=torch.rand(3, 4),
        y=ids,
        n_id=ids,
        input_id=ids,
        edge_index=torch.zeros(2, 3, dtype=torch.int64),
    )
    assert batch.batch_size == 3
    assert repr(batch) == (
        "MiniBatch(3 seeds, x (3, 4), [Block(3 -> 3, 3 edges), Block(3 -> 3, 3 edges)])"
    )
    assert batch.to("cpu") is batch
    assert block.to(torch.device("cpu")) is block
    moved = batch.to("meta")
    assert len(list(_tensors(moved))) == len(list(_tensors(batch)))
    assert all(tensor.is_meta for tensor in _tensors(moved))
    assert isinstance(moved.blocks[0], Block)
    assert isinstance(moved.blocks[0].transpose, Transpose)
    assert moved.blocks[1].key == block.key
    assert all(not tensor.is_meta for tensor in _tensors(batch))
