"""Writing a dataset: all of it or nothing, one writer at a time, whatever dies on the way."""

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import gnnx
from conformance import write_dataset
from gnnx.errors import BudgetError, DataError, ResourceError, RunError, UsageError
from gnnx.memory import Budget, Ledger, Tier
from gnnx.store import DatasetWriter

X = np.arange(12, dtype=np.float32).reshape(6, 2)


def made(path, **options):
    return DatasetWriter(path, ledger=Ledger(Budget()), **options)


def fill(out, rows=X):
    out.array("nodes/node/x", (None, 2), "float32").append(rows)
    out.nodes("node", len(rows))


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_the_name_appears_with_the_last_byte(tmp_path):
    path = tmp_path / "deep" / "dataset"
    with made(path) as out:
        fill(out)
        assert names(tmp_path / "deep") == [".dataset.lock", ".dataset.partial"]
        out.commit()
        assert np.load(path / "nodes/node/x.npy").tolist() == X.tolist()
        out.commit()
    assert names(tmp_path / "deep") == ["dataset"]
    assert gnnx.open(path).num_nodes == 6


def test_an_error_leaves_nothing(tmp_path):
    ledger = Ledger(Budget())

    def interrupted():
        with DatasetWriter(tmp_path / "dataset", ledger=ledger) as out:
            fill(out)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert names(tmp_path) == []
    assert ledger.held_bytes(Tier.HOST) == 0


@pytest.mark.parametrize("what", ["dataset", "folder", "file"])
def test_what_is_there_is_not_overwritten_unasked(tmp_path, what):
    path = tmp_path / "out"
    if what == "dataset":
        write_dataset(path, x=X)
    elif what == "folder":
        (path / "sub").mkdir(parents=True)
    else:
        path.touch()
    with pytest.raises(UsageError, match="out exists already"), made(path):
        pass
    if what != "dataset":
        with (
            pytest.raises(UsageError, match="out is not a gnnx dataset, so it is not overwritten"),
            made(path, overwrite=True),
        ):
            pass
    assert names(tmp_path) == ["out"]


def test_an_empty_folder_is_filled(tmp_path):
    (tmp_path / "out").mkdir()
    with made(tmp_path / "out") as out:
        fill(out)
    assert names(tmp_path / "out") == ["manifest.json", "nodes"]


def test_a_dataset_is_overwritten_only_by_a_complete_one(tmp_path):
    path = write_dataset(tmp_path / "out", x=X)
    with contextlib.suppress(ZeroDivisionError), made(path, overwrite=True) as out:
        fill(out, X + 1)
        raise ZeroDivisionError
    assert np.load(path / "nodes/node/x.npy").tolist() == X.tolist()
    with made(path, overwrite=True) as out:
        fill(out, X + 1)
    assert np.load(path / "nodes/node/x.npy").tolist() == (X + 1).tolist()
    assert names(tmp_path) == ["out"]


# The writer dies at each step of its work; `step` kills it.
DYING = """
import os, pathlib, signal, sys
import numpy as np
from gnnx.memory import Budget, Ledger
from gnnx.store import DatasetWriter

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

step, path = sys.argv[1:]
with DatasetWriter(path, overwrite=True, ledger=Ledger(Budget())) as out:
    x = out.array("nodes/node/x", (6, 2), "float32")
    if step == "writing":
        die()
    x.append(np.zeros((6, 2), np.float32))
    out.nodes("node", 6)
    if step == "syncing":
        os.fsync = die
    if step == "moving the old away":
        pathlib.Path.rename = die
    if step == "between the names":
        real, calls = pathlib.Path.rename, []
        def rename(self, target):
            calls.append(target)
            return real(self, target) if len(calls) == 1 else die()
        pathlib.Path.rename = rename
    if step == "removing the old":
        import shutil
        shutil.rmtree = lambda *_, **__: die()
"""


@pytest.mark.parametrize(
    "step",
    ["writing", "syncing", "moving the old away", "between the names", "removing the old"],
)
def test_a_killed_writer_leaves_a_whole_dataset_and_the_next_one_cleans_up(tmp_path, step):
    path = write_dataset(tmp_path / "out", x=X)
    run = [sys.executable, "-c", DYING, step, str(path)]
    assert subprocess.run(run, check=False, timeout=60).returncode == -signal.SIGKILL
    if step == "between the names":
        with pytest.raises(DataError, match="its preparation has not ended"):
            gnnx.open(path)
    else:
        expected = np.zeros_like(X) if step == "removing the old" else X
        with gnnx.open(path, memory="4MiB") as dataset:
            assert np.array_equal(dataset.features.read(np.arange(6)), expected)
    with contextlib.suppress(ZeroDivisionError), made(path, overwrite=True):
        raise ZeroDivisionError
    assert names(tmp_path) == ["out"]
    assert gnnx.open(path).num_nodes == 6
    with made(path, overwrite=True) as out:
        fill(out, X + 1)
    assert np.load(path / "nodes/node/x.npy").tolist() == (X + 1).tolist()


def test_a_second_writer_is_told_who_holds_the_lock(tmp_path):
    with made(tmp_path / "out") as first:
        fill(first)
        with (
            pytest.raises(ResourceError, match=rf"out: locked: process {os.getpid()} is writing"),
            made(tmp_path / "out"),
        ):
            pass
        assert names(tmp_path) == [".out.lock", ".out.partial"]
    assert names(tmp_path) == ["out"]


