"""How rows reach the batches: each batch on its own, in windows in memory, or through packs.

Pure functions of probabilities and sizes. N rows of F bytes; p(v) is the probability that a batch
wants row v, W the batches of a window, C the rows that stay. With draws of different batches taken
as independent, W batches want 1 - (1 - p)^W of row v.

- Each batch on its own reads what it misses, straight to its place.
- A window in memory reads the rows of W batches once, in disk order; the next one is read into
  the places of rows that are done with. Rows that both want are not read again.
- Packs: the rows of W batches are read once, in disk order, and written to a scratch file, those
  of a batch one after the other. W costs the ids of the rows, 4 bytes each, not the rows.

A row that stays costs one place; one that is in a window with probability q costs q places. So
the likeliest rows stay, the more the longer the window is, and the split follows from the room.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from gnnx.cache import _kernels
from gnnx.cache.features import overhead_bytes
from gnnx.cache.rows import index_bytes
from gnnx.cache.staging import MOST_STEPS, pool_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

Kind = Literal["rows", "windows", "packs"]

# A read costs as much as this many bytes streamed, and brings at least a block.
_READ_COST, _BLOCK = 16 << 10, 4 << 10
# A byte written and read back costs as much as this many bytes streamed: writes are slower.
_PACK_COST = 3.0
# Sampling a batch once more must be worth it.
_GAIN = 0.75
_SPREAD = 1.1  # a window's rows beside those expected
_NUM_BINS = 1 << 11
_LARGEST_PIECE, _SMALLEST_PIECE = 8 << 20, 64 << 10
_FIRST_STEPS, _GROWTH = 4, 4
NUM_PIECES = 3
"""Buffers of a packing: two that are read in turn, one that is written from."""


@dataclasses.dataclass(frozen=True)
class Demand:
    """Rows by how likely a batch wants them, the likeliest first."""

    probability: NDArray[np.float64]
    """(K,) in (0, 1], descending."""
    count: NDArray[np.int64]
    """(K,) rows of that probability."""

    @classmethod
    def of(cls, scores: NDArray[np.float32]) -> Demand:
        """Gather the scores of `expected_access` in bins, eight an octave."""
        counts, sums = np.zeros(_NUM_BINS, np.int64), np.zeros(_NUM_BINS)
        _kernels.histogram_kernel(scores, scores.view(np.uint32), counts, sums)
        some = np.flatnonzero(counts)[::-1]
        return cls(np.minimum(sums[some] / counts[some], 1.0), counts[some])

    def beyond(self, num_batches: int) -> NDArray[np.float64]:
        """Distinct rows that batches want beyond the rows of the first k bins, (K + 1,)."""
        wanted = self.count * self.within(num_batches)
        return np.append(np.cumsum(wanted[::-1])[::-1], 0.0)

    def within(self, num_batches: int) -> NDArray[np.float64]:
        """Probability that one of so many batches wants a row, (K,)."""
        spared = np.log1p(-np.minimum(self.probability, 1 - 1e-12))
        return np.asarray(-np.expm1(num_batches * spared), np.float64)


@dataclasses.dataclass(frozen=True, slots=True)
class Strategy:
    """How rows are read, and what is held for it."""

    kind: Kind
    num_kept: int
    """Rows that stay."""
    steps: int
    """Batches of a window, at most."""
    num_rows: int
    """Rows of a window in memory, at most, or of a piece of a packing."""
    id_bytes: int
    """Bytes of the ids of a window's batches, at most."""
    cost_bytes: float
    """Expected cost of a batch, in bytes streamed."""


def choose(
    room: int,
    demand: Demand,
    num_rows: int,
    row_bytes: int,
    num_steps: int,
    *,
    disk_bytes: int | None = None,
    kinds: tuple[Kind, ...] = ("rows", "windows", "packs"),
) -> Strategy:
    """Choose the strategy that costs least within the room.

    Parameters
    ----------
    room
        HOST bytes for rows, indices and windows.
    demand
        Who is wanted.
    num_rows
        N.
    row_bytes
        F.
    num_steps
        Batches of an epoch.
    disk_bytes
        DISK bytes for packs; None is no limit.
    kinds
        Those to choose from; ``"rows"`` needs nothing and is what remains.

    Returns
    -------
    Strategy
        What is held fits in the room (`held_bytes`); its cost falls as the room grows.
    """
    best = _rows(room, demand, num_rows, row_bytes)
    bar = best.cost_bytes * (_GAIN if "rows" in kinds else np.inf)
    for steps in _candidates(num_steps):
        found = [
            _windows(room, demand, num_rows, row_bytes, steps, num_steps),
            _packs(room, demand, num_rows, row_bytes, steps, num_steps, disk_bytes),
        ]
        for strategy in found:
            if strategy and strategy.kind in kinds and strategy.cost_bytes < bar:
                best, bar = strategy, strategy.cost_bytes
    return best


def held_bytes(strategy: Strategy, num_rows: int, row_bytes: int) -> int:
    """HOST bytes that a strategy holds, at most."""
    held = strategy.num_kept * (row_bytes + 8)
    if strategy.kind == "rows":
        return held + (overhead_bytes(num_rows) if strategy.num_kept else 0)
    held += overhead_bytes(num_rows)
    if strategy.kind == "windows":
        return held + pool_bytes(strategy.num_rows, num_rows, row_bytes) + 2 * strategy.id_bytes
    piece = NUM_PIECES * strategy.num_rows * (row_bytes + 8)
    return held + strategy.id_bytes + piece + index_bytes(num_rows)


