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
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from gnnx.errors import ResourceError, RunError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

_ALL = 2**63 - 1  # edges that no row has
_HUB = 256  # edges from which a row is a block's work; this and the next not yet tuned on a device
_LONG = 64 * _HUB  # edges from which a sum is the work of several blocks
_STRIP = 16 * _HUB  # edges of such a row to a block; at most _LONG
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
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    weight: Tensor | None,
    reduce: str,
    t_indptr: Tensor | None = None,
    _t_indices: Tensor | None = None,
    _t_edge: Tensor | None = None,
    edge: Tensor | None = None,
) -> Tensor:
    """Sum over each row's edges; "mean" divides by the row's edges, "spread" by the source's.

    The weight of edge e is weight[edge[e]], which is how the transposed order reads them.
    """
    out = x.new_empty(len(indptr) - 1, x.shape[1])
    if not out.numel():
        return out
    scale = None
    if reduce == "spread" and t_indptr is not None:
        scale = t_indptr.diff().clamp(min=1).to(_wide(x.dtype)).reciprocal()
    vector = _vector(x.shape[1], x, out)
    terms = indices, edge, _factor(weight, x), scale, x
    unit = _unit("spmm", x, indices, vector)
    _sums(unit, "spmm", vector, indptr, len(indices), terms, out, reduce == "mean")
    return out


def spmm_extremum(
    indptr: Tensor, indices: Tensor, x: Tensor, weight: Tensor | None, reduce: str
) -> tuple[Tensor, Tensor]:
    """Max or min over each row's edges, and the position of the first edge that has it."""
    out = x.new_empty(len(indptr) - 1, x.shape[1])
    arg = indices.new_empty(out.shape)
    if not out.numel():
        return out, arg
    width, vector = x.shape[1], _vector(x.shape[1], x, out)
    sign = _scalar(1.0 if reduce == "max" else -1.0, x)  # min x = -max -x, exactly
    args = indices, _factor(weight, x), sign, x, out, arg, np.int32(width)
    unit, shape = _unit("spmm_extremum", x, indices, vector), _shape(width, vector)
    hub_bytes = vector * (_wide(x.dtype).itemsize + arg.element_size())
    _over_rows(unit, "spmm_extremum", shape, indptr, len(indices), args, hub_bytes)
    return out, arg


def extremum_grad_x(
    grad: Tensor, arg: Tensor, indices: Tensor, weight: Tensor | None, num_src: int
) -> Tensor:
    """Hand each gradient to the one source it came from: a sum over the edges of each source."""
    out = grad.new_zeros(num_src, grad.shape[1])
    if not out.numel() or not grad.numel():
        return out
    vector = _vector(grad.shape[1], grad, arg, out)
    unit = _unit("spmm_extremum", grad, indices, vector)
    t_indptr, edge = _by_source(indices, num_src)
    row_of = _rows_of_winners(unit, arg, len(indices))
    terms = edge, row_of, arg, _factor(weight, grad), grad
    _sums(unit, "winnings", vector, t_indptr, len(indices), terms, out, mean=False)
    return out