def test_rows_that_do_not_fit_are_refused(tmp_path):
    with made(tmp_path / "out") as out:
        x = out.array("nodes/node/x", (6, 2), "float32")
        for rows, cause in (
            (X.astype(np.float64), "rows of float64"),
            (X.reshape(4, 3), "rows of float32(3,) for float32(2,)"),
            (X[:, ::-1], "not contiguous"),
            (np.tile(X, (2, 1)), "6 rows expected, 12 found"),
        ):
            with pytest.raises(UsageError) as caught:
                x.append(rows)
            assert cause in str(caught.value)
        x.append(X)
        out.nodes("node", 6)
        for call in (
            lambda: out.array("nodes/node/x", (6,), "float32"),
            lambda: out.array("../x", (6,), "float32"),
            lambda: out.array("/x", (6,), "float32"),
            lambda: out.array("nodes/node/y", (6,), "complex64"),
            lambda: out.nodes("a-b", 3),
            lambda: out.edges(("node", "a/../b", "node"), 3),
        ):
            with pytest.raises(UsageError):
                call()
    assert np.load(tmp_path / "out/nodes/node/x.npy").tolist() == X.tolist()


@pytest.mark.parametrize(
    ("num_rows", "num_nodes", "num_edges", "kind", "cause"),
    [
        (5, 6, 0, RunError, r"x\.npy: 6 rows expected, 5 found"),
        (6, 7, 0, DataError, "nodes/node/x: 7 rows expected, 6 found"),
        (6, 6, 7, DataError, "edges/node-to-node/indptr: missing"),
    ],
)
def test_what_does_not_agree_is_not_committed(
    tmp_path, num_rows, num_nodes, num_edges, kind, cause
):
    def write():
        with made(tmp_path / "out") as out:
            out.array("nodes/node/x", (6, 2), "float32").append(X[:num_rows])
            out.nodes("node", num_nodes)
            if num_edges:
                out.edges(("node", "to", "node"), num_edges)

    with pytest.raises(kind, match=cause):
        write()
    assert names(tmp_path) == []


def test_too_little_room_is_told_before_a_byte_is_written(tmp_path):
    with (
        pytest.raises(
            ResourceError, match=rf"^{tmp_path}/out/nodes/node/x.npy: \d+ bytes to write"
        ),
        made(tmp_path / "out") as out,
    ):
        out.array("nodes/node/x", (1 << 45, 128), "float32")
    assert names(tmp_path) == []


def test_a_full_disk_is_told(tmp_path, monkeypatch):
    real = os.pwrite

    def full(fd, data, at):
        if at >= 4096 + 16:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data[:16], at)  # a short write first

    monkeypatch.setattr(os, "pwrite", full)
    with (
        pytest.raises(ResourceError, match="No space left on device writing 32 bytes at byte 4112"),
        made(tmp_path / "out") as out,
    ):
        fill(out)
    assert names(tmp_path) == []


def test_short_writes_are_continued(tmp_path, monkeypatch):
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real(fd, data[:7], at))
    with made(tmp_path / "out") as out:
        fill(out)
    monkeypatch.undo()
    assert np.load(tmp_path / "out/nodes/node/x.npy").tolist() == X.tolist()
    assert gnnx.store.verify(tmp_path / "out") == []


def test_unwritten_bytes_are_within_the_budget(tmp_path):
    ledger = Ledger(Budget(host=8 << 20))
    with DatasetWriter(tmp_path / "out", ledger=ledger) as out:
        x = out.array("nodes/node/x", (4 << 20,), "uint8")
        held = ledger.owners(Tier.HOST)["write window"]
        assert 0 < held <= 1 << 20
        for begin in range(4):
            x.append(np.full(1 << 20, begin, np.uint8))
        out.nodes("node", 4 << 20)
    assert ledger.held_bytes(Tier.HOST) == 0
    small = Ledger(Budget(host=100_000))
    with pytest.raises(BudgetError), DatasetWriter(tmp_path / "small", ledger=small) as out:
        out.array("nodes/node/x", (6, 2), "float32")


def test_written_windows_leave_the_page_cache(tmp_path, monkeypatch):
    """All but the last two windows have been synced and dropped while the array is written."""
    asked = []
    real = os.posix_fadvise

    def note(fd, start, size, advice):
        if advice == os.POSIX_FADV_DONTNEED:
            asked.append((start, size))
        real(fd, start, size, advice)

    monkeypatch.setattr(os, "posix_fadvise", note)
    ledger = Ledger(Budget(host=16 << 20))
    with DatasetWriter(tmp_path / "out", ledger=ledger) as out:
        x = out.array("nodes/node/x", (3 << 20,), "uint8")
        x.append(np.zeros(3 << 20, np.uint8))
        window = 256 << 10
        assert asked == [(i * window, window) for i in range(11)]
        out.nodes("node", 3 << 20)


def test_a_lock_file_that_its_holder_removes_meanwhile_is_made_anew(tmp_path, monkeypatch):
    """Between our opening and our locking it: we would hold a lock that nobody else can see."""
    path, real, calls = tmp_path / ".out.lock", fcntl.flock, []

    def flock(fd, operation):
        if not calls:
            path.unlink()
        calls.append(fd)
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with made(tmp_path / "out") as out:
        assert len(calls) == 2
        assert path.read_text() == str(os.getpid())
        fill(out)
    assert names(tmp_path) == ["out"]
