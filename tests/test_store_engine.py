"""The read engine under faults: slow and bad disks, short files, small budgets, forks, closing."""

import errno
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnx
from conformance import bits, random_table, write_dataset
from gnnx.errors import BudgetError, DataError, RunError
from gnnx.memory import Budget, Ledger, Tier
from gnnx.store import ReadEngine, engine
from gnnx.store.engine import DataFile, Layout

NUM_ROWS, WIDTH = 5000, 100
ROWS = np.random.default_rng(0).permutation(NUM_ROWS)[:500]


@pytest.fixture(scope="module")
def table():
    return random_table(NUM_ROWS, (WIDTH,), torch.float32)


@pytest.fixture(scope="module")
def path(table, tmp_path_factory):
    return write_dataset(tmp_path_factory.mktemp("engine") / "dataset", x=table)


@pytest.fixture
def dataset(path):
    with gnnx.open(path, memory="64MiB") as opened:
        yield opened


class Gate:
    """Holds readers back until it is opened."""

    def __init__(self, monkeypatch):
        self.event, self.entered, self.read = threading.Event(), 0, engine.read_chunks
        monkeypatch.setattr(engine, "read_chunks", self)

    def __call__(self, *arguments):
        self.entered += 1
        assert self.event.wait(60)
        self.read(*arguments)

    def open(self):
        self.event.set()


@pytest.fixture
def gate(monkeypatch):
    made = Gate(monkeypatch)
    yield made
    made.open()


def readers():
    return [t for t in threading.enumerate() if t.name.startswith("gnnx-read")]


def test_fetch_returns_before_the_rows_are_there(dataset, table, gate):
    out = torch.zeros(len(ROWS), WIDTH)
    pending = dataset.features.fetch(ROWS, out)
    assert not pending.done()
    assert not out.any()
    gate.open()
    assert pending.wait(60) is out
    assert pending.done()
    assert np.array_equal(bits(out), bits(table)[ROWS])


def test_a_wait_has_a_time_limit_and_names_the_file(dataset, table, gate):
    pending = dataset.features.fetch(ROWS)
    with pytest.raises(RunError, match=r"nodes/node/x\.npy: 500 rows were not read within 0.05 s"):
        pending.wait(timeout_s=0.05)
    gate.open()
    assert np.array_equal(bits(pending.wait(60)), bits(table)[ROWS])


def test_small_requests_pass_beside_a_large_one(dataset, table, monkeypatch):
    """All readers but one go on when one is stuck in a read."""
    read, stuck = engine.read_chunks, threading.Event()
    first = threading.Lock()

    def slow(*arguments):
        if first.acquire(blocking=False):
            assert stuck.wait(60)
        read(*arguments)

    monkeypatch.setattr(engine, "read_chunks", slow)
    large = dataset.features.fetch(np.arange(NUM_ROWS)[::-1].copy())
    small = [dataset.features.fetch(ROWS[i : i + 3]) for i in range(50)]
    for i, pending in enumerate(small):
        assert np.array_equal(bits(pending.wait(60)), bits(table)[ROWS[i : i + 3]])
    stuck.set()
    assert np.array_equal(bits(large.wait(60)), bits(table)[::-1])


def test_a_few_rows_do_not_wait_for_many(path, table, monkeypatch):
    """One reader: its turn passes to the later request after a chunk of the earlier one."""
    calls, real = threading.Semaphore(0), engine.read_chunks

    def one_by_one(*arguments):
        assert calls.acquire(timeout=60)
        real(*arguments)

    monkeypatch.setattr(engine, "read_chunks", one_by_one)
    with gnnx.open(path, memory="64MiB", io_threads=1) as dataset:
        apart = np.arange(0, NUM_ROWS, 120)  # 48 kB between them: each is read on its own
        many = dataset.features.fetch(apart)
        few = dataset.features.fetch(ROWS[:3])
        calls.release(6)  # three chunks of each
        assert np.array_equal(bits(few.wait(60)), bits(table)[ROWS[:3]])
        assert not many.done()
        calls.release(100)
        assert np.array_equal(bits(many.wait(60)), bits(table)[apart])


def test_threads_start_with_the_first_row_and_end_with_close(path):
    assert readers() == []
    dataset = gnnx.open(path, memory="64MiB")
    assert dataset.features.fetch(np.arange(0)).done()
    assert readers() == []
    assert dataset.ledger.held_bytes(Tier.HOST) == 0
    dataset.features.read(ROWS)
    assert 1 <= len(readers()) <= 16
    assert dataset.ledger.owners(Tier.HOST)["read buffers"] == dataset.io.buffer_bytes
    dataset.close()
    dataset.close()
    assert readers() == []
    assert dataset.ledger.held_bytes(Tier.HOST) == 0
    with pytest.raises(RunError, match=r"x\.npy: the dataset was closed"):
        dataset.features.fetch(ROWS)


