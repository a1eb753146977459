"""Graphs of DGL as tables in memory, and blocks of gnnx in DGL's form.

Graphs are taken by the attributes that they show; DGL is imported to make a block of its own, and
nowhere else. Letters: N nodes, E edges, S sources, D destinations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gnnx.errors import DataError, UsageError
from gnnx.interop.tables import InMemoryGraph

if TYPE_CHECKING:
    from gnnx.graph import Block

_SPLITS = ("train", "val", "test")


def from_dgl(graph: Any, *, features: str = "feat", labels: str = "label") -> InMemoryGraph:
    """Take a `dgl.DGLGraph` of one node type and one edge type.

    Parameters
    ----------
    graph
        With masks ``train_mask``, ``val_mask`` and ``test_mask`` where there are any.
    features
        Name in ``graph.ndata`` of the features, if it is there.
    labels
        Name in ``graph.ndata`` of the labels, if it is there.

    Returns
    -------
    InMemoryGraph
        Its tensors, not copied; of several masks a split the first.

    Raises
    ------
    DataError
        It has several node or edge types.
    """
    for what, kinds in ("node", graph.ntypes), ("edge", graph.canonical_etypes):
        if len(kinds) != 1:
            raise DataError(
                f"a graph of {len(kinds)} {what} types",
                "Give one type: dgl.to_homogeneous.",
            )
    src, dst = (end.detach().cpu().numpy() for end in graph.edges(order="eid"))
    arrays = {name: value.detach().cpu().numpy() for name, value in graph.ndata.items()}
    splits = {}
    for split in _SPLITS:
        mask = arrays.pop(f"{split}_mask", None)
        if mask is not None:
            first = mask if mask.ndim == 1 else np.ascontiguousarray(mask[:, 0])
            splits[split] = first.astype(bool)
    x, y = arrays.pop(features, None), arrays.pop(labels, None)
    others = [f"ndata[{name!r}]" for name in arrays] + [f"edata[{name!r}]" for name in graph.edata]
    return InMemoryGraph(
        np.stack([src, dst]),
        int(graph.num_nodes()),
        x,
        y,
        splits,
        notes=[f"graph.{name}: not taken over" for name in sorted(others)],
        name="graph",
    )


def to_dgl(block: Block) -> Any:
    """Make a block a `dgl.DGLBlock`, for layers of `dgl.nn`.

    Parameters
    ----------
    block
        Of S sources and D destinations, the first D of them.

    Returns
    -------
    dgl.DGLBlock
        With the global ids of sources and destinations in ``srcdata`` and ``dstdata`` under
        ``dgl.NID``; of edges, where the block carries them, ``dgl.EID``, ``"weight"`` and
        ``"attr"`` in ``edata``. Edges are in the order of the block's.

    Raises
    ------
    UsageError
        DGL is not installed.
    """
    try:
        import dgl
    except ImportError as error:
        raise UsageError(
            f"DGL is not to be had: {error}", "Install a DGL that was built for this torch."
        ) from error
    indptr = block.indptr.to(block.indices.dtype)  # DGL has one type for both
    made: Any = dgl.create_block(("csc", (indptr, block.indices, [])), block.num_src, block.num_dst)
    made.srcdata[dgl.NID] = block.src_id
    made.dstdata[dgl.NID] = block.src_id[: block.num_dst]
    named = {dgl.EID: block.e_id, "weight": block.edge_weight, "attr": block.edge_attr}
    for name, values in named.items():
        if values is not None:
            made.edata[name] = values
    return made
