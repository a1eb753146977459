"""Exact outputs of a model, layer by layer, streamed within the budget.

Layer l + 1 is computed for all its rows from layer l's rows, with every neighbour, so that no node
is computed twice; what lies between two layers is kept in a scratch file. Shapes: N nodes,
S sources, D destinations, R rows asked, F/G widths in/out.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from gnnx.errors import DataError, UsageError
from gnnx.inference.hetero import stream_typed
from gnnx.inference.pieces import (
    cut,
    most_entries,
    parameter_dtype,
    piece_bytes,
    piece_tier,
    read_ahead,
)
from gnnx.memory import Tier
from gnnx.nn import needs_degrees, needs_edge_weight
from gnnx.random import Key
from gnnx.sample import EdgeValues, NeighborSampler, ValuedSampler
from gnnx.store import ScratchRows, fetch_values, smallest_named, value_bytes, whole_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray
    from torch import nn

    from gnnx import threads
    from gnnx.cache import HeteroFeatures
    from gnnx.graph import Block
    from gnnx.inference.pieces import Outputs
    from gnnx.memory import Ledger
    from gnnx.store import Dataset, FeatureStore, GraphStore

__all__ = ["infer", "parameter_dtype", "stream"]


_DEGREES = 1 << 16  # of nodes looked at together, 64 bytes each at most


class _Piece(NamedTuple):
    """Destinations of one call of a layer, with all their in-edges and input rows."""

    ids: NDArray[np.int64]
    block: Block
    h: torch.Tensor


def infer(
    model: nn.Module,
    dataset: Dataset,
    *,
    nodes: NDArray[np.int64] | None = None,
    out: Path | str | None = None,
    features: FeatureStore | HeteroFeatures | None = None,
    device: torch.device | str = "cpu",
    progress: threads.Progress | None = None,
) -> torch.Tensor | None:
    """Compute outputs of a model for nodes, each once, with every neighbour.

    Parameters
    ----------
    model
        Shows its ``layers``, each called as ``layer(block, h)``, in order.
    dataset
        Opened with the budget to keep. Of a typed one, nodes are those of `Dataset.target`.
    nodes
        (R,) int64 global ids, distinct and ascending; all N by default.
    out
        A ``.npy`` file to write in pieces; it appears when it is whole. bfloat16, which NumPy
        lacks, is written as float32.
    features
        The data set's features behind a cache; its own by default.
    device
        Where the layers run.
    progress
        Called with (stage, done, total).

    Returns
    -------
    Tensor or None
        (R, C) in the order of `nodes`; None where `out` is given.

    Raises
    ------
    BudgetError
        One row's neighbourhood does not fit the budget; with `out`, names the smallest that does.
    DataError
        A node is outside the graph.
    UsageError
        The model shows no layers, there are no nodes, or they do not ascend.
    RunError
        A piece was not read in time.
    """
    num_rows = dataset.num_nodes if nodes is None else len(nodes)
    if num_rows == 0:
        raise UsageError("no nodes to infer for", "Give at least one node.")
    if nodes is not None:
        _check_nodes(nodes, dataset.num_nodes)
    pieces = stream(model, dataset, nodes, features, device, progress)
    if out is not None:
        with smallest_named(
            dataset, functools.partial(rehearse, model, whole=nodes is None, device=device)
        ):
            _write_npy(Path(out), num_rows, pieces)
        return None
    result, filled = torch.empty(0), 0
    for ids, rows in pieces:
        if filled == 0:
            shape = (num_rows, *rows.shape[1:])
            result = dataset.ledger.tensor(shape, rows.dtype, Tier.HOST, "outputs")
        result[filled : filled + len(ids)] = rows
        filled += len(ids)
    return result


def _check_nodes(nodes: NDArray[np.int64], num_nodes: int) -> None:
    if not (nodes[1:] > nodes[:-1]).all():
        raise UsageError("nodes to infer for do not ascend", "Sort them, and give each once.")
    for node in (nodes[0], nodes[-1]):
        if not 0 <= node < num_nodes:
            raise DataError(
                f"node {node} is outside the {num_nodes} nodes",
                "Give ids from 0 to one less than the number of nodes.",
            )


def stream(
    model: nn.Module,
    dataset: Dataset,
    nodes: NDArray[np.int64] | None,
    features: FeatureStore | HeteroFeatures | None = None,
    device: torch.device | str = "cpu",
    progress: threads.Progress | None = None,
) -> Outputs:
    """Yield (ids, outputs) of nodes piece by piece; arguments and errors as `infer`."""
    layers = getattr(model, "layers", None)
    if layers is None:
        raise UsageError(
            f"{type(model).__name__} shows no layers",
            "Give the model `layers`, in order, each called as layer(block, h).",
        )
    if dataset.is_typed:
        typed: Any = features
        yield from stream_typed(model, dataset, nodes, typed, torch.device(device), progress)
        return
    needed = _needed(dataset.graph, nodes, len(layers))
    h: Any = features or dataset.features
    with contextlib.ExitStack() as mode, contextlib.ExitStack() as scratch:
        mode.callback(model.train, model.training)
        model.eval()
        for depth, (layer, rows) in enumerate(zip(layers, needed, strict=True), start=1):
            stage = f"layer {depth} of {len(layers)}"
            outputs = _apply(layer, dataset, h, rows, torch.device(device), stage)
            outputs = _reported(outputs, stage, rows, progress)
            if depth == len(layers):
                yield from outputs
            else:
                with scratch.pop_all():  # of the layer below: done with when this one is
                    h = _kept(outputs, dataset, scratch)


def _reported(
    outputs: Outputs, stage: str, rows: NDArray[np.bool_], progress: threads.Progress | None
) -> Outputs:
    total, done = int(np.count_nonzero(rows)), 0
    for ids, result in outputs:
        yield ids, result
        done += len(ids)
        if progress:
            progress(stage, done, total)


def _kept(outputs: Outputs, dataset: Dataset, scratch: contextlib.ExitStack) -> FeatureStore:
    """Put a layer's outputs where the next layer reads them."""
    hidden: ScratchRows | None = None
    for ids, result in outputs:
        if hidden is None:  # the width is known only now
            shape, dtype = tuple(result.shape[1:]), result.dtype
            hidden = ScratchRows(dataset, dataset.num_nodes, shape, dtype)
            scratch.enter_context(hidden)
        hidden.write(ids, result)
    assert hidden is not None  # there is at least one node, and it needs itself
    return hidden


