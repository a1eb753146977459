"""Sampling from a data set: the same batches from disk and RAM, on any number of threads."""

import concurrent.futures
import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnx
import oracles
from conformance import write_dataset
from gnnx import threads
from gnnx.errors import BudgetError
from gnnx.memory import Tier
from gnnx.random import Key
from gnnx.sample import NeighborSampler

NUM_NODES, NUM_EDGES = 3000, 50_000
POINTERS = 8 * (NUM_NODES + 1)  # bytes of indptr
RESIDENT = {"disk": 0, "indptr": POINTERS, "RAM": 1 << 30}


def written(path, indptr, indices):
    loops = [d for d in range(len(indptr) - 1) if d in indices[indptr[d] : indptr[d + 1]]]
    return write_dataset(
        path,
        num_nodes=len(indptr) - 1,
        indptr=indptr,
        indices=indices.astype(np.int32),
        loops=np.array(loops, np.int64),
    )


@pytest.fixture(scope="module")
def csr():
    return oracles.random_csr(5, NUM_NODES, NUM_NODES, NUM_EDGES)


@pytest.fixture(scope="module")
def path(csr, tmp_path_factory):
    return written(tmp_path_factory.mktemp("sample") / "dataset", *csr)


def digest(blocks):
    """Hash of every bit of a batch."""
    state = hashlib.sha256()
    for block in blocks:
        optional = (block.e_id, block.src_degree, block.dst_degree, block.src_loop)
        for part in (block.indptr, block.indices, block.src_id, *block.transpose, *optional):
            state.update(f"{part.dtype} {tuple(part.shape)}".encode())
            state.update(part.numpy().tobytes())
        state.update(repr(tuple(block.key)).encode())
    return state.hexdigest()


def batch(sampler, step):
    seeds = np.random.default_rng(step).permutation(NUM_NODES)[:100]
    return digest(sampler.sample(torch.from_numpy(seeds), Key(0, 1, step)))


def complete(graph):
    return NeighborSampler(graph, [5, -1, 3], degrees=True, edge_ids=True)


@pytest.fixture(scope="module")
def right(path, csr):
    """Digests of some batches, of which the first is held against the oracle."""
    with gnnx.open(path, memory="64MiB") as dataset:
        sampler = complete(dataset.graph)
        seeds = np.random.default_rng(0).permutation(NUM_NODES)[:100]
        blocks = sampler.sample(seeds, Key(0, 1, 0))
        expected = oracles.sample(*(part.tolist() for part in csr), seeds, [5, -1, 3], Key(0, 1))
        for block, (indptr, indices, src_id, e_id) in zip(blocks, expected, strict=True):
            assert block.indptr.tolist() == indptr
            assert block.indices.tolist() == indices
            assert block.src_id.tolist() == src_id
            assert block.e_id.tolist() == e_id
        digests = [batch(sampler, step) for step in range(12)]
    assert len(set(digests)) == 12
    return digests


@pytest.mark.parametrize("resident", RESIDENT)
@pytest.mark.parametrize("memory", ["3MiB", "1GiB"])
def test_batches_are_the_same_from_disk_and_ram(path, right, resident, memory):
    with gnnx.open(path, memory=memory) as dataset:
        dataset.graph.pin(RESIDENT[resident])
        sampler = complete(dataset.graph)
        assert [batch(sampler, step) for step in range(12)] == right
        assert set(dataset.ledger.owners(Tier.HOST)) <= {"sampler", "topology", "read buffers"}


@pytest.mark.parametrize("share", [0, 0.25, 0.9, 1])
def test_batches_are_the_same_with_some_pages_in_ram(path, right, share):
    with gnnx.open(path, memory="4MiB") as dataset:
        graph = dataset.graph
        graph.keep_pages(np.flatnonzero(np.random.default_rng(1).random(graph.num_pages) < share))
        jobs = [threads.submit(batch, complete(graph), step) for step in range(12)]
        assert [job.result(timeout=60) for job in jobs] == right


@pytest.mark.parametrize("num_threads", [1, 2, 4])
@pytest.mark.parametrize("resident", ["disk", "RAM"])
def test_batches_are_the_same_on_any_number_of_threads(path, right, resident, num_threads):
    before, torch_before = threads.num_threads(), torch.get_num_threads()
    threads.set_num_threads(num_threads)
    try:
        with gnnx.open(path, memory="64MiB") as dataset:
            dataset.graph.pin(RESIDENT[resident])
            sampler = complete(dataset.graph)
            for order in (range(12), reversed(range(12))):
                jobs = {step: threads.submit(batch, sampler, step) for step in order}
                assert [jobs[step].result(timeout=60) for step in range(12)] == right
            assert len(sampler._idle) <= num_threads  # scratch for as many calls as there were
    finally:
        threads.set_num_threads(before)
        torch.set_num_threads(torch_before)


def test_many_threads_at_once(path, right):
    """Callers of their own, more than the pool has, on one sampler; then nothing is held."""
    with gnnx.open(path, memory="64MiB") as dataset:
        dataset.graph.pin(POINTERS)
        sampler = complete(dataset.graph)
        with concurrent.futures.ThreadPoolExecutor(8) as callers:
            steps = [step for _ in range(6) for step in range(12)]
            found = list(callers.map(lambda step: batch(sampler, step), steps, timeout=100))
        assert found == [right[step] for step in steps]
        assert dataset.ledger.held_bytes(Tier.DEVICE) == 0
        assert len(sampler._idle) <= 8
        sampler._idle.clear()
        assert dataset.ledger.owners(Tier.HOST).get("sampler", 0) == 0


@pytest.mark.parametrize("resident", ["disk", "RAM"])
def test_a_small_budget_is_enough_or_refused_by_name(path, right, resident):
    """Budgets from what an opened data set needs at least: refused, refused, then right."""
    with gnnx.open(path, memory="1GiB") as dataset:
        dataset.graph.pin(RESIDENT[resident])
        limit = dataset.ledger.owners(Tier.HOST).get("topology", 0) + 10_000
    refusals, found = 0, None
    while found is None:
        smallest = None
        with gnnx.open(path, memory=limit) as dataset:
            try:
                dataset.graph.pin(RESIDENT[resident])
                found = batch(complete(dataset.graph), 0)
            except BudgetError as error:
                smallest = error.smallest_bytes
            assert dataset.ledger.peak_bytes(Tier.HOST) <= limit
        if smallest is not None:
            assert smallest > limit
            limit, refusals = smallest, refusals + 1
    assert found == right[0]
    assert refusals > 0


@given(st.integers(0, 10**6), st.integers(0, 200), st.sampled_from([1, 2, 17, 60]))
@settings(max_examples=15)
def test_any_graph_on_disk(tmp_path_factory, seed, num_edges, num_nodes):
    indptr, indices = oracles.random_csr(seed, num_nodes, num_nodes, num_edges)
    path = written(tmp_path_factory.mktemp("graph") / "dataset", indptr, indices)
    with gnnx.open(path, memory="8MiB") as dataset:
        seeds = np.random.default_rng(seed).permutation(num_nodes)[:10]
        blocks = NeighborSampler(dataset.graph, [2, 3]).sample(seeds, Key(seed))
        expected = oracles.sample(indptr.tolist(), indices.tolist(), seeds, [2, 3], Key(seed))
        for block, (starts, local, src_id, _) in zip(blocks, expected, strict=True):
            assert block.indptr.tolist() == starts
            assert block.indices.tolist() == local
            assert block.src_id.tolist() == src_id
