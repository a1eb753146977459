"""What a training is going to hold and read, before it does: bytes by tier, traffic, time.

N rows of F bytes. Sizes come from the same functions that share the memory out when training
begins; what depends on the machine is timed on a few batches.
"""

from __future__ import annotations

import copy
import dataclasses
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch

from gnnx import inference, threads
from gnnx.cache import decide, forecast, held_bytes
from gnnx.errors import ResourceError
from gnnx.inference.pieces import piece_bytes
from gnnx.memory import Tier, available_bytes, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from gnnx.graph import MiniBatch
    from gnnx.loader import Loader
    from gnnx.store import Dataset

_TIMED_STEPS = 4  # the first one compiles kernels and does not count
_TRIED_STEPS = 12  # batches are not of one size: the largest of so many is near the largest of all
_PROBE_BYTES, _PROBE_PIECE = 32 << 20, 1 << 20


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
    """Rows that stay in memory."""
    num_rows: int
    """N."""
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


def make_plan(
    loader: Loader, model: nn.Module, optimizer: torch.optim.Optimizer,
    step: Callable[[nn.Module, MiniBatch], Any],
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

    Returns
    -------
    Plan
        Of an epoch after the first.

    Raises
    ------
    BudgetError
        Not even one batch fits.
    """
    dataset, source = loader.dataset, loader.dataset.features
    ledger, demands, num_steps = dataset.ledger, loader.demands, len(loader)
    decision = decide(dataset, demands)
    shared, strategy, demand = decision.shared, decision.strategy, decision.demand
    pages, draws = decision.pages, decision.draws
    del decision  # the scores' bytes
    dataset.graph.pin(shared.topology)
    topology = shared.topology
    if pages is not None:
        dataset.graph.keep_pages(pages)
        topology += dataset.graph.page_bytes(len(pages))
    batches = _rehearse(loader, model, step)
    rows = statistics.mean(batch.num_rows for batch in batches)
    other = statistics.mean(batch.other_bytes for batch in batches)
    if shared.seeds or shared.topology:
        other = other if dataset.graph.unpinned else 0.0
    if draws is not None:
        other = draws.read_bytes
    requested = round(num_steps * rows)
    missed, packed, written = requested, 0, 0
    read = num_steps * statistics.mean(batch.feature_bytes for batch in batches)
    disk_s = num_steps * statistics.median(batch.read_s for batch in batches)
    if strategy.num_kept == source.num_rows:
        missed, read, disk_s = 0, 0.0, 0.0
    elif demand is not None:
        gap = dataset.io.gap_bytes
        traffic = forecast(demand, strategy, source.num_rows, source.row_bytes, num_steps, gap)
        missed, packed = traffic.rows_from_disk, traffic.rows_from_packs
        read, written = float(traffic.disk_read_bytes), traffic.disk_written_bytes
        disk_s = num_steps * strategy.cost_bytes / _bytes_per_s(dataset)
    sample_s, compute_s = (
        num_steps * statistics.median(getattr(batch, name) for batch in batches)
        for name in ("sample_s", "compute_s")
    )
    if draws is not None:  # in the rehearsal each batch drew for itself, and waited for the disk
        waited_s = statistics.median(batch.other_read_s for batch in batches)
        sample_s = max(0.0, sample_s - num_steps * waited_s)
        disk_s += num_steps * draws.cost_bytes / _bytes_per_s(dataset)
    sample_s *= 1 if strategy.kind == "rows" else 2  # windows find out first what batches want
    buffers = ledger.owners(Tier.HOST).get("read buffers", 0)
    lookahead = held_bytes(strategy, source.num_rows, source.row_bytes)
    kept = strategy.num_kept * source.row_bytes
    num_alive = 1 + loader.prefetch
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    states = 1 if isinstance(optimizer, torch.optim.SGD) else 2
    return Plan(
        host={
            "read buffers": buffers,
            "batches in preparation": shared.batches,
            "seeds and labels": shared.seeds,
            "topology": topology,
            "draws": 0 if draws is None else draws.held_bytes,
            "feature rows": kept,
            strategy.kind if strategy.kind != "rows" else "row index": max(0, lookahead - kept),
        },
        host_budget_bytes=ledger.budget.host,
        device=_device(dataset, num_alive * max(batch.device_bytes for batch in batches)),
        device_budget_bytes=ledger.budget.device,
        disk={
            "packs": 2 * round(packed / num_steps * strategy.steps) * source.row_bytes,
            "draws": 0 if draws is None else 2 * round(draws.steps * draws.written_bytes),
        },
        parameter_bytes=(2 + states) * parameters,
        strategy=strategy.kind,
        steps_per_window=strategy.steps,
        rows_kept=strategy.num_kept,
        num_rows=source.num_rows,
        num_steps=num_steps,
        rows_requested=requested,
        rows_from_disk=missed,
        rows_from_packs=packed,
        disk_read_bytes=round(read + num_steps * other),
        disk_written_bytes=written
        + (0 if draws is None else round(num_steps * draws.written_bytes)),
        fill_bytes=kept,
        sample_s=sample_s,
        compute_s=compute_s,
        disk_s=disk_s,
        # sampling takes processors that computing would use
        seconds=max(disk_s, compute_s + sample_s / threads.num_threads()),
    )


def _device(dataset: Dataset, batches: int) -> dict[str, int]:
    """Bytes of batches and of an evaluation's pieces, which become smaller where a budget is."""
    limit, source = dataset.ledger.budget.device, dataset.features
    piece = piece_bytes(dataset.ledger, Tier.DEVICE)
    pieces = 2 * min(piece, source.num_rows * source.row_bytes)  # one is read while one computes
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
    loader: Loader, model: nn.Module, step: Callable[[nn.Module, MiniBatch], Any]
) -> list[_Batch]:
    """Take a few steps, one at a time and with every row read from the disk."""
    dataset = loader.dataset
    alone = loader.alone()
    generator, state = torch.get_rng_state(), copy.deepcopy(model)
    batches, io, file = [], dataset.io, dataset.features.file
    steps = iter(alone)
    try:
        for _ in range(min(_TIMED_STEPS, len(loader))):
            all_bytes, feature_bytes, busy_s = io.bytes_read, file.bytes_read, io.busy_s
            stats = alone.stats
            sampled_s = stats.sample_s if stats else 0.0
            batch = next(steps)
            feature_bytes = file.bytes_read - feature_bytes
            held = sum(dataset.ledger.owners(Tier.DEVICE).values())
            begin = time.perf_counter()
            step(state, batch)
            compute_s = time.perf_counter() - begin
            assert alone.stats is not None  # a pass is under way
            batches.append(
                _Batch(
                    num_rows=len(batch.n_id),
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


def _bytes_per_s(dataset: Dataset) -> float:
    """Bytes that the disk streams a second, from places all over the features."""
    source, ledger = dataset.features, dataset.ledger
    free = ledger.free_bytes(Tier.HOST)
    piece_bytes = _PROBE_PIECE if free is None else min(_PROBE_PIECE, free // 4)
    piece = max(1, min(source.num_rows, piece_bytes // max(1, source.row_bytes)))
    places = max(1, min(source.num_rows // piece, _PROBE_BYTES // (piece * source.row_bytes)))
    out = ledger.tensor((piece, *source.row_shape), source.dtype, Tier.HOST, "fetch")
    begin, before = time.perf_counter(), source.file.bytes_read
    for place in range(places):
        first = source.num_rows // places * place
        source.read_range(first, min(first + piece, source.num_rows), out)
    return (source.file.bytes_read - before) / max(1e-9, time.perf_counter() - begin)
