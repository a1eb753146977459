"""Kernels as they are compiled for other machines, and kept on disk for other processes."""

import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import gnnx
import oracles
from gnnx import ops, threads

WIDTHS = [1, 2, 3, 5, 7, 8, 9, 16, 17, 33, 64, 100, 129]
_CACHES = shutil.ignore_patterns("__pycache__")
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
import multiprocessing, time
import torch
import gnnx
from gnnx import ops
from gnnx.ops._numba import edges, reduce

def first_calls():
    indptr, indices, x = torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1, 3)
    begin = time.process_time()  # of all threads; a busy machine changes the time on the wall
    ops.spmm(indptr, indices, x)
    ops.sddmm(indptr, indices, x, x)
    seconds = time.process_time() - begin
    made = [kernel.stats for kernel in (reduce._sum_rows, edges._dot_edges)]
    misses, hits = (sum(map(len, counts)) for counts in zip(*(
        (stats.cache_misses, stats.cache_hits) for stats in made)))
    return misses, hits, seconds

if __name__ == "__main__":
    print(gnnx.__file__)
    for method in ("spawn", "fork"):  # the fork has nothing loaded: the parent calls last
        if method in multiprocessing.get_all_start_methods():
            with multiprocessing.get_context(method).Pool(1) as pool:
                print(*pool.apply_async(first_calls).get(timeout=100))
    print(*first_calls())
"""


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_kernels_with_vectors_are_kept_where_told(tmp_path):
    """From a read-only install one process compiles; all others, workers too, are quick."""
    install, cache = tmp_path / "install", tmp_path / "cache"
    shutil.copytree(Path(gnnx.__file__).parent, install / "gnnx", ignore=_CACHES)
    (tmp_path / "count.py").write_text(_COUNT)
    for path in [install, *install.rglob("*")]:
        path.chmod(path.stat().st_mode & ~0o222)
    before = sorted(install.rglob("*"))
    env = {
        **os.environ,
        "GNNX_CACHE_DIR": str(cache),
        "PYTHONPATH": str(install),
        "PYTHONDONTWRITEBYTECODE": "1",  # root may write everywhere
    }
    command = [sys.executable, tmp_path / "count.py"]
    done = subprocess.run(
        command, env=env, check=True, timeout=200, capture_output=True, text=True, cwd=tmp_path
    )
    where, first, *later = done.stdout.splitlines()
    assert Path(where).is_relative_to(install)
    assert first.split()[:2] == ["2", "0"]
    assert len(later) >= 1
    for line in later:
        misses, hits, seconds = line.split()
        assert (misses, hits) == ("0", "2")
        assert float(seconds) < 2
    assert {path.suffix for path in cache.rglob("*") if path.is_file()} == {".nbi", ".nbc"}
    assert sorted(install.rglob("*")) == before


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
