"""Rows of node features: the interface of every tier that has them, and the tier that is the disk.

Letters: N nodes, R rows asked, F feature width.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from gnnx.errors import DataError, UsageError
from gnnx.memory import Tier
from gnnx.store._kernels import check_ids
from gnnx.store.engine import LARGEST_RUN, WAIT_S, DataFile, Layout
from gnnx.store.manifest import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from gnnx.memory import Ledger
    from gnnx.store.engine import Job, ReadEngine
    from gnnx.store.manifest import ArrayEntry


class Pending:
    """Rows on their way.

    Parameters
    ----------
    out
        Where they go.
    job
        What brings them; none where they are there.
    check
        Raises where the rows cannot be what was written.
    """

    def __init__(
        self,
        out: torch.Tensor,
        job: Job | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._out, self._job, self._check = out, job, check

    def done(self) -> bool:
        """Whether `wait` would not wait."""
        return self._job is None or self._job.done()

    def wait(self, timeout_s: float = WAIT_S) -> torch.Tensor:
        """Give the rows when all are there.

        Parameters
        ----------
        timeout_s
            Time limit in seconds.

        Returns
        -------
        Tensor
            The whole of `out`.

        Raises
        ------
        DataError
            The file is shorter than it was when it was opened, or has values that cannot be.
        RunError
            A read failed, or time is up. Says which file.
        """
        if self._job is not None:
            self._job.wait(timeout_s)
        if self._check is not None:
            self._check()
            self._check = None
        return self._out


class FeatureStore(Protocol):
    """N rows of one shape and dtype, wherever they live; tiers stack by wrapping one another."""

    @property
    def num_rows(self) -> int:
        """N."""

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a row: (F,) for features, () for labels and ids."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the elements."""

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""

    @property
    def scale(self) -> torch.Tensor | None:
        """(F,) float32: values are rows times this (`fetch_values`); None: they are the rows."""
        return None

    def fetch(
        self,
        rows: NDArray[np.int64],
        out: torch.Tensor | None = None,
        slots: NDArray[np.int64] | None = None,
    ) -> Pending:
        """Begin to bring rows: ``out[slots[i]] = row rows[i]``; returns before they are there.

        Parameters
        ----------
        rows
            (R,) int64. In any order, duplicates allowed; unchanged until the wait is over.
        out
            (≥ R, ...). Contiguous, on the CPU; made, 64-byte aligned, where it is not given.
        slots
            (R,) int64. Default: 0, 1, 2, …; slots that are not named keep what they hold.

        Returns
        -------
        Pending
            Whose `wait` gives `out`.
        """

    def read(
        self,
        rows: NDArray[np.int64],
        out: torch.Tensor | None = None,
        slots: NDArray[np.int64] | None = None,
    ) -> torch.Tensor:
        """``fetch(rows, out, slots).wait()``."""
        return self.fetch(rows, out, slots).wait()


