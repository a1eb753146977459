"""The transpose of a CSR, against loops."""

import concurrent.futures

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import oracles
from gnnx import ops
from gnnx.errors import UsageError
from gnnx.ops import _reference


@given(
    seed=st.integers(0, 2**32 - 1),
    num_dst=st.integers(0, 30),
    num_src=st.integers(1, 30),
    num_edges=st.integers(0, 200),
    dtype=st.sampled_from([torch.int32, torch.int64]),
)
def test_transpose_against_loops(seed, num_dst, num_src, num_edges, dtype):
    indptr, indices = oracles.random_csr(seed, num_dst, num_src, num_edges)
    args = torch.from_numpy(indptr), torch.from_numpy(indices).to(dtype), num_src
    wanted = oracles.transpose(indptr, indices, num_src)
    for got in (ops.transpose(*args), _reference.transpose(*args)):
        assert [part.dtype for part in got] == [torch.int64, dtype, dtype]
        for part, want in zip(got, wanted, strict=True):
            assert np.array_equal(part.numpy(), want)


def test_writes_into_out_from_pool_threads():
    csr = [oracles.random_csr(seed, 500, 300, 5000) for seed in range(8)]

    def job(indptr, indices):
        out = tuple(torch.full((n,), -7, dtype=torch.int64) for n in (301, 5000, 5000))
        got = ops.transpose(torch.from_numpy(indptr), torch.from_numpy(indices), 300, out)
        assert all(part is given for part, given in zip(got, out, strict=True))
        return out

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for (indptr, indices), got in zip(csr, pool.map(job, *zip(*csr, strict=True)), strict=True):
            for part, want in zip(got, oracles.transpose(indptr, indices, 300), strict=True):
                assert np.array_equal(part.numpy(), want)


def test_wrong_out_is_refused_with_both_shapes():
    indptr, indices = torch.tensor([0, 2]), torch.tensor([0, 1])
    out = torch.empty(2, dtype=torch.int64), torch.empty_like(indices), torch.empty_like(indices)
    with pytest.raises(UsageError, match=r"out is \(2,\) torch.int64, \(3,\) torch.int64"):
        ops.transpose(indptr, indices, 2, out)


def test_opcheck():
    indptr, indices = map(torch.from_numpy, oracles.random_csr(0, 7, 5, 20))
    torch.library.opcheck(torch.ops.gnnx.transpose, (indptr, indices, 5))
