"""Writing a dataset: into a temporary folder, under a lock, checksummed on the way, renamed last.

Letters: N nodes, E edges, F feature width.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from gnnx.errors import BudgetError, GnnxError, ResourceError, RunError, UsageError
from gnnx.memory import Tier
from gnnx.store.journal import Journal, Stage
from gnnx.store.manifest import (
    HEADER_BYTES,
    JOURNAL,
    MANIFEST,
    PAGE_BYTES,
    ArrayEntry,
    Manifest,
    NodeType,
    check_name,
    disk_dtype,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from gnnx.graph import EdgeType
    from gnnx.memory import Ledger

_log = logging.getLogger("gnnx")
_libc = ctypes.CDLL(None, use_errno=True)
_START, _FINISH = 2, 7  # sync_file_range: begin to write; wait, write, wait
_LARGEST_WINDOW, _SMALLEST_WINDOW = 8 << 20, 256 << 10
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ENOUGH_BYTES = 16 << 20
_INTERIM = "interim"  # folder of arrays that only later stages read


class ArrayWriter:
    """One array of a dataset, appended to in pieces; made by `DatasetWriter.array`.

    The kernel may hold two windows of unwritten bytes, which are charged to the HOST tier: a
    window is written back while the next one fills and then leaves the page cache, so that a large
    array never fills a memory cgroup with dirty pages.
    """

    def __init__(
        self, path: Path, shape: tuple[int | None, ...], dtype: str, ledger: Ledger
    ) -> None:
        self.path = path
        self.dtype = disk_dtype(dtype)
        self.num_rows = 0
        self._logical, self._shape = dtype, shape
        self._at = HEADER_BYTES
        self._crc, self._crcs = 0, array.array("I")
        self._entry: ArrayEntry | None = None
        limit = ledger.budget.limit(Tier.HOST)
        share = _LARGEST_WINDOW if limit is None else limit // 64
        self._window = min(_LARGEST_WINDOW, max(_SMALLEST_WINDOW, share))
        self._held = ledger.reserve(2 * self._window, Tier.HOST, "write window")
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)

    def append(self, rows: NDArray[Any]) -> None:
        """Write rows after those that are there.

        Parameters
        ----------
        rows
            (R, ...). C-contiguous, of the array's dtype (bfloat16: uint16) and row shape.

        Raises
        ------
        UsageError
            The rows are of another dtype or shape, not contiguous, or too many.
        ResourceError
            The disk is full.
        """
        self._check(rows)
        self.num_rows += len(rows)
        if rows.nbytes == 0:
            return
        data = memoryview(rows).cast("B")  # type: ignore[arg-type]
        done = 0
        while done < len(data):
            filled = (self._at - HEADER_BYTES) % PAGE_BYTES
            room = min(PAGE_BYTES - filled, self._window - self._at % self._window)
            piece = data[done : done + room]
            self._crc = zlib.crc32(piece, self._crc)
            write_all(self._fd, piece, self._at, self.path)
            self._at += len(piece)
            done += len(piece)
            if filled + len(piece) == PAGE_BYTES:
                self._close_page()
            if self._at % self._window == 0:
                self._write_back()

    def _check(self, rows: NDArray[Any]) -> None:
        if rows.dtype != self.dtype or rows.shape[1:] != self._shape[1:]:
            raise UsageError(
                f"{self.path.name}: rows of {rows.dtype}{rows.shape[1:]} "
                f"for {self.dtype}{self._shape[1:]}",
                "Convert them first.",
            )
        if not rows.flags.c_contiguous:
            raise UsageError(f"{self.path.name}: rows are not contiguous", "Copy them first.")
        if self._shape[0] is not None and self.num_rows + len(rows) > self._shape[0]:
            raise UsageError(
                f"{self.path.name}: {self._shape[0]} rows expected, "
                f"{self.num_rows + len(rows)} found",
                "Declare as many rows as are written.",
            )

    def _close_page(self) -> None:
        self._crcs.append(self._crc)
        self._crc = 0

    def _write_back(self) -> None:
        """Start to write the window that ends here; wait for the one before and forget it."""
        start = self._at - self._window
        _sync_range(self._fd, start, self._window, _START)
        before = start - self._window
        if before >= 0:
            _sync_range(self._fd, before, self._window, _FINISH)
            os.posix_fadvise(self._fd, before, self._window, os.POSIX_FADV_DONTNEED)

    def finish(self) -> ArrayEntry:
        """Complete the file and its checksums on disk; a second call does nothing.

        `DatasetWriter.commit` does it for all arrays; whoever writes many gives back a window
        by doing it as soon as an array is whole.

        Returns
        -------
        ArrayEntry
            For the manifest.

        Raises
        ------
        RunError
            Fewer rows were written than declared.
        """
        if self._entry is not None:
            return self._entry
        if self._shape[0] not in {None, self.num_rows}:
            raise RunError(
                f"{self.path.name}: {self._shape[0]} rows expected, {self.num_rows} found",
                "Write all rows before the dataset is committed.",
            )
        if (self._at - HEADER_BYTES) % PAGE_BYTES:
            self._close_page()
        sums = b"".join(crc.to_bytes(4, "little") for crc in self._crcs)
        shape = (self.num_rows, *(size for size in self._shape[1:] if size is not None))
        entry = ArrayEntry(shape, self._logical, zlib.crc32(sums))
        with _writing(self.path):
            write_all(self._fd, memoryview(entry.header()), 0, self.path)
            os.fsync(self._fd)
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
            self.close()
            _write_file(self.path.with_suffix(".crc"), sums)
        self._entry = entry
        return entry

    def close(self) -> None:
        """Release the file and its windows; a second call does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            self._held.release()


