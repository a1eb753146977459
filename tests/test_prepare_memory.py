"""Preparation within its budget, seen from outside: resident bytes of a process of its own."""

import json
import subprocess
import sys

import numpy as np
import pytest

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
    else:
        source = folder + ("/edges.txt.gz" if scale == 1 else "/few.txt.gz")
        prepare(source, folder + "/out", num_nodes=150_000, features=folder + "/x.npy",
                undirected=True, self_loops="add", memory=memory, overwrite=True)

run(1000, "64MiB")  # compiles, or loads what is compiled
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak of resident bytes begins anew
base = rss_bytes()
run(1, memory)
peak = ledgers[-1].peak_bytes(Tier.HOST)
print(json.dumps({"growth": peak_rss_bytes() - base, "peak": peak}))
"""


@pytest.mark.parametrize("verb", ["synth", "prepare"])
@pytest.mark.parametrize("mebibytes", [8, 24])
def test_resident_bytes_stay_in_the_budget(tmp_path, verb, mebibytes):
    if verb == "prepare":
        rng = np.random.default_rng(0)
        np.save(tmp_path / "x.npy", rng.random((150_000, 64)))
        edges = rng.integers(0, 150_000, (600_000, 2))
        np.savetxt(tmp_path / "edges.txt.gz", edges, "%d")
        np.savetxt(tmp_path / "few.txt.gz", edges[:1000], "%d")
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path), verb, f"{mebibytes}MiB"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    sizes = json.loads(run.stdout)
    assert sizes["peak"] <= mebibytes << 20
    # 2 MiB: what Python's own objects and a gzip stream take
    assert sizes["growth"] <= 1.05 * (mebibytes << 20) + (2 << 20)
