"""The emulator sees what a device would leave undefined, in faulty kernels and in ours made so."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import oracles
from cuda_units import SOURCES
from emulator import HERE, Emulator, EmulatorError
from gnnx.ops import _cuda

FAULTS = _cuda.Unit("faults")


@pytest.fixture(scope="module")
def cache(pytestconfig):
    return pytestconfig.cache.mkdir("emulator")


def sources_with(folder, *files):
    """Copy of the kernels' folder, files added or replaced."""
    shutil.copytree(SOURCES, folder, dirs_exist_ok=True)
    for name, text in files:
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def faulty(cache, tmp_path):
    """Run a kernel of faults.cu on 32 lanes; returns what it wrote."""
    sources = sources_with(tmp_path / "cuda", ("faults.cu", (HERE / "faults.cu").read_text()))

    def run(kernel, *args, seed=0, threads=32, shared_bytes=0):
        out = np.zeros(threads, np.int32)
        raw = [np.uint64(arg.ctypes.data) if isinstance(arg, np.ndarray) else arg for arg in args]
        at = 1 if kernel == "no_barrier" else 0
        raw.insert(at, np.uint64(out.ctypes.data))
        emulator = Emulator(cache, sources=sources, seed=seed)
        emulator.launch(None, FAULTS, kernel, (1, 1), (threads, 1), raw, shared_bytes)
        return out

    return run


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_missing_barrier_gives_a_wrong_answer(faulty, seed):
    values = np.arange(256, dtype=np.int32)
    for with_barrier in (1, 0):
        got = faulty(
            "no_barrier", values, np.int32(with_barrier), seed=seed, threads=256, shared_bytes=1024
        )
        assert np.array_equal(got, values[::-1]) == bool(with_barrier)


@pytest.mark.parametrize(
    ("kernel", "args", "message"),
    [
        ("divergent_barrier", (), r"never reach .*thread \d+,0,0"),
        ("mask_without_caller", (), r"leaves out the lane itself \(block 0,0,0 thread 0,0,0\)"),
        ("different_masks", (), "different masks"),
        ("different_operations", (), "different operations"),
        ("departed_lane", (np.int32(20),), "reads a lane that takes no part"),
    ],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_undefined_operation_is_named(faulty, kernel, args, message, seed):
    with pytest.raises(EmulatorError, match=message):
        faulty(kernel, *args, seed=seed)


def test_argument_of_another_width_is_named(faulty):
    with pytest.raises(EmulatorError, match="store_beyond: takes"):
        faulty("store_beyond", np.int64(0))


# Our own kernels with a line changed: file, what stood there, what stands there now.
PLANTED = {
    "no barrier before the tree": (
        "spmm.cuh",
        "own[k * 32] = sum[k];\n        __syncthreads();",
        "own[k * 32] = sum[k];",
    ),
    "no barrier in the tree": (
        "spmm.cuh",
        "            }\n            __syncthreads();",
        "            }",
    ),
    "no barrier between counts": (
        "rows.cuh",
        "rows[1 + at] = row;\n        __syncthreads();",
        "rows[1 + at] = row;",
    ),
    "mask of another group": (
        "values.cuh",
        "<< (threadIdx.y * G % 32)",
        "<< ((threadIdx.y + 1) * G % 32)",
    ),
    "rows left out": ("spmm.cuh", "end - begin >= limit", "end - begin >= limit - 60"),
    "last edges left out": ("spmm.cuh", "for (; j < count; ++j)", "for (; j + 1 < count; ++j)"),
}


def spmm_is_right(emulator, monkeypatch):
    """Rows short, long and empty, in groups of 4 and of 32 lanes, several hubs to a block."""
    monkeypatch.setattr(_cuda, "_launch", emulator.launch)
    monkeypatch.setattr(_cuda, "_MAX_HUB_BLOCKS", 1)
    degrees = [5, 0, 256, 1, 300, 0, 700, 3, 2, 9, 257, 200]
    indptr = torch.tensor([0, *np.cumsum(degrees)])
    indices = torch.from_numpy(np.random.default_rng(0).integers(0, 9, sum(degrees)))
    many = torch.from_numpy(np.random.default_rng(0).integers(0, 300, 3000)).cumsum(0)
    hubs = _cuda._hubs(many, int(many[-1]))
    long = np.flatnonzero(np.diff(many.numpy()) >= _cuda._HUB)
    if not np.array_equal(hubs[: hubs[0] + 1], [len(long), *long]):
        return False
    for width in (12, 40):
        x = torch.from_numpy(np.random.default_rng(width).standard_normal((9, width)))
        out = _cuda.spmm(indptr, indices, x, None, "sum")
        wanted, _ = oracles.spmm(indptr.numpy(), indices.numpy(), x.numpy())
        if not np.allclose(out, wanted, rtol=1e-12, atol=1e-12):
            return False
    return True


def test_unchanged_kernels_are_right(cache, monkeypatch):
    for seed in (0, 1, 2):
        assert spmm_is_right(Emulator(cache, seed=seed), monkeypatch)


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_caught(fault, cache, tmp_path, monkeypatch):
    name, old, new = PLANTED[fault]
    text = (SOURCES / name).read_text()
    assert text.count(old) == 1, "the line to change is not there: change the test with the kernel"
    sources = sources_with(tmp_path / "cuda", (name, text.replace(old, new)))
    caught = False
    for seed in range(5):
        try:
            caught |= not spmm_is_right(Emulator(cache, sources=sources, seed=seed), monkeypatch)
        except EmulatorError:
            caught = True
    assert caught


def sanitized(*arguments, **variables):
    """Run Python with the sanitizers' libraries, which must be there before all others."""
    libraries = [
        subprocess.run(
            ["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        "EMULATOR_SANITIZE": "1",
        **variables,
    }
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=1500, check=False
    )


STORE = """
import sys
import numpy as np
from pathlib import Path
from emulator import Emulator
from gnnx.ops._cuda import Unit
kernel, cache, sources = sys.argv[1:]
out = np.zeros(32, np.int32)
args = [np.uint64(out.ctypes.data)] + ([np.int32(8)] if kernel == "store_beyond" else [])
emulator = Emulator(Path(cache), sources=Path(sources), sanitize=True)
emulator.launch(None, Unit("faults"), kernel, (1, 1), (32, 1), args, 128)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["store_beyond", "shared_beyond"])
def test_out_of_bounds_store_is_caught(kernel, cache, tmp_path):
    sources = sources_with(tmp_path / "cuda", ("faults.cu", (HERE / "faults.cu").read_text()))
    path = f"{HERE.parent}{os.pathsep}{HERE.parents[1]}"
    done = sanitized("-c", STORE, kernel, str(cache), str(sources), PYTHONPATH=path)
    assert done.returncode != 0
    assert "heap-buffer-overflow" in done.stderr
    assert "faults.cu" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("seed", ["0", "5"])
def test_kernels_under_the_sanitizers(seed):
    """Every test of the kernels, once more: no byte out of place, no undefined operation."""
    tests = Path(__file__).with_name("test_cuda_kernels.py")
    options = ["-m", "pytest", "-q", "-x", "--timeout", "1400", "-k", "emulator", str(tests)]
    done = sanitized(*options, EMULATOR_SEED=seed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