class DatasetWriter:
    """Writes a dataset; a context manager that commits on leaving, or removes all on an error.

    Everything goes to the folder ``.<name>.partial`` beside `out` and gets its name when it is
    complete. Whoever holds the lock file ``.<name>.lock`` may write; the lock dies with its
    process. What a dead process left is gone on with after its last whole `stage` where it has the
    same origin, else it is removed. A run that lacks room or memory leaves its whole stages, too.

    Parameters
    ----------
    out
        Folder to make.
    overwrite
        Replace a dataset that is there already, when the new one is complete.
    ledger
        Charged for bytes on their way to the disk.
    origin
        Text that stands for all that the dataset depends on: its inputs and options. None: what is
        left is never gone on with.

    Raises
    ------
    UsageError
        `out` exists, or is not a dataset that could be replaced.
    ResourceError
        Another process is writing it, the disk is full, or nothing may be written there.
    """

    def __init__(
        self,
        out: Path | str,
        *,
        overwrite: bool = False,
        ledger: Ledger,
        origin: str | None = None,
    ) -> None:
        self.out = Path(out)
        if not self.out.name:
            raise UsageError(f"{str(out)!r} is no name for a new folder", "Give a name.")
        self.partial = self.out.with_name(f".{self.out.name}.partial")
        self._old = self.out.with_name(f".{self.out.name}.old")
        self._overwrite, self._ledger = overwrite, ledger
        self._lock: _Lock | None = None
        self._writers: dict[str, ArrayWriter] = {}
        self._journal = Journal(origin)
        self._stage = Stage()  # what has been made since the last stage that ended

    def __enter__(self) -> Self:
        with _writing(self.out.parent):
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _Lock(self.out.with_name(f".{self.out.name}.lock"), self.out)
        try:
            with _writing(self.partial):
                if self._old.exists():  # a process died between the two renames of `commit`
                    if self.out.exists():
                        shutil.rmtree(self._old)
                    else:
                        self._old.rename(self.out)
                self._check_out()
                self.partial.mkdir(exist_ok=True)
                self._journal = Journal.found(self.partial, self._journal.origin)
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_exc: object) -> None:
        try:
            if kind is None:
                self.commit()
        except ResourceError:
            kind = ResourceError
            raise
        finally:
            for writer in self._writers.values():
                writer.close()
            if self._lock is not None:
                if kind is not None and issubclass(kind, ResourceError) and self._is_worth_keeping:
                    Journal.found(self.partial, self._journal.origin)  # half-written arrays go
                    done = ", ".join(self._journal.stages)
                    _log.warning(
                        "%s is kept: the next run need not do %s again", self.partial, done
                    )
                else:
                    shutil.rmtree(self.partial, ignore_errors=True)
                self._lock.release()
                self._lock = None

    @property
    def _is_worth_keeping(self) -> bool:
        return self._journal.origin is not None and len(self._journal.stages) > 0

    def _check_out(self) -> None:
        if not os.path.lexists(self.out) or (self.out.is_dir() and not any(self.out.iterdir())):
            return
        if not self._overwrite:
            raise UsageError(f"{self.out} exists already", "Give another name, or --overwrite it.")
        if not (self.out / MANIFEST).is_file():
            raise UsageError(
                f"{self.out} is not a gnnx dataset, so it is not overwritten", "Give another name."
            )

    def nodes(self, name: str, count: int, *, num_classes: int = 0) -> None:
        """Declare a node type: N nodes, with labels of so many classes."""
        self._stage.nodes[check_name(name)] = NodeType(count, num_classes)

    def edges(self, edge_type: EdgeType, count: int) -> None:
        """Declare an edge type, (source type, relation, destination type), with E edges."""
        for name in edge_type:
            check_name(name)
        self._stage.edges[edge_type] = count

    def report(self, counts: Mapping[str, int]) -> None:
        """Add counts to the manifest that a user may want to see, such as of dropped edges."""
        self._stage.report.update(counts)

    def require(self, num_bytes: int) -> None:
        """Refuse to begin where the disk lacks the room for a dataset.

        Parameters
        ----------
        num_bytes
            Of all arrays and scratch files that are going to be written; those of stages that have
            ended count as there.

        Raises
        ------
        ResourceError
            The disk has not that much room.
        """
        num_bytes -= sum(entry.num_bytes for entry in self._journal.arrays().values())
        free = shutil.disk_usage(self.partial).free
        if num_bytes > free:
            raise ResourceError(
                f"{self.out}: {num_bytes} bytes to write, {free} free",
                "Free some space, or write elsewhere.",
            )

    def stage(self, name: str, work: Callable[[], Any]) -> Any:
        """Do a part of the work that is not done again when a run is interrupted after it.

        Parameters
        ----------
        name
            Of the stage.
        work
            Writes whole arrays; returns plain Python values.

        Returns
        -------
        object
            What `work` returned, now or in an earlier run of the same origin.

        Raises
        ------
        ResourceError
            The disk is full.
        """
        if name not in self._journal.stages:
            outcome = work()
            self._end_stage(name, outcome)
        return self._journal.stages[name].outcome

    def _end_stage(self, name: str, outcome: Any) -> None:
        stage, self._stage = self._stage, Stage()
        known = self._journal.arrays()
        stage.outcome = outcome
        stage.arrays = {n: w.finish() for n, w in self._writers.items() if n not in known}
        self._journal.stages[name] = stage
        if self._journal.origin is not None:
            with _writing(self.partial):
                _sync_folders(self.partial)
                fresh = self.partial / f"{JOURNAL}.new"
                _write_file(fresh, self._journal.dump().encode())
                fresh.rename(self.partial / JOURNAL)
                sync_folder(self.partial)

    def array(self, name: str, shape: tuple[int | None, ...], dtype: str) -> ArrayWriter:
        """Begin an array.

        Parameters
        ----------
        name
            Such as ``"nodes/node/x"``.
        shape
            Rows first, None where their number is known only at the end.
        dtype
            Logical dtype; bfloat16 is appended as uint16.

        Returns
        -------
        ArrayWriter
            To append to, in order; several may be open at once.

        Raises
        ------
        UsageError
            The name or dtype cannot be, or the array has been begun already.
        ResourceError
            The disk has not that much room.
        """
        if name in self._writers or name in self._journal.arrays():
            raise UsageError(f"{name} is written twice", "Begin each array once.")
        path = self.partial / f"{check_name(name)}.npy"
        entry = ArrayEntry(tuple(size or 0 for size in shape), dtype, 0)
        free = shutil.disk_usage(self.partial).free
        if entry.num_bytes > free:
            raise ResourceError(
                f"{self.out / name}.npy: {entry.num_bytes} bytes to write, {free} free",
                "Free some space, or write elsewhere.",
            )
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writers[name] = ArrayWriter(path, shape, dtype, self._ledger)
        return self._writers[name]

    def finished(self, name: str) -> tuple[Path, ArrayEntry]:
        """File and entry of an array of a stage that has ended, to read it."""
        return self.partial / f"{name}.npy", self._journal.arrays()[name]

    def interim(self, name: str, shape: tuple[int, ...], dtype: str) -> ArrayWriter:
        """Begin an array that later stages read with `read_interim`; the dataset has it not."""
        return self.array(f"{_INTERIM}/{name}", shape, dtype)

    def read_interim(self, name: str, out: NDArray[Any]) -> None:
        """Read an array of a stage that has ended.

        Parameters
        ----------
        name
            As of `interim`.
        out
            Contiguous, of its shape and dtype. Overwritten.

        Raises
        ------
        RunError
            The file is damaged.
        """
        path = self.partial / f"{_INTERIM}/{name}.npy"
        rest = memoryview(out).cast("B")  # type: ignore[arg-type]
        with path.open("rb", buffering=0) as file:
            file.seek(HEADER_BYTES)
            while rest:
                count = file.readinto(rest)
                if not count:
                    raise RunError(f"{path}: {len(rest)} bytes are missing", f"Remove {path}.")
                rest = rest[count:]

    def commit(self) -> None:
        """Complete the dataset on disk and give it its name; a second call does nothing.

        Raises
        ------
        RunError
            An array has fewer rows than declared.
        DataError
            Arrays and counts of nodes and edges disagree.
        """
        if not self.partial.exists():
            return
        done = [*self._journal.stages.values(), self._stage]
        arrays = self._journal.arrays()
        arrays |= {name: w.finish() for name, w in self._writers.items() if name not in arrays}
        manifest = Manifest(
            nodes={name: kind for stage in done for name, kind in stage.nodes.items()},
            edges={name: count for stage in done for name, count in stage.edges.items()},
            arrays={n: entry for n, entry in arrays.items() if not n.startswith(f"{_INTERIM}/")},
            report={name: count for stage in done for name, count in stage.report.items()},
        )
        manifest.check()
        with _writing(self.partial):
            _write_file(self.partial / MANIFEST, manifest.dump().encode())
            if (self.partial / _INTERIM).exists():
                shutil.rmtree(self.partial / _INTERIM)
            (self.partial / JOURNAL).unlink(missing_ok=True)
            _sync_folders(self.partial)
            self._rename()

    def _rename(self) -> None:
        if self.out.exists():
            self.out.rename(self._old)
        self.partial.rename(self.out)
        shutil.rmtree(self._old, ignore_errors=True)
        sync_folder(self.out.parent)


