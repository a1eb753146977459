"""Loops of the cache: reach along edges, selection by histogram, id to slot, rows to their places.

N nodes, R rows asked, C rows cached, W machine words of a row. An id's slot is its rank among the
cached ids: a bit for each id, and for each block of `BLOCK` bits the number of bits set before it.
That is N/8 + N/64 bytes, and a look-up touches one cache line of each.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnx.random import GAMMA, mix
from gnnx.threads import inlined, kernel

WORD = 64  # bits of a word
WORDS = 8  # words of a block: one cache line
BLOCK = WORDS * WORD
HEATS = 64
"""Degrees of how often the batches of late windows wanted a row, from 0 on."""


@kernel
def draw_kernel(first: Any, degree: Any, fanout: Any, spared: Any, drawn: Any) -> None:
    """Let the nodes v from `first` on draw: R(v) += (P(v) - R(v)) · min(1, f / deg v).

    `spared` is log(1 - P); R, in `drawn`, is the probability that v has drawn a given in-edge.
    """
    for i in range(degree.shape[0]):
        v = first + i
        share = 1.0 if fanout < 0 or degree[i] <= fanout else fanout / degree[i]
        reached = -np.expm1(np.float64(spared[v]))
        drawn[v] += np.float32((reached - drawn[v]) * share)


@kernel
def reach_kernel(first: Any, indptr: Any, indices: Any, drawn: Any, spared: Any) -> Any:
    """Add log(1 - R(v)) to spared[u] for each edge u → v of the rows from `first` on.

    The term is the same for all edges of a row, so that an edge costs one addition, and those of
    nodes that are never reached cost nothing. Returns -1, or the first edge whose u is no node.
    """
    for row in range(indptr.shape[0] - 1):
        if drawn[first + row] == 0.0:
            continue
        term = np.float32(np.log1p(-np.float64(drawn[first + row])))
        for edge in range(indptr[row], indptr[row + 1]):
            source = indices[edge]
            if source < 0 or source >= spared.shape[0]:
                return edge
            spared[source] += term
    return -1


@kernel
def probability_kernel(spared: Any) -> None:
    """Turn log(1 - P) into P in place; zero stays +0."""
    for i in range(spared.shape[0]):
        spared[i] = np.float32(0.0 - np.expm1(np.float64(spared[i])))


@kernel
def page_kernel(start: Any, degree: Any, probability: Any, fanout: Any, page_entries: Any,
                expected: Any) -> None:  # fmt: skip
    """Add to each page how often a batch is expected to draw from it, one row after the other.

    A row over several pages has its draws spread over them.
    """
    for i in range(start.shape[0]):
        if degree[i] == 0 or probability[i] == 0.0:
            continue
        first = start[i] // page_entries
        last = (start[i] + degree[i] - 1) // page_entries
        share = 1.0 if fanout < 0 else min(1.0, fanout / (last - first + 1))
        for page in range(first, last + 1):
            expected[page] += probability[i] * share


@inlined
def _magnitude(bits: Any) -> Any:
    """Float bits as an integer that orders non-negative floats; -0 is 0."""
    return bits & np.uint32(0x7FFFFFFF)


@kernel
def digits_kernel(bits: Any, prefix: Any, shift: Any, width: Any, counts: Any) -> None:
    """Count the next digit, `width` bits at `shift`, of the scores that begin with `prefix`."""
    counts[:] = 0
    above = np.uint32(shift + width)
    mask = np.uint32((1 << width) - 1)
    for i in range(bits.shape[0]):
        value = _magnitude(bits[i])
        if value >> above == prefix:
            counts[(value >> np.uint32(shift)) & mask] += 1


@kernel
def above_kernel(bits: Any, threshold: Any, num_ties: Any, out: Any) -> None:
    """Ids of scores above the threshold and of the first `num_ties` at it, ascending."""
    n = 0
    for i in range(bits.shape[0]):
        value = _magnitude(bits[i])
        if value < threshold:
            continue
        if value == threshold:
            if num_ties == 0:
                continue
            num_ties -= 1
        out[n] = i
        n += 1


@inlined
def _popcount(word: Any) -> Any:
    """Bits set in a uint64 (Warren, "Hacker's Delight", 5-1)."""
    x = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    x = (x & np.uint64(0x3333333333333333)) + ((x >> np.uint64(2)) & np.uint64(0x3333333333333333))
    x = (x + (x >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return np.int64((x * np.uint64(0x0101010101010101)) >> np.uint64(56))


@kernel
def index_kernel(ids: Any, num_rows: Any, bits: Any) -> Any:
    """Set the bits of the ids.

    Returns -1, or the first place where an id is out of range or not above the one before it.
    """
    last = np.int64(-1)
    for i in range(ids.shape[0]):
        if ids[i] <= last or ids[i] >= num_rows:
            return i
        last = ids[i]
        bits[last >> 6] |= np.uint64(1) << np.uint64(last & 63)
    return -1


@kernel
def rank_kernel(bits: Any, before: Any) -> None:
    """Count the bits set before each block."""
    count = np.int64(0)
    for block in range(before.shape[0]):
        before[block] = count
        for word in range(block * WORDS, block * WORDS + WORDS):
            count += _popcount(bits[word])


@kernel
def common_kernel(bits: Any, others: Any) -> Any:
    """Count the bits set in both."""
    count = np.int64(0)
    for word in range(bits.shape[0]):
        count += _popcount(bits[word] & others[word])
    return count


@kernel
def num_set_kernel(bits: Any) -> Any:
    """Count the bits set."""
    count = np.int64(0)
    for word in range(bits.shape[0]):
        count += _popcount(bits[word])
    return count


@kernel
def retain_kernel(bits: Any, others: Any, room: Any) -> None:
    """Set up to `room` more bits, of those set in `others`."""
    for word in range(bits.shape[0]):
        more = others[word] & ~bits[word]
        while more and room:
            lowest = more & (~more + np.uint64(1))
            bits[word] |= lowest
            more ^= lowest
            room -= 1
        if not room:
            return


@kernel
def set_kernel(ids: Any, bits: Any) -> None:
    """Set the bits of ids, which are in range."""
    for i in range(ids.shape[0]):
        bits[ids[i] >> 6] |= np.uint64(1) << np.uint64(ids[i] & 63)


@inlined
def _cached(bits: Any, row: Any) -> Any:
    """Whether the bit of a row is set."""
    return (bits[row >> 6] >> np.uint64(row & 63)) & np.uint64(1) != 0


@inlined
def _rank(bits: Any, before: Any, row: Any) -> Any:
    """Slot of a row: the number of bits set before its own."""
    slot = before[row // BLOCK]
    for word in range(row // BLOCK * WORDS, row >> 6):
        slot += _popcount(bits[word])
    below = (np.uint64(1) << np.uint64(row & 63)) - np.uint64(1)
    return slot + _popcount(bits[row >> 6] & below)


@kernel
def ids_kernel(bits: Any, start: Any, out: Any) -> Any:
    """Fill `out` with ids whose bits are set, from id `start` on; the id to go on from."""
    n = 0
    while n < out.shape[0]:
        if _cached(bits, start):
            out[n] = start
            n += 1
        start += 1
    return start


@kernel
def count_kernel(rows: Any, places: Any, num_rows: Any, num_places: Any, bits: Any) -> Any:
    """Count the rows that are not cached.

    Or -1 - i where row i is not in [0, num_rows), or its place not in [0, num_places).
    """
    num_misses = 0
    for i in range(rows.shape[0]):
        place = i if places is None else places[i]
        if rows[i] < 0 or rows[i] >= num_rows or place < 0 or place >= num_places:
            return -1 - i
        if not _cached(bits, rows[i]):
            num_misses += 1
    return num_misses


@kernel
def misses_kernel(rows: Any, places: Any, bits: Any, missing: Any, missing_places: Any) -> None:
    """List the rows that are not cached, with their places, in the order asked."""
    n = 0
    for i in range(rows.shape[0]):
        if not _cached(bits, rows[i]):
            missing[n] = rows[i]
            missing_places[n] = i if places is None else places[i]
            n += 1


@kernel
def hits_kernel(rows: Any, places: Any, bits: Any, before: Any, slots: Any, kept: Any,
                out: Any) -> None:  # fmt: skip
    """Copy the rows that are cached to their places; `kept` and `out` are machine words.

    Member number r is in slot r, or in ``slots[r]``.
    """
    for i in range(rows.shape[0]):
        row = rows[i]
        if not _cached(bits, row):
            continue
        rank = _rank(bits, before, row)
        slot = rank if slots is None else np.int64(slots[rank])
        place = i if places is None else places[i]
        for word in range(kept.shape[1]):
            out[place, word] = kept[slot, word]


# a window's members in ascending order: where each is, the last batch that wants it, its heat


@kernel
def use_kernel(ids: Any, step: Any, bits: Any, before: Any, last: Any, heat: Any) -> None:
    """Enter a batch as the last that wants its rows, all of them members, and heat them."""
    for i in range(ids.shape[0]):
        rank = _rank(bits, before, np.int64(ids[i]))
        last[rank] = step
        heat[rank] = min(heat[rank] + 8, HEATS - 1)


@kernel
def done_kernel(ids: Any, step: Any, bits: Any, before: Any, last: Any, slot: Any,
                free: Any) -> Any:  # fmt: skip
    """List the places of a batch's rows that no later one wants and that do not stay."""
    n = 0
    for i in range(ids.shape[0]):
        rank = _rank(bits, before, np.int64(ids[i]))
        if last[rank] == step:
            free[n] = slot[rank]
            n += 1
    return n


