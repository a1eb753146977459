"""Uniform neighbour sampling in graphs with several node and edge types.

Letters: S sources, D destinations, B seeds, with t of node type t. Every draw is a pure function of
(seed, epoch, step, layer, edge type, node), as `gnnx.sample.neighbor` draws for one edge type.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gnnx.errors import UsageError
from gnnx.graph import Block, EdgeType, HeteroBlock, numbered_key
from gnnx.memory import Tier
from gnnx.sample.neighbor import Numbering, check_fanouts, checked_seeds, draw_edges, transposed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gnnx.memory import Ledger
    from gnnx.random import Key
    from gnnx.store import GraphStore


class HeteroSampler:
    """Uniform sampling of in-neighbours without replacement, for each edge type on its own.

    In every layer a node reached so far draws from its in-edges of each type that ends at its node
    type. A graph with one type of each gives the samples of `NeighborSampler`.

    Parameters
    ----------
    graphs
        In-edges by edge type, such as `Dataset.graphs`, of one ledger.
    node_counts
        N by node type, such as `Dataset.node_counts`.
    seed_type
        Node type of the seeds.
    fanouts
        Edges of a type drawn for a node, at most, the seeds' hop first; -1 takes all, 0 none.
        One list for all edge types, or one for each.
    edge_ids
        Fill `Block.e_id`.

    Attributes
    ----------
    fanouts : dict
        By edge type, ascending.
    num_layers : int
        Hops.

    Raises
    ------
    UsageError
        A type is unknown or missing, or a fanout is no number of neighbours.

    Notes
    -----
    Safe to call from several threads, a batch a thread. Memory as of `NeighborSampler`, for each
    node type.
    """

    def __init__(
        self,
        graphs: Mapping[EdgeType, GraphStore],
        node_counts: Mapping[str, int],
        seed_type: str,
        fanouts: Sequence[int] | Mapping[EdgeType, Sequence[int]],
        *,
        edge_ids: bool = False,
    ) -> None:
        self.graphs = dict(sorted(graphs.items()))
        self.node_counts = dict(sorted(node_counts.items()))
        self.seed_type, self.edge_ids = seed_type, edge_ids
        if seed_type not in self.node_counts:
            raise UsageError(
                f"seeds of the unknown node type {seed_type!r}",
                f"Choose from {', '.join(self.node_counts)}.",
            )
        self.fanouts = fanouts_by_type(fanouts, list(self.graphs))
        self.num_layers = len(next(iter(self.fanouts.values())))
        self._ledger: Ledger = next(iter(self.graphs.values())).ledger
        self._idle: list[dict[str, Numbering]] = []

    def __repr__(self) -> str:
        return f"HeteroSampler({list(self.graphs)}, {self.seed_type}, {self.fanouts})"

    def sample(self, seeds: NDArray[np.int64] | torch.Tensor, key: Key) -> list[HeteroBlock]:
        """Sample the blocks of a batch.

        Parameters
        ----------
        seeds
            (B,) integers, distinct nodes of the seeds' type.
        key
            Seed, epoch and step; its layer becomes the hop, 0 at the seeds.

        Returns
        -------
        list of HeteroBlock
            Outermost first, one a hop, each with all edge types. The rows of a node type are its
            destinations, then new nodes in order of first appearance, edge types taken in ascending
            order; they are its destinations in the block before it in the list.

        Raises
        ------
        UsageError
            The seeds are no vector of integers.
        DataError
            A seed is outside the graph, or given twice.
        """
        ids = checked_seeds(seeds, self.node_counts[self.seed_type])
        try:
            seen = self._idle.pop()
        except IndexError:
            seen = self._new_numberings()
        for name, numbering in seen.items():
            numbering.start(ids if name == self.seed_type else ids[:0])
        reached, blocks = self._reached(seen), []
        for layer in range(self.num_layers):
            block = self._hop(seen, reached, layer, key._replace(layer=layer))
            blocks.append(block)
            reached = block.src_id
        self._idle.append(seen)  # not after an error: its bytes then go back to the budget
        return blocks[::-1]

    def _new_numberings(self) -> dict[str, Numbering]:
        dtypes: dict[str, np.dtype[Any]] = {
            name: np.dtype(np.int32 if count <= 2**31 else np.int64)
            for name, count in self.node_counts.items()
        }
        for (src, _, _), graph in self.graphs.items():
            dtypes[src] = graph.index_dtype
        return {
            name: Numbering(count, dtypes[name], self._ledger)
            for name, count in self.node_counts.items()
        }

    def _reached(self, seen: dict[str, Numbering]) -> dict[str, torch.Tensor]:
        """Copy the nodes of each type."""
        reached = {}
        for name, numbering in seen.items():
            ids = self._ledger.tensor(numbering.count, torch.int64, Tier.DEVICE, "blocks")
            ids.numpy()[:] = numbering.nodes
            reached[name] = ids
        return reached

    def _hop(
        self,
        seen: dict[str, Numbering],
        reached: dict[str, torch.Tensor],
        layer: int,
        key: Key,
    ) -> HeteroBlock:
        """Draw in-edges of all types for the nodes reached so far, and number their sources."""
        drawn, keys = {}, {}
        for number, (edge_type, graph) in enumerate(self.graphs.items()):
            keys[edge_type] = numbered_key(key, number, len(self.graphs))
            nodes = reached[edge_type[2]].numpy()
            drawn[edge_type] = draw_edges(
                graph,
                nodes,
                graph.rows(nodes),
                self.fanouts[edge_type][layer],
                keys[edge_type],
                seen[edge_type[0]],
                edge_ids=self.edge_ids,
            )
        src_id, blocks = self._reached(seen), {}
        for edge_type, (indptr, indices, e_id) in drawn.items():
            ids = src_id[edge_type[0]]
            blocks[edge_type] = Block(
                indptr=indptr,
                indices=indices,
                src_id=ids,
                key=keys[edge_type],
                transpose=transposed(indptr, indices, len(ids), self._ledger),
                e_id=e_id,
            )
        num_dst = {name: len(ids) for name, ids in reached.items()}
        return HeteroBlock(blocks=blocks, src_id=src_id, num_dst=num_dst, key=key)


def fanouts_by_type(
    fanouts: Sequence[int] | Mapping[EdgeType, Sequence[int]], edge_types: Sequence[EdgeType]
) -> dict[EdgeType, tuple[int, ...]]:
    """Give every edge type its list of fanouts.

    Parameters
    ----------
    fanouts
        As of `HeteroSampler`.
    edge_types
        All that the graph has.

    Returns
    -------
    dict
        In the order of the edge types.

    Raises
    ------
    UsageError
        There is no edge type, or one is unknown or missing; lists differ in length; or a fanout is
        no number.
    """
    if not edge_types:
        raise UsageError("a graph without edge types", "Prepare the dataset with edges.")
    if not isinstance(fanouts, Mapping):
        check_fanouts(tuple(fanouts), least=0)
        return dict.fromkeys(edge_types, tuple(fanouts))
    for edge_type in fanouts.keys() ^ set(edge_types):
        what = "missing" if edge_type in edge_types else "unknown"
        raise UsageError(
            f"fanouts: edge type {edge_type} is {what}",
            f"Give a list to each of {list(edge_types)}; 0 leaves one out.",
        )
    found = {edge_type: tuple(fanouts[edge_type]) for edge_type in edge_types}
    for edge_type, numbers in found.items():
        check_fanouts(numbers, least=0)
        if len(numbers) != len(found[edge_types[0]]):
            raise UsageError(
                f"fanouts: {len(numbers)} of {edge_type}, {len(found[edge_types[0]])} of "
                f"{edge_types[0]}",
                "Give every edge type as many as there are layers.",
            )
    return found
