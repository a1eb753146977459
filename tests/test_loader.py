"""Batches depend on (seed, epoch, step) alone, are whole, and leave nothing behind."""

import gc
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gnnx
import oracles
from conformance import bits, random_table, write_dataset
from gnnx import threads
from gnnx.errors import BudgetError, DataError, RunError, UsageError
from gnnx.loader import Loader
from gnnx.memory import Tier

N, E, F, TRAIN = 5000, 60_000, 64, 230


def write(folder, **changes):
    """A graph with hubs, empty rows, loops and duplicates; 230 training nodes."""
    indptr, indices = oracles.random_csr(7, N, N, E)
    rng = np.random.default_rng(1)
    row = np.repeat(np.arange(N), np.diff(indptr))
    arrays = {
        "x": random_table(N, (F,), torch.float32),
        "y": rng.integers(-1, 5, N),
        "train": np.sort(rng.choice(N, TRAIN, replace=False)),
        "val": np.arange(0, N, 9),
        "indptr": indptr,
        "indices": indices.astype(np.int32),
        "loops": np.unique(row[row == indices]),
    }
    arrays.update(changes)
    return write_dataset(folder, num_classes=5, **arrays)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(tmp_path_factory.mktemp("loader") / "graph")


@pytest.fixture
def dataset(path):
    with gnnx.open(path, memory="256MiB") as opened:
        yield opened


@pytest.fixture(autouse=True)
def two_threads():
    before = threads.num_threads()
    threads.set_num_threads(2)
    yield
    threads.set_num_threads(before)


def digest(batch):
    """Hash of all that a batch holds."""
    parts = [batch.seeds, batch.x, batch.y, batch.n_id, batch.input_id]
    for block in batch.blocks:
        parts += [block.indptr, block.indices, block.src_id, *block.transpose]
        parts += [block.e_id, block.src_degree, block.dst_degree, block.src_loop]
    parts.append(batch.edge_index)
    total = hashlib.sha256()
    for part in parts:
        if part is not None:
            total.update(str((part.dtype, tuple(part.shape))).encode())
            total.update(bits(part.reshape(-1)).tobytes())
    return total.hexdigest()


def digests(dataset, *, epochs=2, start=0, batch_size=50, **options):
    loader = Loader(dataset, (4, 3), batch_size, seed=3, degrees=True, edge_index=True, **options)
    loader.epoch = start
    return [[digest(batch) for batch in loader] for _ in range(epochs)]


def held(dataset):
    """Bytes held on DEVICE, and on HOST by others than those that stay between batches."""
    ledger = dataset.ledger
    stay = {"cache", "topology", "seeds", "sampler", "read buffers"}
    host = {owner: n for owner, n in ledger.owners(Tier.HOST).items() if owner not in stay}
    return ledger.held_bytes(Tier.DEVICE), host


# what a batch is


def test_a_batch_is_whole_and_right(dataset):
    features = dataset.features.read(np.arange(N))
    labels = dataset.labels.read(np.arange(N))
    train = dataset.split("train").read(np.arange(TRAIN))
    for batch in Loader(dataset, (4, 3), 50):
        assert torch.equal(batch.seeds, train[batch.input_id])
        assert torch.equal(batch.n_id[: batch.batch_size], batch.seeds)
        assert torch.equal(batch.n_id, batch.blocks[0].src_id)
        assert torch.equal(batch.blocks[-1].src_id[: batch.batch_size], batch.seeds)
        assert bits(batch.x).tobytes() == bits(features[batch.n_id]).tobytes()
        assert batch.x.data_ptr() % 64 == 0
        assert batch.y.dtype == torch.int64
        assert torch.equal(batch.y, labels[batch.seeds])
        assert batch.edge_index is None
        assert batch.blocks[0].e_id is None
        assert batch.blocks[0].src_degree is None


