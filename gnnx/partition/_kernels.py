"""Loops of the partitioner: who reads whom, where a node costs least, ids in their new order.

Letters: N nodes, E edges, P parts. A part reads its own nodes and the sources of their in-edges.
Rows of in-edges come in pieces, rows `first` and on. What a part reads is kept as a bit of each
node, for up to `WINDOW` parts at a time (64 where parts are measured).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from gnnx.random import permuted
from gnnx.threads import inlined, kernel, prefetch

WINDOW = 32
_ONCE, _TWICE = np.uint64(0xFFFFFFFF), np.uint64(32)  # lower half of a mark, and the upper one
_AHEAD = 24  # edges from one whose mark is at hand to one whose mark is asked for
_COUNTERS = 40  # bits of the number of sources of a row


class Level(NamedTuple):
    """Which parts a node may be in: those of its cell.

    Cells are ranges of parts, WINDOW at most: cell c has the parts first[c] to first[c + 1]. A
    node that is in no part yet has the number -1 - c of its cell for a part.
    """

    first: Any
    """(C + 1,) int64."""
    cell: Any
    """(P,) int64: the cell of each part."""
    load: Any
    """(3, P) int64: nodes, edges and training nodes of each part."""
    limit: Any
    """(3, P) int64: most of each that a part may have."""
    fair: Any
    """(3, P) float64: an even share of each; 0 where it does not count."""


@inlined
def _popcount(word: Any) -> Any:
    """Bits set in a uint64 (Warren, "Hacker's Delight", 5-1)."""
    x = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@inlined
def _bit(position: Any) -> Any:
    return np.uint64(1) << np.uint64(position)


@kernel
def draw_parts(state: Any, num_parts: Any, part: Any) -> None:
    """Deal nodes to parts in a keyed random order: sizes differ by one at most."""
    size = part.shape[0]
    for v in range(size):
        part[v] = permuted(v, size, state) * num_parts // size


@kernel
def first_wrong(part: Any, num_parts: Any) -> Any:
    """First node whose part is outside [0, P), or -1."""
    for v in range(part.shape[0]):
        if part[v] < 0 or part[v] >= num_parts:
            return v
    return -1


@kernel
def mark_readers(first: Any, indptr: Any, indices: Any, part: Any, base: Any, marks: Any) -> Any:
    """Mark the sources of rows with the rows' parts, `base` to `base` + 63.

    Returns the number of edges between two parts.
    """
    cut = 0
    for row in range(indptr.shape[0] - 1):
        p = part[first + row]
        inside = base <= p < base + 64
        bit = _bit(p - base) if inside else np.uint64(0)
        for edge in range(indptr[row], indptr[row + 1]):
            source = indices[edge]
            marks[source] |= bit
            cut += part[source] != p
    return cut


@kernel
def count_halos(marks: Any, part: Any, base: Any, halo: Any) -> None:
    """Count for each part the marked nodes that are not its own."""
    for v in range(marks.shape[0]):
        mark = marks[v]
        while mark != 0:
            lowest = mark & (~mark + np.uint64(1))
            p = base + _popcount(lowest - np.uint64(1))
            halo[p] += part[v] != p
            mark ^= lowest


@kernel
def weigh(first: Any, indptr: Any, part: Any, load: Any) -> None:
    """Count the nodes and in-edges of each part."""
    for row in range(indptr.shape[0] - 1):
        p = part[first + row]
        if p >= 0:
            load[0, p] += 1
            load[1, p] += indptr[row + 1] - indptr[row]


@kernel
def weigh_ids(ids: Any, part: Any, load: Any) -> None:
    """Count the given nodes of each part."""
    for i in range(ids.shape[0]):
        if part[ids[i]] >= 0:
            load[part[ids[i]]] += 1


@kernel
def set_bits(ids: Any, bits: Any) -> None:
    """Set the bit of each id in a bitmap of bytes."""
    for i in range(ids.shape[0]):
        bits[ids[i] >> 3] |= np.uint8(1 << (ids[i] & 7))


@inlined
def _has_bit(bits: Any, node: Any) -> Any:
    return (bits[node >> 3] >> np.uint8(node & 7)) & np.uint8(1) != 0


@inlined
def _cell(part: Any, cell: Any, node: Any) -> Any:
    p = np.int64(part[node])
    return cell[p] if p >= 0 else -1 - p


@kernel
def open_cells(part: Any) -> None:
    """Make cells of parts: every node is in none of its cell's parts yet."""
    for v in range(part.shape[0]):
        part[v] = -1 - part[v]


