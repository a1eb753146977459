"""Typed graphs from tables, arrays and folders: right rows, right ids, and what is wrong named."""

import csv
import gzip
import io
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import gnnx
from gnnx.cli import app
from gnnx.errors import DataError, GnnxError, UsageError
from gnnx.memory import Budget, Ledger, Tier
from gnnx.prepare import forecast, prepare
from gnnx.prepare.arrays import Workspace
from gnnx.prepare.edges import PairEdges
from gnnx.prepare.recipe import NodeTable, Options
from gnnx.prepare.report import Report
from gnnx.prepare.table_counts import count_table
from gnnx.prepare.typed import Direction, _write_edges
from gnnx.store import DatasetWriter, verify

ROOT = Path(__file__).resolve().parents[1]
RECIPE = """
[[nodes]]
type = "author"
files = "author.csv"
key = "name"
label = "area"
split = "part"

[[nodes]]
type = "paper"
files = "paper.csv"
key = "id"
key_type = "integer"
features = ["a", "b"]

[[nodes]]
type = "venue"
count = 3
features_file = "venue.npy"

[[edges]]
type = ["author", "writes", "paper"]
files = "writes.csv"
src = "who"
dst = "what"
reverse = "written_by"

[[edges]]
type = ["paper", "in", "venue"]
files = "in.csv"

[[edges]]
type = ["paper", "cites", "paper"]
files = "cites.npy"
"""


@pytest.fixture
def folder(tmp_path):
    """Three authors, four papers whose keys do not ascend, three venues."""
    (tmp_path / "author.csv").write_text(
        "name,area,part\nann,db,train\nbob,ml,val\ncem,,\n", encoding="utf-8"
    )
    (tmp_path / "paper.csv").write_text("id,a,b\n30,1,2\n10,3,4\n20,5,6\n40,7,8\n")
    np.save(tmp_path / "venue.npy", np.arange(15, dtype=np.float16).reshape(3, 5))
    (tmp_path / "writes.csv").write_text("who,what\nbob,10\nann,30\nann,10\ncem,40\n")
    (tmp_path / "in.csv").write_text("src,dst\n10,2\n20,0\n30,2\n")
    np.save(tmp_path / "cites.npy", np.array([[0, 1, 1], [1, 3, 1]]))
    (tmp_path / "graph.toml").write_text(RECIPE)
    return tmp_path


def rows_of(path, edge_type):
    indptr, indices = (
        np.load(path / f"edges/{edge_type}/{name}.npy") for name in ("indptr", "indices")
    )
    return [indices[begin:end].tolist() for begin, end in itertools.pairwise(indptr)]


def test_a_recipe_with_several_tables(folder):
    report = prepare(folder / "graph.toml", folder / "out", memory="256MiB")
    out = folder / "out"
    assert verify(out) == []
    # papers are 30, 10, 20, 40 in the order of their table
    assert rows_of(out, "author-writes-paper") == [[0], [0, 1], [], [2]]
    assert rows_of(out, "paper-written_by-author") == [[0, 1], [1], [3]]
    assert rows_of(out, "paper-in-venue") == [[2], [], [0, 1]]
    assert rows_of(out, "paper-cites-paper") == [[], [0, 1], [], [1]]
    assert np.load(out / "edges/paper-cites-paper/loops.npy").tolist() == [1]
    with gnnx.open(out) as dataset:
        assert (dataset.target, dataset.class_names) == ("author", ["db", "ml"])
        assert dataset.keys.ids(["cem", "ann"]).tolist() == [2, 0]
        assert dataset.widths == {"author": 1, "paper": 2, "venue": 5}
        assert dataset.array("nodes/paper/key").read(np.arange(4)).tolist() == [30, 10, 20, 40]
        assert dataset.labels.read(np.arange(3)).tolist() == [0, 1, -1]
        assert [dataset.split(s).read_range(0, 1).tolist() for s in ("train", "val")] == [[0], [1]]
        assert dataset.features_of("paper").read(np.array([2])).tolist() == [[5.0, 6.0]]
        assert dataset.manifest.report["author: unlabelled"] == 1
        assert dataset.manifest.report["paper-cites-paper: self_loops"] == 1
    assert report.nodes["venue"] == {"num_nodes": 3, "num_features": 5}
    assert report.edges["paper-in-venue"] == {"edges_stored": 3, "edges_read": 3}
    assert report.problems == {}


