"""The cache gives the bits of its source, counts what it does and stays within its budget."""

import dataclasses
import threading

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnx
from conformance import FeatureStoreSuite, bits, random_table, write_dataset
from gnnx.cache import AccessCounts, FeatureCache, overhead_bytes
from gnnx.errors import BudgetError, DataError, UsageError
from gnnx.memory import Budget, Ledger, Tier

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int64,
]


@dataclasses.dataclass
class Answer:
    """A read that ends when it is waited for."""

    job: object

    def wait(self, timeout_s=None):
        return self.job()

    def done(self):
        return False


class MemoryFeatures:
    """A feature store in memory that notes what it is asked for and reads only in `wait`."""

    def __init__(self, table):
        self.table = table
        self.num_rows, self.row_shape, self.dtype = len(table), tuple(table.shape[1:]), table.dtype
        self.row_bytes = table[:0].new_empty(self.row_shape).numel() * table.element_size()
        self.asked = []

    def fetch(self, rows, out=None, slots=None):
        self.asked.append(rows.copy())
        slots = np.arange(len(rows)) if slots is None else slots
        out = torch.empty((len(rows), *self.row_shape), dtype=self.dtype) if out is None else out

        def job():
            out[torch.from_numpy(slots)] = self.table[torch.from_numpy(rows)]
            return out

        return Answer(job)

    def read(self, rows, out=None, slots=None):
        return self.fetch(rows, out, slots).wait()


def unlimited():
    return Ledger(Budget())


@pytest.fixture(scope="module", params=["nothing", "one row", "a third", "all"])
def make(request, tmp_path_factory):
    """A maker of caches on data sets, as the suite wants it."""
    folder = tmp_path_factory.mktemp("cache")
    opened = []

    def of(table):
        path = write_dataset(folder / str(len(opened)), x=table)
        opened.append(gnnx.open(path, memory="64MiB"))
        rows = np.arange(len(table))
        step = {"nothing": len(rows), "one row": len(rows), "a third": 3, "all": 1}[request.param]
        ids = rows[:0] if request.param == "nothing" else rows[step - 1 :: step]
        return FeatureCache(opened[-1].features, ids, opened[-1].ledger)

    yield of
    for dataset in opened:
        dataset.close()


