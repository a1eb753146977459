"""Batches of whole parts: the edges among their nodes, each part once an epoch, read as ranges."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import gnnx
import oracles
from gnnx.cli import app
from gnnx.errors import BudgetError, DataError, UsageError
from gnnx.loader.seeds import EveryNode
from gnnx.memory import Tier
from gnnx.nn import GCN
from gnnx.partition import partition
from gnnx.prepare import synth
from gnnx.random import Key
from gnnx.sample import Clusters, ClusterSampler
from gnnx.store.topology import Rows
from test_sample import MemoryGraph, random_graph


class PiecedGraph(MemoryGraph):
    """Gives rows in pieces of five."""

    def __init__(self, graph):
        super().__init__(graph, host=1 << 20, device=1 << 20)

    def iter_rows(self, begin, end):
        for first in range(begin, end, 5):
            ends = self.indptr[first : min(first + 5, end) + 1]
            yield Rows(first, ends - ends[0], self.indices[ends[0] : ends[-1]])


def sampler_of(graph, offsets, per_batch, num_layers=2, **options):
    """Every node is a seed of its part."""
    offsets = np.array(offsets)
    clusters = Clusters(offsets, np.diff(offsets), per_batch)
    return ClusterSampler(PiecedGraph(graph), clusters, num_layers, **options)


@st.composite
def cases(draw):
    """A graph, its parts, how many make a batch, and which of the batch's nodes are seeds."""
    num_nodes = draw(st.integers(2, 30))
    graph = random_graph(num_nodes, draw(st.integers(0, 90)), draw(st.integers(0, 5)))
    cuts = draw(st.lists(st.integers(1, num_nodes - 1), min_size=1, max_size=8, unique=True))
    offsets = [0, *sorted(cuts), num_nodes]
    per_batch = draw(st.integers(1, len(offsets) - 1))
    return graph, offsets, per_batch, draw(st.integers(0, 2**32))


@settings(max_examples=60)
@given(case=cases(), num_layers=st.integers(1, 3))
def test_blocks_have_the_edges_among_the_nodes_of_the_parts(case, num_layers):
    graph, offsets, per_batch, seed = case
    sampler = sampler_of(graph, offsets, per_batch, num_layers, degrees=True, edge_ids=True)
    rng = np.random.default_rng(seed)
    for step in range(len(sampler.clusters)):
        key = Key(seed, 2, step)
        inside = np.concatenate(
            [np.arange(offsets[p], offsets[p + 1]) for p in sampler.clusters.parts(key)]
        )
        seeds = rng.permutation(inside)[: rng.integers(0, len(inside) + 1)]
        blocks = sampler.sample(seeds, key)
        assert [block.key.layer for block in blocks] == list(range(num_layers))[::-1]
        order = [*seeds, *sorted(set(inside.tolist()) - set(seeds.tolist()))]
        assert sampler.reach(seeds, key).tolist() == order
        for block in blocks:
            assert block.src_id.tolist() == order
            dst = order if block is not blocks[-1] else order[: len(seeds)]
            assert block.num_dst == len(dst)
            for row, node in enumerate(dst):
                first, last = graph.indptr[node].item(), graph.indptr[node + 1].item()
                expected = [
                    (int(source), first + i)
                    for i, source in enumerate(graph.indices[first:last])
                    if source in inside
                ]
                begin, end = block.indptr[row], block.indptr[row + 1]
                found = block.src_id[block.indices[begin:end].long()].tolist()
                assert list(zip(found, block.e_id[begin:end].tolist(), strict=True)) == expected
            assert block.src_degree.tolist() == graph.degree[order].tolist()
            assert block.dst_degree.tolist() == graph.degree[dst].tolist()
            assert block.src_loop.tolist() == graph.has_loop[order].tolist()
            transpose = oracles.transpose(
                block.indptr.numpy(), block.indices.numpy(), block.num_src
            )
            for mine, theirs in zip(block.transpose, transpose, strict=True):
                assert np.array_equal(mine.numpy(), theirs)


