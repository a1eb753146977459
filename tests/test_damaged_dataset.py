"""Any file of a dataset, damaged: verify finds it, other verbs do their work or name the file."""

import numpy as np
import pytest
from typer.testing import CliRunner

import gnnx
from gnnx.cli import app
from gnnx.errors import DataError
from gnnx.prepare import synth

N, E = 120, 900
RECIPE = """
[nodes]
files = "nodes.csv"
key = "id"
features = ["a", "b"]
label = "label"
split = "split"
[edges]
files = "edges.csv"
src = "src"
dst = "dst"
weight = "w"
"""
TRAIN = ["--edge-weight", "--hidden", 8, "--fanouts", 3, "--epochs", 1, "--memory", "64MiB"]
TRAIN += ["--quiet"]


def run(*words):
    """Code and lines of a verb; anything but an exit would be a traceback."""
    result = CliRunner().invoke(app, [*map(str, words)])
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A dataset with keys, names, labels, splits and weights; the same in parts; a model."""
    pytest.importorskip("duckdb")
    folder = tmp_path_factory.mktemp("damaged")
    rng = np.random.default_rng(0)
    nodes = [
        f"k{i},{rng.random()},{rng.random()},c{i % 3},{('train', 'val', 'test')[i // 40]}"
        for i in range(N)
    ]
    (folder / "nodes.csv").write_text("\n".join(["id,a,b,label,split", *nodes, ""]))
    edges = [f"k{u},k{v},{rng.random()}" for u, v in rng.integers(0, N, (E, 2))]
    (folder / "edges.csv").write_text("\n".join(["src,dst,w", *edges, ""]))
    (folder / "recipe.toml").write_text(RECIPE)
    limit = "--memory", "256MiB", "--quiet"
    assert run("prepare", folder / "recipe.toml", folder / "whole", *limit)[0] == 0
    assert run("partition", folder / "whole", folder / "parted", "--parts", 3, *limit)[0] == 0
    model = "--checkpoint", folder / "model"
    assert run("train", folder / "whole", *TRAIN, *model)[0] == 0
    return folder


def verbs(root, name):
    graph, limit = root / name, ("--memory", "64MiB")
    return {
        "info": ("info", graph),
        "train": ("train", graph, *TRAIN),
        "infer": ("infer", graph, "--checkpoint", root / "model", "--out", root / "o.npy", *limit),
        "nodes": ("export", graph, root / "nodes-out.csv", *limit),
        "edges": ("export", graph, root / "edges-out.csv", "--what", "edges", *limit),
    }


def flipped(data, at):
    changed = bytearray(data)
    changed[at] ^= 0x80
    return changed


# What becomes of a file of these bytes.
DAMAGES = {
    "a bit of the header": lambda file, data: file.write_bytes(flipped(data, 60)),
    "a high bit of the first value": lambda file, data: file.write_bytes(flipped(data, 4096 + 7)),
    "the highest bit": lambda file, data: file.write_bytes(flipped(data, len(data) - 1)),
    "a middling bit": lambda file, data: file.write_bytes(flipped(data, (4095 + len(data)) // 2)),
    "a byte less": lambda file, data: file.write_bytes(data[:-1]),
    "empty": lambda file, _data: file.write_bytes(b""),
    "gone": lambda _file, _data: None,
    "a folder": lambda file, _data: file.mkdir(),
    "a link to nowhere": lambda file, _data: file.symlink_to("nowhere"),
}


# Two minutes in all: by default those that a size does not tell, and a size that does.
_QUICK = ("a high bit of the first value", "a byte less")


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "damage",
    [
        damage if damage in _QUICK else pytest.param(damage, marks=pytest.mark.slow)
        for damage in DAMAGES
    ],
)
@pytest.mark.parametrize("name", ["whole", "parted"])
def test_every_file_damaged(root, name, damage):
    files = sorted(file for file in (root / name).rglob("*") if file.is_file())
    if name == "parted":  # what the other has not
        files = [
            file for file in files if not (root / "whole" / file.relative_to(root / name)).exists()
        ]
    assert len(files) > 4
    for file in files:
        data = file.read_bytes()
        is_array = file.suffix == ".npy"
        if "bit" in damage and (not is_array or len(data) < 4096 + 8):
            continue
        file.unlink()
        DAMAGES[damage](file, data)
        try:
            code, out, err = run("verify", root / name, "--quiet")
            harmless = (file.name, damage) == ("manifest.json", "a byte less")  # an end of line
            assert code == (0 if harmless else 3), file
            assert harmless or file.name in out + err or file.name == "manifest.json"
            for verb, words in verbs(root, name).items():
                if file.suffix == ".crc":  # for verify alone
                    continue
                code, out, err = run(*words)
                assert code in ({0, 3} if "bit" in damage or harmless else {3}), (verb, file, err)
                if code == 3:
                    assert len(err.splitlines()) == 2, (verb, file, err)
                    assert file.name in err or file.name == "manifest.json", (verb, file, err)
        finally:
            if file.is_dir():
                file.rmdir()
            file.unlink(missing_ok=True)
            file.write_bytes(data)
    assert run("verify", root / name, "--quiet")[0] == 0


@pytest.mark.parametrize("at", [4096 + 7, -1])
def test_a_damaged_order_of_keys_is_named(root, at):
    """The ids before the nodes were put into parts, and the order by which keys are looked up."""
    with gnnx.open(root / "whole", memory="64MiB") as dataset:
        keys = dataset.keys.of(np.arange(N))
        assert np.array_equal(dataset.keys.ids(keys), np.arange(N))
    file = root / "whole" / "nodes" / "node" / "key_order.npy"
    data = file.read_bytes()
    file.write_bytes(flipped(data, at))
    try:
        refused = pytest.raises(DataError, match=r"key_order\.npy: node -\d+ among 120 nodes")
        with gnnx.open(root / "whole", memory="64MiB") as dataset, refused:
            dataset.keys.ids(keys)
    finally:
        file.write_bytes(data)


def test_damaged_ids_of_before_are_not_exported(tmp_path):
    sizes = {"num_nodes": N, "num_edges": E, "num_features": 3, "num_classes": 3}
    synth(tmp_path / "made", **sizes, memory="64MiB")
    assert run("partition", tmp_path / "made", tmp_path / "parted", "--parts", 3, "--quiet")[0] == 0
    file = tmp_path / "parted" / "nodes" / "node" / "id.npy"
    file.write_bytes(flipped(file.read_bytes(), -1))
    code, _, err = run("export", tmp_path / "parted", tmp_path / "out.csv")
    assert (code, len(err.splitlines())) == (3, 2)
    assert f"{file}: node -" in err
    assert not (tmp_path / "out.csv").exists()
