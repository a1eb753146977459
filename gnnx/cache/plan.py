"""How HOST memory is shared out: a pure function of what is free and what could use it."""

from __future__ import annotations

import dataclasses

from gnnx.cache.features import overhead_bytes


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
