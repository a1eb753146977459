"""How much longer is an epoch when the features are read from disk? And how true is the plan?

usage: benchmarks/epochs.py FOLDER [--share 8] [--repeats 3] [--cases wide narrow]

Makes a graph with 4 GiB of features in FOLDER, unless it is there. Each case is trained for three
epochs in a process of its own, within a budget of the features' size / SHARE and with all in
memory, in turns. Printed are medians: the third epoch, its ratio to that with all in memory, the
first epoch over the third, and the plan's time over the third epoch's.
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

import sides
import torch

import gnnx
from gnnx.memory import format_bytes

CASES: dict[str, dict[str, Any]] = {
    "wide": {"fanouts": [15, 10, 5], "hidden": 256},
    "narrow": {"fanouts": [10, 10], "hidden": 64},
}
BATCH_SIZE, EPOCHS = 1024, 3


def train(path: str, case: str, memory: str) -> dict[str, Any]:
    """Train for some epochs; runs in a process of its own."""
    fanouts, hidden = CASES[case]["fanouts"], CASES[case]["hidden"]
    torch.manual_seed(0)
    with gnnx.open(path, memory=memory) as dataset:
        model = gnnx.nn.SAGE(dataset.num_features, hidden, dataset.num_classes, len(fanouts))
        trainer = gnnx.Trainer(model, dataset, fanouts=fanouts, batch_size=BATCH_SIZE, eval_every=0)
        plan = trainer.plan()
        report = trainer.fit(EPOCHS)
    return {
        "planned": plan.seconds,
        "seconds": [epoch.seconds for epoch in report.epochs],
        "strategy": plan.strategy,
        "losses": [epoch.loss for epoch in report.epochs],
        "read": report.epochs[-1].disk_read_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--nodes", type=int, default=1 << 23)
    parser.add_argument("--edges", type=int, default=5 << 23)
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(train(*arguments.run)))
        return
    path = arguments.folder / f"epochs-{arguments.nodes}-{arguments.edges}"
    if not path.exists():
        sizes = [f"--nodes={arguments.nodes}", f"--edges={arguments.edges}", "--features=128"]
        command = [sys.executable, "-m", "gnnx", "synth", str(path), *sizes, "--classes=16"]
        subprocess.run([*command, "--split=0.005,0.00001,0.00001", "--memory=2GiB"], check=True)
    size = (path / "nodes/node/x.npy").stat().st_size
    budgets = {f"/{arguments.share}": str(size // arguments.share), "all": "16GiB"}
    print(f"{format_bytes(size)} of features, load {os.getloadavg()[0]:.1f}", flush=True)
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for _ in range(arguments.repeats):
        for case in arguments.cases:
            for name, budget in budgets.items():
                command = [sys.executable, __file__, "-", "--run", str(path), case, budget]
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found.setdefault((case, name), []).append(json.loads(done.stdout))
                print(case, name, done.stdout.strip(), file=sys.stderr, flush=True)
    third = {
        key: statistics.median(run["seconds"][-1] for run in runs) for key, runs in found.items()
    }
    rows = []
    for (case, name), runs in found.items():
        assert all(run["losses"] == runs[0]["losses"] for run in runs)
        assert runs[0]["losses"] == found[case, "all"][0]["losses"]
        first = statistics.median(run["seconds"][0] / run["seconds"][-1] for run in runs)
        plan = statistics.median(run["planned"] / run["seconds"][-1] for run in runs)
        last = third[case, name]
        rows.append((case, name, runs[0]["strategy"], last, last / third[case, "all"], first, plan))
    names = "case", "memory", "rows by", "epoch s", "/all", "first/third", "plan/third"
    sides.show(names, rows)


if __name__ == "__main__":
    main()
