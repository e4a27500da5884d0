// Types, and conversions between float32 and 16-bit floats, which are held as integers.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define ALL 0xffffffffu  // lanes of a warp

// Set all elements of an array of any number of axes to zero.
static __device__ __forceinline__ void clear(float &x) { x = 0.f; }
template <class T, int N> static __device__ __forceinline__ void clear(T (&values)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) clear(values[i]);
}

static __device__ __forceinline__ u16 to_f16(float x) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
static __device__ __forceinline__ float from_f16(u16 h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
static __device__ __forceinline__ u16 to_bf16(float x) {
#if __CUDA_ARCH__ >= 800
    u16 h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
#else
    const u32 bits = __float_as_uint(x);
    return (u16)((bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#endif
}
static __device__ __forceinline__ float from_bf16(u16 h) { return __uint_as_float((u32)h << 16); }

// Read one value of a frame. kind: 0 float32, 1 float16, 2 bfloat16, 3 uint8.
static __device__ __forceinline__ float frame_value(const void *data, i64 at, int kind) {
    if (kind == 0) return ((const float *)data)[at];
    if (kind == 1) return from_f16(((const u16 *)data)[at]);
    if (kind == 2) return from_bf16(((const u16 *)data)[at]);
    return (float)((const u8 *)data)[at];
}

static __device__ __forceinline__ float root(float x) {
    float r;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
static __device__ __forceinline__ float reciprocal_root(float x) {
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// Pack two numbers into a word, the first in its low half.
static __device__ __forceinline__ u32 pair_f16(float low, float high) {
#if __CUDA_ARCH__ >= 800
    u32 word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    return to_f16(low) | (u32)to_f16(high) << 16;
#endif
}
static __device__ __forceinline__ u32 pair_bf16(float low, float high) {
#if __CUDA_ARCH__ >= 800
    u32 word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    return to_bf16(low) | (u32)to_bf16(high) << 16;
#endif
}
