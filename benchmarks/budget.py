"""Is the budget kept? A training many times larger than its budget, held to it from outside.

usage: benchmarks/budget.py FOLDER [--nodes N --edges E --memory SIZE --small SIZE ...]

1. Makes the graph in FOLDER, unless it is there.
2. Trains under `--small`, then under `--memory`. The batches are the same, so what the first run
   grows by over base and host ledger is the DEVICE part: batches, activations, parameters.
3. Trains under a memory cgroup of base + DEVICE part + `--memory`: it must end, unkilled.
4. The ledger rule: growth over base, less the DEVICE part, is at most 1.05 x the ledger's peak,
   and the ledger's peak is at least 0.9 x that growth, so that nothing big hides from it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import cgroup

from gnnx.memory import format_bytes, parse_bytes

GNNX = [sys.executable, "-m", "gnnx"]


def train(dataset: Path, memory: str, options: list[str], limit: int | None = None) -> Any:
    """Report of a training in a process of its own."""
    command = [*GNNX, "train", str(dataset), "--memory", memory, "--json", "--quiet", *options]
    if limit is None:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        code, stdout, stderr = done.returncode, done.stdout, done.stderr
    else:
        outcome = cgroup.run_limited(command, limit, timeout_s=3600)
        code, stdout, stderr = outcome.returncode, outcome.stdout, outcome.stderr
        print(
            f"  cgroup: peak charge {format_bytes(outcome.peak_charge_bytes)} of "
            f"{format_bytes(limit)}, {outcome.oom_kills} kills"
        )
    if code:
        sys.exit(f"training under {memory} ended with {code}:\n{stderr}")
    return json.loads(stdout)


def show(name: str, report: Any) -> tuple[int, int]:
    """Print a run; growth of resident size over base, and the host ledger's peak."""
    memory = report["memory"]
    growth = memory["peak_rss_bytes"] - memory["base_rss_bytes"]
    ledger = memory["peak_ledger_bytes"]
    epoch = report["epochs"][-1]
    print(
        f"{name}: base {format_bytes(memory['base_rss_bytes'])}, growth {format_bytes(growth)}, "
        f"host ledger {format_bytes(ledger)} of {format_bytes(memory['budget_bytes'])}; "
        f"epoch {epoch['seconds']:.1f} s, {epoch['rows_from_disk'] / epoch['rows_requested']:.0%} "
        f"of rows from disk, losses {[round(e['loss'], 6) for e in report['epochs']]}"
    )
    return growth, ledger


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=8_000_000)
    parser.add_argument("--edges", type=int, default=40_000_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--memory", default="768MiB")
    parser.add_argument("--small", default="512MiB")
    parser.add_argument(
        "--train",
        default="--model sage --layers 2 --hidden 64 --fanouts 10,10 --batch-size 512 --epochs 1",
        help="options of gnnx train",
    )
    arguments = parser.parse_args()
    dataset = arguments.folder / f"synth-{arguments.nodes}-{arguments.edges}-{arguments.features}"
    if not dataset.exists():
        sizes = ("nodes", "edges", "features")
        options = [f"--{size}={getattr(arguments, size)}" for size in sizes]
        synth = [*GNNX, "synth", str(dataset), *options, "--classes=16", "--seed=0"]
        subprocess.run([*synth, "--memory", arguments.memory, "--split=0.01,0.01,0.02"], check=True)
    options = arguments.train.split()
    small_growth, small_ledger = show("small", train(dataset, arguments.small, options))
    device = small_growth - small_ledger
    report = train(dataset, arguments.memory, options)
    growth, ledger = show("large", report)
    host = growth - device
    print(
        f"DEVICE part {format_bytes(device)}; host growth {format_bytes(host)} is "
        f"{host / ledger:.3f} x the ledger's peak (0.9 to 1.05 x is the rule: "
        f"at most 1.05, and the ledger at least 0.9 x it: {ledger / host:.3f})"
    )
    limit = report["memory"]["base_rss_bytes"] + device + parse_bytes(arguments.memory)
    show("limited", train(dataset, arguments.memory, options, limit))
    if not (host <= 1.05 * ledger and ledger >= 0.9 * host):
        sys.exit("the ledger rule does not hold")


if __name__ == "__main__":
    main()
