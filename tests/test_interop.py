"""Graphs of other packages, and files that are read into memory as a whole."""

import gzip
import os
import pickle
import zipfile

import networkx
import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnx
from gnnx.errors import DataError, UsageError
from gnnx.interop import InMemoryGraph
from gnnx.prepare import forecast, prepare
from gnnx.store import verify


@pytest.fixture
def made(tmp_path):
    """Prepare something; returns (report, edges, open data set)."""
    opened = []

    def made(source, **options):
        report = prepare(source, tmp_path / "out", overwrite=True, **options)
        assert verify(tmp_path / "out") == []
        dataset = gnnx.open(tmp_path / "out")
        opened.append(dataset)
        edges = []
        for first, indptr, indices in dataset.graph.iter_rows():
            rows = np.repeat(np.arange(first, first + len(indptr) - 1), np.diff(indptr))
            edges += zip(indices.tolist(), rows.tolist(), strict=True)
        return report, edges, dataset

    yield made
    for dataset in opened:
        dataset.close()


def rows(store):
    return store.read(np.arange(store.num_rows)).tolist()


class Data(dict):
    """As torch_geometric's: named tensors, `keys` a method as in its newer form."""


def example():
    return Data(
        edge_index=torch.tensor([[0, 1, 2, 2], [1, 2, 0, 0]]),
        x=torch.arange(8.0).reshape(4, 2).half(),
        y=torch.tensor([1, 0, -1, 1]),
        train_mask=torch.tensor([[True, False], [True, False], [False, False], [False, True]]),
        test_mask=torch.tensor([False, False, False, True]),
        edge_attr=torch.ones(4, 1),
    )


def test_from_pyg(made):
    report, edges, dataset = made(gnnx.from_pyg(example()))
    assert edges == [(2, 0), (2, 0), (0, 1), (1, 2)]
    assert (report.num_nodes, report.feature_dtype) == (4, "float16")
    assert rows(dataset.features)[3] == [6, 7]
    assert rows(dataset.labels) == [1, 0, -1, 1]
    assert (rows(dataset.split("train")), rows(dataset.split("test"))) == ([0, 1], [3])
    assert report.notes == []
    assert "edges/node-edge-node/attr" in dataset.manifest.arrays
    with pytest.raises(DataError, match="without num_nodes, x or y"):
        gnnx.from_pyg(Data(edge_index=torch.zeros(2, 0, dtype=torch.int64)))
    with pytest.raises(DataError, match="without edge_index"):
        gnnx.from_pyg(Data(x=torch.ones(2, 1)))
    with pytest.raises(DataError, match=r"edges of int64 and shape \(3, 2\)"):
        gnnx.from_pyg(Data(edge_index=torch.zeros(3, 2, dtype=torch.int64), num_nodes=3))


@pytest.mark.parametrize("kind", ["csr_array", "coo_matrix", "csc_array"])
def test_from_scipy(made, kind):
    dense = np.array([[0, 2, 0], [0, 0, 1], [1, 0, 1]], np.float32)
    features = np.array([[0, 3.5, 0], [0, 0, 0], [1, 0, 2]], np.float32)
    matrix = getattr(scipy.sparse, kind)(dense)
    graph = gnnx.from_scipy(matrix, features=scipy.sparse.csr_array(features), labels=[0, 1, 0])
    report, edges, dataset = made(graph)
    assert sorted(edges) == [(0, 1), (1, 2), (2, 0), (2, 2)]
    assert rows(dataset.features) == features.tolist()
    assert report.notes == []
    assert sorted(rows(dataset.edge_values("weight"))) == [1, 1, 1, 2]
    with pytest.raises(DataError, match=r"shape \(2, 3\)"):
        gnnx.from_scipy(scipy.sparse.coo_array(np.ones((2, 3))))


