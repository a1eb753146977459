"""Attention, edge softmax, sums on edges and gather: loops, gradients, types, torch's checks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from gnnx import ops, threads
from gnnx.errors import UsageError
from gnnx.ops import _numba, _reference

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def graph(seed, num_dst, num_src, num_edges, dtype=torch.int64):
    indptr, indices = oracles.random_csr(seed, num_dst, num_src, num_edges)
    return torch.from_numpy(indptr), torch.from_numpy(indices).to(dtype)


def drawn(num_dst, num_src, num_heads, width, dtype=torch.float64, grad=False):
    """Features and the two terms of the scores."""
    shapes = (num_src, num_heads, width), (num_dst, num_heads), (num_src, num_heads)
    return [
        torch.randn(shape, dtype=torch.float64).to(dtype).requires_grad_(grad) for shape in shapes
    ]


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_dst=st.integers(0, 10),
    num_src=st.integers(1, 10),
    num_edges=st.integers(0, 150),
    num_heads=st.integers(1, 5),
    width=st.integers(1, 9),
    slope=st.sampled_from([0.0, 0.2, 1.0, 3.0]),
    index_dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_attention_against_loops(
    seed, num_dst, num_src, num_edges, num_heads, width, slope, index_dtype
):
    torch.manual_seed(seed)
    csr = graph(seed, num_dst, num_src, num_edges, index_dtype)
    args = drawn(num_dst, num_src, num_heads, width)
    wanted = oracles.attention(*(t.numpy() for t in (*csr, *args)), slope)
    assert np.allclose(ops.attention(*csr, *args, slope=slope), wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("num_heads", "width"), [(8, 32), (1, 513), (2, 130), (3, 33), (5, 1)])
def test_attention_of_many_widths_and_long_rows(num_heads, width):
    """Gradients too, edge by edge in float64; a row of many chunks beside short ones."""
    csr = graph(1, 30, 25, 600, torch.int32)
    args = drawn(30, 25, num_heads, width, torch.float32, grad=True)
    exact = [t.detach().double() for t in args]
    out = ops.attention(*csr, *args)
    grad = torch.randn_like(out)
    wanted = _reference.attention(*csr, *exact, 0.2, True)
    wanted_grads = _reference.attention_grad(*csr, *exact, 0.2, *wanted, grad.double())
    assert torch.allclose(out.double(), wanted[0], rtol=1e-4, atol=1e-5)
    for got, right in zip(torch.autograd.grad(out, args, grad), wanted_grads, strict=True):
        assert torch.allclose(got.double(), right, rtol=1e-4, atol=3e-6 * float(right.abs().max()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wide_scores", [False, True])
def test_attention_of_narrow_types_rounds_once(dtype, wide_scores):
    csr = graph(2, 30, 25, 300)
    args = drawn(30, 25, 2, 20, dtype)
    if wide_scores:
        args = [args[0], args[1].float(), args[2].float()]
    exact = [t.float().requires_grad_() for t in args]
    args = [t.requires_grad_() for t in args]
    out, wide = ops.attention(*csr, *args), ops.attention(*csr, *exact)
    assert out.dtype == dtype
    assert torch.equal(out, wide.to(dtype))
    step = torch.finfo(dtype).eps
    grad = torch.randn_like(out)
    for got, right, arg in zip(
        torch.autograd.grad(out, args, grad),
        torch.autograd.grad(wide, exact, grad.float()),
        args,
        strict=True,
    ):
        assert got.dtype == arg.dtype
        assert torch.allclose(
            got.float(), right, rtol=4 * step, atol=8 * step * float(right.abs().max())
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_attention_of_hubs(dtype):
    """Rows longer than what one thread takes at once, in both orders; the same with any threads."""
    lengths = torch.tensor([2, 20_000, 0, 8192, 8193, 16_384, 3])
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    indices = torch.randint(1, 50, (int(indptr[-1]),), dtype=torch.int32)
    indices[torch.rand(len(indices)) < 0.5] = 7  # a source of many edges
    args = [t.requires_grad_() for t in drawn(7, 50, 2, 9, dtype)]
    exact = [t.detach().double() for t in args]
    for t in (args, exact):
        t[2].data *= 5  # weights far apart, also between pieces
    grad, before, found = torch.randn(7, 2, 9).to(dtype), threads.num_threads(), []
    try:
        for count in (1, 3):
            threads.set_num_threads(count)
            out = ops.attention(indptr, indices, *args)
            found.append([out.detach(), *torch.autograd.grad(out, args, grad)])
    finally:
        threads.set_num_threads(before)
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))
    wanted = _reference.attention(indptr, indices, *exact, 0.2, True)
    wanted_grads = _reference.attention_grad(
        indptr,
        indices,
        *exact,
        0.2,
        *wanted,
        grad.double(),
        *ops.transpose(indptr, indices, 50)[:2],
    )
    step = max(torch.finfo(dtype).eps, 1e-10)
    for got, right in zip(found[0], (wanted[0], *wanted_grads), strict=True):
        scale = max(float(right.abs().max()), 1.0)  # a_dst's is a difference of products near 1
        assert torch.allclose(got.double(), right, rtol=4 * step, atol=4 * step * scale)
    with torch.no_grad():
        assert torch.equal(ops.attention(indptr, indices, *args), found[0][0])


def test_attention_at_large_scores():
    """No overflow where exp(score) has one, weights of 0 where they vanish, NaNs where they are."""
    indptr, indices = torch.tensor([0, 2, 4, 4]), torch.tensor([0, 1, 1, 2])
    x = torch.tensor([1.0, 10.0, 100.0])[:, None, None]
    a_src = torch.tensor([[1000.0], [900.0], [float("nan")]])
    out = ops.attention(indptr, indices, x, torch.tensor([[5.0], [0.0], [3.0]]), a_src)
    assert out[0].item() == 1.0
    assert out[1].isnan()
    assert out[2].item() == 0.0
    exact = ops.attention(indptr, indices, x, torch.full((3, 1), -2000.0), a_src)
    assert abs(exact[0].item() - 1.0) < 1e-6


@given(
    seed=st.integers(0, 2**32 - 1),
    num_dst=st.integers(0, 10),
    num_edges=st.integers(0, 80),
    num_heads=st.integers(1, 9),
)
def test_edge_softmax_against_loops(seed, num_dst, num_edges, num_heads):
    indptr, indices = graph(seed, num_dst, 5, num_edges)
    logits = 20 * torch.from_numpy(
        np.random.default_rng(seed).standard_normal((len(indices), num_heads))
    )
    wanted = oracles.edge_softmax(indptr.numpy(), logits.numpy())
    assert np.allclose(ops.edge_softmax(indptr, logits), wanted, rtol=1e-12, atol=1e-15)
    out = ops.edge_softmax(indptr, logits[:, 0].float())
    assert out.shape == indices.shape
    assert np.allclose(out, wanted[:, 0], rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("dtype", DTYPES)
def test_reference_agrees(dtype):
    csr = graph(3, 20, 15, 150, torch.int32)
    transpose = ops.transpose(*csr, 15)
    x, a_dst, a_src = drawn(20, 15, 3, 6, dtype)
    step = torch.finfo(dtype).eps

    def compare(name, *args):
        pair = [getattr(module, name)(*args) for module in (_numba, _reference)]
        pair = [out if isinstance(out, tuple) else (out,) for out in pair]
        for a, b in zip(*pair, strict=True):
            assert a.dtype == b.dtype
            assert torch.allclose(a, b, rtol=8 * step, atol=16 * step)
        return pair[1]

    compare("attention", *csr, x, a_dst, a_src, 0.2, False)
    kept = compare("attention", *csr, x, a_dst, a_src, 0.2, True)
    grad = torch.randn(20, 3, 6).to(dtype)
    args = *csr, x, a_dst, a_src, 0.2, *kept, grad
    compare("attention_grad", *args, *transpose[:2])
    compare("sddmm_add", *csr, a_dst, a_src)
    logits = torch.randn(150, 3).to(dtype)
    (out,) = compare("edge_softmax", csr[0], logits)
    compare("edge_softmax_grad", csr[0], out, torch.randn(150, 3).to(dtype))


def test_gradcheck():
    csr = graph(4, 6, 5, 40)
    args = drawn(6, 5, 2, 3, grad=True)
    x, a_dst, a_src = args
    logits = torch.randn(40, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *t: ops.attention(*csr, *t), args)
    assert torch.autograd.gradcheck(lambda t: ops.edge_softmax(csr[0], t), (logits,))
    assert torch.autograd.gradcheck(lambda *t: ops.sddmm(*csr, *t, op="add"), (a_dst, a_src))
    assert torch.autograd.gradgradcheck(lambda *t: ops.sddmm(*csr, *t, op="add"), (a_dst, a_src))
    rows = x.flatten(1)
    assert torch.autograd.gradcheck(lambda t: ops.gather(t, csr[1]), (rows,))


def test_opcheck():
    csr = graph(5, 6, 5, 20, torch.int32)
    x, a_dst, a_src = drawn(6, 5, 2, 3, torch.float32, grad=True)
    logits = torch.randn(20, 2, requires_grad=True)
    none = (None, None, None)
    for keep, parts in ((True, ops.transpose(*csr, 5)), (True, none), (False, none)):
        args = *csr, x, a_dst, a_src, 0.2, keep, *parts
        torch.library.opcheck(torch.ops.gnnx.attention, args)
    torch.library.opcheck(torch.ops.gnnx.sddmm_add, (*csr, a_dst, a_src, *none))
    torch.library.opcheck(torch.ops.gnnx.edge_softmax, (csr[0], logits))


def test_compile():
    csr = graph(6, 6, 5, 20)
    transpose = ops.transpose(*csr, 5)

    def function(x, a_dst, a_src):
        y = ops.attention(*csr, x.relu(), a_dst, a_src, transpose=transpose)
        z = ops.edge_softmax(csr[0], ops.sddmm(*csr, a_dst, a_src, op="add"))
        return y.square().sum() + (z * ops.gather(a_src, csr[1])).sum()

    torch.compiler.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    args = drawn(6, 5, 2, 3, grad=True)
    wanted = torch.autograd.grad(function(*args), args)
    for a, b in zip(torch.autograd.grad(compiled(*args), args), wanted, strict=True):
        assert torch.allclose(a, b, rtol=1e-12)


def test_bits_do_not_depend_on_threads_or_repetition(monkeypatch):
    csr = graph(7, 2000, 1500, 40_000, torch.int32)
    args = drawn(2000, 1500, 4, 16, torch.float32, grad=True)
    grad = torch.randn(2000, 4, 16)

    def results():
        out = ops.attention(*csr, *args)
        scores = ops.sddmm(*csr, args[1], args[2], op="add")
        return out, *torch.autograd.grad(out, args, grad), ops.edge_softmax(csr[0], scores)

    first, again = results(), results()
    monkeypatch.setattr(threads._pool, "num_threads", 1)
    for a, b, c in zip(first, again, results(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)


def test_nothing_of_the_size_of_the_edges_is_kept():
    csr = graph(8, 10, 10, 3000)
    args = drawn(10, 10, 2, 4, torch.float32, grad=True)
    saved = [t for t in ops.attention(*csr, *args).grad_fn.saved_tensors if t is not None]
    assert [t.shape for t in saved if 3000 in t.shape] == [csr[1].shape]
    with torch.no_grad():  # and nothing for a gradient that none will ask for
        kept = torch.ops.gnnx.attention(*csr, *args, 0.2, False, None, None, None)
    assert kept[2].numel() == kept[3].numel() == 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 5, 64, 100])
def test_gather_copies_rows(dtype, width):
    x = torch.randn(20, width).to(dtype).requires_grad_()
    index = torch.randint(20, (70,))
    out = ops.gather(x, index)
    assert torch.equal(out, x[index])
    grad = torch.randint(-4, 5, out.shape).to(dtype)  # sums are exact
    (dx,) = torch.autograd.grad(out, x, grad)
    assert torch.equal(dx, torch.zeros_like(x).index_add(0, index, grad))
    assert ops.gather(x, index[:0]).shape == (0, width)


INDPTR, INDICES = torch.tensor([0, 1, 3]), torch.tensor([0, 1, 1])
X, A = torch.ones(2, 3, 4), torch.ones(2, 3)


@pytest.mark.parametrize(
    ("args", "options", "message"),
    [
        ((X[0], A, A), {}, r"x is \(3, 4\)"),
        ((X.long(), A, A), {}, r"x is .* torch.int64"),
        ((X, A[:, :2], A), {}, r"a_dst is \(2, 2\), \(2, 3\) is needed"),
        ((X, A, A[:1]), {}, r"a_src is \(1, 3\), \(2, 3\) is needed"),
        ((X, A, A.double()), {}, "a_src is torch.float64, x is torch.float32"),
        ((X, A, A), {"slope": -0.1}, "slope is -0.1"),
    ],
)
def test_wrong_attention_arguments_are_named(args, options, message):
    with pytest.raises(UsageError, match=message) as caught:
        ops.attention(INDPTR, INDICES, *args, **options)
    assert caught.value.remedy


def test_other_wrong_arguments_are_named():
    with pytest.raises(UsageError, match="op is 'mul'"):
        ops.sddmm(INDPTR, INDICES, A, A, op="mul")
    with pytest.raises(UsageError, match=r"logits is \(3, 2, 1\)"):
        ops.edge_softmax(INDPTR, torch.ones(3, 2, 1))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_dst=st.integers(0, 10),
    num_src=st.integers(1, 10),
    num_edges=st.integers(0, 80),
    num_heads=st.integers(1, 4),
    width=st.sampled_from([1, 2, 7, 16, 33]),
    slope=st.sampled_from([0.0, 0.2, 1.0]),
    index_dtype=st.sampled_from([torch.int32, torch.int64]),
    with_transpose=st.booleans(),
)
def test_edge_scores_against_loops(
    seed, num_dst, num_src, num_edges, num_heads, width, slope, index_dtype, with_transpose
):
    torch.manual_seed(seed)
    indptr, indices = graph(seed, num_dst, num_src, num_edges, index_dtype)
    shapes = (num_dst, num_heads, width), (num_src, num_heads, width), (num_heads, width)
    args = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes]
    transpose = ops.transpose(indptr, indices, num_src) if with_transpose else None
    out = ops.edge_scores(indptr, indices, *args, slope=slope, transpose=transpose)
    grad = torch.randn_like(out)
    values = [t.detach().numpy() for t in (indptr, indices, *args)]
    wanted = oracles.edge_scores(*values, slope, grad.numpy())
    for got, right in zip((out, *torch.autograd.grad(out, args, grad)), wanted, strict=True):
        assert np.allclose(got.detach(), right, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_edge_scores_of_every_type(dtype):
    """The reference agrees, over pieces of edges too; bits do not depend on threads."""
    csr = graph(3, 600, 500, 4000, torch.int32)
    x_dst, x_src = (torch.randn(n, 2, 40).to(dtype) for n in (600, 500))
    att, grad = torch.randn(2, 40).to(dtype), torch.randn(4000, 2).to(dtype)
    transpose = ops.transpose(*csr, 500)
    args = *csr, x_dst, x_src, att, 0.2
    step, before = torch.finfo(dtype).eps, threads.num_threads()
    results = []
    try:
        for count in (1, 3):
            threads.set_num_threads(count)
            grads = _numba.edge_scores_grad(*args, grad, *transpose)
            results.append((_numba.edge_scores(*args), *grads))
    finally:
        threads.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    wanted = _reference.edge_scores(*args), *_reference.edge_scores_grad(*args, grad)
    for got, right in zip(results[0], wanted, strict=True):
        assert got.dtype == right.dtype == dtype
        assert torch.allclose(got, right, rtol=8 * step, atol=8 * step * float(right.abs().max()))


def test_edge_scores_keep_nan_and_refuse_wrong_arguments():
    indptr, indices = torch.tensor([0, 1, 2]), torch.tensor([0, 1])
    x = torch.tensor([1.0, float("nan")])[:, None, None]
    out = ops.edge_scores(indptr, indices, torch.ones(2, 1, 1), x, torch.ones(1, 1))
    assert out[0].item() == 2.0
    assert out[1].isnan()
    good = torch.ones(2, 2, 3), torch.ones(2, 2, 3), torch.ones(2, 3)
    for place, wrong, cause in (
        (0, torch.ones(3, 2, 3), r"x_dst is \(3, 2, 3\), \(2, 2, 3\) is needed"),
        (1, torch.ones(2, 1, 3), r"x_src is \(2, 1, 3\)"),
        (2, torch.ones(3), r"att is \(3,\)"),
        (1, torch.ones(2, 2, 3).double(), "x_src torch.float64"),
    ):
        args = [wrong if i == place else t for i, t in enumerate(good)]
        with pytest.raises(UsageError, match=cause):
            ops.edge_scores(indptr, indices, *args)
    with pytest.raises(UsageError, match="slope is -1"):
        ops.edge_scores(indptr, indices, *good, slope=-1)


def test_edge_scores_pass_torch_s_checks():
    csr = graph(5, 6, 5, 20)
    args = [torch.randn(shape, dtype=torch.float64) for shape in ((6, 2, 3), (5, 2, 3), (2, 3))]
    args = [t.requires_grad_() for t in args]
    assert torch.autograd.gradcheck(lambda *a: ops.edge_scores(*csr, *a), args)
    torch.library.opcheck(torch.ops.gnnx.edge_scores.default, (*csr, *args, 0.2, None, None, None))