@kernel
def deal_in_order(part: Any, level: Any, seen: Any, size: Any) -> None:
    """Deal the nodes of each cell to its parts in the order of their ids.

    `seen` is 0 for each cell and `size` its number of nodes, which is shared out as `fair` has it.
    """
    for v in range(part.shape[0]):
        c = _cell(part, level.cell, v)
        begin, end = level.first[c], level.first[c + 1]
        total = 0.0
        for p in range(begin, end):
            total += level.fair[0, p]
        p, until = begin, level.fair[0, begin]
        while p + 1 < end and seen[c] * total >= until * size[c]:
            p += 1
            until += level.fair[0, p]
        seen[c] += 1
        part[v] = p


@kernel
def count_cells(part: Any, level: Any, size: Any) -> None:
    """Count the nodes of each cell."""
    for v in range(part.shape[0]):
        size[_cell(part, level.cell, v)] += 1


@kernel
def mark_rows(first: Any, indptr: Any, indices: Any, part: Any, level: Any, only: Any,
              marks: Any) -> None:  # fmt: skip
    """Mark the nodes that rows read, themselves included, with the bits of the rows' parts.

    A node's mark is a word: one of its lower 32 bits says that the part reads the node, one of the
    upper 32 that two of its rows do. With `only` < 0, what a row reads from another cell does not
    count; else the rows of that cell alone do, whatever they read.
    """
    some_outside = only < 0 and level.first.shape[0] > 2
    for row in range(indptr.shape[0] - 1):
        v = first + row
        p = np.int64(part[v])
        c = level.cell[p]
        if only >= 0 and c != only:
            continue
        bit = _bit(p - level.first[c])
        marks[v] |= ((marks[v] & bit) << _TWICE) | bit
        for edge in range(indptr[row], indptr[row + 1]):
            if edge + _AHEAD < indices.shape[0]:
                prefetch(marks, np.int64(indices[edge + _AHEAD]))
            source = np.int64(indices[edge])
            if source == v or (some_outside and level.cell[part[source]] != c):
                continue
            mark = marks[source]
            marks[source] = mark | ((mark & bit) << _TWICE) | bit


@kernel
def count_marks(marks: Any) -> Any:
    """Lower bits set: what all parts read, in nodes."""
    total = 0
    for v in range(marks.shape[0]):
        total += _popcount(marks[v] & _ONCE)
    return total


@inlined
def _fullness(level: Any, p: Any, without: Any) -> Any:
    """Most of a part's shares of what counts, without a node that it has; 1 is an even one."""
    most = 0.0
    for kind in range(3):
        if level.fair[kind, p] > 0:
            most = max(most, (level.load[kind, p] - without[kind]) / level.fair[kind, p])
    return most


