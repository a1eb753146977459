"""All that needs a CUDA device, in one run of under 8 minutes: `make gpu`, or this file.

It needs the checkout, and a Python with torch, CuPy and numba. First every kernel and gradient is
held against the tests' loops and against the CPU in float64; the figures are only taken of kernels
that are right. Each is then timed beside cuSPARSE (preprocessed, descriptors reused), torch and a
copy, in one interleaved run, as a share of its roofline: the bytes it has to move, over the time
that a copy takes for as many. Managed memory is not used.

usage: benchmarks/gpu.py [--json FILE] [--scale 20] [--edges 20000000]
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks")]

import cusparse  # noqa: E402
import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import oracles  # noqa: E402
from gnnx import ops  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTHS = [1, 7, 16, 33, 64, 100, 128, 256, 513]
REDUCES: list[ops.Reduce] = ["sum", "mean", "max", "min"]
TOLERANCES = {
    torch.float32: 4e-6,
    torch.float64: 1e-12,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}
ROUNDS = 9
DEVICE = torch.device("cuda")


class Csr(NamedTuple):
    """A graph and its transpose, on the device; int32 indices."""

    indptr: Tensor
    indices: Tensor
    transpose: tuple[Tensor, Tensor, Tensor]

    @property
    def num_edges(self) -> int:
        return len(self.indices)


# Right first.


def relative_error(got: Tensor, wanted: Any) -> float:
    """Largest error over the largest magnitude of the same column of values."""
    wanted = torch.as_tensor(wanted, dtype=torch.float64)
    got = got.detach().cpu().double()
    if not wanted.numel():
        return 0.0
    return float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1e-30))


def check_against_loops() -> float:
    """Values and gradients of every kernel, width, type and reduction, on small graphs."""
    worst = 0.0
    cases = [(width, torch.float32, torch.int32) for width in WIDTHS]
    cases += [(24, dtype, index) for dtype in TOLERANCES for index in (torch.int32, torch.int64)]
    for (width, dtype, index), reduce in itertools.product(cases, REDUCES):
        indptr, indices = oracles.random_csr(width, 8, 20, 900)  # the first row is a hub
        x = torch.randn(20, width).to(dtype)
        weight = torch.randn(900).to(dtype)
        grad = torch.randn(8, width).to(dtype)
        x_d, w_d = (t.to(DEVICE, copy=True).requires_grad_() for t in (x, weight))
        csr = torch.from_numpy(indptr).to(DEVICE), torch.from_numpy(indices).to(DEVICE, index)
        out = ops.spmm(*csr, x_d, w_d, reduce=reduce)
        out.backward(grad.to(DEVICE))
        arrays = [t.double().numpy() for t in (x, weight)]
        wanted, _ = oracles.spmm(indptr, indices, *arrays, reduce)
        dx, dw = oracles.spmm_gradients(indptr, indices, *arrays, reduce, grad.double().numpy())
        for name, got, expected in (("y", out, wanted), ("dx", x_d.grad, dx), ("dw", w_d.grad, dw)):
            error = relative_error(got, expected) / TOLERANCES[dtype]
            worst = max(worst, error)
            if not error <= 1:
                case = f"spmm {reduce} {name}, width {width}, {dtype}, {index}"
                fail(f"{case}: {error:.1f} times the tolerance")
    return worst


def check_edges_and_gathers() -> None:
    """Kernels whose results are edges' or copies."""
    indptr, indices = oracles.random_csr(1, 8, 20, 900)
    on_device = torch.from_numpy(indptr).to(DEVICE), torch.from_numpy(indices).to(DEVICE)
    rows = np.repeat(np.arange(8), np.diff(indptr))
    for width, (dtype, tolerance) in itertools.product((1, 33, 128), TOLERANCES.items()):
        a, b = torch.randn(8, width).to(dtype), torch.randn(20, width).to(dtype)
        got = ops.sddmm(*on_device, a.to(DEVICE), b.to(DEVICE))
        if not relative_error(got, (a.double()[rows] * b.double()[indices]).sum(1)) <= tolerance:
            fail(f"sddmm, width {width}, {dtype}")
        got = ops.sddmm(*on_device, a.to(DEVICE), b.to(DEVICE), op="add")
        if not relative_error(got, a.double()[rows] + b.double()[indices]) <= tolerance:
            fail(f"sddmm add, width {width}, {dtype}")
    for heads, (dtype, tolerance) in itertools.product((1, 3, 8), TOLERANCES.items()):
        logits, grad = (torch.randn(900, heads).to(dtype) for _ in range(2))
        logits_d = logits.to(DEVICE, copy=True).requires_grad_()
        p = ops.edge_softmax(on_device[0], logits_d)
        p.backward(grad.to(DEVICE))
        wanted = oracles.edge_softmax(indptr, logits.double().numpy())
        p = p.detach().cpu().double().numpy()
        gradient = oracles.edge_softmax_gradient(indptr, p, grad.double().numpy())
        errors = (
            relative_error(torch.from_numpy(p), wanted),
            relative_error(logits_d.grad, gradient),
        )
        if not max(errors) <= tolerance:
            fail(f"edge_softmax, {heads} heads, {dtype}: {errors}")
    for (heads, width), dtype in itertools.product(((1, 7), (8, 32), (2, 264)), TOLERANCES):
        check_attention(indptr, indices, heads, width, dtype)
    for (heads, width), dtype in itertools.product(((1, 7), (4, 32)), TOLERANCES):
        check_edge_scores(indptr, indices, heads, width, dtype)
    table = torch.randn(1000, 33)
    slot = torch.full((1000,), -1, dtype=torch.int32)
    slot[::3] = torch.arange(334, dtype=torch.int32)
    ids = torch.randint(0, 1000, (5000,))
    tiers = table[::3].contiguous().to(DEVICE), pinned(table)
    if not torch.equal(ops.gather_tiers(ids.to(DEVICE), slot.to(DEVICE), *tiers).cpu(), table[ids]):
        fail("gather of two tiers")