def test_from_networkx(made):
    graph = networkx.Graph([("b", "a"), ("a", "\u00e9"), ("a", "a")])
    for i, node in enumerate(graph):
        graph.nodes[node].update(x=[i, -i], y=i % 2)
    _, edges, dataset = made(gnnx.from_networkx(graph, features="x", label="y"))
    assert dataset.keys.of(np.arange(3)) == ["b", "a", "\u00e9"]
    assert dataset.keys.ids(["a", "b", "\u00e9"]).tolist() == [1, 0, 2]
    assert sorted(edges) == [(0, 1), (1, 0), (1, 1), (1, 2), (2, 1)]
    assert rows(dataset.features) == [[0, 0], [1, -1], [2, -2]]
    assert rows(dataset.labels) == [0, 1, 0]
    del graph.nodes["a"]["x"]
    with pytest.raises(DataError, match="node 'a' has no 'x'"):
        gnnx.from_networkx(graph, features="x")
    _, edges, dataset = made(gnnx.from_networkx(networkx.DiGraph([(40, 20), (20, 30)])))
    assert (edges, dataset.keys.of(np.arange(3)).tolist()) == ([(0, 1), (1, 2)], [40, 20, 30])
    assert dataset.keys.ids([20, 40]).tolist() == [1, 0]


def test_keys_that_are_not_distinct():
    with pytest.raises(DataError, match="1 distinct keys, 2 nodes"):
        InMemoryGraph(np.zeros((2, 0), np.int64), 2, keys=["a", "a"])


@pytest.mark.parametrize("suffix", ["gml", "graphml", "gexf"])
def test_files_of_networkx(made, tmp_path, suffix):
    graph = networkx.DiGraph([("x", "y"), ("y", "z"), ("z", "z")])
    path = tmp_path / f"g.{suffix}"
    getattr(networkx, f"write_{suffix}")(graph, path)
    _, edges, dataset = made(path)
    assert sorted(edges) == [(0, 1), (1, 2), (2, 2)]
    assert dataset.keys.of(np.arange(3)) == ["x", "y", "z"]
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DataError, match=rf"^g\.{suffix}: networkx cannot read it"):
        prepare(path, tmp_path / "other")


def test_matlab(made, tmp_path):
    matrix = scipy.sparse.csc_array(np.array([[0, 1], [0, 1]], float))
    scipy.io.savemat(tmp_path / "m.mat", {"network": matrix, "group": np.eye(2)})
    report, edges, _ = made(tmp_path / "m.mat")
    assert sorted(edges) == [(0, 1), (1, 1)]
    assert report.notes == ["m.mat: group: not taken over"]
    scipy.io.savemat(tmp_path / "m.mat", {"group": np.eye(2)})
    with pytest.raises(DataError, match="no sparse matrix of edges in it: it holds group"):
        prepare(tmp_path / "m.mat", tmp_path / "other")


# Matrix Market


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
def test_matrix_market(made, tmp_path, symmetry):
    dense = np.random.default_rng(0).integers(0, 2, (9, 9))
    if symmetry != "general":
        dense = np.tril(dense, 0 if symmetry == "symmetric" else -1)
        dense += np.tril(dense, -1).T * (1 if symmetry == "symmetric" else -1)
    matrix = scipy.sparse.coo_array(dense)
    scipy.io.mmwrite(tmp_path / "m.mtx", matrix, symmetry=symmetry)
    report, edges, _ = made(tmp_path / "m.mtx")
    expected = sorted(zip(*(part.tolist() for part in matrix.coords), strict=True))
    assert (sorted(edges), report.edges_read) == (expected, len(expected))
    text = (tmp_path / "m.mtx").read_text()
    (tmp_path / "m.mtx").write_text(text + "1 1 1\n")
    with pytest.raises(DataError, match=r"^m\.mtx: \d+ entries, \d+ declared"):
        prepare(tmp_path / "m.mtx", tmp_path / "other")


def test_long_matrix_market_in_little_memory(made, tmp_path):
    rng = np.random.default_rng(0)
    dense = scipy.sparse.random_array((3000, 3000), density=0.02, rng=rng)
    scipy.io.mmwrite(tmp_path / "m.mtx", dense)
    report, edges, _ = made(tmp_path / "m.mtx", memory="8MiB")
    assert report.edges_read == dense.nnz
    assert sorted(edges) == sorted(zip(*(c.tolist() for c in dense.coords), strict=True))


