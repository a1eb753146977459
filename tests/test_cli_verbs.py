"""The verbs on real datasets: documents, exit codes, and what is left behind."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from gnnx.cli import app
from gnnx.memory import Budget, Ledger
from gnnx.store import DatasetWriter

runner = CliRunner()


def run(*words: object, code: int = 0) -> dict:
    """Document of a verb, which has to end with the code."""
    result = runner.invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def write_graph(folder: Path, *, val: int = 40, labelled: bool = True) -> Path:
    """A ring of 200 nodes with chords and two classes that the features show."""
    num_nodes = 200
    nodes = np.arange(num_nodes)
    rng = np.random.default_rng(0)
    label = nodes // 100
    indices = np.stack([(nodes + 1) % num_nodes, (nodes - 1) % num_nodes, nodes // 2], 1)
    x = rng.normal(size=(num_nodes, 8)) + 2 * label[:, None]
    test = 160 + np.arange(40)
    arrays = {
        "nodes/node/x": x.astype(np.float32),
        "nodes/node/train": nodes[: 160 - val],
        "nodes/node/val": nodes[160 - val : 160],
        "nodes/node/test": test,
        "edges/node-edge-node/indptr": 3 * np.arange(num_nodes + 1),
        "edges/node-edge-node/indices": np.sort(indices, 1).ravel().astype(np.int32),
    }
    if labelled:
        arrays["nodes/node/y"] = label
    with DatasetWriter(folder, ledger=Ledger(Budget.parse("64MiB"))) as writer:
        writer.nodes("node", num_nodes, num_classes=2 if labelled else 0)
        writer.edges(("node", "edge", "node"), indices.size)
        for name, array in arrays.items():
            writer.array(name, array.shape, str(array.dtype)).append(array)
        writer.commit()
    return folder


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    return write_graph(tmp_path_factory.mktemp("data") / "graph")


def test_info(graph):
    document = run("info", graph)
    assert document["command"] == "info"
    assert (document["num_nodes"], document["num_edges"]) == (200, 600)
    assert (document["num_features"], document["num_classes"]) == (8, 2)
    assert document["splits"] == {"train": 120, "val": 40, "test": 40}
    entry = {"shape": [200, 8], "dtype": "float32", "bytes": 6400}
    assert document["arrays"]["nodes/node/x"] == entry


def test_info_for_people(graph):
    result = runner.invoke(app, ["info", str(graph)])
    assert result.exit_code == 0
    assert "200" in result.stdout
    assert "nodes/node/x" in result.stdout


@pytest.mark.parametrize("verb", ["info", "verify", "train"])
def test_no_such_dataset(tmp_path, verb):
    error = run(verb, tmp_path / "none", code=3)["error"]
    assert error["kind"] == "DataError"
    assert str(tmp_path / "none") in error["cause"]


def test_verify_names_the_damaged_page(tmp_path):
    folder = write_graph(tmp_path / "graph")
    assert run("verify", folder)["problems"] == []
    with (folder / "nodes/node/x.npy").open("r+b") as file:
        file.seek(5000)
        file.write(b"\0damage\0")
    (problem,) = run("verify", folder, code=3)["problems"]
    assert problem["file"].endswith("nodes/node/x.npy")
    assert problem["page"] == 0
    result = runner.invoke(app, ["verify", str(folder), "--quiet"])
    assert result.exit_code == 3
    assert "nodes/node/x.npy: page 0" in result.stdout


TRAIN = ["--fanouts", "3,3", "--hidden", "8", "--epochs", "2", "--batch-size", "50"]


def test_train_document_has_its_keys(graph):
    document = run("train", graph, *TRAIN, "--memory", "16MiB", "--device-memory", "64MiB")
    assert list(document) == [
        *("schema", "command", "dataset", "model", "options"),
        *("epochs", "best_epoch", "val_accuracy", "test_accuracy"),
        *("metric", "val_score", "test_score", "num_parameters", "memory", "plan"),
    ]
    assert [set(epoch) for epoch in document["epochs"]] == 2 * [
        {
            *(
                "epoch",
                "loss",
                "val_loss",
                "val_accuracy",
                "val_score",
                "seconds",
                "sample_s",
                "fetch_s",
            ),
            *(
                "wait_s",
                "compute_s",
                "checkpoint_s",
                "eval_s",
                "rows_requested",
                "rows_hit",
                "rows_from_disk",
            ),
            *("rows_from_packs", "windows", "disk_read_bytes", "disk_written_bytes", "fill_bytes"),
            *("feature_read_bytes", "feature_reads", "amplification", "reads_per_s", "rows_least"),
        }
    ]
    assert set(document["memory"]) == {
        *("budget_bytes", "device_budget_bytes", "peak_ledger_bytes", "peak_device_ledger_bytes"),
        *("peak_rss_bytes", "base_rss_bytes", "peak_results_bytes"),
    }
    assert document["memory"]["budget_bytes"] == 16 << 20
    assert document["memory"]["device_budget_bytes"] == 64 << 20
    assert 0 <= document["test_accuracy"] <= 1


def test_train_options_reach_the_training(graph):
    """The document repeats the run: what was asked for and what was the default."""
    options = run("train", graph, *TRAIN, "--lr", "0.02")["options"]
    assert options["fanouts"] == [3, 3]
    assert (options["lr"], options["weight_decay"]) == (0.02, 5e-4)
    sage = ("train", graph, *TRAIN, "--model", "sage")
    assert run(*sage)["model"]["aggr"] == "mean"
    assert run(*sage, "--aggr", "max")["model"]["aggr"] == "max"


def test_train_by_a_metric(graph):
    document = run("train", graph, *TRAIN, "--metric", "ap")
    assert document["metric"] == document["options"]["metric"] == "ap"
    scores = [epoch["val_score"] for epoch in document["epochs"]]
    assert document["val_score"] == scores[document["best_epoch"]] == max(scores)
    # all of its validation nodes are of one class, so that there is no pair: the last weights stay
    undefined = run("train", graph, *TRAIN, "--metric", "rocauc")
    assert (undefined["val_score"], undefined["best_epoch"]) == (None, None)
    shown = runner.invoke(app, ["train", str(graph), *TRAIN, "--metric", "f1-macro"]).stdout
    assert "test f1-macro" in shown
    assert "val f1-macro" in shown


def test_train_twice_is_the_same(graph):
    first, second = (run("train", graph, *TRAIN, "--seed", 3) for _ in range(2))
    other = run("train", graph, *TRAIN, "--seed", 4)
    losses = [[epoch["loss"] for epoch in d["epochs"]] for d in (first, second, other)]
    assert losses[0] == losses[1] != losses[2]


def test_train_resumes(graph, tmp_path):
    whole = run("train", graph, *TRAIN, "--epochs", 3)
    state = ("--checkpoint", tmp_path / "run")
    run("train", graph, *TRAIN, "--epochs", 1, *state)
    resumed = run("train", graph, *TRAIN, "--epochs", 3, *state, "--resume")
    assert [e["loss"] for e in resumed["epochs"]] == [e["loss"] for e in whole["epochs"]]
    assert resumed["test_accuracy"] == whole["test_accuracy"]


@pytest.mark.slow
def test_train_cora(shared_data, tmp_path):
    """Defaults reach on Cora what the literature does: a mean of 80 % and more over five seeds."""
    run("prepare", shared_data / "layouts/ogb-raw-cora", tmp_path / "cora")
    found = [run("train", tmp_path / "cora", "--seed", seed)["test_accuracy"] for seed in range(5)]
    assert np.mean(found) >= 0.80


def test_train_without_validation_nodes(tmp_path):
    """H08: an empty split is legal; its metric is null."""
    document = run("train", write_graph(tmp_path / "graph", val=0), *TRAIN)
    assert document["val_accuracy"] is None
    assert document["test_accuracy"] is not None


def test_train_without_labels(tmp_path):
    error = run("train", write_graph(tmp_path / "graph", labelled=False), *TRAIN, code=3)["error"]
    assert "no labels" in error["cause"]


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (["--layers", "3"], "--fanouts 3,3 has 2 numbers and --layers is 3"),
        (["--model", "gcn", "--aggr", "max"], "--aggr max has no meaning for gcn"),
        (["--model", "sage", "--heads", "2"], "--heads 2 has no meaning for sage"),
        (["--model", "gat", "--heads", "3"], "3 heads for a hidden width of 8"),
        (["--resume"], "--resume has nothing to go on from"),
        (["--fanouts", "3,x"], "--fanouts '3,x' is not a list of numbers"),
        (["--memory", "lots"], "'lots' is not a size in bytes"),
        (["--fanouts", f"{1 << 63},1"], f"fanout {1 << 63} is no number of neighbours"),
        (["--device", "bogus"], "--device 'bogus' is not to be had here"),
        (["--device", "meta"], "--device 'meta' is not to be had here"),
        (["--device", ""], "--device '' is not to be had here"),
    ],
)
def test_train_usage(graph, options, cause):
    assert run("train", graph, *TRAIN, *options, code=2)["error"]["cause"] == cause


@pytest.mark.parametrize("options", [["--seed", str(1 << 63)], ["--threads", "100000"]])
def test_train_numbers_beyond_their_range(graph, options):
    result = runner.invoke(app, ["train", str(graph), *options])
    assert result.exit_code == 2
    assert options[0] in result.stderr


def test_folders_without_a_name(graph, tmp_path, monkeypatch):
    monkeypatch.chdir(graph)
    assert run("info", ".")["num_nodes"] == 200
    monkeypatch.chdir(tmp_path)
    assert run("info", ".", code=3)["error"]["cause"] == ".: not a gnnx dataset: no manifest.json"
    error = run("synth", ".", code=2)["error"]
    assert error["cause"] == "'.' is no name for a new folder"
    assert list(tmp_path.iterdir()) == []


def test_train_budget_too_small(graph):
    error = run("train", graph, *TRAIN, "--memory", "4KiB", code=4)["error"]
    assert error["kind"] == "BudgetError"
    assert error["tier"] == "host"
    assert error["smallest_bytes"] > 4096


def test_infer_writes_a_row_a_node(graph, tmp_path):
    trained = run("train", graph, *TRAIN, "--checkpoint", tmp_path / "run")
    out = tmp_path / "logits.npy"
    document = run("infer", graph, "--checkpoint", tmp_path / "run", "--out", out)
    assert document["same_dataset"] is True
    logits = np.load(out)
    assert logits.shape == (200, 2)
    right = logits.argmax(1) == np.arange(200) // 100
    assert np.mean(right[160:]) == pytest.approx(trained["test_accuracy"])


@pytest.mark.parametrize("model", [*("gin", "gat"), pytest.param("gatv2", marks=pytest.mark.slow)])
def test_every_model_is_trained_resumed_and_inferred(graph, tmp_path, model):
    state = ["--model", model, "--checkpoint", tmp_path / "run"]
    run("train", graph, *TRAIN, *state, "--epochs", 1)
    resumed = run("train", graph, *TRAIN, *state, "--epochs", 2, "--resume")
    whole = run("train", graph, *TRAIN, "--model", model)
    assert [e["loss"] for e in whole["epochs"]] == [e["loss"] for e in resumed["epochs"]]
    assert resumed["model"].get("heads") == (None if model == "gin" else 4)
    out = tmp_path / "logits.npy"
    run("infer", graph, "--checkpoint", tmp_path / "run", "--out", out)
    right = np.load(out).argmax(1) == np.arange(200) // 100
    assert np.mean(right[160:]) == pytest.approx(resumed["test_accuracy"])


def test_infer_on_features_of_another_width(graph, tmp_path):
    run("train", graph, *TRAIN, "--checkpoint", tmp_path / "run")
    other, x = tmp_path / "other", tmp_path / "x.npy"
    np.save(x, np.zeros((3, 5), np.float32))
    (tmp_path / "e.txt").write_text("0 1\n")
    run("prepare", tmp_path / "e.txt", other, "--features", x)
    out = tmp_path / "logits.npy"
    error = run("infer", other, "--checkpoint", tmp_path / "run", "--out", out, code=2)["error"]
    assert error["cause"] == f"{other}: 5 features a node, {tmp_path / 'run'}: 8"
    assert not out.exists()


def test_keys_go_through_every_verb(tmp_path):
    """String keys in a recipe come back beside labels, edges and a model's outputs."""
    keys = [f"k{i:02}" for i in range(40)]
    lines = "".join(f"{key},{i % 2 - 0.5},{'ab'[i % 2]}\n" for i, key in enumerate(keys))
    (tmp_path / "n.csv").write_text("id,x,label\n" + lines)
    edges = zip(keys, keys[2:] + keys[:2], strict=True)
    (tmp_path / "e.csv").write_text("src,dst\n" + "".join(f"{a},{b}\n" for a, b in edges))
    (tmp_path / "r.toml").write_text(
        'nodes = {files = "n.csv", key = "id", features = "x", label = "label"}\n'
        'edges = {files = "e.csv"}\n'
    )
    graph = tmp_path / "graph"
    made = run("prepare", tmp_path / "r.toml", graph)
    assert (made["num_nodes"], made["num_classes"]) == (40, 2)
    options = ["--fanouts", "2", "--epochs", 30, "--hidden", 8, "--dropout", 0]
    run("train", graph, *options, "--checkpoint", tmp_path / "run")
    for name in ("o.parquet", "o.csv"):
        out = tmp_path / name
        document = run("infer", graph, "--checkpoint", tmp_path / "run", "--out", out)
        assert document["num_nodes"] == 40
    table = pq.read_table(tmp_path / "o.parquet").to_pydict()
    assert table["key"] == keys
    assert np.array(table["x"]).argmax(1).tolist() == [i % 2 for i in range(40)]
    assert (tmp_path / "o.csv").read_text().splitlines()[1].startswith('"k00",')
    document = run("export", graph, tmp_path / "nodes.csv")
    assert document["num_rows"] == 40
    first = (tmp_path / "nodes.csv").read_text().splitlines()[1].replace('"', "").split(",")
    assert (first[0], first[1], first[3]) == ("k00", "a", "-0.5")
    assert run("export", graph, tmp_path / "e.xls", code=2)["error"]["kind"] == "UsageError"