class _Lock:
    """Exclusive right to write an output, held through a lock file until released or dead."""

    def __init__(self, path: Path, out: Path) -> None:
        self._path = path
        while True:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.read(self._fd, 32).decode() or "unknown"
                os.close(self._fd)
                raise ResourceError(
                    f"{out}: locked: process {holder} is writing it",
                    "Wait for it to end, or give another name.",
                ) from None
            if self._is_current():
                break
            os.close(self._fd)  # its last holder removed the file before we locked it
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), self._path.stat())
        except FileNotFoundError:
            return False

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._fd)


def write_all(fd: int, data: memoryview, at: int, path: Path) -> None:
    """Write all of the data at an offset of a file.

    Parameters
    ----------
    fd
        Descriptor of the file.
    data
        The bytes.
    at
        Offset of the first.
    path
        Name of the file, for messages.

    Raises
    ------
    ResourceError
        The disk is full.
    RunError
        It fails otherwise.
    """
    while data:
        try:
            written = os.pwrite(fd, data, at)
        except OSError as error:
            raise write_error(error, path, len(data), at) from error
        data, at = data[written:], at + written


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """Write a file that gets its name when it is whole and synced; else nothing is left of it.

    Parameters
    ----------
    path
        A new file, or one to replace.

    Yields
    ------
    file
        Under a temporary name in the same folder.

    Raises
    ------
    UsageError
        A rename would not make it, or would replace what is no file.
    ResourceError
        The file system refuses.
    """
    if not path.name or not path.parent.is_dir() or (os.path.lexists(path) and not path.is_file()):
        raise UsageError(f"{str(path)!r} is no place for a file", "Name a new file in a folder.")
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        if error.errno is None or error.filename not in {None, str(partial)}:
            raise  # a wait without end, or of another file
        raise ResourceError(
            f"{path}: {error.strerror or error}", "Free some space, or write elsewhere."
        ) from error
    finally:
        partial.unlink(missing_ok=True)