def test_features_of_every_type_are_stored_in_the_type_that_is_wanted(folder):
    prepare(folder / "graph.toml", folder / "out", dtype="bfloat16")
    prepare(folder / "graph.toml", folder / "small", dtype="int8")
    venue = np.load(folder / "venue.npy").astype(np.float64)
    with gnnx.open(folder / "out") as dataset:
        assert dataset.features_of("venue").dtype == torch.bfloat16
        assert dataset.features_of("paper").read(np.arange(1)).tolist() == [[1, 2]]
    with gnnx.open(folder / "small") as dataset:
        for name, x in (("paper", np.arange(1, 9).reshape(4, 2)), ("venue", venue)):
            stored = dataset.features_of(name)
            values = stored.read(np.arange(len(x))).numpy() * stored.scale.numpy()
            assert (abs(values - x) <= abs(x).max(0) / 254 * 1.0001).all()


def test_nodes_and_edges_of_a_type_come_out_by_their_keys(folder, tmp_path):
    prepare(folder / "graph.toml", folder / "out", memory="256MiB")

    def exported(*words):
        words = ["export", folder / "out", tmp_path / "out.csv", *words, "--json"]
        result = CliRunner().invoke(app, [*map(str, words)])
        return result.exit_code, result.stdout

    def rows():
        return (tmp_path / "out.csv").read_text().replace('"', "").splitlines()

    assert exported("--what", "edges", "--type", "author-writes-paper")[0] == 0
    assert rows()[0] == "src,dst"
    assert sorted(rows()[1:]) == ["ann,10", "ann,30", "bob,10", "cem,40"]
    assert exported("--what", "edges", "--type", "paper-written_by-author")[0] == 0
    assert sorted(rows()[1:]) == ["10,ann", "10,bob", "30,ann", "40,cem"]
    assert exported("--what", "edges", "--type", "paper-in-venue")[0] == 0
    assert sorted(rows()[1:]) == ["10,2", "20,0", "30,2"]
    assert exported()[0] == 0
    assert rows() == ["key,label,split", "ann,db,train", "bob,ml,val", "cem,,"]
    assert exported("--type", "paper")[0] == 0
    assert rows() == ["key,x0,x1", "30,1,2", "10,3,4", "20,5,6", "40,7,8"]
    np.save(tmp_path / "rows.npy", np.array([0.5, 1.5, 2.5]))
    assert exported("--type", "venue", "--rows", tmp_path / "rows.npy")[0] == 0
    assert rows() == ["key,x", "0,0.5", "1,1.5", "2,2.5"]
    for words, cause in (
        (["--what", "edges"], "4 edge types"),
        (["--what", "edges", "--type", "paper"], "no edge type 'paper'"),
        (["--type", "town"], "no node type 'town'"),
    ):
        code, stdout = exported(*words)
        assert (code, json.loads(stdout)["error"]["cause"]) == (2, f"{folder / 'out'}: {cause}")


def test_report_of_a_typed_graph_is_lines_by_type(folder):
    (folder / "in.csv").write_text("src,dst\n10,2\n10,2\n30,2\n")
    words = ["prepare", str(folder / "graph.toml"), str(folder / "out"), "--memory", "256MiB"]
    stdout = CliRunner().invoke(app, [*words, "--quiet"]).stdout
    shown = " ".join(stdout.replace("│", " ").split())  # lines are folded
    assert "venue: num_nodes 3, num_features 5" in shown
    assert "paper-in-venue: edges_read 3, edges_stored 3, duplicates 1" in shown
    assert "paper-in-venue: 1 parallel edges" in shown
    assert "{" not in shown


def test_strict_refuses_problems_of_any_type(folder):
    (folder / "in.csv").write_text("src,dst\n10,2\n10,2\n30,2\n")
    report = prepare(folder / "graph.toml", folder / "out", memory="256MiB")
    assert report.problems == {"paper-in-venue: duplicates": "1 parallel edges"}
    with pytest.raises(DataError, match=r"graph\.toml: paper-in-venue: 1 parallel edges"):
        prepare(folder / "graph.toml", folder / "strict", memory="256MiB", strict=True)
    assert not (folder / "strict").exists()