@kernel
def heat_kernel(bits: Any, wanted: Any, heat: Any, counts: Any) -> None:
    """Count the members of each heat that are not wanted."""
    rank = 0
    for word in range(bits.shape[0]):
        left = bits[word]
        while left:
            lowest = left & (~left + np.uint64(1))
            left ^= lowest
            if not wanted[word] & lowest:
                counts[heat[rank]] += 1
            rank += 1


@kernel
def leave_kernel(bits: Any, wanted: Any, heat: Any, quota: Any, num_done: Any, last: Any,
                 slot: Any, stay: Any, free: Any) -> Any:  # fmt: skip
    """Let members leave that are not wanted, as many of each heat as its quota says.

    Those that stay have their bits set in `stay`, and a last use below zero. The places of those
    that no batch is going to want are listed in `free`; how many they are.
    """
    rank = n = 0
    for word in range(bits.shape[0]):
        left = bits[word]
        while left:
            lowest = left & (~left + np.uint64(1))
            left ^= lowest
            if wanted[word] & lowest or quota[heat[rank]] == 0:
                stay[word] |= lowest
                last[rank] = -last[rank]
            else:
                quota[heat[rank]] -= 1
                if last[rank] <= num_done:
                    free[n] = slot[rank]
                    n += 1
            rank += 1
    return n


