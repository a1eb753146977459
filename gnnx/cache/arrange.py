"""Share out HOST memory between batches, seeds, graph and rows, and keep in it what it is for."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx.cache.access import access_bytes, every, expected_access, expected_pages, hottest
from gnnx.cache.bound import BeladyBound, bound_bytes, entries_within
from gnnx.cache.draws import DrawNeeds, DrawPlan, choose_draws
from gnnx.cache.features import FeatureCache
from gnnx.cache.plan import HostNeeds, HostPlan, plan, split
from gnnx.cache.strategy import Demand, Kind, Strategy, choose, held_bytes
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
_ARRAYS = 2  # of a graph: row pointers and sources


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
    draw_ahead: bool = False
    """Whether batches may draw together."""
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
    draws: DrawPlan | None
    """How batches draw together where the sources do not stay; None where each does by itself."""
    all_rows: bool
    """Whether all rows stay."""
    bound_entries: int = 0
    """Of `BeladyBound`; 0 where there is none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Arrangement:
    """What HOST memory is used for."""

    features: FeatureCache
    """The rows that stay, and the source behind them."""
    strategy: Strategy
    """How the others are read."""
    draws: DrawPlan | None
    """How batches draw together; None where each does by itself."""
    keep_seeds: bool
    """Whether there is room for the seeds."""
    bound: BeladyBound | None
    """Tells how few rows an epoch could have read; None where all stay, or room is short."""


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
        return Decision(shared, strategy, None, None, None, None, all_rows=True)
    if free is None or access_bytes(graph.num_nodes) > free:
        return Decision(shared, one_by_one, None, None, None, None, all_rows=False)
    # by the budget, not by what is free: a plan that is made before finds the same
    budget = ledger.budget.host or 0
    bound_entries = entries_within(budget) if demands.keep_rows else 0
    reserved = bound_bytes(bound_entries)
    free -= reserved
    drawn = len(demands.fanouts) > 0  # whole parts are read as ranges, which pages do not serve
    pinned = shared.topology
    if pinned == sum(needs.topology) and access_bytes(graph.num_nodes) <= free - pinned:
        graph.pin(pinned)  # beside any batches and any ranking: each hop of it would read the graph
        free, paged = (ledger.free_bytes(Tier.HOST) or 0) - reserved, None
    else:
        pinned, paged = 0, _paged(graph, demands, free) if drawn else None
    scores = expected_access(graph, demands.seeds, demands.fanouts, demands.batch_size)
    # what a batch is expected to have, and some: far less than the most it can have
    needs = _needs(dataset, demands, 1.1 * float(scores.sum()))
    shared, demand = plan(free, needs), Demand.of(scores)
    disk = calibrate(source.file, dataset.io, ledger)
    dataset.io.gap_bytes = disk.gap_bytes
    room, pages = free - shared.batches - shared.seeds - shared.topology, None  # rows may need less
    shared = dataclasses.replace(shared, topology=shared.topology + pinned)
    if shared.topology == sum(needs.topology):
        paged = None
    pointers = len(needs.topology) < _ARRAYS or shared.topology >= needs.topology[0]

    def share_out(*, in_memory: bool) -> tuple[int, DrawPlan | None, Strategy]:
        """Pages that stay, how batches draw from the others, and how rows are read."""
        left, num_pages, draws = min(room, shared.room), 0, None
        if paged is not None:
            num_pages, draws = _pages_and_draws(
                room,
                paged,
                demand if demands.keep_rows else Demand.of(scores[:0]),
                needs.row_bytes + 8,
                may_draw=demands.draw_ahead and pointers,
                in_memory=in_memory,
                disk_bytes=ledger.free_bytes(Tier.DISK),
                gap_bytes=disk.gap_bytes,
            )
            held = graph.page_bytes(num_pages) if num_pages else 0
            left = min(shared.room, room - held - (0 if draws is None else draws.held_bytes))
        strategy = choose(
            left,
            demand,
            needs.num_rows,
            needs.row_bytes,
            demands.num_steps,
            disk_bytes=ledger.free_bytes(Tier.DISK),
            gap_bytes=disk.gap_bytes,
            kinds=demands.kinds if demands.keep_rows else ("rows",),
        )
        return num_pages, draws, strategy

    num_pages, draws, strategy = share_out(in_memory=True)
    if draws is not None and not draws.on_disk and strategy.kind != "rows":
        # windows of rows want the draws of many batches ahead, which are for the disk
        num_pages, draws, strategy = share_out(in_memory=False)
    if paged is not None and num_pages:
        pages = hottest(paged.scores, num_pages, ledger)
    ranked = scores.nbytes + (0 if pages is None else pages.nbytes)
    most = (free - ranked) // np.dtype(np.int64).itemsize - 64
    count = min(strategy.num_kept, int(np.count_nonzero(scores)), most)
    strategy = dataclasses.replace(strategy, num_kept=count if demands.keep_rows else 0)
    return Decision(
        shared, strategy, demand, scores, pages, draws, all_rows=False, bound_entries=bound_entries
    )


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
    pages, draws, entries = decision.pages, decision.draws, decision.bound_entries
    del decision  # the scores' bytes are the graph's and the rows'
    dataset.graph.pin(shared.topology)
    if pages is not None:
        dataset.graph.keep_pages(pages)
        del pages
    bound = None
    if entries:
        held = held_bytes(strategy, source.num_rows, source.row_bytes)
        capacity = held // max(1, source.row_bytes)  # of all that is held for rows
        # windows may have rows that the epoch before has read; packs hold none
        spare = capacity - strategy.num_kept if strategy.kind == "windows" else 0
        bound = BeladyBound(source.num_rows, entries, capacity, ledger, spare=spare)
    features = FeatureCache(source, ids, ledger)
    return Arrangement(features, strategy, draws, shared.seeds > 0, bound)


