"""Kernels as they are compiled for other machines, and kept on disk for other processes."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

import oracles
from gnnx import ops

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
import torch
from gnnx import ops
from gnnx.ops._numba import reduce, edges
indptr, indices, x = torch.tensor([0, 1]), torch.tensor([0]), torch.ones(1, 3)
ops.spmm(indptr, indices, x)
ops.spmm(indptr, indices, x, reduce="max")
ops.sddmm(indptr, indices, x, x)
made = reduce._sum_rows, reduce._extreme_rows, edges._dot_edges
print(sum(len(k.stats.cache_misses) for k in made), sum(len(k.stats.cache_hits) for k in made))
"""


def test_kernels_with_vectors_are_kept_on_disk(tmp_path):
    """The second process compiles nothing."""
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    counts = [
        subprocess.run(
            [sys.executable, "-c", _COUNT],
            env=env,
            check=True,
            timeout=110,
            capture_output=True,
            text=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert counts == [["3", "0"], ["0", "3"]]
