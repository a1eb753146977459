"""Uniform neighbour sampling: from the seeds outwards, hop by hop, into blocks.

Letters: N nodes, E edges, S sources, D destinations, B seeds. Every draw is a pure function of
(seed, epoch, step, layer, node): two batches under one key that share a node draw the same edges
for it, whatever else is in them.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from gnnx import ops, threads
from gnnx.errors import DataError, UsageError
from gnnx.graph import Block, Transpose
from gnnx.memory import Tier
from gnnx.sample import _kernels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gnnx.memory import Ledger
    from gnnx.random import Key
    from gnnx.sample.draws import Drawn
    from gnnx.store import GraphStore

_PIECE = 1 << 16  # most edges drawn at a time: 0.75 MiB of positions and sources
_FEWEST_SLOTS = 1 << 10


class Sampler(Protocol):
    """Makes the blocks of a batch: a pure function of graph, seeds and key."""

    def sample(self, seeds: NDArray[np.int64] | torch.Tensor, key: Key) -> list[Block]:
        """Sample the blocks of distinct seeds, outermost first."""
        ...


class NeighborSampler:
    """Uniform sampling of in-neighbours without replacement.

    Parameters
    ----------
    graph
        Where rows and sources come from, in RAM or on disk with equal results. Its ledger gives
        the blocks (DEVICE, ``"blocks"``) and the scratch (HOST, ``"sampler"``).
    fanouts
        Edges drawn for a node, at most, the seeds' hop first; -1 takes all.
    degrees
        Fill `src_degree`, `dst_degree` and `src_loop` of the blocks.
    edge_ids
        Fill `e_id`.

    Raises
    ------
    UsageError
        There is no fanout, or one that is neither positive nor -1.

    Notes
    -----
    Safe to call from several threads, a batch a thread. Scratch is sized by the batch: 12 to 24
    bytes for each of its nodes, kept from call to call as many times as there are calls at once,
    16 for each destination of a hop, and 12 for each edge of a piece.
    """

    def __init__(
        self,
        graph: GraphStore,
        fanouts: Sequence[int],
        *,
        degrees: bool = False,
        edge_ids: bool = False,
    ) -> None:
        self.graph, self.fanouts = graph, tuple(fanouts)
        self.degrees, self.edge_ids = degrees, edge_ids
        check_fanouts(self.fanouts)
        self._idle: list[Numbering] = []

    def __repr__(self) -> str:
        return f"NeighborSampler({self.graph!r}, {list(self.fanouts)})"

    def sample(
        self, seeds: NDArray[np.int64] | torch.Tensor, key: Key, drawn: Drawn | None = None
    ) -> list[Block]:
        """Sample the blocks of a batch.

        Parameters
        ----------
        seeds
            (B,) integers, distinct nodes.
        key
            Seed, epoch and step; its layer becomes the hop, 0 at the seeds.
        drawn
            What `Draws` has drawn for this batch, which then reads no source from the graph.

        Returns
        -------
        list of Block
            Outermost first, one a fanout. A block's sources are its destinations, then new nodes
            in order of first appearance; they are the destinations of the block before it in the
            list. Edges of a row keep the order they have in the graph.

        Raises
        ------
        UsageError
            The seeds are no vector of integers.
        DataError
            A seed is outside the graph, or given twice.
        """
        seen = self._started(seeds)
        reached, blocks = _Reached(self.graph, seen), []
        for layer, fanout in enumerate(self.fanouts):
            sources = None if drawn is None else drawn.sources(layer)
            block, reached = self._hop(seen, reached, fanout, key._replace(layer=layer), sources)
            blocks.append(block)
        self._idle.append(seen)  # not after an error: its bytes then go back to the budget
        return blocks[::-1]

    def reach(
        self, seeds: NDArray[np.int64] | torch.Tensor, key: Key, drawn: Drawn | None = None
    ) -> NDArray[np.int64]:
        """Nodes that `sample` would reach, without the blocks: what a batch is going to want.

        Parameters
        ----------
        seeds
            As of `sample`.
        key
            As of `sample`.
        drawn
            As of `sample`.

        Returns
        -------
        ndarray
            (S,) int64, `src_id` of the outermost block, from the ledger (HOST, ``"sampler"``).

        Raises
        ------
        UsageError
            As of `sample`.
        DataError
            As of `sample`.
        """
        seen = self._started(seeds)
        for layer, fanout in enumerate(self.fanouts):
            nodes = self._scratch(seen.count)
            nodes[:] = seen.nodes
            start, degree = self.graph.rows(nodes)
            ends = self._scratch(len(nodes) + 1)
            _kernels.row_ends(degree, fanout, ends)
            if drawn is not None:
                sources = drawn.sources(layer)
                found = self.graph.ledger.empty(len(sources), sources.dtype, Tier.HOST, "sampler")
                _kernels.order_rows(_ascending(nodes, self.graph.ledger), ends, sources, found)
                seen.number(found, found)
                continue
            state = np.uint64(key._replace(layer=layer).fold())
            for rows, edges in _pieces(ends):
                positions = self._scratch(edges.stop - edges.start)
                _kernels.draw(nodes[rows], start[rows], degree[rows], fanout, state, positions)
                seen.number(self.graph.take(positions), positions)  # their places serve no more
        nodes = self._scratch(seen.count)
        nodes[:] = seen.nodes
        self._idle.append(seen)
        return nodes

    def _started(self, seeds: NDArray[np.int64] | torch.Tensor) -> Numbering:
        """Begin a batch with its seeds."""
        ids = checked_seeds(seeds, self.graph.num_nodes)
        try:
            seen = self._idle.pop()
        except IndexError:
            seen = Numbering(self.graph.num_nodes, self.graph.index_dtype, self.graph.ledger)
        seen.start(ids)
        return seen

    def _hop(
        self,
        seen: Numbering,
        dst: _Reached,
        fanout: int,
        key: Key,
        sources: NDArray[Any] | None,
    ) -> tuple[Block, _Reached]:
        """Draw in-edges of all nodes reached so far, and number their sources."""
        indptr, indices, e_id = draw_edges(
            self.graph,
            dst.id.numpy(),
            dst.rows,
            fanout,
            key,
            seen,
            edge_ids=self.edge_ids,
            sources=sources,
        )
        src = _Reached(self.graph, seen)
        block = Block(
            indptr=indptr,
            indices=indices,
            src_id=src.id,
            key=key,
            transpose=transposed(indptr, indices, seen.count, self.graph.ledger),
            e_id=e_id,
            src_degree=src.degree if self.degrees else None,
            dst_degree=dst.degree if self.degrees else None,
            src_loop=src.has_loop if self.degrees else None,
        )
        return block, src

    def _scratch(self, size: int) -> NDArray[np.int64]:
        return self.graph.ledger.empty(size, np.int64, Tier.HOST, "sampler")


class _Reached:
    """The nodes reached so far, and what the graph knows of them, looked up once if asked for."""

    def __init__(self, graph: GraphStore, seen: Numbering) -> None:
        self._graph = graph
        self.id = self._keep(seen.nodes, torch.int64)

    @threads.lazy
    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where their rows begin, and how long they are."""
        return self._graph.rows(self.id.numpy())

    @threads.lazy
    def degree(self) -> torch.Tensor:
        return self._keep(self.rows[1], torch.int64)

    @threads.lazy
    def has_loop(self) -> torch.Tensor:
        return self._keep(self._graph.has_loop(self.id.numpy()), torch.bool)

    def _keep(self, values: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
        tensor = self._graph.ledger.tensor(len(values), dtype, Tier.DEVICE, "blocks")
        tensor.numpy()[:] = values
        return tensor


class Numbering:
    """Nodes in order of first appearance, and a hash table that finds their numbers.

    Parameters
    ----------
    num_nodes
        Nodes that there are.
    dtype
        Of the ids: int32 or int64.
    ledger
        Where the table comes from (HOST, ``"sampler"``).
    """

    def __init__(self, num_nodes: int, dtype: np.dtype[Any], ledger: Ledger) -> None:
        self._num_nodes, self._dtype, self._ledger = num_nodes, dtype, ledger
        self.count = 0
        self._allocate(_FEWEST_SLOTS)

    @property
    def nodes(self) -> NDArray[Any]:
        """Node of each number."""
        return self._seen[: self.count]

    def start(self, seeds: NDArray[np.int64]) -> None:
        """Forget all nodes, and number the seeds, which are distinct.

        Parameters
        ----------
        seeds
            (B,) nodes.

        Raises
        ------
        DataError
            A seed is given twice.
        """
        self.count = 0
        _kernels.rebuild(self._slots, self._seen, 0)
        local = self._ledger.empty(len(seeds), np.int64, Tier.HOST, "sampler")
        self.number(seeds, local)
        if self.count < len(seeds):
            again = int(np.flatnonzero(local != np.arange(len(seeds)))[0])
            raise DataError(f"seed {seeds[again]} is given twice", "Give every seed once.")

    def number(self, nodes: NDArray[Any], local: NDArray[Any]) -> None:
        """Fill `local` with the nodes' numbers; a new node gets the next one."""
        done = 0
        while True:
            done, self.count = _kernels.number(
                nodes, done, self._slots, self._seen, self.count, local
            )
            if done == len(nodes):
                return
            if len(self._seen) >= self._num_nodes:  # full, though every node has a place in it
                raise self._impossible(nodes)
            before, num_slots = self._seen, 3 * len(self._slots) // 2
            del self._slots  # its bytes are free for the larger one
            self._allocate(num_slots)
            self._seen[: self.count] = before
            _kernels.rebuild(self._slots, self._seen, self.count)

    def _impossible(self, nodes: NDArray[Any]) -> DataError:
        """Tell which of the nodes, or of those before them, there cannot be."""
        known = np.concatenate([self.nodes, nodes])
        bad = known[(known < 0) | (known >= self._num_nodes)]
        return DataError(
            f"an edge comes from node {bad[0]}, and there are {self._num_nodes}",
            "The dataset is damaged: gnnx verify tells which file.",
        )

    def _allocate(self, num_slots: int) -> None:
        # half of the slots stay empty, so that a search ends after 2.5 probes on average
        num_slots = min(num_slots, 2 * self._num_nodes)
        dtype = np.int32 if num_slots <= 2**32 else np.int64
        empty = functools.partial(self._ledger.empty, tier=Tier.HOST, owner="sampler")
        self._slots = empty(num_slots, dtype)
        self._seen = empty(num_slots // 2, self._dtype)


def check_fanouts(fanouts: Sequence[int], least: int = 1) -> None:
    """Refuse fanouts that are neither -1 nor at least `least`, and none at all."""
    bad = [fanout for fanout in fanouts if not (fanout == -1 or least <= fanout < 1 << 63)]
    if bad or not fanouts:
        raise UsageError(
            f"fanout {bad[0]} is no number of neighbours" if bad else "no fanouts are given",
            "Give one number a layer, such as 15,10,5; -1 takes all neighbours.",
        )


def checked_seeds(seeds: NDArray[np.int64] | torch.Tensor, num_nodes: int) -> NDArray[np.int64]:
    """Take seeds as int64, and refuse what are no nodes."""
    ids = np.asarray(seeds)
    if ids.ndim != 1 or ids.dtype.kind != "i":
        raise UsageError(
            f"seeds are {ids.dtype} of shape {ids.shape}", "Give a vector of node ids."
        )
    if len(ids) and not 0 <= ids.min() <= ids.max() < num_nodes:
        outside = ids[(ids < 0) | (ids >= num_nodes)]
        raise DataError(
            f"seed {outside[0]} is outside the {num_nodes} nodes",
            "Give ids from 0 to one less than the number of nodes.",
        )
    return np.ascontiguousarray(ids, np.int64)


def draw_edges(
    graph: GraphStore,
    nodes: NDArray[np.int64],
    rows: tuple[NDArray[np.int64], NDArray[np.int64]],
    fanout: int,
    key: Key,
    seen: Numbering,
    *,
    edge_ids: bool,
    sources: NDArray[Any] | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Draw in-edges of nodes, and number their sources.

    Parameters
    ----------
    graph
        Whose edges.
    nodes
        (D,) destinations.
    rows
        What ``graph.rows`` tells of them.
    fanout
        Edges of a node, at most; -1 is all.
    key
        Of the draws.
    seen
        Numbers the sources.
    edge_ids
        Whether to tell which edges were drawn.
    sources
        (E,) what is drawn, the destinations ascending, where that is known; else the graph tells.

    Returns
    -------
    indptr, indices, e_id : Tensor
        Of the block; the last one None where it was not asked for. Local ids are int32 where
        numbers and positions fit.
    """
    start, degree = rows
    tensor = functools.partial(graph.ledger.tensor, tier=Tier.DEVICE, owner="blocks")
    indptr = tensor(len(nodes) + 1, torch.int64)
    _kernels.row_ends(degree, fanout, indptr.numpy())
    num_edges = int(indptr[-1])
    # local ids are below those numbered before + E, and so are the positions of edges
    dtype = torch.int32 if seen.count + num_edges <= 2**31 else torch.int64
    indices = tensor(num_edges, dtype)
    e_id = tensor(num_edges, torch.int64) if edge_ids else None
    if sources is not None:
        place = indices.numpy()
        if place.dtype != sources.dtype:
            place = graph.ledger.empty(num_edges, sources.dtype, Tier.HOST, "sampler")
        _kernels.order_rows(_ascending(nodes, graph.ledger), indptr.numpy(), sources, place)
        seen.number(place, indices.numpy())  # a number takes its node's place
        if e_id is not None:
            _kernels.draw(nodes, start, degree, fanout, np.uint64(key.fold()), e_id.numpy())
        return indptr, indices, e_id
    pieces = list(_pieces(indptr.numpy()))
    longest = max((edges.stop - edges.start for _, edges in pieces), default=0)
    scratch = graph.ledger.empty(longest if e_id is None else 0, np.int64, Tier.HOST, "sampler")
    for rows_of, edges in pieces:
        positions = scratch[: edges.stop - edges.start] if e_id is None else e_id.numpy()[edges]
        _kernels.draw(
            nodes[rows_of],
            start[rows_of],
            degree[rows_of],
            fanout,
            np.uint64(key.fold()),
            positions,
        )
        seen.number(graph.take(positions), indices.numpy()[edges])
    return indptr, indices, e_id


def transposed(
    indptr: torch.Tensor, indices: torch.Tensor, num_src: int, ledger: Ledger
) -> Transpose:
    """Transpose a block's CSR into tensors of the ledger (DEVICE, ``"blocks"``)."""
    tensor = functools.partial(ledger.tensor, tier=Tier.DEVICE, owner="blocks")
    num_edges = len(indices)
    out = Transpose(
        tensor(num_src + 1, torch.int64),
        tensor(num_edges, indices.dtype),
        tensor(num_edges, indices.dtype),
    )
    ops.transpose(indptr, indices, num_src, out=out)
    return out


def _ascending(nodes: NDArray[np.int64], ledger: Ledger) -> NDArray[np.int64]:
    """Places of distinct nodes in the order of the nodes: a sort of these with places behind."""
    bits = max(1, len(nodes) - 1).bit_length()
    keys = ledger.empty(len(nodes), np.int64, Tier.HOST, "sampler")
    places = ledger.empty(len(nodes), np.int64, Tier.HOST, "sampler")
    places[:] = 1
    places[:1] = 0
    np.cumsum(places, out=places)
    np.left_shift(nodes, bits, out=keys)
    keys |= places
    keys.sort()
    keys &= (1 << bits) - 1
    return keys


def _pieces(indptr: NDArray[np.int64]) -> Iterator[tuple[slice, slice]]:
    """Cut the rows of a CSR into pieces, as rows and edges; a longer row is a piece of its own."""
    begin, num_rows = 0, len(indptr) - 1
    while begin < num_rows:
        end = int(np.searchsorted(indptr, indptr[begin] + _PIECE, side="right")) - 1
        end = max(begin + 1, min(end, num_rows))
        yield slice(begin, end), slice(int(indptr[begin]), int(indptr[end]))
        begin = end
