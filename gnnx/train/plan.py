"""What a training is going to hold and read, before it does: bytes by tier, traffic, time.

N rows of F bytes, of each node type that has features. Sizes come from the same functions that
share the memory out when training begins; what depends on the machine is timed on a few batches.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from gnnx import inference, threads
from gnnx.cache import bound_bytes, decide, forecast, held_bytes
from gnnx.errors import ResourceError
from gnnx.inference.pieces import piece_bytes
from gnnx.loader import HeteroLoader
from gnnx.memory import Tier, available_bytes, format_bytes
from gnnx.store import streamed_bytes_per_s, value_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from gnnx.cache import Demand, DrawPlan, Forecast, HostPlan, Strategy
    from gnnx.cache.strategy import Kind
    from gnnx.loader import Loader
    from gnnx.memory import Ledger
    from gnnx.store import DiskFeatures

_TIMED_STEPS = 4  # the first one compiles kernels and does not count
_MOVED_BYTES_S = 3e9  # in a second of a processor: 24.6 GB of scans and packs took readers 8.3 s
_TRIED_STEPS = 12  # batches are not of one size: the largest of so many is near the largest of all


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """What a training holds and what an epoch reads. Sizes in bytes, times in wall seconds."""

    host: dict[str, int]
    """HOST bytes by owner: read buffers, batches in preparation, seeds, topology, rows, windows."""
    host_budget_bytes: int | None
    device: dict[str, int]
    """DEVICE bytes by owner: batches that exist at the same time, or pieces of an evaluation."""
    device_budget_bytes: int | None
    disk: dict[str, int]
    """DISK bytes by owner: packs."""
    parameter_bytes: int
    """Parameters, gradients and optimizer state; torch holds them, and no budget counts them."""
    strategy: str
    """How rows are read that do not stay: ``"rows"``, ``"windows"`` or ``"packs"``."""
    steps_per_window: int
    """Batches of a window, at most."""
    rows_kept: int
    """Rows that stay in memory, of all types."""
    num_rows: int
    """N, of all types that have features."""
    num_steps: int
    """Batches of an epoch."""
    rows_requested: int
    """Rows of all batches of an epoch."""
    rows_from_disk: int
    """Of these, read from the file of features."""
    rows_from_packs: int
    """Of these, read back from packs."""
    disk_read_bytes: int
    """Read in an epoch: features, packs, and what does not stay of topology, seeds and labels."""
    disk_written_bytes: int
    """Written to packs and of draws in an epoch."""
    fill_bytes: int
    """Read before the first epoch to fill the cache."""
    sample_s: float
    """Sampling of an epoch, summed over the batches."""
    compute_s: float
    """Forward, backward and optimizer of an epoch."""
    disk_s: float
    """Reading of an epoch."""
    seconds: float
    """Of an epoch; sampling and reading overlap computing."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Batch:
    """What one batch of a rehearsal took."""

    num_rows: int
    device_bytes: int
    feature_bytes: int
    other_bytes: int
    read_s: float
    sample_s: float
    compute_s: float

    @property
    def other_read_s(self) -> float:
        """Of reading, what was not for features."""
        return self.read_s * self.other_bytes / max(1, self.other_bytes + self.feature_bytes)