@pytest.mark.parametrize("batch_size", [1, 7, 50, 230, 1000])
@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_has_every_seed_once(dataset, batch_size, shuffle):
    loader = Loader(dataset, (2,), batch_size, shuffle=shuffle)
    ids = [batch.input_id for batch in loader]
    assert len(ids) == len(loader) == -(-TRAIN // batch_size)
    assert [len(part) for part in ids[:-1]] == [min(batch_size, TRAIN)] * (len(ids) - 1)
    order = torch.cat(ids).tolist()
    assert sorted(order) == list(range(TRAIN))
    assert (order == sorted(order)) == (not shuffle)
    assert loader.epoch == 1
    if shuffle:
        assert torch.cat([batch.input_id for batch in loader]).tolist() != order


def test_drop_last_leaves_out_a_ragged_batch(dataset):
    loader = Loader(dataset, (2,), 50, drop_last=True)
    assert [batch.batch_size for batch in loader] == [50] * 4
    assert len(loader) == 4
    assert not list(Loader(dataset, (2,), 1000, drop_last=True))


def test_an_empty_split_has_no_batches(dataset):
    loader = Loader(dataset, (2,), 50, split="test")
    assert len(loader) == 0
    assert list(loader) == []
    assert loader.stats.steps == 0
    assert loader.epoch == 1


def test_ids_may_stand_for_a_split(dataset):
    ids = torch.tensor([5, 4999, 17, 3])
    loader = Loader(dataset, (2,), 3, split=ids, shuffle=False)
    assert [batch.seeds.tolist() for batch in loader] == [[5, 4999, 17], [3]]
    assert sorted(torch.cat([b.seeds for b in Loader(dataset, (2,), 3, split=ids)]).tolist()) == [
        3,
        5,
        17,
        4999,
    ]


def test_edge_index_is_the_union_of_the_blocks(dataset):
    for batch in Loader(dataset, (4, 3, -1), 20, edge_index=True):
        expected = oracles.edge_union(
            [
                (block.indptr.tolist(), block.indices.tolist(), block.e_id.tolist())
                for block in batch.blocks
            ]
        )
        assert batch.edge_index.dtype == torch.int64
        assert batch.edge_index.T.tolist() == expected


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"batch_size": 0}, "0 seeds"),
        ({"prefetch": -1}, "-1 batches"),
        ({"cache": "lru"}, "'lru'"),
        ({"lookahead": "crystal"}, "'crystal'"),
        ({"split": "trian"}, "'trian'"),
        ({"split": torch.ones(4, dtype=torch.bool)}, "torch.bool"),
        ({"split": torch.ones(2, 2, dtype=torch.int64)}, r"\(2, 2\)"),
        ({"split": torch.ones(4)}, "float32"),
    ],
)
def test_wrong_arguments_are_named(dataset, options, word):
    arguments = {"fanouts": (2,), "batch_size": 10, **options}
    with pytest.raises(UsageError, match=word):
        Loader(dataset, **arguments)


def test_a_seed_outside_the_graph_is_named(dataset):
    with pytest.raises(DataError, match=str(N + 3)):
        list(Loader(dataset, (2,), 3, split=torch.tensor([1, N + 3])))


def test_a_dataset_without_labels_has_no_y(tmp_path):
    graph = write_dataset(tmp_path / "graph", x=random_table(30, (3,), torch.float16))
    with gnnx.open(graph, memory="64MiB") as dataset:
        (batch,) = Loader(dataset, (2,), 50, split=torch.arange(30))
        assert batch.y is None
        assert batch.x.dtype == torch.float16


# the same batches whatever the resources


@pytest.fixture(scope="module")
def expected(path):
    with gnnx.open(path, memory="256MiB") as opened:
        return digests(opened, cache=None, prefetch=0)


@pytest.mark.parametrize("memory", ["600KiB", "800KiB", "1MiB", "8MiB", "8GiB"])
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("prefetch", [0, 1, 2, 4])
def test_batches_depend_on_no_resource(path, expected, memory, num_threads, prefetch):
    threads.set_num_threads(num_threads)
    with gnnx.open(path, memory=memory) as opened:
        assert digests(opened, prefetch=prefetch) == expected
        assert held(opened) == (0, {})
        assert opened.ledger.peak_bytes(Tier.HOST) <= opened.ledger.budget.host


@pytest.fixture(scope="module")
def many(path):
    with gnnx.open(path, memory="256MiB") as opened:
        return digests(opened, cache=None, batch_size=10)


