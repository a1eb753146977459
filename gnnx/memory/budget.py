"""Tiers, sizes as people write them, and the bytes that a run allows itself."""

from __future__ import annotations

import dataclasses
import enum
import fractions
import re

from gnnx.errors import UsageError
from gnnx.memory.process import available_bytes

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
