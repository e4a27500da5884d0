# ruff: noqa: ARG001 - numba prescribes the signatures
# mypy: disallow-untyped-decorators=False
"""The inner loops of the CPU kernels as numba intrinsics whose accumulators stay in vector registers.

Layouts, in float32 elements. A *tile* holds 16 source pixels: ``[channel][16 pixels]``. A *plane* holds 16 channels of
a map: ``[pixel][16 channels]``; the planes of a map follow each other at a fixed stride.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from fullfield._kernels import processor
from fullfield._kernels.simd import LANES, float32x16

_FLOAT = ir.FloatType()
_INDEX = ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_OFFSETS = ir.VectorType(ir.IntType(32), LANES)
_POINTERS = ir.VectorType(ir.PointerType(_FLOAT), LANES)
_BYTES = ir.PointerType(ir.IntType(8))
_MASK = ir.VectorType(ir.IntType(1), LANES)
_FLAGS = ("contract", "nsz")
_REORDER = ("contract", "nsz", "reassoc")

# How many 16-lane accumulators fit in registers: 32 of 512 bits with AVX-512, else the equivalent of 8.
WIDE = processor.has("avx512f")
MOST = 24 if WIDE else 6
WIDTHS = tuple(range(2, MOST + 1, 2))
UNROLL = 4
_NEARNESS = 2  # of what is fetched: the second cache


def _int(value: int) -> ir.Constant:
    return ir.Constant(_INDEX, value)


def _data(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [index])


def _load(builder: Any, pointer: Any, offset: Any) -> Any:
    value = builder.load(builder.bitcast(builder.gep(pointer, [offset]), ir.PointerType(_VECTOR)))
    value.align = 4
    return value


def _store(builder: Any, pointer: Any, offset: Any, value: Any) -> None:
    done = builder.store(value, builder.bitcast(builder.gep(pointer, [offset]), ir.PointerType(_VECTOR)))
    done.align = 4


def _splat(builder: Any, scalar: Any) -> Any:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(_OFFSETS, [0] * LANES))


def _multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=_FLAGS), c, flags=_FLAGS)


def _sum(builder: Any, vector: Any) -> Any:
    kind = ir.FunctionType(_FLOAT, [_FLOAT, _VECTOR])
    reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{LANES}f32")
    return builder.call(reduce, [ir.Constant(_FLOAT, 0.0), vector], fastmath=_REORDER)


def _zeros(builder: Any, count: int) -> list[Any]:
    cells = [cgutils.alloca_once(builder, _VECTOR) for _ in range(count)]
    for cell in cells:
        builder.store(ir.Constant(_VECTOR, [0.0] * LANES), cell)
    return cells


def _accumulate(builder: Any, cell: Any, a: Any, b: Any) -> None:
    builder.store(_multiply_add(builder, a, b, builder.load(cell)), cell)


def _add(builder: Any, totals: list[Any], cells: list[Any]) -> None:
    for total, cell in zip(totals, cells, strict=True):
        builder.store(builder.fadd(builder.load(total), builder.load(cell), flags=_FLAGS), total)


@intrinsic
def gather(typingctx: Any, array: Any, offsets: Any, shift: Any) -> Any:
    """``array[offsets[lane] + shift]`` for 16 lanes; ``offsets`` is an int32 array of 16."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointers = _lane_pointers(context, builder, sig, args)
        name = "llvm.masked.gather.v16f32.v16p0"
        kind = ir.FunctionType(_VECTOR, [_POINTERS, ir.IntType(32), _MASK, _VECTOR])
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        whole = ir.Constant(_MASK, [1] * LANES)
        align = ir.Constant(ir.IntType(32), 4)
        return builder.call(function, [pointers, align, whole, ir.Constant(_VECTOR, ir.Undefined)])

    return float32x16(array, offsets, types.intp), codegen


