"""Bad input at the command line: exit code, first line, a remedy, no traceback, files as they were.

The rows are reports of users of other tools; their letters and numbers name them in the issues.
"""

import hashlib
import json
import os

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

import gnnx
from gnnx.cli import app
from gnnx.errors import DataError
from gnnx.loader import HeteroLoader, Loader
from gnnx.nn import SAGE
from gnnx.random import Key
from gnnx.sample import NeighborSampler
from gnnx.train import Trainer

ODD6 = np.array([[0, 1], [1, 2], [2, 0], [2, 0], [4, 4]])  # nodes 3 and 5 have no edge
PATH4 = np.array([[0, 1], [1, 2], [2, 3]])


@pytest.fixture
def inputs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    nan = float("nan")
    arrays = {
        "odd6": ODD6,
        "x6": np.stack([np.arange(6), 10 * np.arange(6)], 1).astype(np.float32),
        "y5": np.zeros(5, np.int64),
        "seed5": np.array([5]),
        "path4": PATH4,
        "x4": np.array([[1], [2], [4], [8]], np.float32),
        "nan4": np.array([[1], [nan], [4], [8]], np.float32),
        "y4": np.array([0, 1, 0, 1]),
        "unlabelled": np.array([0, nan, 2, 1]),
        "first3": np.array([0, 1, 2]),
        "first2": np.array([0, 1]),
        "node2": np.array([2]),
        "nobody": np.empty(0, np.int64),
        "parallel": np.array([[0, 1]] * 3),
        "cut": np.arange(80, dtype=np.float32).reshape(10, 8),
    }
    for name, array in arrays.items():
        np.save(f"{name}.npy", array)
    whole = (tmp_path / "cut.npy").read_bytes()
    assert len(whole) == 448
    (tmp_path / "cut.npy").write_bytes(whole[:-64])
    return tmp_path


def run(command):
    """Exit code, standard output and the lines of standard error of a command."""
    quiet = [] if command.startswith(("info", "export")) else ["--quiet"]  # errors alone
    result = CliRunner().invoke(app, [*command.split(), *quiet])
    assert isinstance(result.exception, SystemExit | None)  # anything else would be a traceback
    return result.exit_code, result.stdout, result.stderr.splitlines()


def hashes(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.glob("*.npy")
    }


@pytest.mark.parametrize(
    ("command", "first_line"),
    [
        pytest.param(
            "prepare odd6.npy out --num-nodes 4",
            "error: odd6.npy: edge 4: node 4 is outside the 4 nodes",
            id="H01 an edge beyond the declared nodes",
        ),
        pytest.param(
            "prepare odd6.npy out --labels y5.npy --train seed5.npy",
            "error: seed5.npy: entry 0: node 5 is outside the 5 nodes",
            id="H01 a seed beyond the declared nodes",
        ),
        pytest.param(
            "prepare odd6.npy out --features x6.npy --labels y5.npy",
            "error: x6.npy: 6 nodes, y5.npy: 5",
            id="H01 two counts of nodes",
        ),
        pytest.param(
            "prepare path4.npy out --labels unlabelled.npy --train first3.npy",
            "error: train: unlabelled nodes: 1 of 3, node 1",
            id="H06 an unlabelled node in a split",
        ),
        pytest.param(
            "prepare path4.npy out --features nan4.npy",
            "error: nan4.npy: 1 NaN or infinite value, in column 0, node 1",
            id="H07 a feature that is not a number",
        ),
        pytest.param(
            "prepare path4.npy out --features cut.npy",
            "error: cut.npy: 448 bytes expected, 384 found",
            id="H21 a truncated file",
        ),
    ],
)
def test_refused_with_exit_code_3(inputs, command, first_line):
    before = hashes(inputs)
    code, stdout, stderr = run(command)
    assert code == 3
    assert stderr[0] == first_line
    assert len(stderr) == 2  # the second line says what to do
    assert stdout == ""
    assert hashes(inputs) == before
    assert not (inputs / "out").exists()