class TestFeatureCache(FeatureStoreSuite):
    """The suite, with the fixture `make` above."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("row_shape", [(), (1,), (3,), (17,), (64,), (2, 5), (0,)], ids=str)
@pytest.mark.parametrize("num_cached", [0, 1, 40, 100])
def test_rows_are_the_source_s(dtype, row_shape, num_cached):
    source = MemoryFeatures(random_table(100, row_shape, dtype))
    rng = np.random.default_rng(1)
    ids = np.sort(rng.choice(100, num_cached, replace=False))
    cache = FeatureCache(source, ids, unlimited())
    rows = rng.integers(0, 100, 250)
    got = cache.read(rows)
    assert got.dtype == dtype
    assert got.shape == (250, *row_shape)
    assert np.array_equal(bits(got), bits(source.table[torch.from_numpy(rows)]))
    assert got.data_ptr() % 64 == 0 or not got.numel()


@given(st.data())
def test_any_ids_rows_and_slots(data):
    num_rows = data.draw(st.integers(1, 2000))
    ids = sorted(data.draw(st.sets(st.integers(0, num_rows - 1))))
    rows = np.array(data.draw(st.lists(st.integers(0, num_rows - 1))), np.int64)
    room = data.draw(st.integers(len(rows), len(rows) + 5))
    places = np.array(data.draw(st.permutations(range(room)))[: len(rows)], np.int64)
    source = MemoryFeatures(random_table(num_rows, (3,), torch.int16))
    cache = FeatureCache(source, np.array(ids, np.int64), unlimited())
    source.asked.clear()
    out = torch.full((room, 3), -1, dtype=torch.int16)
    expected = out.clone()
    expected[places] = source.table[rows]
    assert cache.read(rows, out, places) is out
    assert torch.equal(out, expected)
    missing = [row for row in rows if row not in set(ids)]
    assert np.concatenate(source.asked).tolist() == missing
    hits = len(rows) - len(missing)
    assert cache.counts == AccessCounts(len(rows), hits, hits * 6, len(missing) * 6)


def test_output_at_an_odd_address():
    source = MemoryFeatures(random_table(64, (4,), torch.int8))
    cache = FeatureCache(source, np.arange(32), unlimited())
    out = torch.empty(1 + 64 * 4, dtype=torch.int8)[1:].view(64, 4)
    assert torch.equal(cache.read(np.arange(64), out), source.table)


def test_hits_are_in_place_before_the_source_answers():
    source = MemoryFeatures(random_table(10, (4,), torch.int64))
    cache = FeatureCache(source, np.array([2, 5]), unlimited())
    out = torch.zeros((3, 4), dtype=torch.int64)
    pending = cache.fetch(np.array([5, 7, 2]), out)
    assert torch.equal(out[[0, 2]], source.table[[5, 2]])
    assert not out[1].any()
    assert torch.equal(pending.wait(), source.table[[5, 7, 2]])


def test_fill_reads_ascending_once_and_counts_apart():
    source = MemoryFeatures(random_table(70_000, (2,)))
    ids = np.flatnonzero(np.random.default_rng(0).random(70_000) < 0.6)
    cache = FeatureCache(source, ids, unlimited())
    assert len(source.asked) > 1
    assert np.array_equal(np.concatenate(source.asked), ids)
    assert cache.fill_bytes == len(ids) * 8
    assert cache.counts == AccessCounts()


def test_release_gives_the_rows_back_and_fill_brings_them():
    source, ledger = MemoryFeatures(random_table(1000, (16,))), unlimited()
    cache = FeatureCache(source, np.arange(0, 1000, 2), ledger)
    cache.release()
    assert ledger.held_bytes(Tier.HOST) <= overhead_bytes(1000)
    rows = np.arange(1000)
    assert np.array_equal(bits(cache.read(rows)), bits(source.table))
    assert cache.counts.rows_missed == 1000
    cache.fill()
    before = cache.counts
    assert np.array_equal(bits(cache.read(rows)), bits(source.table))
    assert (cache.counts - before).rows_missed == 500


def test_holds_no_more_than_it_says():
    for num_rows in (1, 511, 512, 513, 100_000):
        ledger = unlimited()
        source = MemoryFeatures(random_table(num_rows, (16,)))
        cache = FeatureCache(source, np.arange(num_rows), ledger)
        rows = num_rows * 64
        assert rows <= ledger.held_bytes(Tier.HOST) <= rows + overhead_bytes(num_rows)
        del cache
        assert ledger.held_bytes(Tier.HOST) == 0


def test_no_ids_cost_nothing():
    ledger = unlimited()
    cache = FeatureCache(
        MemoryFeatures(random_table(1 << 20, (1,), torch.int8)), np.arange(0), ledger
    )
    assert ledger.held_bytes(Tier.HOST) <= 128
    cache.read(np.arange(100))
    assert cache.counts.rows_missed == 100


@pytest.mark.parametrize(
    ("ids", "word"), [([1, 1], "id 1 at 1"), ([3, 2], "id 2 at 1"), ([0, 10], "id 10 at 1")]
)
def test_wrong_ids_are_named(ids, word):
    with pytest.raises(DataError, match=word):
        FeatureCache(MemoryFeatures(random_table(10, (2,))), np.array(ids), unlimited())


@pytest.mark.parametrize("bad", [-1, 10, 1 << 40, -(1 << 62)])
def test_a_row_outside_is_named_and_nothing_is_written(bad):
    cache = FeatureCache(MemoryFeatures(random_table(10, (2,))), np.arange(10), unlimited())
    out = torch.zeros(3, 2)
    with pytest.raises(DataError, match=f"row {bad} "):
        cache.read(np.array([3, bad, 4]), out)
    assert not out.any()


@pytest.mark.parametrize("bad", [-1, 3])
def test_a_place_outside_the_output_is_refused(bad):
    cache = FeatureCache(MemoryFeatures(random_table(10, (2,))), np.arange(10), unlimited())
    with pytest.raises(UsageError, match="outside the output"):
        cache.read(np.array([3, 1]), torch.zeros(3, 2), np.array([0, bad]))


@pytest.mark.parametrize("count", [1, 3])
def test_as_many_slots_as_rows(count):
    cache = FeatureCache(MemoryFeatures(random_table(10, (2,))), np.arange(10), unlimited())
    with pytest.raises(UsageError, match=f"{count} slots for 2 rows"):
        cache.read(np.array([3, 1]), torch.zeros(3, 2), np.arange(count))


def test_too_small_a_budget_is_an_error_and_leaves_nothing():
    ledger = Ledger(Budget(host=10_000))
    source = MemoryFeatures(random_table(1000, (16,)))
    with pytest.raises(BudgetError, match="cache"):
        FeatureCache(source, np.arange(1000), ledger)
    assert ledger.held_bytes(Tier.HOST) == 0


def test_a_failed_fill_raises_the_source_s_error_and_keeps_nothing():
    class Broken(MemoryFeatures):
        def fetch(self, rows, out=None, slots=None):
            def job():
                raise OSError("page 3 is unreadable")

            return Answer(job) if 999 in rows else super().fetch(rows, out, slots)

    ledger = unlimited()
    with pytest.raises(OSError, match="page 3"):
        FeatureCache(Broken(random_table(1000, (16,))), np.arange(1000), ledger)
    assert ledger.held_bytes(Tier.HOST) == 0


def test_threads_share_a_cache():
    source = MemoryFeatures(random_table(5000, (8,)))
    cache = FeatureCache(source, np.arange(0, 5000, 3), unlimited())
    rng = np.random.default_rng(0)
    asked = [rng.integers(0, 5000, 4000) for _ in range(16)]
    got = [None] * len(asked)

    def work(turn):
        for i in range(turn, len(asked), 4):
            got[i] = cache.read(asked[i])

    workers = [threading.Thread(target=work, args=(turn,)) for turn in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for rows, values in zip(asked, got, strict=True):
        assert np.array_equal(bits(values), bits(source.table[torch.from_numpy(rows)]))
    assert cache.counts.rows_requested == 16 * 4000
