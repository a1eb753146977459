"""How fast do rows come from a file many times larger than memory? The fetch stage by itself.

usage: benchmarks/outofcore.py FOLDER [--shares 4 8 16 --batch-size 512 --batches 200 --repeats 1]

Makes a graph with 4 GiB of features in FOLDER, unless it is there, and a trace: the rows that each
batch of an epoch wants (fanouts 10,10). Every way of reading is given the same trace, in a process
and a memory cgroup of its own, and the ways alternate:

- memmap: np.memmap under MADV_RANDOM, sorted unique ids, ten batches
- rows: what does not stay in memory is read batch by batch, 4 KiB a row by 128 readers; 50 batches,
  which are alike
- windows, packs, auto: as `Loader` has them

Between runs, the disk is measured with plain preadv: large reads in order, and 4 KiB anywhere. On a
machine with other work, times tell less than processor seconds and what the disk was asked for.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import cgroup
import numpy as np
import torch

import gnnx
from gnnx.cache import Demand, FeatureCache, Lookahead, choose, expected_access, hottest
from gnnx.cache.lookahead import WindowCounts
from gnnx.memory import Tier, format_bytes
from gnnx.random import Key, permute
from gnnx.sample import NeighborSampler
from gnnx.store import calibrate

FANOUTS, WIDTH = (10, 10), 128
BASE = 450 << 20  # interpreter, torch, compiled kernels, the trace and the batch in hand
SLACK = 64 << 20  # page cache of the files' metadata and of what is being written
LIMIT_S = 300.0
NUM_ROWS_BATCHES = 50


def make_trace(folder: Path, path: Path, batch_size: int, num_batches: int) -> Path:
    """Ids that each batch wants, one after the other, where each begins, and how likely all are."""
    trace = folder / f"trace-{batch_size}-{num_batches}.npz"
    if not trace.exists():
        with gnnx.open(path) as dataset:
            train = dataset.split("train")
            dataset.graph.pin(1 << 62)
            sampler = NeighborSampler(dataset.graph, FANOUTS)
            ids = []
            for step in range(num_batches):
                places = np.arange(step * batch_size, (step + 1) * batch_size)
                seeds = train.read(permute(places, train.num_rows, Key(0))).numpy()
                ids.append(sampler.reach(seeds, Key(0, 0, step)).astype(np.int32))
            scores = expected_access(dataset.graph, train, FANOUTS, batch_size)
            ends = np.cumsum([0, *map(len, ids)])
            np.savez(trace, ids=np.concatenate(ids), ends=ends, scores=scores)
    return trace


def read_trace(trace: Path) -> list[Any]:
    content = np.load(trace)
    ids, ends = content["ids"], content["ends"]
    return [ids[a:b] for a, b in itertools.pairwise(ends)]


def fetch(path: Path, trace: Path, way: str, budget: int) -> dict[str, Any]:
    """Bring the rows of all batches; runs in a process of its own."""
    batches = read_trace(trace)[: NUM_ROWS_BATCHES if way == "rows" else None]
    with gnnx.open(path, memory=budget, io_threads=128 if way == "rows" else 16) as dataset:
        source, ledger = dataset.features, dataset.ledger
        source.read(np.arange(1))
        scores = ledger.empty(source.num_rows, np.float32, Tier.HOST, "scores")
        scores[:] = np.load(trace)["scores"]
        demand = Demand.of(scores)
        largest = max(map(len, batches))
        free = ledger.free_bytes(Tier.HOST) + scores.nbytes
        kinds = {"auto": ("rows", "windows", "packs")}.get(way, (way,))
        shape = source.num_rows, source.row_bytes
        room = free - 2 * 48 * largest
        gap = 0 if way == "rows" else calibrate(source.file, dataset.io, ledger).gap_bytes
        dataset.io.gap_bytes = gap
        plan = choose(room, demand, *shape, len(batches), gap_bytes=gap, kinds=kinds)
        kept = hottest(scores, min(plan.num_kept, (room - scores.nbytes) // 8), ledger)
        del scores
        begin = time.perf_counter()
        features = FeatureCache(source, kept, ledger)
        fill_s, read = time.perf_counter() - begin, source.file.bytes_read

        def wanted(step: int) -> Any:
            return batches[step].astype(np.int64)

        x = torch.empty((largest, WIDTH))
        for count in (2, len(batches)):  # the first time compiles kernels
            begin, total, cpu = time.perf_counter(), dataset.io.bytes_read, time.process_time()
            counts, misses, reads = WindowCounts(), features.counts, dataset.io.num_reads
            read = source.file.bytes_read
            ahead = Lookahead(dataset, features, plan, wanted, count, LIMIT_S)
            for step, rows in enumerate(batches[:count]):
                ahead.fetch(step, rows.astype(np.int64), x[: len(rows)]).wait()
                ahead.done(step)
            counts += ahead.close()
            seconds = time.perf_counter() - begin
            cpu = time.process_time() - cpu
        missed, read = (features.counts - misses).rows_missed, source.file.bytes_read - read
        total = dataset.io.bytes_read - total
        some = batches[-1][::997].astype(np.int64)
        assert torch.equal(x[: len(batches[-1])][::997], source.read(some))
        distinct = counts.rows_read + missed - counts.rows_staged - counts.rows_unpacked
        asked = sum(map(len, batches)) * source.row_bytes
        return {
            "kind": plan.kind,
            "steps": plan.steps,
            "kept": plan.num_kept,
            "ms": 1e3 * seconds / len(batches),
            "cpu_ms": 1e3 * cpu / len(batches),
            "reads": (dataset.io.num_reads - reads) / len(batches),
            "fill_s": fill_s,
            "rows": distinct,
            "amplification": read / (distinct * source.row_bytes),
            "read": total / asked,
            "written": counts.rows_packed * source.row_bytes / asked,
            "ledger": ledger.peak_bytes(Tier.HOST),
        }


def fetch_mapped(path: Path, trace: Path) -> dict[str, Any]:
    """Bring rows through a memory map, ten batches."""
    with (path / "nodes/node/x.npy").open("rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped.madvise(mmap.MADV_RANDOM)
    table = np.frombuffer(mapped, np.float32, offset=4096).reshape(-1, WIDTH)
    before = device_bytes()
    times, asked = [], 0
    for ids in read_trace(trace)[:10]:
        begin = time.perf_counter()
        rows = table[np.unique(ids)]
        times.append(time.perf_counter() - begin)
        asked += rows.nbytes
    return {"kind": "memmap", "ms": 1e3 * statistics.fmean(times),
            "read": (device_bytes() - before) / asked}  # fmt: skip


def device_bytes() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["read_bytes"])


def raw_rates(file: Path) -> tuple[float, float]:
    """MiB/s of 1 MiB reads in order by 8 threads, thousands of 4 KiB reads a second by 32."""
    size, fd = file.stat().st_size, os.open(file, os.O_RDONLY | os.O_DIRECT)
    rng = np.random.default_rng()

    def reads(offsets: Any, length: int) -> None:
        with mmap.mmap(-1, length) as buffer:
            for offset in offsets:
                os.preadv(fd, [buffer], int(offset))

    def rate(offsets: Any, length: int, threads: int) -> float:
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda turn: reads(offsets[turn::threads], length), range(threads)))
        return len(offsets) / (time.perf_counter() - begin)

    scan = rate(np.arange(512) << 20, 1 << 20, 8)
    rows = rate(rng.integers(0, size // 4096, 20_000) << 12, 4096, 32)
    os.close(fd)
    return scan, rows / 1e3


def read_ahead_kb(file: Path) -> str:
    device = file.stat().st_dev
    for name in ("queue", "../queue"):
        found = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/{name}/read_ahead_kb")
        if found.exists():
            return found.read_text().strip()
    return "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shares", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--ways", nargs="+", default=["memmap", "rows", "windows", "packs", "auto"])
    parser.add_argument("--nodes", type=int, default=1 << 23)
    parser.add_argument("--edges", type=int, default=15 << 23)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--batches", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        path, trace, way, budget = arguments.run
        if way == "memmap":
            result = fetch_mapped(Path(path), Path(trace))
        else:
            result = fetch(Path(path), Path(trace), way, int(budget))
        print(json.dumps(result))
        return
    folder = arguments.folder
    path = folder / f"synth-{arguments.nodes}-{arguments.edges}-{WIDTH}"
    if not path.exists():
        sizes = [f"--nodes={arguments.nodes}", f"--edges={arguments.edges}", f"--features={WIDTH}"]
        command = [sys.executable, "-m", "gnnx", "synth", str(path), *sizes, "--classes=16"]
        subprocess.run([*command, "--split=0.1,0.01,0.01", "--memory=2GiB"], check=True)
    trace = make_trace(folder, path, arguments.batch_size, arguments.batches)
    file = path / "nodes/node/x.npy"
    rows = sum(map(len, read_trace(trace))) // arguments.batches
    limited = "in cgroups" if cgroup.available() else "WITHOUT a limit"
    print(
        f"{format_bytes(file.stat().st_size)} of features, {rows} rows a batch, {limited}, "
        f"read_ahead_kb {read_ahead_kb(file)}",
        flush=True,
    )
    times: dict[tuple[int, str], list[float]] = {}
    for _ in range(arguments.repeats):
        for share in arguments.shares:
            budget = file.stat().st_size // share
            for way in arguments.ways:
                scan, random = raw_rates(file)
                found = measure(path, trace, way, budget)
                if found is not None:
                    times.setdefault((share, way), []).append(found["ms"])
                print(
                    f"/{share} {way}: {show(found)} (disk {scan:.0f} MiB/s, {random:.0f} k/s)",
                    flush=True,
                )
    for (share, way), values in times.items():
        against = {
            other: statistics.median(times[share, other]) / statistics.median(values)
            for other in ("memmap", "rows")
            if (share, other) in times
        }
        ratios = ", ".join(f"{ratio:.1f} x {other}" for other, ratio in against.items())
        print(f"/{share} {way}: {statistics.median(values):.0f} ms a batch, {ratios}")


def measure(path: Path, trace: Path, way: str, budget: int) -> Any:
    command = [sys.executable, __file__, "-", "--run", str(path), str(trace), way, str(budget)]
    try:
        done = cgroup.run_limited(command, BASE + SLACK + budget, LIMIT_S)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        sys.exit(f"{way} at {format_bytes(budget)} ended with {done.returncode}:\n{done.stderr}")
    print(done.stderr, end="", file=sys.stderr)  # warnings
    return json.loads(done.stdout)


def show(found: dict[str, Any] | None) -> str:
    if found is None:
        return f"not done in {LIMIT_S:.0f} s"
    text = f"{found['ms']:.0f} ms a batch, read {found['read']:.2f} x rows asked"
    if found["kind"] != "memmap":
        text += (
            f" in {found['reads']:.0f} reads, processor {found['cpu_ms']:.0f} ms, "
            f"{found['kind']} of {found['steps']}, {found['kept']} rows stay, "
            f"{found['rows']} distinct rows at {found['amplification']:.1f} x, written "
            f"{found['written']:.2f} x, fill {found['fill_s']:.1f} s, "
            f"ledger {format_bytes(found['ledger'])}"
        )
    return text


if __name__ == "__main__":
    main()
