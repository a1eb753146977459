"""One mapping a tier, from which the ledger's arrays are cut."""

from __future__ import annotations

import collections
import contextlib
import mmap
import os
from typing import TYPE_CHECKING

import numpy as np

from gnnx.errors import ResourceError
from gnnx.memory.budget import Tier
from gnnx.memory.process import free_address_bytes

if TYPE_CHECKING:
    from gnnx.memory.ledger import Account

ALIGNMENT = 64  # a cache line and an AVX-512 vector; BLAS may round differently on less
PAGE = mmap.PAGESIZE
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # a name only from Python 3.13 on

HUGE_PAGE = 2 << 20
# Rows are found at random, and with pages of 4 KiB nearly each costs a walk through the page table:
# gathers take 1.2 times as long, draws of neighbours 1.3 times (docs/kernels.md).
WANT_HUGE, WANT_SMALL = getattr(mmap, "MADV_HUGEPAGE", None), getattr(mmap, "MADV_NOHUGEPAGE", None)

# Freed bytes that stay resident, as a share of the peak. A batch's buffers are freed and taken anew
# every step, a little larger or smaller, and page faults cost more than memory there; HOST's live
# long, and its resident bytes are held against the ledger's peak.
_SLACK = {Tier.DEVICE: 0.25, Tier.HOST: 0.03, Tier.DISK: 0.0}


class Slab:
    """One anonymous mapping, handed out by first fit.

    The mapping is far larger than the budget, since address space is free: fragmentation never
    fails a request that the budget allows. Freed pages stay resident ("dirty") for quick reuse, as
    long as held + dirty bytes exceed neither the limit nor the peak of held bytes by some slack.
    Huge pages are asked for where a whole one is taken, so that none brings in bytes nobody holds.
    """

    def __init__(self, account: Account) -> None:
        self.account = account
        physical = os.sysconf("SC_PHYS_PAGES") * PAGE
        address = free_address_bytes()
        if account.limit is not None:
            reach = min(account.limit, physical)
        else:  # where address space is short, half is left to others
            reach = physical if address is None else min(address // 2, physical)
        self.map = _reserve(round_up(reach, PAGE), account.tier)
        self.base = np.frombuffer(self.map, np.uint8).ctypes.data
        self._advise(WANT_SMALL, 0, len(self.map))  # some systems give huge pages to all
        self.clean = [(0, len(self.map))]
        self.dirty: list[tuple[int, int]] = []
        self.dirty_bytes = 0
        self.dead: collections.deque[tuple[int, int, str]] = collections.deque()

    def take(self, size: int, align: int) -> int:
        """Place `size` bytes, which the account has been charged with."""
        start = self._first_fit(self.dirty, size, align)
        if start is not None:
            self.dirty_bytes -= size
            return start
        self.shrink()
        start = self._first_fit(self.clean, size, align)
        if start is None:
            self.trim()
            start = self._first_fit(self.clean, size, align)
        if start is None:
            raise ResourceError(
                f"{self.account.tier.value} memory: no {size} bytes of address space in one piece",
                "Give a smaller batch, or a larger budget.",
            )
        self._advise(WANT_HUGE, start, start + size, HUGE_PAGE)
        return start

    def collect(self) -> None:
        """Book the extents that have died."""
        if not self.dead:
            return
        while self.dead:
            start, size, owner = self.dead.popleft()
            self.account.discharge(size, owner)
            self.dirty.append((start, start + size))
            self.dirty_bytes += size
        self.dirty = _merged(self.dirty)

    def shrink(self) -> None:
        """Keep held and dirty bytes together below the limit and the peak."""
        account = self.account
        most = account.peak + int(account.peak * _SLACK[account.tier])
        if account.limit is not None:
            most = min(most, account.limit)
        excess = account.held + self.dirty_bytes - most
        if excess > 0:
            self.trim(excess)

    def trim(self, num_bytes: int | None = None) -> None:
        """Give dirty pages back to the system: all, or so many bytes of the largest extents."""
        left = self.dirty_bytes if num_bytes is None else num_bytes
        kept, given = [], []
        for start, end in sorted(self.dirty, key=lambda extent: extent[0] - extent[1]):
            cut = max(start, end - round_up(left, PAGE)) if left > 0 else end
            kept += [(start, cut)] * (cut > start)
            given += [(cut, end)] * (end > cut)
            left -= end - cut
        if not given:
            return
        self.dirty, self.clean = sorted(kept), _merged(self.clean + given)
        self.dirty_bytes = sum(end - start for start, end in kept)
        for start, end in self.clean:  # merged: pages that two extents shared are whole now
            self._advise(mmap.MADV_DONTNEED, start, end)  # untouched pages cost nothing here
            self._advise(WANT_SMALL, start, end)  # else the system joins what is left to huge pages

    def _advise(self, advice: int | None, start: int, end: int, page: int = PAGE) -> None:
        """Advise the system on the whole pages in a range, where it knows the advice."""
        first = round_up(self.base + start, page) - self.base
        last = (self.base + end) // page * page - self.base
        if advice is not None and last > first:
            # a system without huge pages refuses advice about them
            with contextlib.suppress(*[OSError] * (advice != mmap.MADV_DONTNEED)):
                self.map.madvise(advice, first, last - first)

    @staticmethod
    def _first_fit(extents: list[tuple[int, int]], size: int, align: int) -> int | None:
        for i, (start, end) in enumerate(extents):
            at = round_up(start, align)
            if at + size <= end:
                pieces = ((start, at), (at + size, end))
                extents[i : i + 1] = [piece for piece in pieces if piece[0] < piece[1]]
                return at
        return None


class Lease:
    """The owner of an array's bytes: NumPy keeps it at the base of the array and of its views."""

    def __init__(self, slab: Slab, start: int, size: int, owner: str) -> None:
        self._slab = slab
        self._end = (start, size, owner)
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (slab.base + start, False),
        }

    def __del__(self) -> None:
        self._slab.dead.append(self._end)


def _reserve(size: int, tier: Tier) -> mmap.mmap:
    """Address space without memory behind it: pages appear when they are first written."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
    for room in (128, 8, 1):  # a limit on address space may forbid the roomier ones
        try:
            return mmap.mmap(-1, room * size, flags)
        except OSError:
            continue
    raise ResourceError(
        f"{tier.value} memory: the system refuses {size} bytes of address space",
        "Lower the budget, or raise the limit on address space (ulimit -v).",
    )


def _merged(extents: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort extents by address and join those that touch."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(extents):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def round_up(value: int, multiple: int) -> int:
    """Smallest multiple that is no less than the value."""
    return -(-value // multiple) * multiple
