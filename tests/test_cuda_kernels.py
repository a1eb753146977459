"""The CUDA kernels against loops: one body, run by the emulator and, where there is one, a GPU.

The emulator stands in for the launch alone: grids, bins, types and arguments are the device's own.
"""

import os
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import oracles
from emulator import Emulator
from gnnx import ops
from gnnx.ops import _cuda, _operators

REDUCES = ["sum", "mean", "max", "min"]
WIDTHS = [1, 7, 16, 33, 64, 100, 128, 256, 513]
TYPES = {
    torch.float32: 2e-6,
    torch.float64: 1e-13,
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
}
# Every type of values and of indices; not all of their products, each of which is compiled anew.
PAIRS = [
    (torch.float32, torch.int64),
    (torch.float64, torch.int32),
    (torch.float16, torch.int32),
    (torch.bfloat16, torch.int64),
]
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
    with torch.library._scoped_library("gnnx", "IMPL") as library:
        with warnings.catch_warnings(action="ignore"):  # torch's, that this overrides the CPU's own
            for name in _operators._SCHEMAS:
                if hasattr(_cuda, name):
                    library.impl(name, getattr(_cuda, name), "CPU", allow_override=True)
        yield torch.device("cpu")
    assert emulator.launched, "no kernel was launched: the test has shown nothing"


def close(got, wanted, scale, dtype):
    """Within a few roundings of sums whose terms' magnitudes add up to `scale`."""
    error = np.abs(got.detach().cpu().double().numpy() - wanted)
    tiny = float(torch.finfo(dtype).smallest_normal)
    return np.all(error <= TYPES[dtype] * (scale + tiny))


def check_spmm(csr, x, weight, reduce, device):
    """Values and gradients, of x and weight of the type under test, on the CPU."""
    indptr, indices = (part.numpy() for part in csr)
    on_device = tuple(part.to(device) for part in csr)
    grad = torch.randn(len(indptr) - 1, x.shape[1]).to(x.dtype)
    x_d, w_d = (
        None if t is None else t.to(device, copy=True).requires_grad_() for t in (x, weight)
    )
    out = ops.spmm(*on_device, x_d, w_d, reduce=reduce)
    assert out.dtype == x.dtype
    out.backward(grad.to(device))

    x, grad = x.double().numpy(), grad.double().numpy()
    w, size = (
        (None, None) if weight is None else (weight.double().numpy(), abs(weight.double().numpy()))
    )
    bound = "sum" if reduce == "sum" else "mean"
    scale, _ = oracles.spmm(indptr, indices, abs(x), size, bound)
    if reduce in {"max", "min"}:
        scale *= np.diff(indptr)[:, None]
    assert close(out, oracles.spmm(indptr, indices, x, w, reduce)[0], scale, out.dtype)
    dx, dw = oracles.spmm_gradients(indptr, indices, x, w, reduce, grad)
    dx_scale, dw_scale = oracles.spmm_gradients(indptr, indices, abs(x), size, "sum", abs(grad))
    assert close(x_d.grad, dx, 2 * dx_scale, out.dtype)
    if weight is not None:
        assert close(w_d.grad, dw, 2 * dw_scale, out.dtype)


def graph(seed, num_dst, num_src, num_edges, dtype=torch.int32):
    indptr, indices = oracles.random_csr(seed, num_dst, num_src, num_edges)
    return torch.from_numpy(indptr), torch.from_numpy(indices).to(dtype)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("width", WIDTHS)
def test_spmm_widths(width, reduce, device):
    csr = graph(width, 30, 20, 150 if width < 100 else 60)
    check_spmm(csr, torch.randn(20, width), None, reduce, device)


@pytest.mark.parametrize("reduce", ["mean", "max"])
@pytest.mark.parametrize(("dtype", "index_dtype"), PAIRS)
def test_spmm_types(dtype, index_dtype, reduce, device):
    csr = graph(1, 30, 20, 200, index_dtype)
    check_spmm(csr, torch.randn(20, 24).to(dtype), torch.rand(200).to(dtype), reduce, device)


