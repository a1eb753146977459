"""Who holds how many bytes of which tier."""

from __future__ import annotations

import collections
import math
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from gnnx.errors import BudgetError, UsageError
from gnnx.memory.budget import Tier
from gnnx.memory.slab import ALIGNMENT, Lease, Slab, round_up

if TYPE_CHECKING:
    import torch
    from numpy.typing import DTypeLike, NDArray

    from gnnx.memory.budget import Budget


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
        self._accounts = {tier: Account(tier, budget.limit(tier)) for tier in Tier}
        self._slabs: dict[Tier, Slab] = {}
        # given back, in whatever thread and inside the collector too, where the lock could be held
        # already: appending to a deque is atomic and needs none
        self._released: collections.deque[tuple[int, Tier, str]] = collections.deque()
        _ledgers.add(self)

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a ledger and what has memory of it, such as a Loader, cannot go to another process",
            "Send the gnnx.Dataset, which the other process opens anew, and make the rest there.",
        )

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
        size = round_up(max(1, math.prod(shape) * dtype.itemsize), ALIGNMENT)
        with self._lock:
            account = self._accounts[tier]
            self._collect()
            account.charge(size, owner)
            try:
                slab = self._slabs.get(tier) or self._slabs.setdefault(tier, Slab(account))
                start = slab.take(size, align)
            except BaseException:
                account.discharge(size, owner)
                raise
        return np.ndarray(shape, dtype, np.asarray(Lease(slab, start, size, owner)))

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

    def kept_bytes(self, tier: Tier) -> int:
        """Freed bytes of a tier that stay resident for the next to ask."""
        with self._lock:
            self._collect()
            return self._slabs[tier].dirty_bytes if tier in self._slabs else 0

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


class Account:
    """Held and peak bytes of a tier, by owner."""

    def __init__(self, tier: Tier, limit: int | None) -> None:
        self.tier, self.limit = tier, limit
        self.held = self.peak = 0
        self.owners: dict[str, int] = collections.defaultdict(int)

    def charge(self, size: int, owner: str) -> None:
        """Enter bytes; refuses what the limit does not hold."""
        if self.limit is not None and self.held + size > self.limit:
            smallest = self.held + size
            option = {"host": "--memory", "device": "--device-memory", "disk": "a disk budget of"}
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
        """Take bytes out again."""
        self.held -= size
        self.owners[owner] -= size


def _mebibytes(num_bytes: int) -> str:
    return f"{-(-num_bytes // 2**20)}MiB"


def _dimensions(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(int, shape)) if isinstance(shape, tuple) else (int(shape),)


_ledgers: weakref.WeakSet[Ledger] = weakref.WeakSet()
_forking = threading.Lock()
_frozen: list[Ledger] = []


def _freeze() -> None:
    """Take all locks: a child has the memory, but not the thread that would release one."""
    _forking.acquire()
    _frozen.extend(_ledgers)
    for ledger in _frozen:
        ledger._lock.acquire()  # noqa: SLF001 - one module, one secret


def _thaw() -> None:
    for ledger in _frozen:
        ledger._lock.release()  # noqa: SLF001
    _frozen.clear()
    _forking.release()


os.register_at_fork(before=_freeze, after_in_parent=_thaw, after_in_child=_thaw)
