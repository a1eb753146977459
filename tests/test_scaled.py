"""Features as int8 with a scale: how far off they are, and a float32 twin of the same values."""

import json
import time

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import gnnx
from conformance import write_dataset, write_typed_dataset
from gnnx.errors import DataError, UsageError
from gnnx.export import export
from gnnx.inference import infer
from gnnx.memory import Tier
from gnnx.nn import SAGE, HeteroSAGE
from gnnx.partition import partition
from gnnx.prepare import forecast, prepare, synth
from gnnx.prepare.nodes import write_features
from gnnx.store import DiskFeatures, Manifest, verify
from gnnx.train import Trainer, evaluate

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def prepared(folder, x, **options):
    """Prepare features of nodes without edges; (report, stored, scale or None)."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "edges.npy", np.zeros((0, 2), np.int64))
    np.save(folder / "x.npy", x)
    report = prepare(
        folder / "edges.npy", folder / "out", features=folder / "x.npy", overwrite=True, **options
    )
    assert verify(folder / "out") == []
    nodes = folder / "out" / "nodes" / "node"
    scale = np.load(nodes / "x_scale.npy") if (nodes / "x_scale.npy").exists() else None
    return report, np.load(nodes / "x.npy"), scale


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(x=arrays(np.float32, st.tuples(st.integers(1, 9), st.integers(1, 4)), elements=FINITE))
def test_no_value_is_off_by_more_than_half_a_step(tmp_path, x):
    report, stored, scale = prepared(tmp_path / "raw", x, dtype="int8")
    assert (stored.dtype, scale.dtype, scale.shape) == (np.int8, np.float32, x.shape[1:])
    assert report.feature_dtype == "int8"
    largest = np.abs(x.astype(np.float64)).max(0)
    step = np.maximum(largest / 127, 1.1754944e-38)
    assert np.allclose(scale[largest > 0], step[largest > 0], rtol=1e-6, atol=0)
    error = np.abs(stored * scale.astype(np.float64) - x)
    assert (error <= step * (0.5 + 1e-4)).all()
    assert stored.min() >= -127
    assert np.isfinite(stored * scale).all()  # in float32, as a model gets them
    whole = largest > 1.5e-36  # below, a step is longer than a 127th of the largest
    assert (np.abs(stored).max(0)[whole] == 127).all()


def test_the_largest_number_does_not_become_infinite(tmp_path):
    largest = np.finfo(np.float32).max  # a 127th of it rounds up, and 127 of those are too many
    x = np.array([[largest, 1], [-largest, 2], [largest / 2, 3]], np.float32)
    _, stored, scale = prepared(tmp_path / "raw", x, dtype="int8")
    assert stored[:, 0].tolist() == [127, -127, 64]
    assert np.isfinite(stored * scale).all()


@pytest.mark.parametrize(
    "dtype",
    ["float16", "float32", "float64", "bfloat16", "int16", "uint16", "int64", "uint8", "bool"],
)
def test_every_type_of_features_is_quantised(tmp_path, dtype):
    x = np.random.default_rng(0).uniform(0, 100, (700, 5))
    if dtype == "bfloat16":
        values = torch.from_numpy(x).bfloat16()
        x, given_ = values.double().numpy(), values.view(torch.int16).numpy().view("V2")
    else:
        given_ = (x > 50 if dtype == "bool" else x).astype(dtype)
        x = given_.astype(np.float64)
    report, stored, scale = prepared(tmp_path / "raw", given_, dtype="int8")
    assert report.notes == [
        f"x.npy: {dtype} features are stored as int8 with a scale for each column"
    ]
    assert np.abs(stored * scale.astype(np.float64) - x).max() <= x.max() / 254 * 1.0001


def test_int8_is_stored_as_it_is(tmp_path):
    x = np.arange(-128, 128).astype(np.int8).reshape(64, 4)
    report, stored, scale = prepared(tmp_path / "raw", x, dtype="int8")
    assert np.array_equal(stored, x)
    assert scale is None
    assert report.notes == []


def test_values_that_are_not_finite(tmp_path):
    x = np.array([[1, np.nan], [2, -4], [np.inf, 3]], np.float32)
    with pytest.raises(DataError, match=r"^x.npy: 2 NaN or infinite values, in columns 0, 1") as e:
        prepared(tmp_path / "raw", x, dtype="int8")
    assert "--nonfinite zero." in str(e.value)  # int8 cannot keep them
    with pytest.raises(UsageError, match="int8 has no NaN or infinity to keep"):
        prepared(tmp_path / "raw", x, dtype="int8", nonfinite="keep")
    report, stored, scale = prepared(tmp_path / "raw", x, dtype="int8", nonfinite="zero")
    assert report.nonfinite == {0: 1, 1: 1}
    assert stored.tolist() == [[64, 0], [127, -127], [0, 95]]
    assert np.allclose(scale, [2 / 127, 4 / 127])


def test_columns_of_zeros_and_no_nodes_and_no_columns(tmp_path):
    _, stored, scale = prepared(tmp_path / "raw", np.zeros((3, 2), np.float32), dtype="int8")
    assert not stored.any()
    assert scale.tolist() == [1, 1]
    for shape in ((4, 0), (0, 3)):
        _, stored, scale = prepared(tmp_path / "raw", np.zeros(shape, np.float32), dtype="int8")
        assert stored.shape == shape
        assert scale.shape == shape[1:]


def test_memory_changes_no_byte(tmp_path):
    x = np.random.default_rng(1).standard_normal((60_000, 40)).astype(np.float32)
    found = [prepared(tmp_path / "raw", x, dtype="int8", memory=m)[1:] for m in ("4MiB", None)]
    for small, large in zip(*found, strict=True):
        assert np.array_equal(small, large)


@pytest.mark.parametrize("dtype", ["uint8", "float32", "float64"])
def test_peak_of_memory_and_what_is_written_are_as_forecast(tmp_path, monkeypatch, dtype):
    peaks = []

    def watched(rows, writer, workspace, *arguments, **options):
        write_features(rows, writer, workspace, *arguments, **options)
        peaks.append(workspace.ledger.peak_bytes(Tier.HOST))  # edges take more later on

    monkeypatch.setattr("gnnx.prepare.build.write_features", watched)
    x = np.random.default_rng(2).integers(0, 256, (90_000, 128)).astype(dtype)
    prepared(tmp_path / "raw", x, dtype="int8")
    told = forecast(
        tmp_path / "raw/edges.npy", features=tmp_path / "raw/x.npy", dtype="int8"
    ).stages[0]
    nodes = tmp_path / "raw/out/nodes/node"
    written = sum((nodes / f"{name}.npy").stat().st_size for name in ("x", "x_scale"))
    assert told.name == "features"
    assert written == told.written_bytes
    assert 0.7 * told.memory_bytes < peaks[0] <= 1.1 * told.memory_bytes


def test_a_recipe_says_it(tmp_path):
    (tmp_path / "n.csv").write_text("id,a,b\nu,1,-2\nv,0.5,4\n")
    (tmp_path / "e.csv").write_text("src,dst\nu,v\n")
    (tmp_path / "r.toml").write_text(
        '[nodes]\nfiles = "n.csv"\nkey = "id"\nfeatures = ["a", "b"]\n'
        '[edges]\nfiles = "e.csv"\n[options]\ndtype = "int8"\n'
    )
    prepare(tmp_path / "r.toml", tmp_path / "out")
    assert np.load(tmp_path / "out/nodes/node/x.npy").tolist() == [[127, -64], [64, 127]]
    assert np.allclose(np.load(tmp_path / "out/nodes/node/x_scale.npy"), [1 / 127, 4 / 127])


def twin_of(scaled, twin):
    """Write a data set again with the values of its features as float32."""
    with gnnx.open(scaled) as dataset:
        arrays = {}
        for name in dataset.manifest.arrays:
            last = name.rpartition("/")[2]
            array = dataset.array(name)
            if last != "x_scale":
                arrays[last] = array.read_range(0, array.num_rows).clone()
        scale = np.load(scaled / "nodes/node/x_scale.npy")
        arrays["x"] = torch.from_numpy(arrays["x"].numpy().astype(np.float32) * scale)
        return write_dataset(twin, num_classes=dataset.num_classes, **arrays)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """One graph twice: int8 features with a scale, and float32 with the same values."""
    folder = tmp_path_factory.mktemp("scaled")
    synth(
        folder / "full",
        num_nodes=40_000,
        num_edges=240_000,
        num_features=50,
        num_classes=5,
        seed=1,
        split="0.02,0.01,0.97",
    )
    nodes = folder / "full" / "nodes" / "node"
    edges = folder / "full" / "edges" / "node-edge-node"
    indptr, indices = (np.load(edges / f"{name}.npy") for name in ("indptr", "indices"))
    rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    np.save(folder / "edges.npy", np.stack([indices, rows]))
    options = {name: nodes / f"{name}.npy" for name in ("train", "val", "test")}
    prepare(
        folder / "edges.npy", folder / "scaled", features=nodes / "x.npy", labels=nodes / "y.npy",
        dtype="int8", **options,
    )  # fmt: skip
    return folder / "scaled", twin_of(folder / "scaled", folder / "twin")


def trained(folder, epochs=2, **options):
    """Losses and test score of a training."""
    budget = {name: options.pop(name) for name in ("memory", "device_memory") if name in options}
    with gnnx.open(folder, **budget) as dataset:
        torch.manual_seed(3)
        model = SAGE(dataset.num_features, 16, dataset.num_classes, num_layers=2, dropout=0.2)
        options = {"fanouts": [5, 5], "batch_size": 64, "seed": 5} | options
        report = Trainer(model, dataset, **options).fit(epochs)
        return [epoch.loss for epoch in report.epochs], report.test_score


def test_the_file_is_a_quarter(pair):
    scaled, twin = (folder / "nodes" / "node" / "x.npy" for folder in pair)
    assert 3.9 < twin.stat().st_size / scaled.stat().st_size < 4


@pytest.mark.parametrize("memory", ["2500KiB", "4MiB", "1GiB"])
def test_training_is_that_of_the_twin(pair, memory):
    scaled, twin = pair
    assert trained(scaled, memory=memory) == trained(twin, memory="1GiB")


def test_training_in_bfloat16_is_that_of_the_twin(pair):
    assert trained(pair[0], autocast=torch.bfloat16) == trained(pair[1], autocast=torch.bfloat16)


@pytest.mark.parametrize("lookahead", ["auto", None])
def test_batches_have_values_and_what_they_took_is_counted(pair, lookahead):
    scaled, twin = pair
    with gnnx.open(scaled, memory="4MiB") as ours, gnnx.open(twin) as theirs:
        loaders = [
            gnnx.Loader(dataset, [5, 5], 64, seed=2, lookahead=lookahead)
            for dataset in (ours, theirs)
        ]
        for batch, expected in zip(*loaders, strict=True):
            assert batch.x.dtype == torch.float32
            assert torch.equal(batch.x, expected.x)
            assert torch.equal(batch.n_id, expected.n_id)
        assert loaders[0].stats.rows_requested == loaders[1].stats.rows_requested
        del batch, loaders
        limit = time.monotonic() + 10
        while ours.ledger.owners(Tier.DEVICE):  # a worker lets go of its last batch in its own time
            assert time.monotonic() < limit
            time.sleep(0.01)


@pytest.mark.parametrize("memory", ["3MiB", "1GiB"])
@pytest.mark.parametrize("device_memory", ["2MiB", None])
def test_outputs_and_scores_are_those_of_the_twin(pair, memory, device_memory):
    torch.manual_seed(0)
    model = SAGE(50, 8, 5, num_layers=2)
    nodes = np.arange(100, 900)
    with gnnx.open(pair[1]) as theirs:
        expected = infer(model, theirs, nodes=nodes)
        score = evaluate(model, theirs, "val")
    with gnnx.open(pair[0], memory=memory, device_memory=device_memory) as ours:
        found = infer(model, ours, nodes=nodes)
        # pieces of other sizes: the last bits of a dense product depend on its number of rows
        assert torch.allclose(found, expected, rtol=1e-5, atol=1e-6)
        assert evaluate(model, ours, "val").accuracy == score.accuracy


def test_parts_and_clusters(pair, tmp_path):
    for folder, name in zip(pair, ("scaled", "twin"), strict=True):
        partition(folder, tmp_path / name, num_parts=8, method="stream")
    parts = tmp_path / "scaled", tmp_path / "twin"
    assert verify(parts[0]) == []
    scale = [(folder / "nodes/node/x_scale.npy").read_bytes() for folder in (pair[0], parts[0])]
    assert scale[0] == scale[1]
    found = [trained(folder, clusters_per_batch=2, memory="8MiB") for folder in parts]
    assert found[0] == found[1]


def test_export_takes_pieces_of_values_that_are_no_larger(pair, monkeypatch):
    rows = []
    read = DiskFeatures.read_range

    def watched(self, begin, end, out=None):
        rows.extend([end - begin] * (self.path.name == "x.npy"))
        return read(self, begin, end, out)

    monkeypatch.setattr(DiskFeatures, "read_range", watched)
    monkeypatch.setattr("gnnx.export._PIECE_BYTES", 1 << 20)
    with gnnx.open(pair[0]) as dataset:
        export(dataset, pair[0].parent / "pieces.parquet")
    assert sum(rows) == 40_000
    assert max(rows) * 50 * 5 <= 1 << 20  # a byte as stored, four as a value


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_export_gives_values(pair, tmp_path, suffix):
    for folder, name in zip(pair, ("scaled", "twin"), strict=True):
        with gnnx.open(folder) as dataset:
            export(dataset, tmp_path / f"{name}.{suffix}")
    files = [tmp_path / f"{name}.{suffix}" for name in ("scaled", "twin")]
    if suffix == "parquet":
        assert pq.read_table(files[0]).equals(pq.read_table(files[1]))
    else:
        assert files[0].read_bytes() == files[1].read_bytes()


def test_typed_graphs(tmp_path):
    rng = np.random.default_rng(4)
    counts, kinds = {"a": 3000, "b": 500}, [("a", "of", "b"), ("b", "has", "a")]
    edges = {}
    for src, _, dst in kinds:
        degree = rng.integers(0, 6, counts[dst])
        indptr = np.concatenate([[0], np.cumsum(degree)])
        edges[src, "of" if dst == "b" else "has", dst] = (
            indptr, rng.integers(0, counts[src], indptr[-1])
        )  # fmt: skip
    q, scale = rng.integers(-127, 128, (3000, 9)).astype(np.int8), rng.random(9).astype(np.float32)
    y, train = rng.integers(0, 3, 500), np.arange(0, 500, 3)
    rest = {"y": y, "train": train, "val": train + 1, "test": train[:-1] + 2}
    rest["val"] = rest["val"][rest["val"] < 500]
    values = {"scaled": {"x": q, "x_scale": scale}, "twin": {"x": q.astype(np.float32) * scale}}
    found = []
    for name, x in values.items():
        nodes = {"a": (3000, 0, x), "b": (500, 3, rest)}
        path = write_typed_dataset(tmp_path / name, nodes, edges)
        with gnnx.open(path, memory="8MiB") as dataset:
            torch.manual_seed(1)
            widths = {"a": 9, "b": 1}
            model = HeteroSAGE(widths, 8, 3, 2, kinds, "b")
            report = Trainer(model, dataset, fanouts=[4, 4], batch_size=32, seed=1).fit(2)
            outputs = infer(model, dataset, nodes=np.arange(0, 500, 2))
            found.append(([e.loss for e in report.epochs], report.test_score, outputs))
    assert found[0][:2] == found[1][:2]
    assert torch.equal(found[0][2], found[1][2])


def damaged(path, **changes):
    """Change array entries of a manifest, which stays whole."""
    document = json.loads((path / "manifest.json").read_text())
    for name, change in changes.items():
        entry = document["arrays"][f"nodes/node/{name}"]
        entry |= change
    return Manifest._parse(document)


@pytest.mark.parametrize(
    "changes",
    [
        {"x": {"dtype": "uint8"}},
        {"x_scale": {"dtype": "int32"}},
        {"x_scale": {"shape": [49], "bytes": 196}},
        {"x_scale": {"shape": [50, 1]}},
    ],
)
def test_a_scale_that_does_not_fit_its_features_is_refused(pair, changes):
    with pytest.raises(DataError, match=r"^nodes/node/x_scale: .* for features "):
        damaged(pair[0], **changes).check()


def test_a_scale_without_features_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"^nodes/node/x_scale: float32 \(3,\) for features none"):
        write_dataset(tmp_path / "out", num_nodes=5, x_scale=np.ones(3, np.float32))


@pytest.mark.parametrize("wrong", [0.0, -1.0, np.nan, np.inf])
def test_a_damaged_scale_is_named(tmp_path, wrong):
    scale = np.array([1, wrong, 2], np.float32)
    path = write_dataset(tmp_path / "out", x=np.ones((4, 3), np.int8), x_scale=scale)
    with (
        gnnx.open(path) as dataset,
        pytest.raises(DataError, match=rf"x_scale.npy: scale {float(wrong)} of column 1"),
    ):
        infer(SAGE(3, 2, 2, num_layers=1), dataset)