@drawn
@given(
    seed=st.integers(0, 2**32 - 1),
    num_dst=st.integers(0, 20),
    num_src=st.integers(1, 12),
    num_edges=st.integers(0, 80),
    width=st.integers(1, 40),
    weighted=st.booleans(),
    reduce=st.sampled_from(REDUCES),
    distinct=st.booleans(),
)
def test_spmm_drawn(device, seed, num_dst, num_src, num_edges, width, weighted, reduce, distinct):
    csr = graph(seed, num_dst, num_src, num_edges)
    weight = torch.randn(len(csr[1])) if weighted else None
    x = torch.randn(num_src, width)
    check_spmm(csr, x if distinct else x.round(), weight, reduce, device)


def hubs(dtype=torch.int32):
    """Rows around the length at which a block takes over, empty ones and short ones between."""
    degrees = [0, 255, 256, 3, 257, 0, 700, 1]
    indices = torch.randint(0, 9, (sum(degrees),), dtype=dtype)
    return torch.tensor([0, *np.cumsum(degrees)]), indices


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("width", [3, 40])
def test_spmm_hubs(width, reduce, device):
    csr = hubs()
    x = torch.randn(9, width).round()  # few kinds of values: the first of many equals is asked for
    check_spmm(csr, x, torch.randn(len(csr[1])).round(), reduce, device)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize(("strip", "longest"), [(32, 32), (64, 200), (256, 300)])
def test_spmm_longest_rows(strip, longest, reduce, device, monkeypatch):
    """Rows of several strips, of one exactly, beginning and ending anywhere in one."""
    monkeypatch.setattr(_cuda, "_HUB", min(longest, 256))
    monkeypatch.setattr(_cuda, "_LONG", longest)
    monkeypatch.setattr(_cuda, "_STRIP", strip)
    degrees = [longest - 1, longest, 5, longest + 1, longest, 0, 2 * strip + longest, 1]
    indices = torch.randint(0, 9, (sum(degrees),), dtype=torch.int32)
    csr = torch.tensor([0, *np.cumsum(degrees)]), indices
    check_spmm(csr, torch.randn(9, 6), torch.randn(len(indices)), reduce, device)


def test_longest_rows_as_they_come(device):
    """Nothing set otherwise: a row of 20000 edges, sums of ones."""
    degrees = torch.tensor([3, 20_000, 300, 0, 16_384])
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), degrees.cumsum(0)]).to(device)
    indices = torch.zeros(int(degrees.sum()), dtype=torch.int32, device=device)
    out = ops.spmm(indptr, indices, torch.ones(1, 2, device=device))
    assert torch.equal(out.cpu(), degrees.float()[:, None].expand(5, 2))


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_extremum_of_nan_and_infinity(reduce, device):
    """A NaN wins over all, in short rows and in long ones; the first one's edge is kept."""
    degrees = [3, 600, 2, 300]
    indices = torch.ones(sum(degrees), dtype=torch.int32)
    indices[1], indices[100], indices[400] = 0, 0, 0
    indices[603], indices[604] = 2, 3
    x = torch.tensor([float("nan"), 1.0, float("inf"), -float("inf")])[:, None].to(device)
    indptr = torch.tensor([0, *np.cumsum(degrees)])
    out, arg = _cuda.spmm_extremum(indptr.to(device), indices.to(device), x, None, reduce)
    assert out[:2].isnan().all()
    assert out[2:].flatten().tolist() == [float("inf") if reduce == "max" else -float("inf"), 1.0]
    assert arg.flatten().tolist() == [1, 100, 603 if reduce == "max" else 604, 605]


@pytest.mark.parametrize("name", ["_rows", "hubs"])
def test_bits_are_repeatable(name, device):
    csr = graph(5, 200, 100, 3000) if name == "_rows" else hubs()
    indptr, indices = (part.to(device) for part in csr)
    x = torch.randn(100, 33, device=device)
    first, again = (ops.spmm(indptr, indices, x) for _ in range(2))
    assert torch.equal(first, again)


