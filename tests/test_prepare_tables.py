"""Tables with keys: recipes, numbering, columns, splits; keys come back as they went in."""

import csv
import gzip
import json
import tempfile
from pathlib import Path

import hypothesis
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

import gnnx
from gnnx.errors import BudgetError, DataError, UsageError
from gnnx.export import export
from gnnx.prepare import forecast, prepare
from gnnx.prepare.recipe import Recipe
from gnnx.store import verify

NODES = "id,age,city,part\nb,1.5,Oslo,train\na,2,,val\n\u00e9,3,Bonn,test\n007,-4e2,Oslo,train\n"
EDGES = "from,to\na,b\nb,007\n007,007\n\u00e9,a\n"
RECIPE = """
[nodes]
files = "nodes.csv"
key = "id"
features = ["age"]
label = "city"
split = "part"
[edges]
files = "edges.csv"
src = "from"
dst = "to"
[options]
unlabeled = "ignore"
"""


@pytest.fixture
def run(tmp_path):
    """Prepare a recipe with files beside it; returns (report, open data set)."""
    opened = []

    def run(recipe=RECIPE, files=None, **options):
        folder = tmp_path / "raw"
        folder.mkdir(exist_ok=True)
        for name, text in {"nodes.csv": NODES, "edges.csv": EDGES, **(files or {})}.items():
            if isinstance(text, pa.Table):
                pq.write_table(text, folder / name)
            else:
                (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
        (folder / "recipe.toml").write_text(recipe, encoding="utf-8")
        report = prepare(folder / "recipe.toml", tmp_path / "out", overwrite=True, **options)
        assert verify(tmp_path / "out") == []
        assert {path.name for path in tmp_path.iterdir()} == {"raw", "out"}
        opened.append(gnnx.open(tmp_path / "out"))
        return report, opened[-1]

    yield run
    for dataset in opened:
        dataset.close()


def rows(store):
    return store.read(np.arange(store.num_rows)).tolist()


def keyed_edges(dataset, out):
    export(dataset, out, what="edges")
    table = pq.read_table(out).to_pydict()
    return sorted(zip(table["src"], table["dst"], strict=True))


def test_tables_with_string_keys(run, tmp_path):
    report, dataset = run()
    assert dataset.keys.of(np.arange(4)) == ["b", "a", "\u00e9", "007"]
    assert dataset.keys.ids(["007", "\u00e9", "b", "a"]).tolist() == [3, 2, 0, 1]
    assert rows(dataset.features) == [[1.5], [2], [3], [-400]]
    assert dataset.class_names == ["Bonn", "Oslo"]
    assert rows(dataset.labels) == [1, -1, 0, 1]
    assert {n: rows(dataset.split(n)) for n in ("train", "val", "test")} == {
        "train": [0, 3],
        "val": [],
        "test": [2],
    }
    assert (report.num_nodes, report.edges_read, report.unlabelled_in_splits) == (4, 4, 1)
    assert keyed_edges(dataset, tmp_path / "raw" / "e.parquet") == [
        ("007", "007"),
        ("a", "b"),
        ("b", "007"),
        ("\u00e9", "a"),
    ]
    with pytest.raises(DataError, match="no node has the key '7'"):
        dataset.keys.ids(["7"])


@pytest.mark.parametrize("kind", ["csv.gz", "csv.zst", "tsv", "parquet"])
def test_every_kind_of_file_gives_the_same_bytes(run, kind):
    expected = run()[1].fingerprint
    files = {}
    for name, text in (("nodes", NODES), ("edges", EDGES)):
        if kind == "parquet":
            strings = pa.csv.ConvertOptions(
                column_types=dict.fromkeys(("id", "from", "to"), pa.string()),
                strings_can_be_null=True,
            )
            table = pa.csv.read_csv(pa.py_buffer(text.encode()), convert_options=strings)
            files[f"{name}.{kind}"] = table
        elif kind == "csv.gz":
            files[f"{name}.{kind}"] = gzip.compress(text.encode())
        elif kind == "csv.zst":
            files[f"{name}.{kind}"] = pa.compress(text.encode(), codec="zstd", asbytes=True)
        else:
            files[f"{name}.{kind}"] = text.replace(",", "\t")
    recipe = RECIPE.replace("nodes.csv", f"nodes.{kind}").replace("edges.csv", f"edges.{kind}")
    assert run(recipe, files)[1].fingerprint == expected


def test_globs_are_read_in_order_and_root_may_be_elsewhere(run, tmp_path):
    parts = [(f"key{i}", f"key{(i * 7) % 50}") for i in range(50)]
    for i in range(0, 50, 10):
        (tmp_path / f"n{i}.csv").write_text(
            "id\n" + "".join(f"{a}\n" for a, _ in parts[i : i + 10])
        )
        text = "a,b\n" + "".join(f"{a},{b}\n" for a, b in parts[i : i + 10])
        (tmp_path / f"e{i}.csv").write_text(text)
    recipe = """
        nodes = {files = "n*.csv", key = "id"}
        edges = {files = ["e*.csv"], src = "a", dst = "b"}
    """
    path = tmp_path / "r" / "recipe.toml"
    path.parent.mkdir()
    path.write_text(recipe)
    report = prepare(path, tmp_path / "out", root=tmp_path)
    assert (report.num_nodes, report.edges_read) == (50, 50)
    with gnnx.open(tmp_path / "out") as dataset:
        # sorted by name: n0, n10, n20, …, so that the keys come in the order of the files
        assert dataset.keys.of(np.arange(50)) == [a for a, _ in parts]
        assert keyed_edges(dataset, tmp_path / "e.parquet") == sorted(parts)
    with pytest.raises(DataError, match="no such file"):
        prepare(path, tmp_path / "out2")


def test_memory_changes_no_byte(run):
    rng = np.random.default_rng(0)
    keys = [f"node {i} of many" for i in rng.permutation(20_000)]
    table = pa.table({"id": keys, "x": rng.random((20_000, 8), np.float32).tolist()})
    ends = rng.integers(0, 20_000, (100_000, 2))
    edges = pa.table({"src": [keys[i] for i in ends[:, 0]], "dst": [keys[i] for i in ends[:, 1]]})
    recipe = """
        nodes = {files = "n.parquet", key = "id", features = "x"}
        edges = {files = "e.parquet"}
    """
    files = {"n.parquet": table, "e.parquet": edges}
    fingerprints = {run(recipe, files, memory=m)[1].fingerprint for m in ("96MiB", "1GiB")}
    assert len(fingerprints) == 1
    with pytest.raises(BudgetError, match="--memory 96MiB"):
        run(recipe, files, memory="32MiB")


# Keys

awkward = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


@hypothesis.given(st.lists(awkward, min_size=1, max_size=1000, unique=True), st.data())
@hypothesis.settings(max_examples=4, suppress_health_check=list(hypothesis.HealthCheck))
def test_export_of_import_gives_the_keys_back(tmp_path_factory, keys, data):
    tmp_path = tmp_path_factory.mktemp("keys")
    _round_trip(tmp_path, keys, pa.string())


def test_a_thousand_awkward_keys(tmp_path):
    """Of quotes, delimiters, blanks, line ends, zeros in front, accents composed and not."""
    rng = np.random.default_rng(0)
    signs = list("\"',;|\t\n\r #\\0019aA/:.-_%$\u00e9e\u0301\u4e2d\U0001f600\ufeff\x7f\x01")
    keys = {"", " ", "0", "00", "-0", "null", "NULL", "nan", '""', "\ufeff", "1e5"}
    while len(keys) < 1000:
        keys.add("".join(rng.choice(signs, rng.integers(1, 9))))
    _round_trip(tmp_path, list(keys), pa.string())


def test_a_thousand_wide_integers(tmp_path):
    rng = np.random.default_rng(0)
    wide = rng.integers(-(2**63), 2**63 - 1, 990).tolist()
    keys = {*wide, 0, -1, 2**31, 2**31 - 1, 2**32, 2**63 - 1, -(2**63), 3000000000}
    _round_trip(tmp_path, list(keys), pa.int64())


def _round_trip(folder, keys, kind):
    ring = pa.table({"src": pa.array(keys, kind), "dst": pa.array(keys[1:] + keys[:1], kind)})
    pq.write_table(ring, folder / "e.parquet")
    pq.write_table(pa.table({"id": pa.array(keys, kind)}), folder / "n.parquet")
    nodes = 'nodes = {files = "n.parquet", key = "id"}\n'
    for name, table in (("with", nodes), ("without", "")):
        (folder / "r.toml").write_text(table + 'edges = {files = "e.parquet"}')
        prepare(folder / "r.toml", folder / name)
        with gnnx.open(folder / name) as dataset:
            ids = np.arange(len(keys))
            found = list(dataset.keys.of(ids))
            assert sorted(found) == sorted(keys)
            assert (found == keys) or not table
            assert dataset.keys.ids(found).tolist() == ids.tolist()
            export(dataset, folder / "n2.parquet")
            assert pq.read_table(folder / "n2.parquet")["key"].to_pylist() == found
            pairs = list(zip(keys, keys[1:] + keys[:1], strict=True))
            assert keyed_edges(dataset, folder / "e2.parquet") == sorted(pairs)
    if kind == pa.string():
        import csv

        with (folder / "e.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, quoting=csv.QUOTE_ALL)
            writer.writerows([("src", "dst"), *pairs])
        (folder / "r.toml").write_text('edges = {files = "e.csv"}')
        prepare(folder / "r.toml", folder / "csv")
        with gnnx.open(folder / "csv") as dataset:
            assert dataset.keys.of(ids) == found
            export(dataset, folder / "e3.csv", what="edges")
            back = pa.csv.read_csv(
                folder / "e3.csv",
                parse_options=pa.csv.ParseOptions(newlines_in_values=True),
                convert_options=pa.csv.ConvertOptions(
                    column_types=dict.fromkeys(("src", "dst"), pa.string())
                ),
            ).to_pydict()
            assert sorted(zip(back["src"], back["dst"], strict=True)) == sorted(pairs)


def test_wide_integer_keys_h03(run, tmp_path):
    edges = pa.table({"src": [3000000000], "dst": [5000000000]})
    report, dataset = run('edges = {files = "e.parquet"}', {"e.parquet": edges})
    assert (report.num_nodes, report.edges_read) == (2, 1)
    assert keyed_edges(dataset, tmp_path / "raw" / "x.parquet") == [(3000000000, 5000000000)]
    (tmp_path / "raw" / "e.txt").write_text("3000000000 5000000000\n")
    prepare(tmp_path / "raw" / "e.txt", tmp_path / "out", overwrite=True)
    with gnnx.open(tmp_path / "out") as dataset:
        assert dataset.keys.of(np.arange(2)).tolist() == [3000000000, 5000000000]
        export(dataset, tmp_path / "raw" / "x.csv", what="edges")
    assert (tmp_path / "raw" / "x.csv").read_text().splitlines()[1:] == ["3000000000,5000000000"]


def test_keys_of_two_types_meet(run):
    nodes = pa.table({"id": pa.array([30, 10, 20])})
    recipe = 'nodes = {files = "n.parquet", key = "id"}\nedges = {files = "e.csv"}'
    files = {"n.parquet": nodes, "e.csv": "src,dst\n10,20\n030,10\n"}
    _, dataset = run(recipe, files)
    assert dataset.keys.of(np.arange(3)).tolist() == [30, 10, 20]
    assert rows(dataset.array("nodes/node/key_order")) == [1, 2, 0]
    assert dataset.graph.rows(np.arange(3))[1].tolist() == [0, 1, 1]
    with pytest.raises(DataError, match=r"1 of 2 edges name .*, such as '1\.5'|such as ''"):
        run(recipe, {**files, "e.csv": "src,dst\n10,20\n1.5,10\n"})


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ("id\na\nb\na\n", "nodes.csv: key 'a' is there 2 times"),
        ("id,x\na,1\n,2\n", "nodes.csv: row 1 has no key"),
    ],
)
def test_keys_that_name_no_one_node(run, nodes, message):
    recipe = 'nodes = {files = "nodes.csv", key = "id"}\nedges = {files = "e.csv"}'
    with pytest.raises(DataError) as failure:
        run(recipe, {"nodes.csv": nodes, "e.csv": "src,dst\na,b\n"})
    assert failure.value.cause == message