def test_the_bytes_do_not_depend_on_the_memory(folder):
    names = ("one", "two")
    for name, memory in zip(names, ("200MiB", "1GiB"), strict=True):
        prepare(folder / "graph.toml", folder / name, memory=memory)
    one, two = (
        {
            path.relative_to(folder / name).as_posix(): path.read_bytes()
            for path in (folder / name).rglob("*")
            if path.is_file()
        }
        for name in names
    )
    assert one == two


def test_undirected_adds_reverse_edge_types(folder):
    text = RECIPE.replace('reverse = "written_by"\n', "") + "\n[options]\nundirected = true\n"
    (folder / "graph.toml").write_text(text)
    prepare(folder / "graph.toml", folder / "out", memory="256MiB")
    assert rows_of(folder / "out", "paper-rev_writes-author") == [[0, 1], [1], [3]]
    assert rows_of(folder / "out", "venue-rev_in-paper") == [[2], [2], [0], []]
    assert rows_of(folder / "out", "paper-cites-paper") == [[1], [0, 1, 3], [], [1]]


@given(
    counts=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    data=st.data(),
    turned=st.booleans(),
    memory=st.sampled_from(["2MiB", "64MiB"]),
)
@settings(max_examples=25)
def test_edges_between_two_types_are_the_oracle_s(tmp_path_factory, counts, data, turned, memory):
    """The rows of a rectangular matrix, in the order given or turned round."""
    size = data.draw(st.integers(0, 40))
    src = data.draw(st.lists(st.integers(0, counts[0] - 1), min_size=size, max_size=size))
    dst = data.draw(st.lists(st.integers(0, counts[1] - 1), min_size=size, max_size=size))
    out = tmp_path_factory.mktemp("between") / "out"
    ledger, report = Ledger(Budget.parse(memory)), Report()
    with DatasetWriter(out, ledger=ledger) as writer, Workspace(out.parent, ledger) as workspace:
        scratch = workspace.scratch()
        scratch.append(np.array([src, dst], np.int64))
        edges = PairEdges(scratch.array("edges", (2, size), np.int64), "rows")
        nodes = dict(zip("ab", counts, strict=True))
        for name, count in nodes.items():
            writer.nodes(name, count)
        edge_type = ("b", "r", "a") if turned else ("a", "r", "b")
        way = Direction(edge_type, turned=turned, undirected=False)
        _write_edges(way, edges, nodes, Options(), workspace, writer, report, None)
    if turned:
        src, dst, counts = dst, src, counts[::-1]
    rows = [sorted(s for s, d in zip(src, dst, strict=True) if d == v) for v in range(counts[1])]
    assert rows_of(out, "-".join(edge_type)) == rows
    assert not (out / "edges" / "-".join(edge_type) / "loops.npy").exists()
    pairs = list(zip(src, dst, strict=True))
    assert report.duplicates == size - len(set(pairs))


# OGB's raw folders of typed graphs.


