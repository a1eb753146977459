"""``gnnx bench io``: reads in three ways, and says how much."""

import json

import pytest
from typer.testing import CliRunner

import gnnx
from gnnx.cli import app
from gnnx.prepare import synth
from gnnx.store import try_reads
from gnnx.store.trial import DENSITIES, WAYS

ROWS, WIDTH = 20_000, 32


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "synth"
    synth(path, num_nodes=ROWS, num_edges=20_000, num_features=WIDTH, num_classes=2)
    return path


def test_the_ways_read_what_they_say(folder):
    with gnnx.open(folder, memory="64MiB") as dataset:
        gap = dataset.io.gap_bytes
        trials = try_reads(dataset, dataset.features, 1e6)  # no limit: the whole file each time
        assert dataset.io.gap_bytes == gap
        assert sum(t.bytes_read for t in trials) == dataset.features.file.bytes_read
    assert [(t.density, t.way) for t in trials] == [(d, w) for d in DENSITIES for w in WAYS]
    for density, few, some, all_ in zip(DENSITIES, *[iter(trials)] * 3, strict=True):
        for trial in few, some, all_:
            assert trial.rows == pytest.approx(density * ROWS, rel=0.5)
        assert few.reads >= some.reads >= all_.reads
        assert few.bytes_read <= 1.5 * some.bytes_read
        assert all_.bytes_read <= ROWS * WIDTH * 4 + 2 * 4096


def test_the_verb(folder):
    result = CliRunner().invoke(app, ["bench", "io", str(folder), "--seconds", "0.2", "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["row_bytes"] == 4 * WIDTH
    assert document["bytes_read"] == sum(trial["bytes_read"] for trial in document["trials"]) > 0
    assert len(document["trials"]) == len(DENSITIES) * len(WAYS)
    shown = CliRunner().invoke(app, ["bench", "io", str(folder), "--seconds", "0.2"])
    assert "were read" in shown.stdout
    missing = CliRunner().invoke(app, ["bench", "io", str(folder / "none")])
    assert missing.exit_code == 3
