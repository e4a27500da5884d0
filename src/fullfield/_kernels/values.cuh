// Types that features are stored as (Value) and summed in (Sum). Built behind halves.cuh.
//
// Macro: IN, 0 float32, 1 float16, 2 bfloat16, 3 float64.

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
// Pack two 16-bit values into a word, the first in its low half.
static __device__ __forceinline__ u32 rounded_pair(float low, float high) {
    return IN == 2 ? pair_bf16(low, high) : pair_f16(low, high);
}
