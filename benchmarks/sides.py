"""What benchmarks of several sides share: turns, clocks, a peer in a Python of its own, a table."""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import time
from typing import TYPE_CHECKING, Any

import torch

from gnnx import threads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

CLOCKS = {"wall": "perf_counter", "cpu": "thread_time"}

# Comes before and after a peer's own text, which makes `case(*words)`: a call to be timed.
_BEFORE = """
import sys, time
import numpy as np, torch
num_threads, clock, *arguments = sys.argv[1:]
torch.set_num_threads(int(num_threads))
clock, last, call = getattr(time, clock), None, None
"""
_AFTER = """
for line in sys.stdin:
    if line != last:
        call = None  # what it holds goes first
        last, call = line, case(*line.split())
    begin = clock()
    result = call()
    seconds = clock() - begin
    del result
    print(seconds, flush=True)
"""


class Peer:
    """A process with another library that makes one pass on demand, between the others' passes.

    Parameters
    ----------
    python
        Of an environment that has the library.
    text
        Defines ``case(*words)``, which returns the call to be timed; may read `arguments`.
    clock
        Of `CLOCKS`.
    arguments
        What the text gets.
    """

    def __init__(self, python: str, text: str, clock: str, *arguments: str) -> None:
        script = _BEFORE + text + _AFTER
        command = [python, "-W", "ignore", "-c", script, str(threads.num_threads()), CLOCKS[clock]]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([*command, *arguments], stdin=pipe, stdout=pipe, text=True)

    def seconds(self, *words: object) -> float:
        """Time of one pass, taken by the process itself."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(*words, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer:
            raise SystemExit(f"{self.process.args[0]}: the peer's process has ended")  # type: ignore[index]
        return float(answer)

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


def options(description: str, rounds: int) -> argparse.ArgumentParser:
    """Make a parser with what all of them take."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds, help="medians are over so many")
    parser.add_argument("--threads", type=int, default=threads.num_threads())
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: CPU seconds of one thread, for a machine that others use too",
    )
    parser.add_argument("--dgl-python", help="a Python that has DGL")
    return parser


def start(args: argparse.Namespace) -> Callable[[], float]:
    """Set the threads, say under which conditions the figures come about; the clock."""
    threads.set_num_threads(1 if args.clock == "cpu" else args.threads)
    print(
        f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, "
        f"{threads.num_threads()} threads, {args.clock} clock, {args.rounds} rounds, "
        f"load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    clock: Callable[[], float] = getattr(time, CLOCKS[args.clock])
    return clock


def timed(call: Callable[[], object], clock: Callable[[], float]) -> Callable[[], float]:
    """Make a case of a call: it returns the seconds, and frees the result outside of them."""

    def case() -> float:
        begin = clock()
        result = call()
        seconds = clock() - begin
        del result
        return seconds

    return case


def medians(
    cases: Mapping[str, Callable[[], float]], rounds: int, limit_s: float = float("inf")
) -> dict[str, float]:
    """Median seconds of each case; all take turns, round after round, at least three of them.

    Every round has an order of its own, the same in every run: what the case before leaves in the
    caches has made one as much as a third faster than its like.
    """
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    begin = time.monotonic()
    for turn in range(rounds + 1):
        spent_s = time.monotonic() - begin
        if turn > 3 and spent_s * (turn + 1) / turn > limit_s:
            break
        for name in random.Random(turn).sample(list(cases), len(cases)):
            spent = cases[name]()
            if turn:  # the first compiles, and touches the pages
                seconds[name].append(spent)
    return {name: statistics.median(values) for name, values in seconds.items()}


def show(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table: the first column to the left, numbers with two digits after the point."""
    cells = [
        list(columns),
        *([f"{c:.2f}" if isinstance(c, float) else str(c) for c in row] for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        first, *rest = (
            cell.ljust(width) if not i else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        print("  ".join([first, *rest]), flush=True)


def document(args: argparse.Namespace, **found: Any) -> None:
    """Print one line of JSON: the options, and what was found."""
    print(json.dumps({"options": vars(args), "load": os.getloadavg()[0], **found}, default=str))