def check_attention(indptr: Any, indices: Any, heads: int, width: int, dtype: Any) -> None:
    """Forward against loops, gradients against the CPU in float64."""
    shapes = (20, heads, width), (8, heads), (20, heads)
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    grad = torch.randn(8, heads, width).to(dtype)
    csr = torch.from_numpy(indptr), torch.from_numpy(indices)
    sides = [(DEVICE, dtype), (torch.device("cpu"), torch.float64)]
    outs, grads = [], []
    for device, side_dtype in sides:
        args = [t.to(device, side_dtype, copy=True).requires_grad_() for t in inputs]
        out = ops.attention(*(part.to(device) for part in csr), *args)
        out.backward(grad.to(device, side_dtype))
        outs.append(out)
        grads.append([t.grad for t in args])
    arrays = [t.double().numpy() for t in inputs]
    errors = [relative_error(outs[0], oracles.attention(indptr, indices, *arrays, 0.2))]
    errors += [relative_error(got, wanted) for got, wanted in zip(*grads, strict=True)]
    if not max(errors) <= 4 * TOLERANCES[dtype]:
        fail(f"attention, {heads} heads of {width}, {dtype}: {errors}")


def check_edge_scores(indptr: Any, indices: Any, heads: int, width: int, dtype: Any) -> None:
    """Scores and gradients against loops."""
    shapes = (8, heads, width), (20, heads, width), (heads, width)
    inputs = [torch.randn(shape).to(dtype) for shape in shapes]
    grad = torch.randn(len(indices), heads).to(dtype)
    on_device = [t.to(DEVICE, copy=True).requires_grad_() for t in inputs]
    csr = torch.from_numpy(indptr).to(DEVICE), torch.from_numpy(indices).to(DEVICE)
    out = ops.edge_scores(*csr, *on_device)
    out.backward(grad.to(DEVICE))
    arrays = [t.double().numpy() for t in inputs]
    wanted = oracles.edge_scores(indptr, indices, *arrays, 0.2, grad.double().numpy())
    found = out, *(t.grad for t in on_device)
    errors = [relative_error(got, right) for got, right in zip(found, wanted, strict=True)]
    if not max(errors) <= 4 * TOLERANCES[dtype]:
        fail(f"edge_scores, {heads} heads of {width}, {dtype}: {errors}")