def test_h01_isolated_nodes_are_nodes(inputs):
    assert run("prepare odd6.npy out --features x6.npy --split 1,0,0")[0] == 0
    with gnnx.open("out", memory="16MiB") as dataset:
        assert dataset.num_nodes == 6
        (batch,) = Loader(dataset, [2, 2], 8, split=np.array([5]))
        assert batch.x.tolist() == [[5, 50]]
        assert [block.num_edges for block in batch.blocks] == [0, 0]


def test_h04_parallel_edges_are_told_apart(inputs):
    code, stdout, _ = run("prepare parallel.npy out --num-nodes 2 --json")
    assert code == 0
    assert json.loads(stdout)["report"]["duplicates"] == 2
    attributes = np.array([10, 20, 30])
    with gnnx.open("out", memory="16MiB") as dataset:
        every = NeighborSampler(dataset.graph, [-1], edge_ids=True)
        (block,) = every.sample(np.array([1]), Key(0))
        assert sorted(attributes[block.e_id.numpy()]) == [10, 20, 30]
        two, drawn = NeighborSampler(dataset.graph, [2], edge_ids=True), []
        for seed in range(1000):
            (block,) = two.sample(np.array([1]), Key(seed))
            pair = set(attributes[block.e_id.numpy()].tolist())
            assert len(pair) == 2
            drawn += pair
        for attribute in attributes:
            assert drawn.count(attribute) / 1000 == pytest.approx(0.667, abs=0.05)
    assert run("prepare parallel.npy once --num-nodes 2 --duplicates drop")[0] == 0
    with gnnx.open("once") as dataset:
        assert dataset.num_edges == 1


def test_h06_unlabelled_nodes_left_out(inputs):
    command = "prepare path4.npy out --features x4.npy --labels unlabelled.npy"
    code, stdout, _ = run(f"{command} --train first3.npy --unlabeled ignore --json")
    assert code == 0
    assert json.loads(stdout)["splits"]["train"] == 2
    with gnnx.open("out", memory="16MiB") as dataset:
        loss = Trainer(SAGE(1, 4, 3, 1), dataset, fanouts=[1]).loss
        logits = torch.tensor([[2.0, 0], [0, 2], [1, 1]])
        y = torch.tensor([0, -1, 1])
        assert loss(logits, y).item() == pytest.approx(0.4100, abs=5e-5)


def test_h07_kept_nan_spreads_to_neighbours_only(inputs):
    command = "prepare path4.npy out --features nan4.npy --undirected --nonfinite keep --json"
    code, stdout, _ = run(command)
    assert code == 0
    assert json.loads(stdout)["report"]["nonfinite"] == {"0": 1}
    with gnnx.open("out", memory="16MiB") as dataset:
        (batch,) = Loader(dataset, [-1], 8, split=np.arange(4), shuffle=False)
        (block,) = batch.blocks
        mean = gnnx.ops.spmm(block.indptr, block.indices, batch.x, reduce="mean")
        out = (batch.x[:4] + mean).flatten()
    assert out.isnan().tolist() == [True, True, True, False]
    assert out[3] == 12


def test_h08_an_empty_split_is_legal(inputs):
    splits = "--train first2.npy --val nobody.npy --test node2.npy"
    command = f"prepare path4.npy out --features x4.npy --labels y4.npy {splits} --json"
    code, stdout, _ = run(command)
    assert code == 0
    assert json.loads(stdout)["splits"] == {"train": 2, "val": 0, "test": 1}
    code, stdout, _ = run("train out --layers 1 --fanouts 2 --epochs 1 --memory 16MiB --json")
    report = json.loads(stdout)
    assert code == 0
    assert report["val_accuracy"] is None
    assert report["epochs"][0]["val_accuracy"] is None
    assert report["test_accuracy"] in {0.0, 1.0}


def test_h11_fewer_rows_than_declared(inputs):
    np.save("y10.npy", np.arange(10, dtype=np.float32))
    assert run("prepare path4.npy out --labels y10.npy")[0] == 0
    labels = inputs / "out" / "nodes" / "node" / "y.npy"
    labels.write_bytes(labels.read_bytes()[:-16])  # eight of ten int64 are left
    before = labels.read_bytes()
    for verb in ("info", "train"):
        code, _, stderr = run(f"{verb} out")
        assert code == 3
        assert stderr[0] == "error: out/nodes/node/y.npy: 80 bytes expected, 64 found"
    code, stdout, _ = run("verify out")
    assert code == 3
    assert "out/nodes/node/y.npy: 4176 bytes expected, 4160 bytes found" in stdout
    assert labels.read_bytes() == before


