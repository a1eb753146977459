"""The parts of a dataset that has them: ranges of ids, and what each reads from others.

Letters: N nodes, P parts, H nodes of a halo.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx import threads
from gnnx.errors import DataError, UsageError
from gnnx.memory import Tier
from gnnx.partition.transpose import TRANSPOSE
from gnnx.store import DiskFeatures, GraphStore
from gnnx.store.manifest import ArrayEntry

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gnnx.store import Dataset


class Partition:
    """Parts of a dataset as `gnnx.partition.partition` wrote them; part p is a range of ids.

    Parameters
    ----------
    dataset
        With parts, or without: then all of it is one part.

    Attributes
    ----------
    offsets : ndarray, (P + 1,) int64
        Part p has the nodes offsets[p] to offsets[p + 1].

    Raises
    ------
    DataError
        The ranges do not cover the nodes one after another.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._edges = "edges/" + "-".join(dataset.edge_types[0])
        num_nodes = dataset.num_nodes
        name = f"nodes/{dataset.node_types[0]}/parts"
        self._has_parts = name in dataset.manifest.arrays
        self.offsets = np.array([0, num_nodes])
        if self._has_parts:
            self.offsets = self._read(name)
            if (np.diff(self.offsets, prepend=0) < 0).any() or self.offsets[-1] != num_nodes:
                raise DataError(
                    f"{dataset.path / name}.npy: not ranges of {num_nodes} nodes",
                    "Verify the dataset, or partition it again.",
                )
            self._halo_offsets = self._read(f"{self._edges}/halo_offsets")

    def __repr__(self) -> str:
        return f"Partition({self.num_parts} parts, {self.offsets[-1]} nodes)"

    def _read(self, name: str) -> NDArray[np.int64]:
        array = self._dataset.array(name)
        return np.array(array.read_range(0, array.num_rows).numpy())

    @property
    def num_parts(self) -> int:
        """P."""
        return len(self.offsets) - 1

    def nodes(self, part: int) -> tuple[int, int]:
        """First node of a part, and the one after its last.

        Parameters
        ----------
        part
            From 0 to P - 1.

        Returns
        -------
        tuple of int
            The part is the range between them.

        Raises
        ------
        UsageError
            There is no such part.
        """
        if not 0 <= part < self.num_parts:
            raise UsageError(
                f"part {part} of {self.num_parts} parts", f"Give 0 to {self.num_parts - 1}."
            )
        return int(self.offsets[part]), int(self.offsets[part + 1])

    def halo(self, part: int) -> NDArray[np.int64]:
        """Nodes of other parts that a part reads: sources of its rows.

        Parameters
        ----------
        part
            From 0 to P - 1.

        Returns
        -------
        ndarray
            (H,) int64, ascending, from the dataset's ledger (HOST).

        Raises
        ------
        UsageError
            There is no such part.
        """
        self.nodes(part)
        if not self._has_parts:
            return np.zeros(0, np.int64)
        begin, end = self._halo_offsets[part : part + 2].tolist()
        ids = self._dataset.ledger.empty(end - begin, np.int64, Tier.HOST, "partition")
        np.copyto(ids, self._dataset.array(f"{self._edges}/halo").read_range(begin, end).numpy())
        return ids

    @threads.lazy
    def transpose(self) -> GraphStore:
        """The same edges by source: row u lists the nodes that read u, ascending.

        Returns
        -------
        GraphStore
            Read as the dataset's own graph is.

        Raises
        ------
        DataError
            The dataset has no parts, and so not this order.
        """
        indptr, indices = (self._dataset.array(f"{self._edges}/{name}") for name in TRANSPOSE[:2])
        no_loops = DiskFeatures(
            self._dataset.path, ArrayEntry((0,), "int64", 0), self._dataset.io, self._dataset.ledger
        )
        nodes = self._dataset.num_nodes
        return GraphStore(indptr, indices, no_loops, nodes, self._dataset.io, self._dataset.ledger)

    def edges(self, begin: int, end: int) -> NDArray[Any]:
        """Where edges of the transpose are in the order by destination.

        Parameters
        ----------
        begin
            A position in the transpose.
        end
            The position after the last one.

        Returns
        -------
        ndarray
            (end - begin,) int32 or int64, from the dataset's ledger (HOST).

        Raises
        ------
        DataError
            As of `transpose`, or a position is outside.
        """
        return self._dataset.array(f"{self._edges}/{TRANSPOSE[2]}").read_range(begin, end).numpy()

    def part_of(self, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Part of each node.

        Parameters
        ----------
        nodes
            (R,) int64. Ids of nodes.

        Returns
        -------
        ndarray
            (R,) int64.
        """
        return np.searchsorted(self.offsets, nodes, side="right").astype(np.int64) - 1
