"""Killed at any moment, a training goes on from its last state with the same losses."""

import itertools
import json
import multiprocessing
import time

import numpy as np
import pytest
import torch

import gnnx
from gnnx.errors import UsageError
from gnnx.nn import SAGE
from gnnx.prepare import synth
from gnnx.train import Trainer, load_checkpoint

FANOUTS, STEPS, EPOCHS = [4, 4], 16, 5
OPTIONS = {"fanouts": FANOUTS, "batch_size": 32, "seed": 5, "schedule": "cosine"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("resume") / "synth"
    synth(
        path,
        num_nodes=5000,
        num_edges=40_000,
        num_features=192,
        num_classes=4,
        seed=1,
        split=f"{STEPS * 32 / 5000},0.02,0.02",
    )
    return path


class Noisy(SAGE):
    """Draws from torch's generator as well, whose state has to be in the checkpoint."""

    def forward(self, blocks, x):
        return super().forward(blocks, torch.nn.functional.dropout(x, 0.2, self.training))


class Recorder:
    """Loss and progress of a trainer that write down each step's loss as it is known."""

    def __init__(self, path):
        self.path, self.value = path, None

    def loss(self, logits, y):
        loss = torch.nn.functional.cross_entropy(logits, y)
        self.value = loss.item()
        return loss

    def progress(self, stage, done, _total):
        if stage.startswith("epoch "):
            epoch = int(stage.removeprefix("epoch ")) - 1
            with self.path.open("a") as file:
                file.write(f"{json.dumps([epoch, done - 1, self.value.hex()])}\n")


def train(folder, memory, record, checkpoint, checkpoint_every, epochs=EPOCHS):
    """What a process does from its start to its end."""
    recorder = Recorder(record)
    with gnnx.open(folder, memory=memory) as dataset:
        torch.manual_seed(3)
        model = Noisy(dataset.num_features, 16, dataset.num_classes, num_layers=2, dropout=0.2)
        trainer = Trainer(
            model,
            dataset,
            **OPTIONS,
            loss=recorder.loss,
            checkpoint=checkpoint,
            checkpoint_every=checkpoint_every,
        )
        return trainer.fit(epochs, resume=checkpoint is not None, progress=recorder.progress)


def recorded(path):
    """(epoch, step) and loss of each step, in the order in which they were taken."""
    if not path.exists():
        return []
    lines = path.read_text().splitlines(keepends=True)
    steps = [json.loads(line) for line in lines if line.endswith("\n")]
    return [((epoch, step), float.fromhex(loss)) for epoch, step, loss in steps]


@pytest.fixture(scope="module")
def straight(folder, tmp_path_factory):
    """Losses of an undisturbed run, by step, and its report."""
    path = tmp_path_factory.mktemp("straight") / "record"
    report = train(folder, "64MiB", path, None, None)
    return dict(recorded(path)), report


def kill_and_resume(folder, tmp_path, num_kills, seed):
    """Kill a training at so many moments, then let it end; what each process has recorded."""
    context = multiprocessing.get_context("forkserver")  # a fork of a clean process: no start-up
    context.set_forkserver_preload(["gnnx.train", "gnnx.prepare", "gnnx.nn"])
    rng, runs = np.random.default_rng(seed), []
    for kill in itertools.count():
        record = tmp_path / f"record{kill}"
        # the budget of each process is another one
        memory = ["64MiB", "2MiB", "1GiB"][kill % 3]
        job = context.Process(target=train, args=(folder, memory, record, tmp_path / "run", 3))
        job.start()
        try:
            if kill < num_kills:
                # a state each 3 steps: a process that has taken 4 has left one
                most = int(rng.integers(4, 6)) if num_kills > 10 else int(rng.integers(4, 30))
                while job.is_alive() and len(recorded(record)) < most:
                    time.sleep(0.001)
                job.join(rng.uniform(0, 0.01))
                assert job.is_alive(), "it ended before it could be killed"
                job.kill()
            job.join(60)
            assert job.exitcode == (-9 if kill < num_kills else 0)
        finally:
            job.kill()
        runs.append(recorded(record))
        if kill == num_kills:
            return runs
    raise AssertionError


@pytest.mark.parametrize(
    ("num_kills", "seed"), [(2, 0), pytest.param(20, 1, marks=pytest.mark.slow)]
)
def test_killed_and_resumed_losses_are_bit_equal(folder, straight, tmp_path, num_kills, seed):
    losses, report = straight
    runs = kill_and_resume(folder, tmp_path, num_kills, seed)
    for run in runs:
        assert [loss for _, loss in run] == [losses[step] for step, _ in run]
    assert set(losses) == {step for run in runs for step, _ in run}
    assert any(run[0][0][1] % STEPS for run in runs[1:]), "nobody began inside an epoch"
    done = load_checkpoint(tmp_path / "run")
    assert done.num_epochs == EPOCHS
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["checkpoint.pt"]
    # the report of the last process is that of one that was never killed
    last = train(folder, "64MiB", tmp_path / "record", tmp_path / "run", 3)
    assert recorded(tmp_path / "record") == []
    for mine, whole in zip(last.epochs, report.epochs, strict=True):
        assert (mine.loss, mine.val_loss) == (whole.loss, whole.val_loss)
        assert mine.rows_requested >= whole.rows_requested  # batches that nobody took count as well
    assert last.test_accuracy == report.test_accuracy


@pytest.mark.parametrize("first", [0, 1, 7, STEPS])
@pytest.mark.parametrize("lookahead", ["windows", "packs", None])
def test_an_epoch_begins_at_any_step(folder, first, lookahead):
    with gnnx.open(folder, memory="3MiB") as dataset:
        loader = gnnx.Loader(dataset, FANOUTS, 32, seed=5, lookahead=lookahead)
        loader.epoch = 2
        whole = [(batch.n_id, batch.x) for batch in loader]
        assert (loader.stats.windows > 0) == (lookahead in {"windows", "packs"})
        loader.epoch, loader.step = 2, first
        rest = [(batch.n_id, batch.x) for batch in loader]
        assert loader.epoch == 3
        assert loader.step == 0
        assert loader.stats.steps == len(rest) == STEPS - first
        assert loader.stats.rows_requested == sum(len(n_id) for n_id, _ in rest)
    for mine, all_ in zip(rest, whole[first:], strict=True):
        assert torch.equal(mine[0], all_[0])
        assert torch.equal(mine[1], all_[1])


@pytest.mark.parametrize("step", [-1, STEPS + 1])
def test_a_step_outside_the_epoch_is_refused(folder, step):
    with gnnx.open(folder, memory="64MiB") as dataset:
        loader = gnnx.Loader(dataset, FANOUTS, 32)
        loader.step = step
        with pytest.raises(UsageError, match=f"step {step} of an epoch of {STEPS} steps"):
            next(iter(loader))


@pytest.mark.parametrize("lookahead", ["windows", "packs", None])
def test_counts_of_a_pass_under_way_add_up(folder, lookahead):
    with gnnx.open(folder, memory="3MiB") as dataset:
        loader = gnnx.Loader(dataset, FANOUTS, 32, lookahead=lookahead, prefetch=0)
        asked = 0
        for batch in loader:
            asked += len(batch.n_id)
            stats = loader.stats
            assert stats.rows_requested == asked
            if stats.windows == 0:
                assert stats.rows_from_disk == asked - stats.rows_hit
            assert stats.rows_from_disk >= 0
        assert loader.stats.rows_from_disk >= stats.rows_from_disk


def test_a_state_inside_the_first_epoch_serves_inference(folder, tmp_path):
    def stop(_stage, done, _total):
        if done == 5:
            raise KeyboardInterrupt

    with gnnx.open(folder, memory="64MiB") as dataset:
        model = SAGE(dataset.num_features, 16, dataset.num_classes, num_layers=2)
        trainer = Trainer(model, dataset, **OPTIONS, checkpoint=tmp_path, checkpoint_every=4)
        with pytest.raises(KeyboardInterrupt):
            trainer.fit(EPOCHS, progress=stop)
        saved = load_checkpoint(tmp_path)
        assert saved.num_epochs == 0
        model.load_state_dict(saved.weights)


@pytest.mark.parametrize("options", [{"checkpoint_every": 2}, {"checkpoint_every": 0}])
def test_checkpoints_want_a_folder_and_a_step(folder, tmp_path, options):
    given = {"checkpoint": tmp_path} if options["checkpoint_every"] == 0 else {}
    with gnnx.open(folder, memory="64MiB") as dataset:
        model = SAGE(dataset.num_features, 16, dataset.num_classes, num_layers=2)
        with pytest.raises(UsageError, match="a checkpoint every"):
            Trainer(model, dataset, **OPTIONS, **given, **options)
