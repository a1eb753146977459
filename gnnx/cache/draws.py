"""Whether batches draw together, and how many: a pure function of probabilities and sizes.

A graph of L hops whose sources do not all stay in memory: a batch on its own reads most of the
pages that it draws from; W batches together read each page once a hop (`gnnx.sample.Draws`). W
costs 4 bytes for each node that draws, and what is drawn waits for its batch: 4 bytes an edge, in
memory, or written and read back.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from gnnx.cache.strategy import PACK_COST, Demand, candidates, lengths, read_cost
from gnnx.store import GAP_BYTES, PAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

_GAIN = 0.75  # drawing in windows must be worth a thread and its memory
_SHARE = 2  # of the room, at most one part in so many: rows of features want some as well
_SPREAD = 1.2  # nodes and edges beside those expected
_LARGEST_BUFFER, _SMALLEST_BUFFER = 32 << 20, 64 << 10
_BUFFER_SHARE = 32
_WINDOWS = 2  # one is used while one is drawn
_SAMPLED = 3  # batches that hold what they have drawn while they number it


@dataclasses.dataclass(frozen=True, slots=True)
class DrawNeeds:
    """What batches draw."""

    num_nodes: float
    """Nodes of a batch that draw: all but those that the last hop reaches."""
    num_edges: float
    """Edges of a batch, of all hops."""
    num_hops: int
    """L."""
    id_bytes: int
    """Of a node."""
    num_pages: int
    """Pages of the graph's sources."""
    pages: Demand
    """Who is wanted of them by a batch."""
    num_steps: int
    """Batches of an epoch."""


@dataclasses.dataclass(frozen=True, slots=True)
class DrawPlan:
    """How batches draw together."""

    steps: int
    """Batches of a window, at most."""
    on_disk: bool
    """Whether what is drawn waits in a scratch file."""
    buffer_bytes: int
    """HOST bytes for reading."""
    held_bytes: int
    """HOST bytes in all."""
    num_kept: int
    """Pages that stay beside."""
    cost_bytes: float
    """Expected cost of a batch, in bytes streamed."""
    read_bytes: float
    """Expected reads of a batch."""
    written_bytes: float
    """Expected writes of a batch."""


def choose_draws(
    room: int,
    needs: DrawNeeds,
    keep: Callable[[int], int],
    *,
    in_memory: bool,
    disk_bytes: int | None = None,
    gap_bytes: int = GAP_BYTES,
) -> DrawPlan | None:
    """Choose the window that costs least within the room.

    Parameters
    ----------
    room
        HOST bytes for pages of the graph, rows of features and windows of draws.
    needs
        What batches draw.
    keep
        Pages that stay in so many HOST bytes, the likeliest.
    in_memory
        Whether what is drawn may wait in memory.
    disk_bytes
        DISK bytes; None is no limit.
    gap_bytes
        As of `choose`.

    Returns
    -------
    DrawPlan or None
        None where batches had better draw for themselves.
    """

    def pass_bytes(steps: int, kept: int) -> float:
        """Cost of bringing once what so many batches want."""
        beyond = needs.pages.count * needs.pages.within(steps)
        missed = np.append(np.cumsum(beyond[::-1])[::-1], 0.0)
        edges = np.append(0, np.cumsum(needs.pages.count))
        count = float(np.interp(kept, edges, missed))
        return read_cost(count, needs.num_pages, PAGE_BYTES, gap_bytes)

    best, bar = None, _GAIN * pass_bytes(1, keep(room))
    buffer = min(_LARGEST_BUFFER, max(_SMALLEST_BUFFER, room // _BUFFER_SHARE))
    fixed = 2 * buffer + needs.num_pages  # as much again for pieces, while threads hand them out
    edge_bytes = _SPREAD * needs.id_bytes * needs.num_edges
    for steps in candidates(needs.num_steps):
        nodes = _SPREAD * steps * needs.id_bytes * needs.num_nodes
        for on_disk in (False, True) if in_memory else (True,):
            waiting = (_SAMPLED if on_disk else _WINDOWS * steps) * edge_bytes
            held = int(fixed + nodes + waiting)
            if held > room // _SHARE:
                continue
            if on_disk and disk_bytes is not None and _WINDOWS * steps * edge_bytes > disk_bytes:
                continue
            kept = keep(room - held)
            swept = sum(
                times * needs.num_hops * pass_bytes(length, kept)
                for length, times in collections.Counter(lengths(steps, needs.num_steps)).items()
            )
            written = edge_bytes / _SPREAD if on_disk else 0.0
            read = swept / needs.num_steps
            cost = read + PACK_COST * written
            if cost < bar:
                plan = DrawPlan(steps, on_disk, buffer, held, kept, cost, read + written, written)
                best, bar = plan, cost
    return best
