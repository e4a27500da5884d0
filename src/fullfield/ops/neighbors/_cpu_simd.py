# ruff: noqa: ARG001 - numba prescribes the signatures
# mypy: disallow-untyped-decorators=False
"""Numba intrinsic that packs the neighbours among sixteen candidates."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from fullfield._kernels.simd import (
    INDEX,
    INTEGERS,
    LANES,
    create_index_constant,
    emit_array_pointer,
    emit_splat,
    emit_unaligned_load,
    emit_unaligned_store,
    target_has_cpu_feature,
)


def build_store_within_intrinsic(uses_avx512: bool) -> Any:
    """Return the intrinsic; ``uses_avx512``: use AVX-512's instruction for this where numba's target has it."""

    @intrinsic
    def store_within(
        typingctx: Any, squares: Any, sn: Any, limit: Any, who: Any, wn: Any, results: Any, at: Any
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            distances, source, into = (emit_array_pointer(context, builder, sig, args, which) for which in (0, 3, 5))
            within = builder.fcmp_ordered("<=", emit_unaligned_load(builder, distances), emit_splat(builder, args[2]))
            if uses_avx512 and target_has_cpu_feature(context, "avx512f"):
                indices = emit_unaligned_load(builder, source, kind=INTEGERS)
                kind = ir.FunctionType(INTEGERS, [INTEGERS, INTEGERS, within.type])
                pack = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512.mask.compress.v16i32")
                emit_unaligned_store(builder, builder.call(pack, [indices, indices, within]), into)
                bits = builder.ctpop(builder.bitcast(within, ir.IntType(LANES)))
                return builder.add(args[6], builder.zext(bits, INDEX))
            count = create_index_constant(0)
            for lane in range(LANES):  # without a branch: the next one overwrites it
                builder.store(
                    builder.load(builder.gep(source, [create_index_constant(lane)])), builder.gep(into, [count])
                )
                hit = builder.extract_element(within, ir.Constant(ir.IntType(32), lane))
                count = builder.add(count, builder.zext(hit, INDEX))
            return builder.add(args[6], count)

        return types.intp(squares, types.intp, types.float32, who, types.intp, results, types.intp), codegen

    return store_within


# store_within(squares, sn, limit, who, wn, found, at) writes those of who[wn : wn + 16] to found[at] on whose
# squares[sn : sn + 16] are at most limit, and returns the end. It may overwrite found[at : at + 16].
store_within = build_store_within_intrinsic(True)
