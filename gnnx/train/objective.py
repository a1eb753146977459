"""What a training minimises, and by what steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gnnx.errors import UsageError
from gnnx.store import MISSING_LABEL
from gnnx.train.metrics import UNLABELLED, has_several_labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from gnnx.store import Dataset

_PIECE = 1 << 16  # rows of ids or labels read at a time


def make_optimizer(
    optimizer: str | Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    model: nn.Module,
    lr: float,
    weight_decay: float,
) -> torch.optim.Optimizer:
    """Optimizer of a model's parameters, by name or by the user's function; see `Trainer`."""
    parameters = list(model.parameters())
    if optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=lr, weight_decay=weight_decay)
    if optimizer == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay)
    if callable(optimizer):
        return optimizer(parameters)
    raise UsageError(f"optimizer {optimizer!r} is unknown", 'Give "adamw", "adam" or a function.')


def make_scheduler(
    schedule: str | Callable[[torch.optim.Optimizer, int], Any],
    optimizer: torch.optim.Optimizer,
    total_steps: int,
) -> Any:
    """Learning rates of a run's steps, by name or by the user's function; see `Trainer`."""
    if schedule == "constant":
        return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0)
    if schedule == "cosine":
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total_steps)
    if callable(schedule):
        return schedule(optimizer, total_steps)
    raise UsageError(
        f"schedule {schedule!r} is unknown", 'Give "constant", "cosine" or a function.'
    )


def make_loss(
    class_weights: str | torch.Tensor | None, dataset: Dataset, device: torch.device
) -> nn.Module:
    """Mean cross-entropy of the labelled seeds, binary where they have several labels."""
    if has_several_labels(dataset):
        if class_weights is not None:
            raise UsageError(
                f"{dataset.path}: class weights for several labels a node",
                "Leave them out, or give a loss of your own.",
            )
        return _BinaryCrossEntropy()
    if isinstance(class_weights, str):
        if class_weights != "balanced":
            raise UsageError(
                f"class weights {class_weights!r} are unknown", 'Give "balanced" or a tensor.'
            )
        class_weights = _balanced_weights(dataset)
    if class_weights is not None:
        class_weights = class_weights.to(device, torch.float32)
    return nn.CrossEntropyLoss(class_weights, ignore_index=UNLABELLED)


class _BinaryCrossEntropy(nn.Module):
    """Mean over the labels that are known of the seeds, in nats."""

    def forward(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        known = y != MISSING_LABEL
        return nn.functional.binary_cross_entropy_with_logits(
            logits[known], y[known].to(logits.dtype)
        )


def _balanced_weights(dataset: Dataset) -> torch.Tensor:
    """num_labelled / (C · count of the class), 0 for a class that the training split lacks."""
    assert dataset.labels is not None
    train = dataset.split("train")
    counts = torch.zeros(dataset.num_classes, dtype=torch.int64)
    for begin in range(0, train.num_rows, _PIECE):
        ids = train.read_range(begin, min(begin + _PIECE, train.num_rows))
        y = dataset.labels.read(ids.numpy())
        counts += torch.bincount(y[y != UNLABELLED], minlength=dataset.num_classes)
    weights = counts.sum() / (dataset.num_classes * counts.clamp(min=1))
    return torch.where(counts > 0, weights, 0.0)