def test_h02_ids_with_gaps_come_back(inputs):
    np.save("gaps.npy", np.array([[10, 20], [20, 55], [901, 10]]))
    code, stdout, _ = run("prepare gaps.npy out --json")
    document = json.loads(stdout)
    assert (code, document["num_nodes"], document["num_edges"]) == (0, 4, 3)
    assert (document["report"]["remapped"], document["report"]["id_gaps"]) == (4, 898)
    with gnnx.open("out") as dataset:
        assert dataset.keys.of(np.arange(4)).tolist() == [10, 20, 55, 901]
        assert dataset.keys.ids([901]).tolist() == [3]
    code, stdout, stderr = run("prepare gaps.npy strict --strict")
    assert (code, stdout) == (3, "")
    assert "the largest is 901" in stderr[0]
    code, _, stderr = run("prepare gaps.npy strict --no-remap")
    assert (code, "the largest id is 901" in stderr[0]) == (2, True)
    assert not (inputs / "strict").exists()


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_h03_ids_over_32_bits_come_back(inputs, dtype):
    np.save("wide.npy", np.array([[3000000000], [5000000000]], dtype))
    assert run("prepare wide.npy out")[0] == 0
    assert run("export out edges.csv --what edges")[0] == 0
    lines = (inputs / "edges.csv").read_text().splitlines()
    assert lines == ['"src","dst"', "3000000000,5000000000"]


@pytest.mark.parametrize("num_nodes", ["", " --num-nodes 9"])
def test_h03_ids_of_more_than_63_bits_are_shown_as_they_are(inputs, num_nodes):
    np.save("huge.npy", np.array([[0, 1], [1, 2**63 + 5], [2, 0]], np.uint64))
    code, _, stderr = run(f"prepare huge.npy out{num_nodes}")
    assert code == 3
    assert stderr[0] == (
        "error: huge.npy: edge 1: node 9223372036854775813 is larger than 9223372036854775807"
    )


def test_h03_negative_ids_are_no_keys(inputs):
    np.save("minus.npy", np.array([[0, 1], [1, -2], [2, 0]]))
    code, _, stderr = run("prepare minus.npy out")
    assert (code, stderr[0]) == (3, "error: minus.npy: edge 1: node -2 is negative")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "uint8"])
def test_h09_every_type_comes_out_as_it_went_in(inputs, dtype):
    values = torch.tensor([[0, 1], [2, 3], [4, 5], [100, 127]]).to(getattr(torch, dtype))
    stored = values.view(torch.int16).numpy().view("V2") if dtype == "bfloat16" else values.numpy()
    np.save("values.npy", stored)
    assert run("prepare path4.npy out --features values.npy")[0] == 0
    with gnnx.open("out", memory="16MiB") as dataset:
        x = dataset.features.read(np.array([3, 0, 3]))
        assert x.dtype == values.dtype
        assert torch.equal(x, values[[3, 0, 3]])
        (batch,) = Loader(dataset, [-1], 8, split=np.array([3, 0]), shuffle=False)
        assert torch.equal(batch.x, values[batch.n_id])


def test_h36_an_export_has_every_node_once(inputs):
    """A ring of 10: batches of 4 with their neighbours hold 16 rows, an export 10."""
    ring = np.stack([np.arange(10), (np.arange(10) + 1) % 10], 1)
    np.save("ring.npy", ring)
    np.save("x10.npy", np.random.default_rng(0).normal(size=(10, 3)).astype(np.float32))
    np.save("y10.npy", np.arange(10) % 2)
    assert run("prepare ring.npy out --features x10.npy --labels y10.npy --undirected")[0] == 0
    with gnnx.open("out", memory="16MiB") as dataset:
        batches = Loader(dataset, [-1], 4, split=np.arange(10), shuffle=False)
        assert [len(batch.n_id) for batch in batches] == [6, 6, 4]
        torch.manual_seed(0)
        model = SAGE(3, 4, 2, 1)
        rows = gnnx.infer(model, dataset)
        graph = gnnx.Graph.from_edges(
            torch.from_numpy(np.concatenate([ring[:, 0], ring[:, 1]])),
            torch.from_numpy(np.concatenate([ring[:, 1], ring[:, 0]])),
            10,
        )
        model.eval()
        whole = model([graph.block()], dataset.features.read(np.arange(10)))
        assert rows.shape == (10, 2)
        assert torch.allclose(rows, whole, atol=1e-6)
    train = "--layers 1 --fanouts 2 --epochs 1 --memory 16MiB --checkpoint run"
    assert run(f"train out {train}")[0] == 0
    assert run("infer out --checkpoint run --out rows.parquet --memory 16MiB")[0] == 0
    table = pq.read_table("rows.parquet").to_pydict()
    assert table["key"] == list(range(10))