def test_hubs_are_found_once_a_graph(device, monkeypatch):
    launched = []
    launch = _cuda._launch

    def counted(where, unit, kernel, *rest):
        launched.append(kernel)
        launch(where, unit, kernel, *rest)

    monkeypatch.setattr(_cuda, "_launch", counted)
    indptr, indices = (part.to(device) for part in hubs())
    for _ in range(3):
        ops.spmm(indptr, indices, torch.randn(9, 4, device=device))
    assert launched.count("rows_by_length") == 1
    indptr += 0  # written to: they may be others now
    ops.spmm(indptr, indices, torch.randn(9, 4, device=device))
    assert launched.count("rows_by_length") == 2
    num_kept = len(_cuda._derived)
    del indptr
    assert len(_cuda._derived) < num_kept


def test_edges_are_sorted_by_source_once_a_graph(device, monkeypatch):
    sorts = []
    sort = torch.sort
    monkeypatch.setattr(torch, "sort", lambda *args, **kw: sorts.append(1) or sort(*args, **kw))
    indptr, indices = (part.to(device) for part in graph(7, 30, 20, 150))
    for _ in range(3):
        x = torch.randn(20, 4, device=device, requires_grad=True)
        ops.spmm(indptr, indices, x, reduce="max").sum().backward()
    assert len(sorts) == 1


@pytest.mark.parametrize(
    ("dtype", "width"), [(torch.float32, w) for w in (1, 7, 32, 264)] + [(t, 104) for t in TYPES]
)
def test_sddmm(width, dtype, device):
    for csr in (graph(2, 12, 9, 80), hubs()):
        indptr, indices = csr
        a, b = (torch.randn(n, width).to(dtype) for n in (len(indptr) - 1, 9))
        on_device = [part.to(device) for part in (indptr, indices, a, b)]
        out = ops.sddmm(*on_device)
        rows = np.repeat(np.arange(len(a)), np.diff(indptr))
        terms = a.double().numpy()[rows] * b.double().numpy()[indices]
        assert out.dtype == dtype
        assert close(out, terms.sum(1), abs(terms).sum(1), dtype)


@pytest.mark.parametrize("width", [1, 7, 32, 100])
def test_sums_on_edges(width, device):
    for csr in (graph(2, 12, 9, 80), hubs()):
        indptr, indices = csr
        a, b = (torch.randn(n, width) for n in (len(indptr) - 1, 9))
        a_d, b_d = (t.to(device, copy=True).requires_grad_() for t in (a, b))
        out = ops.sddmm(indptr.to(device), indices.to(device), a_d, b_d, op="add")
        rows = torch.repeat_interleave(torch.arange(len(a)), indptr.diff())
        assert torch.equal(out.detach().cpu(), a[rows] + b[indices])
        out.sum().backward()
        degree = indptr.diff().float()[:, None].expand_as(a)
        count = torch.bincount(indices, minlength=9).float()[:, None].expand_as(b)
        assert torch.equal(a_d.grad.cpu(), degree)
        assert torch.equal(b_d.grad.cpu(), count)


def check_edge_scores(csr, heads, width, dtype, device, slope=0.2):
    """Against loops, forward and backward."""
    indptr, indices = csr
    num_dst, num_src = len(indptr) - 1, 1 + int(indices.max())
    shapes = (num_dst, heads, width), (num_src, heads, width), (heads, width)
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    grad = torch.randn(len(indices), heads).to(dtype)
    on_device = [t.to(device, copy=True).requires_grad_() for t in inputs]
    out = ops.edge_scores(indptr.to(device), indices.to(device), *on_device, slope=slope)
    out.backward(grad.to(device))
    values = [t.double().numpy() for t in (*inputs, grad)]
    x_dst, x_src, att, g = values
    arrays = indptr.numpy(), indices.numpy()
    wanted = oracles.edge_scores(*arrays, x_dst, x_src, att, slope, g)
    scales = oracles.edge_scores(*arrays, abs(x_dst), abs(x_src), abs(att), slope, abs(g))
    for got, right, scale in zip((out, *(t.grad for t in on_device)), wanted, scales, strict=True):
        assert got.dtype == dtype
        assert close(got, right, 2 * scale, dtype)


@pytest.mark.parametrize(("heads", "width"), [(1, 1), (1, 7), (3, 12), (8, 32), (2, 33), (2, 264)])
def test_edge_scores_shapes(heads, width, device):
    check_edge_scores(graph(4, 15, 12, 90), heads, width, torch.float32, device)


