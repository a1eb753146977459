"""Batches that draw together, from a graph on disk, are those that draw from memory."""

import concurrent.futures
import errno
import functools
import gc
import logging
import threading

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gnnx
import oracles
from conformance import random_table, write_dataset
from gnnx import threads
from gnnx.errors import DataError, RunError
from gnnx.loader import Loader
from gnnx.memory import Tier
from gnnx.random import Key
from gnnx.sample import Draws, NeighborSampler
from gnnx.store import _kernels as store_kernels

N, E, STEPS, BATCH = 3000, 60_000, 9, 40
SMALL = "2500KiB"  # of the large graph: neither its sources nor its features stay
FANOUTS = ((4,), (5, 3), (3, -1), (2, 600, 2))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Hubs of several pages, empty rows, duplicates; 60 pages."""
    indptr, indices = oracles.random_csr(3, N, N, E)
    return write_dataset(
        tmp_path_factory.mktemp("draws") / "graph",
        num_nodes=N,
        indptr=indptr,
        indices=indices.astype(np.int32),
    )


def batch(step):
    return np.random.default_rng(step).permutation(N)[:BATCH], Key(7, 1, step)


def same(blocks, others):
    parts = ("indptr", "indices", "src_id", "e_id", "dst_degree")
    return len(blocks) == len(others) and all(
        np.array_equal(getattr(one, part), getattr(other, part))
        for one, other in zip(blocks, others, strict=True)
        for part in parts
    )


@functools.cache
def right(path, fanouts):
    with gnnx.open(path, memory="1GiB") as dataset:
        dataset.graph.pin(1 << 30)
        sampler = NeighborSampler(dataset.graph, fanouts, degrees=True, edge_ids=True)
        return [sampler.sample(*batch(step)) for step in range(STEPS)]


def drawing(dataset, fanouts, windows, *, on_disk=False, buffer_bytes=1 << 16, first_step=0, **to):
    dataset.graph.pin(8 * (N + 1))
    return Draws(
        dataset, fanouts, to.get("batch", batch), windows, on_disk=on_disk,
        buffer_bytes=buffer_bytes, timeout_s=to.get("timeout_s", 60.0), first_step=first_step,
    )  # fmt: skip


@given(
    fanouts=st.sampled_from(FANOUTS),
    cuts=st.lists(st.integers(1, STEPS - 1), unique=True).map(sorted),
    share=st.sampled_from([0.0, 0.25, 1.0]),
    on_disk=st.booleans(),
    buffer_bytes=st.sampled_from([1 << 14, 1 << 20]),
    memory=st.sampled_from(["2500KiB", "64MiB"]),
    first=st.integers(0, STEPS - 1),
    num_threads=st.integers(1, 3),
)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_batches_are_the_same(
    path, fanouts, cuts, share, on_disk, buffer_bytes, memory, first, num_threads
):
    before = threads.num_threads()
    threads.set_num_threads(num_threads)
    ends = [0, *(cut - first for cut in cuts if cut > first), STEPS - first]
    windows = np.diff(ends).tolist()
    with gnnx.open(path, memory=memory) as dataset:
        graph = dataset.graph
        kept = np.flatnonzero(np.random.default_rng(1).random(graph.num_pages) < share)
        graph.keep_pages(kept)
        draws = drawing(
            dataset, fanouts, windows, on_disk=on_disk, buffer_bytes=buffer_bytes, first_step=first
        )
        sampler = NeighborSampler(graph, fanouts, degrees=True, edge_ids=True)
        for step in range(first, STEPS):
            drawn = draws.of(step)
            assert drawn is not None
            expected = right(path, fanouts)[step]
            wanted = sampler.reach(*batch(step), drawn)
            assert np.array_equal(wanted, expected[0].src_id)
            assert same(sampler.sample(*batch(step), drawn), expected)
            draws.done(step)
        draws.close()
        del drawn, wanted, sampler
        gc.collect()  # compiling a kernel leaves cycles that hold its arguments
        assert set(dataset.ledger.owners(Tier.HOST)) <= {"topology", "read buffers"}
        assert dataset.ledger.held_bytes(Tier.DISK) == 0
        assert dataset.ledger.peak_bytes(Tier.HOST) <= dataset.ledger.budget.host
    threads.set_num_threads(before)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """600 pages of sources, 16 MB of features."""
    num_nodes, num_edges = 8000, 600_000
    indptr, indices = oracles.random_csr(4, num_nodes, num_nodes, num_edges)
    return write_dataset(
        tmp_path_factory.mktemp("draws") / "large",
        num_nodes=num_nodes,
        indptr=indptr,
        indices=indices.astype(np.int32),
        x=random_table(num_nodes, (512,), torch.float32),
        train=np.sort(np.random.default_rng(2).permutation(num_nodes)[:1200]),
    )


def batches(path, memory, *, first=0, leave=None, **options):
    """Batches of an epoch, the loader's draws, and what it did."""
    with gnnx.open(path, memory=memory) as dataset:
        loader = Loader(dataset, (3, 2), BATCH, **options)
        loader.step = first
        found = []
        for batch in loader:
            found.append(
                (batch.blocks, batch.x.numpy().view(np.uint32).copy(), batch.n_id.numpy().copy())
            )
            if len(found) == leave:
                break
        del batch
        draws, stats = loader._draws, loader.stats
        held = dataset.ledger.owners(Tier.HOST), dataset.ledger.held_bytes(Tier.DISK)
        assert dataset.ledger.peak_bytes(Tier.HOST) <= dataset.ledger.budget.host
    return found, draws, stats, held


