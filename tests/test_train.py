"""Training: the same losses for every budget, resume point and thread count; and its faults."""

import errno
import hashlib
import json

import numpy as np
import pytest
import torch
from torch import nn

import gnnx
from gnnx import threads
from gnnx.errors import DataError, ResourceError, RunError, UsageError
from gnnx.memory import Tier
from gnnx.nn import GCN, SAGE, SAGEConv
from gnnx.prepare import prepare, synth
from gnnx.train import Trainer, evaluate, load_checkpoint
from gnnx.train import trainer as trainers
from gnnx.train.checkpoint import read_state, write_state

FANOUTS = [5, 5]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A graph whose features (25 MB) and topology (6 MB) do not fit 8 MiB."""
    path = tmp_path_factory.mktemp("train") / "synth"
    synth(
        path,
        num_nodes=100_000,
        num_edges=600_000,
        num_features=64,
        num_classes=5,
        seed=1,
        split="0.005,0.005,0.99",
    )
    return path


def make(dataset, **options):
    torch.manual_seed(3)
    model = SAGE(dataset.num_features, 16, dataset.num_classes, num_layers=2, dropout=0.2)
    options = {"fanouts": FANOUTS, "batch_size": 128, "seed": 5, "eval_every": 0} | options
    return Trainer(model, dataset, **options)


def losses(report):
    return [epoch.loss for epoch in report.epochs]


def hash_batches(loader):
    digest = hashlib.sha256()
    for batch in loader:
        for tensor in (batch.n_id, batch.x, batch.y, batch.input_id):
            digest.update(tensor.numpy().tobytes())
        for block in batch.blocks:
            for tensor in (block.indptr, block.indices, block.src_id, *block.transpose):
                digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


@pytest.fixture(scope="module")
def straight(folder):
    """Losses of three epochs with everything in memory."""
    with gnnx.open(folder, memory="8GiB") as dataset:
        return losses(make(dataset).fit(3))


@pytest.mark.parametrize("memory", ["8MiB", "64MiB"])
def test_losses_do_not_depend_on_the_budget(folder, straight, memory):
    with gnnx.open(folder, memory=memory) as dataset:
        report = make(dataset).fit(3)
        assert losses(report) == straight
        assert report.memory.peak_ledger_bytes <= report.memory.budget_bytes
    assert straight[0] > straight[-1]


def test_stopped_and_resumed_losses_are_bit_equal(folder, straight, tmp_path):
    for epochs in (1, 3):  # a fresh model and trainer each time, as a new process has them
        with gnnx.open(folder, memory="64MiB") as dataset:
            report = make(dataset, checkpoint=tmp_path).fit(epochs, resume=True)
    assert losses(report) == straight


def test_threads_change_no_batch(folder, straight):
    before = threads.num_threads()
    digests, found = set(), []
    try:
        for count in (1, 2):
            threads.set_num_threads(count)
            with gnnx.open(folder, memory="64MiB") as dataset:
                digests.add(hash_batches(gnnx.Loader(dataset, FANOUTS, 128, seed=5)))
                found.append(losses(make(dataset).fit(3)))
    finally:
        threads.set_num_threads(before)
    assert len(digests) == 1
    for row in found:
        assert row == pytest.approx(straight, rel=1e-5)


def test_report_is_plain_and_adds_up(folder):
    with gnnx.open(folder, memory="64MiB") as dataset:
        report = make(dataset, eval_every=1).fit(2)
    assert json.loads(json.dumps(report.as_dict())) == report.as_dict()
    for epoch in report.epochs:
        assert epoch.rows_requested == epoch.rows_hit + epoch.rows_from_disk
        assert 0 <= epoch.val_accuracy <= 1
        assert epoch.fill_bytes > 0  # evaluation has taken the cache's memory
    best = max(report.epochs, key=lambda epoch: epoch.val_accuracy)
    assert report.val_accuracy == best.val_accuracy
    assert report.memory.base_rss_bytes < report.memory.peak_rss_bytes


def test_learns_more_than_chance(folder):
    with gnnx.open(folder, memory="64MiB") as dataset:
        report = make(dataset, eval_every=1).fit(5)
    assert report.test_accuracy > 0.5  # five classes of equal size


def test_the_model_ends_with_the_best_weights(folder):
    with gnnx.open(folder, memory="64MiB") as dataset:
        trainer = make(dataset, eval_every=1, lr=0.3)
        report = trainer.fit(4)
        again = evaluate(trainer.model, dataset, "val")
    assert again.accuracy == report.val_accuracy
    assert report.val_accuracy == max(epoch.val_accuracy for epoch in report.epochs)


def test_patience_stops(folder):
    with gnnx.open(folder, memory="64MiB") as dataset:
        trainer = make(dataset, eval_every=1, lr=0.0, patience=2)
        assert len(trainer.fit(10).epochs) == 3  # the first is the best, two are no better


def test_nothing_is_held_after_training(folder):
    with gnnx.open(folder, memory="64MiB") as dataset:
        trainer = make(dataset)
        trainer.fit(1)
        assert set(dataset.ledger.owners(Tier.DEVICE)) == set()


def test_no_batch_is_held_while_evaluating(folder, monkeypatch):
    held = []

    def look(model, dataset, *args, **options):
        held.append(dataset.ledger.owners(Tier.DEVICE))
        return evaluate(model, dataset, *args, **options)

    monkeypatch.setattr(trainers, "evaluate", look)
    with gnnx.open(folder, memory="64MiB") as dataset:
        trainer = make(dataset, eval_every=1)
        held.clear()  # of the toy that measures the base
        trainer.fit(2)
    assert held == [{}, {}, {}]


def test_what_fits_is_read_from_the_disk_once(folder):
    with gnnx.open(folder, memory="1GiB") as dataset:
        trainer = make(dataset, eval_every=1)
        trainer.fit(1)
        file = dataset.features.file
        before = file.bytes_read
        trainer.fit(3)
        assert file.bytes_read == before >= dataset.num_nodes * dataset.features.row_bytes


def test_a_short_budget_lends_the_cache_to_evaluation(folder):
    with gnnx.open(folder, memory="16MiB") as dataset:
        trainer = make(dataset, eval_every=1)
        trainer.fit(2)
        assert not trainer.loader.features.is_filled


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_of_another_precision_trains(folder, dtype):
    with gnnx.open(folder, memory="64MiB") as dataset:
        model = SAGE(dataset.num_features, 16, dataset.num_classes, num_layers=2).to(dtype)
        report = Trainer(model, dataset, fanouts=FANOUTS, batch_size=128, eval_every=0).fit(2)
    assert losses(report)[-1] < losses(report)[0]


def test_only_the_data_set_is_asked_of_a_model_of_ones_own(folder):
    """It is not run on the toy by which the base is measured, which it may not suit."""

    class Picky(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([SAGEConv(64, 5)])

        def forward(self, blocks, x):
            assert len(x) > 64
            return self.layers[0](blocks[0], x)

    with gnnx.open(folder, memory="64MiB") as dataset:
        Trainer(Picky(), dataset, fanouts=[5], batch_size=125, eval_every=0).fit(1)


@pytest.mark.parametrize("autocast", [None, torch.bfloat16])
def test_features_of_integers_train(tmp_path, autocast):
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 300)
    x = (rng.integers(0, 20, (300, 8)) + 10 * label[:, None]).astype(np.uint8)
    for name, values in {"edges": rng.integers(0, 300, (900, 2)), "x": x, "y": label}.items():
        np.save(tmp_path / f"{name}.npy", values)
    tables = {"features": tmp_path / "x.npy", "labels": tmp_path / "y.npy"}
    prepare(tmp_path / "edges.npy", tmp_path / "graph", **tables)
    with gnnx.open(tmp_path / "graph", memory="64MiB") as dataset:
        report = make(dataset, autocast=autocast).fit(8)
    assert losses(report)[-1] < losses(report)[0]


def test_a_loss_that_is_not_finite_is_named(folder):
    with gnnx.open(folder, memory="64MiB") as dataset:
        trainer = make(dataset, loss=lambda logits, y: logits.sum() * float("nan"))
        with pytest.raises(RunError, match="loss is nan at epoch 0, step 0"):
            trainer.fit(1)


def test_own_loss_schedule_and_optimizer(folder):
    seen = []

    def schedule(optimizer, total_steps):
        seen.append(total_steps)
        return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_steps)

    with gnnx.open(folder, memory="64MiB") as dataset:
        trainer = make(
            dataset,
            loss=nn.functional.cross_entropy,
            schedule=schedule,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        )
        trainer.fit(2)
        assert seen == [2 * len(trainer.loader)]
        assert trainer.optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_balanced_weights_are_the_inverse_frequency(folder):
    with gnnx.open(folder, memory="64MiB") as dataset:
        trainer = make(dataset, class_weights="balanced")
        ids = dataset.split("train").read_range(0, dataset.split("train").num_rows).numpy()
        counts = np.bincount(dataset.labels.read(ids).numpy(), minlength=5)
    np.testing.assert_allclose(trainer.loss.weight.numpy(), len(ids) / (5 * counts), rtol=1e-6)


def test_bfloat16_autocast_learns(folder):
    with gnnx.open(folder, memory="64MiB") as dataset:
        report = make(dataset, autocast=torch.bfloat16).fit(3)
    assert losses(report)[-1] < losses(report)[0]


def test_gcn_trains_with_degrees(folder):
    with gnnx.open(folder, memory="64MiB") as dataset:
        model = GCN(dataset.num_features, 16, dataset.num_classes, num_layers=2)
        report = Trainer(model, dataset, fanouts=FANOUTS, batch_size=128, eval_every=0).fit(3)
    assert losses(report)[-1] < losses(report)[0]


def test_a_checkpoint_of_other_settings_is_refused(folder, tmp_path):
    with gnnx.open(folder, memory="64MiB") as dataset:
        make(dataset, checkpoint=tmp_path).fit(1)
        with pytest.raises(UsageError, match="batch_size was 128 and is 64 now"):
            make(dataset, checkpoint=tmp_path, batch_size=64).fit(2, resume=True)
        with pytest.raises(UsageError, match=r"lr was 0\.01 and is 0\.5 now"):
            make(dataset, checkpoint=tmp_path, lr=0.5).fit(2, resume=True)
        with pytest.raises(UsageError, match="class_weights was None and is balanced now"):
            make(dataset, checkpoint=tmp_path, class_weights="balanced").fit(2, resume=True)
        with pytest.raises(UsageError, match="loss was cross-entropy and is own now"):
            make(dataset, checkpoint=tmp_path, loss=nn.CrossEntropyLoss()).fit(2, resume=True)
        wider = SAGE(dataset.num_features, 32, dataset.num_classes, num_layers=2)
        same = {"fanouts": FANOUTS, "batch_size": 128, "seed": 5, "checkpoint": tmp_path}
        with pytest.raises(UsageError, match=r"model was .*'hidden_features': 16"):
            Trainer(wider, dataset, **same).fit(2, resume=True)
        other = {"checkpoint": tmp_path / "cosine", "schedule": "cosine"}
        make(dataset, **other).fit(1)
        with pytest.raises(UsageError, match="total_steps was"):
            make(dataset, **other).fit(2, resume=True)
        with pytest.raises(UsageError, match="--checkpoint"):
            make(dataset).fit(1, resume=True)
        with pytest.raises(UsageError, match="0 epochs"):
            make(dataset).fit(0)


def test_a_checkpoint_is_not_overwritten_by_a_training_from_the_start(folder, tmp_path):
    with gnnx.open(folder, memory="64MiB") as dataset:
        make(dataset, checkpoint=tmp_path).fit(1)
        before = (tmp_path / "checkpoint.pt").read_bytes()
        with pytest.raises(UsageError) as caught:
            make(dataset, checkpoint=tmp_path).fit(1)
    assert caught.value.cause == f"{tmp_path}: holds the state of a training already"
    assert "--resume" in caught.value.remedy
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


def test_weights_of_another_model_of_the_user_s_own_are_refused(folder, tmp_path):
    class Own(SAGE):
        def __init__(self, dataset, width):
            super().__init__(dataset.num_features, width, dataset.num_classes, num_layers=2)
            self.config = None

    with gnnx.open(folder, memory="64MiB") as dataset:
        same = {"fanouts": FANOUTS, "batch_size": 128, "eval_every": 0, "checkpoint": tmp_path}
        Trainer(Own(dataset, 8), dataset, **same).fit(1)
        other = Own(dataset, 16)
        before = {name: value.clone() for name, value in other.state_dict().items()}
        with pytest.raises(UsageError, match="its weights are those of another model"):
            Trainer(other, dataset, **same).fit(2, resume=True)
        assert all(torch.equal(value, before[name]) for name, value in other.state_dict().items())


def test_checkpoints_hold_the_best_weights_and_the_model(folder, tmp_path):
    with gnnx.open(folder, memory="64MiB") as dataset:
        trainer = make(dataset, checkpoint=tmp_path, eval_every=1)
        trainer.fit(2)
        saved = load_checkpoint(tmp_path)
        assert saved.fingerprint == dataset.fingerprint
        assert saved.num_epochs == 2
    assert saved.config["model"] == "sage"
    for name, value in trainer.model.state_dict().items():
        assert torch.equal(saved.weights[name], value)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.pt"]


@pytest.mark.parametrize("damage", ["missing", "truncated", "pickle", "version"])
def test_a_damaged_checkpoint_is_named(tmp_path, damage):
    path = tmp_path / "checkpoint.pt"
    if damage == "truncated":
        torch.save({"version": 1, "weights": torch.zeros(1000)}, path)
        path.write_bytes(path.read_bytes()[:-500])
    elif damage == "pickle":  # a file of a stranger runs no code
        torch.save({"version": 1, "weights": tmp_path}, path)
    elif damage == "version":
        torch.save({"version": 99}, path)
    with pytest.raises(DataError, match=r"checkpoint\.pt"):
        load_checkpoint(tmp_path)


def test_a_flipped_bit_of_a_checkpoint_is_found(tmp_path):
    """torch.load itself overlooks those in the weights."""
    path = tmp_path / "checkpoint.pt"
    write_state(tmp_path, {"weights": torch.zeros(1000)})
    whole, generator, found = path.read_bytes(), np.random.default_rng(0), 0
    for _ in range(200):
        at, bit = generator.integers(len(whole)), generator.integers(8)
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        path.write_bytes(damaged)
        try:
            weights = read_state(tmp_path)["weights"]
        except DataError:
            found += 1
        else:  # of what the archive does not use, such as its padding
            assert torch.equal(weights, torch.zeros(1000))
    assert found > 150  # most of the file is weights


def test_a_kill_while_saving_leaves_the_old_checkpoint(folder, tmp_path, monkeypatch):
    with gnnx.open(folder, memory="64MiB") as dataset:
        make(dataset, checkpoint=tmp_path).fit(1)
        before = (tmp_path / "checkpoint.pt").read_bytes()

        def die(content, file):
            file.write(b"half")
            raise KeyboardInterrupt

        monkeypatch.setattr(torch, "save", die)
        with pytest.raises(KeyboardInterrupt):
            make(dataset, checkpoint=tmp_path).fit(2, resume=True)
    assert (tmp_path / "checkpoint.pt").read_bytes() == before


@pytest.mark.parametrize("fanouts", [[5], [5, 5, 5]])
def test_as_many_fanouts_as_layers(folder, fanouts):
    """Also for a model whose forward would quietly go on with fewer of either."""
    with gnnx.open(folder) as dataset, pytest.raises(UsageError, match="for a model of 2 layers"):
        make(dataset, fanouts=fanouts)


def test_a_checkpoint_that_finds_no_space_is_named(folder, tmp_path, monkeypatch):
    def full(*_args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with gnnx.open(folder) as dataset:
        trainer = make(dataset, checkpoint=tmp_path)
        with pytest.raises(ResourceError, match=r"checkpoint\.pt: No space left on device"):
            trainer.fit(1)
    assert list(tmp_path.iterdir()) == []
