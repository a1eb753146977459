"""Datasets in parts: the same graph under other ids, parts as ranges, halos as the edges say."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import gnnx
import oracles
from conformance import bits, random_table, write_dataset
from gnnx.cli import app
from gnnx.errors import DataError, ResourceError, UsageError
from gnnx.memory import Ledger, Tier
from gnnx.partition import Partition, partition
from gnnx.prepare import prepare
from gnnx.store import verify

NUM_NODES = 500
CSR = oracles.random_csr(2, NUM_NODES, NUM_NODES, 6000)


def write_graph(path, dtype=torch.float32, csr=CSR, num_nodes=NUM_NODES, index=np.int32):
    """A multigraph with loops, labels, splits and features of random bits."""
    indptr, indices = csr
    rng = np.random.default_rng(0)
    order = rng.permutation(num_nodes)
    third = num_nodes // 3
    loops = [v for v in range(num_nodes) if v in indices[indptr[v] : indptr[v + 1]]]
    return write_dataset(
        path,
        num_nodes=num_nodes,
        num_classes=5,
        x=random_table(num_nodes, (7,), dtype),
        y=rng.integers(-1, 5, num_nodes),
        train=np.sort(order[:third]),
        val=np.sort(order[third : 2 * third]),
        indptr=indptr,
        indices=indices.astype(index),
        loops=np.array(loops, np.int64),
    )


def read(dataset, name):
    """A whole array; an absent one is empty."""
    if name not in dataset.manifest.arrays:
        return np.zeros(0, np.int64)
    array = dataset.array(name)
    rows = array.read_range(0, array.num_rows)
    return rows if rows.dtype == torch.bfloat16 else rows.numpy()


def sources(dataset):
    indptr = read(dataset, "edges/node-edge-node/indptr")
    indices = read(dataset, "edges/node-edge-node/indices")
    return [indices[a:b].tolist() for a, b in itertools.pairwise(indptr)]


def check_same_graph(old, new):
    """Hold every array of the new dataset against the old one's, through the original ids."""
    ids = read(new, "nodes/node/id")
    assert sorted(ids.tolist()) == list(range(old.num_nodes))
    old_rows, new_rows = sources(old), sources(new)
    for v, row in enumerate(new_rows):
        assert row == sorted(row)
        assert sorted(ids[row].tolist()) == sorted(old_rows[ids[v]])
    for name in ("x", "y"):
        rows = [torch.as_tensor(read(each, f"nodes/node/{name}")) for each in (old, new)]
        if len(rows[0]):
            assert np.array_equal(bits(rows[1]), bits(rows[0])[ids])
    for name in ("nodes/node/train", "nodes/node/val", "edges/node-edge-node/loops"):
        found = read(new, name)
        assert found.tolist() == sorted(found.tolist())
        assert sorted(ids[found].tolist()) == read(old, name).tolist()


def check_halos(dataset, num_parts):
    parts = Partition(dataset)
    assert parts.num_parts == num_parts
    nodes = np.arange(dataset.num_nodes)
    part = parts.part_of(nodes)
    assert part.tolist() == [p for p in range(num_parts) for _ in range(*parts.nodes(p))]
    indptr = read(dataset, "edges/node-edge-node/indptr")
    indices = read(dataset, "edges/node-edge-node/indices")
    *_, halos = oracles.part_counts(indptr, indices, part, num_parts)
    for p in range(num_parts):
        halo = parts.halo(p)
        assert halo.dtype == np.int64
        assert halo.tolist() == sorted(halos[p])


def check_transpose(dataset, num_parts):
    parts = Partition(dataset)
    if num_parts == 1:
        with pytest.raises(DataError, match=r"out_indptr\.npy: not in the dataset"):
            _ = parts.transpose
        return
    csr = [read(dataset, f"edges/node-edge-node/{name}") for name in ("indptr", "indices")]
    expected = oracles.transpose(*csr, dataset.num_nodes)
    rows = list(parts.transpose.iter_rows())
    assert np.diff(expected[0]).tolist() == [n for row in rows for n in np.diff(row.indptr)]
    assert expected[1].tolist() == [node for row in rows for node in row.indices]
    assert expected[2].tolist() == parts.edges(0, dataset.num_edges).tolist()


