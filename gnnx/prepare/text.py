"""Tables in text: .txt, .csv, .tsv, plain or gzipped, parsed once into a scratch file of numbers.

A file is a sequence of lines; a line that is blank or begins with the comment sign is none. The
first line may be a header: it is one where no field of it is a number. Fields are separated by one
delimiter, with blanks around it, or by runs of blanks; lines may end in CR LF.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gzip
import io
import itertools
import os
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx import threads
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


@dataclasses.dataclass
class _Block:
    """Whole lines, and ids parsed of some of them."""

    text: NDArray[np.uint8]
    out: NDArray[Any]
    state: NDArray[np.int64]
    """As the kernel's."""
    rows: int = 0
    """Of `out` that are filled."""
    at: int = 0
    """Byte after the last line that was taken."""


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
        scratch, num_rows = self._workspace.scratch(), 0
        for rows in self._id_pieces(num_columns, limit, dtype):
            scratch.append(rows)
            num_rows += len(rows)
        shape = (num_rows,) if num_columns == 1 else (num_rows, num_columns)
        return scratch.array(self.where, shape, dtype)

    def largest_id(self) -> int:
        """Largest id of the first two columns, -1 where there is none."""
        pieces = self._id_pieces(2, np.iinfo(np.int64).max, np.dtype(np.int64))
        return max((int(rows.max()) for rows in pieces if len(rows)), default=-1)

    def _id_pieces(
        self, num_columns: int, limit: int, dtype: np.dtype[Any]
    ) -> Iterator[NDArray[Any]]:
        """Rows of ids in order, each piece valid until the next one is asked for.

        The caller's thread reads blocks of text, and finds faults; all others parse.
        """
        if self._dropped is not None:
            self._dropped.clear()
        num_ahead = threads.num_threads()
        # a row has a digit and a sign after it for each of its ids
        bytes_of_ids = dtype.itemsize // 2  # for each byte of text, at most
        room = 2 * self._workspace.piece_bytes // (num_ahead + 1)
        size = max(room // (1 + bytes_of_ids), 2 * num_columns)
        shape = size // (2 * num_columns), num_columns
        outs = [self._workspace.empty(shape, dtype, "text") for _ in range(num_ahead + 1)]
        jobs = (
            functools.partial(self._parse_ids, _Block(text, out, np.zeros(3, np.int64)), limit)
            for text, out in zip(
                self._blocks(size, num_ahead + 1), itertools.cycle(outs), strict=False
            )
        )
        num_lines = self._skip_lines
        for block in threads.ahead(jobs, num_ahead):
            yield block.out[: block.rows]
            while block.at < len(block.text):  # after a fault, or in a line longer than a block
                if block.state[1]:
                    error = self._id_error(block, num_lines, limit)
                    if self._dropped is None:
                        raise error
                    self._dropped.note(error.cause)
                    block.at += _kernels.end_of_line(block.text[block.at :])
                    block.state[1] = 0
                self._parse_ids(block, limit)
                yield block.out[: block.rows]
            num_lines += int(block.state[0])

    def _parse_ids(self, block: _Block, limit: int) -> _Block:
        """Parse a block from where it is to its end, a fault, or the end of its `out`."""
        block.rows, block.at = _kernels.parse_ids(
            block.text, block.at, self._separator, self._comment, limit, block.out, block.state
        )
        return block

    def _id_error(self, block: _Block, num_lines: int, limit: int) -> DataError:
        """Error of a block that begins after so many lines."""
        line, fault, at = block.state.tolist()
        where = f"{self.where}:{num_lines + line}"
        if fault == _kernels.TOO_FEW_COLUMNS:
            return DataError(
                f"{where}: {block.out.shape[1]} columns expected, fewer found",
                "Give a source and a destination in every line, or the right --delimiter.",
            )
        field = bytes(block.text[at : at + 200]).split(b"\n")[0].decode("latin1")
        token = field.split(chr(self._separator) if self._separator else None)[0].strip()
        if fault == _kernels.OUTSIDE:
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
        for text in self._blocks(self._workspace.piece_bytes, 1):
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

    def _blocks(self, num_bytes: int, num_buffers: int) -> Iterator[NDArray[np.uint8]]:
        """Read the text from the first line of data on, in runs of whole lines.

        Each is valid until so many others as there are buffers have been asked for.
        """
        buffers = [self._workspace.empty(num_bytes, np.uint8, "text") for _ in range(num_buffers)]
        size = os.fstat(self._fd).st_size
        turn = end = 0
        with self._opened() as file:
            file.seek(self._skip_bytes)
            while True:
                buffer = buffers[turn]
                if end >= len(buffer) - 1:  # a line longer than the buffer
                    buffers[turn] = self._workspace.empty(2 * (end + 1), np.uint8, "text")
                    buffers[turn][:end], buffer = buffer[:end], buffers[turn]
                count = file.readinto(buffer[end : len(buffer) - 1].data)
                if self._progress:
                    self._progress(f"reading {self.where}", os.lseek(self._fd, 0, 1), size)
                end += count
                if count == 0:
                    if end:  # the last line lacks its newline
                        buffer[end] = _kernels.NEWLINE
                        yield buffer[: end + 1]
                    return
                whole = _kernels.end_of_lines(buffer[:end])
                if whole:
                    rest = buffer[whole:end].copy()  # of a line that goes on
                    yield buffer[:whole]
                    turn, end = (turn + 1) % num_buffers, len(rest)
                    if end > len(buffers[turn]):
                        buffers[turn] = self._workspace.empty(2 * (end + 1), np.uint8, "text")
                    buffers[turn][:end] = rest


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