def test_edges_that_name_unknown_nodes(run):
    files = {"edges.csv": EDGES + "a,zoe\nzoe,yan\n,a\n"}
    with pytest.raises(DataError) as failure:
        run(files={"edges.csv": EDGES + "a,zoe\nzoe,yan\n"})
    assert failure.value.cause == (
        "edges.csv: 2 of 6 edges name nodes that are not in the node table, such as 'zoe' "
        "(edges.csv:6)"
    )
    report, dataset = run(RECIPE.replace('dst = "to"', 'dst = "to"\nunknown = "drop"'), files)
    assert (report.unknown_ends, report.edges_read, dataset.num_edges) == (3, 4, 4)


def test_nodes_named_by_row(run):
    recipe = 'nodes = {files = "n.csv", features = "*"}\nedges = {files = "e.csv"}'
    files = {"n.csv": "a,b\n1,2\n3,4\n5,6\n", "e.csv": "src,dst\n0,2\n"}
    _, dataset = run(recipe, files)
    assert rows(dataset.features) == [[1, 2], [3, 4], [5, 6]]
    assert "nodes/node/key" not in dataset.manifest.arrays
    assert dataset.keys.of(np.arange(3)).tolist() == [0, 1, 2]
    with pytest.raises(DataError, match=r"1 of 1 edges name .* such as '3'"):
        run(recipe, {**files, "e.csv": "src,dst\n0,3\n"})


