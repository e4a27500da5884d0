"""Sixteen float32 lanes as one value inside numba functions.

numba leaves vectorisation to LLVM's loop passes, which give up on stencils that write the arrays they read. Here the
vector is explicit: ``load`` and ``store`` move 16 floats at any element offset of a 1-D float32 array, ``+ - * /``
work lane by lane (denominators must be finite), and LLVM maps the 16 lanes onto whatever the CPU has: one AVX-512
register, two of AVX, four of NEON.

Every pixel goes through the same instructions wherever a block starts, so a result does not depend on how the work
was cut. Addresses are not checked: callers pad their rows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.imputils import lower_builtin
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, models, register_model

LANES = 16

_FLOAT = ir.FloatType()
_VECTOR = ir.VectorType(_FLOAT, LANES)
_LANE_INDEX = ir.VectorType(ir.IntType(32), LANES)
_UNDEFINED = ir.Constant(_VECTOR, ir.Undefined)
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
        super().__init__(dmm, fe_type, _VECTOR)


def _address(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), ir.PointerType(_VECTOR))


def _constant(value: float) -> ir.Constant:
    return ir.Constant(_VECTOR, [value] * LANES)


@intrinsic
def load(typingctx: Any, array: Any, index: Any) -> Any:
    """``array[index : index + 16]`` as a vector."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value = builder.load(_address(context, builder, sig.args[0], *args))
        value.align = 4
        return value

    return float32x16(array, types.intp), codegen


