"""Windows and packs give the same rows, read them once, keep to their budgets and end."""

import concurrent.futures
import gc
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gnnx
import oracles
from conformance import bits, random_table, write_dataset
from gnnx.cache import FeatureCache, Lookahead, Strategy, held_bytes, packs
from gnnx.errors import DataError, RunError
from gnnx.memory import Tier
from gnnx.store import ScratchFile

N, F = 3000, 24
TABLE = random_table(N, (F,), torch.float32)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("lookahead") / "graph", x=TABLE)


@pytest.fixture
def dataset(path):
    with gnnx.open(path, memory="64MiB") as opened:
        opened.features.read(np.arange(1))  # the readers have their buffers
        yield opened


def skewed(num_batches, size, seed=0):
    """Batches of distinct rows, some of which all want."""
    rng = np.random.default_rng(seed)
    weight = 1.0 / (1 + rng.permutation(N))
    return [rng.choice(N, size, replace=False, p=weight / weight.sum()) for _ in range(num_batches)]


def strategy(kind, *, steps=8, num_rows=N, id_bytes=1 << 20):
    return Strategy(kind, 0, steps, num_rows, id_bytes, 0.0)


def consume(ahead, batches):
    """Fetch all batches as a loader does; check them; and say what the windows did."""
    for step, rows in enumerate(batches):
        out = torch.zeros(len(rows), F)
        ahead.fetch(step, rows, out).wait()
        ahead.done(step)
        assert np.array_equal(bits(out), bits(TABLE)[rows])
    return ahead.close()


def run(dataset, batches, pinned, plan, timeout_s=30.0):
    kept = FeatureCache(dataset.features, np.asarray(pinned, np.int64), dataset.ledger)
    spans = []

    class Recorded(Lookahead):
        def _publish(self, span):
            spans.append((span.begin, span.end))
            super()._publish(span)

    ahead = Recorded(dataset, kept, plan, lambda step: batches[step], len(batches), timeout_s)
    return consume(ahead, batches), spans


@pytest.fixture(autouse=True)
def nothing_left(dataset):
    before = threading.active_count()
    yield
    gc.collect()
    assert not [t for t in threading.enumerate() if t.name == "gnnx-ahead"]
    assert threading.active_count() <= before + 16  # the readers
    assert dataset.ledger.held_bytes(Tier.DISK) == 0
    assert "cache" not in dataset.ledger.owners(Tier.HOST)


@pytest.mark.parametrize("kind", ["rows", "windows", "packs"])
@settings(
    max_examples=25,
    suppress_health_check=[
        HealthCheck.differing_executors, HealthCheck.function_scoped_fixture,
    ],
)  # fmt: skip
@given(data=st.data())
def test_batches_get_their_rows(dataset, kind, data):
    sizes = data.draw(st.lists(st.integers(0, 300), max_size=20))
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    batches = [rng.permutation(N)[:size] for size in sizes]
    pinned = np.flatnonzero(rng.random(N) < data.draw(st.sampled_from([0, 0.1, 1])))
    plan = strategy(
        kind,
        steps=data.draw(st.integers(1, 30)),
        num_rows=data.draw(st.sampled_from([1, 7, 250, 1000, N])),
        id_bytes=data.draw(st.sampled_from([0, 1000, 4000, 1 << 20])),
    )
    counts, _ = run(dataset, batches, pinned, plan)
    missed = sum(len(np.setdiff1d(rows, pinned)) for rows in batches)
    assert counts.rows_staged + counts.rows_unpacked <= missed
    assert counts.rows_unpacked == counts.rows_packed
    assert counts.rows_read <= missed
    assert (counts.rows_staged > 0) <= (kind == "windows")
    assert (counts.rows_packed > 0) <= (kind == "packs")


