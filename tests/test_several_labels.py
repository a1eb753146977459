"""Nodes with several labels: (N, C) of 0 and 1, and 255 in the rows of nodes without any."""

import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import gnnx
from gnnx.errors import DataError, UsageError
from gnnx.export import export
from gnnx.loader import Loader
from gnnx.prepare import prepare

NAN = float("nan")
ROWS = [[1, 0, 1], [0, 0, 0], [NAN, NAN, NAN], [0, 1, 1]]
STORED = [[1, 0, 1], [0, 0, 0], [255, 255, 255], [0, 1, 1]]


@pytest.fixture
def edges(tmp_path):
    np.save(tmp_path / "e.npy", np.array([[0, 1], [1, 2], [2, 3]]))
    return tmp_path / "e.npy"


def labels(folder):
    with gnnx.open(folder) as dataset:
        assert dataset.num_classes == dataset.labels.row_shape[0]
        return dataset.labels.read(np.arange(dataset.num_nodes)).tolist()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int8, np.int64])
@pytest.mark.parametrize("order", ["C", "F"])
def test_a_matrix_of_labels(tmp_path, edges, dtype, order):
    rows = np.nan_to_num(np.array(ROWS), nan=-1) if np.dtype(dtype).kind == "i" else ROWS
    np.save(tmp_path / "y.npy", np.array(rows, dtype, order=order))
    np.save(tmp_path / "x.npy", np.ones((4, 2), np.float32))
    report = prepare(
        edges, tmp_path / "out", labels=tmp_path / "y.npy", features=tmp_path / "x.npy"
    )
    assert (report.num_classes, report.unlabelled) == (3, 1)
    assert report.train + report.val + report.test == 3
    assert labels(tmp_path / "out") == STORED
    with gnnx.open(tmp_path / "out", memory="16MiB") as dataset:
        loader = Loader(dataset, [1], 2, split=np.array([3, 0]), shuffle=False)
        (batch,) = loader
        assert batch.y.tolist() == [STORED[3], STORED[0]]


def test_text_and_booleans(tmp_path, edges):
    (tmp_path / "y.csv").write_text("1,0,1\n0,0,0\n,,\n0,1,1\n")
    prepare(edges, tmp_path / "text", labels=tmp_path / "y.csv")
    assert labels(tmp_path / "text") == STORED
    np.save(tmp_path / "y.npy", np.array([[True, False], [False, False]] * 2))
    prepare(edges, tmp_path / "bool", labels=tmp_path / "y.npy")
    assert labels(tmp_path / "bool") == [[1, 0], [0, 0]] * 2


def test_a_node_without_labels_in_a_split(tmp_path, edges):
    np.save(tmp_path / "y.npy", np.array(ROWS))
    np.save(tmp_path / "train.npy", np.array([1, 2]))
    options = {"labels": tmp_path / "y.npy", "train": tmp_path / "train.npy"}
    with pytest.raises(DataError, match="train: unlabelled nodes: 1 of 2, node 2"):
        prepare(edges, tmp_path / "out", **options)
    report = prepare(edges, tmp_path / "out", **options, unlabeled="ignore")
    assert (report.train, report.unlabelled_in_splits) == (1, 1)
    with pytest.raises(UsageError, match="split per class"):
        prepare(edges, tmp_path / "o", labels=tmp_path / "y.npy", split="per-class:1,1,rest")


@pytest.mark.parametrize("bad", [[0, 2, 1], [0, 0.5, 1], [NAN, 0, 1], [-1, 1, 1]])
def test_rows_that_are_no_labels(tmp_path, edges, bad):
    np.save(tmp_path / "y.npy", np.array([ROWS[0], ROWS[1], bad, ROWS[3]]))
    with pytest.raises(DataError, match=r"^y\.npy: labels of node 2 are neither 0 and 1"):
        prepare(edges, tmp_path / "out", labels=tmp_path / "y.npy")
    assert not (tmp_path / "out").exists()


TABLE = pa.table(
    {
        "id": ["a", "b", "c", "d"],
        "x": [1.0, 2.0, 3.0, 4.0],
        "red": [True, False, None, False],
        "blue": [False, False, None, True],
        "both": pa.array([[1, 0], [0, 0], None, [0, 1]], pa.list_(pa.int8(), 2)),
        "tags": pa.array([["red"], [], None, ["blue", None, "blue"]]),
        "text": ["red", "", None, "blue;red"],
    }
)


