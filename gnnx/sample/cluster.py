"""Batches of whole parts: the graph among the nodes of some parts, as Cluster-GCN has it.

Chiang et al., "Cluster-GCN: an efficient algorithm for training deep and large graph convolutional
networks", 2019. Letters: P parts, S nodes of a batch, B seeds, E edges among the S nodes.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gnnx import ops
from gnnx.errors import DataError, UsageError
from gnnx.graph import Block, Transpose
from gnnx.memory import Tier
from gnnx.random import Key
from gnnx.sample import _kernels

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gnnx.store import GraphStore

_PURPOSE = int.from_bytes(b"parts", "big")  # keeps this order apart from that of seeds


class Clusters:
    """Which parts make which batch: in an epoch each part is in one, beside others by chance.

    Parts without a seed are in none: nothing would be learned from them.

    Parameters
    ----------
    offsets
        (P + 1,) int64. Part p is the nodes offsets[p] to offsets[p + 1].
    num_seeds
        (P,) Seeds in each part.
    per_batch
        Parts of a batch; the last one of an epoch may have fewer.

    Raises
    ------
    UsageError
        There are not so many parts.
    """

    def __init__(
        self, offsets: NDArray[np.int64], num_seeds: NDArray[np.int64], per_batch: int
    ) -> None:
        self._offsets, self._per_batch = offsets, per_batch
        self._seeded = np.flatnonzero(num_seeds)
        self._first_seed = np.cumsum([0, *num_seeds])
        num_parts = len(num_seeds)
        if num_parts < 2:
            raise UsageError(
                "batches of clusters of a dataset without parts",
                "Cut it into parts first: gnnx partition DATASET OUT --parts 100.",
            )
        if not 1 <= per_batch <= num_parts:
            raise UsageError(
                f"{per_batch} clusters a batch of {num_parts} parts",
                f"Give 1 to {num_parts} clusters a batch.",
            )

    def __len__(self) -> int:
        """Batches of an epoch."""
        return math.ceil(len(self._seeded) / self._per_batch)

    @property
    def num_nodes(self) -> int:
        """Most nodes that a batch has."""
        return int(np.sort(np.diff(self._offsets)[self._seeded])[-self._per_batch :].sum())

    def most_edges(self, graph: GraphStore) -> int:
        """Most edges, from anywhere, into the nodes that a batch has.

        Parameters
        ----------
        graph
            Of the parts.

        Returns
        -------
        int
            Of the parts with most.
        """
        first = np.minimum(self._offsets[:-1], graph.num_nodes - 1)
        start = np.where(first < self._offsets[:-1], graph.num_edges, graph.rows(first)[0])
        num_edges = np.diff(start, append=graph.num_edges)[self._seeded]
        return int(np.sort(num_edges)[-self._per_batch :].sum())

    def parts(self, key: Key) -> NDArray[np.int64]:
        """Parts of a step, ascending.

        Parameters
        ----------
        key
            Its seed, epoch and step count.

        Returns
        -------
        ndarray
            (q,) int64.
        """
        # ranks of draws: `gnnx.random.permute` needs no array, but is uneven for a few dozen places
        draws = np.empty(len(self._seeded), np.uint64)
        state = np.uint64(Key(key.seed, key.epoch, layer=_PURPOSE).fold())
        _kernels.draw_all(state, draws)
        first = key.step * self._per_batch
        chosen = np.argsort(draws, kind="stable")[first : first + self._per_batch]
        return np.sort(self._seeded[chosen])

    def positions(self, key: Key) -> NDArray[np.int64]:
        """Places of a step's seeds in the split, whose ids ascend.

        Parameters
        ----------
        key
            As of `parts`.

        Returns
        -------
        ndarray
            (B,) int64.
        """
        first = self._first_seed
        ranges = [np.arange(first[p], first[p + 1]) for p in self.parts(key)]
        return np.concatenate(ranges)

    def ranges(self, key: Key) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First nodes of a step's parts, and the nodes after their last ones, ascending."""
        parts = self.parts(key)
        return self._offsets[parts], self._offsets[parts + 1]


