"""Exact outputs of a model for typed graphs: layer by layer and node type by node type.

As for plain graphs no row is computed twice, and what lies between two layers is kept in scratch
files, one a node type. Shapes: N nodes of a type, D destinations, S_t rows of type t read.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from gnnx.inference.pieces import (
    cut,
    most_entries,
    parameter_dtype,
    piece_bytes,
    piece_tier,
    read_ahead,
)
from gnnx.memory import Tier
from gnnx.random import Key
from gnnx.sample import HeteroSampler
from gnnx.store import ScratchRows, fetch_values, value_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, TypeAlias

    from numpy.typing import NDArray
    from torch import nn

    from gnnx.cache import HeteroFeatures
    from gnnx.graph import HeteroBlock
    from gnnx.store import Dataset, FeatureStore
    from gnnx.threads import Progress

    _Masks: TypeAlias = dict[str, NDArray[np.bool_]]
    _Results: TypeAlias = Iterator[tuple[str, NDArray[np.int64], dict[str, torch.Tensor]]]


class _Piece(NamedTuple):
    """Destinations of one type of one call of a layer, with in-edges and input rows."""

    ids: NDArray[np.int64]
    block: HeteroBlock
    h: dict[str, torch.Tensor]


class _Hidden(NamedTuple):
    """Rows of a node type between two layers; no store where no row is needed."""

    row_shape: tuple[int, ...]
    dtype: torch.dtype
    store: FeatureStore | None


def stream_typed(
    model: nn.Module,
    dataset: Dataset,
    nodes: NDArray[np.int64] | None,
    features: HeteroFeatures | None,
    device: torch.device,
    progress: Progress | None,
) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
    """Yield (ids, outputs) of nodes of `Dataset.target`, piece by piece.

    Parameters
    ----------
    model
        Shows its ``layers``, each called as ``layer(block, h)`` with a `HeteroBlock`; a layer gives
        rows of at least the types that the next ones read.
    dataset
        Typed, opened with the budget to keep.
    nodes
        (R,) int64, distinct and ascending; all by default.
    features
        The features behind caches; the dataset's own by default.
    device
        Where the layers run.
    progress
        Called with (stage, done, total).

    Yields
    ------
    ids : ndarray
        (r,) int64, ascending from piece to piece.
    rows : Tensor
        (r, C).

    Raises
    ------
    BudgetError
        One row's neighbourhood does not fit the budget.
    """
    layers: Any = model.layers
    needed = _needed(dataset, nodes, len(layers))
    stores: dict[str, FeatureStore] = {}
    if features is None:
        stores |= {name: dataset.features_of(name) for name in dataset.node_counts}
    else:
        stores = features.stores
    h = {name: _Hidden(one.row_shape, one.dtype, one) for name, one in stores.items()}
    with contextlib.ExitStack() as mode, contextlib.ExitStack() as scratch:
        mode.callback(model.train, model.training)
        model.eval()
        for depth, (layer, rows) in enumerate(zip(layers, needed, strict=True), start=1):
            stage = f"layer {depth} of {len(layers)}"
            outputs = _apply(layer, dataset, h, rows, device, stage)
            outputs = _reported(outputs, stage, rows, progress)
            if depth == len(layers):
                for name, ids, result in outputs:
                    yield ids, result[name]
            else:
                with scratch.pop_all():  # of the layer below: done with when this one is
                    h = _kept(outputs, dataset, scratch)


def _reported(outputs: _Results, stage: str, rows: _Masks, progress: Progress | None) -> _Results:
    total, done = sum(int(np.count_nonzero(mask)) for mask in rows.values()), 0
    for name, ids, result in outputs:
        yield name, ids, result
        done += len(ids)
        if progress:
            progress(stage, done, total)


def _kept(outputs: _Results, dataset: Dataset, scratch: contextlib.ExitStack) -> dict[str, _Hidden]:
    """Put a layer's outputs where the next layer reads them."""
    hidden: dict[str, _Hidden] = {}
    stores: dict[str, ScratchRows] = {}
    for name, ids, result in outputs:
        for other, rows in result.items():  # the types are known only now, and their widths
            hidden.setdefault(other, _Hidden(tuple(rows.shape[1:]), rows.dtype, None))
        if name not in stores:
            shape, dtype, _ = hidden[name]
            stores[name] = ScratchRows(dataset, dataset.node_counts[name], shape, dtype)
            scratch.enter_context(stores[name])
            hidden[name] = _Hidden(shape, dtype, stores[name])
        stores[name].write(ids, result[name])
    return hidden


