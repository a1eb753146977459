"""Verification names every damaged file and page, and nothing else."""

import os
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import write_dataset
from gnnx import threads
from gnnx.errors import DataError
from gnnx.store import manifest, verification, verify, writer

PAGE = 1000
NUM_NODES = 7 * PAGE + 200
PAGES = {"nodes/node/x": 8, "nodes/node/y": 58, "edges/node-edge-node/indptr": 58}


@pytest.fixture(scope="module", autouse=True)
def small_pages():
    with pytest.MonkeyPatch.context() as patch:
        for module in (manifest, writer, verification):
            patch.setattr(module, "PAGE_BYTES", PAGE)
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    rng = np.random.default_rng(0)
    return write_dataset(
        tmp_path_factory.mktemp("verify") / "whole",
        x=rng.integers(0, 256, NUM_NODES, np.uint8),
        y=rng.integers(0, 9, NUM_NODES),
    )


@pytest.fixture
def path(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "dataset")


def test_a_whole_dataset_has_no_problem_and_progress_is_told(whole):
    told = []
    assert verify(whole, progress=lambda *report: told.append(report)) == []
    assert len(told) == sum(PAGES.values())
    total = 4096 * 0 + NUM_NODES * (1 + 8) + (NUM_NODES + 1) * 8
    assert [stage for stage, _, _ in told] == ["verify"] * len(told)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    assert told[-1] == ("verify", total, total)


@given(data=st.data(), threads_used=st.sampled_from([1, 4]))
def test_every_flipped_bit_is_found_in_its_page(whole, data, threads_used):
    name = data.draw(st.sampled_from(sorted(PAGES)))
    file = whole / f"{name}.npy"
    size = file.stat().st_size
    places = data.draw(st.sets(st.integers(4096, size - 1), min_size=1, max_size=4))
    original, before = file.read_bytes(), threads.num_threads()
    flipped = bytearray(original)
    for at in places:
        flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        file.write_bytes(flipped)
        threads.set_num_threads(threads_used)
        problems = verify(whole)
    finally:
        file.write_bytes(original)
        threads.set_num_threads(before)
    pages = sorted({(at - 4096) // PAGE for at in places})
    assert [(problem.file, problem.page) for problem in problems] == [(file, p) for p in pages]
    for problem in problems:
        assert problem.begin == 4096 + problem.page * PAGE
        assert problem.end == min(problem.begin + PAGE, size)
        assert problem.expected != problem.found


def test_a_problem_reads_as_a_sentence(path):
    file = path / "nodes/node/x.npy"
    with file.open("r+b") as stream:
        stream.seek(4096 + 3 * PAGE)
        byte = stream.read(1)[0]
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 1]))
    (problem,) = verify(path)
    assert str(problem) == (
        f"{file}: page 3, bytes 7096 to 8096: {problem.expected} expected, {problem.found} found"
    )
    assert problem.expected.startswith("crc32 ")


def test_a_page_that_was_not_written_is_found(path):
    file = path / "nodes/node/y.npy"
    with file.open("r+b") as stream:
        stream.seek(4096 + 5 * PAGE)
        stream.write(bytes(PAGE))
    assert [problem.page for problem in verify(path)] == [5]


@pytest.mark.parametrize("cut", [1, 64, PAGE, 5000])
@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_truncated_file_is_named(path, name, cut):
    file = path / f"{name}.npy"
    size = file.stat().st_size
    os.truncate(file, size - cut)
    (problem,) = verify(path)
    assert (problem.file, problem.page) == (file, None)
    assert str(problem) == f"{file}: {size} bytes expected, {size - cut} bytes found"


@pytest.mark.parametrize("suffix", [".npy", ".crc"])
def test_a_missing_file_is_named(path, suffix):
    file = path / f"nodes/node/x{suffix}"
    file.unlink()
    (problem,) = verify(path)
    assert problem.file == file
    assert str(problem).endswith("no file found")


@pytest.mark.parametrize("suffix", [".npy", ".crc"])
@pytest.mark.parametrize("what", ["folder", "loop", "pipe", "device"])
def test_what_is_no_file_is_named(path, suffix, what):
    file = path / f"nodes/node/x{suffix}"
    file.unlink()
    if what == "folder":
        file.mkdir()
    elif what == "pipe":  # reading one would never end
        os.mkfifo(file)
    else:
        file.symlink_to(file.name if what == "loop" else "/dev/zero")
    (problem,) = verify(path)
    assert problem.file == file
    expected = "Too many levels of symbolic links" if what == "loop" else "no regular file"
    assert problem.found == expected


def test_a_damaged_header_is_named(path):
    file = path / "nodes/node/x.npy"
    with file.open("r+b") as stream:
        stream.seek(30)
        stream.write(b"?")
    (problem,) = verify(path)
    assert (problem.file, problem.begin, problem.end) == (file, 0, 4096)
    assert problem.expected == f"a header of uint8 ({NUM_NODES},)"


def test_damaged_checksums_are_told_from_damaged_data(path):
    file = path / "nodes/node/x.crc"
    sums = bytearray(file.read_bytes())
    sums[5] ^= 1
    file.write_bytes(sums)
    (problem,) = verify(path)
    assert (problem.file, problem.page) == (file, None)
    file.write_bytes(sums[:-1])
    (problem,) = verify(path)
    assert str(problem) == f"{file}: {len(sums)} bytes expected, {len(sums) - 1} bytes found"


def test_everything_that_is_wrong_is_listed(path):
    (path / "nodes/node/y.npy").unlink()
    for name, at in (("nodes/node/x", 4096), ("edges/node-edge-node/indptr", 4096 + 2 * PAGE)):
        with (path / f"{name}.npy").open("r+b") as stream:
            stream.seek(at)
            stream.write(b"\xee" * 8)
    found = [(problem.file.relative_to(path).as_posix(), problem.page) for problem in verify(path)]
    assert found == [
        ("edges/node-edge-node/indptr.npy", 2),
        ("nodes/node/x.npy", 0),
        ("nodes/node/y.npy", None),
    ]


def test_an_unreadable_page_is_a_problem_not_a_crash(path, monkeypatch):
    real = os.preadv

    def bad(fd, buffers, at):
        if at == 4096 + PAGE and os.readlink(f"/proc/self/fd/{fd}").endswith("node/x.npy"):
            raise OSError(5, "Input/output error")
        return real(fd, buffers, at)

    monkeypatch.setattr(os, "preadv", bad)
    (problem,) = verify(path)
    assert problem.page == 1
    assert problem.found == "Input/output error at byte 5096"


def test_without_a_manifest_there_is_nothing_to_verify(path):
    (path / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"dataset: not a gnnx dataset: no manifest\.json"):
        verify(path)
    with pytest.raises(DataError, match="no such folder"):
        verify(path / "nothing")