@pytest.mark.parametrize("order", ["readers", "id"])
@pytest.mark.parametrize(("num_parts", "method"), [(1, "stream"), (6, "stream"), (500, "random")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_the_graph_is_the_same_but_for_the_ids(tmp_path, num_parts, method, order, dtype):
    path = write_graph(tmp_path / "graph", dtype)
    options = {"num_parts": num_parts, "method": method, "order": order}
    report = partition(path, tmp_path / "parts", **options)
    assert verify(tmp_path / "parts") == []
    with gnnx.open(path) as old, gnnx.open(tmp_path / "parts") as new:
        check_same_graph(old, new)
        check_transpose(new, num_parts)
        check_halos(new, num_parts)
        assert new.num_classes == old.num_classes
        counts = {"parts": num_parts, "cut": report.quality.cut, "halo": sum(report.quality.halo)}
        assert new.manifest.report == counts
        ids = read(new, "nodes/node/id")
        readers = np.bincount(CSR[1], minlength=NUM_NODES)[ids]
        for begin, end in map(Partition(new).nodes, range(num_parts)):
            key = -readers[begin:end] if order == "readers" else np.zeros(end - begin)
            assert np.lexsort((ids[begin:end], key)).tolist() == list(range(end - begin))


@settings(max_examples=15)
@given(
    num_nodes=st.integers(1, 30),
    num_edges=st.integers(0, 90),
    num_parts=st.integers(1, 30),
    seed=st.integers(0, 5),
    index=st.sampled_from([np.int32, np.int64]),
)
def test_small_graphs_keep_their_edges(
    tmp_path_factory, num_nodes, num_edges, num_parts, seed, index
):
    folder = tmp_path_factory.mktemp("small")
    csr = oracles.random_csr(seed, num_nodes, num_nodes, num_edges)
    path = write_graph(folder / "graph", csr=csr, num_nodes=num_nodes, index=index)
    num_parts = min(num_parts, num_nodes)
    partition(path, folder / "parts", num_parts=num_parts, method="random", seed=seed)
    with gnnx.open(path) as old, gnnx.open(folder / "parts") as new:
        check_same_graph(old, new)
        check_transpose(new, num_parts)
        check_halos(new, num_parts)


def test_the_bytes_do_not_depend_on_the_memory(tmp_path):
    csr = oracles.random_csr(4, 30_000, 30_000, 400_000)
    path = write_dataset(
        tmp_path / "graph",
        x=random_table(30_000, (40,), torch.float32),
        indptr=csr[0],
        indices=csr[1].astype(np.int32),
    )
    made = []
    for memory in ("4MiB", "12MiB", None):
        out = tmp_path / f"parts-{memory}"
        partition(path, out, num_parts=5, method="stream", memory=memory)
        with gnnx.open(out) as dataset:
            made.append(dataset.fingerprint)
    assert len(set(made)) == 1


def test_memory_is_kept_to(tmp_path, monkeypatch):
    csr = oracles.random_csr(4, 20_000, 20_000, 400_000)
    path = write_dataset(
        tmp_path / "graph",
        x=random_table(20_000, (200,), torch.float32),
        indptr=csr[0],
        indices=csr[1].astype(np.int32),
    )
    ledgers = []

    class Watched(Ledger):
        def __init__(self, budget):
            super().__init__(budget)
            ledgers.append(self)

    monkeypatch.setattr("gnnx.store.dataset.Ledger", Watched)
    partition(path, tmp_path / "parts", num_parts=5, method="stream", memory="6MiB")
    assert 2 << 20 < ledgers[0].peak_bytes(Tier.HOST) <= 6 << 20
    assert ledgers[0].held_bytes(Tier.DISK) == 0
    with pytest.raises(ResourceError, match="partition"):
        partition(path, tmp_path / "small", num_parts=5, method="stream", memory="200KiB")
    assert not (tmp_path / "small").exists()


def test_parts_of_parts_know_the_first_ids(tmp_path):
    path = write_graph(tmp_path / "graph")
    partition(path, tmp_path / "once", num_parts=3, method="random")
    partition(tmp_path / "once", tmp_path / "twice", num_parts=4, method="stream")
    with gnnx.open(path) as old, gnnx.open(tmp_path / "twice") as new:
        check_same_graph(old, new)
        check_transpose(new, 4)
        check_halos(new, 4)


def test_a_model_gives_each_node_the_same_output(tmp_path):
    path = write_graph(tmp_path / "graph", torch.uint8)
    with gnnx.open(path) as old:
        x = torch.as_tensor(read(old, "nodes/node/x")).to(torch.float32) / 255
    indptr, indices = CSR
    write_dataset(
        path, overwrite=True, num_classes=5, x=x, indptr=indptr, indices=indices.astype(np.int32)
    )
    partition(path, tmp_path / "parts", num_parts=4, method="stream")
    torch.manual_seed(0)
    model = gnnx.nn.SAGE(7, 16, 5, num_layers=2)
    with gnnx.open(path) as old, gnnx.open(tmp_path / "parts") as new:
        ids = read(new, "nodes/node/id")
        expected, found = gnnx.infer(model, old), gnnx.infer(model, new)
    torch.testing.assert_close(found, expected[ids], rtol=1e-5, atol=1e-5)


def test_a_dataset_without_parts_is_one_part(tmp_path):
    with gnnx.open(write_graph(tmp_path / "graph")) as dataset:
        parts = Partition(dataset)
        assert (parts.num_parts, parts.nodes(0), len(parts.halo(0))) == (1, (0, NUM_NODES), 0)
        with pytest.raises(UsageError, match="part 1 of 1 parts"):
            parts.halo(1)


def test_offsets_that_are_no_ranges_are_refused(tmp_path):
    path = write_dataset(tmp_path / "graph", num_nodes=5, parts=np.array([0, 3, 2, 5]))
    with gnnx.open(path) as dataset, pytest.raises(DataError, match=r"parts\.npy: not ranges of 5"):
        Partition(dataset)


@st.composite
def named(draw):
    """Keys of a few nodes, as text or numbers, in ascending order or with an order beside them."""
    kind = st.text(max_size=4) if draw(st.booleans()) else st.integers(-(2**62), 2**62)
    keys = draw(st.lists(kind, min_size=2, max_size=20, unique=True))
    if draw(st.booleans()):
        keys.sort(key=lambda key: key.encode() if isinstance(key, str) else key)
    return keys


def key_arrays(keys):
    def comparable(i):
        return keys[i].encode() if isinstance(keys[i], str) else keys[i]

    order = sorted(range(len(keys)), key=comparable)
    arrays = {} if order == sorted(order) else {"key_order": np.array(order)}
    if not isinstance(keys[0], str):
        return {**arrays, "key": np.array(keys)}
    texts = [key.encode() for key in keys]
    ends = np.cumsum([0, *map(len, texts)])
    return {
        **arrays,
        "key_offsets": ends,
        "key_bytes": np.frombuffer(b"".join(texts), np.uint8).copy(),
        "class_offsets": np.array([0, 1, 3]),
        "class_bytes": np.frombuffer(b"abb", np.uint8).copy(),
    }


@settings(max_examples=15)
@given(keys=named(), num_parts=st.integers(1, 2), seed=st.integers(0, 9))
def test_keys_go_with_their_nodes(tmp_path_factory, keys, num_parts, seed):
    folder = tmp_path_factory.mktemp("keys")
    path = write_dataset(folder / "graph", num_nodes=len(keys), **key_arrays(keys))
    partition(path, folder / "parts", num_parts=num_parts, method="random", seed=seed)
    assert verify(folder / "parts") == []
    with gnnx.open(folder / "parts", memory="8MiB") as dataset:
        ids = np.load(folder / "parts/nodes/node/id.npy")
        found = dataset.keys.of(np.arange(len(keys)))
        assert list(found) == [keys[i] for i in ids]
        assert dataset.keys.ids(keys).tolist() == [ids.tolist().index(i) for i in range(len(keys))]
        assert dataset.class_names == (["a", "bb"] if isinstance(keys[0], str) else None)


def test_keys_come_back_from_parts_h44(tmp_path):
    """ODD6 with business keys in three parts: each key has the row that it had."""
    text = "".join(f"{src},{dst}\n" for src, dst in ["ab", "bc", "ca", "ca", "ee"])
    (tmp_path / "e.csv").write_text("src,dst\n" + text)
    (tmp_path / "n.csv").write_text(
        "name,x\n" + "".join(f"{k},{i}\n" for i, k in enumerate("abcdef"))
    )
    (tmp_path / "odd6.toml").write_text(
        '[nodes]\nfiles = ["n.csv"]\nkey = "name"\nfeatures = ["x"]\n[edges]\nfiles = ["e.csv"]\n'
    )
    prepare(tmp_path / "odd6.toml", tmp_path / "graph")
    partition(tmp_path / "graph", tmp_path / "parts", num_parts=3, method="stream")
    with gnnx.open(tmp_path / "parts") as dataset:
        keys = dataset.keys.of(np.arange(6))
        x = dataset.features.read(np.arange(6))[:, 0].tolist()
        assert dict(zip(keys, x, strict=True)) == {k: i for i, k in enumerate("abcdef")}


def test_an_array_of_unknown_rows_is_refused(tmp_path):
    path = write_dataset(tmp_path / "graph", num_nodes=5, weight=np.zeros(5, np.float32))
    with pytest.raises(UsageError, match=r"nodes/node/weight\.npy: not known how its rows follow"):
        partition(path, tmp_path / "parts")
    assert not (tmp_path / "parts").exists()


def run(*words, code=0):
    result = CliRunner().invoke(app, ["partition", *map(str, words), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_the_verb_answers_with_what_parts_cost(tmp_path):
    path = write_graph(tmp_path / "graph")
    words = ("--parts", 3, "--method", "stream", "--balance", "nodes,edges,train")
    document = run(path, tmp_path / "parts", *words)
    with gnnx.open(tmp_path / "parts") as dataset:
        parts = Partition(dataset)
        ranges = [parts.nodes(p) for p in range(3)]
        assert document["nodes"] == [end - begin for begin, end in ranges]
        assert document["halo"] == [len(parts.halo(p)) for p in range(3)]
        assert document["fingerprint"] == dataset.fingerprint
    assert document["alpha"] == 1 + sum(document["halo"]) / NUM_NODES
    assert sum(document["train"]) == NUM_NODES // 3
    assert (document["method"], document["notes"]) == ("stream", [])
    people = CliRunner().invoke(app, ["partition", str(path), str(tmp_path / "order")])
    assert people.exit_code == 0
    assert "alpha" in people.stdout


@pytest.mark.parametrize(
    ("words", "code", "cause"),
    [
        (("--parts", 501), 2, "501 parts of 500 nodes"),
        (("--balance", "rows"), 2, "parts cannot share rows evenly"),
        (("--memory", "100KiB"), 4, "host memory"),
    ],
)
def test_errors_of_the_verb(tmp_path, words, code, cause):
    path = write_graph(tmp_path / "graph")
    error = run(path, tmp_path / "parts", *words, code=code)["error"]
    assert cause in error["cause"]
    assert sorted(found.name for found in tmp_path.iterdir()) == ["graph"]


@pytest.mark.slow
def test_a_killed_partition_leaves_nothing_in_the_way(tmp_path):
    csr = oracles.random_csr(4, 30_000, 30_000, 600_000)
    path = write_dataset(
        tmp_path / "graph",
        x=random_table(30_000, (64,), torch.float32),
        indptr=csr[0],
        indices=csr[1].astype(np.int32),
    )
    command = [sys.executable, "-m", "gnnx", "partition", str(path)]
    options = ["--parts", "4", "--quiet", "--overwrite"]
    began = time.monotonic()
    subprocess.run([*command, str(tmp_path / "whole"), *options], check=True, timeout=100)
    took_s = time.monotonic() - began
    with gnnx.open(tmp_path / "whole") as dataset:
        expected = dataset.fingerprint
    rng = np.random.default_rng(0)
    for _ in range(20):
        child = subprocess.Popen([*command, str(tmp_path / "parts"), *options])
        time.sleep(rng.uniform(0.2, 1) * took_s)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        subprocess.run([*command, str(tmp_path / "parts"), *options], check=True, timeout=100)
        with gnnx.open(tmp_path / "parts") as dataset:
            assert dataset.fingerprint == expected
        assert sorted(found.name for found in tmp_path.iterdir()) == ["graph", "parts", "whole"]