def test_infer_names_the_suffixes_it_writes(graph, tmp_path):
    out = tmp_path / "out.txt"
    error = run("infer", graph, "--checkpoint", tmp_path, "--out", out, code=2)["error"]
    assert error["cause"] == f"{out}: outputs are written as .npy, .parquet or .csv"
    assert list(tmp_path.iterdir()) == []


def test_infer_without_checkpoint(graph, tmp_path):
    out = tmp_path / "logits.npy"
    error = run("infer", graph, "--checkpoint", tmp_path, "--out", out, code=3)["error"]
    assert "no such checkpoint" in error["cause"]
    assert not out.exists()


def test_synth_and_prepare(tmp_path):
    made = run("synth", tmp_path / "made", "--nodes", 300, "--edges", 900, "--features", 4)
    assert (made["num_nodes"], made["num_edges"]) == (300, 900)
    again = run("synth", tmp_path / "made", "--nodes", 300, code=2)["error"]
    assert "made" in again["cause"]
    edges = tmp_path / "edges.csv"
    edges.write_text("0,1\n1,2\n1,2\n")
    document = run("prepare", edges, tmp_path / "graph", "--num-nodes", 4, "--undirected")
    assert document["num_nodes"] == 4
    assert document["report"]["duplicates"] == 1
    assert run("info", tmp_path / "graph")["fingerprint"] == document["fingerprint"]