@intrinsic
def store(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """``array[index : index + 16] = value``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        done = builder.store(args[2], _address(context, builder, sig.args[0], args[0], args[1]))
        done.align = 4
        return context.get_dummy_value()

    return types.void(array, types.intp, float32x16), codegen


@intrinsic
def splat(typingctx: Any, scalar: Any) -> Any:
    """The same float32 in all 16 lanes."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        first = builder.insert_element(_UNDEFINED, args[0], ir.Constant(ir.IntType(32), 0))
        return builder.shuffle_vector(first, _UNDEFINED, ir.Constant(_LANE_INDEX, [0] * LANES))

    return float32x16(types.float32), codegen


@intrinsic
def weighted4(typingctx: Any, vector: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """``a * v[0:4] + b * v[4:8] + c * v[8:12] + d * v[12:16]`` as four scalars."""
    result = types.UniTuple(types.float32, 4)  # type: ignore[attr-defined]

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        quad = ir.VectorType(_FLOAT, 4)
        quad_index = ir.VectorType(ir.IntType(32), 4)
        undefined = ir.Constant(quad, ir.Undefined)
        total = None
        for group, weight in enumerate(args[1:]):
            lanes = ir.Constant(quad_index, list(range(4 * group, 4 * group + 4)))
            part = builder.shuffle_vector(args[0], _UNDEFINED, lanes)
            first = builder.insert_element(undefined, weight, ir.Constant(ir.IntType(32), 0))
            spread = builder.shuffle_vector(first, undefined, ir.Constant(quad_index, [0] * 4))
            term = builder.fmul(part, spread, flags=_FLAGS)
            total = term if total is None else builder.fadd(total, term, flags=_FLAGS)
        values = [builder.extract_element(total, ir.Constant(ir.IntType(32), lane)) for lane in range(4)]
        return context.make_tuple(builder, sig.return_type, values)

    return result(float32x16, *[types.float32] * 4), codegen


@intrinsic
def store_int32(typingctx: Any, array: Any, index: Any, value: Any) -> Any:
    """``array[index : index + 16] = value`` for an int32 array; fractions are cut off."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        whole = ir.VectorType(ir.IntType(32), LANES)
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), ir.PointerType(whole))
        done = builder.store(builder.fptosi(args[2], whole), address)
        done.align = 4
        return context.get_dummy_value()

    return types.void(array, types.intp, float32x16), codegen


@intrinsic
def lane_numbers(typingctx: Any) -> Any:
    """``[0, 1, ..., 15]``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return ir.Constant(_VECTOR, [float(lane) for lane in range(LANES)])

    return float32x16(), codegen


def _binary(symbol: Callable[[Any, Any], Any], instruction: str, flags: tuple[str, ...] = _FLAGS) -> None:
    @infer_global(symbol)
    class _Typing(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            if len(args) == 2 and all(isinstance(a, Float32x16) for a in args):
                return signature(float32x16, float32x16, float32x16)
            return None

    @lower_builtin(symbol, Float32x16, Float32x16)
    def _lower(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return getattr(builder, instruction)(*args, flags=flags)


_binary(operator.add, "fadd")
_binary(operator.sub, "fsub")
_binary(operator.mul, "fmul")
_binary(operator.truediv, "fdiv", _DIVISION_FLAGS)


def _llvm(name: str, arity: int) -> Callable[..., Any]:
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = ir.FunctionType(_VECTOR, [_VECTOR] * arity)
        function = cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}f32")
        return builder.call(function, args, fastmath=_FLAGS)

    return codegen


@intrinsic
def sqrt(typingctx: Any, x: Any) -> Any:
    """Square root, lane by lane."""
    return float32x16(float32x16), _llvm("sqrt", 1)


@intrinsic
def rough_rsqrt(typingctx: Any, x: Any) -> Any:
    """``1 / sqrt(x)`` of positive values, off by at most 2^-13 of itself: AVX-512's estimate as it is, where there is
    one; elsewhere what ``1 / sqrt(x)`` gives."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        one, mask = _constant(1.0), ir.IntType(LANES)
        if "+avx512f" not in context.codegen()._tm_features.split(","):
            return builder.fdiv(one, _llvm("sqrt", 1)(context, builder, sig, args), flags=_DIVISION_FLAGS)
        kind = ir.FunctionType(_VECTOR, [_VECTOR, _VECTOR, mask])
        estimate = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.rsqrt14.ps.512")
        return builder.call(estimate, [args[0], one, ir.Constant(mask, -1)])

    return float32x16(float32x16), codegen


@intrinsic
def floor(typingctx: Any, x: Any) -> Any:
    """Largest whole number not above, lane by lane."""
    return float32x16(float32x16), _llvm("floor", 1)


@intrinsic
def within(typingctx: Any, x: Any, low: Any, high: Any) -> Any:
    """1 where ``low <= x <= high``, else 0."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        x, low, high = args
        inside = builder.and_(builder.fcmp_ordered(">=", x, low), builder.fcmp_ordered("<=", x, high))
        return builder.select(inside, _constant(1.0), _constant(0.0))

    return float32x16(*[float32x16] * 3), codegen


@intrinsic
def some(typingctx: Any, x: Any) -> Any:
    """Whether a lane is above 0."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = builder.bitcast(builder.fcmp_ordered(">", args[0], _constant(0.0)), ir.IntType(LANES))
        return builder.icmp_unsigned("!=", bits, ir.Constant(ir.IntType(LANES), 0))

    return types.boolean(float32x16), codegen


def _select(comparison: str) -> Callable[..., Any]:
    # Compare and select is one instruction on every target; LLVM's minnum also orders NaN, which costs three.
    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.select(builder.fcmp_ordered(comparison, *args), *args)

    return codegen


@intrinsic
def minimum(typingctx: Any, x: Any, y: Any) -> Any:
    """Smaller value, lane by lane (neither may be NaN)."""
    return float32x16(float32x16, float32x16), _select("<")


@intrinsic
def maximum(typingctx: Any, x: Any, y: Any) -> Any:
    """Larger value, lane by lane (neither may be NaN)."""
    return float32x16(float32x16, float32x16), _select(">")


@intrinsic
def reciprocal_where(typingctx: Any, x: Any, floor: Any) -> Any:
    """``1 / x`` where ``x > floor``, else 0."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value, floor = args
        large = builder.fcmp_ordered(">", value, floor)
        one = _constant(1.0)
        quotient = builder.fdiv(one, builder.select(large, value, one))
        return builder.select(large, quotient, _constant(0.0))

    return float32x16(float32x16, float32x16), codegen
