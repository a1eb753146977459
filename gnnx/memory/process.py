"""What this process holds and what the machine or its cgroup has left, as the kernel tells it."""

from __future__ import annotations

import mmap
import os
import resource
from pathlib import Path

from gnnx.errors import ResourceError

_CGROUPS = Path("/sys/fs/cgroup")


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
    """Bytes of RAM that a new process could use: the least of the machine's and its limits.

    Of the address space that ``ulimit -v`` leaves, half: torch and threads want some as well.
    """
    limits = _cgroup_free()
    address = free_address_bytes()
    if address is not None:
        limits.append(address // 2)
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            machine = int(line.split()[1]) * 1024
            return min([machine, *limits])
    return os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE


def free_address_bytes() -> int | None:
    """Bytes of address space that a limit on it (``ulimit -v``) leaves; None without a limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else max(0, limit - _status_bytes("VmSize"))


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
