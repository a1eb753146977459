"""Memory budgets: how many bytes each tier may hold, and who holds them.

Every buffer of size in gnnx is allocated by a `Ledger`, inside one slab a tier, never beside it.
The budget is thus a fact of the allocator, not a sum of estimates.
"""

from __future__ import annotations

import collections
import dataclasses
import enum
import fractions
import math
import mmap
import os
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from gnnx.errors import BudgetError, ResourceError, UsageError

if TYPE_CHECKING:
    import torch
    from numpy.typing import DTypeLike, NDArray

ALIGNMENT = 64  # a cache line and an AVX-512 vector; BLAS may round differently on less
PAGE = mmap.PAGESIZE
_CGROUPS = Path("/sys/fs/cgroup")
_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # a name only from Python 3.13 on
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_UNITS |= {f"{unit}i": 1024**power for power, unit in enumerate("kmgt", start=1)}


class Tier(enum.Enum):
    """Where bytes live."""

    DEVICE = "device"
    """Where the step in hand computes: batches, activations, parameters, the device cache."""
    HOST = "host"
    """Everything else in RAM. On a CPU both are RAM, and are counted apart all the same."""
    DISK = "disk"
    """Scratch files."""


# Freed bytes that stay resident, as a share of the peak. A batch's buffers are freed and taken anew
# every step, a little larger or smaller, and page faults cost more than memory there; HOST's live
# long, and its resident bytes are held against the ledger's peak.
_SLACK = {Tier.DEVICE: 0.25, Tier.HOST: 0.03, Tier.DISK: 0.0}


def parse_bytes(text: str | int) -> int:
    """Read a number of bytes as people write it.

    Parameters
    ----------
    text
        Such as ``"4GiB"`` (1024³), ``"512MB"`` (1000²), ``"1.5G"``, ``"65536"`` or an int.

    Returns
    -------
    int
        Bytes, rounded down.

    Raises
    ------
    UsageError
        The text is not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", str(text), re.IGNORECASE)
    unit = match and _UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise UsageError(
            f"{text!r} is not a size in bytes",
            'Write a number and a unit, such as "512MiB", "4GiB" or "2GB".',
        )
    return int(fractions.Fraction(match[1]) * unit)  # a float would round above 2^53


def format_bytes(num_bytes: int) -> str:
    """Size for people, in binary units, such as ``"4.0 GiB"``."""
    size, units = float(num_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while abs(size) >= 1024 and len(units) > 1:
        size, units = size / 1024, units[1:]
    return f"{size:.0f} B" if units[0] == "B" else f"{size:.1f} {units[0]}"


def rss_bytes() -> int:
    """Resident bytes of this process now."""
    return _status_bytes("VmRSS")


def peak_rss_bytes() -> int:
    """Largest number of resident bytes this process has had."""
    return _status_bytes("VmHWM")


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise ResourceError(f"/proc/self/status has no {field}", "gnnx needs Linux's /proc.")


def available_bytes() -> int:
    """Bytes of RAM that a new process could use: the smaller of the machine's and the cgroup's."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            machine = int(line.split()[1]) * 1024
            return min([machine, *_cgroup_free()])
    return os.sysconf("SC_AVPHYS_PAGES") * PAGE


