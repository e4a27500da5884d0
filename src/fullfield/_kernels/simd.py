"""Vectors of sixteen float32 lanes inside numba functions.

numba leaves vectorisation to LLVM's loop passes, which give up on stencils that write the arrays they read. Here the
vector is explicit: ``load`` and ``store`` move 16 floats at any element offset of a 1-D float32 array, ``+ - * /``
work lane by lane (denominators must be finite), and LLVM maps the 16 lanes onto whatever the CPU has: one AVX-512
register, two of AVX, four of NEON.

Every pixel goes through the same instructions wherever a block starts, so a result does not depend on how the work
was cut. Addresses are not checked: callers pad their rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, models, register_model

LANES = 16

FLOAT, INDEX = ir.FloatType(), ir.IntType(64)
VECTOR = ir.VectorType(FLOAT, LANES)
INTEGERS = ir.VectorType(ir.IntType(32), LANES)
# Fused multiply-add and refined reciprocal estimates are wanted; reordering sums is not.
_FLAGS = ("arcp", "contract", "nsz")
# LLVM takes the refined reciprocal estimate only where it may assume a finite denominator.
_DIVISION_FLAGS = (*_FLAGS, "ninf")


class Float32x16(types.Type):
    """numba type of a vector of 16 float32."""

    def __init__(self) -> None:
        super().__init__(name="float32x16")


float32x16 = Float32x16()


@register_model(Float32x16)
class _Float32x16Model(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, VECTOR)


# ---- instructions, for intrinsics here and elsewhere


def create_index_constant(value: int) -> ir.Constant:
    """Return a constant index."""
    return ir.Constant(INDEX, value)


def create_vector_constant(value: float) -> ir.Constant:
    """Return a constant with the same value in all lanes."""
    return ir.Constant(VECTOR, [value] * LANES)


def emit_array_pointer(context: Any, builder: Any, sig: Any, args: Any, argument_index: int, index: Any = None) -> Any:
    """Return a pointer into the array in argument ``argument_index``, at ``index``: by default the next argument."""
    data = context.make_array(sig.args[argument_index])(context, builder, args[argument_index]).data
    return builder.gep(data, [args[argument_index + 1] if index is None else index])


def emit_unaligned_load(builder: Any, pointer: Any, offset: Any = None, kind: Any = VECTOR) -> Any:
    """Load a vector from any address, ``offset`` elements after ``pointer``."""
    at = pointer if offset is None else builder.gep(pointer, [offset])
    value = builder.load(builder.bitcast(at, ir.PointerType(kind)))
    value.align = 4
    return value


def emit_unaligned_store(builder: Any, value: Any, pointer: Any, offset: Any = None) -> None:
    """Store a vector at any address."""
    at = pointer if offset is None else builder.gep(pointer, [offset])
    builder.store(value, builder.bitcast(at, ir.PointerType(value.type))).align = 4


def emit_splat(builder: Any, scalar: Any, lanes: int = LANES) -> Any:
    """Return a vector with the same scalar in all lanes."""
    undefined = ir.Constant(ir.VectorType(scalar.type, lanes), ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes))


def emit_switch(builder: Any, value: Any, cases: Iterable[int], emit_case: Callable[[int], None]) -> None:
    """Branch to the code that ``emit_case`` writes for the case that equals the value; other values do nothing."""
    end = builder.append_basic_block("cases.end")
    switch = builder.switch(value, end)
    for case in cases:
        block = builder.append_basic_block(f"case{case}")
        switch.add_case(create_index_constant(case), block)
        builder.position_at_end(block)
        emit_case(case)
        builder.branch(end)
    builder.position_at_end(end)


def _build_codegen(emit: Callable[..., Any]) -> Callable[..., Any]:
    """Return the code of an intrinsic that uses only its arguments' values: ``put(builder, *values)``."""
    return lambda _context, builder, _sig, args: emit(builder, *args)


# ---- intrinsics


