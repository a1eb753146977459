"""Arrays in files: numbers of one shape in a region of an open file, read in pieces.

Every input becomes one of these: an `.npy` file, a stored member of an `.npz` archive, or a scratch
file into which a compressed member was unpacked or a text parsed. Inputs are opened for reading
only, and their sizes are held against their headers before anything is read.
"""

from __future__ import annotations

import ast
import contextlib
import os
import struct
import tempfile
import zipfile
import zlib
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from gnnx.errors import DataError, ResourceError
from gnnx.memory import Tier
from gnnx.prepare import _kernels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import DTypeLike, NDArray

    from gnnx.memory import Ledger, Reservation

_LARGEST_PIECE, _SMALLEST_PIECE = 8 << 20, 64 << 10
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

    def empty(self, shape: int | tuple[int, ...], dtype: DTypeLike, owner: str) -> NDArray[Any]:
        """Buffer in host memory."""
        return self.ledger.empty(shape, dtype, Tier.HOST, owner)

    def rows_of(self, row_bytes: int) -> int:
        """Rows of so many bytes that make a piece; at least one."""
        return max(1, self.piece_bytes // max(1, row_bytes))


class Scratch:
    """File without a name that is appended to, then read as an `Array`."""

    def __init__(self, fd: int, workspace: Workspace) -> None:
        self.fd, self.size = fd, 0
        self._workspace = workspace
        self._held: list[Reservation] = []

    def append(self, data: NDArray[Any]) -> None:
        """Write the bytes of an array after those that are there.

        Parameters
        ----------
        data
            Contiguous.

        Raises
        ------
        ResourceError
            The disk is full.
        """
        rest = _bytes_of(data)
        self._held.append(self._workspace.ledger.reserve(len(rest), Tier.DISK, "scratch"))
        while rest:
            try:
                written = os.pwrite(self.fd, rest, self.size)
            except OSError as error:
                raise ResourceError(
                    f"scratch file in {self._workspace.folder}: {error.strerror} "
                    f"writing {len(rest)} bytes at byte {self.size}",
                    "Free some space, or write elsewhere.",
                ) from None
            self.size += written
            rest = rest[written:]

    def release(self) -> None:
        """Give the bytes back to the ledger."""
        for reservation in self._held:
            reservation.release()

    def array(self, where: str, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Read what has been written as an array."""
        return Array(where, self.fd, 0, shape, np.dtype(dtype))


class Array:
    """Numbers of one shape in a region of an open file.

    Parameters
    ----------
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
        where: str,
        fd: int,
        offset: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        by_columns: bool = False,
    ) -> None:
        self.where, self.shape, self.dtype = where, shape, dtype
        self.by_columns = by_columns and len(shape) > 1
        self._fd, self._offset = fd, offset

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return int(np.prod(self.shape[1:], dtype=np.int64))

    def read_into(self, buffer: NDArray[Any], begin: int) -> None:
        """Read numbers in the order of the file.

        Parameters
        ----------
        buffer
            Contiguous, of the array's dtype; filled whole.
        begin
            The first number to read.

        Raises
        ------
        DataError
            The file ends early.
        """
        rest = _bytes_of(buffer)
        at = self._offset + begin * self.dtype.itemsize
        while rest:
            count = os.preadv(self._fd, [rest], at)
            if count == 0:
                raise DataError(f"{self.where}: the file ends at byte {at}", _AGAIN)
            rest, at = rest[count:], at + count

    def pieces(self, workspace: Workspace) -> Iterator[NDArray[Any]]:
        """Read all rows in pieces, in order.

        Parameters
        ----------
        workspace
            Gives the buffer.

        Yields
        ------
        ndarray, (r, ...)
            Valid until the next one is asked for.
        """
        width = self.width
        rows = min(workspace.rows_of(width * self.dtype.itemsize), max(1, len(self)))
        buffer = workspace.empty(rows * width, self.dtype, "input")
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


class SparseRows:
    """A sparse matrix in files: CSR, of which rows are read as dense ones or as pairs.

    Parameters
    ----------
    indptr
        Array, (N + 1,).
    indices
        Array of columns, (E,).
    data
        Array of values, (E,); ones without it.
    num_columns
        F; columns are in [0, F).

    Raises
    ------
    DataError
        The arrays disagree, or are not integers where they have to be.
    """

    def __init__(self, indptr: Array, indices: Array, data: Array | None, num_columns: int) -> None:
        self.where, self.indices, self.data = indices.where, indices, data
        self.shape: tuple[int, ...] = (len(indptr) - 1, num_columns)
        self.dtype = np.dtype(np.uint8) if data is None else data.dtype
        self._indptr = indptr
        for array in (indptr, indices):
            if array.dtype.kind not in "iu" or len(array.shape) != 1:
                raise DataError(f"{array.where}: not a list of integers", "Give a CSR matrix.")
        if data is not None and data.shape != indices.shape:
            raise DataError(f"{data.where}: {len(data)} values for {len(indices)} columns", _AGAIN)

    def __len__(self) -> int:
        return self.shape[0]

    def pointers(self, workspace: Workspace, num_rows: int) -> Iterator[tuple[int, NDArray[Any]]]:
        """Read where rows begin and end.

        Parameters
        ----------
        workspace
            Gives the buffers.
        num_rows
            Rows a piece.

        Yields
        ------
        tuple
            First row, and r + 1 pointers of r rows, int64; the first piece begins at row 0.

        Raises
        ------
        DataError
            The pointers do not ascend from 0 to the number of entries.
        """
        raw = workspace.empty(num_rows + 1, self._indptr.dtype, "input")
        pointers = workspace.empty(num_rows + 1, np.int64, "input")
        last = 0
        for begin in range(0, len(self), num_rows):
            count = min(num_rows, len(self) - begin) + 1
            self._indptr.read_into(raw[:count], begin)
            np.copyto(pointers[:count], raw[:count], casting="unsafe")
            wrong = _kernels.first_descent(pointers[:count], last)
            last = int(pointers[count - 1])
            if wrong >= 0 or last > len(self.indices):
                raise DataError(
                    f"{self._indptr.where}: rows do not ascend from 0 to {len(self.indices)} "
                    f"at entry {begin + max(wrong, 0)}",
                    "Give a CSR matrix: its indptr, indices and shape.",
                )
            yield begin, pointers[:count]
        if last != len(self.indices):
            raise DataError(
                f"{self._indptr.where}: {last} entries, {self.indices.where}: {len(self.indices)}",
                "Give the indptr and indices of one matrix.",
            )

    def pieces(self, workspace: Workspace) -> Iterator[NDArray[Any]]:
        """Read all rows, made dense, in pieces, in order.

        Parameters
        ----------
        workspace
            Gives the buffers.

        Yields
        ------
        ndarray, (r, F)
            Valid until the next one is asked for.

        Raises
        ------
        DataError
            A column is outside [0, F), or as `pointers`.
        """
        num_columns = self.shape[1]
        rows = min(workspace.rows_of(num_columns * self.dtype.itemsize), max(1, len(self)))
        dense = workspace.empty((rows, num_columns), self.dtype, "input")
        for first, pointers in self.pointers(workspace, rows):
            begin, size = int(pointers[0]), int(pointers[-1] - pointers[0])
            columns = workspace.empty(size, self.indices.dtype, "input")
            self.indices.read_into(columns, begin)
            values = workspace.empty(size, self.dtype, "input")
            if self.data is None:
                values[:] = 1
            else:
                self.data.read_into(values, begin)
            out = dense[: len(pointers) - 1]
            wrong = _kernels.densify(pointers, columns, values, out)
            if wrong >= 0:
                raise DataError(
                    f"{self.where}: row {first + wrong} has a column outside the {num_columns}",
                    "Give the matrix's true shape.",
                )
            yield out


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
    return _region(path.name, fd, 0, os.fstat(fd).st_size)


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
            The member is damaged, or no array of numbers.
        """
        info = self._members[f"{name}.npy"]
        where = f"{self._path.name}: {name}"
        if info.compress_type == zipfile.ZIP_STORED:
            header = os.pread(self._fd, 30, info.header_offset)
            if len(header) < 30 or header[:4] != b"PK\x03\x04":
                raise DataError(f"{where}: damaged at byte {info.header_offset}", _AGAIN)
            name_bytes, extra_bytes = struct.unpack("<HH", header[26:30])
            offset = info.header_offset + 30 + name_bytes + extra_bytes
            return _region(where, self._fd, offset, info.file_size)
        scratch = self._workspace.scratch()
        try:
            with zipfile.ZipFile(self._path) as archive, archive.open(info) as member:
                while data := member.read(1 << 20):
                    scratch.append(np.frombuffer(data, np.uint8))
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise DataError(f"{where}: cannot be unpacked: {error}", _AGAIN) from None
        return _region(where, scratch.fd, 0, scratch.size)


def _region(where: str, fd: int, start: int, size: int) -> Array:
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
        shape, dtype = tuple(map(int, form["shape"])), np.dtype(form["descr"])
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
    return Array(where, fd, start + skip + length, shape, dtype, by_columns=by_columns)


def _bytes_of(data: NDArray[Any]) -> memoryview:
    return data.data.cast("B") if data.size else memoryview(b"")


def unreadable(path: Path, error: OSError) -> DataError:
    """Error of a file that cannot be opened."""
    return DataError(f"{path}: {error.strerror}", "Give a file that exists and may be read.")
