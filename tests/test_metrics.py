"""Metrics against slow definitions, with ties and missing labels; training on several labels."""

import itertools
import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import gnnx
import oracles
from gnnx.cli import app
from gnnx.errors import BudgetError, UsageError
from gnnx.memory import Budget, Ledger, Tier
from gnnx.nn import SAGE, Stack
from gnnx.store import DatasetWriter
from gnnx.train.metrics import average_precision, roc_auc

LABELLED = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=40)


@given(LABELLED)
def test_curves_against_pairs_and_thresholds(rows):
    """Few distinct scores: most are ties."""
    scores = torch.tensor([float(s) for s, _ in rows])
    positive = torch.tensor([p for _, p in rows], dtype=torch.bool)
    for curve, slow in (
        (roc_auc, oracles.roc_auc),
        (average_precision, oracles.average_precision),
    ):
        got, wanted = curve(scores, positive), slow(scores.tolist(), positive.tolist())
        assert (got is None) == (wanted is None)
        assert got == pytest.approx(wanted, abs=1e-14)


def test_curves_of_known_cases():
    scores, positive = torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]).bool()
    assert roc_auc(scores, positive) == 0.75
    assert average_precision(scores, positive) == pytest.approx(5 / 6)
    assert roc_auc(torch.zeros(4), positive) == 0.5
    assert average_precision(torch.zeros(4), positive) == 0.5
    assert roc_auc(scores, torch.ones(4, dtype=torch.bool)) is None
    assert average_precision(scores, torch.zeros(4, dtype=torch.bool)) is None


class Fixed(torch.nn.Module):
    """Gives each node its own features as outputs."""

    def forward(self, block, h):
        return h[: block.num_dst]


def write(folder, x, y, num_classes, nodes=None):
    """A ring with given features and labels; every node in train, val and test."""
    n = len(x)
    nodes = np.arange(n) if nodes is None else nodes
    arrays = {
        "nodes/node/x": np.asarray(x, np.float32),
        "nodes/node/y": y,
        "edges/node-edge-node/indptr": np.arange(n + 1),
        "edges/node-edge-node/indices": ((np.arange(n) + 1) % n).astype(np.int32),
    }
    arrays |= {f"nodes/node/{split}": nodes for split in ("train", "val", "test")}
    with DatasetWriter(folder, ledger=Ledger(Budget.parse("64MiB"))) as writer:
        writer.nodes("node", n, num_classes=num_classes)
        writer.edges(("node", "edge", "node"), n)
        for name, array in arrays.items():
            writer.array(name, array.shape, str(array.dtype)).append(array)
        writer.commit()
    return folder


def measured(dataset, metric):
    return gnnx.evaluate(Stack([Fixed()]), dataset, "test", metric=metric)