@pytest.mark.parametrize("lookahead", ["auto", "windows", "packs", None])
@pytest.mark.parametrize("memory", ["700KiB", "1MiB", "1200KiB", "1536KiB", "8GiB"])
@pytest.mark.parametrize(("num_threads", "prefetch"), [(1, 2), (2, 0), (2, 4)])
def test_batches_depend_on_no_window(path, many, lookahead, memory, num_threads, prefetch):
    threads.set_num_threads(num_threads)
    with gnnx.open(path, memory=memory) as opened:
        assert digests(opened, prefetch=prefetch, batch_size=10, lookahead=lookahead) == many
        assert held(opened) == (0, {})
        assert opened.ledger.held_bytes(Tier.DISK) == 0
        assert opened.ledger.peak_bytes(Tier.HOST) <= opened.ledger.budget.host


@pytest.mark.parametrize("lookahead", ["windows", "packs"])
def test_every_row_is_accounted_for(path, lookahead):
    stats = []
    for way in (None, lookahead):
        with gnnx.open(path, memory="1MiB", device_memory="64MiB") as opened:
            loader = Loader(opened, (4, 3), 10, lookahead=way)
            list(loader)
            stats.append(loader.stats)
    alone, ahead = stats
    assert (alone.windows, alone.rows_from_packs, alone.disk_written_bytes) == (0, 0, 0)
    assert alone.rows_hit + alone.rows_from_disk == alone.rows_requested
    assert ahead.rows_requested == alone.rows_requested
    assert ahead.windows > 1
    if lookahead == "windows":
        assert ahead.rows_hit + ahead.rows_from_disk == ahead.rows_requested
        assert ahead.rows_from_packs == ahead.disk_written_bytes == 0
    else:
        assert ahead.rows_hit + ahead.rows_from_packs == ahead.rows_requested
        assert ahead.disk_written_bytes == ahead.rows_from_packs * F * 4
        assert ahead.feature_read_bytes < 0.8 * alone.feature_read_bytes


@pytest.mark.parametrize("lookahead", ["windows", "packs"])
def test_leaving_windows_early_leaves_nothing(path, lookahead):
    with gnnx.open(path, memory="1MiB") as opened:
        loader = Loader(opened, (4, 3), 10, lookahead=lookahead)
        for step, _batch in enumerate(loader):
            if step == 6:
                break
        del _batch
        gc.collect()
        assert held(opened) == (0, {})
        assert opened.ledger.held_bytes(Tier.DISK) == 0
        assert not [t for t in threading.enumerate() if t.name == "gnnx-ahead"]
        assert loader.stats.windows > 0
        assert sum(batch.batch_size for batch in loader) == TRAIN


def ahead_threads():
    return [t for t in threading.enumerate() if t.name in {"gnnx-ahead", "gnnx-draws"}]


@pytest.mark.parametrize("lookahead", ["windows", "packs"])
def test_the_next_epoch_is_made_while_one_runs(path, lookahead):
    """The batches are the same, every row is accounted for, and the last epoch leaves nothing."""
    options = {"lookahead": lookahead, "batch_size": 10}
    epochs = []
    for until in (0, 3):
        with gnnx.open(path, memory="1MiB", device_memory="64MiB") as opened:
            loader = Loader(opened, (4, 3), **options)
            loader.until = until
            found, stats, read = [], [], opened.features.file.bytes_read
            for epoch in range(3):
                assert loader.epoch == epoch
                for batch in loader:
                    found.append((bits(batch.x).copy(), batch.n_id.numpy().copy()))
                    assert opened.ledger.peak_bytes(Tier.HOST) <= opened.ledger.budget.host
                del batch
                assert bool(ahead_threads()) == (epoch + 1 < until)
                stats.append(loader.stats)
            gc.collect()
            assert held(opened) == (0, {})
            assert opened.ledger.held_bytes(Tier.DISK) == 0
            read = opened.features.file.bytes_read - read - stats[0].fill_bytes
            epochs.append((found, stats, read))
    (expected, alone, _), (found, stats, read) = epochs
    for one, other in zip(found, expected, strict=True):
        assert all(map(np.array_equal, one, other))
    for one, other in zip(stats, alone, strict=True):
        assert one.rows_requested == other.rows_requested
        assert (
            one.rows_hit + one.rows_from_disk * (lookahead == "windows") + (one.rows_from_packs)
            == one.rows_requested
        )
        if lookahead == "packs":
            for name in ("rows_from_disk", "feature_read_bytes", "disk_written_bytes", "windows"):
                assert getattr(one, name) == getattr(other, name)
    if lookahead == "windows":  # what the last window of an epoch has needs no second read
        assert sum(s.rows_from_disk for s in stats) <= sum(s.rows_from_disk for s in alone)
    assert sum(s.feature_read_bytes for s in stats) <= read


