"""Processes forked in the middle of an epoch, and datasets sent to workers: no endless wait."""

import multiprocessing
import pickle
import subprocess
import sys

import numpy as np
import pytest

import gnnx
from conformance import write_dataset
from gnnx.errors import UsageError
from test_loader import write

SMALL = {
    "x": np.ones((3, 2), np.float32),
    "y": np.zeros(3, np.int64),
    "train": np.arange(3),
    "indptr": np.array([0, 1, 2, 2]),
    "indices": np.array([1, 0], np.int32),
    "num_classes": 2,
}
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

# The parent computes with torch's OpenMP and holds locks in another thread, which a child has not.
_FORKED = """
import os, signal, sys, threading, time, zlib
import torch
import gnnx
from gnnx.errors import RunError

torch.set_num_threads(2)
dataset = gnnx.open(sys.argv[1], memory="64MiB")

def new():
    return gnnx.Loader(dataset, [3, 3], 50, degrees=True)

def sums(batches):
    return [(zlib.crc32(batch.x.numpy()), int(batch.n_id.sum())) for batch in batches]

torch.ones(1 << 20).sum()
expected = sums(new())
loader = new()
batches = iter(loader)
found = sums([next(batches)])
inside, over = threading.Event(), threading.Event()

def hold():
    with dataset._lock, dataset.graph._lock, loader.features._lock:
        inside.set()
        over.wait(60)

thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(40)
    begin, code = time.monotonic(), 1
    try:
        next(batches)
    except RunError as error:
        code = 0 if "forked" in error.cause and time.monotonic() - begin < 5 else 2
    if code == 0 and not sums(loader) == sums(new()) == expected:
        code = 3
    if code == 0 and float(torch.ones(1 << 20).sum()) != 1 << 20:
        code = 4
    os._exit(code)
over.set()
thread.join()
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
assert found + sums(batches) == expected  # the parent goes on
sys.exit(status)
"""


def test_a_child_forked_inside_an_epoch(tmp_path):
    path = write(tmp_path / "graph")
    run = [sys.executable, "-W", "ignore", "-c", _FORKED, str(path)]
    subprocess.run(run, check=True, timeout=100)


def read_in_a_worker(dataset):
    with dataset:
        rows = dataset.features.read(np.arange(0, dataset.num_nodes, 7))
        batches = [int(batch.n_id.sum()) for batch in gnnx.Loader(dataset, [3], 50)]
        return rows.numpy().tobytes(), batches, dataset.ledger.budget, dataset.io.timeout_s


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_dataset_sent_to_a_worker_is_opened_anew(tmp_path, method):
    path = write(tmp_path / "graph")
    with gnnx.open(path, memory="64MiB", device_memory="32MiB", io_timeout_s=77) as dataset:
        expected = read_in_a_worker(pickle.loads(pickle.dumps(dataset)))
        assert expected[2:] == (dataset.ledger.budget, 77)
        with multiprocessing.get_context(method).Pool(1) as pool:
            found = pool.apply_async(read_in_a_worker, (dataset,)).get(timeout=100)
        assert found == expected


@pytest.mark.parametrize("part", ["features", "graph", "loader", "ledger"])
def test_what_has_memory_is_not_sent(tmp_path, part):
    path = write_dataset(tmp_path / "graph", **SMALL)
    with gnnx.open(path, memory="64MiB") as dataset:
        if part == "loader":
            thing = gnnx.Loader(dataset, [3], 2)
        else:
            thing = getattr(dataset, part)
        with pytest.raises(UsageError, match="another process"):
            pickle.dumps(thing)
