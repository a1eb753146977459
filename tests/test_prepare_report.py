"""What a preparation tells about its data, what `strict` makes of it, and forecasts."""

import gzip
import json
import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import gnnx.prepare.build as build
from gnnx.cli import app
from gnnx.errors import BudgetError, DataError, UsageError
from gnnx.memory import Ledger, Tier
from gnnx.prepare import forecast, prepare

ROOT = Path(__file__).resolve().parents[1]


def test_lines_that_are_no_edges_are_dropped_and_named(tmp_path):
    wrong = ["1", "a b", "9 1", "0 -1", "1 2.5"]
    lines = ["# comment", "0 1", *wrong, "", "1 2", *["x"] * 9, "2 0"]
    (tmp_path / "e.txt").write_text("\n".join(lines))
    with pytest.raises(DataError, match=r"^e\.txt:3: 2 columns expected, fewer found"):
        prepare(tmp_path / "e.txt", tmp_path / "out", num_nodes=3)
    report = prepare(tmp_path / "e.txt", tmp_path / "out", num_nodes=3, bad_lines="drop")
    assert (report.edges_read, report.edges_stored, report.dropped_lines) == (3, 3, 14)
    assert report.examples["dropped_lines"][:5] == [
        "e.txt:3: 2 columns expected, fewer found",
        "e.txt:4: 'a' is not an integer id",
        "e.txt:5: node 9 is outside the 3 nodes",
        "e.txt:6: node -1 is outside the 3 nodes",
        "e.txt:7: '2.5' is not an integer id",
    ]
    assert len(report.examples["dropped_lines"]) == 10
    assert report.problems["dropped_lines"].startswith("14 lines that are no edges (e.txt:3: ")
    assert report.problems["dropped_lines"].endswith("; …)")


@pytest.mark.parametrize("piece", [0, 1, 2, 3])
def test_dropped_lines_at_the_ends_of_blocks(tmp_path, piece):
    """Lines of all lengths, so that bad ones meet the ends of what is read at once."""
    rng = np.random.default_rng(piece)
    good = rng.integers(0, 1000, (60_000, 2)).tolist()
    lines = [
        f"{a} {b}" if i % 3 != 1 else f"bad{'x' * int(rng.integers(0, 9))}"
        for i, (a, b) in enumerate(good)
    ]
    (tmp_path / "e.txt.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    report = prepare(
        tmp_path / "e.txt.gz", tmp_path / "out", num_nodes=1000, bad_lines="drop", memory="6MiB"
    )
    assert (report.edges_read, report.dropped_lines) == (40_000, 20_000)
    in_degree = np.bincount([b for i, (_, b) in enumerate(good) if i % 3 != 1], minlength=1000)
    indptr = np.load(tmp_path / "out/edges/node-edge-node/indptr.npy")
    assert np.diff(indptr).tolist() == in_degree.tolist()


def test_edges_with_unknown_ends_are_named_by_line(tmp_path):
    (tmp_path / "n.csv").write_text("id\na\nb\n")
    (tmp_path / "e1.csv").write_text("src,dst\na,b\na,c\n")
    (tmp_path / "e2.csv").write_text("src,dst\nz,b\nb,a\n,a\n")
    edges = 'edges = {files = ["e1.csv", "e2.csv"], unknown = "drop"}'
    (tmp_path / "r.toml").write_text(f'nodes = {{files = "n.csv", key = "id"}}\n{edges}')
    report = prepare(tmp_path / "r.toml", tmp_path / "out")
    assert (report.edges_read, report.unknown_ends) == (2, 3)
    assert report.examples["unknown_ends"] == [
        "e1.csv:3: 'c'", "e2.csv:2: 'z'", "e2.csv:4: no key"
    ]  # fmt: skip
    pq.write_table(pa.table({"src": ["a", "q"], "dst": ["b", "a"]}), tmp_path / "e.parquet")
    edges = 'edges = {files = "e.parquet", unknown = "drop"}'
    (tmp_path / "r.toml").write_text(f'nodes = {{files = "n.csv", key = "id"}}\n{edges}')
    report = prepare(tmp_path / "r.toml", tmp_path / "out", overwrite=True)
    assert report.examples["unknown_ends"] == ["e.parquet:1: 'q'"]


