"""What is asked of parts, whoever makes them.

Letters: N nodes, E edges, P parts.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gnnx.store import FeatureStore, GraphStore
    from gnnx.threads import Progress

Weight: TypeAlias = Literal["nodes", "edges", "train"]
"""What is shared out evenly between parts: nodes, in-edges of nodes, training nodes."""

WEIGHTS: tuple[Weight, ...] = ("nodes", "edges", "train")
_IDS = 1 << 16  # of a split, read at a time


@dataclasses.dataclass(frozen=True)
class Problem:
    """A graph to cut."""

    graph: GraphStore
    """In memory or on disk."""
    num_parts: int
    """P, at most N."""
    weights: Sequence[Weight] = ("nodes",)
    """What parts share evenly."""
    imbalance: float = 0.03
    """A part has at most this share more than the mean part, rounded up."""
    train: FeatureStore | None = None
    """Ids of the training nodes."""
    progress: Progress | None = None
    """Called with (stage, done, total)."""

    @property
    def totals(self) -> tuple[int, int, int]:
        """Nodes, edges and training nodes of the graph."""
        num_train = 0 if self.train is None else self.train.num_rows
        return self.graph.num_nodes, self.graph.num_edges, num_train

    def tell(self, stage: str, done: int, total: int) -> None:
        """Report progress, where anyone listens."""
        if self.progress:
            self.progress(stage, done, total)


def pieces_of(ids: FeatureStore | None) -> Iterator[NDArray[np.int64]]:
    """Ids of a split, in pieces."""
    if ids is not None:
        for begin in range(0, ids.num_rows, _IDS):
            yield ids.read(np.arange(begin, min(begin + _IDS, ids.num_rows))).numpy()
