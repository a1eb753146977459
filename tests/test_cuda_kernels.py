"""The CUDA kernels against loops: one body, run by the emulator and, where there is one, a GPU.

The emulator stands in for the launch alone: grids, bins, types and arguments are the device's own.
"""

import os

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracles
from emulator import Emulator
from gnnx import ops
from gnnx.ops import _cuda, _operators

REDUCES = ["sum", "mean"]
WIDTHS = [1, 7, 16, 33, 64, 100, 128, 256, 513]
TYPES = {
    torch.float32: 2e-6,
    torch.float64: 1e-13,
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
}
# The fixture only swaps the launch: nothing of it depends on the example.
drawn = settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(params=["emulator", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request, monkeypatch, pytestconfig):
    """Where tensors go so that operators run the CUDA kernels on them."""
    if request.param == "cuda":
        yield torch.device("cuda")
        return
    emulator = Emulator(
        pytestconfig.cache.mkdir("emulator"),
        seed=int(os.environ.get("EMULATOR_SEED", "0")),
        sanitize=bool(os.environ.get("EMULATOR_SANITIZE")),
    )
    monkeypatch.setattr(_cuda, "_launch", emulator.launch)
    for op in (_operators.spmm,):
        monkeypatch.setitem(op._backend_fns, "cpu", op._backend_fns["cuda"])
    yield torch.device("cpu")
    assert emulator.launched, "no kernel was launched: the test has shown nothing"


def graph(seed, num_dst, num_src, num_edges, device, dtype=torch.int32):
    indptr, indices = oracles.random_csr(seed, num_dst, num_src, num_edges)
    csr = torch.from_numpy(indptr), torch.from_numpy(indices).to(dtype)
    return csr, tuple(part.to(device) for part in csr)


def close(got, wanted, scale, dtype):
    """Within a few roundings of sums whose terms' magnitudes add up to `scale`."""
    error = np.abs(got.detach().cpu().double().numpy() - wanted)
    tiny = float(torch.finfo(dtype).smallest_normal)
    return np.all(error <= TYPES[dtype] * (scale + tiny))


def check_spmm(csr, on_device, x, weight, reduce, device):
    """Values and gradients; x and weight are of the type under test, on the CPU."""
    indptr, indices = (part.numpy() for part in csr)
    wide = x.detach().double().numpy()
    w = None if weight is None else weight.double().numpy()
    grad = torch.randn(len(indptr) - 1, x.shape[1]).to(x.dtype)
    x_d = x.to(device).requires_grad_()
    w_d = None if weight is None else weight.to(device).requires_grad_()
    out = ops.spmm(*on_device, x_d, w_d, reduce=reduce)
    out.backward(grad.to(device))
    wanted, _ = oracles.spmm(indptr, indices, wide, w, reduce)
    magnitude = None if w is None else abs(w)
    scale, _ = oracles.spmm(indptr, indices, abs(wide), magnitude, reduce)
    assert out.dtype == x.dtype
    assert close(out, wanted, scale, x.dtype)
    wide_grad = grad.double().numpy()
    dx, _ = oracles.spmm_gradients(indptr, indices, wide, w, reduce, wide_grad)
    scale, _ = oracles.spmm_gradients(indptr, indices, abs(wide), magnitude, reduce, abs(wide_grad))
    assert close(x_d.grad, dx, 3 * scale, x.dtype)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("width", WIDTHS)
def test_spmm_widths(width, reduce, device):
    csr, on_device = graph(width, 30, 20, 150, device)
    check_spmm(csr, on_device, torch.randn(20, width), None, reduce, device)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_spmm_types(dtype, index_dtype, device):
    csr, on_device = graph(1, 30, 20, 200, device, index_dtype)
    check_spmm(
        csr, on_device, torch.randn(20, 24).to(dtype), torch.rand(200).to(dtype), "mean", device
    )


@drawn
@given(
    seed=st.integers(0, 2**32 - 1),
    num_dst=st.integers(0, 20),
    num_src=st.integers(1, 12),
    num_edges=st.integers(0, 80),
    width=st.integers(1, 40),
    weighted=st.booleans(),
    reduce=st.sampled_from(REDUCES),
)
def test_spmm_drawn(device, seed, num_dst, num_src, num_edges, width, weighted, reduce):
    csr, on_device = graph(seed, num_dst, num_src, num_edges, device)
    weight = torch.randn(len(csr[1])) if weighted else None
    check_spmm(csr, on_device, torch.randn(num_src, width), weight, reduce, device)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("width", [3, 40])
def test_spmm_hubs(width, reduce, device):
    """Rows around the length at which a block takes over, empty ones and short ones between."""
    degrees = [0, 255, 256, 3, 257, 0, 1200, 1]
    indptr = torch.tensor([0, *np.cumsum(degrees)])
    indices = torch.randint(0, 9, (sum(degrees),), dtype=torch.int32)
    csr = indptr, indices
    on_device = tuple(part.to(device) for part in csr)
    check_spmm(csr, on_device, torch.randn(9, width), torch.randn(len(indices)), reduce, device)
