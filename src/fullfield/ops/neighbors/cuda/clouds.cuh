// The clouds that points belong to, and queries. Built behind halves.cuh.

// Return the cloud of a point: the last that begins at or before it.
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

static __device__ __forceinline__ u64 mixed(u64 x) {
    x *= 0x9e3779b97f4a7c15ull;
    return x ^ (x >> 32);
}

static __device__ __forceinline__ float square(float x, float y, float z) {
    return __fadd_rn(__fadd_rn(__fmul_rn(x, x), __fmul_rn(y, y)), __fmul_rn(z, z));
}

struct Query {
    float x, y, z;
    i64 number, first, last;  // its own number, the points of its cloud
    u32 cloud;
};

// Return query `step`; if the queries are the points, they have the order of the sorted points.
template <class Params> static __device__ __forceinline__ Query query_at(const Params &p, i64 step) {
    Query q;
    if (p.own) {
        const float4 at = p.sorted[step];
        q.x = at.x, q.y = at.y, q.z = at.z, q.number = (u32)__float_as_int(at.w);
    } else {
        const float *at = p.queries + 3 * step;
        q.x = at[0], q.y = at[1], q.z = at[2], q.number = step;
    }
    q.cloud = cloud_of(p.query_offsets, p.batches, q.number);
    q.first = p.offsets ? p.offsets[q.cloud] : 0;
    q.last = p.offsets ? p.offsets[q.cloud + 1] : p.count;
    return q;
}
