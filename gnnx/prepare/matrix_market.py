"""Matrix Market files: a banner, a line of sizes, then an entry a line, counted from 1.

Row = source, column = destination. Of a matrix with a symmetry the lower triangle is stored: each
entry is followed by its mirror image, unless it is on the diagonal. Letters: N nodes, E edges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gnnx.errors import DataError, UsageError
from gnnx.prepare.edges import EdgePiece, PairEdges
from gnnx.prepare.head import head_of
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
_NUMBERS = {"real", "double", "integer", "unsigned-integer"}
_FIELDS = _NUMBERS | {"pattern", "complex"}
_SYMMETRIES = {"general", "symmetric", "skew-symmetric", "hermitian"}
_LARGEST = 1 << 59


class Banner(NamedTuple):
    """First line of a file."""

    field: str
    symmetry: str

    @property
    def has_values(self) -> bool:
        """Whether entries carry a number."""
        return self.field in _NUMBERS

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
        self.banner = read_banner(path)
        self._lines = TextTable(workspace, path, _FORM, progress).ids(2, _LARGEST)
        if len(self._lines) == 0:
            raise DataError(f"{self.where}: no line of sizes", "Fetch the file again.")
        sizes = np.empty(2, np.int64)
        self._lines.read_into(sizes, 0)
        if sizes[0] != sizes[1]:
            raise DataError(
                f"{self.where}: the matrix is {sizes[0]} by {sizes[1]}",
                "Give a square one: rows are sources, columns destinations.",
            )
        self.num_nodes = int(sizes[0])
        declared = _declared(path)
        if declared != len(self._lines) - 1:
            raise DataError(
                f"{self.where}: {len(self._lines) - 1} entries, {declared} declared",
                "Fetch the file again.",
            )
        self.num_edges = declared
        if self.banner.symmetry != "general":
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
            both = self.banner.with_mirror(pairs, pairs[:, ::-1], pairs[:, 0] == pairs[:, 1])
            yield EdgePiece(both.reshape(-1), len(both), 0, 1, 2)


def read_values(
    workspace: Workspace, path: Path, what: str, progress: Progress | None = None
) -> ArrayRows:
    """Read the values of the entries of a matrix, in the order of the edges of `MatrixEdges`.

    Parameters
    ----------
    workspace
        Takes them in a scratch file.
    path
        The file.
    what
        The option that asks for them, for messages.
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
    UsageError
        Entries have no values, or complex ones.
    """
    banner = read_banner(path)
    if not banner.has_values:
        what_else = "complex values" if banner.field == "complex" else "entries without values"
        raise UsageError(
            f"{what} {VALUE}: {path.name} has {what_else}: its field is {banner.field}",
            "Give a file with a row an edge, .npy or text.",
        )
    sign = -1 if banner.symmetry == "skew-symmetric" else 1
    scratch, count, first = workspace.scratch(), 0, 1  # the first line is that of sizes
    for lines in TextTable(workspace, path, _FORM, progress).number_pieces(np.float64):
        entries, first = lines[first:], max(0, first - len(lines))
        value = entries[:, 2]
        both = banner.with_mirror(value, sign * value, entries[:, 0] == entries[:, 1])
        scratch.append(np.ascontiguousarray(both))
        count += len(both)
    return ArrayRows(scratch.array(path.name, (count,), np.float64))


def is_matrix(path: Path) -> bool:
    """Whether the name is one of a Matrix Market file."""
    return path.name.endswith((".mtx", ".mtx.gz"))


def read_banner(path: Path) -> Banner:
    """Read and check the first line of a file."""
    words = read_head(path)[0].lower().split()
    if not words or words[0] != "%%matrixmarket":
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
    return Banner(kinds["field"], kinds["symmetry"])


def read_head(path: Path) -> tuple[str, str]:
    """Banner of a Matrix Market file, and its line of sizes, "" where there is none."""
    banner, _, rest = head_of(path).text.decode("latin1").partition("\n")
    lines = (line for line in rest.splitlines() if line.strip() and line[0] != "%")
    return banner, next(lines, "")


def _declared(path: Path) -> int:
    words = read_head(path)[1].split()
    if len(words) != 3 or not words[2].isdigit():
        raise DataError(
            f"{path.name}: {' '.join(words)!r} is no line of rows, columns and entries",
            "Fetch the file again.",
        )
    return int(words[2])
