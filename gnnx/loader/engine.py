"""The mini-batch engine: from an epoch's order to complete batches, prepared while one computes.

Shapes: N nodes, E edges, B seeds, S sources of a batch's first block. A batch is a pure function of
(seed, epoch, step): cache, topology in RAM or on disk, threads and prefetching change when it is
ready, never what is in it.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import functools
import logging
import os
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch

from gnnx import ops, threads
from gnnx.cache import (
    BeladyBound,
    Demands,
    DrawPlan,
    Lookahead,
    Strategy,
    WindowCounts,
    arrange,
)
from gnnx.errors import BudgetError, GnnxError, RunError, UsageError
from gnnx.graph import MiniBatch
from gnnx.loader.ahead import Ahead
from gnnx.loader.seeds import EveryNode, Seeds
from gnnx.loader.union import edge_union
from gnnx.memory import Tier
from gnnx.partition import Partition
from gnnx.random import Key, permute
from gnnx.sample import (
    Clusters,
    ClusterSampler,
    Draws,
    EdgeValues,
    NeighborSampler,
    ValuedSampler,
)
from gnnx.store import fetch_values

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from gnnx.cache import FeatureCache
    from gnnx.cache.features import AccessCounts
    from gnnx.cache.strategy import Kind
    from gnnx.loader.seeds import Split
    from gnnx.loader.trace import Trace
    from gnnx.store import Dataset, Pending

_KINDS: dict[str | None, tuple[Kind, ...]] = {
    "auto": ("rows", "windows", "packs"),
    "windows": ("windows",),
    "packs": ("packs",),
    None: ("rows",),
}
_CLUSTER_ROW_BYTES, _CLUSTER_EDGE_BYTES = 24, 16  # scratch of `ClusterSampler`, rounded up
_ONE_BY_ONE = Strategy("rows", 0, 1, 0, 0, 0.0)
_log = logging.getLogger("gnnx")


@dataclasses.dataclass(frozen=True, slots=True)
class EpochStats:
    """What an epoch of a loader did, also one that was left early."""

    sample_s: float
    """Seconds of sampling, summed over the batches; those side by side count each."""
    fetch_s: float
    """Seconds of bringing rows to the batches, waits for windows included, summed over the batches,
    and seconds in which the disk was reading, for whatever stage."""
    wait_s: float
    """Seconds in which the consumer waited for a batch."""
    rows_requested: int
    """Feature rows of all batches."""
    rows_hit: int
    """Those of them that HOST memory had: rows that stay, and rows that a window in memory had read
    for another batch."""
    rows_from_packs: int
    """Those of them that were read back from packs."""
    rows_from_disk: int
    """Rows read from the file of features; a window reads a row once for all of its batches, and
    counts in their epoch."""
    rows_least: int | None
    """Estimate of the rows from disk, packs included, that no cache of as many HOST bytes could
    have spared, which begins with the rows that stay, and with any others in the place of windows
    in memory: Belady's rule (`gnnx.cache.BeladyBound`). None where all rows stay, where the budget
    does not hold a bound, and of a pass over a part of the epoch."""
    feature_read_bytes: int
    """Bytes of the reads of them: whole blocks, and gaps where reading on was cheaper. Also those
    made while the epoch before ran."""
    feature_reads: int
    """Reads from the file of features."""
    disk_read_bytes: int
    """Bytes read from the disk, in whole blocks: features, packs, topology, draws, labels."""
    disk_written_bytes: int
    """Bytes of rows written to packs, and of what was drawn ahead."""
    windows: int
    """Windows that rows were read for."""
    fill_bytes: int
    """Bytes of rows read before the epoch to fill the cache; not in `disk_read_bytes`."""
    steps: int
    """Batches handed out."""

    def __add__(self, other: EpochStats) -> EpochStats:
        """Join what two passes over parts of an epoch did."""
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        joined: list[Any] = [None if None in pair else sum(pair) for pair in pairs]
        return EpochStats(*joined)


class Loader:
    """Mini-batches of a split, an epoch a ``for`` loop, prepared while the current one computes.

    The order of an epoch is a keyed permutation of the split, and the sample of a step is keyed by
    (seed, epoch, step). An epoch that is left early is the same when it is begun again, and one can
    be begun at any step: no batch before it is prepared.

    HOST memory is shared out (`plan`) when the first epoch begins: what the batches leave keeps
    the topology, then the feature rows that are expected to be wanted most. The rows of the others
    are read a batch at a time, or for a window of batches to come, whatever costs the disk least
    (`gnnx.cache.choose`). Where the sources of the graph do not all stay, batches draw together, a
    window at a time (`gnnx.sample.Draws`).

    Parameters
    ----------
    dataset
        Opened with the budget to keep.
    fanouts
        Neighbours drawn of every node, the seeds' layer first; -1 is all.
    batch_size
        B; the last batch of an epoch may be smaller. `clusters_per_batch` makes it of no account.
    split
        ``"train"``, ``"val"``, ``"test"``, or distinct node ids.
    seed
        Of order and samples.
    shuffle
        Permute the split anew every epoch.
    drop_last
        Leave out a last batch that is smaller than the others.
    degrees
        Blocks carry degrees and loops of the whole graph.
    edge_index
        Batches carry `MiniBatch.edge_index`; blocks then carry `Block.e_id` as well.
    edge_ids
        Blocks carry `Block.e_id`.
    clusters_per_batch
        Make batches of so many parts of the dataset and all edges among their nodes, as
        `ClusterSampler` does; `fanouts` then say by their length how many layers there are.
    edge_weight
        Blocks carry `Block.edge_weight`, and `Block.src_strength`.
    edge_attr
        Blocks carry `Block.edge_attr`.
    cache
        ``"expected"``, or None to read every row from the disk, a batch at a time.
    lookahead
        How rows that do not stay are read: ``"auto"``, ``"windows"`` (in memory), ``"packs"`` (on
        disk), where the budget holds them; None is a batch at a time, in drawing as well.
    prefetch
        Batches prepared beside the current one, at most; fewer where a budget is short.
    device
        Where batches are handed out.
    timeout_s
        Time limit of one batch, in seconds.

    Attributes
    ----------
    epoch : int
        Epochs run to their end; set it to go on from there.
    step : int
        Step that the next pass begins with; set it to go on inside an epoch. It is 0 again when
        that pass has begun.
    until : int
        Epochs that are going to be run, one after the other, with memory as it is: what they want
        is looked for before they begin. By default none but the one that runs; `leave` says that
        there are no more.
    trace : Trace or None
        What is told when batches were sampled, fetched and waited for.

    Raises
    ------
    UsageError
        An argument is wrong.
    DataError
        The data set has no features.
    """

    def __init__(  # noqa: PLR0913 - what a user may want of batches
        self,
        dataset: Dataset,
        fanouts: Sequence[int],
        batch_size: int,
        *,
        split: Split | torch.Tensor | NDArray[np.int64] = "train",
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        degrees: bool = False,
        edge_index: bool = False,
        edge_ids: bool = False,
        clusters_per_batch: int | None = None,
        edge_weight: bool = False,
        edge_attr: bool = False,
        cache: Literal["expected"] | None = "expected",
        lookahead: Literal["auto", "windows", "packs"] | None = "auto",
        prefetch: int = 2,
        device: torch.device | str = "cpu",
        timeout_s: float = 300.0,
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batches of {batch_size} seeds", "Give a batch size of at least 1.")
        if prefetch < 0:
            raise UsageError(f"{prefetch} batches prefetched", "Give 0 or more.")
        if cache not in {"expected", None}:
            raise UsageError(f"cache {cache!r} is unknown", 'Give "expected" or None.')
        if lookahead not in _KINDS:
            raise UsageError(f"lookahead {lookahead!r} is unknown", f"Give one of {tuple(_KINDS)}.")
        self.dataset, self.fanouts, self.batch_size = dataset, tuple(fanouts), batch_size
        self.seed, self.shuffle, self.drop_last = seed, shuffle, drop_last
        self.cache, self.lookahead = cache, lookahead
        self.prefetch, self.timeout_s = prefetch, timeout_s
        self.device = torch.device(device)
        self.epoch = self.step = self.until = 0
        self.trace: Trace | None = None
        self._current: _Epoch | None = None
        self._left: Ahead | None = None  # what was made for epochs to come
        self._degrees, self._edge_index, self._edge_ids = degrees, edge_index, edge_ids
        self._split, self._edge_weight, self._edge_attr = split, edge_weight, edge_attr
        self._clusters_per_batch = clusters_per_batch
        self._ledger = dataset.ledger
        ops.keep_results_within(dataset.ledger)
        self._seeds = Seeds(dataset, split)
        self._clusters = self._clusters_of(clusters_per_batch)
        self._values = (
            EdgeValues(dataset, weight=edge_weight, attr=edge_attr)
            if edge_weight or edge_attr
            else None
        )
        self._new_sampler = self._sampler_of(edge_ids or edge_index or self._values is not None)
        self._sampler = self._new_sampler()
        self._features: Any = None
        self._strategy = _ONE_BY_ONE
        self._draws: DrawPlan | None = None
        self._bound: BeladyBound | None = None
        self._filled = 0  # bytes read to fill the cache, of those that a report has shown
        self._ahead = prefetch  # batches beside the current one, as the budgets allow
        self._crowded = False  # whether HOST holds a batch only without the cache

    def __len__(self) -> int:
        """Batches of an epoch."""
        if self._clusters is not None:
            return len(self._clusters)
        whole, rest = divmod(self._seeds.count, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def __iter__(self) -> Generator[MiniBatch, None, None]:
        """Run one epoch, from `step` on."""
        first, self.step = self.step, 0
        if not 0 <= first <= len(self):
            raise UsageError(
                f"step {first} of an epoch of {len(self)} steps", f"Begin at 0 to {len(self)}."
            )
        features = self.features
        if not self._crowded:
            try:
                features.fill()
            except BudgetError as error:  # somebody holds what was free when it was shared out
                _log.warning(
                    "The feature cache stays empty in epoch %d: %s", self.epoch, error.cause
                )
        epoch = _Epoch(self.epoch, first, len(self), self.dataset, features, self._bound)
        return self._run(epoch)

    @property
    def stats(self) -> EpochStats | None:
        """What the last pass did, so far where it is under way; None before the first."""
        return None if self._current is None else self._current.stats()

    @property
    def features(self) -> FeatureCache:
        """The features behind the cache; made when first asked for."""
        if self._features is None:
            self._features = self._arrange()
        features: FeatureCache = self._features
        return features

    def _sampler_of(self, edge_ids: bool) -> Callable[[], Any]:
        """Open features and edges; what makes a sampler."""
        graph = self.dataset.graph  # first: of a typed data set it tells what to do
        self._source = self.dataset.features
        carried = {"degrees": self._degrees, "edge_ids": edge_ids}
        plain: Callable[[], NeighborSampler | ClusterSampler]
        if self._clusters is not None:
            num_layers = len(self.fanouts)
            plain = functools.partial(ClusterSampler, graph, self._clusters, num_layers, **carried)
        else:
            plain = functools.partial(NeighborSampler, graph, self.fanouts, **carried)
        values = self._values
        return plain if values is None else lambda: ValuedSampler(plain(), values)

    def _clusters_of(self, clusters_per_batch: int | None) -> Clusters | None:
        if clusters_per_batch is None:
            return None
        offsets = Partition(self.dataset).offsets
        return Clusters(offsets, self._seeds.count_in_ranges(offsets), clusters_per_batch)

    @contextlib.contextmanager
    def lent(self) -> Iterator[None]:
        """Lend memory to an evaluation: where HOST is short, what rows and scratch hold.

        Pieces want room: rows that are kept serve them only where they leave half of it. The next
        epoch reads what was given up again.
        """
        free, budget = self._ledger.free_bytes(Tier.HOST), self._ledger.budget.host
        is_short = free is not None and budget is not None and 2 * free < budget
        with self.released() if is_short else contextlib.nullcontext():
            yield

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Lend what rows and scratch hold to others; the next epoch reads the rows again."""
        self.leave()
        if self._features is not None:
            self._features.release()
        self._sampler = self._new_sampler()
        yield

    def leave(self) -> None:
        """Run no more epochs: gives back what was made ahead for them; nothing where none was."""
        self.until, left, self._left = 0, self._left, None
        if left is not None and left.is_own:
            left.close()

    def alone(self) -> Loader:
        """Make a loader of the same batches, one at a time, that keeps nothing in memory."""
        return Loader(
            self.dataset,
            self.fanouts,
            self.batch_size,
            split=self._split,
            seed=self.seed,
            shuffle=self.shuffle,
            drop_last=self.drop_last,
            degrees=self._degrees,
            edge_index=self._edge_index,
            edge_ids=self._edge_ids,
            cache=None,
            lookahead=None,
            prefetch=0,
            device=self.device,
            timeout_s=self.timeout_s,
            clusters_per_batch=self._clusters_per_batch,
            edge_weight=self._edge_weight,
            edge_attr=self._edge_attr,
        )

    def _arrange(self) -> FeatureCache:
        """Share out HOST memory, and keep in it what the plan says."""
        if self._degrees:  # the bitmap of loops is taken for good
            self.dataset.graph.has_loop(np.empty(0, np.int64))
        arranged = arrange(self.dataset, self.demands)
        if arranged.keep_seeds:
            self._seeds.keep(self._ledger)
        self._strategy, self._draws = arranged.strategy, arranged.draws
        self._bound = arranged.bound
        return arranged.features

    @property
    def demands(self) -> Demands:
        """What the batches are made of, as far as memory goes."""
        demands = Demands(
            seeds=self._seeds.source,
            seeds_bytes=self._seeds.num_bytes,
            fanouts=self.fanouts,
            batch_size=self.batch_size,
            num_steps=len(self),
            num_batches=max(1, self.prefetch) + (self.lookahead is not None),
            keep_rows=self.cache is not None,
            kinds=_KINDS[self.lookahead],
            draw_ahead=self.lookahead is not None,
        )
        if self._clusters is not None:  # each row is wanted once an epoch, with its neighbours
            return dataclasses.replace(
                demands,
                seeds=EveryNode(self.dataset.num_nodes),
                fanouts=(),
                draw_ahead=False,
                batch_size=self._clusters.num_nodes,
                kinds=("rows",),
                scratch_bytes=_CLUSTER_ROW_BYTES * self._clusters.num_nodes
                + _CLUSTER_EDGE_BYTES * self._clusters.most_edges(self.dataset.graph),
            )
        return demands

    def _run(self, epoch: _Epoch) -> Generator[MiniBatch, None, None]:
        """Hand out the batches of an epoch and leave nothing behind, however it ends."""
        fill_bytes, self._filled = (
            epoch.features.fill_bytes - self._filled,
            epoch.features.fill_bytes,
        )
        epoch.begin(self._ahead_of(epoch), fill_bytes)
        self._current = epoch
        try:
            for step in range(epoch.first, epoch.num_steps):
                epoch.check_owner()
                self._submit(epoch, max(step, epoch.first + self._ahead - 1))
                yield self._next(epoch)  # by no name: the consumer alone holds it from now on
            self.epoch = epoch.number + 1
            if epoch.ahead.follows(epoch.number_of(epoch.num_steps)):
                self._left = epoch.ahead
        finally:
            if epoch.is_own:  # a forked child would wait for threads that it does not have
                is_left = self._left is epoch.ahead
                if not is_left:
                    epoch.ahead.stop()
                _discard(epoch.jobs, self.timeout_s)
                epoch.end(close=not is_left)

    def _ahead_of(self, epoch: _Epoch) -> Ahead:
        """Go on with what was made ahead while the epoch before ran, or begin anew."""
        left, first = self._left, epoch.number_of(epoch.first)
        if left is not None and left.follows(first):
            self._left = None
            return left
        until = self.until
        self.leave()
        self.until = until
        num_epochs = max(epoch.number + 1, until)
        ahead = Ahead(epoch.features, epoch.num_steps, num_epochs * epoch.num_steps)
        if self._draws is not None:
            ahead.draws = self._draw_ahead(ahead, self._draws, first)
        ahead.rows = self._look_ahead(ahead, first)
        return ahead

    def _look_ahead(self, ahead: Ahead, first: int) -> Any:
        """Begin to bring the rows of batches."""

        def wanted(number: int) -> NDArray[np.int64]:
            ahead.look_at(number)
            begin, (epoch, step) = time.perf_counter(), divmod(number, ahead.num_steps)
            key = Key(self.seed, epoch, step)
            seeds = self._seeds.ids(self._positions(key))
            rows: NDArray[np.int64] = self._sampler.reach(seeds, key, *ahead.drawn(number))
            if self.trace is not None:
                end = time.perf_counter()
                self.trace.add("look ahead", begin, end, epoch=epoch, step=step)
            return rows

        return Lookahead(
            self.dataset, ahead.features, self._strategy, wanted, ahead.end, self.timeout_s,
            first_step=first, epoch_steps=ahead.num_steps,
        )  # fmt: skip

    def _draw_ahead(self, ahead: Ahead, plan: DrawPlan, first: int) -> Draws | None:
        """Begin to draw for batches."""
        if first == ahead.end:
            return None

        def batch(number: int) -> tuple[NDArray[np.int64], Key]:
            key = Key(self.seed, *divmod(number, ahead.num_steps))
            return self._seeds.ids(self._positions(key)), key

        return Draws(
            self.dataset, self.fanouts, batch, ahead.windows(plan.steps, first),
            on_disk=plan.on_disk, buffer_bytes=plan.buffer_bytes, timeout_s=self.timeout_s,
            first_step=first,
        )  # fmt: skip

    def _positions(self, key: Key) -> NDArray[np.int64]:
        """Places of a step's seeds in the split."""
        if self._clusters is not None:
            return self._clusters.positions(key)
        first = key.step * self.batch_size
        positions = np.arange(first, min(first + self.batch_size, self._seeds.count))
        if self.shuffle:
            positions = permute(positions, self._seeds.count, Key(self.seed, key.epoch))
        return positions

    def _submit(self, epoch: _Epoch, last: int) -> None:
        """Begin the batches up to step `last`, as far as there are any.

        A batch whose rows have yet to come would hold a thread that computing could use: it is
        begun when it is the next one.
        """
        while epoch.num_begun <= min(last, epoch.num_steps - 1):
            if epoch.jobs and not epoch.ahead.is_ready(epoch.number_of(epoch.num_begun)):
                break
            epoch.jobs.append(self._begin(epoch, epoch.num_begun))
            epoch.num_begun += 1

    def _begin(self, epoch: _Epoch, step: int) -> _Job:
        key, progress = Key(self.seed, epoch.number, step), _Progress()
        future = threads.submit(self._prepare, key, epoch, epoch.ahead.rows, progress)
        return _Job(step, progress, future)

    def _next(self, epoch: _Epoch) -> MiniBatch:
        """Wait for the next batch; if a budget did not hold it, make room and prepare it again."""
        step, batch = epoch.jobs[0].step, None
        while batch is None:
            begin = time.perf_counter()
            try:
                batch = self._finish(epoch)
            except BudgetError as error:
                if not self._make_room(epoch, error.tier):
                    raise
            finally:
                end = time.perf_counter()
                epoch.wait_s += end - begin
                if self.trace is not None:
                    self.trace.add("wait", begin, end, epoch=epoch.number, step=step)
            if batch is None:
                epoch.jobs.appendleft(self._begin(epoch, step))
        epoch.num_done += 1
        self._submit(epoch, step + self._ahead)
        return batch

    def _make_room(self, epoch: _Epoch, tier: str) -> bool:
        """Give up what a batch can do without: those after it, windows, draws, the kept rows."""
        epoch.jobs.popleft()
        if self._ahead:
            self._ahead -= 1
            epoch.num_begun -= len(epoch.jobs)
            _discard(epoch.jobs, self.timeout_s)
            self._sampler = self._new_sampler()  # the old one keeps scratch for many at a time
            return True
        if tier == Tier.HOST.value and self._strategy.kind != "rows":
            _log.warning("Windows are given up: a batch needs their memory.")
            self._strategy = _ONE_BY_ONE
            epoch.windows += epoch.ahead.rows.close()
            following = epoch.number_of(epoch.first + epoch.num_done)
            epoch.ahead.rows = self._look_ahead(epoch.ahead, following)
            return True
        if tier == Tier.HOST.value and epoch.ahead.draws is not None:
            _log.warning("Drawing ahead is given up: a batch needs its memory.")
            self._draws = None
            epoch.ahead.end_draws()
            return True
        if tier == Tier.HOST.value and epoch.features.is_filled:
            _log.warning("The feature cache is given up: a batch needs its memory.")
            self._crowded = True
            epoch.features.release()
            return True
        return False

    def _prepare(self, key: Key, epoch: _Epoch, ahead: Lookahead, progress: _Progress) -> _Coming:
        """Prepare a batch up to what the disk has yet to bring; runs on the pool.

        It does not wait for the rows, so that the pool's threads sample or compute meanwhile.
        """
        progress.enter("reading seeds")
        positions = self._positions(key)
        seeds, y = self._seeds.fetch(positions)
        progress.enter("sampling")
        begin, number = time.perf_counter(), epoch.number_of(key.step)
        blocks = self._sampler.sample(seeds, key, *epoch.ahead.drawn(number))
        edge_index = edge_union(blocks, self._ledger) if self._edge_index else None
        sampled = time.perf_counter()
        progress.enter("fetching features")
        x, fetched = self._fetch(ahead, number, blocks), time.perf_counter()
        epoch.take_note(key.step, blocks)
        if self.trace is not None:
            self.trace.add("sample", begin, sampled, epoch=key.epoch, step=key.step)
            self.trace.add("fetch", sampled, fetched, epoch=key.epoch, step=key.step)
        return _Coming(
            input_id=torch.from_numpy(positions),
            seeds=torch.from_numpy(seeds),
            blocks=blocks,
            edge_index=edge_index,
            x=x,
            y=y,
            sample_s=sampled - begin,
            copy_s=fetched - sampled,
        )

    def _fetch(self, ahead: Any, number: int, blocks: list[Any]) -> Any:
        """Begin to bring the rows of a batch."""
        return fetch_values(
            self._source, blocks[0].src_id.numpy(), self._ledger, Tier.DEVICE, "batch",
            fetch=functools.partial(ahead.fetch, number),
        )  # fmt: skip

    def _finish(self, epoch: _Epoch) -> MiniBatch:
        """Wait for the first batch of the queue and its rows; raises what its preparation met."""
        job, limit = epoch.jobs[0], time.monotonic() + self.timeout_s
        try:
            coming = job.future.result(self.timeout_s)
            x = coming.x.wait(max(0.0, limit - time.monotonic()))
            y = None if coming.y is None else coming.y.wait(max(0.0, limit - time.monotonic()))
        except (TimeoutError, RunError) as error:
            if time.monotonic() < limit - 1e-3:
                raise  # the job's own
            job.progress.wanted = False
            epoch.jobs.popleft()  # whoever tidies up waits no longer for it
            raise RunError(
                f"epoch {epoch.number}, step {job.step}: {job.progress.stage} has not ended "
                f"within {self.timeout_s:g} s",
                "Check that the disk answers; a larger timeout_s waits longer.",
            ) from error
        finally:
            del job  # the error's traceback holds this frame, which must not hold the error too
        done = epoch.jobs.popleft()  # not before: an interrupt leaves it to whoever tidies up
        epoch.ahead.done(epoch.number_of(done.step))
        epoch.sample_s += coming.sample_s
        epoch.copy_s += coming.copy_s
        return self._batch(coming, x, y).to(self.device)

    def _batch(self, coming: _Coming, x: Any, y: torch.Tensor | None) -> MiniBatch:
        """Put a batch together."""
        return MiniBatch(
            seeds=coming.seeds,
            blocks=coming.blocks,
            x=x,
            y=y,
            n_id=coming.blocks[0].src_id,
            input_id=coming.input_id,
            edge_index=coming.edge_index,
        )