@pytest.mark.parametrize("lookahead", ["windows", "packs"])
def test_the_draws_of_the_next_epoch_are_made_while_one_runs(large, lookahead):
    found = []
    for until, memory in ((0, "1GiB"), (3, SMALL)):
        with gnnx.open(large, memory=memory) as dataset:
            loader = Loader(dataset, (3, 2), BATCH, lookahead=lookahead)
            loader.until = until
            found.append([batch.n_id.numpy().copy() for _ in range(3) for batch in loader])
            assert dataset.ledger.held_bytes(Tier.DISK) == 0
            assert (loader._draws is None) == (until == 0)
            assert not [t for t in threading.enumerate() if t.name.startswith("gnnx-draws")]
    assert all(map(np.array_equal, *found))


@pytest.mark.parametrize("lookahead", ["windows", "packs"])
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_loader_draws_ahead_and_gives_the_same_batches(large, lookahead, num_threads):
    before = threads.num_threads()
    threads.set_num_threads(num_threads)
    options = {"degrees": True, "edge_ids": True, "lookahead": lookahead}
    expected, none, _, _ = batches(large, "1GiB", **options)
    found, draws, stats, held = batches(large, SMALL, **options)
    rest, _, _, _ = batches(large, SMALL, first=4, **options)
    left, _, _, held_then = batches(large, SMALL, leave=2, **options)
    threads.set_num_threads(before)
    assert none is None
    assert draws is not None
    assert stats.disk_written_bytes >= stats.steps * draws.on_disk
    for some, first in ((found, 0), (rest, 4), (left, 0)):
        for one, other in zip(some, expected[first:], strict=some is not left):
            assert same(one[0], other[0])
            assert np.array_equal(one[1], other[1])
            assert np.array_equal(one[2], other[2])
    assert held[1] == held_then[1] == 0


@pytest.mark.parametrize("share", [0.0, 0.25])
def test_a_hop_reads_each_page_once(path, share):
    with gnnx.open(path, memory="64MiB") as dataset:
        graph, fanouts = dataset.graph, (5, 3)
        graph.keep_pages(np.arange(int(share * graph.num_pages)))
        draws = drawing(dataset, fanouts, [STEPS])
        draws.of(0)
        draws.close()
        rows = dataset.graph._indices.file.num_rows
        asked = graph._pages.slot.size - np.count_nonzero(graph._pages.slot >= 0)
        assert 0 < rows - len(graph._pages.pages) <= len(fanouts) * asked


def test_windows_are_drawn_as_far_as_somebody_waits(path):
    """Two of them by themselves, and more where a step further on is asked for."""
    with gnnx.open(path, memory="64MiB") as dataset:
        asked = []

        def told(step):
            asked.append(step)
            return batch(step)

        draws = drawing(dataset, (2, 2), [1] * STEPS, batch=told)
        draws.of(1)
        assert not draws.is_ready(3)
        draws.of(5)
        assert draws.is_ready(5)
        draws.of(0)  # none is dropped before its batch is done
        draws.close()
        assert asked == list(range(len(asked)))
        assert len(asked) <= 7


