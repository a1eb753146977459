"""The loops of the store: order requests, cut them into runs, read, copy, write; no GIL is held.

Letters: R rows asked. A request is an `order` of R ascending entries. With ``shift == 0`` entry i
is a row and goes to position i; else it is ``row << shift | position``. Row r lies at byte
``base + r * stride`` of the file and is `row_bytes` long, but ends before byte `end`. A read costs
as much as `gap` bytes streamed, so that smaller gaps between rows are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.numpy_support import carray

from gnnx.threads import inlined, kernel

BLOCK = 4096  # direct I/O wants offsets, sizes and buffers in multiples of the device's block

TURN_BYTES = 1 << 20  # that a reader moves for a request before it looks after others
LINE = 64  # of the processor's caches, in bytes

# state of a request, shared by its readers
TICKET, STOP = 0, 1
# result of one reader's work
CHUNKS, READS, BYTES, ERRNO, OFFSET, EXPECTED, FOUND = range(7)

_EINTR, _ENOSPC = 4, 28

# by name, not by address, so that compiled kernels can be kept on disk
_pread: Any = types.ExternalFunction(
    "pread", types.int64(types.int32, types.voidptr, types.uint64, types.int64)
)
_pwrite: Any = types.ExternalFunction(
    "pwrite", types.int64(types.int32, types.voidptr, types.uint64, types.int64)
)
_memcpy: Any = types.ExternalFunction(
    "memcpy", types.voidptr(types.voidptr, types.voidptr, types.uint64)
)
_errno_location: Any = types.ExternalFunction("__errno_location", types.CPointer(types.int32)())


@intrinsic
def _pointer_to(_context: Any, address: Any) -> Any:
    """Address as a pointer that libc takes."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(address), codegen


@intrinsic
def _atomic_add(_context: Any, address: Any, amount: Any) -> Any:
    """Add to the int64 at an address, atomically; its value before."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], args[1].type.as_pointer())
        return builder.atomic_rmw("add", pointer, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def _stream_bytes(_context: Any, to: Any, source: Any) -> Any:
    """Copy `LINE` bytes to an address that is a multiple of `LINE`, past the caches."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        line = ir.VectorType(ir.IntType(32), LINE // 4).as_pointer()
        target, source = (builder.inttoptr(address, line) for address in args)
        store = builder.store(builder.load(source, align=1), target, align=LINE)
        once = builder.module.add_metadata([ir.IntType(32)(1)])
        store.set_metadata("nontemporal", once)
        return _context.get_dummy_value()

    return types.none(types.int64, types.int64), codegen


