"""How much longer is an epoch when the features are read from disk? And how true is the plan?

usage: benchmarks/epochs.py FOLDER [--share 8] [--train 0.005] [--repeats 3] [--cases wide narrow]

Makes a graph with 4 GiB of features in FOLDER, unless it is there; a share TRAIN of its nodes are
seeds. Each case is trained for four epochs in a process of its own, within a budget of the
features' size / SHARE and with all in memory, in turns; the last epoch prepares no other one, and
is not looked at. Printed are medians: the third epoch, its ratio to that with all in memory, what
of it was waited for batches, the first epoch over the third, the plan's time over the third
epoch's, and what the system says that the process read in the second and third over what was
planned of two. The disk is measured before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import outofcore
import sides
import torch

import gnnx
from gnnx.memory import format_bytes

CASES: dict[str, dict[str, Any]] = {
    "wide": {"fanouts": [15, 10, 5], "hidden": 256},
    "narrow": {"fanouts": [10, 10], "hidden": 64},
}
BATCH_SIZE, EPOCHS, THIRD = 1024, 4, 2


def train(path: str, case: str, memory: str) -> dict[str, Any]:
    """Train for some epochs; runs in a process of its own."""
    fanouts, hidden = CASES[case]["fanouts"], CASES[case]["hidden"]
    torch.manual_seed(0)
    with gnnx.open(path, memory=memory) as dataset:
        model = gnnx.nn.SAGE(dataset.num_features, hidden, dataset.num_classes, len(fanouts))
        trainer = gnnx.Trainer(model, dataset, fanouts=fanouts, batch_size=BATCH_SIZE, eval_every=0)
        plan, read = trainer.plan(), list[int]()
        report = trainer.fit(EPOCHS, observe=[lambda _: read.append(bytes_read())])
    return {
        "planned": plan.seconds,
        "steps": plan.num_steps,
        "seconds": [epoch.seconds for epoch in report.epochs],
        "wait": report.epochs[THIRD].wait_s / report.epochs[THIRD].seconds,
        "strategy": plan.strategy,
        "losses": [epoch.loss for epoch in report.epochs],
        # by the system, from the end of the first epoch to that of the third
        "read": (read[THIRD] - read[0]) / max(1, THIRD * plan.disk_read_bytes),
    }


def bytes_read() -> int:
    """Bytes that this process had the disk bring so far (proc(5))."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=int, default=8)
    parser.add_argument("--train", type=float, default=0.005)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--nodes", type=int, default=1 << 23)
    parser.add_argument("--edges", type=int, default=5 << 23)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(train(*arguments.run)))
        return
    path = arguments.folder / f"epochs-{arguments.nodes}-{arguments.edges}-{arguments.train:g}"
    if not path.exists():
        sizes = [f"--nodes={arguments.nodes}", f"--edges={arguments.edges}", "--features=128"]
        command = [sys.executable, "-m", "gnnx", "synth", str(path), *sizes, "--classes=16"]
        split = f"--split={arguments.train:g},0.00001,0.00001"
        subprocess.run([*command, split, "--memory=2GiB"], check=True)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # of the processes, as of the command
    file = path / "nodes/node/x.npy"
    size = file.stat().st_size
    budgets = {f"/{arguments.share}": str(size // arguments.share), "all": "16GiB"}
    show_conditions(file)
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(arguments.repeats):
        for case in arguments.cases:
            for name, budget in budgets.items():
                command = [sys.executable, __file__, "-", "--run", str(path), case, budget]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found.setdefault((case, name), []).append(json.loads(done.stdout))
                print(case, name, done.stdout.strip(), file=sys.stderr, flush=True)
    show_conditions(file)
    third = {
        key: statistics.median(run["seconds"][THIRD] for run in runs) for key, runs in found.items()
    }
    rows = []
    for (case, name), runs in found.items():
        assert all(run["losses"] == runs[0]["losses"] for run in runs)
        assert runs[0]["losses"] == found[case, "all"][0]["losses"]
        first = statistics.median(run["seconds"][0] / run["seconds"][THIRD] for run in runs)
        plan = statistics.median(run["planned"] / run["seconds"][THIRD] for run in runs)
        wait, read = (statistics.median(run[key] for run in runs) for key in ("wait", "read"))
        now, steps, kind = third[case, name], runs[0]["steps"], runs[0]["strategy"]
        rows.append(
            (case, name, steps, kind, now, now / third[case, "all"], wait, first, plan, read)
        )
    names = "case", "memory", "steps", "rows by", "epoch s", "/all", "waited"
    sides.show((*names, "first/third", "plan/third", "read/planned"), rows)


def show_conditions(file: Path) -> None:
    scan, random = outofcore.raw_rates(file)
    print(
        f"{format_bytes(file.stat().st_size)} of features, disk {scan:.0f} MiB/s in order, "
        f"{random:.0f} k reads of 4 KiB a second, load {os.getloadavg()[0]:.1f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
