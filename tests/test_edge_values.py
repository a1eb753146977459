"""Weights, features and times of edges: stored in the order of the CSR, and carried by blocks."""

from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.sparse
import torch
from typer.testing import CliRunner

import gnnx
from gnnx.cli import app
from gnnx.errors import DataError, UsageError
from gnnx.export import export
from gnnx.loader import Loader
from gnnx.nn import GCN, GCNConv
from gnnx.partition import partition
from gnnx.prepare import prepare
from gnnx.prepare.origin import origin_of
from gnnx.random import Key
from gnnx.sample import NeighborSampler
from gnnx.store import verify
from gnnx.train import Trainer

H05 = np.array([[0, 0], [1, 0], [2, 0], [0, 1]])  # src, dst
H05_WEIGHT = np.array([5, 1, 1, 2], np.float32)


def expected(pairs, weight, attr, time, num_nodes, undirected, self_loops, duplicates):
    """Rows of (source, weight, attr, time), by brute force."""
    rows = [[] for _ in range(num_nodes)]
    there = {tuple(pair) for pair in pairs}
    values = list(zip(weight.tolist(), attr.tolist(), time.tolist(), strict=True))
    for (src, dst), value in zip(pairs, values, strict=True):
        if src != dst or self_loops != "drop":
            rows[dst].append((src, *value))
    added = {}
    for (src, dst), value in zip(pairs, values, strict=True):
        if undirected and (dst, src) not in there:
            added.setdefault((dst, src), []).append(value)
    for (src, dst), found in added.items():
        rows[dst] += [(src, *v) for v in (found if duplicates == "sum" else found[:1])]
    if duplicates != "keep":
        rows = [[merged(row, src, duplicates) for src in {e[0] for e in row}] for row in rows]
    if self_loops == "add":
        for node, row in enumerate(rows):
            if node not in {e[0] for e in row}:
                row.append((node, 1.0, [0.0] * attr.shape[1], 0))
    return [sorted(row, key=lambda e: e[0]) for row in rows]


def merged(row, src, duplicates):
    found = [e for e in row if e[0] == src]
    if duplicates == "drop":
        return found[0]
    attr = np.sum([e[2] for e in found], axis=0).tolist()
    return src, sum(e[1] for e in found), attr, min(e[3] for e in found)


def stored(folder):
    edges = folder / "edges/node-edge-node"
    names = ("indptr", "indices", "weight", "attr", "time", "strength")
    return {name: np.load(edges / f"{name}.npy") for name in names}


@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=60),
    st.booleans(),
    st.sampled_from(["keep", "drop", "add"]),
    st.sampled_from(["keep", "drop", "sum"]),
)
@hypothesis.settings(max_examples=60)
def test_values_stand_where_their_edges_stand(
    tmp_path_factory, pairs, undirected, self_loops, duplicates
):
    folder = tmp_path_factory.mktemp("values")
    rng = np.random.default_rng(len(pairs))
    weight = rng.integers(1, 100, len(pairs)).astype(np.float32)
    attr = rng.integers(0, 100, (len(pairs), 2)).astype(np.float32)
    time = rng.integers(0, 1 << 60, len(pairs))
    for name, array in (("e", np.array(pairs)), ("w", weight), ("a", attr), ("t", time)):
        np.save(folder / f"{name}.npy", array)
    rules = {"undirected": undirected, "self_loops": self_loops, "duplicates": duplicates}
    prepare(
        folder / "e.npy",
        folder / "out",
        num_nodes=7,
        layout="pairs",
        edge_weight=folder / "w.npy",
        edge_attr=folder / "a.npy",
        edge_time=folder / "t.npy",
        memory="16MiB",
        **rules,
    )
    found = stored(folder / "out")
    rows = expected(pairs, weight, attr, time, 7, **rules)
    flat = [entry for row in rows for entry in row]
    assert found["indices"].tolist() == [entry[0] for entry in flat]
    assert found["weight"].tolist() == [entry[1] for entry in flat]
    assert found["attr"].tolist() == [entry[2] for entry in flat]
    assert found["time"].tolist() == [entry[3] for entry in flat]
    assert found["strength"].tolist() == [sum(entry[1] for entry in row) for row in rows]