@kernel
def move_rows(first: Any, indptr: Any, indices: Any, part: Any, level: Any, only: Any, marks: Any,
              train: Any, penalty: Any) -> Any:  # fmt: skip
    """Put each node where the parts together read least, given where all others are.

    A node's row and the node itself cost a part what it does not read for another row. Of the
    parts that have room, or that the node would overfill least, the best has the most that is read
    there anyway, less `penalty` times its fullness; ties stay, or go to the emptier part. `marks`
    follow each move; where a third row had read a node too, an upper bit stays set, until the next
    `mark_rows`. Returns the number of moves.

    The parts' hits are counted all at once: bit i of `counter[k]` is bit k of part i's count, so
    that a source costs a few operations on words, whatever the number of parts.
    """
    counter = np.zeros(_COUNTERS, np.uint64)
    weight, nothing = np.zeros(3, np.int64), np.zeros(3, np.int64)
    full = np.empty(level.load.shape[1])
    for p in range(full.shape[0]):
        full[p] = _fullness(level, p, nothing)
    some_outside = only < 0 and level.first.shape[0] > 2
    moves = 0
    for row in range(indptr.shape[0] - 1):
        v = first + row
        now = np.int64(part[v])
        c = level.cell[now] if now >= 0 else -1 - now
        if only >= 0 and c != only:
            continue
        begin, end = level.first[c], level.first[c + 1]
        own = _bit(now - begin) if now >= 0 else np.uint64(0)
        weight[0], weight[1] = 1, indptr[row + 1] - indptr[row]
        weight[2] = train.shape[0] > 0 and _has_bit(train, v)
        # the lowest digits are in registers, and added to without asking
        zero = (marks[v] & _ONCE & ~own) | ((marks[v] >> _TWICE) & own)
        one = two = np.uint64(0)
        digits = 3
        for edge in range(indptr[row], indptr[row + 1]):
            if edge + _AHEAD < indices.shape[0]:
                prefetch(marks, np.int64(indices[edge + _AHEAD]))
            source = np.int64(indices[edge])
            if source == v or (some_outside and _cell(part, level.cell, source) != c):
                continue
            mark = marks[source]
            bits = (mark & _ONCE & ~own) | ((mark >> _TWICE) & own)
            carry = zero & bits
            zero ^= bits
            bits = one & carry
            one ^= carry
            carry = two & bits
            two ^= bits
            k = 3
            while carry != 0:
                over = counter[k] & carry
                counter[k] ^= carry
                carry = over
                k += 1
            digits = max(digits, k)
        counter[0], counter[1], counter[2] = zero, one, two
        best: Any = -1
        best_over = best_score = best_fullness = np.inf
        for p in range(begin, end):
            over = 0.0
            for kind in range(3):
                beyond = level.load[kind, p] - level.limit[kind, p]
                if p != now:
                    beyond += weight[kind]
                if beyond > 0 and level.fair[kind, p] > 0:
                    over += min(weight[kind], beyond) / level.fair[kind, p]
            if over > best_over:
                continue
            fullness = full[p] if p != now else _fullness(level, p, weight)
            hits: Any = 0
            for k in range(digits):
                hits += np.int64((counter[k] >> np.uint64(p - begin)) & np.uint64(1)) << k
            score = penalty * fullness - hits
            tie = over == best_over and score == best_score
            if (
                over < best_over
                or score < best_score
                or (tie and (p == now or (best != now and fullness < best_fullness)))
            ):
                best, best_over, best_score, best_fullness = p, over, score, fullness
        for k in range(digits):
            counter[k] = 0
        if best == now:
            continue
        moves += 1
        part[v] = best
        bit = _bit(best - begin)
        for kind in range(3):
            level.load[kind, best] += weight[kind]
            if now >= 0:
                level.load[kind, now] -= weight[kind]
        full[best] = _fullness(level, best, nothing)
        if now >= 0:
            full[now] = _fullness(level, now, nothing)
        mark = marks[v] & (~own | (marks[v] >> _TWICE))
        marks[v] = mark | ((mark & bit) << _TWICE) | bit
        for edge in range(indptr[row], indptr[row + 1]):
            source = np.int64(indices[edge])
            if source == v or (some_outside and _cell(part, level.cell, source) != c):
                continue
            mark = marks[source] & (~own | (marks[source] >> _TWICE))
            marks[source] = mark | ((mark & bit) << _TWICE) | bit
    return moves


@kernel
def last_of(part: Any, wanted: Any) -> Any:
    """Last node of a part, or -1."""
    for v in range(part.shape[0] - 1, -1, -1):
        if part[v] == wanted:
            return v
    return -1