@pytest.mark.parametrize("num_pinned", [0, 100, 500])
@pytest.mark.parametrize("num_rows", [200, 400, 800, 1600])
def test_no_more_is_read_than_by_belady(dataset, num_pinned, num_rows):
    """The rows that stay and those of the pool are the simulator's capacity."""
    fetched = bound = 0
    for seed in range(3):
        batches = skewed(60, 150, seed)
        often = np.bincount(np.concatenate(batches), minlength=N)
        pinned = np.sort(np.argsort(-often, kind="stable")[:num_pinned])
        plan = strategy("windows", steps=16, num_rows=num_rows)
        counts, spans = run(dataset, batches, pinned, plan)
        assert len(spans) > 3
        assert counts.rows_staged == sum(len(np.setdiff1d(rows, pinned)) for rows in batches)
        sets = [list(map(int, rows)) for rows in batches]
        bound += oracles.belady_fetches(sets, spans, set(pinned.tolist()), num_pinned + num_rows)
        fetched += counts.rows_read
        assert counts.rows_read < 0.9 * counts.rows_staged
    # two batches fill a pool of 200, and a window reads all its rows before one of them may go
    assert fetched <= (1.02 if num_rows == 200 else 1.01) * bound


def test_reading_follows_the_batches_that_make_room(dataset):
    """Batches that share nothing; the second window fills the pool of 400."""
    batches = np.random.default_rng(0).permutation(N)[:2000].reshape(40, 50)
    kept = FeatureCache(dataset.features, np.arange(0), dataset.ledger)
    file = dataset.features.file
    before = file.num_rows
    plan = strategy("windows", steps=8, num_rows=400)
    ahead = Lookahead(dataset, kept, plan, lambda step: batches[step], 40, 30.0)
    for step in range(10):  # the first window, and two batches of the second
        ahead.fetch(step, batches[step], torch.zeros(50, F)).wait()
        ahead.done(step)
    limit = time.monotonic() + 20
    while file.num_rows - before < 600 + 300 and time.monotonic() < limit:
        time.sleep(0.01)
    time.sleep(0.05)
    assert file.num_rows - before == 600 + 300
    ahead.close()


def waits_for_places(dataset, timeout_s):
    """Batches that share nothing, six taken: the next window waits for places."""
    batches = np.random.default_rng(0).permutation(N)[:2000].reshape(40, 50)
    kept = FeatureCache(dataset.features, np.arange(0), dataset.ledger)
    plan = strategy("windows", steps=8, num_rows=400)
    ahead = Lookahead(dataset, kept, plan, lambda step: batches[step], 40, timeout_s)
    for step in range(6):
        ahead.fetch(step, batches[step], torch.zeros(50, F)).wait()
        ahead.done(step)
    return ahead, batches


def test_a_consumer_may_pause_longer_than_the_time_limit(dataset):
    waits_for_places(dataset, timeout_s=30.0)[0].close()  # compiles
    ahead, batches = waits_for_places(dataset, timeout_s=0.5)
    time.sleep(2)
    for step in range(6, 40):
        out = torch.zeros(50, F)
        ahead.fetch(step, batches[step], out).wait()
        ahead.done(step)
        assert np.array_equal(bits(out), bits(TABLE)[batches[step]])
    assert ahead.close().rows_staged == 2000


def test_closing_ends_a_wait_for_places(dataset):
    ahead, _ = waits_for_places(dataset, timeout_s=30.0)
    time.sleep(0.2)
    begin = time.monotonic()
    ahead.close()
    assert time.monotonic() - begin < 10
    assert not ahead._thread.is_alive()


def test_packs_read_each_row_of_a_window_once(dataset):
    batches = skewed(30, 200)
    counts, spans = run(dataset, batches, [], strategy("packs", steps=8, num_rows=300))
    assert counts.rows_read == sum(
        len(np.unique(np.concatenate(batches[begin:end]))) for begin, end in spans
    )
    assert counts.rows_packed == counts.rows_unpacked == 30 * 200
    assert counts.windows == len(spans) == 4