class _Epoch:
    """One pass over the split: what is in preparation, and what it has taken so far."""

    def __init__(
        self,
        number: int,
        first: int,
        num_steps: int,
        dataset: Dataset,
        features: FeatureCache,
        bound: BeladyBound | None,
    ) -> None:
        self.number, self.first, self.num_steps = number, first, num_steps
        self.features, self._io = features, dataset.io
        self._bound = bound
        self.ahead: Ahead  # from the first step on
        self.windows = WindowCounts()  # of those given up, less those of the epochs before
        self.jobs: collections.deque[_Job] = collections.deque()
        self.num_begun, self.num_done = first, 0
        self.sample_s = self.copy_s = self.wait_s = 0.0
        self._final: EpochStats | None = None
        self._pid = os.getpid()

    @property
    def is_own(self) -> bool:
        """Whether this process began the pass, not one that it was forked from."""
        return self._pid == os.getpid()

    def check_owner(self) -> None:
        """Raise where the process was forked inside the pass."""
        if not self.is_own:
            raise RunError(
                f"epoch {self.number}: the process was forked in the middle of it",
                "Iterate over the loader anew in the child process.",
            )

    def begin(self, ahead: Ahead, fill_bytes: int) -> None:
        """Count from here on."""
        self.ahead, self._fill_bytes = ahead, fill_bytes
        self.windows -= ahead.rows.counts
        self._before = self._read()
        self._features_before = ahead.read_before(self.number)
        if self._bound is not None:
            self._bound.begin()
            for rows in self.features.held():
                self._bound.hold(rows)

    def take_note(self, step: int, blocks: list[Any]) -> None:
        """Enter what a step wants in the bound."""
        if self._bound is not None:
            self._bound.add(step, blocks[0].src_id.numpy())

    def number_of(self, step: int) -> int:
        """Give the number of a step's batch, counted on from epoch to epoch."""
        return self.number * self.num_steps + step

    def end(self, *, close: bool) -> None:
        """Count no longer, and give back what was made ahead unless the next epoch has it."""
        self.windows += self.ahead.close() if close else self.ahead.rows.counts
        least = None
        if self._bound is not None and self.num_done == self.num_steps:
            least = self._bound.least_fetched()
        self._final = dataclasses.replace(self._count(self.windows), rows_least=least)
        del self.ahead  # it knows the loader, which knows the last pass

    def stats(self) -> EpochStats:
        """Tell what was done so far."""
        return self._final or self._count(self.windows + self.ahead.rows.counts)

    def _read(self) -> _Counters:
        io, features = self._io, self.features
        other_bytes = io.bytes_read - features.source_bytes_read
        return _Counters(features.counts, io.busy_s, other_bytes, self.ahead.drawn_bytes)

    def _count(self, windows: WindowCounts) -> EpochStats:
        before, now = self._before, self._read()
        # windows of the next epoch are its own, whenever they were read
        read = self.ahead.read_before(self.number + 1)
        read_bytes = read.num_bytes - self._features_before.num_bytes
        drawn_bytes = now.drawn_bytes - before.drawn_bytes
        asked = now.asked - before.asked
        one_by_one = asked.rows_missed - windows.rows_staged - windows.rows_unpacked
        shared = max(0, windows.rows_staged - windows.rows_read)
        return EpochStats(
            sample_s=self.sample_s,
            fetch_s=self.copy_s + now.busy_s - before.busy_s,
            wait_s=self.wait_s,
            rows_requested=asked.rows_requested,
            rows_hit=asked.rows_hit + shared,
            rows_from_packs=windows.rows_unpacked,
            rows_from_disk=one_by_one + windows.rows_read,
            rows_least=None,
            feature_read_bytes=read_bytes,
            feature_reads=read.num_reads - self._features_before.num_reads,
            disk_read_bytes=read_bytes + now.other_bytes - before.other_bytes,
            disk_written_bytes=windows.rows_packed * self.features.row_bytes + drawn_bytes,
            windows=windows.windows,
            fill_bytes=self._fill_bytes,
            steps=self.num_done,
        )