@pytest.mark.parametrize(
    ("keys", "names", "expected"),
    [
        ('labels = ["blue", "red"]', ["blue", "red"], [[0, 1], [0, 0], [255, 255], [1, 0]]),
        ('tags = "tags"', ["blue", "red"], [[0, 1], [0, 0], [255, 255], [1, 0]]),
        (
            'tags = "text", separator = ";"',
            ["", "blue", "red"],
            [[0, 0, 1], [1, 0, 0], [255] * 3, [0, 1, 1]],
        ),
    ],
)
def test_columns_and_lists_of_a_table(tmp_path, keys, names, expected):
    pq.write_table(TABLE, tmp_path / "n.parquet")
    pq.write_table(pa.table({"src": ["a"], "dst": ["b"]}), tmp_path / "e.parquet")
    (tmp_path / "r.toml").write_text(
        f'nodes = {{files = "n.parquet", key = "id", features = "x", {keys}}}\n'
        'edges = {files = "e.parquet"}'
    )
    prepare(tmp_path / "r.toml", tmp_path / "out")
    assert labels(tmp_path / "out") == expected
    with gnnx.open(tmp_path / "out") as dataset:
        assert dataset.class_names == names
        export(dataset, tmp_path / "n.csv")
    header = (tmp_path / "n.csv").read_text().splitlines()[0]
    assert header.startswith('"key","label0","label1"')


def test_lists_of_numbers_of_a_table(tmp_path):
    table = TABLE.slice(0, 2)
    pq.write_table(table, tmp_path / "n.parquet")
    pq.write_table(pa.table({"src": ["a"], "dst": ["b"]}), tmp_path / "e.parquet")
    (tmp_path / "r.toml").write_text(
        'nodes = {files = "n.parquet", key = "id", labels = "both"}\nedges = {files = "e.parquet"}'
    )
    prepare(tmp_path / "r.toml", tmp_path / "out")
    assert labels(tmp_path / "out") == [[1, 0], [0, 0]]
    (tmp_path / "r.toml").write_text(
        'nodes = {files = "n.parquet", key = "id", labels = "both", tags = "tags"}\n'
        'edges = {files = "e.parquet"}'
    )
    with pytest.raises(UsageError, match="labels and tags are alternatives"):
        prepare(tmp_path / "r.toml", tmp_path / "o")


def test_a_folder_like_ogbn_proteins(tmp_path):
    """Several labels a node, features of edges, none of nodes, one direction of each edge."""
    folder = tmp_path / "proteins"
    files = {
        "raw/edge.csv.gz": "0,1\n1,2\n3,1\n",
        "raw/edge-feat.csv.gz": "0.5,0.25\n1,2\n3,4\n",
        "raw/num-node-list.csv.gz": "4\n",
        "raw/num-edge-list.csv.gz": "3\n",
        "raw/node-label.csv.gz": "1,0,1\n0,0,0\n1,1,1\n0,1,1\n",
        "split/species/train.csv.gz": "0\n1\n",
        "split/species/valid.csv.gz": "2\n",
        "split/species/test.csv.gz": "3\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(gzip.compress(text.encode()))
    report = prepare(folder, tmp_path / "out", undirected=True)
    assert (report.num_classes, report.train, report.edges_stored) == (3, 2, 6)
    assert labels(tmp_path / "out") == [[1, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 1]]
    with gnnx.open(tmp_path / "out") as dataset:
        attr = dataset.edge_values("attr").read(np.arange(6)).tolist()
        sources = dataset.graph.take(np.arange(6)).tolist()
    assert sources == [1, 0, 2, 3, 1, 1]
    assert attr == [[0.5, 0.25], [0.5, 0.25], [1, 2], [3, 4], [1, 2], [3, 4]]


def test_groups_of_a_real_graph(shared_data, tmp_path):
    report = prepare(shared_data / "blogcatalog-mat/blogcatalog.mat", tmp_path / "out")
    assert (report.num_nodes, report.num_classes, report.unlabelled) == (10312, 39, 0)
