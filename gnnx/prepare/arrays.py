"""Arrays in files: numbers of one shape in a region of an open file, read in pieces.

Every input becomes one of these: an `.npy` file, a stored member of an `.npz` archive, or a scratch
file into which a compressed member was unpacked or a text parsed. Inputs are opened for reading
only, and their sizes are held against their headers before anything is read.
"""

from __future__ import annotations

import ast
import collections
import contextlib
import itertools
import os
import struct
import tempfile
import threading
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import numpy as np

from gnnx.errors import BudgetError, DataError, ResourceError
from gnnx.memory import Tier, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import DTypeLike, NDArray

    from gnnx.memory import Ledger, Reservation
    from gnnx.store.writer import ArrayWriter

T = TypeVar("T")

_LARGEST_PIECE, _SMALLEST_PIECE = 8 << 20, 64 << 10
_MOST_BUFFERS = 1024  # that the system writes in one call
_MAGIC = b"\x93NUMPY"
_AGAIN = "Fetch or write the file again."


class Workspace:
    """What a preparation holds while it runs: its ledger, open inputs and scratch files.

    Parameters
    ----------
    folder
        Where scratch files go; they have no name there and vanish with the process.
    ledger
        HOST gives buffers; DISK is charged for scratch files.
    """

    def __init__(self, folder: Path, ledger: Ledger) -> None:
        self.folder, self.ledger = folder, ledger
        free = ledger.free_bytes(Tier.HOST)
        share = _LARGEST_PIECE if free is None else free // 32
        self.piece_bytes = min(_LARGEST_PIECE, max(_SMALLEST_PIECE, share))
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stack.close()

    def keep(self, resource: contextlib.AbstractContextManager[T]) -> T:
        """Enter a context that lasts as long as the workspace."""
        return self._stack.enter_context(resource)

    def open(self, path: Path) -> int:
        """Open an input for reading.

        Parameters
        ----------
        path
            A file.

        Returns
        -------
        int
            A descriptor, open as long as the workspace.

        Raises
        ------
        DataError
            There is no such file, or it may not be read.
        """
        check_plain(path)
        try:
            fd = os.open(path, os.O_RDONLY)
        except OSError as error:
            raise unreadable(path, error) from None
        self._stack.callback(os.close, fd)
        return fd

    def scratch(self) -> Scratch:
        """Make a scratch file, there as long as the workspace."""
        file = tempfile.TemporaryFile(dir=self.folder)  # noqa: SIM115 - the stack closes it
        self._stack.enter_context(file)
        scratch = Scratch(file.fileno(), self)
        self._stack.callback(scratch.release)
        return scratch

    @contextlib.contextmanager
    def whole(self, name: str, num_bytes: int, factor: int) -> Iterator[None]:
        """Hold room for an input that its reader takes into memory as a whole.

        Parameters
        ----------
        name
            Of the file.
        num_bytes
            Of the file.
        factor
            Bytes in memory for each of the file's, measured with tracemalloc on real files.

        Raises
        ------
        BudgetError
            It is not to be expected that it fits.
        """
        need, free = num_bytes * factor, self.ledger.free_bytes(Tier.HOST)
        if free is not None and need > free:
            smallest = self.ledger.held_bytes(Tier.HOST) + need
            raise BudgetError(
                f"{name}: is read as a whole, which takes about {format_bytes(need)}; "
                f"{format_bytes(free)} of the memory are left",
                f"Give --memory {-(-smallest >> 20)}MiB or more, or convert it to .npy or Parquet.",
                tier=Tier.HOST.value,
                shortfall_bytes=need - free,
                smallest_bytes=smallest,
            )
        with self.ledger.reserve(need, Tier.HOST, "input"):
            yield

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike, owner: str) -> NDArray[Any]:
        """Buffer in host memory."""
        return self.ledger.empty(shape, dtype, Tier.HOST, owner)

    def rows_of(self, row_bytes: int) -> int:
        """Rows of so many bytes that make a piece; at least one."""
        return max(1, self.piece_bytes // max(1, row_bytes))


class Scratch:
    """File without a name that is appended to, by several threads too, then read as an `Array`."""

    def __init__(self, fd: int, workspace: Workspace) -> None:
        self.fd, self.size = fd, 0
        self._workspace = workspace
        self._held: list[Reservation] = []
        self._lock = threading.Lock()

    def append(self, *data: NDArray[Any]) -> int:
        """Write the bytes of arrays after those that are there, or that others are writing.

        Parameters
        ----------
        *data
            Contiguous; written one after the other.

        Returns
        -------
        int
            The byte at which they begin.

        Raises
        ------
        ResourceError
            The disk is full.
        """
        rest = collections.deque(_bytes_of(array) for array in data if array.size)
        size = sum(map(len, rest))
        self._held.append(self._workspace.ledger.reserve(size, Tier.DISK, "scratch"))
        with self._lock:
            begin = at = self.size
            self.size += size
        while rest:
            try:
                written = os.pwritev(self.fd, [*itertools.islice(rest, _MOST_BUFFERS)], at)
            except OSError as error:
                raise ResourceError(
                    f"scratch file in {self._workspace.folder}: {error.strerror} "
                    f"writing {begin + size - at} bytes at byte {at}",
                    "Free some space, or write elsewhere.",
                ) from None
            at += written
            while rest and written >= len(rest[0]):
                written -= len(rest.popleft())
            if written:
                rest[0] = rest[0][written:]
        return begin

    def release(self) -> None:
        """Give the bytes back to the ledger."""
        for reservation in self._held:
            reservation.release()

    def array(self, where: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Read what has been written as an array."""
        return Array(self._workspace, where, self.fd, 0, shape, np.dtype(dtype))


class Array:
    """Numbers of one shape in a region of an open file.

    Parameters
    ----------
    workspace
        Gives the buffers.
    where
        File, and member of it, for messages.
    fd
        Open file.
    offset
        Byte at which the numbers begin.
    shape
        Rows first.
    dtype
        Of fixed size, in any byte order.
    by_columns
        A matrix is stored column after column (Fortran order).
    """

    def __init__(
        self,
        workspace: Workspace,
        where: str,
        fd: int,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        by_columns: bool = False,
    ) -> None:
        self.workspace, self.where = workspace, where
        self.shape, self.dtype = shape, dtype
        self.by_columns = by_columns and len(shape) > 1
        self._fd, self._offset = fd, offset

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return int(np.prod(self.shape[1:], dtype=np.int64))

    def read_into(self, out: NDArray[Any], begin: int) -> None:
        """Read numbers in the order of the file, and convert them.

        Parameters
        ----------
        out
            (n,), contiguous; filled whole.
        begin
            The first number to read.

        Raises
        ------
        DataError
            The file ends early.
        """
        raw = out
        if out.dtype != self.dtype:
            raw = self.workspace.empty(len(out), self.dtype, "input")
        rest = _bytes_of(raw)
        at = self._offset + begin * self.dtype.itemsize
        while rest:
            count = os.preadv(self._fd, [rest], at)
            if count == 0:
                raise DataError(f"{self.where}: the file ends at byte {at}", _AGAIN)
            rest, at = rest[count:], at + count
        if raw is not out:
            np.copyto(out, raw, casting="unsafe")

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Read all rows in pieces, in order.

        Yields
        ------
        ndarray, (r, ...)
            Valid until the next one is asked for.
        """
        width = self.width
        rows = min(self.workspace.rows_of(width * self.dtype.itemsize), max(1, len(self)))
        buffer = self.workspace.empty(rows * width, self.dtype, "input")
        for begin in range(0, len(self), rows):
            count = min(rows, len(self) - begin)
            piece = buffer[: count * width]
            if self.by_columns:
                columns = piece.reshape(width, count)
                for column in range(width):
                    self.read_into(columns[column], column * len(self) + begin)
                yield columns.T
            else:
                self.read_into(piece, begin * width)
                yield piece.reshape(count, *self.shape[1:])

    def write(self, out: ArrayWriter) -> None:
        """Append all rows to an array of a data set."""
        for piece in self.pieces():
            out.append(piece)


def open_npy(workspace: Workspace, path: Path) -> Array:
    """Open an `.npy` file.

    Parameters
    ----------
    workspace
        Keeps the file open.
    path
        The file.

    Returns
    -------
    Array
        Whose file has the size that its header says.

    Raises
    ------
    DataError
        The file is no array of numbers, truncated, or longer than its header says.
    """
    fd = workspace.open(path)
    return _region(workspace, path.name, fd, 0, os.fstat(fd).st_size)


class Archive:
    """An `.npz` file, member by member.

    Parameters
    ----------
    workspace
        Keeps the file open; compressed members are unpacked into its scratch files.
    path
        The file.

    Raises
    ------
    DataError
        The file is not a whole zip archive.
    """

    def __init__(self, workspace: Workspace, path: Path) -> None:
        self._workspace, self._path = workspace, path
        self._fd = workspace.open(path)
        try:
            with zipfile.ZipFile(path) as archive:
                self._members = {info.filename: info for info in archive.infolist()}
        except zipfile.BadZipFile:
            size = os.fstat(self._fd).st_size
            raise DataError(
                f"{path.name}: not a whole .npz archive: its directory is missing from "
                f"the end of its {size} bytes",
                _AGAIN,
            ) from None
        self.names = [name.removesuffix(".npy") for name in self._members]

    def __contains__(self, name: str) -> bool:
        return f"{name}.npy" in self._members

    def array(self, name: str) -> Array:
        """Open a member.

        Parameters
        ----------
        name
            Without ``.npy``.

        Returns
        -------
        Array
            In the archive itself where it is stored as it is, else unpacked.

        Raises
        ------
        DataError
            The member is missing, damaged, or no array of numbers.
        """
        if name not in self:
            raise DataError(f"{self._path.name}: no {name} in it", "Add it, or fetch it again.")
        info = self._members[f"{name}.npy"]
        where = f"{self._path.name}: {name}"
        if info.compress_type == zipfile.ZIP_STORED:
            header = os.pread(self._fd, 30, info.header_offset)
            if len(header) < 30 or header[:4] != b"PK\x03\x04":
                raise DataError(f"{where}: damaged at byte {info.header_offset}", _AGAIN)
            name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
            offset = info.header_offset + 30 + name_bytes + extra_bytes
            return _region(self._workspace, where, self._fd, offset, info.file_size)
        scratch = self._workspace.scratch()
        try:
            with zipfile.ZipFile(self._path) as archive, archive.open(info) as member:
                while data := member.read(1 << 20):
                    scratch.append(np.frombuffer(data, np.uint8))
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise DataError(f"{where}: cannot be unpacked: {error}", _AGAIN) from None
        return _region(self._workspace, where, scratch.fd, 0, scratch.size)


def _region(workspace: Workspace, where: str, fd: int, start: int, size: int) -> Array:
    """Array whose `.npy` header is at `start` and whose header and numbers have `size` bytes."""
    head = os.pread(fd, 12, start)
    wide = head[6:7] in {b"\x02", b"\x03"}  # the length of the header has 2 or 4 bytes
    skip = 12 if wide else 10
    if head[:6] != _MAGIC or len(head) < skip:
        raise DataError(
            f"{where}: not an .npy array ({size} bytes)", "Write it with numpy.save, or name it so."
        )
    length = int.from_bytes(head[8:skip], "little")
    try:
        form = ast.literal_eval(os.pread(fd, min(length, size), start + skip).decode("latin1"))
        shape = tuple(map(int, form["shape"])) or (1,)  # a number is a list of one
        dtype = np.dtype(form["descr"])
        by_columns = bool(form["fortran_order"])
    except (SyntaxError, ValueError, TypeError, KeyError):
        raise DataError(f"{where}: its .npy header is damaged", _AGAIN) from None
    if dtype.hasobject:
        raise DataError(
            f"{where}: holds pickled objects, which may run code when they are read",
            "Save plain arrays: of a sparse matrix its data, indices, indptr and shape.",
        )
    expected = skip + length + cast("int", np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if size != expected:
        raise DataError(f"{where}: {expected} bytes expected, {size} found", _AGAIN)
    offset = start + skip + length
    return Array(workspace, where, fd, offset, shape, dtype, by_columns=by_columns)


def _bytes_of(data: NDArray[Any]) -> memoryview:
    return data.data.cast("B") if data.size else memoryview(b"")


def check_plain(path: Path) -> None:
    """Refuse pipes and devices, which cannot be read twice and may never answer.

    Parameters
    ----------
    path
        Of an input; whether it is there is not checked.

    Raises
    ------
    DataError
        It is neither a file nor a folder.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(f"{path}: not a plain file", "Write it to a file: inputs are read twice.")


def unreadable(path: Path, error: OSError) -> DataError:
    """Error of a file that cannot be opened."""
    return DataError(f"{path}: {error.strerror}", "Give a file that exists and may be read.")
