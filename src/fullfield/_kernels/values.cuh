// What features are stored as, and what they are summed in. No system headers (NVRTC). Built behind halves.cuh.
//
// Macro set by the launcher:
//   IN   0 float32, 1 float16, 2 bfloat16, 3 float64

#if IN == 3
typedef double Value, Sum;
#elif IN == 0
typedef float Value, Sum;
#else
typedef u16 Value;
typedef float Sum;
#endif

static __device__ __forceinline__ Sum widened(Value v) {
#if IN == 1
    return from_f16(v);
#elif IN == 2
    return from_bf16(v);
#else
    return v;
#endif
}
static __device__ __forceinline__ Value rounded(Sum x) {
#if IN == 1
    return to_f16(x);
#elif IN == 2
    return to_bf16(x);
#else
    return x;
#endif
}
