"""Features that are stored as small whole numbers, and what they stand for.

Letters: N nodes, R rows, F feature width. Value of column f of a row: ``scale[f] * row[f]``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from gnnx.store.engine import WAIT_S
from gnnx.store.features import Pending

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from gnnx.memory import Ledger, Tier
    from gnnx.store.features import FeatureStore


class _Scaled(Pending):
    """Rows on their way, which are multiplied by their scale when they are there."""

    def __init__(self, stored: Pending, scale: torch.Tensor, out: torch.Tensor) -> None:
        super().__init__(out)
        self._stored: Pending | None = stored
        self._scale = scale

    def done(self) -> bool:
        return self._stored is None or self._stored.done()

    def wait(self, timeout_s: float = WAIT_S) -> torch.Tensor:
        if self._stored is not None:
            torch.mul(self._stored.wait(timeout_s), self._scale, out=self._out)
            self._stored = None  # and what it holds
        return self._out


def fetch_values(
    store: FeatureStore,
    rows: NDArray[np.int64],
    ledger: Ledger,
    tier: Tier,
    owner: str,
    *,
    fetch: Callable[[NDArray[np.int64], torch.Tensor], Pending] | None = None,
) -> Pending:
    """Make room for rows, and begin to bring their values: what a model is to see.

    Parameters
    ----------
    store
        What has the rows.
    rows
        (R,) int64. In any order, duplicates allowed; unchanged until the wait is over.
    ledger
        Where the room comes from.
    tier
        Whose it is.
    owner
        To whom it is put down.
    fetch
        Brings rows of the store; its own `FeatureStore.fetch` by default.

    Returns
    -------
    Pending
        Whose `wait` gives (R, F): rows as they are stored, or float32 where they have a scale.

    Raises
    ------
    BudgetError
        There is no room: `value_bytes` a row.
    """
    shape, scale = (len(rows), *store.row_shape), store.scale
    out = ledger.tensor(shape, store.dtype, tier, owner)
    if scale is None:
        return (fetch or store.fetch)(rows, out)
    # before the read begins: were it refused then, the read would go on with nobody to wait for it
    values = ledger.tensor(shape, scale.dtype, tier, owner)
    return _Scaled((fetch or store.fetch)(rows, out), scale, values)


def value_bytes(store: FeatureStore) -> int:
    """Bytes that `fetch_values` takes for a row, with the row as it is stored."""
    scale = store.scale
    values = 0 if scale is None else math.prod(store.row_shape) * scale.itemsize
    return store.row_bytes + values
