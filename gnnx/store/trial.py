"""Ways to read rows, tried on a file of the user's own disk.

R rows of a share of the file are wanted; the ways differ in which gaps between them are read.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

import numpy as np

from gnnx.memory import Tier

if TYPE_CHECKING:
    from gnnx.store.dataset import Dataset
    from gnnx.store.features import DiskFeatures

_PIECE_BYTES = 8 << 20  # of rows asked at a time
DENSITIES = (0.001, 0.03, 0.3)
"""Shares of the rows that are wanted."""
WAYS = ("rows", "coalesced", "scan")
"""Each row on its own; gaps read where that is cheaper; all gaps read."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """What one way of reading a share of the rows brought."""

    density: float
    way: str
    rows: int
    """Rows that came."""
    reads: int
    bytes_read: int
    seconds: float

    @property
    def rows_per_s(self) -> float:
        """Rows that came a second."""
        return self.rows / max(1e-9, self.seconds)


def try_reads(dataset: Dataset, source: DiskFeatures, seconds: float) -> list[Trial]:
    """Read rows in each way at each density, in turns, from all over the file.

    Parameters
    ----------
    dataset
        Whose readers serve.
    source
        What to read.
    seconds
        Time limit of all, about.

    Returns
    -------
    list of Trial
        By density, then way. Each has read for an equal time, or the whole file.

    Raises
    ------
    RunError
        A read failed.
    """
    each_s, found = seconds / (len(DENSITIES) * len(WAYS)), []
    chosen, rng = dataset.io.gap_bytes, np.random.default_rng(0)
    gaps = {"rows": 0, "coalesced": chosen, "scan": 1 << 40}
    try:
        for density in DENSITIES:
            for way in WAYS:
                dataset.io.gap_bytes = gaps[way]
                found.append(_try(dataset, source, density, way, each_s, rng))
    finally:
        dataset.io.gap_bytes = chosen
    return found


def _try(
    dataset: Dataset,
    source: DiskFeatures,
    density: float,
    way: str,
    limit_s: float,
    rng: np.random.Generator,
) -> Trial:
    free, file = dataset.ledger.free_bytes(Tier.HOST), source.file
    most = _PIECE_BYTES if free is None else min(_PIECE_BYTES, free // 4)
    count = max(1, most // max(1, source.row_bytes))
    span = max(1, min(source.num_rows, int(count / density)))  # rows of the file that a piece spans
    out = dataset.ledger.tensor((count, *source.row_shape), source.dtype, Tier.HOST, "fetch")
    reads, num_bytes, rows = file.num_reads, file.bytes_read, 0
    spans = rng.permutation(-(-source.num_rows // span))
    begin = time.perf_counter()
    for place in spans:
        first = int(place) * span
        wanted = np.flatnonzero(rng.random(min(span, source.num_rows - first)) < density)[:count]
        if len(wanted):
            source.fetch(wanted + first, out[: len(wanted)]).wait()
            rows += len(wanted)
        if time.perf_counter() - begin >= limit_s:
            break
    seconds = time.perf_counter() - begin
    return Trial(density, way, rows, file.num_reads - reads, file.bytes_read - num_bytes, seconds)
