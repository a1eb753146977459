"""The loop: batches, steps, evaluations, checkpoints.

Shapes: N nodes, B seeds, C classes.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from gnnx import ops
from gnnx.errors import BudgetError, DataError, RunError, UsageError
from gnnx.inference import parameter_dtype
from gnnx.loader import HeteroLoader, Loader
from gnnx.memory import Tier, peak_rss_bytes
from gnnx.nn import needs_degrees, needs_edge_weight
from gnnx.store import smallest_named
from gnnx.train.base import base_rss_bytes
from gnnx.train.checkpoint import has_state, read_state, write_state
from gnnx.train.metrics import METRICS, MetricName, Metrics, evaluate
from gnnx.train.objective import make_loss, make_optimizer, make_scheduler
from gnnx.train.plan import check_memory, make_plan, rehearse
from gnnx.train.reports import EpochReport, MemoryReport, TrainReport

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from gnnx.graph import EdgeType, HeteroBatch, MiniBatch
    from gnnx.loader import Trace
    from gnnx.store import Dataset
    from gnnx.threads import Progress
    from gnnx.train.plan import Plan


class Trainer:
    """Mini-batch training of a node classifier.

    The loss of a step is the mean cross-entropy of its labelled seeds, or the loss given; where a
    node may have several labels it is binary, the mean over labels. The same seed gives the same
    losses, bit for bit, for every memory budget and every resume point.

    Parameters
    ----------
    model
        Called as ``model(blocks, x)``; shows its ``layers`` for evaluation.
    dataset
        Opened with the budget that the training is to keep.
    fanouts
        Neighbours drawn a node, the seeds' hop first; -1 is all. Of a typed data set also lists
        by edge type, as of `gnnx.HeteroSampler`.
    batch_size
        Seeds a step.
    clusters_per_batch
        Parts a step in place of drawn neighbours, as of `Loader`.
    lr
        Learning rate.
    weight_decay
        Of the optimizer.
    optimizer
        ``"adamw"`` (decoupled decay, Loshchilov and Hutter 2019), ``"adam"``, or a function from
        parameters to an optimizer.
    schedule
        ``"constant"``, ``"cosine"`` (to zero over all steps), or a function from an optimizer and
        the total number of steps to a scheduler, stepped once a step.
    class_weights
        ``"balanced"`` (inverse to the training labels' frequency, mean 1 over them) or (C,) tensor.
    loss
        Function of logits (B, C) and labels (B,), or (B, C), in place of cross-entropy.
    autocast
        torch.bfloat16 runs the dense parts in it.
    eval_every
        Epochs between evaluations on the validation split; 0 for none until the end.
    metric
        By which the best weights are chosen, as of `evaluate`.
    patience
        Evaluations without a better score after which training stops; None is never.
    seed
        Of samples, order, keyed dropout and torch's generator.
    device
        Where the model runs.
    checkpoint
        Folder that is given the state after each epoch.
    checkpoint_every
        Steps between states that are written inside epochs as well; None writes none there. After
        a kill at any moment the training goes on from the last state, with the same losses.
    """

    def __init__(  # noqa: PLR0913 - the knobs of a training, each with a default
        self,
        model: nn.Module,
        dataset: Dataset,
        *,
        fanouts: Sequence[int] | Mapping[EdgeType, Sequence[int]],
        batch_size: int = 1024,
        clusters_per_batch: int | None = None,
        lr: float = 0.01,
        weight_decay: float = 5e-4,
        optimizer: Literal["adamw", "adam"]
        | Callable[[list[nn.Parameter]], torch.optim.Optimizer] = "adamw",
        schedule: Literal["constant", "cosine"]
        | Callable[[torch.optim.Optimizer, int], Any] = "constant",
        class_weights: Literal["balanced"] | torch.Tensor | None = None,
        loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
        autocast: torch.dtype | None = None,
        eval_every: int = 1,
        metric: MetricName = "accuracy",
        patience: int | None = None,
        seed: int = 0,
        device: torch.device | str = "cpu",
        checkpoint: Path | str | None = None,
        checkpoint_every: int | None = None,
    ) -> None:
        if dataset.labels is None:
            raise DataError(
                f"{dataset.path}: no labels to train on", "Prepare the data set with --labels."
            )
        if dataset.split("train").num_rows == 0:
            raise DataError(
                f"{dataset.path}: the training split is empty",
                "Prepare the data set with --train or --split.",
            )
        if metric not in METRICS:
            raise UsageError(f"metric {metric!r} is unknown", f"Give one of {', '.join(METRICS)}.")
        layers = getattr(model, "layers", None)
        hops = next(iter(fanouts.values())) if isinstance(fanouts, Mapping) else fanouts
        if layers is not None and len(layers) != len(hops):  # a forward with zip would not tell
            raise UsageError(
                f"{len(hops)} fanouts for a model of {len(layers)} layers",
                "Give as many fanouts as the model has layers.",
            )
        if checkpoint_every is not None and (checkpoint is None or checkpoint_every < 1):
            raise UsageError(
                f"a checkpoint every {checkpoint_every} steps in {checkpoint}",
                "Give a folder for checkpoints, and at least 1 step.",
            )
        self.model, self.dataset = model, dataset
        self.device, self.autocast, self.seed = torch.device(device), autocast, seed
        self.eval_every, self.patience, self.schedule = eval_every, patience, schedule
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.checkpoint_every, self.metric = checkpoint_every, metric
        if self.device.type == "cpu":
            check_memory(model, num_states=2 if isinstance(optimizer, str) else 0)
        self.base_rss_bytes = base_rss_bytes(model, dataset)
        self.model.to(self.device)
        self._batching = fanouts, batch_size, clusters_per_batch
        self.loader = self._new_loader(dataset)
        self.optimizer = make_optimizer(optimizer, model, lr, weight_decay)
        with smallest_named(dataset, self._rehearse):
            self.loss = loss or make_loss(class_weights, dataset, self.device)
        self._plan: Plan | None = None
        self._trace: Trace | None = None
        self._settings = {
            "fingerprint": dataset.fingerprint,
            "model": getattr(model, "config", None),
            "seed": seed,
            "batch_size": batch_size,
            "fanouts": fanouts if isinstance(fanouts, Mapping) else list(fanouts),
            "clusters_per_batch": clusters_per_batch,
            "lr": lr,
            "weight_decay": weight_decay,
            "optimizer": optimizer if isinstance(optimizer, str) else "own",
            "schedule": schedule if isinstance(schedule, str) else "own",
            "autocast": str(autocast),
            "metric": metric,
            "loss": "own" if loss else "cross-entropy",
            "class_weights": class_weights.tolist()
            if isinstance(class_weights, torch.Tensor)
            else class_weights,
        }

    def _new_loader(self, dataset: Dataset, **more: Any) -> Any:
        fanouts, batch_size, clusters_per_batch = self._batching
        options: dict[str, Any] = {"seed": self.seed, "device": self.device, **more}
        if dataset.is_typed:
            if clusters_per_batch is not None:
                raise UsageError(
                    f"{clusters_per_batch} clusters a batch of a graph of several types",
                    "Train on drawn neighbours: leave the clusters out.",
                )
            return HeteroLoader(dataset, fanouts, batch_size, **options)
        if isinstance(fanouts, Mapping):
            raise UsageError(
                "fanouts by edge type, of a graph that has one", "Give one list of fanouts."
            )
        return Loader(
            dataset,
            fanouts,
            batch_size,
            degrees=needs_degrees(self.model),
            edge_weight=needs_edge_weight(self.model),
            clusters_per_batch=clusters_per_batch,
            **options,
        )

    def plan(self) -> Plan:
        """Tell what `fit` is going to hold and read, and how long an epoch takes.

        Sizes and traffic are what `fit` decides by. Times come from a few batches, computed with a
        copy of the model: nothing is trained.

        Returns
        -------
        Plan
            Kept: the report of `fit` carries it beside the facts.

        Raises
        ------
        BudgetError
            The training does not fit; names the smallest budget with which it does.
        """

        def step(model: nn.Module, batch: MiniBatch | HeteroBatch) -> None:
            model.train()
            self._backward(model, batch)

        with smallest_named(self.dataset, self._rehearse):
            self._plan = make_plan(
                self.loader, self.model, self.optimizer, step, evaluated=self.eval_every == 1
            )
        return self._plan

    def _rehearse(self, dataset: Dataset) -> None:
        """Take the memory of the training on the same dataset, opened with another budget.

        Without the rows and windows that batches and evaluations can do without: they would be read
        into memory beside those of the training.
        """
        rehearse(self._new_loader(dataset, cache=None), self.model, self.device)

    def fit(
        self,
        epochs: int,
        *,
        resume: bool = False,
        progress: Progress | None = None,
        observe: Sequence[Callable[[EpochReport], None]] = (),
        trace: Trace | None = None,
    ) -> TrainReport:
        """Train, keep the weights best on validation, test them.

        Parameters
        ----------
        epochs
            In all, those before a resume included.
        resume
            Go on from the checkpoint folder's state, if there is one.
        progress
            Called with (stage, done, total).
        observe
            Each called with the report of an epoch when it has ended.
        trace
            Told when each step was sampled, fetched, waited for and computed.

        Returns
        -------
        TrainReport
            Of all epochs. The model is left with the best weights.

        Raises
        ------
        RunError
            A loss is not finite.
        UsageError
            There is no epoch to run, or the checkpoint belongs to another data set, another model
            or other settings, or there is one that nobody asked to go on from.
        BudgetError
            The training does not fit; names the smallest budget with which it does.
        """
        self._trace = self.loader.trace = trace
        try:
            with smallest_named(self.dataset, self._rehearse):
                return self._fit(epochs, resume, progress, observe)
        finally:
            self._trace = self.loader.trace = None
            self.loader.leave()

    def _fit(
        self,
        epochs: int,
        resume: bool,
        progress: Progress | None,
        observe: Sequence[Callable[[EpochReport], None]],
    ) -> TrainReport:
        if epochs < 1:
            raise UsageError(f"{epochs} epochs", "Give at least 1.")
        torch.manual_seed(self.seed)
        total_steps = epochs * len(self.loader)
        scheduler = make_scheduler(self.schedule, self.optimizer, total_steps)
        state = _State(total_steps=total_steps if self.schedule != "constant" else None)
        if resume and self.checkpoint is None:
            raise UsageError("resume without a checkpoint folder", "Give --checkpoint DIR.")
        if self.checkpoint is not None and has_state(self.checkpoint):
            if not resume:  # it may be the work of days
                raise UsageError(
                    f"{self.checkpoint}: holds the state of a training already",
                    "Go on from it with --resume, name another folder, or delete it.",
                )
            self._restore(state, scheduler)
        while len(state.epochs) < epochs and not state.stale(self.patience):
            self.loader.until = self._epochs_alone(len(state.epochs), epochs)
            self._run_epoch(state, scheduler, progress, last=len(state.epochs) + 1 == epochs)
            if self.checkpoint is not None:
                self._save(state, scheduler)
            for see in observe:
                see(state.epochs[-1])
        self.model.load_state_dict(state.best_weights)
        return self._report(state, progress)

    def _epochs_alone(self, epoch: int, epochs: int) -> int:
        """Epochs up to the next evaluation, which memory is lent to."""
        every = self.eval_every or epochs
        return min(epochs, (epoch // every + 1) * every)

    def _run_epoch(
        self, state: _State, scheduler: Any, progress: Progress | None, *, last: bool
    ) -> None:
        epoch = len(state.epochs)
        self._train(state, scheduler, progress)
        part, metrics, eval_s = state.part, Metrics(), 0.0
        if last or (self.eval_every and (epoch + 1) % self.eval_every == 0):
            metrics, eval_s = self._evaluate("val", progress)
        report = EpochReport(
            epoch=epoch,
            loss=part.loss_sum / part.num_seeds,
            val_loss=metrics.loss,
            val_accuracy=metrics.accuracy,
            val_score=metrics.score,
            seconds=part.seconds,
            compute_s=part.compute_s,
            checkpoint_s=part.checkpoint_s,
            eval_s=eval_s,
            amplification=self._amplification(part),
            reads_per_s=part.stats["feature_reads"] / max(1e-9, part.seconds),
            rows_least=self.loader.stats.rows_least,
            **part.stats,
        )
        state.add(report, self.model)

    def _amplification(self, part: _Part) -> float | None:
        """Bytes read of the features over those of the rows; None where there is no one width."""
        if self.dataset.is_typed or not part.stats["rows_from_disk"]:
            return None
        row_bytes = self.dataset.features.row_bytes
        return float(part.stats["feature_read_bytes"] / (part.stats["rows_from_disk"] * row_bytes))

    def _train(self, state: _State, scheduler: Any, progress: Progress | None) -> None:
        """Take the steps of an epoch that the state has not seen."""
        self.model.train()
        epoch, before, begin = len(state.epochs), state.part, time.perf_counter()
        loss_sum, num_seeds = before.loss_sum, before.num_seeds
        compute_s, checkpoint_s = before.compute_s, before.checkpoint_s

        def part(step: int) -> _Part:
            seconds = before.seconds + time.perf_counter() - begin
            stats = {name: getattr(self.loader.stats, name) for name in before.stats}
            stats = {name: value + before.stats[name] for name, value in stats.items()}
            return _Part(step, loss_sum, num_seeds, seconds, compute_s, checkpoint_s, stats)

        self.loader.epoch, self.loader.step = epoch, before.step
        for step, batch in enumerate(self.loader, start=before.step):
            started = time.perf_counter()
            loss = self._step(batch)
            scheduler.step()
            if not math.isfinite(loss):
                raise RunError(
                    f"loss is {loss} at epoch {epoch}, step {step}",
                    "Lower --lr, or look for outliers in the features with gnnx info.",
                )
            loss_sum += loss * batch.batch_size
            num_seeds += batch.batch_size
            computed = time.perf_counter()
            compute_s += computed - started
            if self._trace is not None:
                self._trace.add("compute", started, computed, epoch=epoch, step=step)
            if progress:
                progress(f"epoch {epoch + 1}", step + 1, len(self.loader))
            done = epoch * len(self.loader) + step + 1
            if self.checkpoint_every and done % self.checkpoint_every == 0:
                started = time.perf_counter()
                state.part = part(step + 1)
                self._save(state, scheduler)
                saved = time.perf_counter()
                checkpoint_s += saved - started
                if self._trace is not None:
                    self._trace.add("checkpoint", started, saved, epoch=epoch, step=step)
        state.part = part(len(self.loader))

    def _step(self, batch: MiniBatch | HeteroBatch) -> float:
        self.optimizer.zero_grad()
        loss = self._backward(self.model, batch)
        self.optimizer.step()
        return loss.item()

    def _backward(self, model: nn.Module, batch: MiniBatch | HeteroBatch) -> torch.Tensor:
        """Loss of a batch, its gradients added to the model's."""
        assert batch.y is not None  # the constructor has checked that there are labels
        x = self._converted(batch.x)
        with torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None):
            logits = model(batch.blocks, x)
        loss = self.loss(logits.float(), batch.y)
        loss.backward()
        return loss

    def _converted(self, x: Any) -> Any:
        """Features as the model takes them, of a typed batch by node type."""
        if isinstance(x, dict):
            return {name: self._converted(rows) for name, rows in x.items()}
        if self.autocast and x.is_floating_point():
            return x
        return x.to(parameter_dtype(self.model))

    def _evaluate(self, split: str, progress: Progress | None) -> tuple[Metrics, float]:
        begin = time.perf_counter()

        def metrics_of_split() -> Metrics:
            return evaluate(
                self.model,
                self.dataset,
                split,
                metric=self.metric,
                features=self.loader.features,
                device=self.device,
                progress=progress,
            )

        try:
            with self.loader.lent():
                metrics = metrics_of_split()
        except BudgetError as error:
            if error.tier != Tier.HOST.value or not self.loader.features.is_filled:
                raise
            metrics = None  # again, when the error has let go of what its frames hold
        if metrics is None:
            with self.loader.released():
                metrics = metrics_of_split()
        end = time.perf_counter()
        if self._trace is not None:
            self._trace.add("evaluate", begin, end, split=split)
        return metrics, end - begin

    def _report(self, state: _State, progress: Progress | None) -> TrainReport:
        test, _ = self._evaluate("test", progress)
        ledger = self.dataset.ledger
        memory = MemoryReport(
            budget_bytes=ledger.budget.host,
            device_budget_bytes=ledger.budget.device,
            peak_ledger_bytes=ledger.peak_bytes(Tier.HOST),
            peak_device_ledger_bytes=ledger.peak_bytes(Tier.DEVICE),
            peak_rss_bytes=peak_rss_bytes(),
            base_rss_bytes=self.base_rss_bytes,
            peak_results_bytes=ops.peak_results_bytes(),
        )
        best = None if state.best_epoch is None else state.epochs[state.best_epoch]
        return TrainReport(
            epochs=state.epochs,
            best_epoch=state.best_epoch,
            val_accuracy=None if best is None else best.val_accuracy,
            test_accuracy=test.accuracy,
            metric=self.metric,
            val_score=None if best is None else best.val_score,
            test_score=test.score,
            num_parameters=sum(p.numel() for p in self.model.parameters()),
            memory=memory,
            plan=self._plan,
        )

    def _save(self, state: _State, scheduler: Any) -> None:
        assert self.checkpoint is not None
        content = {
            "settings": self._settings | {"total_steps": state.total_steps},
            "epochs": [dataclasses.asdict(report) for report in state.epochs],
            "part": dataclasses.asdict(state.part),
            "best_epoch": state.best_epoch,
            "best_weights": state.best_weights or self.model.state_dict(),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "generators": self._generators(),
        }
        write_state(self.checkpoint, content)

    def _generators(self) -> dict[str, torch.Tensor]:
        """State of the generators that a user's model may draw from."""
        states = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state(self.device)
        return states

    def _restore(self, state: _State, scheduler: Any) -> None:
        assert self.checkpoint is not None
        content = read_state(self.checkpoint)
        mine = self._settings | {"total_steps": state.total_steps}
        for name, value in content["settings"].items():
            if mine[name] != value:
                raise UsageError(
                    f"{self.checkpoint}: {name} was {value} and is {mine[name]} now",
                    "Resume with the settings and the data set of the checkpoint.",
                )
        shapes = {name: list(value.shape) for name, value in self.model.state_dict().items()}
        if shapes != {name: list(value.shape) for name, value in content["model"].items()}:
            raise UsageError(
                f"{self.checkpoint}: its weights are those of another model",
                "Resume with the model of the checkpoint.",
            )
        self.model.load_state_dict(content["model"])
        self.optimizer.load_state_dict(content["optimizer"])
        scheduler.load_state_dict(content["scheduler"])
        torch.set_rng_state(content["generators"]["cpu"])
        if self.device.type == "cuda" and "cuda" in content["generators"]:
            torch.cuda.set_rng_state(content["generators"]["cuda"], self.device)
        state.epochs = [EpochReport(**report) for report in content["epochs"]]
        state.part = _Part(**content["part"])
        state.best_epoch = content["best_epoch"]
        state.best_weights = content["best_weights"]