@pytest.mark.parametrize(("dtype", "index_dtype"), PAIRS)
def test_edge_scores_types(dtype, index_dtype, device):
    check_edge_scores(graph(4, 15, 12, 90, index_dtype), 3, 16, dtype, device)


@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
def test_edge_scores_of_hubs_and_longer_rows(slope, device, monkeypatch):
    monkeypatch.setattr(_cuda, "_LONG", 600)
    monkeypatch.setattr(_cuda, "_STRIP", 64)
    check_edge_scores(hubs(), 2, 6, torch.float32, device, slope)


@pytest.mark.parametrize("num_dst", [0, 3])
def test_edge_scores_of_no_edges(num_dst, device):
    indptr = torch.zeros(num_dst + 1, dtype=torch.int64, device=device)
    shapes = (num_dst, 2, 4), (5, 2, 4), (2, 4)
    args = [torch.randn(shape).to(device).requires_grad_() for shape in shapes]
    out = ops.edge_scores(indptr, indptr[:0], *args)
    assert out.shape == (0, 2)
    out.sum().backward()  # the sums over the sources' edges are launched, and give zeros
    assert not any(arg.grad.any() for arg in args)


@pytest.mark.parametrize("heads", [1, 3, 8])
@pytest.mark.parametrize("dtype", TYPES)
def test_edge_softmax(heads, dtype, device):
    for indptr, indices in (graph(3, 12, 9, 80), hubs()):
        logits = 10 * torch.randn(len(indices), heads)
        logits = logits.to(device, dtype).requires_grad_()
        grad = torch.randn(len(indices), heads).to(dtype)
        p = ops.edge_softmax(indptr.to(device), logits)
        p.backward(grad.to(device))
        wanted = oracles.edge_softmax(indptr.numpy(), logits.detach().cpu().double().numpy())
        assert close(p, wanted, 8 * wanted + 1e-6, dtype)
        p, grad = p.detach().cpu().double().numpy(), grad.double().numpy()
        wanted = oracles.edge_softmax_gradient(indptr.numpy(), p, grad)
        assert close(logits.grad, wanted, 4 * p * (abs(grad) + 4) + 1e-6, dtype)


def test_edge_softmax_of_more_heads_than_lanes(device):
    indptr, indices = graph(3, 12, 9, 80)
    logits = torch.randn(len(indices), 70)
    p = ops.edge_softmax(indptr.to(device), logits.to(device))
    wanted = oracles.edge_softmax(indptr.numpy(), logits.numpy())
    assert close(p, wanted, 4 * wanted, torch.float32)


def test_edge_softmax_of_infinities(device):
    """Scores of -inf have no share, wherever they stand; a row of nothing else has no softmax."""
    inf = float("inf")
    row = torch.tensor([-inf, 0.0, -inf, 0.0] + [-inf] * 40)
    scores = torch.cat([row, row.flip(0), torch.full((2,), -inf), torch.full((400,), -inf), row])
    indptr = torch.tensor([0, 44, 88, 90, 534])
    p = ops.edge_softmax(indptr.to(device), scores.to(device)).cpu()
    assert torch.equal(p[:88], torch.exp(scores[:88]) / 2)
    assert p[88:90].isnan().all()
    assert torch.equal(p[490:], torch.exp(scores[490:]) / 2)