def _cgroup_free() -> list[int]:
    """Free bytes under each memory limit on this process (cgroup version 2 and 1)."""
    free = []
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = _CGROUPS, ("memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            root, names = _CGROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):  # a parent's limit binds its children too
            if folder.is_relative_to(root):
                free += _headroom(folder, *names)
    return free


def _headroom(folder: Path, limit_name: str, usage_name: str) -> list[int]:
    """Free bytes of one cgroup, the page cache counted as free; empty where it has no limit."""
    try:
        limit, usage = ((folder / name).read_text().strip() for name in (limit_name, usage_name))
        lines = (folder / "memory.stat").read_text().splitlines()
    except OSError:  # the root group has no limit, and containers hide theirs at other paths
        return []
    if limit == "max":
        return []
    stat = dict(line.split(" ", 1) for line in lines)
    cached = sum(int(stat.get(name, 0)) for name in ("active_file", "inactive_file"))
    return [max(0, int(limit) - int(usage) + cached)]


@dataclasses.dataclass(frozen=True, slots=True)
class Budget:
    """Bytes allowed per tier; None is no limit."""

    host: int | None = None
    device: int | None = None
    disk: int | None = None

    @classmethod
    def parse(
        cls,
        memory: str | int | None = None,
        device_memory: str | int | None = None,
        disk: str | int | None = None,
    ) -> Budget:
        """Budget from sizes as users write them.

        Parameters
        ----------
        memory
            Of the HOST tier. Default: 80 % of what the machine or the cgroup has free.
        device_memory
            Of the DEVICE tier. Default: no limit.
        disk
            Of the DISK tier. Default: no limit.

        Returns
        -------
        Budget
            The same numbers in bytes.
        """
        host = available_bytes() * 8 // 10 if memory is None else parse_bytes(memory)
        device = None if device_memory is None else parse_bytes(device_memory)
        return cls(host, device, None if disk is None else parse_bytes(disk))

    def limit(self, tier: Tier) -> int | None:
        """Bytes allowed in a tier, None for no limit."""
        limit: int | None = getattr(self, tier.value)
        return limit


class Ledger:
    """Allocator of all of gnnx's buffers: who holds how many bytes of which tier.

    Arrays give their bytes back when the last reference to them, views and tensors included, is
    gone. Held bytes never exceed the budget; the slab's resident bytes do not either.

    Parameters
    ----------
    budget
        Limits per tier.

    Notes
    -----
    Safe to call from several threads.
    """

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._lock = threading.Lock()
        self._accounts = {tier: _Account(tier, budget.limit(tier)) for tier in Tier}
        self._slabs: dict[Tier, _Slab] = {}
        # given back, in whatever thread and inside the collector too, where the lock could be held
        # already: appending to a deque is atomic and needs none
        self._released: collections.deque[tuple[int, Tier, str]] = collections.deque()

    def empty(
        self,
        shape: int | tuple[int, ...],
        dtype: DTypeLike,
        tier: Tier,
        owner: str,
        *,
        align: int = ALIGNMENT,
    ) -> NDArray[Any]:
        """Uninitialised array inside the slab of a tier.

        Parameters
        ----------
        shape
            Shape of the array, C order.
        dtype
            Any NumPy type of fixed size.
        tier
            DEVICE (of a CPU) or HOST.
        owner
            Who holds it, as reports show it: ``"sampler"``, ``"cache"``.
        align
            Alignment of the first element in bytes: a multiple of 64 (direct I/O wants 4096).

        Returns
        -------
        ndarray
            Its bytes return to the slab when its last view is gone.

        Raises
        ------
        BudgetError
            The tier's budget does not hold the array beside what is held already.
        """
        dtype, shape = np.dtype(dtype), _dimensions(shape)
        size = _round_up(max(1, math.prod(shape) * dtype.itemsize), ALIGNMENT)
        with self._lock:
            account = self._accounts[tier]
            self._collect()
            account.charge(size, owner)
            try:
                slab = self._slabs.get(tier) or self._slabs.setdefault(tier, _Slab(account))
                start = slab.take(size, align)
            except BaseException:
                account.discharge(size, owner)
                raise
        return np.ndarray(shape, dtype, np.asarray(_Lease(slab, start, size, owner)))

    def tensor(
        self, shape: int | tuple[int, ...], dtype: torch.dtype, tier: Tier, owner: str
    ) -> torch.Tensor:
        """Uninitialised CPU tensor inside the slab of a tier; otherwise as `empty`."""
        import torch

        shape = _dimensions(shape)
        size = math.prod(shape) * dtype.itemsize
        raw = torch.from_numpy(self.empty(size, np.uint8, tier, owner))
        return raw.view(dtype).view(shape)

    def reserve(self, num_bytes: int, tier: Tier, owner: str) -> Reservation:
        """Charge bytes that live outside the slab, such as a scratch file, until released.

        Parameters
        ----------
        num_bytes
            Bytes to hold.
        tier
            Any tier.
        owner
            As in `empty`.

        Returns
        -------
        Reservation
            A context manager; leaving it, or `release`, gives the bytes back.

        Raises
        ------
        BudgetError
            As in `empty`.
        """
        with self._lock:
            self._collect()
            self._accounts[tier].charge(num_bytes, owner)
            if tier in self._slabs:
                self._slabs[tier].shrink()
        return Reservation(self, num_bytes, tier, owner)

    def held_bytes(self, tier: Tier) -> int:
        """Bytes held in a tier now."""
        with self._lock:
            self._collect()
            return self._accounts[tier].held

    def peak_bytes(self, tier: Tier) -> int:
        """Largest number of bytes held in a tier so far."""
        with self._lock:
            return self._accounts[tier].peak

    def free_bytes(self, tier: Tier) -> int | None:
        """Bytes of a tier's budget that nobody holds, None without a limit."""
        limit = self.budget.limit(tier)
        return None if limit is None else limit - self.held_bytes(tier)

    def owners(self, tier: Tier) -> dict[str, int]:
        """Bytes held by each owner of a tier."""
        with self._lock:
            self._collect()
            return {name: held for name, held in self._accounts[tier].owners.items() if held}

    def trim(self) -> None:
        """Give the pages of freed buffers back to the system."""
        with self._lock:
            self._collect()
            for slab in self._slabs.values():
                slab.trim()

    def _collect(self) -> None:
        """Book what has been given back since the last call; the lock is held."""
        while self._released:
            num_bytes, tier, owner = self._released.popleft()
            self._accounts[tier].discharge(num_bytes, owner)
        for slab in self._slabs.values():
            slab.collect()

    def _release(self, num_bytes: int, tier: Tier, owner: str) -> None:
        self._released.append((num_bytes, tier, owner))


class Reservation:
    """Bytes charged to a tier until released; a context manager."""

    def __init__(self, ledger: Ledger, num_bytes: int, tier: Tier, owner: str) -> None:
        self.num_bytes = num_bytes
        self._undo: tuple[Ledger, Tier, str] | None = (ledger, tier, owner)

    def release(self) -> None:
        """Give the bytes back; a second call does nothing."""
        undo, self._undo = self._undo, None
        if undo is not None:
            ledger, tier, owner = undo
            ledger._release(self.num_bytes, tier, owner)  # noqa: SLF001 - one module, one secret

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()


class _Account:
    """Held and peak bytes of a tier, by owner."""

    def __init__(self, tier: Tier, limit: int | None) -> None:
        self.tier, self.limit = tier, limit
        self.held = self.peak = 0
        self.owners: dict[str, int] = collections.defaultdict(int)

    def charge(self, size: int, owner: str) -> None:
        if self.limit is not None and self.held + size > self.limit:
            smallest = self.held + size
            option = {"host": "--memory", "device": "--device-memory", "disk": "--disk"}
            raise BudgetError(
                f"{self.tier.value} memory: {owner} needs {size} bytes, "
                f"{self.limit - self.held} of {self.limit} are free",
                f"Give {option[self.tier.value]} at least {_mebibytes(smallest)}.",
                tier=self.tier.value,
                shortfall_bytes=smallest - self.limit,
                smallest_bytes=smallest,
            )
        self.held += size
        self.owners[owner] += size
        self.peak = max(self.peak, self.held)

    def discharge(self, size: int, owner: str) -> None:
        self.held -= size
        self.owners[owner] -= size


class _Slab:
    """One anonymous mapping, handed out by first fit.

    The mapping is far larger than the budget, since address space is free: fragmentation never
    fails a request that the budget allows. Freed pages stay resident ("dirty") for quick reuse, as
    long as held + dirty bytes exceed neither the limit nor the peak of held bytes by some slack.
    """

    def __init__(self, account: _Account) -> None:
        self.account = account
        physical = os.sysconf("SC_PHYS_PAGES") * PAGE
        reach = physical if account.limit is None else min(account.limit, physical)
        self.map = _reserve(_round_up(reach, PAGE), account.tier)
        self.base = np.frombuffer(self.map, np.uint8).ctypes.data
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
            cut = max(start, end - _round_up(left, PAGE)) if left > 0 else end
            kept += [(start, cut)] * (cut > start)
            given += [(cut, end)] * (end > cut)
            left -= end - cut
        if not given:
            return
        self.dirty, self.clean = sorted(kept), _merged(self.clean + given)
        self.dirty_bytes = sum(end - start for start, end in kept)
        for start, end in self.clean:  # merged: pages that two extents shared are whole now
            first, last = _round_up(start, PAGE), end // PAGE * PAGE
            if last > first:  # untouched pages cost nothing here
                self.map.madvise(mmap.MADV_DONTNEED, first, last - first)

    @staticmethod
    def _first_fit(extents: list[tuple[int, int]], size: int, align: int) -> int | None:
        for i, (start, end) in enumerate(extents):
            at = _round_up(start, align)
            if at + size <= end:
                pieces = ((start, at), (at + size, end))
                extents[i : i + 1] = [piece for piece in pieces if piece[0] < piece[1]]
                return at
        return None


class _Lease:
    """The owner of an array's bytes: NumPy keeps it at the base of the array and of its views."""

    def __init__(self, slab: _Slab, start: int, size: int, owner: str) -> None:
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


def _dimensions(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(int, shape)) if isinstance(shape, tuple) else (int(shape),)


def _merged(extents: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Sort extents by address and join those that touch."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(extents):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    return joined


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _mebibytes(num_bytes: int) -> str:
    return f"{-(-num_bytes // 2**20)}MiB"