def test_exported_rows_have_their_keys_h44(run, tmp_path):
    """Whatever the order in which nodes are numbered."""
    order = [4, 0, 5, 2, 1, 3]
    nodes = pa.table({"id": order, "x": [[float(i), 10.0 * i] for i in order]})
    edges = pa.table({"src": [0, 1, 2, 2, 4], "dst": [1, 2, 0, 0, 4]})
    recipe = """
        nodes = {files = "n.parquet", key = "id", features = "x"}
        edges = {files = "e.parquet"}
    """
    _, dataset = run(recipe, {"n.parquet": nodes, "e.parquet": edges})
    ids = np.arange(6)
    assert dataset.keys.ids(dataset.keys.of(ids)).tolist() == ids.tolist()
    for name in ("x.parquet", "x.csv"):
        assert export(dataset, tmp_path / "raw" / name) == 6
    table = pq.read_table(tmp_path / "raw" / "x.parquet").to_pydict()
    assert {key: x[0] for key, x in zip(table["key"], table["x"], strict=True)} == {
        i: float(i) for i in range(6)
    }
    table = pa.csv.read_csv(tmp_path / "raw" / "x.csv").to_pydict()
    assert (table["key"], table["x1"]) == (order, [10 * i for i in order])
    np.save(tmp_path / "raw" / "out.npy", np.array(order)[:, None] / 2)
    export(dataset, tmp_path / "raw" / "o.parquet", rows=tmp_path / "raw" / "out.npy")
    table = pq.read_table(tmp_path / "raw" / "o.parquet").to_pydict()
    assert [x[0] * 2 for x in table["x"]] == table["key"]
    np.save(tmp_path / "raw" / "out.npy", np.zeros((5, 1)))
    with pytest.raises(DataError, match=r"^out\.npy: 5 rows, 6 nodes"):
        export(dataset, tmp_path / "raw" / "o.parquet", rows=tmp_path / "raw" / "out.npy")
    with pytest.raises(UsageError, match="a table of unknown kind"):
        export(dataset, tmp_path / "raw" / "o.xls")
    assert not list((tmp_path / "raw").glob("*.partial"))


