"""Loops over keys: dealt to buckets by their hashes, kept once each, looked up in a table.

A key is a string of bytes. Records stand one after another: four bytes of length, the key's bytes
and, of keys that have ids, eight of the id. The length `MISSING` is that of no key.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gnnx.threads import inlined, kernel

BUCKETS = 256
SPARE = 24  # bytes of a slot that a record has to leave: its own beside the key, and of a copy
MISSING = np.int64(0xFFFFFFFF)
_SHIFT = np.uint64(56)  # to the bits of a hash that say which bucket
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # 2^64 divided by the golden ratio (Knuth, TAOCP 3, 6.4)
_FOLD = np.uint64(32)


def _place(context: Any, builder: Any, kind: Any, array: Any, index: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), ir.IntType(64).as_pointer())


@intrinsic
def _load_word(_context: Any, array: Any, _index: Any) -> Any:
    """Eight bytes from ``array[index]`` on as a number, in one load."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_place(context, builder, signature.args[0], *args), align=1)

    return types.uint64(array, types.int64), codegen


@intrinsic
def _store_word(_context: Any, array: Any, _index: Any, _word: Any) -> Any:
    """Write a number to the eight bytes from ``array[index]`` on."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _place(context, builder, signature.args[0], *args[:2])
        builder.store(args[2], place, align=1)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint64), codegen


_load: Any = _load_word
_store: Any = _store_word


@inlined
def _word(data: Any, at: Any, size: Any) -> Any:
    """Up to eight bytes as a number, little end first."""
    if at + 8 <= len(data):
        word = _load(data, at)
        return word if size == 8 else word & ((np.uint64(1) << np.uint64(8 * size)) - np.uint64(1))
    word = np.uint64(0)
    for i in range(size):
        word |= np.uint64(data[at + i]) << np.uint64(8 * i)
    return word


@kernel
def _hash(data: Any, begin: Any, end: Any) -> Any:
    found, at = np.uint64(end - begin), begin
    while at < end:
        found = (found ^ _word(data, at, min(8, end - at))) * _FACTOR
        found ^= found >> _FOLD
        at += 8
    return found * _FACTOR


@inlined
def _copy(data: Any, begin: Any, end: Any, out: Any, to: Any) -> None:
    """Copy bytes; up to seven of `out` after them are overwritten."""
    at = begin
    while at < end:
        _store(out, to + at - begin, _word(data, at, min(8, end - at)))
        at += 8


@kernel
def deal(data: Any, bounds: Any, present: Any, ids: Any, begin: Any, buckets: Any, slots: Any,
         used: Any) -> Any:  # fmt: skip
    """Append the records of keys `begin` and on to the slots of their buckets.

    Key i has the bytes bounds[i] to bounds[i + 1] of `data`; `ids` is empty where keys have none.
    Which bucket each goes to is told in `buckets`. Returns the first key whose slot is too full for
    it, or their number.
    """
    with_ids, size = len(ids) > 0, slots.shape[1]
    for i in range(begin, len(buckets)):
        first, last = bounds[i], bounds[i + 1]
        if not present[i]:
            last = first
        length = last - first
        bucket = np.int64(_hash(data, first, last) >> _SHIFT)
        buckets[i] = bucket
        if used[bucket] + length + SPARE > size:
            return i
        at = bucket * size + used[bucket]
        _store(slots, at, np.uint64(length if present[i] else MISSING))
        _copy(data, first, last, slots, at + 4)
        if with_ids:
            _store(slots, at + 4 + length, np.uint64(ids[i]))
        used[bucket] += 4 + length + 8 * with_ids
    return len(buckets)


@inlined
def _equal(data: Any, begin: Any, others: Any, at: Any, size: Any) -> Any:
    for i in range(0, size, 8):
        rest = min(8, size - i)
        if _word(data, begin + i, rest) != _word(others, at + i, rest):
            return False
    return True


@kernel
def whole_records(records: Any, extra: Any) -> Any:
    """Bytes of the records that are there as a whole; `extra` follow each key."""
    at: Any = 0
    while at + 4 <= len(records):
        size = np.int64(_word(records, at, 4))
        after = at + 4 + (0 if size == MISSING else size) + extra
        if after > len(records):
            break
        at = after
    return at


@kernel
def collect(records: Any, begin: Any, table: Any, kept: Any, ends: Any, count: Any) -> Any:
    """Keep each key once: its bytes after those of the `count` that are there.

    Key k ends at ends[k + 1]; the table, of a power of two places, half of them empty, has k + 1.
    Stops where there is no room for a key more. Returns (number of keys, byte to go on from).
    """
    mask = np.int64(len(table) - 1)
    at = begin
    while at < len(records):
        size = np.int64(_word(records, at, 4))
        if size == MISSING:
            at += 4
            continue
        first = at + 4
        place = np.int64(_hash(records, first, first + size)) & mask
        while table[place] != 0:
            key = np.int64(table[place]) - 1
            if ends[key + 1] - ends[key] == size and _equal(records, first, kept, ends[key], size):
                break
            place = (place + 1) & mask
        if table[place] == 0:
            if 2 * (count + 1) > len(table) or ends[count] + size + 8 > len(kept):
                return count, at
            _copy(records, first, first + size, kept, ends[count])
            count += 1
            ends[count] = ends[count - 1] + size
            table[place] = count
        at = first + size
    return count, at


@kernel
def rebuild(kept: Any, ends: Any, count: Any, table: Any) -> None:
    """Enter keys that differ into an empty table."""
    mask = np.int64(len(table) - 1)
    for key in range(count):
        place = np.int64(_hash(kept, ends[key], ends[key + 1])) & mask
        while table[place] != 0:
            place = (place + 1) & mask
        table[place] = key + 1


@kernel
def enter(records: Any, table: Any) -> None:
    """Enter records with ids, whose keys differ, into an empty table, by their first byte + 1."""
    mask = np.int64(len(table) - 1)
    at: Any = 0
    while at < len(records):
        size = np.int64(_word(records, at, 4))
        place = np.int64(_hash(records, at + 4, at + 4 + size)) & mask
        while table[place] != 0:
            place = (place + 1) & mask
        table[place] = at + 1
        at += 4 + size + 8


@kernel
def look_up(records: Any, known: Any, table: Any, ids: Any) -> Any:
    """Ids of the keys of records, -1 where they are not known; returns their number."""
    mask = np.int64(len(table) - 1)
    count: Any = 0
    at: Any = 0
    while at < len(records):
        size, found = np.int64(_word(records, at, 4)), np.int64(-1)
        first = at + 4
        if size == MISSING:
            size = np.int64(0)
        else:
            place = np.int64(_hash(records, first, first + size)) & mask
            while table[place] != 0:
                other = np.int64(table[place]) - 1
                if np.int64(_word(known, other, 4)) == size and _equal(
                    records, first, known, other + 4, size
                ):
                    found = np.int64(_word(known, other + 4 + size, 8))
                    break
                place = (place + 1) & mask
        ids[count] = found
        count += 1
        at = first + size
    return count


@kernel
def count_buckets(buckets: Any, counts: Any) -> None:
    """Count the keys of each bucket."""
    for i in range(len(buckets)):
        counts[buckets[i]] += 1


@kernel
def put_back(buckets: Any, ids: Any, cursor: Any, out: Any) -> None:
    """Ids in the order of the keys, from those of each bucket, which begin at its cursor."""
    for i in range(len(buckets)):
        bucket = buckets[i]
        out[i] = ids[cursor[bucket]]
        cursor[bucket] += 1