_LOADER_STATS = (
    *("sample_s", "fetch_s", "wait_s", "rows_requested", "rows_hit", "rows_from_packs"),
    *("rows_from_disk", "disk_read_bytes", "disk_written_bytes", "windows", "fill_bytes"),
    *("feature_read_bytes", "feature_reads"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """An epoch up to a step: what was done in this run and in those before it."""

    step: int = 0
    loss_sum: float = 0.0
    num_seeds: int = 0
    seconds: float = 0.0
    compute_s: float = 0.0
    checkpoint_s: float = 0.0
    stats: dict[str, Any] = dataclasses.field(
        default_factory=lambda: dict.fromkeys(_LOADER_STATS, 0)
    )
    """Of the loader, by their names in `EpochReport`."""


@dataclasses.dataclass(slots=True)
class _State:
    """Progress of a training, as the checkpoint keeps it."""

    total_steps: int | None
    """None where the learning rate does not depend on it."""
    epochs: list[EpochReport] = dataclasses.field(default_factory=list)
    part: _Part = dataclasses.field(default_factory=_Part)
    """Of the epoch after these."""
    best_epoch: int | None = None
    best_weights: dict[str, torch.Tensor] = dataclasses.field(default_factory=dict)

    def add(self, report: EpochReport, model: nn.Module) -> None:
        self.epochs.append(report)
        self.part = _Part()
        score = report.val_score
        best = None if self.best_epoch is None else self.epochs[self.best_epoch].val_score
        if score is not None and (best is None or score > best):
            self.best_epoch = report.epoch
        elif self.best_epoch is not None:
            return
        # without a validation split the last weights are the best there are
        self.best_weights = {k: v.detach().clone() for k, v in model.state_dict().items()}

    def stale(self, patience: int | None) -> bool:
        if patience is None or self.best_epoch is None:
            return False
        later = self.epochs[self.best_epoch + 1 :]
        return sum(report.val_score is not None for report in later) >= patience