def test_h44_rows_of_parts_have_the_ids_of_the_input(inputs):
    assert run("prepare odd6.npy out --features x6.npy")[0] == 0
    for seed in range(3):
        command = f"partition out parts --parts 3 --method random --seed {seed} --overwrite"
        assert run(command)[0] == 0
        assert run("export parts rows.parquet")[0] == 0
        table = pq.read_table("rows.parquet").to_pydict()
        assert sorted(table["key"]) == list(range(6))
        assert [x[0] for x in table["x"]] == table["key"]
        with gnnx.open("parts") as dataset:
            ids = dataset.keys.ids(list(range(6)))
            assert dataset.keys.of(ids).tolist() == list(range(6))


def test_a_pipe_is_refused_at_once(inputs):
    """It would block, and be empty when it is read again."""
    os.mkfifo("pipe.txt")
    os.mkfifo("pipe.npy")
    os.mkfifo("pipe.toml")
    (inputs / "r.toml").write_text('edges = {files = "pipe.txt"}')
    for command in (
        "prepare pipe.txt out --num-nodes 3",
        "prepare pipe.npy out --num-nodes 3",
        "prepare pipe.txt out --dry-run",
        "prepare pipe.toml out",
        "prepare r.toml out",
        "prepare path4.npy out --features pipe.npy",
        "prepare path4.npy out --num-nodes 4 --train pipe.txt",
    ):
        code, _, stderr = run(command)
        assert code == 3, command
        assert "not a plain file" in stderr[0], command
        assert not (inputs / "out").exists()


def test_a_dangling_link_as_output_is_refused_at_once(inputs):
    (inputs / "out").symlink_to("nowhere")
    for overwrite in ("", " --overwrite"):
        code, _, stderr = run(f"prepare path4.npy out --num-nodes 4{overwrite}")
        assert code == 2
        assert stderr[0].startswith("error: out ")
        assert (inputs / "out").is_symlink()


TYPED = """
[[nodes]]
type = "user"
files = "user.csv"
features = "u*"
label = "y"

[[nodes]]
type = "item"
count = 2

[[nodes]]
type = "tag"
count = 2
features_file = "tag.npy"

[[edges]]
type = ["user", "buys", "item"]
files = "buys.npy"
"""


def test_h10_types_of_other_widths_or_without_features(inputs):
    """A type that no seed reaches is there, empty and of its width."""
    (inputs / "user.csv").write_text("u0,u1,u2,u3,y\n0,1,2,3,0\n4,5,6,7,1\n8,9,10,11,0\n")
    np.save("tag.npy", np.ones((2, 7), np.float32))
    np.save("buys.npy", np.array([[0, 1, 2], [0, 0, 1]]))
    (inputs / "typed.toml").write_text(TYPED)
    assert run("prepare typed.toml out --split 1,0,0")[0] == 0
    with gnnx.open("out", memory="16MiB") as dataset:
        (batch,) = HeteroLoader(dataset, [2], 1, split=np.array([0]))
        assert {name: tuple(x.shape) for name, x in batch.x.items()} == {
            "user": (1, 4), "item": (0, 1), "tag": (0, 7)
        }  # fmt: skip
        assert {name: ids.tolist() for name, ids in batch.n_id.items()} == {
            "user": [0], "item": [], "tag": []
        }  # fmt: skip
        with pytest.raises(DataError, match=r"out/nodes/item/x\.npy: not in the dataset"):
            dataset.array("nodes/item/x")
