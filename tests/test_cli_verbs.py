"""The verbs on real datasets: documents, exit codes, and what is left behind."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from gnnx.cli import app
from gnnx.memory import Budget, Ledger
from gnnx.store import DatasetWriter

runner = CliRunner()


def run(*words: object, code: int = 0) -> dict:
    """Document of a verb, which has to end with the code."""
    result = runner.invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def write_graph(folder: Path, *, val: int = 40, labelled: bool = True) -> Path:
    """A ring of 200 nodes with chords and two classes that the features show."""
    num_nodes = 200
    nodes = np.arange(num_nodes)
    rng = np.random.default_rng(0)
    label = nodes // 100
    indices = np.stack([(nodes + 1) % num_nodes, (nodes - 1) % num_nodes, nodes // 2], 1)
    x = rng.normal(size=(num_nodes, 8)) + 2 * label[:, None]
    test = 160 + np.arange(40)
    arrays = {
        "nodes/node/x": x.astype(np.float32),
        "nodes/node/train": nodes[: 160 - val],
        "nodes/node/val": nodes[160 - val : 160],
        "nodes/node/test": test,
        "edges/node-edge-node/indptr": 3 * np.arange(num_nodes + 1),
        "edges/node-edge-node/indices": np.sort(indices, 1).ravel().astype(np.int32),
    }
    if labelled:
        arrays["nodes/node/y"] = label
    with DatasetWriter(folder, ledger=Ledger(Budget.parse("64MiB"))) as writer:
        writer.nodes("node", num_nodes, num_classes=2 if labelled else 0)
        writer.edges(("node", "edge", "node"), indices.size)
        for name, array in arrays.items():
            writer.array(name, array.shape, str(array.dtype)).append(array)
        writer.commit()
    return folder


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> Path:
    return write_graph(tmp_path_factory.mktemp("data") / "graph")


def test_info(graph):
    document = run("info", graph)
    assert document["command"] == "info"
    assert (document["num_nodes"], document["num_edges"]) == (200, 600)
    assert (document["num_features"], document["num_classes"]) == (8, 2)
    assert document["splits"] == {"train": 120, "val": 40, "test": 40}
    entry = {"shape": [200, 8], "dtype": "float32", "bytes": 6400}
    assert document["arrays"]["nodes/node/x"] == entry


def test_info_for_people(graph):
    result = runner.invoke(app, ["info", str(graph)])
    assert result.exit_code == 0
    assert "200" in result.stdout
    assert "nodes/node/x" in result.stdout


@pytest.mark.parametrize("verb", ["info", "verify", "train"])
def test_no_such_dataset(tmp_path, verb):
    error = run(verb, tmp_path / "none", code=3)["error"]
    assert error["kind"] == "DataError"
    assert str(tmp_path / "none") in error["cause"]


def test_verify_names_the_damaged_page(tmp_path):
    folder = write_graph(tmp_path / "graph")
    assert run("verify", folder)["problems"] == []
    with (folder / "nodes/node/x.npy").open("r+b") as file:
        file.seek(5000)
        file.write(b"\0damage\0")
    (problem,) = run("verify", folder, code=3)["problems"]
    assert problem["file"].endswith("nodes/node/x.npy")
    assert problem["page"] == 0
    result = runner.invoke(app, ["verify", str(folder), "--quiet"])
    assert result.exit_code == 3
    assert "nodes/node/x.npy: page 0" in result.stdout
