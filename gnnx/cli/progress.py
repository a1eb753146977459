"""Progress of a verb on stderr: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING

from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from gnnx.cli.frame import stderr

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.progress import Task, TaskID

    Report = Callable[[str, int, int], None]

LINE_INTERVAL_S = 5.0  # between plain lines: a log of a long run stays short


@contextlib.contextmanager
def shown(*, quiet: bool) -> Iterator[Report]:
    """Show progress on stderr by a callback ``(stage, done, total)`` while the context lasts.

    Parameters
    ----------
    quiet
        Show nothing.

    Yields
    ------
    callable
        May be called from any thread, as often as the work likes. Raises KeyboardInterrupt where a
        request to end was swallowed.
    """
    if quiet:
        yield _silent
    elif stderr.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            _RateColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=stderr) as bars:
            yield _Bars(bars)
    else:
        yield Lines()


def _silent(_stage: str, _done: int, _total: int) -> None:
    pass


class Lines:
    """Progress as lines without control characters, at most one every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._stage = ""
        self._began = clock()
        self._printed = self._began - LINE_INTERVAL_S  # the first line is a sign of life
        self._first = 0

    def __call__(self, stage: str, done: int, total: int) -> None:
        """Print a line, unless the last one is too recent."""
        with self._lock:
            now = self._clock()
            if stage != self._stage:
                self._stage, self._began, self._first = stage, now, done
            if now - self._printed < LINE_INTERVAL_S:
                return
            self._printed = now
            line = f"{stage}: {done:,} of {total:,}"
            if now > self._began and done > self._first:
                rate = (done - self._first) / (now - self._began)
                left_s = (total - done) / rate
                line += f", {_compact(rate)}/s, {left_s:.0f} s left"
        stderr.print(Text(line), soft_wrap=True)


class _Bars:
    """Progress as one bar a stage; the bars of past stages stay, full."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        with self._lock:
            task = self._tasks.get(stage)
            if task is None:
                task = self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(task, completed=done, total=total)


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(f"{_compact(speed)}/s" if speed else "")


def _compact(number: float) -> str:
    """Three digits and a power of thousand: 1234567 is 1.23M."""
    for unit in ("", "k", "M", "G", "T"):
        if number < 999.5 or unit == "T":
            break
        number /= 1000
    return f"{number:.3g}{unit}"
