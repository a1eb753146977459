"""The format on disk: what is written is what is read; what is wrong is named and left alone."""

import json
import os
import shutil
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

import gnnx
from conformance import bits, random_table, write_dataset
from gnnx.errors import GnnxError
from gnnx.memory import Budget, Ledger, rss_bytes
from gnnx.store import DatasetWriter, Manifest, manifest, writer
from gnnx.store.manifest import ArrayEntry, NodeType

DOCS = Path(__file__).resolve().parents[1] / "docs" / "format.md"


def example(path):
    """The dataset of docs/format.md: three nodes, four edges, two features."""
    return write_dataset(
        path,
        num_classes=2,
        x=np.array([[0.5, 1.0], [2.0, 4.0], [8.0, 16.0]], np.float32),
        y=np.array([0, 1, -1]),
        train=np.array([0, 1]),
        indptr=np.array([0, 2, 3, 4]),
        indices=np.array([1, 2, 1, 0], np.int32),
        loops=np.array([1]),
    )


def contents(path):
    """Every file of a folder with its bytes."""
    files = (file for file in sorted(path.rglob("*")) if file.is_file())
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def first_line(call):
    with pytest.raises(GnnxError) as caught:
        call()
    return caught.value, str(caught.value).partition("\n")[0]


# What is written is what is read.


def test_numpy_opens_the_arrays(tmp_path):
    path = example(tmp_path / "dataset")
    x = np.load(path / "nodes/node/x.npy", mmap_mode="r")
    assert (x.offset, x.dtype) == (4096, np.float32)
    assert x.tolist() == [[0.5, 1.0], [2.0, 4.0], [8.0, 16.0]]
    assert np.load(path / "edges/node-edge-node/indices.npy").tolist() == [1, 2, 1, 0]


def test_a_dataset_tells_what_it_holds(tmp_path):
    with gnnx.open(example(tmp_path / "dataset"), memory="4MiB") as dataset:
        assert (dataset.num_nodes, dataset.num_edges) == (3, 4)
        assert (dataset.num_features, dataset.num_classes) == (2, 2)
        assert dataset.feature_dtype == torch.float32
        assert dataset.node_types == ["node"]
        assert dataset.edge_types == [("node", "edge", "node")]
        assert dataset.labels.read(np.arange(3)).tolist() == [0, 1, -1]
        assert dataset.split("train").read(np.arange(2)).tolist() == [0, 1]
        assert dataset.split("val").num_rows == 0
        assert dataset.split("val").read(np.arange(0)).shape == (0,)
        assert dataset.features is dataset.array("nodes/node/x")
        assert dataset.graph is dataset.graph
        assert (
            repr(dataset) == "Dataset(dataset, nodes {node: 3}, edges {node-edge-node: 4}, 120 B)"
        )
        error, line = first_line(lambda: dataset.array("nodes/node/z"))
        assert (error.exit_code, line) == (
            3,
            f"{tmp_path}/dataset/nodes/node/z.npy: not in the dataset",
        )


def test_labels_and_features_may_be_absent(tmp_path):
    with gnnx.open(write_dataset(tmp_path / "bare", num_nodes=5), memory="4MiB") as dataset:
        assert dataset.labels is None
        assert (dataset.num_features, dataset.num_classes) == (0, 0)
        error, line = first_line(lambda: dataset.features)
        assert error.exit_code == 3
        assert line.endswith("nodes/node/x.npy: not in the dataset")


def test_bfloat16_is_stored_as_uint16_and_read_as_bfloat16(tmp_path):
    table = random_table(100, (33,), torch.bfloat16)
    path = write_dataset(tmp_path / "dataset", x=table)
    assert np.load(path / "nodes/node/x.npy").dtype == np.uint16
    with gnnx.open(path, memory="4MiB") as dataset:
        assert dataset.feature_dtype == torch.bfloat16
        assert np.array_equal(bits(dataset.features.read(np.arange(100))), bits(table))


def test_typed_graphs_are_read_array_by_array(tmp_path):
    with DatasetWriter(tmp_path / "typed", ledger=Ledger(Budget())) as out:
        out.array("nodes/paper/x", (3, 2), "float32").append(np.ones((3, 2), np.float32))
        out.nodes("paper", 3)
        out.nodes("author", 2)
        for edge_type in (("author", "writes", "paper"), ("paper", "cites", "paper")):
            folder = f"edges/{'-'.join(edge_type)}"
            out.array(f"{folder}/indptr", (4,), "int64").append(np.array([0, 0, 1, 1]))
            out.array(f"{folder}/indices", (1,), "int32").append(np.zeros(1, np.int32))
            out.edges(edge_type, 1)
        out.report({"duplicates": 3})
    with gnnx.open(tmp_path / "typed", memory="4MiB") as dataset:
        assert dataset.node_types == ["author", "paper"]
        assert dataset.edge_types == [("author", "writes", "paper"), ("paper", "cites", "paper")]
        assert dataset.manifest.report == {"duplicates": 3}
        assert dataset.array("nodes/paper/x").read(np.array([2])).tolist() == [[1.0, 1.0]]
        error, line = first_line(lambda: dataset.graph)
        assert (error.exit_code, line) == (
            2,
            f"{tmp_path}/typed has 2 node types and 2 edge types, not one each",
        )
        assert first_line(lambda: dataset.num_nodes)[0].exit_code == 2


