"""Features by node type: a cache for each type that has features, all in one budget.

N rows of F bytes, by type; p(v) is the probability that a batch wants row v, C the rows that stay.
"""

from __future__ import annotations

import dataclasses
import math
import time
from typing import TYPE_CHECKING

import numpy as np

from gnnx.cache.access import every, hottest, typed_access, typed_access_bytes
from gnnx.cache.arrange import batch_bytes
from gnnx.cache.features import AccessCounts, FeatureCache, overhead_bytes
from gnnx.cache.lookahead import WindowCounts
from gnnx.cache.plan import HostNeeds, plan
from gnnx.cache.rows import RowSet
from gnnx.cache.strategy import Demand, Strategy, one_by_one, read_cost
from gnnx.memory import Tier
from gnnx.store import DiskFeatures, fetch_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from numpy.typing import NDArray

    from gnnx.cache.plan import HostPlan
    from gnnx.graph import EdgeType
    from gnnx.memory import Ledger
    from gnnx.store import ConstantFeatures, Dataset, FeatureStore, GraphStore, Pending


class HeteroFeatures:
    """Feature caches by node type, filled, released and counted as one.

    Parameters
    ----------
    caches
        By node type, of those that have features.
    constants
        The others.
    """

    row_bytes = 0
    """Of rows written to disk: none are."""

    def __init__(
        self, caches: Mapping[str, FeatureCache], constants: Mapping[str, ConstantFeatures]
    ) -> None:
        self.caches, self._constants = dict(caches), dict(constants)

    @property
    def stores(self) -> dict[str, FeatureStore]:
        """What has the rows of each node type."""
        return {**self.caches, **self._constants}

    @property
    def counts(self) -> AccessCounts:
        """Rows asked for so far and where they came from, of types that have features."""
        return sum((cache.counts for cache in self.caches.values()), AccessCounts())

    @property
    def fill_bytes(self) -> int:
        """Bytes of rows read to fill the caches so far."""
        return sum(cache.fill_bytes for cache in self.caches.values())

    @property
    def source_bytes_read(self) -> int:
        """Bytes of the reads of all files of features so far."""
        return sum(cache.source_bytes_read for cache in self.caches.values())

    @property
    def source_reads(self) -> int:
        """Number of the reads of all files of features so far."""
        return sum(cache.source_reads for cache in self.caches.values())

    @property
    def is_filled(self) -> bool:
        """Whether rows are held now."""
        return any(cache.is_filled for cache in self.caches.values())

    def fill(self) -> None:
        """Read the chosen rows of all types."""
        for cache in self.caches.values():
            cache.fill()

    def release(self) -> None:
        """Give the bytes of the rows back."""
        for cache in self.caches.values():
            cache.release()


class PendingByType:
    """Rows of several node types on their way."""

    def __init__(self, pending: Mapping[str, Pending]) -> None:
        self._pending = dict(pending)

    def done(self) -> bool:
        """Whether `wait` would not wait."""
        return all(one.done() for one in self._pending.values())

    def wait(self, timeout_s: float) -> dict[str, torch.Tensor]:
        """Give the rows by node type when all are there."""
        limit = time.monotonic() + timeout_s
        return {
            name: one.wait(max(0.0, limit - time.monotonic()))
            for name, one in self._pending.items()
        }


class HeteroAhead:
    """Fetches the rows of batches, a batch at a time: the counterpart of `Lookahead`."""

    counts = WindowCounts()
    """There are no windows."""

    def __init__(self, features: HeteroFeatures) -> None:
        self._features = features

    def fetch(
        self, step: int, rows: Mapping[str, NDArray[np.int64]], ledger: Ledger
    ) -> PendingByType:
        """Begin to bring the values of rows, by node type."""
        stores = self._features.stores
        return PendingByType(
            {
                name: fetch_values(stores[name], ids, ledger, Tier.DEVICE, "batch")
                for name, ids in rows.items()
            }
        )

    def is_ready(self, step: int) -> bool:
        """Whether `fetch` of a step would not wait."""
        return True

    def done(self, step: int) -> None:
        """Take note that the rows of a step are in place."""

    def stop(self) -> None:
        """Let nobody wait any longer."""

    def close(self) -> WindowCounts:
        """Tell what the windows did."""
        return self.counts