def _needed(
    graph: GraphStore, nodes: NDArray[np.int64] | None, num_layers: int
) -> list[NDArray[np.bool_]]:
    """Rows of each layer's output that the nodes depend on, (N,) bool a layer."""
    mask = graph.ledger.empty(graph.num_nodes, np.bool_, Tier.HOST, "inference")
    mask[:] = nodes is None
    if nodes is not None:
        mask[nodes] = True
    masks = [mask]
    while len(masks) < num_layers:
        if nodes is None:
            masks.append(mask)
            continue
        below = graph.ledger.empty(graph.num_nodes, np.bool_, Tier.HOST, "inference")
        below[:] = masks[-1]
        for first, indptr, indices in graph.iter_rows():
            wanted = masks[-1][first : first + len(indptr) - 1]
            below[indices[np.repeat(wanted, np.diff(indptr))]] = True
        masks.append(below)
    return masks[::-1]


def _apply(
    layer: nn.Module,
    dataset: Dataset,
    h: FeatureStore,
    rows: NDArray[np.bool_],
    device: torch.device,
    stage: str,
) -> Outputs:
    """Run one layer for the rows of a mask; the next piece is read while one computes."""
    dtype = parameter_dtype(layer)
    weighted = needs_edge_weight(layer)
    plain = NeighborSampler(dataset.graph, [-1], degrees=needs_degrees(layer), edge_ids=weighted)
    sampler: NeighborSampler | ValuedSampler = plain
    if weighted:
        sampler = ValuedSampler(plain, EdgeValues(dataset, weight=True, attr=False))
    for piece in read_ahead(_pieces(sampler, h, rows, device), stage):
        with torch.no_grad():
            yield piece.ids, layer(piece.block.to(device), piece.h.to(device, dtype))


