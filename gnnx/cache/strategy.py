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
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from gnnx.cache import _kernels
from gnnx.cache.features import overhead_bytes
from gnnx.cache.packs import pack_bytes
from gnnx.cache.staging import MOST_STEPS, pool_bytes
from gnnx.store import GAP_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

Kind = Literal["rows", "windows", "packs"]

_BLOCK = 4 << 10  # what a read brings, at least
PACK_COST = 3.0
"""A byte written and read back costs as much as so many bytes streamed: writes are slower."""
# Sampling a batch once more must be worth it.
_GAIN = 0.75
_SPREAD = 1.03  # a window's rows beside those expected; where they are more, it is shorter
_NUM_BINS = 1 << 11
_LARGEST_PIECE, _SMALLEST_PIECE = 64 << 20, 64 << 10
_PIECE_SHARES = (64, 32, 16, 8)  # of the room; three are held


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
    gap_bytes: int = GAP_BYTES,
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
    gap_bytes
        What a read costs beside its bytes, in bytes streamed: `Disk.gap_bytes`.
    kinds
        Those to choose from; ``"rows"`` needs nothing and is what remains.

    Returns
    -------
    Strategy
        What is held fits in the room (`held_bytes`); its cost falls as the room grows.
    """
    case = _Case(room, demand, num_rows, row_bytes, num_steps, gap_bytes)
    best = _rows(case)
    bar = best.cost_bytes * (_GAIN if "rows" in kinds else np.inf)
    for steps in candidates(num_steps):
        pieces = {_piece_bytes(case.room // share) for share in _PIECE_SHARES}
        found = [_packs(case, steps, piece, disk_bytes) for piece in sorted(pieces)]
        for strategy in (_windows(case, steps), *found):
            if strategy and strategy.kind in kinds and strategy.cost_bytes < bar:
                best, bar = strategy, strategy.cost_bytes
    return best


def one_by_one(
    kept: int, demand: Demand, num_rows: int, row_bytes: int, gap_bytes: int
) -> Strategy:
    """Read what does not stay a batch at a time.

    Parameters
    ----------
    kept
        Rows that stay, the likeliest.
    demand
        Who is wanted.
    num_rows
        N.
    row_bytes
        F.
    gap_bytes
        As of `choose`.

    Returns
    -------
    Strategy
        Of kind ``"rows"``.
    """
    missed = _at(demand, kept, demand.beyond(1))
    return Strategy("rows", kept, 1, 0, 0, read_cost(missed, num_rows, row_bytes, gap_bytes))


def held_bytes(strategy: Strategy, num_rows: int, row_bytes: int) -> int:
    """HOST bytes that a strategy holds, at most."""
    held = strategy.num_kept * (row_bytes + 8)
    if strategy.kind == "rows":
        return held + (overhead_bytes(num_rows) if strategy.num_kept else 0)
    held += overhead_bytes(num_rows)
    if strategy.kind == "windows":
        return held + pool_bytes(strategy.num_rows, num_rows, row_bytes) + 2 * strategy.id_bytes
    pieces = pack_bytes(strategy.num_rows, strategy.steps, num_rows, row_bytes)
    return held + strategy.id_bytes + pieces


def lengths(steps: int, num_steps: int) -> Iterator[int]:
    """Batches of the windows of an epoch: as few windows as there can be, of about one length."""
    for left in range(-(-num_steps // steps), 0, -1):
        length = -(-num_steps // left)
        yield length
        num_steps -= length


def read_cost(count: float, num_rows: int, row_bytes: int, gap_bytes: int = GAP_BYTES) -> float:
    """Bytes that cost as much to stream as rows spread over the file do, gaps read where cheap."""
    if not num_rows * row_bytes:
        return 0.0
    whole = float(num_rows * row_bytes)
    return -whole * float(np.expm1(-count * (max(row_bytes, _BLOCK) + gap_bytes) / whole))


def candidates(num_steps: int) -> list[int]:
    """Lengths of windows to try: each number of windows up to 32, then an eighth apart."""
    tried = {-(-num_steps // count) for count in range(1, 33)}
    tried |= {2**k * m // 8 for k in range(1, 16) for m in range(8, 16)}
    return sorted(steps for steps in tried if 2 <= steps <= num_steps)


class _Case(NamedTuple):
    """What `choose` was given."""

    room: int
    demand: Demand
    num_rows: int
    row_bytes: int
    num_steps: int
    gap_bytes: int

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_rows, self.row_bytes

    @property
    def ids(self) -> NDArray[np.float64]:
        """Bytes of the ids of a batch's rows beyond those of the first k bins, and some."""
        return _SPREAD * (4 if self.num_rows <= 2**31 else 8) * self.demand.beyond(1)


