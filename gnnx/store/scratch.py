"""Rows that a run writes once and reads back: a scratch file that dies with the process.

Letters: N rows, R rows written.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch

from gnnx.errors import ResourceError
from gnnx.memory import Tier
from gnnx.store.features import DiskFeatures
from gnnx.store.manifest import HEADER_BYTES, ArrayEntry
from gnnx.store.writer import write_all

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gnnx.store.dataset import Dataset

_PIECE_BYTES = 1 << 20  # of HOST memory, through which scattered rows are written
_DIRTY_BYTES = 32 << 20  # written, then synced and dropped, so that a memory cgroup stays clean


class ScratchRows(DiskFeatures):
    """N rows addressed by id, written in ascending order and read as any `FeatureStore`.

    A context manager. The file lies in the system's folder for temporary files (TMPDIR), or in
    /var/tmp where that folder is RAM. It has no name, and counts in the DISK tier, or in HOST where
    both folders are RAM. A row that was never written may hold anything.

    Parameters
    ----------
    dataset
        Whose readers and ledger serve.
    num_rows
        N.
    row_shape
        Shape of a row.
    dtype
        Of the elements.

    Raises
    ------
    BudgetError
        The budget of the tier is too small.
    ResourceError
        The folder for temporary files has less free space.
    """

    def __init__(
        self, dataset: Dataset, num_rows: int, row_shape: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        num_bytes = num_rows * prod(row_shape) * dtype.itemsize
        folder, tier = _folder()
        free = shutil.disk_usage(folder).free
        if free < num_bytes:
            raise ResourceError(
                f"{folder}: {num_bytes} bytes of scratch needed, {free} are free",
                "Free some space, or name another folder with TMPDIR.",
            )
        name = str(dtype).removeprefix("torch.")
        with contextlib.ExitStack() as held:  # gives all back where one of them is not to be had
            held.enter_context(dataset.ledger.reserve(num_bytes, tier, "scratch"))
            self._fd, path = tempfile.mkstemp(prefix="gnnx-", dir=folder)
            held.callback(os.close, self._fd)
            try:
                os.ftruncate(self._fd, HEADER_BYTES + num_bytes)
                entry = ArrayEntry((num_rows, *row_shape), name, num_bytes)
                super().__init__(Path(path), entry, dataset.io, dataset.ledger)
                self.file.open()
                held.callback(self.file.close)
            finally:
                Path(path).unlink()  # the open descriptors keep it, and a killed run leaves nothing
            self._held = held.pop_all()
        self._dirty = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._held.close()

    def write(self, ids: NDArray[np.int64], rows: torch.Tensor) -> None:
        """Write rows; what lies between the first and the last id and is not named is lost.

        Parameters
        ----------
        ids
            (R,) int64. Ascending, after those of every call before.
        rows
            (R, ...). Of the row shape and dtype.

        Raises
        ------
        ResourceError
            The disk is full.
        """
        free = self._ledger.free_bytes(Tier.HOST)
        piece_bytes = _PIECE_BYTES if free is None else min(_PIECE_BYTES, free // 8)
        step = max(1, piece_bytes // max(1, self.row_bytes))
        piece = self._ledger.tensor((step, *self.row_shape), self.dtype, Tier.HOST, "scratch")
        raw = memoryview(piece.view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
        begin = 0
        while begin < len(ids):
            first = int(ids[begin])
            end = int(ids.searchsorted(first + step))
            local = torch.from_numpy(ids[begin:end] - first)
            piece[local] = rows[begin:end].detach().cpu()
            size = (int(local[-1]) + 1) * self.row_bytes
            self._write(first, raw[:size])
            begin = end

    def write_range(self, first: int, rows: torch.Tensor) -> None:
        """Write consecutive rows, at any place and in any order of calls.

        Parameters
        ----------
        first
            Where the first row goes.
        rows
            (R, ...). Contiguous, on the CPU, of the row shape and dtype.

        Raises
        ------
        ResourceError
            The disk is full.
        """
        self._write(first, memoryview(rows.view(-1).view(torch.uint8).numpy()))  # type: ignore[arg-type]

    def _write(self, first: int, raw: memoryview) -> None:
        write_all(self._fd, raw, HEADER_BYTES + first * self.row_bytes, self.path)
        self._dirty += len(raw)
        if self._dirty >= _DIRTY_BYTES:
            os.fdatasync(self._fd)
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
            self._dirty = 0


def _folder() -> tuple[Path, Tier]:
    """Where scratch goes, and the tier whose bytes it takes there."""
    chosen = Path(tempfile.gettempdir())
    for folder in (chosen, Path("/var/tmp")):
        if folder.is_dir() and os.access(folder, os.W_OK) and not _in_ram(folder):
            return folder, Tier.DISK
    return chosen, Tier.HOST


def _in_ram(folder: Path) -> bool:
    """Whether a folder's files are memory, as in a tmpfs, which many systems have at /tmp."""
    device = folder.stat().st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        mount, _, kind = line.partition(" - ")
        if mount.split()[2] == number:
            return kind.split()[0] in {"tmpfs", "ramfs"}
    return False