def gz(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as file:
        file.write(text)


@pytest.fixture
def mag(tmp_path):
    """The layout of ogbn-mag, with three papers and two authors."""
    raw = tmp_path / "mag" / "raw"
    gz(raw / "num-node-dict.csv.gz", "author,paper\n2,3\n")
    gz(raw / "triplet-type-list.csv.gz", "author,writes,paper\npaper,cites,paper\n")
    gz(raw / "node-feat/paper/node-feat.csv.gz", "0.5,1\n2,3\n4,5\n")
    gz(raw / "node-label/paper/node-label.csv.gz", "1\n0\n1\n")
    for name, text in (
        ("author___writes___paper", "0,2\n1,0\n"),
        ("paper___cites___paper", "2,0\n"),
    ):
        gz(raw / "relations" / name / "edge.csv.gz", text)
        gz(raw / "relations" / name / "num-edge-list.csv.gz", f"{text.count(chr(10))}\n")
    for split, text in (("train", "0\n"), ("valid", "1\n"), ("test", "2\n")):
        gz(tmp_path / "mag/split/time/paper" / f"{split}.csv.gz", text)
    return tmp_path / "mag"


def test_a_raw_folder_of_ogb(mag, tmp_path):
    report = prepare(mag, tmp_path / "out", memory="64MiB", undirected=True)
    out = tmp_path / "out"
    assert rows_of(out, "author-writes-paper") == [[1], [], [0]]
    assert rows_of(out, "paper-rev_writes-author") == [[2], [0]]
    assert rows_of(out, "paper-cites-paper") == [[2], [], [0]]
    with gnnx.open(out) as dataset:
        assert (dataset.target, dataset.num_classes) == ("paper", 2)
        assert dataset.features.read(np.arange(3)).tolist() == [[0.5, 1], [2, 3], [4, 5]]
        assert dataset.split("val").read_range(0, 1).tolist() == [1]
    assert report.edges["paper-cites-paper"]["reversed_added"] == 1
    prepare(mag, tmp_path / "drawn", memory="64MiB", split="1,0,0")
    with gnnx.open(tmp_path / "drawn") as dataset:
        assert dataset.split("train").num_rows == 3


def test_what_is_wrong_with_a_raw_folder_is_named(mag, tmp_path):
    with pytest.raises(UsageError, match="split 'year' is not in"):
        prepare(mag, tmp_path / "out", split="year")
    with pytest.raises(UsageError, match="--features has no meaning for a typed graph"):
        prepare(mag, tmp_path / "out", features="x.npy")
    gz(mag / "raw/relations/author___writes___paper/edge.csv.gz", "0,2\n2,0\n")
    with pytest.raises(DataError, match=r"edge 1: author: .*2.*2 nodes"):
        prepare(mag, tmp_path / "out")
    gz(mag / "raw/node-label/paper/node-label.csv.gz", "1\n0\n")
    with pytest.raises(DataError, match="labels of 2 nodes, 3 of type 'paper'"):
        prepare(mag, tmp_path / "out")
    gz(mag / "raw/num-node-dict.csv.gz", "author,paper\n2,3\n2,3\n")
    with pytest.raises(DataError, match="3 lines, not one of node types"):
        prepare(mag, tmp_path / "out")
    gz(mag / "raw/num-node-dict.csv.gz", "author,articles\n2,3\n")
    with pytest.raises(DataError, match="not a relation between node types author, articles"):
        prepare(mag, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def test_many_types_fit_a_small_memory(tmp_path):
    """Arrays of a type give their share back, a 32nd of the memory, when it is written."""
    np.save(tmp_path / "e.npy", np.zeros((3, 2), np.int64))
    edges = (f'[[edges]]\ntype = ["a", "r{i}", "a"]\nfiles = "e.npy"\n' for i in range(20))
    (tmp_path / "g.toml").write_text('[[nodes]]\ntype = "a"\ncount = 1\n' + "".join(edges))
    report = prepare(tmp_path / "g.toml", tmp_path / "out", memory="8MiB")
    assert len(report.edges) == 20


# What it is going to take.


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Authors by name, papers by number, venues by id; the graph as a recipe and as OGB has it."""
    path, rng = tmp_path_factory.mktemp("large"), np.random.default_rng(0)
    authors, papers, venues, size = 5_000, 20_000, 100, 100_000
    names = [f"author number {i:05d}" for i in range(authors)]
    splits = [("train", "val", "test")[i % 3] for i in range(authors)]
    areas = [f"area {i % 5}" for i in range(authors)]
    table = pa.table({"name": names, "area": areas, "part": splits})
    pq.write_table(table, path / "author.parquet")
    x = rng.normal(size=(papers, 8)).round(4).tolist()
    rows = [f"{7 * i},{','.join(map(str, row))}" for i, row in enumerate(x)]
    (path / "paper.csv").write_text("\n".join([f"id,{','.join('abcdefgh')}", *rows]))
    np.save(path / "venue.npy", rng.normal(size=(venues, 16)).astype(np.float32))
    who, what = rng.integers(0, authors, size).tolist(), rng.integers(0, papers, size).tolist()
    lines = [f"{names[a]},{7 * b}" for a, b in zip(who, what, strict=True)]
    (path / "writes").mkdir()
    for part in range(4):  # more than is sampled
        text = "\n".join(["who,what", *lines[part::4]])
        with gzip.open(path / f"writes/{part}.csv.gz", "wt", 1) as file:
            file.write(text)
    np.save(path / "in.npy", np.stack([np.arange(papers), rng.integers(0, venues, papers)]))
    np.save(path / "cites.npy", rng.integers(0, papers, (size, 2), np.int32))
    text = RECIPE.replace("author.csv", "author.parquet").replace("writes.csv", "writes/*.csv.gz")
    text = text.replace('["a", "b"]', '"?"').replace("in.csv", "in.npy")
    (path / "graph.toml").write_text(text.replace("count = 3", f"count = {venues}"))
    raw = path / "mag/raw"
    gz(raw / "num-node-dict.csv.gz", f"author,paper\n{authors},{papers}\n")
    gz(raw / "node-feat/paper/node-feat.csv.gz", "".join(f"{','.join(map(str, r))}\n" for r in x))
    gz(raw / "node-label/paper/node-label.csv.gz", "".join(f"{i % 7}\n" for i in range(papers)))
    pairs = "".join(f"{a},{b}\n" for a, b in zip(who, what, strict=True))
    gz(raw / "relations/author___writes___paper/edge.csv.gz", pairs)
    gz(raw / "relations/author___writes___paper/num-edge-list.csv.gz", f"{size}\n")
    for i, split in enumerate(("train", "valid", "test")):
        ids = "".join(f"{node}\n" for node in range(i, papers, 3))
        gz(path / "mag/split/time/paper" / f"{split}.csv.gz", ids)
    return path


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("graph.toml", {"memory": "256MiB"}),
        ("graph.toml", {"memory": "128MiB", "undirected": True, "self_loops": "add"}),
        ("mag", {"memory": "16MiB", "undirected": True}),
        ("mag", {"memory": "4MiB"}),
    ],
)
def test_forecast_is_near_what_is_taken(tmp_path, large, watched, name, options):
    """Peak of memory and disk within 15 % of the forecast, and the dry run writes no file."""
    before = sorted(os.listdir(large))
    told = forecast(large / name, **options)
    assert sorted(os.listdir(large)) == before
    assert told.num_edges == pytest.approx(220_000 if name == "graph.toml" else 100_000, rel=0.05)
    assert told.exact == (name == "mag")
    report = prepare(large / name, tmp_path / "out", **options)
    kinds = dict.fromkeys(stage.name.partition(": ")[0] for stage in told.stages)
    assert set(report.edges) <= set(kinds)
    taken = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    scratch = watched[-1].peak_bytes(Tier.DISK)
    assert watched[-1].peak_bytes(Tier.HOST) == pytest.approx(told.memory_bytes, rel=0.15)
    assert taken == pytest.approx(told.written_bytes, rel=0.15)
    assert scratch == pytest.approx(told.disk_bytes - told.written_bytes, rel=0.15)


@pytest.fixture
def watched(monkeypatch):
    """Ledgers of preparations, to look at their peaks afterwards."""
    made = []

    class Watched(Ledger):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr("gnnx.prepare.typed.Ledger", Watched)
    return made


def test_forecast_by_type_on_the_command_line(folder):
    words = ["prepare", str(folder / "graph.toml"), str(folder / "dry"), "--dry-run", "--json"]
    document = json.loads(CliRunner().invoke(app, words).stdout)["forecast"]
    assert (document["num_nodes"], document["num_edges"], document["exact"]) == (10, 10, True)
    assert [stage["name"] for stage in document["stages"]] == [
        "author: reading", "paper: reading", "author: splits", "paper: features", "paper: splits",
        "venue: features", "author-writes-paper: reading", "author-writes-paper: edges",
        "paper-written_by-author: edges", "paper-cites-paper: edges", "paper-in-venue: reading",
        "paper-in-venue: edges",
    ]  # fmt: skip
    assert not (folder / "dry").exists()
    with pytest.raises(UsageError, match="--features has no meaning for a typed graph"):
        forecast(folder / "graph.toml", features="x.npy")
    (folder / "paper.csv").write_text("number,a,b\n")
    with pytest.raises(DataError, match=r"nodes\.key: no column 'id' in paper\.csv"):
        forecast(folder / "graph.toml")


def test_forecast_of_a_graphbolt_folder(shared_data):
    told = forecast(shared_data / "layouts/graphbolt-dblp")
    assert (told.num_nodes, told.num_edges, told.exact) == (28871, 112340, True)
    assert told.written_bytes == pytest.approx(14376 * 128 + 112340 * 4, rel=0.4)


@given(
    rows=st.lists(
        st.tuples(st.text('a"\n,é ', min_size=1, max_size=5), st.integers(0, 9)), max_size=30
    ),
    packed=st.sampled_from(["", ".gz", ".zst"]),
)
@settings(max_examples=40)
def test_rows_of_tables_are_counted(tmp_path_factory, rows, packed):
    """Also of fields with line ends and quotes in them."""
    path = tmp_path_factory.mktemp("rows")
    text = io.StringIO(newline="")
    csv.writer(text, quoting=csv.QUOTE_ALL).writerows([("name", "x"), *rows])
    with pa.output_stream(str(path / f"t.csv{packed}"), compression="detect") as file:
        file.write(text.getvalue().encode())
    counts = count_table(NodeTable((f"t.csv{packed}",)), path, "nodes")
    assert (counts.num_rows, counts.exact) == (len(rows), True)
    if rows:
        mean = np.mean([len(name.encode()) for name, _ in rows])
        assert counts.text_bytes("name") == pytest.approx(mean)


# What is wrong with a recipe.


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ('type = "author"', "", "nodes[0].type: missing"),
        ('type = "paper"', 'type = "author"', "nodes[1].type: 'author' is there twice"),
        ('type = "author"', 'type = "an-author"', "'an-author' cannot be a name"),
        ("count = 3", "", "nodes[2]: files or count"),
        ("count = 3", 'count = 3\nfiles = "x.csv"', "nodes[2]: files or count"),
        ("count = 3", "cuont = 3", "nodes[2].cuont: unknown key"),
        (
            'features = ["a", "b"]',
            'features = ["a"]\nfeatures_file = "x"',
            "nodes[1]: features_file",
        ),
        ('"writes", "paper"]', '"writes"]', "edges[0].type: ['author', 'writes']"),
        (
            '["paper", "in", "venue"]',
            '["paper", "in", "town"]',
            "edges[1].type: no node type 'town'",
        ),
        ('files = "in.csv"', "", "edges[1].files: missing"),
        ('files = "in.csv"', 'files = "in.csv"\nweight = "w"', "edges[1].weight: not read"),
        ('files = "in.csv"', 'files = "in.csv"\nattr = ["w"]', "edges[1].attr: not read"),
        ('files = "in.csv"', 'files = "in.csv"\ntime = "w"', "edges[1].time: not read"),
        ('files = "cites.npy"', 'files = "cites.npy"\nrelation = "w"', "edges[2].relation: not"),
        ('label = "area"', 'labels = ["area"]', "nodes[0].labels: not read"),
        ('label = "area"', 'tags = "area"', "nodes[0].tags: not read"),
        ("count = 3", 'count = 3\nlabel = "area"', "nodes[2].label: not read"),
        ("[[edges]]\ntype", "[edges]\ntype", None),
    ],
)
def test_a_wrong_recipe_is_named(folder, old, new, cause):
    text = RECIPE.replace(old, new, 1)
    (folder / "graph.toml").write_text(text)
    with pytest.raises(GnnxError) as caught:
        prepare(folder / "graph.toml", folder / "out")
    assert caught.value.exit_code in {2, 3}
    assert cause is None or caught.value.cause.startswith(f"graph.toml: {cause}")
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    ("file", "text", "cause"),
    [
        ("writes.csv", "who,what\nbob,10\neve,30\n", "1 of 2 edges name .* the author 'eve'"),
        ("writes.csv", "who,what\nbob,10\nbob,31\n", "1 of 2 edges name .* the paper '31'"),
        ("in.csv", "src,dst\n10,3\n", r"in.csv: edge 0: venue: .*3.*3 nodes"),
        ("in.csv", "src,dst\n10,-1\n", "in.csv: 1 edges with ids below 0"),
        ("author.csv", "name,area,part\nann,db,\nann,ml,\n", "key 'ann' is there 2 times"),
    ],
)
def test_wrong_tables_are_named(folder, file, text, cause):
    (folder / file).write_text(text)
    with pytest.raises(DataError, match=cause):
        prepare(folder / "graph.toml", folder / "out", memory="256MiB")


def test_what_a_killed_run_leaves_is_said_to_begin_anew(folder, monkeypatch):
    """Nothing stands for a typed graph's inputs: none is asked for, and no stage is kept."""
    monkeypatch.setattr("gnnx.prepare.build.origin_of", None)
    with monkeypatch.context() as patch:
        patch.setattr("gnnx.store.writer.shutil.rmtree", lambda *_args, **_options: None)
        patch.setattr("gnnx.prepare.typed.TypedReport.counts", lambda _: 1 / 0)  # near the end
        with pytest.raises(ZeroDivisionError):
            prepare(folder / "graph.toml", folder / "out", memory="256MiB")
    with pytest.raises(DataError, match="stages done: none") as caught:
        gnnx.open(folder / "out")
    assert caught.value.remedy == "Give the same command again: it begins anew."
    prepare(folder / "graph.toml", folder / "out", memory="256MiB")
    assert verify(folder / "out") == []


def test_unknown_ends_can_be_left_out(folder):
    (folder / "writes.csv").write_text("who,what\nbob,10\neve,30\nann,31\n")
    (folder / "graph.toml").write_text(
        RECIPE.replace('src = "who"', 'src = "who"\nunknown = "drop"')
    )
    report = prepare(folder / "graph.toml", folder / "out", memory="256MiB")
    assert rows_of(folder / "out", "author-writes-paper") == [[], [1], [], []]
    assert report.edges["author-writes-paper"]["unknown_ends"] == 2


def test_graphbolt_folder_of_a_real_graph(shared_data, tmp_path):
    source, out = shared_data / "layouts/graphbolt-dblp", tmp_path / "out"
    words = ["prepare", str(source), str(out), "--quiet", "--json"]
    document = json.loads(CliRunner().invoke(app, words).stdout)
    assert document["nodes"]["author"] == {"count": 14475, "num_features": 0, "num_classes": 4}
    assert document["edges"]["paper-written_by-author"] == 41794
    assert document["report"]["nodes"]["author"]["unlabelled"] == 14475 - 4057
    pairs = np.loadtxt(source / "edges/paper_in_conf.csv", delimiter=",", dtype=int)
    rows = [sorted(pairs[pairs[:, 1] == v, 0].tolist()) for v in range(20)]
    assert rows_of(out, "paper-in-conf") == rows
    y = np.load(out / "nodes/author/y.npy")
    for split, name in (("train", "train"), ("validation", "val"), ("test", "test")):
        seeds, labels = (np.load(source / f"set/{split}-{n}.npy") for n in ("seeds", "labels"))
        assert np.array_equal(y[seeds], labels)
        assert np.array_equal(np.load(out / f"nodes/author/{name}.npy"), np.sort(seeds))


def typed_graphbolt(folder, labels=None, parts="seeds labels", node_type="paper"):
    """Three papers, two authors; seeds 2 and 0 of the papers."""
    folder.mkdir()
    np.save(folder / "writes.npy", np.array([[0, 1, 1], [1, 0, 1]]))
    np.save(folder / "seeds.npy", np.array([2, 0]))
    np.save(folder / "labels.npy", np.array([1, 0]) if labels is None else labels)
    data = "".join(f"\n          - {{name: {n}, path: {n}.npy}}" for n in parts.split())
    (folder / "metadata.yaml").write_text(f"""
graph:
  nodes: [{{type: paper, num: 3}}, {{type: author, num: 2}}]
  edges: [{{type: "author:writes:paper", format: numpy, path: writes.npy}}]
tasks:
  - name: node_classification
    train_set:
      - type: {node_type}
        data:{data}
""")
    return folder


def test_graphbolt_labels_stand_at_their_seeds(tmp_path):
    pytest.importorskip("yaml")
    prepare(typed_graphbolt(tmp_path / "g"), tmp_path / "out", memory="64MiB")
    assert np.load(tmp_path / "out/nodes/paper/y.npy").tolist() == [0, -1, 1]
    assert np.load(tmp_path / "out/nodes/paper/train.npy").tolist() == [0, 2]


def test_graphbolt_sets_without_labels_are_splits(tmp_path):
    pytest.importorskip("yaml")
    prepare(typed_graphbolt(tmp_path / "g", parts="seeds"), tmp_path / "out", memory="64MiB")
    assert np.load(tmp_path / "out/nodes/paper/train.npy").tolist() == [0, 2]
    assert not (tmp_path / "out/nodes/paper/y.npy").exists()


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"labels": np.array([0.5, 1.7])}, r"labels\.npy: float64 \(2,\)"),
        ({"labels": np.array([1])}, r"seeds\.npy: int64 \(2,\), labels\.npy: int64 \(1,\)"),
        (
            {"node_type": "venue"},
            r"metadata\.yaml: not as GraphBolt lays it out: KeyError: 'venue'",
        ),
    ],
)
def test_graphbolt_sets_that_are_wrong_are_named(tmp_path, changes, cause):
    pytest.importorskip("yaml")
    with pytest.raises(DataError, match=cause):
        prepare(typed_graphbolt(tmp_path / "g", **changes), tmp_path / "out", memory="64MiB")


