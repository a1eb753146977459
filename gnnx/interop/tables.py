"""A whole graph in memory, on its way to a dataset on disk.

Letters: N nodes, E edges, F feature width.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gnnx.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray


class SparseTable(NamedTuple):
    """(N, F) in CSR."""

    indptr: NDArray[Any]
    indices: NDArray[Any]
    data: NDArray[Any] | None
    """(E,); ones without it."""
    num_columns: int


@dataclasses.dataclass
class InMemoryGraph:
    """Edges, and what is known of the nodes.

    Parameters
    ----------
    edges
        (2, E) ids; an edge goes from row 0 to row 1.
    num_nodes
        N.
    features
        (N, F), or in CSR.
    labels
        (N,) a class, -1 or NaN for none.
    splits
        By name, (N,) bool or (n,) ids.
    keys
        N names that are not the ids, distinct: strings or integers.
    values
        Of the edges, by name: ``weight`` (E,), ``attr`` (E, F), ``time`` (E,).
    notes
        What was not taken over.
    name
        For messages.
    """

    edges: NDArray[Any]
    num_nodes: int
    features: NDArray[Any] | SparseTable | None = None
    labels: NDArray[Any] | None = None
    splits: dict[str, NDArray[Any]] = dataclasses.field(default_factory=dict)
    keys: list[str] | list[int] | None = None
    values: dict[str, NDArray[Any]] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    name: str = "graph"

    def __post_init__(self) -> None:
        if self.edges.ndim != 2 or self.edges.shape[0] != 2 or self.edges.dtype.kind not in "iu":
            raise DataError(
                f"{self.name}: edges of {self.edges.dtype} and shape {self.edges.shape}",
                "Give integers of shape (2, E).",
            )
        if self.keys is not None and len(set(self.keys)) != self.num_nodes:
            raise DataError(
                f"{self.name}: {len(set(self.keys))} distinct keys, {self.num_nodes} nodes",
                "Give every node a key of its own.",
            )

    def key_arrays(self) -> dict[str, NDArray[Any]]:
        """Lay keys out as a dataset keeps them; see docs/format.md."""
        if self.keys is None:
            return {}
        if all(isinstance(key, int) for key in self.keys):
            numbers = np.array(self.keys, np.int64)
            return {"key": numbers, "key_order": np.argsort(numbers, kind="stable")}
        texts = [str(key).encode() for key in self.keys]
        offsets = np.zeros(len(texts) + 1, np.int64)
        np.cumsum([len(text) for text in texts], out=offsets[1:])
        return {
            "key_offsets": offsets,
            "key_bytes": np.frombuffer(b"".join(texts), np.uint8),
            "key_order": np.array(sorted(range(len(texts)), key=texts.__getitem__), np.int64),
        }