@dataclasses.dataclass(frozen=True, slots=True)
class HeteroDemands:
    """What batches of a typed graph are made of, as far as memory goes."""

    seeds: FeatureStore | NDArray[np.int64]
    """Ids of the seeds, of the target type."""
    seeds_bytes: int
    """HOST bytes that ids and labels of all seeds would take."""
    fanouts: Mapping[EdgeType, Sequence[int]]
    """By edge type, the seeds' layer first; -1 is all."""
    batch_size: int
    """Seeds of a batch."""
    num_batches: int
    """Batches in preparation at the same time, at most."""
    keep_rows: bool
    """Whether rows may stay in memory."""


@dataclasses.dataclass(frozen=True, slots=True)
class HeteroDecision:
    """What HOST memory is to be used for; the rows that are to stay are not read yet."""

    shared: HostPlan
    """Between batches, seeds, graph and rows."""
    sources: Mapping[str, DiskFeatures]
    """By node type, of those that have features."""
    kept: Mapping[str, RowSet]
    """The rows that stay of each of them."""
    strategies: Mapping[str, Strategy]
    """How the others are read: a batch at a time."""
    demands: Mapping[str, Demand] | None
    """Who is wanted; None where all rows stay, or none since HOST does not hold the ranking."""


def decide_typed(dataset: Dataset, demands: HeteroDemands) -> HeteroDecision:
    """Share out what is free of HOST memory (`plan`), and pin the graph.

    The rows of all types compete for the room: those stay that spare most of the disk's time a
    byte. Where HOST does not hold the ranking, about 4 bytes a node and row of an edge type, none
    are kept.

    Parameters
    ----------
    dataset
        Opened with the budget to keep.
    demands
        What batches are made of.

    Returns
    -------
    HeteroDecision
        Which holds a bit a row.

    Raises
    ------
    BudgetError
        HOST does not hold what reading takes.
    """
    ledger, graphs = dataset.ledger, dataset.graphs
    stores = {name: dataset.features_of(name) for name in dataset.node_counts}
    sources = {n: store for n, store in stores.items() if isinstance(store, DiskFeatures)}
    for source in sources.values():  # the readers take their buffers, for good
        source.read(np.arange(min(1, source.num_rows)))
    free = ledger.free_bytes(Tier.HOST)
    factor = [1 + sum(hop) for hop in zip(*demands.fanouts.values(), strict=True)]
    endless = any(-1 in hops for hops in demands.fanouts.values())
    most = math.inf if endless else demands.batch_size * math.prod(factor)
    shared = plan(free, _needs(dataset, sources, demands, most))
    ids = {name: np.empty(0, np.int64) for name in sources}
    wanted: dict[str, Demand] | None = None
    if not demands.keep_rows:
        pass
    elif shared == plan(None, _needs(dataset, sources, demands, most)):
        ids = {name: every(source.num_rows, ledger) for name, source in sources.items()}
    elif free is not None and typed_access_bytes(graphs, dataset.node_counts) <= free:
        scores = typed_access(
            graphs,
            dataset.node_counts,
            dataset.target,
            demands.seeds,
            demands.fanouts,
            demands.batch_size,
        )
        expected = 1.1 * sum(float(rows.sum()) for rows in scores.values())
        shared = plan(free, _needs(dataset, sources, demands, expected))
        held = sum(rows.nbytes for rows in scores.values())
        room = min(shared.room, (free - held) * 2)  # ids of 8 bytes beside rows of 8 at least
        wanted = {name: Demand.of(scores[name]) for name in sources}
        kept = kept_rows(room, sources, wanted)
        ids = {name: hottest(scores[name], count, ledger) for name, count in kept.items()}
        del scores
    _pin(dataset, shared)
    strategies = {}
    for name, source in sources.items():
        kept_of_type, shape = len(ids[name]), (source.num_rows, source.row_bytes)
        strategies[name] = Strategy("rows", kept_of_type, 1, 0, 0, 0.0)
        if wanted is not None:
            gap_bytes = dataset.io.gap_bytes
            strategies[name] = one_by_one(kept_of_type, wanted[name], *shape, gap_bytes)
    rows = {n: RowSet.of(ids.pop(n), source.num_rows, ledger) for n, source in sources.items()}
    return HeteroDecision(shared, sources, rows, strategies, wanted)


