"""Edges of an input as a stream that can be read again: pairs, a CSR, or text.

Letters: N nodes, E edges. An edge goes from src to dst. In a CSR the row is the source and the
column the destination.
"""

from __future__ import annotations

import functools
import itertools
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from gnnx import threads
from gnnx.errors import DataError, UsageError
from gnnx.prepare import _kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gnnx.prepare.arrays import Array
    from gnnx.prepare.sparse import SparseRows
    from gnnx.prepare.text import TextTable

Layout: TypeAlias = Literal["pairs", "rows"]
"""Of edges in an array: (E, 2), a pair a row, or (2, E), a row of sources and of destinations."""


class EdgePiece(NamedTuple):
    """Some edges in a row: edge i goes from ids[src_at + i·step] to ids[dst_at + i·step]."""

    ids: NDArray[Any]
    num_edges: int
    src_at: int
    dst_at: int
    step: int


class Edges(Protocol):
    """Edges of an input."""

    where: str

    def largest_id(self) -> int:
        """Largest id of a node, -1 where there is none."""

    def load(self, num_nodes: int) -> EdgeStream:
        """Edges as numbers, which may lie outside the N nodes unless they come from text."""


class EdgeStream(Protocol):
    """E edges that can be read any number of times."""

    where: str
    num_edges: int

    def pieces(self) -> Iterator[EdgePiece]:
        """Read all edges in pieces; each is valid until the next one is asked for."""


class TextEdges:
    """Edges in a text file: the first two columns of each line."""

    def __init__(self, table: TextTable) -> None:
        self.where, self._table = table.where, table

    def largest_id(self) -> int:
        """Read the file for its largest id."""
        return self._table.largest_id()

    def load(self, num_nodes: int) -> EdgeStream:
        """Read the file into a scratch file, checking its ids."""
        return PairEdges(self._table.ids(2, num_nodes), "pairs")


class PairEdges:
    """Edges in an integer array of shape (E, 2) or (2, E).

    Parameters
    ----------
    pairs
        The array.
    layout
        ``"pairs"`` for (E, 2) and ``"rows"`` for (2, E), where the shape is (2, 2).

    Raises
    ------
    DataError
        The array has another shape or is not of integers.
    UsageError
        The shape is (2, 2) and no layout is given.
    """

    def __init__(self, pairs: Array, layout: Layout | None = None) -> None:
        self.where, self._pairs = pairs.where, pairs
        if len(pairs.shape) != 2 or 2 not in pairs.shape:
            raise DataError(
                f"{self.where}: edges of shape {pairs.shape}", "Give an array (E, 2) or (2, E)."
            )
        if pairs.dtype.kind not in "iu":
            raise DataError(
                f"{self.where}: edges are {pairs.dtype}, not integer ids",
                "Number the nodes 0, 1, …, N - 1.",
            )
        if pairs.shape == (2, 2) and layout is None:
            raise UsageError(
                f"{self.where}: edges of shape (2, 2) can be read by rows or by columns",
                "Give --layout pairs for (E, 2) or --layout rows for (2, E).",
            )
        in_pairs = layout == "pairs" if pairs.shape == (2, 2) else pairs.shape[1] == 2
        self.num_edges = pairs.shape[0] if in_pairs else pairs.shape[1]
        # an (E, 2) array stored by columns has the bytes of a (2, E) array stored by rows
        self._interleaved = in_pairs != pairs.by_columns

    def largest_id(self) -> int:
        """Read all edges for their largest id."""
        return max((int(piece.ids.max()) for piece in self.pieces()), default=-1)

    def load(self, num_nodes: int) -> EdgeStream:
        """Return these very edges."""
        return self

    def pieces(self) -> Iterator[EdgePiece]:
        """Read all edges in pieces, as int32 or int64, the next one while one is in use.

        Returns
        -------
        iterator of EdgePiece
            Each is valid until the next one is asked for.
        """
        dtype = np.dtype(np.int32 if self._pairs.dtype == np.int32 else np.int64)
        space = self._pairs.workspace
        size = min(space.rows_of(4 * dtype.itemsize), max(1, self.num_edges))
        buffers = [space.empty(2 * size, dtype, "edges") for _ in range(2)]
        # one is read into while the edges of the other are worked on
        jobs = (
            functools.partial(self._read, begin, min(size, self.num_edges - begin), ids)
            for begin, ids in zip(
                range(0, self.num_edges, size), itertools.cycle(buffers), strict=False
            )
        )
        return threads.ahead(jobs, 1)

    def _read(self, begin: int, count: int, ids: NDArray[Any]) -> EdgePiece:
        if self._interleaved:
            self._pairs.read_into(ids[: 2 * count], 2 * begin)
            piece = EdgePiece(ids[: 2 * count], count, 0, 1, 2)
        else:
            self._pairs.read_into(ids[:count], begin)
            self._pairs.read_into(ids[count : 2 * count], self.num_edges + begin)
            piece = EdgePiece(ids[: 2 * count], count, 0, count, 1)
        if self._pairs.dtype.kind == "u" and piece.ids.min() < 0:  # read as if it had a sign
            at = int(piece.ids.argmin())
            edge = begin + (at // 2 if self._interleaved else at % count)
            raise DataError(
                f"{self.where}: edge {edge}: node {int(piece.ids[at]) + (1 << 64)} is larger "
                f"than {(1 << 63) - 1}",
                "Ids are 0, 1, …, N - 1; names as large as this are read as text.",
            )
        return piece


class CsrEdges:
    """Edges in a square CSR matrix; its values are not used."""

    def __init__(self, matrix: SparseRows) -> None:
        self.where, self.num_edges = matrix.where, len(matrix.indices)
        self._matrix = matrix

    def largest_id(self) -> int:
        """Return the largest id that the shape allows."""
        return self._matrix.shape[0] - 1

    def load(self, num_nodes: int) -> EdgeStream:
        """Return these very edges."""
        return self

    def pieces(self) -> Iterator[EdgePiece]:
        """Read all edges in pieces, as int64.

        Yields
        ------
        EdgePiece
            Valid until the next one is asked for.
        """
        indices = self._matrix.indices
        rows = indices.workspace.rows_of(16)
        size = min(rows, max(1, self.num_edges))
        ids = indices.workspace.empty(2 * size, np.int64, "edges")
        for first, pointers in self._matrix.pointers(rows):
            for begin in range(int(pointers[0]), int(pointers[-1]), size):
                count = min(size, int(pointers[-1]) - begin)
                _kernels.expand_rows(pointers, first, begin, ids[:count])
                indices.read_into(ids[count : 2 * count], begin)
                yield EdgePiece(ids[: 2 * count], count, 0, count, 1)
