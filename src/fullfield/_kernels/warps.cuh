// Minimum and maximum of integers over a whole warp, and sums over it.

template <class T> static __device__ __forceinline__ T warp_min(T x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(ALL, x);
#else
#pragma unroll
    for (int by = 16; by; by /= 2) x = min(x, __shfl_xor_sync(ALL, x, by));
    return x;
#endif
}
template <class T> static __device__ __forceinline__ T warp_max(T x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(ALL, x);
#else
#pragma unroll
    for (int by = 16; by; by /= 2) x = max(x, __shfl_xor_sync(ALL, x, by));
    return x;
#endif
}
// Replace every value by its sum over the warp.
template <class... T> static __device__ __forceinline__ void sum_over_warp(T &...x) {
#pragma unroll
    for (int by = 16; by; by /= 2) ((x += __shfl_xor_sync(ALL, x, by)), ...);
}

// One step of `sums_apart`, and those after it. COUNT and STEP are constants: with variables the values would lie in memory.
template <int COUNT, int STEP, int SIZE> static __device__ __forceinline__ void sums_apart_from(float (&v)[SIZE], int lane) {
    const bool upper = lane & STEP;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        const float gone = upper ? v[i] : v[i + COUNT], own = upper ? v[i + COUNT] : v[i];
        v[i] = own + __shfl_xor_sync(ALL, gone, STEP);
    }
    if constexpr (STEP > 1) sums_apart_from<COUNT / 2, STEP / 2>(v, lane);
}
// Sum 32 PER values over the warp. Lane l ends with the sums from PER l on, in v[0] .. v[PER - 1]. In each step a lane
// keeps one half of its values and gives the other away.
template <int SIZE> static __device__ __forceinline__ void sums_apart(float (&v)[SIZE], int lane) {
    sums_apart_from<SIZE / 2, 16>(v, lane);
}
