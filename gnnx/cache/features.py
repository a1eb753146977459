"""A feature store that keeps some rows of a slower one in HOST memory.

N rows, R rows asked, C rows kept. It knows ids and bytes; which ids are worth it is decided
elsewhere (`gnnx.cache.access`).
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np
import torch

from gnnx import threads
from gnnx.cache import _kernels
from gnnx.cache.rows import RowSet, index_bytes
from gnnx.errors import DataError, UsageError
from gnnx.memory import Tier
from gnnx.store import DiskFeatures, FeatureStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from numpy.typing import NDArray

    from gnnx.memory import Ledger
    from gnnx.store import Pending

_FILL_ROWS = 1 << 14  # rows asked at a time: some MiB, and little to plan


@dataclasses.dataclass(frozen=True, slots=True)
class AccessCounts:
    """Rows asked of a cache since it was made, and where they came from."""

    rows_requested: int = 0
    rows_hit: int = 0
    bytes_hit: int = 0
    bytes_missed: int = 0

    @property
    def rows_missed(self) -> int:
        """Rows that came from the slower store."""
        return self.rows_requested - self.rows_hit

    def __add__(self, other: AccessCounts) -> AccessCounts:
        """Add up what two caches did."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return AccessCounts(*(one + another for one, another in pairs))

    def __sub__(self, other: AccessCounts) -> AccessCounts:
        """Tell what happened between two readings."""
        return AccessCounts(
            self.rows_requested - other.rows_requested,
            self.rows_hit - other.rows_hit,
            self.bytes_hit - other.bytes_hit,
            self.bytes_missed - other.bytes_missed,
        )


def overhead_bytes(num_rows: int) -> int:
    """HOST bytes of a cache beside its rows, at most.

    They are its index from ids to slots, N/8 + N/64 in whole cache lines, and ids while it fills.
    """
    return index_bytes(num_rows) + 16 * min(num_rows, _FILL_ROWS) + 2 * 64