@pytest.fixture
def troubled(tmp_path, monkeypatch):
    """Arrays with one of each problem, for the command line."""
    monkeypatch.chdir(tmp_path)
    nan = np.float32("nan")
    np.save("e.npy", np.array([[0, 1], [0, 1], [1, 2], [2, 2]]))
    np.save("x.npy", np.array([[1, nan], [nan, 4], [5, np.inf], [0, 0]], np.float32))
    np.save("y.npy", np.array([0, 1, -1, 0]))
    np.save("train.npy", np.array([0, 1, 2]))
    np.save("val.npy", np.array([1, 3]))
    return "e.npy out --features x.npy --labels y.npy --train train.npy --val val.npy"


def run(command):
    result = CliRunner().invoke(app, [*command.split(), "--quiet"])
    assert isinstance(result.exception, SystemExit | None)
    return result.exit_code, result.stdout, result.stderr.splitlines()


def test_report_in_the_output_and_what_strict_refuses(troubled, tmp_path):
    allowed = f"prepare {troubled} --nonfinite keep --unlabeled ignore"
    code, stdout, _ = run(f"{allowed} --json")
    report = json.loads(stdout)["report"]
    assert code == 0
    counts = {
        "duplicates": 1, "self_loops": 1, "isolated": 1, "unlabelled": 1,
        "unlabelled_in_splits": 1, "in_two_splits": 1, "nonfinite": {"0": 1, "1": 2},
    }  # fmt: skip
    assert {name: report[name] for name in counts} == counts
    assert report["problems"] == {
        "duplicates": "1 parallel edges",
        "nonfinite": "3 NaN or infinite features (node 0; node 1; node 2)",
        "unlabelled_in_splits": "1 nodes of splits without a label (train: node 2)",
        "in_two_splits": "1 nodes of more than one split (train and val: node 1)",
    }
    code, stdout, _ = run(f"{allowed} --overwrite")
    assert "1 nodes of more than one split" in " ".join(stdout.split())
    code, stdout, stderr = run(f"{allowed.replace(' out ', ' other ')} --strict")
    assert (code, stdout) == (3, "")
    assert stderr[0] == f"error: e.npy: {', '.join(report['problems'].values())}"
    assert not (tmp_path / "other").exists()


def test_strict_takes_clean_data_and_duplicates_that_are_dropped(troubled):
    assert run("prepare e.npy out --num-nodes 3 --strict")[0] == 3
    assert run("prepare e.npy out --num-nodes 3 --strict --duplicates drop")[0] == 0


def test_strict_names_the_largest_id_h02(tmp_path):
    (tmp_path / "e.txt").write_text("10 20\n20 55\n901 10\n")
    report = prepare(tmp_path / "e.txt", tmp_path / "out")
    assert (report.id_gaps, report.remapped) == (898, 4)
    cause = r"^e\.txt: 898 ids that no edge names below the largest one \(the largest is 901\)$"
    with pytest.raises(DataError, match=cause.rstrip("$")):
        prepare(tmp_path / "e.txt", tmp_path / "strict", strict=True)
    assert not (tmp_path / "strict").exists()


# Forecasts


@pytest.fixture
def watched(monkeypatch):
    """Ledgers of preparations, to look at their peaks afterwards."""
    made = []

    class Watched(Ledger):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(build, "Ledger", Watched)
    return made


CASES = {
    "rows in memory": ("e.npy", {"features": "x.npy", "memory": "64MiB"}),
    "sorted on disk": ("e.npy", {"features": "x.npy", "memory": "12MiB"}),
    "reverses": ("e.npy", {"features": "x.npy", "memory": "64MiB", "undirected": True}),
    "text": ("e.txt", {"num_nodes": 20_000, "memory": "64MiB"}),
    "packed text": ("e.txt.gz", {"num_nodes": 20_000, "memory": "64MiB"}),
    "archive": ("g.npz", {"memory": "64MiB"}),
    "values": ("e.npy", {"num_nodes": 20_000, "edge_weight": "w.npy", "memory": "256MiB"}),
    "values in ranges": ("e.npy", {"num_nodes": 20_000, "edge_weight": "w.npy", "memory": "32MiB"}),
}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("large")
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 20_000, (1_000_000, 2)).astype(np.int32)
    x = rng.normal(size=(20_000, 32)).astype(np.float32)
    np.save(tmp_path / "e.npy", pairs)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "w.npy", rng.random(len(pairs)))
    np.savez_compressed(tmp_path / "g.npz", edge_index=pairs, x=x)
    text = b"".join(b"%d %d\n" % pair for pair in map(tuple, pairs.tolist()))
    (tmp_path / "e.txt").write_bytes(text)
    (tmp_path / "e.txt.gz").write_bytes(gzip.compress(text, 1))
    return tmp_path