def check_memory(model: nn.Module, *, num_states: int = 2) -> None:
    """Refuse a model whose training takes more memory than is free, before it is taken.

    Parameters
    ----------
    model
        Its parameters count as far as they are not there yet, which is on the device ``"meta"``.
    num_states
        Tensors that the optimizer keeps for each parameter.

    Raises
    ------
    ResourceError
        Parameters, gradients and optimizer state exceed `gnnx.memory.available_bytes`.
    """
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    held = sum(p.numel() * p.element_size() for p in model.parameters() if not p.is_meta)
    needed, free = (2 + num_states) * size, available_bytes()
    if needed - held > free:
        raise ResourceError(
            f"parameters, gradients and optimizer state take {needed - held} bytes "
            f"({format_bytes(needed - held)}) more, {free} ({format_bytes(free)}) are free",
            "Make the model narrower (--hidden) or of fewer layers, or free memory.",
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Table:
    """Features of a node type, or of all nodes, and how they are going to be read."""

    source: DiskFeatures
    strategy: Strategy
    demand: Demand | None
    """None where all rows stay, or where nothing is ranked."""

    def num_bytes(self) -> int:
        return self.source.num_rows * self.source.row_bytes

    def held_bytes(self) -> int:
        return held_bytes(self.strategy, self.source.num_rows, self.source.row_bytes)

    def traffic(self, num_steps: int, gap_bytes: int) -> Forecast:
        source = self.source
        assert self.demand is not None  # the caller has looked
        return forecast(
            self.demand, self.strategy, source.num_rows, source.row_bytes, num_steps, gap_bytes
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Decided:
    """What a training is going to use HOST memory for."""

    shared: HostPlan
    topology: int
    """Bytes of the graph that stay, pages included."""
    tables: tuple[_Table, ...]
    """None where no type has features."""
    bound_bytes: int = 0
    """Of what tells how few rows could have been read."""
    draws: DrawPlan | None = None
    """How batches draw together from a graph on disk."""

    @property
    def kind(self) -> Kind:
        """How rows are read, which is one way where there are several tables."""
        return self.tables[0].strategy.kind if self.tables else "rows"

    @property
    def steps(self) -> int:
        """Batches of a window, at most."""
        return self.tables[0].strategy.steps if self.tables else 1


def _decide(loader: Loader) -> _Decided:
    """Decide as training will, and keep the part of the graph that is going to be kept."""
    dataset = loader.dataset
    if isinstance(loader, HeteroLoader):
        typed = loader.decision
        demands = typed.demands or dict.fromkeys(typed.sources)
        tables = tuple(
            _Table(source, typed.strategies[name], demands[name])
            for name, source in typed.sources.items()
        )
        return _Decided(typed.shared, typed.shared.topology, tables)
    decision = decide(dataset, loader.demands)
    shared, pages, draws = decision.shared, decision.pages, decision.draws
    table = _Table(dataset.features, decision.strategy, decision.demand)
    bound = bound_bytes(decision.bound_entries)
    del decision  # the scores' bytes
    dataset.graph.pin(shared.topology)
    topology = shared.topology
    if pages is not None:
        dataset.graph.keep_pages(pages)
        topology += dataset.graph.page_bytes(len(pages))
    return _Decided(shared, topology, (table,), bound, draws)


def make_plan(
    loader: Loader, model: nn.Module, optimizer: torch.optim.Optimizer,
    step: Callable[[nn.Module, Any], Any], *, evaluated: bool = False,
) -> Plan:  # fmt: skip
    """Plan an epoch: decide as training will, and time a few batches.

    Parameters
    ----------
    loader
        Of the training; its dataset's topology is kept from now on, as far as it is going to be.
    model
        Is not changed: a copy of it computes.
    optimizer
        Whose state is counted.
    step
        Forward and backward of a model and a batch.
    evaluated
        Whether each epoch ends with an evaluation: then nothing hides its first window.

    Returns
    -------
    Plan
        Of an epoch after the first.

    Raises
    ------
    BudgetError
        Not even one batch fits.
    """
    dataset, num_steps = loader.dataset, len(loader)
    ledger, decided = dataset.ledger, _decide(loader)
    shared, tables, draws = decided.shared, decided.tables, decided.draws
    batches = _rehearse(loader, model, step, tables)
    rows = statistics.mean(batch.num_rows for batch in batches)
    other = statistics.mean(batch.other_bytes for batch in batches)
    if shared.seeds or shared.topology:
        other = other if any(graph.unpinned for graph in dataset.graphs.values()) else 0.0
    if draws is not None:
        other = draws.read_bytes
    requested = round(num_steps * rows)
    missed, packed, packed_bytes, written = requested, 0, 0, 0
    read = num_steps * statistics.mean(batch.feature_bytes for batch in batches)
    disk_s = num_steps * statistics.median(batch.read_s for batch in batches)
    if all(table.strategy.num_kept == table.source.num_rows for table in tables):
        missed, read, disk_s = 0, 0.0, 0.0
    elif all(table.demand is not None for table in tables):
        traffic = [table.traffic(num_steps, dataset.io.gap_bytes) for table in tables]
        missed, packed = (
            sum(getattr(one, name) for one in traffic)
            for name in ("rows_from_disk", "rows_from_packs")
        )
        read = float(sum(one.disk_read_bytes for one in traffic))
        packed_bytes = written = sum(one.disk_written_bytes for one in traffic)
        cost_bytes = sum(table.strategy.cost_bytes for table in tables)
        largest = max(tables, key=_Table.num_bytes).source.file
        disk_s = num_steps * cost_bytes / streamed_bytes_per_s(largest, dataset.io, ledger)
    sample_s, compute_s = (
        num_steps * statistics.median(getattr(batch, name) for batch in batches)
        for name in ("sample_s", "compute_s")
    )
    kind, steps = decided.kind, decided.steps
    if draws is not None:  # in the rehearsal each batch drew for itself, and waited for the disk
        waited_s = statistics.median(batch.other_read_s for batch in batches)
        sample_s = max(0.0, sample_s - num_steps * waited_s)
        rate = streamed_bytes_per_s(tables[0].source.file, dataset.io, ledger)
        disk_s += num_steps * draws.cost_bytes / rate
    sample_s *= 1 if kind == "rows" else 2  # windows find out first what batches want
    disk_bytes = round(read + num_steps * other)
    if draws is not None:
        written += round(num_steps * draws.written_bytes)
    # sampling, on all threads, and the readers take processors that computing would use
    beside_s = sample_s + (disk_bytes + written) / _MOVED_BYTES_S / threads.num_threads()
    unhidden_s = disk_s / -(-num_steps // steps) if evaluated and kind != "rows" else 0.0
    buffers = ledger.owners(Tier.HOST).get("read buffers", 0)
    kept = sum(table.strategy.num_kept * table.source.row_bytes for table in tables)
    lookahead = sum(table.held_bytes() for table in tables)
    num_alive = 1 + loader.prefetch
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    states = 1 if isinstance(optimizer, torch.optim.SGD) else 2
    return Plan(
        host={
            "read buffers": buffers,
            "batches in preparation": shared.batches,
            "seeds and labels": shared.seeds,
            "topology": decided.topology,
            "draws": 0 if draws is None else draws.held_bytes,
            "feature rows": kept,
            "bound of reads": decided.bound_bytes,
            kind if kind != "rows" else "row index": max(0, lookahead - kept),
        },
        host_budget_bytes=ledger.budget.host,
        device=_device(ledger, tables, num_alive * max(batch.device_bytes for batch in batches)),
        device_budget_bytes=ledger.budget.device,
        disk={
            "packs": 2 * round(packed_bytes / num_steps * steps),
            "draws": 0 if draws is None else 2 * round(draws.steps * draws.written_bytes),
        },
        parameter_bytes=(2 + states) * parameters,
        strategy=kind,
        steps_per_window=steps,
        rows_kept=sum(table.strategy.num_kept for table in tables),
        num_rows=sum(table.source.num_rows for table in tables),
        num_steps=num_steps,
        rows_requested=requested,
        rows_from_disk=missed,
        rows_from_packs=packed,
        disk_read_bytes=disk_bytes,
        disk_written_bytes=written,
        fill_bytes=kept,
        sample_s=sample_s,
        compute_s=compute_s,
        disk_s=disk_s,
        seconds=unhidden_s + max(disk_s - unhidden_s, compute_s + beside_s),
    )


def _device(ledger: Ledger, tables: Sequence[_Table], batches: int) -> dict[str, int]:
    """Bytes of batches and of an evaluation's pieces, which become smaller where a budget is."""
    limit = ledger.budget.device
    piece = piece_bytes(ledger, Tier.DEVICE)
    stores = [table.source for table in tables]
    most = sum(store.num_rows * value_bytes(store) for store in stores)
    pieces = 2 * min(piece, most)  # one is read while one computes
    if limit is not None:
        batches, pieces = min(batches, limit), min(pieces, limit)
    return {"batches": batches, "evaluation": pieces}


def rehearse(loader: Loader, model: nn.Module, device: torch.device) -> None:
    """Take the memory that a training takes, in a few batches and one node's evaluation.

    Parameters
    ----------
    loader
        Of the training.
    model
        For the evaluation; without computing a step.
    device
        Where it runs.

    Raises
    ------
    BudgetError
        The budget is too small.
    """
    dataset = loader.dataset
    loader.epoch = 0
    for step, _ in enumerate(loader):
        if step + 1 == _TRIED_STEPS:
            break
    for split in ("val", "test"):
        nodes = dataset.split(split)
        if nodes.num_rows:
            with loader.lent():
                targets = nodes.read_range(0, nodes.num_rows)
                inference.rehearse(
                    model, dataset, whole=False, features=loader.features, device=device
                )
            del targets


def _rehearse(
    loader: Loader,
    model: nn.Module,
    step: Callable[[nn.Module, Any], Any],
    tables: Sequence[_Table],
) -> list[_Batch]:
    """Take a few steps, one at a time and with every row read from the disk."""
    dataset = loader.dataset
    alone = loader.alone()
    generator, state = torch.get_rng_state(), copy.deepcopy(model)
    batches, io, files = [], dataset.io, [table.source.file for table in tables]
    steps = iter(alone)
    try:
        for _ in range(min(_TIMED_STEPS, len(loader))):
            all_bytes, busy_s = io.bytes_read, io.busy_s
            feature_bytes = sum(file.bytes_read for file in files)
            stats = alone.stats
            sampled_s, requested = (stats.sample_s, stats.rows_requested) if stats else (0.0, 0)
            batch = next(steps)
            feature_bytes = sum(file.bytes_read for file in files) - feature_bytes
            held = sum(dataset.ledger.owners(Tier.DEVICE).values())
            # the first time, memory is new to the process, of each of the first batches: a narrow
            # model took 2.4 times what its steps take later on
            step(state, batch)
            begin = time.perf_counter()
            step(state, batch)
            compute_s = time.perf_counter() - begin
            assert alone.stats is not None  # a pass is under way
            batches.append(
                _Batch(
                    num_rows=alone.stats.rows_requested - requested,
                    device_bytes=held,
                    feature_bytes=feature_bytes,
                    other_bytes=io.bytes_read - all_bytes - feature_bytes,
                    read_s=io.busy_s - busy_s,
                    sample_s=alone.stats.sample_s - sampled_s,
                    compute_s=compute_s,
                )
            )
            del batch
    finally:
        steps.close()
        torch.set_rng_state(generator)
    return batches[1:] or batches
