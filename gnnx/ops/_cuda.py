"""The operators on a CUDA device: kernels of `cuda/`, compiled by NVRTC, launched through CuPy.

Shapes: D destinations, S sources, E edges, F feature width. A kernel is compiled when it is first
called for its types, and kept in GNNX_CACHE_DIR. Launches go to torch's current stream, on torch's
own memory. Every sum has one order and there are no atomics: results are repeatable to the bit.
Types below float32 are computed in float32 and rounded once at the end.

Rows are walked by a group of lanes each; the long ones by a block each. How many are long stays on
the device: a block is started for as many as the number of edges allows, so nothing waits.
"""

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from gnnx.errors import ResourceError, RunError, UsageError

_HUB = 256  # edges from which a row is a block's work; not yet tuned on a device
_THREADS = 256  # of a block
_MAX_HUB_BLOCKS = 1 << 14  # each takes several rows beyond that
_PACKET = 16  # bytes that a lane loads at once, at most
_VALUES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.float16: "Half",
    torch.bfloat16: "Bfloat16",
}
_INDICES = {torch.int32: "int", torch.int64: "Int64"}


class Unit(NamedTuple):
    """A source file of `cuda/` and the types that it is compiled for: one module."""

    name: str
    defines: tuple[str, ...] = ()

    def __str__(self) -> str:
        return " ".join((self.name, *self.defines))


def spmm(
    indptr: Tensor, indices: Tensor, x: Tensor, weight: Tensor | None, reduce: str, *_: object
) -> Tensor:
    """Sum or mean over each row's edges."""
    out = x.new_empty(len(indptr) - 1, x.shape[1])
    if not out.numel():
        return out
    vector = _vector(x.shape[1], x, out)
    width, mean = np.int32(x.shape[1]), np.int32(reduce == "mean")
    args = indices, None, _factor(weight, x), None, x, out, width, mean
    unit = _unit("spmm", x, indices, vector)
    _over_rows(unit, indptr, indices, args, x.shape[1], vector, _wide(x.dtype).itemsize)
    return out