@pytest.mark.parametrize("lookahead", ["windows", "packs"])
@pytest.mark.parametrize("end", ["leave", "lend", "jump", "break"])
def test_what_was_made_for_an_epoch_that_does_not_come_is_given_back(path, lookahead, end):
    with gnnx.open(path, memory="1MiB", device_memory="64MiB") as opened:
        loader = Loader(opened, (4, 3), 10, lookahead=lookahead)
        loader.until = 9
        list(loader)
        assert ahead_threads()
        if end == "leave":
            loader.leave()
        elif end == "lend":
            with loader.released():
                assert opened.ledger.held_bytes(Tier.DISK) == 0
        elif end == "jump":
            loader.epoch, loader.until = 5, 0
            found = [bits(batch.x).copy() for batch in loader]
            alone = Loader(opened, (4, 3), 10, cache=None, lookahead=None)
            alone.epoch = 5
            expected = [bits(batch.x).copy() for batch in alone]
            assert all(map(np.array_equal, found, expected))
        else:
            for _batch in loader:
                break
            del _batch
        gc.collect()
        assert not ahead_threads()
        assert held(opened) == (0, {})
        assert opened.ledger.held_bytes(Tier.DISK) == 0


def test_windows_are_given_up_before_a_batch_is(path, caplog):
    with gnnx.open(path, memory="1MiB") as opened:
        loader = Loader(opened, (4, 3), 10, lookahead="windows", prefetch=0)
        assert loader.features is not None
        assert loader._strategy.kind == "windows"
        sample, ledger = loader._sampler.sample, opened.ledger
        hungry = ledger.free_bytes(Tier.HOST) - 1000

        def sample_hungrily(seeds, key):
            extra = ledger.empty(hungry, np.uint8, Tier.HOST, "sampler")
            del extra
            return sample(seeds, key)

        loader._sampler.sample = sample_hungrily
        assert sum(batch.batch_size for batch in loader) == TRAIN
        assert loader._strategy.kind == "rows"
        assert caplog.text.count("Windows are given up") == 1


def test_batches_do_not_depend_on_topology_in_memory(path, expected):
    with gnnx.open(path, memory="256MiB") as opened:
        opened.graph.pin = lambda limit_bytes: 0
        assert digests(opened) == expected
        assert opened.ledger.owners(Tier.HOST)["topology"] < 8 * N


def test_an_epoch_can_be_resumed(dataset, expected):
    assert digests(dataset, epochs=1, start=1) == expected[1:]


def test_an_epoch_left_early_begins_again(dataset, expected):
    loader = Loader(dataset, (4, 3), 50, seed=3, degrees=True, edge_index=True)
    for step, _ in enumerate(loader):
        if step == 2:
            break
    assert loader.epoch == 0
    assert [digest(batch) for batch in loader] == expected[0]


