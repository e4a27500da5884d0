# ruff: noqa: ARG001 - numba prescribes the signatures
# mypy: disallow-untyped-decorators=False
"""The inner product of both CPU kernels, as numba intrinsics whose accumulators stay in vector registers."""

from __future__ import annotations

from typing import Any

from numba.core import cgutils, types
from numba.extending import intrinsic

from fullfield._kernels.numba_cache import cpu_has_feature
from fullfield._kernels.simd import (
    LANES,
    VECTOR,
    create_index_constant,
    emit_array_pointer,
    emit_splat,
    emit_switch,
    emit_unaligned_load,
    emit_unaligned_store,
)

_FLAGS = ("contract", "nsz")

# With AVX-512, 24 of its 32 registers hold accumulators; elsewhere 16 lanes are two registers of 16.
WIDE = cpu_has_feature("avx512f")
PANEL = 2 if WIDE else 1  # vectors of 16 output channels worked on together
MOST = 12 if WIDE else 6  # rows worked on together
SQUARE = 8 if WIDE else 4  # divides 16


def _build_accumulate_products_intrinsic(vectors: int, widths: tuple[int, ...]) -> Any:
    @intrinsic
    def accumulate(
        typingctx: Any, n: Any, depth: Any, a: Any, ai: Any, row: Any, step: Any,
        b: Any, bi: Any, offsets: Any, out: Any, oi: Any, places: Any, p: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            left, right, target = (emit_array_pointer(context, builder, sig, args, which) for which in (2, 6, 9))
            steps, rows = (
                emit_array_pointer(context, builder, sig, args, 8, create_index_constant(0)),
                emit_array_pointer(context, builder, sig, args, 11),
            )
            row_step, depth_step = args[4], args[5]

            def emit(width: int) -> None:
                cells, homes = [], []
                for r in range(width):
                    home = builder.gep(target, [builder.load(builder.gep(rows, [create_index_constant(r)]))])
                    for v in range(vectors):
                        homes.append(builder.gep(home, [create_index_constant(v * LANES)]))
                        cells.append(cgutils.alloca_once(builder, VECTOR))
                        builder.store(emit_unaligned_load(builder, homes[-1]), cells[-1])
                starts = [builder.gep(left, [builder.mul(row_step, create_index_constant(r))]) for r in range(width)]
                with cgutils.for_range(builder, args[1]) as loop:
                    operand = builder.gep(right, [builder.load(builder.gep(steps, [loop.index]))])
                    across = [
                        emit_unaligned_load(builder, builder.gep(operand, [create_index_constant(v * LANES)]))
                        for v in range(vectors)
                    ]
                    along = builder.mul(loop.index, depth_step)
                    for r in range(width):
                        value = emit_splat(builder, builder.load(builder.gep(starts[r], [along])))
                        for v in range(vectors):
                            cell = cells[r * vectors + v]
                            product = builder.fmul(value, across[v], flags=_FLAGS)
                            builder.store(builder.fadd(product, builder.load(cell), flags=_FLAGS), cell)
                for home, cell in zip(homes, cells, strict=True):
                    emit_unaligned_store(builder, builder.load(cell), home)

            emit_switch(builder, args[0], widths, emit)
            return context.get_dummy_value()

        i = types.intp
        return types.void(i, i, a, i, i, i, b, i, offsets, out, i, places, i), codegen

    return accumulate


# accumulate(n, depth, a, ai, row, step, b, bi, offsets, out, oi, places, p), for r < n and 16 or 16 * PANEL lanes:
#     out[oi + places[p + r] + lane] += sum over s < depth of a[ai + r * row + s * step] * b[bi + offsets[s] + lane]
# n is even and at most MOST, or SQUARE. offsets and places are int64 arrays.
WIDTHS = tuple(sorted({*range(2, MOST + 1, 2), SQUARE}))
accumulate_panel = _build_accumulate_products_intrinsic(PANEL, WIDTHS)
accumulate_single = _build_accumulate_products_intrinsic(1, WIDTHS)
