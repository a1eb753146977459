"""Checking a dataset: every page of every array against its checksum."""

from __future__ import annotations

import functools
import os
import stat
import struct
import threading
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gnnx import threads
from gnnx.store.manifest import HEADER_BYTES, PAGE_BYTES, ArrayEntry, Manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE_BYTES = 1 << 20
_PAGES_AT_ONCE = 16  # a thread's share is a page or two, after which an interrupt ends it


class Problem(NamedTuple):
    """One thing that is wrong with a dataset."""

    file: Path
    """The damaged file."""
    page: int | None
    """Which page of its data, from 0; None where the file as such is wrong."""
    begin: int
    """First byte of the file that the check covers."""
    end: int
    """Byte after the last one."""
    expected: str
    """What should be there."""
    found: str
    """What is there."""

    def __str__(self) -> str:
        where = f"page {self.page}, bytes {self.begin} to {self.end}: "
        found = f"{self.expected} expected, {self.found} found"
        return f"{self.file}: {'' if self.page is None else where}{found}"


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
    problems: list[Problem] = []
    tasks: list[_Task] = []
    for name, entry in Manifest.load(path).arrays.items():
        file = path / f"{name}.npy"
        found = list(_check_frame(file, entry))
        problems += found
        if not found:
            tasks += _pages(file, entry)

    total, done, lock = sum(task.end - task.begin for task in tasks), 0, threading.Lock()

    def check(pages: list[_Task], begin: int, end: int) -> None:
        nonlocal done
        for task in pages[begin:end]:
            found = list(_check_page(task))
            with lock:
                problems.extend(found)
                done += task.end - task.begin
                if progress is not None:
                    progress("verify", done, total)

    for first in range(0, len(tasks), _PAGES_AT_ONCE):
        pages = tasks[first : first + _PAGES_AT_ONCE]
        threads.run(functools.partial(check, pages), len(pages))
    return sorted(problems)


def _check_frame(file: Path, entry: ArrayEntry) -> Iterator[Problem]:
    """Size and header of an array, and its file of checksums."""
    size, sums = HEADER_BYTES + entry.num_bytes, file.with_suffix(".crc")
    for part, expected in ((file, size), (sums, 4 * entry.num_pages)):
        try:
            status = part.stat()
        except FileNotFoundError:
            found = "no file"
        except OSError as error:
            found = str(error.strerror)
        else:
            regular = stat.S_ISREG(status.st_mode)
            found = f"{status.st_size} bytes" if regular else "no regular file"
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
        piece = memoryview(bytearray(_PIECE_BYTES))
        while at < task.end:
            size = os.preadv(fd, [piece[: task.end - at]], at)
            if size == 0:
                break
            crc = zlib.crc32(piece[:size], crc)
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