class DiskFeatures(FeatureStore):
    """One array of a dataset, read row by row; made by `Dataset`.

    Parameters
    ----------
    path
        The .npy file; not touched where there are no rows.
    entry
        Shape and dtype.
    engine
        Who reads.
    ledger
        Rows without an `out` come from here (HOST, owner ``"fetch"``).
    values
        Of ids and classes, the lowest and the one after the highest that there can be.
    base
        Byte at which row 0 begins.
    file
        The open file, where others read it too.
    scale
        Array of what the columns are to be multiplied by, one row of () each; read when asked for.

    Attributes
    ----------
    path : Path
        The .npy file.
    entry : ArrayEntry
        Shape and dtype.
    file : DataFile
        Counts rows, reads and bytes.
    """

    def __init__(
        self,
        path: Path,
        entry: ArrayEntry,
        engine: ReadEngine,
        ledger: Ledger,
        values: tuple[int, int] | None = None,
        *,
        base: int = HEADER_BYTES,
        file: DataFile | None = None,
        scale: DiskFeatures | None = None,
    ) -> None:
        self.path, self.entry, self._values = path, entry, values
        self._scale = scale
        self.file = DataFile(path) if file is None else file
        self._engine, self._ledger = engine, ledger
        self._base, self._end = base, base + entry.num_bytes

    @property
    def num_rows(self) -> int:  # noqa: D102 - the protocol's
        return self.entry.shape[0]

    @property
    def row_shape(self) -> tuple[int, ...]:  # noqa: D102
        return self.entry.shape[1:]

    @property
    def dtype(self) -> torch.dtype:  # noqa: D102
        dtype: torch.dtype = getattr(torch, self.entry.dtype)
        return dtype

    @property
    def row_bytes(self) -> int:  # noqa: D102
        return math.prod(self.row_shape) * self.dtype.itemsize

    @functools.cached_property
    def scale(self) -> torch.Tensor | None:
        """(F,) float32, above 0; None where the rows are the values."""
        if self._scale is None:
            return None
        # a few KiB, for as long as the features are open: not the ledger's, which buffers are
        scale = self._scale.read_range(0, self._scale.num_rows).clone()
        wrong = (~(scale.isfinite() & (scale > 0))).nonzero()
        if len(wrong):
            column = int(wrong[0])
            raise DataError(
                f"{self._scale.path}: scale {float(scale[column])} of column {column}, not above 0",
                "The file is damaged: find where with gnnx verify.",
            )
        return scale

    def fetch(
        self,
        rows: NDArray[np.int64],
        out: torch.Tensor | None = None,
        slots: NDArray[np.int64] | None = None,
    ) -> Pending:
        """Begin to read rows: ``out[slots[i]] = row rows[i]``; returns before they are there.

        Parameters
        ----------
        rows
            (R,) int64. In any order, duplicates allowed; unchanged until the wait is over.
        out
            (≥ R, ...). Contiguous, on the CPU; made, 64-byte aligned, where it is not given.
        slots
            (R,) int64. Default: 0, 1, 2, …; slots that are not named keep what they hold.

        Returns
        -------
        Pending
            Whose `wait` gives `out`.

        Raises
        ------
        DataError
            A row is outside the N rows.
        UsageError
            `out` or `slots` do not fit the rows.
        BudgetError
            There is no room for `out`, for 8 bytes a row where they do not ascend, or for a block.
        RunError
            The dataset is closed, or the file cannot be opened.
        """
        rows = np.ascontiguousarray(rows, np.int64)
        bad, ascending = check_ids(rows, self.num_rows)
        if bad >= 0:
            raise DataError(
                f"{self.path}: row {rows[bad]} asked for, there are {self.num_rows} rows",
                f"Ids run from 0 to {self.num_rows - 1}.",
            )
        if slots is None:
            out = self._place(out, len(rows))
        else:
            slots = np.ascontiguousarray(slots, np.int64)
            out = self._place(out, int(slots.max(initial=-1)) + 1)
            if len(slots) != len(rows) or slots.min(initial=0) < 0:
                raise UsageError(
                    f"{self.path}: {len(slots)} slots for {len(rows)} rows, the lowest "
                    f"{slots.min(initial=0)}",
                    "Give a slot from 0 up for every row.",
                )
        size = None if ascending else self.num_rows
        return self._submit(self._layout, rows, out, size=size, num_rows=len(rows), slots=slots)

    def scatter(
        self, rows: NDArray[np.int64], raw: NDArray[np.uint8], offsets: NDArray[np.int64]
    ) -> Job:
        """Begin to read rows to any bytes of a buffer; returns before they are there.

        Parameters
        ----------
        rows
            (R,) int64, R > 0. In any order, duplicates allowed; unchanged until the job is done.
        raw
            uint8. The buffer.
        offsets
            (R,) int64. Row ``rows[i]`` goes to ``raw[offsets[i] : offsets[i] + row_bytes]``.

        Returns
        -------
        Job
            To wait for.

        Raises
        ------
        BudgetError
            There is no room for 16 bytes a row.
        RunError
            The dataset is closed, or the file cannot be opened.
        """
        return self._engine.submit(
            self.file, self._layout, rows, raw,
            num_rows=len(rows), size=self.num_rows, slots=offsets, slot_bytes=1,
        )  # fmt: skip

    @property
    def _layout(self) -> Layout:
        return Layout(self._base, self.row_bytes, self.row_bytes, self._end)

    def fetch_range(self, begin: int, end: int, out: torch.Tensor | None = None) -> Pending:
        """Begin to read rows ``begin:end`` by large reads, for passes over the whole array.

        Parameters
        ----------
        begin
            The first row.
        end
            The row after the last one.
        out
            (≥ end - begin, ...). As for `fetch`.

        Returns
        -------
        Pending
            As of `fetch`.

        Raises
        ------
        DataError
            The range is not inside the array.
        UsageError
            `out` does not fit the rows.
        BudgetError
            There is no room for `out` or for a block.
        """
        if not 0 <= begin <= end <= self.num_rows:
            raise DataError(
                f"{self.path}: rows {begin} to {end} asked for, there are {self.num_rows} rows",
                "Give a range inside the array.",
            )
        out = self._place(out, end - begin)
        base, stop = (self._base + row * self.row_bytes for row in (begin, end))
        # the range is read as a table of its own, whose rows are as long as a read
        layout = Layout(base, LARGEST_RUN, LARGEST_RUN, stop)
        pieces = np.arange(-(-(stop - base) // LARGEST_RUN))
        return self._submit(layout, pieces, out, num_rows=end - begin)

    def read_range(self, begin: int, end: int, out: torch.Tensor | None = None) -> torch.Tensor:
        """``fetch_range(begin, end, out).wait()``."""
        return self.fetch_range(begin, end, out).wait()

    def _submit(
        self,
        layout: Layout,
        rows: NDArray[np.int64],
        out: torch.Tensor,
        *,
        num_rows: int,
        size: int | None = None,
        slots: NDArray[np.int64] | None = None,
    ) -> Pending:
        if len(rows) == 0 or self.row_bytes == 0:
            return Pending(out)
        raw = out.detach().view(-1).view(torch.uint8).numpy()  # bytes, whatever the dtype
        job = self._engine.submit(
            self.file, layout, rows, raw, size=size, num_rows=num_rows, slots=slots
        )
        check = None
        if self._values is not None:
            check = functools.partial(self._check, out, num_rows, slots)
        return Pending(out, job, check)

    def _check(self, out: torch.Tensor, num_rows: int, slots: NDArray[np.int64] | None) -> None:
        """Hold what came against the values that there can be."""
        found = out[:num_rows] if slots is None else out[torch.from_numpy(slots)]
        assert self._values is not None
        low, high = self._values
        for value in (int(found.min()), int(found.max())):
            if not low <= value < high:
                raise DataError(
                    f"{self.path}: {value} found, values run from {low} to {high - 1}",
                    "The file is damaged: find where with gnnx verify.",
                )

    def _place(self, out: torch.Tensor | None, num_rows: int) -> torch.Tensor:
        """Check that rows may go to `out`, or make it."""
        if out is None:
            shape = (num_rows, *self.row_shape)
            return self._ledger.tensor(shape, self.dtype, Tier.HOST, "fetch")
        fits = out.dtype == self.dtype and out.dim() > 0 and out.shape[1:] == self.row_shape
        if not (fits and len(out) >= num_rows and out.is_contiguous() and out.device.type == "cpu"):
            raise UsageError(
                f"{self.path}: {num_rows} rows {self.row_shape} of {self.dtype} do not go into "
                f"{tuple(out.shape)} of {out.dtype} on {out.device}",
                "Give a contiguous CPU tensor of the array's dtype and row shape, long enough.",
            )
        return out


class ConstantFeatures(FeatureStore):
    """The features of nodes that have none: the constant 1, (1,) float32 a row.

    Parameters
    ----------
    num_rows
        N.
    ledger
        Rows without an `out` come from here (HOST, owner ``"fetch"``).
    """

    row_shape = (1,)
    dtype = torch.float32
    row_bytes = 4

    def __init__(self, num_rows: int, ledger: Ledger) -> None:
        self._num_rows, self._ledger = num_rows, ledger

    @property
    def num_rows(self) -> int:  # noqa: D102 - the protocol's
        return self._num_rows

    def fetch(
        self,
        rows: NDArray[np.int64],
        out: torch.Tensor | None = None,
        slots: NDArray[np.int64] | None = None,
    ) -> Pending:
        """Fill the places of the rows; they are there when this returns.

        Parameters
        ----------
        rows
            (R,) int64.
        out
            (≥ R, 1), made where it is not given.
        slots
            (R,) int64. Default: 0, 1, 2, ….

        Returns
        -------
        Pending
            Whose `wait` gives `out`.

        Raises
        ------
        DataError
            A row is outside the N rows.
        """
        if len(rows) and not 0 <= rows.min() <= rows.max() < self._num_rows:
            bad = rows[(rows < 0) | (rows >= self._num_rows)][0]
            raise DataError(
                f"row {bad} asked for, there are {self._num_rows} rows",
                f"Ids run from 0 to {self._num_rows - 1}.",
            )
        if out is None:
            size = len(rows) if slots is None else int(slots.max(initial=-1)) + 1
            out = self._ledger.tensor((size, 1), self.dtype, Tier.HOST, "fetch")
        if slots is None:
            out[: len(rows)] = 1
        else:
            out[torch.from_numpy(slots)] = 1
        return Pending(out)