@dataclasses.dataclass(frozen=True, slots=True)
class _Paged:
    """The pages of a graph's sources, and what batches draw from them."""

    graph: GraphStore
    scores: NDArray[np.float32]
    """(`GraphStore.num_pages`,) of `expected_pages`."""
    needs: DrawNeeds


def _paged(graph: GraphStore, demands: Demands, free: int) -> _Paged | None:
    """Rank the pages of the graph, where HOST holds that."""
    if access_bytes(graph.num_nodes) + 4 * graph.num_pages > free:
        return None
    fanouts = demands.fanouts
    reached = expected_access(graph, demands.seeds, fanouts[:-1], demands.batch_size)
    num_nodes = float(reached.sum())
    scores = expected_pages(graph, reached, fanouts)
    degree = graph.num_edges / max(1, graph.num_nodes)
    drawn = [min(degree, fanout) if fanout >= 0 else degree for fanout in fanouts]
    needs = DrawNeeds(
        num_nodes=num_nodes,
        num_edges=num_nodes * (drawn[-1] + max(drawn) / 2),  # earlier hops have fewer nodes
        num_hops=len(fanouts),
        id_bytes=graph.index_dtype.itemsize,
        num_pages=graph.num_pages,
        pages=Demand.of(scores),
        num_steps=demands.num_steps,
    )
    return _Paged(graph, scores, needs)


def _pages_and_draws(
    room: int, paged: _Paged, rows: Demand, row_bytes: int, *, may_draw: bool, **limits: Any
) -> tuple[int, DrawPlan | None]:
    """Share out a room: pages that stay, and how batches draw from the others."""

    def keep(left: int) -> int:
        held = split(left - paged.graph.page_bytes(0), rows, row_bytes, paged.needs.pages,
                     PAGE_BYTES)  # fmt: skip
        return held // PAGE_BYTES

    draws = choose_draws(room, paged.needs, keep, **limits) if may_draw else None
    return (keep(room) if draws is None else draws.num_kept), draws


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