def weights_of(dataset):
    """Weights as a matrix: rows are sources."""
    graph = dataset.graph
    found = np.zeros((graph.num_nodes, graph.num_nodes), np.float32)
    values = np.load(dataset.path / "edges/node-edge-node/weight.npy")
    for first, indptr, indices in graph.iter_rows():
        rows = np.repeat(np.arange(first, first + len(indptr) - 1), np.diff(indptr))
        np.add.at(found, (indices, rows), values[: len(indices)])
        values = values[len(indices) :]
    return found


@pytest.mark.parametrize("suffix", ["mtx", "mtx.gz"])
@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize("dtype", [np.float64, np.int16, np.uint16])
def test_values_of_matrix_market(made, tmp_path, symmetry, dtype, suffix):
    """Weights are what SciPy reads."""
    rng = np.random.default_rng(1)
    dense = rng.integers(1, 100, (30, 30)) * (rng.random((30, 30)) < 0.2)
    if dtype is np.float64:
        dense = dense * rng.random((30, 30))
    if symmetry != "general":
        dense = np.tril(dense, 0 if symmetry == "symmetric" else -1)
        dense = dense + np.tril(dense, -1).T * (1 if symmetry == "symmetric" else -1)
    unsigned = dtype is np.uint16
    if unsigned:
        dense = np.abs(dense)
    path = tmp_path / f"m.{suffix}"
    matrix = scipy.sparse.coo_array(dense.astype(dtype))
    # of a skew one with natural numbers no file can be written
    kind = "symmetric" if unsigned and symmetry != "general" else symmetry
    scipy.io.mmwrite(tmp_path / "m.mtx", matrix, symmetry=kind)
    if suffix == "mtx.gz":
        path.write_bytes(gzip.compress((tmp_path / "m.mtx").read_bytes()))
    report, _, dataset = made(path)
    note = "values of edges are not kept: give --edge-weight value"
    assert report.notes == [note]
    report, edges, dataset = made(path, edge_weight="value")
    assert (report.notes, len(edges)) == ([], matrix.nnz)
    expected = scipy.io.mmread(path).toarray().astype(np.float32)
    np.testing.assert_array_equal(weights_of(dataset), expected)


@given(
    entries=st.lists(
        st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(-9, 9)), max_size=40
    ),
    symmetry=st.sampled_from(["general", "symmetric", "skew-symmetric"]),
)
@settings(max_examples=30)
def test_values_of_repeated_entries(tmp_path_factory, entries, symmetry):
    """Also of entries that are there twice, or on both sides of the diagonal."""
    folder = tmp_path_factory.mktemp("mtx")
    lines = [f"%%MatrixMarket matrix coordinate real {symmetry}", "% a comment", ""]
    lines += [f"6 6 {len(entries)}", *(f"{i} {j}  {v / 4}" for i, j, v in entries)]
    (folder / "m.mtx").write_text("\n".join(lines))
    sign = {"general": 0, "symmetric": 1, "skew-symmetric": -1}[symmetry]
    expected = np.zeros((6, 6))
    for i, j, v in entries:
        expected[i - 1, j - 1] += v / 4
        expected[j - 1, i - 1] += sign * v / 4 * (i != j)
    prepare(folder / "m.mtx", folder / "out", edge_weight="value")
    with gnnx.open(folder / "out") as dataset:
        np.testing.assert_array_equal(weights_of(dataset), expected)


def test_values_of_a_long_matrix_do_not_depend_on_the_memory(made, tmp_path):
    """Nor does the order of parallel edges, of which entries above the diagonal make some."""
    rng = np.random.default_rng(0)
    pairs, values = rng.integers(1, 301, (60_000, 2)), rng.random(60_000).round(6)
    rows = "".join(f"{i} {j} {v}\n" for (i, j), v in zip(pairs.tolist(), values, strict=True))
    head = "%%MatrixMarket matrix coordinate real symmetric\n300 300 60000\n"
    (tmp_path / "m.mtx").write_text(head + rows)
    stored = []
    for memory in ("8MiB", "1GiB"):
        _, _, dataset = made(tmp_path / "m.mtx", edge_weight="value", memory=memory)
        stored.append(np.load(dataset.path / "edges/node-edge-node/weight.npy"))
    np.testing.assert_array_equal(*stored)
    assert len(stored[0]) == 120_000 - np.count_nonzero(pairs[:, 0] == pairs[:, 1])


