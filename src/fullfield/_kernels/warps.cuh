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

// Sum 32 PER values over the warp. Lane l ends with the sums from PER l on, in v[0] .. v[PER - 1]. In each step a lane
// keeps one half of its values and gives the other away.
template <int COUNT> static __device__ __forceinline__ void sums_apart(float (&v)[COUNT], int lane) {
#pragma unroll
    for (int step = 16, count = COUNT / 2; step; step >>= 1, count >>= 1) {
        const bool upper = lane & step;
#pragma unroll
        for (int i = 0; i < count; i++) {
            const float gone = upper ? v[i] : v[i + count], own = upper ? v[i + count] : v[i];
            v[i] = own + __shfl_xor_sync(ALL, gone, step);
        }
    }
}