def test_another_process_makes_the_same_batches(path, expected):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_loader as t, gnnx\n"
        "print(t.digests(gnnx.open(sys.argv[2], memory='2MiB')))"
    )
    command = [sys.executable, "-c", program, str(Path(__file__).parent), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert done.stdout.strip() == str(expected)


def test_seeds_differ(dataset, expected):
    loader = Loader(dataset, (4, 3), 50, seed=4, degrees=True, edge_index=True)
    assert not {digest(batch) for batch in loader} & set(expected[0])


# memory


@settings(max_examples=25, suppress_health_check=[HealthCheck.differing_executors])
@given(data=st.data())
def test_the_budget_is_kept_or_refused(path, data):
    host = data.draw(st.integers(20_000, 2_000_000))
    device = data.draw(st.none() | st.integers(20_000, 2_000_000))
    options = {
        "prefetch": data.draw(st.integers(0, 3)),
        "degrees": data.draw(st.booleans()),
        "edge_index": data.draw(st.booleans()),
    }
    with gnnx.open(path, memory=host, device_memory=device) as opened:
        seen, refused = [], None
        try:
            for batch in Loader(opened, (4, 3), 50, **options):
                seen += batch.input_id.tolist()
        except BudgetError as error:
            refused = error.tier, error.smallest_bytes
        batch = None
        if refused is None:
            assert sorted(seen) == list(range(TRAIN))
        else:
            assert refused[1] > {"host": host, "device": device}[refused[0]]
        assert opened.ledger.peak_bytes(Tier.HOST) <= host
        assert device is None or opened.ledger.peak_bytes(Tier.DEVICE) <= device
        gc.collect()
        assert held(opened) == (0, {})
        assert set(opened.ledger.owners(Tier.HOST)) <= {"topology", "read buffers"}


def test_a_short_device_budget_means_fewer_batches_at_a_time(path, dataset):
    sizes = []
    for _batch in Loader(dataset, (4, 3), 50, prefetch=0):
        sizes.append(dataset.ledger.held_bytes(Tier.DEVICE))
        del _batch
    # room for the current batch and a half: one is freed before the next one is asked for
    budget = max(sizes) * 3 // 2
    with gnnx.open(path, memory="64MiB", device_memory=budget) as opened:
        steps = 0
        gc.disable()  # what a failed batch held is free at once: its error is in no cycle
        try:
            for batch in Loader(opened, (4, 3), 50, prefetch=3):
                steps += batch is not None
                del batch
            assert held(opened) == (0, {})
        finally:
            gc.enable()
        assert steps == 5
        assert opened.ledger.peak_bytes(Tier.DEVICE) <= budget


def test_a_device_that_holds_no_batch_is_a_budget_error(path):
    with gnnx.open(path, memory="64MiB", device_memory=30_000) as opened:
        with pytest.raises(BudgetError, match="device memory") as caught:
            list(Loader(opened, (4, 3), 50))
        assert caught.value.smallest_bytes > 30_000
        del caught
        gc.collect()
        assert held(opened) == (0, {})


def test_the_cache_is_given_up_before_a_batch_is(path, caplog):
    with gnnx.open(path, memory="1MiB") as opened:
        loader = Loader(opened, (4, 3), 50)
        assert loader.features.is_filled
        sample, ledger = loader._sampler.sample, opened.ledger
        hungry = ledger.free_bytes(Tier.HOST) + loader.features.num_kept * F * 4 // 2

        def sample_hungrily(seeds, key):
            extra = ledger.empty(hungry, np.uint8, Tier.HOST, "sampler")
            del extra
            return sample(seeds, key)

        loader._new_sampler = lambda: loader._sampler  # it is made anew when memory is short
        loader._sampler.sample = sample_hungrily
        for _ in range(2):
            assert sum(batch.batch_size for batch in loader) == TRAIN
            assert not loader.features.is_filled
        assert caplog.text.count("given up") == 1
        assert loader.stats.fill_bytes == 0


def test_what_fits_is_kept_and_counted(dataset):
    loader = Loader(dataset, (4, 3), 50)
    list(loader)
    stats = loader.stats
    assert stats.steps == 5
    assert stats.rows_requested == stats.rows_hit > 0
    assert stats.rows_from_disk == 0
    assert stats.disk_read_bytes == 0
    assert stats.fill_bytes == N * F * 4
    list(loader)
    assert loader.stats.fill_bytes == 0
    assert loader.stats.rows_requested != stats.rows_requested


def test_rows_from_the_disk_are_counted(dataset):
    loader = Loader(dataset, (4, 3), 50, cache=None)
    rows = sum(len(batch.n_id) for batch in loader)
    stats = loader.stats
    assert stats.rows_from_disk == stats.rows_requested == rows
    assert stats.rows_hit == stats.fill_bytes == 0
    assert stats.disk_read_bytes >= rows / 5 * F * 4
    assert min(stats.sample_s, stats.fetch_s, stats.wait_s) > 0


def test_a_middling_budget_keeps_the_hottest_rows(path):
    with gnnx.open(path, memory="1MiB") as opened:
        loader = Loader(opened, (4, 3), 50)
        list(loader)
        kept = loader.features.num_kept
        assert 100 < kept < N
        assert loader.stats.rows_hit / loader.stats.rows_requested > 1.2 * kept / N
        assert loader.stats.fill_bytes == kept * F * 4


def test_no_cache_where_the_ranking_does_not_fit(tmp_path):
    """As 1 M nodes under 8 MiB: 8 bytes a node are the whole budget."""
    num_nodes = 40_000
    graph = write_dataset(
        tmp_path / "graph", x=random_table(num_nodes, (16,), torch.float32), train=np.arange(100)
    )
    with gnnx.open(graph, memory=8 * num_nodes) as opened:
        loader = Loader(opened, (2,), 10)
        assert sum(batch.batch_size for batch in loader) == 100
        assert loader.features.num_kept == 0


def test_kept_rows_are_lent_and_come_back(dataset):
    loader = Loader(dataset, (4, 3), 50)
    first = [digest(batch) for batch in loader]
    rows = N * F * 4
    owners = dataset.ledger.owners(Tier.HOST)
    with loader.released():
        lent = dataset.ledger.owners(Tier.HOST)
        assert lent["cache"] == owners["cache"] - rows
        assert "sampler" not in lent
    loader.epoch = 0
    assert [digest(batch) for batch in loader] == first
    assert loader.stats.fill_bytes == rows
    assert loader.stats.rows_from_disk == 0


def test_an_epoch_goes_without_a_cache_that_others_have_displaced(dataset, caplog):
    loader = Loader(dataset, (4, 3), 50)
    first = [digest(batch) for batch in loader]
    free = dataset.ledger.free_bytes(Tier.HOST)
    with loader.released(), dataset.ledger.reserve(free + 1000, Tier.HOST, "somebody"):
        loader.epoch = 0
        assert [digest(batch) for batch in loader] == first
        assert loader.stats.rows_hit == 0
        assert "stays empty in epoch 0" in caplog.text
    list(loader)
    assert loader.stats.rows_from_disk == 0


def test_two_loaders_share_a_budget(path):
    with gnnx.open(path, memory="1MiB") as opened:
        both = [Loader(opened, (4, 3), 50, split=split) for split in ("train", "val")]
        for loader in both:
            seen = sorted(torch.cat([batch.input_id for batch in loader]).tolist())
            assert seen == list(range(len(seen)))
        assert opened.ledger.peak_bytes(Tier.HOST) <= 1 << 20


# ends


def test_leaving_early_leaves_nothing(dataset):
    loader = Loader(dataset, (4, 3), 20, prefetch=4, cache=None)
    for _batch in loader:
        break
    del _batch
    assert held(dataset) == (0, {})
    assert loader.stats.steps == 1


def test_closing_an_iterator_that_never_ran(dataset):
    iter(Loader(dataset, (4, 3), 20)).close()
    assert held(dataset) == (0, {})


def test_an_interrupt_leaves_nothing(dataset):
    loader = Loader(dataset, (4, 3), 20, cache=None)

    def interrupted():
        for step, _ in enumerate(loader):
            if step == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    gc.collect()
    assert held(dataset) == (0, {})


def test_an_interrupt_while_waiting_leaves_nothing(dataset):
    loader = Loader(dataset, (4, 3), 20, cache=None)
    sample, running = loader._sampler.sample, []

    def slow(seeds, key):
        running.append(key.step)
        if key.step in {2, 6}:  # one that comes while an array dies is lost: Python prints it
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.3)
        blocks = sample(seeds, key)
        running.remove(key.step)
        return blocks

    loader._sampler.sample = slow
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            list(loader)
    finally:
        signal.signal(signal.SIGINT, before)
    assert running == []
    gc.collect()
    assert held(dataset) == (0, {})