# Columns


def test_features_from_lists_columns_and_text(run):
    table = pa.table(
        {
            "id": ["a", "b"],
            "v": pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float64(), 2)),
            "n": pa.array([7, 8], pa.int16()),
            "t": ["0.5, 1", "1.5,2e1"],
        }
    )
    recipe = """
        nodes = {files = "n.parquet", key = "id", features = ["t", "v", "n"], separator = ","}
        edges = {files = "e.csv"}
    """
    _, dataset = run(recipe, {"n.parquet": table, "e.csv": "src,dst\na,b\n"})
    assert rows(dataset.features) == [[0.5, 1, 1, 2, 7], [1.5, 20, 3, 4, 8]]


def test_lists_of_two_lengths(run):
    for lists, message in (
        ([[1.0], [2.0, 3.0]], "n.parquet: column v: 2 numbers in row 1, 1 in the rows before"),
        ([[1.0], None], "n.parquet: column v: no list in row 1, 1 in the rows before"),
    ):
        table = pa.table({"id": ["a", "b"], "v": pa.array(lists, pa.list_(pa.float32()))})
        recipe = """
            nodes = {files = "n.parquet", key = "id", features = "v"}
            edges = {files = "e.csv"}
        """
        with pytest.raises(DataError) as failure:
            run(recipe, {"n.parquet": table, "e.csv": "src,dst\na,b\n"})
        assert failure.value.cause == message


