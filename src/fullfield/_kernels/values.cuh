// What features are stored as. No system headers (NVRTC). Built behind halves.cuh.
//
// Macro set by the launcher:
//   IN   0 float32, 1 float16, 2 bfloat16

#if IN == 0
typedef float Value;
#else
typedef u16 Value;
#endif

static __device__ __forceinline__ float widened(Value v) {
#if IN == 0
    return v;
#elif IN == 1
    return from_f16(v);
#else
    return from_bf16(v);
#endif
}
static __device__ __forceinline__ Value rounded(float x) {
#if IN == 0
    return x;
#elif IN == 1
    return to_f16(x);
#else
    return to_bf16(x);
#endif
}
