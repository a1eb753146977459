"""Loops over edges that carry values: from the order of the input to that of the CSR.

Letters: N nodes, E edges, K entries of a range of rows. An entry is 2·source, plus 1 for a
candidate: one that is wanted only where it is absent (a reverse, a loop).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnx.threads import kernel

FIRST, ADD, LEAST = 0, 1, 2
"""What becomes of the values of entries that are merged."""
_SHORT_ROW = 32


@kernel
def collect(
    piece: Any,
    first_row: Any,
    mirror: Any,
    drop_loops: Any,
    num_rows: Any,
    begin: Any,
    rows: Any,
    entries: Any,
    origin: Any,
    at: Any,
) -> Any:
    """Take the entries of a range of rows from an EdgePiece, from edge `begin` on.

    `rows` gets the row within the range, `origin` the edge of the piece. Returns (end of `rows`
    that is used, edge to go on from): it stops where `rows` is full.
    """
    for i in range(begin, piece.num_edges):
        if at + 2 > len(rows):
            return at, i
        src = np.int64(piece.ids[piece.src_at + i * piece.step])
        dst = np.int64(piece.ids[piece.dst_at + i * piece.step])
        row = dst - first_row
        if 0 <= row < num_rows and not (drop_loops and src == dst):
            rows[at], entries[at], origin[at] = row, src << 1, i
            at += 1
        row = src - first_row
        if mirror and src != dst and 0 <= row < num_rows:
            rows[at], entries[at], origin[at] = row, dst << 1 | 1, i
            at += 1
    return at, piece.num_edges


@kernel
def collect_loops(first_row: Any, num_rows: Any, rows: Any, entries: Any, at: Any) -> None:
    """Give each row of the range a loop, as a candidate."""
    for row in range(num_rows):
        rows[at + row], entries[at + row] = row, (first_row + row) << 1 | 1


@kernel
def place(rows: Any, cursor: Any, order: Any) -> None:
    """Order entries by row, equal ones as they came; `cursor` goes from starts to ends of rows."""
    for i in range(len(rows)):
        order[cursor[rows[i]]] = i
        cursor[rows[i]] += 1


@kernel
def sort_rows(order: Any, entries: Any, ends: Any, begin: Any, end: Any) -> None:
    """Sort rows [begin, end) of `order` by entry, equal ones as they came."""
    for row in range(begin, end):
        first, last = ends[row - 1] if row > 0 else 0, ends[row]
        if last - first > _SHORT_ROW:
            part = order[first:last].copy()
            keys = np.empty(len(part), np.int64)
            for i in range(len(part)):
                keys[i] = entries[part[i]]
            order[first:last] = part[np.argsort(keys, kind="mergesort")]
            continue
        for i in range(first + 1, last):
            one, j = order[i], i
            while j > first and entries[order[j - 1]] > entries[one]:
                order[j] = order[j - 1]
                j -= 1
            order[j] = one


@kernel
def assign_slots(order: Any, entries: Any, ends: Any, merge: Any, together: Any, slot: Any) -> Any:
    """Place of each sorted entry among those that are kept, -1 where it is left out.

    As the rows are packed: a candidate goes where its source is there already, and so does a
    parallel edge with `merge`; `together` gives it the place of the one before instead. `ends`
    become those of the kept. Returns their number.
    """
    begin = kept = 0
    for row in range(len(ends)):
        last: Any = -1
        by_candidate = False
        for i in range(begin, ends[row]):
            entry = entries[order[i]]
            src, candidate = entry >> 1, entry & 1 == 1
            slot[i] = -1
            if src == last and (candidate or merge):
                if together and candidate == by_candidate:
                    slot[i] = kept - 1
                continue
            slot[i] = kept
            kept += 1
            last, by_candidate = src, candidate
        begin, ends[row] = ends[row], kept
    return kept


@kernel
def deposit(order: Any, slot: Any, values: Any, how: Any, out: Any) -> None:
    """Move rows of values to their places; the first of a place is copied, others as `how`."""
    before: Any = -1
    for i in range(len(order)):
        at = slot[i]
        if at < 0:
            continue
        for j in range(values.shape[1]):
            value = values[order[i], j]
            if at != before:
                out[at, j] = value
            elif how == ADD:
                out[at, j] += value
            elif how == LEAST and value < out[at, j]:
                out[at, j] = value
        before = at


@kernel
def sum_rows(values: Any, ends: Any, out: Any) -> None:
    """Sum of each row, added up in double precision."""
    begin = 0
    for row in range(len(ends)):
        total: Any = 0.0
        for i in range(begin, ends[row]):
            total += values[i, 0]
        begin, out[row] = ends[row], total