def test_an_output_that_finds_no_room_is_named_and_leaves_nothing(graph, tmp_path):
    run("train", graph, *TRAIN, "--checkpoint", tmp_path / "run")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    outs = [tmp_path / name for name in ("out.npy", "out.csv", "out.parquet")]
    for out in outs:  # kernels are compiled, and kept, without the limit
        run("infer", graph, "--checkpoint", tmp_path / "run", "--out", out)
        out.unlink()
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, hard))  # Python makes an error of the signal
    try:
        for out in outs:
            words = ["infer", graph, "--checkpoint", tmp_path / "run", "--out", out]
            error = run(*words, code=4)["error"]
            assert error["cause"] == f"{out}: File too large"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


@pytest.mark.parametrize("out", ["nowhere/nodes.csv", "folder.csv"])
def test_export_to_no_place_for_a_file(graph, tmp_path, out):
    (tmp_path / "folder.csv").mkdir()
    assert run("export", graph, tmp_path / out, code=2)["error"]["kind"] == "UsageError"


@pytest.mark.parametrize(
    "content", ["text", "", np.float64(3), np.zeros((200, 2, 2)), np.full(200, "a"), np.zeros(199)]
)
def test_export_of_rows_that_are_none(graph, tmp_path, content):
    rows = tmp_path / "rows.npy"
    if isinstance(content, str):
        rows.write_text(content)
    else:
        np.save(rows, content)
    words = ["export", graph, tmp_path / "out.csv", "--rows", rows]
    error = run(*words, code=3)["error"]
    assert "rows.npy" in error["cause"]
    assert list(tmp_path.iterdir()) == [rows]


