# ruff: noqa: ARG001 - numba prescribes the signatures
# mypy: disallow-untyped-decorators=False
"""The inner product of both CPU kernels, as numba intrinsics whose accumulators stay in vector registers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from fullfield._kernels import processor
from fullfield._kernels.simd import LANES

_FLOAT = ir.FloatType()
_INDEX = ir.IntType(64)
_VECTOR = ir.VectorType(_FLOAT, LANES)
_FLAGS = ("contract", "nsz")

# With AVX-512, 24 of its 32 registers hold accumulators; elsewhere 16 lanes are two registers of 16.
WIDE = processor.has("avx512f")
PANEL = 2 if WIDE else 1  # vectors of 16 output channels worked on together
MOST = 12 if WIDE else 6  # rows worked on together
SQUARE = 8 if WIDE else 4  # divides 16


def _load(builder: Any, pointer: Any) -> Any:
    value = builder.load(builder.bitcast(pointer, ir.PointerType(_VECTOR)))
    value.align = 4
    return value


def _store(builder: Any, pointer: Any, value: Any) -> None:
    builder.store(value, builder.bitcast(pointer, ir.PointerType(_VECTOR))).align = 4


def _splat(builder: Any, scalar: Any) -> Any:
    undefined = ir.Constant(_VECTOR, ir.Undefined)
    first = builder.insert_element(undefined, scalar, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _int(value: int) -> ir.Constant:
    return ir.Constant(_INDEX, value)


def _accumulate(vectors: int, widths: tuple[int, ...]) -> Any:
    @intrinsic
    def accumulate(
        typingctx: Any, n: Any, depth: Any, a: Any, ai: Any, row: Any, step: Any,
        b: Any, bi: Any, offsets: Any, out: Any, oi: Any, places: Any, p: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            def data(which: int, index: Any) -> Any:
                return builder.gep(context.make_array(sig.args[which])(context, builder, args[which]).data, [index])

            left, right, target = data(2, args[3]), data(6, args[7]), data(9, args[10])
            steps, rows = data(8, _int(0)), data(11, args[12])
            row_step, depth_step = args[4], args[5]

            def emit(width: int) -> None:
                cells, homes = [], []
                for r in range(width):
                    home = builder.gep(target, [builder.load(builder.gep(rows, [_int(r)]))])
                    for v in range(vectors):
                        homes.append(builder.gep(home, [_int(v * LANES)]))
                        cells.append(cgutils.alloca_once(builder, _VECTOR))
                        builder.store(_load(builder, homes[-1]), cells[-1])
                starts = [builder.gep(left, [builder.mul(row_step, _int(r))]) for r in range(width)]
                with cgutils.for_range(builder, args[1]) as loop:
                    here = builder.gep(right, [builder.load(builder.gep(steps, [loop.index]))])
                    across = [_load(builder, builder.gep(here, [_int(v * LANES)])) for v in range(vectors)]
                    along = builder.mul(loop.index, depth_step)
                    for r in range(width):
                        value = _splat(builder, builder.load(builder.gep(starts[r], [along])))
                        for v in range(vectors):
                            cell = cells[r * vectors + v]
                            product = builder.fmul(value, across[v], flags=_FLAGS)
                            builder.store(builder.fadd(product, builder.load(cell), flags=_FLAGS), cell)
                for home, cell in zip(homes, cells, strict=True):
                    _store(builder, home, builder.load(cell))

            end = builder.append_basic_block("widths.end")
            switch = builder.switch(args[0], end)
            for width in widths:
                block = builder.append_basic_block(f"width{width}")
                switch.add_case(_int(width), block)
                builder.position_at_end(block)
                emit(width)
                builder.branch(end)
            builder.position_at_end(end)
            return context.get_dummy_value()

        i = types.intp
        return types.void(i, i, a, i, i, i, b, i, offsets, out, i, places, i), codegen

    return accumulate


# accumulate(n, depth, a, ai, row, step, b, bi, offsets, out, oi, places, p), for r < n and 16 or 16 * PANEL lanes:
#     out[oi + places[p + r] + lane] += sum over s < depth of a[ai + r * row + s * step] * b[bi + offsets[s] + lane]
# n is even and at most MOST, or SQUARE. offsets and places are int64 arrays.
WIDTHS = tuple(sorted({*range(2, MOST + 1, 2), SQUARE}))
accumulate_panel = _accumulate(PANEL, WIDTHS)
accumulate_single = _accumulate(1, WIDTHS)
