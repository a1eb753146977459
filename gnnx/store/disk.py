"""What a disk can do, measured once on a file that is there, and kept for the next run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gnnx.memory import Tier
from gnnx.store.engine import GAP_BYTES, WAIT_S, Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gnnx.memory import Ledger
    from gnnx.store.engine import DataFile, ReadEngine

SIZES = (4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20)
"""Bytes of the reads that are measured."""
_LARGEST_GAP = 256 << 10
_SMALLEST_FILE = 256 << 20  # in less, reads would meet each other, or a disk's own cache
_MOST_READS, _MOST_BYTES = 4096, 64 << 20  # of a size: some 0.1 s
_REPEATS = 2  # the better one counts: others may be using the disk


@dataclasses.dataclass(frozen=True, slots=True)
class Disk:
    """Rates of reads at random places, by as many readers as an engine has."""

    reads_per_s: dict[int, float]
    """Reads a second, for each size of a read in bytes; none where nothing was measured."""

    @property
    def bytes_per_s(self) -> float | None:
        """Largest number of bytes a second, of all sizes; None where nothing was measured."""
        return max((size * rate for size, rate in self.reads_per_s.items()), default=None)

    @property
    def gap_bytes(self) -> int:
        """What a read costs beside its bytes, in bytes streamed.

        With reads of s bytes that take c + s / B seconds, c · B; whole blocks, at most 256 KiB.
        """
        if not self.reads_per_s:
            return GAP_BYTES
        size, rate = min(self.reads_per_s.items())
        gap = (self.bytes_per_s or 0.0) / rate - size
        return int(min(max(0.0, gap), _LARGEST_GAP)) // SIZES[0] * SIZES[0]


def calibrate(file: DataFile, engine: ReadEngine, ledger: Ledger) -> Disk:
    """Tell what the disk of a file can do: as it was measured before, or by reading now, 0.5 s.

    Parameters
    ----------
    file
        Read at random places; a file below 256 MiB tells nothing.
    engine
        Whose readers are measured.
    ledger
        Gives 1 MiB for the time being (HOST); nothing is measured where less than 2 are free.

    Returns
    -------
    Disk
        Kept in the user's cache folder (`GNNX_CACHE_DIR`, or XDG's), by device and readers.
    """
    num_bytes = file.path.stat().st_size
    if num_bytes < _SMALLEST_FILE:
        return Disk({})
    kept = _kept_in(file.path, engine.num_readers)
    disk = _read(kept)
    free = ledger.free_bytes(Tier.HOST)
    if disk is None and free is not None and free < 2 * SIZES[-1]:
        return Disk({})
    if disk is None:
        disk = _measure(file, num_bytes, engine, ledger)
        with contextlib.suppress(OSError):  # no folder to keep it in: it is measured again
            kept.parent.mkdir(parents=True, exist_ok=True)
            partial = kept.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(disk.reads_per_s))
            partial.replace(kept)
    return disk


def known(path: Path) -> dict[int, Disk]:
    """Tell what was measured of the disk of a file or folder, by the number of readers."""
    found = {}
    pattern = _kept_in(path, 0).name.replace("-0.", "-*.")
    for kept in sorted(_folder().glob(pattern)):
        disk = _read(kept)
        if disk is not None:
            found[int(kept.stem.rsplit("-", 1)[1])] = disk
    return found


def _measure(file: DataFile, num_bytes: int, engine: ReadEngine, ledger: Ledger) -> Disk:
    rng, best = np.random.default_rng(), dict.fromkeys(SIZES, 0.0)
    place = ledger.empty(SIZES[-1], np.uint8, Tier.HOST, "calibration")
    for turn in range(_REPEATS + 1):
        for size in SIZES:
            count = min(_MOST_READS, _MOST_BYTES // size) if turn else 1  # the first compiles
            places = np.unique(rng.integers(0, num_bytes // size, count))
            rate = _reads_per_s(file, engine, size, places, place)
            if turn:
                best[size] = max(best[size], rate)
    return Disk(best)


def streamed_bytes_per_s(file: DataFile, engine: ReadEngine, ledger: Ledger) -> float:
    """Measure what a disk streams now, whoever else uses it: `calibrate` tells its best.

    Parameters
    ----------
    file
        Read at random places, 64 MiB at most.
    engine
        Whose readers are measured.
    ledger
        Gives what one read brings, 1 MiB or a quarter of what is free (HOST).

    Returns
    -------
    float
        Bytes a second.

    Raises
    ------
    RunError
        A read failed.
    """
    num_bytes, free = file.path.stat().st_size, ledger.free_bytes(Tier.HOST)
    most = num_bytes if free is None else min(num_bytes, free // 4)
    size = max((size for size in SIZES if size <= most), default=SIZES[0])
    count, place = num_bytes // size, ledger.empty(size, np.uint8, Tier.HOST, "calibration")
    rng = np.random.default_rng()
    places = np.unique(rng.integers(0, count, min(count, _MOST_BYTES // size)))
    _reads_per_s(file, engine, size, places[:1], place)  # compiles
    return size * _reads_per_s(file, engine, size, places, place)


def _reads_per_s(
    file: DataFile, engine: ReadEngine, size: int, places: NDArray[np.int64],
    out: NDArray[np.uint8],
) -> float:  # fmt: skip
    """Read pieces of so many bytes, one after the other over the same place."""
    layout = Layout(0, size, size, (int(places[-1]) + 1) * size)
    slots = np.zeros(len(places), np.int64)
    begin = time.perf_counter()
    job = engine.submit(file, layout, places, out, num_rows=len(places), slots=slots, gap=-1)
    job.wait(WAIT_S)
    return len(places) / max(1e-9, time.perf_counter() - begin)


def _folder() -> Path:
    home = os.environ.get("GNNX_CACHE_DIR")
    return (
        Path(home)
        if home
        else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "gnnx").expanduser()
    )


def _kept_in(path: Path, num_readers: int) -> Path:
    device = path.stat().st_dev
    return _folder() / f"disk-{os.major(device)}-{os.minor(device)}-{num_readers}.json"


def _read(kept: Path) -> Disk | None:
    """Tell what a file of the cache says; None where there is none, or it is damaged."""
    try:
        rates = {int(size): float(rate) for size, rate in json.loads(kept.read_text()).items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return None
    if set(rates) != set(SIZES) or not all(0 < rate < np.inf for rate in rates.values()):
        return None
    return Disk(rates)