def _needed(dataset: Dataset, nodes: NDArray[np.int64] | None, num_layers: int) -> list[_Masks]:
    """Rows of each layer's output that the nodes depend on, (N,) bool by node type a layer."""

    def empty() -> _Masks:
        return {
            name: dataset.ledger.empty(count, np.bool_, Tier.HOST, "inference")
            for name, count in dataset.node_counts.items()
        }

    top = empty()
    for name, mask in top.items():
        mask[:] = nodes is None and name == dataset.target
    if nodes is not None:
        top[dataset.target][nodes] = True
    masks = [top]
    while len(masks) < num_layers:
        below = empty()
        for name, mask in below.items():
            mask[:] = masks[-1][name]
        for (src, _, dst), graph in dataset.graphs.items():
            if not masks[-1][dst].any():
                continue
            for first, indptr, indices in graph.iter_rows():
                wanted = masks[-1][dst][first : first + len(indptr) - 1]
                below[src][indices[np.repeat(wanted, np.diff(indptr))]] = True
        masks.append(below)
    return masks[::-1]


def _apply(
    layer: nn.Module,
    dataset: Dataset,
    h: Mapping[str, _Hidden],
    rows: _Masks,
    device: torch.device,
    stage: str,
) -> _Results:
    """Run one layer for the rows of the masks, type by type."""
    dtype = parameter_dtype(layer)
    for name, mask in rows.items():
        if not mask.any():
            continue
        for piece in read_ahead(_pieces(dataset, name, h, mask, device), stage):
            inputs = {kind: one.to(device, dtype) for kind, one in piece.h.items()}
            with torch.no_grad():
                yield name, piece.ids, layer(piece.block.to(device), inputs)


def _pieces(
    dataset: Dataset,
    name: str,
    h: Mapping[str, _Hidden],
    mask: NDArray[np.bool_],
    device: torch.device,
) -> Iterator[_Piece]:
    """Cut the rows of a type into pieces, each with all in-edges of all edge types."""
    ledger, tier, graphs = dataset.ledger, piece_tier(device), dataset.graphs
    sampler = HeteroSampler(graphs, dataset.node_counts, name, [-1])
    into = [graph for (_, _, dst), graph in graphs.items() if dst == name]
    stores = [one.store for one in h.values() if one.store is not None]
    row_bytes = max(map(value_bytes, stores))
    num_rows = sum(store.num_rows for store in stores)

    def degree(ids: NDArray[np.int64]) -> NDArray[np.int64]:
        total = np.zeros(len(ids), np.int64)
        for graph in into:
            total += graph.rows(ids)[1]
        return total

    def load(ids: NDArray[np.int64]) -> _Piece:
        (block,) = sampler.sample(ids, Key(0))
        pending, x = {}, {}
        for kind, (shape, dtype, store) in h.items():
            wanted = block.src_id[kind]
            if store is None:  # the masks have every row that is read
                x[kind] = ledger.tensor((len(wanted), *shape), dtype, tier, "x")
            else:
                pending[kind] = fetch_values(store, wanted.numpy(), ledger, tier, "x")
        x |= {kind: one.wait() for kind, one in pending.items()}
        return _Piece(ids, block, {kind: x[kind] for kind in h})

    most = most_entries(piece_bytes(ledger, tier), row_bytes, num_rows)
    return cut(mask, most, ledger, degree=degree, load=load)
