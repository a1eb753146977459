"""LLVM vectors for the kernels: what numba's own code cannot say.

numba keeps no accumulator of run-time width in registers: every edge would read and write its
output row. An intrinsic that emits vectors of a fixed width does keep them. The width is the
machine's when the kernel is compiled (AVX-512, AVX2 or 16 bytes), and is part of the key under
which numba keeps the kernel on disk.

Rows are stored as float32, float64, bfloat16 (its bits, as uint16) or float16 (its bits, as
int16); the last two are computed in float32, for which nothing is copied.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numba.extending
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.registry import cpu_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray
    from torch import Tensor

INT8, INT16, INT32, INT64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
LINE_BYTES = 64
_PREFETCH = ir.FunctionType(ir.VoidType(), [INT8.as_pointer(), INT32, INT32, INT32])
AHEAD = 8  # edges between a prefetch and its use; twice as many where a tile is 4 lines or fewer:
# with tiles of 8 lines (AVX-512) 4 to 8 were best, with 2 and 4 (AVX2) 16 took a fifth off the time

emitted: Any = numba.extending.intrinsic  # whose type knows nothing of the call's arguments
_EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
_BITS = {torch.bfloat16: np.uint16, torch.float16: np.int16}
_ACCUMULATORS = {types.float64: ir.DoubleType()}  # else float32
_HALF = {"f16c", "fullfp16"}  # conversion of float16 in vectors: x86, ARM
_VECTOR_BYTES = (("avx512f", 64), ("avx2", 32))  # else 16: SSE2, NEON


def readable(x: Tensor) -> Tensor:
    """Rows in a type that kernels can read: all but float16 where the machine has none."""
    if x.dtype == torch.float16 and not _features(cpu_target.target_context.codegen()) & _HALF:
        return x.detach().float()
    return x.detach()


def stored(x: Tensor) -> NDArray[Any]:
    """Rows as kernels read and write them: narrow floats as their bits."""
    if x.dtype in _BITS:
        return x.detach().view(torch.int16).numpy().view(_BITS[x.dtype])
    return x.detach().numpy()


def _features(codegen: Any) -> set[str]:
    """Names of the instruction sets that numba compiles for."""
    _, _, features = codegen.magic_tuple()
    return {name[1:] for name in str(features).split(",") if name[:1] == "+"}


class Vectors:
    """Emits vectors of one accumulator type into the function that is being built.

    Parameters
    ----------
    context
        numba's, of the intrinsic.
    builder
        llvmlite's, likewise.
    dtype
        numba's type of the rows to read.
    """

    def __init__(self, context: Any, builder: Any, dtype: Any) -> None:
        self.context, self.builder = context, builder
        self.element = _ACCUMULATORS.get(dtype, ir.FloatType())
        self.bits = 64 if dtype == types.float64 else 32
        features = _features(context.codegen())
        num_bytes = next((n for name, n in _VECTOR_BYTES if name in features), 16)
        self.registers = 32 if num_bytes == 64 else 16
        self.lanes = num_bytes * 8 // self.bits
        self.integer = ir.IntType(self.bits)

    def data(self, array_type: Any, value: Any) -> Any:
        """Pointer to the first element of an array."""
        return self.context.make_array(array_type)(self.context, self.builder, value).data

    def splat(self, value: Any, lanes: int) -> Any:
        """Vector of one value in every lane."""
        undefined = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
        first = self.builder.insert_element(undefined, value, INT32(0))
        zeros = ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes)
        return self.builder.shuffle_vector(first, undefined, zeros)

    def constant(self, value: float, lanes: int, element: Any = None) -> Any:
        """Vector of one known value in every lane."""
        return ir.Constant(ir.VectorType(element or self.element, lanes), [value] * lanes)

    def muladd(self, a: Any, b: Any, c: Any) -> Any:
        """Compute a * b + c, in one instruction where the machine has it."""
        function = self._function("llvm.fmuladd", c.type, [c.type] * 3, c.type)
        return self.builder.call(function, [a, b, c])

    def maximum(self, value: Any, other: Any) -> Any:
        """Larger of each pair; `value` where it is not a number."""
        below = self.builder.fcmp_ordered("<", value, other)
        return self.builder.select(below, other, value)

    def exp(self, x: Any) -> Any:
        """Compute e^x, in float32 to 2 units in the last place, below e^-87 to 0.

        x = n log 2 + r with |r| <= log(2) / 2; a polynomial gives e^r (Cephes), and n goes into
        the exponent. Adding 1.5 * 2^23 leaves n in the low bits of the sum, so that a NaN is
        never converted to an integer; it comes out as it went in.
        """
        lanes = x.type.count
        if self.bits == 64:
            return self.builder.call(self._function("llvm.exp", x.type, [x.type], x.type), [x])

        def splat(value: float) -> Any:
            return self.constant(float(np.float32(value)), lanes)

        b = self.builder
        floor = splat(-87.0)
        bounded = b.select(b.fcmp_ordered(">", x, splat(88.0)), splat(88.0), x)
        bounded = self.maximum(bounded, floor)
        shift = splat(12582912.0)
        shifted = self.muladd(bounded, splat(1.44269504088896341), shift)
        n = b.fsub(shifted, shift)
        r = self.muladd(n, splat(-0.693359375), bounded)
        r = self.muladd(n, splat(2.12194440e-4), r)
        y = splat(_EXP[0])
        for coefficient in _EXP[1:]:
            y = self.muladd(y, r, splat(coefficient))
        y = b.fadd(self.muladd(b.fmul(y, r), r, r), splat(1.0))
        word = ir.VectorType(INT32, lanes)
        exponent = b.add(b.bitcast(shifted, word), self.constant(127, lanes, INT32))
        power = b.bitcast(b.shl(exponent, self.constant(23, lanes, INT32)), x.type)
        return b.select(b.fcmp_ordered("<", x, floor), splat(0.0), b.fmul(y, power))

    def _function(self, name: str, result: Any, arguments: list[Any], over: Any) -> Any:
        """Declare an intrinsic of LLVM, named after the vector type that it is over."""
        suffix = f".v{over.count}f{self.bits}"
        signature = ir.FunctionType(result, arguments)
        return cgutils.get_or_insert_function(self.builder.module, signature, name + suffix)

    def sum(self, value: Any) -> Any:
        """Add the lanes up, in some fixed order."""
        lanes = value.type.count
        if lanes == 1:
            return self.builder.extract_element(value, INT32(0))
        function = self._function(
            "llvm.vector.reduce.fadd", self.element, [self.element, value.type], value.type
        )
        start = ir.Constant(self.element, -0.0)
        return self.builder.call(function, [start, value], fastmath=("reassoc",))

    def new_lanes(self, column: Any, offsets: list[Any], lanes: int) -> Any:
        """Which lanes of the last vector of a tile no other vector has had."""
        b = self.builder
        seen = b.sub(b.add(column, INT64((len(offsets) - 1) * lanes)), offsets[-1])
        number = ir.Constant(ir.VectorType(INT32, lanes), list(range(lanes)))
        return b.icmp_signed(">=", number, self.splat(b.trunc(seen, INT32), lanes))

    def load(self, pointer: Any, dtype: Any, lanes: int) -> Any:
        """Read `lanes` consecutive elements, widened to the accumulator type."""
        b = self.builder
        source = {types.uint16: INT16, types.int16: ir.HalfType()}.get(dtype, self.element)
        vector = ir.VectorType(source, lanes)
        value = b.load(b.bitcast(pointer, vector.as_pointer()), align=dtype.bitwidth // 8)
        if dtype == types.uint16:  # the upper half of a float32
            word = ir.VectorType(INT32, lanes)
            value = b.shl(b.zext(value, word), self.constant(16, lanes, INT32))
            return b.bitcast(value, ir.VectorType(self.element, lanes))
        if dtype == types.int16:
            return b.fpext(value, ir.VectorType(self.element, lanes))
        return value

    def store(self, value: Any, pointer: Any, dtype: Any) -> None:
        """Write a vector, rounded to nearest even where the elements are narrower."""
        b = self.builder
        lanes = value.type.count
        if dtype == types.uint16:
            value = self._rounded_bfloat16(value, lanes)
        elif dtype == types.int16:
            value = b.fptrunc(value, ir.VectorType(ir.HalfType(), lanes))
        b.store(value, b.bitcast(pointer, value.type.as_pointer()), align=dtype.bitwidth // 8)

    def _rounded_bfloat16(self, value: Any, lanes: int) -> Any:
        b = self.builder
        bits = b.bitcast(value, ir.VectorType(INT32, lanes))

        def fixed(number: int) -> Any:
            return self.constant(number, lanes, INT32)

        odd = b.and_(b.lshr(bits, fixed(16)), fixed(1))
        rounded = b.add(bits, b.add(fixed(0x7FFF), odd))
        quiet = b.or_(bits, fixed(0x400000))  # rounding would turn some NaNs into infinities
        nan = b.fcmp_unordered("uno", value, value)
        kept = b.lshr(b.select(nan, quiet, rounded), fixed(16))
        return b.trunc(kept, ir.VectorType(INT16, lanes))

    def store_integers(self, value: Any, base: Any, pointer: Any) -> None:
        """Write a vector of integers plus `base`, in the width that the pointer says."""
        b, lanes, target = self.builder, value.type.count, pointer.type.pointee
        vector = ir.VectorType(target, lanes)
        if target.width > self.bits:
            value = b.zext(value, vector)
        elif target.width < self.bits:
            value = b.trunc(value, vector)
        base = b.trunc(base, target) if target.width < INT64.width else base
        value = b.add(value, self.splat(base, lanes))
        b.store(value, b.bitcast(pointer, vector.as_pointer()), align=target.width // 8)

    def index(self, pointer: Any, position: Any) -> Any:
        """Read an index as int64; it is never negative."""
        value = self.builder.load(self.builder.gep(pointer, [position]))
        return self.builder.zext(value, INT64) if value.type.width < 64 else value

    def prefetch(self, pointer: Any) -> None:
        """Ask for a cache line."""
        address = self.builder.bitcast(pointer, INT8.as_pointer())
        function = self.builder.module.declare_intrinsic(
            "llvm.prefetch", [INT8.as_pointer()], _PREFETCH
        )
        self.builder.call(function, [address, INT32(0), INT32(3), INT32(1)])  # read, keep, data

    def variables(self, initial: Any, count: int) -> list[Any]:
        """Make stack slots that LLVM turns into registers."""
        slots = [cgutils.alloca_once(self.builder, initial.type) for _ in range(count)]
        for slot in slots:
            self.builder.store(initial, slot)
        return slots

    def shape(self, array_type: Any, value: Any, axis: int) -> Any:
        """Length of an array along an axis."""
        array = self.context.make_array(array_type)(self.context, self.builder, value)
        return self.builder.extract_value(array.shape, axis)

    def tile(
        self, width: Any, column: Any, most: int, emit: Callable[[list[Any], int], None]
    ) -> Any:
        """Emit code for the columns from `column` on, at most `most` vectors; the next column.

        `emit` gets the first column of each vector and its lanes. The last vector of a row ends
        with the row and overlaps the one before it, so that no width needs a mask; rows shorter
        than a vector take two overlapping ones of the largest power of two.
        """
        b, lanes = self.builder, self.lanes
        left = b.sub(width, column)
        count = b.udiv(b.add(left, INT64(lanes - 1)), INT64(lanes))
        case = b.select(b.icmp_signed("<", count, INT64(most)), count, INT64(most))
        powers = [1 << i for i in range(lanes.bit_length() - 1)]
        short = INT64(-1)
        for power in powers[1:]:
            short = b.select(b.icmp_signed(">=", width, INT64(power)), INT64(-power), short)
        case = b.select(b.icmp_signed(">=", width, INT64(lanes)), case, short)
        done = b.append_basic_block("tiled")
        switch = b.switch(case, done)

        def add(value: int, offsets: Callable[[], list[Any]], lanes: int) -> None:
            block = b.append_basic_block(f"tile{value}")
            switch.add_case(INT64(value), block)
            b.position_at_end(block)
            emit(offsets(), lanes)
            b.branch(done)

        def row(count: int) -> list[Any]:
            offsets = [b.add(column, INT64(i * lanes)) for i in range(count)]
            inside = b.sub(width, INT64(lanes))
            last = offsets[-1]
            offsets[-1] = b.select(b.icmp_signed("<", last, inside), last, inside)
            return offsets

        def ends(power: int) -> list[Any]:
            return [INT64(0), b.sub(width, INT64(power))]

        for num_vectors in range(1, most + 1):
            add(num_vectors, functools.partial(row, num_vectors), lanes)
        for power in powers:
            add(-power, functools.partial(ends, power), power)
        b.position_at_end(done)
        return b.add(column, INT64(most * lanes))


class Gather:
    """Emits reads of the rows x[indices[k]], and asks for those some edges ahead.

    Parameters
    ----------
    vectors
        Where to emit.
    x
        numba's type of the rows, and the value.
    indices
        Likewise of the indices.
    last
        Indices before this position may be read ahead of their turn.
    ahead
        Edges between a prefetch and its use, an int64; by default as many as suit a tile's size.
    """

    def __init__(
        self,
        vectors: Vectors,
        x: tuple[Any, Any],
        indices: tuple[Any, Any],
        last: Any,
        ahead: Any = None,
    ) -> None:
        self.vectors, self.ahead, self.dtype = vectors, ahead, x[0].dtype
        self.x, self.width = vectors.data(*x), vectors.shape(*x, 1)
        self.indices = vectors.data(*indices)
        self.final = vectors.builder.sub(last, INT64(1))

    def row(self, k: Any) -> tuple[Any, Any]:
        """Source of edge k, and pointer to its row."""
        b = self.vectors.builder
        source = self.vectors.index(self.indices, k)
        return source, b.gep(self.x, [b.mul(source, self.width)])

    def load(self, row: Any, offset: Any, lanes: int) -> Any:
        """Vector of a row."""
        return self.vectors.load(self.vectors.builder.gep(row, [offset]), self.dtype, lanes)

    def prefetch(self, k: Any, offsets: list[Any], lanes: int) -> None:
        """Ask for the same columns of the row of an edge that comes some edges after k."""
        b = self.vectors.builder
        num_bytes = lanes * self.dtype.bitwidth // 8
        far = AHEAD if len(offsets) * num_bytes > 4 * LINE_BYTES else 2 * AHEAD
        ahead = b.add(k, INT64(far) if self.ahead is None else self.ahead)
        ahead = b.select(b.icmp_signed("<", ahead, self.final), ahead, self.final)
        _, row = self.row(ahead)
        for offset in offsets[:: max(LINE_BYTES // num_bytes, 1)]:
            self.vectors.prefetch(b.gep(row, [offset]))