@pytest.mark.parametrize("undirected", [False, True])
def test_values_do_not_depend_on_the_memory(tmp_path, undirected):
    """In one range of rows or in many, with hubs and many parallel edges."""
    rng = np.random.default_rng(0)
    pairs = (rng.random((150_000, 2)) ** 3 * 2000).astype(np.int32)
    np.save(tmp_path / "e.npy", pairs)
    np.save(tmp_path / "w.npy", rng.random(len(pairs)))
    np.save(tmp_path / "a.npy", np.asfortranarray(rng.random((len(pairs), 3)).astype(np.float16)))
    prints = set()
    for memory in ("1GiB", "24MiB", "12MiB"):
        prepare(
            tmp_path / "e.npy",
            tmp_path / "out",
            num_nodes=2000,
            edge_weight=tmp_path / "w.npy",
            edge_attr=tmp_path / "a.npy",
            undirected=undirected,
            memory=memory,
            overwrite=True,
        )
        with gnnx.open(tmp_path / "out") as dataset:
            prints.add(dataset.fingerprint)
            assert dataset.edge_values("attr").dtype == torch.float16
    assert len(prints) == 1


def h05(folder, **options):
    np.save(folder / "e.npy", H05)
    np.save(folder / "w.npy", H05_WEIGHT)
    np.save(folder / "x.npy", np.array([[1], [2], [4]], np.float32))
    np.save(folder / "y.npy", np.array([0, 1, 0]))
    prepare(
        folder / "e.npy",
        folder / "out",
        features=folder / "x.npy",
        labels=folder / "y.npy",
        split="1,0,0",
        edge_weight=folder / "w.npy",
        overwrite=True,
        **options,
    )
    return gnnx.open(folder / "out", memory="16MiB")


def test_gcn_with_weights_h05(tmp_path):
    """Loops keep their weight, missing ones get 1: the numbers of torch_geometric 2.8.1."""
    with h05(tmp_path) as dataset:
        conv = GCNConv(1, 1, bias=False, edge_weight=True)
        torch.nn.init.ones_(conv.weight)
        model = gnnx.nn.Stack([conv])
        (batch,) = Loader(
            dataset, [-1], 3, split=np.arange(3), shuffle=False, degrees=True, edge_weight=True
        )
        (block,) = batch.blocks
        assert block.src_strength.tolist() == [7, 2, 0]
        out = conv(block, batch.x).flatten()
        assert out.tolist() == pytest.approx([2.6626, 1.1031, 4.0], abs=5e-5)
        assert gnnx.infer(model, dataset).flatten().tolist() == pytest.approx(out.tolist())
    with h05(tmp_path, self_loops="add") as dataset:
        assert gnnx.infer(model, dataset).flatten().tolist() == pytest.approx(out.tolist())