@pytest.mark.parametrize("bad", [1 << 24, -5, 200])
def test_a_source_that_is_no_node_is_an_error_not_a_wait(tmp_path, bad):
    """One node more than there are: a table of all nodes cannot grow for it."""
    folder = write_graph(tmp_path / "graph")
    run("train", folder, *TRAIN, "--checkpoint", tmp_path / "run")
    with (folder / "edges/node-edge-node/indices.npy").open("r+b") as file:
        file.seek(4096 + 4 * 599)
        file.write(np.int32(bad).tobytes())
    for verb in (
        ["infer", folder, "--checkpoint", tmp_path / "run", "--out", tmp_path / "out.npy"],
        ["train", folder, *TRAIN, "--fanouts=-1,-1", "--batch-size", "200"],
    ):
        error = run(*verb, code=3)["error"]
        assert str(bad) in error["cause"]
        assert "gnnx verify" in error["remedy"]


def test_damaged_keys_are_named(tmp_path):
    (tmp_path / "edges.csv").write_text("src,dst\n" + "".join(f"a{i},b{i}\n" for i in range(9)))
    (tmp_path / "r.toml").write_text('[edges]\nfiles = "edges.csv"\nsrc = "src"\ndst = "dst"\n')
    run("prepare", tmp_path / "r.toml", tmp_path / "graph")
    with (tmp_path / "graph/nodes/node/key_bytes.npy").open("r+b") as file:
        file.seek(4100)
        file.write(b"\xff")
    error = run("export", tmp_path / "graph", tmp_path / "out.csv", code=3)["error"]
    assert "key_bytes.npy: 'utf-8' codec can't decode byte 0xff" in error["cause"]
    assert error["remedy"] == "The file is damaged: find where with gnnx verify."
    assert not list(tmp_path.glob("out.csv*"))