@contextlib.contextmanager
def enough_named() -> Iterator[None]:
    """Let a BudgetError of HOST name a budget with which most datasets are written.

    The ledger knows only the allocation that failed, and those after it want more: with many nodes
    even more than is named, 8 B a node for values of edges and 40 B for a partition.

    Raises
    ------
    BudgetError
        With the first line of the one met.
    """
    try:
        yield
    except BudgetError as error:
        if error.tier != Tier.HOST.value or error.smallest_bytes >= _ENOUGH_BYTES:
            raise
        raise BudgetError(
            error.cause,
            f"Give --memory at least {_ENOUGH_BYTES >> 20}MiB.",
            tier=error.tier,
            shortfall_bytes=error.shortfall_bytes + _ENOUGH_BYTES - error.smallest_bytes,
            smallest_bytes=_ENOUGH_BYTES,
        ) from error


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Tell what the system refuses while something is written."""
    try:
        yield
    except OSError as error:
        where = Path(error.filename) if isinstance(error.filename, str) else path
        if error.errno in _FULL:
            remedy = "Free some space, or write elsewhere."
        elif error.errno in {errno.EROFS, errno.EACCES, errno.EPERM}:
            remedy = "Give a folder that may be written."
        else:
            raise RunError(f"{where}: {error.strerror}", "Check the disk.") from error
        raise ResourceError(f"{where}: {error.strerror}", remedy) from error


def write_error(error: OSError, path: Path, size: int, at: int) -> GnnxError:
    """Tell why bytes could not be written at an offset of a file."""
    cause = f"{path}: {error.strerror} writing {size} bytes at byte {at}"
    if error.errno in _FULL:
        return ResourceError(cause, "Free some space, or write elsewhere.")
    return RunError(cause, "Check the disk.")


def _write_file(path: Path, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        write_all(fd, memoryview(data), 0, path)
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_folders(path: Path) -> None:
    for folder, _, _ in os.walk(path, topdown=False):
        sync_folder(Path(folder))


def sync_folder(path: Path) -> None:
    """Put the names in a folder on the disk: without it a rename may be undone by a power loss."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_range(fd: int, start: int, size: int, flags: int) -> None:
    """Advice: an error shows again in fsync, which decides."""
    _libc.sync_file_range(fd, ctypes.c_int64(start), ctypes.c_int64(size), ctypes.c_uint(flags))
