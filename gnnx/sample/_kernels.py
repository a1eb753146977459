"""The loops of sampling: how many edges, which of them, and what their sources are called.

Letters: E edges, D destinations, S sources seen so far. Serial, without the GIL.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnx.random import GAMMA, below, mix, permuted
from gnnx.threads import inlined, kernel, prefetch

_FEW = 512  # picks up to which comparing all with all beats a permutation and a sort
_AHEAD = 16  # probes under way at once; 8 is slower, 32 no faster


@inlined
def _num_drawn(degree: Any, fanout: Any) -> Any:
    return degree if fanout < 0 else min(degree, fanout)


@kernel
def row_ends(degree: Any, fanout: Any, indptr: Any) -> None:
    """Fill indptr (D + 1,) for min(degree, fanout) edges a row, or all where fanout is -1."""
    end = 0
    indptr[0] = 0
    for d in range(degree.shape[0]):
        end += _num_drawn(degree[d], fanout)
        indptr[d + 1] = end


@inlined
def _draw_row(base: Any, degree: Any, count: Any, bits: Any, picks: Any, row: Any) -> None:
    """Draw `count` of a row's edges: distinct positions in the CSR, ascending.

    All of the row where that is its degree. Else k of d by Floyd's subset draw (Bentley and Floyd,
    "A sample of brilliance", 1987): for j = 0 … k - 1 a number in [0, d - k + j], or that bound
    itself where the number is picked already. Every subset is equally likely, at a cost that does
    not depend on d. The bits are SplitMix64's stream that starts at `bits`.
    Searching and sorting k picks by comparing all with all takes no branch that could be
    mispredicted: 5 ns an edge against 12 by insertion. Beyond `_FEW` picks, where the square
    shows, the images of 0 … k - 1 under a permutation of [0, d), keyed by the same number, are
    sorted.
    """
    if count == degree:
        for j in range(count):
            row[j] = base + j
    elif count <= _FEW:
        for j in range(count):
            bits += np.uint64(GAMMA)
            last = degree - count + j
            pick, taken = below(mix(bits), last + 1), False
            for other in range(j):
                taken |= picks[other] == pick
            picks[j] = last if taken else pick
        for j in range(count):
            rank = 0
            for other in range(count):
                rank += picks[other] < picks[j]
            row[rank] = base + picks[j]
    else:
        for j in range(count):
            row[j] = base + permuted(j, degree, bits)
        row[:count].sort()


@kernel
def draw(node: Any, start: Any, degree: Any, fanout: Any, state: Any, positions: Any) -> None:
    """Draw the edges of some rows, those of a node by the bits mix(state ^ mix(node))."""
    picks = np.empty(_FEW, np.int64)
    end = 0
    for i in range(node.shape[0]):
        count = _num_drawn(degree[i], fanout)
        row, end = positions[end : end + count], end + count
        _draw_row(start[i], degree[i], count, mix(state ^ mix(node[i])), picks, row)


@kernel
def mark_pages(
    node: Any, fanout: Any, state: Any, indptr: Any, page_entries: Any, row: Any, wanted: Any
) -> Any:
    """Set ``wanted[page]`` for each page that the draws of some rows come from; count the draws.

    `row` is scratch of as many places as a row draws, where it does not draw all.
    """
    picks = np.empty(_FEW, np.int64)
    total = 0
    for i in range(node.shape[0]):
        prefetch(indptr, np.int64(node[min(i + _AHEAD, node.shape[0] - 1)]))
        start, end = indptr[node[i]], indptr[node[i] + 1]
        count = _num_drawn(end - start, fanout)
        if count == 0:
            continue
        total += count
        first, last = start // page_entries, (end - 1) // page_entries
        if count == end - start:
            for page in range(first, last + 1):
                wanted[page] = True
        elif first == last:
            wanted[first] = True
        else:
            _draw_row(start, end - start, count, mix(state ^ mix(node[i])), picks, row)
            for j in range(count):
                wanted[row[j] // page_entries] = True
    return total


@kernel
def draw_before(
    node: Any, fanout: Any, state: Any, indptr: Any, row: Any, at: Any, begin: Any, end: Any,
    sources: Any, positions: Any, out: Any,
) -> Any:  # fmt: skip
    """Draw the edges of ascending rows as far as they lie before position `end`.

    ``at`` (2,) is the row to go on from and how many of its draws were taken; it is moved on.
    ``out`` gets ``sources[position - begin]`` of each draw. Returns how many, all of `out` where
    there may be more. `row` as of `mark_pages`; `positions` is scratch, as long as `out`.
    """
    picks = np.empty(_FEW, np.int64)
    size, i, taken = 0, at[0], at[1]
    while i < node.shape[0]:
        prefetch(indptr, np.int64(node[min(i + _AHEAD, node.shape[0] - 1)]))
        start, degree = indptr[node[i]], indptr[node[i] + 1] - indptr[node[i]]
        if start >= end:
            break
        count = _num_drawn(degree, fanout)
        if taken == 0 and start + degree <= end and count <= out.shape[0] - size:
            _draw_row(start, degree, count, mix(state ^ mix(node[i])), picks, positions[size:])
            size += count
            i += 1
            continue
        if count < degree:
            _draw_row(start, degree, count, mix(state ^ mix(node[i])), picks, row)
        while taken < count and size < out.shape[0]:
            position = start + taken if count == degree else row[taken]
            if position >= end:
                break
            positions[size] = position
            size, taken = size + 1, taken + 1
        if taken < count:
            break
        i, taken = i + 1, 0
    at[0], at[1] = i, taken
    for j in range(size):  # apart from the draws, so that many misses are under way at once
        out[j] = sources[positions[j] - begin]
    return size


@kernel
def distinct(values: Any) -> Any:
    """Move the distinct ones of ascending values to the front; returns how many they are."""
    count = 0
    for i in range(values.shape[0]):
        if i == 0 or values[i] != values[count - 1]:
            values[count] = values[i]
            count += 1
    return count


@inlined
def _home(node: Any, slots: Any) -> Any:
    """Slot in which the search for a node begins: the high bits of node * gamma."""
    hashed = (np.uint64(node) * np.uint64(GAMMA)) >> np.uint64(32)
    return np.int64((hashed * np.uint64(slots.shape[0])) >> np.uint64(32))


@kernel
def number(nodes: Any, begin: Any, slots: Any, seen: Any, count: Any, local: Any) -> Any:
    """Give nodes numbers by first appearance: ``seen[local[i]] == nodes[i]``.

    `slots` is an open-addressing table of numbers, -1 where empty; a number's node is in `seen`.
    Returns how far it came, less than all where `seen` is full, and how many nodes are in it.
    """
    size = nodes.shape[0]
    for i in range(begin, size):
        # two cache misses in a row, for slot and for node, are hidden behind the probes before
        prefetch(slots, _home(nodes[min(i + 2 * _AHEAD, size - 1)], slots))
        prefetch(seen, max(0, slots[_home(nodes[min(i + _AHEAD, size - 1)], slots)]))
        node, at = nodes[i], _home(nodes[i], slots)
        while slots[at] >= 0 and seen[slots[at]] != node:
            at = at + 1 if at + 1 < slots.shape[0] else 0
        if slots[at] < 0:
            if count == seen.shape[0]:
                return i, count
            slots[at], seen[count] = count, node
            count += 1
        local[i] = slots[at]
    return size, count


@kernel
def rebuild(slots: Any, seen: Any, count: Any) -> None:
    """Fill a table with the first `count` nodes of `seen`, which are distinct."""
    slots[:] = -1
    for i in range(count):
        at = _home(seen[i], slots)
        while slots[at] >= 0:
            at = at + 1 if at + 1 < slots.shape[0] else 0
        slots[at] = i


@kernel
def draw_all(state: Any, draws: Any) -> None:
    """Draw 64 bits for each of 0, 1, 2, …."""
    for i in range(draws.shape[0]):
        draws[i] = mix(state ^ mix(np.uint64(i + 1) * np.uint64(GAMMA)))


@inlined
def _place(node: Any, begin: Any, end: Any, base: Any) -> Any:
    """Place of a node among those of ascending ranges, -1 where it is in none."""
    low, high = 0, begin.shape[0]
    while low < high:
        middle = (low + high) // 2
        if begin[middle] <= node:
            low = middle + 1
        else:
            high = middle
    if low == 0 or node >= end[low - 1]:
        return -1
    return base[low - 1] + node - begin[low - 1]


@kernel
def number_ranges(seeds: Any, begin: Any, end: Any, base: Any, number: Any, nodes: Any) -> Any:
    """Give numbers to the nodes of ascending ranges: the seeds first, then the others, ascending.

    `number` (S,) gets the number of the node at each place, `nodes` (S,) the node of each number.
    Returns the first seed that is in no range or has come before, or -1.
    """
    number[:] = -1
    for i in range(seeds.shape[0]):
        place = _place(seeds[i], begin, end, base)
        if place < 0 or number[place] >= 0:
            return i
        number[place] = i
        nodes[i] = seeds[i]
    count, place = seeds.shape[0], 0
    for j in range(begin.shape[0]):
        for node in range(begin[j], end[j]):
            if number[place] < 0:
                number[place] = count
                nodes[count] = node
                count += 1
            place += 1
    return -1


@kernel
def keep_inside(
    indptr: Any,
    indices: Any,
    first_edge: Any,
    first_place: Any,
    begin: Any,
    end: Any,
    base: Any,
    number: Any,
    at: Any,
    sources: Any,
    positions: Any,
    degree: Any,
    kept: Any,
) -> Any:
    """Append the numbers of the sources of rows that are in the ranges, from `at` on.

    The rows stand at `first_place` and on; `degree` and `kept` get the edges of each number's row,
    all and those kept. `positions` gets their places in the graph, where it is not empty. Returns
    the end.
    """
    for row in range(indptr.shape[0] - 1):
        before = at
        for edge in range(indptr[row], indptr[row + 1]):
            place = _place(np.int64(indices[edge]), begin, end, base)
            if place >= 0:
                sources[at] = number[place]
                if positions.shape[0] > 0:
                    positions[at] = first_edge + edge
                at += 1
        mine = number[first_place + row]
        degree[mine] = indptr[row + 1] - indptr[row]
        kept[mine] = at - before
    return at


@kernel
def order_rows(number: Any, indptr: Any, values: Any, out: Any) -> None:
    """Copy the rows of a CSR from the order of places to that of numbers, which `indptr` is of."""
    at = 0
    for place in range(number.shape[0]):
        mine = number[place]
        for i in range(indptr[mine], indptr[mine + 1]):
            out[i] = values[at]
            at += 1
