// What the kernels of the point convolution share. No system headers (NVRTC). Built behind
// halves.cuh, values.cuh, products.cuh, copies.cuh and warps.cuh.
//
// Macros set by the launcher:
//   IN       features, weights and results: 0 float32, 1 float16, 2 bfloat16
//   BF16     1: products of bfloat16, else of float16
//   SPLIT    1: every operand is the sum of two float16 (22 bits), else 0
//   BESIDE   1: the cells of triplets stand beside the words
//
// Float32 values that become float16 are first brought into its range by powers of two, one for the features and one for
// the other operand, chosen on the device from the largest magnitudes.

#define PARTS (1 + SPLIT)
#define SCALED (IN == 0 && !BF16)
#define NONE 0x7fffffff
#define ALL 0xffffffffu

struct Triplets {
    const i64 *rows;
    const u32 *entries;
    const u8 *beside;
    i64 count;                     // rows
    int bits, cells;
};

// What rounding to operands left over.
static __device__ __forceinline__ u32 rest(float a, float b, u32 high) {
    return pack_pair(a - from_f16((u16)high), b - from_f16((u16)(high >> 16)));
}

// The power of two that brings finite values up to the magnitude into the range of float16, and its inverse.
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

// A triplet as it comes from memory. It is taken apart as late as possible: nobody shall wait for the load.
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
    // Where it is wanted; else nobody knows.
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

// Of the first triplets of a row those of cells below `cell`.
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

// The largest finite magnitude.
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
