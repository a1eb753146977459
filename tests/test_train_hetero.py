"""Typed graphs from end to end: batches, losses for any budget, exact outputs, what is learned."""

import hashlib
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import gnnx
import oracles
from conformance import write_typed_dataset
from gnnx import threads
from gnnx.cache import Demand, typed_access
from gnnx.cache.typed import kept_rows
from gnnx.cli import app
from gnnx.errors import DataError, UsageError
from gnnx.graph import HeteroBlock
from gnnx.inference import infer
from gnnx.memory import Tier
from gnnx.nn import RGCN, HeteroSAGE, build_model
from gnnx.random import Key
from gnnx.sample import HeteroSampler
from gnnx.train import Trainer, evaluate

COUNTS = {"item": 12_000, "shop": 400, "user": 4_000}
NUM_CLASSES = 3
PARTS = ("indptr", "indices")
ENDS = [
    ("item", "bought_by", "user"),
    ("item", "sold_in", "shop"),
    ("shop", "dislikes", "user"),
    ("shop", "likes", "user"),
    ("user", "knows", "user"),
    ("user", "visits", "shop"),
]


def csr_of(src, dst, num_dst):
    order = np.lexsort((src, dst))
    indptr = np.zeros(num_dst + 1, np.int64)
    np.cumsum(np.bincount(dst, minlength=num_dst), out=indptr[1:])
    return indptr, src[order]


