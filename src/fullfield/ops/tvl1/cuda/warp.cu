// Data term of every pixel, linearised at the flow. Built behind halves.cuh, values.cuh (Value: type of the level) and
// sampling.cuh.
//
// Macro: FLOOR, the squared gradient up to which a pixel has no data term.

struct WarpParams {
    const float *first, *second;  // [B, height, image_pitch]
    const float *from;            // [B, 2, height, image_pitch] flow
    Value *flow, *data, *origin;  // first planes of the level's item 0
    i64 image_plane;              // floats from one plane to the next
    i64 plane, item;              // elements of the level from one plane, one item to the next
    float blend;
    int height, width, image_pitch, pitch, tiles;
};

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
#if IN
    // The origin is the flow rounded to half precision, and frames are sampled there; iterations start from the rest.
    const Value ou = rounded(u), ov = rounded(v);
    const float au = widened(ou), av = widened(ov);
    p.origin[at] = ou, p.origin[at + p.plane] = ov;
    p.flow[at] = rounded(u - au), p.flow[at + p.plane] = rounded(v - av);
#else
    const float au = u, av = v;
    p.flow[at] = u, p.flow[at + p.plane] = v;
#endif
    const i64 begin = item * p.image_plane;
    const Frames frames = {p.first + begin, p.second + begin, p.image_pitch, p.height, p.width, p.blend};
    Linear d = linearised(frames, x, y, au, av);
#if !IN
    d.residual -= d.gx * au + d.gy * av;
#endif
    if (!(d.gx * d.gx + d.gy * d.gy > FLOOR)) d = {0.f, 0.f, 0.f};
    p.data[at] = rounded(d.gx), p.data[at + p.plane] = rounded(d.gy), p.data[at + 2 * p.plane] = rounded(d.residual);
}
