"""Source of Hopper's warp-group matrix products, which need inline assembly."""

from __future__ import annotations


def product_with_registers(columns: int, bf16: bool, descriptor: int) -> str:
    """Return ``wgmma_rs``: m64nNk16, A in registers; ``descriptor`` is the upper half of B's, in shared memory."""
    n = columns // 2
    kind = "bf16" if bf16 else "f16"
    d = ", ".join(f"%{i}" for i in range(n))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(n))
    return "\n".join(
        (
            "static __device__ __forceinline__ void",
            f"wgmma_rs(float (&d)[{n}], u32 a0, u32 a1, u32 a2, u32 a3, u32 b, int add) {{",
            r'    asm volatile("{\n.reg .pred p;\n.reg .b64 at;\n"',
            rf'        "setp.ne.b32 p, %{n + 5}, 0;\nmov.b64 at, {{%{n + 4}, {descriptor:#x}}};\n"',
            f'        "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} {{{d}}}, "',
            rf'        "{{%{n}, %{n + 1}, %{n + 2}, %{n + 3}}}, at, p, 1, 1, 0;\n}}"',
            f'        : {operands} : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b), "r"(add));',
            "}\n",
        )
    )