def _rows(case: _Case) -> Strategy:
    left = max(0, case.room - overhead_bytes(case.num_rows))
    kept = min(int(case.demand.count.sum()), left // (case.row_bytes + 8))
    return one_by_one(kept, case.demand, *case.shape, case.gap_bytes)


def _windows(case: _Case, steps: int) -> Strategy | None:
    if steps > MOST_STEPS:
        return None
    demand, kept_bytes = case.demand, case.row_bytes + 8
    fixed = pool_bytes(0, *case.shape)
    place_bytes = pool_bytes(1, *case.shape) - fixed
    room = case.room - fixed - overhead_bytes(case.num_rows)
    ids = steps * case.ids
    kept = _most(demand, room, kept_bytes, _SPREAD * place_bytes * demand.beyond(steps) + 2 * ids)
    if kept is None:
        return None
    id_bytes = math.ceil(_at(demand, kept, ids))
    # what the estimate leaves of the room goes to the windows
    rows = min(case.num_rows, (room - kept * kept_bytes - 2 * id_bytes) // place_bytes)
    if rows < 1:
        return None
    cost = _window_cost(case, kept, steps, carried=True)
    return Strategy("windows", kept, steps, int(rows), id_bytes, cost)


def _piece_bytes(wish: int) -> int:
    return min(_LARGEST_PIECE, max(_SMALLEST_PIECE, wish))


def _packs(case: _Case, steps: int, piece_bytes: int, disk_bytes: int | None) -> Strategy | None:
    demand, kept_bytes = case.demand, case.row_bytes + 8
    piece = max(1, piece_bytes // kept_bytes)
    room = case.room - overhead_bytes(case.num_rows) - pack_bytes(piece, steps, *case.shape)
    kept = _most(demand, room, kept_bytes, steps * case.ids)
    if kept is None:
        return None
    batch_rows = _at(demand, kept, demand.beyond(1))
    batch_bytes = case.row_bytes * batch_rows
    if disk_bytes is not None and 2 * steps * (_SPREAD * batch_bytes + _BLOCK) > disk_bytes:
        return None
    # a piece has a write for each batch that fills a block in it: the longer the window, the
    # shorter they are
    writes = min(steps * batch_rows / piece, batch_bytes / _BLOCK)
    cost = _window_cost(case, kept, steps, carried=False) + PACK_COST * batch_bytes
    cost += case.gap_bytes * writes
    return Strategy("packs", kept, steps, piece, room - kept * kept_bytes, cost)


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


def _window_cost(case: _Case, kept: int, steps: int, *, carried: bool) -> float:
    """Cost of a batch's share of reading the windows of an epoch."""
    total = 0.0
    for length, times in collections.Counter(lengths(steps, case.num_steps)).items():
        within = case.demand.within(length)
        # in memory, a row is read where the window before did not have it
        read = case.demand.count * within * ((1 - within) if carried else 1.0)
        new = _at(case.demand, kept, np.append(np.cumsum(read[::-1])[::-1], 0.0))
        total += times * read_cost(new, *case.shape, case.gap_bytes)
    return total / case.num_steps