def test_closing_fails_what_is_in_flight_and_leaves_no_thread(dataset, gate):
    pending = [dataset.features.fetch(ROWS) for _ in range(5)]
    while not gate.entered:
        time.sleep(0.001)
    closing = threading.Thread(target=dataset.close)
    closing.start()
    while any(one._job._error is None for one in pending):
        time.sleep(0.001)
    gate.open()
    closing.join(60)
    assert not closing.is_alive()
    assert dataset.io.num_reads == 0  # readers that were about to read did not
    for one in pending:
        with pytest.raises(RunError, match="was closed"):
            one.wait(60)
    assert readers() == []


def test_closing_does_not_wait_for_ever(path, gate, monkeypatch):
    monkeypatch.setattr(engine, "CLOSE_WAIT_S", 0.05)
    dataset = gnnx.open(path, memory="64MiB")
    dataset.features.fetch(ROWS)
    while not gate.entered:
        time.sleep(0.001)
    with pytest.raises(RunError, match=r"x\.npy: a read has not ended within 0.05 s"):
        dataset.close()
    monkeypatch.setattr(engine, "CLOSE_WAIT_S", 30.0)
    gate.open()
    dataset.close()
    assert readers() == []


def test_a_file_cut_short_while_open_is_named(path, tmp_path):
    shutil.copytree(path, tmp_path / "copy")
    with gnnx.open(tmp_path / "copy", memory="64MiB") as dataset:
        assert len(dataset.features.read(ROWS)) == len(ROWS)
        file = tmp_path / "copy/nodes/node/x.npy"
        os.truncate(file, 4096 + 400 * 1000 + 100)
        assert len(dataset.features.read(ROWS[ROWS < 1000]))
        with pytest.raises(DataError) as caught:
            dataset.features.read(np.array([3, 1000]))
        # the block in which row 1000 begins, up to its end; what is left of the file there
        first = f"{file}: 3088 bytes expected at byte 401408, 2788 found\n"
        assert str(caught.value).startswith(first)
        with pytest.raises(DataError, match=r"x\.npy: \d+ bytes expected at byte \d+, 0 found"):
            dataset.features.read(np.array([NUM_ROWS - 1]))
        with pytest.raises(DataError, match=r"x\.npy: \d+ bytes expected at byte \d+, \d+ found"):
            dataset.features.read_range(0, NUM_ROWS)
        assert len(dataset.features.read(np.array([3]))) == 1


def test_a_missing_file_is_named(path, tmp_path):
    shutil.copytree(path, tmp_path / "copy")
    with gnnx.open(tmp_path / "copy", memory="64MiB") as dataset:
        (tmp_path / "copy/nodes/node/x.npy").unlink()
        with pytest.raises(RunError, match=r"x\.npy: No such file"):
            dataset.features.fetch(ROWS)


def raw_engine(memory=None, num_readers=4):
    return ReadEngine(Ledger(Budget(host=memory)), num_readers)


def ask(reader, file, layout, rows, size):
    out = np.zeros((len(rows), layout.row_bytes), np.uint8)
    job = reader.submit(file, layout, rows, out.reshape(-1), num_rows=len(rows), size=size)
    job.wait(60)
    return out


def test_an_error_of_the_disk_is_told():
    """Byte 0 of a process's memory is mapped to nothing: reading it is an EIO like a bad sector."""
    reader, file = raw_engine(), DataFile(Path("/proc/self/mem"))
    with pytest.raises(RunError) as caught:
        ask(reader, file, Layout(0, 8, 8, 1 << 40), np.arange(3), 3)
    assert str(caught.value).startswith(
        "/proc/self/mem: Input/output error: 24 bytes expected at byte 0, 0 found\n"
    )
    reader.close()
    file.close()


def test_a_defect_in_a_reader_is_told(dataset, monkeypatch):
    def broken(*_arguments):
        raise ValueError("no such luck")

    monkeypatch.setattr(engine, "read_chunks", broken)
    with pytest.raises(RunError, match="no such luck"):
        dataset.features.fetch(ROWS).wait(60)


@pytest.mark.parametrize("where", ["open", "read"])
def test_without_direct_reads_the_page_cache_serves(path, table, monkeypatch, where):
    """Some file systems refuse O_DIRECT when a file is opened, some when it is read."""
    refused = []

    def refuse():
        refused.append(where)
        raise OSError(errno.EINVAL, "Invalid argument")

    real_open = os.open
    if where == "open":
        monkeypatch.setattr(
            os, "open", lambda p, f, *a: refuse() if f & os.O_DIRECT else real_open(p, f, *a)
        )
    else:
        monkeypatch.setattr(os, "preadv", lambda *_: refuse())
    with gnnx.open(path, memory="64MiB") as dataset:
        got = dataset.features.read(ROWS)
        assert refused == [where]
        assert np.array_equal(bits(got), bits(table)[ROWS])
        assert np.array_equal(bits(dataset.features.read_range(7, 4999)), bits(table)[7:4999])


