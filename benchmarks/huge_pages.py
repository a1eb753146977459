"""What do huge pages bring? The random reads of a training step, from a ledger with and without.

usage: benchmarks/huge_pages.py [--nodes N] [--rounds N]

One million nodes of 20 in-edges and 128 float32 features, all in RAM: rows of features by random
ids (a batch from the cache), entries of the topology by random positions (a draw of neighbours),
and a sum over in-edges (`ops.spmm`), in turns with pages of 4 KiB.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sides
import torch

from gnnx import ops
from gnnx.memory import Budget, Ledger, Tier, slab

if TYPE_CHECKING:
    from collections.abc import Callable

_DEGREE, _WIDTH, _ROWS, _DRAWS = 20, 128, 300_000, 2_000_000


def cases(ledger: Ledger, num_nodes: int) -> dict[str, Callable[[], object]]:
    """Make the calls, on buffers of a ledger that have been written."""
    generator = torch.Generator().manual_seed(0)

    def held(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return ledger.tensor(shape, dtype, Tier.HOST, "bench").zero_()

    num_edges = _DEGREE * num_nodes
    x = held((num_nodes, _WIDTH), torch.float32).normal_(generator=generator)
    indices = held((num_edges,), torch.int32).random_(0, num_nodes, generator=generator)
    indptr = torch.arange(0, num_edges + 1, _DEGREE)
    rows = torch.randint(0, num_nodes, (_ROWS,), generator=generator)
    at = torch.randint(0, num_edges, (_DRAWS,), generator=generator)
    batch, drawn = held((_ROWS, _WIDTH), torch.float32), held((_DRAWS,), torch.int32)
    return {
        "rows": lambda: torch.index_select(x, 0, rows, out=batch),
        "neighbours": lambda: torch.index_select(indices, 0, at, out=drawn),
        "spmm": lambda: ops.spmm(indptr, indices, x),
    }


def main() -> None:
    parser = sides.options(__doc__ or "", rounds=7)
    parser.add_argument("--nodes", type=int, default=1_000_000)
    args = parser.parse_args()
    clock, advice, made = sides.start(args), slab.WANT_HUGE, {}
    for pages, each in (("4 KiB", None), ("huge", advice)):
        slab.WANT_HUGE = each
        calls = cases(Ledger(Budget()), args.nodes)
        made |= {f"{name}, {pages}": sides.timed(call, clock) for name, call in calls.items()}
    found = sides.medians(made, args.rounds, 240)
    rows = [
        (name, *(1e3 * found[f"{name}, {pages}"] for pages in ("4 KiB", "huge")),
         found[f"{name}, 4 KiB"] / found[f"{name}, huge"])
        for name in ("rows", "neighbours", "spmm")
    ]  # fmt: skip
    sides.show(("read", "4 KiB ms", "huge ms", "times as fast"), rows)


if __name__ == "__main__":
    main()