def test_fields_that_are_no_numbers(run):
    with pytest.raises(DataError, match=r'^nodes\.csv:2: .*"age".*"old"'):
        run(files={"nodes.csv": NODES.replace("1.5", "old")})
    with pytest.raises(
        DataError, match=r"nodes\.csv: 1 NaN or infinite value, in column 0, node 0"
    ):
        run(files={"nodes.csv": NODES.replace("1.5", "")})


def test_lines_of_too_few_fields(run):
    with pytest.raises(DataError, match=r"^edges\.csv:3: Expected Number of Columns: 2 Found: 1"):
        run(files={"edges.csv": "from,to\na,b\nb\n"})


def test_features_of_json_by_row_and_by_key(run):
    recipe = RECIPE.replace('features = ["age"]\n', "") + '[features]\nfile = "f.json"\n'
    lists = {"0": [2], "2": [0, 1, 1], "1": [], "3": [2, 0]}
    _, dataset = run(recipe, {"f.json": json.dumps(lists)})
    expected = [[0, 0, 1], [0, 0, 0], [1, 1, 0], [1, 0, 1]]
    assert rows(dataset.features) == expected
    assert dataset.manifest.arrays["nodes/node/x"].dtype == "uint8"
    by_key = {["b", "a", "\u00e9", "007"][int(row)]: columns for row, columns in lists.items()}
    _, dataset = run(recipe + 'by = "key"\n', {"f.json": json.dumps(by_key)})
    assert rows(dataset.features) == expected
    with pytest.raises(DataError, match=r"f\.json: 'b' is not the row of a node"):
        run(recipe, {"f.json": json.dumps(by_key)})


def test_features_of_npy(run, tmp_path):
    recipe = RECIPE.replace('features = ["age"]\n', "") + '[features]\nfile = "x.npy"\n'
    (tmp_path / "raw").mkdir()
    np.save(tmp_path / "raw" / "x.npy", np.arange(8, dtype=np.float16).reshape(4, 2))
    _, dataset = run(recipe)
    assert rows(dataset.features)[3] == [6, 7]
    np.save(tmp_path / "raw" / "x.npy", np.zeros((3, 2)))
    with pytest.raises(DataError, match=r"^nodes\.csv: 4 nodes, x\.npy: 3"):
        run(recipe)


