"""Share out HOST memory between batches, seeds, graph and rows, and keep in it what it is for."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from gnnx.cache.access import access_bytes, every, expected_access, expected_pages, hottest
from gnnx.cache.features import FeatureCache
from gnnx.cache.plan import HostNeeds, HostPlan, plan, split
from gnnx.cache.strategy import Demand, Kind, Strategy, choose
from gnnx.memory import Tier
from gnnx.store import PAGE_BYTES, calibrate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gnnx.store import Dataset, FeatureStore, GraphStore

# HOST bytes of a batch in preparation: of a row, the sampler's table, then the list and order of
# those to be read (30 measured, where all are read); beside them the sampler's pieces of edges
_ROW_BYTES = 32
_PIECE_EDGES, _EDGE_BYTES = 1 << 16, 28


@dataclasses.dataclass(frozen=True, slots=True)
class Demands:
    """What batches are made of, as far as memory goes."""

    seeds: FeatureStore | NDArray[np.int64]
    """Ids of the seeds."""
    seeds_bytes: int
    """HOST bytes that ids and labels of all seeds would take."""
    fanouts: Sequence[int]
    """Neighbours drawn of every node, the seeds' layer first; -1 is all."""
    batch_size: int
    """Seeds of a batch."""
    num_steps: int
    """Batches of an epoch."""
    num_batches: int
    """Batches in preparation at the same time, at most."""
    keep_rows: bool
    """Whether rows may stay in memory, and windows be made."""
    kinds: tuple[Kind, ...]
    """Ways to read rows that may be chosen."""
    scratch_bytes: int = 0
    """HOST bytes that sampling a batch takes beside those of its rows and drawn edges."""


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What HOST memory is to be used for."""

    shared: HostPlan
    """Between batches, seeds, graph and rows."""
    strategy: Strategy
    """How rows are read that do not stay."""
    demand: Demand | None
    """Who is wanted; None where all rows stay, or where HOST does not hold the ranking."""
    scores: NDArray[np.float32] | None
    """(N,) of `expected_access`; None as `demand`."""
    pages: NDArray[np.int64] | None
    """Pages of the graph that stay where its sources do not; None where there are none."""
    all_rows: bool
    """Whether all rows stay."""


@dataclasses.dataclass(frozen=True, slots=True)
class Arrangement:
    """What HOST memory is used for."""

    features: FeatureCache
    """The rows that stay, and the source behind them."""
    strategy: Strategy
    """How the others are read."""
    keep_seeds: bool
    """Whether there is room for the seeds."""


def decide(dataset: Dataset, demands: Demands) -> Decision:
    """Share out what is free of HOST memory (`plan`, `choose`); holds the scores, and ids of pages.

    Where HOST does not hold the ranking, about 8 bytes a node, it would not hold rows worth
    ranking: none are kept, and there are no windows.

    Parameters
    ----------
    dataset
        Opened with the budget to keep.
    demands
        What batches are made of.

    Returns
    -------
    Decision
        Whose scores are held as long as it is.

    Raises
    ------
    BudgetError
        HOST does not hold what reading takes.
    """
    graph, ledger, source = dataset.graph, dataset.ledger, dataset.features
    source.read(np.arange(min(1, source.num_rows)))  # the readers take their buffers, for good
    graph.drop_pages()  # of an earlier decision
    free = ledger.free_bytes(Tier.HOST)
    needs = _needs(dataset, demands, _most_rows(demands))
    shared = plan(free, needs)
    one_by_one = Strategy("rows", 0, 1, 0, 0, 0.0)
    if shared == plan(None, needs):
        strategy = dataclasses.replace(one_by_one, num_kept=needs.num_rows)
        return Decision(shared, strategy, None, None, None, all_rows=True)
    if free is None or access_bytes(graph.num_nodes) > free:
        return Decision(shared, one_by_one, None, None, None, all_rows=False)
    drawn = len(demands.fanouts) > 0  # whole parts are read as ranges, which pages do not serve
    page_scores = _page_scores(graph, demands, free) if sum(needs.topology) and drawn else None
    scores = expected_access(graph, demands.seeds, demands.fanouts, demands.batch_size)
    # what a batch is expected to have, and some: far less than the most it can have
    needs = _needs(dataset, demands, 1.1 * float(scores.sum()))
    shared, demand = plan(free, needs), Demand.of(scores)
    disk = calibrate(source.file, dataset.io, ledger)
    dataset.io.gap_bytes = disk.gap_bytes
    room, pages = free - shared.batches - shared.seeds - shared.topology, None  # rows may need less
    if page_scores is not None and shared.topology < sum(needs.topology):
        held = split(
            room - graph.page_bytes(0),
            demand if demands.keep_rows else Demand.of(scores[:0]),
            needs.row_bytes + 8,
            Demand.of(page_scores),
            PAGE_BYTES,
        )
        if held:
            pages = hottest(page_scores, held // PAGE_BYTES, ledger)
            room -= graph.page_bytes(len(pages))
    del page_scores
    strategy = choose(
        min(room, shared.room),
        demand,
        needs.num_rows,
        needs.row_bytes,
        demands.num_steps,
        disk_bytes=ledger.free_bytes(Tier.DISK),
        gap_bytes=disk.gap_bytes,
        kinds=demands.kinds if demands.keep_rows else ("rows",),
    )
    ranked = scores.nbytes + (0 if pages is None else pages.nbytes)
    most = (free - ranked) // np.dtype(np.int64).itemsize - 64
    count = min(strategy.num_kept, int(np.count_nonzero(scores)), most)
    strategy = dataclasses.replace(strategy, num_kept=count if demands.keep_rows else 0)
    return Decision(shared, strategy, demand, scores, pages, all_rows=False)


def arrange(dataset: Dataset, demands: Demands) -> Arrangement:
    """Share out HOST memory as `decide` says, pin the graph, fill the cache.

    Parameters
    ----------
    dataset
        Opened with the budget to keep.
    demands
        What batches are made of.

    Returns
    -------
    Arrangement
        Its features hold the rows that stay.

    Raises
    ------
    BudgetError
        HOST does not hold what reading takes.
    """
    ledger, source = dataset.ledger, dataset.features
    decision = decide(dataset, demands)
    shared, strategy = decision.shared, decision.strategy
    if decision.all_rows:
        ids = every(strategy.num_kept, ledger)
    elif decision.scores is None:
        ids = np.empty(0, np.int64)
    else:
        ids = hottest(decision.scores, strategy.num_kept, ledger)
    pages = decision.pages
    del decision  # the scores' bytes are the graph's and the rows'
    dataset.graph.pin(shared.topology)
    if pages is not None:
        dataset.graph.keep_pages(pages)
        del pages
    return Arrangement(FeatureCache(source, ids, ledger), strategy, shared.seeds > 0)


def _page_scores(graph: GraphStore, demands: Demands, free: int) -> NDArray[np.float32] | None:
    """Rank the pages of the graph, where HOST holds that."""
    if access_bytes(graph.num_nodes) + 4 * graph.num_pages > free:
        return None
    return expected_pages(graph, demands.seeds, demands.fanouts, demands.batch_size)


def _most_rows(demands: Demands) -> float:
    """Bound the rows of a batch."""
    factors = (1 + f if f >= 0 else math.inf for f in demands.fanouts)
    return demands.batch_size * math.prod(factors)


def batch_bytes(num_rows: float, fanouts: Sequence[int]) -> int:
    """HOST bytes of a batch in preparation that has so many rows."""
    rows = math.ceil(num_rows)
    edges = _PIECE_EDGES if -1 in fanouts else rows * max(fanouts, default=0)
    return _ROW_BYTES * rows + _EDGE_BYTES * min(edges, _PIECE_EDGES)


def _needs(dataset: Dataset, demands: Demands, batch_rows: float) -> HostNeeds:
    source = dataset.features
    return HostNeeds(
        batch=batch_bytes(min(batch_rows, source.num_rows), demands.fanouts)
        + demands.scratch_bytes,
        num_batches=demands.num_batches,
        seeds=demands.seeds_bytes,
        topology=dataset.graph.unpinned,
        num_rows=source.num_rows if demands.keep_rows else 0,
        row_bytes=source.row_bytes,
    )
