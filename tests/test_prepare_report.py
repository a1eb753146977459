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
    "values of a matrix": ("m.mtx", {"edge_weight": "value", "memory": "64MiB"}),
    "mirror images": ("s.mtx", {"edge_weight": "value", "memory": "64MiB"}),
    "values of a column": ("e.txt", {"num_nodes": 20_000, "edge_time": "1", "memory": "64MiB"}),
    "keys in text": ("people.toml", {"memory": "256MiB"}),
    "keys in text, less memory": ("people.toml", {"memory": "128MiB", "self_loops": "add"}),
    "rows and values in Parquet": ("rated.toml", {"memory": "256MiB"}),
    "rows, with features": ("rated.toml", {"features": "x.npy", "memory": "512MiB"}),
    "no table of nodes": ("ends.toml", {"memory": "256MiB"}),
    "no table of nodes, integers": ("numbers.toml", {"memory": "128MiB"}),
    "folder of DGL": ("dgl", {"memory": "256MiB"}),
}
SAMPLED = {
    "text", "mirror images", "packed text", "values of a column", "keys in text",
    "keys in text, less memory", "no table of nodes", "no table of nodes, integers",
    "folder of DGL",
}  # fmt: skip

PEOPLE = """
nodes = {files = "people.csv", key = "name", features = ["age", "x*"], label = "city"}
edges = {files = "follows/*.csv.gz", src = "who", dst = "whom"}
splits = {train = "train.txt", val = "val.txt"}
options = {undirected = true}
"""
RATED = """
nodes = {files = "things.parquet", features = "x", separator = " ", tags = "tags"}
edges = {files = "rated.parquet", weight = "rating", time = "at", relation = "how"}
"""


