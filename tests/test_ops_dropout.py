"""Keyed dropout: a pure function of key, row id and column."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from gnnx import ops, threads
from gnnx.errors import UsageError
from gnnx.ops import _reference
from gnnx.random import Key

KEY = Key(7, 3, 1000, 1)
parts = st.integers(0, 2**62)


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@given(
    key=st.builds(Key, parts, parts, parts, st.integers(0, 8)),
    row_id=st.lists(st.integers(0, 2**62), max_size=6),
    width=st.integers(1, 9),
    p=st.sampled_from([0.1, 0.25, 0.5, 0.9, 0.999]),
)
def test_against_loops(key, row_id, width, p):
    x = np.random.default_rng(0).standard_normal((len(row_id), width))
    args = torch.from_numpy(x), torch.tensor(row_id, dtype=torch.int64), p, key
    wanted = oracles.dropout(x, row_id, p, key)
    assert np.allclose(ops.dropout(*args), wanted, rtol=1e-12)
    assert np.allclose(_reference.dropout(*args), wanted, rtol=1e-12)


@given(
    order=st.permutations(range(40)),
    kept=st.integers(1, 40),
    num_threads=st.integers(1, 4),
)
def test_a_row_has_its_mask_wherever_it_stands(order, kept, num_threads):
    x = torch.ones(40, 3000)
    ids = torch.arange(40) * 1_000_003
    whole = ops.dropout(x, ids, 0.5, KEY)
    pick = torch.tensor(order[:kept])
    before = threads._pool.num_threads
    threads._pool.num_threads = num_threads
    try:
        part = ops.dropout(x[pick], ids[pick], 0.5, KEY)
    finally:
        threads._pool.num_threads = before
    assert torch.equal(part, whole[pick])


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_keep_rate_by_element_row_and_column(p):
    kept = ops.dropout(torch.ones(2000, 500), torch.arange(2000), p, KEY) != 0
    sigma = (p * (1 - p)) ** 0.5
    assert abs(kept.double().mean().item() - (1 - p)) < 5 * sigma / 1e6**0.5
    assert (kept.double().mean(0) - (1 - p)).abs().max() < 5.5 * sigma / 2000**0.5
    assert (kept.double().mean(1) - (1 - p)).abs().max() < 5.5 * sigma / 500**0.5
    # neighbours in either direction do not know of each other
    for a, b in ((kept[:-1], kept[1:]), (kept[:, :-1], kept[:, 1:])):
        both = (a & b).double().mean().item()
        assert abs(both - (1 - p) ** 2) < 6 * sigma / 1e6**0.5


@pytest.mark.parametrize("field", range(4))
def test_each_part_of_the_key_counts(field):
    other = KEY._replace(**{KEY._fields[field]: KEY[field] + 1})
    x, ids = torch.ones(100, 100), torch.arange(100)
    a, b = (ops.dropout(x, ids, 0.5, key) != 0 for key in (KEY, other))
    assert abs((a == b).double().mean().item() - 0.5) < 0.05


def test_scale_gradient_and_extremes():
    x = torch.randn(30, 20, dtype=torch.float64, requires_grad=True)
    ids = torch.arange(30)
    out = ops.dropout(x, ids, 0.2, KEY)
    mask = out != 0
    assert torch.allclose(out, torch.where(mask, x / 0.8, 0.0))
    seed = torch.randn(30, 20, dtype=torch.float64)
    (grad,) = torch.autograd.grad(out, x, seed)
    assert torch.allclose(grad, torch.where(mask, seed / 0.8, 0.0))
    assert ops.dropout(x, ids, 0.0, KEY) is x
    assert not ops.dropout(x, ids, 1.0, KEY).any()
    assert not ops.dropout(torch.full((3, 3), float("nan")), ids[:3], 1.0, KEY).any()
    assert torch.autograd.gradcheck(lambda x: ops.dropout(x, ids, 0.5, KEY), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_mask_is_the_same_in_every_type(dtype):
    ids = torch.arange(50)
    wide = ops.dropout(torch.ones(50, 7, dtype=torch.float64), ids, 0.3, KEY)
    out = ops.dropout(torch.ones(50, 7, dtype=dtype), ids, 0.3, KEY)
    assert out.dtype == dtype
    assert torch.equal(out, wide.to(dtype))


def test_opcheck_and_compile():
    x, ids = torch.randn(5, 3, requires_grad=True), torch.arange(5)
    torch.library.opcheck(torch.ops.gnnx.dropout, (x, ids, 0.5, list(KEY)))

    torch.compiler.reset()
    compiled = torch.compile(ops.dropout, fullgraph=True, backend="aot_eager")
    for step in range(4):  # from the second step on, the key's numbers are symbols
        key = Key(2**61 + 1, 0, step, 1)
        assert torch.equal(compiled(x, ids, 0.5, key), ops.dropout(x, ids, 0.5, key))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.ones(2, 2), torch.arange(3), 0.5), r"row_id is \(3,\) torch.int64, x has 2 rows"),
        ((torch.ones(2, 2), torch.arange(2).int(), 0.5), r"row_id is \(2,\) torch.int32"),
        ((torch.ones(2, 2), torch.arange(2), 1.5), "p is 1.5"),
        ((torch.ones(2, 2), torch.arange(2), float("nan")), "p is nan"),
        ((torch.ones(2), torch.arange(2), 0.5), r"x is \(2,\) torch.float32"),
    ],
)
def test_wrong_arguments_are_named(args, message):
    with pytest.raises(UsageError, match=message):
        ops.dropout(*args, KEY)
