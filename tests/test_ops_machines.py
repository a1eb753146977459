"""Kernels as they are compiled for other machines, and kept on disk for other processes."""

import multiprocessing
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import oracles
from gnnx import ops, threads

WIDTHS = [1, 2, 3, 5, 7, 8, 9, 16, 17, 33, 64, 100, 129]
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
MACHINES = {
    "avx2": {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+sse4.2,+avx2,+fma,+f16c"},
    "plain": {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": "+sse2"},
}


def results(dtypes):
    """Everything that is made of vectors, at widths that end in every way."""
    indptr, indices = map(torch.from_numpy, oracles.random_csr(0, 30, 20, 200))
    rng = np.random.default_rng(0)
    out = []
    for dtype in dtypes:
        weight = torch.from_numpy(rng.random(200)).to(dtype)
        for width in WIDTHS:
            x = torch.from_numpy(rng.standard_normal((20, width))).to(dtype)
            y = torch.from_numpy(rng.standard_normal((30, width))).to(dtype)
            out += [ops.spmm(indptr, indices, x, weight, reduce=r) for r in ("sum", "mean", "max")]
            out += [ops.spmm(indptr, indices, x), ops.sddmm(indptr, indices, y, x)]
    return out


_SAVE = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import test_ops_machines as tests
torch.save(tests.results(tests.DTYPES[: int(sys.argv[3])]), sys.argv[2])
"""


def run(code, *args, **env):
    env = {**os.environ, **env}
    subprocess.run([sys.executable, "-c", code, *map(str, args)], env=env, check=True, timeout=110)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="kinds of x86-64 machines")
@pytest.mark.parametrize("machine", MACHINES)
def test_other_machines_agree(machine, tmp_path):
    path = tmp_path / "results.pt"
    run(_SAVE, os.path.dirname(__file__), path, len(DTYPES), **MACHINES[machine])
    for there, here in zip(torch.load(path), results(DTYPES), strict=True):
        step = torch.finfo(here.dtype).eps
        assert there.dtype == here.dtype
        assert torch.allclose(there, here, rtol=4 * step, atol=200 * step)


_COUNT = """
import time
import torch
from gnnx import ops
from gnnx.ops._numba import edges, reduce
indptr, indices, x = torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1, 3)
begin = time.process_time()  # of all threads; a busy machine changes the time on the wall
ops.spmm(indptr, indices, x)
ops.sddmm(indptr, indices, x, x)
seconds = time.process_time() - begin
made = reduce._sum_rows, edges._dot_edges
print(sum(len(k.stats.cache_misses) for k in made), sum(len(k.stats.cache_hits) for k in made))
print(seconds)
"""


def test_kernels_with_vectors_are_kept_where_told(tmp_path):
    """The second process compiles nothing and is quick; the first wrote nowhere else."""
    env = {**os.environ, "GNNX_CACHE_DIR": str(tmp_path)}
    for wanted in ("2 0", "0 2"):
        done = subprocess.run(
            [sys.executable, "-c", _COUNT],
            env=env,
            check=True,
            timeout=110,
            capture_output=True,
            text=True,
        )
        found, seconds = done.stdout.split("\n", 1)
        assert found == wanted
    assert float(seconds) < 2
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".nbi", ".nbc"}


def mean_of_ones(num_threads):
    """What a worker computes, with threads of gnnx; torch's own hang after a fork."""
    threads.set_num_threads(num_threads)
    torch.set_num_threads(1)
    indptr = torch.arange(0, 40_001, 4)
    return float(ops.spmm(indptr, torch.arange(40_000) % 7, torch.ones(7, 64), reduce="mean").sum())


@pytest.fixture
def _threads_as_before():
    before, torch_before = threads.num_threads(), torch.get_num_threads()
    yield
    threads.set_num_threads(before)
    torch.set_num_threads(torch_before)


@pytest.mark.usefixtures("_threads_as_before")
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers(method):
    """Kernels run in a child whose parent's pool was busy, and in one that starts anew."""
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    assert mean_of_ones(2) == 640_000
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert pool.apply_async(mean_of_ones, (2,)).get(timeout=100) == 640_000
