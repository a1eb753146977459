"""Typed samples are what an independent oracle draws, from RAM and from disk, on any threads."""

import concurrent.futures

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnx
import oracles
from conformance import write_typed_dataset
from gnnx.errors import BudgetError, DataError, UsageError
from gnnx.memory import Tier
from gnnx.random import Key
from gnnx.sample import HeteroSampler, NeighborSampler

COUNTS = {"author": 40, "paper": 60, "venue": 0, "word": 7}
ENDS = [
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "in", "venue"),
    ("paper", "reversed", "author"),
    ("venue", "has", "paper"),
    ("word", "in", "paper"),
]


def random_typed(seed, num_edges):
    """A CSR by edge type; some have no edges."""
    return {
        edge_type: oracles.random_csr(
            seed + i,
            COUNTS[edge_type[2]],
            COUNTS[edge_type[0]],
            num_edges * (i % 3) if COUNTS[edge_type[0]] else 0,
        )
        for i, edge_type in enumerate(ENDS)
    }


def written(path, graphs, **options):
    nodes = {name: (count, 0, {}) for name, count in COUNTS.items()}
    return write_typed_dataset(path, nodes, graphs, **options)


def as_lists(blocks):
    return [
        (
            {
                name: (one.indptr.tolist(), one.indices.tolist(), one.e_id.tolist())
                for name, one in block.blocks.items()
            },
            {name: ids.tolist() for name, ids in block.src_id.items()},
            block.num_dst,
        )
        for block in blocks
    ]


@st.composite
def cases(draw):
    seed_type = draw(st.sampled_from(["author", "paper", "word"]))
    node = st.integers(0, COUNTS[seed_type] - 1)
    num_layers = draw(st.integers(1, 3))
    one = st.lists(st.sampled_from([-1, 0, 1, 2, 9]), min_size=num_layers, max_size=num_layers)
    fanouts = draw(st.one_of(one, st.fixed_dictionaries(dict.fromkeys(ENDS, one))))
    key = Key(*(draw(st.integers(-(2**63), 2**63)) for _ in range(3)))
    return (
        draw(st.integers(0, 1000)),
        draw(st.sampled_from([0, 1, 100])),
        seed_type,
        draw(st.lists(node, unique=True, max_size=20)),
        fanouts,
        key,
    )


@given(cases(), st.booleans())
@settings(max_examples=30)
def test_samples_are_the_oracle_s(tmp_path_factory, case, pinned):
    number, num_edges, seed_type, seeds, fanouts, key = case
    graphs = random_typed(number, num_edges)
    path = written(tmp_path_factory.mktemp("typed") / "dataset", graphs)
    with gnnx.open(path, memory="64MiB") as dataset:
        for graph in dataset.graphs.values():
            graph.pin(1 << 30 if pinned else 0)
        sampler = HeteroSampler(
            dataset.graphs, dataset.node_counts, seed_type, fanouts, edge_ids=True
        )
        blocks = sampler.sample(np.array(seeds, np.int64), key)
        by_type = fanouts if isinstance(fanouts, dict) else dict.fromkeys(ENDS, fanouts)
        expected = oracles.hetero_sample(graphs, COUNTS, seed_type, seeds, by_type, key)
        assert as_lists(blocks) == expected
        for hop, block in enumerate(reversed(blocks)):
            assert block.key == key._replace(layer=hop)
            for number, (name, one) in enumerate(block.blocks.items()):
                assert one.key == key._replace(layer=hop * len(ENDS) + number)
                assert one.src_id is block.src_id[name[0]]
                assert one.num_dst == block.num_dst[name[2]]
                right = oracles.transpose(one.indptr.numpy(), one.indices.numpy(), one.num_src)
                for part, expected_part in zip(one.transpose, right, strict=True):
                    assert np.array_equal(part.numpy(), expected_part)


