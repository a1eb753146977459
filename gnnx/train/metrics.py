"""Exact quality of a model on a split.

Shapes: R rows (nodes), C classes, or labels of which a node may have several. All of a split's
outputs count, and ties are ties: nothing is estimated from bins or from averages over batches.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from gnnx.errors import UsageError
from gnnx.inference import stream
from gnnx.memory import Tier
from gnnx.store import MISSING_LABEL

if TYPE_CHECKING:
    from gnnx.cache import HeteroFeatures
    from gnnx.memory import Ledger
    from gnnx.store import Dataset, FeatureStore
    from gnnx.threads import Progress

UNLABELLED = -1
"""The class of a node that has none."""

MetricName: TypeAlias = Literal["accuracy", "rocauc", "ap", "f1", "f1-macro"]
METRICS: tuple[MetricName, ...] = ("accuracy", "rocauc", "ap", "f1", "f1-macro")

_SORT_BYTES = 64  # a row's score, its place, and sums over them, while a column is ranked


@dataclasses.dataclass(frozen=True, slots=True)
class Metrics:
    """Quality on a split; None where it has no labelled node, or the metric has no value."""

    loss: float | None = None
    """Mean cross-entropy of a node, nats; of several labels a node, binary and of a label."""
    accuracy: float | None = None
    """Share of labelled nodes whose largest output is their class; of several labels a node, share
    of known labels whose output is above 0 where they are set, and nowhere else."""
    count: int = 0
    """Labelled nodes."""
    score: float | None = None
    """The metric asked for."""


def has_several_labels(dataset: Dataset) -> bool:
    """Whether a node may have several labels: rows of 0, 1 and `MISSING_LABEL`, not a class."""
    return dataset.labels is not None and len(dataset.labels.row_shape) == 1


def known_nodes(y: Tensor) -> Tensor:
    """Which nodes have a label, (R,) bool."""
    return y != UNLABELLED if y.dim() == 1 else (y != MISSING_LABEL).any(1)


def evaluate(
    model: nn.Module,
    dataset: Dataset,
    split: str = "test",
    *,
    metric: MetricName = "accuracy",
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
    metric
        Of `Metrics.score`: ``"accuracy"``; ``"rocauc"``, area under the ROC curve; ``"ap"``,
        average precision; ``"f1"`` over all decisions; ``"f1-macro"``, mean of each class's. Of two
        classes the curves rank by the difference of the outputs, for the second class. Of more
        they are the mean over classes, each against the rest, ranked by its softmax, and of
        several labels a node over labels, leaving out those without both kinds of node
        (``"ap"``: without a positive).
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
        One row's neighbourhood does not fit the budget, or a curve's outputs do not.
    UsageError
        The metric is unknown.
    """
    if metric not in METRICS:
        raise UsageError(f"metric {metric!r} is unknown", f"Give one of {', '.join(METRICS)}.")
    labels = dataset.labels
    nodes = dataset.split(split)
    if labels is None or nodes.num_rows == 0:
        return Metrics()
    targets = nodes.read_range(0, nodes.num_rows).numpy()
    loss_sum, num_terms, count = 0.0, 0, 0
    accuracy = _Accuracy()
    chosen = accuracy if metric == "accuracy" else _new(metric, dataset, len(targets))
    for ids, logits in stream(model, dataset, targets, features, device, progress):
        y = labels.read(ids).to(logits.device)
        known = known_nodes(y)
        scores, y = logits[known].to(torch.promote_types(logits.dtype, torch.float32)), y[known]
        loss_sum += float(_loss_sum(scores, y))
        num_terms += len(y) if y.dim() == 1 else int((y != MISSING_LABEL).sum())
        count += len(y)
        for part in {accuracy, chosen}:
            part.add(scores, y)
    if count == 0:
        return Metrics()
    return Metrics(loss_sum / num_terms, accuracy.value(), count, chosen.value())


def _loss_sum(scores: Tensor, y: Tensor) -> Tensor:
    if y.dim() == 1:
        return nn.functional.cross_entropy(scores, y, reduction="sum")
    known = y != MISSING_LABEL
    return nn.functional.binary_cross_entropy_with_logits(
        scores[known], y[known].to(scores.dtype), reduction="sum"
    )


class _Metric(Protocol):
    """Takes outputs (R, C) and labels piece by piece, those of labelled nodes alone."""

    def add(self, scores: Tensor, y: Tensor) -> None: ...

    def value(self) -> float | None: ...


def _new(metric: MetricName, dataset: Dataset, num_rows: int) -> _Metric:
    if metric in {"f1", "f1-macro"}:
        return _F1(dataset.num_classes, macro=metric == "f1-macro")
    one = dataset.num_classes == 2 and not has_several_labels(dataset)
    curve = roc_auc if metric == "rocauc" else average_precision
    return _Ranked(curve, num_rows, 1 if one else dataset.num_classes, dataset.ledger)


