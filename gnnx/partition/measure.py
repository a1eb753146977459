"""How good parts are, counted on the edges themselves, whoever made the parts.

Letters: N nodes, E edges, P parts.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx.errors import DataError
from gnnx.memory import Tier
from gnnx.partition import _kernels
from gnnx.partition.problem import pieces_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gnnx.partition.problem import Problem

_WINDOW = 64  # parts that are counted in one pass, a bit of a word each


@dataclasses.dataclass(frozen=True)
class Quality:
    """What parts cost and how even they are; each list has one number a part."""

    num_nodes: int
    """N."""
    num_edges: int
    """E."""
    cut: int
    """Edges between two parts."""
    halo: list[int]
    """Nodes of other parts that it reads: the distinct sources of its rows."""
    nodes: list[int]
    """Its own nodes."""
    edges: list[int]
    """In-edges of its nodes."""
    train: list[int]
    """Its training nodes."""

    @property
    def num_parts(self) -> int:
        """P."""
        return len(self.nodes)

    @property
    def alpha(self) -> float:
        """Σ over parts of the nodes that a part reads, own and halo, divided by N; 1 at best."""
        return 1 + sum(self.halo) / max(1, self.num_nodes)

    @property
    def cut_share(self) -> float:
        """Share of the edges that join two parts."""
        return self.cut / max(1, self.num_edges)

    @property
    def halo_share(self) -> list[float]:
        """Of what each part reads, the share that is not its own."""
        return [halo / max(1, halo + own) for halo, own in zip(self.halo, self.nodes, strict=True)]

    @property
    def balance(self) -> dict[str, float]:
        """Largest part divided by the mean part, by nodes, edges and training nodes."""
        counts = {"nodes": self.nodes, "edges": self.edges, "train": self.train}
        return {
            name: max(each) * len(each) / sum(each) if sum(each) else 1.0
            for name, each in counts.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """All of it, for a JSON document."""
        return {
            "num_parts": self.num_parts,
            "alpha": self.alpha,
            "cut": self.cut,
            "cut_share": self.cut_share,
            "balance": self.balance,
            "halo_share": self.halo_share,
            "halo": self.halo,
            "nodes": self.nodes,
            "edges": self.edges,
            "train": self.train,
        }


def measure(problem: Problem, part: NDArray[np.int32]) -> Quality:
    """Count what parts cost: one pass over the edges for each 64 parts, 8 bytes a node.

    Parameters
    ----------
    problem
        Its graph has the real edges, directed, with loops and parallel ones.
    part
        (N,) int32. The part of each node.

    Returns
    -------
    Quality
        Exact.

    Raises
    ------
    DataError
        A part is outside [0, P).
    BudgetError
        HOST does not hold 8 bytes a node.
    """
    graph, num_parts = problem.graph, problem.num_parts
    wrong = _kernels.first_wrong(part, num_parts)
    if wrong >= 0 or len(part) != graph.num_nodes:
        raise DataError(
            f"part {part[wrong]} of node {wrong}, {len(part)} nodes for {graph.num_nodes}",
            f"Give each node a part from 0 to {num_parts - 1}.",
        )
    marks = graph.ledger.empty(graph.num_nodes, np.uint64, Tier.HOST, "partition")
    halo = np.zeros(num_parts, np.int64)
    load = np.zeros((3, num_parts), np.int64)
    cut = 0
    for base in range(0, num_parts, _WINDOW):
        marks[:] = 0
        cut = 0
        for first, indptr, indices in graph.iter_rows():
            cut += _kernels.mark_readers(first, indptr, indices, part, base, marks)
            if base == 0:
                _kernels.weigh(first, indptr, part, load)
            done = base // _WINDOW * graph.num_nodes + first + len(indptr) - 1
            problem.tell("counting", done, -(-num_parts // _WINDOW) * graph.num_nodes)
        _kernels.count_halos(marks, part, base, halo)
    for ids in pieces_of(problem.train):
        _kernels.weigh_ids(ids, part, load[2])
    lists: Sequence[list[int]] = [halo.tolist(), *load.tolist()]
    return Quality(graph.num_nodes, graph.num_edges, cut, *lists)
