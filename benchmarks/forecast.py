"""How far is a preparation's forecast from what it then takes?

usage: benchmarks/forecast.py FOLDER [--nodes N --edges E --memory SIZE ...]

Makes random int32 pairs and 16 features a node in FOLDER, prepares them within each budget, and
prints peaks of memory and scratch files, bytes written and CPU seconds, each beside its forecast.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import gnnx.prepare.build as build
from gnnx.memory import Ledger, Tier
from gnnx.prepare import forecast, prepare

_ledgers: list[Ledger] = []


class _Watched(Ledger):
    """A ledger that is still there when the preparation has ended."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        _ledgers.append(self)


def compare(folder: Path, memory: str, **options: bool) -> None:
    """Forecast, prepare, and print one line."""
    source, features = folder / "e.npy", folder / "x.npy"
    told = forecast(source, features=features, memory=memory, **options)
    begin = time.process_time()
    prepare(source, folder / "out", features=features, memory=memory, overwrite=True, **options)
    seconds = time.process_time() - begin
    ledger = _ledgers[-1]
    size = sum(path.stat().st_size for path in (folder / "out").rglob("*") if path.is_file())
    pairs = {
        "memory": (ledger.peak_bytes(Tier.HOST), told.memory_bytes),
        "scratch": (ledger.peak_bytes(Tier.DISK), told.disk_bytes - told.written_bytes),
        "written": (size, told.written_bytes),
    }
    shown = [f"{name} {got >> 20} of {said >> 20} MiB" for name, (got, said) in pairs.items()]
    print(f"{memory} {options}: {', '.join(shown)}, CPU {seconds:.2f} of {told.seconds:.2f} s")


def main() -> None:
    """Make the input and compare."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--memory", nargs="+", default=["1GiB", "96MiB", "48MiB"])
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, options.nodes, (options.edges, 2), np.int32)
    np.save(options.folder / "e.npy", pairs)
    np.save(options.folder / "x.npy", np.zeros((options.nodes, 16), np.float32))
    build.Ledger = _Watched  # type: ignore[misc]
    compare(options.folder, "1GiB")  # compiles
    for memory in options.memory:
        compare(options.folder, memory)
    compare(options.folder, "256MiB", undirected=True)


if __name__ == "__main__":
    main()
