"""The engine: rows of files, in any order, by direct reads from a pool of threads.

Letters: R rows asked. A request is sorted and cut into runs of neighbouring rows, runs into chunks
of about equal cost. Reader threads take chunks until none is left, with the GIL released, and copy
rows from their own buffers to where they are wanted; requests that come meanwhile get their turn
after a chunk, so that a few rows never wait for many. 4 KiB rows read one by one are three times
slower than runs across small gaps, and a memory map is thirty times slower.
"""

from __future__ import annotations

import errno
import functools
import mmap
import os
import queue
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gnnx.errors import BudgetError, DataError, GnnxError, RunError, UsageError
from gnnx.memory import Tier
from gnnx.store import _kernels
from gnnx.store._kernels import BLOCK, read_chunks, write_chunks
from gnnx.store.writer import write_error

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from gnnx.memory import Ledger

LARGEST_RUN = 1 << 20
GAP_BYTES = 32 << 10
"""Default of what a read costs beside its bytes, in bytes streamed: 2 GiB/s by 64,000 reads/s."""
SMALLEST_RUN = 128 << 10
WAIT_S = 300.0
"""Default time limit of a wait, in seconds: far beyond what a working disk takes."""
IO_TIMEOUT_S = 120.0
"""Default time, in seconds, after which a disk that brings nothing at all is given up."""
CLOSE_WAIT_S = 30.0
"""Time limit of closing, in seconds: a reader ends the read that it is in."""
_LOOK_S = 0.5  # between looks at whether the disk brings anything

_CHUNKS_PER_READER = 8
_SMALLEST_BUFFER = 64 << 10
_NO_SLOTS = np.empty(0, np.int64)


class Layout(NamedTuple):
    """Where rows lie in a file."""

    base: int
    """Byte at which row 0 begins."""
    stride: int
    """Bytes from one row to the next."""
    row_bytes: int
    """Bytes of a row."""
    end: int
    """Byte after the last one that may be read as data."""


class Traffic:
    """Counters of what was read.

    Attributes
    ----------
    num_rows : int
        Rows asked for, duplicates included.
    num_reads : int
        Reads from the file.
    bytes_read : int
        Bytes of those reads: whole blocks, gaps included.
    """

    def __init__(self) -> None:
        self.num_rows = self.num_reads = self.bytes_read = 0


class DataFile(Traffic):
    """A file to read, opened by the engine when it is first needed and never for writing.

    Parameters
    ----------
    path
        The file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._fd = -1

    def open(self) -> int:
        """Descriptor: for direct I/O, or through the page cache where there is none.

        Returns
        -------
        int
            Valid until `close`.

        Raises
        ------
        RunError
            The file cannot be opened.
        """
        if self._fd < 0:
            try:
                self._fd = _open(self.path)
            except OSError as error:
                raise RunError(
                    f"{self.path}: {error.strerror}", "Check the file and its permissions."
                ) from error
        return self._fd

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _open(path: Path) -> int:
    """Descriptor on which aligned reads work, tried on the first block."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    else:
        with mmap.mmap(-1, BLOCK) as block:  # aligned, as direct I/O wants it
            try:
                os.preadv(fd, [block], 0)
            except OSError as error:
                os.close(fd)
                if error.errno != errno.EINVAL:
                    raise
            else:
                return fd
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # runs are cut already: no read-ahead
    return fd


