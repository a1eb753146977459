"""What an epoch is expected to read: a pure function of who is wanted and how rows are brought.

N rows of F bytes; draws of different batches are taken as independent, as in `gnnx.cache.strategy`.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from gnnx.cache.strategy import lengths
from gnnx.store import GAP_BYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gnnx.cache.strategy import Demand, Strategy

_BLOCK = 4 << 10


@dataclasses.dataclass(frozen=True, slots=True)
class Forecast:
    """Rows and bytes of an epoch, as `EpochStats` counts them."""

    rows_requested: int
    """By all batches."""
    rows_from_disk: int
    """Read from the file of features."""
    rows_from_packs: int
    """Read back from packs, and written to them before."""
    feature_read_bytes: int
    """Of the reads of rows, with what coalescing reads beside."""
    disk_read_bytes: int
    """The same, and what is read of packs."""
    disk_written_bytes: int
    """Written to packs."""
    num_reads: int
    """Reads of the file of features."""


def forecast(demand: Demand, strategy: Strategy, num_rows: int, row_bytes: int,
             num_steps: int, gap_bytes: int = GAP_BYTES) -> Forecast:  # fmt: skip
    """Estimate the traffic of an epoch.

    Parameters
    ----------
    demand
        Who is wanted by a batch.
    strategy
        How rows are read.
    num_rows
        N.
    row_bytes
        F.
    num_steps
        Batches of the epoch.
    gap_bytes
        Largest gap between rows that the engine reads: `ReadEngine.gap_bytes`.

    Returns
    -------
    Forecast
        Of an epoch whose cache is filled.
    """
    windows = lengths(strategy.steps, num_steps) if strategy.kind != "rows" else [1] * num_steps
    rows, num_bytes, reads = 0.0, 0.0, 0.0
    for length, times in collections.Counter(windows).items():
        within = demand.within(length)
        # in memory, a row is read where the window before did not have it
        fresh = (1 - within) if strategy.kind == "windows" else 1.0
        new = _beyond(demand, strategy.num_kept, within * fresh)
        read = _spread(new, num_rows, row_bytes, gap_bytes // _BLOCK)
        rows, num_bytes, reads = (
            rows + times * new,
            num_bytes + times * read[0],
            reads + times * read[1],
        )
    missed = num_steps * _beyond(demand, strategy.num_kept, demand.probability)
    packed = missed if strategy.kind == "packs" else 0.0
    return Forecast(
        rows_requested=round(num_steps * float(demand.count @ demand.probability)),
        rows_from_disk=round(rows),
        rows_from_packs=round(packed),
        feature_read_bytes=round(num_bytes),
        disk_read_bytes=round(num_bytes + packed * row_bytes),
        disk_written_bytes=round(packed * row_bytes),
        num_reads=round(reads),
    )


def _beyond(demand: Demand, kept: int, chance: NDArray[np.float64]) -> float:
    """Rows expected beyond those that stay, which are the likeliest, from the chance of each."""
    edges = np.append(0, np.cumsum(demand.count))
    sums = np.append(0.0, np.cumsum(demand.count * chance))
    return float(sums[-1] - np.interp(kept, edges, sums))


def _spread(count: float, num_rows: int, row_bytes: int, gap_blocks: int) -> tuple[float, float]:
    """Bytes and number of the reads of rows that lie anywhere in the file.

    A share q of the blocks is touched. The next one that is lies g blocks further with probability
    q (1 - q)^g; gaps of up to G blocks are read, longer ones end a read.
    """
    num_blocks = num_rows * row_bytes / _BLOCK
    if count <= 0 or num_blocks <= 0:
        return 0.0, 0.0
    # a row that does not divide a block, or is not divided by one, lies across one more
    aligned = max(row_bytes, _BLOCK) % min(row_bytes, _BLOCK) == 0
    per_row = max(1.0, row_bytes / _BLOCK) if aligned else 1 + row_bytes / _BLOCK
    q = -float(np.expm1(-count * per_row / num_blocks))
    if per_row > 1:  # the blocks of a row are one read
        count = min(count, q * num_blocks / per_row)
    gaps = np.arange(1, gap_blocks + 1)
    between = q * float(np.sum(gaps * (1 - q) ** gaps))
    touched = q * num_blocks
    reads = min(count, touched) * (1 - q) ** gap_blocks
    return touched * (1 + between) * _BLOCK, max(1.0, reads)