def test_a_dataset_in_memory_is_read(table):
    if not Path("/dev/shm").is_dir():
        pytest.skip("no tmpfs at /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = write_dataset(Path(folder) / "dataset", x=table)
        with gnnx.open(path, memory="64MiB") as dataset:
            assert np.array_equal(bits(dataset.features.read(ROWS)), bits(table)[ROWS])


SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <unistd.h>
int calls;
/* every third read is interrupted, the others give at most two and a half blocks */
ssize_t pread(int fd, void *buffer, size_t size, off_t offset) {
  static ssize_t (*real)(int, void *, size_t, off_t);
  if (!real) real = dlsym(RTLD_NEXT, "pread");
  if (__sync_fetch_and_add(&calls, 1) % 3 == 2) { errno = EINTR; return -1; }
  ssize_t got = real(fd, buffer, size, offset);
  return got > 10240 ? 10240 : got;
}
"""
SHIMMED = """
import ctypes, sys, numpy as np, gnnx
with gnnx.open(sys.argv[1], memory="64MiB") as dataset:
    rows = np.random.default_rng(0).integers(0, dataset.features.num_rows, 3000)
    table = np.load(sys.argv[1] + "/nodes/node/x.npy")
    assert dataset.features.read(rows).numpy().tobytes() == table[rows].tobytes()
    assert dataset.features.read_range(3, 4001).numpy().tobytes() == table[3:4001].tobytes()
assert ctypes.c_int.in_dll(ctypes.CDLL(None), "calls").value > 500
"""


def test_interrupted_and_short_reads_are_continued(path, tmp_path):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to make a disk that reads short")
    (tmp_path / "shim.c").write_text(SHIM)
    shim = tmp_path / "shim.so"
    build = [compiler, "-shared", "-fPIC", "-o", shim, tmp_path / "shim.c", "-ldl"]
    subprocess.run(build, check=True, timeout=60)
    run = [sys.executable, "-c", SHIMMED, str(path)]
    subprocess.run(run, check=True, timeout=100, env={**os.environ, "LD_PRELOAD": str(shim)})


def test_a_forked_child_reads_on_its_own(dataset, table, gate):
    gate.open()
    assert len(dataset.features.read(ROWS)) == len(ROWS)
    gate.event.clear()
    before = dataset.features.fetch(ROWS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # newer Pythons warn of forks with threads
        child = os.fork()
    if child == 0:
        code = 1
        try:
            gate.open()
            with pytest.raises(RunError, match="forked"):
                before.wait(60)
            got = dataset.features.read(ROWS)
            code = 0 if np.array_equal(bits(got), bits(table)[ROWS]) else 2
        finally:
            os._exit(code)
    gate.open()
    assert os.waitpid(child, 0)[1] == 0
    assert np.array_equal(bits(before.wait(60)), bits(table)[ROWS])


def test_a_process_that_does_not_close_ends(path):
    script = (
        "import sys, numpy as np, gnnx\n"
        "d = gnnx.open(sys.argv[1], memory='64MiB')\n"
        "p = d.features.fetch(np.arange(4000)[::-1].copy())\n"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=60)


@settings(max_examples=60)
@given(
    num_rows=st.integers(1, 400),
    stride=st.integers(1, 9000),
    overlap=st.integers(0, 3),
    base=st.integers(0, 9000),
    memory=st.sampled_from([40_000, 300_000, 3_000_000, None]),
    num_readers=st.sampled_from([1, 3, 16]),
    seed=st.integers(0, 1000),
    ordered=st.booleans(),
)
def test_any_layout_in_any_budget(
    blob, num_rows, stride, overlap, base, memory, num_readers, seed, ordered
):
    """Rows smaller and larger than buffers, apart, touching, and overlapping."""
    path, data = blob
    row_bytes = min(stride * overlap, 20_000) or max(1, stride // 2)
    size = (len(data) - base - row_bytes) // stride
    rows = np.random.default_rng(seed).integers(0, size, num_rows)
    rows = np.sort(rows) if ordered else rows
    layout = Layout(base, stride, row_bytes, len(data))
    reader, file = raw_engine(memory, num_readers), DataFile(path)
    try:
        got = ask(reader, file, layout, rows, None if ordered else size)
    finally:
        reader.close()
        file.close()
    for i, row in enumerate(rows):
        begin = base + row * stride
        assert got[i].tobytes() == data[begin : begin + row_bytes].tobytes()


@pytest.fixture(scope="module")
def blob(tmp_path_factory):
    data = np.random.default_rng(5).integers(0, 256, 5_000_123, np.uint8)
    path = tmp_path_factory.mktemp("blob") / "blob"
    data.tofile(path)
    return path, data


@pytest.mark.parametrize(("memory", "block"), [(300_000, 4096), (None, 20_000)])
def test_a_small_budget_sorts_in_blocks(blob, memory, block):
    path, data = blob
    size = len(data) // 8
    anywhere = np.random.default_rng(2).integers(0, size, 20_000)
    # the second block goes on inside the last run of the first
    back = np.concatenate([np.arange(4095), [4200, 4150, 4199]])
    for rows in (anywhere, back):
        reader, file = raw_engine(memory), DataFile(path)
        got = ask(reader, file, Layout(0, 8, 8, len(data)), rows, size)
        reader.close()
        file.close()
        assert np.array_equal(got, data[: size * 8].reshape(-1, 8)[rows])
        held = reader.buffer_bytes + 8 * len(rows) + 8 * min(len(rows), block)
        assert reader._ledger.peak_bytes(Tier.HOST) <= held + 128


def test_rows_asked_twice_and_neighbours_are_read_once(blob):
    path, _ = blob
    layout = Layout(0, 4096, 4096, 5_000_123)

    def reads(rows):
        reader, file = raw_engine(), DataFile(path)
        ask(reader, file, layout, np.array(rows), 1200)
        reader.close()
        file.close()
        assert (reader.num_rows, reader.num_reads) == (file.num_rows, file.num_reads)
        assert reader.num_rows == len(rows)
        assert reader.bytes_read == file.bytes_read
        return file.num_reads, file.bytes_read // 4096

    assert reads([7]) == (1, 1)
    assert reads([7, 7, 7]) == (1, 1)
    assert reads([9, 8, 7]) == (1, 3)
    assert reads([7, 16]) == (1, 10)  # 32 KiB between them cost less than a second read
    assert reads([17, 7]) == (2, 2)
    assert reads(range(0, 1200, 10)) == (120, 120)
    num_reads, blocks = reads(range(1200))
    assert blocks == 1200
    assert num_reads <= 1200 * 4096 // (128 << 10) + 1


def test_counters_hold_what_was_read(dataset):
    features, before = dataset.features, time.perf_counter()
    features.read(np.arange(NUM_ROWS))
    features.read_range(0, 10)
    assert dataset.io.num_rows == features.file.num_rows == NUM_ROWS + 10
    assert dataset.io.bytes_read == features.file.bytes_read
    # where a row lies in two blocks, the second may be read again with the next run
    assert 0 <= features.file.bytes_read - features.entry.num_bytes <= 4096 * dataset.io.num_reads
    assert 0 < dataset.io.busy_s <= time.perf_counter() - before
    dataset.split("train").read(np.arange(0))
    assert dataset.io.num_rows == NUM_ROWS + 10


@pytest.mark.parametrize("memory", [1 << 20, 2 << 20, 4 << 20, 8 << 20, 64 << 20, None])
@pytest.mark.parametrize("num_readers", [1, 16, 64])
def test_buffers_take_an_eighth_of_the_budget(memory, num_readers):
    reader = raw_engine(memory, num_readers)
    assert 1 <= reader.num_readers <= num_readers
    assert reader.buffer_bytes <= (memory or 1 << 62) // 8
    assert reader.buffer_bytes >= min((memory or 1 << 62) // 16, num_readers * 64 << 10)


def test_readers_shrink_to_what_is_left(blob):
    path, data = blob
    ledger = Ledger(Budget(host=8 << 20))
    for left in (500_000, 40_000, 4096 + 512):
        with ledger.reserve((8 << 20) - left, Tier.HOST, "somebody"):
            reader, file = ReadEngine(ledger), DataFile(path)
            got = ask(reader, file, Layout(0, 5000, 5000, len(data)), np.array([700, 3]), 900)
            assert got[1].tobytes() == data[15000:20000].tobytes()
            assert reader.buffer_bytes <= left
            reader.close()
            file.close()


def test_too_small_a_budget_says_what_would_do(blob):
    path, data = blob

    def read(memory):
        reader, file = raw_engine(memory), DataFile(path)
        try:
            return ask(reader, file, Layout(0, 100, 100, len(data)), np.array([7, 3]), 100)
        finally:
            reader.close()
            file.close()

    memory = 4000
    for owner in ("read buffers", "read plan", "read plan"):  # the order, then room to sort it
        with pytest.raises(BudgetError, match=owner) as caught:
            read(memory)
        assert memory < caught.value.smallest_bytes < 3 * 4096
        memory = caught.value.smallest_bytes
    assert read(memory)[1].tobytes() == data[300:400].tobytes()