def arrange_typed(dataset: Dataset, decision: HeteroDecision) -> HeteroFeatures:
    """Fill the caches with the rows that are to stay.

    Parameters
    ----------
    dataset
        Of which it was decided.
    decision
        Of `decide_typed`.

    Returns
    -------
    HeteroFeatures
        Of all node types.

    Raises
    ------
    BudgetError
        HOST does not hold the rows.
    """
    ledger, caches = dataset.ledger, dict[str, FeatureCache]()
    for name, source in decision.sources.items():
        caches[name] = FeatureCache(source, decision.kept[name], ledger)
    stores = {name: dataset.features_of(name) for name in dataset.node_counts}
    constants = {n: store for n, store in stores.items() if not isinstance(store, DiskFeatures)}
    return HeteroFeatures(caches, constants)


def _needs(
    dataset: Dataset, sources: Mapping[str, DiskFeatures], demands: HeteroDemands, rows: float
) -> HostNeeds:
    rows = min(rows, sum(dataset.node_counts.values()))
    num_rows = sum(source.num_rows for source in sources.values()) if demands.keep_rows else 0
    num_bytes = sum(source.num_rows * source.row_bytes for source in sources.values())
    overheads = sum(overhead_bytes(source.num_rows) for source in sources.values())
    return HostNeeds(
        batch=batch_bytes(rows, [fanout for hops in demands.fanouts.values() for fanout in hops]),
        num_batches=demands.num_batches,
        seeds=demands.seeds_bytes,
        topology=tuple(size for graph in _by_size(dataset) for size in graph.unpinned),
        num_rows=num_rows,
        # each type has an index of its own: what they take beyond one index counts to the rows
        row_bytes=-(-(num_bytes + overheads) // max(1, num_rows)),
    )


def _by_size(dataset: Dataset) -> list[GraphStore]:
    """Edge types, the smallest first: of two that do not fit together one is kept."""
    return sorted(dataset.graphs.values(), key=lambda graph: graph.num_edges)


def _pin(dataset: Dataset, shared: HostPlan) -> None:
    left = shared.topology
    for graph in _by_size(dataset):
        before = sum(graph.unpinned)
        graph.pin(left)
        left -= before - sum(graph.unpinned)


def kept_rows(
    room: int, sources: Mapping[str, FeatureStore], demands: Mapping[str, Demand]
) -> dict[str, int]:
    """Share out room between the rows of types by what they spare the disk a byte.

    A row spares p(v) of a read, in bytes that cost as much to stream, and takes its bytes and 8 of
    an id while the cache is filled.

    Parameters
    ----------
    room
        HOST bytes.
    sources
        The rows, by node type.
    demands
        Their p(v).

    Returns
    -------
    dict of str to int
        Rows to keep of each type; those of the largest p(v) are meant.
    """
    room -= sum(overhead_bytes(source.num_rows) for source in sources.values())
    bins: list[tuple[float, str, int]] = []
    for name, source in sources.items():
        demand = demands[name]
        worth = read_cost(1.0, source.num_rows, source.row_bytes) / (source.row_bytes + 8)
        pairs = zip(demand.probability.tolist(), demand.count.tolist(), strict=True)
        bins += [(p * worth, name, count) for p, count in pairs if p > 0]
    kept = dict.fromkeys(sources, 0)
    for _, name, count in sorted(bins, key=lambda one: -one[0]):
        cost = sources[name].row_bytes + 8
        taken = min(count, max(0, room) // cost)
        kept[name] += taken
        room -= taken * cost
    return kept