@pytest.mark.parametrize("fanouts", [[-1, -1], [3, 2]])
def test_blocks_carry_the_values_of_their_edges(tmp_path, fanouts):
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 50, (600, 2))
    np.save(tmp_path / "e.npy", pairs)
    np.save(tmp_path / "w.npy", rng.random(600))
    np.save(tmp_path / "a.npy", rng.random((600, 4)).astype(np.float32))
    np.save(tmp_path / "x.npy", rng.random((50, 2)).astype(np.float32))
    prepare(
        tmp_path / "e.npy",
        tmp_path / "out",
        features=tmp_path / "x.npy",
        edge_weight=tmp_path / "w.npy",
        edge_attr=tmp_path / "a.npy",
        split="1,0,0",
    )
    folder = tmp_path / "out/edges/node-edge-node"
    whole = {name: np.load(folder / f"{name}.npy") for name in ("weight", "attr", "strength")}
    seen = []
    for memory in ("64MiB", "2MiB"):  # values in RAM, and read for each block
        with gnnx.open(tmp_path / "out", memory=memory) as dataset:
            loader = Loader(dataset, fanouts, 20, edge_weight=True, edge_attr=True)
            for batch in loader:
                for block in batch.blocks:
                    positions = block.e_id.numpy()
                    assert np.array_equal(block.edge_weight, whole["weight"][positions])
                    assert np.array_equal(block.edge_attr, whole["attr"][positions])
                    assert np.array_equal(block.src_strength, whole["strength"][block.src_id])
                    seen.append(positions.tolist())
            plain = next(iter(Loader(dataset, fanouts, 20)))
            assert plain.blocks[0].edge_weight is None
    assert seen[: len(seen) // 2] == seen[len(seen) // 2 :]


def test_a_sampled_weighted_row_is_right_on_average(tmp_path):
    rng = np.random.default_rng(0)
    pairs = np.stack([np.arange(1, 21), np.zeros(20, np.int64)], 1)
    np.save(tmp_path / "e.npy", pairs)
    np.save(tmp_path / "w.npy", rng.random(20) + 0.5)
    np.save(tmp_path / "x.npy", rng.random((21, 1)).astype(np.float32))
    prepare(
        tmp_path / "e.npy",
        tmp_path / "out",
        features=tmp_path / "x.npy",
        edge_weight=tmp_path / "w.npy",
    )
    conv = GCNConv(1, 1, bias=False, edge_weight=True)
    torch.nn.init.ones_(conv.weight)
    with gnnx.open(tmp_path / "out", memory="16MiB") as dataset, torch.no_grad():
        exact = gnnx.infer(gnnx.nn.Stack([conv]), dataset)[0].item()
        outs = []
        for seed in range(400):
            loader = Loader(
                dataset, [5], 1, split=np.array([0]), seed=seed, degrees=True, edge_weight=True
            )
            (batch,) = loader
            outs.append(conv(batch.blocks[0], batch.x).item())
    assert np.mean(outs) == pytest.approx(exact, abs=4 * np.std(outs) / 20)


def test_weights_decide_what_a_gcn_learns(tmp_path):
    """Heavy edges join nodes of a class, light ones those of two; features are noise."""
    rng = np.random.default_rng(0)
    y = np.arange(300) % 2
    pairs = rng.integers(0, 300, (6000, 2))
    same = y[pairs[:, 0]] == y[pairs[:, 1]]
    np.save(tmp_path / "e.npy", pairs)
    np.save(tmp_path / "w.npy", np.where(same, 1.0, 0.01))
    np.save(tmp_path / "y.npy", y)
    x = rng.normal(size=(300, 8)) + y[:, None] * 0.5
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    names = {"features": "x", "labels": "y", "edge_weight": "w"}
    files = {option: tmp_path / f"{name}.npy" for option, name in names.items()}
    prepare(tmp_path / "e.npy", tmp_path / "out", undirected=True, **files)
    accuracy = {}
    for weighted in (False, True):
        torch.manual_seed(0)
        with gnnx.open(tmp_path / "out", memory="64MiB") as dataset:
            model = GCN(8, 8, 2, 2, edge_weight=weighted)
            report = Trainer(model, dataset, fanouts=[5, 5], batch_size=64).fit(10)
            accuracy[weighted] = report.test_accuracy
    assert accuracy[True] > 0.9
    assert accuracy[False] < accuracy[True] - 0.1


@pytest.mark.parametrize("memory", ["64MiB", "8MiB"])
def test_values_follow_their_edges_into_parts(tmp_path, memory):
    rng = np.random.default_rng(0)
    triples = pa.table(
        {
            "src": rng.integers(0, 300, 20_000).astype(str),
            "dst": rng.integers(0, 300, 20_000).astype(str),
            "w": rng.random(20_000),
            "t": np.arange(20_000),
            "r": rng.choice(["likes", "is near"], 20_000),
        }
    )
    pq.write_table(triples, tmp_path / "e.parquet")
    (tmp_path / "r.toml").write_text(
        'edges = {files = "e.parquet", weight = "w", time = "t", attr = ["t", "w"], relation = "r"}'
    )
    prepare(tmp_path / "r.toml", tmp_path / "out")
    partition(tmp_path / "out", tmp_path / "parts", num_parts=4, method="random", memory=memory)
    assert verify(tmp_path / "parts") == []
    for name in ("out", "parts"):
        with gnnx.open(tmp_path / name) as dataset:
            export(dataset, tmp_path / f"{name}.parquet", what="edges")
            ids = dataset.keys.ids([str(i) for i in range(300)])
            sums = dataset.edge_values("strength").read(ids).tolist()
        table = pq.read_table(tmp_path / f"{name}.parquet")
        if name == "out":
            expected, strength = table.sort_by("time").to_pydict(), sums
    assert table.sort_by("time").to_pydict() == expected
    assert sums == strength


# Where values come from


def weights(folder):
    with gnnx.open(folder) as dataset:
        export(dataset, folder / "e.parquet", what="edges")
    table = pq.read_table(folder / "e.parquet").to_pydict()
    (folder / "e.parquet").unlink()
    return {
        (src, dst): tuple(table[name][i] for name in ("weight", "time") if name in table)
        for i, (src, dst) in enumerate(zip(table["src"], table["dst"], strict=True))
    }


def test_columns_of_a_text(tmp_path):
    (tmp_path / "e.csv").write_text("src,dst,rating,time\n0,1,2.5,1407470400\n2,0,-1,7\n")
    command = ["prepare", str(tmp_path / "e.csv"), str(tmp_path / "out"), "--num-nodes", "3"]
    command += ["--edge-weight", "2", "--edge-time", "3", "--edge-attr", "2,3", "--quiet"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert weights(tmp_path / "out") == {(0, 1): (2.5, 1407470400), (2, 0): (-1.0, 7)}
    with gnnx.open(tmp_path / "out") as dataset:
        assert dataset.edge_values("attr").read(np.array([0])).tolist() == [[-1.0, 7.0]]
    for column, message in (("4", "has 4 columns"), ("w", "no such file, and no column of e.csv")):
        with pytest.raises(UsageError, match=message):
            prepare(tmp_path / "e.csv", tmp_path / "no", num_nodes=3, edge_weight=column)


def test_ids_with_gaps_keep_the_values_of_their_edges(tmp_path):
    rng = np.random.default_rng(0)
    pairs = np.unique(rng.integers(0, 1 << 40, (200_000, 2)), axis=0)
    pairs = rng.permutation(pairs)
    np.save(tmp_path / "e.npy", pairs)
    np.save(tmp_path / "t.npy", pairs[:, 0] ^ pairs[:, 1])
    prepare(tmp_path / "e.npy", tmp_path / "many", edge_time=tmp_path / "t.npy")
    found = weights(tmp_path / "many")
    assert all(time == src ^ dst for (src, dst), (time,) in found.items())
    assert len(found) == len(pairs)
    (tmp_path / "e.txt").write_text("10 20 1\n20 55 2\n901 10 3\n10 20 4\n")
    prepare(tmp_path / "e.txt", tmp_path / "out", edge_weight="2", duplicates="sum")
    assert weights(tmp_path / "out") == {(10, 20): (5.0,), (20, 55): (2.0,), (901, 10): (3.0,)}


def test_columns_of_a_recipe(tmp_path):
    edges = pa.table(
        {
            "src": ["a", "b", "x", "a", "a"],
            "dst": ["b", "c", "a", "b", "b"],
            "w": [1.0, 2.0, 9.0, 3.0, 4.0],
            "t": [10, 20, 30, 5, 40],
        }
    )
    pq.write_table(edges, tmp_path / "e.parquet")
    (tmp_path / "n.csv").write_text("id\nc\nb\na\n")
    (tmp_path / "r.toml").write_text(
        """nodes = {files = "n.csv", key = "id"}
        edges = {files = "e.parquet", weight = "w", time = "t", attr = ["t", "w"], unknown = "drop"}
        options = {duplicates = "sum"}"""
    )
    prepare(tmp_path / "r.toml", tmp_path / "out")
    assert weights(tmp_path / "out") == {("a", "b"): (8.0, 5), ("b", "c"): (2.0, 20)}
    (tmp_path / "r.toml").write_text('edges = {files = "e.parquet", weight = "heft"}')
    with pytest.raises(DataError, match=r"edges\.weight: no column 'heft' in e\.parquet"):
        prepare(tmp_path / "r.toml", tmp_path / "out", overwrite=True)


def test_relations_of_triples(tmp_path):
    (tmp_path / "t.tsv").write_text("a\tlikes\tb\nb\tis near\tc\na\tis near\tb\nc\tlikes\tc\n")
    (tmp_path / "r.toml").write_text(
        """edges = {files = "t.tsv", header = false, src = "column0", relation = "column1", """
        """dst = "column2"}"""
    )
    prepare(tmp_path / "r.toml", tmp_path / "out", undirected=True)
    with gnnx.open(tmp_path / "out") as dataset:
        assert dataset.relation_names == ["is near", "likes"]
        export(dataset, tmp_path / "e.parquet", what="edges")
    table = pq.read_table(tmp_path / "e.parquet").to_pydict()
    triples = list(zip(table["src"], table["relation"], table["dst"], strict=True))
    forward = [("a", "likes", "b"), ("a", "is near", "b"), ("b", "is near", "c")]
    assert sorted(triples) == sorted(
        [*forward, ("c", "likes", "c"), ("b", "likes", "a"), ("c", "is near", "b")]
    )
    (tmp_path / "t.tsv").write_text("a\t\tb\n")
    with pytest.raises(DataError, match=r"t\.tsv: edge 0, column 0: relation nan"):
        prepare(tmp_path / "r.toml", tmp_path / "no")


def test_relations_of_a_real_graph(shared_data, tmp_path):
    recipe = Path(__file__).resolve().parents[1] / "datasets/wn18rr.toml"
    report = prepare(recipe, tmp_path / "out", root=shared_data / "wn18rr")
    lines = []
    for name in ("train", "valid", "test"):
        lines += (shared_data / f"wn18rr/{name}.txt").read_text().splitlines()
    assert report.edges_stored == len(lines)
    with gnnx.open(tmp_path / "out") as dataset:
        assert len(dataset.relation_names) == 11
        export(dataset, tmp_path / "e.parquet", what="edges")
    table = pq.read_table(tmp_path / "e.parquet").to_pydict()
    triples = zip(table["src"], table["relation"], table["dst"], strict=True)
    assert sorted(triples) == sorted(tuple(line.split("\t")) for line in lines)


def test_arrays_of_an_archive_and_graphs_in_memory(tmp_path):
    matrix = scipy.sparse.csr_matrix(np.array([[0, 2.5, 0], [0, 0, 4], [1, 0, 0]]))
    scipy.sparse.save_npz(tmp_path / "m.npz", matrix)
    report = prepare(tmp_path / "m.npz", tmp_path / "out")
    assert report.notes == ["values of edges are not kept: give --edge-weight data"]
    prepare(tmp_path / "m.npz", tmp_path / "out", edge_weight="data", overwrite=True)
    there = {(0, 1): (2.5,), (1, 2): (4.0,), (2, 0): (1.0,)}
    assert weights(tmp_path / "out") == there
    prepare(gnnx.from_scipy(matrix), tmp_path / "out", overwrite=True)
    assert weights(tmp_path / "out") == there
    networkx = pytest.importorskip("networkx")
    graph = networkx.Graph()
    graph.add_edge("a", "b", weight=3)
    prepare(gnnx.from_networkx(graph, weight="weight"), tmp_path / "out", overwrite=True)
    assert weights(tmp_path / "out") == {("a", "b"): (3.0,), ("b", "a"): (3.0,)}


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16"])
def test_sums_of_small_integers_do_not_wrap(tmp_path, dtype):
    largest = 1 if dtype == "bool" else np.iinfo(dtype).max
    np.save(tmp_path / "e.npy", np.array([[0, 1], [0, 1], [0, 1], [1, 0]]))
    np.save(tmp_path / "a.npy", np.full((4, 1), largest, dtype))
    given = {"num_nodes": 2, "edge_attr": tmp_path / "a.npy", "memory": "16MiB"}
    prepare(tmp_path / "e.npy", tmp_path / "out", duplicates="sum", **given)
    found = np.load(tmp_path / "out/edges/node-edge-node/attr.npy")
    assert (found.dtype, found.tolist()) == (np.int32, [[largest], [3 * largest]])


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("edge_weight", [1.0, 2.0], r"v\.npy: 2 rows of values, 3 edges"),
        (
            "edge_weight",
            [1.0, np.nan, 2.0],
            r"v\.npy: edge 1, column 0: weight nan is not finite",
        ),
        (
            "edge_weight",
            [1.0, 2.0, 1e39],
            r"v\.npy: edge 2, column 0: weight 1e\+39 is beyond the largest float32, 3\.4028",
        ),
        (
            "edge_attr",
            [[1.0, 2.0], [3.0, -1e39], [0, 0]],
            r"v\.npy: edge 1, column 1: attr -1e\+39 is beyond the largest float32",
        ),
        ("edge_weight", [[1, 2]] * 3, r"v\.npy: edge weight of int64 and shape \(3, 2\)"),
        ("edge_time", [1.0, 2.5, 3.0], r"v\.npy: edge 1: time 2\.5 is no whole number"),
    ],
)
def test_values_that_cannot_be(tmp_path, name, values, message):
    np.save(tmp_path / "e.npy", np.array([[0, 1], [1, 2], [2, 0]]))
    np.save(tmp_path / "v.npy", np.array(values))
    with pytest.raises(DataError, match=message):
        prepare(tmp_path / "e.npy", tmp_path / "out", num_nodes=3, **{name: tmp_path / "v.npy"})
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "duplicates", "message"),
    [
        ("edge_weight", "keep", r"v\.npy: node 2: the weights of its edges add up to 6e\+38, more"),
        ("edge_attr", "sum", r"v\.npy: column 0: attr of parallel edges to node 2 add up to more"),
    ],
)
def test_sums_beyond_float32(tmp_path, name, duplicates, message):
    np.save(tmp_path / "e.npy", np.array([[0, 1], [1, 2], [1, 2]]))
    np.save(tmp_path / "v.npy", np.full(3, 3e38, np.float32))
    given = {"num_nodes": 3, name: tmp_path / "v.npy", "duplicates": duplicates}
    with pytest.raises(DataError, match=message):
        prepare(tmp_path / "e.npy", tmp_path / "out", memory="16MiB", **given)
    assert not (tmp_path / "out").exists()


