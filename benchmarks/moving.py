"""What does it cost to move rows: to blocks of a file, and to places in memory?

usage: benchmarks/moving.py [--folder /var/tmp] [--repeats 3]

Writes 1 GiB to a scratch file by direct writes of 104 KiB at random places, as packs are written:
to blocks that are new, then to the same blocks again. Copies 90,000 rows of 512 bytes from a buffer
of 1 MiB to random places: past the caches as readers do, and by memcpy, as they do where places do
not begin with a line. All take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import sides

import gnnx
from gnnx.memory import Tier
from gnnx.prepare import synth
from gnnx.store import ScratchFile
from gnnx.store._kernels import LINE, copy_row, fence  # noqa: PLC2701
from gnnx.threads import kernel

WRITE, WRITES = 104 << 10, 10_000
ROW, ROWS, BUFFER = 512, 90_000, 1 << 20


@kernel
def copy(out: Any, source: Any, places: Any) -> None:
    for i in range(len(places)):
        copy_row(out + places[i] * ROW, source + i * ROW % BUFFER, ROW)
    fence()


def timed(call: Any, *arguments: Any) -> float:
    begin = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", default="/var/tmp", help="of the scratch file, on a disk")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    os.environ["TMPDIR"] = tempfile.tempdir = arguments.folder
    rng = np.random.default_rng(0)
    found: dict[str, list[float]] = {}
    with contextlib.ExitStack() as held:
        path = Path(held.enter_context(tempfile.TemporaryDirectory())) / "graph"
        synth(path, num_nodes=10, num_edges=10, num_features=1, num_classes=2)
        dataset = held.enter_context(gnnx.open(path))
        data, places, buffer = (
            dataset.ledger.empty(size, np.uint8, Tier.HOST, "benchmark", align=4096)
            for size in (WRITE, ROWS * ROW + LINE, BUFFER)
        )
        for one in (data, places, buffer):
            one[:] = 1
        at, order = rng.permutation(WRITES) * WRITE, rng.permutation(ROWS)
        begin, size = np.zeros(WRITES, np.int64), np.full(WRITES, WRITE)
        copy(places.ctypes.data, buffer.ctypes.data, order)
        for _ in range(arguments.repeats):
            with ScratchFile(dataset, WRITES * WRITE, direct=True) as file:
                for name in ("new blocks", "written before"):
                    spent = timed(lambda f=file: f.write(data, at, begin, size).wait(600))
                    found.setdefault(name, []).append(WRITES * WRITE / spent / 2**20)
            for name, off in (("by memcpy", LINE // 2), ("past the caches", 0)):
                spent = timed(copy, places.ctypes.data + off, buffer.ctypes.data, order)
                found.setdefault(name, []).append(spent / ROWS * 1e9)
    units = ["MiB/s", "MiB/s", "ns a row", "ns a row"]
    rows = [
        (name, statistics.median(values), unit)
        for (name, values), unit in zip(found.items(), units, strict=True)
    ]
    sides.show(("way", "median", ""), rows)


if __name__ == "__main__":
    main()