@kernel
def count_neighbours(first: Any, indptr: Any, indices: Any, starts: Any) -> None:
    """Count the ends of edges other than loops at each node v, in starts[v + 1]."""
    for row in range(indptr.shape[0] - 1):
        v = first + row
        for edge in range(indptr[row], indptr[row + 1]):
            source = np.int64(indices[edge])
            if source != v:
                starts[v + 1] += 1
                starts[source + 1] += 1


@kernel
def end_of_rows(length: Any, begin: Any, capacity: Any) -> Any:
    """End of the longest range of rows, from `begin` on, that fits; at least one row."""
    size, end = 0, begin
    while end < length.shape[0]:
        size += length[end] + 2  # a cursor's worth beside the entries
        if size > capacity and end > begin:
            break
        end += 1
    return end


@kernel
def start_rows(length: Any) -> Any:
    """Turn the lengths of rows into their starts, in place; returns their sum."""
    total = 0
    for row in range(length.shape[0]):
        count = length[row]
        length[row] = total
        total += count
    return total


@kernel
def gather_neighbours(first: Any, indptr: Any, indices: Any, begin: Any, cursor: Any,
                      entries: Any) -> None:  # fmt: skip
    """Put both ends of edges into each other's rows, for the rows `begin` and on."""
    size = cursor.shape[0]
    for row in range(indptr.shape[0] - 1):
        v = first + row
        mine = v - begin
        inside = 0 <= mine < size
        for edge in range(indptr[row], indptr[row + 1]):
            source = np.int64(indices[edge])
            if source == v:
                continue
            if inside:
                entries[cursor[mine]] = source
                cursor[mine] += 1
            other = source - begin
            if 0 <= other < size:
                entries[cursor[other]] = v
                cursor[other] += 1


@kernel
def unique_rows(ends: Any, entries: Any, length: Any) -> Any:
    """Sort rows and keep each entry once, in place; returns the number of entries left."""
    begin = kept = 0
    for row in range(ends.shape[0]):
        entries[begin : ends[row]].sort()
        before = kept
        last: Any = -1
        for i in range(begin, ends[row]):
            entry = np.int64(entries[i])
            if entry != last:
                entries[kept] = entry
                kept += 1
            last = entry
        begin, length[row] = ends[row], kept - before
    return kept


@kernel
def add_degrees(first: Any, indptr: Any, scale: Any, weights: Any) -> None:
    """Add scaled in-degrees to the weights of nodes."""
    for row in range(indptr.shape[0] - 1):
        weights[first + row] += np.int64(scale * (indptr[row + 1] - indptr[row]))


@kernel
def count_sources(indices: Any, readers: Any) -> None:
    """Count the rows that read each node."""
    for edge in range(indices.shape[0]):
        readers[indices[edge]] += np.uint32(1)


@kernel
def sort_by_digit(keys: Any, shift: Any, descending: Any, order: Any, out: Any) -> None:
    """One stable pass of a radix sort of ids by 11 bits of their keys."""
    start = np.zeros(2049, np.int64)
    for i in range(order.shape[0]):
        digit = (np.int64(keys[order[i]]) >> shift) & 2047
        start[(2047 - digit if descending else digit) + 1] += 1
    for digit in range(2048):
        start[digit + 1] += start[digit]
    for i in range(order.shape[0]):
        digit = (np.int64(keys[order[i]]) >> shift) & 2047
        digit = 2047 - digit if descending else digit
        out[start[digit]] = order[i]
        start[digit] += 1


@kernel
def count_up(order: Any) -> None:
    """Fill with 0, 1, 2 and so on."""
    for i in range(order.shape[0]):
        order[i] = i


@kernel
def invert(order: Any, rank: Any) -> None:
    """Where each id stands in an order of all ids."""
    for i in range(order.shape[0]):
        rank[order[i]] = i


@kernel
def positions_of(start: Any, degree: Any, positions: Any) -> None:
    """Positions in a CSR of the entries of rows, one row after another."""
    at = 0
    for row in range(start.shape[0]):
        for i in range(degree[row]):
            positions[at] = start[row] + i
            at += 1


@kernel
def rename(sources: Any, rank: Any) -> None:
    """Give sources their new ids, in place."""
    for i in range(sources.shape[0]):
        sources[i] = rank[sources[i]]