def typed_graph(path, counts=None, num_edges=30_000, seed=0):
    """A user's class is what the shops that like it sell; those that dislike it sell another class.

    Without edge types the two kinds of shops cancel out, and users have no features.
    """
    counts = counts or COUNTS
    rng = np.random.default_rng(seed)
    items, shops, users = (rng.integers(0, NUM_CLASSES, counts[t]) for t in sorted(counts))
    src, dst = (rng.integers(0, counts[t], num_edges) for t in ("item", "shop"))
    sold = items[src] == shops[dst]
    graphs = {ENDS[1]: csr_of(src[sold], dst[sold], counts["shop"])}
    src, dst = (rng.integers(0, counts[t], num_edges) for t in ("shop", "user"))
    likes = shops[src] == users[dst]
    graphs[ENDS[3]] = csr_of(src[likes], dst[likes], counts["user"])
    dislikes = shops[src] == (users[dst] + 1) % NUM_CLASSES
    graphs[ENDS[2]] = csr_of(src[dislikes], dst[dislikes], counts["user"])
    src, dst = (rng.integers(0, counts[t], num_edges) for t in ("item", "user"))
    graphs[ENDS[0]] = csr_of(src, dst, counts["user"])
    src, dst = (rng.integers(0, counts["user"], num_edges) for _ in range(2))
    graphs[ENDS[4]] = csr_of(src, dst, counts["user"])
    empty = np.zeros(0, np.int64)
    graphs[ENDS[5]] = csr_of(empty, empty, counts["shop"])
    x = rng.normal(size=(counts["item"], 48)).astype(np.float32)
    x[np.arange(len(x)), items] += 2
    order = rng.permutation(counts["user"])
    cuts = np.split(order, [len(order) // 10, len(order) // 5])
    nodes = {
        "item": (counts["item"], 0, {"x": x}),
        "shop": (counts["shop"], 0, {"x": rng.normal(size=(counts["shop"], 5)).astype("f2")}),
        "user": (
            counts["user"],
            NUM_CLASSES,
            {"y": users.astype(np.int64)}
            | {s: np.sort(ids) for s, ids in zip(("train", "val", "test"), cuts, strict=True)},
        ),
    }
    return write_typed_dataset(path, nodes, graphs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Features of 2.3 MB."""
    return typed_graph(tmp_path_factory.mktemp("typed") / "graph")


def rgcn(dataset, **options):
    torch.manual_seed(3)
    options = {"num_layers": 2, "hidden_features": 16, "dropout": 0.2} | options
    return RGCN(
        dataset.widths,
        out_features=dataset.num_classes,
        edge_types=dataset.edge_types,
        target=dataset.target,
        **options,
    )


def trainer(dataset, **options):
    options = {"fanouts": [5, 5], "batch_size": 64, "seed": 5, "eval_every": 0} | options
    return Trainer(rgcn(dataset), dataset, **options)


def losses(report):
    return [epoch.loss for epoch in report.epochs]


def digest(loader):
    state = hashlib.sha256()
    for batch in loader:
        for rows in (*batch.x.values(), *batch.n_id.values(), batch.y, batch.input_id):
            state.update(rows.numpy().tobytes())
        for block in batch.blocks:
            for one in block.blocks.values():
                for part in (one.indptr, one.indices, one.src_id, *one.transpose):
                    state.update(part.numpy().tobytes())
    return state.hexdigest()


# The data set.


def test_a_typed_dataset_tells_its_types(folder):
    with gnnx.open(folder) as dataset:
        assert dataset.is_typed
        assert (dataset.target, dataset.num_nodes, dataset.num_classes) == ("user", 4000, 3)
        assert dataset.node_counts == COUNTS
        assert dataset.widths == {"item": 48, "shop": 5, "user": 1}
        assert list(dataset.graphs) == ENDS
        assert dataset.split("train").num_rows == 400
        ones = dataset.features_of("user")
        assert ones.read(np.array([7, 0])).tolist() == [[1.0], [1.0]]
        assert ones.read(np.array([7, 0]), slots=np.array([2, 1])).shape == (3, 1)
        with pytest.raises(DataError, match="row 4000 asked for, there are 4000 rows"):
            ones.read(np.array([4000]))
        with pytest.raises(UsageError, match="no node type 'cat'"):
            dataset.features_of("cat")
        for use in (lambda: dataset.graph, lambda: gnnx.Loader(dataset, [2], 8)):
            with pytest.raises(UsageError, match="3 node types and 6 edge types, not one each"):
                use()


def test_without_one_labelled_type_there_is_no_target(tmp_path):
    empty = np.zeros(0, np.int64)
    graphs = {("a", "r", "b"): csr_of(empty, empty, 4)}
    for labelled in ([], ["a", "b"]):
        nodes = {t: (4, int(t in labelled), {}) for t in "ab"}
        path = write_typed_dataset(tmp_path / "d", nodes, graphs, overwrite=True)
        with gnnx.open(path) as dataset:
            message = f"2 node types, {len(labelled)} with labels, not one"
            with pytest.raises(UsageError, match=message):
                _ = dataset.num_nodes


# Batches.


def test_batches_are_the_sampler_s_and_the_rows_those_of_the_files(folder):
    tables = {t: np.load(folder / f"nodes/{t}/x.npy") for t in ("item", "shop")}
    tables["user"] = np.ones((COUNTS["user"], 1), np.float32)
    train, y = np.load(folder / "nodes/user/train.npy"), np.load(folder / "nodes/user/y.npy")
    with gnnx.open(folder, memory="4MiB") as dataset:
        loader = gnnx.HeteroLoader(dataset, [4, 3], 150, seed=2)
        sampler = HeteroSampler(dataset.graphs, dataset.node_counts, "user", [4, 3])
        seen = []
        for step, batch in enumerate(loader):
            assert isinstance(batch.blocks[0], HeteroBlock)
            right = sampler.sample(batch.seeds, Key(2, 0, step))
            for block, expected in zip(batch.blocks, right, strict=True):
                for name, one in block.blocks.items():
                    assert torch.equal(one.indices, expected.blocks[name].indices)
            for name, rows in batch.x.items():
                assert np.array_equal(rows.numpy(), tables[name][batch.n_id[name].numpy()])
                assert rows.data_ptr() % 64 == 0
            assert np.array_equal(batch.y, y[batch.seeds])
            assert np.array_equal(batch.seeds, train[batch.input_id])
            assert batch.to("cpu") is batch
            assert "user" in repr(batch)
            seen += batch.seeds.tolist()
        assert sorted(seen) == train.tolist()
        stats = loader.stats
        assert stats.rows_requested == stats.rows_hit + stats.rows_from_disk
        assert 0 < stats.rows_hit < stats.rows_requested
        assert dataset.ledger.peak_bytes(Tier.HOST) <= 4 << 20


@pytest.mark.parametrize("memory", ["3MiB", "1GiB"])
@pytest.mark.parametrize("cache", ["expected", None])
def test_budgets_and_threads_change_no_batch(folder, memory, cache):
    before, found = threads.num_threads(), set()
    with gnnx.open(folder, memory="1GiB") as dataset:
        found.add(digest(gnnx.HeteroLoader(dataset, [3, -1], 256, prefetch=0)))
    try:
        for count in (1, 2):
            threads.set_num_threads(count)
            with gnnx.open(folder, memory=memory) as dataset:
                found.add(digest(gnnx.HeteroLoader(dataset, [3, -1], 256, cache=cache)))
                assert dataset.ledger.peak_bytes(Tier.HOST) <= dataset.ledger.budget.host
    finally:
        threads.set_num_threads(before)
    assert len(found) == 1


def test_expected_access_is_the_oracle_s(tmp_path):
    counts = {"item": 30, "shop": 8, "user": 20}
    path = typed_graph(tmp_path / "d", counts, num_edges=60, seed=1)
    graphs = {
        name: [np.load(path / f"edges/{'-'.join(name)}/{part}.npy") for part in PARTS]
        for name in ENDS
    }
    seeds = np.array([3, 4, 9, 15])
    fanouts = {name: [3, 2] for name in ENDS} | {ENDS[4]: [0, -1]}
    right = oracles.typed_access(graphs, counts, "user", seeds, fanouts, 2)
    with gnnx.open(path, memory="64MiB") as dataset:
        found = typed_access(dataset.graphs, dataset.node_counts, "user", seeds, fanouts, 2)
        for name in counts:
            np.testing.assert_allclose(found[name], right[name], rtol=1e-5, atol=1e-6)


def test_types_compete_for_the_room(folder):
    """The likelier row of the same width stays; a wide row costs more than a narrow one."""
    with gnnx.open(folder, memory="64MiB") as dataset:
        item, shop = (dataset.features_of(name) for name in ("item", "shop"))
        likely = Demand(np.array([0.1]), np.array([COUNTS["item"]]))
        few = Demand(np.array([0.1]), np.array([COUNTS["shop"]]))
        none = Demand(np.array([]), np.array([], np.int64))
        room, sources = 1 << 20, {"item": item, "shop": shop}
        kept = kept_rows(room, sources, {"item": likely, "shop": few})
        assert kept["shop"] == COUNTS["shop"]  # 10 bytes a row against 192
        assert 0 < kept["item"] < COUNTS["item"]
        assert kept["item"] * 200 + kept["shop"] * 18 <= room
        assert kept_rows(0, {"item": item}, {"item": likely}) == {"item": 0}
        assert kept_rows(room, sources, {"item": likely, "shop": none})["shop"] == 0


# The plan.


@pytest.mark.parametrize("memory", ["4MiB", "64MiB"])
def test_traffic_is_what_was_planned(folder, memory):
    with gnnx.open(folder, memory=memory) as dataset:
        training = trainer(dataset, batch_size=100)  # no last batch is smaller
        plan = training.plan()
        report = training.fit(2)
        epoch, caches = report.epochs[1], training.loader.features.caches
        assert report.plan is plan
        assert plan.num_steps == len(training.loader)
        assert plan.num_rows == COUNTS["item"] + COUNTS["shop"]
        assert plan.rows_kept == sum(cache.num_kept for cache in caches.values())
        assert plan.fill_bytes == training.loader.features.fill_bytes
        assert sum(plan.host.values()) <= plan.host_budget_bytes
        assert report.memory.peak_ledger_bytes <= plan.host_budget_bytes
    assert (plan.rows_kept == plan.num_rows) == (memory == "64MiB")
    assert plan.strategy == "rows"
    assert epoch.rows_requested == pytest.approx(plan.rows_requested, rel=0.05)
    assert epoch.rows_from_disk == pytest.approx(plan.rows_from_disk, rel=0.1)
    assert epoch.disk_read_bytes == pytest.approx(plan.disk_read_bytes, rel=0.15)
    assert min(plan.sample_s, plan.compute_s, plan.seconds) > 0


def test_a_plan_changes_neither_losses_nor_what_stays(folder, straight):
    kept = []
    for planned in (False, True):
        with gnnx.open(folder, memory="4MiB") as dataset:
            training = trainer(dataset)
            if planned:
                training.plan()
            assert losses(training.fit(3)) == straight
            caches = training.loader.features.caches
            kept.append({name: cache.num_kept for name, cache in caches.items()})
    assert kept[0] == kept[1]


# Training.


@pytest.fixture(scope="module")
def straight(folder):
    with gnnx.open(folder, memory="1GiB") as dataset:
        return losses(trainer(dataset).fit(3))


@pytest.mark.parametrize("memory", ["4MiB", "8MiB"])
def test_losses_do_not_depend_on_the_budget(folder, straight, memory):
    with gnnx.open(folder, memory=memory) as dataset:
        report = trainer(dataset).fit(3)
        assert losses(report) == straight
        assert report.memory.peak_ledger_bytes <= report.memory.budget_bytes
    assert straight[-1] < straight[0]


def test_stopped_and_resumed_losses_are_bit_equal(folder, straight, tmp_path):
    for epochs in (1, 3):
        with gnnx.open(folder, memory="8MiB") as dataset:
            report = trainer(dataset, checkpoint=tmp_path).fit(epochs, resume=True)
    assert losses(report) == straight


def test_fanouts_by_edge_type(folder, tmp_path):
    by_type = {name: [5, 5] for name in ENDS}
    with gnnx.open(folder, memory="64MiB") as dataset:
        one = trainer(dataset, fanouts=by_type, checkpoint=tmp_path).fit(1)
        assert losses(one) == losses(trainer(dataset).fit(1))
        with pytest.raises(UsageError, match="fanouts was"):
            trainer(dataset, fanouts=by_type | {ENDS[4]: [0, 5]}, checkpoint=tmp_path).fit(
                2, resume=True
            )
        with pytest.raises(UsageError, match="3 fanouts for a model of 2 layers"):
            trainer(dataset, fanouts={name: [1, 1, 1] for name in ENDS})


@pytest.mark.parametrize("kind", [RGCN, HeteroSAGE])
def test_what_only_types_tell_is_learned(folder, kind):
    """Users have no features, and without types likes and dislikes say nothing together."""
    torch.manual_seed(0)
    with gnnx.open(folder, memory="64MiB") as dataset:
        model = kind(
            dataset.widths, 32, NUM_CLASSES, 2, dataset.edge_types, dataset.target, dropout=0.0
        )
        report = Trainer(
            model, dataset, fanouts=[15, 15], batch_size=64, seed=1, lr=0.01, eval_every=0
        ).fit(6)
    assert report.test_accuracy > 0.9


# Exact outputs.


@pytest.mark.parametrize("kind", [RGCN, HeteroSAGE])
@pytest.mark.parametrize("memory", ["4MiB", "1GiB"])
def test_layer_by_layer_is_the_whole_at_once(folder, kind, memory):
    torch.manual_seed(0)
    nodes = np.array([0, 5, 6, 2000, 3999])
    with gnnx.open(folder, memory=memory) as dataset:
        model = kind(dataset.widths, 6, NUM_CLASSES, 3, dataset.edge_types, dataset.target)
        model = model.double()
        found = infer(model, dataset)
        some = infer(model, dataset, nodes=nodes)
        torch.testing.assert_close(some, found[nodes], rtol=1e-12, atol=1e-12)
        assert dataset.ledger.held_bytes(Tier.DISK) == 0
    with gnnx.open(folder, memory="1GiB") as dataset:
        sampler = HeteroSampler(dataset.graphs, dataset.node_counts, "user", [-1] * 3)
        blocks = sampler.sample(np.arange(COUNTS["user"]), Key(0))
        x = {
            name: dataset.features_of(name).read(ids.numpy()).double()
            for name, ids in blocks[0].src_id.items()
        }
        model.eval()
        right = model(blocks, x).detach()
    torch.testing.assert_close(found, right, rtol=1e-10, atol=1e-10)


def test_evaluation_is_exact_and_counts_as_the_trainer_does(folder):
    with gnnx.open(folder, memory="8MiB") as dataset:
        training = trainer(dataset)
        report = training.fit(2)
        metrics = evaluate(training.model, dataset, "test")
        assert metrics.accuracy == report.test_accuracy
        outputs = infer(training.model, dataset)
        test, y = (np.load(folder / f"nodes/user/{n}.npy") for n in ("test", "y"))
        assert metrics.accuracy == pytest.approx((outputs.argmax(1).numpy() == y)[test].mean())


# Commands.


def run(*words):
    result = CliRunner().invoke(app, [*map(str, words), "--quiet", "--json"])
    return result.exit_code, json.loads(result.stdout)


def test_commands(folder, tmp_path):
    code, document = CliRunner().invoke(app, ["info", str(folder), "--json"]), None
    assert code.exit_code == 0
    document = json.loads(code.stdout)
    assert document["nodes"]["item"] == {"count": 12_000, "num_features": 48, "num_classes": 0}
    assert document["nodes"]["user"] == {"count": 4_000, "num_features": 0, "num_classes": 3}
    assert document["edges"]["shop-likes-user"] > 0
    assert document["target"] == "user"
    assert CliRunner().invoke(app, ["info", str(folder)]).exit_code == 0
    assert CliRunner().invoke(app, ["verify", str(folder)]).exit_code == 0
    options = ["--hidden", 16, "--fanouts", "5,5", "--epochs", 1, "--memory", "16MiB"]
    for model in ("rgcn", "hetero-sage"):
        code, document = run(
            "train", folder, "--model", model, *options, "--checkpoint", tmp_path / model
        )
        assert code == 0, document
        assert document["plan"]["num_steps"] == 1
        assert document["model"]["in_features"] == {"item": 48, "shop": 5, "user": 1}
        assert build_model(document["model"]).config["target"] == "user"
        code, document = run(
            "infer", folder, "--checkpoint", tmp_path / model, "--out", tmp_path / f"{model}.npy"
        )
        assert code == 0, document
        assert np.load(tmp_path / f"{model}.npy").shape == (4_000, NUM_CLASSES)


def test_plan_on_the_command_line(folder):
    words = [folder, "--model", "rgcn", "--hidden", 16, "--fanouts", "5,5", "--memory", "4MiB"]
    code, document = run("plan", *words)
    assert code == 0, document
    assert sum(document["plan"]["host"].values()) <= document["plan"]["host_budget_bytes"]
    shown = CliRunner().invoke(app, ["train", *map(str, words), "--dry-run"]).stdout
    assert "rows that stay" in shown
    assert "of 12,400" in shown


def test_models_for_the_other_kind_of_graph_are_refused(folder, tmp_path):
    code, document = run("train", folder, "--model", "gcn")
    assert (code, document["error"]["cause"]) == (
        2,
        f"{folder}: gcn is for graphs of one type, and this one has 3 node types and 6 edge types",
    )
    code, document = run("train", folder, "--model", "rgcn", "--aggr", "max")
    assert code == 2
