"""Exact outputs of a model, layer by layer, streamed within the budget.

Layer l + 1 is computed for all its rows from layer l's rows, with every neighbour, so that no node
is computed twice; what lies between two layers is kept in a scratch file. Shapes: N nodes,
S sources, D destinations, R rows asked, F/G widths in/out.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import torch

from gnnx import threads
from gnnx.errors import BudgetError, DataError, RunError, UsageError
from gnnx.memory import Tier
from gnnx.nn import needs_degrees, needs_edge_weight
from gnnx.random import Key
from gnnx.sample import EdgeValues, NeighborSampler, ValuedSampler
from gnnx.store import ScratchRows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

    from numpy.typing import NDArray
    from torch import nn

    from gnnx.graph import Block
    from gnnx.memory import Ledger
    from gnnx.store import Dataset, FeatureStore, GraphStore

_PIECE_BYTES = 256 << 20  # input rows of a piece where the device has no limit; two are alive
_ENTRY_BYTES = 64  # an edge in a block, its transpose, and the sampler's scratch
_WINDOW = 1 << 18  # rows looked at together
_WINDOW_BYTES = 64  # a row's id and degree, their copies, and twice as many rows at most
_TIMEOUT_S = 600.0


_Outputs: TypeAlias = "Iterator[tuple[NDArray[np.int64], torch.Tensor]]"
"""Ids and rows, piece by piece."""


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
    features: FeatureStore | None = None,
    device: torch.device | str = "cpu",
    progress: threads.Progress | None = None,
) -> torch.Tensor | None:
    """Compute outputs of a model for nodes, each once, with every neighbour.

    Parameters
    ----------
    model
        Shows its ``layers``, each called as ``layer(block, h)``, in order.
    dataset
        Opened with the budget to keep.
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
        One row's neighbourhood does not fit the budget.
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
        _write_npy(_checked_out(out), num_rows, pieces)
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
    features: FeatureStore | None = None,
    device: torch.device | str = "cpu",
    progress: threads.Progress | None = None,
) -> _Outputs:
    """Yield (ids, outputs) of nodes piece by piece; arguments and errors as `infer`."""
    layers = getattr(model, "layers", None)
    if layers is None:
        raise UsageError(
            f"{type(model).__name__} shows no layers",
            "Give the model `layers`, in order, each called as layer(block, h).",
        )
    needed = _needed(dataset.graph, nodes, len(layers))
    h: FeatureStore = features or dataset.features
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
    outputs: _Outputs, stage: str, rows: NDArray[np.bool_], progress: threads.Progress | None
) -> _Outputs:
    total, done = int(np.count_nonzero(rows)), 0
    for ids, result in outputs:
        yield ids, result
        done += len(ids)
        if progress:
            progress(stage, done, total)


def _kept(outputs: _Outputs, dataset: Dataset, scratch: contextlib.ExitStack) -> FeatureStore:
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
) -> _Outputs:
    """Run one layer for the rows of a mask; the next piece is read while one computes."""
    dtype = parameter_dtype(layer)
    weighted = needs_edge_weight(layer)
    plain = NeighborSampler(dataset.graph, [-1], degrees=needs_degrees(layer), edge_ids=weighted)
    sampler: NeighborSampler | ValuedSampler = plain
    if weighted:
        sampler = ValuedSampler(plain, EdgeValues(dataset, weight=True, attr=False))
    pieces = _pieces(sampler, h, rows, device)
    ahead = threads.submit(next, pieces, None)
    try:
        while (piece := _arrived(ahead, stage)) is not None:
            ahead = threads.submit(next, pieces, None)
            with torch.no_grad():
                yield piece.ids, layer(piece.block.to(device), piece.h.to(device, dtype))
    finally:
        concurrent.futures.wait([ahead], _TIMEOUT_S)  # it writes to buffers that are let go now