@pytest.mark.parametrize("size", [0, 9, 40, 60])
def test_a_matrix_cut_while_it_was_compressed(tmp_path, size):
    text = "%%MatrixMarket matrix coordinate real general\n3 3 3\n1 2 0.5\n2 3 1\n3 1 2\n"
    path = tmp_path / "m.mtx.gz"
    path.write_bytes(gzip.compress(text.encode())[:size])
    for refused in (prepare, forecast):
        with pytest.raises(DataError, match=r"^m\.mtx\.gz: "):
            refused(path, **({"out": tmp_path / "out"} if refused is prepare else {}))


def test_values_that_a_matrix_lacks(tmp_path):
    head = "%%MatrixMarket matrix coordinate {} general\n3 3 3\n"
    path = tmp_path / "m.mtx"

    def refused(field, lines, error, cause, name="value"):
        path.write_text(head.format(field) + "".join(f"{line}\n" for line in lines))
        with pytest.raises(error, match=cause):
            prepare(path, tmp_path / "out", edge_weight=name, overwrite=True)

    cause = r"^--edge-weight value: m\.mtx has entries without values: its field is pattern\n"
    refused("pattern", ["1 2", "2 1", "3 3"], UsageError, cause)
    cause = r"^--edge-weight value: m\.mtx has complex values: its field is complex\n"
    refused("complex", ["1 2 1 0", "2 1 1 0", "3 3 1 0"], UsageError, cause)
    cause = r"^m\.mtx:4: 3 columns expected, 2 found\n"
    refused("real", ["1 2 1", "2 1", "3 3 1"], DataError, cause)
    cause = r"^m\.mtx:5: 'one' is not a number\n"
    refused("integer", ["1 2 1", "2 1 1", "3 3 one"], DataError, cause)
    cause = r"^m\.mtx: edge 1, column 0: weight nan is not finite\n"
    refused("real", ["1 2 1", "2 1 nan", "3 3 1"], DataError, cause)
    cause = r"^--edge-weight data: no such file, and no column of m\.mtx"
    refused("real", ["1 2 1", "2 1 1", "3 3 1"], UsageError, cause, "data")
    path.write_text(head.format("real") + "1 2 1.5\n2 1 1\n3 3 1\n")
    cause = r"^m\.mtx: edge 0: time 1\.5 is no whole number"
    with pytest.raises(DataError, match=cause):
        prepare(path, tmp_path / "out", edge_time="value", overwrite=True)


# Pickles


class Bomb:
    """What a hostile file holds: a call that is made on loading."""

    def __reduce__(self):
        return os.mkdir, (os.environ["BOMB"],)


class GlobalStorage:
    """As torch_geometric's, inside its Data."""

    def __init__(self, mapping):
        self._mapping = mapping


GlobalStorage.__module__ = "torch_geometric.data.storage"


class Saved:
    """As torch_geometric's Data, when it is saved."""

    def __init__(self, mapping):
        self._store = GlobalStorage(mapping)


Saved.__module__ = "torch_geometric.data.data"