def test_at_most_the_current_and_the_prefetched_batches_exist(dataset):
    for prefetch in (0, 1, 3):
        loader = Loader(dataset, (4, 3), 10, prefetch=prefetch)
        alive, most = set(), 0
        sample = loader._sampler.sample

        def counting(seeds, key, sample=sample, alive=alive):
            alive.add(key.step)
            return sample(seeds, key)

        loader._sampler.sample = counting
        for step, _ in enumerate(loader):
            alive.discard(step - 1)
            time.sleep(0.01)
            most = max(most, len(alive))
        assert most <= 1 + prefetch


def test_a_batch_is_prepared_while_the_consumer_computes(dataset):
    """The next batch waits when its consumer comes, though each takes time to prepare."""
    loader = Loader(dataset, (4, 3), 50)
    sample = loader._sampler.sample

    def slow(seeds, key):
        time.sleep(0.05)
        return sample(seeds, key)

    loader._sampler.sample = slow
    for _ in loader:
        time.sleep(0.1)
    assert loader.stats.wait_s < 0.05 * 5


def test_disk_waits_of_batches_overlap_even_on_one_thread(dataset):
    """A pool thread starts a read and goes on to sample; it does not wait for the disk."""
    threads.set_num_threads(1)
    loader = Loader(dataset, (4, 3), 24, cache=None, prefetch=4)
    source, latency_s = loader.features.source, 0.1

    class Late:
        def __init__(self, rows):
            self.rows, self.ready = rows, time.monotonic() + latency_s

        def wait(self, timeout_s):
            time.sleep(max(0.0, self.ready - time.monotonic()))
            return self.rows.wait(timeout_s)

    class Slow:
        def __getattr__(self, name):
            return getattr(source, name)

        def fetch(self, *arguments):
            return Late(source.fetch(*arguments))

    loader.features.source = Slow()
    steps = sum(1 for _ in loader)
    assert steps == 10
    assert latency_s < loader.stats.wait_s < 0.6 * steps * latency_s


