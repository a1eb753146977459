"""Windows of batches, made ahead of those that use them, by a thread of their own.

A sample is a pure function of its step, so the rows of a step can be known before its batch is
made. One thread takes the steps in order: it finds what each wants, gathers steps to a window until
that is full, brings the window's rows, and goes on when one of the two windows that may exist is
used up. It decides when rows are read and how often, never which rows a batch has.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import gc
import logging
import threading
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gnnx.cache.packs import PackedWindow
from gnnx.cache.staging import Pool, StagedWindow
from gnnx.cache.strategy import lengths
from gnnx.errors import ResourceError, RunError
from gnnx.store import DiskFeatures

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from gnnx.cache.features import FeatureCache
    from gnnx.cache.strategy import Strategy
    from gnnx.store import Dataset, FeatureStore, Pending, ScratchFile

_MOST_WINDOWS = 2  # one is used while one is made
_compiled: set[type[Window]] = set()  # kinds that this process has made before
_log = logging.getLogger("gnnx")


class Window(Protocol):
    """Rows of consecutive batches, gathered first, then brought, then handed out."""

    rows_read: int
    """Distinct rows that came from the source."""

    @property
    def rows_packed(self) -> int:
        """Rows written to disk."""

    @property
    def rows_served(self) -> int:
        """Rows that batches have found here."""

    def add(self, ids: NDArray[np.int64]) -> bool:
        """Take in what the next batch misses; False where it does not fit."""
        ...

    def read(self) -> None:
        """Bring the rows."""

    def store(self, index: int) -> FeatureStore:
        """Tell where a batch of the window finds its rows."""
        ...

    def done(self, index: int) -> None:
        """Tell that a batch of the window, and those before, have their rows."""

    def close(self) -> None:
        """Give back what memory does not give back by itself."""


@dataclasses.dataclass(frozen=True, slots=True)
class WindowCounts:
    """What windows did."""

    windows: int = 0
    """Windows that were made."""
    rows_read: int = 0
    """Rows that windows brought from the source, distinct in each."""
    rows_staged: int = 0
    """Rows that batches found in windows in memory."""
    rows_packed: int = 0
    """Rows written to packs."""
    rows_unpacked: int = 0
    """Rows read back from packs."""

    def __add__(self, other: WindowCounts) -> WindowCounts:
        """Add up what two sets of windows did."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return WindowCounts(*(one + another for one, another in pairs))

    def __sub__(self, other: WindowCounts) -> WindowCounts:
        """Tell what windows did between two readings."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return WindowCounts(*(one - another for one, another in pairs))


class _Span(NamedTuple):
    """Steps from `begin` to before `end`, and their window; None where rows come one by one."""

    begin: int
    end: int
    window: Window | None


class Lookahead:
    """Fetches the rows of batches, through windows where the strategy has some.

    Parameters
    ----------
    dataset
        Whose readers and ledger serve.
    features
        Rows that stay, and the source behind them.
    strategy
        What to do.
    wanted
        Distinct rows that a step wants, (R,) int64.
    num_steps
        The step after the last one.
    timeout_s
        Time limit of a wait, in seconds.
    first_step
        The first step to be fetched.
    epoch_steps
        Steps of an epoch, where they are counted on from one to the next; no window spans two.
    """

    def __init__(
        self,
        dataset: Dataset,
        features: FeatureCache,
        strategy: Strategy,
        wanted: Callable[[int], NDArray[np.int64]],
        num_steps: int,
        timeout_s: float,
        *,
        first_step: int = 0,
        epoch_steps: int | None = None,
    ) -> None:
        self._epoch_steps = epoch_steps or max(1, num_steps)
        self._dataset, self._features, self._strategy = dataset, features, strategy
        self._wanted, self._num_steps, self._timeout_s = wanted, num_steps, timeout_s
        self._changed = threading.Condition()
        self._spans: collections.deque[_Span] = collections.deque()
        self._files: list[ScratchFile] = []  # of packs that are done with, for the next ones
        self._ended = False  # whether there are no next ones
        self._num_covered = self._num_asked = first_step
        self._stage = "waiting to begin"
        self._stopped = False
        self._error: BaseException | None = None
        self._counts = WindowCounts()
        self._thread: threading.Thread | None = None
        if strategy.kind == "rows":
            self._publish(_Span(first_step, num_steps, None))
        else:
            self._thread = threading.Thread(target=self._work, name="gnnx-ahead", daemon=True)
            self._thread.start()

    def fetch(self, step: int, rows: NDArray[np.int64], out: torch.Tensor) -> Pending:
        """Begin to bring the rows of a step; waits until its window is there.

        Parameters
        ----------
        step
            The step.
        rows
            (R,) int64, what the step wants.
        out
            (R, ...), where they go.

        Returns
        -------
        Pending
            As of `FeatureCache.fetch`.

        Raises
        ------
        CancelledError
            Nobody wants the batch any more.
        RunError
            Time is up.
        """
        with self._changed:
            self._num_asked = max(self._num_asked, step + 1)
            done = self._changed.wait_for(
                lambda: self._stopped or self._error is not None or self.is_ready(step),
                self._timeout_s,
            )
            if self._stopped:
                raise concurrent.futures.CancelledError
            if self._error is not None and not self.is_ready(step):
                raise self._error
            if not done:
                raise RunError(
                    f"step {step % self._epoch_steps}: {self._stage} has not ended within "
                    f"{self._timeout_s:g} s",
                    "Check that the disk answers; a larger timeout_s waits longer.",
                )
            span = next(span for span in self._spans if step < span.end)
        beneath = None if span.window is None else span.window.store(step - span.begin)
        return self._features.fetch(rows, out, beneath=beneath)

    def is_ready(self, step: int) -> bool:
        """Whether `fetch` of the step would not wait."""
        return step < self._num_covered

    def done(self, step: int) -> None:
        """Tell that the rows of a step, and of those before, are in place."""
        with self._changed:
            while self._spans and self._spans[0].begin <= step:
                span = self._spans[0]
                if span.window is not None:
                    span.window.done(min(step + 1, span.end) - 1 - span.begin)
                if step + 1 < span.end:
                    break
                self._drop(self._spans.popleft())
            self._changed.notify_all()

    def stop(self) -> None:
        """Let nobody wait any longer: whoever is in `fetch` gets a CancelledError."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    @property
    def counts(self) -> WindowCounts:
        """What the windows did so far that batches were asked of."""
        with self._changed:
            used = [span for span in self._spans if span.begin < self._num_asked]
            return sum(map(_counts_of, used), self._counts)

    def close(self) -> WindowCounts:
        """Stop, wait for the thread, give back what the windows hold; no batch is under way."""
        self.stop()
        if self._thread is not None:
            self._thread.join(self._timeout_s)
            if self._thread.is_alive():
                _log.warning("%s has not ended within %g s", self._stage, self._timeout_s)
        with self._changed:
            while self._spans:
                self._drop(self._spans.popleft())
            self._error = None  # its traceback holds frames, and they hold rows
            self._close_files()
            return self._counts

    def _drop(self, span: _Span) -> None:
        """Count what a window did and give back what it holds."""
        self._counts += _counts_of(span)
        if span.window is not None:
            span.window.close()
        if self._ended:
            self._close_files()

    def _close_files(self) -> None:
        while self._files and not self._dataset.io.is_dead:  # else a write is stuck in one
            self._files.pop().close()

    def _publish(self, span: _Span) -> None:
        with self._changed:
            self._spans.append(span)
            self._num_covered = span.end
            self._changed.notify_all()

    def _work(self) -> None:
        """Make windows one after the other, in the thread."""
        try:
            pool = self._new_pool()
            window = None
            while self._num_covered < self._num_steps and self._may_begin():
                left = self._num_steps - self._num_covered
                left = min(left, self._epoch_steps - self._num_covered % self._epoch_steps)
                end = self._num_covered + next(lengths(self._strategy.steps, left))
                window = self._make(self._num_covered, end, window, pool)
        except ResourceError as error:  # batches can do without windows
            _log.warning("No windows for the rest of the epoch: %s", error.cause)
            self._publish(_Span(self._num_covered, self._num_steps, None))
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()
        finally:
            with self._changed:
                self._ended = True
                self._close_files()

    def _may_begin(self) -> bool:
        """Wait until a window may be made, as long as the consumer takes; False where it stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or len(self._spans) < _MOST_WINDOWS)
            return not self._stopped

    def _make(
        self, begin: int, last: int, before: Window | None, pool: Pool | None
    ) -> Window | None:
        """Make the window of steps `begin` to `last`, or as many as fit, and publish it."""
        window, end = self._new(before, pool), begin
        while end < last and not self._stopped:
            self._stage = f"finding the rows of step {end % self._epoch_steps}"
            if not window.add(self._missing(end)):
                break
            end += 1
        if end == begin:  # not even one batch: it reads for itself
            self._publish(_Span(begin, begin + 1, None))
            return before
        first = begin % self._epoch_steps
        self._stage = f"reading the rows of steps {first} to {first + end - 1 - begin}"
        try:
            window.read()
        except BaseException:
            window.close()
            raise
        self._publish(_Span(begin, end, window))
        if type(window) not in _compiled:
            _compiled.add(type(window))
            gc.collect()  # compiling kernels leaves arrays in cycles, which the next one lacks
        return window

    def _new_pool(self) -> Pool | None:
        """Take the places that windows in memory share."""
        plan, source = self._strategy, self._features.source
        if plan.kind != "windows":
            return None
        return Pool(
            source, plan.num_rows, self._dataset.ledger, self._changed, lambda: self._stopped
        )

    def _new(self, before: Window | None, pool: Pool | None) -> Window:
        features, plan = self._features, self._strategy
        if pool is not None:
            last = before if isinstance(before, StagedWindow) else None
            return StagedWindow(pool, plan.id_bytes, last)
        assert isinstance(features.source, DiskFeatures)  # packs are for rows on disk
        return PackedWindow(
            self._dataset, features.source, plan.steps, plan.num_rows, plan.id_bytes,
            self._files, lambda: self._stopped,
        )  # fmt: skip

    def _missing(self, step: int) -> NDArray[np.int64]:
        """Rows of a step that do not stay."""
        rows = self._wanted(step)
        if not self._features.is_filled:
            return rows
        kept = self._features.rows
        return kept.absent(rows, None, kept.lacks(rows))[0]


def _counts_of(span: _Span) -> WindowCounts:
    window = span.window
    if window is None:
        return WindowCounts()
    served, is_pack = window.rows_served, isinstance(window, PackedWindow)
    return WindowCounts(
        windows=1,
        rows_read=window.rows_read,
        rows_staged=0 if is_pack else served,
        rows_packed=window.rows_packed,
        rows_unpacked=served if is_pack else 0,
    )