@intrinsic
def load(typingctx: Any, array: Any, index: Any) -> Any:
    """Return ``array[index : index + 16]`` as a vector."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit_unaligned_load(builder, emit_array_pointer(context, builder, sig, args, 0))

    return float32x16(array, types.intp), codegen


def _emit_16x4_transpose(builder: Any, rows: Sequence[Any]) -> list[Any]:
    """Return four vectors of 16 lanes, the columns of sixteen vectors of four."""

    def shuffle(a: Any, b: Any, lanes: Iterable[int]) -> Any:
        mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), list(lanes))
        return builder.shuffle_vector(a, b, mask)

    def interleave(a: Any, b: Any, block_size: int, high: int) -> Any:
        """Take half of each block of four, ``block_size`` lanes of ``a`` and of ``b`` in turns."""
        block = [lane + side for lane in range(2 * high, 2 * high + 2, block_size) for side in (0, LANES)]
        block = [lane + step for lane in block for step in range(block_size)]
        return shuffle(a, b, [4 * group + lane for group in range(4) for lane in block])

    # Vector r holds rows r, r + 4, r + 8 and r + 12; every block of four lanes is transposed by itself.
    vectors = []
    for r in range(4):
        pairs = [emit_concatenation(builder, rows[r + at], rows[r + at + 4]) for at in (0, 8)]
        vectors.append(emit_concatenation(builder, *pairs))
    first, second = ([interleave(vectors[at], vectors[at + 1], 1, high) for high in (0, 1)] for at in (0, 2))
    return [interleave(a, b, 2, high) for a, b in zip(first, second, strict=True) for high in (0, 1)]


def emit_concatenation(builder: Any, a: Any, b: Any) -> Any:
    """Return the lanes of one vector followed by those of another."""
    lanes = list(range(2 * a.type.count))
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(lanes)), lanes))


@intrinsic
def load_rows_transposed(typingctx: Any, array: Any, indices: Any, index: Any) -> Any:
    """Return eight vectors, the columns of rows ``indices[index : index + 16]`` (int32); a row is 8 of ``array``.

    Whole rows are read and transposed: on a Cascade Lake that took a third of the time of gather instructions or less.
    """
    result = types.UniTuple(float32x16, 8)  # type: ignore[attr-defined]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        start = emit_array_pointer(context, builder, sig, args, 0, create_index_constant(0))
        at, four, lows, highs = (
            emit_array_pointer(context, builder, sig, args, 1),
            ir.VectorType(FLOAT, 4),
            [],
            [],
        )
        for lane in range(LANES):
            row = builder.sext(builder.load(builder.gep(at, [create_index_constant(lane)])), INDEX)
            first = builder.shl(row, create_index_constant(3))
            lows.append(emit_unaligned_load(builder, start, first, four))
            highs.append(emit_unaligned_load(builder, start, builder.add(first, create_index_constant(4)), four))
        return context.make_tuple(
            builder, sig.return_type, _emit_16x4_transpose(builder, lows) + _emit_16x4_transpose(builder, highs)
        )

    return result(array, indices, types.intp), codegen


@intrinsic
def store(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """Execute ``array[index : index + 16] = value``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emit_unaligned_store(builder, args[2], emit_array_pointer(context, builder, sig, args, 0))
        return context.get_dummy_value()

    return types.void(array, types.intp, float32x16), codegen


