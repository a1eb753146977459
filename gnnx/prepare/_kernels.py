"""Loops of preparation: parsing text, building rows of in-edges, checking features.

Letters: N nodes, E edges, F feature width. Ids have been checked before they index anything.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnx.threads import inlined, kernel

SPACE, TAB, NEWLINE, RETURN = 32, 9, 10, 13
MINUS, PLUS, POINT, ZERO = 45, 43, 46, 48
WHITESPACE = 0
"""As `separator`: runs of spaces and tabs."""
POWERS = np.array([float(f"1e{i}") for i in range(61)])
NOT_AN_INTEGER, TOO_FEW_COLUMNS, TOO_MANY_COLUMNS, OUTSIDE = 1, 2, 3, 4


@inlined
def _is_blank(char: Any, separator: Any) -> Any:
    return char in (SPACE, RETURN) or (char == TAB and separator != TAB)


@inlined
def _is_digit(char: Any) -> Any:
    return char >= ZERO and char <= ZERO + 9


@kernel
def _skip_blanks(text: Any, at: Any, separator: Any) -> Any:
    while _is_blank(text[at], separator):
        at += 1
    return at


@kernel
def _field_ends(text: Any, after: Any, at: Any, separator: Any) -> Any:
    """Whether a field whose characters end at `after`, and its blanks at `at`, ends there."""
    if text[at] == NEWLINE:
        return True
    return after < at if separator == WHITESPACE else text[at] == separator


@kernel
def _next_line(text: Any, at: Any) -> Any:
    while text[at] != NEWLINE:
        at += 1
    return at + 1


@kernel
def end_of_line(text: Any) -> Any:
    """Byte after the first newline, which has to be there."""
    return _next_line(text, 0)


@kernel
def end_of_lines(text: Any) -> Any:
    """Byte after the last newline, 0 where there is none."""
    at = len(text)
    while at > 0 and text[at - 1] != NEWLINE:
        at -= 1
    return at


@kernel
def parse_ids(
    text: Any, begin: Any, separator: Any, comment: Any, limit: Any, out: Any, state: Any
) -> Any:
    """Leading columns of whole lines as integers in [0, limit), until `out` is full.

    `text` ends in a newline. `state` is (lines taken, fault, byte of the fault); a fault ends the
    work at its line. Returns (rows, byte after the last line taken).
    """
    row, at = 0, begin
    while at < len(text) and row < len(out):
        state[0] += 1
        at = _skip_blanks(text, at, separator)
        if text[at] != NEWLINE and text[at] != comment:
            for column in range(out.shape[1]):
                state[2] = at = _skip_blanks(text, at, separator)
                if text[at] == NEWLINE:
                    state[1] = TOO_FEW_COLUMNS
                    return row, at
                negative = text[at] == MINUS
                at += negative
                first, value = at, np.int64(0)
                while _is_digit(text[at]):
                    value = value * 10 + np.int64(text[at] - ZERO)
                    at += 1
                after, at = at, _skip_blanks(text, at, separator)
                # 18 digits always fit 63 bits
                if not (0 < after - first <= 18 and _field_ends(text, after, at, separator)):
                    state[1] = NOT_AN_INTEGER
                    return row, at
                value = -value if negative else value
                if value < 0 or value >= limit:
                    state[1] = OUTSIDE
                    return row, at
                out[row, column] = value
                at += text[at] != NEWLINE and separator != WHITESPACE
            row += 1
        at = _next_line(text, at)
    return row, at


@kernel
def _scan_number(text: Any, at: Any) -> Any:
    """Decimal number as (whether it is one of 1 to 19 digits, value, power of ten, next byte)."""
    value: Any = np.uint64(0)
    digits: Any = 0
    some = fraction = False
    power: Any = 0
    while _is_digit(text[at]) or (text[at] == POINT and not fraction):
        if text[at] == POINT:
            fraction = True
        else:
            some = True
            value = value * np.uint64(10) + np.uint64(text[at] - ZERO)
            digits += digits > 0 or value > 0
            power -= fraction
        at += 1
    if some and (text[at] == 101 or text[at] == 69):
        at += 1
        sign = 44 - np.int64(text[at])  # 1 for +, -1 for -
        signed = sign == 1 or sign == -1
        at += signed
        some = _is_digit(text[at])
        exponent: Any = 0
        while _is_digit(text[at]):
            exponent = min(exponent * 10 + np.int64(text[at] - ZERO), 9999)
            at += 1
        power += sign * exponent if signed else exponent
    return some and digits <= 19, value, power, at


@kernel
def _scale(value: Any, power: Any, powers: Any, single: Any) -> Any:
    """value·10^power as (whether it is the nearest number, number).

    Exact in one operation where value < 2^53 and |power| <= 22 (Clinger, "How to read floating
    point numbers accurately", 1990). Else it is wrong by less than 2^-50, which does for float32
    where both ends of that interval round alike.
    """
    size = abs(power)
    if value == 0 or size >= len(powers):
        return value == 0, 0.0
    number = np.float64(value)
    number = number * powers[size] if power >= 0 else number / powers[size]
    if value < np.uint64(1 << 53) and size <= 22:
        return True, number
    low, high = np.float32(number * (1 - 2.0**-50)), np.float32(number * (1 + 2.0**-50))
    return single and low == high and 1e-37 < number < 1e38, number


@kernel
def parse_numbers(
    text: Any, begin: Any, separator: Any, comment: Any, powers: Any, out: Any, state: Any, odd: Any
) -> Any:
    """Every column of whole lines as numbers, until `out` is full or `odd` may be.

    Fields that are no plain decimal numbers, such as "nan", go to `odd` as (line, row, column,
    first byte, last byte + 1) for the caller to read. `text` ends in a newline. `state` is (line
    number, rows of `odd`, error, columns found); an error ends the work at its line. Returns
    (rows, byte after the last line taken).
    """
    num_columns, single = out.shape[1], out.itemsize == 4
    row, at = 0, begin
    while at < len(text) and row < len(out) and state[1] + num_columns <= len(odd):
        state[0] += 1
        at = _skip_blanks(text, at, separator)
        if text[at] != NEWLINE and text[at] != comment:
            column, more = 0, True
            while more:
                first = at = _skip_blanks(text, at, separator)
                at += text[at] == MINUS or text[at] == PLUS
                plain, value, power, after = _scan_number(text, at)
                at = _skip_blanks(text, after, separator)
                plain = plain and _field_ends(text, after, at, separator)
                exact, number = _scale(value, power, powers, single)
                if not (plain and exact):
                    number = 0.0
                    while not _field_ends(text, after, at, separator):
                        after = at = at + 1
                        at = _skip_blanks(text, at, separator)
                    if column < num_columns:
                        odd[state[1]] = state[0], row, column, first, at
                        state[1] += 1
                if column < num_columns:
                    out[row, column] = -number if text[first] == MINUS else number
                column += 1
                more = text[at] != NEWLINE
                at += more and separator != WHITESPACE
            if column != num_columns:
                state[2] = TOO_FEW_COLUMNS if column < num_columns else TOO_MANY_COLUMNS
                state[3] = column
                return row, at
            row += 1
        at = _next_line(text, at)
    return row, at


@kernel
def expand_rows(indptr: Any, first_row: Any, begin: Any, rows: Any) -> None:
    """Row of each entry begin, begin + 1, … of a CSR whose rows from `first_row` on are given."""
    row = np.searchsorted(indptr, begin, side="right") - 1
    for i in range(len(rows)):
        while indptr[row + 1] <= begin + i:
            row += 1
        rows[i] = first_row + row


@inlined
def _mark(bits: Any, node: Any) -> None:
    bits[node >> 3] |= np.uint8(1 << (node & 7))


@kernel
def count_marks(bits: Any) -> Any:
    """Nodes that are marked."""
    count = 0
    for node in range(len(bits) * 8):
        count += bits[node >> 3] >> (node & 7) & 1
    return count


@kernel
def list_marks(bits: Any, node: Any, num_nodes: Any, out: Any) -> Any:
    """List marked nodes from `node` on, until `out` is full; returns (count, next node)."""
    count = 0
    while node < num_nodes and count < len(out):
        if bits[node >> 3] >> (node & 7) & 1:
            out[count] = node
            count += 1
        node += 1
    return count, node


@kernel
def _edge(piece: Any, i: Any) -> Any:
    src = np.int64(piece.ids[piece.src_at + i * piece.step])
    return src, np.int64(piece.ids[piece.dst_at + i * piece.step])


@kernel
def count_entries(
    piece: Any,
    num_nodes: Any,
    mirror: Any,
    drop_loops: Any,
    shift: Any,
    counts: Any,
    touched: Any,
    looped: Any,
) -> Any:
    """Check the ids of an EdgePiece, and count the entries of each 2^shift rows.

    Marks the nodes of any edge and those of a loop. Returns (number of edges, number of loops), or
    (the first edge with an id outside [0, N), 0).
    """
    num_loops = 0
    for i in range(piece.num_edges):
        src, dst = _edge(piece, i)
        if src < 0 or src >= num_nodes or dst < 0 or dst >= num_nodes:
            return i, 0
        _mark(touched, src)
        if src == dst:
            _mark(looped, src)
            num_loops += 1
            counts[dst >> shift] += not drop_loops
        else:
            _mark(touched, dst)
            counts[dst >> shift] += 1
            if mirror:
                counts[src >> shift] += 1
    return piece.num_edges, num_loops


@kernel
def distribute(
    piece: Any,
    begin: Any,
    end: Any,
    num_nodes: Any,
    mirror: Any,
    drop_loops: Any,
    shift: Any,
    touched: Any,
    looped: Any,
    slots: Any,
    used: Any,
    num_loops: Any,
) -> Any:
    """Check edges [begin, end) of a piece, and put each into the slots of its buckets.

    Marks the sources of edges and the nodes of loops, which are added to `num_loops`. Stops after
    an edge that fills a slot, or at one with an id outside [0, N); returns the edge to go on from.
    """
    size = slots.shape[1]
    for i in range(begin, end):
        src, dst = _edge(piece, i)
        if src < 0 or src >= num_nodes or dst < 0 or dst >= num_nodes:
            return i
        _mark(touched, src)
        if src == dst:
            _mark(looped, src)
            num_loops[0] += 1
            if drop_loops:
                continue
        bucket = dst >> shift
        at = used[bucket]
        slots[bucket, at, 0], slots[bucket, at, 1] = src, dst
        used[bucket] = at + 1
        full = at + 1 == size
        if mirror and src >> shift != bucket:
            bucket = src >> shift
            at = used[bucket]
            slots[bucket, at, 0], slots[bucket, at, 1] = src, dst
            used[bucket] = at + 1
            full = full or at + 1 == size
        if full:
            return i + 1
    return end


@kernel
def count_isolated(counts: Any, least: Any, first_row: Any, touched: Any) -> Any:
    """Rows of `least` entries, the fewest there can be, whose nodes are not marked."""
    count = 0
    for i in range(len(counts)):
        node = first_row + i
        count += counts[i] == least and not touched[node >> 3] >> (node & 7) & 1
    return count


@kernel
def count_rows(
    piece: Any,
    first_row: Any,
    mirror: Any,
    drop_loops: Any,
    counts: Any,
) -> None:
    """Entries of each row of a range, as `count_entries` counts them."""
    for i in range(piece.num_edges):
        src, dst = _edge(piece, i)
        if src != dst or not drop_loops:
            row = dst - first_row
            if 0 <= row < len(counts):
                counts[row] += 1
        if mirror and src != dst:
            row = src - first_row
            if 0 <= row < len(counts):
                counts[row] += 1


@kernel
def end_of_range(
    counts: Any, begin: Any, bucket_rows: Any, row_bytes: Any, entry_bytes: Any, capacity: Any
) -> Any:
    """End of the longest range of buckets, from `begin` on, that fits; at least one bucket."""
    size, end = 0, begin
    while end < len(counts):
        size += counts[end] * entry_bytes + bucket_rows * row_bytes
        if size > capacity and end > begin:
            break
        end += 1
    return end


@kernel
def start_rows(counts: Any) -> Any:
    """Turn the lengths of rows into their starts, in place; returns their sum."""
    total = 0
    for row in range(len(counts)):
        count = counts[row]
        counts[row] = total
        total += count
    return total


@kernel
def scatter(
    piece: Any,
    first_row: Any,
    mirror: Any,
    drop_loops: Any,
    cursor: Any,
    entries: Any,
) -> None:
    """Put the sources of a range of rows where `cursor` says, and advance it.

    An entry is 2·source, plus 1 for a candidate: one that is wanted only where it is absent.
    """
    for i in range(piece.num_edges):
        src, dst = _edge(piece, i)
        if src != dst or not drop_loops:
            row = dst - first_row
            if 0 <= row < len(cursor):
                entries[cursor[row]] = src << 1
                cursor[row] += 1
        if mirror and src != dst:
            row = src - first_row
            if 0 <= row < len(cursor):
                entries[cursor[row]] = dst << 1 | 1
                cursor[row] += 1


@kernel
def scatter_loops(first_row: Any, cursor: Any, entries: Any) -> None:
    """Put a loop into every row, as a candidate."""
    for row in range(len(cursor)):
        entries[cursor[row]] = (first_row + row) << 1 | 1
        cursor[row] += 1


@kernel
def sort_rows(entries: Any, ends: Any, begin: Any, end: Any) -> None:
    """Sort rows [begin, end), in place; row r ends at ends[r]."""
    for row in range(begin, end):
        first, last = ends[row - 1] if row > 0 else 0, ends[row]
        if last - first > 32:
            entries[first:last].sort()
            continue
        for i in range(first + 1, last):
            entry = entries[i]
            for j in range(first, i):  # no branch depends on the entries: none is guessed wrong
                other = entries[j]
                entries[j] = min(other, entry)
                entry = max(other, entry)
            entries[i] = entry


@kernel
def pack_rows(entries: Any, ends: Any, first_row: Any, merge: Any, offset: Any, counts: Any) -> Any:
    """Decode sorted rows and close the gaps, in place; returns the number of entries left.

    A candidate sorts after the edges of its source, so it is dropped when it meets its own source
    again. `ends` becomes the rows' ends, counted from `offset`; `counts` grows by (parallel edges,
    reverse edges added, loops added).
    """
    begin = kept = 0
    for row in range(len(ends)):
        last: Any = -1
        for i in range(begin, ends[row]):
            entry = np.int64(entries[i])
            src, candidate = entry >> 1, entry & 1
            if src == last:
                counts[0] += not candidate
                if candidate or merge:
                    continue
            elif candidate:
                counts[2 if src == first_row + row else 1] += 1
            last = src
            entries[kept] = src
            kept += 1
        begin, ends[row] = ends[row], offset + kept
    return kept


@kernel
def first_wrong_pointer(pointers: Any, last: Any, num_entries: Any) -> Any:
    """First place where pointers, after `last`, descend or pass the end; -1 where they do not."""
    for i in range(len(pointers)):
        if pointers[i] < last or pointers[i] > num_entries or (i == 0 and pointers[i] != last):
            return i
        last = pointers[i]
    return -1


@kernel
def densify(pointers: Any, columns: Any, values: Any, out: Any) -> Any:
    """Rows of a sparse matrix, whose entries begin at pointers[0], as dense ones.

    Equal columns of a row are added up. Returns the first row with a wrong column, or -1.
    """
    out[:] = 0
    for row in range(len(out)):
        for i in range(pointers[row] - pointers[0], pointers[row + 1] - pointers[0]):
            column = columns[i]
            if column < 0 or column >= out.shape[1]:
                return row
            out[row, column] += values[i]
    return -1


@kernel
def find_nonfinite(
    bits: Any, exponent: Any, zero: Any, first_row: Any, counts: Any, rows: Any, state: Any
) -> None:
    """Count NaN and infinity per column: numbers, seen as unsigned, whose `exponent` is all ones.

    `rows` receives the first rows that have one, `state[0]` their number; `zero` replaces them.
    """
    for row in range(bits.shape[0]):
        found = False
        for column in range(bits.shape[1]):
            if bits[row, column] & exponent == exponent:
                counts[column] += 1
                found = True
                if zero:
                    bits[row, column] = 0
        if found and state[0] < len(rows):
            rows[state[0]] = first_row + row
            state[0] += 1


@kernel
def read_labels(values: Any, limit: Any, out: Any) -> Any:
    """Labels as integers, -1 where they are NaN or -1; returns the first that cannot be, or -1."""
    for i in range(len(values)):
        value = values[i]
        if value != value or value == -1:
            out[i] = -1
        elif value < 0 or value >= limit or value != np.int64(value):
            return i
        else:
            out[i] = np.int64(value)
    return -1


@kernel
def mark_ids(ids: Any, bit: Any, marks: Any) -> Any:
    """Mark nodes; returns (first place of an id that is outside or was marked before, or -1)."""
    for i in range(len(ids)):
        node = np.int64(ids[i])
        if node < 0 or node >= len(marks) or marks[node] & bit:
            return i
        marks[node] |= bit
    return -1


@kernel
def mark_flags(flags: Any, none: Any, bit: Any, marks: Any) -> Any:
    """Mark the nodes whose flag is not `none`; returns their number."""
    count = 0
    for i in range(len(flags)):
        if flags[i] != none:
            marks[i] |= bit
            count += 1
    return count