def check_against_cpu(csr: Csr) -> None:
    """A graph with hubs of tens of thousands of edges, and the same bits in a second run."""
    indptr, indices = csr.indptr.cpu(), csr.indices.cpu()
    x = torch.randn(len(indptr) - 1, 64)
    for reduce in REDUCES:
        x_d, x_c = x.to(DEVICE, copy=True).requires_grad_(), x.double().requires_grad_()
        grad = torch.randn_like(x)
        out = ops.spmm(csr.indptr, csr.indices, x_d, reduce=reduce, transpose=csr.transpose)
        wanted = ops.spmm(indptr, indices, x_c, reduce=reduce)
        out.backward(grad.to(DEVICE))
        wanted.backward(grad.double())
        again = ops.spmm(csr.indptr, csr.indices, x_d, reduce=reduce, transpose=csr.transpose)
        errors = relative_error(out, wanted.detach()), relative_error(x_d.grad, x_c.grad)
        if not max(errors) <= 1e-5:
            fail(f"spmm {reduce} on a skewed graph: {errors}")
        if not torch.equal(out, again):
            fail(f"spmm {reduce}: another run, other bits")


# Then fast.


def interleaved(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Median milliseconds of each call, round by round, so that all meet the same conditions."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(ROUNDS + 2):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            call()
            end.record()
            end.synchronize()
            if turn >= 2:
                times[name].append(begin.elapsed_time(end))
    return {name: statistics.median(spent) for name, spent in times.items()}


def report(title: str, times: dict[str, float], least: float, most: float, copy: float) -> Any:
    """Print each time with the bandwidth it comes to, for all reuse and for none, over a copy's."""
    rows = {}
    for name, ms in times.items():
        low, high = (bytes_ / ms * 1e-6 for bytes_ in (least, most))
        rows[name] = {"ms": ms, "share_least": low / copy, "share_most": high / copy}
        share = f"{low / copy:6.0%} to {high / copy:5.0%} of a copy"
        print(f"  {title:34s} {name:18s} {ms:9.3f} ms  {share}", flush=True)
    return rows


def bench_spmm(csr: Csr, copy: float) -> dict[str, Any]:
    """Sum and mean forward and back, max, against cuSPARSE and torch."""
    results, num_rows, m = {}, len(csr.indptr) - 1, csr.num_edges
    indptr32, values = csr.indptr.int(), torch.ones(m, device=DEVICE)
    sources = len(torch.unique(csr.indices))
    for width in (16, 32, 64, 128, 256):
        x = torch.randn(num_rows, width, device=DEVICE)
        matrix = torch.sparse_csr_tensor(indptr32, csr.indices, values, (num_rows, num_rows))
        peers = {
            name: cusparse.Spmm(indptr32, csr.indices, values, x, name)
            for name in cusparse.ALGORITHMS
        }
        args = csr.indptr, csr.indices, x
        calls: dict[str, Callable[[], Any]] = {
            "gnnx sum": lambda args=args: ops.spmm(*args),
            "gnnx weighted": lambda args=args: ops.spmm(*args, values),
            "gnnx mean": lambda args=args: ops.spmm(*args, reduce="mean"),
            "gnnx max": lambda args=args: ops.spmm(*args, reduce="max"),
            **{f"cuSPARSE {name}": peer for name, peer in peers.items()},
            "torch.sparse.mm": lambda matrix=matrix, x=x: torch.sparse.mm(matrix, x),
        }
        for name, peer in peers.items():
            if relative_error(peer(), ops.spmm(*args).cpu()) > 1e-4:
                fail(f"cuSPARSE {name} and gnnx disagree at width {width}")
        fixed = 8 * num_rows + 4 * m + 4 * num_rows * width
        bytes_ = fixed + 4 * sources * width, fixed + 4 * m * width
        times = interleaved(calls)
        results[f"forward {width}"] = report(f"spmm, width {width}", times, *bytes_, copy)
        results[f"backward {width}"] = report(
            f"spmm backward, width {width}", interleaved(backward_calls(csr, x)), *bytes_, copy
        )
    return results


def backward_calls(csr: Csr, x: Tensor) -> dict[str, Callable[[], Any]]:
    """Gradient by x alone, the graph kept from call to call."""
    calls = {}
    for reduce in ("sum", "mean", "max"):
        x_r = x.clone().requires_grad_()
        out = ops.spmm(csr.indptr, csr.indices, x_r, reduce=reduce, transpose=csr.transpose)
        grad = torch.randn_like(out)
        calls[f"gnnx {reduce}"] = lambda out=out, x_r=x_r, grad=grad: torch.autograd.grad(
            out, x_r, grad, retain_graph=True
        )
    return calls


def bench_types(csr: Csr, copy: float) -> dict[str, Any]:
    """Narrow types against float32 at one width."""
    results, width, num_rows, m = {}, 256, len(csr.indptr) - 1, csr.num_edges
    sources = len(torch.unique(csr.indices))
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.randn(num_rows, width, device=DEVICE).to(dtype)
        size = x.element_size()
        fixed = 8 * num_rows + 4 * m + size * num_rows * width
        bytes_ = fixed + size * sources * width, fixed + size * m * width
        times = interleaved({"gnnx sum": lambda x=x: ops.spmm(csr.indptr, csr.indices, x)})
        results[str(dtype)] = report(f"spmm, width {width}, {dtype}", times, *bytes_, copy)
    return results


def bench_edges(csr: Csr, copy: float) -> dict[str, Any]:
    """Sddmm, softmax and gathers, against torch."""
    results, num_rows, m = {}, len(csr.indptr) - 1, csr.num_edges
    sources, width, heads = len(torch.unique(csr.indices)), 64, 8
    a, b = (torch.randn(num_rows, width, device=DEVICE) for _ in range(2))
    rows = torch.repeat_interleave(torch.arange(num_rows, device=DEVICE), csr.indptr.diff())
    pattern = torch.sparse_csr_tensor(
        csr.indptr.int(), csr.indices, torch.zeros(m, device=DEVICE), (num_rows, num_rows)
    )
    calls = {
        "gnnx": lambda: ops.sddmm(csr.indptr, csr.indices, a, b),
        "torch sampled_addmm": lambda: torch.sparse.sampled_addmm(pattern, a, b.t()),
    }
    fixed = 8 * num_rows + 8 * m + 4 * num_rows * width
    bytes_ = fixed + 4 * sources * width, fixed + 4 * m * width
    results["sddmm"] = report(f"sddmm, width {width}", interleaved(calls), *bytes_, copy)

    scores = torch.randn(m, heads, device=DEVICE)
    index = rows[:, None].expand(m, heads)

    def in_torch() -> Tensor:
        top = scores.new_full((num_rows, heads), -float("inf"))
        top = top.scatter_reduce(0, index, scores, "amax")
        raised = (scores - top[rows]).exp()
        return raised / scores.new_zeros(num_rows, heads).index_add(0, rows, raised)[rows]

    calls = {"gnnx": lambda: ops.edge_softmax(csr.indptr, scores), "torch": in_torch}
    size = 8.0 * num_rows + 12 * m * heads
    results["softmax"] = report(
        f"edge softmax, {heads} heads", interleaved(calls), size, size, copy
    )
    return results


def bench_attention(csr: Csr, copy: float) -> dict[str, Any]:
    """8 heads of 32, forward alone and with its gradients."""
    results, num_rows, m, heads, width = {}, len(csr.indptr) - 1, csr.num_edges, 8, 32
    sources, whole = len(torch.unique(csr.indices)), heads * width
    x = torch.randn(num_rows, heads, width, device=DEVICE).requires_grad_()
    a_dst, a_src = (torch.randn(num_rows, heads, device=DEVICE).requires_grad_() for _ in range(2))
    grad = torch.randn(num_rows, heads, width, device=DEVICE)
    args = csr.indptr, csr.indices, x, a_dst, a_src

    def forward() -> None:
        with torch.no_grad():
            ops.attention(*args)

    def step() -> None:
        out = ops.attention(*args, transpose=csr.transpose)
        torch.autograd.grad(out, (x, a_dst, a_src), grad)

    fixed = 8 * num_rows + 4 * m + 4 * heads * (num_rows + m) + 4 * num_rows * whole
    bytes_ = fixed + 4 * sources * whole, fixed + 4 * m * whole
    title = f"attention, {heads} x {width}"
    results["forward"] = report(title, interleaved({"gnnx": forward}), *bytes_, copy)
    back = 8 * num_rows + m * (4 + 12 * heads) + 4 * whole * (2 * sources + 5 * num_rows)
    least, most = (size + back for size in bytes_)
    most += 4 * m * whole
    times = interleaved({"gnnx": step})
    results["forward, backward"] = report(f"{title}, and back", times, least, most, copy)
    return results


def bench_gather(copy: float) -> dict[str, Any]:
    """Rows of two tiers at several shares cached, against a copy of what the host picked."""
    results, num_rows, width, asked = {}, 1 << 20, 128, 1 << 18
    host = pinned(torch.randn(num_rows, width))  # 512 MiB
    ids = torch.randint(0, num_rows, (asked,))
    ids_d = ids.to(DEVICE)
    for share in (0.0, 0.5, 0.9, 1.0):
        count = int(share * num_rows)
        slot = torch.full((num_rows,), -1, dtype=torch.int32)
        slot[:count] = torch.arange(count, dtype=torch.int32)
        cache, slot_d = host[: max(count, 1)].to(DEVICE), slot.to(DEVICE)
        calls: dict[str, Callable[[], Any]] = {
            "gnnx": lambda c=cache, s=slot_d: ops.gather_tiers(ids_d, s, c, host),
            "pick, then copy": lambda: pinned(host[ids]).to(DEVICE, non_blocking=True),
        }
        size = 4.0 * width * asked * (1 + share)
        title = f"gather, {share:.0%} cached"
        results[title] = report(title, interleaved(calls), size, size, copy)
    return results


def copy_bandwidth() -> float:
    """GB/s read and written by a copy of 1 GiB on the device."""
    source = torch.empty(1 << 28, device=DEVICE)
    target = torch.empty_like(source)
    ms = interleaved({"copy": lambda: target.copy_(source)})["copy"]
    return 2 * source.numel() * 4 / ms * 1e-6


def pinned(tensor: Tensor) -> Tensor:
    """Same values in memory that the device reads in place."""
    return tensor.pin_memory() if DEVICE.type == "cuda" else tensor


def rmat(scale: int, num_edges: int) -> Csr:
    """Skewed graph of 2^scale nodes (a 0.57, b and c 0.19), nodes in random order."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    src, dst = (torch.zeros(num_edges, dtype=torch.int64, device=DEVICE) for _ in range(2))
    for _ in range(scale):
        draw = torch.rand(num_edges, generator=generator, device=DEVICE)
        dst = 2 * dst + (draw >= 0.76)
        src = 2 * src + (((draw >= 0.57) & (draw < 0.76)) | (draw >= 0.95))
    order = torch.randperm(1 << scale, generator=generator, device=DEVICE)
    dst, by_row = torch.sort(order[dst], stable=True)
    indices = order[src[by_row]].int()
    rows = torch.arange((1 << scale) + 1, device=DEVICE)
    indptr = torch.searchsorted(dst, rows)
    return Csr(indptr, indices, ops.transpose(indptr, indices, 1 << scale))


def fail(message: str) -> None:
    raise SystemExit(f"FAILED: {message}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--scale", type=int, default=20, help="2^scale nodes")
    parser.add_argument("--edges", type=int, default=20_000_000)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        fail("no CUDA device: nothing was run")
    begin = time.perf_counter()
    torch.manual_seed(0)
    properties = torch.cuda.get_device_properties(0)
    print(f"{properties.name}, torch {torch.__version__}, CUDA {torch.version.cuda}", flush=True)
    worst = check_against_loops()
    check_edges_and_gathers()
    check_against_cpu(rmat(14, 400_000))
    checked_s = time.perf_counter() - begin
    print(f"every kernel and gradient is right ({worst:.2f} of tolerance), {checked_s:.0f} s")

    copy = copy_bandwidth()
    csr = rmat(options.scale, options.edges)
    degree = int(csr.indptr.diff().max())
    print(
        f"copy {copy:.0f} GB/s; graph of 2^{options.scale} nodes, {csr.num_edges} edges,", end=" "
    )
    print(f"the longest row has {degree}")
    figures = {
        "device": properties.name,
        "copy_gb_s": copy,
        "spmm": bench_spmm(csr, copy),
        "types": bench_types(csr, copy),
        "edges": bench_edges(csr, copy),
        "attention": bench_attention(csr, copy),
        "gather": bench_gather(copy),
        "seconds": time.perf_counter() - begin,
    }
    print(f"{figures['seconds']:.0f} s in all")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
