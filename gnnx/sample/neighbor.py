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

from gnnx import ops
from gnnx.errors import DataError, UsageError
from gnnx.graph import Block, Transpose
from gnnx.memory import Tier
from gnnx.sample import _kernels

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gnnx.random import Key
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
        bad = [fanout for fanout in self.fanouts if not (fanout == -1 or 1 <= fanout < 1 << 63)]
        if bad or not self.fanouts:
            raise UsageError(
                f"fanout {bad[0]} is no number of neighbours" if bad else "no fanouts are given",
                "Give one number a layer, such as 15,10,5; -1 takes all neighbours.",
            )
        self._idle: list[_Numbering] = []

    def __repr__(self) -> str:
        return f"NeighborSampler({self.graph!r}, {list(self.fanouts)})"

    def sample(self, seeds: NDArray[np.int64] | torch.Tensor, key: Key) -> list[Block]:
        """Sample the blocks of a batch.

        Parameters
        ----------
        seeds
            (B,) integers, distinct nodes.
        key
            Seed, epoch and step; its layer becomes the hop, 0 at the seeds.

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
            block, reached = self._hop(seen, reached, fanout, key._replace(layer=layer))
            blocks.append(block)
        self._idle.append(seen)  # not after an error: its bytes then go back to the budget
        return blocks[::-1]

    def reach(self, seeds: NDArray[np.int64] | torch.Tensor, key: Key) -> NDArray[np.int64]:
        """Nodes that `sample` would reach, without the blocks: what a batch is going to want.

        Parameters
        ----------
        seeds
            As of `sample`.
        key
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
            state = np.uint64(key._replace(layer=layer).fold())
            for rows, edges in _pieces(ends):
                positions = self._scratch(edges.stop - edges.start)
                _kernels.draw(nodes[rows], start[rows], degree[rows], fanout, state, positions)
                seen.number(self.graph.take(positions), positions)  # their places serve no more
        nodes = self._scratch(seen.count)
        nodes[:] = seen.nodes
        self._idle.append(seen)
        return nodes

    def _started(self, seeds: NDArray[np.int64] | torch.Tensor) -> _Numbering:
        """Begin a batch with its seeds."""
        ids = self._checked(seeds)
        try:
            seen = self._idle.pop()
        except IndexError:
            seen = _Numbering(self.graph)
        seen.clear()
        self._number_seeds(seen, ids)
        return seen

    def _checked(self, seeds: NDArray[np.int64] | torch.Tensor) -> NDArray[np.int64]:
        ids, num_nodes = np.asarray(seeds), self.graph.num_nodes
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

    def _number_seeds(self, seen: _Numbering, ids: NDArray[np.int64]) -> None:
        local = self._scratch(len(ids))
        seen.number(ids, local)
        if seen.count < len(ids):
            again = int(np.flatnonzero(local != np.arange(len(ids)))[0])
            raise DataError(f"seed {ids[again]} is given twice", "Give every seed once.")

    def _hop(
        self, seen: _Numbering, dst: _Reached, fanout: int, key: Key
    ) -> tuple[Block, _Reached]:
        """Draw in-edges of all nodes reached so far, and number their sources."""
        start, degree = dst.rows
        indptr = self._tensor(len(degree) + 1, torch.int64)
        _kernels.row_ends(degree, fanout, indptr.numpy())
        num_edges = int(indptr[-1])
        # local ids are below D + E, and so are the positions of edges
        dtype = torch.int32 if len(degree) + num_edges <= 2**31 else torch.int64
        indices = self._tensor(num_edges, dtype)
        e_id = self._tensor(num_edges, torch.int64) if self.edge_ids else None
        pieces = list(_pieces(indptr.numpy()))
        longest = max((edges.stop - edges.start for _, edges in pieces), default=0)
        scratch = self._scratch(longest if e_id is None else 0)
        for rows, edges in pieces:
            positions = scratch[: edges.stop - edges.start] if e_id is None else e_id.numpy()[edges]
            _kernels.draw(
                dst.id.numpy()[rows],
                start[rows],
                degree[rows],
                fanout,
                np.uint64(key.fold()),
                positions,
            )
            seen.number(self.graph.take(positions), indices.numpy()[edges])
        src = _Reached(self.graph, seen)
        transpose = Transpose(
            self._tensor(seen.count + 1, torch.int64),
            self._tensor(num_edges, dtype),
            self._tensor(num_edges, dtype),
        )
        ops.transpose(indptr, indices, seen.count, out=transpose)
        block = Block(
            indptr=indptr,
            indices=indices,
            src_id=src.id,
            key=key,
            transpose=transpose,
            e_id=e_id,
            src_degree=src.degree if self.degrees else None,
            dst_degree=dst.degree if self.degrees else None,
            src_loop=src.has_loop if self.degrees else None,
        )
        return block, src

    def _tensor(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return self.graph.ledger.tensor(size, dtype, Tier.DEVICE, "blocks")

    def _scratch(self, size: int) -> NDArray[np.int64]:
        return self.graph.ledger.empty(size, np.int64, Tier.HOST, "sampler")


class _Reached:
    """The nodes reached so far, and what the graph knows of them, looked up once if asked for."""

    def __init__(self, graph: GraphStore, seen: _Numbering) -> None:
        self._graph = graph
        self.id = self._keep(seen.nodes, torch.int64)

    @functools.cached_property
    def rows(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where their rows begin, and how long they are."""
        return self._graph.rows(self.id.numpy())

    @functools.cached_property
    def degree(self) -> torch.Tensor:
        return self._keep(self.rows[1], torch.int64)

    @functools.cached_property
    def has_loop(self) -> torch.Tensor:
        return self._keep(self._graph.has_loop(self.id.numpy()), torch.bool)

    def _keep(self, values: NDArray[Any], dtype: torch.dtype) -> torch.Tensor:
        tensor = self._graph.ledger.tensor(len(values), dtype, Tier.DEVICE, "blocks")
        tensor.numpy()[:] = values
        return tensor


class _Numbering:
    """Nodes in order of first appearance, and a hash table that finds their numbers."""

    def __init__(self, graph: GraphStore) -> None:
        self._graph = graph
        self.count = 0
        self._allocate(_FEWEST_SLOTS)

    @property
    def nodes(self) -> NDArray[Any]:
        """Node of each number, in the graph's index dtype."""
        return self._seen[: self.count]

    def clear(self) -> None:
        self.count = 0
        _kernels.rebuild(self._slots, self._seen, 0)

    def number(self, nodes: NDArray[Any], local: NDArray[Any]) -> None:
        """Fill `local` with the nodes' numbers; a new node gets the next one."""
        done = 0
        while True:
            done, self.count = _kernels.number(
                nodes, done, self._slots, self._seen, self.count, local
            )
            if done == len(nodes):
                return
            before, num_slots = self._seen, 3 * len(self._slots) // 2
            del self._slots  # its bytes are free for the larger one
            self._allocate(num_slots)
            self._seen[: self.count] = before
            _kernels.rebuild(self._slots, self._seen, self.count)

    def _allocate(self, num_slots: int) -> None:
        # half of the slots stay empty, so that a search ends after 2.5 probes on average
        num_slots = min(num_slots, 2 * self._graph.num_nodes)
        dtype = np.int32 if num_slots <= 2**32 else np.int64
        empty = functools.partial(self._graph.ledger.empty, tier=Tier.HOST, owner="sampler")
        self._slots = empty(num_slots, dtype)
        self._seen = empty(num_slots // 2, self._graph.index_dtype)


def _pieces(indptr: NDArray[np.int64]) -> Iterator[tuple[slice, slice]]:
    """Cut the rows of a CSR into pieces, as rows and edges; a longer row is a piece of its own."""
    begin, num_rows = 0, len(indptr) - 1
    while begin < num_rows:
        end = int(np.searchsorted(indptr, indptr[begin] + _PIECE, side="right")) - 1
        end = max(begin + 1, min(end, num_rows))
        yield slice(begin, end), slice(int(indptr[begin]), int(indptr[end]))
        begin = end
