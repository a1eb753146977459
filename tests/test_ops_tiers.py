"""Rows of two tiers on a CPU: copies and sums, shapes without data, what does not fit."""

import pytest
import torch

from gnnx import ops
from gnnx.errors import UsageError

INDPTR = torch.tensor([0, 2, 2, 5])
INDICES = torch.tensor([0, 1, 3, 0, 2], dtype=torch.int32)
IDS = torch.tensor([4, 0, 7, 4])
TABLE = torch.arange(24.0).view(8, 3)


def tiers(dtype=torch.float32):
    """Nodes 0 and 7 in the cache, and their rows nowhere else."""
    slot = torch.full((8,), -1, dtype=torch.int32)
    slot[[7, 0]] = torch.arange(2, dtype=torch.int32)
    host = TABLE.clone()
    host[[7, 0]] = float("nan")
    return IDS, slot, TABLE[[7, 0]].to(dtype), host.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_rows_come_from_their_tier(dtype):
    rows = tiers(dtype)
    assert torch.equal(ops.gather_tiers(*rows), TABLE[IDS].to(dtype))
    for reduce in ("sum", "mean"):
        wanted = ops.spmm(INDPTR, INDICES, TABLE[IDS].to(dtype), reduce=reduce)
        assert torch.equal(ops.spmm_tiers(INDPTR, INDICES, *rows, reduce=reduce), wanted)


def test_no_rows():
    ids, *rest = tiers()
    assert ops.gather_tiers(ids[:0], *rest).shape == (0, 3)
    assert ops.spmm_tiers(torch.zeros(1).long(), INDICES[:0], ids[:0], *rest).shape == (0, 3)


def test_opcheck():
    torch.library.opcheck(torch.ops.gnnx.gather_tiers, tiers())
    torch.library.opcheck(torch.ops.gnnx.spmm_tiers, (INDPTR, INDICES, *tiers(), "mean"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda ids, slot, cache, host: (ids.int(), slot, cache, host), "ids are torch.int32"),
        (lambda ids, slot, cache, host: (ids, slot[:7], cache, host), "with 7 slots"),
        (lambda ids, slot, cache, host: (ids, slot, cache.double(), host), "cache is .* torch.flo"),
        (lambda ids, slot, cache, host: (ids, slot, cache, host[:, :2]), r"host \(8, 2\)"),
        (lambda ids, slot, cache, host: (ids, slot, cache, host.t().contiguous().t()), "contig"),
    ],
)
def test_what_does_not_fit_is_named(change, says):
    rows = change(*tiers())
    for call in (ops.gather_tiers, lambda *rows: ops.spmm_tiers(INDPTR, INDICES, *rows)):
        with pytest.raises(UsageError, match=says):
            call(*rows)


def test_unknown_reduction_is_named():
    with pytest.raises(UsageError, match="reduce is 'max'"):
        ops.spmm_tiers(INDPTR, INDICES, *tiers(), reduce="max")
