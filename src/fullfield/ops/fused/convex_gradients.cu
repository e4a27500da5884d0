// The gradients of convex.cu's blend for a factor of 8. No system headers (NVRTC). Built behind halves.cuh,
// warps.cuh and values.cuh, whose Value is the type of the weights.
//
// Macro: CHANNELS of the field, 1 to 7.
//
// A block is CELLS cells, a thread one of a cell's 64 fine pixels, whose weights are made again from the logits. Gradients
// of the field are summed in two steps in a fixed order: over the pixels of a cell here, over the cells that see a value
// in `convex_gather`.

struct ConvexGradientParams {
    const Value *mask;         // [B, 576, h, w] by strides
    const float *field;        // [B, CHANNELS, h, w]
    const float *grad;         // [B, CHANNELS, 8 h, 8 w]
    Value *grad_mask;          // by the mask's strides
    float *partial;            // [B h w, KEPT]: gradients of the nine neighbours' values
    float *grad_field;         // as field
    i64 mask_b, mask_c, mask_y, mask_x;
    int batch, height, width;
};

#define SIDE 8
#define FINE 64
#define CELLS 4
#define PER ((9 * CHANNELS + 31) / 32)  // sums that a lane ends with
#define KEPT (32 * PER)

extern "C" __global__ void __launch_bounds__(256) convex_gradients(const ConvexGradientParams p) {
    __shared__ float halves[2 * CELLS][KEPT];
    const int thread = threadIdx.x, sub = thread % FINE, lane = thread % 32;
    const i64 plane = (i64)p.height * p.width, cells = p.batch * plane;
    const i64 cell = (i64)blockIdx.x * CELLS + thread / FINE;
    const bool there = cell < cells;
    const int b = there ? (int)(cell / plane) : 0, at = there ? (int)(cell - b * plane) : 0;
    const int y = at / p.width, x = at - y * p.width;
    float v[KEPT];
    clear(v);
    if (there) {
        const i64 mask = b * p.mask_b + y * p.mask_y + x * p.mask_x + sub * p.mask_c;
        float w[9], dot[9], g[CHANNELS], most = -1e30f, sum = 0.f, mean = 0.f;
#pragma unroll
        for (int k = 0; k < 9; k++) {
            w[k] = widened(p.mask[mask + k * FINE * p.mask_c]);
            most = fmaxf(most, w[k]);
        }
#pragma unroll
        for (int k = 0; k < 9; k++) w[k] = __expf(w[k] - most), sum += w[k];
        const float inverse = 1.f / sum;
        const i64 pixel = ((i64)y * SIDE + sub / SIDE) * SIDE * p.width + (i64)x * SIDE + sub % SIDE;
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) g[c] = p.grad[(b * CHANNELS + c) * plane * FINE + pixel];
#pragma unroll
        for (int k = 0; k < 9; k++) {
            w[k] *= inverse;
            dot[k] = 0.f;
            const int ty = y + k / 3 - 1, tx = x + k % 3 - 1;
            const bool inside = ty >= 0 && ty < p.height && tx >= 0 && tx < p.width;
#pragma unroll
            for (int c = 0; c < CHANNELS; c++) {
                const float near = inside ? p.field[(b * CHANNELS + c) * plane + (i64)ty * p.width + tx] : 0.f;
                dot[k] += g[c] * near;
                v[k * CHANNELS + c] = w[k] * g[c];
            }
            mean += w[k] * dot[k];
        }
#pragma unroll
        for (int k = 0; k < 9; k++) p.grad_mask[mask + k * FINE * p.mask_c] = rounded(w[k] * (dot[k] - mean));
    }
    sums_apart(v, lane);
#pragma unroll
    for (int i = 0; i < PER; i++) halves[thread / 32][PER * lane + i] = v[i];
    __syncthreads();
    if (there && sub < KEPT) p.partial[cell * KEPT + sub] = halves[2 * (thread / FINE)][sub] + halves[2 * (thread / FINE) + 1][sub];
}

extern "C" __global__ void __launch_bounds__(256) convex_gather(const ConvexGradientParams p) {
    const i64 plane = (i64)p.height * p.width, index = (i64)blockIdx.x * 256 + threadIdx.x;
    if (index >= p.batch * plane) return;
    const int b = (int)(index / plane), at = (int)(index - b * plane), y = at / p.width, x = at - y * p.width;
    float sum[CHANNELS];
    clear(sum);
#pragma unroll
    for (int k = 0; k < 9; k++) {
        const int from_y = y - (k / 3 - 1), from_x = x - (k % 3 - 1);
        if (from_y < 0 || from_y >= p.height || from_x < 0 || from_x >= p.width) continue;
        const float *partial = p.partial + (b * plane + (i64)from_y * p.width + from_x) * KEPT + k * CHANNELS;
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) sum[c] += partial[c];
    }
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) p.grad_field[(b * CHANNELS + c) * plane + at] = sum[c];
}
