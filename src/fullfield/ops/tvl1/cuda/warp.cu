// Every pixel's data term, linearised at the flow. Follows halves.cuh and sampling.cuh.
//
// Macros set by the launcher:
//   HALF    whether the level is float16
//   FLOOR   below this squared gradient a pixel says nothing about motion

#if HALF
typedef u16 T;
#else
typedef float T;
#endif

struct WarpParams {
    const float *first, *second;  // [B, height, image_pitch]
    const float *from;            // [B, 2, height, image_pitch] u0
    T *flow, *data, *origin;      // first planes of the level's item 0
    i64 image_plane;              // floats from one plane to the next
    i64 plane, item;              // elements of the level from one plane, one item to the next
    float blend;
    int height, width, image_pitch, pitch, tiles;
};

static __device__ __forceinline__ T narrow(float x) {
#if HALF
    return to_f16(x);
#else
    return x;
#endif
}

// A block: 32×8 pixels.
extern "C" __global__ void __launch_bounds__(256, 4) linearise(const __grid_constant__ WarpParams p) {
    u32 block = blockIdx.x;
    const int x = block % p.tiles * 32 + threadIdx.x % 32;
    block /= p.tiles;
    const u32 rows = (p.height + 7) / 8;
    const int y = block % rows * 8 + threadIdx.x / 32;
    const i64 item = block / rows;
    if (x >= p.width || y >= p.height) return;
    const i64 pixel = (i64)y * p.image_pitch + x, at = item * p.item + (i64)y * p.pitch + x;
    const float u = p.from[2 * item * p.image_plane + pixel], v = p.from[(2 * item + 1) * p.image_plane + pixel];
#if HALF
    // The origin is what half precision holds of the flow, and is sampled at; the rest is the flow to start from.
    const T ou = narrow(u), ov = narrow(v);
    const float au = from_f16(ou), av = from_f16(ov);
    p.origin[at] = ou, p.origin[at + p.plane] = ov;
    p.flow[at] = narrow(u - au), p.flow[at + p.plane] = narrow(v - av);
#else
    const float au = u, av = v;
    p.flow[at] = u, p.flow[at + p.plane] = v;
#endif
    const i64 begin = item * p.image_plane;
    const Frames frames = {p.first + begin, p.second + begin, p.image_pitch, p.height, p.width, p.blend};
    Linear d = linearised(frames, x, y, au, av);
#if !HALF
    d.residual -= d.gx * au + d.gy * av;
#endif
    if (!(d.gx * d.gx + d.gy * d.gy > FLOOR)) d = {0.f, 0.f, 0.f};
    p.data[at] = narrow(d.gx), p.data[at + p.plane] = narrow(d.gy), p.data[at + 2 * p.plane] = narrow(d.residual);
}
