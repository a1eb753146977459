"""Test accuracy on real graphs: the mean of five seeds beside a linear model and the bar.

    python benchmarks/accuracy/run.py ../shared/data [SET ...]

prepares each set once, trains it once a seed with the commands below, which it prints, and writes a
line of JSON a set. The linear figures are logistic regression on a node's own features. The exit
code is 1 where a mean is below its bar.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

RECIPES = Path(__file__).resolve().parents[2] / "datasets"
SEEDS = range(5)


class Set(NamedTuple):
    prepare: str
    """Arguments of `gnnx prepare`; {data} and {recipes} are folders."""
    train: str
    """Arguments of `gnnx train`."""
    bar: float
    linear: float
    """Percent."""
    drawn: bool = False
    """The split is drawn anew for each seed."""


SETS = {
    "facebook-pages": Set(
        "{recipes}/facebook-pages.toml --root {data}",
        "--hidden 64 --fanouts 10,5 --epochs 3",
        bar=93,
        linear=87.0,
    ),
    "amazon-photo": Set(
        "{data}/amazon-photo/amazon_electronics_photo.npz --undirected"
        " --split per-class:20,30,rest",
        "--hidden 64 --fanouts 20,20 --epochs 60",
        bar=88,
        linear=74.8,
        drawn=True,
    ),
}


def gnnx(*words: str) -> dict:
    """Answer of a command."""
    print("$ gnnx", *words, file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "gnnx", *words, "--quiet", "--json"]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def measure(name: str, data: Path, folder: Path) -> float:
    """Mean test accuracy of a set in percent."""
    chosen, accuracies = SETS[name], []
    out = str(folder / name)
    for seed in SEEDS:
        if seed == 0 or chosen.drawn:
            source = chosen.prepare.format(data=data, recipes=RECIPES).split()
            extra = ["--seed", str(seed)] if chosen.drawn else []
            gnnx("prepare", source[0], out, *source[1:], *extra, "--overwrite")
        report = gnnx("train", out, *chosen.train.split(), "--seed", str(seed))
        accuracies.append(100 * report["test_accuracy"])
    mean = statistics.mean(accuracies)
    line = {
        "set": name,
        "test_accuracy": [round(a, 2) for a in accuracies],
        "mean": round(mean, 2),
        "deviation": round(statistics.stdev(accuracies), 2),
        "linear": chosen.linear,
        "bar": chosen.bar,
    }
    print(json.dumps(line), flush=True)
    return mean


def main() -> int:
    data, *names = sys.argv[1:] or ["../shared/data"]
    with tempfile.TemporaryDirectory() as folder:
        means = {n: measure(n, Path(data), Path(folder)) for n in names or SETS}
    return int(any(mean < SETS[name].bar for name, mean in means.items()))


if __name__ == "__main__":
    sys.exit(main())
