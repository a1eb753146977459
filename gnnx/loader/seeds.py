"""The nodes of a split and their labels, by position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from gnnx.errors import UsageError
from gnnx.memory import Tier
from gnnx.store import FeatureStore, Pending

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gnnx.memory import Ledger
    from gnnx.store import Dataset, DiskFeatures

Split = Literal["train", "val", "test"]
_SPLITS = ("train", "val", "test")
_PIECE = 1 << 16  # seeds that are looked at together


class EveryNode(FeatureStore):
    """All nodes as seeds, without a list of them: row i is i."""

    row_shape, dtype, row_bytes = (), torch.int64, 8

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes

    @property
    def num_rows(self) -> int:
        """N."""
        return self._num_nodes

    def fetch(
        self,
        rows: NDArray[np.int64],
        out: torch.Tensor | None = None,
        slots: NDArray[np.int64] | None = None,
    ) -> Pending:
        """Give the ids of rows, as of any `FeatureStore`."""
        ids = torch.from_numpy(rows)
        if out is None and slots is None:
            return Pending(ids)
        places = np.arange(len(rows)) if slots is None else slots
        if out is None:
            out = torch.zeros(int(places.max(initial=-1)) + 1, dtype=torch.int64)
        out[torch.from_numpy(places)] = ids
        return Pending(out)


class Seeds:
    """Ids of a split and their labels, by position; on disk until `keep`.

    Parameters
    ----------
    dataset
        Where they are.
    split
        As of `Loader`.
    """

    def __init__(self, dataset: Dataset, split: Split | torch.Tensor | NDArray[np.int64]) -> None:
        self.source: DiskFeatures | NDArray[np.int64]
        if isinstance(split, str):
            if split not in _SPLITS:
                raise UsageError(f"split {split!r} is unknown", f"Give one of {_SPLITS}, or ids.")
            self.source = dataset.split(split)
            self.count = self.source.num_rows
        else:
            ids = torch.as_tensor(split)
            if ids.dim() != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
                raise UsageError(
                    f"split of {ids.dtype} {tuple(ids.shape)}", "Give node ids, (B,) integers."
                )
            self.source = ids.to(torch.int64).contiguous().numpy()
            self.count = len(self.source)
        self._labels = dataset.labels
        self._kept_labels: torch.Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """HOST bytes that `keep` takes."""
        # ids that are given are held already, but may have to be sorted to read their labels
        id_bytes = 16 if isinstance(self.source, np.ndarray) else 8
        label_bytes = self._labels.row_bytes if self._labels else 0
        return self.count * (id_bytes + label_bytes) + 2 * 64

    def keep(self, ledger: Ledger) -> None:
        """Read all ids and labels: batches want a few of each, from all over the files."""
        if not isinstance(self.source, np.ndarray):
            ids = ledger.tensor(self.count, torch.int64, Tier.HOST, "seeds")
            self.source = self.source.read_range(0, self.count, ids).numpy()
        if self._labels is not None:
            shape = (self.count, *self._labels.row_shape)
            labels = ledger.tensor(shape, self._labels.dtype, Tier.HOST, "seeds")
            self._kept_labels = self._labels.read(self.source, labels)

    def count_in_ranges(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        """Count the seeds of each range of nodes.

        Parameters
        ----------
        offsets
            (P + 1,) int64. Range p is the nodes offsets[p] to offsets[p + 1].

        Returns
        -------
        ndarray
            (P,) int64.

        Raises
        ------
        UsageError
            The seeds do not ascend, so that those of a range are not side by side.
        """
        counts, last = np.zeros(len(offsets) - 1, np.int64), -1
        for begin in range(0, self.count, _PIECE):
            ids = self.ids(np.arange(begin, min(begin + _PIECE, self.count)))
            if (np.diff(ids, prepend=last) <= 0).any():
                raise UsageError(
                    "seeds that do not ascend cannot be taken part by part", "Sort the seeds."
                )
            counts += np.diff(np.searchsorted(ids, offsets))
            last = int(ids[-1])
        return counts

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Ids at positions."""
        if isinstance(self.source, np.ndarray):
            return self.source[positions]
        return self.source.read(positions).numpy()

    def fetch(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], Pending | None]:
        """Ids at positions, and their labels on the way; None where there are none."""
        ids = self.ids(positions)
        if self._labels is None:
            return ids, None
        if self._kept_labels is not None:
            return ids, Pending(self._kept_labels[torch.from_numpy(positions)])
        return ids, self._labels.fetch(ids)