def test_more_nodes_than_64_bits_hold(tmp_path):
    (tmp_path / "edges.csv").write_text("0,1\n")
    words = ["prepare", tmp_path / "edges.csv", tmp_path / "graph", "--num-nodes", 1 << 63]
    assert run(*words, code=2)["error"]["kind"] == "UsageError"


def test_doctor_names_no_person(tmp_path):
    document = run("doctor", tmp_path)
    assert isinstance(document["direct_io"], bool)
    assert document["base_rss_bytes"] > 50 << 20
    assert document["num_processors"] >= 1
    assert str(Path.home()) not in json.dumps(document)
    assert str(tmp_path) not in json.dumps(document)
    assert list(tmp_path.iterdir()) == []


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "gnnx", *map(str, words)]


def test_output_of_a_process(tmp_path):
    """H42: piped, stderr has no control characters; quiet, it is empty; stdout is one document."""
    words = command("synth", tmp_path / "made", "--nodes", 500, "--edges", 900)
    words += ["--overwrite", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=True)
    assert json.loads(done.stdout)["command"] == "synth"
    assert " of " in done.stderr
    assert re.search(r"[\x00-\x09\x0b-\x1f\x7f]", done.stderr) is None
    done = subprocess.run(
        [*words, "--quiet"], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stderr == ""


@pytest.mark.parametrize(("given", "policy"), [(None, "passive"), ("active", "active")])
def test_openmp_is_told_how_to_wait_before_torch_is_there(given, policy):
    """By the command alone, and not where the user has said it."""
    script = (
        "import os, sys; from gnnx.__main__ import main; assert 'torch' not in sys.modules\n"
        "print(os.environ.get('OMP_WAIT_POLICY')); sys.argv = ['gnnx', '--help']\n"
        "try: main()\nfinally: print(os.environ['OMP_WAIT_POLICY'])"
    )
    environment = {name: v for name, v in os.environ.items() if name != "OMP_WAIT_POLICY"}
    environment |= {} if given is None else {"OMP_WAIT_POLICY": given}
    words = [sys.executable, "-c", script]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=100, check=True, env=environment
    )
    lines = done.stdout.splitlines()
    assert (lines[0], lines[-1]) == (str(given), policy)