class FeatureCache(FeatureStore):
    """Rows of a slower store, the chosen ones from HOST memory: the same bits either way.

    The constructor reads the chosen rows, in the order of the file. A fetch starts the read of
    what is missing, straight to its place in the output, and copies what is kept meanwhile.

    Parameters
    ----------
    source
        Where the rows are.
    ids
        (C,) int64, distinct and ascending: the rows to keep. May be empty, or all. Or a sealed set.
    ledger
        Where rows and index come from (HOST, owner "cache").

    Attributes
    ----------
    rows : RowSet
        The rows to keep.
    fill_bytes : int
        Bytes of rows read to fill the cache so far; `counts` does not have them.

    Raises
    ------
    DataError
        The ids do not ascend, or are not rows of the source.
    BudgetError
        HOST does not hold `overhead_bytes` and C rows.
    """

    def __init__(
        self,
        source: FeatureStore,
        ids: NDArray[np.int64] | RowSet,
        ledger: Ledger,
    ) -> None:
        self.source, self.fill_bytes = source, 0
        self.rows = ids if isinstance(ids, RowSet) else RowSet.of(ids, source.num_rows, ledger)
        self._ledger = ledger
        self._lock = threads.Lock()
        self._counts = AccessCounts()
        self._kept: torch.Tensor | None = None
        self._slots: NDArray[np.int32] | None = None
        self.fill()

    @classmethod
    def over(
        cls,
        source: FeatureStore,
        rows: RowSet,
        table: torch.Tensor,
        slots: NDArray[np.int32],
        ledger: Ledger,
    ) -> FeatureCache:
        """Make a cache of rows that somebody else has read.

        Parameters
        ----------
        source
            As of the class.
        rows
            Which rows, a sealed set of C.
        table
            (≥ C, ...), where they are; others may use its other rows.
        slots
            (C,) int32: where in the table each of them is, in ascending order of the rows.
        ledger
            As of the class.

        Returns
        -------
        FeatureCache
            With counts of its own.
        """
        cache = cls(source, np.empty(0, np.int64), ledger)
        cache.rows, cache._kept, cache._slots = rows, table, slots
        return cache

    @property
    def num_kept(self) -> int:
        """C."""
        return len(self.rows)

    @property
    def num_rows(self) -> int:
        """N."""
        return self.source.num_rows

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of a row."""
        return self.source.row_shape

    @property
    def dtype(self) -> torch.dtype:
        """Of the elements."""
        return self.source.dtype

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.source.row_bytes

    @property
    def scale(self) -> torch.Tensor | None:
        """Of the columns, as the source has it."""
        return self.source.scale

    @property
    def is_filled(self) -> bool:
        """Whether rows are held now."""
        return self._kept is not None

    @property
    def counts(self) -> AccessCounts:
        """Rows asked for so far and where they came from."""
        with self._lock:
            return self._counts

    @property
    def source_bytes_read(self) -> int:
        """Bytes of the reads of the source so far, where it is a file."""
        return self.source.file.bytes_read if isinstance(self.source, DiskFeatures) else 0

    @property
    def source_reads(self) -> int:
        """Number of the reads of the source so far, where it is a file."""
        return self.source.file.num_reads if isinstance(self.source, DiskFeatures) else 0

    def fill(self) -> None:
        """Read the chosen rows, in the order of the file; nothing where they are held already."""
        if self.is_filled or not self.num_kept:
            return
        kept = self._ledger.tensor((self.num_kept, *self.row_shape), self.dtype, Tier.HOST, "cache")
        pending, start = None, 0
        for begin in range(0, self.num_kept, _FILL_ROWS):
            end = min(begin + _FILL_ROWS, self.num_kept)
            ids, start = self.rows.ids(start, end - begin)
            following = self.source.fetch(ids, kept[begin:end])
            if pending is not None:  # two pieces are under way, so that the disk never idles
                pending.wait()
            pending = following
        if pending is not None:
            pending.wait()
        self._kept = kept
        self.fill_bytes += self.num_kept * self.row_bytes

    def held(self) -> Iterator[NDArray[np.int64]]:
        """List the rows that are held now, ascending, some at a time."""
        start, left = 0, self.num_kept if self.is_filled else 0
        while left:
            ids, start = self.rows.ids(start, min(left, _FILL_ROWS))
            left -= len(ids)
            yield ids

    def release(self) -> None:
        """Give the bytes of the rows back; until `fill`, every row comes from the source."""
        self._kept = None

    def fetch(
        self,
        rows: NDArray[np.int64],
        out: torch.Tensor | None = None,
        slots: NDArray[np.int64] | None = None,
        *,
        beneath: FeatureStore | None = None,
    ) -> Pending:
        """Begin to bring rows; those that are kept are in place when this returns.

        Parameters
        ----------
        rows
            (R,) int64 ids in any order, duplicates allowed.
        out
            (≥ R, ...) contiguous, of the cache's dtype; made anew (HOST) by default.
        slots
            (R,) int64 places in `out`; row i goes to place i by default.
        beneath
            What has the rows that are not kept, this time; the source by default.

        Returns
        -------
        Pending
            Its `wait` gives the whole `out`.

        Raises
        ------
        DataError
            A row is not in the store.
        UsageError
            A place is not in `out`, or `out` is not fit for the rows.
        BudgetError
            HOST does not hold 16 bytes a missing row, or the output.
        """
        kept = self._kept
        if kept is None:
            pending = (beneath or self.source).fetch(rows, out, slots)
            self._count(len(rows), num_hits=0)
            return pending
        rows = np.ascontiguousarray(rows, np.int64)
        if slots is not None:
            slots = np.ascontiguousarray(slots, np.int64)
            if len(slots) != len(rows):
                raise UsageError(f"{len(slots)} slots for {len(rows)} rows", "Give one a row.")
        if out is None:
            num_places = len(rows) if slots is None else int(slots.max(initial=-1)) + 1
            shape = (num_places, *self.row_shape)
            out = self._ledger.tensor(shape, self.dtype, Tier.HOST, "fetch")
        num_misses = _kernels.count_kernel(rows, slots, self.num_rows, len(out), self.rows.bits)
        if num_misses < 0:
            raise self._misplaced(rows, -1 - num_misses)
        missing, places = self.rows.absent(rows, slots, num_misses)
        pending = (beneath or self.source).fetch(missing, out, places)
        self._copy_hits(kept, rows, out, slots)
        self._count(len(rows), len(rows) - num_misses)
        return pending

    def _copy_hits(
        self,
        kept: torch.Tensor,
        rows: NDArray[np.int64],
        out: torch.Tensor,
        slots: NDArray[np.int64] | None,
    ) -> None:
        if not self.row_bytes:
            return
        words, target = words_of(kept, out)
        # one thread: the copy is bound by memory (two take as long as one), and batches are
        # prepared side by side
        _kernels.hits_kernel(
            rows, slots, self.rows.bits, self.rows.before, self._slots, words, target
        )

    def _count(self, num_rows: int, num_hits: int) -> None:
        num_misses = num_rows - num_hits
        with self._lock:
            was = self._counts
            self._counts = AccessCounts(
                was.rows_requested + num_rows,
                was.rows_hit + num_hits,
                was.bytes_hit + num_hits * self.row_bytes,
                was.bytes_missed + num_misses * self.row_bytes,
            )

    def _misplaced(self, rows: NDArray[np.int64], i: int) -> DataError | UsageError:
        if 0 <= rows[i] < self.num_rows:
            return UsageError(
                f"row {rows[i]}, number {i} of those asked, goes to a place outside the output",
                "Give a larger output, or lower slots.",
            )
        return DataError(
            f"row {rows[i]} asked for, there are {self.num_rows} rows",
            f"Ids run from 0 to {self.num_rows - 1}.",
        )


def words_of(*tables: torch.Tensor) -> Iterator[NDArray[Any]]:
    """Rows of tables of one row size as machine words, (C, W): copying needs no dtype."""
    row_bytes = math.prod(tables[0].shape[1:]) * tables[0].element_size()
    word = math.gcd(row_bytes, 8, *(table.data_ptr() for table in tables))
    for table in tables:
        raw = table.detach().view(-1).view(torch.uint8).numpy()
        yield raw.view(f"u{word}").reshape(len(table), row_bytes // word)
