"""What a training tells while it runs: spans of its pipeline, lines of JSON, TensorBoard."""

import dataclasses
import importlib.util
import json
import sys
import threading

import pytest
import torch
from typer.testing import CliRunner

import gnnx
from gnnx.cli import app
from gnnx.errors import ResourceError, UsageError
from gnnx.loader import Trace
from gnnx.nn import SAGE
from gnnx.prepare import synth
from gnnx.train import EpochReport, JsonLines, TensorBoard, Trainer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("logs") / "synth"
    sizes = {"num_nodes": 4000, "num_edges": 40_000, "num_features": 192, "num_classes": 4}
    synth(path, **sizes, seed=1, split="0.2,0.02,0.02")
    return path


def fit(folder, memory="1MiB", epochs=2, options=(), **watchers):
    with gnnx.open(folder, memory=memory) as dataset:
        torch.manual_seed(3)
        model = SAGE(dataset.num_features, 16, dataset.num_classes, num_layers=2)
        trainer = Trainer(model, dataset, fanouts=[4, 4], batch_size=100, **dict(options))
        return trainer.fit(epochs, **watchers)


def test_a_trace_has_each_step_of_each_stage(folder, tmp_path):
    path = tmp_path / "trace.json"
    with Trace(path) as trace:
        report = fit(
            folder,
            options={"checkpoint": tmp_path / "run", "checkpoint_every": 4},
            trace=trace,
        )
    events = json.loads(path.read_text())
    spans = [event for event in events if event["ph"] == "X"]
    every = sorted((epoch, step) for epoch in range(2) for step in range(8))
    for stage in ("sample", "fetch", "wait", "compute"):
        found = [(s["args"]["epoch"], s["args"]["step"]) for s in spans if s["name"] == stage]
        assert sorted(found) == every, stage
    assert [s["args"]["step"] for s in spans if s["name"] == "checkpoint"] == [3, 7, 3, 7]
    assert [s["args"]["split"] for s in spans if s["name"] == "evaluate"] == ["val", "val", "test"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {event["tid"] for event in spans} == set(names)
    of = {s["name"]: names[s["tid"]] for s in spans}
    assert of["compute"] == of["wait"] == threading.main_thread().name
    assert of["sample"].startswith("gnnx")
    # the spans of a stage are the seconds that the report has
    for stage, reported in ("compute", "compute_s"), ("sample", "sample_s"), ("wait", "wait_s"):
        total = sum(s["dur"] for s in spans if s["name"] == stage) / 1e6
        assert total == pytest.approx(sum(getattr(e, reported) for e in report.epochs), abs=1e-3)


def test_windows_show_that_they_look_ahead(folder, tmp_path):
    with gnnx.open(folder, memory="2MiB") as dataset, Trace(tmp_path / "trace.json") as trace:
        loader = gnnx.Loader(dataset, [4, 4], 100, lookahead="packs")
        loader.trace = trace
        assert sum(1 for _ in loader) == 8
        assert loader.stats.windows > 0
    assert loader.stats.rows_from_packs > 0
    events = json.loads((tmp_path / "trace.json").read_text())
    ahead = [event for event in events if event["name"] == "look ahead"]
    steps = [event["args"]["step"] for event in ahead]
    assert steps == sorted(steps)  # what a window does not hold is looked at again for the next
    assert set(steps) == set(range(8))
    assert len({event["tid"] for event in ahead}) == 1


def test_a_trace_changes_no_loss(folder, tmp_path):
    with Trace(tmp_path / "trace.json") as trace:
        traced = fit(folder, trace=trace)
    assert [e.loss for e in traced.epochs] == [e.loss for e in fit(folder).epochs]


def test_spans_after_the_end_are_dropped(tmp_path):
    trace = Trace(tmp_path / "trace.json")
    trace.close()
    trace.add("late", 0.0, 1.0)
    trace.close()
    assert [event["name"] for event in json.loads(trace.path.read_text())] == ["process_name"]


def test_a_line_an_epoch(folder, tmp_path):
    log = JsonLines(tmp_path / "log.jsonl")
    report = fit(folder, observe=[log])
    lines = [json.loads(line) for line in log.path.read_text().splitlines()]
    assert lines == [dataclasses.asdict(epoch) for epoch in report.epochs]
    for epoch in report.epochs:
        assert epoch.amplification > 1
        assert epoch.reads_per_s == pytest.approx(epoch.feature_reads / epoch.seconds)


@pytest.mark.parametrize("kind", [Trace, JsonLines])
def test_a_log_that_cannot_be_written_is_named(tmp_path, kind):
    with pytest.raises(ResourceError, match="none/log: No such file"):
        kind(tmp_path / "none/log")


def test_tensorboard_that_is_not_there_is_told(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(UsageError, match="TensorBoard is not installed"):
        TensorBoard(tmp_path)


@pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="no tensorboard")
def test_tensorboard_has_the_numbers(folder, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    report = fit(folder, observe=[TensorBoard(tmp_path)])
    events = EventAccumulator(str(tmp_path)).Reload()
    losses = [event.value for event in events.Scalars("loss")]
    assert losses == pytest.approx([epoch.loss for epoch in report.epochs])
    assert set(events.Tags()["scalars"]) < {field.name for field in dataclasses.fields(EpochReport)}


def test_the_verb_writes_them(folder, tmp_path):
    words = ["train", folder, "--fanouts", "4,4", "--epochs", 2, "--hidden", 8, "--memory", "1MiB"]
    state = ["--checkpoint", tmp_path / "run", "--log", tmp_path / "log"]
    one = [*words, *state, "--trace", tmp_path / "trace", "--json"]
    assert CliRunner().invoke(app, list(map(str, one))).exit_code == 0
    assert {"sample", "compute"} <= {
        e["name"] for e in json.loads((tmp_path / "trace").read_text())
    }
    more = [*words, *state, "--epochs", 3, "--resume"]
    shown = CliRunner().invoke(app, list(map(str, more)))
    assert shown.exit_code == 0
    assert "/row" in shown.stdout
    lines = (tmp_path / "log").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1, 2]