def _arrived(ahead: Future[_Piece | None], stage: str) -> _Piece | None:
    """Wait for the piece that is being read; None after the last one."""
    try:
        return ahead.result(_TIMEOUT_S)
    except TimeoutError as error:
        if ahead.done():
            raise  # the reader's own
        raise RunError(
            f"{stage}: its next rows were not sampled and read within {_TIMEOUT_S:g} s",
            "Check that the disk answers.",
        ) from error


def parameter_dtype(module: nn.Module) -> torch.dtype:
    """Dtype that a module's input is converted to: of its parameters, else float32."""
    return next((p.dtype for p in module.parameters()), torch.float32)


def _pieces(
    sampler: NeighborSampler | ValuedSampler,
    h: FeatureStore,
    rows: NDArray[np.bool_],
    device: torch.device,
) -> Iterator[_Piece]:
    """Cut the rows into pieces whose inputs fit; where the budget refuses one, pieces get smaller.

    Every piece reads from all over the input, so that few large ones read less than many small.
    """
    ledger = sampler.graph.ledger
    tier = Tier.DEVICE if device.type == "cpu" else Tier.HOST
    free = ledger.free_bytes(tier)
    most = _most_entries(_PIECE_BYTES if free is None else free // 4, h)
    for ids in _windows(rows, most, ledger):
        degree = sampler.graph.rows(ids)[1]
        while len(ids):
            count = max(1, int(np.cumsum(degree + 1).searchsorted(most, side="right")))
            try:
                piece = _load(sampler, h, ids[:count], ledger, tier)
            except BudgetError:
                if count == 1:
                    raise
                most = max(1, most // 2)
            else:
                yield piece
                ids, degree = ids[count:], degree[count:]  # noqa: PLW2901 - of the window


def _most_entries(num_bytes: int, h: FeatureStore) -> int:
    """Destinations and edges of a piece whose input rows and edges are expected to fit.

    k entries that fall on N rows at random meet N (1 - exp(-k / N)) of them; real graphs, whose
    edges prefer some nodes, fewer.
    """
    share = num_bytes / (max(1, h.row_bytes) * max(1, h.num_rows))
    met = -math.log1p(-share) * h.num_rows if share < 1 else math.inf
    return max(1, int(min(met, num_bytes / _ENTRY_BYTES)))


def _windows(rows: NDArray[np.bool_], most: int, ledger: Ledger) -> Iterator[NDArray[np.int64]]:
    """Ids whose mask is set, as many at a time as are worth cutting."""
    free = ledger.free_bytes(Tier.HOST)
    share = _WINDOW if free is None else free // 16 // _WINDOW_BYTES  # the rest is the sampler's
    size = max(1, min(most, share, _WINDOW))
    with ledger.reserve(_WINDOW_BYTES * size, Tier.HOST, "inference"):
        found: list[NDArray[np.int64]] = []
        for begin in range(0, len(rows), size):
            found.append(np.flatnonzero(rows[begin : begin + size]) + begin)
            if sum(map(len, found)) >= size or begin + size >= len(rows):
                yield np.concatenate(found)
                found = []


def _load(
    sampler: NeighborSampler | ValuedSampler,
    h: FeatureStore,
    ids: NDArray[np.int64],
    ledger: Ledger,
    tier: Tier,
) -> _Piece:
    (block,) = sampler.sample(ids, Key(0))
    x = ledger.tensor((block.num_src, *h.row_shape), h.dtype, tier, "x")
    return _Piece(ids, block, h.read(block.src_id.numpy(), out=x))


def _checked_out(out: Path | str) -> Path:
    """Refuse what a rename would not make, or would replace though it is no file of rows."""
    path = Path(out)
    if str(out) and path.parent.is_dir() and (path.is_file() or not os.path.lexists(path)):
        return path
    raise UsageError(f"{str(out)!r} is no place for a file", "Name a new file, such as out.npy.")


def _write_npy(path: Path, num_rows: int, pieces: _Outputs) -> None:
    """Write rows to a .npy file under a temporary name; rename it when it is whole and synced."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
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
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
