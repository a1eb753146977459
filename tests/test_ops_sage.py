"""The fused layer of GraphSAGE: loops, gradients of both orders, types, torch's checks."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import oracles
from gnnx import ops
from gnnx.errors import UsageError


def drawn(seed, num_dst, num_src, num_edges, widths=(3, 4), dtype=torch.float64, bias=True):
    """A CSR, then x, both weights and a bias."""
    torch.manual_seed(seed)
    indptr, indices = oracles.random_csr(seed, num_dst, num_src, num_edges)
    shapes = [(num_src, widths[0]), *[widths[::-1]] * 2, *[widths[1:]] * bias]
    csr = torch.from_numpy(indptr), torch.from_numpy(indices).int()
    return csr, [torch.randn(shape, dtype=torch.float64).to(dtype) for shape in shapes]


def by_loops(csr, x, w_self, w_neigh, bias=0.0):
    """The formula, row by row."""
    indptr, indices = (part.tolist() for part in csr)
    rows = []
    for d in range(len(indptr) - 1):
        sources = indices[indptr[d] : indptr[d + 1]]
        mean = sum((x[s] for s in sources), torch.zeros_like(x[0])) / max(len(sources), 1)
        rows.append(w_self @ x[d] + w_neigh @ mean + bias)
    return torch.stack(rows) if rows else x.new_zeros(0, len(w_self))


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**32 - 1),
    num_dst=st.integers(0, 6),
    more=st.integers(0, 6),
    num_edges=st.integers(0, 40),
    widths=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    bias=st.booleans(),
    with_transpose=st.booleans(),
)
def test_against_loops_with_gradients(seed, num_dst, more, num_edges, widths, bias, with_transpose):
    """Destinations without edges, sources that are none, duplicates and loops included."""
    num_src = max(num_dst + more, 1)
    csr, given = drawn(seed, num_dst, num_src, num_edges if num_dst else 0, widths, bias=bias)
    parts = ops.transpose(*csr, num_src) if with_transpose else None
    leaves = [t.requires_grad_() for t in given]
    out, wanted = ops.sage(*csr, *leaves, transpose=parts), by_loops(csr, *leaves)
    assert torch.allclose(out, wanted, rtol=1e-11, atol=1e-11)
    if not num_dst:
        return
    seeds = torch.randn_like(out)
    pairs = zip(
        torch.autograd.grad(out, leaves, seeds),
        torch.autograd.grad(wanted, leaves, seeds, materialize_grads=True),
        strict=True,
    )
    for got, want in pairs:
        assert torch.allclose(got, want, rtol=1e-11, atol=1e-11)


def test_gradients_of_both_orders():
    """A second derivative passes through the mean that the first one kept."""
    csr, given = drawn(1, 5, 8, 20)
    leaves = [t.requires_grad_() for t in given]

    def function(*leaves):
        return ops.sage(*csr, *leaves)

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


def test_opcheck_and_compile():
    csr, given = drawn(2, 5, 8, 20)
    parts = ops.transpose(*csr, 8)
    leaves = [t.requires_grad_() for t in given]
    torch.library.opcheck(torch.ops.gnnx.sage, (*csr, *leaves, *parts))
    torch.library.opcheck(torch.ops.gnnx.sage, (*csr, *given[:3], None, None, None, None))
    compiled = torch.compile(ops.sage, fullgraph=True, backend="aot_eager")
    wanted, out = ops.sage(*csr, *leaves), compiled(*csr, *leaves)
    assert torch.equal(out, wanted)
    seeds = torch.randn_like(out)
    for got, want in zip(
        torch.autograd.grad(out, leaves, seeds),
        torch.autograd.grad(wanted, leaves, seeds),
        strict=True,
    ):
        assert torch.allclose(got, want, rtol=1e-12, atol=1e-12)


class Sizes(TorchDispatchMode):
    """Counts how many outputs of torch's and gnnx's operators own a given number of elements."""

    def __init__(self, num_elements):
        super().__init__()
        self.num_elements, self.found = num_elements, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, tuple | list) else [out]:
            if isinstance(part, torch.Tensor) and part.numel() == self.num_elements:
                self.found.add(part.data_ptr())
        return out


def test_backward_makes_one_tensor_of_the_size_of_the_sources():
    """A gradient of x[:D] in autograd's way would be a second one, zero but for D rows."""
    csr, given = drawn(3, 40, 900, 300, (64, 32), torch.float32)
    leaves = [t.requires_grad_() for t in given]
    out = ops.sage(*csr, *leaves)
    with Sizes(900 * 64) as sizes:
        torch.autograd.grad(out, leaves, torch.ones_like(out))
    assert len(sizes.found) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_types(dtype):
    csr, given = drawn(4, 30, 50, 200, (48, 40), dtype)
    wanted = by_loops(csr, *(t.double() for t in given))
    out = ops.sage(*csr, *given)
    assert out.dtype == dtype
    assert (out - wanted).norm() < 4 * torch.finfo(dtype).eps * wanted.norm()


def test_autocast_takes_what_it_gets():
    """Weights of float32 with rows of either type, as the layer before left them."""
    csr, (x, *weights) = drawn(5, 30, 50, 200, (48, 40), torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        wide, narrow = ops.sage(*csr, x, *weights), ops.sage(*csr, x.bfloat16(), *weights)
    assert wide.dtype == narrow.dtype == torch.bfloat16
    assert torch.equal(wide, narrow)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda csr, t: (csr, [t[0][:4], *t[1:]]), "x has 4 rows, the graph 5 destinations"),
        (lambda csr, t: (csr, [t[0], t[1], t[2][:, :2], t[3]]), r"w_neigh is \(4, 2\)"),
        (lambda csr, t: (csr, [t[0], t[1].float(), *t[2:]]), "w_self is .* torch.float32"),
        (lambda csr, t: (csr, [*t[:3], t[3][:3]]), r"bias is \(3,\)"),
    ],
)
def test_what_does_not_fit_is_named(change, says):
    csr, given = change(*drawn(7, 5, 8, 20))
    with pytest.raises(UsageError, match=says):
        ops.sage(*csr, *given)
