"""Which rows are worth keeping: pure functions of graph, ids and counts.

N nodes, C rows kept. Nothing here knows a cache; a policy is a function that gives scores or ids.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from gnnx.cache import _kernels
from gnnx.errors import DataError
from gnnx.memory import Tier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from gnnx.graph import EdgeType
    from gnnx.memory import Ledger
    from gnnx.store import FeatureStore, GraphStore

_PIECE_BYTES = 64  # an edge or a row of a piece: three pieces are alive, of 12 to 16 bytes each
_SMALLEST_PIECE, _LARGEST_PIECE = 1 << 13, 1 << 20
_DIGITS = ((20, 11), (10, 10), (0, 10))  # (shift, width): 31 bits of a non-negative float32


def access_bytes(num_nodes: int) -> int:
    """HOST bytes that `expected_access` needs: two numbers a node, and pieces of the graph."""
    return 2 * 4 * num_nodes + _PIECE_BYTES * _SMALLEST_PIECE


def _piece(ledger: Ledger) -> int:
    """Rows, edges or ids to read at a time: half of what HOST has left, as the disk likes it."""
    free = ledger.free_bytes(Tier.HOST)
    if free is None:
        return _LARGEST_PIECE
    return min(max(_SMALLEST_PIECE, free // (2 * _PIECE_BYTES)), _LARGEST_PIECE)


def expected_access(
    graph: GraphStore,
    seeds: FeatureStore | NDArray[np.int64],
    fanouts: Sequence[int],
    batch_size: int,
) -> NDArray[np.float32]:
    """Probability that a batch wants the row of each node.

    A batch holds a seed with P₀ = min(1, B/|seeds|). Layer h draws f_h of the deg v in-edges of
    *every* node v reached so far. With R_h(v) the probability that v is reached and has drawn a
    given in-edge by then,

        R_h(v) = R_{h-1}(v) + (P_{h-1}(v) - R_{h-1}(v)) · min(1, f_h / deg v)
        1 - P_h(u) = (1 - P₀(u)) · Π_{u→v} (1 - R_h(v))

    and P of the last layer is the answer, taking the draws of different nodes as independent. It
    is the analysis of SALIENT++ (Kaler et al., "Communication-efficient graph neural networks with
    probabilistic neighborhood expansion analysis and caching", 2023), for layers that draw anew
    for the nodes of earlier ones. Against sampled batches the sum, the rows of a batch, is right
    to 0.5 %. One pass over the edges a layer, in the order of the file: the same bits in any
    budget.

    Parameters
    ----------
    graph
        In memory or on disk.
    seeds
        (|seeds|,) int64 distinct ids, or the store of them.
    fanouts
        The seeds' layer first; -1 is all neighbours.
    batch_size
        B.

    Returns
    -------
    ndarray
        (N,) float32 in [0, 1], from the graph's ledger.

    Raises
    ------
    BudgetError
        HOST does not hold `access_bytes`.
    DataError
        A source is no node: the data set is damaged.
    """
    edge_type = ("node", "edge", "node")
    return typed_access(
        {edge_type: graph},
        {"node": graph.num_nodes},
        "node",
        seeds,
        {edge_type: fanouts},
        batch_size,
    )["node"]


def typed_access_bytes(
    graphs: Mapping[EdgeType, GraphStore], node_counts: Mapping[str, int]
) -> int:
    """HOST bytes of `typed_access`: a number a node, one a row of each edge type, pieces."""
    rows = sum(node_counts.values()) + sum(graph.num_nodes for graph in graphs.values())
    return 4 * rows + _PIECE_BYTES * _SMALLEST_PIECE


def typed_access(
    graphs: Mapping[EdgeType, GraphStore],
    node_counts: Mapping[str, int],
    seed_type: str,
    seeds: FeatureStore | NDArray[np.int64],
    fanouts: Mapping[EdgeType, Sequence[int]],
    batch_size: int,
) -> dict[str, NDArray[np.float32]]:
    """Probability that a batch wants the row of each node of a typed graph.

    As `expected_access`, with R of each edge type, and the product over the edges of all types.

    Parameters
    ----------
    graphs
        By edge type, in memory or on disk, of one ledger.
    node_counts
        N by node type.
    seed_type
        Node type of the seeds.
    seeds
        (|seeds|,) int64 distinct ids, or the store of them.
    fanouts
        By edge type, the seeds' layer first; -1 is all neighbours.
    batch_size
        B.

    Returns
    -------
    dict of str to ndarray
        By node type, (N,) float32 in [0, 1], from the ledger.

    Raises
    ------
    BudgetError
        HOST does not hold `typed_access_bytes`.
    DataError
        A source is no node: the data set is damaged.
    """
    ledger = next(iter(graphs.values())).ledger
    empty = functools.partial(ledger.empty, dtype=np.float32, tier=Tier.HOST, owner="access")
    # spared is log(1 - P): sums where probabilities multiply, and small ones stay exact
    spared = {name: empty(count) for name, count in node_counts.items()}
    drawn = {edge_type: empty(graph.num_nodes) for edge_type, graph in graphs.items()}
    for rows in drawn.values():
        rows[:] = 0.0

    def begin() -> None:
        for rows in spared.values():
            rows[:] = 0.0
        _mark(seeds, batch_size, spared[seed_type], ledger)

    begin()
    piece = _piece(ledger)
    for layer in range(len(next(iter(fanouts.values())))):
        for edge_type, graph in graphs.items():
            reached, fanout = spared[edge_type[2]], fanouts[edge_type][layer]
            for first in range(0, graph.num_nodes, piece):
                nodes = every(min(piece, graph.num_nodes - first), ledger, first=first)
                degree = graph.rows(nodes)[1]
                _kernels.draw_kernel(first, degree, fanout, reached, drawn[edge_type])
        begin()
        for edge_type, graph in graphs.items():
            _reach(graph, drawn[edge_type], spared[edge_type[0]], piece)
    for rows in spared.values():
        _kernels.probability_kernel(rows)
    return spared


def _reach(
    graph: GraphStore, drawn: NDArray[np.float32], spared: NDArray[np.float32], piece: int
) -> None:
    """Let the edges of one type reach their sources."""
    for first, indptr, indices in graph.iter_rows(0, graph.num_nodes, piece):
        wrong = _kernels.reach_kernel(first, indptr, indices, drawn, spared)
        if wrong >= 0:
            raise DataError(
                f"{graph!r}: source {indices[wrong]} of an edge is outside the {len(spared)} nodes",
                "The data set is damaged: gnnx verify tells where.",
            )


def expected_pages(
    graph: GraphStore, reached: NDArray[np.float32], fanouts: Sequence[int]
) -> NDArray[np.float32]:
    """Probability that sampling a batch reads each page of the graph's sources.

    Draws from a page in a batch, λ, are those of its rows: with the probability that all hops but
    the last have reached a row's node, since those reached by the last one draw no more. Taken as
    independent, some of them happen with 1 - exp(-λ).

    Parameters
    ----------
    graph
        In memory or on disk.
    reached
        (N,) float32: `expected_access` of all fanouts but the last.
    fanouts
        All of them; -1 is all neighbours.

    Returns
    -------
    ndarray
        (`GraphStore.num_pages`,) float32 in [0, 1], from the graph's ledger.

    Raises
    ------
    BudgetError
        HOST does not hold the answer and pieces of the graph.
    """
    expected = graph.ledger.empty(graph.num_pages, np.float32, Tier.HOST, "access")
    expected[:] = 0.0
    most = -1 if -1 in fanouts else max(fanouts)
    piece = _piece(graph.ledger)
    for begin in range(0, graph.num_nodes, piece):
        nodes = every(min(piece, graph.num_nodes - begin), graph.ledger, first=begin)
        _kernels.page_kernel(
            *graph.rows(nodes), reached[begin:], most, graph.page_entries, expected
        )
    np.negative(expected, out=expected)
    np.expm1(expected, out=expected)
    np.abs(expected, out=expected)  # 1 - exp(-λ), and zero stays +0
    return expected


def _mark(
    seeds: FeatureStore | NDArray[np.int64],
    batch_size: int,
    spared: NDArray[np.float32],
    ledger: Ledger,
) -> None:
    """Set log(1 - P₀) of the seeds."""
    num_seeds = len(seeds) if isinstance(seeds, np.ndarray) else seeds.num_rows
    with np.errstate(divide="ignore"):
        spared_seed = np.log1p(-min(1.0, batch_size / max(1, num_seeds)))
    piece = _piece(ledger)
    for begin in range(0, num_seeds, piece):
        end = min(begin + piece, num_seeds)
        if isinstance(seeds, np.ndarray):
            ids = seeds[begin:end]
        else:
            ids = seeds.read(every(end - begin, ledger, first=begin)).numpy()
        spared[ids] = spared_seed


def hottest(scores: NDArray[np.float32], count: int, ledger: Ledger) -> NDArray[np.int64]:
    """Ids of the largest scores, ties by the lower id.

    A radix selection on the bits of the floats: three passes find the score that parts the chosen
    from the rest, one collects. O(N) time, and no memory but the answer.

    Parameters
    ----------
    scores
        (N,) float32, none negative or NaN.
    count
        C, at most N.
    ledger
        Where the answer comes from (HOST).

    Returns
    -------
    ndarray
        (C,) int64, ascending.

    Raises
    ------
    BudgetError
        HOST does not hold 8 C bytes.
    """
    chosen = ledger.empty(count, np.int64, Tier.HOST, "access")
    bits = scores.view(np.uint32)
    prefix, wanted = 0, count  # `wanted` scores are to be found among those that begin with prefix
    counts = np.empty(1 << 11, np.int64)
    for shift, width in _DIGITS:
        _kernels.digits_kernel(bits, np.uint32(prefix), shift, width, counts)
        digit = (1 << width) - 1
        while digit and counts[digit] < wanted:
            wanted -= int(counts[digit])
            digit -= 1
        prefix = prefix << width | digit
    _kernels.above_kernel(bits, np.uint32(prefix), wanted, chosen)
    return chosen


def every(count: int, ledger: Ledger, *, first: int = 0) -> NDArray[np.int64]:
    """Consecutive ids from `first` on, (count,) int64 from the ledger (HOST)."""
    ids = ledger.empty(count, np.int64, Tier.HOST, "access")
    ids[:] = 1
    ids[:1] = first
    return np.cumsum(ids, out=ids)  # np.arange would hold as much again beside the ledger
