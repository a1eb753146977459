"""The disk is measured once, on a file that is large enough, and its figures are kept."""

import json

import numpy as np
import pytest
import torch

import gnnx
from conformance import random_table, write_dataset
from gnnx.cache import Demand, choose
from gnnx.store import GAP_BYTES, Disk, calibrate, disk, known

RATES = {4096: 50_000.0, 16384: 40_000.0, 65536: 15_000.0, 262144: 6_000.0, 1 << 20: 2_000.0}


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    monkeypatch.setenv("GNNX_CACHE_DIR", str(tmp_path / "cache"))
    path = write_dataset(tmp_path / "graph", x=random_table(20_000, (64,), torch.float32))
    with gnnx.open(path, memory="16MiB") as opened:
        yield opened


def measured(dataset):
    return calibrate(dataset.features.file, dataset.io, dataset.ledger)


def test_a_small_file_tells_nothing(dataset, tmp_path):
    found = measured(dataset)
    assert (found.reads_per_s, found.bytes_per_s, found.gap_bytes) == ({}, None, GAP_BYTES)
    assert dataset.io.num_reads == 0
    assert not (tmp_path / "cache").exists()


def test_a_disk_is_measured_once(dataset, monkeypatch):
    monkeypatch.setattr(disk, "_SMALLEST_FILE", 1)
    held = dataset.ledger.owners
    found = measured(dataset)
    assert set(found.reads_per_s) == set(disk.SIZES)
    assert min(found.reads_per_s.values()) > 0
    reads = dataset.io.num_reads
    assert reads > len(disk.SIZES)
    assert measured(dataset) == found
    assert dataset.io.num_reads == reads
    assert known(dataset.path) == {dataset.io.num_readers: found}
    assert "calibration" not in {owner for tier in gnnx.memory.Tier for owner in held(tier)}


@pytest.mark.parametrize(
    "content", ["", "{", "[1]", "{}", '{"4096": 1}', json.dumps(dict.fromkeys(disk.SIZES, 0))]
)
def test_what_is_kept_and_damaged_is_measured_anew(dataset, monkeypatch, content):
    monkeypatch.setattr(disk, "_SMALLEST_FILE", 1)
    kept = disk._kept_in(dataset.path, dataset.io.num_readers)
    kept.parent.mkdir()
    kept.write_text(content)
    assert known(dataset.path) == {}
    assert measured(dataset) == known(dataset.path)[dataset.io.num_readers]


def test_a_cache_folder_that_cannot_be_written_costs_a_measurement(dataset, monkeypatch, tmp_path):
    monkeypatch.setattr(disk, "_SMALLEST_FILE", 1)
    (tmp_path / "cache").write_text("a file")
    assert measured(dataset).bytes_per_s > 0


def test_no_memory_to_measure_with_means_the_default(dataset, monkeypatch):
    monkeypatch.setattr(disk, "_SMALLEST_FILE", 1)
    free = dataset.ledger.free_bytes(gnnx.memory.Tier.HOST)
    with dataset.ledger.reserve(free - (1 << 20), gnnx.memory.Tier.HOST, "somebody"):
        assert measured(dataset) == Disk({})


def test_a_gap_is_what_a_read_costs_beside_its_bytes():
    assert Disk(RATES).bytes_per_s == 2_000 * 2**20
    assert Disk(RATES).gap_bytes == (2_000 * 2**20 // 50_000 - 4096) // 4096 * 4096
    slow = dict.fromkeys(RATES, 100.0)  # a disk that turns
    assert Disk(slow).gap_bytes == 256 << 10
    alike = {size: 1e9 / size for size in RATES}  # reads cost their bytes alone
    assert Disk(alike).gap_bytes == 0


def test_dearer_reads_favour_looking_ahead():
    scores = np.random.default_rng(0).pareto(1.5, 10**6)
    demand = Demand.of(np.minimum(scores * 10_000 / scores.sum(), 1).astype(np.float32))
    costs = [
        choose(48 << 20, demand, 10**6, 512, 400, gap_bytes=gap, kinds=kinds).cost_bytes
        for gap in (4 << 10, 256 << 10)
        for kinds in (("rows",), ("rows", "windows", "packs"))
    ]
    assert costs[3] / costs[2] < costs[1] / costs[0]