@kernel
def carry_kernel(bits: Any, slot: Any, heat: Any, others: Any, other_slot: Any,
                 other_heat: Any) -> Any:  # fmt: skip
    """Give the members of the next window the places that they have; count those that have none.

    Seven eighths of the heat of the rows are left.
    """
    rank = other = missing = 0
    for word in range(bits.shape[0]):
        left = bits[word] | others[word]
        while left:
            lowest = left & (~left + np.uint64(1))
            left ^= lowest
            was = bits[word] & lowest != 0
            if others[word] & lowest:
                other_heat[other] = heat[rank] - (heat[rank] >> 3) if was else 0
                other_slot[other] = slot[rank] if was else -1
                missing += not was
                other += 1
            rank += was
    return missing


@kernel
def place_kernel(bits: Any, at: Any, slot: Any, slots: Any, ids: Any) -> None:
    """Give slots to the next members that have none, and list their ids, ascending.

    ``at`` is the id to go on from, and the number of members before it.
    """
    n = 0
    start, rank = at[0], at[1]
    while n < ids.shape[0]:
        if _cached(bits, start):
            if slot[rank] < 0:
                slot[rank], ids[n] = slots[n], start
                n += 1
            rank += 1
        start += 1
    at[0], at[1] = start, rank


# packs: of each batch b, ids[first[b]:first[b + 1]] ascending, of which `done[b]` is the next


@kernel
def tally_kernel(ids: Any, counts: Any, amount: Any) -> Any:
    """Count the ids of each word; the largest count of theirs."""
    most = 0
    for i in range(ids.shape[0]):
        word = ids[i] // WORD
        counts[word] += amount
        most = max(most, counts[word])
    return most


@kernel
def words_kernel(counts: Any, word: Any, most: Any) -> Any:
    """Find the word to which ids may be taken from a word on: it, and how many ids they are."""
    count = 0
    while word < counts.shape[0] and count + counts[word] <= most:
        count += counts[word]
        word += 1
    return word, count


@kernel
def regions_kernel(ids: Any, first: Any, done: Any, limit: Any, row_bytes: Any, block: Any,
                   rows: Any, offsets: Any, region: Any) -> None:  # fmt: skip
    """List the next ids of each batch, those below the limit, and the bytes where their rows go.

    A batch's region begins at a block, with what its rows before have left of one.
    """
    n = 0
    at = np.int64(0)
    for b in range(done.shape[0]):
        region[b] = at
        to = at + (done[b] - first[b]) * row_bytes % block
        while done[b] < first[b + 1] and ids[done[b]] < limit:
            rows[n], offsets[n] = ids[done[b]], to
            to += row_bytes
            done[b] += 1
            n += 1
        at = (to + block - 1) // block * block