def _over_rows(
    unit: Unit,
    indptr: Tensor,
    indices: Tensor,
    args: tuple[Any, ...],
    width: int,
    vector: int,
    result_bytes: int,
) -> None:
    """Launch a unit's kernel for short rows and, where a row may be long, the one for hubs.

    A hub's threads leave a result of `result_bytes` for each of `vector` columns in shared memory.
    """
    columns = -(-width // vector)
    lanes = min(max(4, 1 << (columns - 1).bit_length()), 32)
    groups, num_rows = _THREADS // lanes, len(indptr) - 1
    hubs = _hubs(indptr, len(indices))
    limit = np.iinfo(np.int64).max if hubs is None else _HUB
    grid = -(-num_rows // groups), -(-columns // lanes)
    short = (indptr, np.int64(num_rows), np.int64(limit), *args)
    _call(unit, f"{unit.name}_rows_{lanes}", grid, (lanes, groups), short)
    if hubs is not None:
        grid = min(len(hubs) - 1, _MAX_HUB_BLOCKS), -(-columns // 32)
        block, long = (32, _THREADS // 32), (hubs, indptr, *args)
        _call(unit, f"{unit.name}_hubs", grid, block, long, _THREADS * vector * result_bytes)


_hub_lists: Any = WeakIdKeyDictionary()


def _hubs(indptr: Tensor, num_edges: int) -> Tensor | None:
    """List the rows of `_HUB` edges and more, after their count; None where there can be none.

    Made once a graph: kept as long as its `indptr` lives, for the stream that made it.
    """
    if num_edges < _HUB:
        return None
    version = 0 if indptr.is_inference() else indptr._version  # noqa: SLF001
    state = version, _stream(indptr.device)
    kept: tuple[Any, Tensor] | None = _hub_lists.get(indptr)
    if kept is not None and kept[0] == state:
        return kept[1]
    hubs = indptr.new_empty(1 + num_edges // _HUB)
    args = (
        indptr,
        np.int64(len(indptr) - 1),
        np.int64(_HUB),
        np.int64(np.iinfo(np.int64).max),
        hubs,
    )
    _call(Unit("rows"), "rows_by_length", (1, 1), (32, 32), args, 32 * 8)
    _hub_lists[indptr] = state, hubs
    return hubs


def _unit(name: str, x: Tensor, indices: Tensor, vector: int) -> Unit:
    types = f"VALUE={_VALUES[x.dtype]}", f"INDEX={_INDICES[indices.dtype]}", f"VECTOR={vector}"
    return Unit(name, types)


def _vector(width: int, *tensors: Tensor) -> int:
    """Values that a lane loads at once: as many as the width and the tensors' alignment allow."""
    vector = _PACKET // tensors[0].element_size()
    while width % vector or any(t.data_ptr() % (vector * t.element_size()) for t in tensors):
        vector //= 2
    return vector


def _factor(weight: Tensor | None, x: Tensor) -> Tensor | None:
    """Weights in the type that sums are kept in."""
    return None if weight is None else weight.to(_wide(x.dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Type that sums are kept in."""
    return torch.promote_types(dtype, torch.float32)


def _call(
    unit: Unit,
    kernel: str,
    grid: tuple[int, int],
    block: tuple[int, int],
    args: tuple[Any, ...],
    shared_bytes: int = 0,
) -> None:
    """Launch a kernel; tensors go by their addresses, None as null."""
    device = next(arg.device for arg in args if isinstance(arg, Tensor))
    raw = tuple(_address(arg) if arg is None or isinstance(arg, Tensor) else arg for arg in args)
    _launch(device, unit, kernel, grid, block, raw, shared_bytes)


def _address(tensor: Tensor | None) -> np.uint64:
    return np.uint64(0 if tensor is None else tensor.data_ptr())


def _stream(device: torch.device) -> int:
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0


def _launch(
    device: torch.device,
    unit: Unit,
    kernel: str,
    grid: tuple[int, int],
    block: tuple[int, int],
    args: tuple[Any, ...],
    shared_bytes: int,
) -> None:
    cupy = _cupy()
    with torch.cuda.device(device), cupy.cuda.ExternalStream(_stream(device)):
        function = _function(unit, kernel, torch.cuda.get_device_capability(device))
        function(grid, block, args, shared_mem=shared_bytes)


@functools.cache
def _function(unit: Unit, kernel: str, capability: tuple[int, int]) -> Any:
    return _module(unit, capability).get_function(kernel)


@functools.cache
def _module(unit: Unit, capability: tuple[int, int]) -> Any:
    """Load what an earlier process compiled, or compile it."""
    nvrtc = _cupy().cuda.nvrtc
    folder = source_folder()
    options = compile_options(unit, capability)
    digest = hashlib.sha256(repr((nvrtc.getVersion(), unit, capability)).encode())
    for path in sorted(folder.glob("*.cu*")):
        digest.update(path.read_bytes())
    cubin = _cache_folder() / f"{unit.name}-{digest.hexdigest()[:32]}.cubin"
    if not cubin.exists():
        _write(cubin, _compile(nvrtc, folder / f"{unit.name}.cu", options))
    return _cupy().RawModule(path=str(cubin))


def compile_options(unit: Unit, capability: tuple[int, int]) -> tuple[str, ...]:
    """Give the options under which NVRTC compiles a unit.

    Parameters
    ----------
    unit
        What to compile.
    capability
        Major and minor number of the device's architecture.

    Returns
    -------
    tuple
        Options, without the source.
    """
    defines = (f"-D{define}" for define in unit.defines)
    major, minor = capability
    return "-std=c++17", f"-arch=sm_{major}{minor}", f"-I{source_folder()}", *defines


def source_folder() -> Path:
    """Find the kernels: beside the package in a checkout, inside it once it is installed."""
    package = Path(__file__).resolve().parents[1]
    checkout = package.parent / "cuda"
    return checkout if (checkout / "values.cuh").exists() else package / "cuda"


def _compile(nvrtc: Any, source: Path, options: tuple[str, ...]) -> bytes:
    program = nvrtc.createProgram(source.read_text(encoding="utf-8"), source.name, (), ())
    try:
        nvrtc.compileProgram(program, options)
        cubin: bytes = nvrtc.getCUBIN(program)
    except nvrtc.NVRTCError as error:
        log = nvrtc.getProgramLog(program)
        raise RunError(
            f"{source.name} does not compile with {' '.join(options)}: {error}\n{log}",
            "Install a CuPy whose NVRTC knows this device, and report this if it does.",
        ) from error
    finally:
        nvrtc.destroyProgram(program)
    return cubin


def _write(path: Path, data: bytes) -> None:
    """Write under a temporary name and rename: another process sees all of it or nothing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
    except OSError as error:
        raise ResourceError(
            f"{path}: compiled kernels cannot be kept: {error}",
            "Set GNNX_CACHE_DIR to a folder that can be written.",
        ) from error


def _cache_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("GNNX_CACHE_DIR") or Path(cache) / "gnnx") / "cuda"


@functools.cache
def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise UsageError(
            f"Tensors on a CUDA device need CuPy: {error}",
            "Install gnnx[cuda13], or gnnx[cuda12] where torch comes with CUDA 12.",
        ) from error
    return cupy
