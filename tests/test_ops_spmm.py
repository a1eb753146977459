"""spmm and sddmm against loops: values, gradients, types, borders, torch's own checks."""

import concurrent.futures

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from gnnx import ops, threads
from gnnx.errors import UsageError
from gnnx.ops import _numba, _reference
from gnnx.ops._numba import pages

REDUCES = ["sum", "mean", "max", "min"]
WIDTHS = [1, 2, 3, 7, 16, 33, 64, 100, 128, 256, 513]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def graph(seed, num_dst, num_src, num_edges, dtype=torch.int64):
    indptr, indices = oracles.random_csr(seed, num_dst, num_src, num_edges)
    return torch.from_numpy(indptr), torch.from_numpy(indices).to(dtype)


def ties(seed, *shape):
    """Values of few kinds, so that max and min meet equals."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float64)


@settings(max_examples=150)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_dst=st.integers(0, 12),
    num_src=st.integers(1, 12),
    num_edges=st.integers(0, 60),
    width=st.integers(1, 9),
    weighted=st.booleans(),
    reduce=st.sampled_from(REDUCES),
    index_dtype=st.sampled_from([torch.int32, torch.int64]),
    with_transpose=st.booleans(),
    distinct=st.booleans(),
)
def test_values_and_gradients_against_loops(
    seed,
    num_dst,
    num_src,
    num_edges,
    width,
    weighted,
    reduce,
    index_dtype,
    with_transpose,
    distinct,
):
    indptr, indices = graph(seed, num_dst, num_src, num_edges, index_dtype)
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((num_src, width)) if distinct else ties(seed, num_src, width)
    weight = rng.standard_normal(len(indices)) if weighted else None
    grad = rng.standard_normal((num_dst, width))
    csr = indptr.numpy(), indices.numpy()

    x_t = torch.from_numpy(x).requires_grad_()
    w_t = torch.from_numpy(weight).requires_grad_() if weighted else None
    transpose = ops.transpose(indptr, indices, num_src) if with_transpose else None
    out = ops.spmm(indptr, indices, x_t, w_t, reduce=reduce, transpose=transpose)
    out.backward(torch.from_numpy(grad))

    wanted, _ = oracles.spmm(*csr, x, weight, reduce)
    dx, dw = oracles.spmm_gradients(*csr, x, weight, reduce, grad)
    assert out.dtype == torch.float64
    assert np.allclose(out.detach(), wanted, rtol=1e-12, atol=1e-12)
    assert np.allclose(x_t.grad, dx, rtol=1e-12, atol=1e-12)
    if weighted:
        assert np.allclose(w_t.grad, dw, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("width", WIDTHS)
def test_widths_in_float32(width, reduce):
    indptr, indices = graph(width, 25, 20, 150, torch.int32)
    rng = np.random.default_rng(width)
    x = rng.standard_normal((20, width)).astype(np.float32)
    grad = rng.standard_normal((25, width)).astype(np.float32)
    x_t = torch.from_numpy(x).requires_grad_()
    out = ops.spmm(indptr, indices, x_t, reduce=reduce)
    out.backward(torch.from_numpy(grad))
    csr = indptr.numpy(), indices.numpy()
    assert np.allclose(out.detach(), oracles.spmm(*csr, x, None, reduce)[0], rtol=1e-5, atol=1e-5)
    dx, _ = oracles.spmm_gradients(*csr, x, None, reduce, grad)
    assert np.allclose(x_t.grad, dx, rtol=1e-5, atol=1e-5)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_edges=st.integers(0, 60),
    width=st.integers(1, 40),
    with_transpose=st.booleans(),
)
def test_sddmm_against_loops(seed, num_edges, width, with_transpose):
    indptr, indices = graph(seed, 8, 6, num_edges)
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((8, width)), rng.standard_normal((6, width))
    grad = rng.standard_normal(num_edges)
    a_t, b_t = (torch.from_numpy(m).requires_grad_() for m in (a, b))
    transpose = ops.transpose(indptr, indices, 6) if with_transpose else None
    out = ops.sddmm(indptr, indices, a_t, b_t, transpose=transpose)
    out.backward(torch.from_numpy(grad))

    rows = np.repeat(np.arange(8), np.diff(indptr))
    da, db = np.zeros_like(a), np.zeros_like(b)
    for e, (d, s) in enumerate(zip(rows, indices.numpy(), strict=True)):
        assert abs(out[e].item() - float(a[d] @ b[s])) < 1e-12
        da[d] += grad[e] * b[s]
        db[s] += grad[e] * a[d]
    assert np.allclose(a_t.grad, da, atol=1e-12)
    assert np.allclose(b_t.grad, db, atol=1e-12)


def test_empty_neighbourhoods_are_zero():
    """Edges 0->1 and 2->1 of four nodes; then no edge at all."""
    x = torch.tensor([[-3.0], [-1.0], [-2.0], [7.0]], requires_grad=True)
    indptr, indices = torch.tensor([0, 0, 2, 2, 2]), torch.tensor([0, 2])
    assert ops.spmm(indptr, indices, x, reduce="mean").flatten().tolist() == [0, -2.5, 0, 0]
    assert ops.spmm(indptr, indices, x, reduce="max").flatten().tolist() == [0, -2, 0, 0]
    empty = torch.zeros(5, dtype=torch.int64), torch.empty(0, dtype=torch.int64)
    for reduce in REDUCES:
        out = ops.spmm(*empty, x, reduce=reduce)
        assert out.flatten().tolist() == [0, 0, 0, 0]
        (grad,) = torch.autograd.grad(out.sum(), x)
        assert grad.flatten().tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_hub_sums_of_narrow_types(dtype):
    """Sums beyond what the type can count by ones: 5000 leaves of 1, then of 20."""
    indptr = torch.tensor([0, 5000])
    indices = torch.arange(5000)
    ones = torch.ones(5000, 1, dtype=dtype, requires_grad=True)
    total = ops.spmm(indptr, indices, ones)
    assert total.dtype == dtype
    assert total.item() == torch.tensor(5000.0).to(dtype).item()
    mean = ops.spmm(indptr, indices, 20 * ones, reduce="mean")
    assert mean.item() == 20.0
    mean.backward()
    assert ones.grad.dtype == dtype
    assert torch.equal(ones.grad, torch.full((5000, 1), 20 / 5000).to(dtype))
    # the transposed hub: one source, 5000 destinations
    x = torch.ones(1, 1, dtype=dtype, requires_grad=True)
    ops.spmm(torch.arange(5001), torch.zeros(5000, dtype=torch.int64), x).sum().backward()
    assert x.grad.item() == torch.tensor(5000.0).to(dtype).item()


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("weight_dtype", ["x", torch.float32])
def test_narrow_types_round_once(dtype, reduce, weight_dtype):
    indptr, indices = graph(3, 20, 15, 150)
    x = torch.randn(15, 5).to(dtype).requires_grad_()
    weight = torch.rand(150).to(dtype if weight_dtype == "x" else weight_dtype).requires_grad_()
    out = ops.spmm(indptr, indices, x, weight, reduce=reduce)
    out.float().square().sum().backward()
    wide_x, wide_w = (t.detach().float().requires_grad_() for t in (x, weight))
    wide = ops.spmm(indptr, indices, wide_x, wide_w, reduce=reduce)
    assert torch.equal(out, wide.to(dtype))
    wide.backward(2 * wide.detach().to(dtype).float())
    step = torch.finfo(dtype).eps
    assert torch.allclose(x.grad.float(), wide_x.grad, rtol=4 * step, atol=4 * step)
    assert torch.allclose(weight.grad.float(), wide_w.grad, rtol=4 * step, atol=4 * step)


def test_nan_spreads_and_infinities_compare():
    indptr, indices = torch.tensor([0, 3, 5, 7]), torch.tensor([0, 1, 2, 1, 0, 3, 3])
    inf = float("inf")
    x = torch.tensor([[1.0], [float("nan")], [3.0], [-inf]], requires_grad=True)
    for reduce in REDUCES:
        out = ops.spmm(indptr, indices, x, reduce=reduce)
        assert out[:2].isnan().all()
        assert out[2].item() == -inf
    (grad,) = torch.autograd.grad(ops.spmm(indptr, indices, x, reduce="max").sum(), x)
    assert grad.flatten().tolist() == [0, 2, 0, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_hubs_of_many_edges(dtype):
    """Rows longer than what one thread reduces at once, whole pieces and not, beside short ones."""
    lengths = torch.tensor([2, 100_000, 0, 8192, 8193, 16_384, 3])
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = torch.randint(50, (int(indptr[-1]),), dtype=torch.int32)
    x = torch.randint(-8, 9, (50, 33)).to(dtype) / 8  # sums are exact, and extremes have ties
    weight = torch.randint(-2, 3, (len(indices),)).to(dtype)
    for w in (None, weight):
        for reduce in ("sum", "mean"):
            out = ops.spmm(indptr, indices, x, w, reduce=reduce)
            wanted = _reference.spmm(indptr, indices, x.double(), w, reduce)
            assert torch.allclose(out, wanted.to(dtype), rtol=1e-6, atol=0)
        for reduce in ("max", "min"):
            out, arg = torch.ops.gnnx.spmm_extremum(indptr, indices, x, w, reduce)
            wanted, first = _reference.spmm_extremum(indptr, indices, x, w, reduce)
            assert torch.equal(out, wanted)
            assert torch.equal(arg, first)


def test_first_nan_of_a_hub_is_the_extreme():
    indptr, indices = torch.tensor([0, 30_000]), torch.arange(30_000)
    x = torch.zeros(30_000, 2)
    x[20_000, 0] = x[25_000, 0] = float("nan")
    for reduce in ("max", "min"):
        out, arg = torch.ops.gnnx.spmm_extremum(indptr, indices, x, None, reduce)
        assert out.isnan().tolist() == [[True, False]]
        assert arg.tolist() == [[20_000, 0]]


@pytest.mark.parametrize("reduce", REDUCES)
def test_bits_do_not_depend_on_threads_or_repetition(reduce, monkeypatch):
    indptr, indices = graph(1, 3000, 2000, 60_000, torch.int32)
    indptr = torch.cat([indptr, indptr[-1:] + 20_000])  # and a row that threads share
    indices = torch.cat([indices, torch.randint(2000, (20_000,), dtype=torch.int32)])
    x = torch.randn(2000, 64, requires_grad=True)
    weight = torch.rand(80_000, requires_grad=True)
    seed = torch.randn(3001, 64)

    def results():
        out = ops.spmm(indptr, indices, x, weight, reduce=reduce)
        return out, *torch.autograd.grad(out, (x, weight), seed)

    first = results()
    again = results()
    monkeypatch.setattr(threads._pool, "num_threads", 1)
    alone = results()
    for a, b, c in zip(first, again, alone, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_concurrent_calls():
    indptr, indices = graph(2, 3000, 2000, 60_000)
    x = torch.randn(2000, 64)
    wanted = ops.spmm(indptr, indices, x)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        outs = pool.map(lambda _: ops.spmm(indptr, indices, x), range(16))
        assert all(torch.equal(out, wanted) for out in outs)


def test_strided_input_is_as_good_as_its_copy():
    indptr, indices = graph(4, 10, 10, 50)
    x = torch.randn(10, 12)
    assert torch.equal(
        ops.spmm(indptr, indices, x[:, 2:9]), ops.spmm(indptr, indices, x[:, 2:9].contiguous())
    )
    x_t = x.t().contiguous().t().requires_grad_()
    ops.spmm(indptr, indices, x_t).sum().backward()  # its gradient is expanded, not contiguous
    wanted = torch.bincount(indices, minlength=10).float()[:, None].expand(10, 12)
    assert torch.equal(x_t.grad, wanted)


def test_features_are_let_go_when_no_gradient_needs_them():
    indptr, indices = graph(5, 10, 10, 50)
    x = torch.randn(10, 4, requires_grad=True)
    for reduce in REDUCES:
        out = ops.spmm(indptr, indices, x, reduce=reduce)
        saved = [t for t in out.grad_fn.saved_tensors if t is not None]
        assert all(t.data_ptr() != x.data_ptr() for t in saved)


@pytest.mark.parametrize("reduce", REDUCES)
def test_gradcheck(reduce):
    indptr, indices = graph(6, 6, 5, 20)
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(20, dtype=torch.float64, requires_grad=True)

    def function(x, weight):
        return ops.spmm(indptr, indices, x, weight, reduce=reduce)

    assert torch.autograd.gradcheck(function, (x, weight))
    if reduce in {"sum", "mean"}:
        assert torch.autograd.gradgradcheck(function, (x, weight))
    a = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, x: ops.sddmm(indptr, indices, a, x), (a, x))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_opcheck(weighted, transposed):
    indptr, indices = graph(7, 6, 5, 20, torch.int32)
    x = torch.randn(5, 3, requires_grad=True)
    weight = torch.randn(20, requires_grad=True) if weighted else None
    parts = ops.transpose(indptr, indices, 5) if transposed else (None, None, None)
    for reduce in ("sum", "mean"):
        args = indptr, indices, x, weight, reduce, *parts
        torch.library.opcheck(torch.ops.gnnx.spmm, args)
    for reduce in ("max", "min"):
        args = indptr, indices, x, weight, reduce
        torch.library.opcheck(torch.ops.gnnx.spmm_extremum, args)
    x_dst = torch.randn(6, 3, requires_grad=True)
    torch.library.opcheck(torch.ops.gnnx.sddmm, (indptr, indices, x_dst, x, *parts))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("reduce", REDUCES)
def test_compile(backend, reduce):
    indptr, indices = graph(8, 6, 5, 20)
    transpose = ops.transpose(indptr, indices, 5)

    def function(x, weight, transpose):
        y = ops.spmm(indptr, indices, x.relu(), weight, reduce=reduce, transpose=transpose)
        return y.square().sum() + ops.sddmm(indptr, indices, y, x).sum()

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    for given_transpose in (None, transpose):
        x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(20, dtype=torch.float64, requires_grad=True)
        wanted = torch.autograd.grad(function(x, weight, given_transpose), (x, weight))
        got = torch.autograd.grad(compiled(x, weight, given_transpose), (x, weight))
        for a, b in zip(got, wanted, strict=True):
            assert torch.allclose(a, b, rtol=1e-12)


@pytest.mark.parametrize("reduce", REDUCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_reference_agrees(dtype, reduce):
    """The plain torch version, which serves devices without kernels, gives the same."""
    indptr, indices = graph(9, 20, 15, 150, torch.int32)
    x = torch.from_numpy(ties(9, 15, 4)).to(dtype)
    x[3, 1] = float("nan")
    weight = torch.from_numpy(ties(10, 150)).to(dtype)
    step = torch.finfo(dtype).eps
    for w in (None, weight):
        args = indptr, indices, x, w, reduce
        if reduce in {"sum", "mean"}:
            a, b = _numba.spmm(*args), _reference.spmm(*args)
            assert a.dtype == b.dtype == dtype
            assert torch.allclose(a, b, rtol=step, atol=step, equal_nan=True)
            continue
        (a, at_a), (b, at_b) = _numba.spmm_extremum(*args), _reference.spmm_extremum(*args)
        assert torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(at_a, at_b)
        grad = torch.randn(20, 4).to(dtype)
        for name, rest in (("extremum_grad_x", (w, 15)), ("extremum_grad_weight", (x,))):
            pair = [getattr(m, name)(grad, at_a, indices, *rest) for m in (_numba, _reference)]
            assert pair[0].dtype == pair[1].dtype == dtype
            assert torch.allclose(*pair, rtol=8 * step, atol=8 * step, equal_nan=True)
    a = torch.randn(20, 4).to(dtype)
    pair = [m.sddmm(indptr, indices, a, x) for m in (_numba, _reference)]
    assert torch.allclose(*pair, rtol=8 * step, atol=8 * step, equal_nan=True)


INDPTR, INDICES, X = torch.tensor([0, 1, 3]), torch.tensor([0, 1, 1]), torch.ones(2, 3)


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ((INDPTR.int(), INDICES, X), {}, r"indptr is \(3,\) torch.int32"),
        ((INDPTR[:0], INDICES, X), {}, r"indptr is \(0,\)"),
        ((INDPTR, INDICES.short(), X), {}, r"indices is \(3,\) torch.int16"),
        ((INDPTR, INDICES[None], X), {}, r"indices is \(1, 3\)"),
        ((INDPTR, torch.zeros(6).long()[::2], X), {}, "not contiguous"),
        ((INDPTR, INDICES, X[0]), {}, r"x is \(3,\) torch.float32"),
        ((INDPTR, INDICES, X.long()), {}, r"x is \(2, 3\) torch.int64"),
        ((INDPTR, INDICES, X.to("meta")), {}, "x is on meta, the rest on cpu"),
        ((INDPTR, INDICES, X, torch.ones(2)), {}, r"weight is \(2,\), the graph has 3 edges"),
        ((INDPTR, INDICES, X, torch.ones(3).double()), {}, "weight is torch.float64, x is torch.f"),
        ((INDPTR, INDICES, X), {"reduce": "prod"}, "reduce is 'prod'"),
    ],
)
def test_wrong_arguments_are_named(args, options, message):
    with pytest.raises(UsageError, match=message) as caught:
        ops.spmm(*args, **options)
    assert caught.value.remedy


def test_wrong_sddmm_arguments_are_named():
    with pytest.raises(UsageError, match="x_dst has 3 rows, the graph 2 destinations"):
        ops.sddmm(INDPTR, INDICES, torch.ones(3, 3), X)
    with pytest.raises(UsageError, match=r"x_dst is 4 wide, .*; x_src is 3 wide"):
        ops.sddmm(INDPTR, INDICES, torch.ones(2, 4), X)


LARGE = 1 << 20  # rows of 8: results of a size that keeps its pages


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_results_reuse_memory_and_are_tensors_like_others(dtype):
    pages._results.cache_clear()  # what other tests have freed is not there to be reused
    csr = torch.arange(LARGE + 1), torch.arange(LARGE, dtype=torch.int32)
    x = torch.ones(LARGE, 8, dtype=dtype, requires_grad=True)
    out = ops.spmm(*csr, x)
    place = out.data_ptr()
    assert place % 64 == 0
    assert ops.spmm(*csr, x).data_ptr() != place  # while the first lives
    out.add_(1).relu_()
    out.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    kept = out.detach()[:1]
    del out
    assert ops.spmm(*csr, x).data_ptr() != place  # a view of it lives
    assert kept.tolist() == [[2.0] * 8]
    del kept
    assert ops.spmm(*csr, x).data_ptr() == place


def test_results_are_made_when_no_more_are_kept(monkeypatch):
    monkeypatch.setattr(pages, "available_bytes", lambda: LARGE)
    pages._results.cache_clear()
    csr = torch.arange(LARGE + 1), torch.arange(LARGE, dtype=torch.int32)
    x = torch.randn(LARGE, 8)
    assert torch.equal(ops.spmm(*csr, x), x)
    pages._results.cache_clear()