def _lane_pointers(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    base = _data(context, builder, sig.args[0], args[0], args[2])
    at = _data(context, builder, sig.args[1], args[1], _int(0))
    lanes = builder.load(builder.bitcast(at, ir.PointerType(_OFFSETS)))
    lanes.align = 4
    first = builder.insert_element(ir.Constant(_POINTERS, ir.Undefined), base, ir.Constant(ir.IntType(32), 0))
    everywhere = builder.shuffle_vector(first, ir.Constant(_POINTERS, ir.Undefined), ir.Constant(_OFFSETS, [0] * LANES))
    return builder.gep(everywhere, [lanes], source_etype=_FLOAT)


def _by_width(builder: Any, count: Any, emit: Callable[[int], None]) -> None:
    """Branch to the code for the smallest of WIDTHS that is at least ``count`` (1 ... MOST)."""
    end = builder.append_basic_block("widths.end")
    half = builder.lshr(builder.add(count, _int(1)), _int(1))
    switch = builder.switch(half, end)
    for width in WIDTHS:
        block = builder.append_basic_block(f"width{width}")
        switch.add_case(_int(width // 2), block)
        builder.position_at_end(block)
        emit(width)
        builder.branch(end)
    builder.position_at_end(end)


@intrinsic
def products(
    typingctx: Any, n: Any, tile: Any, t: Any, planes: Any, p: Any, stride: Any, blocks: Any, out: Any, o: Any
) -> Any:
    """``out[o + 16 q + lane] =`` sum over channels of ``tile[t + 16 c + lane] * planes[position q, channel c]``.

    For the n <= MOST positions that follow element p of the first plane; ``blocks`` planes, ``stride`` elements
    apart. Reads and writes one position more where n is odd.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        a = _data(context, builder, sig.args[1], args[1], args[2])
        b = _data(context, builder, sig.args[3], args[3], args[4])
        c = _data(context, builder, sig.args[7], args[7], args[8])

        def emit(width: int) -> None:
            cells = _zeros(builder, width)
            with cgutils.for_range(builder, args[6]) as outer:
                here = builder.gep(b, [builder.mul(outer.index, args[5])])
                left = builder.gep(a, [builder.mul(outer.index, _int(LANES * LANES))])
                with cgutils.for_range(builder, _int(LANES // UNROLL)) as inner:
                    first = builder.mul(inner.index, _int(UNROLL))
                    for step in range(UNROLL):
                        channel = builder.add(first, _int(step))
                        pixels = _load(builder, left, builder.mul(channel, _int(LANES)))
                        row = builder.gep(here, [channel])
                        for position, cell in enumerate(cells):
                            value = builder.load(builder.gep(row, [_int(position * LANES)]))
                            _accumulate(builder, cell, pixels, _splat(builder, value))
            for position, cell in enumerate(cells):
                _store(builder, c, _int(position * LANES), builder.load(cell))

        _by_width(builder, args[0], emit)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, tile, i, planes, i, i, i, out, i), codegen


@intrinsic
def dots(
    typingctx: Any, n: Any, pixel: Any, t: Any, planes: Any, p: Any, stride: Any, blocks: Any, out: Any, o: Any
) -> Any:
    """``out[o + q] =`` sum over channels of ``pixel[t + c] * planes[position q, channel c]``; else as products."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        a = _data(context, builder, sig.args[1], args[1], args[2])
        b = _data(context, builder, sig.args[3], args[3], args[4])
        c = _data(context, builder, sig.args[7], args[7], args[8])

        def emit(width: int) -> None:
            cells = _zeros(builder, width)
            with cgutils.for_range(builder, args[6]) as loop:
                here = builder.gep(b, [builder.mul(loop.index, args[5])])
                channels = _load(builder, a, builder.mul(loop.index, _int(LANES)))
                for position, cell in enumerate(cells):
                    _accumulate(builder, cell, channels, _load(builder, here, _int(position * LANES)))
            for position, cell in enumerate(cells):
                builder.store(_sum(builder, builder.load(cell)), builder.gep(c, [_int(position)]))

        _by_width(builder, args[0], emit)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, pixel, i, planes, i, i, i, out, i), codegen


@intrinsic
def put_half(typingctx: Any, array: Any, offset: Any, values: Any, index: Any) -> Any:
    """Write eight of ``values``, from ``index`` on, ``offset`` bytes behind the begin of ``array``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        half = ir.PointerType(ir.VectorType(_FLOAT, LANES // 2))
        begin = builder.bitcast(context.make_array(sig.args[0])(context, builder, args[0]).data, _BYTES)
        source = builder.bitcast(_data(context, builder, sig.args[2], *args[2:]), half)
        value = builder.load(source)
        value.align = 4
        done = builder.store(value, builder.bitcast(builder.gep(begin, [args[1]]), half))
        done.align = 4
        return context.get_dummy_value()

    return types.void(array, types.intp, values, types.intp), codegen


@intrinsic
def fetch(typingctx: Any, array: Any, index: Any) -> Any:
    """Ask for the cache line of ``array[index]``; whoever reads it later waits less."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [_BYTES, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        place = builder.bitcast(_data(context, builder, sig.args[0], *args), _BYTES)
        builder.call(function, [place, *(ir.Constant(number, value) for value in (0, _NEARNESS, 1))])
        return context.get_dummy_value()

    return types.void(array, types.intp), codegen


@intrinsic
def scatter(typingctx: Any, array: Any, offsets: Any, shift: Any, value: Any) -> Any:
    """``array[offsets[lane] + shift] = value[lane]`` for 16 lanes with distinct offsets."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointers = _lane_pointers(context, builder, sig, args)
        kind = ir.FunctionType(ir.VoidType(), [_VECTOR, _POINTERS, ir.IntType(32), _MASK])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.masked.scatter.v16f32.v16p0")
        whole = ir.Constant(_MASK, [1] * LANES)
        builder.call(function, [args[3], pointers, ir.Constant(ir.IntType(32), 4), whole])
        return context.get_dummy_value()

    return types.void(array, offsets, types.intp, float32x16), codegen


def _pull(width: int) -> Callable[..., None]:
    @intrinsic
    def pull(
        typingctx: Any, taps: Any, t: Any, pitch: Any, planes: Any, p: Any, stride: Any, count: Any, rows: Any,
        out: Any, o: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            a = _data(context, builder, sig.args[0], args[0], args[1])
            b = _data(context, builder, sig.args[3], args[3], args[4])
            c = _data(context, builder, sig.args[8], args[8], args[9])
            totals = _zeros(builder, width)
            with cgutils.for_range(builder, args[7]) as outer:
                left = builder.gep(a, [builder.mul(outer.index, args[2])])
                right = builder.gep(b, [builder.mul(outer.index, args[5])])
                cells = _zeros(builder, width)
                with cgutils.for_range(builder, args[6]) as inner:
                    here = builder.mul(inner.index, _int(LANES))
                    pixels = _load(builder, left, here)
                    row = builder.gep(right, [here])
                    for channel, cell in enumerate(cells):
                        value = builder.load(builder.gep(row, [_int(channel)]))
                        _accumulate(builder, cell, pixels, _splat(builder, value))
                _add(builder, totals, cells)
            for channel, cell in enumerate(totals):
                at = _int(channel * LANES)
                _store(builder, c, at, builder.fadd(_load(builder, c, at), builder.load(cell), flags=_FLAGS))
            return context.get_dummy_value()

        i = types.intp
        return types.void(taps, i, i, planes, i, i, i, i, out, i), codegen

    return pull  # type: ignore[no-any-return]


@intrinsic
def push(typingctx: Any, taps: Any, t: Any, block: Any, k: Any, count: Any, out: Any, o: Any) -> Any:
    """``out[o + 16 q + c] += sum over lanes of taps[t + 16 q + lane] * block[k + 16 lane + c]`` for q < count."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        a = _data(context, builder, sig.args[0], args[0], args[1])
        b = _data(context, builder, sig.args[2], args[2], args[3])
        c = _data(context, builder, sig.args[5], args[5], args[6])
        pixels = [_load(builder, b, _int(lane * LANES)) for lane in range(LANES)]
        with cgutils.for_range(builder, args[4]) as loop:
            here = builder.mul(loop.index, _int(LANES))
            row = builder.gep(a, [here])
            sums = [_load(builder, c, here), ir.Constant(_VECTOR, [0.0] * LANES)]
            for lane, channels in enumerate(pixels):
                value = _splat(builder, builder.load(builder.gep(row, [_int(lane)])))
                sums[lane % 2] = _multiply_add(builder, value, channels, sums[lane % 2])
            _store(builder, c, here, builder.fadd(*sums, flags=_FLAGS))
        return context.get_dummy_value()

    i = types.intp
    return types.void(taps, i, block, i, i, out, i), codegen


# How many channels one PULL takes; divides 16.
STEP = 16 if WIDE else 4

# PULL: out[o + 16 c + lane] += sum over r < rows, q < count of taps[t + r pitch + 16 q + lane] * planes[position q,
# channel c], for STEP channels c from element p + r stride of a plane. Every row is summed by itself, then the rows.
PULL = _pull(STEP)