def _pieces(
    sampler: NeighborSampler | ValuedSampler,
    h: FeatureStore,
    rows: NDArray[np.bool_],
    device: torch.device,
) -> Iterator[_Piece]:
    ledger, tier = sampler.graph.ledger, piece_tier(device)
    return cut(
        rows,
        most_entries(piece_bytes(ledger, tier), value_bytes(h), h.num_rows),
        ledger,
        degree=lambda ids: sampler.graph.rows(ids)[1],
        load=lambda ids: _load(sampler, h, ids, ledger, tier),
    )


def _load(
    sampler: NeighborSampler | ValuedSampler,
    h: FeatureStore,
    ids: NDArray[np.int64],
    ledger: Ledger,
    tier: Tier,
) -> _Piece:
    (block,) = sampler.sample(ids, Key(0))
    return _Piece(ids, block, fetch_values(h, block.src_id.numpy(), ledger, tier, "x").wait())


def rehearse(
    model: nn.Module,
    dataset: Dataset,
    *,
    whole: bool,
    features: FeatureStore | None = None,
    device: torch.device | str = "cpu",
) -> None:
    """Take the memory that `stream` cannot do without, and no more time than one node takes.

    What does not fit is cut into smaller pieces, down to one node. So each layer is run for the
    node with most in-edges alone, beside all that is held meanwhile.

    Parameters
    ----------
    model
        As of `stream`.
    dataset
        As of `stream`.
    whole
        For all nodes, not for some.
    features
        As of `stream`.
    device
        As of `stream`.

    Raises
    ------
    BudgetError
        It does not fit.
    """
    graph, layers = dataset.graph, list(model.layers)  # type: ignore[arg-type]
    most, node = -1, 0
    for first, degree in _degrees(graph):
        if degree.max(initial=-1) > most:
            most, node = int(degree.max()), first + int(degree.argmax())
    masks = []
    for _ in range(1 if whole else len(layers)):
        masks.append(graph.ledger.empty(graph.num_nodes, np.bool_, Tier.HOST, "inference"))
        masks[-1][:] = False
        masks[-1][node] = True
    h: FeatureStore = features or dataset.features
    with contextlib.ExitStack() as mode, contextlib.ExitStack() as scratch:
        mode.callback(model.train, model.training)
        model.eval()
        for layer in layers:
            outputs = _apply(layer, dataset, h, masks[0], torch.device(device), "rehearsal")
            with scratch.pop_all():
                h = _kept(outputs, dataset, scratch)


def _degrees(graph: GraphStore) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Give the number of in-edges of all nodes, in pieces, with the first node of each."""
    free = graph.ledger.free_bytes(Tier.HOST)
    size = max(1, min(_DEGREES, _DEGREES if free is None else free // 256))
    for begin in range(0, graph.num_nodes, size):
        yield begin, graph.rows(np.arange(begin, min(begin + size, graph.num_nodes)))[1]


def _write_npy(path: Path, num_rows: int, pieces: Outputs) -> None:
    with whole_file(path) as file:
        for _, rows in pieces:
            narrow = rows.dtype == torch.bfloat16
            array = (rows.float() if narrow else rows).cpu().contiguous().numpy()
            if file.tell() == 0:
                header = {
                    "descr": array.dtype.str,
                    "fortran_order": False,
                    "shape": (num_rows, *array.shape[1:]),
                }
                np.lib.format.write_array_header_1_0(file, header)
            file.write(array.data)
