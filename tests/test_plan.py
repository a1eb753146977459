"""The plan of a training: what it says is what happens, and the smallest budget is the smallest."""

import dataclasses
import gc
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import gnnx
from gnnx import memory
from gnnx.cache import FeatureCache
from gnnx.cli import app
from gnnx.errors import BudgetError
from gnnx.memory import Tier
from gnnx.nn import GCN, SAGE
from gnnx.prepare import prepare, synth
from gnnx.store import rehearsal
from gnnx.train import Trainer, evaluate

FANOUTS = [5, 5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """15 MB of features and 1.4 MB of topology."""
    path = tmp_path_factory.mktemp("plan") / "synth"
    synth(
        path,
        num_nodes=30_000,
        num_edges=300_000,
        num_features=128,
        num_classes=4,
        seed=1,
        split="0.1,0.01,0.01",
    )
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "small"
    sizes = {"num_nodes": 4000, "num_edges": 40_000, "num_features": 64, "num_classes": 4}
    synth(path, **sizes, seed=1, split="0.2,0.02,0.02")
    return path


@pytest.fixture(scope="module")
def star(tmp_path_factory):
    """One node has 8000 in-edges, all others have few: a single row of it needs most memory."""
    path = tmp_path_factory.mktemp("star")
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 10_000, (20_000, 2))
    hub = np.stack([rng.permutation(10_000)[:8000], np.zeros(8000, np.int64)], 1)
    np.save(path / "edges.npy", np.concatenate([pairs, hub]))
    np.save(path / "x.npy", rng.normal(size=(10_000, 48)).astype(np.float32))
    np.save(path / "y.npy", rng.integers(0, 3, 10_000))
    np.save(path / "train.npy", rng.permutation(10_000)[:400])
    np.save(path / "val.npy", np.arange(5))
    files = {name: path / f"{name}.npy" for name in ("train", "val")}
    files |= {"features": path / "x.npy", "labels": path / "y.npy"}
    prepare(path / "edges.npy", path / "graph", **files)
    return path / "graph"


def make(dataset, model=SAGE, **options):
    torch.manual_seed(3)
    net = model(dataset.num_features, 16, dataset.num_classes, num_layers=2)
    return Trainer(net, dataset, **{"fanouts": FANOUTS, "batch_size": 100, "seed": 5} | options)


def fit(path, memory=None, device_memory=None, **options):
    with gnnx.open(path, memory=memory, device_memory=device_memory) as dataset:
        return make(dataset, **options).fit(1)


@pytest.mark.parametrize("memory", ["3MiB", "6MiB", "64MiB"])
def test_traffic_is_what_was_planned(folder, memory):
    with gnnx.open(folder, memory=memory) as dataset:
        trainer = make(dataset, eval_every=0)
        plan = trainer.plan()
        report = trainer.fit(2)
        epoch = report.epochs[1]
        assert report.plan is plan
        assert plan.num_steps == len(trainer.loader)
        assert plan.rows_kept == trainer.loader.features.num_kept
        assert sum(plan.host.values()) <= plan.host_budget_bytes
    assert epoch.rows_requested == pytest.approx(plan.rows_requested, rel=0.05)
    assert epoch.rows_from_disk == pytest.approx(plan.rows_from_disk, rel=0.1)
    assert epoch.rows_from_packs == pytest.approx(plan.rows_from_packs, rel=0.08)
    # at small budgets buffers end reads early, and leave out gaps that the plan has in them
    assert epoch.disk_read_bytes == pytest.approx(plan.disk_read_bytes, rel=0.15)
    assert epoch.disk_written_bytes == pytest.approx(plan.disk_written_bytes, rel=0.08)
    assert (epoch.windows > 0) == (plan.strategy != "rows")


def test_a_plan_changes_no_loss(small):
    def losses(*, planned):
        with gnnx.open(small, memory="1MiB") as dataset:
            trainer = make(dataset)
            if planned:
                trainer.plan()
            return [epoch.loss for epoch in trainer.fit(2).epochs]

    assert losses(planned=True) == losses(planned=False)


