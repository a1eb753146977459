"""Blocks whose edges carry the data set's values: weights and features.

Letters: N nodes, E edges, S sources, F width.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from gnnx.errors import DataError
from gnnx.memory import Tier

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gnnx.graph import Block
    from gnnx.random import Key
    from gnnx.sample.cluster import ClusterSampler
    from gnnx.sample.draws import Drawn
    from gnnx.sample.neighbor import NeighborSampler
    from gnnx.store import Dataset, DiskFeatures

_RAM_SHARE = 8
"""Values stay in RAM where all of them take at most one part in so many of what HOST has free."""


class EdgeValues:
    """Values of edges, in RAM where they are small enough, else read for each block.

    Parameters
    ----------
    dataset
        Prepared with the values.
    weight
        Fill `Block.edge_weight` and `Block.src_strength`.
    attr
        Fill `Block.edge_attr`.

    Raises
    ------
    DataError
        The data set has no such values.
    """

    def __init__(self, dataset: Dataset, *, weight: bool, attr: bool) -> None:
        self._ledger = dataset.ledger
        names = ["weight", "strength"] * weight + ["attr"] * attr
        for name in names:
            if dataset.edge_values(name) is None:
                raise DataError(
                    f"{dataset.path}: edges have no {name}",
                    f"Prepare it with --edge-{'attr' if name == 'attr' else 'weight'}.",
                )
        self._values = {name: _Column(dataset, name) for name in names}

    def fill(self, block: Block) -> Block:
        """Give a block its values.

        Parameters
        ----------
        block
            With `e_id`.

        Returns
        -------
        Block
            The same, with values.
        """
        assert block.e_id is not None
        edges, nodes = block.e_id.numpy(), block.src_id.numpy()
        found = {
            name: each.read(nodes if name == "strength" else edges)
            for name, each in self._values.items()
        }
        return dataclasses.replace(
            block,
            edge_weight=found.get("weight"),
            edge_attr=found.get("attr"),
            src_strength=found.get("strength"),
        )


class _Column:
    """Rows of one array, from RAM or from disk with the same results."""

    def __init__(self, dataset: Dataset, name: str) -> None:
        array = dataset.edge_values(name)
        assert array is not None
        self._array: DiskFeatures = array
        self._ledger = dataset.ledger
        self._held: torch.Tensor | None = None
        free = self._ledger.free_bytes(Tier.HOST)
        if free is None or array.entry.num_bytes <= free // _RAM_SHARE:
            held = self._ledger.tensor(
                (array.num_rows, *array.row_shape), array.dtype, Tier.HOST, "topology"
            )
            self._held = array.read_range(0, array.num_rows, held)

    def read(self, rows: NDArray[np.int64]) -> torch.Tensor:
        out = self._ledger.tensor(
            (len(rows), *self._array.row_shape), self._array.dtype, Tier.DEVICE, "blocks"
        )
        if self._held is None:
            return self._array.read(rows, out)
        return torch.index_select(self._held, 0, torch.from_numpy(rows), out=out)


class ValuedSampler:
    """A sampler whose blocks carry values of edges.

    Parameters
    ----------
    sampler
        Whose blocks have `e_id`.
    values
        Of its graph.
    """

    def __init__(self, sampler: NeighborSampler | ClusterSampler, values: EdgeValues) -> None:
        self.graph, self._sampler, self._values = sampler.graph, sampler, values

    def __repr__(self) -> str:
        return f"ValuedSampler({self._sampler!r})"

    def sample(
        self, seeds: NDArray[np.int64] | torch.Tensor, key: Key, *drawn: Drawn | None
    ) -> list[Block]:
        """Sample the blocks of distinct seeds, outermost first, with values.

        Parameters
        ----------
        seeds
            As of the sampler.
        key
            As of the sampler.
        *drawn
            As of the sampler, where it takes it.

        Returns
        -------
        list of Block
            The sampler's, with values.
        """
        return [self._values.fill(block) for block in self._sampler.sample(seeds, key, *drawn)]

    def reach(
        self, seeds: NDArray[np.int64] | torch.Tensor, key: Key, *drawn: Drawn | None
    ) -> NDArray[np.int64]:
        """Nodes that `sample` would reach.

        Parameters
        ----------
        seeds
            As of the sampler.
        key
            As of the sampler.
        *drawn
            As of the sampler, where it takes it.

        Returns
        -------
        ndarray
            (S,) int64.
        """
        return self._sampler.reach(seeds, key, *drawn)
