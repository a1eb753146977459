"""How HOST memory is shared out: a pure function of what is free and what could use it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from gnnx.cache.features import overhead_bytes

if TYPE_CHECKING:
    from gnnx.cache.strategy import Demand


@dataclasses.dataclass(frozen=True, slots=True)
class HostNeeds:
    """What could use HOST memory, in bytes."""

    batch: int
    """Scratch of a batch in preparation."""
    num_batches: int
    """Batches in preparation at the same time, at most."""
    seeds: int
    """Ids and labels of all seeds."""
    topology: tuple[int, ...]
    """Arrays of the graph, the most useful first; each is kept whole or not at all."""
    num_rows: int
    """N."""
    row_bytes: int
    """Of a feature row."""


@dataclasses.dataclass(frozen=True, slots=True)
class HostPlan:
    """How HOST memory is shared out; the parts fit within what was free."""

    batches: int
    """Bytes left free for batches in preparation."""
    seeds: int
    """Bytes of ids and labels kept: all or nothing."""
    topology: int
    """Bytes of the graph kept."""
    room: int
    """Bytes for feature rows, what finds them, and what brings them."""
    num_kept: int
    """Feature rows that this would keep; all of them where it can."""


def plan(free_bytes: int | None, needs: HostNeeds) -> HostPlan:
    """Share out HOST memory.

    In this order: one batch in preparation; the seeds, if an eighth of the rest holds them; the
    topology, since sampling from disk stalls every hop and reads as much as the features do; more
    batches in preparation; feature rows.

    Parameters
    ----------
    free_bytes
        HOST bytes that nobody holds; None is no limit.
    needs
        What could use them.

    Returns
    -------
    HostPlan
        All of it where it fits; nothing but the batch where that is all that fits.
    """
    # beside its row, an id while the cache is filled
    enough = overhead_bytes(needs.num_rows) + needs.num_rows * (needs.row_bytes + 8)
    if free_bytes is None:
        batches = needs.batch * needs.num_batches
        return HostPlan(batches, needs.seeds, sum(needs.topology), enough, needs.num_rows)
    batches = min(needs.batch, free_bytes)
    left = free_bytes - batches
    seeds = needs.seeds if needs.seeds <= left // 8 else 0
    left -= seeds
    topology = 0
    for array in needs.topology:
        if array > left:
            break
        topology += array
        left -= array
    more = min(needs.batch * (needs.num_batches - 1), left)
    room = min(enough, left - more)
    rows = max(0, room - overhead_bytes(needs.num_rows)) // (needs.row_bytes + 8)
    return HostPlan(batches + more, seeds, topology, room, min(needs.num_rows, rows))


def split(room: int, rows: Demand, row_bytes: int, pages: Demand, page_bytes: int) -> int:
    """Share out a room between rows of features and pages of the graph: what pages get, in bytes.

    Each spares one read with its probability, so those that spare most a byte come first, whichever
    they are.

    Parameters
    ----------
    room
        HOST bytes.
    rows
        Who is wanted of the rows.
    row_bytes
        Of one of them.
    pages
        Who is wanted of the pages.
    page_bytes
        Of one of them.

    Returns
    -------
    int
        Bytes, of whole pages.
    """
    gain = np.append(rows.probability / row_bytes, pages.probability / page_bytes)
    count = np.append(rows.count, pages.count)
    sizes = np.append(np.full(len(rows.count), row_bytes), np.full(len(pages.count), page_bytes))
    is_page = np.arange(len(gain)) >= len(rows.count)
    order = np.argsort(-gain, kind="stable")
    held = np.cumsum(count[order] * sizes[order])
    before = held - count[order] * sizes[order]
    # of the bin that exceeds the room, what fits
    some = np.minimum(count[order], np.maximum(0, room - before) // sizes[order])
    return int((some * sizes[order])[is_page[order]].sum())
