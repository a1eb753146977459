"""Scratch files of preparation: several threads append, in one call too."""

import errno
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gnnx import threads
from gnnx.errors import ResourceError
from gnnx.memory import Budget, Ledger, Tier
from gnnx.prepare import arrays
from gnnx.prepare.arrays import Workspace


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("arrays")


@given(
    groups=st.lists(st.lists(st.integers(0, 50), max_size=12), max_size=8),
    most=st.integers(1, 4),
    written=st.integers(1, 40),
)
def test_appended_arrays_lie_one_after_the_other(folder, groups, most, written):
    """Whatever the system writes at a time, in buffers and in bytes."""
    rng = np.random.default_rng(0)
    data = [[rng.integers(0, 256, size).astype(np.uint8) for size in sizes] for sizes in groups]
    pwritev = os.pwritev

    def short(fd, buffers, at):
        assert len(buffers) <= most
        joined = b"".join(buffers)[:written]
        return pwritev(fd, [joined], at)

    with pytest.MonkeyPatch.context() as patch, Workspace(folder, Ledger(Budget())) as space:
        patch.setattr(os, "pwritev", short)
        patch.setattr(arrays, "_MOST_BUFFERS", most)
        scratch = space.scratch()
        places = [scratch.append(*group) for group in data]
        whole = np.concatenate([np.empty(0, np.uint8), *(a for group in data for a in group)])
        sizes = [sum(group) for group in groups]
        assert places == [sum(sizes[:i]) for i in range(len(sizes))]
        assert space.ledger.held_bytes(Tier.DISK) == scratch.size == len(whole)
        out = np.empty(len(whole), np.uint8)
        scratch.array("scratch", out.shape, np.uint8).read_into(out, 0)
    assert (out == whole).all()


def test_threads_append_beside_each_other(folder):
    with Workspace(folder, Ledger(Budget())) as space:
        scratch, places = space.scratch(), {}

        def work(begin, end):
            for i in range(begin, end):
                places[i] = scratch.append(np.full(100 + i, i), np.full(5, -i))

        threads.run(work, 400)
        stored = scratch.array("scratch", (scratch.size // 8,), np.int64)
        for i, at in places.items():
            out = np.empty(105 + i, np.int64)
            stored.read_into(out, at // 8)
            assert (out[: 100 + i] == i).all()
            assert (out[100 + i :] == -i).all()


def test_a_full_disk_is_told_with_the_place(folder, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Workspace(folder, Ledger(Budget())) as space:
        scratch = space.scratch()
        scratch.append(np.zeros(100, np.uint8))
        monkeypatch.setattr(os, "pwritev", full)
        with pytest.raises(ResourceError) as failure:
            scratch.append(np.zeros(7, np.uint8), np.zeros(8, np.uint8))
        assert failure.value.cause == (
            f"scratch file in {folder}: No space left on device writing 15 bytes at byte 100"
        )
    assert space.ledger.held_bytes(Tier.DISK) == 0
