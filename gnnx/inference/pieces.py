"""Pieces of rows whose inputs fit the budget, read one ahead of the one that computes.

N nodes; an entry is a destination or an edge of a piece.
"""

from __future__ import annotations

import concurrent.futures
import math
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np
import torch

from gnnx import threads
from gnnx.errors import BudgetError, RunError
from gnnx.memory import Tier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from numpy.typing import NDArray
    from torch import nn

    from gnnx.memory import Ledger

T = TypeVar("T")
Outputs: TypeAlias = "Iterator[tuple[NDArray[np.int64], torch.Tensor]]"
"""Ids and rows, piece by piece."""

TIMEOUT_S = 600.0
"""Time limit of sampling and reading a piece, in seconds."""
_PIECE_BYTES = 256 << 20  # input rows of a piece where the device has no limit; two are alive
_ENTRY_BYTES = 64  # an edge in a block, its transpose, and the sampler's scratch
_WINDOW = 1 << 18  # rows looked at together
_WINDOW_BYTES = 64  # a row's id and degree, their copies, and twice as many rows at most


def parameter_dtype(module: nn.Module) -> torch.dtype:
    """Dtype that a module's input is converted to: of its parameters, else float32."""
    return next((p.dtype for p in module.parameters()), torch.float32)


def piece_tier(device: torch.device) -> Tier:
    """Where the input rows of a piece are read to."""
    return Tier.DEVICE if device.type == "cpu" else Tier.HOST


def piece_bytes(ledger: Ledger, tier: Tier) -> int:
    """Bytes of the input rows of a piece."""
    free = ledger.free_bytes(tier)
    return _PIECE_BYTES if free is None else free // 4


def most_entries(num_bytes: int, row_bytes: int, num_rows: int) -> int:
    """Destinations and edges of a piece whose input rows and edges are expected to fit.

    k entries that fall on N rows at random meet N (1 - exp(-k / N)) of them; real graphs, whose
    edges prefer some nodes, fewer.
    """
    share = num_bytes / (max(1, row_bytes) * max(1, num_rows))
    met = -math.log1p(-share) * num_rows if share < 1 else math.inf
    return max(1, int(min(met, num_bytes / _ENTRY_BYTES)))


def cut(
    rows: NDArray[np.bool_],
    most: int,
    ledger: Ledger,
    *,
    degree: Callable[[NDArray[np.int64]], NDArray[np.int64]],
    load: Callable[[NDArray[np.int64]], T],
) -> Iterator[T]:
    """Cut rows into pieces whose inputs fit; where the budget refuses one, pieces get smaller.

    Every piece reads from all over the input, so that few large ones read less than many small.

    Parameters
    ----------
    rows
        (N,) which rows.
    most
        Entries of a piece.
    ledger
        Whose HOST tier bounds the rows that are looked at together.
    degree
        In-edges of rows.
    load
        Samples and reads a piece.

    Yields
    ------
    T
        What `load` gives, in the order of the rows.

    Raises
    ------
    BudgetError
        One row does not fit.
    """
    for ids in _windows(rows, most, ledger):
        degrees = degree(ids)
        while len(ids):
            count = max(1, int(np.cumsum(degrees + 1).searchsorted(most, side="right")))
            try:
                piece = load(ids[:count])
            except BudgetError:
                if count == 1:
                    raise
                most = max(1, most // 2)
            else:
                yield piece
                ids, degrees = ids[count:], degrees[count:]  # noqa: PLW2901 - of the window


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


def read_ahead(pieces: Iterator[T], stage: str) -> Iterator[T]:
    """Hand out pieces; the next one is read on the pool while one computes.

    Parameters
    ----------
    pieces
        Reads a piece when asked for it.
    stage
        For messages.

    Yields
    ------
    T
        The pieces.

    Raises
    ------
    RunError
        A piece was not read in time.
    """
    ahead = threads.submit(next, pieces, None)
    try:
        while (piece := _arrived(ahead, stage)) is not None:
            ahead = threads.submit(next, pieces, None)
            yield piece
    finally:
        concurrent.futures.wait([ahead], TIMEOUT_S)  # it writes to buffers that are let go now


def _arrived(ahead: Future[T | None], stage: str) -> T | None:
    """Wait for the piece that is being read; None after the last one."""
    try:
        return ahead.result(TIMEOUT_S)
    except TimeoutError as error:
        if ahead.done():
            raise  # the reader's own
        raise RunError(
            f"{stage}: its next rows were not sampled and read within {TIMEOUT_S:g} s",
            "Check that the disk answers.",
        ) from error