@intrinsic
def store_truncated_int32(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """Execute ``array[index : index + 16] = value`` for an int32 array; fractions are truncated."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        emit_unaligned_store(
            builder, builder.fptosi(args[2], INTEGERS), emit_array_pointer(context, builder, sig, args, 0)
        )
        return context.get_dummy_value()

    return types.void(array, types.intp, float32x16), codegen


@intrinsic
def splat(typingctx: Any, scalar: Any) -> Any:
    """Return a vector with the same float32 in all 16 lanes."""
    return float32x16(types.float32), _build_codegen(emit_splat)


@intrinsic
def sum_weighted_quarters(typingctx: Any, vector: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return ``a * v[0:4] + b * v[4:8] + c * v[8:12] + d * v[12:16]`` as four scalars."""
    result = types.UniTuple(types.float32, 4)  # type: ignore[attr-defined]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        undefined, quad_index = ir.Constant(VECTOR, ir.Undefined), ir.VectorType(ir.IntType(32), 4)
        total = None
        for group, weight in enumerate(args[1:]):
            lanes = ir.Constant(quad_index, list(range(4 * group, 4 * group + 4)))
            vector = builder.shuffle_vector(args[0], undefined, lanes)
            term = builder.fmul(vector, emit_splat(builder, weight, 4), flags=_FLAGS)
            total = term if total is None else builder.fadd(total, term, flags=_FLAGS)
        values = [builder.extract_element(total, ir.Constant(ir.IntType(32), lane)) for lane in range(4)]
        return context.make_tuple(builder, sig.return_type, values)

    return result(float32x16, *[types.float32] * 4), codegen


@intrinsic
def create_lane_numbers(typingctx: Any) -> Any:
    """Return ``[0, 1, ..., 15]``."""
    return float32x16(), _build_codegen(lambda _: ir.Constant(VECTOR, [float(lane) for lane in range(LANES)]))


def _register_binary_operator(
    symbol: Callable[[Any, Any], Any], instruction: str, flags: tuple[str, ...] = _FLAGS
) -> None:
    @infer_global(symbol)
    class _Typing(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and all(isinstance(a, Float32x16) for a in args):
                return signature(float32x16, float32x16, float32x16)
            return None

    @lower_builtin(symbol, Float32x16, Float32x16)
    def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args, flags=flags)


_register_binary_operator(operator.add, "fadd")
_register_binary_operator(operator.sub, "fsub")
_register_binary_operator(operator.mul, "fmul")
_register_binary_operator(operator.truediv, "fdiv", _DIVISION_FLAGS)


def _emit_llvm_intrinsic_call(name: str, builder: Any, x: Any) -> Any:
    """Call LLVM's function of this name, lane by lane."""
    kind = ir.FunctionType(VECTOR, [VECTOR])
    function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32")
    return builder.call(function, [x], fastmath=_FLAGS)


@intrinsic
def sqrt(typingctx: Any, x: Any) -> Any:
    """Return the square root, lane by lane."""
    return float32x16(float32x16), _build_codegen(partial(_emit_llvm_intrinsic_call, "sqrt"))


@intrinsic
def floor(typingctx: Any, x: Any) -> Any:
    """Return the largest whole number not above the value, lane by lane."""
    return float32x16(float32x16), _build_codegen(partial(_emit_llvm_intrinsic_call, "floor"))


def target_has_cpu_feature(context: Any, feature: str) -> bool:
    """Return whether numba compiles for an instruction set, by LLVM's name such as ``"avx512f"``.

    The host may have more: ``NUMBA_ENABLE_AVX`` and ``NUMBA_CPU_NAME`` choose the target.
    """
    return f"+{feature}" in context.codegen()._tm_features.split(",")


@intrinsic
def approximate_rsqrt(typingctx: Any, x: Any) -> Any:
    """Return ``1 / sqrt(x)`` of positive values with a relative error of at most 2^-13.

    With AVX-512 it is the processor's estimate, elsewhere ``1 / sqrt(x)``.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        one, mask = create_vector_constant(1.0), ir.IntType(LANES)
        if not target_has_cpu_feature(context, "avx512f"):
            return builder.fdiv(one, _emit_llvm_intrinsic_call("sqrt", builder, args[0]), flags=_DIVISION_FLAGS)
        kind = ir.FunctionType(VECTOR, [VECTOR, VECTOR, mask])
        estimate = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.rsqrt14.ps.512")
        return builder.call(estimate, [args[0], one, ir.Constant(mask, -1)])

    return float32x16(float32x16), codegen


@intrinsic
def get_ones_where_within(typingctx: Any, x: Any, low: Any, high: Any) -> Any:
    """Return 1 where ``low <= x <= high``, else 0."""

    def put(builder: Any, x: Any, low: Any, high: Any) -> Any:
        inside = builder.and_(builder.fcmp_ordered(">=", x, low), builder.fcmp_ordered("<=", x, high))
        return builder.select(inside, create_vector_constant(1.0), create_vector_constant(0.0))

    return float32x16(*[float32x16] * 3), _build_codegen(put)


@intrinsic
def get_ones_where_above(typingctx: Any, x: Any, y: Any) -> Any:
    """Return 1 where ``x > y``, else 0."""

    def put(builder: Any, x: Any, y: Any) -> Any:
        return builder.select(builder.fcmp_ordered(">", x, y), create_vector_constant(1.0), create_vector_constant(0.0))

    return float32x16(float32x16, float32x16), _build_codegen(put)


@intrinsic
def is_any_lane_above_zero(typingctx: Any, x: Any) -> Any:
    """Return whether any lane is above 0."""

    def put(builder: Any, x: Any) -> Any:
        bits = builder.bitcast(builder.fcmp_ordered(">", x, create_vector_constant(0.0)), ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, ir.Constant(ir.IntType(LANES), 0))

    return types.boolean(float32x16), _build_codegen(put)


def _emit_compare_and_select(comparison: str, builder: Any, x: Any, y: Any) -> Any:
    # Compare and select is one instruction on every target; LLVM's minnum also orders NaN, which costs three.
    return builder.select(builder.fcmp_ordered(comparison, x, y), x, y)


@intrinsic
def minimum(typingctx: Any, x: Any, y: Any) -> Any:
    """Return the smaller value, lane by lane (neither may be NaN)."""
    return float32x16(float32x16, float32x16), _build_codegen(partial(_emit_compare_and_select, "<"))


@intrinsic
def maximum(typingctx: Any, x: Any, y: Any) -> Any:
    """Return the larger value, lane by lane (neither may be NaN)."""
    return float32x16(float32x16, float32x16), _build_codegen(partial(_emit_compare_and_select, ">"))


def build_pair_sorting_intrinsic(*pairs: tuple[int, int], returned_positions: Sequence[int]) -> Any:
    """Return an intrinsic that sorts pairs of a tuple of vectors, lane by lane (none may be NaN).

    Args:
        *pairs: positions in the tuple, in order; the first one gets the smaller value, the second the larger.
        returned_positions: positions of the vectors to return.
    """

    @intrinsic
    def exchange(typingctx: Any, values: Any) -> Any:
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            at = cgutils.unpack_tuple(builder, args[0])
            for low, high in pairs:
                x, y = at[low], at[high]
                at[low], at[high] = (
                    _emit_compare_and_select("<", builder, x, y),
                    _emit_compare_and_select(">", builder, x, y),
                )
            return context.make_tuple(builder, sig.return_type, [at[i] for i in returned_positions])

        return types.UniTuple(float32x16, len(returned_positions))(values), codegen  # type: ignore[attr-defined]

    return exchange


@intrinsic
def compute_reciprocal_above_else_zero(typingctx: Any, x: Any, threshold: Any) -> Any:
    """Return ``1 / x`` where ``x > floor``, else 0."""

    def put(builder: Any, x: Any, floor: Any) -> Any:
        large, one = builder.fcmp_ordered(">", x, floor), create_vector_constant(1.0)
        return builder.select(large, builder.fdiv(one, builder.select(large, x, one)), create_vector_constant(0.0))

    return float32x16(float32x16, float32x16), _build_codegen(put)
