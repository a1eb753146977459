"""Sparse matrices in files, in CSR: read row by row, as dense rows or as entries.

Letters: N rows, F columns, E entries, r rows of a piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx.errors import DataError
from gnnx.prepare import _kernels

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gnnx.prepare.arrays import Array


class SparseRows:
    """A sparse matrix.

    Parameters
    ----------
    indptr
        (N + 1,).
    indices
        (E,), columns.
    data
        (E,), values; ones without it.
    num_columns
        F; columns are in [0, F).

    Raises
    ------
    DataError
        The arrays disagree, or are not the numbers that they have to be.
    """

    def __init__(self, indptr: Array, indices: Array, data: Array | None, num_columns: int) -> None:
        for array in (indptr, indices):
            if array.dtype.kind not in "iu" or len(array.shape) != 1 or not len(indptr):
                raise DataError(f"{array.where}: not the integers of a CSR matrix", _GIVE)
        if data is not None and data.shape != indices.shape:
            raise DataError(f"{data.where}: {len(data)} values for {len(indices)} columns", _GIVE)
        self.where, self.indices, self.data = indices.where, indices, data
        self.shape: tuple[int, ...] = (len(indptr) - 1, num_columns)
        self.dtype = np.dtype(np.uint8) if data is None else _summable(data)
        self._indptr, self._workspace = indptr, indptr.workspace

    def __len__(self) -> int:
        return self.shape[0]

    def pointers(self, num_rows: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Read where rows begin and end.

        Parameters
        ----------
        num_rows
            Rows a piece.

        Yields
        ------
        tuple
            First row, and r + 1 pointers of r rows.

        Raises
        ------
        DataError
            The pointers do not ascend from 0 to E.
        """
        pointers = self._workspace.empty(num_rows + 1, np.int64, "input")
        num_entries, last = len(self.indices), 0
        for begin in range(0, len(self), num_rows):
            piece = pointers[: min(num_rows, len(self) - begin) + 1]
            self._indptr.read_into(piece, begin)
            wrong = _kernels.first_wrong_pointer(piece, last, num_entries)
            if wrong >= 0:
                raise DataError(
                    f"{self._indptr.where}: entry {begin + wrong} is {piece[wrong]}: rows do not "
                    f"ascend from 0 to {num_entries}",
                    _GIVE,
                )
            last = int(piece[-1])
            yield begin, piece
        if last != num_entries:
            raise DataError(
                f"{self._indptr.where}: {last} entries, {self.where}: {num_entries}", _GIVE
            )

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Read all rows, made dense, in pieces, in order.

        Yields
        ------
        ndarray, (r, F)
            Valid until the next one is asked for.

        Raises
        ------
        DataError
            A column is outside [0, F), or as `pointers`.
        """
        num_columns, empty = self.shape[1], self._workspace.empty
        rows = self._workspace.rows_of(num_columns * self.dtype.itemsize)
        dense = empty((min(rows, max(1, len(self))), num_columns), self.dtype, "input")
        for first, pointers in self.pointers(len(dense)):
            begin, size = int(pointers[0]), int(pointers[-1] - pointers[0])
            columns = empty(size, np.int64, "input")
            self.indices.read_into(columns, begin)
            values = empty(size, self.dtype, "input")
            if self.data is None:
                values[:] = 1
            else:
                self.data.read_into(values, begin)
            out = dense[: len(pointers) - 1]
            wrong = _kernels.densify(pointers, columns, values, out)
            if wrong >= 0:
                raise DataError(
                    f"{self.where}: row {first + wrong} has a column outside the {num_columns}",
                    "Give the true shape of the matrix.",
                )
            yield out


_GIVE = "Give the indptr, indices and shape of one CSR matrix."


def _summable(data: Array) -> np.dtype[Any]:
    """Type in which the values of a matrix can be added up."""
    if data.dtype.kind == "f":
        return np.result_type(data.dtype, np.float32)
    if data.dtype.kind in "iu":
        return data.dtype.newbyteorder("=")
    if data.dtype.kind == "b":
        return np.dtype(np.uint8)
    raise DataError(f"{data.where}: values are {data.dtype}", "Give numbers.")
