"""From raw input to a data set: kinds of input, features, labels, splits, the report."""

import gzip
import hashlib
import json

import numpy as np
import pytest
import scipy.sparse
import torch

import gnnx
import oracles
from gnnx.errors import DataError, GnnxError, UsageError
from gnnx.export import export
from gnnx.prepare import prepare
from gnnx.store import verify

ODD6 = np.array([[0, 1], [1, 2], [2, 0], [2, 0], [4, 4]])
ODD6_X = np.array([[i, 10 * i] for i in range(6)], np.float32)


def digest(folder):
    """Of every byte of every file below a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


@pytest.fixture
def raw(tmp_path):
    folder = tmp_path / "raw"
    folder.mkdir()
    return folder


@pytest.fixture
def run(tmp_path, raw):
    """Prepare an input of the raw folder, whose bytes must stay; returns (report, arrays)."""

    def run(source, **options):
        before = digest(raw)
        options = {
            name: raw / value if isinstance(value, str) and (raw / value).exists() else value
            for name, value in options.items()
        }
        out = tmp_path / "out"
        try:
            report = prepare(raw / source, out, overwrite=True, **options)
        finally:
            assert digest(raw) == before
            assert {path.name for path in tmp_path.iterdir()} <= {"raw", "out"}
        assert verify(out) == []
        files = {path.stem: path for path in out.rglob("*.npy")}
        return report, {name: np.load(path) for name, path in files.items()}

    return run


def edges_of(arrays):
    rows = np.repeat(np.arange(len(arrays["indptr"]) - 1), np.diff(arrays["indptr"]))
    return list(zip(arrays["indices"].tolist(), rows.tolist(), strict=True))


def write(path, text):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


# Kinds of input


def test_isolated_nodes_h01(run, raw, tmp_path):
    np.save(raw / "edges.npy", ODD6)
    np.save(raw / "x.npy", ODD6_X)
    report, arrays = run("edges.npy", features="x.npy")
    assert (report.num_nodes, report.edges_read, report.edges_stored) == (6, 5, 5)
    assert (report.isolated, report.duplicates, report.self_loops) == (2, 1, 1)
    assert arrays["indptr"].tolist() == [0, 2, 3, 4, 4, 5, 5]
    assert arrays["indices"].tolist() == [2, 2, 0, 1, 4]
    assert arrays["loops"].tolist() == [4]
    with gnnx.open(tmp_path / "out") as dataset:
        assert (dataset.num_nodes, dataset.num_edges, dataset.num_classes) == (6, 5, 0)
        assert dataset.features.read(np.array([5])).tolist() == [[5, 50]]
        assert dataset.graph.rows(np.array([5]))[1].tolist() == [0]


def test_declared_nodes_do_not_reach_h01(run, raw):
    np.save(raw / "edges.npy", ODD6)
    np.save(raw / "seeds.npy", np.array([5]))
    with pytest.raises(DataError) as failure:
        run("edges.npy", num_nodes=4)
    assert failure.value.cause == "edges.npy: edge 4: node 4 is outside the 4 nodes"
    with pytest.raises(DataError) as failure:
        run("edges.npy", num_nodes=5, train="seeds.npy")
    assert failure.value.cause == "seeds.npy: entry 0: node 5 is outside the 5 nodes"


def test_parallel_edges_h04(run, raw):
    write(raw / "e.csv", "src,dst,weight\n0,1,10\n0,1,20\n0,1,30\n")
    report, arrays = run("e.csv", num_nodes=2)
    assert (report.duplicates, report.dropped) == (2, 0)
    assert edges_of(arrays) == [(0, 1)] * 3
    report, arrays = run("e.csv", num_nodes=2, duplicates="drop")
    assert (report.duplicates, report.dropped) == (2, 2)
    assert edges_of(arrays) == [(0, 1)]


@pytest.mark.parametrize("name", ["e.txt", "e.csv", "e.tsv", "e.txt.gz", "e.npy", "e.npz", "c.npz"])
def test_every_kind_gives_the_same_bytes(run, raw, tmp_path, name):
    edges = np.random.default_rng(3).integers(0, 50, (400, 2))
    lines = {".csv": "{},{}\n", ".tsv": "{}\t{}\n"}.get(raw.joinpath(name).suffix, "{} {}\n")
    matrix = scipy.sparse.coo_array((np.ones(400), edges.T), shape=(50, 50))
    if name == "e.npy":
        np.save(raw / name, edges.astype(np.uint32).T)
    elif name == "e.npz":
        np.savez_compressed(raw / name, edge_index=edges.T)
    elif name == "c.npz":
        order = np.argsort(edges[:, 0], kind="stable")
        indptr = np.concatenate([[0], np.cumsum(np.bincount(edges[:, 0], minlength=50))])
        np.savez(raw / name, indptr=indptr, indices=edges[order, 1], shape=matrix.shape)
    else:
        write(raw / name, "".join(lines.format(*edge) for edge in edges))
    report, arrays = run(name, num_nodes=50)
    indptr, indices, loops, _ = oracles.csr_of_edges(*edges.T, 50)
    assert arrays["indptr"].tolist() == indptr.tolist()
    assert arrays["indices"].tolist() == indices.tolist()
    assert arrays["indices"].dtype == np.int32
    assert arrays["loops"].tolist() == loops
    np.save(raw / "plain.npy", edges)
    expected = digest(tmp_path / "out")
    run("plain.npy", num_nodes=50)
    assert digest(tmp_path / "out") == expected
    assert report.edges_read == 400


def test_scipy_matrix(run, raw):
    matrix = scipy.sparse.csr_array(np.array([[0, 1, 1], [0, 0, 1], [1, 0, 0]], np.float32))
    scipy.sparse.save_npz(raw / "m.npz", matrix)
    report, arrays = run("m.npz")
    assert edges_of(arrays) == [(2, 0), (0, 1), (0, 2), (1, 2)]
    assert report.notes == ["values of edges are not kept: give --edge-weight data"]
    scipy.sparse.save_npz(raw / "m.npz", matrix.tocsc())
    with pytest.raises(DataError, match=r"^m\.npz: format: csc is not csr"):
        run("m.npz")


def test_two_by_two_edges_need_a_layout(run, raw):
    np.save(raw / "e.npy", np.array([[0, 1], [2, 0]]))
    with pytest.raises(UsageError, match=r"^e\.npy: edges of shape \(2, 2\) can be read by rows"):
        run("e.npy", num_nodes=3)
    assert edges_of(run("e.npy", num_nodes=3, layout="pairs")[1]) == [(2, 0), (0, 1)]
    assert edges_of(run("e.npy", num_nodes=3, layout="rows")[1]) == [(1, 0), (0, 2)]


def test_memory_changes_no_byte(run, raw, tmp_path):
    rng = np.random.default_rng(0)
    lines = (f"{a} {b}\n" for a, b in rng.integers(0, 3000, (30_000, 2)))
    write(raw / "e.txt.gz", "".join(lines))
    np.save(raw / "x.npy", rng.standard_normal((3000, 300)))
    np.save(raw / "y.npy", rng.integers(-1, 5, 3000))
    options = {"features": "x.npy", "labels": "y.npy", "split": "per-class:20,30,rest"}
    digests = []
    for memory in ("8MiB", "16MiB", "1GiB"):
        run("e.txt.gz", memory=memory, undirected=True, **options)
        digests.append(digest(tmp_path / "out"))
    assert digests[0] == digests[1] == digests[2]


# Number of nodes


def test_number_of_nodes_is_never_guessed(run, raw):
    for name, text in (("e.txt", "0 1\n7 2\n"), ("e.csv", "0,1\n7,2\n")):
        write(raw / name, text)
        with pytest.raises(UsageError) as failure:
            run(name, remap=False)
        assert failure.value.cause == (
            f"{name}: the number of nodes is not known; the largest id is 7"
        )
        assert "--num-nodes" in failure.value.remedy
    np.save(raw / "e.npy", np.array([[0, 1, 7], [1, 7, 0]]))
    with pytest.raises(UsageError, match="the largest id is 7"):
        run("e.npy", remap=False)


@pytest.mark.parametrize("name", ["e.txt", "e.csv", "e.npy"])
def test_ids_with_gaps_h02(run, raw, tmp_path, name):
    edges = np.array([[10, 20], [20, 55], [901, 10]])
    if name == "e.npy":
        np.save(raw / name, edges)
    else:
        np.savetxt(raw / name, edges, "%d", {"e.txt": "\t", "e.csv": ","}[name])
    report, arrays = run(name)
    assert (report.num_nodes, report.edges_read, report.remapped) == (4, 3, 4)
    assert sorted(edges_of(arrays)) == [(0, 1), (1, 2), (3, 0)]
    with gnnx.open(tmp_path / "out") as dataset:
        assert dataset.keys.of(np.array([3, 0])).tolist() == [901, 10]
        assert dataset.keys.ids([901, 10, 20, 55]).tolist() == [3, 0, 1, 2]
        export(dataset, tmp_path / "out" / "e.csv", what="edges")
    lines = (tmp_path / "out" / "e.csv").read_text().splitlines()
    assert lines == ['"src","dst"', "901,10", "10,20", "20,55"]
    with pytest.raises(UsageError, match="the largest id is 901"):
        run(name, remap=False)


def test_ids_without_gaps_need_no_keys(run, raw, tmp_path):
    write(raw / "e.txt", "0 1\n2 1\n")
    report, arrays = run("e.txt")
    assert (report.remapped, "key" in arrays) == (0, False)
    expected = digest(tmp_path / "out")
    run("e.txt", num_nodes=3)
    assert digest(tmp_path / "out") == expected


def test_ids_are_not_remapped_where_rows_belong_to_them(run, raw):
    write(raw / "e.txt", "0 1\n2 7\n")
    np.save(raw / "x.npy", ODD6_X)
    np.save(raw / "train.npy", np.array([2]))
    with pytest.raises(DataError, match="node 7 is outside the 6 nodes"):
        run("e.txt", features="x.npy")
    for options in ({"features": "x.npy"}, {"train": "train.npy"}, {"num_nodes": 9}):
        with pytest.raises(UsageError, match=r"--remap and .*which node is which row"):
            run("e.txt", remap=True, **options)
    assert run("e.txt", num_nodes=9)[0].num_nodes == 9


def test_numbers_of_nodes_that_disagree(run, raw):
    np.save(raw / "e.npy", ODD6)
    np.save(raw / "x.npy", ODD6_X)
    np.save(raw / "y.npy", np.zeros(5, np.int64))
    with pytest.raises(DataError) as failure:
        run("e.npy", features="x.npy", num_nodes=4)
    assert failure.value.cause == "x.npy: 6 nodes, --num-nodes: 4"
    with pytest.raises(DataError) as failure:
        run("e.npy", features="x.npy", labels="y.npy")
    assert failure.value.cause == "x.npy: 6 nodes, y.npy: 5"


def test_no_edges_and_no_nodes(run, raw):
    write(raw / "e.txt", "# nothing\n")
    report, arrays = run("e.txt", num_nodes=3, self_loops="add")
    assert edges_of(arrays) == [(0, 0), (1, 1), (2, 2)]
    assert (report.isolated, report.loops_added) == (3, 3)
    report, arrays = run("e.txt", num_nodes=0)
    assert arrays["indptr"].tolist() == [0]


# Features


def path4(raw):
    write(raw / "e.txt", "0 1\n1 2\n2 3\n")
    return raw / "x.npy"


def test_nan_features_h07(run, raw):
    np.save(path4(raw), np.array([1, np.nan, 4, 8], np.float32))
    with pytest.raises(DataError) as failure:
        run("e.txt", features="x.npy")
    assert failure.value.cause == "x.npy: 1 NaN or infinite value, in column 0, node 1"
    report, arrays = run("e.txt", features="x.npy", nonfinite="keep")
    assert report.nonfinite == {0: 1}
    np.testing.assert_array_equal(arrays["x"][:, 0], np.float32([1, np.nan, 4, 8]))
    report, arrays = run("e.txt", features="x.npy", nonfinite="zero")
    assert report.nonfinite == {0: 1}
    assert arrays["x"][:, 0].tolist() == [1, 0, 4, 8]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16"])
def test_nonfinite_values_are_counted_by_column(run, raw, dtype):
    x = np.zeros((2000, 3), np.float32)
    x[7, 1], x[9, 1], x[1999, 1], x[7, 2] = np.inf, np.nan, -np.inf, np.nan
    if dtype == "bfloat16":
        stored = (x.view(np.uint32) >> 16).astype(np.uint16).view("V2")
    else:
        stored = x.astype(dtype)
    write(raw / "e.txt", "0 1\n")
    np.save(raw / "x.npy", stored)
    with pytest.raises(DataError) as failure:
        run("e.txt", features="x.npy")
    assert failure.value.cause == (
        "x.npy: 4 NaN or infinite values, in columns 1, 2, nodes 7, 9, 1999"
    )
    report, arrays = run("e.txt", features="x.npy", nonfinite="zero")
    assert report.nonfinite == {1: 3, 2: 1}
    assert not arrays["x"].any()


@pytest.mark.parametrize("wanted", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "bfloat16", "int16", "uint16"])
def test_features_are_rounded_to_the_type_that_is_wanted(run, raw, dtype, wanted):
    x = np.random.default_rng(0).uniform(-1000, 1000, (500, 3))
    x = torch.from_numpy(np.abs(x) if dtype == "uint16" else x).to(getattr(torch, dtype))
    stored = x.view(torch.int16).numpy().view("V2") if dtype == "bfloat16" else x.numpy()
    write(raw / "e.txt", "0 1\n")
    np.save(raw / "x.npy", stored)
    report, arrays = run("e.txt", features="x.npy", dtype=wanted)
    assert report.feature_dtype == wanted
    expected = x.to(getattr(torch, wanted))
    found = arrays["x"].view(np.int16 if wanted != "float32" else np.int32)
    assert np.array_equal(found, expected.view(getattr(torch, found.dtype.name)).numpy())


def test_features_that_a_type_does_not_hold(run, raw):
    write(raw / "e.txt", "0 1\n")
    np.save(raw / "x.npy", np.array([[1, 2], [3, 7e4]], np.float32))
    with pytest.raises(DataError, match=r"^x.npy: 1 NaN or infinite value, in column 1, node 1"):
        run("e.txt", features="x.npy", dtype="float16")
    _, arrays = run("e.txt", features="x.npy", dtype="bfloat16")
    assert arrays["x"].nbytes == 8


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        *((name, name) for name in ("float32", "float16", "int8", "uint8", "int64", "int32")),
        ("float64", "float32"),
        ("bool", "uint8"),
        ("uint16", "int32"),
        (">f4", "float32"),
    ],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_types_of_features(run, raw, dtype, stored, order):
    values = np.array([[0, 1], [2, 3], [4, 5], [100, 127]]).astype(dtype)
    np.save(path4(raw), np.asarray(values, order=order))
    report, arrays = run("e.txt", features="x.npy")
    assert report.feature_dtype == arrays["x"].dtype == stored
    assert (arrays["x"] == values).all()
    assert bool(report.notes) == (stored != np.dtype(dtype).newbyteorder("=").name)


def test_bfloat16_bits_are_kept(run, raw, tmp_path):
    bits = np.array([[0x4049, 0x3F80]] * 4, np.uint16)
    np.save(path4(raw), bits.view("V2"))
    report, arrays = run("e.txt", features="x.npy")
    assert report.feature_dtype == "bfloat16"
    assert (arrays["x"] == bits).all()
    with gnnx.open(tmp_path / "out") as dataset:
        assert dataset.features.read(np.array([3])).tolist() == [[3.140625, 1.0]]


def test_float64_that_float32_cannot_hold(run, raw):
    np.save(path4(raw), np.array([1, 1e300, 4, 8]))
    with pytest.raises(DataError, match="1 NaN or infinite value, in column 0, node 1"):
        run("e.txt", features="x.npy")


@pytest.mark.parametrize("values", [np.array(["a"] * 4), np.zeros(4, complex), np.zeros((4, 1, 1))])
def test_features_that_are_no_matrix_of_numbers(run, raw, values):
    np.save(path4(raw), values)
    with pytest.raises(DataError, match=r"^x\.npy: features of "):
        run("e.txt", features="x.npy")


def test_features_in_text(run, raw):
    path4(raw)
    write(raw / "x.csv.gz", "a,b\n1,2\n3,4\n5.5,1e-3\n-7,8\n")
    _, arrays = run("e.txt", features="x.csv.gz")
    assert (arrays["x"] == np.float32([[1, 2], [3, 4], [5.5, 1e-3], [-7, 8]])).all()


def test_sparse_features(run, raw):
    rng = np.random.default_rng(0)
    x = scipy.sparse.random_array((900, 70), density=0.1, rng=rng, dtype=np.float32).tocsr()
    adj = scipy.sparse.random_array((900, 900), density=0.01, rng=rng).tocsr()
    parts = {}
    for prefix, matrix in (("adj", adj), ("attr", x)):
        for name in ("data", "indices", "indptr", "shape"):
            parts[f"{prefix}_{name}"] = getattr(matrix, name)
    np.savez(raw / "g.npz", labels=np.arange(900) % 4, **parts)
    _, arrays = run("g.npz", memory="8MiB")
    assert (arrays["x"] == x.toarray()).all()
    assert edges_of(arrays) == sorted(zip(*adj.nonzero(), strict=True), key=lambda e: e[::-1])
    parts["attr_indices"][50] = 70
    np.savez(raw / "g.npz", **parts)
    row = int(np.searchsorted(x.indptr, 50, side="right")) - 1
    with pytest.raises(DataError) as failure:
        run("g.npz")
    assert failure.value.cause == (f"g.npz: attr_indices: row {row} has a column outside the 70")


# Labels and splits


def test_missing_labels_h06(run, raw):
    path4(raw)
    write(raw / "y.csv", "0\nnan\n2\n1\n")
    np.save(raw / "train.npy", np.array([0, 1, 2]))
    with pytest.raises(DataError) as failure:
        run("e.txt", labels="y.csv", train="train.npy")
    assert failure.value.cause == "train: unlabelled nodes: 1 of 3, node 1"
    report, arrays = run("e.txt", labels="y.csv", train="train.npy", unlabeled="ignore")
    assert arrays["y"].tolist() == [0, -1, 2, 1]
    assert arrays["train"].tolist() == [0, 2]
    assert (report.unlabelled, report.unlabelled_in_splits, report.train) == (1, 1, 2)
    assert report.num_classes == 3


def test_empty_split_h08(run, raw, tmp_path):
    path4(raw)
    np.save(raw / "train.npy", np.array([0, 1]))
    np.save(raw / "val.npy", np.array([], np.int64))
    write(raw / "test.csv", "2\n")
    report, arrays = run("e.txt", num_nodes=4, train="train.npy", val="val.npy", test="test.csv")
    assert (report.train, report.val, report.test) == (2, 0, 1)
    with gnnx.open(tmp_path / "out") as dataset:
        assert dataset.split("val").num_rows == 0
        assert dataset.split("test").read(np.array([0])).tolist() == [2]
    assert arrays["val"].tolist() == []


def test_splits_as_flags(run, raw):
    path4(raw)
    np.save(raw / "train.npy", np.array([False, True, True, False]))
    assert run("e.txt", num_nodes=4, train="train.npy")[1]["train"].tolist() == [1, 2]
    np.save(raw / "train.npy", np.array([True] * 3))
    with pytest.raises(DataError, match=r"^train\.npy: flags of shape \(3,\) for 4 nodes"):
        run("e.txt", num_nodes=4, train="train.npy")
    np.save(raw / "train.npy", np.array([3, 1, 3]))
    with pytest.raises(DataError, match=r"^train\.npy: entry 2: node 3 is there twice"):
        run("e.txt", num_nodes=4, train="train.npy")


def test_masks_in_an_archive(run, raw):
    masks = np.zeros((2, 4), bool)
    masks[0, 1] = masks[1, 2] = True
    np.savez(
        raw / "g.npz",
        edges=np.array([[0, 1], [1, 2], [2, 3]]),
        node_features=np.eye(4, dtype=np.float32),
        node_labels=np.arange(4),
        train_masks=masks,
        val_mask=~masks[0],
        test_mask=masks[0],
    )
    report, arrays = run("g.npz")
    assert (arrays["train"].tolist(), arrays["val"].tolist()) == ([1], [0, 2, 3])
    assert report.in_two_splits == 1
    assert report.notes == ["g.npz: train_masks: the first of 2 is taken"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([0, 1.5, 2, 1], "y.npy: label 1.5 of node 1 is not a class from 0 to 1048575"),
        ([0, 1, -2, 1], "y.npy: label -2 of node 2 is not a class from 0 to 1048575"),
        ([0, 1, 2**40, 1], "y.npy: label 1099511627776 of node 2 is not a class from 0 to 1048575"),
        ([0, 1, np.inf, 1], "y.npy: label inf of node 2 is not a class from 0 to 1048575"),
        ([[0, 3]] * 4, "y.npy: labels of node 0 are neither 0 and 1 nor all missing"),
        (["a"] * 4, "y.npy: labels are <U1"),
    ],
)
def test_wrong_labels(run, raw, values, message):
    path4(raw)
    np.save(raw / "y.npy", np.array(values))
    with pytest.raises(DataError) as failure:
        run("e.txt", labels="y.npy")
    assert failure.value.cause == message


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int64", "uint64", "float16", "float64", "bool"]
)
def test_types_of_labels(run, raw, dtype):
    path4(raw)
    np.save(raw / "y.npy", np.array([[0], [1], [1], [0]], dtype))
    report, arrays = run("e.txt", labels="y.npy")
    assert arrays["y"].dtype == np.int64
    assert arrays["y"].tolist() == [0, 1, 1, 0]
    assert report.num_classes == 2


def labelled(raw, num_nodes):
    labels = np.random.default_rng(1).integers(-1, 6, num_nodes)
    write(raw / "e.txt", "0 1\n")
    np.save(raw / "y.npy", labels)
    return labels


def test_shares_of_labelled_nodes(run, raw):
    labels = labelled(raw, 70_001)
    count = int((labels >= 0).sum())
    report, arrays = run("e.txt", labels="y.npy", seed=1)
    assert (report.train, report.val) == (round(0.6 * count), round(0.8 * count) - report.train)
    together = np.concatenate([arrays[name] for name in ("train", "val", "test")])
    assert sorted(together.tolist()) == np.flatnonzero(labels >= 0).tolist()
    assert abs(arrays["train"].mean() / 70_001 - 0.5) < 0.01
    again = run("e.txt", labels="y.npy", seed=1)[1]
    other = run("e.txt", labels="y.npy", seed=2)[1]
    assert (again["train"] == arrays["train"]).all()
    assert not np.array_equal(other["train"], arrays["train"])


def test_shares_that_leave_nodes_out(run, raw):
    labelled(raw, 10)
    report, _ = run("e.txt", num_nodes=10, split="0.5,0,0.2")
    assert (report.train, report.val, report.test) == (5, 0, 2)


def test_split_per_class(run, raw):
    labels = labelled(raw, 70_000)
    report, arrays = run("e.txt", labels="y.npy", split="per-class:20,30,rest")
    for label in range(6):
        counts = [int((labels[arrays[name]] == label).sum()) for name in ("train", "val", "test")]
        assert counts == [20, 30, (labels == label).sum() - 50]
    assert abs(arrays["train"].mean() / 70_000 - 0.5) < 0.15
    report, arrays = run("e.txt", labels="y.npy", split="per-class:2,1,3")
    assert (report.train, report.val, report.test) == (12, 6, 18)
    np.save(raw / "y.npy", np.array([0, 0, 0, 1]))
    report, arrays = run("e.txt", labels="y.npy", split="per-class:2,2,rest")
    assert (report.train, report.val, report.test) == (3, 1, 0)
    assert 3 in arrays["train"]


@pytest.mark.parametrize(
    "split", ["0.6,0.2", "0.6,0.6,0.2", "-1,1,1", "a,b,c", "x:1,2,3", "per-class:1,rest,2", "a:b"]
)
def test_wrong_split(run, raw, split):
    labelled(raw, 10)
    with pytest.raises(UsageError, match="cannot be"):
        run("e.txt", num_nodes=10, split=split)


def test_name_of_a_split_that_is_none(run, raw):
    labelled(raw, 10)
    with pytest.raises(UsageError, match=r"^split 'time' cannot be"):
        run("e.txt", num_nodes=10, split="time")


@pytest.mark.parametrize("option", ["self_loops", "duplicates", "nonfinite", "unlabeled", "dtype"])
def test_wrong_choice(run, raw, option):
    labelled(raw, 10)
    with pytest.raises(UsageError, match=rf"^{option} 'remove' is not a choice"):
        run("e.txt", num_nodes=10, **{option: "remove"})
    with pytest.raises(UsageError, match=r"^-1 nodes cannot be"):
        run("e.txt", num_nodes=-1)


def test_split_per_class_needs_labels(run, raw):
    labelled(raw, 10)
    with pytest.raises(UsageError, match="a split per class needs labels"):
        run("e.txt", num_nodes=10, split="per-class:1,1,rest")


# Damaged input


def test_truncated_array_h21(run, raw):
    np.save(path4(raw), np.zeros((10, 8), np.float32))
    data = (raw / "x.npy").read_bytes()
    assert len(data) == 448
    (raw / "x.npy").write_bytes(data[:-64])
    with pytest.raises(DataError) as failure:
        run("e.txt", features="x.npy")
    assert failure.value.cause == "x.npy: 448 bytes expected, 384 found"
    (raw / "x.npy").write_bytes(data + b"more")
    with pytest.raises(DataError, match=r"^x\.npy: 448 bytes expected, 452 found"):
        run("e.txt", features="x.npy")


def test_length_mismatch_h11(run, raw):
    """A header that promises 10 labels before the bytes of 8."""
    path4(raw)
    np.save(raw / "y.npy", np.zeros(10, np.float32))
    (raw / "y.npy").write_bytes((raw / "y.npy").read_bytes()[:-8])
    with pytest.raises(DataError) as failure:
        run("e.txt", labels="y.npy")
    assert failure.value.cause == "y.npy: 168 bytes expected, 160 found"
    assert (raw / "y.npy").stat().st_size == 160


@pytest.mark.parametrize("compressed", [False, True])
def test_damaged_archive(run, raw, compressed):
    save = np.savez_compressed if compressed else np.savez
    save(raw / "g.npz", edges=np.random.default_rng(0).integers(0, 9, (3000, 2)))
    data = (raw / "g.npz").read_bytes()
    (raw / "g.npz").write_bytes(data[:-64])
    with pytest.raises(DataError) as failure:
        run("g.npz", num_nodes=9)
    assert failure.value.cause == (
        "g.npz: not a whole .npz archive: its directory is missing from the end of its "
        f"{len(data) - 64} bytes"
    )
    if compressed:
        (raw / "g.npz").write_bytes(data[:200] + bytes(100) + data[300:])
        with pytest.raises(DataError, match=r"^g\.npz: edges: cannot be unpacked: "):
            run("g.npz", num_nodes=9)


def test_pickles_are_refused(run, raw):
    np.savez(raw / "g.npz", adj_matrix=np.array([{"evil": 1}], dtype=object))
    with pytest.raises(DataError) as failure:
        run("g.npz", num_nodes=9)
    assert failure.value.cause == (
        "g.npz: adj_matrix: holds pickled objects, which may run code when they are read"
    )
    np.save(raw / "x.npy", np.array([{}, {}], dtype=object))
    write(raw / "e.txt", "0 1\n")
    with pytest.raises(DataError, match=r"^x\.npy: holds pickled objects"):
        run("e.txt", features="x.npy")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("e.npy", b"no array", "e.npy: not an .npy array (8 bytes)"),
        ("e.npy", b"\x93NUMPY\x01\x00\x06\x00{'a':}", "e.npy: its .npy header is damaged"),
        ("e.npy", b"", "e.npy: not an .npy array (0 bytes)"),
        ("e.bin", b"", "e.bin: an input of unknown kind"),
    ],
)
def test_input_of_no_kind(run, raw, name, data, message):
    (raw / name).write_bytes(data)
    with pytest.raises(DataError) as failure:
        run(name, num_nodes=4)
    assert failure.value.cause == message


@pytest.mark.parametrize("dtype", ["float16", ">f4", "bool", "uint8", ">i8"])
def test_types_of_sparse_features(run, raw, dtype):
    parts = {"indptr": [0, 2, 2, 3, 3], "indices": [0, 2, 1], "data": np.array([1, 1, 0], dtype)}
    with pytest.raises(DataError, match="has a column outside"):
        prepare_wide(run, raw, parts, (4, 2))
    _, arrays = prepare_wide(run, raw, parts, (4, 3))
    assert arrays["x"].tolist() == [[1, 0, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]


def prepare_wide(run, raw, parts, shape):
    arrays = {f"attr_{name}": np.asarray(values) for name, values in parts.items()}
    np.savez(raw / "g.npz", edges=ODD6[:3], attr_shape=np.array(shape), **arrays)
    return run("g.npz")


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (np.zeros((3, 3), int), "e.npy: edges of shape (3, 3)"),
        (np.zeros(4, int), "e.npy: edges of shape (4,)"),
        (np.zeros((3, 2)), "e.npy: edges are float64, not integer ids"),
    ],
)
def test_arrays_that_are_no_edges(run, raw, edges, message):
    np.save(raw / "e.npy", edges)
    with pytest.raises(DataError) as failure:
        run("e.npy", num_nodes=4)
    assert failure.value.cause == message


@pytest.mark.parametrize("name", ["absent.npy", "absent.csv", "absent.npz", "absent", "absent.bin"])
def test_absent_input(run, raw, name):
    with pytest.raises(DataError, match="No such file or directory"):
        run(name, num_nodes=4)


def test_failure_leaves_the_old_data_set(run, raw, tmp_path):
    write(raw / "e.txt", "0 1\n")
    run("e.txt", num_nodes=2)
    before = digest(tmp_path / "out")
    write(raw / "e.txt", "0 9\n")
    with pytest.raises(DataError):
        run("e.txt", num_nodes=2)
    assert digest(tmp_path / "out") == before
    with pytest.raises(UsageError, match="exists already"):
        prepare(raw / "e.txt", tmp_path / "out", num_nodes=2)


# OGB folders


def ogb(raw, **files):
    for name, text in files.items():
        path = raw / name.replace("__", "/").replace("_", "-")
        path = path.with_name(path.name + ".csv.gz")
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, text)


def test_ogb_folder(run, raw):
    ogb(
        raw / "g",
        raw__edge="0,1\n1,2\n",
        raw__num_node_list="4\n",
        raw__num_edge_list="2\n",
        raw__node_feat="1,2\n3,4\n5,6\n7,8\n",
        raw__node_label="0.0\nnan\n1.0\n2.0\n",
        split__time__train="0\n2\n",
        split__time__valid="3\n",
        split__time__test="",
    )
    report, arrays = run("g")
    assert (report.num_nodes, report.num_classes, report.num_features) == (4, 3, 2)
    assert edges_of(arrays) == [(0, 1), (1, 2)]
    assert (arrays["y"].tolist(), arrays["x"][3].tolist()) == ([0, -1, 1, 2], [7, 8])
    assert (report.train, report.val, report.test, report.unlabelled) == (2, 1, 0, 1)
    ogb(raw / "g", split__other__train="1\n", split__other__valid="", split__other__test="")
    with pytest.raises(UsageError, match="several splits: other, time"):
        run("g")
    assert run("g", split="other", unlabeled="ignore")[0].unlabelled_in_splits == 1
    with pytest.raises(UsageError, match="split 'none' is not in"):
        run("g", split="none")
    ogb(raw / "g", raw__num_edge_list="3\n")
    with pytest.raises(DataError, match=r"^edge\.csv\.gz: 2 edges, 3 declared"):
        run("g", split="time")
    ogb(raw / "g", raw__num_node_list="4\n7\n")
    with pytest.raises(DataError, match=r"^num-node-list\.csv\.gz: 2 graphs, not one"):
        run("g", split="time")


def test_ogb_folder_with_archives(run, raw):
    (raw / "g/raw").mkdir(parents=True)
    np.savez(
        raw / "g/raw/data.npz",
        edge_index=np.array([[0, 1, 2], [1, 2, 3]]),
        node_feat=np.ones((4, 2), np.float16),
        num_nodes_list=np.array([4]),
        num_edges_list=np.array([3]),
    )
    np.savez(raw / "g/raw/node-label.npz", node_label=np.array([[0], [np.nan], [1], [0]]))
    report, arrays = run("g")
    assert edges_of(arrays) == [(0, 1), (1, 2), (2, 3)]
    assert (report.num_nodes, report.unlabelled, report.feature_dtype) == (4, 1, "float16")


def test_folder_of_no_kind(run, raw):
    (raw / "g").mkdir()
    with pytest.raises(DataError, match=r"neither raw/edge\.csv\.gz nor raw/data\.npz is in it"):
        run("g")


def test_real_graphs(shared_data, tmp_path):
    cora = prepare(shared_data / "layouts/ogb-raw-cora", tmp_path / "cora", memory="16MiB")
    assert (cora.num_nodes, cora.num_features, cora.num_classes) == (2708, 1433, 7)
    assert (cora.train, cora.val, cora.test) == (140, 500, 1000)
    assert (cora.edges_stored, cora.duplicates) == (10_858, 302)
    photo = shared_data / "amazon-photo/amazon_electronics_photo.npz"
    report = prepare(photo, tmp_path / "photo", undirected=True, self_loops="drop")
    assert (report.num_nodes, report.edges_read, report.num_classes) == (7650, 143_663, 8)
    assert (report.edges_stored, report.self_loops) == (2 * 119_081, 1)
    blogs = prepare(shared_data / "polblogs-npz/polblogs.npz", tmp_path / "blogs", undirected=True)
    assert blogs.edges_stored == 2 * (16_715 + blogs.self_loops) - blogs.self_loops
    mail = prepare(shared_data / "snap/email-Eu-core.txt", tmp_path / "mail", num_nodes=1005)
    crlf = prepare(shared_data / "snap/email-Eu-core.crlf.txt", tmp_path / "crlf", num_nodes=1005)
    assert mail == crlf
    assert (mail.edges_stored, mail.self_loops) == (25_571, 642)
    assert digest(tmp_path / "mail") == digest(tmp_path / "crlf")
    with pytest.raises(GnnxError, match="adj_matrix: holds pickled objects"):
        prepare(shared_data / "npz-pickled/acm.npz", tmp_path / "acm")


def test_report_and_progress(run, raw, tmp_path):
    np.save(raw / "e.npy", ODD6)
    np.save(raw / "x.npy", ODD6_X.astype(np.float64))
    told = []
    report, _ = run("e.npy", features="x.npy", progress=lambda *args: told.append(args))
    assert {stage for stage, _, _ in told} == {
        "features",
        "checking edges",
        "placing edges",
    }
    assert all(0 < done <= total for _, done, total in told)
    assert report.notes == ["x.npy: float64 features are stored as float32"]
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["report"] == report.counts()
    assert manifest["report"]["edges_read"] == 5
