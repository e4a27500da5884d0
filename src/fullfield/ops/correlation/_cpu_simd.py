# ruff: noqa: ARG001 - numba prescribes the signatures
# mypy: disallow-untyped-decorators=False
"""Inner loops of the CPU kernels as numba intrinsics whose accumulators stay in vector registers.

Layouts, in float32 elements. A *tile* holds 16 source pixels: ``[channel][16 pixels]``. A *plane* holds 16 channels of
a map: ``[pixel][16 channels]``; the planes of a map follow each other at a fixed stride.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from fullfield._kernels.numba_cache import cpu_has_feature
from fullfield._kernels.simd import (
    FLOAT,
    INTEGERS,
    LANES,
    VECTOR,
    create_index_constant,
    create_vector_constant,
    emit_array_pointer,
    emit_splat,
    emit_switch,
    emit_unaligned_load,
    emit_unaligned_store,
    float32x16,
)

_POINTERS = ir.VectorType(ir.PointerType(FLOAT), LANES)
_BYTES = ir.PointerType(ir.IntType(8))
_MASK = ir.VectorType(ir.IntType(1), LANES)
_FLAGS = ("contract", "nsz")
_REORDER = ("contract", "nsz", "reassoc")

# How many 16-lane accumulators fit in registers: 32 of 512 bits with AVX-512, else the equivalent of 8.
WIDE = cpu_has_feature("avx512f")
MOST = 24 if WIDE else 6
WIDTHS = tuple(range(2, MOST + 1, 2))


def _emit_multiply_add(builder: Any, a: Any, b: Any, c: Any) -> Any:
    return builder.fadd(builder.fmul(a, b, flags=_FLAGS), c, flags=_FLAGS)


def _emit_lane_sum(builder: Any, vector: Any) -> Any:
    kind = ir.FunctionType(FLOAT, [FLOAT, VECTOR])
    reduce = cgutils.get_or_insert_function(builder.module, kind, f"llvm.vector.reduce.fadd.v{LANES}f32")
    return builder.call(reduce, [ir.Constant(FLOAT, 0.0), vector], fastmath=_REORDER)


def _emit_zeroed_cells(builder: Any, count: int) -> list[Any]:
    cells = [cgutils.alloca_once(builder, VECTOR) for _ in range(count)]
    for cell in cells:
        builder.store(create_vector_constant(0.0), cell)
    return cells


def _emit_add_product_to_cell(builder: Any, cell: Any, a: Any, b: Any) -> None:
    builder.store(_emit_multiply_add(builder, a, b, builder.load(cell)), cell)


def _emit_add_vectors_to_totals(builder: Any, totals: list[Any], cells: list[Any]) -> None:
    for total, cell in zip(totals, cells, strict=True):
        builder.store(builder.fadd(builder.load(total), builder.load(cell), flags=_FLAGS), total)


@intrinsic
def gather_lanes(typingctx: Any, array: Any, offsets: Any, shift: Any) -> Any:
    """Gather ``array[offsets[lane] + shift]`` for 16 lanes; ``offsets`` is an int32 array of 16."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointers = _emit_lane_pointers(context, builder, sig, args)
        name = "llvm.masked.gather.v16f32.v16p0"
        kind = ir.FunctionType(VECTOR, [_POINTERS, ir.IntType(32), _MASK, VECTOR])
        function = cgutils.get_or_insert_function(builder.module, kind, name)
        all_lanes = ir.Constant(_MASK, [1] * LANES)
        align = ir.Constant(ir.IntType(32), 4)
        return builder.call(function, [pointers, align, all_lanes, ir.Constant(VECTOR, ir.Undefined)])

    return float32x16(array, offsets, types.intp), codegen