def cpu_seconds(pid: int) -> float:
    """Seconds of the processor that a running process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("verb", ["prepare", "synth", "train"])
def test_interrupt_ends_soon_and_leaves_nothing(
    graph, tmp_path, tmp_path_factory, verb, signal_number
):
    edges = tmp_path_factory.mktemp("edges") / "edges.npy"
    # zeros that the file system need not keep
    np.lib.format.open_memmap(edges, "w+", np.int32, (1 << 27, 2))
    words = {
        "prepare": ["prepare", edges, tmp_path / "made", "--num-nodes", 1],
        "synth": ["synth", tmp_path / "made", "--nodes", 2_000_000, "--edges", 100_000_000],
        "train": ["train", graph, *TRAIN, "--epochs", 1_000_000],
    }
    before = os.times()
    others_s = before.children_user + before.children_system
    with subprocess.Popen(
        command(*words[verb]), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        first = process.stderr.readline()  # a line of progress: it is at work
        assert " of " in first
        spent_s = cpu_seconds(process.pid)
        process.send_signal(signal_number)
        out, err = process.communicate(timeout=60)
    after = os.times()
    assert process.returncode == 130
    # seconds of the processor, since other work may share it; `timeout` is for a wait without end
    assert after.children_user + after.children_system - others_s - spent_s < 5
    assert out == ""
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_model_beyond_the_free_memory_is_refused_before_it_is_made(graph, monkeypatch):
    hidden, free = 1 << 16, 1 << 20
    monkeypatch.setattr("gnnx.train.plan.available_bytes", lambda: free)
    words = "train", graph, "--fanouts", "3,3", "--hidden", hidden
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = runner.invoke(app, [*map(str, words), "--quiet"])
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    needed = 4 * 4 * (8 * hidden + hidden + 2 * hidden + 2)
    assert (result.exit_code, result.stdout) == (4, "")
    first, second = result.stderr.splitlines()
    assert f" take {needed} bytes (11.0 MiB) more, {free} (1.0 MiB) are free" in first
    assert "--hidden" in second
    assert after - before < needed // 1024
