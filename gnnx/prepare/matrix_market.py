"""Matrix Market files: a banner, a line of sizes, then an entry a line, counted from 1.

Row = source, column = destination; values are not kept. Letters: N nodes, E edges.
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import numpy as np

from gnnx.errors import DataError
from gnnx.prepare.edges import EdgePiece, PairEdges
from gnnx.prepare.text import TextFormat, TextTable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gnnx.prepare.arrays import Workspace
    from gnnx.prepare.edges import EdgeStream
    from gnnx.threads import Progress

_FIELDS = {"real", "double", "integer", "pattern", "complex"}
_SYMMETRIES = {"general", "symmetric", "skew-symmetric", "hermitian"}
_LARGEST = 1 << 59


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
        self._mirror = _banner(path) != "general"
        form = TextFormat(" ", header=False, comment="%")
        self._lines = TextTable(workspace, path, form, progress).ids(2, _LARGEST)
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
        self._loops = self._count_loops() if self._mirror else 0
        entries = len(self._lines) - 1
        self.num_edges = 2 * entries - self._loops if self._mirror else entries

    def largest_id(self) -> int:
        """Return the largest id that the shape allows."""
        return self.num_nodes - 1

    def load(self, num_nodes: int) -> EdgeStream:
        """Return these very edges."""
        return self

    def _count_loops(self) -> int:
        return sum(int(np.count_nonzero(src == dst)) for src, dst in self._entries())

    def _entries(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Read the ends of the entries, counted from 0."""
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
            yield pairs[:, 0], pairs[:, 1]

    def pieces(self) -> Iterator[EdgePiece]:
        """Read all edges in pieces.

        Yields
        ------
        EdgePiece
            Valid until the next one is asked for.
        """
        for src, dst in self._entries():
            yield EdgePiece(np.concatenate([src, dst]), len(src), 0, len(src), 1)
            if self._mirror:
                other = src != dst
                count = int(np.count_nonzero(other))
                yield EdgePiece(np.concatenate([dst[other], src[other]]), count, 0, count, 1)


def _banner(path: Path) -> str:
    """Check the first line; returns the symmetry."""
    words = _head(path)[0].lower().split()
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
    return kinds["symmetry"]


def _head(path: Path) -> list[str]:
    """First line, and the line of sizes."""
    try:
        with (
            gzip.open(path, "rt", encoding="latin1")
            if path.suffix == ".gz"
            else path.open(encoding="latin1") as file
        ):
            first = file.readline()
            sizes = next((line for line in file if line.strip() and line[0] != "%"), "")
    except OSError as error:
        raise DataError(f"{path}: {error}", "Give a file that exists and may be read.") from None
    return [first, sizes]


def _declared(path: Path) -> int:
    words = _head(path)[1].split()
    if len(words) != 3 or not words[2].isdigit():
        raise DataError(
            f"{path.name}: {' '.join(words)!r} is no line of rows, columns and entries",
            "Fetch the file again.",
        )
    return int(words[2])