def test_a_short_budget_means_shorter_windows(path):
    with gnnx.open(path, memory="64MiB") as dataset:
        graph = dataset.graph
        graph.pin(8 * (N + 1))
        sampler = NeighborSampler(graph, (5, 20), degrees=True, edge_ids=True)
        sampler.sample(*batch(0))  # buffers are taken
        free = dataset.ledger.free_bytes(Tier.HOST)
        with dataset.ledger.reserve(free - (1 << 20), Tier.HOST, "others"):
            draws = drawing(dataset, (5, 20), [STEPS], buffer_bytes=1)
            found = [sampler.sample(*batch(step), draws.of(step)) for step in range(STEPS)]
            draws.close()
        assert all(map(same, found, right(path, (5, 20))))


@pytest.mark.parametrize("on_disk", [False, True])
def test_where_there_is_no_room_batches_draw_for_themselves(path, on_disk, caplog):
    with gnnx.open(path, memory="64MiB") as dataset:
        dataset.ledger._accounts[Tier.DISK].limit = 100
        graph = dataset.graph
        graph.pin(8 * (N + 1))
        sampler = NeighborSampler(graph, (5, 3), degrees=True, edge_ids=True)
        sampler.sample(*batch(0))
        free = dataset.ledger.free_bytes(Tier.HOST)
        with dataset.ledger.reserve(0 if on_disk else free - (64 << 10), Tier.HOST, "others"):
            with caplog.at_level(logging.WARNING):
                draws = drawing(dataset, (5, 3), [4, 5], on_disk=on_disk)
                assert draws.of(STEPS - 1) is None
            draws.close()
        assert "draw for themselves" in caplog.text
        assert same(sampler.sample(*batch(2), None), right(path, (5, 3))[2])


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_failed_read_is_raised_to_who_waits(path, monkeypatch, on_disk):
    with gnnx.open(path, memory="64MiB") as dataset:
        draws = drawing(dataset, (3, 2), [2] * 4 + [1], on_disk=on_disk)
        draws.of(0)

        def fail(*arguments):
            arguments[-1][store_kernels.ERRNO :] = errno.EIO, 0, 4096, 0

        monkeypatch.setattr("gnnx.store.engine.read_chunks", fail)
        with pytest.raises(RunError, match=r"indices\.npy: Input/output error"):
            draws.of(STEPS - 1)
        draws.close()
        assert dataset.ledger.held_bytes(Tier.DISK) == 0


def test_stopping_frees_who_waits_and_leaves_nothing(path):
    begun, go_on = threading.Event(), threading.Event()

    def slow(step):
        if step == 2:
            begun.set()
            go_on.wait(30)
        return batch(step)

    with gnnx.open(path, memory="64MiB") as dataset:
        draws = drawing(dataset, (3, 2), [2, STEPS - 2], on_disk=True, batch=slow)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(draws.of, 5)
            assert begun.wait(30)
            draws.stop()
            with pytest.raises(concurrent.futures.CancelledError):
                waiting.result(30)
        go_on.set()
        draws.close()
        assert not draws._thread.is_alive()
        assert dataset.ledger.held_bytes(Tier.DISK) == 0
        assert set(dataset.ledger.owners(Tier.HOST)) <= {"topology", "read buffers"}


def test_a_wait_has_an_end(path):
    go_on = threading.Event()

    def never(step):
        go_on.wait(30)
        return batch(step)

    with gnnx.open(path, memory="64MiB") as dataset:
        draws = drawing(dataset, (3,), [STEPS], batch=never, timeout_s=2)
        with pytest.raises(RunError, match=f"taking the seeds of {STEPS} steps has not ended"):
            draws.of(0)
        go_on.set()
        draws.close()


def test_damaged_row_pointers_are_named(path):
    with gnnx.open(path, memory="64MiB") as dataset:
        dataset.graph.pin(8 * (N + 1))
        dataset.graph._resident_indptr[5] = 10**12
        with pytest.raises(DataError, match=r"indptr\.npy: row 4 is edges \d+ to 10{12} of"):
            drawing(dataset, (3,), [STEPS])
