// 16-byte accesses shared by the kernels. Built behind halves.cuh and values.cuh (Value: type of activations).
//
// Activations are [B, H, W, C], C a multiple of VEC; "ld" is the distance of two pixels in elements, larger than C for
// a slice of channels. Statistics, biases and coordinates are float32.

#if IN == 0
#define VEC 4
#else
#define VEC 8
#endif

[[maybe_unused]] static __device__ __forceinline__ void split(u32 word, float &low, float &high) {
    low = widened((Value)word), high = widened((Value)(word >> 16));
}

// Load 16 bytes of neighbouring channels.
[[maybe_unused]] static __device__ __forceinline__ void load(const Value *from, float (&v)[VEC]) {
    const uint4 q = *(const uint4 *)from;
#if IN == 0
    v[0] = __uint_as_float(q.x), v[1] = __uint_as_float(q.y), v[2] = __uint_as_float(q.z), v[3] = __uint_as_float(q.w);
#else
    split(q.x, v[0], v[1]), split(q.y, v[2], v[3]), split(q.z, v[4], v[5]), split(q.w, v[6], v[7]);
#endif
}

[[maybe_unused]] static __device__ __forceinline__ void store(Value *to, const float (&v)[VEC]) {
#if IN == 0
    *(float4 *)to = make_float4(v[0], v[1], v[2], v[3]);
#else
    *(uint4 *)to = make_uint4(rounded_pair(v[0], v[1]), rounded_pair(v[2], v[3]), rounded_pair(v[4], v[5]), rounded_pair(v[6], v[7]));
#endif
}

[[maybe_unused]] static __device__ __forceinline__ void load_floats(const float *from, float (&v)[VEC]) {
#pragma unroll
    for (int i = 0; i < VEC; i += 4) {
        const float4 q = __ldg((const float4 *)(from + i));
        v[i] = q.x, v[i + 1] = q.y, v[i + 2] = q.z, v[i + 3] = q.w;
    }
}