def test_labels_as_numbers(run):
    _, dataset = run(files={"nodes.csv": NODES.replace("Oslo", "2").replace("Bonn", "0")})
    assert dataset.class_names is None
    assert rows(dataset.labels) == [2, -1, 0, 2]
    with pytest.raises(DataError, match=r"label 1\.5 of node 2 is not a class"):
        run(files={"nodes.csv": NODES.replace("Oslo", "2").replace("Bonn", "1.5")})


def test_splits_from_flags_and_from_files(run):
    flags = "id,city,a,b\nb,0,1,false\na,0,0,TRUE\nc,1,true,\n"
    edges = {"edges.csv": "from,to\na,b\n"}
    recipe = """
        nodes = {files = "nodes.csv", key = "id", label = "city", train = "a", test = "b"}
        edges = {files = "edges.csv", src = "from", dst = "to"}
    """
    _, dataset = run(recipe, {"nodes.csv": flags, **edges})
    assert (rows(dataset.split("train")), rows(dataset.split("test"))) == ([0, 2], [1])
    recipe = recipe.replace(', train = "a", test = "b"', "") + '[splits]\nval = "v.txt"\n'
    _, dataset = run(recipe, {"nodes.csv": flags, "v.txt": "c\nb\n", **edges})
    assert rows(dataset.split("val")) == [0, 2]
    with pytest.raises(DataError, match=r"^v\.txt: 'z' is not the key of a node"):
        run(recipe, {"nodes.csv": flags, "v.txt": "c\nz\n", **edges})


def test_options_of_the_call_win(run):
    recipe = RECIPE + 'undirected = true\nself_loops = "drop"\n'
    report, dataset = run(recipe)
    assert (report.reversed_added, report.dropped, dataset.num_edges) == (3, 1, 6)
    report, _ = run(recipe, self_loops="add")
    assert (report.dropped, report.loops_added) == (0, 3)


# Recipes


@pytest.mark.parametrize(
    ("text", "cause", "remedy"),
    [
        ("[edges]\nfile = 'e'", "edges.file: unknown key", "Did you mean files?"),
        ("[edge]\nfiles = 'e'", "edge: unknown key", "Did you mean edges?"),
        ("[edges]\nsrc = 'a'", "edges.files: missing", "Add it to the recipe."),
        ("[nodes]\nfiles = 'n'", "edges: missing", "Add it to the recipe."),
        ("edges = 'e.csv'", "edges: 'e.csv'", "Write it as a table: [edges]."),
        ("[edges]\nfiles = 3", "edges.files: 3", "Give a string, or a list of strings."),
        ("[edges]\nfiles = []", "edges.files: []", "Give a string, or a list of strings."),
        (
            "[edges]\nfiles = 'e'\nheader = 'no'",
            "edges.header: 'no' is not of type bool",
            "Correct it.",
        ),
        (
            "[edges]\nfiles = 'e'\nunknown = 'keep'",
            "edges.unknown: 'keep'",
            "Choose from refuse, drop.",
        ),
        (
            "[edges]\nfiles = 'e'\n[options]\nself_loop = 'add'",
            "options.self_loop: unknown key",
            "Did you mean self_loops?",
        ),
        (
            "[edges]\nfiles = 'e'\ndelimiter = 'ab'",
            "edges.delimiter: 'ab' is not one character",
            "Give one character.",
        ),
        (
            "[edges]\nfiles = 'e'\ndelimiter = ''",
            "edges.delimiter: '' is not one character",
            "Give one character.",
        ),
        (
            "[edges]\nfiles = 'e'\n[nodes]\nfiles = 'n'\nquote = '--'",
            "nodes.quote: '--' is not one character",
            "Give one character.",
        ),
        (
            "[edges]\nfiles = 'e'\nquote = ','",
            "edges.quote: ',' is the delimiter",
            "Give another, or none.",
        ),
        ("[edges]\nfiles = 'e'\nskip = -1", "edges.skip: -1 is below 0", "Give 0 or more."),
        (
            "[edges]\nfiles = 'e'\n[features]\nfile = 'x.npy'",
            "[features] without [nodes]: which row is which node is not known",
            "Give a table of the nodes.",
        ),
    ],
)
def test_mistakes_in_recipes(tmp_path, text, cause, remedy):
    (tmp_path / "r.toml").write_text(text)
    with pytest.raises(UsageError) as failure:
        Recipe.load(tmp_path / "r.toml")
    assert (failure.value.cause, failure.value.remedy) == (f"r.toml: {cause}", remedy)


