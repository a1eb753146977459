"""Features and labels: checked, converted and written in pieces.

Letters: N nodes, F feature width, r rows of a piece.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
import torch

from gnnx.errors import DataError, UsageError
from gnnx.prepare import _kernels
from gnnx.store import MISSING_LABEL
from gnnx.store.manifest import disk_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from gnnx.prepare.arrays import Array, Workspace
    from gnnx.prepare.report import Report
    from gnnx.prepare.splits import LabelPieces, Splits
    from gnnx.store import ArrayWriter, DatasetWriter
    from gnnx.threads import Progress

Nonfinite: TypeAlias = Literal["refuse", "keep", "zero"]
FeatureDtype: TypeAlias = Literal["source", "float32", "float16", "bfloat16", "int8"]
_FIRST_ROWS = 5  # of those with a NaN, that a message names
_MAX_CLASSES = 1 << 20
_LARGEST = np.float32(127)  # of int8, in both directions: -128 would have no counterpart
# Logical dtype and bits by NumPy's name; the others of its kind are widened.
_STORED = {
    **{name: name for name in ("float32", "float16", "int8", "uint8", "int16", "int32", "int64")},
    "bfloat16": "bfloat16",
    "bool": "uint8",
    "float64": "float32",
    "uint16": "int32",
    "uint32": "int64",
}
_EXPONENTS = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}


class Rows(Protocol):
    """A matrix or a list, one row a node, read in pieces: `Array` or `SparseRows`."""

    where: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __len__(self) -> int: ...

    def pieces(self) -> Iterator[NDArray[Any]]:
        """Read all rows in pieces, in order, each valid until the next one is asked for."""


def write_features(
    rows: Rows,
    writer: DatasetWriter,
    workspace: Workspace,
    nonfinite: Nonfinite,
    report: Report,
    progress: Progress | None = None,
    *,
    wanted: FeatureDtype = "source",
) -> None:
    """Write the features of all nodes.

    By default float32, float16, bfloat16 and signed integers and uint8 are stored as they are;
    float64 becomes float32, bool uint8, uint16 int32 and uint32 int64.

    As int8 they are quantised column by column: q = round(x / s), where s = max abs x / 127 is
    stored as ``x_scale``, so that s q is off by s / 2 at most. int8 itself is stored as it is.

    Parameters
    ----------
    rows
        (N, F), or (N,) for F = 1.
    writer
        Of the data set.
    workspace
        Gives the buffers.
    nonfinite
        Whether NaN and infinity are refused, kept, or made zero.
    report
        Told the width, dtype and what was found.
    progress
        Told the rows that are done.
    wanted
        In what to store them, rounded to the nearest; "source" is as above.

    Raises
    ------
    DataError
        A type that is no number, or a value that is not finite, or not as it is stored.
    UsageError
        NaN and infinity are to be kept in int8.
    """
    native, dtype = _native_name(rows), stored_dtype(rows, wanted)
    width = rows.shape[1] if len(rows.shape) == 2 else 1
    report.num_features, report.feature_dtype = width, dtype
    quantised = dtype == "int8" != native
    if quantised and nonfinite == "keep":
        raise UsageError(
            f"{rows.where}: int8 has no NaN or infinity to keep",
            "Give --nonfinite refuse or zero, or another --dtype.",
        )
    if native != dtype:
        scaled = " with a scale for each column" * quantised
        report.notes.append(f"{rows.where}: {native} features are stored as {dtype}{scaled}")
    converted = "float32" if quantised else dtype
    exponent = _EXPONENTS.get(converted, 0)
    check = _FiniteCheck(
        rows.where, width, exponent, nonfinite, "zero" if quantised else "zero or keep"
    )

    def pieces(number: int = 0) -> Iterator[NDArray[Any]]:
        """Read all rows, for the first time or the second, as they are stored or quantised."""
        done = 0
        for piece in _converted(rows, native, converted, workspace):
            check.look_at(piece, done)
            yield piece
            done += len(piece)
            if progress:
                progress("features", number * len(rows) + done, (1 + quantised) * len(rows))

    if quantised:
        scale = _scale_of(pieces(0), width)
        check.judge(report)
        steps = writer.array("nodes/node/x_scale", (width,), "float32")
        steps.append(scale)
        steps.finish()  # gives its windows back before the other array takes its own
        _quantise(
            pieces(1), scale, workspace, writer.array("nodes/node/x", (len(rows), width), dtype)
        )
        return
    out = writer.array("nodes/node/x", (len(rows), width), dtype)
    for piece in pieces():
        out.append(piece)
    check.judge(report)


def _scale_of(pieces: Iterator[NDArray[np.float32]], width: int) -> NDArray[np.float32]:
    """Find the step of each column, (F,), whose 127th multiple is its largest value."""
    largest = np.zeros(width, np.float32)
    for piece in pieces:
        np.maximum(largest, np.maximum(piece.max(0), -piece.min(0)), out=largest)
    scale: NDArray[np.float32] = np.maximum(largest / _LARGEST, np.finfo(np.float32).tiny)
    with np.errstate(over="ignore"):  # a step rounded up, 127 times, may be beyond float32
        scale = np.where(np.isinf(scale * _LARGEST), np.nextafter(scale, np.float32(0)), scale)
    scale[largest == 0] = 1  # any would do
    return scale


def _quantise(
    pieces: Iterator[NDArray[np.float32]],
    scale: NDArray[np.float32],
    workspace: Workspace,
    out: ArrayWriter,
) -> None:
    """Write multiples of the steps, rounded to the nearest; the pieces are overwritten."""
    buffer = workspace.empty((0, len(scale)), np.int8, "features")
    for piece in pieces:
        if len(buffer) < len(piece):
            buffer = workspace.empty(piece.shape, np.int8, "features")
        np.rint(np.divide(piece, scale, out=piece), out=piece)
        np.copyto(buffer[: len(piece)], piece, casting="unsafe")
        out.append(buffer[: len(piece)])


def _converted(rows: Rows, native: str, dtype: str, workspace: Workspace) -> Iterator[NDArray[Any]]:
    """Read all rows in a dtype, (r, F), in pieces that may be written to."""
    width, stored = rows.shape[1] if len(rows.shape) == 2 else 1, disk_dtype(dtype)
    most = workspace.rows_of(width * stored.itemsize)  # uint8 as float32 is four times its piece
    buffer = workspace.empty((0, width), stored, "features")
    for values in rows.pieces():
        piece = values.view("<u2") if native == "bfloat16" else values
        piece = piece.reshape(len(piece), width)
        if native == dtype and piece.dtype == stored and piece.flags.c_contiguous:
            yield piece
            continue
        for begin in range(0, len(piece), most):
            part = piece[begin : begin + most]
            if len(buffer) < len(part):
                buffer = workspace.empty(part.shape, stored, "features")
            _convert(part, native, buffer[: len(part)], dtype)
            yield buffer[: len(part)]


def _convert(piece: NDArray[Any], native: str, out: NDArray[Any], dtype: str) -> None:
    """Convert a piece; what becomes infinite is found when it is checked."""
    if dtype != native and "bfloat16" in {dtype, native}:  # which NumPy does not have
        source = np.ascontiguousarray(piece, piece.dtype.newbyteorder("="))
        _tensor(out, dtype).copy_(_tensor(source, native))
        return
    with np.errstate(over="ignore"):
        np.copyto(out, piece, casting="unsafe")


def _tensor(values: NDArray[Any], dtype: str) -> torch.Tensor:
    if dtype == "bfloat16":
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(values)


def stored_dtype(rows: Rows, wanted: FeatureDtype = "source") -> str:
    """Logical dtype in which features are stored.

    Parameters
    ----------
    rows
        (N, F) or (N,).
    wanted
        As of `write_features`.

    Returns
    -------
    str
        Such as ``"float32"``.

    Raises
    ------
    DataError
        They are no matrix of numbers.
    """
    name = _native_name(rows)
    if name not in _STORED or len(rows.shape) not in {1, 2}:
        raise DataError(
            f"{rows.where}: features of {rows.dtype} and shape {rows.shape}",
            "Give a matrix (N, F) of numbers.",
        )
    return _STORED[name] if wanted == "source" else wanted


def _native_name(rows: Rows) -> str:
    is_bfloat16 = rows.dtype == np.dtype("V2")  # as ml_dtypes saves it
    return "bfloat16" if is_bfloat16 else rows.dtype.newbyteorder("=").name


class _FiniteCheck:
    """Counts of NaN and infinity in pieces of features."""

    def __init__(
        self, where: str, width: int, exponent: int, nonfinite: Nonfinite, remedies: str
    ) -> None:
        self._where, self._exponent, self._nonfinite = where, exponent, nonfinite
        self._remedies = remedies
        self._counts = np.zeros(width, np.int64)
        self._rows, self._state = np.zeros(_FIRST_ROWS, np.int64), np.zeros(1, np.int64)

    def look_at(self, piece: NDArray[Any], first_row: int) -> None:
        if self._exponent:
            bits = piece.view(f"<u{piece.itemsize}")
            _kernels.find_nonfinite(
                bits,
                bits.dtype.type(self._exponent),
                self._nonfinite == "zero",
                first_row,
                self._counts,
                self._rows,
                self._state,
            )

    def judge(self, report: Report) -> None:
        """Report what was found; raises where it is refused."""
        report.nonfinite = {int(c): int(self._counts[c]) for c in self._counts.nonzero()[0]}
        rows = self._rows[: self._state[0]].tolist()
        if not report.nonfinite:
            return
        report.examples["nonfinite"] = [f"node {row}" for row in rows]
        if self._nonfinite == "refuse":
            raise self._error(list(report.nonfinite), rows)

    def _error(self, columns: list[int], rows: list[int]) -> DataError:
        count = int(self._counts.sum())
        return DataError(
            f"{self._where}: {count} NaN or infinite value{'s' * (count > 1)}, in "
            f"{_named('column', columns)}, {_named('node', rows)}",
            f"Mend the features, or give --nonfinite {self._remedies}.",
        )


def _named(noun: str, ids: list[int]) -> str:
    """Name the first few of some ids: "node 1", "nodes 1, 5, 7, …"."""
    if len(ids) == 1:
        return f"{noun} {ids[0]}"
    shown = [str(i) for i in ids[:_FIRST_ROWS]]
    return f"{noun}s " + ", ".join(shown + ["…"] * (len(ids) >= _FIRST_ROWS))


class MultiLabels:
    """Several labels a node: a row of 0 and 1, or of 255 for a node that has none.

    Parameters
    ----------
    source
        (N, C), C > 1, of 0 and 1; rows of NaN or -1 are none.
    workspace
        Gives the buffers.

    Raises
    ------
    DataError
        Another shape or type.
    """

    def __init__(self, source: Array, workspace: Workspace) -> None:
        self._source, self._workspace = source, workspace
        if source.dtype.kind not in "iufb" or len(source.shape) != 2:
            raise DataError(
                f"{source.where}: labels are {source.dtype} of shape {source.shape}",
                "Give a column of 0 and 1 for each class.",
            )
        self.num_classes = source.width

    def __len__(self) -> int:
        return len(self._source)

    def rows(self) -> Iterator[NDArray[np.uint8]]:
        """Read all labels in pieces, in order.

        Yields
        ------
        ndarray, (r, C) uint8
            0, 1, or 255 in all of a row.

        Raises
        ------
        DataError
            A label is neither 0 nor 1, or some of a row are missing.
        """
        first = 0
        for values in self._source.pieces():
            labels = self._workspace.empty(values.shape, np.uint8, "labels")
            missing = (values != values) | (values == -1)
            none = missing.all(axis=1)
            wrong = ((missing & ~none[:, None]) | ~(missing | (values == 0) | (values == 1))).any(1)
            if wrong.any():
                row = int(wrong.argmax())
                raise DataError(
                    f"{self._source.where}: labels of node {first + row} are neither 0 and 1 nor "
                    "all missing",
                    "Give 0 or 1 for every class, and NaN or -1 in all of a row without labels.",
                )
            np.copyto(labels, values == 1, casting="unsafe")
            labels[none] = MISSING_LABEL
            yield labels
            first += len(values)

    def pieces(self) -> Iterator[NDArray[np.int64]]:
        """Tell which nodes have labels.

        Yields
        ------
        ndarray, (r,) int64
            0, or -1 for a node without.
        """
        for labels in self.rows():
            yield _known(labels)


def _known(labels: NDArray[np.uint8]) -> NDArray[np.int64]:
    known: NDArray[np.int64] = -(labels[:, 0] == MISSING_LABEL).astype(np.int64)
    return known


class Labels:
    """Labels of all nodes: classes 0, 1, …, or -1 for a node that has none.

    Parameters
    ----------
    source
        (N,) or (N, 1), integers or floats; NaN is none.
    workspace
        Gives the buffers.

    Raises
    ------
    DataError
        Another shape or type.
    """

    def __init__(self, source: Array, workspace: Workspace) -> None:
        self._source, self._workspace = source, workspace
        if source.dtype.kind not in "iufb":
            raise DataError(
                f"{source.where}: labels are {source.dtype}", "Number the classes 0, 1, …."
            )

    def __len__(self) -> int:
        return len(self._source)

    def pieces(self) -> Iterator[NDArray[np.int64]]:
        """Read all labels in pieces, in order.

        Yields
        ------
        ndarray, (r,) int64
            Valid until the next one is asked for.

        Raises
        ------
        DataError
            A label is not a class.
        """
        native = np.dtype(np.float64 if self._source.dtype.kind == "f" else np.int64)
        rows = min(self._workspace.rows_of(16), max(1, len(self)))
        values = self._workspace.empty(rows, native, "labels")
        labels = self._workspace.empty(rows, np.int64, "labels")
        for begin in range(0, len(self), rows):
            piece, out = values[: len(self) - begin], labels[: len(self) - begin]
            self._source.read_into(piece, begin)
            wrong = _kernels.read_labels(piece, _MAX_CLASSES, out)
            if wrong >= 0:
                raise DataError(
                    f"{self._source.where}: label {piece[wrong]} of node {begin + wrong} is not "
                    f"a class from 0 to {_MAX_CLASSES - 1}",
                    "Number the classes 0, 1, …, and give -1 or NaN to nodes without one.",
                )
            yield out


def labels_of(source: Array, workspace: Workspace) -> Labels | MultiLabels:
    """Labels of the kind that the shape says: a column of classes, or a column for each class."""
    return (Labels if source.width == 1 else MultiLabels)(source, workspace)


def write_labels(
    labels: LabelPieces, splits: Splits, writer: DatasetWriter, report: Report
) -> None:
    """Write the labels of all nodes, and note which nodes have one.

    Parameters
    ----------
    labels
        Of N nodes.
    splits
        Told which nodes are labelled.
    writer
        Of the data set.
    report
        Told the number of classes and of unlabelled nodes.
    """
    if isinstance(labels, MultiLabels):
        report.num_classes = labels.num_classes
        rows = writer.array("nodes/node/y", (len(labels), labels.num_classes), "uint8")
        for several in labels.rows():
            known = splits.mark_labelled(rows.num_rows, _known(several))
            report.unlabelled += len(several) - known
            rows.append(several)
        return
    out = writer.array("nodes/node/y", (len(labels),), "int64")
    for piece in labels.pieces():
        report.num_classes = max(report.num_classes, int(piece.max()) + 1)
        report.unlabelled += len(piece) - splits.mark_labelled(out.num_rows, piece)
        out.append(piece)