def test_each_part_with_seeds_is_in_one_batch_of_an_epoch():
    offsets, num_seeds = np.arange(0, 110, 10), np.array([3, 0, 4, 1, 5, 9, 2, 6, 5, 3])
    clusters = Clusters(offsets, num_seeds, 4)
    assert len(clusters) == 3
    assert clusters.num_nodes == 40
    seen = {}
    for epoch in range(20):
        parts = [clusters.parts(Key(7, epoch, step)) for step in range(3)]
        assert sorted(np.concatenate(parts).tolist()) == [0, 2, 3, 4, 5, 6, 7, 8, 9]
        places = np.concatenate([clusters.positions(Key(7, epoch, step)) for step in range(3)])
        assert sorted(places.tolist()) == list(range(num_seeds.sum()))
        seen[tuple(map(tuple, parts))] = epoch
    assert len(seen) == 20
    again = Clusters(offsets, num_seeds, 4)
    for key in (Key(7, 3, 1), Key(8, 3, 1)):
        assert clusters.parts(key).tolist() == again.parts(key).tolist()
    assert clusters.parts(Key(7, 3, 1)).tolist() != clusters.parts(Key(8, 3, 1)).tolist()


def test_pairs_of_parts_meet_equally_often():
    clusters = Clusters(np.arange(9), np.ones(8, np.int64), 2)
    met = np.zeros((8, 8), np.int64)
    for epoch in range(2000):
        for step in range(4):
            first, second = clusters.parts(Key(1, epoch, step))
            met[first, second] += 1
    counts = met[np.triu_indices(8, 1)]
    expected = 8000 / 28
    assert ((counts - expected) ** 2 / expected).sum() < 70  # 27 degrees: 1e-5


@pytest.mark.parametrize("per_batch", [0, 6])
def test_more_clusters_than_parts_are_refused(per_batch):
    with pytest.raises(UsageError, match=f"{per_batch} clusters a batch of 5 parts"):
        Clusters(np.arange(6), np.ones(5, np.int64), per_batch)


@pytest.mark.parametrize("seeds", [[0, 0], [9], [-1]])
def test_a_wrong_seed_is_named(seeds):
    sampler = sampler_of(random_graph(10, 30), [0, 5, 10], 1)
    key = next(Key(s) for s in range(9) if sampler.clusters.parts(Key(s)).tolist() == [0])
    with pytest.raises(DataError, match=f"seed {seeds[-1]} is given twice, or in none"):
        sampler.sample(np.array(seeds), key)


