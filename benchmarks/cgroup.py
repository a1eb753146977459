"""Run a command under a limit on its memory, page cache included, with Linux's memory cgroup.

Needs root. Version 1 makes a child of this process's group, version 2 a sibling, since inner nodes
of version 2 may hold no process.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """A finished command and what its group was charged."""

    returncode: int
    stdout: str
    stderr: str
    peak_charge_bytes: int
    """Largest charge: resident memory and page cache, the latter reclaimed at the limit."""
    oom_kills: int


def available() -> bool:
    """Whether this process may make memory groups."""
    return os.geteuid() == 0 and _parent() is not None


def run_limited(command: list[str], limit_bytes: int, timeout_s: float) -> Outcome:
    """Run a command to its end under a limit; its output is kept."""
    found = _parent()
    if found is None:
        raise RuntimeError("no memory cgroup to make a child of")
    parent, version = found
    group = parent / f"gnnx-{os.getpid()}-{time.monotonic_ns()}"
    group.mkdir()
    try:
        limit = "memory.limit_in_bytes" if version == 1 else "memory.max"
        (group / limit).write_text(str(limit_bytes))
        join = 'echo $$ > "$0/cgroup.procs" && exec "$@"'  # the shell joins, then is the command
        done = subprocess.run(
            ["/bin/sh", "-c", join, str(group), *command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        peak = "memory.max_usage_in_bytes" if version == 1 else "memory.peak"
        events = "memory.oom_control" if version == 1 else "memory.events"
        kills = dict(line.split() for line in (group / events).read_text().splitlines())
        return Outcome(
            done.returncode,
            done.stdout,
            done.stderr,
            int((group / peak).read_text()),
            int(kills.get("oom_kill", 0)),
        )
    finally:
        for _ in range(50):  # the last process leaves a moment after it is reaped
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.1)


def _parent() -> tuple[Path, int] | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory" + path), 1
    root = Path("/sys/fs/cgroup")
    controllers = root / "cgroup.controllers"
    if controllers.exists() and "memory" in controllers.read_text().split():
        own = Path("/proc/self/cgroup").read_text().split("::", 1)[1].strip().lstrip("/")
        return (root / own).parent if own else root, 2
    return None