class Job:
    """A request on its way, which several readers work on.

    Parameters
    ----------
    file
        What is read.
    num_rows
        R.
    num_chunks
        Pieces that the request was cut into.
    kernel
        Does a reader's work: `read_chunks` or `write_chunks`.
    arguments
        Of the kernel, up to the reader's own.
    held
        What must live until the last reader is done.
    disk
        Knows whether anything is read.
    """

    def __init__(
        self,
        file: DataFile,
        num_rows: int,
        num_chunks: int,
        kernel: Callable[..., None],
        arguments: tuple[Any, ...],
        held: Any,
        disk: _Disk,
    ) -> None:
        self._disk, self.kernel = disk, kernel
        self.file, self.num_rows, self.num_chunks = file, num_rows, num_chunks
        self.state = np.zeros(2, np.int64)
        self.arguments, self._held = arguments, held
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._active = self._chunks_done = 0
        self._error: GnnxError | None = None
        self._pid = os.getpid()

    def wait(self, timeout_s: float) -> None:
        """Return when all rows are in place.

        Parameters
        ----------
        timeout_s
            Time limit in seconds.

        Raises
        ------
        DataError
            The file is shorter than it was.
        RunError
            A read failed, time is up, nothing was read for too long, or the readers are gone.
        """
        if not self._finished.is_set() and self._pid != os.getpid():
            raise RunError(
                f"{self.file.path}: the process was forked while rows were read",
                "Fetch the rows again in the child process.",
            )
        limit = time.monotonic() + timeout_s
        while not self._finished.wait(min(_LOOK_S, max(0.0, limit - time.monotonic()))):
            what = None
            if self._disk.is_dead():
                what = f"nothing was read for {self._disk.timeout_s:g} s"
            elif time.monotonic() >= limit:
                what = f"{self.num_rows} rows were not read within {timeout_s:g} s"
            if what is not None:
                raise RunError(
                    f"{self.file.path}: {what}, {self._chunks_done} of {self.num_chunks} chunks "
                    "are there",
                    "Check that the disk answers.",
                )
        if self._error is not None:
            raise self._error

    def settled(self, timeout_s: float) -> None:
        """Return when no reader is inside, whatever came of the job.

        Parameters
        ----------
        timeout_s
            Time limit in seconds.

        Raises
        ------
        RunError
            Time is up.
        """
        if not self._finished.wait(timeout_s):
            raise RunError(
                f"{self.file.path}: a read has not ended within {timeout_s:g} s",
                "Check that the disk answers.",
            )

    def has_chunks(self) -> bool:
        """Whether there is work left that no reader has begun."""
        return self._error is None and bool(self.state[_kernels.TICKET] < self.num_chunks)

    def done(self) -> bool:
        """Whether `wait` would return at once, or raise what a reader met."""
        return self._finished.is_set()

    def enter(self) -> bool:
        """Count a reader in, unless there is nothing left to do."""
        with self._lock:
            open_ = not self._finished.is_set() and self._error is None
            self._active += open_
            return open_

    def leave(self, num_chunks: int, error: GnnxError | None) -> None:
        """Count a reader out, with the chunks that it read and what it met."""
        with self._lock:
            self._active -= 1
            self._chunks_done += num_chunks
            self._error = self._error or error
            self._settle()

    def cancel(self) -> None:
        """Let readers stop at the next chunk; `wait` raises."""
        with self._lock:
            if not self._finished.is_set():
                self.state[_kernels.STOP] = 1
                self._error = self._error or _closed(self.file.path)
                self._settle()

    def _settle(self) -> None:
        """Finish if no reader is inside and none need come; the lock is held."""
        if self._active == 0 and (self._error or self._chunks_done == self.num_chunks):
            self.arguments, self._held = (), None
            self._finished.set()


class _Disk:
    """Whether the disk brings anything: looked at by those who wait, since readers may be stuck."""

    def __init__(self, timeout_s: float, progress: Callable[[], int]) -> None:
        self.timeout_s = timeout_s
        self._progress = weakref.WeakMethod(progress)  # of who holds this: no cycle keeps a ledger
        self._seen, self._since, self._lock = -1, time.monotonic(), threading.Lock()
        self.dead = False

    def begin(self) -> None:
        """Tell that there is something to read again."""
        with self._lock:
            self._seen, self._since = -1, time.monotonic()

    def is_dead(self) -> bool:
        """Whether nothing has come for too long, while something was wanted; it stays so."""
        progress = self._progress()
        with self._lock:
            seen, now = self._seen if progress is None else progress(), time.monotonic()
            if seen != self._seen:
                self._seen, self._since = seen, now
            self.dead = self.dead or now - self._since >= self.timeout_s
            return self.dead


