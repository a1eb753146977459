"""Rows that a run writes once and reads back: a scratch file that dies with the process.

Letters: N rows, R rows written.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Self

import torch

from gnnx.errors import ResourceError
from gnnx.memory import Tier
from gnnx.store.engine import DataFile
from gnnx.store.features import DiskFeatures
from gnnx.store.manifest import ArrayEntry
from gnnx.store.writer import write_all, write_error

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gnnx.store.dataset import Dataset
    from gnnx.store.engine import Job

_PIECE_BYTES = 1 << 20  # of HOST memory, through which scattered rows are written
_DIRTY_BYTES = 32 << 20  # written, then synced and dropped, so that a memory cgroup stays clean


class ScratchFile:
    """Bytes that a run writes and reads back; a context manager.

    The file lies in the system's folder for temporary files (TMPDIR), or in /var/tmp where that
    folder is RAM. It has no name, and counts in the DISK tier, or in HOST where both folders are
    RAM. Bytes that were never written may be anything.

    Parameters
    ----------
    dataset
        Whose readers and ledger serve.
    num_bytes
        Its size.
    direct
        Whether whole blocks are written, past the page cache where the file system allows it.

    Attributes
    ----------
    path : Path
        The name that it had.
    file : DataFile
        To read from.
    fd : int
        To write to.
    is_direct : bool
        Whether only whole blocks can be written.

    Raises
    ------
    BudgetError
        The budget of the tier is too small.
    ResourceError
        The folder for temporary files has less free space.
    """

    def __init__(self, dataset: Dataset, num_bytes: int, *, direct: bool = False) -> None:
        self._folder, self._tier = _folder()
        self._dataset, self._direct, self.is_direct = dataset, direct, False
        self._dirty = self._size = 0
        with contextlib.ExitStack() as held:  # gives all back where one of them is not to be had
            self._held = held
            self.fd, path = tempfile.mkstemp(prefix="gnnx-", dir=self._folder)
            self.path = Path(path)
            self._held.callback(os.close, self.fd)
            try:
                self.file = DataFile(self.path)
                self.file.open()
                self._held.callback(self.file.close)
            finally:
                self.path.unlink()  # open descriptors keep it, and a killed run leaves nothing
            self.grow(num_bytes)
            if direct:
                with contextlib.suppress(OSError):  # as of a tmpfs
                    flags = fcntl.fcntl(self.fd, fcntl.F_GETFL)
                    fcntl.fcntl(self.fd, fcntl.F_SETFL, flags | os.O_DIRECT)
                    self.is_direct = True
            self._held = held.pop_all()

    def grow(self, num_bytes: int) -> None:
        """Make the file at least so large; what was written stays.

        A file is best used again: blocks that were written before are written faster than new ones,
        which the file system has to put down as written (ext4, direct writes of 104 KiB: 1020 MiB/s
        beside 620; benchmarks/moving.py).

        Parameters
        ----------
        num_bytes
            Size that is needed.

        Raises
        ------
        BudgetError
            The budget of the tier is too small.
        ResourceError
            The folder for temporary files has less free space.
        """
        more = num_bytes - self._size
        if more <= 0:
            return
        free = shutil.disk_usage(self._folder).free
        if free < more:
            raise ResourceError(
                f"{self._folder}: {more} bytes of scratch needed, {free} are free",
                "Free some space, or name another folder with TMPDIR.",
            )
        with contextlib.ExitStack() as held:
            held.enter_context(self._dataset.ledger.reserve(more, self._tier, "scratch"))
            os.ftruncate(self.fd, num_bytes)
            if self._direct:  # all blocks at once: direct writes that take some wait for each other
                try:
                    os.posix_fallocate(self.fd, self._size, more)
                except OSError as error:
                    raise write_error(error, self.path, more, self._size) from error
            self._held.push(held.pop_all())
        self._size = num_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the bytes back."""
        self._held.close()

    def rows(
        self, begin: int, num_rows: int, row_shape: tuple[int, ...], dtype: torch.dtype
    ) -> DiskFeatures:
        """Give the rows that lie one after the other from a byte on.

        Parameters
        ----------
        begin
            Where the first one begins.
        num_rows
            How many they are.
        row_shape
            Shape of a row.
        dtype
            Of the elements.

        Returns
        -------
        DiskFeatures
            To be read as long as the file is there.
        """
        entry = ArrayEntry((num_rows, *row_shape), str(dtype).removeprefix("torch."), crc32=0)
        io, ledger = self._dataset.io, self._dataset.ledger
        return DiskFeatures(self.path, entry, io, ledger, base=begin, file=self.file)

    def write(
        self,
        data: NDArray[np.uint8],
        at: NDArray[np.int64],
        begin: NDArray[np.int64],
        size: NDArray[np.int64],
    ) -> Job:
        """Begin to write: ``data[begin[i] : begin[i] + size[i]]`` goes to byte ``at[i]``.

        Parameters
        ----------
        data
            uint8. At a multiple of 4096 bytes; unchanged until the job is done.
        at
            (W,) int64, W > 0, multiples of 4096.
        begin
            (W,) int64, multiples of 4096.
        size
            (W,) int64, multiples of 4096.

        Returns
        -------
        Job
            To wait for; raises a ResourceError where the disk is full.

        Raises
        ------
        RunError
            The dataset is closed.
        """
        self.written(int(size.sum()))
        return self._dataset.io.submit_writes(self.file, self.fd, at, data, begin, size)

    def written(self, num_bytes: int) -> None:
        """Tell that bytes were written: those in the page cache are synced and dropped in time."""
        if self.is_direct:
            return
        self._dirty += num_bytes
        if self._dirty >= _DIRTY_BYTES:
            os.fdatasync(self.fd)
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)
            self._dirty = 0


class ScratchRows(DiskFeatures):
    """N rows addressed by id, written in ascending order and read as any `FeatureStore`.

    A context manager, as `ScratchFile`, which has them. A row that was never written may hold
    anything.

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
        entry = ArrayEntry((num_rows, *row_shape), str(dtype).removeprefix("torch."), crc32=0)
        self._scratch = scratch = ScratchFile(dataset, entry.num_bytes)
        super().__init__(scratch.path, entry, dataset.io, dataset.ledger, base=0, file=scratch.file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._scratch.__exit__(*exc)

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
        scratch = self._scratch
        write_all(scratch.fd, raw, first * self.row_bytes, self.path)
        scratch.written(len(raw))


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