def check_attention(csr, heads, width, dtype, device, slope=0.2):
    """Against loops forward, against autograd through plain torch in float64 backward."""
    indptr, indices = csr
    num_src, num_dst = 1 + int(indices.max()), len(indptr) - 1
    shapes = (num_src, heads, width), (num_dst, heads), (num_src, heads)
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    grad = torch.randn(num_dst, heads, width).to(dtype)
    on_device = [t.to(device, copy=True).requires_grad_() for t in inputs]
    out = ops.attention(indptr.to(device), indices.to(device), *on_device, slope=slope)
    out.backward(grad.to(device))

    x, a_dst, a_src = (t.double().requires_grad_() for t in inputs)
    arrays = [t.detach().numpy() for t in (x, a_dst, a_src)]
    wanted = oracles.attention(indptr.numpy(), indices.numpy(), *arrays, slope)
    largest = abs(arrays[0]).max()
    assert close(out, wanted, 4 * largest, dtype)
    rows = torch.repeat_interleave(torch.arange(num_dst), indptr.diff())
    score = torch.nn.functional.leaky_relu(a_dst[rows] + a_src[indices], slope)
    power = (score - score.detach().max()).exp()
    total = torch.zeros_like(a_dst).index_add(0, rows, power)
    messages = (power / total[rows])[:, :, None] * x[indices]
    torch.zeros(grad.shape).double().index_add(0, rows, messages).backward(grad.double())
    for got, plain in zip(on_device, (x, a_dst, a_src), strict=True):
        bound = 8 * plain.grad.abs().max() + 8 * largest
        assert close(got.grad, plain.grad.numpy(), bound.item(), dtype)


@pytest.mark.parametrize(("heads", "width"), [(1, 1), (1, 7), (3, 12), (8, 32), (2, 33), (2, 264)])
def test_attention_shapes(heads, width, device):
    check_attention(graph(4, 15, 12, 90), heads, width, torch.float32, device)


@pytest.mark.parametrize(("dtype", "index_dtype"), PAIRS)
def test_attention_types(dtype, index_dtype, device):
    check_attention(graph(4, 15, 12, 90, index_dtype), 3, 16, dtype, device)


@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
def test_attention_hubs(slope, device):
    check_attention(hubs(), 2, 6, torch.float32, device, slope)


def test_attention_without_gradient_keeps_nothing(device):
    indptr, indices = (part.to(device) for part in hubs())
    x, a = torch.randn(9, 2, 8, device=device), torch.randn(9, 2, device=device)
    args = indptr, indices, x, a[: len(indptr) - 1], a, 0.2
    kept = _cuda.attention(*args, True)
    bare = _cuda.attention(*args, False)
    assert torch.equal(kept[0], bare[0])
    assert torch.equal(kept[1], bare[1])
    assert bare[2].numel() == bare[3].numel() == 0


def tiers(table, device):
    """A table, two fifths of whose rows are in the cache and nowhere else."""
    cached = torch.from_numpy(
        np.random.default_rng(0).permutation(len(table))[: len(table) * 2 // 5]
    )
    slot = torch.full((len(table),), -1, dtype=torch.int32)
    slot[cached] = torch.arange(len(cached), dtype=torch.int32)
    host = table.clone()
    host[cached] = 99  # what is cached is read from there alone
    host = host.pin_memory() if device.type == "cuda" else host
    return slot.to(device), table[cached].to(device), host


@pytest.mark.parametrize("width", [1, 3, 8, 33, 128])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
def test_gather_of_two_tiers(width, dtype, device):
    rng = np.random.default_rng(width)
    table = torch.from_numpy(rng.integers(0, 90, (50, width))).to(dtype)
    ids = torch.from_numpy(rng.integers(0, 50, 300))
    assert torch.equal(ops.gather_tiers(ids.to(device), *tiers(table, device)).cpu(), table[ids])


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize(
    ("width", "dtype", "index_dtype"),
    [
        (1, torch.float32, torch.int32),
        (33, torch.float64, torch.int64),
        (64, torch.float16, torch.int32),
        (100, torch.bfloat16, torch.int64),
        (256, torch.float32, torch.int32),
    ],
)
def test_spmm_of_two_tiers(width, dtype, index_dtype, reduce, device):
    """As spmm of the gathered rows, to the bit: short rows, empty ones, hubs and strips."""
    indptr, indices = hubs()
    indices = indices.to(index_dtype)
    num_src = int(indices.max()) + 1
    table = torch.randn(40, width).to(dtype)
    ids = torch.from_numpy(np.random.default_rng(1).integers(0, 40, num_src))
    csr = indptr.to(device), indices.to(device)
    got = ops.spmm_tiers(*csr, ids.to(device), *tiers(table, device), reduce=reduce)
    assert torch.equal(got, ops.spmm(*csr, table[ids].to(device), reduce=reduce))
