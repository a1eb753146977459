"""How fast are rows of in-edges built within a budget, and do the bytes depend on it?

usage: benchmarks/prepare.py FOLDER [--nodes N --edges E --memory SIZE --unlimited]

Makes random int32 pairs in FOLDER, unless they are there, prepares them in a process of its own,
and prints edges a second, everything counted, and resident bytes over those before any data. With
`--unlimited` it does so again without a limit and compares the datasets.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

SCRIPT = """
import gc, json, sys, time
import numpy as np, gnnx
from gnnx.memory import peak_rss_bytes, rss_bytes
from gnnx.prepare import prepare

folder, source, num_nodes, memory = sys.argv[1:]
np.save(folder + "/few.npy", np.load(source, mmap_mode="r")[:1000] % 1000)
for options in ({"memory": "6MiB", "num_nodes": 1 << 20}, {"num_nodes": int(num_nodes)}):
    prepare(folder + "/few.npy", folder + "/out", overwrite=True, **options)  # compiles
gc.collect()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
base, begin, cpu = rss_bytes(), time.perf_counter(), time.process_time()
stages = {}
def told(stage, done, total):
    stages[stage] = time.perf_counter() - begin, time.process_time() - cpu
report = prepare(source, folder + "/out", num_nodes=int(num_nodes), overwrite=True,
                 memory=memory if memory != "-" else None, progress=told)
seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
with gnnx.open(folder + "/out") as made:
    print(json.dumps({"seconds": seconds, "cpu": cpu, "stages": stages, "base": base,
                      "growth": peak_rss_bytes() - base,
                      "edges": report.edges_read, "fingerprint": made.fingerprint}))
"""


def make_pairs(path: Path, num_nodes: int, num_edges: int) -> None:
    """Write random pairs in pieces."""
    pairs = np.lib.format.open_memmap(path, "w+", np.int32, (num_edges, 2))
    rng = np.random.default_rng(0)
    for begin in range(0, num_edges, 1 << 24):
        end = min(begin + (1 << 24), num_edges)
        pairs[begin:end] = rng.integers(0, num_nodes, (end - begin, 2), np.int32)
    pairs.flush()


def run(folder: Path, source: Path, num_nodes: int, memory: str) -> dict[str, Any]:
    """Prepare in a process of its own; prints and returns what it measured."""
    command = [sys.executable, "-c", SCRIPT, str(folder), str(source), str(num_nodes), memory]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    stages = ", ".join(
        f"{name} until {at:.1f} s (CPU {cpu:.1f})" for name, (at, cpu) in found["stages"].items()
    )
    print(
        f"memory {memory}: {found['edges'] / found['seconds'] / 1e6:.1f} M edges/s"
        f" ({found['seconds']:.1f} s, CPU {found['cpu']:.1f}: {stages}),"
        f" {found['growth'] >> 20} MiB over a base of {found['base'] >> 20}",
        flush=True,
    )
    return found


def main() -> None:
    """Make the pairs, measure, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=20_000_000)
    parser.add_argument("--edges", type=int, default=200_000_000)
    parser.add_argument("--memory", default="512MiB")
    parser.add_argument("--unlimited", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    source = args.folder / f"pairs-{args.nodes}-{args.edges}.npy"
    if not source.exists():
        make_pairs(source, args.nodes, args.edges)
    found = run(args.folder, source, args.nodes, args.memory)
    if args.unlimited:
        other = run(args.folder, source, args.nodes, "-")
        same = found["fingerprint"] == other["fingerprint"]
        print("the bytes are equal" if same else "THE BYTES DIFFER")


if __name__ == "__main__":
    main()
