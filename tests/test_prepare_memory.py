"""Preparation within its budget, seen from outside: resident bytes of a process of its own."""

import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from gnnx.errors import BudgetError
from gnnx.partition import partition
from gnnx.prepare import prepare, synth

SCRIPT = """
import json, sys
from gnnx.memory import Ledger, Tier, peak_rss_bytes, rss_bytes
from gnnx.prepare import prepare, synth

ledgers, init = [], Ledger.__init__
Ledger.__init__ = lambda self, budget: (ledgers.append(self), init(self, budget))[1]
folder, verb, memory = sys.argv[1:]

def run(scale, memory):
    if verb == "synth":
        synth(folder + "/out", num_nodes=150_000 // scale, num_edges=1_500_000 // scale,
              num_features=64, num_classes=4, memory=memory, overwrite=True)
    elif verb == "tables":
        source = folder + ("/edges.toml" if scale == 1 else "/few.toml")
        prepare(source, folder + "/out", memory=memory, overwrite=True)
    else:
        source = folder + ("/edges.txt.gz" if scale == 1 else "/few.txt.gz")
        prepare(source, folder + "/out", num_nodes=150_000, features=folder + "/x.npy",
                undirected=True, self_loops="add", memory=memory, overwrite=True)

run(1000, "96MiB")  # compiles, or loads what is compiled
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak of resident bytes begins anew
base = rss_bytes()
run(1, memory)
peak = ledgers[-1].peak_bytes(Tier.HOST)
print(json.dumps({"growth": peak_rss_bytes() - base, "peak": peak}))
"""


def measured(folder, verb, memory):
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), verb, memory],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_tables_stay_in_the_budget(tmp_path):
    rng = np.random.default_rng(0)
    keys = np.char.add("customer-", rng.permutation(400_000).astype("U9"))
    ends = rng.integers(0, len(keys), (2, 1_500_000))
    pq.write_table(pa.table({"id": keys}), tmp_path / "nodes.parquet")
    edges = pa.table({"src": keys[ends[0]], "dst": keys[ends[1]]})
    for name, rows in (("edges", edges), ("few", edges[:1000])):
        pq.write_table(rows, tmp_path / f"{name}.parquet")
        (tmp_path / f"{name}.toml").write_text(
            f'nodes = {{files = "nodes.parquet", key = "id"}}\nedges = {{files = "{name}.parquet"}}'
        )
    sizes = measured(tmp_path, "tables", "96MiB")
    assert sizes["peak"] <= 96 << 20
    # 16 MiB: what DuckDB takes beside the memory that it counts
    assert sizes["growth"] <= (96 + 16) << 20


@pytest.mark.parametrize("verb", ["synth", "prepare"])
@pytest.mark.parametrize("mebibytes", [8, 24])
def test_resident_bytes_stay_in_the_budget(tmp_path, verb, mebibytes):
    if verb == "prepare":
        rng = np.random.default_rng(0)
        np.save(tmp_path / "x.npy", rng.random((150_000, 64)))
        edges = rng.integers(0, 150_000, (600_000, 2))
        np.savetxt(tmp_path / "edges.txt.gz", edges, "%d")
        np.savetxt(tmp_path / "few.txt.gz", edges[:1000], "%d")
    sizes = measured(tmp_path, verb, f"{mebibytes}MiB")
    assert sizes["peak"] <= mebibytes << 20
    # 2 MiB: what Python's own objects and a gzip stream take
    assert sizes["growth"] <= 1.05 * (mebibytes << 20) + (2 << 20)


def test_a_budget_that_is_refused_is_told_one_that_works(tmp_path):
    """Of every verb that writes a dataset; tables say what DuckDB takes."""
    rng, made = np.random.default_rng(0), tmp_path / "made"
    ends = rng.integers(0, 20_000, (200_000, 2))
    np.savetxt(tmp_path / "edges.txt", ends, "%d")
    np.save(tmp_path / "edges.npy", ends)
    np.save(tmp_path / "x.npy", rng.random((20_000, 64)))
    synth(made, num_nodes=20_000, num_edges=200_000, num_features=8, num_classes=2)
    works = {
        "synth": lambda **options: synth(
            num_nodes=20_000, num_edges=200_000, num_features=8, num_classes=2, **options
        ),
        "text": lambda **options: prepare(
            tmp_path / "edges.txt", num_nodes=20_000, undirected=True, duplicates="drop", **options
        ),
        "arrays": lambda **options: prepare(
            tmp_path / "edges.npy", num_nodes=20_000, features=tmp_path / "x.npy", **options
        ),
        "stream": lambda **options: partition(made, num_parts=8, method="stream", **options),
        "random": lambda **options: partition(made, num_parts=8, method="random", **options),
    }
    for name, work in works.items():
        with pytest.raises(BudgetError, match=r"^host memory") as refused:
            work(out=tmp_path / name, memory="100KiB")
        assert refused.value.remedy == "Give --memory at least 16MiB."
        work(out=tmp_path / name, memory=refused.value.smallest_bytes)


@pytest.mark.slow
def test_large_text_with_keys_fits_a_small_budget(tmp_path):
    """Its reader pins several buffers, of 31 MiB each unless it is told better."""
    keys = np.char.add("customer-", np.arange(200_000).astype("U6"))
    ends = np.random.default_rng(0).integers(0, len(keys), (2, 3_000_000))
    table = pa.table({"src": pa.array(keys).take(ends[0]), "dst": pa.array(keys).take(ends[1])})
    pyarrow.csv.write_csv(table, tmp_path / "e.csv")
    (tmp_path / "e.toml").write_text('[edges]\nfiles = ["e.csv"]\n')
    report = prepare(tmp_path / "e.toml", tmp_path / "out", memory="256MiB")
    assert (report.num_nodes, report.edges_read) == (200_000, 3_000_000)
