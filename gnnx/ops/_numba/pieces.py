"""How the work on a CSR is cut for the pool: by rows, by edges, and long rows apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gnnx import threads
from gnnx.threads import inlined, kernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

Ids: TypeAlias = "NDArray[np.int64]"

PIECE = 1 << 16  # elements that make a piece worth a thread's while: some 20 us
_NEAR = 64  # such pieces at most in a call, or a thread would be in another part than the next one
_HUB = 8192  # longer rows are shared among threads: a piece is about 1 ms of gathering
NO_HUBS = np.empty(0, np.int64)


def grain(width: int) -> int:
    """Rows or edges of so many elements that are worth a call."""
    return PIECE // max(width, 1) + 1


def over_rows(task: Callable[[int, int], Any], indptr: Tensor, width: int) -> None:
    """Call ``task(begin, end)`` over ranges of rows with about as many rows + edges each.

    A range is some ms of work. Where rows are ordered by part, all threads are thus in the same
    part, and find in the shared cache what one of them has read.
    """
    ends = indptr.numpy()

    def piece(begin: int, end: int) -> None:
        first, last = _first_row(ends, begin), _first_row(ends, end)
        if first < last:
            task(first, last)

    least = grain(width)
    threads.run(piece, len(ends) - 1 + int(ends[-1]), grain=least, most=_NEAR * least)


def hub_slots(indptr: Tensor) -> Ids:
    """Room for `is_hub` to note every hub of a CSR: -1 where none is noted."""
    return np.full(int(indptr[-1]) // _HUB + 1, -1)


@inlined
def is_hub(hubs: Any, d: Any, start: Any, stop: Any) -> Any:
    """Note a row that is too long for one thread, if `hubs` has room for any."""
    if stop - start <= _HUB or not hubs.shape[0]:
        return False
    hubs[start // _HUB] = d  # no other long row starts in the same stretch
    return True


def cut(indptr: Ids, hubs: Ids) -> tuple[Ids, Ids, Ids]:
    """Cut long rows into pieces: where each starts and stops, and each row's first piece."""
    starts = [np.arange(indptr[d], indptr[d + 1], _HUB) for d in hubs]
    stops = [np.append(row[1:], indptr[d + 1]) for d, row in zip(hubs, starts, strict=True)]
    first = np.cumsum([0, *map(len, starts[:-1])])
    return np.concatenate(starts), np.concatenate(stops), first


@kernel
def _first_row(indptr: Any, work: Any) -> Any:
    """First row d with indptr[d] + d >= work."""
    low, high = 0, indptr.shape[0] - 1
    while low < high:
        middle = (low + high) // 2
        if indptr[middle] + middle < work:
            low = middle + 1
        else:
            high = middle
    return low


@inlined
def row_of(indptr: Any, edge: Any) -> Any:
    """Row that an edge belongs to."""
    low, high = 0, indptr.shape[0] - 2
    while low < high:
        middle = (low + high) // 2
        if indptr[middle + 1] <= edge:
            low = middle + 1
        else:
            high = middle
    return low