def test_one_type_of_each_gives_the_plain_samples(tmp_path):
    indptr, indices = oracles.random_csr(3, 50, 50, 400)
    nodes = {"node": (50, 0, {})}
    path = write_typed_dataset(tmp_path / "d", nodes, {("node", "edge", "node"): (indptr, indices)})
    seeds, key = np.array([4, 0, 9]), Key(1, 2, 3)
    with gnnx.open(path, memory="64MiB") as dataset:
        typed = HeteroSampler(dataset.graphs, dataset.node_counts, "node", [3, 2], edge_ids=True)
        plain = NeighborSampler(dataset.graph, [3, 2], edge_ids=True).sample(seeds, key)
        for block, right in zip(typed.sample(seeds, key), plain, strict=True):
            (one,) = block.blocks.values()
            for name in ("indptr", "indices", "src_id", "e_id"):
                assert torch.equal(getattr(one, name), getattr(right, name))
            assert (one.key, block.node_key("node")) == (right.key, right.key)


def test_threads_and_company_change_nothing(tmp_path):
    path = written(tmp_path / "d", random_typed(5, 300))
    with gnnx.open(path, memory="64MiB") as dataset:
        sampler = HeteroSampler(dataset.graphs, dataset.node_counts, "paper", [4, 3], edge_ids=True)

        def batch(step):
            seeds = np.random.default_rng(step).permutation(60)[:20]
            return as_lists(sampler.sample(seeds, Key(0, 0, step)))

        alone = [batch(step) for step in range(12)]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            assert list(pool.map(batch, range(12))) == alone
        # a node draws the same whatever else is in the batch, and not the same for two edge types
        (few,) = HeteroSampler(
            dataset.graphs, dataset.node_counts, "paper", [2], edge_ids=True
        ).sample(np.array([3]), Key(7))
        (many,) = HeteroSampler(
            dataset.graphs, dataset.node_counts, "paper", [2], edge_ids=True
        ).sample(np.array([3, 1, 2]), Key(7))
        for name, one in few.blocks.items():
            first = many.blocks[name]
            count = int(one.indptr[-1]) if name[2] == "paper" else 0
            assert torch.equal(one.e_id[:count], first.e_id[:count])


def test_keys_of_types_and_layers_differ(tmp_path):
    path = written(tmp_path / "d", random_typed(5, 300))
    with gnnx.open(path, memory="64MiB") as dataset:
        blocks = HeteroSampler(dataset.graphs, dataset.node_counts, "paper", [2, 2]).sample(
            np.array([3]), Key(0)
        )
    keys = [block.node_key(name) for block in blocks for name in COUNTS]
    assert len(set(keys)) == len(keys)
    assert repr(blocks[1]).startswith("HeteroBlock({author: 0 -> 0, paper: 3 -> 1, ")


@pytest.mark.parametrize(
    ("fanouts", "cause"),
    [
        ([], "no fanouts"),
        ([2, -2], "fanout -2"),
        ({ENDS[0]: [1]}, r"edge type \('.*'\) is missing"),
        ({name: [1] for name in [*ENDS, ("a", "b", "c")]}, "is unknown"),
        ({name: [1, 2] if name == ENDS[1] else [1] for name in ENDS}, "fanouts: 2 of"),
    ],
)
def test_wrong_fanouts_are_named(tmp_path, fanouts, cause):
    path = written(tmp_path / "d", random_typed(5, 300))
    with gnnx.open(path, memory="64MiB") as dataset, pytest.raises(UsageError, match=cause):
        HeteroSampler(dataset.graphs, dataset.node_counts, "paper", fanouts)


def test_wrong_seeds_are_named(tmp_path):
    path = written(tmp_path / "d", random_typed(5, 300))
    with gnnx.open(path, memory="64MiB") as dataset:
        make = HeteroSampler(dataset.graphs, dataset.node_counts, "word", [2]).sample
        for seeds, cause in (
            ([7], "seed 7 is outside the 7 nodes"),
            ([1, 1], "seed 1 is given twice"),
        ):
            with pytest.raises(DataError, match=cause):
                make(np.array(seeds), Key(0))
        with pytest.raises(UsageError, match="unknown node type 'x'"):
            HeteroSampler(dataset.graphs, dataset.node_counts, "x", [2])


def test_memory_comes_from_the_ledger(tmp_path):
    path = written(tmp_path / "d", random_typed(5, 3000))
    with gnnx.open(path, memory="64MiB", device_memory="4KiB") as dataset:
        sampler = HeteroSampler(dataset.graphs, dataset.node_counts, "paper", [-1, -1])
        with pytest.raises(BudgetError):
            sampler.sample(np.arange(60), Key(0))
        assert dataset.ledger.held_bytes(Tier.DEVICE) == 0