class _Readers:
    """Threads that take calls from a queue; a process can end although one never returns."""

    def __init__(self, count: int) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"gnnx-read_{i}", daemon=True)
            for i in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, call: Callable[[], None]) -> None:
        """Let a thread make a call."""
        self._calls.put(call)

    def stop(self, timeout_s: float) -> None:
        """End the threads behind the calls that wait."""
        for _ in self._threads:
            self._calls.put(None)
        limit = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, limit - time.monotonic()))

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
            del call  # the last job's arrays


def _error_of(job: Job, result: NDArray[np.int64]) -> GnnxError | None:
    """Tell what a reader's result means."""
    path = job.file.path
    code, at, expected, found = (int(value) for value in result[_kernels.ERRNO :])
    if code and job.kernel is write_chunks:
        return write_error(OSError(code, os.strerror(code)), path, expected, at)
    if code:
        return RunError(
            f"{path}: {os.strerror(code)}: {expected} bytes expected at byte {at}, {found} found",
            "Check the disk, and the dataset with gnnx verify.",
        )
    if found < expected:
        return DataError(
            f"{path}: {expected} bytes expected at byte {at}, {found} found",
            "The file was cut short while it was open: restore it.",
        )
    return None


def _closed(path: Path) -> RunError:
    return RunError(f"{path}: the dataset was closed", "Wait for reads before closing it.")