def extremum_grad_weight(grad: Tensor, arg: Tensor, indices: Tensor, x: Tensor) -> Tensor:
    """Sum over the columns that an edge won: gradient times feature, (E,)."""
    out = grad.new_zeros(len(indices))
    if not out.numel() or not grad.numel():
        return out
    x = x.to(grad.dtype)
    vector = _vector(grad.shape[1], grad, arg, x)
    unit = _unit("spmm_extremum", grad, indices, vector)
    row_of = _rows_of_winners(unit, arg, len(indices))
    lanes = 8  # of an edge, which has but the columns that it won to read
    grid = -(-len(indices) * lanes // _THREADS), 1
    tensors = row_of, arg, indices, grad, x, out
    args = (*tensors, np.int64(len(indices)), np.int32(grad.shape[1]))
    _call(unit, "winners_dot", grid, (lanes, _THREADS // lanes), args)
    return out


def _rows_of_winners(unit: Unit, arg: Tensor, num_edges: int) -> Tensor:
    """Row of every edge that won a column, (E,); -1 for the others."""
    row_of = arg.new_full((num_edges,), -1)
    grid = -(-arg.numel() // _THREADS), 1
    args = arg, row_of, np.int64(len(arg)), np.int32(arg.shape[1])
    _call(unit, "winners", grid, (_THREADS, 1), args)
    return row_of


def _by_source(indices: Tensor, num_src: int) -> tuple[Tensor, Tensor]:
    """List the positions of each source's edges, ascending, as (indptr, positions)."""

    def make() -> tuple[Tensor, Tensor]:
        ordered, edge = torch.sort(indices, stable=True)
        sources = torch.arange(num_src, dtype=indices.dtype, device=indices.device)
        starts = torch.searchsorted(ordered, sources)
        end = starts.new_full((1,), len(indices))
        return torch.cat([starts, end]), edge.to(indices.dtype)

    return _once(indices, f"by {num_src} sources", make)


def sddmm(indptr: Tensor, indices: Tensor, x_dst: Tensor, x_src: Tensor, *_: object) -> Tensor:
    """Dot product of the two ends' rows on every edge."""
    dtype = torch.promote_types(x_dst.dtype, x_src.dtype)
    out = x_dst.new_empty(len(indices), dtype=dtype)
    _over_ends("sddmm", indptr, indices, x_dst.to(dtype), x_src.to(dtype), out)
    return out


def sddmm_add(indptr: Tensor, indices: Tensor, x_dst: Tensor, x_src: Tensor, *_: object) -> Tensor:
    """Sum of the two ends' rows on every edge."""
    out = x_dst.new_empty(len(indices), x_dst.shape[1])
    _over_ends("sddmm_add", indptr, indices, x_dst, x_src, out)
    return out


def _over_ends(
    stem: str, indptr: Tensor, indices: Tensor, x_dst: Tensor, x_src: Tensor, out: Tensor
) -> None:
    if not out.numel():
        return
    width = x_dst.shape[1]
    vector = _vector(width, x_dst, x_src)
    lanes = _shape(width, vector)[0]
    args = indices, x_dst, x_src, out, np.int32(width)
    unit = _unit("sddmm", x_dst, indices, vector)
    _over_rows(unit, stem, (lanes, 1), indptr, len(indices), args)


def edge_scores(
    indptr: Tensor,
    indices: Tensor,
    x_dst: Tensor,
    x_src: Tensor,
    att: Tensor,
    slope: float,
    *_: object,
) -> Tensor:
    """Sum over a head's columns of att LeakyReLU(x_dst + x_src), on every edge."""
    num_heads, width = att.shape
    out = x_src.new_empty(len(indices), num_heads)
    if not out.numel():
        return out
    factor = att.to(_wide(x_src.dtype))
    vector = _vector(width, x_src, x_dst, factor)
    args = indices, x_dst, x_src, factor, out, _scalar(slope, x_src), np.int32(width)
    unit, shape = (
        _unit("edge_scores", x_src, indices, vector),
        (_shape(width, vector)[0], num_heads),
    )
    _over_rows(unit, "edge_scores", shape, indptr, len(indices), args)
    return out


def edge_scores_grad(  # noqa: PLR0913 - as the operator has them
    indptr: Tensor,
    indices: Tensor,
    x_dst: Tensor,
    x_src: Tensor,
    att: Tensor,
    slope: float,
    grad: Tensor,
    t_indptr: Tensor,
    t_indices: Tensor,
    t_edge: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by x_dst, x_src and att: each a sum over rows, att's then over what they gave."""
    wide = _wide(x_src.dtype)
    factor = att.to(wide)

    def sums(csr: tuple[Any, ...], own: Tensor, other: Tensor, by: Tensor | None) -> Tensor:
        out = torch.empty_like(own, dtype=wide)
        if out.numel():
            starts, others, edge = csr
            vector = _vector(att.shape[1], own, other, factor)
            unit = _unit("edge_scores", own, others, vector)
            terms = others, edge, own, other, grad, by, _scalar(slope, own), np.int32(att.shape[1])
            y = out.view(len(out), att.numel())
            _sums(unit, "edge_scores_back", vector, starts, len(others), terms, y, mean=False)
        return out

    csr = indptr, indices, None
    d_dst = sums(csr, x_dst, x_src, factor)
    d_src = sums((t_indptr, t_indices, t_edge), x_src, x_dst, factor)
    d_att = sums(csr, x_dst, x_src, None).sum(0)
    return d_dst.to(x_dst.dtype), d_src.to(x_src.dtype), d_att.to(att.dtype)


def _scalar(value: float, x: Tensor) -> np.floating[Any]:
    """As a kernel takes a number beside rows of x."""
    return np.float64(value) if _wide(x.dtype) == torch.float64 else np.float32(value)


def edge_softmax(indptr: Tensor, scores: Tensor) -> Tensor:
    """Softmax of (E, H) scores over each row's edges, head by head."""
    return _softmax("edge_softmax", 2, indptr, scores)


def edge_softmax_grad(indptr: Tensor, p: Tensor, grad: Tensor) -> Tensor:
    """Gradient of the scores, from their softmax p and its gradient, all (E, H)."""
    return _softmax("edge_softmax_grad", 1, indptr, p, grad)


def _softmax(stem: str, num_kept: int, indptr: Tensor, *values: Tensor) -> Tensor:
    out = torch.empty_like(values[0])
    if not out.numel():
        return out
    num_edges, heads = out.shape
    head_lanes = min(1 << (heads - 1).bit_length(), 32)
    args = *values, out, np.int32(heads), np.int32(head_lanes)
    unit = Unit("edge_softmax", (f"VALUE={_VALUES[out.dtype]}",))
    hub_bytes = num_kept * _wide(out.dtype).itemsize
    _over_rows(unit, stem, (32, -(-heads // head_lanes)), indptr, num_edges, args, hub_bytes)
    return out


def attention(
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    a_dst: Tensor,
    a_src: Tensor,
    slope: float,
    keep: bool,
    *_: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weighted sums, log-sum-exp of the scores, and the part and share of positive scores."""
    num_rows, wide = len(indptr) - 1, _wide(x.dtype)
    out = x.new_empty(num_rows, *x.shape[1:])
    lse = x.new_empty(num_rows, x.shape[1], dtype=wide)
    positive = x.new_empty(num_rows if keep else 0, *x.shape[1:], dtype=wide)
    share = x.new_empty(num_rows if keep else 0, x.shape[1], dtype=wide)
    if not out.numel():
        return out, lse.zero_(), positive, share.zero_()
    vector = _vector(x.shape[2], x, out)
    heads = _heads(x, a_dst, a_src, slope)
    kept = (positive, share) if keep else (None, None)
    args = indices, x, *heads, out, lse, *kept
    _over_heads("attention", x, indptr, indices, vector, args)
    return out, lse, positive, share


def attention_grad(  # noqa: PLR0913 - as the operator has them
    indptr: Tensor,
    indices: Tensor,
    x: Tensor,
    a_dst: Tensor,
    a_src: Tensor,
    slope: float,
    out: Tensor,
    lse: Tensor,
    positive: Tensor,
    share: Tensor,
    grad: Tensor,
    t_indptr: Tensor,
    t_indices: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by x, a_dst and a_src: one walk over the rows, one over their transposed order."""
    dx, num_heads, width = torch.zeros_like(x), lse.numel(), x.shape[2]
    if not dx.numel() or not out.numel():
        return dx, torch.zeros_like(a_dst), torch.zeros_like(a_src)
    vector = _vector(width, x, out, grad, dx)
    unit = _unit("attention", x, indices, vector)
    mean, d_dst = torch.empty_like(lse), torch.empty_like(lse)
    heads = _heads(x, a_dst, a_src, slope)
    args = (out, positive, share, grad, mean, d_dst, np.int64(num_heads), np.int32(width), heads[2])
    groups = _THREADS // 8
    _call(unit, "attention_means", (-(-num_heads // groups), 1), (8, groups), args)
    # what each lane's columns give of the gradient by a_src, to be added up
    d_src = lse.new_empty(*x.shape[:2], width // vector)
    args = t_indices, x, *heads, lse, mean, grad, dx, d_src
    _over_heads("attention_back", x, t_indptr, t_indices, vector, args)
    return dx, d_dst.to(a_dst.dtype), d_src.sum(2).to(a_src.dtype)


def _heads(x: Tensor, a_dst: Tensor, a_src: Tensor, slope: float) -> tuple[Any, ...]:
    wide, sizes = _wide(x.dtype), (np.int32(x.shape[1]), np.int32(x.shape[2]))
    return a_dst.to(wide), a_src.to(wide), _scalar(slope, x), *sizes


def _over_heads(
    stem: str, x: Tensor, indptr: Tensor, indices: Tensor, vector: int, args: tuple[Any, ...]
) -> None:
    unit, shape = _unit("attention", x, indices, vector), _shape(x[0].numel(), vector)
    hub_bytes = (2 * vector + 3) * _wide(x.dtype).itemsize
    _over_rows(unit, stem, shape, indptr, len(indices), args, hub_bytes)


def gather_tiers(ids: Tensor, slot: Tensor, cache: Tensor, host: Tensor) -> Tensor:
    """Row ids[r] of a table of two tiers: cache[slot[id]], or host[id] where the slot is below 0.

    The host's table is pinned and read in place.
    """
    out = cache.new_empty(len(ids), *cache.shape[1:])
    if not out.numel():
        return out
    row_bytes = out[0].numel() * out.element_size()
    packet = _PACKET
    while row_bytes % packet or any(t.data_ptr() % packet for t in (cache, host, out)):
        packet //= 2
    packets = row_bytes // packet
    lanes = min(1 << (packets - 1).bit_length(), 32)
    groups = _THREADS // lanes
    args = ids, slot, cache, host, out, np.int64(len(ids)), np.int32(packets)
    unit = Unit("gather", (f"PACKET={packet}",))
    _call(unit, "gather_rows", (-(-len(ids) // groups), 1), (lanes, groups), args)
    return out


def spmm_tiers(
    indptr: Tensor,
    indices: Tensor,
    ids: Tensor,
    slot: Tensor,
    cache: Tensor,
    host: Tensor,
    reduce: str,
) -> Tensor:
    """Sum or mean over each row's edges, of rows of two tiers."""
    out = cache.new_empty(len(indptr) - 1, cache.shape[1])
    if not out.numel():
        return out
    vector = _vector(cache.shape[1], cache, host, out)
    plain = _unit("spmm", cache, indices, vector)
    unit = Unit(plain.name, (*plain.defines, "TIERED"))
    terms = indices, ids, slot, cache, host
    _sums(unit, "spmm", vector, indptr, len(indices), terms, out, reduce == "mean")
    return out


def _sums(
    unit: Unit,
    stem: str,
    vector: int,
    indptr: Tensor,
    num_edges: int,
    terms: tuple[Any, ...],
    out: Tensor,
    mean: bool,
) -> None:
    """Sum a unit's terms over every row, however long."""
    width = out.shape[1]
    shape, wide = _shape(width, vector), _wide(out.dtype)
    end = np.int32(width), np.int32(mean)
    hub_bytes = vector * wide.itemsize
    _over_rows(unit, stem, shape, indptr, num_edges, (*terms, out, *end), hub_bytes, _LONG)
    rows = _rows_by_length(indptr, num_edges, _LONG, _ALL)
    if rows is not None:
        num_strips, strip, tiles = (
            -(-num_edges // _STRIP),
            np.int64(_STRIP),
            -(-width // vector // 32),
        )
        parts = out.new_empty(2 * num_strips, width, dtype=wide)
        args = rows, indptr, *terms, parts, strip, np.int32(width)
        block = 32, _THREADS // 32
        _call(unit, f"{stem}_strips", (num_strips, tiles), block, args, _THREADS * hub_bytes)
        args = rows, indptr, parts, out, strip, *end
        _call(unit, f"{stem}_parts", (len(rows) - 1, tiles), (32, 1), args)


def _over_rows(
    unit: Unit,
    stem: str,
    shape: tuple[int, int],
    indptr: Tensor,
    num_edges: int,
    args: tuple[Any, ...],
    hub_bytes: int = 0,
    longest: int = _ALL,
) -> None:
    """Launch a unit's kernel for short rows and, where a row may be long, the one for hubs.

    `shape` is how many lanes take a row and how many times over they do; a thread of a hub's block
    keeps `hub_bytes` in shared memory. Rows of `longest` edges and more are left.
    """
    lanes, tiles = shape
    groups, num_rows = _THREADS // lanes, len(indptr) - 1
    short = indptr, np.int64(num_rows), np.int64(_HUB), *args
    _call(unit, f"{stem}_rows_{lanes}", (-(-num_rows // groups), tiles), (lanes, groups), short)
    hubs = _rows_by_length(indptr, num_edges, _HUB, longest)
    if hubs is not None:
        grid = min(len(hubs) - 1, _MAX_HUB_BLOCKS), tiles
        block = 32, _THREADS // 32
        _call(unit, f"{stem}_hubs", grid, block, (hubs, indptr, *args), _THREADS * hub_bytes)


def _shape(width: int, vector: int) -> tuple[int, int]:
    """Lanes that a row's columns keep busy, and how many times they go over it."""
    columns = -(-width // vector)
    lanes = min(max(4, 1 << (columns - 1).bit_length()), 32)
    return lanes, -(-columns // lanes)


def _rows_by_length(indptr: Tensor, num_edges: int, low: int, high: int) -> Tensor | None:
    """List the rows of `low` to `high` edges, after their count; None where there can be none."""
    if num_edges < low:
        return None

    def make() -> Tensor:
        rows = indptr.new_empty(1 + num_edges // low)
        args = (indptr, np.int64(len(indptr) - 1), np.int64(low), np.int64(high), rows)
        _call(Unit("rows"), "rows_by_length", (1, 1), (32, 32), args, 32 * 8)
        return rows

    return _once(indptr, f"rows of {low} to {high} edges", make)


_derived: Any = WeakIdKeyDictionary()


def _once(tensor: Tensor, name: str, make: Callable[[], T]) -> T:
    """Derive something from a tensor once for its values and the stream in hand.

    Kept as long as the tensor lives, which makes it once a graph.
    """
    version = 0 if tensor.is_inference() else tensor._version  # noqa: SLF001
    state = version, _stream(tensor.device)
    kept: dict[str, tuple[Any, T]] = _derived.setdefault(tensor, {})
    if name not in kept or kept[name][0] != state:
        kept[name] = state, make()
    return kept[name][1]


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
