// Operands and products of the tensor cores. Built behind halves.cuh.
//
// Macro: BF16, 1 for products of bfloat16, from sm_80 on; else of float16.

#if BF16 && __CUDA_ARCH__ < 800
#error "products of bfloat16 need sm_80"
#endif

// Pack two operands into a word, the first in its low half.
static __device__ __forceinline__ u32 pack_pair(float a, float b) {
#if BF16
    return pair_bf16(a, b);
#else
    return pair_f16(a, b);
#endif
}

static __device__ __forceinline__ void mma_16816(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
#if BF16
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
#endif
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#else
    const u32 a[2][2] = {{a0, a1}, {a2, a3}}, b[2] = {b0, b1};
#pragma unroll
    for (int i = 0; i < 2; i++)
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[i][0]), "r"(a[i][1]), "r"(b[i]));
#endif
}

// Load four 8x8 matrices from shared memory, transposed; each lane gives the address of a row.
static __device__ __forceinline__ void matrices_transposed(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
