"""The CUDA compilers accept the kernels, and what the build check looks for is found."""

import shutil

import pytest

import nvcc
import nvrtc
from cuda_units import SOURCES, units
from gnnx.ops import _cuda

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not on the PATH")


# Every source is compiled by default, every instance among the slow tests: 0.5 to 1 s each.
_FIRST = {unit.name: unit for unit in reversed(units())}
_UNITS = [
    unit if _FIRST[unit.name] == unit else pytest.param(unit, marks=pytest.mark.slow)
    for unit in units()
]


@pytest.fixture(scope="module")
def library():
    found = nvrtc.find()
    if found is None:
        pytest.skip("no libnvrtc: install a CUDA toolkit or the extra cuda13")
    return found


@pytest.mark.parametrize("capability", [(8, 0), (9, 0)], ids=["sm_80", "sm_90"])
@pytest.mark.parametrize("unit", _UNITS, ids=str)
def test_nvrtc_compiles_as_cupy_will(unit, capability, library):
    text = (SOURCES / f"{unit.name}.cu").read_text()
    options = _cuda.compile_options(unit, capability)
    cubin, log = nvrtc.compile_text(library, text, f"{unit.name}.cu", options)
    assert not log.strip(), log
    assert cubin[:4] == b"\x7fELF"


@needs_nvcc
def test_a_warning_fails():
    text = "__global__ void kernel(int* out) { int unused; *out = 1; }"
    code, log = nvcc.compile_text(text, "-arch=sm_90")
    assert code != 0
    assert "unused" in log


@needs_nvcc
def test_a_spill_is_seen():
    """64 live values in 24 registers."""
    text = """
    __global__ void kernel(const float* in, float* out) {
        float kept[64];
        #pragma unroll
        for (int k = 0; k < 64; ++k) kept[k] = in[k * 32 + threadIdx.x];
        __syncthreads();
        #pragma unroll
        for (int k = 0; k < 64; ++k) out[k * 32 + threadIdx.x] = kept[63 - k] * kept[k];
    }"""
    code, log = nvcc.compile_text(text, "-arch=sm_90", "-maxrregcount=24")
    assert code == 0, log
    ((registers, spilt),) = nvcc.resources(log).values()
    assert registers <= 24
    assert spilt > 0


def test_every_source_is_compiled_for_every_type():
    for source in ("spmm", "spmm_extremum", "sddmm", "edge_scores"):
        defines = {define for unit in units() if unit.name == source for define in unit.defines}
        wanted = {f"VALUE={name}" for name in _cuda._VALUES.values()}
        wanted |= {f"INDEX={name}" for name in _cuda._INDICES.values()}
        wanted |= {f"VECTOR={width}" for width in (1, 2, 4, 8)}
        wanted |= {"TIERED"} if source == "spmm" else set()
        assert wanted == defines