def test_a_column_of_a_text_is_named_as_it_is_counted(tmp_path):
    (tmp_path / "e.txt").write_text("0 1 5 1\n1 0 5 1e39\n")
    with pytest.raises(DataError, match=r"e\.txt: edge 1, column 3: weight 1e\+39 is beyond"):
        prepare(tmp_path / "e.txt", tmp_path / "out", num_nodes=2, edge_weight="3")


def test_values_that_are_not_there(tmp_path):
    np.save(tmp_path / "e.npy", H05)
    np.save(tmp_path / "x.npy", np.ones((3, 1), np.float32))
    prepare(tmp_path / "e.npy", tmp_path / "out", features=tmp_path / "x.npy")
    with (
        gnnx.open(tmp_path / "out", memory="16MiB") as dataset,
        pytest.raises(DataError, match=r"edges have no weight.*\n.*--edge-weight"),
    ):
        Loader(dataset, [1], 2, edge_weight=True)


def test_train_on_the_command_line(tmp_path):
    with h05(tmp_path):
        pass
    command = f"train {tmp_path}/out --layers 1 --fanouts 2 --epochs 1 --memory 16MiB --quiet"
    run = CliRunner().invoke
    state = f"--checkpoint {tmp_path}/run"
    assert run(app, [*command.split(), "--edge-weight", *state.split()]).exit_code == 0
    infer = f"infer {tmp_path}/out {state} --out {tmp_path}/o.npy --memory 16MiB --quiet"
    assert run(app, infer.split()).exit_code == 0
    assert np.load(tmp_path / "o.npy").shape == (3, 2)
    refused = run(app, [*command.split(), "--edge-weight", "--model", "sage"])
    assert refused.exit_code == 2


def test_a_plain_sampler_gives_no_values(tmp_path):
    with h05(tmp_path) as dataset:
        (block,) = NeighborSampler(dataset.graph, [-1]).sample(np.array([0]), Key(0))
        assert (block.edge_weight, block.edge_attr, block.src_strength) == (None, None, None)


@pytest.mark.parametrize("name", ["edge_weight", "edge_attr", "edge_time"])
def test_other_values_are_another_origin(tmp_path, name):
    """A run that was cut short is not continued with values that have changed since."""
    np.save(tmp_path / "v.npy", np.ones(3))
    arguments = {"source": tmp_path / "e.npy", "root": None, name: tmp_path / "v.npy"}
    before = origin_of(arguments)
    assert origin_of(arguments) == before
    np.save(tmp_path / "v.npy", np.ones(4))
    assert origin_of(arguments) != before