@pytest.mark.parametrize("name", CASES)
def test_forecast_is_near_what_is_taken_h14(tmp_path, large, watched, name):
    """H14: peak of memory and disk within 30 % of the forecast, and the dry run writes no file."""
    source, options = CASES[name]
    options = {key: large / v if str(v).endswith(".npy") else v for key, v in options.items()}
    before = sorted(os.listdir(large))
    told = forecast(large / source, **options)
    assert sorted(os.listdir(large)) == before
    assert told.num_edges == pytest.approx(1_000_000, rel=0.05)
    assert told.exact == (name not in {"text", "packed text"})
    prepare(large / source, tmp_path / "out", **options)
    taken = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    disk = taken + watched[-1].peak_bytes(Tier.DISK)
    assert watched[-1].peak_bytes(Tier.HOST) == pytest.approx(told.memory_bytes, rel=0.3)
    assert disk == pytest.approx(told.disk_bytes, rel=0.3)


def test_dry_run_on_the_command_line(troubled, tmp_path):
    before = sorted(os.listdir(tmp_path))
    code, stdout, _ = run(f"prepare {troubled} --dry-run --json --memory 16MiB")
    document = json.loads(stdout)["forecast"]
    assert code == 0
    assert (document["num_nodes"], document["num_edges"], document["exact"]) == (4, 4, True)
    assert [stage["name"] for stage in document["stages"]] == ["features", "splits", "edges"]
    assert document["memory_bytes"] == max(s["memory_bytes"] for s in document["stages"])
    code, stdout, _ = run(f"prepare {troubled} --dry-run")
    assert "scratch" in stdout
    assert sorted(os.listdir(tmp_path)) == before


@pytest.mark.parametrize("name", ["g.gml", "g.mat", "none.npy", "bad.npz", "r.toml"])
def test_forecast_of_what_cannot_be_counted(tmp_path, name):
    if name != "none.npy":
        recipe = name.endswith(".toml")
        (tmp_path / name).write_text('edges = {files = "e.csv"}' if recipe else "x")
    with pytest.raises(DataError if name in {"none.npy", "bad.npz"} else UsageError, match=name):
        forecast(tmp_path / name)


@pytest.mark.parametrize(
    ("folder", "nodes", "edges"),
    [
        ("layouts/ogb-raw-cora", 2708, None),
        ("layouts/igb-minesweeper", 10000, 39402),
        ("heterophilous/minesweeper.npz", 10000, 39402),
        ("matrix-market/west0067.mtx", 67, 294),
    ],
)
def test_counts_of_real_graphs(shared_data, folder, nodes, edges):
    told = forecast(shared_data / folder)
    assert told.num_nodes == nodes
    assert told.exact
    assert edges in {None, told.num_edges}


# Inputs that are read as a whole

WHOLE = {
    "gexf-gml/polblogs.gml": ("8MiB", ""),
    "blogcatalog-mat/blogcatalog.mat": ("32MiB", ""),
    "pyg-pt/inj_cora.pt.zip": ("48MiB", "--pickles"),
    "cora-planetoid/ind.cora.graph": ("4MiB", "--pickles"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_read_whole_has_to_fit(shared_data, tmp_path, name):
    memory, options = WHOLE[name]
    source, out = shared_data / name, tmp_path / "out"
    code, stdout, stderr = run(f"prepare {source} {out} {options} --memory {memory} --json")
    error = json.loads(stdout)["error"]
    assert (code, error["kind"], error["tier"]) == (4, "BudgetError", "host")
    assert stderr[0].startswith(f"error: {source.name}: is read as a whole, which takes about ")
    assert not out.exists()
    enough = -(-error["smallest_bytes"] >> 20)
    assert re.search(rf"--memory (at least )?{enough}MiB", error["remedy"])
    assert run(f"prepare {source} {out} {options} --memory {enough}MiB")[0] == 0


def test_json_has_to_fit(tmp_path):
    (tmp_path / "n.csv").write_text("id\na\nb\n")
    (tmp_path / "e.csv").write_text("src,dst\na,b\n")
    (tmp_path / "x.json").write_text('{"0": [1], "1": [0, 2]}' + " " * (5 << 20))
    (tmp_path / "r.toml").write_text(
        'nodes = {files = "n.csv", key = "id"}\nedges = {files = "e.csv"}\n'
        'features = {file = "x.json"}'
    )
    with pytest.raises(BudgetError, match=r"^x\.json: is read as a whole, .* about 70\.0 MiB"):
        prepare(tmp_path / "r.toml", tmp_path / "out", memory="100MiB")
    report = prepare(tmp_path / "r.toml", tmp_path / "out", memory="200MiB")
    assert report.num_features == 3
