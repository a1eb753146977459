"""Exact quality of a model on a split."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import nn

from gnnx.inference import stream

if TYPE_CHECKING:
    from gnnx.cache import HeteroFeatures
    from gnnx.store import Dataset, FeatureStore
    from gnnx.threads import Progress

UNLABELLED = -1
"""The label of a node that has none."""


@dataclasses.dataclass(frozen=True, slots=True)
class Metrics:
    """Quality on a split; None where it has no labelled node."""

    loss: float | None
    """Mean cross-entropy, nats."""
    accuracy: float | None
    """Share of labelled nodes whose largest output is their label."""
    count: int
    """Labelled nodes."""


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    split: str = "test",
    *,
    features: FeatureStore | HeteroFeatures | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Metrics:
    """Exact quality on a split: every neighbour counts, layer by layer, streamed in the budget.

    Parameters
    ----------
    model
        With ``layers`` and without randomness in evaluation mode.
    dataset
        Labelled.
    split
        ``"train"``, ``"val"`` or ``"test"``.
    features
        The data set's features behind a cache; its own by default.
    device
        Where the layers run.
    progress
        Called with (stage, done, total).

    Returns
    -------
    Metrics
        Over the labelled nodes of the split.

    Raises
    ------
    BudgetError
        One row's neighbourhood does not fit the budget.
    """
    labels = dataset.labels
    nodes = dataset.split(split)
    if labels is None or nodes.num_rows == 0:
        return Metrics(None, None, 0)
    loss_sum, correct, count = 0.0, 0, 0
    targets = nodes.read_range(0, nodes.num_rows).numpy()
    for ids, logits in stream(model, dataset, targets, features, device, progress):
        y = labels.read(ids).to(logits.device)
        known = y != UNLABELLED
        scores = logits[known].float()
        loss_sum += float(nn.functional.cross_entropy(scores, y[known], reduction="sum"))
        correct += int((scores.argmax(1) == y[known]).sum())
        count += len(scores)
    if count == 0:
        return Metrics(None, None, 0)
    return Metrics(loss_sum / count, correct / count, count)
