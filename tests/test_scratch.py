"""Scratch rows: what is written is read back; nothing stays behind."""

import errno
import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnx
from gnnx.errors import BudgetError, ResourceError
from gnnx.memory import Budget, Ledger, Tier
from gnnx.prepare import synth
from gnnx.store import Dataset, ScratchFile, ScratchRows, scratch


def _full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("scratch") / "synth"
    synth(path, num_nodes=100, num_edges=200, num_features=4, num_classes=2)
    with gnnx.open(path, memory="32MiB") as opened:
        yield opened


@given(
    num_rows=st.integers(1, 5000),
    width=st.sampled_from([1, 3, 64, 300]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    seed=st.integers(0, 1000),
)
def test_rows_come_back_as_written(dataset, num_rows, width, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    keep = torch.rand(num_rows, generator=generator) < 0.6
    values = torch.randn(num_rows, width, generator=generator).to(dtype)
    ids = torch.nonzero(keep)[:, 0].numpy()
    with ScratchRows(dataset, num_rows, (width,), dtype) as scratch:
        for piece in np.array_split(ids, 3):  # in ascending pieces, as layers give them
            scratch.write(piece, values[torch.from_numpy(piece)])
        shuffled = np.random.default_rng(seed).permutation(ids)
        assert torch.equal(scratch.read(shuffled), values[torch.from_numpy(shuffled)])


@pytest.mark.parametrize("folder", ["/var/tmp", "/dev/shm"])  # with direct I/O, and without
def test_blocks_are_written_by_the_readers_and_read_as_rows(dataset, monkeypatch, folder):
    monkeypatch.setattr(scratch, "_folder", lambda: (Path(folder), Tier.DISK))
    monkeypatch.setattr(scratch, "_DIRTY_BYTES", 1)
    values = torch.randn(4 * 1024)
    raw = dataset.ledger.empty(16384, np.uint8, Tier.HOST, "test", align=4096)
    raw[:] = values.view(torch.uint8).numpy()
    at, begin, size = np.array([[8192, 0, 12288], [8192, 0, 12288], [4096, 8192, 4096]])
    with ScratchFile(dataset, 16384, direct=True) as file:
        file.write(raw, at, begin, size).wait(10)
        rows = file.rows(4096, 400, (7,), torch.float32)
        assert torch.equal(rows.read(np.arange(400)).view(-1), values[1024:3824])


def test_a_file_grows_and_keeps_what_it_has(dataset, monkeypatch):
    raw = dataset.ledger.empty(8192, np.uint8, Tier.HOST, "test", align=4096)
    raw[:] = np.arange(8192) % 251
    at, begin, size = np.array([[4096], [0], [8192]])
    before = os.listdir("/proc/self/fd")
    with ScratchFile(dataset, 4096, direct=True) as file:
        file.grow(12288)
        file.write(raw, at, begin, size).wait(10)
        for smaller in (8192, 12288):
            file.grow(smaller)
            assert dataset.ledger.owners(Tier.DISK) == {"scratch": 12288}
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", _full)
            with pytest.raises(ResourceError, match="writing 4096 bytes at byte 12288"):
                file.grow(16384)
        with pytest.raises(ResourceError, match="bytes of scratch needed"):
            file.grow(1 << 50)
        assert dataset.ledger.owners(Tier.DISK) == {"scratch": 12288}
        file.grow(20480)
        assert dataset.ledger.owners(Tier.DISK) == {"scratch": 20480}
        rows = file.rows(4096, 2, (4096,), torch.uint8)
        assert np.array_equal(rows.read(np.arange(2)).view(-1).numpy(), raw)
    assert dataset.ledger.held_bytes(Tier.DISK) == 0
    assert os.listdir("/proc/self/fd") == before


def test_nothing_stays_behind(dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ScratchRows(dataset, 10, (4,), torch.float32) as scratch:
        assert list(tmp_path.iterdir()) == []  # without a name from the start: a kill leaves none
        assert dataset.ledger.owners(Tier.DISK) == {"scratch": 160}
        scratch.write(np.arange(10), torch.ones(10, 4))
    assert dataset.ledger.held_bytes(Tier.DISK) == 0


def test_the_disk_budget_is_kept(dataset):
    small = Dataset(dataset.path, Ledger(Budget(host=1 << 24, disk=100)))
    with small, pytest.raises(BudgetError, match="scratch needs 160 bytes, 100 of 100 are free"):
        ScratchRows(small, 10, (4,), torch.float32)


def test_a_full_disk_is_named_before_and_while_writing(dataset, monkeypatch):
    with pytest.raises(ResourceError, match="bytes of scratch needed"):
        ScratchRows(dataset, 1 << 50, (4,), torch.float32)

    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", _full)
        with pytest.raises(OSError, match="No space left"):
            ScratchRows(dataset, 10, (4,), torch.float32)
    assert dataset.ledger.held_bytes(Tier.DISK) == 0
    assert os.listdir("/proc/self/fd") == before
    with ScratchRows(dataset, 10, (4,), torch.float32) as scratch:
        monkeypatch.setattr(os, "pwrite", _full)
        with pytest.raises(ResourceError, match="No space left on device"):
            scratch.write(np.arange(10), torch.ones(10, 4))


def test_blocks_that_are_not_to_be_had_are_named_at_once(dataset, monkeypatch):
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "posix_fallocate", _full)
    with pytest.raises(ResourceError, match="No space left on device writing 4096 bytes at byte 0"):
        ScratchFile(dataset, 4096, direct=True)
    assert dataset.ledger.held_bytes(Tier.DISK) == 0
    assert os.listdir("/proc/self/fd") == before


def test_scratch_avoids_ram_and_counts_it_where_there_is_nothing_else(dataset, monkeypatch):
    ram = Path("/dev/shm")
    if not scratch._in_ram(ram):
        pytest.skip("/dev/shm is no tmpfs here")
    monkeypatch.setattr(tempfile, "tempdir", str(ram))
    folder, tier = scratch._folder()
    assert (folder == ram) == (tier is Tier.HOST)
    monkeypatch.setattr(scratch, "_in_ram", lambda _: True)
    with ScratchRows(dataset, 10, (4,), torch.float32):
        assert dataset.ledger.owners(Tier.HOST)["scratch"] == 160
        assert dataset.ledger.held_bytes(Tier.DISK) == 0
    assert "scratch" not in dataset.ledger.owners(Tier.HOST)


def test_a_full_disk_is_named_by_those_who_write(dataset):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full")
    raw = dataset.ledger.empty(4096, np.uint8, Tier.HOST, "test", align=4096)
    with ScratchFile(dataset, 4096) as file, Path("/dev/full").open("r+b", buffering=0) as full:
        file.fd, fd = full.fileno(), file.fd
        job = file.write(raw, *np.array([[0], [0], [4096]]))
        with pytest.raises(ResourceError, match="No space left on device writing 4096 bytes at"):
            job.wait(10)
        file.fd = fd
