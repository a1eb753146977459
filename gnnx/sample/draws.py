"""What batches draw from a graph on disk, found for a window of batches at a time, ahead of them.

A sample is a pure function of its step. So one thread draws for the W batches of a window hop by
hop: it marks the pages that the hop's draws of all of them come from, sweeps over these once in the
order of the file, and hands the sources to each batch. A hop costs one pass over the file at most,
where W batches on their own would read most of its pages W times. What a batch has drawn waits for
it in memory or in a scratch file, one range a hop: sampling the batch reads no page again.

Letters: E edges drawn by a hop, N nodes, W batches.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import logging
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from gnnx import threads
from gnnx.errors import BudgetError, GnnxError, ResourceError, RunError
from gnnx.memory import Tier
from gnnx.sample import _kernels
from gnnx.store import Pending, ScratchRows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from gnnx.random import Key
    from gnnx.store import Dataset
    from gnnx.store.topology import Stretch

# sources taken from a stretch at a time, of 12 bytes a thread: at most 384 KiB
_LARGEST_PIECE, _SMALLEST_PIECE, _PIECE_SHARE = 1 << 15, 1 << 8, 64
_MOST_WINDOWS = 2  # one is used while one is drawn
_log = logging.getLogger("gnnx")


class Drawn:
    """The sources that one batch draws, on their way.

    Parameters
    ----------
    hops
        What the batches of its window draw.
    index
        Which of them it is.
    """

    def __init__(self, hops: Sequence[_Hop], index: int) -> None:
        self._hops = [hop.fetch(index, index + 1) for hop in hops]

    def sources(self, layer: int) -> NDArray[Any]:
        """Give the sources of a hop.

        Parameters
        ----------
        layer
            0 at the seeds.

        Returns
        -------
        ndarray
            (E,) of the graph's `index_dtype`; row after row, the destinations ascending.
        """
        sources: NDArray[Any] = self._hops[layer].wait().numpy()
        return sources


class Draws:
    """The draws of batches, as a `NeighborSampler` makes them.

    Parameters
    ----------
    dataset
        Whose graph, with the row pointers in RAM; its readers and ledger serve.
    fanouts
        As of the sampler.
    batch
        Seeds of a step, (B,) int64, and its key.
    windows
        Steps of each window, from `first_step` on.
    on_disk
        Whether what was drawn waits in a scratch file, not in memory.
    buffer_bytes
        HOST bytes that reading may take.
    timeout_s
        Time limit of a wait, in seconds.
    first_step
        The first step to be sampled.

    Attributes
    ----------
    bytes_written : int
        To scratch files, so far.

    Raises
    ------
    DataError
        The row pointers are damaged.
    """

    def __init__(
        self,
        dataset: Dataset,
        fanouts: Sequence[int],
        batch: Callable[[int], tuple[NDArray[np.int64], Key]],
        windows: Iterable[int],
        *,
        on_disk: bool,
        buffer_bytes: int,
        timeout_s: float,
        first_step: int = 0,
    ) -> None:
        self._dataset, self._graph = dataset, dataset.graph
        self._pointers = dataset.graph.pointers()
        self._fanouts, self._batch = tuple(fanouts), batch
        self._on_disk, self._buffer_bytes, self._timeout_s = on_disk, buffer_bytes, timeout_s
        self._windows = list(windows)
        self._changed = threading.Condition()
        self._spans: collections.deque[_Span] = collections.deque()
        self._num_covered = self._num_wanted = first_step
        self._stage = "waiting to begin"
        self._stopped = False
        self.bytes_written = 0
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="gnnx-draws", daemon=True)
        self._thread.start()

    def of(self, step: int) -> Drawn | None:
        """Give what a step draws; waits until it is there.

        Parameters
        ----------
        step
            Of those that are not done.

        Returns
        -------
        Drawn or None
            None where the step's batch draws for itself.

        Raises
        ------
        CancelledError
            Nobody wants the batch any more.
        RunError
            Time is up.
        """
        with self._changed:
            self._num_wanted = max(self._num_wanted, step + 1)
            self._changed.notify_all()
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
                    f"{self._stage} has not ended within {self._timeout_s:g} s",
                    "Check that the disk answers; a larger timeout_s waits longer.",
                )
            span = next(span for span in self._spans if step < span.end)
        return Drawn(span.hops, step - span.begin) if span.hops else None

    def is_ready(self, step: int) -> bool:
        """Whether `of` would not wait."""
        return step < self._num_covered

    def done(self, step: int) -> None:
        """Tell that the batches up to a step are sampled."""
        with self._changed:
            while self._spans and self._spans[0].end <= step + 1:
                self._drop(self._spans.popleft())
            self._changed.notify_all()

    def stop(self) -> None:
        """Let nobody wait any longer: whoever is in `of` gets a CancelledError."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def close(self) -> None:
        """Stop, wait for the thread, give back what was drawn; no batch is being sampled."""
        self.stop()
        self._thread.join(self._timeout_s)
        if self._thread.is_alive():
            _log.warning("%s has not ended within %g s", self._stage, self._timeout_s)
        with self._changed:
            while self._spans:
                self._drop(self._spans.popleft())
            self._error = None  # its traceback holds frames, and they hold arrays

    @staticmethod
    def _drop(span: _Span) -> None:
        for hop in span.hops:
            hop.close()

    def _work(self) -> None:
        """Draw one window after the other, in the thread."""
        windows, steps = collections.deque(self._windows), 0
        try:
            while windows and self._may_begin():
                steps = windows.popleft()
                try:
                    self._publish(steps, self._draw(steps))
                except BudgetError:
                    if steps == 1:
                        raise
                    windows.extendleft([steps - steps // 2, steps // 2])
        except concurrent.futures.CancelledError:
            pass  # nobody waits any longer
        except ResourceError as error:  # batches can draw for themselves
            _log.warning("Batches draw for themselves in this epoch: %s", error.cause)
            self._publish(steps + sum(windows), ())
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _may_begin(self) -> bool:
        """Wait until a window may be drawn; False where it stops."""
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self._stopped
                    or len(self._spans) < _MOST_WINDOWS
                    or self._num_wanted > self._num_covered
                )
            )
            return not self._stopped

    def _publish(self, steps: int, hops: Sequence[_Hop]) -> None:
        with self._changed:
            begin, end = self._num_covered, self._num_covered + steps
            self._spans.append(_Span(begin, end, hops))
            self._num_covered = end
            self._changed.notify_all()

    def _draw(self, steps: int) -> list[_Hop]:
        """Draw for the next so many batches."""
        begin = self._num_covered
        self._stage = f"taking the seeds of {steps} steps"
        seeds, keys = zip(*(self._batch(begin + i) for i in range(steps)), strict=True)
        self._stage = f"drawing for steps {keys[0].step} to {keys[-1].step}"
        nodes = list(map(self._frontier, seeds))
        hops: list[_Hop] = []
        try:
            for layer, fanout in enumerate(self._fanouts):
                states = [np.uint64(key._replace(layer=layer).fold()) for key in keys]
                turn = _Turn(nodes, fanout, states)
                wanted, ends = self._mark(turn)
                hops.append((_OnDisk if self._on_disk else _InMemory)(self._dataset, ends))
                self._hand_out(turn, wanted, ends, hops[-1])
                if layer + 1 < len(self._fanouts):
                    self._grow(nodes, hops[-1])
        except BaseException:
            for hop in hops:
                hop.close()
            raise
        self.bytes_written += sum(hop.bytes_written for hop in hops)
        return hops

    def _mark(self, turn: _Turn) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Pages that a hop draws from, and where the draws of each batch end, (W + 1,)."""
        graph, steps = self._graph, len(turn.nodes)
        wanted = graph.ledger.empty(graph.num_pages, np.bool_, Tier.HOST, "sampler")
        wanted[:] = False
        ends = np.zeros(steps + 1, np.int64)

        def mark(first: int, last: int) -> None:
            row = self._row(turn.fanout)
            for i in range(first, last):
                self._go_on()
                ends[i + 1] = _kernels.mark_pages(
                    *turn.of(i), self._pointers, graph.page_entries, row, wanted
                )

        threads.run(mark, steps)
        return wanted, np.cumsum(ends, out=ends)

    def _hand_out(
        self, turn: _Turn, wanted: NDArray[np.bool_], ends: NDArray[np.int64], hop: _Hop
    ) -> None:
        """Sweep over the wanted pages, and let each batch draw from what comes."""
        graph, steps = self._graph, len(turn.nodes)
        most = max(_SMALLEST_PIECE, min(self._buffer_bytes // _PIECE_SHARE, _LARGEST_PIECE))
        at, filled = np.zeros((steps, 2), np.int64), ends.copy()

        def take(stretch: Stretch, first: int, last: int) -> None:
            row = self._row(turn.fanout)
            positions = graph.ledger.empty(most, np.int64, Tier.HOST, "sampler")
            piece = graph.ledger.empty(most, graph.index_dtype, Tier.HOST, "sampler")
            for i in range(first, last):
                self._go_on()
                size = most
                while size == most:
                    size = _kernels.draw_before(
                        *turn.of(i),
                        self._pointers,
                        row,
                        at[i],
                        stretch.begin,
                        stretch.end,
                        stretch.sources,
                        positions,
                        piece,
                    )
                    graph.check_sources(piece[:size])
                    hop.write(int(filled[i]), piece[:size])
                    filled[i] += size

        for stretch in graph.sweep(wanted, self._buffer_bytes):
            threads.run(functools.partial(take, stretch), steps)

    def _go_on(self) -> None:
        """Raise where nobody waits any longer."""
        if self._stopped:
            raise concurrent.futures.CancelledError

    def _row(self, fanout: int) -> NDArray[np.int64]:
        """Scratch of the draws of one row."""
        return self._graph.ledger.empty(max(1, fanout), np.int64, Tier.HOST, "sampler")

    def _frontier(self, ids: NDArray[Any]) -> NDArray[Any]:
        """Nodes that draw, ascending."""
        nodes = self._graph.ledger.empty(len(ids), self._graph.index_dtype, Tier.HOST, "sampler")
        nodes[:] = ids
        nodes.sort()
        return nodes

    def _grow(self, nodes: list[NDArray[Any]], hop: _Hop) -> None:
        """Add the sources of a hop to the nodes that draw in the next one."""
        ledger = self._graph.ledger

        def grow(first: int, last: int) -> None:
            drawn, ends = hop.fetch(first, last).wait().numpy(), hop.ends - hop.ends[first]
            for i in range(first, last):
                self._go_on()
                sources, count = drawn[ends[i] : ends[i + 1]], len(nodes[i])
                known = ledger.empty(count + len(sources), drawn.dtype, Tier.HOST, "sampler")
                known[:count], known[count:] = nodes[i], sources
                known.sort()
                known = known[: _kernels.distinct(known)]
                nodes[i] = ledger.empty(len(known), drawn.dtype, Tier.HOST, "sampler")
                nodes[i][:] = known

        threads.run(grow, len(nodes))


class _Span(NamedTuple):
    """Steps from `begin` to before `end`, and what they draw; nothing where they do themselves."""

    begin: int
    end: int
    hops: Sequence[_Hop]


class _Turn(NamedTuple):
    """One hop of the batches of a window."""

    nodes: list[NDArray[Any]]
    """Of each batch, those that draw, ascending."""
    fanout: int
    states: list[np.uint64]
    """Keys of the draws."""

    def of(self, index: int) -> tuple[Any, Any, Any]:
        """First arguments of the kernels that draw for a batch."""
        return self.nodes[index], self.fanout, self.states[index]


class _InMemory:
    """Sources of a hop, those of batch i at ``ends[i]:ends[i + 1]``."""

    bytes_written = 0

    def __init__(self, dataset: Dataset, ends: NDArray[np.int64]) -> None:
        self.ends, dtype = ends, dataset.graph.index_dtype
        self._sources = dataset.ledger.empty(int(ends[-1]), dtype, Tier.HOST, "sampler")

    def write(self, at: int, sources: NDArray[Any]) -> None:
        self._sources[at : at + len(sources)] = sources

    def fetch(self, first: int, last: int) -> Pending:
        """Begin to bring the sources of some batches."""
        return Pending(torch.from_numpy(self._sources[self.ends[first] : self.ends[last]]))

    def close(self) -> None:
        del self._sources


class _OnDisk:
    """The same in a scratch file."""

    def __init__(self, dataset: Dataset, ends: NDArray[np.int64]) -> None:
        self.ends = ends
        dtype = torch.int32 if dataset.graph.index_dtype == np.int32 else torch.int64
        self._rows = ScratchRows(dataset, max(1, int(ends[-1])), (), dtype)
        self.bytes_written = int(ends[-1]) * dtype.itemsize
        self._reads: list[Pending] = []  # under way, whoever else has forgotten them
        self._lock = threading.Lock()

    def write(self, at: int, sources: NDArray[Any]) -> None:
        self._rows.write_range(at, torch.from_numpy(sources))

    def fetch(self, first: int, last: int) -> Pending:
        pending = self._rows.fetch_range(int(self.ends[first]), int(self.ends[last]))
        with self._lock:
            self._reads = [read for read in self._reads if not read.done()]
            self._reads.append(pending)
        return pending

    def close(self) -> None:
        with self._rows:  # the file is closed when nobody reads it
            for read in self._reads:
                with contextlib.suppress(GnnxError):
                    read.wait()
            self._reads.clear()


_Hop = _InMemory | _OnDisk