class _Counters(NamedTuple):
    """Counts that never stop, read before a pass and after it."""

    asked: AccessCounts
    busy_s: float
    other_bytes: int
    drawn_bytes: int


class _Progress:
    """Where the preparation of a batch stands, and whether anybody still wants it."""

    def __init__(self) -> None:
        self.stage, self.wanted = "waiting for a thread", True

    def enter(self, stage: str) -> None:
        if not self.wanted:
            raise concurrent.futures.CancelledError
        self.stage = stage


class _Coming(NamedTuple):
    """A batch whose rows are on their way."""

    input_id: torch.Tensor
    seeds: torch.Tensor
    blocks: list[Any]
    edge_index: torch.Tensor | None
    x: Any  # a Pending, or its like by node type
    y: Pending | None
    sample_s: float
    copy_s: float


class _Job(NamedTuple):
    """The preparation of a batch, on the pool."""

    step: int
    progress: _Progress
    future: Future[_Coming]


def _discard(jobs: collections.deque[_Job], timeout_s: float) -> None:
    """Empty the queue; returns when nothing of it runs or is read, or when time is up."""
    limit = time.monotonic() + timeout_s
    for job in jobs:
        job.progress.wanted = False
        job.future.cancel()
    while jobs:
        future = jobs.popleft().future
        concurrent.futures.wait([future], max(0.0, limit - time.monotonic()))
        if future.cancelled() or not future.done() or future.exception() is not None:
            continue  # nobody wants the batch, nor its error
        for rows in (future.result().x, future.result().y):
            if rows is not None:
                with contextlib.suppress(GnnxError):
                    rows.wait(max(0.0, limit - time.monotonic()))
