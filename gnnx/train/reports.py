"""What a training did, as programs and people read it."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gnnx.train.plan import Plan


@dataclasses.dataclass(frozen=True, slots=True)
class EpochReport:
    """What one epoch did. Times are wall seconds; sampling and fetching overlap computing."""

    epoch: int
    loss: float
    val_loss: float | None
    val_accuracy: float | None
    val_score: float | None
    """Of the metric chosen."""
    seconds: float
    sample_s: float
    fetch_s: float
    wait_s: float
    compute_s: float
    checkpoint_s: float
    """Writing states inside the epoch; in `seconds`."""
    eval_s: float
    rows_requested: int
    rows_hit: int
    rows_from_packs: int
    rows_from_disk: int
    feature_read_bytes: int
    """Of the reads of rows from the file of features; `amplification` times what the rows take."""
    feature_reads: int
    """Reads from the file of features; a second of `seconds` has `reads_per_s` of them."""
    disk_read_bytes: int
    disk_written_bytes: int
    windows: int
    fill_bytes: int
    """Read before the epoch to fill the cache, which evaluation empties where HOST is short."""
    amplification: float | None
    reads_per_s: float
    rows_least: int | None = None
    """Belady's bound of rows from disk and packs (`EpochStats.rows_least`); None also for an epoch
    that was resumed inside."""


@dataclasses.dataclass(frozen=True, slots=True)
class MemoryReport:
    """Budget beside fact, in bytes. The base is the interpreter, torch and the compiled kernels."""

    budget_bytes: int | None
    device_budget_bytes: int | None
    peak_ledger_bytes: int
    peak_device_ledger_bytes: int
    peak_rss_bytes: int
    base_rss_bytes: int
    peak_results_bytes: int
    """Large results of operators on a CPU, whose pages are kept; DEVICE bytes beside the ledger."""


@dataclasses.dataclass(frozen=True, slots=True)
class TrainReport:
    """What a training did; accuracies and scores are of the weights best on validation."""

    epochs: list[EpochReport]
    best_epoch: int | None
    val_accuracy: float | None
    test_accuracy: float | None
    metric: str
    """What chose the best weights, and what the scores are of."""
    val_score: float | None
    test_score: float | None
    num_parameters: int
    memory: MemoryReport
    plan: Plan | None
    """What was planned, where `Trainer.plan` was asked."""

    def as_dict(self) -> dict[str, Any]:
        """Plain dictionaries and lists, ready for JSON."""
        return dataclasses.asdict(self)
