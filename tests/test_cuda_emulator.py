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


def planted_graph():
    """Rows short, long and empty, for several groups of lanes and several hubs to a block."""
    degrees = [5, 0, 256, 1, 300, 900, 700, 3, 2, 9, 257, 200]
    indices = np.random.default_rng(0).integers(0, 9, sum(degrees))
    return torch.tensor([0, *np.cumsum(degrees)]), torch.from_numpy(indices)


def values(*shape):
    return torch.from_numpy(np.random.default_rng(shape).integers(-3, 4, shape).astype(np.float64))


def hubs_are_right():
    indptr = torch.from_numpy(np.random.default_rng(0).integers(0, 300, 3000)).cumsum(0)
    hubs = _cuda._rows_by_length(indptr, int(indptr[-1]), 256, 1 << 40)
    long = np.flatnonzero(np.diff(indptr.numpy()) >= 256)
    return np.array_equal(hubs[: hubs[0] + 1], [len(long), *long])


def spmm_is_right(reduce="sum"):
    indptr, indices = planted_graph()
    for width in (12, 40):
        x, weight = values(9, width), values(len(indices))
        if reduce == "sum":
            got = [_cuda.spmm(indptr, indices, x, weight, reduce)]
        else:
            got = _cuda.spmm_extremum(indptr, indices, x, weight, reduce)
        wanted = oracles.spmm(indptr.numpy(), indices.numpy(), x.numpy(), weight.numpy(), reduce)
        if not all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=False)):
            return False
    return True


def softmax_is_right():
    indptr, indices = planted_graph()
    scores, grad = values(len(indices), 3), values(len(indices), 3)
    p = _cuda.edge_softmax(indptr, scores)
    got = p, _cuda.edge_softmax_grad(indptr, p, grad)
    wanted = oracles.edge_softmax(indptr.numpy(), scores.numpy())
    gradient = oracles.edge_softmax_gradient(indptr.numpy(), wanted, grad.numpy())
    return all(np.allclose(a, b, atol=1e-12) for a, b in zip(got, (wanted, gradient), strict=True))


def sddmm_is_right():
    indptr, indices = planted_graph()
    a, b = values(12, 20), values(9, 20)
    rows = np.repeat(np.arange(12), np.diff(indptr))
    wanted = (a[rows] * b[indices]).sum(1)
    return torch.equal(_cuda.sddmm(indptr, indices, a, b), wanted)


def tiers_are_right():
    indptr, indices = planted_graph()
    table, ids = values(30, 12), torch.arange(9) * 3
    slot = torch.full((30,), -1, dtype=torch.int32)
    slot[ids[::2]] = torch.arange(5, dtype=torch.int32)
    cache, host = table[ids[::2]], table.clone()
    host[ids[::2]] = 99  # never read
    rows = ids, slot, cache, host
    wanted, _ = oracles.spmm(indptr.numpy(), indices.numpy(), table[ids].numpy(), None, "sum")
    return torch.equal(_cuda.gather_tiers(*rows), table[ids]) and np.array_equal(
        _cuda.spmm_tiers(indptr, indices, *rows, "sum"), wanted
    )


# Our own kernels with a line changed: what then goes wrong, the file, what stood and stands there.
PLANTED = {
    "no barrier before the tree": (
        spmm_is_right,
        "spmm.cuh",
        "own[k * 32] = sum[k];\n    __syncthreads();",
        "own[k * 32] = sum[k];",
    ),
    "no barrier in the tree": (
        spmm_is_right,
        "spmm.cuh",
        "        }\n        __syncthreads();",
        "        }",
    ),
    "no barrier between counts": (
        hubs_are_right,
        "rows.cuh",
        "rows[1 + at] = row;\n        __syncthreads();",
        "rows[1 + at] = row;",
    ),
    "no barrier between hubs": (
        softmax_is_right,
        "edge_softmax.cuh",
        "whole);\n        __syncthreads();",
        "whole);",
    ),
    "no barrier between hubs, backward": (
        softmax_is_right,
        "edge_softmax.cuh",
        "at, sum);\n        __syncthreads();",
        "at, sum);",
    ),
    "mask of another group": (
        spmm_is_right,
        "values.cuh",
        "<< (threadIdx.y * G % 32)",
        "<< ((threadIdx.y + 1) * G % 32)",
    ),
    "mask of half a group": (
        sddmm_is_right,
        "values.cuh",
        "((1u << (G % 32)) - 1u)",
        "((1u << (G / 2)) - 1u)",
    ),
    "rows left out": (
        spmm_is_right,
        "spmm.cuh",
        "end - begin >= limit",
        "end - begin >= limit - 60",
    ),
    "last edges left out": (
        spmm_is_right,
        "spmm.cuh",
        "for (; j < count; ++j)",
        "for (; j + 1 < count; ++j)",
    ),
    "a strip counted twice": (
        spmm_is_right,
        "spmm.cuh",
        "begin > first ? begin : first, end",
        "begin, end",
    ),
    "both parts in one place": (
        spmm_is_right,
        "spmm.cuh",
        "(2 * Int64(blockIdx.x) + (begin >= first))",
        "(2 * Int64(blockIdx.x))",
    ),
    "first row of the cache taken from the host": (
        tiers_are_right,
        "spmm.cuh",
        "held >= 0 ? held : ~node",
        "held > 0 ? held : ~node",
    ),
    "row of the host by its source": (
        tiers_are_right,
        "spmm.cuh",
        "held : ~node",
        "held : ~Int64(source)",
    ),
    "gather: first row of the cache taken from the host": (
        tiers_are_right,
        "gather.cuh",
        "place >= 0 ? static_cast",
        "place > 0 ? static_cast",
    ),
    "last of equals": (
        lambda: spmm_is_right("max"),
        "spmm_extremum.cuh",
        "!(value <= standing)",
        "!(value < standing)",
    ),
    "any of equals between warps": (
        lambda: spmm_is_right("min"),
        "spmm_extremum.cuh",
        "later ? beats(other, own) : !beats(own, other)",
        "later ? beats(other, own) : beats(other, own)",
    ),
}


@pytest.fixture
def emulate(cache, monkeypatch):
    """Let the operators launch on an emulator; a block takes all hubs, one after another."""

    def emulate(**options):
        monkeypatch.setattr(_cuda, "_launch", Emulator(cache, **options).launch)

    monkeypatch.setattr(_cuda, "_MAX_HUB_BLOCKS", 1)
    monkeypatch.setattr(_cuda, "_LONG", 600)
    monkeypatch.setattr(_cuda, "_STRIP", 300)
    return emulate


def test_unchanged_kernels_are_right(emulate):
    for seed in (0, 1):
        emulate(seed=seed)
        for is_right in {right for right, *_ in PLANTED.values()}:
            assert is_right()


@pytest.mark.parametrize("fault", PLANTED)
def test_planted_fault_is_caught(fault, emulate, tmp_path):
    is_right, name, old, new = PLANTED[fault]
    text = (SOURCES / name).read_text()
    assert text.count(old) == 1, "the line to change is not there: change the test with the kernel"
    sources = sources_with(tmp_path / "cuda", (name, text.replace(old, new)))
    assert not all(_is_right_under(is_right, emulate, sources, seed) for seed in range(5))


def _is_right_under(is_right, emulate, sources, seed):
    emulate(sources=sources, seed=seed)
    try:
        return is_right()
    except EmulatorError:
        return False


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