@pytest.mark.parametrize("kind", ["windows", "packs"])
@pytest.mark.parametrize("width", [1, 24, 1000])
def test_windows_hold_no_more_than_the_plan_says(tmp_path, kind, width):
    table = random_table(N, (width,), torch.float32)
    batches = skewed(30, 200)
    plan = strategy(kind, steps=10, num_rows=700, id_bytes=4 * 2000)
    with gnnx.open(write_dataset(tmp_path / "graph", x=table), memory="64MiB") as opened:
        opened.features.read(np.arange(1))
        kept = FeatureCache(opened.features, np.arange(0), opened.ledger)
        held = opened.ledger.held_bytes(Tier.HOST)
        ahead = Lookahead(opened, kept, plan, lambda step: batches[step], 30, 30.0)
        for step, rows in enumerate(batches):
            out = torch.zeros(200, width)
            ahead.fetch(step, rows, out).wait()
            ahead.done(step)
            assert np.array_equal(bits(out), bits(table)[rows])
        ahead.close()
        # beside it, the rows that a batch misses, with their order
        most = held_bytes(plan, N, 4 * width) + 200 * 48
        assert opened.ledger.peak_bytes(Tier.HOST) - held <= most


def test_a_batch_that_no_window_holds_reads_for_itself(dataset):
    batches = [np.arange(5), np.arange(50), np.arange(3)]
    counts, spans = run(dataset, batches, [], strategy("windows", num_rows=10))
    assert spans == [(0, 1), (1, 2), (2, 3)]
    assert (counts.windows, counts.rows_staged) == (2, 8)


@pytest.mark.parametrize("kind", ["windows", "packs"])
def test_two_windows_exist_at_most(dataset, kind):
    batches = skewed(40, 100)
    kept = FeatureCache(dataset.features, np.arange(0), dataset.ledger)
    asked = []

    def wanted(step):
        asked.append(step)
        return batches[step]

    ahead = Lookahead(dataset, kept, strategy(kind, steps=4), wanted, 40, 30.0)
    for step, rows in enumerate(batches):
        ahead.fetch(step, rows, torch.zeros(100, F)).wait()
        assert max(asked) < step // 4 * 4 + 8
        ahead.done(step)
    ahead.close()


