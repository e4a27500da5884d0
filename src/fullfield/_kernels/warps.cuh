// The least and the largest of the integers of a whole warp. No system headers (NVRTC).

template <class T> static __device__ __forceinline__ T warp_min(T x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_min_sync(0xffffffffu, x);
#else
#pragma unroll
    for (int by = 16; by; by /= 2) x = min(x, __shfl_xor_sync(0xffffffffu, x, by));
    return x;
#endif
}
template <class T> static __device__ __forceinline__ T warp_max(T x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(0xffffffffu, x);
#else
#pragma unroll
    for (int by = 16; by; by /= 2) x = max(x, __shfl_xor_sync(0xffffffffu, x, by));
    return x;
#endif
}
