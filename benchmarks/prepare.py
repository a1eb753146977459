"""How fast are rows of in-edges built within a budget, and do the bytes depend on it?

usage: benchmarks/prepare.py FOLDER [--form npy|csv|keys] [--nodes N --edges E --memory SIZE]
                             [--unlimited]

Makes random pairs in FOLDER, unless they are there: int32 in .npy, integer ids in .csv, or strings
in a .csv that a recipe names. Prepares them in a process of its own, and prints edges a second,
everything counted, and resident bytes over those before any data. With `--unlimited` it does so
again without a limit and compares the datasets.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

SCRIPT = """
import gc, json, sys, time
import gnnx
from gnnx.memory import peak_rss_bytes, rss_bytes
from gnnx.prepare import prepare

out, source, few, num_nodes, memory = sys.argv[1:]
known = {} if source.endswith(".toml") else {"num_nodes": int(num_nodes)}
for budget in (max(96 << 20, 4 * int(num_nodes)), None):
    prepare(few, out, overwrite=True, memory=budget, **known)  # compiles
gc.collect()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
base, begin, cpu = rss_bytes(), time.perf_counter(), time.process_time()
stages = {}
def told(stage, done, total):
    stages[stage] = time.perf_counter() - begin, time.process_time() - cpu
report = prepare(source, out, overwrite=True, memory=memory if memory != "-" else None,
                 progress=told, **known)
seconds, cpu = time.perf_counter() - begin, time.process_time() - cpu
with gnnx.open(out) as made:
    print(json.dumps({"seconds": seconds, "cpu": cpu, "stages": stages, "base": base,
                      "growth": peak_rss_bytes() - base,
                      "edges": report.edges_read, "fingerprint": made.fingerprint}))
"""
RECIPE = '[edges]\nfiles = ["{}"]\n'
PIECE = 1 << 22


def make_npy(path: Path, num_nodes: int, num_edges: int) -> None:
    """Write random pairs in pieces."""
    pairs = np.lib.format.open_memmap(path, "w+", np.int32, (num_edges, 2))
    rng = np.random.default_rng(0)
    for begin in range(0, num_edges, PIECE):
        end = min(begin + PIECE, num_edges)
        pairs[begin:end] = rng.integers(0, num_nodes, (end - begin, 2), np.int32)
    pairs.flush()


def make_csv(path: Path, num_nodes: int, num_edges: int, *, prefix: str = "") -> None:
    """Write random pairs as text: ids, or keys where there is a prefix."""
    rng = np.random.default_rng(0)
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
    with path.open("wb") as file:
        file.write(b"src,dst\n")
        for begin in range(0, num_edges, PIECE):
            pairs = rng.integers(0, num_nodes, (2, min(PIECE, num_edges - begin)))
            columns = [pa.array(ids) for ids in pairs]
            if prefix:
                texts = [column.cast(pa.string()) for column in columns]
                columns = [pa.compute.binary_join_element_wise(prefix, t, "") for t in texts]
            table = pa.table(columns, names=["src", "dst"])
            pyarrow.csv.write_csv(table, file, options)


def make_source(folder: Path, form: str, num_nodes: int, num_edges: int) -> Path:
    """Write what is to be prepared, unless it is there."""
    stem = f"pairs-{num_nodes}-{num_edges}"
    if form == "npy":
        path = folder / f"{stem}.npy"
        if not path.exists():
            make_npy(path, num_nodes, num_edges)
        return path
    path = folder / f"{stem}-{form}.csv"
    if not path.exists():
        make_csv(path, num_nodes, num_edges, prefix="customer-" * (form == "keys"))
    if form == "keys":
        recipe = path.with_suffix(".toml")
        recipe.write_text(RECIPE.format(path.name))
        return recipe
    return path


def run(folder: Path, source: Path, few: Path, num_nodes: int, memory: str) -> dict[str, Any]:
    """Prepare in a process of its own; prints and returns what it measured."""
    words = [str(folder / "out"), str(source), str(few), str(num_nodes), memory]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *words], stdout=subprocess.PIPE, text=True, check=True
    )
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
    parser.add_argument("--form", choices=("npy", "csv", "keys"), default="npy")
    parser.add_argument("--nodes", type=int, default=20_000_000)
    parser.add_argument("--edges", type=int, default=200_000_000)
    parser.add_argument("--memory", default="512MiB")
    parser.add_argument("--unlimited", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    source = make_source(args.folder, args.form, args.nodes, args.edges)
    few = make_source(args.folder, args.form, min(1000, args.nodes), 5000)
    found = run(args.folder, source, few, args.nodes, args.memory)
    if args.unlimited:
        other = run(args.folder, source, few, args.nodes, "-")
        same = found["fingerprint"] == other["fingerprint"]
        print("the bytes are equal" if same else "THE BYTES DIFFER")


if __name__ == "__main__":
    main()