@pytest.fixture
def packages(monkeypatch):
    """Let these classes be found where their names say while something is saved."""
    import sys
    import types

    for name in ("torch_geometric", "torch_geometric.data"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for kind in (GlobalStorage, Saved):
        module = types.ModuleType(kind.__module__)
        setattr(module, kind.__name__, kind)
        monkeypatch.setitem(sys.modules, kind.__module__, module)


@pytest.mark.parametrize("zipped", [False, True])
def test_saved_data_of_pyg(made, tmp_path, packages, zipped):
    path = tmp_path / "d.pt"
    torch.save(Saved(dict(example())), path)
    if zipped:
        with zipfile.ZipFile(tmp_path / "d.pt.zip", "w") as archive:
            archive.write(path, "d.pt")
        path = tmp_path / "d.pt.zip"
    with pytest.raises(UsageError, match="a pickle, which may hold code"):
        prepare(path, tmp_path / "other")
    expected = made(gnnx.from_pyg(example()))[2].fingerprint
    assert made(path, pickles=True)[2].fingerprint == expected


def test_hostile_pickles_do_nothing(tmp_path, monkeypatch):
    bomb = tmp_path / "exploded"
    monkeypatch.setenv("BOMB", str(bomb))
    torch.save({"edge_index": Bomb()}, tmp_path / "d.pt")
    for name in ("y", "tx", "ty", "allx", "ally", "graph"):
        (tmp_path / f"ind.c.{name}").write_bytes(pickle.dumps(Bomb()))
    (tmp_path / "ind.c.test.index").write_text("1\n")
    for name in ("d.pt", "ind.c.graph"):
        with pytest.raises(DataError, match=r"asks for posix\.mkdir, which is no plain data"):
            prepare(tmp_path / name, tmp_path / "out", pickles=True)
    assert not bomb.exists()


def test_damaged_pickles(tmp_path):
    (tmp_path / "d.pt").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"^d\.pt: "):
        prepare(tmp_path / "d.pt", tmp_path / "out", pickles=True)
    (tmp_path / "ind.c.graph").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"ind\.c\.y: No such file"):
        prepare(tmp_path / "ind.c.graph", tmp_path / "out", pickles=True)


def test_planetoid(made, tmp_path):
    """Five nodes: two for training, one more known, tests 4 and 3 in this order."""
    x = np.arange(10, dtype=np.float32).reshape(5, 2)
    y = np.eye(2, dtype=np.int32)[[0, 1, 0, 1, 0]]
    parts = {
        "y": y[:2],
        "allx": scipy.sparse.csr_matrix(x[:3]),
        "ally": y[:3],
        "tx": scipy.sparse.csr_matrix(x[[4, 3]]),
        "ty": y[[4, 3]],
        "graph": {0: [1], 1: [0, 4], 2: [], 3: [], 4: [1]},
    }
    for name, part in parts.items():
        (tmp_path / f"ind.c.{name}").write_bytes(pickle.dumps(part, protocol=2))
    (tmp_path / "ind.c.test.index").write_text("4\n3\n")
    _, edges, dataset = made(tmp_path / "ind.c.graph", pickles=True)
    assert sorted(edges) == [(0, 1), (1, 0), (1, 4), (4, 1)]
    assert rows(dataset.features) == x.tolist()
    assert rows(dataset.labels) == [0, 1, 0, 1, 0]
    splits = [rows(dataset.split(name)) for name in ("train", "val", "test")]
    assert splits == [[0, 1], [2], [3, 4]]


# Folders


def graphbolt(folder, **changes):
    """A folder of six nodes with one type, as GraphBolt lays it out."""
    arrays = {
        "edges": np.array([[0, 1, 2, 4, 5], [1, 2, 0, 4, 0]]),
        "x": np.arange(12, dtype=np.float32).reshape(6, 2),
        "w": np.array([[1.0], [2], [3], [4], [5]], np.float32),
        "train": np.array([4, 0]),
        "train-y": np.array([2, 1], np.int32),
        "test": np.array([3]),
        "test-y": np.array([0], np.int32),
        **changes,
    }
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    sets = [
        f"""
    {which}_set:
      - data:
          - {{name: seeds, format: numpy, in_memory: true, path: {which}.npy}}
          - {{name: labels, format: numpy, in_memory: true, path: {which}-y.npy}}"""
        for which in ("train", "test")
    ]
    text = f"""
dataset_name: small
graph:
  nodes: [{{num: 6}}]
  edges: [{{format: numpy, path: edges.npy}}]
feature_data:
  - {{domain: node, name: feat, format: numpy, path: x.npy}}
  - {{domain: edge, name: weight, format: numpy, path: w.npy}}
tasks:
  - name: node_classification
    num_classes: 3{"".join(sets)}
  - name: link_prediction
"""
    (folder / "metadata.yaml").write_text(text)
    return folder


