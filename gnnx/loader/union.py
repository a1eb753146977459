"""The edges of a batch's blocks as one list, as PyG's layers take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gnnx.memory import Tier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gnnx.graph import Block
    from gnnx.memory import Ledger


def edge_union(blocks: list[Block], ledger: Ledger) -> torch.Tensor:
    """Edges of all blocks, each once, (2, E) int64 in the local ids of the first block.

    The sources of a block begin with those of the next one, so that local ids mean the same in
    all. An edge that several layers drew keeps its first place, the seeds' layer first.
    """
    inward = blocks[::-1]
    num_edges = sum(block.num_edges for block in inward)
    bits = max(1, num_edges - 1).bit_length()
    with ledger.reserve(48 * num_edges, Tier.HOST, "edge_index"):  # NumPy's own arrays below
        e_id, src, dst = (
            np.concatenate(parts)
            for parts in zip(*(_edges(block) for block in inward), strict=True)
        )
        # in one integer, edge above place: a plain sort is twice as fast as a stable argsort
        order = np.sort(e_id << bits | np.arange(num_edges))
        new = np.ones(num_edges, np.bool_)
        np.not_equal(order[1:] >> bits, order[:-1] >> bits, out=new[1:])
        place = np.sort(order[new] & ((1 << bits) - 1))
        union = ledger.tensor((2, len(place)), torch.int64, Tier.DEVICE, "batch")
        for row, values in zip(union.numpy(), (src, dst), strict=True):
            row[:] = values[place]
    return union


def _edges(block: Block) -> tuple[NDArray[np.int64], NDArray[Any], NDArray[Any]]:
    """Position in the dataset's CSR, local source and local destination of every edge."""
    assert block.e_id is not None  # the sampler was told to give it
    dst = np.repeat(np.arange(block.num_dst), np.diff(block.indptr.numpy()))
    return block.e_id.numpy(), block.indices.numpy(), dst