def lengths(steps: int, num_steps: int) -> Iterator[int]:
    """Batches of the windows of an epoch: nothing hides the first one, so that they grow."""
    length = min(steps, max(_FIRST_STEPS, steps // _GROWTH**2))
    while num_steps > 0:
        yield min(length, num_steps)
        num_steps -= length
        length = min(_GROWTH * length, steps)


def read_cost(count: float, num_rows: int, row_bytes: int) -> float:
    """Bytes that cost as much to stream as rows spread over the file do, gaps read where cheap."""
    if not num_rows * row_bytes:
        return 0.0
    whole = float(num_rows * row_bytes)
    return -whole * float(np.expm1(-count * (max(row_bytes, _BLOCK) + _READ_COST) / whole))


def _candidates(num_steps: int) -> list[int]:
    """Lengths of windows to try: a third apart, and the whole epoch."""
    tried = {2**k * m // 2 for k in range(1, 16) for m in (2, 3)} | {num_steps}
    return sorted(steps for steps in tried if 2 <= steps <= num_steps)


def _rows(room: int, demand: Demand, num_rows: int, row_bytes: int) -> Strategy:
    left = max(0, room - overhead_bytes(num_rows))
    kept = min(int(demand.count.sum()), left // (row_bytes + 8))
    missed = _at(demand, kept, demand.beyond(1))
    return Strategy("rows", kept, 1, 0, 0, read_cost(missed, num_rows, row_bytes))


def _windows(
    room: int, demand: Demand, num_rows: int, row_bytes: int, steps: int, num_steps: int
) -> Strategy | None:
    if steps > MOST_STEPS:
        return None
    fixed = overhead_bytes(num_rows) + pool_bytes(0, num_rows, row_bytes)
    place_bytes = pool_bytes(1, num_rows, row_bytes) - pool_bytes(0, num_rows, row_bytes)
    missed = demand.beyond(1)
    ids = _SPREAD * steps * _id_bytes(num_rows) * missed
    places = _SPREAD * place_bytes * demand.beyond(steps)
    kept = _most(demand, room - fixed, row_bytes + 8, places + 2 * ids)
    if kept is None:
        return None
    id_bytes = math.ceil(_at(demand, kept, ids))
    # what the estimate leaves of the room goes to the windows
    rows = (room - fixed - kept * (row_bytes + 8) - 2 * id_bytes) // place_bytes
    cost = _window_cost(demand, kept, num_rows, row_bytes, steps, num_steps, carried=True)
    return Strategy("windows", kept, steps, max(1, int(min(rows, num_rows))), id_bytes, cost)


def _packs(
    room: int,
    demand: Demand,
    num_rows: int,
    row_bytes: int,
    steps: int,
    num_steps: int,
    disk_bytes: int | None,
) -> Strategy | None:
    piece_bytes = min(_LARGEST_PIECE, max(_SMALLEST_PIECE, room // 16))
    piece = min(num_rows, max(1, piece_bytes // (row_bytes + 8)))
    fixed = NUM_PIECES * piece * (row_bytes + 8) + overhead_bytes(num_rows) + index_bytes(num_rows)
    missed = demand.beyond(1)
    ids = _SPREAD * steps * _id_bytes(num_rows) * missed
    kept = _most(demand, room - fixed, row_bytes + 8, ids)
    if kept is None:
        return None
    batch = _at(demand, kept, missed)
    if disk_bytes is not None and 2 * _SPREAD * steps * batch * row_bytes > disk_bytes:
        return None
    cost = _window_cost(demand, kept, num_rows, row_bytes, steps, num_steps, carried=False)
    cost += _PACK_COST * batch * row_bytes
    return Strategy("packs", kept, steps, piece, room - fixed - kept * (row_bytes + 8), cost)


def _id_bytes(num_rows: int) -> int:
    return 4 if num_rows <= 2**31 else 8


def _most(demand: Demand, room: float, row_cost: float, rest: NDArray[np.float64]) -> int | None:
    """Most rows that may stay, where what the rows beyond bin k need is ``rest[k]`` bytes."""
    kept = np.append(0, np.cumsum(demand.count))
    left = room - (kept * row_cost + rest)
    fits = np.flatnonzero(left >= 0)
    if not len(fits):
        return None
    k = int(fits[-1])
    if k == len(demand.count):
        return int(kept[k])
    # within the next bin both change in proportion
    fall = left[k] - left[k + 1]
    return int(kept[k] + demand.count[k] * left[k] / fall)


def _at(demand: Demand, kept: int, beyond: NDArray[np.float64]) -> float:
    """Sum beyond the rows that stay, from those beyond each bin."""
    edges = np.append(0, np.cumsum(demand.count))
    return float(np.interp(kept, edges, beyond))


def _window_cost(
    demand: Demand,
    kept: int,
    num_rows: int,
    row_bytes: int,
    steps: int,
    num_steps: int,
    *,
    carried: bool,
) -> float:
    """Cost of a batch's share of reading the windows of an epoch."""
    total = 0.0
    for length, times in collections.Counter(lengths(steps, num_steps)).items():
        within = demand.within(length)
        # in memory, a row is read where the window before did not have it
        read = demand.count * within * ((1 - within) if carried else 1.0)
        new = _at(demand, kept, np.append(np.cumsum(read[::-1])[::-1], 0.0))
        total += times * read_cost(new, num_rows, row_bytes)
    return total / num_steps