def test_equal_input_gives_equal_bytes_however_it_is_cut(tmp_path):
    table = random_table(5000, (17,), torch.float32).numpy()
    sizes = {"one": [5000], "many": [1, 2, 997, 4000], "none first": [0, 5000]}
    for name, pieces in sizes.items():
        # a budget changes how much is written at a time, and nothing else
        with DatasetWriter(tmp_path / name, ledger=Ledger(Budget(host=len(name) << 20))) as out:
            x = out.array("nodes/node/x", (None, 17), "float32")
            for begin, size in zip(np.cumsum([0, *pieces]), pieces, strict=False):
                x.append(table[begin : begin + size])
            out.nodes("node", 5000)
    first, *others = (contents(tmp_path / name) for name in sizes)
    assert all(other == first for other in others)


@pytest.mark.parametrize("size", [4500, 4000, 0])
def test_checksums_are_of_pages(tmp_path, monkeypatch, size):
    """Pages of 1,000 bytes, in pieces that end anywhere."""
    for module in (manifest, writer):
        monkeypatch.setattr(module, "PAGE_BYTES", 1000)
    data = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    with DatasetWriter(tmp_path / "dataset", ledger=Ledger(Budget())) as out:
        x = out.array("nodes/node/x", (size,), "uint8")
        for begin, end in ((0, 300), (300, 1000), (1000, 1000), (1000, 3700), (3700, 4500)):
            x.append(data[begin:end])
        out.nodes("node", size)
    crcs = np.fromfile(tmp_path / "dataset/nodes/node/x.crc", "<u4").tolist()
    assert crcs == [zlib.crc32(data[i : i + 1000].tobytes()) for i in range(0, size, 1000)]


def test_the_fingerprint_is_of_the_data(tmp_path):
    with gnnx.open(example(tmp_path / "a"), memory="4MiB") as a:
        x = np.array([[0.5, 1.0], [2.0, 4.0], [8.0, 17.0]], np.float32)
        shutil.copytree(tmp_path / "a", tmp_path / "elsewhere")
        other = write_dataset(tmp_path / "b", x=x, num_classes=2)
        with gnnx.open(tmp_path / "elsewhere") as moved, gnnx.open(other) as b:
            assert a.fingerprint == moved.fingerprint
            assert a.fingerprint != b.fingerprint
            assert len(a.fingerprint) == 64
            assert np.array_equal(moved.features.read(np.array([1])).numpy(), [[2.0, 4.0]])


def test_docs_show_a_true_manifest(tmp_path):
    """The example of docs/format.md is the manifest of `example`, byte for byte."""
    text = (example(tmp_path / "dataset") / "manifest.json").read_text()
    assert f"```json\n{text}```" in DOCS.read_text()


# What opening costs, and what it refuses.


def sparse(path, num_rows, width):
    """A dataset whose features are a file of zeros that takes no room on the disk."""
    entry = ArrayEntry((num_rows, width), "float32", 0)
    (path / "nodes/node").mkdir(parents=True)
    with (path / "nodes/node/x.npy").open("wb") as stream:
        stream.write(entry.header())
        stream.truncate(4096 + entry.num_bytes)
    whole = Manifest({"node": NodeType(num_rows, 0)}, {}, {"nodes/node/x": entry}, {})
    (path / "manifest.json").write_text(whole.dump())
    return path


def test_opening_four_gigabytes_takes_no_memory_and_no_time(tmp_path):
    path = sparse(tmp_path / "dataset", 8_000_000, 128)
    before, began = rss_bytes(), time.perf_counter()
    with gnnx.open(path, memory="8MiB") as dataset:
        assert time.perf_counter() - began < 2
        assert dataset.features.entry.num_bytes == 4_096_000_000
        assert not dataset.features.read(np.array([7_999_999, 0])).any()
        assert rss_bytes() - before < 64 << 20


def test_an_array_of_another_size_is_refused_and_left_alone(tmp_path):
    """Row H11: ten labels declared, eight in the file."""
    y = np.arange(10, dtype=np.float32)
    path = write_dataset(tmp_path / "dataset", y=y)
    file = path / "nodes/node/y.npy"
    os.truncate(file, 4096 + 32)
    before = contents(path)
    error, line = first_line(lambda: gnnx.open(path))
    assert error.exit_code == 3
    assert line == f"{file}: 40 bytes expected, 32 found"
    assert contents(path) == before
    with file.open("ab") as stream:
        stream.write(bytes(100))
    assert first_line(lambda: gnnx.open(path))[1] == f"{file}: 40 bytes expected, 132 found"
    os.truncate(file, 100)
    assert first_line(lambda: gnnx.open(path))[1] == f"{file}: 40 bytes expected, 0 found"
    file.unlink()
    assert first_line(lambda: gnnx.open(path))[1] == f"{file}: missing"