CASES = {
    "sage": ("small", {}),
    "gcn": ("small", {"model": GCN, "fanouts": [10, 10], "batch_size": 300}),
    "balanced": ("small", {"class_weights": "balanced", "batch_size": 50}),
    "hub": ("star", {"batch_size": 50}),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tier", ["memory", "device_memory"])
def test_the_smallest_budget_is_the_smallest(request, case, tier):
    """Training runs in it; in 10 % less it does not, and says the same number."""
    name, options = CASES[case]
    path = request.getfixturevalue(name)
    with pytest.raises(BudgetError) as caught:
        fit(path, **{tier: "1KiB"}, **options)
    smallest = caught.value.smallest_bytes
    assert caught.value.tier == {"memory": "host", "device_memory": "device"}[tier]
    option = tier.replace("_", "-")
    assert (
        caught.value.remedy
        == f"Give --{option} at least {smallest // 1024}KiB: with that it works."
    )
    fit(path, **{tier: smallest}, **options)
    with pytest.raises(BudgetError) as again:
        fit(path, **{tier: smallest * 9 // 10}, **options)
    assert again.value.smallest_bytes == pytest.approx(smallest, rel=0.08)


@pytest.mark.slow
def test_what_is_larger_than_the_smallest_works_too(star):
    """More memory is shared out otherwise, and never to the harm of what is needed."""
    with pytest.raises(BudgetError) as caught:
        fit(star, memory="1KiB")
    budget = caught.value.smallest_bytes
    while budget < 16 << 20:
        fit(star, memory=budget)
        budget = budget * 11 // 10


def test_the_smallest_budget_of_inference(star, tmp_path):
    def infer(memory):
        with gnnx.open(star, memory=memory) as dataset:
            torch.manual_seed(0)
            model = GCN(dataset.num_features, 8, dataset.num_classes, num_layers=2)
            gnnx.infer(model, dataset, out=tmp_path / "out.npy")
        return np.load(tmp_path / "out.npy")

    with pytest.raises(BudgetError) as caught:
        infer("1KiB")
    smallest = caught.value.smallest_bytes
    np.testing.assert_allclose(infer(smallest), infer("1GiB"), rtol=1e-4, atol=1e-5)
    with pytest.raises(BudgetError):
        infer(smallest * 9 // 10)


def test_closed_datasets_give_their_ledgers_back_without_the_collector(small):
    """Cycles would keep slabs resident until the cyclic collector runs."""

    def work():
        report = fit(small, memory="64MiB")
        with gnnx.open(small, memory="64MiB") as dataset:
            model = SAGE(dataset.num_features, 16, dataset.num_classes, num_layers=2)
            evaluate(model, dataset, "val")
            list(gnnx.Loader(dataset, FANOUTS, 100))
        with pytest.raises(BudgetError):  # rehearsed in several budgets
            fit(small, memory="60KiB")
        return report

    work()  # compiling leaves cycles of its own, once
    gc.collect()
    gc.disable()
    try:
        before = set(memory.ledger._ledgers)
        work()
        assert set(memory.ledger._ledgers) <= before
    finally:
        gc.enable()


def test_no_rehearsal_takes_more_than_is_available(small, monkeypatch):
    """It would end in the kernel's kill, not in a message."""
    available, asked = 120 << 10, []
    real = rehearsal._needed

    def needed(dataset, attempt, tier, num_bytes):
        asked.append(num_bytes)
        return real(dataset, attempt, tier, num_bytes)

    monkeypatch.setattr(rehearsal, "available_bytes", lambda: available)
    monkeypatch.setattr(rehearsal, "_needed", needed)
    with pytest.raises(BudgetError) as caught:
        fit(small, memory="60KiB")
    assert len(asked) == 1
    assert asked[0] <= available
    assert "with that it works" not in caught.value.remedy
    available = 1 << 30
    with pytest.raises(BudgetError, match="with that it works"):
        fit(small, memory="60KiB")


def test_rehearsals_give_their_memory_back_before_the_next(small, monkeypatch):
    alive, real = [], rehearsal._needed

    def needed(*arguments):
        alive.append(len(memory.ledger._ledgers))
        return real(*arguments)

    def work():
        with pytest.raises(BudgetError):
            fit(small, memory="60KiB")

    monkeypatch.setattr(rehearsal, "_needed", needed)
    work()  # compiling leaves cycles of its own, once
    gc.collect()
    alive.clear()
    gc.disable()
    try:
        work()
    finally:
        gc.enable()
    assert len(alive) > 3
    assert max(alive) == alive[0]


@pytest.mark.parametrize("tier", ["memory", "device_memory"])
def test_rehearsals_read_no_rows_into_the_cache(small, monkeypatch, tier):
    kept, fill, real = [], FeatureCache.fill, Trainer._rehearse

    def rehearse(trainer, dataset):
        def filled(cache):
            kept.append(cache.num_kept)
            fill(cache)

        with monkeypatch.context() as patch:
            patch.setattr(FeatureCache, "fill", filled)
            real(trainer, dataset)

    monkeypatch.setattr(Trainer, "_rehearse", rehearse)
    with pytest.raises(BudgetError, match="with that it works"):
        fit(small, **({"memory": "64MiB"} | {tier: "60KiB"}))
    assert kept
    assert set(kept) == {0}


def test_an_evaluation_gets_the_memory_of_the_rows(small, monkeypatch):
    """Also where `Loader.lent` left them, since half of the budget was free."""
    with gnnx.open(small, memory="64MiB") as dataset:
        trainer = make(dataset)
        seen = []

        def short(*arguments, **options):
            seen.append(trainer.loader.features.is_filled)
            if seen[-1]:
                dataset.ledger.reserve(1 << 30, Tier.HOST, "evaluation")
            return evaluate(*arguments, **options)

        monkeypatch.setattr("gnnx.train.trainer.evaluate", short)
        trainer.fit(1)
    assert seen == [True, False, False]


def run(*words, code=0):
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_plan_verb(small):
    options = ["--model", "sage", "--fanouts", "5,5", "--batch-size", 100, "--memory", "1MiB"]
    document = run("plan", small, *options)
    assert list(document) == ["schema", "command", "dataset", "model", "options", "plan"]
    assert document["command"] == "plan"
    plan = document["plan"]
    trained = run("train", small, *options, "--epochs", 1)["plan"]
    assert (
        set(plan) == set(trained) == {field.name for field in dataclasses.fields(gnnx.train.Plan)}
    )
    machine = {"sample_s", "compute_s", "disk_s", "seconds"}
    assert {k: v for k, v in plan.items() if k not in machine} == {
        k: v for k, v in trained.items() if k not in machine
    }
    assert all(plan[name] > 0 for name in machine)
    shown = CliRunner().invoke(app, ["plan", str(small), *map(str, options)])
    assert shown.exit_code == 0
    assert "rows that stay" in shown.stdout


def test_a_plan_that_does_not_fit_is_refused(small):
    error = run("plan", small, "--fanouts", "5,5", "--memory", "20KiB", code=4)["error"]
    again = run("plan", small, "--fanouts", "5,5", "--memory", error["smallest_bytes"])
    assert again["plan"]["host_budget_bytes"] == error["smallest_bytes"]
