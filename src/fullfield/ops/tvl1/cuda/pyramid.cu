// Conversion of frames to grey, and separable resampling between the levels of a pyramid. Built behind halves.cuh.

// ---- frames of any layout to grey planes of 0 ... 255

struct GreyParams {
    const void *frames[2];
    float *out[2];               // [B, height, pitch]
    i64 b[2], c[2], y[2], x[2];  // strides of the frames
    i64 item;                    // floats from one item's plane to the next
    int *flags;                  // null, or where bits 0 (frame 1) and 1 (frame 2) are set for values beyond the limit
    const void *flow;            // written to *flow_at: where later kernels put the flow
    const void **flow_at;        // or null
    float limit;
    int count, channels, kind;   // frames; 1 or 3; see frame_value; uint8 is 0 ... 255, other kinds 0 ... 1
    int height, width, pitch, tiles;
};

// A block: 256 pixels of a row. Grid: tiles · height · B · count.
extern "C" __global__ void __launch_bounds__(256) grey(const __grid_constant__ GreyParams p) {
    if (p.flow_at && blockIdx.x == 0 && threadIdx.x == 0) *p.flow_at = p.flow;
    u32 block = blockIdx.x;
    const int x = block % p.tiles * 256 + threadIdx.x;
    block /= p.tiles;
    const int y = block % p.height;
    block /= p.height;
    const int f = block % p.count;
    const i64 item = block / p.count;
    if (x >= p.width) return;
    const i64 at = item * p.b[f] + y * p.y[f] + x * p.x[f];
    const float scale = p.kind == 3 ? 1.f : 255.f;
    float v = frame_value(p.frames[f], at, p.kind);
    bool good = fabsf(v) <= p.limit;
    if (p.channels == 1) {
        v *= scale;
    } else {
        const float g = frame_value(p.frames[f], at + p.c[f], p.kind), b = frame_value(p.frames[f], at + 2 * p.c[f], p.kind);
        good = good && fabsf(g) <= p.limit && fabsf(b) <= p.limit;
        v = v * (scale * 0.299f) + g * (scale * 0.587f) + b * (scale * 0.114f);
    }
    if (p.flags && !good) atomicOr(p.flags, 1 << f);
    p.out[f][item * p.item + (i64)y * p.pitch + x] = v;
}

// ---- resampling by tables

struct ResampleParams {
    const float *source;
    const float *const *source_at;     // null, or where the source's address lies
    float *target;
    const int *first_y, *first_x;      // [out]: the input of the first weight, may lie outside
    const float *weight_y, *weight_x;  // [out, taps]
    i64 source_plane, source_item;     // elements from one plane, one item to the next
    i64 target_plane, target_item;
    float scale[2];                    // factors of even and odd planes
    int planes;                        // number of planes of an item
    int taps_y, taps_x;
    int source_height, source_width, source_pitch;
    int height, width, pitch;
    int rows, columns, span;           // size of a block's tile; the most inputs that a row of it needs
    int tiles_y, tiles_x;
};

// Resample vertically into shared memory [rows, span], then horizontally. A block: rows × columns of one plane.
extern "C" __global__ void __launch_bounds__(256) resample(const __grid_constant__ ResampleParams p) {
    extern __shared__ float line[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    u32 block = blockIdx.x;
    const int x0 = block % p.tiles_x * p.columns;
    block /= p.tiles_x;
    const int y0 = block % p.tiles_y * p.rows;
    block /= p.tiles_y;
    const int component = block % p.planes;
    const i64 item = block / p.planes;
    const i64 begin = item * p.source_item + component * p.source_plane;
    const float *source = p.source_at ? *p.source_at : p.source;
    const int rows = min(p.rows, p.height - y0), columns = min(p.columns, p.width - x0);
    const int left = p.first_x[x0], span = p.first_x[x0 + columns - 1] + p.taps_x - left;
    for (int r = warp; r < rows; r += 8) {
        const int top = p.first_y[y0 + r];
        const float *w = p.weight_y + (i64)(y0 + r) * p.taps_y;
        for (int c = lane; c < span; c += 32) {
            const int x = min(max(left + c, 0), p.source_width - 1);
            float sum = 0.f;
#pragma unroll 8
            for (int t = 0; t < p.taps_y; t++) {
                const int y = min(max(top + t, 0), p.source_height - 1);
                sum += w[t] * source[begin + (i64)y * p.source_pitch + x];
            }
            line[r * p.span + c] = sum;
        }
    }
    __syncthreads();
    const float scale = p.scale[component & 1];
    const i64 to = item * p.target_item + component * p.target_plane;
    const bool together = p.taps_x > 32;  // the lanes of a warp compute one pixel, or one pixel each
    for (int r = warp; r < rows; r += 8)
        for (int c = together ? 0 : lane; c < columns; c += together ? 1 : 32) {
            const int x = x0 + c, y = y0 + r;
            const float *w = p.weight_x + (i64)x * p.taps_x, *from = line + r * p.span + p.first_x[x] - left;
            float sum = 0.f;
            for (int t = together ? lane : 0; t < p.taps_x; t += together ? 32 : 1) sum += w[t] * from[t];
            if (together) {
#pragma unroll
                for (int mask = 16; mask; mask >>= 1) sum += __shfl_xor_sync(ALL, sum, mask);
                if (lane) continue;
            }
            p.target[to + (i64)y * p.pitch + x] = sum * scale;
        }
}
