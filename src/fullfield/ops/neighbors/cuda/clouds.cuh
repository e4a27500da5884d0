// Types, and the clouds that points belong to. No system headers (NVRTC).

typedef unsigned u32;
typedef unsigned long long u64;
typedef long long i64;

// The cloud of a point: the last that begins at or before it.
static __device__ __forceinline__ u32 cloud_of(const i64 *offsets, i64 batches, i64 point) {
    if (!offsets) return 0;
    i64 low = 0, high = batches;
    while (high - low > 1) {
        const i64 middle = (low + high) >> 1;
        if (offsets[middle] <= point) low = middle;
        else high = middle;
    }
    return (u32)low;
}