def _emit_lane_pointers(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    base = emit_array_pointer(context, builder, sig, args, 0, args[2])
    at = emit_array_pointer(context, builder, sig, args, 1, create_index_constant(0))
    return builder.gep(emit_splat(builder, base), [emit_unaligned_load(builder, at, kind=INTEGERS)], source_etype=FLOAT)


def _emit_switch_by_even_width(builder: Any, count: Any, emit_case: Callable[[int], None]) -> None:
    """Branch to the code for the smallest of WIDTHS that is at least ``count`` (1 ... MOST)."""
    half = builder.lshr(builder.add(count, create_index_constant(1)), create_index_constant(1))
    emit_switch(builder, half, [width // 2 for width in WIDTHS], lambda half: emit_case(2 * half))


@intrinsic
def write_tile_products(
    typingctx: Any, position_count: Any, tile: Any, tile_start: Any, planes: Any, plane_start: Any,
    plane_stride: Any, plane_count: Any, out: Any, out_start: Any,
) -> Any:  # fmt: skip
    """Set ``out[out_start + 16 q + lane]`` to the sum over channels c of the products of two features.

    They are ``tile[tile_start + 16 c + lane]`` and that of position q in the planes, for the positions (at most MOST)
    that follow element ``plane_start`` of the first plane; the planes are ``plane_stride`` elements apart. Reads and
    writes one position more where ``position_count`` is odd.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        a, b, c = (emit_array_pointer(context, builder, sig, args, which) for which in (1, 3, 7))

        def emit(width: int) -> None:
            cells = _emit_zeroed_cells(builder, width)
            with cgutils.for_range(builder, args[6]) as outer:
                operand = builder.gep(b, [builder.mul(outer.index, args[5])])
                left = builder.gep(a, [builder.mul(outer.index, create_index_constant(LANES * LANES))])
                unroll = 4 if width <= 6 else 2 if width <= 12 else 1  # longer loops only take longer to compile
                with cgutils.for_range(builder, create_index_constant(LANES // unroll)) as inner:
                    first = builder.mul(inner.index, create_index_constant(unroll))
                    for step in range(unroll):
                        channel = builder.add(first, create_index_constant(step))
                        pixels = emit_unaligned_load(builder, left, builder.mul(channel, create_index_constant(LANES)))
                        row = builder.gep(operand, [channel])
                        for position, cell in enumerate(cells):
                            value = builder.load(builder.gep(row, [create_index_constant(position * LANES)]))
                            _emit_add_product_to_cell(builder, cell, pixels, emit_splat(builder, value))
            for position, cell in enumerate(cells):
                emit_unaligned_store(builder, builder.load(cell), c, create_index_constant(position * LANES))

        _emit_switch_by_even_width(builder, args[0], emit)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, tile, i, planes, i, i, i, out, i), codegen


@intrinsic
def write_pixel_products(
    typingctx: Any, position_count: Any, pixel: Any, pixel_start: Any, planes: Any, plane_start: Any,
    plane_stride: Any, plane_count: Any, out: Any, out_start: Any,
) -> Any:  # fmt: skip
    """Set ``out[out_start + q]`` to the sum over c of ``pixel[pixel_start + c] * planes[position q, channel c]``."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        a, b, c = (emit_array_pointer(context, builder, sig, args, which) for which in (1, 3, 7))

        def emit(width: int) -> None:
            cells = _emit_zeroed_cells(builder, width)
            with cgutils.for_range(builder, args[6]) as loop:
                operand = builder.gep(b, [builder.mul(loop.index, args[5])])
                channels = emit_unaligned_load(builder, a, builder.mul(loop.index, create_index_constant(LANES)))
                for position, cell in enumerate(cells):
                    _emit_add_product_to_cell(
                        builder,
                        cell,
                        channels,
                        emit_unaligned_load(builder, operand, create_index_constant(position * LANES)),
                    )
            for position, cell in enumerate(cells):
                builder.store(
                    _emit_lane_sum(builder, builder.load(cell)), builder.gep(c, [create_index_constant(position)])
                )

        _emit_switch_by_even_width(builder, args[0], emit)
        return context.get_dummy_value()

    i = types.intp
    return types.void(i, pixel, i, planes, i, i, i, out, i), codegen


@intrinsic
def store_eight_lanes(typingctx: Any, array: Any, byte_offset: Any, values: Any, first: Any) -> Any:
    """Write ``values[first:first + 8]`` to ``array``, ``byte_offset`` bytes behind its begin."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        half = ir.VectorType(FLOAT, LANES // 2)
        start = builder.bitcast(emit_array_pointer(context, builder, sig, args, 0, create_index_constant(0)), _BYTES)
        emit_unaligned_store(
            builder,
            emit_unaligned_load(builder, emit_array_pointer(context, builder, sig, args, 2), kind=half),
            start,
            args[1],
        )
        return context.get_dummy_value()

    return types.void(array, types.intp, values, types.intp), codegen


@intrinsic
def scatter_lanes(typingctx: Any, array: Any, offsets: Any, shift: Any, value: Any) -> Any:
    """Set ``array[offsets[lane] + shift] = value[lane]`` for 16 lanes with distinct offsets."""

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointers = _emit_lane_pointers(context, builder, sig, args)
        kind = ir.FunctionType(ir.VoidType(), [VECTOR, _POINTERS, ir.IntType(32), _MASK])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.masked.scatter.v16f32.v16p0")
        all_lanes = ir.Constant(_MASK, [1] * LANES)
        builder.call(function, [args[3], pointers, ir.Constant(ir.IntType(32), 4), all_lanes])
        return context.get_dummy_value()

    return types.void(array, offsets, types.intp, float32x16), codegen


def _build_add_products_intrinsic(channel_count: int) -> Callable[..., None]:
    @intrinsic
    def add_products_over_positions(
        typingctx: Any, taps: Any, taps_start: Any, taps_pitch: Any, planes: Any, plane_start: Any,
        row_stride: Any, count: Any, rows: Any, out: Any, out_start: Any,
    ) -> Any:  # fmt: skip
        """Add products of 16 pixels with ``channel_count`` channels, summed over rows and positions.

        ``out[out_start + 16 c + lane]`` += the sum over r < rows, q < count of ``taps[taps_start + r taps_pitch + 16 q
        + lane] * planes[position q, channel c]``, for channels from element ``plane_start + r row_stride`` of a plane.
        Every row is summed separately, then the rows.
        """

        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            a, b, c = (emit_array_pointer(context, builder, sig, args, which) for which in (0, 3, 8))
            totals = _emit_zeroed_cells(builder, channel_count)
            with cgutils.for_range(builder, args[7]) as outer:
                left = builder.gep(a, [builder.mul(outer.index, args[2])])
                right = builder.gep(b, [builder.mul(outer.index, args[5])])
                cells = _emit_zeroed_cells(builder, channel_count)
                with cgutils.for_range(builder, args[6]) as inner:
                    offset = builder.mul(inner.index, create_index_constant(LANES))
                    pixels = emit_unaligned_load(builder, left, offset)
                    row = builder.gep(right, [offset])
                    for channel, cell in enumerate(cells):
                        value = builder.load(builder.gep(row, [create_index_constant(channel)]))
                        _emit_add_product_to_cell(builder, cell, pixels, emit_splat(builder, value))
                _emit_add_vectors_to_totals(builder, totals, cells)
            for channel, cell in enumerate(totals):
                at = create_index_constant(channel * LANES)
                emit_unaligned_store(
                    builder, builder.fadd(emit_unaligned_load(builder, c, at), builder.load(cell), flags=_FLAGS), c, at
                )
            return context.get_dummy_value()

        i = types.intp
        return types.void(taps, i, i, planes, i, i, i, i, out, i), codegen

    return add_products_over_positions  # type: ignore[no-any-return]


@intrinsic
def add_products_over_lanes(
    typingctx: Any, taps: Any, taps_start: Any, block: Any, block_start: Any, count: Any, out: Any, out_start: Any
) -> Any:
    """Add products, summed over lanes, to ``out[out_start + 16 q + c]`` for q < count and every channel c.

    They are ``taps[taps_start + 16 q + lane] * block[block_start + 16 lane + c]``.
    """

    def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        a, b, c = (emit_array_pointer(context, builder, sig, args, which) for which in (0, 2, 5))
        pixels = [emit_unaligned_load(builder, b, create_index_constant(lane * LANES)) for lane in range(LANES)]
        with cgutils.for_range(builder, args[4]) as loop:
            offset = builder.mul(loop.index, create_index_constant(LANES))
            row = builder.gep(a, [offset])
            sums = [emit_unaligned_load(builder, c, offset), create_vector_constant(0.0)]
            for lane, channels in enumerate(pixels):
                value = emit_splat(builder, builder.load(builder.gep(row, [create_index_constant(lane)])))
                sums[lane % 2] = _emit_multiply_add(builder, value, channels, sums[lane % 2])
            emit_unaligned_store(builder, builder.fadd(*sums, flags=_FLAGS), c, offset)
        return context.get_dummy_value()

    i = types.intp
    return types.void(taps, i, block, i, i, out, i), codegen


# How many channels one ADD_PRODUCTS_OVER_POSITIONS takes; divides 16.
STEP = 16 if WIDE else 4

ADD_PRODUCTS_OVER_POSITIONS = _build_add_products_intrinsic(STEP)