def write_tables(path, rng, pairs):
    """Tables of the same edges: between names, between rows with values, between large numbers."""
    num_nodes = 20_000
    names = [f"person number {i:05d}" for i in range(num_nodes)]
    x = rng.normal(size=(num_nodes, 6)).round(3).tolist()
    rows = [
        f"{name},{i % 90},{','.join(map(str, x[i]))},city {i % 7}" for i, name in enumerate(names)
    ]
    head = "name,age,x0,x1,x2,x3,x4,x5,city"
    (path / "people.csv").write_text("\n".join([head, *rows]))
    (path / "train.txt").write_text("\n".join(names[:15_000]))
    (path / "val.txt").write_text("\n".join(names[15_000:]))
    lines = [f"{names[a]},{names[b]}" for a, b in pairs.tolist()]
    (path / "follows").mkdir()
    for part in range(3):  # more than is sampled
        with gzip.open(path / f"follows/{part}.csv.gz", "wt", 1) as file:
            file.write("\n".join(["who,whom", *lines[part::3]]))
    (path / "people.toml").write_text(PEOPLE)
    lists = rng.normal(size=(num_nodes, 16)).astype(np.float32).tolist()
    tags = [["abcd"[i % 4], "efgh"[i // 4 % 4]] for i in range(num_nodes)]
    pq.write_table(pa.table({"x": lists, "tags": tags}), path / "things.parquet")
    how = np.array(["bought", "seen", "liked"])[rng.integers(0, 3, len(pairs))]
    columns = {"src": pairs[:, 0], "dst": pairs[:, 1], "rating": rng.random(len(pairs))}
    columns |= {"at": rng.integers(0, 1 << 40, len(pairs)), "how": how}
    pq.write_table(pa.table(columns), path / "rated.parquet")
    (path / "rated.toml").write_text(RATED)
    ends = 'edges = {files = "follows/*.csv.gz", src = "who", dst = "whom"}'
    (path / "ends.toml").write_text(ends)
    large = pairs.astype(np.int64) * 12_345_678_901
    pq.write_table(pa.table({"src": large[:, 0], "dst": large[:, 1]}), path / "numbers.parquet")
    (path / "numbers.toml").write_text('edges = {files = "numbers.parquet"}')
    (path / "dgl").mkdir()
    meta = "node_data:\n- file_name: nodes.csv\nedge_data:\n- file_name: edges.csv\n"
    (path / "dgl/meta.yaml").write_text(f"dataset_name: d\n{meta}")
    rows = [f'{i},"{",".join(map(str, x[i]))}",{i % 3}' for i in range(num_nodes)]
    (path / "dgl/nodes.csv").write_text("\n".join(["node_id,feat,label", *rows]))
    lines = [f"{a},{b}" for a, b in pairs.tolist()]
    (path / "dgl/edges.csv").write_text("\n".join(["src_id,dst_id", *lines]))


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
    rows = b"".join(b"%d %d 1.5\n" % (a + 1, b + 1) for a, b in pairs.tolist())
    head = b"%%MatrixMarket matrix coordinate real general\n20000 20000 1000000\n"
    (tmp_path / "m.mtx").write_bytes(head + rows)
    head = b"%%MatrixMarket matrix coordinate real symmetric\n20000 20000 500000\n"
    (tmp_path / "s.mtx").write_bytes(head + b"".join(rows.splitlines(keepends=True)[:500_000]))
    write_tables(tmp_path, rng, pairs)
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
    assert told.exact == (name not in SAMPLED)
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


@pytest.mark.parametrize("name", ["g.gml", "g.mat", "none.npy", "bad.npz", "g.pt"])
def test_forecast_of_what_cannot_be_counted(tmp_path, name):
    if name != "none.npy":
        (tmp_path / name).write_text("x")
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


@pytest.mark.parametrize("kind", ["tags", "labels", "json"])
def test_forecast_of_what_else_a_recipe_says(tmp_path, watched, kind):
    """Several labels a node, and features in JSON; what is written, and scratch files."""
    rng = np.random.default_rng(0)
    size = 30_000
    names = [f"{'xyz'[i % 3]};common" if i % 5 else "" for i in range(size)]
    columns = {f"l{i}": rng.integers(0, 2, size) for i in range(5)}
    pq.write_table(pa.table({"names": names, **columns}), tmp_path / "n.parquet")
    lists = {str(i): rng.integers(0, 64, 3).tolist() for i in range(size)}
    (tmp_path / "x.json").write_text(json.dumps(lists))
    pairs = rng.integers(0, size, (50_000, 2))
    pq.write_table(pa.table({"src": pairs[:, 0], "dst": pairs[:, 1]}), tmp_path / "e.parquet")
    key = {"tags": 'tags = "names", separator = ";"', "labels": 'labels = "l*"', "json": ""}[kind]
    (tmp_path / "r.toml").write_text(
        f'nodes = {{files = "n.parquet"{", " * bool(key)}{key}}}\nedges = {{files = "e.parquet"}}\n'
        + 'features = {file = "x.json"}' * (kind == "json")
    )
    told = forecast(tmp_path / "r.toml", memory="128MiB")
    assert (told.num_nodes, told.num_edges, told.exact) == (size, 50_000, True)
    prepare(tmp_path / "r.toml", tmp_path / "out", memory="128MiB")
    taken = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert watched[-1].peak_bytes(Tier.HOST) == pytest.approx(told.memory_bytes, rel=0.3)
    assert taken == pytest.approx(told.written_bytes, rel=0.3)
    scratch = told.disk_bytes - told.written_bytes
    assert watched[-1].peak_bytes(Tier.DISK) == pytest.approx(scratch, rel=0.3)


def test_dry_run_of_a_recipe_takes_its_options(tmp_path):
    rng = np.random.default_rng(0)
    np.savetxt(
        tmp_path / "e.csv", rng.integers(0, 9, (99, 2)), "%d", ",", header="src,dst", comments=""
    )
    (tmp_path / "n.csv").write_text("\n".join(["id", *map(str, range(9))]))
    text = 'nodes = {files = "n.csv", key = "id"}\nedges = {files = "e.csv"}\n'
    (tmp_path / "r.toml").write_text(text)
    once = forecast(tmp_path / "r.toml")
    np.save(tmp_path / "w.npy", np.ones(99))
    weighted = forecast(tmp_path / "r.toml", edge_weight=tmp_path / "w.npy")
    assert weighted.written_bytes == once.written_bytes + 4 * (99 + 9)
    (tmp_path / "r.toml").write_text(text + 'options = {undirected = true, self_loops = "add"}')
    twice = forecast(tmp_path / "r.toml")
    assert twice.written_bytes == once.written_bytes + 4 * (99 + 9)
    assert (
        forecast(tmp_path / "r.toml", self_loops="drop").written_bytes == once.written_bytes + 396
    )
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "r.toml").rename(tmp_path / "elsewhere/r.toml")
    again = forecast(tmp_path / "elsewhere/r.toml", root=tmp_path)
    assert again.disk_bytes == twice.disk_bytes
    told = run(
        f"prepare {tmp_path}/elsewhere/r.toml {tmp_path}/out --root {tmp_path} --dry-run --json"
    )
    assert json.loads(told[1])["forecast"]["num_edges"] == 99
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("nodes", "rest"),
    [
        ('key = "name"', ""),
        ('key = "id", features = ["x", "y*"]', ""),
        ('key = "id", label = "kind"', ""),
        ('key = "id", labels = "l?"', ""),
        ('key = "id", tags = "t"', ""),
        ('key = "id", tags = "x"', ""),
        ('key = "id", split = "part"', ""),
        ('key = "id", train = "part"', ""),
        ('key = "id"', 'features = {file = "none.npy"}'),
        ('key = "id"', 'features = {file = "none.json"}'),
        ('key = "id"', 'features = {file = "x.bin"}'),
        ('key = "id"', 'splits = {train = "none.txt"}'),
        ('key = "id", files = "none.csv"', ""),
        ('key = "id", colour = "red"', ""),
        ('key = "id"', 'edges.src = "from"'),
        ('key = "id"', 'edges.weight = "w"'),
        ('key = "id"', 'edges.attr = ["src", "w"]'),
        ('key = "id"', 'edges.time = "w"'),
        ('key = "id"', 'edges.relation = "w"'),
        ('key = "id"', 'edges.files = "none.csv"'),
        (None, 'edges.dst = "to"'),
    ],
)
def test_dry_run_refuses_a_recipe_as_prepare_does(tmp_path, nodes, rest):
    """Word by word: the path to the key, the column or the file, and what to do."""
    (tmp_path / "n.csv").write_text("id,x\na,1\nb,2\n")
    (tmp_path / "e.csv").write_text("src,dst\na,b\n")
    (tmp_path / "x.bin").write_text("x")
    lines = (
        [] if nodes is None else [f"nodes.{key}" for key in nodes.replace('", ', '"\n').split("\n")]
    )
    if nodes == 'key = "id", features = ["x", "y*"]':
        lines = ['nodes.key = "id"', 'nodes.features = ["x", "y*"]']
    lines += [rest] if rest else []
    lines += (
        []
        if any("nodes.files" in line for line in lines) or nodes is None
        else ['nodes.files = "n.csv"']
    )
    lines += [] if "edges.files" in rest else ['edges.files = "e.csv"']
    (tmp_path / "r.toml").write_text("\n".join(lines))
    said = []
    for attempt in (forecast, lambda recipe: prepare(recipe, tmp_path / "out")):
        with pytest.raises((DataError, UsageError)) as refused:
            attempt(tmp_path / "r.toml")
        said.append((type(refused.value), str(refused.value)))
    assert said[0] == said[1]


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
