"""Checking a dataset: every page of every array against its checksum."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gnnx import threads
from gnnx.errors import DataError
from gnnx.store.manifest import HEADER_BYTES, MANIFEST, PAGE_BYTES, ArrayEntry, Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE_BYTES = 1 << 20


class Problem(NamedTuple):
    """One thing that is wrong with a dataset."""

    file: Path
    """The damaged file."""
    page: int | None
    """Which page of its data, from 0; None where it is not a page."""
    begin: int
    """First byte of the file that the check covers."""
    end: int
    """Byte after the last one."""
    expected: str
    """What should be there."""
    found: str
    """What is there."""

    def __str__(self) -> str:
        page = "" if self.page is None else f" page {self.page}"
        where = f"{self.file}:{page} bytes {self.begin} to {self.end}"
        return f"{where}: {self.expected} expected, {self.found} found"


class _Task(NamedTuple):
    """One page to check."""

    file: Path
    page: int
    begin: int
    end: int
    crc: int


def verify(path: Path | str, *, progress: threads.Progress | None = None) -> list[Problem]:
    """Read every array of a dataset and hold it against the manifest and the checksums.

    Parameters
    ----------
    path
        Folder of the dataset.
    progress
        Told ``("verify", done, total)`` in bytes after every page.

    Returns
    -------
    list of Problem
        In the order of files and pages; empty where all is well.

    Raises
    ------
    DataError
        There is no dataset, or its manifest is damaged.
    """
    path = Path(path)
    if not (path / MANIFEST).is_file():
        raise DataError(f"{path}: not a gnnx dataset: no {MANIFEST}", "Give another folder.")
    problems: list[Problem] = []
    tasks: list[_Task] = []
    for name, entry in Manifest.load(path / MANIFEST).arrays.items():
        file = path / f"{name}.npy"
        found = list(_check_frame(file, entry))
        problems += found
        if not found:
            tasks += _pages(file, entry)

    total, done, lock = sum(task.end - task.begin for task in tasks), 0, threading.Lock()

    def check(begin: int, end: int) -> None:
        nonlocal done
        for task in tasks[begin:end]:
            found = list(_check_page(task))
            with lock:
                problems.extend(found)
                done += task.end - task.begin
                if progress is not None:
                    progress("verify", done, total)

    threads.run(check, len(tasks))
    return sorted(problems, key=lambda problem: (problem.file, problem.begin))


def _check_frame(file: Path, entry: ArrayEntry) -> Iterator[Problem]:
    """Size and header of an array, and its file of checksums."""
    size, sums = HEADER_BYTES + entry.num_bytes, file.with_suffix(".crc")
    for part, expected in ((file, size), (sums, 4 * entry.num_pages)):
        try:
            found = f"{part.stat().st_size} bytes"
        except FileNotFoundError:
            found = "no file"
        if found != f"{expected} bytes":
            yield Problem(part, None, 0, expected, f"{expected} bytes", found)
            return
    if zlib.crc32(sums.read_bytes()) != entry.crc32:
        crc = zlib.crc32(sums.read_bytes())
        yield Problem(sums, None, 0, 4 * entry.num_pages, f"crc32 {entry.crc32:08x}", f"{crc:08x}")
        return
    with file.open("rb") as stream:
        if stream.read(HEADER_BYTES) != entry.header():
            what = f"a header of {entry.dtype} {entry.shape}"
            yield Problem(file, None, 0, HEADER_BYTES, what, "another")


def _pages(file: Path, entry: ArrayEntry) -> Iterator[_Task]:
    sums = file.with_suffix(".crc").read_bytes()
    end = HEADER_BYTES + entry.num_bytes
    for page, (crc,) in enumerate(struct.iter_unpack("<I", sums)):
        begin = HEADER_BYTES + page * PAGE_BYTES
        yield _Task(file, page, begin, min(begin + PAGE_BYTES, end), crc)


def _check_page(task: _Task) -> Iterator[Problem]:
    """Read a page piece by piece; the page cache forgets it again."""
    expected, crc, at = f"crc32 {task.crc:08x}", 0, task.begin
    fd = os.open(task.file, os.O_RDONLY)
    try:
        with mmap.mmap(-1, _PIECE_BYTES) as piece, memoryview(piece) as view:
            while at < task.end:
                size = os.preadv(fd, [view[: min(_PIECE_BYTES, task.end - at)]], at)
                if size == 0:
                    break
                crc = zlib.crc32(view[:size], crc)
                at += size
        os.posix_fadvise(fd, task.begin, task.end - task.begin, os.POSIX_FADV_DONTNEED)
    except OSError as error:
        yield Problem(*task[:4], expected, f"{error.strerror} at byte {at}")
        return
    finally:
        os.close(fd)
    if at < task.end:
        yield Problem(*task[:4], expected, f"the end at byte {at}")
    elif crc != task.crc:
        yield Problem(*task[:4], expected, f"{crc:08x}")