@kernel
def blocks_kernel(first: Any, begin: Any, end: Any, row_bytes: Any, block: Any, place: Any,
                  region: Any, buffer: Any, rest: Any, at: Any, start: Any,
                  size: Any) -> Any:  # fmt: skip
    """List the blocks of each region that are whole: to which byte, from which, how many bytes.

    What the rows before have left comes from `rest`, and what these leave goes there. The last
    block of a batch is written as it is. Returns how many there are.
    """
    n = 0
    for b in range(begin.shape[0]):
        if begin[b] == end[b]:
            continue
        before = (begin[b] - first[b]) * row_bytes
        old, kept = before % block, rest[b * block : (b + 1) * block]
        buffer[region[b] : region[b] + old] = kept[:old]
        whole = old + (end[b] - begin[b]) * row_bytes
        left = whole % block
        whole -= left
        if end[b] == first[b + 1]:
            whole += block if left else 0
        else:
            kept[:left] = buffer[region[b] + whole : region[b] + whole + left]
        if whole:
            at[n], start[n], size[n] = place[b] + before - old, region[b], whole
            n += 1
    return n


@kernel
def histogram_kernel(scores: Any, bits: Any, counts: Any, sums: Any) -> None:
    """Count and add up the scores of each bin: the top bits of a float32, eight bins an octave."""
    for i in range(scores.shape[0]):
        if scores[i] > 0.0:
            bin_ = _magnitude(bits[i]) >> np.uint32(20)
            counts[bin_] += 1
            sums[bin_] += scores[i]


# uses of rows in an epoch: entry ``step * num_rows + row``


@inlined
def _hash(row: Any) -> Any:
    return np.int64(mix(np.uint64(row) + np.uint64(GAMMA)) >> np.uint64(32))


@kernel
def follow_kernel(rows: Any, done: Any, base: Any, threshold: Any, entries: Any,
                  count: Any) -> Any:  # fmt: skip
    """Enter the uses of rows from number `done` on; the rows done, and the entries then."""
    for i in range(done, rows.shape[0]):
        if _hash(rows[i]) < threshold:
            if count == entries.shape[0]:
                return i, count
            entries[count] = base + rows[i]
            count += 1
    return rows.shape[0], count


@kernel
def thin_kernel(entries: Any, count: Any, num_rows: Any, threshold: Any) -> Any:
    """Keep the entries of rows whose hash is below a threshold; how many they are."""
    n = 0
    for i in range(count):
        if _hash(entries[i] % num_rows) < threshold:
            entries[n] = entries[i]
            n += 1
    return n


@kernel
def by_row_kernel(entries: Any, num_rows: Any, order: Any) -> None:
    """Give each entry a key that sorts by row, then by number."""
    for i in range(entries.shape[0]):
        order[i] = entries[i] % num_rows * entries.shape[0] + i


@kernel
def following_kernel(order: Any, following: Any) -> None:
    """Find the next use of each entry's row, or the number of entries, from the sorted keys."""
    size = order.shape[0]
    for i in range(size):
        is_last = i + 1 == size or order[i + 1] // size != order[i] // size
        following[order[i] % size] = size if is_last else order[i + 1] % size


@kernel
def belady_kernel(entries: Any, following: Any, num_rows: Any, capacity: Any, spare: Any,
                  heap: Any, kept: Any) -> Any:  # fmt: skip
    """Count the entries whose row is not held, by Belady's rule between one step and the next.

    Entries of steps below 0 cost nothing, nor do the first uses of `spare` rows that have none.
    The heap has the next uses of rows, the farthest first; past ones sink, and are not taken out.
    """
    size = held = fetched = 0
    begin = 0
    kept[:] = False
    for i in range(entries.shape[0]):
        if following[i] < entries.shape[0]:
            kept[following[i]] = True  # for now: it is not the first use
    for i in range(entries.shape[0]):
        kept[i] = not kept[i] and entries[i] >= 0 and held < min(spare, capacity)
        if kept[i]:
            held += 1
            size = _push(heap, size, i)
    while begin < entries.shape[0]:
        step = entries[begin] // num_rows
        end = begin
        while end < entries.shape[0] and entries[end] // num_rows == step:
            held -= kept[end]
            fetched += step >= 0 and not kept[end]
            end += 1
        for i in range(begin, end):
            if following[i] == entries.shape[0]:
                continue
            kept[following[i]] = True
            held += 1
            size = _push(heap, size, following[i])
            if held > capacity:
                kept[heap[0]] = False
                held -= 1
                size = _pop(heap, size)
        begin = end
    return fetched


@inlined
def _push(heap: Any, size: Any, value: Any) -> Any:
    """Add a value to a heap with the largest on top; its size then."""
    i = size
    while i and heap[(i - 1) // 2] < value:
        heap[i] = heap[(i - 1) // 2]
        i = (i - 1) // 2
    heap[i] = value
    return size + 1


@inlined
def _pop(heap: Any, size: Any) -> Any:
    """Drop the largest; the size then."""
    size -= 1
    value, i = heap[size], 0
    while True:
        child = 2 * i + 1
        if child + 1 < size and heap[child + 1] > heap[child]:
            child += 1
        if child >= size or heap[child] <= value:
            break
        heap[i] = heap[child]
        i = child
    heap[i] = value
    return size