def test_a_disk_budget_that_is_too_small_means_no_packs(path, caplog):
    batches = skewed(10, 100)
    with gnnx.open(path, memory="64MiB") as opened:
        opened.ledger._accounts[Tier.DISK].limit = 5 * (100 * F * 4 // 4096 + 1) * 4096
        counts, spans = run(opened, batches, [], strategy("packs", steps=8))
        assert counts.windows == 1
        assert spans == [(0, 5), (5, 10)]
        assert "No windows for the rest" in caplog.text


def test_a_host_budget_that_is_too_small_means_no_windows(path, caplog):
    batches = skewed(10, 100)
    with gnnx.open(path, memory="400KiB") as opened:
        opened.features.read(np.arange(1))
        free = opened.ledger.free_bytes(Tier.HOST)
        with opened.ledger.reserve(free - 20_000, Tier.HOST, "somebody"):
            counts, _ = run(opened, batches, [], strategy("windows"))
        assert counts.windows == 0
        assert "No windows for the rest" in caplog.text


# ends


@pytest.mark.parametrize("kind", ["windows", "packs"])
@pytest.mark.parametrize("steps", [0, 1, 5, 9])
def test_leaving_early_leaves_nothing(dataset, kind, steps):
    batches = skewed(40, 300)
    kept = FeatureCache(dataset.features, np.arange(0), dataset.ledger)
    plan = strategy(kind, num_rows=500)
    ahead = Lookahead(dataset, kept, plan, lambda step: batches[step], 40, 30.0)
    for step in range(steps):
        ahead.fetch(step, batches[step], torch.zeros(300, F)).wait()
        ahead.done(step)
    begin = time.monotonic()
    ahead.close()
    ahead.close()
    assert time.monotonic() - begin < 5


def test_stopping_frees_who_waits(dataset):
    release = threading.Event()
    kept = FeatureCache(dataset.features, np.arange(0), dataset.ledger)

    def wanted(step):
        release.wait(20)
        return np.arange(3)

    ahead = Lookahead(dataset, kept, strategy("windows"), wanted, 10, 30.0)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(ahead.fetch, 0, np.arange(3), torch.zeros(3, F))
        time.sleep(0.05)
        assert not waiting.done()
        ahead.stop()
        with pytest.raises(concurrent.futures.CancelledError):
            waiting.result(5)
    release.set()
    ahead.close()


def test_packs_of_all_windows_share_two_files(dataset, monkeypatch):
    made = []

    class Counted(ScratchFile):
        def __init__(self, *arguments, **options):
            super().__init__(*arguments, **options)
            made.append(self)

    monkeypatch.setattr(packs, "ScratchFile", Counted)
    batches = skewed(60, 50) + skewed(20, 120)  # the last ones want more room than the first
    counts, spans = run(dataset, batches, [], strategy("packs", steps=4))
    assert len(spans) == counts.windows == 20
    assert 1 <= len(made) <= 2
    assert dataset.ledger.held_bytes(Tier.DISK) == 0


def test_a_window_that_never_comes_is_named(dataset, caplog):
    release = threading.Event()
    kept = FeatureCache(dataset.features, np.arange(0), dataset.ledger)

    def wanted(step):
        release.wait(20)
        return np.arange(3)

    ahead = Lookahead(dataset, kept, strategy("windows"), wanted, 10, 0.2)
    with pytest.raises(RunError, match="step 0: finding the rows of step 0 has not ended"):
        ahead.fetch(0, np.arange(3), torch.zeros(3, F))
    ahead.close()
    assert "finding the rows of step 0" in caplog.text
    release.set()
    ahead._thread.join(5)


@pytest.mark.parametrize("kind", ["windows", "packs"])
def test_an_error_ahead_is_raised_where_its_rows_are_fetched(dataset, kind):
    batches = skewed(12, 50)
    kept = FeatureCache(dataset.features, np.arange(0), dataset.ledger)

    def wanted(step):
        if step == 6:
            raise ZeroDivisionError("in step 6")
        return batches[step]

    ahead = Lookahead(dataset, kept, strategy(kind), wanted, 12, 30.0)
    for step in range(6):  # the window before the one that fails
        ahead.fetch(step, batches[step], torch.zeros(50, F)).wait()
        ahead.done(step)
    with pytest.raises(ZeroDivisionError, match="in step 6"):
        ahead.fetch(6, batches[6], torch.zeros(50, F))
    ahead.close()


@pytest.mark.parametrize("kind", ["windows", "packs"])
def test_a_file_cut_short_is_named(tmp_path, kind):
    graph = write_dataset(tmp_path / "graph", x=TABLE)
    with gnnx.open(graph, memory="64MiB") as opened:
        opened.features.read(np.arange(1))
        with (graph / "nodes/node/x.npy").open("r+b") as handle:
            handle.truncate(8192)
        with pytest.raises(DataError, match=r"x\.npy"):
            run(opened, skewed(12, 50), [], strategy(kind))
        gc.collect()
        for thread in threading.enumerate():
            if thread.name == "gnnx-ahead":
                thread.join(5)
        assert opened.ledger.held_bytes(Tier.DISK) == 0


def test_rows_that_no_longer_stay_come_from_the_source(dataset):
    """A pack holds what was missing when it was made; the cache is given up afterwards."""
    batches = skewed(8, 100)
    kept = FeatureCache(dataset.features, np.arange(0, N, 2), dataset.ledger)
    plan = strategy("packs", steps=4)
    ahead = Lookahead(dataset, kept, plan, lambda step: batches[step], 8, 30.0)
    ahead.fetch(0, batches[0], torch.zeros(100, F)).wait()
    kept.release()
    counts = consume(ahead, batches)
    assert 0 < counts.rows_unpacked < counts.rows_packed