def test_two_classes(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(-1, 2, 300)  # -1: no label
    x = rng.integers(0, 4, (300, 2)) + np.stack([y == 0, y == 1], 1)
    known = y >= 0
    score, right = (x[:, 1] - x[:, 0])[known], y[known] == 1
    with gnnx.open(write(tmp_path / "d", x, y, 2), memory="16MiB") as dataset:
        assert measured(dataset, "rocauc").score == pytest.approx(oracles.roc_auc(score, right))
        wanted = oracles.average_precision(score, right)
        assert measured(dataset, "ap").score == pytest.approx(wanted)
        found = measured(dataset, "accuracy")
        assert found.score == found.accuracy == np.mean(x[known].argmax(1) == y[known])
        assert found.count == known.sum()


def test_more_classes(tmp_path):
    """Curves of each class against the rest, leaving out one that nobody has; F1 likewise."""
    rng = np.random.default_rng(1)
    y = rng.choice([-1, 0, 1, 2, 4], 400)  # nobody is of class 3
    x = rng.normal(size=(400, 5)) + np.eye(5)[np.maximum(y, 0)]
    x[:, 3] = -9
    x = x.astype(np.float32)
    known = y >= 0
    p = torch.from_numpy(x[known]).softmax(1).numpy()
    classes = [0, 1, 2, 4]
    predicted = x[known].argmax(1)
    with gnnx.open(write(tmp_path / "d", x, y, 5), memory="16MiB") as dataset:
        for metric, slow in ("rocauc", oracles.roc_auc), ("ap", oracles.average_precision):
            wanted = np.mean([slow(p[:, c], y[known] == c) for c in classes])
            assert measured(dataset, metric).score == pytest.approx(wanted, abs=1e-12)
        macro = np.mean([oracles.f1(predicted == c, y[known] == c) for c in classes])
        assert measured(dataset, "f1-macro").score == pytest.approx(macro)
        assert measured(dataset, "f1").score == pytest.approx(np.mean(predicted == y[known]))


def several(seed=2, num_nodes=300, num_labels=6):
    rng = np.random.default_rng(seed)
    y = (rng.random((num_nodes, num_labels)) < [0.5, 0.3, 0.2, 0.1, 0.05, 0.0]).astype(np.uint8)
    y[rng.random(num_nodes) < 0.2] = 255  # unlabelled nodes
    y[rng.random(y.shape) < 0.05] = 255  # and single labels that are not known
    x = rng.integers(-3, 3, y.shape) + 1.5 * (y == 1)
    return x.astype(np.float32), y


def test_several_labels_a_node(tmp_path):
    x, y = several()
    known, columns = y != 255, range(y.shape[1])
    with gnnx.open(write(tmp_path / "d", x, y, 6), memory="16MiB") as dataset:
        for metric, slow in ("rocauc", oracles.roc_auc), ("ap", oracles.average_precision):
            each = [slow(x[known[:, c], c], y[known[:, c], c] == 1) for c in columns]
            assert each[-1] is None  # a label that nobody has
            assert measured(dataset, metric).score == pytest.approx(np.mean(each[:-1]), abs=1e-12)
        found = measured(dataset, "f1")
        above, right = (x > 0) & known, (y == 1) & known
        assert found.score == pytest.approx(oracles.f1(above.ravel(), right.ravel()))
        macro = np.mean([oracles.f1(above[:, c], right[:, c]) for c in columns])
        assert measured(dataset, "f1-macro").score == pytest.approx(macro)
        assert found.count == known.any(1).sum()
        assert found.accuracy == pytest.approx(((x > 0) == (y == 1))[known].mean())
        p = 1 / (1 + np.exp(-x[known].astype(np.float64)))
        loss = -np.where(y[known] == 1, np.log(p), np.log(1 - p)).mean()
        assert found.loss == pytest.approx(loss, rel=1e-6)


def test_scores_do_not_depend_on_the_pieces(tmp_path):
    """A small DEVICE budget cuts the evaluation into many pieces."""
    x, y = several(num_nodes=2000)
    path, found = write(tmp_path / "d", x, y, 6), []
    for device_memory in ("16KiB", None):
        with gnnx.open(path, memory="16MiB", device_memory=device_memory) as dataset:
            found.append([measured(dataset, m).score for m in ("rocauc", "ap", "f1")])
    assert found[0] == found[1]


def test_curves_take_their_memory_from_the_budget(tmp_path):
    x, y = several(num_nodes=60000)
    path, peaks = write(tmp_path / "d", x, y, 6), []
    for metric in ("f1", "rocauc"):
        with gnnx.open(path, memory="64MiB", device_memory="256KiB") as dataset:
            measured(dataset, metric)
            peaks.append(dataset.ledger.peak_bytes(Tier.HOST))
    assert peaks[1] - peaks[0] >= 60000 * (6 * 4 + 6)
    with gnnx.open(path, memory=60000 * (6 * 4 + 6), device_memory="256KiB") as dataset:
        measured(dataset, "f1")
        with pytest.raises(BudgetError):
            measured(dataset, "rocauc")


def test_training_on_several_labels(tmp_path):
    """Its loss is the mean over known labels; the best epoch is chosen by the metric."""
    x, y = several(num_nodes=600)
    path = write(tmp_path / "d", x, y, 6, nodes=np.arange(600)[(y != 255).any(1)])
    torch.manual_seed(0)
    with gnnx.open(path, memory="16MiB") as dataset:
        model = SAGE(6, 16, 6, 2, dropout=0.0)
        trainer = gnnx.Trainer(
            model, dataset, fanouts=[-1, -1], batch_size=100, lr=0.02, metric="ap"
        )
        report = trainer.fit(8)
        assert report.metric == "ap"
        assert report.epochs[-1].loss < report.epochs[0].loss < 0.8
        best = max(report.epochs, key=lambda epoch: epoch.val_score)
        assert (best.epoch, best.val_score) == (report.best_epoch, report.val_score)
        assert report.test_score == measured_by(model, dataset, "ap") == report.val_score
        assert report.val_score > report.epochs[0].val_score
        frozen = gnnx.Trainer(
            model, dataset, fanouts=[-1, -1], batch_size=1000, lr=0.0, weight_decay=0.0
        )
        found = gnnx.evaluate(model, dataset, "train").loss
        assert frozen.fit(1).epochs[0].loss == pytest.approx(found, rel=1e-5)
        with pytest.raises(UsageError, match="class weights for several labels a node"):
            gnnx.Trainer(model, dataset, fanouts=[-1, -1], class_weights="balanced")


def test_several_labels_from_a_file_to_a_score(tmp_path):
    """Prepared, trained by average precision and inferred with the command line alone."""
    x, y = several(num_nodes=400)
    y = y.astype(np.int64)
    y[(y == 255).any(1)] = -1  # none at all
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    edges = np.stack([np.arange(400), (np.arange(400) + 1) % 400], 1)
    np.savetxt(tmp_path / "edges.csv", edges, fmt="%d", delimiter=",")
    words = ["--features", tmp_path / "x.npy", "--labels", tmp_path / "y.npy"]
    more = ["--fanouts", "2,2", "--hidden", "8", "--epochs", "2", "--metric", "ap"]
    state = ["--checkpoint", tmp_path / "run"]
    for command in (
        ["prepare", tmp_path / "edges.csv", tmp_path / "graph", *words],
        ["train", tmp_path / "graph", *more, *state, "--model", "sage"],
        ["infer", tmp_path / "graph", *state, "--out", tmp_path / "out.npy"],
    ):
        result = CliRunner().invoke(app, [*map(str, command), "--quiet", "--json"])
        assert result.exit_code == 0, result.output
        if command[0] == "train":
            score = json.loads(result.stdout)["test_score"]
    out = np.load(tmp_path / "out.npy")
    with gnnx.open(tmp_path / "graph") as dataset:
        nodes = dataset.split("test").read_range(0, dataset.split("test").num_rows).numpy()
    assert (y[nodes] >= 0).all()
    each = [oracles.average_precision(out[nodes, c], y[nodes, c]) for c in range(6)]
    assert score == pytest.approx(np.mean([value for value in each if value is not None]))


def measured_by(model, dataset, metric):
    return gnnx.evaluate(model, dataset, "test", metric=metric).score


def test_the_metric_chooses_the_epoch(tmp_path):
    """Where accuracy and ROC AUC disagree on the best epoch, each takes its own."""
    rng = np.random.default_rng(3)
    y = (rng.random(500) < 0.1).astype(np.int64)
    x = rng.normal(size=(500, 4)) + 0.5 * y[:, None]
    chosen = {}
    with gnnx.open(write(tmp_path / "d", x, y, 2), memory="16MiB") as dataset:
        for metric in ("accuracy", "rocauc"):
            torch.manual_seed(0)
            model = SAGE(4, 8, 2, 1, dropout=0.0)
            trainer = gnnx.Trainer(
                model, dataset, fanouts=[2], batch_size=50, lr=0.02, metric=metric
            )
            report = trainer.fit(6)
            scores = [epoch.val_score for epoch in report.epochs]
            assert report.best_epoch == scores.index(max(scores))
            chosen[metric] = [epoch.loss for epoch in report.epochs], report.best_epoch
    assert chosen["accuracy"][0] == chosen["rocauc"][0]
    assert chosen["accuracy"][1] != chosen["rocauc"][1]


def test_an_unknown_metric_is_named(tmp_path):
    x, y = several()
    with gnnx.open(write(tmp_path / "d", x, y, 6)) as dataset:
        with pytest.raises(UsageError, match=r"metric 'auc' is unknown\n.*rocauc"):
            measured(dataset, "auc")
        with pytest.raises(UsageError, match="metric 'auc' is unknown"):
            gnnx.Trainer(SAGE(6, 8, 6, 1), dataset, fanouts=[1], metric="auc")


def test_oracles_are_right_by_hand():
    assert oracles.roc_auc([3, 1, 2], [True, False, False]) == 1
    assert oracles.roc_auc([1, 1], [True, False]) == 0.5
    for scores in itertools.permutations(range(3)):
        wanted = sum(scores[0] > other for other in scores[1:]) / 2
        assert oracles.roc_auc(scores, [True, False, False]) == wanted