class _Accuracy:
    def __init__(self) -> None:
        self._right = self._count = 0

    def add(self, scores: Tensor, y: Tensor) -> None:
        if y.dim() == 1:
            right, known = scores.argmax(1) == y, torch.ones_like(y, dtype=torch.bool)
        else:
            right, known = (scores > 0) == (y == 1), y != MISSING_LABEL
        self._right += int((right & known).sum())
        self._count += int(known.sum())

    def value(self) -> float | None:
        return self._right / self._count if self._count else None


class _F1:
    """2 t / (2 t + false positives + false negatives), t the true positives.

    As scikit-learn has it: a class that neither occurs nor is predicted is no part of a mean over
    classes; a label of several a node that neither occurs nor is predicted counts 0.
    """

    def __init__(self, num_classes: int, *, macro: bool) -> None:
        self._macro, self._skip = macro, False
        self._counts = torch.zeros(3, num_classes, dtype=torch.int64)  # true, predicted, both

    def add(self, scores: Tensor, y: Tensor) -> None:
        if y.dim() == 1:
            self._skip = True
            classes = torch.arange(self._counts.shape[1], device=y.device)
            true, predicted = (c[:, None] == classes for c in (y, scores.argmax(1)))
        else:
            known = y != MISSING_LABEL
            true, predicted = (y == 1) & known, (scores > 0) & known
        sums = [part.sum(0).cpu() for part in (true, predicted, true & predicted)]
        self._counts += torch.stack(sums)

    def value(self) -> float | None:
        true, predicted, both = self._counts.double()
        if not self._macro:
            total = float((true + predicted).sum())
            return 2 * float(both.sum()) / total if total else 0.0
        f1 = 2 * both / (true + predicted).clamp(min=1)
        present = (true + predicted > 0) | (not self._skip)
        return float(f1[present].mean())


class _Curve(Protocol):
    def __call__(self, scores: Tensor, positive: Tensor) -> float | None: ...


class _Ranked:
    """Mean over columns of the area under a curve; holds all outputs, in HOST memory."""

    def __init__(self, curve: _Curve, num_rows: int, num_columns: int, ledger: Ledger) -> None:
        self._curve, self._ledger, self._filled = curve, ledger, 0
        shape = (num_columns, num_rows)
        self._scores: Tensor | None = None
        self._shape = shape
        self._labels = ledger.tensor(shape, torch.uint8, Tier.HOST, "metric")

    def add(self, scores: Tensor, y: Tensor) -> None:
        num_columns, end = self._shape[0], self._filled + len(y)
        if self._scores is None:  # the dtype is known only now
            self._scores = self._ledger.tensor(self._shape, scores.dtype, Tier.HOST, "metric")
        if y.dim() == 2:
            rows, labels = scores, y
        elif num_columns == 1:
            rows, labels = (scores[:, 1] - scores[:, 0])[:, None], (y == 1)[:, None]
        else:
            rows = scores.softmax(1)
            labels = y[:, None] == torch.arange(num_columns, device=y.device)
        self._scores[:, self._filled : end] = rows.T
        self._labels[:, self._filled : end] = labels.T
        self._filled = end

    def value(self) -> float | None:
        if self._scores is None:
            return None
        with self._ledger.reserve(_SORT_BYTES * self._filled, Tier.HOST, "metric"):
            values = []
            for scores, labels in zip(self._scores, self._labels, strict=True):
                scores, labels = scores[: self._filled], labels[: self._filled]  # noqa: PLW2901
                known = labels != MISSING_LABEL
                values.append(self._curve(scores[known], labels[known] == 1))
        numbers = [value for value in values if value is not None]
        return sum(numbers) / len(numbers) if numbers else None


def roc_auc(scores: Tensor, positive: Tensor) -> float | None:
    """Area under the ROC curve: share of pairs, a positive and a negative, in the right order.

    Parameters
    ----------
    scores
        (R,)
    positive
        (R,) bool

    Returns
    -------
    float or None
        A pair of equal scores counts a half (Hanley and McNeil, 1982); None without any pair.
    """
    above, below = _by_score(scores, positive)
    num_pairs = int(above.sum()) * int(below.sum())
    if num_pairs == 0:
        return None
    higher = torch.cumsum(above, 0) - above
    halves = int((below * (2 * higher + above)).sum())  # exact: in halves of a pair, as integers
    return halves / (2 * num_pairs)


def average_precision(scores: Tensor, positive: Tensor) -> float | None:
    """Precision at each score that occurs, weighted by the recall that is won there.

    Parameters
    ----------
    scores
        (R,)
    positive
        (R,) bool

    Returns
    -------
    float or None
        Equal scores are one threshold; None without a positive.
    """
    above, below = _by_score(scores, positive)
    total = int(above.sum())
    if total == 0:
        return None
    found = torch.cumsum(above, 0)
    precision = found.double() / (found + torch.cumsum(below, 0))
    return float((above * precision).sum()) / total


def _by_score(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Positives and negatives at each distinct score, from the highest down, int64."""
    _, place = torch.unique(-scores, return_inverse=True)
    num_scores = int(place.max()) + 1 if len(place) else 0
    counts = torch.bincount(2 * place + positive, minlength=2 * num_scores).view(-1, 2)
    return counts[:, 1], counts[:, 0]
