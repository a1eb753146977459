"""How near do the readers come to the disk, and to the best way of reading rows?

usage: benchmarks/reads.py FILE [--repeats 5]      FILE: 1 GiB or more, such as a dataset's x.npy

- 4 KiB at random places, 128 threads, and 1 MiB in order, 8 threads: gnnx's readers against a loop
  of pread without anything else, on the same threads, in turns (psync)
- rows of 64 B, 512 B, 4 KiB of which 0.1 %, 3 %, 30 % are wanted: the engine with its gap from the
  calibration, against each row by itself, gaps of up to 256 KiB read, and all of the file read
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import types

from gnnx.memory import Budget, Ledger, Tier
from gnnx.store import ReadEngine, calibrate
from gnnx.store.engine import DataFile, Layout

pread: Any = types.ExternalFunction(
    "pread", types.int64(types.int32, types.uintp, types.uint64, types.int64)
)
SPAN = 512 << 20  # of the file, for the grid


@numba.njit(nogil=True)
def psync(fd: int, offsets: Any, size: int, buffer: Any) -> None:
    for i in range(offsets.shape[0]):
        pread(np.int32(fd), np.uintp(buffer), np.uint64(size), offsets[i])


def plain(path: Path, offsets: Any, size: int, threads: int) -> float:
    """Seconds of a bare pread loop."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    ledger = Ledger(Budget())
    buffers = ledger.empty((threads, size), np.uint8, Tier.HOST, "benchmark", align=4096)
    psync(fd, offsets[:1], size, buffers[0].ctypes.data)
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        parts = np.array_split(offsets, threads)
        list(pool.map(lambda i: psync(fd, parts[i], size, buffers[i].ctypes.data), range(threads)))
    seconds = time.perf_counter() - begin
    os.close(fd)
    return seconds


def ours(path: Path, rows: Any, row_bytes: int, end: int, threads: int, gap: int) -> float:
    """Seconds of the engine for ascending rows of a file; all go to one place after the other."""
    ledger = Ledger(Budget())
    engine, file = ReadEngine(ledger, threads), DataFile(path)
    place = ledger.empty(row_bytes, np.uint8, Tier.HOST, "benchmark")
    layout = Layout(0, row_bytes, row_bytes, end)
    slots = np.zeros(len(rows), np.int64)
    for part in (rows[:1], rows):  # threads and buffers are made by the first
        begin = time.perf_counter()
        job = engine.submit(
            file, layout, part, place, num_rows=len(part), slots=slots[: len(part)], gap=gap
        )
        job.wait(600)
    seconds = time.perf_counter() - begin
    engine.close()
    file.close()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    path, repeats = arguments.file, arguments.repeats
    end = path.stat().st_size // (1 << 20) << 20
    rng = np.random.default_rng()

    for name, size, threads, count in (("rows", 4 << 10, 128, 30_000), ("scan", 1 << 20, 8, 512)):
        ratios, rates = [], []
        for turn in range(repeats):
            if name == "rows":
                rows = np.unique(rng.integers(0, end // size, count))
                rng.shuffle(shuffled := rows.copy())
            else:
                rows = shuffled = np.arange(count) + rng.integers(0, end // size - count)
            ways = {
                "gnnx": lambda: ours(path, rows, size, end, threads, -1),  # noqa: B023
                "psync": lambda: plain(path, shuffled * size, size, threads),  # noqa: B023
            }
            order = sorted(ways, reverse=bool(turn % 2))
            took = {way: ways[way]() for way in order}
            ratios.append(took["psync"] / took["gnnx"])
            rates.append(len(rows) / took["gnnx"])
        rate = statistics.median(rates)
        print(f"{name}: {statistics.median(ratios):.2f} of psync, {rate:,.0f} reads/s, "
              f"{rate * size / 2**20:,.0f} MiB/s ({min(ratios):.2f} to {max(ratios):.2f})",
              flush=True)  # fmt: skip

    ledger = Ledger(Budget())
    engine, file = ReadEngine(ledger), DataFile(path)
    disk = calibrate(file, engine, ledger)
    engine.close()
    file.close()
    print(f"calibrated gap {disk.gap_bytes >> 10} KiB")
    for row_bytes in (64, 512, 4096):
        for density in (0.001, 0.03, 0.3):
            took: dict[str, list[float]] = {}
            for turn in range(repeats):
                first = rng.integers(0, (end - SPAN) >> 12) << 12
                base, size = first // row_bytes, SPAN // row_bytes
                rows = base + np.flatnonzero(rng.random(size) < density)
                pieces = np.arange(SPAN >> 20) + (first >> 20)
                ways = {
                    "ours": (rows, row_bytes, disk.gap_bytes),
                    "row by row": (rows, row_bytes, -1),
                    "gaps of 256 KiB": (rows, row_bytes, 256 << 10),
                    "scan": (pieces, 1 << 20, -1),
                }
                for way in list(ways)[:: -1 if turn % 2 else 1]:
                    ids, length, gap = ways[way]
                    seconds = ours(path, ids, length, end, 16, gap)
                    took.setdefault(way, []).append(seconds)
            medians = {way: statistics.median(values) for way, values in took.items()}
            best = min(seconds for way, seconds in medians.items() if way != "ours")
            shown = ", ".join(f"{way} {1e3 * s:.0f} ms" for way, s in medians.items())
            print(f"{row_bytes} B at {density:.1%}: {medians['ours'] / best:.2f} of best; {shown}",
                  flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
