"""Run the benchmarks one after the other, never two at once, and show what each prints.

usage: benchmarks/run.py [NAME ...]        files they make stay in bench-data/
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
DATA = Path("bench-data")
BENCHMARKS = {
    "sampling": ["sampling.py"],
    "spmm": ["spmm.py"],
    "attention": ["attention.py"],
    "sage_step": ["sage_step.py"],
    "prepare": ["prepare.py", str(DATA)],
    "prepare-csv": ["prepare.py", str(DATA), "--form", "csv"],
    "prepare-keys": [
        "prepare.py",
        str(DATA),
        *["--form", "keys", "--nodes", "1000000", "--edges", "10000000"],
    ],
    "partition": [
        "partition.py",
        str(DATA / "c100m"),
        *["--whole", "--methods", "stream", "--parts", "16", "--memory", "1GiB"],
    ],
    "outofcore": ["outofcore.py", str(DATA)],
    "budget": ["budget.py", str(DATA)],
}


def main() -> None:
    chosen = sys.argv[1:] or list(BENCHMARKS)
    if unknown := set(chosen) - set(BENCHMARKS):
        sys.exit(f"no benchmark {', '.join(unknown)}\nGive some of {', '.join(BENCHMARKS)}.")
    DATA.mkdir(exist_ok=True)
    failed = []
    for name in chosen:
        script, *arguments = BENCHMARKS[name]
        print(f"\n{name}: {script} {' '.join(arguments)}", flush=True)
        if subprocess.run([sys.executable, HERE / script, *arguments], check=False).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