class ClusterSampler:
    """All edges among the nodes of a step's parts, as the block of every layer.

    Parameters
    ----------
    graph
        In RAM or on disk with equal results: rows are read as ranges. Its ledger gives the blocks
        (DEVICE, ``"blocks"``) and the scratch (HOST, ``"sampler"``).
    clusters
        Which parts make a step.
    num_layers
        Blocks of a batch.
    degrees
        Fill `src_degree`, `dst_degree` and `src_loop` of the blocks.
    edge_ids
        Fill `e_id`.

    Notes
    -----
    The blocks of all layers but the last one share their tensors. Scratch is 24 bytes for each node
    and 4 (with `edge_ids` 12) for each edge into one, from anywhere.
    """

    def __init__(
        self,
        graph: GraphStore,
        clusters: Clusters,
        num_layers: int,
        *,
        degrees: bool = False,
        edge_ids: bool = False,
    ) -> None:
        self.graph, self.clusters, self.num_layers = graph, clusters, num_layers
        self.degrees, self.edge_ids = degrees, edge_ids

    def __repr__(self) -> str:
        return f"ClusterSampler({self.graph!r}, {len(self.clusters)} batches)"

    def sample(self, seeds: NDArray[np.int64] | torch.Tensor, key: Key) -> list[Block]:
        """Make the blocks of a step.

        Parameters
        ----------
        seeds
            (B,) int64, distinct nodes of the step's parts.
        key
            Seed, epoch and step; its layer becomes the hop, 0 at the seeds.

        Returns
        -------
        list of Block
            Outermost first. All have the same sources: the seeds, then the other nodes of the
            parts, ascending. These are the destinations, too, but of the last block, whose are the
            seeds. Edges of a row keep the order they have in the graph.

        Raises
        ------
        DataError
            A seed is in none of the parts, or given twice.
        """
        begin, end = self.clusters.ranges(key)
        number, nodes = self._numbered(seeds, begin, end)
        block = self._among(begin, end, number, nodes, key)
        blocks = [self._rows_of_seeds(block, len(seeds))]
        for_layers = range(1, self.num_layers)
        blocks += [dataclasses.replace(block, key=key._replace(layer=i)) for i in for_layers]
        return blocks[::-1]

    def reach(self, seeds: NDArray[np.int64] | torch.Tensor, key: Key) -> NDArray[np.int64]:
        """Nodes that `sample` would reach.

        Parameters
        ----------
        seeds
            As of `sample`.
        key
            As of `sample`.

        Returns
        -------
        ndarray
            (S,) int64, from the ledger (HOST, ``"sampler"``).

        Raises
        ------
        DataError
            As of `sample`.
        """
        return self._numbered(seeds, *self.clusters.ranges(key))[1]

    def _numbered(
        self,
        seeds: NDArray[np.int64] | torch.Tensor,
        begin: NDArray[np.int64],
        end: NDArray[np.int64],
    ) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Give the nodes of ranges numbers: number by place, node by number."""
        ids = np.ascontiguousarray(seeds, np.int64)
        size = int((end - begin).sum())
        number, nodes = self._scratch(size, np.int32), self._scratch(size, np.int64)
        wrong = _kernels.number_ranges(ids, begin, end, _starts(end - begin), number, nodes)
        if wrong >= 0:
            raise DataError(
                f"seed {ids[wrong]} is given twice, or in none of the batch's parts",
                "Give each training node of the parts once.",
            )
        return number, nodes

    def _among(
        self,
        begin: NDArray[np.int64],
        end: NDArray[np.int64],
        number: NDArray[np.int32],
        nodes: NDArray[np.int64],
        key: Key,
    ) -> Block:
        """Make the block from all nodes of ranges to all of them."""
        base, size = _starts(end - begin), len(nodes)
        first_edge, last_edge = self._edges(begin, end)
        most = int((last_edge - first_edge).sum())
        sources = self._scratch(most, np.int32)
        positions = self._scratch(most if self.edge_ids else 0, np.int64)
        degree = self._tensor(size, torch.int64)
        indptr = self._tensor(size + 1, torch.int64)
        kept = indptr.numpy()[1:]
        at = 0
        for first, last, edge, place in zip(begin, end, first_edge, base, strict=True):
            for rows in self.graph.iter_rows(int(first), int(last)):
                at = _kernels.keep_inside(
                    rows.indptr,
                    rows.indices,
                    edge,
                    place + rows.first - first,
                    begin,
                    end,
                    base,
                    number,
                    at,
                    sources,
                    positions,
                    degree.numpy(),
                    kept,
                )
                edge += rows.indptr[-1]  # noqa: PLW2901 - where the next rows begin
        indptr[0] = 0
        np.cumsum(kept, out=kept)
        indices = self._tensor(at, torch.int32)
        _kernels.order_rows(number, indptr.numpy(), sources, indices.numpy())
        e_id = None
        if self.edge_ids:
            e_id = self._tensor(at, torch.int64)
            _kernels.order_rows(number, indptr.numpy(), positions, e_id.numpy())
        src_id = self._tensor(size, torch.int64)
        src_id.numpy()[:] = nodes
        loops = None
        if self.degrees:
            loops = self._tensor(size, torch.bool)
            loops.numpy()[:] = self.graph.has_loop(nodes)
        return Block(
            indptr=indptr,
            indices=indices,
            src_id=src_id,
            key=key,
            transpose=self._transposed(indptr, indices, size),
            e_id=e_id,
            src_degree=degree if self.degrees else None,
            dst_degree=degree if self.degrees else None,
            src_loop=loops,
        )

    def _rows_of_seeds(self, block: Block, num_seeds: int) -> Block:
        """Make the block to the first nodes alone."""
        indptr = block.indptr[: num_seeds + 1]
        indices = block.indices[: int(indptr[-1])]
        return dataclasses.replace(
            block,
            indptr=indptr,
            indices=indices,
            key=block.key._replace(layer=0),
            transpose=self._transposed(indptr, indices, block.num_src),
            e_id=None if block.e_id is None else block.e_id[: len(indices)],
            dst_degree=None if block.dst_degree is None else block.dst_degree[:num_seeds],
        )

    def _edges(
        self, begin: NDArray[np.int64], end: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions where the edges into ranges of nodes begin and end; a range has a node."""
        last, degree = self.graph.rows(end - 1)
        return self.graph.rows(begin)[0], last + degree

    def _transposed(self, indptr: torch.Tensor, indices: torch.Tensor, num_src: int) -> Transpose:
        size = len(indices)
        transpose = Transpose(
            self._tensor(num_src + 1, torch.int64),
            self._tensor(size, torch.int32),
            self._tensor(size, torch.int32),
        )
        ops.transpose(indptr, indices, num_src, out=transpose)
        return transpose

    def _tensor(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        return self.graph.ledger.tensor(size, dtype, Tier.DEVICE, "blocks")

    def _scratch(self, size: int, dtype: Any) -> NDArray[Any]:
        return self.graph.ledger.empty(size, dtype, Tier.HOST, "sampler")


def _starts(sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    starts = np.zeros(len(sizes), np.int64)
    np.cumsum(sizes[:-1], out=starts[1:])
    return starts