@intrinsic
def _fence_stores(_context: Any) -> Any:
    """Let no other thread see what comes after before what was streamed."""

    def codegen(_context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        builder.fence("seq_cst")
        return _context.get_dummy_value()

    return types.none(), codegen


_pointer: Any = _pointer_to
_fetch_add: Any = _atomic_add
_stream_line: Any = _stream_bytes
fence: Any = _fence_stores


@inlined
def copy_row(to: Any, source: Any, size: Any) -> None:
    """Copy a row to its slot; whole lines past the caches, since slots are far apart and many.

    A plain store reads the line first: 115 ns a row of 512 bytes to random slots, beside 36 ns
    (benchmarks/moving.py).
    """
    if (to | size) % LINE:
        _memcpy(_pointer(to), _pointer(source), np.uint64(size))
        return
    for at in range(0, size, LINE):
        _stream_line(to + at, source + at)


@kernel
def check_spans(start: Any, degree: Any, size: Any) -> Any:
    """Give the place of the first span that is not inside ``range(size)``, or -1."""
    for i in range(len(start)):
        if start[i] < 0 or degree[i] < 0 or start[i] > size - degree[i]:
            return i
    return -1


@kernel
def check_pointers(indptr: Any, size: Any) -> Any:
    """Give the first row whose pointers descend or leave ``range(size)``, or -1."""
    for i in range(len(indptr) - 1):
        if not 0 <= indptr[i] <= indptr[i + 1] <= size:
            return i
    return -1


@kernel
def check_ids(ids: Any, size: Any) -> Any:
    """Position of the first id outside [0, size), or -1; and whether the ids ascend."""
    ascending = True
    last = np.int64(0)
    for i in range(ids.shape[0]):
        if ids[i] < 0 or ids[i] >= size:
            return i, ascending
        ascending = ascending and ids[i] >= last
        last = ids[i]
    return -1, ascending


@kernel
def sort_rows(rows: Any, shift: Any, row_bits: Any, order: Any, scratch: Any) -> None:
    """Fill `order` with ``row << shift | position``, ascending within blocks of scratch's length.

    A radix sort from the lowest digit of the row up, 11 bits a pass.
    """
    count = np.empty(2048, np.int64)
    block = scratch.shape[0]
    for begin in range(0, rows.shape[0], block):
        size = min(block, rows.shape[0] - begin)
        source, target = order[begin : begin + size], scratch[:size]
        for i in range(size):
            source[i] = (rows[begin + i] << shift) | (begin + i)
        for digit in range(0, row_bits, 11):
            low = shift + digit
            count[:] = 0
            for i in range(size):
                count[(source[i] >> low) & 2047] += 1
            total = np.int64(0)
            for d in range(2048):
                here = count[d]
                count[d] = total
                total += here
            for i in range(size):
                d = (source[i] >> low) & 2047
                target[count[d]] = source[i]
                count[d] += 1
            source, target = target, source
        if (row_bits + 10) // 11 % 2:  # an odd number of passes ends in scratch
            order[begin : begin + size] = scratch[:size]


@inlined
def _run(order: Any, i: Any, stop: Any, shift: Any, base: Any, stride: Any, row_bytes: Any,
         end: Any, gap: Any, largest: Any) -> Any:  # fmt: skip
    """Find the run that begins with entry i: entries :j, blocks [low, high), data up to `last`."""
    first = base + (order[i] >> shift) * stride
    low = first // BLOCK * BLOCK
    last = min(first + row_bytes, end)
    j = i + 1
    while j < stop:
        begin = base + (order[j] >> shift) * stride
        reach = min(begin + row_bytes, end)
        high = (last + BLOCK - 1) // BLOCK * BLOCK
        if begin < first or begin > high + gap:
            break
        if (reach + BLOCK - 1) // BLOCK * BLOCK - low > largest:
            break
        last = max(last, reach)
        j += 1
    return j, low, (last + BLOCK - 1) // BLOCK * BLOCK, last


@kernel
def cut(order: Any, shift: Any, base: Any, stride: Any, row_bytes: Any, end: Any, gap: Any,
        smallest: Any, largest: Any, num_readers: Any, bounds: Any) -> Any:  # fmt: skip
    """Cut a request into chunks of whole runs of about equal cost, so that readers end together.

    Chunk c is the entries ``bounds[c]:bounds[c + 1]``. Returns the number of chunks, and the
    largest run in bytes: less than `largest` where the request would else keep few readers busy.
    """
    size = order.shape[0]
    cost = 0
    i = 0
    while i < size:
        i, low, high, _ = _run(order, i, size, shift, base, stride, row_bytes, end, gap, largest)
        cost += high - low + gap
    run = cost // (2 * num_readers) // BLOCK * BLOCK
    run = min(largest, max(smallest, run))
    share = cost // (bounds.shape[0] - 1) + 1
    num_chunks = 0
    bounds[0] = 0
    cost = 0
    i = 0
    while i < size:
        i, low, high, _ = _run(order, i, size, shift, base, stride, row_bytes, end, gap, run)
        cost += high - low + gap
        if cost >= share and num_chunks < bounds.shape[0] - 2:
            num_chunks += 1
            bounds[num_chunks] = i
            cost = 0
    if bounds[num_chunks] < size:
        num_chunks += 1
        bounds[num_chunks] = size
    return num_chunks, run


@inlined
def _read(fd: Any, buffer: Any, size: Any, at: Any, need: Any) -> Any:
    """Read `size` bytes, of which at least `need` must come: bytes that came, or -errno."""
    got = np.int64(0)
    while True:
        more = _pread(np.int32(fd), _pointer(buffer + got), np.uint64(size - got), at + got)
        if more < 0:
            error = carray(_errno_location(), (1,))[0]
            if error == _EINTR:
                continue
            return -np.int64(error)
        reached = got + more
        whole = reached // BLOCK * BLOCK  # direct I/O goes on at a block
        if reached >= need or whole == got:
            return reached
        got = whole


@kernel
def read_chunks(fd: Any, order: Any, shift: Any, base: Any, stride: Any, row_bytes: Any, end: Any,
                gap: Any, largest: Any, bounds: Any, slots: Any, slot_bytes: Any, out: Any,
                state: Any, num_jobs: Any, buffer: Any, capacity: Any,
                result: Any) -> None:  # fmt: skip
    """One reader's work: take chunks, read their runs, copy rows to their slots.

    Until no chunk is left, or after `TURN_BYTES`, a read counting `gap` of them as well, where
    other requests wait (``num_jobs[0] > 1``). `out` and
    `buffer` are addresses, `capacity` is the buffer's size. A row larger than the buffer is read in
    several steps. `slots` is empty where the position is the slot; slot s begins at byte
    ``s * slot_bytes`` of `out`. A failure goes to `result` and stops the readers of the request.
    """
    mask = (np.int64(1) << shift) - 1
    turn = 0
    while turn < TURN_BYTES or num_jobs[0] < 2:
        chunk = _fetch_add(state.ctypes.data + 8 * TICKET, np.int64(1))
        if chunk >= bounds.shape[0] - 1 or state[STOP] != 0:
            return
        i = bounds[chunk]
        while i < bounds[chunk + 1]:
            j, low, high, last = _run(
                order, i, bounds[chunk + 1], shift, base, stride, row_bytes, end, gap, largest
            )
            while low < high:
                size = min(capacity, high - low)
                need = min(low + size, last) - low
                got = _read(fd, buffer, size, low, need)
                if got < need:
                    result[ERRNO] = -got if got < 0 else 0
                    result[OFFSET], result[EXPECTED], result[FOUND] = low, need, max(got, 0)
                    state[STOP] = 1
                    return
                result[READS] += 1
                result[BYTES] += got
                turn += got + gap
                for k in range(i, j):
                    row = base + (order[k] >> shift) * stride
                    begin = max(low, row)
                    stop = min(low + need, row + row_bytes)
                    if begin < stop:
                        position = k if shift == 0 else order[k] & mask
                        slot = position if slots.shape[0] == 0 else slots[position]
                        to = out + slot * slot_bytes + (begin - row)
                        copy_row(to, buffer + (begin - low), stop - begin)
                low += size
            i = j
        fence()
        result[CHUNKS] += 1


@kernel
def write_chunks(fd: Any, at: Any, address: Any, size: Any, state: Any, num_jobs: Any, _buffer: Any,
                 _capacity: Any, result: Any) -> None:  # fmt: skip
    """One thread's work: take chunks, and write `size` bytes at an address to `at` in the file.

    As `read_chunks` otherwise.
    """
    turn = 0
    while turn < TURN_BYTES or num_jobs[0] < 2:
        chunk = _fetch_add(state.ctypes.data + 8 * TICKET, np.int64(1))
        if chunk >= at.shape[0] or state[STOP] != 0:
            return
        turn += size[chunk]
        done = np.int64(0)
        while done < size[chunk]:
            more = _pwrite(
                np.int32(fd), _pointer(address[chunk] + done), np.uint64(size[chunk] - done),
                at[chunk] + done,
            )  # fmt: skip
            if more < 0 and carray(_errno_location(), (1,))[0] == _EINTR:
                continue
            if more <= 0:
                result[ERRNO] = carray(_errno_location(), (1,))[0] if more < 0 else _ENOSPC
                result[OFFSET], result[EXPECTED] = at[chunk] + done, size[chunk] - done
                state[STOP] = 1
                return
            done += more
        result[CHUNKS] += 1


@kernel
def spans(indptr: Any, nodes: Any, start: Any, degree: Any) -> None:
    """Where the rows of nodes begin in a resident CSR, and how long they are."""
    for i in range(nodes.shape[0]):
        start[i] = indptr[nodes[i]]
        degree[i] = indptr[nodes[i] + 1] - indptr[nodes[i]]


@kernel
def gather(values: Any, positions: Any, out: Any) -> None:
    """``out[i] = values[positions[i]]``."""
    for i in range(positions.shape[0]):
        out[i] = values[positions[i]]


@kernel
def count_absent(positions: Any, page_entries: Any, slot: Any) -> Any:
    """Count the positions whose pages are not kept: ``slot[page] < 0``."""
    count = 0
    for i in range(positions.shape[0]):
        count += slot[positions[i] // page_entries] < 0
    return count


@kernel
def gather_pages(positions: Any, page_entries: Any, slot: Any, pages: Any, out: Any, absent: Any,
                 places: Any) -> None:  # fmt: skip
    """``out[i] = values[positions[i]]`` for pages that are kept; list the others with their i."""
    n = 0
    for i in range(positions.shape[0]):
        page = positions[i] // page_entries
        if slot[page] >= 0:
            out[i] = pages[slot[page], positions[i] - page * page_entries]
        else:
            absent[n], places[n] = positions[i], i
            n += 1


@kernel
def stage_pages(wanted: Any, slot: Any, pages: Any, buffer: Any, absent: Any) -> Any:
    """Copy the wanted pages that are kept to their places in a buffer; list and count the others.

    `slot` is empty where no pages are kept.
    """
    n = 0
    for i in range(buffer.shape[0]):
        if not wanted[i]:
            continue
        if slot.shape[0] > 0 and slot[i] >= 0:
            buffer[i] = pages[slot[i]]
        else:
            absent[n] = i
            n += 1
    return n


@kernel
def set_bits(ids: Any, bits: Any) -> None:
    """Set the bit of each id in a bitmap of bytes."""
    for i in range(ids.shape[0]):
        bits[ids[i] >> 3] |= np.uint8(1) << np.uint8(ids[i] & 7)


@kernel
def get_bits(bits: Any, ids: Any, out: Any) -> None:
    """Whether the bit of each id is set."""
    for i in range(ids.shape[0]):
        out[i] = (bits[ids[i] >> 3] >> np.uint8(ids[i] & 7)) & np.uint8(1) != 0
