"""``gnnx doctor``: what this machine offers to a training."""

import errno
import importlib.metadata
import mmap
import os
import platform
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gnnx.cli.frame import Answer, Json, facts

if TYPE_CHECKING:
    from gnnx.store import Disk

_PACKAGES = ("gnnx", "torch", "numpy", "numba", "pyarrow", "typer", "rich")


def doctor(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where datasets are to lie.")
    ] = Path(),
    as_json: Json = False,
) -> Answer:
    """Show versions, processors, memory, disk and devices: what to send with a report."""
    import torch

    from gnnx import memory, train

    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    sizes = {
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * memory.PAGE,
        "available_memory_bytes": memory.available_bytes(),
        "free_disk_bytes": shutil.disk_usage(folder).free,
        "base_rss_bytes": train.base_rss_bytes(),
    }
    disks = _disks(folder)
    versions = {name: importlib.metadata.version(name) for name in _PACKAGES}
    document = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "packages": versions,
        "num_processors": len(os.sched_getaffinity(0)),
        **sizes,
        "direct_io": _direct_io(folder),
        "disk": {
            str(num_readers): {
                "reads_per_s": {str(size): rate for size, rate in disk.reads_per_s.items()},
                "bytes_per_s": disk.bytes_per_s,
                "gap_bytes": disk.gap_bytes,
            }
            for num_readers, disk in disks.items()
        },
        "devices": devices,
    }
    shown = {
        "python": document["python"],
        "system": document["system"],
        **versions,
        "processors": document["num_processors"],
        "memory": memory.format_bytes(sizes["memory_bytes"]),
        "memory free to use": memory.format_bytes(sizes["available_memory_bytes"]),
        "base of a training": memory.format_bytes(sizes["base_rss_bytes"]),
        "free disk": memory.format_bytes(sizes["free_disk_bytes"]),
        "direct reads": "yes" if document["direct_io"] else "no: reads go through the page cache",
        **{
            f"disk, {num_readers} readers": f"{memory.format_bytes(int(disk.bytes_per_s or 0))}/s, "
            f"{min(disk.reads_per_s.items())[1]:,.0f} reads of 4 KiB/s, "
            f"gaps below {memory.format_bytes(disk.gap_bytes)} are read"
            for num_readers, disk in disks.items()
        },
        "devices": ", ".join(devices),
    }
    return Answer(document, facts("this machine", shown))


def _disks(folder: Path) -> "dict[int, Disk]":
    """Rates of a folder's disk by number of readers; a dataset with large features is measured."""
    from gnnx import store

    if (folder / "manifest.json").exists():
        with store.open(folder) as dataset:
            if dataset.num_features:
                store.calibrate(dataset.features.file, dataset.io, dataset.ledger)
    return store.known(folder)


def _direct_io(folder: Path) -> bool:
    """Whether files of a folder can be read past the page cache; leaves nothing behind."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".gnnx-") as file:
        file.write(bytes(mmap.PAGESIZE))
        file.flush()
        try:
            descriptor = os.open(file.name, os.O_RDONLY | os.O_DIRECT)
        except OSError as error:
            if error.errno in {errno.EINVAL, errno.EOPNOTSUPP}:
                return False
            raise
        try:
            with mmap.mmap(-1, mmap.PAGESIZE) as page:  # direct reads want aligned memory
                return os.preadv(descriptor, [page], 0) == mmap.PAGESIZE
        except OSError:
            return False
        finally:
            os.close(descriptor)
