// Median filter of both components of the flow after a warp. Built behind halves.cuh, values.cuh (Value: type of the
// level) and medians.cuh.

struct MedianParams {
    const Value *flow, *origin;  // first planes of the level's item 0; float16 levels have an origin
    float *target;            // [B, 2, height, target_pitch]
    float *const *target_at;  // null, or where the target's address lies
    i64 plane, item;          // elements of the level from one plane, one item to the next
    i64 target_plane;         // floats from one plane to the next
    int *flags;               // null, or where bit 2 is set for NaN or infinity
    int height, width, pitch, target_pitch;
    int tiles_y, tiles_x;
};

// Return the flow at one pixel and, for even addresses, at two.
static __device__ __forceinline__ float flow_at(const Value *flow, const Value *origin, i64 at) {
#if IN
    return from_f16(origin[at]) + from_f16(flow[at]);
#else
    return flow[at];
#endif
}
static __device__ __forceinline__ float2 flows_at(const Value *flow, const Value *origin, i64 at) {
#if IN
    const u32 a = *(const u32 *)(origin + at), b = *(const u32 *)(flow + at);
    return {from_f16((u16)a) + from_f16((u16)b), from_f16((u16)(a >> 16)) + from_f16((u16)(b >> 16))};
#else
    return *(const float2 *)(flow + at);
#endif
}

// Filter the 2×2 pixels of plane `number` from (x0, y0) on. REACH: half the window's side.
template <int REACH> static __device__ __forceinline__ void filter_pixels(const MedianParams &p, int x0, int y0, i64 number) {
    constexpr int SIDE = 2 * REACH + 2;
    const i64 begin = (number >> 1) * p.item + (number & 1) * p.plane;
    float v[SIDE][SIDE], out[2][2];
    load_windows(
        v, x0, y0, p.width, p.height, [&](int x, int y) { return flows_at(p.flow, p.origin, begin + (i64)y * p.pitch + x); },
        [&](int x, int y) { return flow_at(p.flow, p.origin, begin + (i64)y * p.pitch + x); });
    medians(v, out);
    float *to = (p.target_at ? *p.target_at : p.target) + number * p.target_plane + (i64)y0 * p.target_pitch + x0;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 2; i++, to += p.target_pitch) {
        if (y0 + i >= p.height) break;
        finite = finite && fabsf(out[i][0]) < __int_as_float(0x7f800000);
        if (x0 + 1 == p.width) {
            *to = out[i][0];
            continue;
        }
        finite = finite && fabsf(out[i][1]) < __int_as_float(0x7f800000);
        if ((unsigned long long)to & 7) to[0] = out[i][0], to[1] = out[i][1];
        else *(float2 *)to = {out[i][0], out[i][1]};
    }
    if (p.flags && !finite) atomicOr(p.flags, 4);
}

// A block filters 64×8 pixels of a plane.
template <int REACH> static __device__ __forceinline__ void filter(const MedianParams &p) {
    u32 block = blockIdx.x;
    const int x0 = (block % p.tiles_x * 32 + threadIdx.x % 32) * 2;
    block /= p.tiles_x;
    const int y0 = (block % p.tiles_y * 4 + threadIdx.x / 32) * 2;
    if (x0 < p.width && y0 < p.height) filter_pixels<REACH>(p, x0, y0, block / p.tiles_y);
}

extern "C" __global__ void __launch_bounds__(128) median5(const __grid_constant__ MedianParams p) { filter<2>(p); }
extern "C" __global__ void __launch_bounds__(128) median3(const __grid_constant__ MedianParams p) { filter<1>(p); }
extern "C" __global__ void __launch_bounds__(128) median0(const __grid_constant__ MedianParams p) { filter<0>(p); }
