// Asynchronous copies from global to shared memory; before sm_80 a thread waits for each. Built behind halves.cuh.

static __device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// Copy 4, 8 or 16 bytes; write zeros and read nothing if not `valid`.
template <int Bytes> static __device__ __forceinline__ void copy_async(u32 to, const void *from, bool valid) {
    static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "no such copy");
#if __CUDA_ARCH__ >= 800
    if (Bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
    else if (Bytes == 8)
        asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(valid ? 8 : 0) : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
#else
    if (Bytes == 16) {
        const uint4 v = valid ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
    } else if (Bytes == 8) {
        const uint2 v = valid ? *(const uint2 *)from : make_uint2(0, 0);
        asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(v.x), "r"(v.y) : "memory");
    } else {
        const u32 v = valid ? *(const u32 *)from : 0;
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(v) : "memory");
    }
#endif
}

// End a group of the thread's copies.
static __device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait for the thread's copies except those of its last Pending groups.
template <int Pending> static __device__ __forceinline__ void await_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#endif
}
static __device__ __forceinline__ void await_all_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}