class ReadEngine(Traffic):
    """Reader threads and their buffers, shared by the files of a dataset.

    Threads start with the first request and stop in `close`. Buffers take at most an eighth of
    the HOST budget, so that a small budget gets fewer and smaller ones.

    Parameters
    ----------
    ledger
        Buffers (owner ``"read buffers"``) and sorted requests (``"read plan"``) come from here.
    num_readers
        Threads that read at the same time, at most.
    timeout_s
        Seconds without any progress after which waits fail.

    Attributes
    ----------
    busy_s : float
        Seconds in which at least one reader was reading.
    num_readers : int
        Threads, as the budget allows.
    gap_bytes : int
        A read costs as much as this many bytes streamed, so that smaller gaps are read.
    timeout_s : float
        As given.
    buffer_bytes : int
        HOST bytes that the buffers take from the first request on.
    """

    def __init__(
        self, ledger: Ledger, num_readers: int = 16, timeout_s: float = IO_TIMEOUT_S
    ) -> None:
        super().__init__()
        self.busy_s, self.gap_bytes = 0.0, GAP_BYTES
        limit = ledger.budget.limit(Tier.HOST)
        most = num_readers * (LARGEST_RUN + BLOCK)
        total = min(most, max(16 << 20, num_readers * _SMALLEST_BUFFER))
        if limit is not None:
            total = min(total, limit // 8)
        self.num_readers = max(1, min(num_readers, total // _SMALLEST_BUFFER))
        size = total // self.num_readers // BLOCK * BLOCK
        self._buffer_size = max(BLOCK, min(size, LARGEST_RUN + BLOCK))
        self._sort_rows = max(4096, 1 << 20 if limit is None else limit // 128)
        self._ledger, self.timeout_s = ledger, timeout_s
        self._memory: NDArray[np.uint8] | None = None
        self._closed = False
        self._reset()
        _engines.add(self)

    def _reset(self) -> None:
        """No threads, as in a new engine and in a forked child."""
        self._lock = threading.Lock()
        self._readers: _Readers | None = None
        self._disk = _Disk(self.timeout_s, self._progress)
        self._idle: queue.SimpleQueue[NDArray[np.uint8]] = queue.SimpleQueue()
        self._jobs: set[Job] = set()
        self._num_jobs = np.zeros(1, np.int64)  # of `_jobs`, for readers without the GIL
        self._num_busy, self._busy_since = 0, 0.0

    @property
    def buffer_bytes(self) -> int:  # noqa: D102 - see Attributes
        return self.num_readers * self._buffer_size

    def submit(  # noqa: PLR0913 - where from, which rows, where to
        self,
        file: DataFile,
        layout: Layout,
        rows: NDArray[np.int64],
        out: NDArray[np.uint8],
        *,
        num_rows: int,
        size: int | None = None,
        slots: NDArray[np.int64] | None = None,
        slot_bytes: int | None = None,
        gap: int | None = None,
    ) -> Job:
        """Begin to read rows; returns before they are read.

        Parameters
        ----------
        file
            Where from.
        layout
            Where its rows lie.
        rows
            (R,) int64. At least one row; unchanged until the job is done.
        out
            uint8. Slots of ``layout.row_bytes`` each, one after the other.
        num_rows
            What to count: R, or more where a row stands for several.
        size
            Rows are below it and come in any order; None where they ascend.
        slots
            (R,) int64. Row i goes to slot ``slots[i]`` of `out`, by default i.
        slot_bytes
            From one slot to the next, by default ``layout.row_bytes``.
        gap
            Most bytes between two rows of one read; by default `gap_bytes`.

        Returns
        -------
        Job
            To wait for.

        Raises
        ------
        RunError
            The engine is closed, or the file cannot be opened.
        BudgetError
            HOST has no room for one block, or for the sorted request.
        UsageError
            More rows than 64 bits can sort.
        """
        with self._lock:
            if self._closed:
                raise _closed(file.path)
            fd = file.open()
            readers = self._start()
        gap = self.gap_bytes if gap is None else gap
        order, shift = (rows, 0) if size is None else self._sorted(rows, size)
        bounds = np.empty(self.num_readers * _CHUNKS_PER_READER + 1, np.int64)
        limits = min(SMALLEST_RUN, self._buffer_size), self._buffer_size
        num_chunks, largest = _kernels.cut(
            order, shift, *layout, gap, *limits, self.num_readers, bounds
        )
        arguments = (
            fd,
            order,
            shift,
            *layout,
            gap,
            largest,
            bounds[: num_chunks + 1],
            _NO_SLOTS if slots is None else slots,
            layout.row_bytes if slot_bytes is None else slot_bytes,
            out.ctypes.data,
        )
        job = Job(file, num_rows, num_chunks, read_chunks, arguments, out, self._disk)
        self._begin_job(job, readers)
        return job

    def submit_writes(
        self,
        file: DataFile,
        fd: int,
        at: NDArray[np.int64],
        data: NDArray[np.uint8],
        begin: NDArray[np.int64],
        size: NDArray[np.int64],
    ) -> Job:
        """Begin to write: ``data[begin[i] : begin[i] + size[i]]`` goes to byte ``at[i]``.

        Parameters
        ----------
        file
            Whose name errors have.
        fd
            Descriptor to write to. What direct I/O wants, the caller sees to.
        at, begin, size
            (W,) int64. At least one.
        data
            uint8. Unchanged until the job is done.

        Returns
        -------
        Job
            To wait for; raises a ResourceError where the disk is full.

        Raises
        ------
        RunError
            The engine is closed.
        BudgetError
            HOST has no room for the readers' buffers.
        """
        with self._lock:
            if self._closed:
                raise _closed(file.path)
            readers = self._start()
        arguments = fd, at, data.ctypes.data + begin, size
        job = Job(file, 0, len(at), write_chunks, arguments, data, self._disk)
        self._begin_job(job, readers)
        return job

    def _begin_job(self, job: Job, readers: _Readers) -> None:
        with self._lock:
            if self._closed:
                raise _closed(job.file.path)
            if not self._jobs:
                self._disk.begin()
            self._jobs.add(job)
            self._num_jobs[0] = len(self._jobs)
            for traffic in (job.file, self):
                traffic.num_rows += job.num_rows
            for _ in range(min(job.num_chunks, self.num_readers)):
                readers.submit(functools.partial(self._serve, job))

    def _sorted(self, rows: NDArray[np.int64], size: int) -> tuple[NDArray[np.int64], int]:
        """Sort the rows, with their positions; also gives the bits that a position takes."""
        shift, row_bits = ((max(2, count) - 1).bit_length() for count in (len(rows), size))
        if shift + row_bits > 63:
            raise UsageError(f"{len(rows)} of {size} rows in one request", "Ask for fewer at once.")
        order = self._ledger.empty(len(rows), np.int64, Tier.HOST, "read plan")
        block = min(len(rows), self._sort_rows)
        scratch = self._ledger.empty(block, np.int64, Tier.HOST, "read plan")
        _kernels.sort_rows(rows, shift, row_bits, order, scratch)
        return order, shift

    @property
    def is_dead(self) -> bool:
        """Whether the disk was given up: nothing came for too long."""
        return self._disk.dead

    def _progress(self) -> int:
        """Count what readers have begun and ended so far: it changes as long as the disk reads."""
        begun = sum(int(job.state[_kernels.TICKET]) for job in tuple(self._jobs))
        return self.num_reads + begun

    def _start(self) -> _Readers:
        """Make the threads and their buffers when first asked for; the lock is held."""
        if self._readers is None:
            if self._memory is None:
                self._memory = self._take_buffers()
            for buffer in self._memory:
                self._idle.put(buffer)
            self._readers = _Readers(self.num_readers)
        return self._readers

    def _take_buffers(self) -> NDArray[np.uint8]:
        """As many and as large buffers as HOST has room for, down to one block."""
        count, size = self.num_readers, self._buffer_size
        while True:
            try:
                memory = self._ledger.empty(
                    (count, size), np.uint8, Tier.HOST, "read buffers", align=BLOCK
                )
            except BudgetError:
                if (count, size) == (1, BLOCK):
                    raise
                if count > 1:
                    count //= 2
                else:
                    size = max(BLOCK, size // 2 // BLOCK * BLOCK)
            else:
                self.num_readers, self._buffer_size = memory.shape
                return memory

    def _serve(self, job: Job) -> None:
        """Work on a job, in a reader thread."""
        if not job.enter():
            return
        self._begin()
        buffer = self._idle.get()
        result = np.zeros(7, np.int64)
        rest = job.state, self._num_jobs, buffer.ctypes.data, len(buffer), result
        error: GnnxError | None
        try:
            job.kernel(*job.arguments, *rest)
            error = _error_of(job, result)
        except BaseException as defect:  # else those who wait would hear of it only by time
            error = RunError(f"{job.file.path}: a reader died: {defect!r}", "Report this.")
            error.__cause__ = defect
        self._idle.put(buffer)
        self._end(job.file, result)
        job.leave(int(result[_kernels.CHUNKS]), error)
        with self._lock:
            if job.done():
                self._jobs.discard(job)
                self._num_jobs[0] = len(self._jobs)
            elif job.has_chunks() and self._readers is not None and not self._closed:
                self._readers.submit(functools.partial(self._serve, job))  # behind those that wait

    def _begin(self) -> None:
        with self._lock:
            if self._num_busy == 0:
                self._busy_since = time.perf_counter()
            self._num_busy += 1

    def _end(self, file: DataFile, result: NDArray[np.int64]) -> None:
        with self._lock:
            self._num_busy -= 1
            if self._num_busy == 0:
                self.busy_s += time.perf_counter() - self._busy_since
            for traffic in (file, self):
                traffic.num_reads += int(result[_kernels.READS])
                traffic.bytes_read += int(result[_kernels.BYTES])

    def close(self) -> None:
        """Stop the readers; reads in flight fail. A second call does nothing.

        Raises
        ------
        RunError
            The disk does not answer, so that a reader cannot be stopped.
        """
        with self._lock:
            self._closed = True
            jobs = list(self._jobs)
        for job in jobs:
            job.cancel()
        if self._disk.dead:  # whoever waited knows; a reader that is stuck keeps what it writes to
            return
        for job in jobs:
            job.settled(CLOSE_WAIT_S)
        if self._readers is not None:
            self._readers.stop(CLOSE_WAIT_S)
        self._readers, self._memory = None, None
        self._idle = queue.SimpleQueue()
        self._jobs.clear()


_engines: weakref.WeakSet[ReadEngine] = weakref.WeakSet()


def _forget_threads() -> None:
    """Forget what a fork did not bring along: a child has the memory, but not the threads."""
    for engine in _engines:
        engine._reset()  # noqa: SLF001 - one module, one secret


os.register_at_fork(after_in_child=_forget_threads)