def test_fields_longer_than_the_csv_module_takes(run, tmp_path):
    """And a separator that is no pattern of files."""
    recipe = "[edges]\nfiles = 'e.csv'\n[nodes]\nfiles = 'n.csv'\nkey = 'id'\n"
    recipe += "features = 'x'\nseparator = '.'\n"
    long = 200_000 * "z"
    edges = f"src,dst,{long}\na,b,{long}\nb,a,1\n"
    report, _ = run(recipe, {"e.csv": edges, "n.csv": "id,x\na,1.2\nb,3.4\n"})
    assert (report.edges_read, report.num_features) == (2, 2)
    told = forecast(tmp_path / "raw/recipe.toml")
    assert (told.num_nodes, told.num_edges, told.exact) == (2, 2, True)
    assert csv.field_size_limit() == 131_072  # which belongs to the process


def test_recipes_that_are_none(run, tmp_path):
    with pytest.raises(DataError, match=r"^recipe\.toml: not TOML: .*at end of document"):
        run("[edges]\nfiles =")
    with pytest.raises(DataError, match="No such file"):
        prepare(tmp_path / "no.toml", tmp_path / "out")
    with pytest.raises(DataError, match=r"^edges\.src: no column 'src' in edges\.csv"):
        run('edges = {files = "edges.csv"}')
    with pytest.raises(DataError, match=r"^e\.xls: a table of edges of unknown kind"):
        run('edges = {files = "e.xls"}', {"e.xls": "a"})


def test_a_killed_preparation_leaves_its_spills_where_the_next_one_removes_them(
    tmp_path, monkeypatch
):
    made = []
    real = tempfile.mkdtemp

    def noted(**options):
        made.append(real(**options))
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", noted)
    (tmp_path / "edges.csv").write_text("src,dst\na,b\n")
    (tmp_path / "r.toml").write_text('[edges]\nfiles = "edges.csv"\nsrc = "src"\ndst = "dst"\n')
    prepare(tmp_path / "r.toml", tmp_path / "graph")
    assert [Path(folder).parent for folder in made] == [tmp_path / ".graph.partial"]


@pytest.mark.parametrize("opening", ['"open', 'a,"open'])
def test_a_quote_that_opens_in_a_skipped_line(tmp_path, opening):
    """DuckDB would skip up to where it closes: all of the edges."""
    (tmp_path / "e.csv").write_text(f"\n{opening}\nsrc,dst\na,b\nb,c\n")
    recipe = tmp_path / "r.toml"
    recipe.write_text('[edges]\nfiles = "e.csv"\nskip = 2\n')
    for refused in (lambda: forecast(recipe), lambda: prepare(recipe, tmp_path / "out")):
        with pytest.raises(DataError, match=r"^e\.csv:2: a quote opens in this line"):
            refused()
    recipe.write_text('[edges]\nfiles = "e.csv"\nskip = 2\nquote = ""\n')
    assert prepare(recipe, tmp_path / "out").edges_stored == 2
    (tmp_path / "e.csv").write_text('# 5" screw, "all"\n\nsrc,dst\na,b\nb,c\n')
    recipe.write_text('[edges]\nfiles = "e.csv"\nskip = 2\n')
    assert prepare(recipe, tmp_path / "out", overwrite=True).edges_stored == 2