def test_what_is_no_dataset_is_refused(tmp_path):
    def refusal(name):
        error, line = first_line(lambda: gnnx.open(tmp_path / name))
        assert error.exit_code == 3
        return line

    assert refusal("nothing") == f"{tmp_path}/nothing: no such folder"
    (tmp_path / "folder").mkdir()
    assert refusal("folder") == f"{tmp_path}/folder: not a gnnx dataset: no manifest.json"
    (tmp_path / ".half.partial").mkdir()
    half = f"{tmp_path}/half: incomplete: its preparation has not ended; stages done: none"
    assert refusal("half") == half
    (tmp_path / "file").touch()
    assert refusal("file") == f"{tmp_path}/file: not a gnnx dataset: no manifest.json"


def damage(document, crc=True):
    """Text of a manifest, with a true checksum or without."""
    del document["crc32"]
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    document["crc32"] = zlib.crc32(text.encode()) if crc else 7
    return json.dumps(document)


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda _: "{", "damaged: Expecting property name enclosed in double quotes: line 1 col"),
        (lambda _: "\xff", "damaged: 'utf-8' codec can't decode byte 0xff"),
        (lambda _: "[]", "not the manifest of a gnnx dataset"),
        (lambda d: damage(d | {"format": "zarr"}), "not the manifest of a gnnx dataset"),
        (lambda d: damage(d | {"version": 2}), "format version 2, this gnnx reads 1"),
        (lambda d: damage(d, crc=False), "crc32 7 expected, "),
        (lambda d: damage({k: v for k, v in d.items() if k != "nodes"}), "contradicts itself: 'no"),
        (lambda d: damage(d | {"arrays": []}), "contradicts itself: "),
        (
            lambda d: damage(d | {"nodes": {"node": {"count": 4, "num_classes": 2}}}),
            "contradicts itself: nodes/node/x: 4 rows expected, 3 found",
        ),
        (
            lambda d: damage(d | {"arrays": {"../x": d["arrays"]["nodes/node/x"]}}),
            "contradicts itself: '../x' cannot be a name",
        ),
        (
            lambda d: damage(
                d | {"arrays": {"a": {"shape": [3], "dtype": "int3", "bytes": 9, "crc32": 0}}}
            ),
            "contradicts itself: dtype 'int3' cannot be stored",
        ),
        (
            lambda d: damage(
                d | {"arrays": {"a": {"shape": [3], "dtype": "int8", "bytes": 9, "crc32": 0}}}
            ),
            "contradicts itself: a: 9 bytes for 3",
        ),
        (lambda d: damage(d | {"nodes": {}}), "contradicts itself: edge type ('node', 'edge', 'no"),
    ],
)
def test_a_damaged_manifest_is_refused(tmp_path, change, line):
    file = example(tmp_path / "dataset") / "manifest.json"
    file.write_bytes(change(json.loads(file.read_text())).encode("latin1"))
    error, found = first_line(lambda: gnnx.open(tmp_path / "dataset"))
    assert error.exit_code == 3
    assert found.startswith(f"{file}: {line}")


def test_a_flipped_bit_of_the_manifest_is_found(tmp_path):
    """Each bit of every hundredth byte, unless what it says stays the same."""
    file = example(tmp_path / "dataset") / "manifest.json"
    text = file.read_bytes()
    for at in range(0, len(text), 100):
        for bit in range(8):
            flipped = bytearray(text)
            flipped[at] ^= 1 << bit
            file.write_bytes(flipped)
            try:
                same = json.loads(flipped) == json.loads(text)
            except ValueError:
                same = False
            if not same:
                assert first_line(lambda: gnnx.open(tmp_path / "dataset"))[0].exit_code == 3


def test_nothing_is_opened_for_writing(tmp_path):
    path = example(tmp_path / "dataset")
    before = {file: file.stat().st_mtime_ns for file in path.rglob("*")}
    with gnnx.open(path, memory="4MiB") as dataset:
        dataset.features.read(np.array([0]))
        dataset.graph.take(np.array([0]))
        links = [Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd")]
        ours = [link.name for link in links if os.path.realpath(link).startswith(str(path))]
        assert len(ours) == 2
        for name in ours:
            fields = Path("/proc/self/fdinfo", name).read_text().split()
            assert int(fields[fields.index("flags:") + 1], 8) & os.O_ACCMODE == os.O_RDONLY
    assert {file: file.stat().st_mtime_ns for file in path.rglob("*")} == before