def test_debian_s_script_and_recipe(tmp_path):
    """The class of a file is the section of its packages, where these agree."""
    (tmp_path / "Contents").write_text(
        "usr/bin/hello devel/hello\n"
        "usr/bin/two words   utils/two,text/other\n"
        "usr/share/doc/hello/copyright devel/hello\n"
    )
    words = [sys.executable, ROOT / "datasets/debian_contents.py", tmp_path / "made", "--dim", "8"]
    subprocess.run([*words, "--contents", tmp_path / "Contents"], check=True, capture_output=True)
    prepare(tmp_path / "made/debian.toml", tmp_path / "out", memory="64MiB")
    with gnnx.open(tmp_path / "out") as dataset:
        assert dataset.node_counts == {"directory": 6, "file": 3, "package": 3}
        assert dataset.widths == {"directory": 8, "file": 8, "package": 1}
        assert dataset.labels.read(np.arange(3)).tolist() == [0, -1, 0]
        assert dataset.num_classes == 1
    out = tmp_path / "out"
    assert rows_of(out, "file-in_package-package") == [[0, 2], [1], [1]]
    assert rows_of(out, "package-ships-file") == [[0], [1, 2], [0]]
    # directories in the order of first use: the root, usr, usr/bin, usr/share, doc, hello
    assert rows_of(out, "file-in_directory-directory") == [[], [], [0, 1], [], [], [2]]
    assert rows_of(out, "directory-parent-directory") == [[1], [2, 3], [], [4], [5], []]


