// Triplets and operands of the point convolution's kernels. Built behind halves.cuh, values.cuh, products.cuh, copies.cuh
// and warps.cuh.
//
// Macros set by the launcher:
//   IN       features, weights and results: 0 float32, 1 float16, 2 bfloat16
//   BF16     1: products of bfloat16, else of float16
//   SPLIT    1: every operand is the sum of two float16 (22 bits), else 0
//   BESIDE   1: the cells of triplets stand beside the words
//
// Float32 values that become float16 are first scaled into its range by powers of two, one for the features and one for
// the other operand. The device chooses them from the largest magnitudes.

#define PARTS (1 + SPLIT)
#define SCALED (IN == 0 && !BF16)
#define NONE 0x7fffffff

struct Triplets {
    const i64 *rows;
    const u32 *entries;
    const u8 *beside;
    i64 count;                     // rows
    int bits, cells;
};

// Round eight values to operands. With SPLIT a second part, `step` vectors behind, holds the rounding errors of the first.
static __device__ __forceinline__ void to_operands(const float (&v)[8], uint4 *to, int step) {
    const uint4 h = make_uint4(pack_pair(v[0], v[1]), pack_pair(v[2], v[3]), pack_pair(v[4], v[5]), pack_pair(v[6], v[7]));
    *to = h;
#if SPLIT
    const auto rest = [](float a, float b, u32 high) { return pack_pair(a - from_f16((u16)high), b - from_f16((u16)(high >> 16))); };
    to[step] = make_uint4(rest(v[0], v[1], h.x), rest(v[2], v[3], h.y), rest(v[4], v[5], h.z), rest(v[6], v[7], h.w));
#endif
}

// Return the power of two that scales finite values up to the magnitude into float16's range, and its inverse.
static __device__ __forceinline__ float gain_of(const u32 *magnitude, float &inverse) {
#if SCALED
    int e = (int)(*magnitude >> 23) - 127;
    e = *magnitude == 0 ? 14 : e < -100 ? -100 : e;
    inverse = __uint_as_float((u32)(127 - 14 + e) << 23);
    return __uint_as_float((u32)(127 + 14 - e) << 23);
#else
    inverse = 1.f;
    return 1.f;
#endif
}

// A triplet as read from memory. It is unpacked as late as possible, so that nothing waits for the load early.
struct Word {
    u32 word;
#if BESIDE
    u32 cell;
#endif
    __device__ __forceinline__ void load(const Triplets &t, i64 at) {
        word = t.entries[at];
#if BESIDE
        cell = t.beside[at];
#endif
    }
    // Load the triplet if `wanted`; otherwise it is undefined.
    __device__ __forceinline__ void fetch(const Triplets &t, i64 at, bool wanted) {
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.global.nc.u32 %0, [%1];\n}" : "=r"(word) : "l"(t.entries + at), "r"((u32)wanted));
#if BESIDE
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p ld.global.nc.u8 %0, [%1];\n}" : "=r"(cell) : "l"(t.beside + at), "r"((u32)wanted));
#endif
    }
    __device__ __forceinline__ void choose(const Word &other, bool wanted) {
        word = wanted ? other.word : word;
#if BESIDE
        cell = wanted ? other.cell : cell;
#endif
    }
    __device__ __forceinline__ int index_of(const Triplets &t) const {
#if BESIDE
        return (int)(word & 0x7fffffff);
#else
        return (int)(word & ((1u << t.bits) - 1));
#endif
    }
    __device__ __forceinline__ int cell_of(const Triplets &t) const {
#if BESIDE
        return (int)(word >> 31 << 8 | cell);
#else
        return (int)(word >> t.bits);
#endif
    }
};
static __device__ __forceinline__ int cell_at(const Triplets &t, i64 at) {
    Word w;
    w.load(t, at);
    return w.cell_of(t);
}

// Return where a row's triplets of cells from `cell` on begin.
static __device__ __forceinline__ i64 end_below(const Triplets &t, i64 at, i64 end, int cell) {
    while (at < end) {
        i64 middle = (at + end) >> 1;
        if (cell_at(t, middle) < cell) at = middle + 1;
        else end = middle;
    }
    return at;
}

#if SCALED
struct MagnitudeParams {
    const u32 *values;
    u32 *magnitude;
    i64 count;
};

// Find the largest finite magnitude.
extern "C" __global__ void __launch_bounds__(256) magnitude(const __grid_constant__ MagnitudeParams p) {
    u32 most = 0;
    for (i64 at = (i64)blockIdx.x * 256 + threadIdx.x; at < p.count; at += (i64)gridDim.x * 256) {
        u32 v = p.values[at] & 0x7fffffff;
        if (v < 0x7f800000) most = max(most, v);
    }
    most = warp_max(most);
    if ((threadIdx.x & 31) == 0 && most) atomicMax(p.magnitude, most);
}
#endif