@kernel
def sort_rows(ends: Any, sources: Any, begin: Any, end: Any) -> None:
    """Sort rows [begin, end), in place; row r ends at ends[r]."""
    for row in range(begin, end):
        first, last = ends[row - 1] if row > 0 else 0, ends[row]
        if last - first > 48:
            sources[first:last].sort()
            continue
        for i in range(first + 1, last):
            source, j = sources[i], i
            while j > first and sources[j - 1] > source:
                sources[j] = sources[j - 1]
                j -= 1
            sources[j] = source


@kernel
def mark_outside(sources: Any, begin: Any, end: Any, bits: Any) -> Any:
    """Set the bits of sources outside [begin, end); returns the number of such sources."""
    count = 0
    for i in range(sources.shape[0]):
        source = sources[i]
        if source < begin or source >= end:
            bits[source >> 3] |= np.uint8(1 << (source & 7))
            count += 1
    return count


@kernel
def set_new_bits(ids: Any, rank: Any, bits: Any) -> None:
    """Set the bits of the new ids of nodes."""
    for i in range(ids.shape[0]):
        node = rank[ids[i]]
        bits[node >> 3] |= np.uint8(1 << (node & 7))


@kernel
def take_bits(bits: Any, node: Any, num_nodes: Any, out: Any) -> Any:
    """List nodes whose bits are set, from `node` on, until `out` is full.

    Clears the bits; returns (number of nodes, next node).
    """
    count = 0
    while node < num_nodes and count < out.shape[0]:
        if node & 7 == 0 and bits[node >> 3] == 0:
            node += 8
            continue
        if bits[node >> 3] >> np.uint8(node & 7) & np.uint8(1):
            bits[node >> 3] ^= np.uint8(1 << (node & 7))
            out[count] = node
            count += 1
        node += 1
    return count, node


@kernel
def count_values(part: Any, sizes: Any) -> None:
    """Count the nodes of each part."""
    for v in range(part.shape[0]):
        sizes[part[v]] += 1


@kernel
def lengths_of(offsets: Any, ids: Any, ends: Any) -> Any:
    """Fill in where the texts of nodes end, one after another; returns the end of the last."""
    at = 0
    for i in range(ids.shape[0]):
        at += offsets[ids[i] + 1] - offsets[ids[i]]
        ends[i] = at
    return at


@kernel
def copy_texts(offsets: Any, text: Any, ids: Any, out: Any) -> None:
    """Copy the texts of nodes, one after another."""
    at = 0
    for i in range(ids.shape[0]):
        for j in range(offsets[ids[i]], offsets[ids[i] + 1]):
            out[at] = text[j]
            at += 1


@kernel
def count_range(indices: Any, begin: Any, length: Any) -> None:
    """Count the edges of each source from `begin` on."""
    for edge in range(indices.shape[0]):
        source = np.int64(indices[edge]) - begin
        if 0 <= source < length.shape[0]:
            length[source] += 1


@kernel
def scatter_range(first: Any, indptr: Any, indices: Any, first_edge: Any, begin: Any, cursor: Any,
                  readers: Any, edges: Any) -> None:  # fmt: skip
    """Put the row and the position of each edge where its source's cursor is, and advance that."""
    for row in range(indptr.shape[0] - 1):
        for edge in range(indptr[row], indptr[row + 1]):
            source = np.int64(indices[edge]) - begin
            if 0 <= source < cursor.shape[0]:
                readers[cursor[source]] = first + row
                edges[cursor[source]] = first_edge + edge
                cursor[source] += 1


@kernel
def end_of_range(ends: Any, begin: Any, row_bytes: Any, entry_bytes: Any, capacity: Any) -> Any:
    """End of the longest range of rows, from `begin` on, that fits; at least one row."""
    end = begin + 1
    while end < ends.shape[0] - 1 and (
        (end + 1 - begin) * row_bytes + (ends[end + 1] - ends[begin]) * entry_bytes <= capacity
    ):
        end += 1
    return end