def test_graphbolt_of_one_type(made, tmp_path):
    report, edges, dataset = made(graphbolt(tmp_path / "g"))
    assert sorted(edges) == [(0, 1), (1, 2), (2, 0), (4, 4), (5, 0)]
    assert rows(dataset.labels) == [1, -1, -1, 0, 2, -1]
    assert (rows(dataset.split("train")), rows(dataset.split("test"))) == ([0, 4], [3])
    assert rows(dataset.features)[5] == [10, 11]
    assert rows(dataset.edge_values("attr")) == [[3], [5], [1], [2], [4]]
    assert (report.num_classes, report.unlabelled) == (3, 3)
    assert report.notes == ["metadata.yaml: task link_prediction: not read"]


def test_graphbolt_edges_in_csv(made, tmp_path):
    folder = graphbolt(tmp_path / "g")
    (folder / "e.csv").write_text("0,1\n1,2\n2,0\n4,4\n5,0\n")
    text = (folder / "metadata.yaml").read_text()
    (folder / "metadata.yaml").write_text(
        text.replace("format: numpy, path: edges.npy", "format: csv, path: e.csv")
    )
    assert sorted(made(folder)[1]) == [(0, 1), (1, 2), (2, 0), (4, 4), (5, 0)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": np.array([4, 6])}, r"train\.npy: entry 1: node 6 is outside the 6 nodes"),
        ({"train": np.array([4, 0, 1])}, r"train\.npy: int64 \(3,\), train-y\.npy: int32 \(2,\)"),
        ({"train-y": np.array([0.5, 1])}, r"train-y\.npy: float64"),
        ({"x": np.ones((5, 2), np.float32)}, r"metadata\.yaml: 6 nodes, x\.npy: 5"),
    ],
)
def test_graphbolt_that_contradicts_itself(made, tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        made(graphbolt(tmp_path / "g", **changes))


def test_graphbolt_without_a_path(made, tmp_path):
    folder = graphbolt(tmp_path / "g")
    text = (folder / "metadata.yaml").read_text()
    (folder / "metadata.yaml").write_text(text.replace("path: edges.npy", "file: edges.npy"))
    with pytest.raises(DataError, match=r"metadata\.yaml: not as GraphBolt lays it out: KeyError"):
        made(folder)


def test_papers_of_igb_and_mag(made, tmp_path):
    for cites, layout in (("paper__cites__paper", (4, 2)), ("paper___cites___paper", (2, 4))):
        processed = tmp_path / cites / "processed"
        (processed / cites).mkdir(parents=True)
        (processed / "paper").mkdir()
        (processed / "author").mkdir()
        pairs = np.array([[0, 1], [1, 2], [2, 0], [4, 0]])
        np.save(processed / cites / "edge_index.npy", pairs if layout == (4, 2) else pairs.T)
        np.save(processed / "paper" / "node_feat.npy", np.ones((5, 3), np.float16))
        np.save(processed / "paper" / "node_label.npy", np.array([0, np.nan, 1, 1, np.nan]))
        report, edges, dataset = made(tmp_path / cites)
        assert sorted(edges) == [(0, 1), (1, 2), (2, 0), (4, 0)]
        assert rows(dataset.labels) == [0, -1, 1, 1, -1]
        assert report.feature_dtype == "float16"
        assert report.notes == ["author: not read: of this layout papers and citations are"]


def test_csv_dataset_of_dgl(made, tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    meta = "edge_data:\n- file_name: e.csv\nnode_data:\n- file_name: n.csv\n"
    (folder / "meta.yaml").write_text(meta)
    (folder / "n.csv").write_text(
        'node_id,label,train_mask,feat\n7,1,True,"1, 2"\n5,0,False,"3,4"\n'
    )
    (folder / "e.csv").write_text("src_id,dst_id\n7,5\n")
    _, edges, dataset = made(folder)
    assert (edges, dataset.keys.of(np.arange(2)).tolist()) == ([(0, 1)], [7, 5])
    assert (rows(dataset.features), rows(dataset.labels)) == ([[1, 2], [3, 4]], [1, 0])
    assert rows(dataset.split("train")) == [0]
    (folder / "meta.yaml").write_text(meta + "- file_name: n2.csv\n")
    with pytest.raises(DataError, match="2 node files and 1 edge files"):
        prepare(folder, tmp_path / "other")
    (folder / "meta.yaml").write_text("a: [")
    with pytest.raises(DataError, match=r"^meta\.yaml: not YAML"):
        prepare(folder, tmp_path / "other")
