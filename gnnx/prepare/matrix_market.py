"""Matrix Market files: a banner, a line of sizes, then an entry a line, counted from 1.

Row = source, column = destination. Of a matrix with a symmetry the lower triangle is stored: each
entry is followed by its mirror image, unless it is on the diagonal. Letters: N nodes, E edges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gnnx.errors import DataError, UsageError
from gnnx.prepare.edges import EdgePiece, PairEdges
from gnnx.prepare.head import SAMPLE_BYTES, head_of
from gnnx.prepare.text import TextFormat, TextTable
from gnnx.prepare.values import ArrayRows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from gnnx.prepare.arrays import Workspace
    from gnnx.prepare.edges import EdgeStream
    from gnnx.threads import Progress

VALUE = "value"
"""Name of the third number of an entry."""
_FORM = TextFormat(" ", header=False, comment="%")
_BANNER = "%%matrixmarket"
_NUMBERS = {"real", "double", "integer", "unsigned-integer"}
_FIELDS = _NUMBERS | {"pattern", "complex"}
_SYMMETRIES = {"general", "symmetric", "skew-symmetric", "hermitian"}
_LARGEST = 1 << 59


class Head(NamedTuple):
    """What a file says of its entries before them."""

    field: str
    symmetry: str
    num_nodes: int
    num_entries: int
    """Mirror images not counted."""

    @property
    def has_values(self) -> bool:
        """Whether entries carry a number."""
        return self.field in _NUMBERS

    def check_values(self, path: Path, what: str) -> None:
        """Refuse entries of `path` without values, or with complex ones, that `what` asks for."""
        if not self.has_values:
            held = "complex values" if self.field == "complex" else "entries without values"
            raise UsageError(
                f"{what}: {path.name} has {held}: its field is {self.field}",
                "Give a file with a row an edge, .npy or text.",
            )

    def with_mirror(
        self, entry: NDArray[np.generic], image: NDArray[np.generic], on_diagonal: NDArray[np.bool_]
    ) -> NDArray[np.generic]:
        """Put the mirror image of each entry after it.

        Parameters
        ----------
        entry
            (r, ...), something of each entry.
        image
            (r, ...), the same of its mirror image.
        on_diagonal
            (r,), of the entries that have none.

        Returns
        -------
        ndarray
            Of both; of a general matrix the entries alone.
        """
        if self.symmetry == "general":
            return entry
        there = np.stack([np.ones(len(entry), np.bool_), ~on_diagonal], axis=1)
        return np.stack([entry, image], axis=1)[there]


class MatrixEdges:
    """Edges of a square sparse matrix; a symmetric one has both directions of each entry.

    Parameters
    ----------
    workspace
        Gives buffers and scratch files.
    path
        The file, `.mtx` or `.mtx.gz`.
    progress
        Told how far it has been read.

    Raises
    ------
    DataError
        The banner or the sizes are wrong, or the matrix is dense or not square.
    """

    def __init__(self, workspace: Workspace, path: Path, progress: Progress | None) -> None:
        self.where = path.name
        self.head = read_head(path)
        self.num_nodes, self.num_edges = self.head.num_nodes, self.head.num_entries
        self._lines = TextTable(workspace, path, _FORM, progress).ids(2, _LARGEST)
        if self.num_edges != len(self._lines) - 1:
            raise DataError(
                f"{self.where}: {len(self._lines) - 1} entries, {self.num_edges} declared",
                "Fetch the file again.",
            )
        if self.head.symmetry != "general":
            self.num_edges = sum(piece.num_edges for piece in self.pieces())

    def largest_id(self) -> int:
        """Return the largest id that the shape allows."""
        return self.num_nodes - 1

    def load(self, num_nodes: int) -> EdgeStream:
        """Return these very edges."""
        return self

    def _entries(self) -> Iterator[NDArray[np.int64]]:
        """Read the ends of the entries, (r, 2), counted from 0."""
        begin = -1  # the line of sizes is the first pair
        for piece in PairEdges(self._lines, "pairs").pieces():
            pairs = piece.ids.reshape(-1, 2)[begin < 0 :] - 1
            wrong = np.flatnonzero(((pairs < 0) | (pairs >= self.num_nodes)).any(axis=1))
            begin = max(begin, 0)
            if len(wrong):
                row, column = pairs[wrong[0]] + 1
                raise DataError(
                    f"{self.where}: entry {begin + wrong[0] + 1}: row {row}, column {column} is "
                    f"outside 1 to {self.num_nodes}",
                    "Rows and columns are counted from 1: correct the file.",
                )
            begin += len(pairs)
            yield pairs

    def pieces(self) -> Iterator[EdgePiece]:
        """Read all edges in pieces.

        Yields
        ------
        EdgePiece
            Valid until the next one is asked for.
        """
        for pairs in self._entries():
            both = self.head.with_mirror(pairs, pairs[:, ::-1], pairs[:, 0] == pairs[:, 1])
            yield EdgePiece(both.reshape(-1), len(both), 0, 1, 2)


def read_values(workspace: Workspace, path: Path, progress: Progress | None = None) -> ArrayRows:
    """Read the values of the entries of a matrix, in the order of the edges of `MatrixEdges`.

    Parameters
    ----------
    workspace
        Takes them in a scratch file.
    path
        The file, whose entries have real ones.
    progress
        Told how far the file has been read.

    Returns
    -------
    ArrayRows
        (E,) float64; the mirror image of an entry has its value, of a skew-symmetric matrix the
        negative of it.

    Raises
    ------
    DataError
        A value is missing or no number; the message names file and line.
    """
    head = read_head(path)
    sign = -1 if head.symmetry == "skew-symmetric" else 1
    scratch, count, first = workspace.scratch(), 0, 1  # the first line is that of sizes
    for lines in TextTable(workspace, path, _FORM, progress).number_pieces(np.float64):
        entries, first = lines[first:], max(0, first - len(lines))
        value = entries[:, 2]
        both = head.with_mirror(value, sign * value, entries[:, 0] == entries[:, 1])
        scratch.append(np.ascontiguousarray(both))
        count += len(both)
    return ArrayRows(scratch.array(path.name, (count,), np.float64))


def is_matrix(path: Path) -> bool:
    """Whether the name is one of a Matrix Market file."""
    return path.name.endswith((".mtx", ".mtx.gz"))


def read_head(path: Path) -> Head:
    """Read and check what stands before the entries of a file.

    Parameters
    ----------
    path
        The file.

    Returns
    -------
    Head
        Of a square sparse matrix.

    Raises
    ------
    DataError
        The banner or the sizes are wrong, or the matrix is dense or not square.
    """
    first, sizes = _first_lines(path)
    words = first.lower().split()
    if not words or words[0] != _BANNER:
        raise DataError(
            f"{path.name}: no %%MatrixMarket banner", "Write it with scipy.io.mmwrite, or name it."
        )
    kinds = dict(zip(("object", "format", "field", "symmetry"), words[1:], strict=False))
    wrong = {
        "object": kinds.get("object") != "matrix",
        "format": kinds.get("format") not in {"coordinate", "array"},
        "field": kinds.get("field") not in _FIELDS,
        "symmetry": kinds.get("symmetry") not in _SYMMETRIES
        or (kinds["symmetry"] == "hermitian" and kinds["field"] != "complex"),
    }
    for name, bad in wrong.items():
        if bad:
            raise DataError(
                f"{path.name}: the banner's {name} is {kinds.get(name, 'missing')!r}",
                "Correct the first line.",
            )
    if kinds["format"] == "array":
        raise DataError(f"{path.name}: a dense matrix", "Give the entries that are edges.")
    if not sizes:
        raise DataError(f"{path.name}: no line of sizes", "Fetch the file again.")
    numbers = sizes.split()
    if len(numbers) != 3 or not all(number.isdecimal() for number in numbers):
        raise DataError(
            f"{path.name}: {sizes!r} is no line of rows, columns and entries",
            "Fetch the file again.",
        )
    rows, columns, entries = map(int, numbers)
    if rows != columns:
        raise DataError(
            f"{path.name}: the matrix is {rows} by {columns}",
            "Give a square one: rows are sources, columns destinations.",
        )
    return Head(kinds["field"], kinds["symmetry"], rows, entries)


def _first_lines(path: Path) -> tuple[str, str]:
    """Banner, and the line of sizes, "" where there is none."""
    size, banner, sizes, exact = SAMPLE_BYTES, _BANNER, "", False
    while not (sizes or exact) and banner.lower().startswith(_BANNER):  # comments may be long
        text, _, exact = head_of(path, size)
        banner, *lines = text.decode("latin1").split("\n")
        whole = map(str.strip, lines if exact else lines[:-1])
        sizes = next((line for line in whole if line and line[0] != "%"), "")
        size *= 2
    return banner, sizes