def test_every_node_is_a_store_of_its_own_number():
    every = EveryNode(9)
    rows = np.array([4, 0, 4])
    assert every.num_rows == 9
    assert every.read(rows).tolist() == [4, 0, 4]
    assert every.read(rows, slots=np.array([2, 0, 1])).tolist() == [0, 4, 4]
    assert every.read(rows, torch.zeros(5, dtype=torch.int64)).tolist() == [4, 0, 4, 0, 0]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A graph whose features (5 MB) do not fit 4 MiB, in 24 parts."""
    folder = tmp_path_factory.mktemp("cluster")
    synth(
        folder / "graph",
        num_nodes=20_000,
        num_edges=200_000,
        num_features=64,
        num_classes=5,
        split="0.1,0.1,0.8",
    )
    partition(folder / "graph", folder / "parts", num_parts=24, method="stream")
    return folder / "parts"


def epoch_of(dataset, **options):
    loader = gnnx.Loader(dataset, [-1, -1], 1, clusters_per_batch=3, seed=4, **options)
    assert len(loader) == 8
    return loader, list(loader)


def test_batches_do_not_depend_on_the_memory(path):
    made = []
    x, y, train = (np.load(path / f"nodes/node/{name}.npy") for name in ("x", "y", "train"))
    for memory in ("3MiB", "8GiB"):
        with gnnx.open(path, memory=memory) as dataset:
            _, batches = epoch_of(dataset, degrees=True)
            made.append([(b.seeds, b.y, b.x, b.blocks[0].indices, b.input_id) for b in batches])
            seeds = torch.cat([batch.seeds for batch in batches])
            assert seeds.sort().values.tolist() == train.tolist()
            for batch in batches:
                assert np.array_equal(batch.x.numpy(), x[batch.n_id])
                assert np.array_equal(batch.y.numpy(), y[batch.seeds])
                assert torch.equal(batch.n_id[: batch.batch_size], batch.seeds)
    for one, other in zip(*made, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("memory", ["4MiB", "6MiB", "12MiB"])
def test_the_plan_leaves_room_for_what_sampling_takes(path, memory):
    with gnnx.open(path, memory=memory) as dataset:
        loader, _ = epoch_of(dataset, degrees=True)
        assert not loader._crowded  # no rows that were kept had to be given up


def test_parts_are_read_as_ranges(path):
    """An epoch reads each row once, in reads of many rows."""
    with gnnx.open(path, memory="3MiB") as dataset:
        loader, batches = epoch_of(dataset, cache=None)
        assert sum(len(batch.n_id) for batch in batches) == dataset.num_nodes
        size = dataset.num_nodes * dataset.features.row_bytes
        assert size <= loader.stats.feature_read_bytes < 1.1 * size


def test_rows_that_fit_stay(path):
    with gnnx.open(path, memory="6MiB") as dataset:
        loader, _ = epoch_of(dataset)
        assert 0.1 < loader.stats.rows_hit / loader.stats.rows_requested < 1
        assert dataset.ledger.peak_bytes(Tier.HOST) <= 6 << 20
    with gnnx.open(path, memory="300KiB") as dataset, pytest.raises(BudgetError):
        epoch_of(dataset)


def test_seeds_that_do_not_ascend_are_refused(path):
    with gnnx.open(path) as dataset, pytest.raises(UsageError, match="seeds that do not ascend"):
        gnnx.Loader(dataset, [-1], 1, clusters_per_batch=3, split=torch.tensor([5, 3]))


def test_one_part_of_everything_is_the_whole_graph(path):
    """All parts in a batch: outputs equal those of the whole graph."""
    with gnnx.open(path) as dataset:
        torch.manual_seed(0)
        model = GCN(dataset.num_features, 8, dataset.num_classes, num_layers=2, dropout=0.0)
        model = model.double().eval()
        loader = gnnx.Loader(dataset, [-1, -1], 1, clusters_per_batch=24, degrees=True)
        (batch,) = loader
        found = model(batch.blocks, batch.x.double())
        loader = gnnx.Loader(dataset, [-1, -1], 10**6, shuffle=False, degrees=True)
        (whole,) = loader
        expected = model(whole.blocks, whole.x.double())[batch.input_id]
        assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)


def run(*words, code=0):
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_the_verb_trains_on_clusters(path, tmp_path):
    words = ["train", path, "--fanouts", "5,5", "--hidden", 16, "--epochs", 4, "--quiet"]
    found = run(*words, "--sampler", "cluster", "--clusters-per-batch", 3, "--memory", "6MiB")
    assert found["options"]["clusters_per_batch"] == 3
    losses = [epoch["loss"] for epoch in found["epochs"]]
    assert losses[-1] < 0.8 * losses[0]
    assert found["test_accuracy"] > 0.75
    again = run(*words, "--sampler", "cluster", "--clusters-per-batch", 3)
    assert [epoch["loss"] for epoch in again["epochs"]] == losses


def test_errors_of_the_verb(path, tmp_path):
    error = run("train", path, "--clusters-per-batch", 3, code=2)["error"]
    assert "--clusters-per-batch 3 has no meaning without parts" in error["cause"]
    graph = path.parent / "graph"
    error = run("train", graph, "--sampler", "cluster", code=2)["error"]
    assert error["cause"] == "batches of clusters of a dataset without parts"
    assert "gnnx partition DATASET OUT --parts" in error["remedy"]
