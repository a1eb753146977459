"""The nouns that pass between stages: Graph, Block, MiniBatch; typed: HeteroBlock, HeteroBatch.

Shapes: N nodes, E edges, S sources, D destinations, B seeds, F feature width. All are plain tensors
on one device. A Block is the only graph a layer sees, in every mode.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, TypeVar

import torch

from gnnx import ops, threads
from gnnx.errors import DataError
from gnnx.random import Key

EdgeType = tuple[str, str, str]
"""(source type, relation, destination type)."""

_Record = TypeVar("_Record", "Block", "MiniBatch", "HeteroBatch")


class Transpose(NamedTuple):
    """The same edges by source: what a backward pass walks, without atomics."""

    indptr: torch.Tensor
    """(S + 1,) int64: row s lists the edges that leave source s."""
    indices: torch.Tensor
    """(E,) int32 or int64: their destinations, ascending in a row."""
    edge: torch.Tensor
    """(E,), dtype of `indices`: their positions in the order by destination."""


@dataclasses.dataclass(frozen=True, eq=False)
class Graph:
    """A whole graph in memory: immutable CSR of in-edges.

    Parameters
    ----------
    indptr
        (N + 1,) int64; row d spans ``indices[indptr[d]:indptr[d + 1]]``.
    indices
        (E,) int32 or int64; the sources of each row.
    """

    indptr: torch.Tensor
    indices: torch.Tensor

    @classmethod
    def from_edges(cls, src: torch.Tensor, dst: torch.Tensor, num_nodes: int) -> Graph:
        """Graph of E edges in any order; a row keeps the order in which its edges came.

        Parameters
        ----------
        src
            (E,) int64, each in [0, num_nodes).
        dst
            (E,) int64, likewise.
        num_nodes
            N; never guessed from the largest id.

        Returns
        -------
        Graph
            With int32 indices where N fits.

        Raises
        ------
        DataError
            The lengths differ, or an id is outside [0, num_nodes).
        """
        if len(src) != len(dst):
            raise DataError(
                f"{len(src)} edge sources, {len(dst)} edge destinations",
                "Give one source and one destination for every edge.",
            )
        for name, ids in (("src", src), ("dst", dst)):
            if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes:
                bad = int(ids[(ids < 0) | (ids >= num_nodes)][0])
                raise DataError(
                    f"edge {name} {bad} is outside the {num_nodes} nodes",
                    "Give the true number of nodes, or renumber the edges.",
                )
        order = torch.sort(dst, stable=True).indices
        counts = torch.bincount(dst, minlength=num_nodes)
        indptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
        indptr[1:] = torch.cumsum(counts, 0)
        dtype = torch.int32 if num_nodes <= 2**31 else torch.int64
        return cls(indptr, src[order].to(dtype))

    @property
    def num_nodes(self) -> int:
        """N."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.indices)

    @threads.lazy
    def transpose(self) -> Transpose:
        """Out-edges of every node."""
        return Transpose(*ops.transpose(self.indptr, self.indices, self.num_nodes))

    @threads.lazy
    def degree(self) -> torch.Tensor:
        """In-degrees, (N,) int64."""
        return self.indptr.diff()

    @threads.lazy
    def has_loop(self) -> torch.Tensor:
        """Which nodes have an edge to themselves, (N,) bool."""
        rows = torch.repeat_interleave(torch.arange(self.num_nodes), self.degree)
        found = torch.zeros(self.num_nodes, dtype=torch.bool)
        found[rows[rows == self.indices]] = True
        return found

    def block(self, key: Key | None = None) -> Block:
        """Make the whole graph one Block: every node is a source and a destination.

        Parameters
        ----------
        key
            For keyed randomness in the layers; zeros by default.

        Returns
        -------
        Block
            S = D = N, with degrees and loops.
        """
        return Block(
            indptr=self.indptr,
            indices=self.indices,
            src_id=torch.arange(self.num_nodes),
            key=key or Key(0),
            transpose=self.transpose,
            e_id=torch.arange(self.num_edges),
            src_degree=self.degree,
            dst_degree=self.degree,
            src_loop=self.has_loop,
        )


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Block:
    """Bipartite CSR from S sources to D destinations; the first D sources are the destinations.

    Parameters
    ----------
    indptr
        (D + 1,) int64; row d spans ``indices[indptr[d]:indptr[d + 1]]``.
    indices
        (E,) int32 or int64; local sources, each in [0, S).
    src_id
        (S,) int64; global ids of the sources.
    key
        (seed, epoch, step, layer), for keyed randomness.
    transpose
        The same edges by source.
    e_id
        (E,) int64, optional; position of each edge in the dataset's CSR.
    edge_weight
        (E,), optional; weight of each edge.
    edge_attr
        (E, F), optional; features of each edge.
    src_degree
        (S,) int64, optional; in-degrees of the sources in the whole graph.
    dst_degree
        (D,) int64, optional; in-degrees of the destinations in the whole graph.
    src_loop
        (S,) bool, optional; whether the whole graph has the edge from a source to itself.
    src_strength
        (S,) float32, optional; sums of the weights of the sources' in-edges in the whole graph.
    """

    indptr: torch.Tensor
    indices: torch.Tensor
    src_id: torch.Tensor
    key: Key
    transpose: Transpose
    e_id: torch.Tensor | None = None
    edge_weight: torch.Tensor | None = None
    edge_attr: torch.Tensor | None = None
    src_degree: torch.Tensor | None = None
    dst_degree: torch.Tensor | None = None
    src_loop: torch.Tensor | None = None
    src_strength: torch.Tensor | None = None

    @property
    def num_src(self) -> int:
        """S."""
        return len(self.src_id)

    @property
    def num_dst(self) -> int:
        """D."""
        return len(self.indptr) - 1

    @property
    def num_edges(self) -> int:
        """E."""
        return len(self.indices)

    @threads.lazy
    def looped(self) -> Block:
        """The block with exactly one edge from each destination to itself, first in its row.

        What is known of the other edges alone is dropped: `e_id`, `edge_weight`, `edge_attr`.
        """
        nodes = torch.arange(self.num_dst, device=self.indptr.device)
        rows = torch.repeat_interleave(nodes, self.indptr.diff(), output_size=self.num_edges)
        others = self.indices != rows
        rows = rows[others]
        indptr = torch.zeros_like(self.indptr)
        indptr[1:] = torch.cumsum(torch.bincount(rows, minlength=self.num_dst) + 1, 0)
        indices = self.indices.new_empty(len(rows) + self.num_dst)
        indices[indptr[:-1]] = nodes.to(indices.dtype)
        place = torch.arange(len(rows), device=rows.device) + rows + 1  # a loop a row before it
        indices[place] = self.indices[others]
        transpose = Transpose(*ops.transpose(indptr, indices, self.num_src))
        return dataclasses.replace(
            self,
            indptr=indptr,
            indices=indices,
            transpose=transpose,
            e_id=None,
            edge_weight=None,
            edge_attr=None,
        )

    def to(self, device: torch.device | str) -> Block:
        """Copy the block to a device; the block itself where it is there already."""
        if self.indptr.device == torch.device(device):
            return self
        return _moved(self, device)

    def __repr__(self) -> str:
        return f"Block({self.num_src} -> {self.num_dst}, {self.num_edges} edges)"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class MiniBatch:
    """A step's input, complete on one device when it is handed out.

    Parameters
    ----------
    seeds
        (B,) int64; global ids of the nodes whose outputs count.
    blocks
        Outermost first; the last one's destinations are the seeds.
    x
        (S, F); features of the first block's sources, in the order of `n_id`.
    y
        (B,) or (B, C); labels of the seeds; None where the dataset has none.
    n_id
        (S,) int64; global ids of the first block's sources; the first B are the seeds.
    input_id
        (B,) int64; position of each seed in the split it was drawn from.
    edge_index
        (2, E) int64, optional; union of the blocks' edges, each once, in the local ids of `n_id`;
        row 0 is the source.
    """

    seeds: torch.Tensor
    blocks: list[Block]
    x: torch.Tensor
    y: torch.Tensor | None
    n_id: torch.Tensor
    input_id: torch.Tensor
    edge_index: torch.Tensor | None = None

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.seeds)

    def to(self, device: torch.device | str) -> MiniBatch:
        """Copy the batch to a device; the batch itself where it is there already."""
        if self.x.device == torch.device(device):
            return self
        blocks = [block.to(device) for block in self.blocks]
        return dataclasses.replace(_moved(self, device), blocks=blocks)

    def __repr__(self) -> str:
        return f"MiniBatch({self.batch_size} seeds, x {tuple(self.x.shape)}, {self.blocks})"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class HeteroBlock:
    """Edges of several types between nodes of several types: a Block an edge type.

    In the rows `h[t]` (S_t, F_t) of a node type t the first D_t are its destinations, whatever the
    edge type. The Block of an edge type (s, r, t) goes from the S_s rows of `h[s]` to the first D_t
    of `h[t]`; its own first sources are its destinations only where s is t.

    Parameters
    ----------
    blocks
        By edge type, in ascending order.
    src_id
        By node type, (S_t,) int64; global ids of the rows, each type counted from 0.
    num_dst
        D_t by node type.
    key
        (seed, epoch, step, layer), for keyed randomness.
    """

    blocks: dict[EdgeType, Block]
    src_id: dict[str, torch.Tensor]
    num_dst: dict[str, int]
    key: Key

    @property
    def num_edges(self) -> int:
        """Edges of all types."""
        return sum(block.num_edges for block in self.blocks.values())

    def node_key(self, node_type: str) -> Key:
        """Key of what is drawn for nodes of a type: layer · number of types + place of the type.

        No two types and layers share one; with one type it is the block's.
        """
        types = sorted(self.src_id)
        return numbered_key(self.key, types.index(node_type), len(types))

    def to(self, device: torch.device | str) -> HeteroBlock:
        """Copy the block to a device; the block itself where it is there already."""
        device = torch.device(device)
        if all(ids.device == device for ids in self.src_id.values()):
            return self
        return dataclasses.replace(
            self,
            blocks={edge_type: block.to(device) for edge_type, block in self.blocks.items()},
            src_id={name: ids.to(device, non_blocking=True) for name, ids in self.src_id.items()},
        )

    def __repr__(self) -> str:
        ends = ", ".join(
            f"{name}: {len(ids)} -> {self.num_dst[name]}" for name, ids in self.src_id.items()
        )
        return f"HeteroBlock({{{ends}}}, {self.num_edges} edges of {len(self.blocks)} types)"


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class HeteroBatch:
    """A step's input from a typed graph, complete on one device when it is handed out.

    Parameters
    ----------
    seeds
        (B,) int64; global ids of the nodes whose outputs count, all of one type.
    blocks
        Outermost first; the last one's destinations are the seeds.
    x
        By node type, (S_t, F_t): features of the first block's rows, in the order of `n_id`. A type
        without features has the constant 1, F_t = 1.
    y
        (B,) labels of the seeds; None where the dataset has none.
    n_id
        By node type, (S_t,) int64 global ids of the first block's rows.
    input_id
        (B,) int64; position of each seed in the split it was drawn from.
    """

    seeds: torch.Tensor
    blocks: list[HeteroBlock]
    x: dict[str, torch.Tensor]
    y: torch.Tensor | None
    n_id: dict[str, torch.Tensor]
    input_id: torch.Tensor

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.seeds)

    def to(self, device: torch.device | str) -> HeteroBatch:
        """Copy the batch to a device; the batch itself where it is there already."""
        device = torch.device(device)
        if self.seeds.device == device:
            return self
        return dataclasses.replace(
            _moved(self, device),
            blocks=[block.to(device) for block in self.blocks],
            x={name: rows.to(device, non_blocking=True) for name, rows in self.x.items()},
            n_id={name: ids.to(device, non_blocking=True) for name, ids in self.n_id.items()},
        )

    def __repr__(self) -> str:
        widths = {name: tuple(rows.shape) for name, rows in self.x.items()}
        return f"HeteroBatch({self.batch_size} seeds, x {widths}, {self.blocks})"


def numbered_key(key: Key, number: int, count: int) -> Key:
    """Key of one of `count` kinds of draws of a layer: its layer is layer · count + number."""
    return key._replace(layer=key.layer * count + number)


def _moved(record: _Record, device: torch.device | str) -> _Record:
    """Copy of a record with each of its tensors, a Transpose's too, on the device."""
    moved: dict[str, Any] = {}
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if isinstance(value, torch.Tensor):
            moved[field.name] = value.to(device, non_blocking=True)
        elif isinstance(value, Transpose):
            moved[field.name] = Transpose(*(part.to(device, non_blocking=True) for part in value))
    return dataclasses.replace(record, **moved)