def test_an_error_in_a_job_is_raised_once(dataset):
    loader = Loader(dataset, (4, 3), 20)
    sample = loader._sampler.sample

    def broken(seeds, key):
        if key.step == 3:
            raise ZeroDivisionError("in step 3")
        return sample(seeds, key)

    loader._sampler.sample = broken
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    begin = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="in step 3"):
        next(batches)
    assert time.monotonic() - begin < 5
    with pytest.raises(StopIteration):
        next(batches)
    assert loader.epoch == 0
    loader._sampler.sample = sample
    assert sum(batch.batch_size for batch in loader) == TRAIN
    gc.collect()
    assert held(dataset) == (0, {})


def test_a_read_that_fails_names_the_file(tmp_path):
    graph = write(tmp_path / "graph")
    with gnnx.open(graph, memory="64MiB") as opened:
        loader = Loader(opened, (4, 3), 50, cache=None)
        list(loader)
        file = graph / "nodes/node/x.npy"
        with file.open("r+b") as handle:
            handle.truncate(8192)
        begin = time.monotonic()
        with pytest.raises(DataError, match=r"x\.npy"):
            list(loader)
        assert time.monotonic() - begin < 5
        gc.collect()
        assert held(opened) == (0, {})


def test_a_batch_that_never_comes_is_named(dataset):
    loader = Loader(dataset, (4, 3), 50, timeout_s=0.3)
    sample, release = loader._sampler.sample, threading.Event()

    def stuck(seeds, key):
        if key.step == 2:
            release.wait(20)
        return sample(seeds, key)

    loader._sampler.sample = stuck
    begin = time.monotonic()
    try:
        with pytest.raises(RunError, match=r"epoch 0, step 2: sampling has not ended"):
            list(loader)
        assert time.monotonic() - begin < 5
    finally:
        release.set()


def test_rows_that_never_come_are_named(dataset):
    loader = Loader(dataset, (4, 3), 50, cache=None, timeout_s=0.3)
    source = loader.features.source

    class Stuck:
        def wait(self, timeout_s):
            time.sleep(timeout_s)
            raise RunError("x.npy: rows were not read", "Check the disk.")

    class Dead:
        def __getattr__(self, name):
            return getattr(source, name)

        def fetch(self, *arguments):
            return Stuck()

    loader.features.source = Dead()
    begin = time.monotonic()
    with pytest.raises(RunError, match=r"epoch 0, step 0: fetching features has not ended"):
        list(loader)
    assert time.monotonic() - begin < 5


def test_a_timeout_error_of_a_job_is_its_own(dataset):
    loader = Loader(dataset, (4, 3), 50)

    def late(seeds, key):
        raise TimeoutError("the job's own")

    loader._sampler.sample = late
    with pytest.raises(TimeoutError, match="the job's own"):
        list(loader)


def test_works_on_a_busy_pool(dataset):
    """Kernels spread by `threads.run` meanwhile, as a training step does."""
    total = np.zeros(4)

    def task(begin, end):
        total[begin:end] += 1

    steps = 0
    for _ in Loader(dataset, (4, 3), 10):
        threads.run(task, 4)
        steps += 1
    assert total.tolist() == [steps] * 4
