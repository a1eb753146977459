"""Tables in text: .txt, .csv, .tsv, plain or gzipped, parsed once into a scratch file of numbers.

A file is a sequence of lines; a line that is blank or begins with the comment sign is none. The
first line may be a header: it is one where no field of it is a number. Fields are separated by one
delimiter, with blanks around it, or by runs of blanks; lines may end in CR LF.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import io
import os
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx.errors import DataError, UsageError
from gnnx.prepare import _kernels

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gnnx.prepare.arrays import Array, Workspace
    from gnnx.prepare.report import Dropped
    from gnnx.threads import Progress

_SUFFIXES = {".txt", ".csv", ".tsv", ".edgelist", ".edges"}
_SHOWN = 40  # characters of a wrong field
_SLOW_FIELDS = 4096  # fields that Python reads, in one go


@dataclasses.dataclass(frozen=True)
class TextFormat:
    """How lines are cut into fields; None finds out from the first line."""

    delimiter: str | None = None
    """One character, ``"\\t"`` as shells hand it over too; ``" "`` is any run of blanks."""
    header: bool | None = None
    comment: str = "#"
    """One character, or none."""

    def __post_init__(self) -> None:
        if self.delimiter == "\\t":
            object.__setattr__(self, "delimiter", "\t")
        for name, text in (("delimiter", self.delimiter), ("comment", self.comment)):
            if text and (len(text) > 1 or not text.isascii()):
                raise UsageError(f"{name} {text!r} is not one character", "Give one character.")


class TextTable:
    """A table in a text file, of which numbers are read.

    Parameters
    ----------
    workspace
        Gives buffers and scratch files.
    path
        The file; gzipped where its name ends in ``.gz``.
    form
        How lines are cut into fields.
    progress
        Told the bytes of the file that have been read.
    dropped
        Takes lines of ids that are at fault, which are refused without it.

    Raises
    ------
    DataError
        The file cannot be read.
    """

    def __init__(
        self,
        workspace: Workspace,
        path: Path,
        form: TextFormat,
        progress: Progress | None = None,
        dropped: Dropped | None = None,
    ) -> None:
        self.where = path.name
        self._dropped = dropped
        self._workspace, self._path, self._progress = workspace, path, progress
        self._fd = workspace.open(path)
        self._comment = ord(form.comment) if form.comment else -1
        self._skip_bytes = self._skip_lines = 0
        fields, first = self._first_line(form.delimiter)
        header = not any(map(_is_number, fields)) if form.header is None else form.header
        if fields and header:
            self._skip_bytes, self._skip_lines = first
        self.num_columns = len(fields)

    def _first_line(self, delimiter: str | None) -> tuple[list[str], tuple[int, int]]:
        """Fields of the first line; bytes and lines up to its end. Finds the separator."""
        self._separator = ord(delimiter) if delimiter and delimiter != " " else _kernels.WHITESPACE
        num_bytes = num_lines = 0
        with self._opened() as file:
            for raw in file:
                num_bytes, num_lines = num_bytes + len(raw), num_lines + 1
                line = raw.decode("latin1").strip(" \t\r\n")
                if num_lines == 1 and raw.startswith(b"\xef\xbb\xbf"):  # a byte order mark
                    self._skip_bytes, line = 3, line[3:]
                if line and not (self._comment >= 0 and line.startswith(chr(self._comment))):
                    if delimiter is None:
                        found = [sign for sign in ",\t;" if sign in line]
                        self._separator = ord(found[0]) if found else _kernels.WHITESPACE
                    sign = chr(self._separator) if self._separator else None
                    return [field.strip() for field in line.split(sign)], (num_bytes, num_lines)
        return [], (num_bytes, num_lines)

    def ids(self, num_columns: int, limit: int) -> Array:
        """Leading columns as node ids.

        Parameters
        ----------
        num_columns
            1 or 2.
        limit
            N; ids are in [0, N).

        Returns
        -------
        Array
            (rows, num_columns), or (rows,) for one column; int32 where N fits, else int64.

        Raises
        ------
        DataError
            A field is no integer, is missing or outside; the message names file and line.
        """
        dtype = np.dtype(np.int32 if limit <= 2**31 else np.int64)
        out = self._workspace.empty(
            (self._workspace.rows_of(8 * num_columns), num_columns), dtype, "text"
        )
        scratch, num_rows = self._workspace.scratch(), 0
        for count in self._parse_ids(out, limit, np.zeros(4, np.int64)):
            scratch.append(out[:count])
            num_rows += count
        shape = (num_rows,) if num_columns == 1 else (num_rows, num_columns)
        return scratch.array(self.where, shape, dtype)

    def largest_id(self) -> int:
        """Largest id of the first two columns, -1 where there is none."""
        out = self._workspace.empty((self._workspace.rows_of(16), 2), np.int64, "text")
        state = np.zeros(4, np.int64)
        for _ in self._parse_ids(out, np.iinfo(np.int64).max, state):
            pass
        return int(state[1])

    def _parse_ids(self, out: NDArray[Any], limit: int, state: NDArray[np.int64]) -> Iterator[int]:
        """Fill `out` again and again; yields the rows filled. `state` is as the kernel's."""
        state[:] = self._skip_lines, -1, 0, 0
        if self._dropped is not None:
            self._dropped.clear()
        for text in self._blocks():
            at = 0
            while at < len(text):
                rows, at = _kernels.parse_ids(
                    text, at, self._separator, self._comment, limit, out, state
                )
                if state[2]:
                    error = self._id_error(text, state, out.shape[1], limit)
                    if self._dropped is None:
                        raise error
                    self._dropped.note(error.cause)
                    state[2], at = 0, at + _kernels.end_of_line(text[at:])
                yield rows

    def _id_error(
        self, text: NDArray[np.uint8], state: NDArray[np.int64], num_columns: int, limit: int
    ) -> DataError:
        where = f"{self.where}:{state[0]}"
        if state[2] == _kernels.TOO_FEW_COLUMNS:
            return DataError(
                f"{where}: {num_columns} columns expected, fewer found",
                "Give a source and a destination in every line, or the right --delimiter.",
            )
        field = bytes(text[state[3] : state[3] + 200]).split(b"\n")[0].decode("latin1")
        token = field.split(chr(self._separator) if self._separator else None)[0].strip()
        if state[2] == _kernels.OUTSIDE:
            return outside(where, int(token), limit)
        shown = token if len(token) <= _SHOWN else token[:_SHOWN] + "…"
        return DataError(
            f"{where}: {shown!r} is not an integer id", "Number the nodes 0, 1, …, N - 1."
        )

    def numbers(self, dtype: type[np.float32 | np.float64]) -> Array:
        """All columns as numbers; an empty field is NaN.

        Parameters
        ----------
        dtype
            float32 or float64.

        Returns
        -------
        Array
            (rows, columns).

        Raises
        ------
        DataError
            A field is no number, or a line has more or fewer columns than the first one; the
            message names file and line.
        """
        scratch, num_rows = self._workspace.scratch(), 0
        for piece in self.number_pieces(dtype):
            scratch.append(piece)
            num_rows += len(piece)
        return scratch.array(self.where, (num_rows, self.num_columns), dtype)

    def number_pieces(
        self, dtype: type[np.float32 | np.float64]
    ) -> Iterator[NDArray[np.floating[Any]]]:
        """Read all columns as numbers, in pieces; see `numbers`.

        Parameters
        ----------
        dtype
            float32 or float64.

        Yields
        ------
        ndarray, (r, columns)
            Valid until the next one is asked for.
        """
        width = max(1, self.num_columns)
        rows = self._workspace.rows_of(width * np.dtype(dtype).itemsize)
        out = self._workspace.empty((rows, width), dtype, "text")
        odd = self._workspace.empty((max(_SLOW_FIELDS, width), 5), np.int64, "text")
        state = np.array([self._skip_lines, 0, 0, 0], np.int64)
        for text in self._blocks():
            at = 0
            while at < len(text):
                count, at = _kernels.parse_numbers(
                    text, at, self._separator, self._comment, _kernels.POWERS, out, state, odd
                )
                if state[2]:
                    raise DataError(
                        f"{self.where}:{state[0]}: {width} columns expected, {state[3]} found",
                        "Give every line as many columns as the first one.",
                    )
                for line, row, column, first, last in odd[: state[1]].tolist():
                    field = bytes(text[first:last]).decode("latin1").strip()
                    out[row, column] = _number(field, f"{self.where}:{line}", dtype)
                state[1] = 0
                yield out[:count]

    @contextlib.contextmanager
    def _opened(self) -> Iterator[io.BufferedIOBase]:
        os.lseek(self._fd, 0, os.SEEK_SET)
        raw = io.FileIO(self._fd, closefd=False)
        try:
            if self._path.suffix == ".gz":
                yield gzip.GzipFile(fileobj=raw, mode="rb")
            else:
                yield io.BufferedReader(raw)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(
                f"{self.where}: cannot be decompressed: {error}", "Fetch the file again."
            ) from None

    def _blocks(self) -> Iterator[NDArray[np.uint8]]:
        """Read the text from the first line of data on, in runs of whole lines."""
        buffer = self._workspace.empty(self._workspace.piece_bytes, np.uint8, "text")
        size = os.fstat(self._fd).st_size
        rest = 0  # bytes of a line that began in the block before
        with self._opened() as file:
            file.seek(self._skip_bytes)
            while True:
                count = file.readinto(buffer[rest : len(buffer) - 1].data)
                if self._progress:
                    self._progress(f"reading {self.where}", os.lseek(self._fd, 0, 1), size)
                end = rest + count
                if count == 0:
                    if rest:  # the last line lacks its newline
                        buffer[rest] = _kernels.NEWLINE
                        yield buffer[: rest + 1]
                    return
                whole = _kernels.end_of_lines(buffer[:end])
                if whole:
                    yield buffer[:whole]
                rest = end - whole
                if whole == 0 and end == len(buffer) - 1:  # a line longer than the buffer
                    longer = self._workspace.empty(2 * len(buffer), np.uint8, "text")
                    longer[:rest] = buffer[:rest]
                    buffer = longer
                else:
                    buffer[:rest] = buffer[whole:end].copy()


def is_text(path: Path) -> bool:
    """Whether the name is one of a table in text."""
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain.suffix in _SUFFIXES


def outside(where: str, node: int, num_nodes: int) -> DataError:
    """Error of an id that is no node's."""
    return DataError(
        f"{where}: node {node} is outside the {num_nodes} nodes",
        "Ids are 0, 1, …, N - 1: give the true number of nodes, or renumber them.",
    )


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return "_" not in field  # which Python takes for a number


def _number(field: str, where: str, dtype: type[np.float32 | np.float64]) -> np.floating[Any]:
    if field == "":
        return dtype("nan")
    if not _is_number(field):
        raise DataError(f"{where}: {field!r} is not a number", "Correct the field.")
    with np.errstate(over="ignore"):
        return dtype(float(field))