def test_debian_s_script_makes_a_graph_of_one_type(tmp_path):
    """Files, then directories, then packages, which have no features."""
    (tmp_path / "Contents").write_text("usr/bin/hello devel/hello\nusr/lib.so libs/a,libs/b\n")
    made = tmp_path / "made"
    words = [sys.executable, ROOT / "datasets/debian_contents.py", made, "--dim", "8", "--plain"]
    subprocess.run([*words, "--contents", tmp_path / "Contents"], check=True, capture_output=True)
    files = {name: made / f"{name}.npy" for name in ("train", "val", "test")}
    prepare(
        made / "edges.npy",
        tmp_path / "out",
        features=made / "x.npy",
        labels=made / "y.npy",
        **files,
        memory="64MiB",
    )
    # 0 hello, 1 lib.so; 2 the root, 3 usr, 4 usr/bin; 5 hello, 6 a, 7 b
    with gnnx.open(tmp_path / "out") as dataset:
        assert dataset.labels.read(np.arange(8)).tolist() == [0, 1, *6 * [-1]]
        x = dataset.features.read(np.arange(8))
        assert dataset.graph.num_edges == 3 + 2 + 2
    assert str(x.dtype) == "torch.float32"
    assert not x[5:].any()
    assert x[:2].any(dim=1).all()
    assert rows_of(tmp_path / "out", "node-edge-node") == [[], [], [3], [1, 4], [0], [0], [1], [1]]


def test_typed_graphs_are_not_partitioned(folder):
    prepare(folder / "graph.toml", folder / "out", memory="256MiB")
    words = ["partition", str(folder / "out"), str(folder / "parts"), "--parts", "2", "--json"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 2
    cause = json.loads(result.stdout)["error"]["cause"]
    assert cause.endswith("has 3 node types and 4 edge types, not one each")
