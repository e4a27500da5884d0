// The mixture loss of a convex up-sampled field and its gradients. No system headers (NVRTC). Built behind halves.cuh and
// values.cuh, whose Value is what the weights are stored as.
//
// A block is CELLS cells, a thread one of a cell's 64 fine pixels. Gradients of the field are summed in two steps in a
// fixed order: over the pixels of a cell here, over the cells that see a value in `gather`.

struct LossParams {
    const float *field;      // [B, 6, h, w]: flow in pixels, two logits, two logarithms of scales
    const Value *mask;       // [B, 576, h, w] by strides
    const float *truth;      // [B, 2, 8 h, 8 w]
    const u8 *counted;       // [B, 8 h, 8 w]
    Value *grad_mask;        // by the mask's strides
    float *partial;          // [B h w, 64]: gradients of the nine neighbours' six values
    float *grad_field;       // [B, 6, h, w]
    float *sums;             // [blocks, 2]: of the loss and of the end-point errors
    i64 mask_b, mask_c, mask_y, mask_x;
    int batch, height, width;
    float low, high;
};

constexpr int SIDE = 8, FINE = SIDE * SIDE, CELLS = 4, VALUES = 6, KEPT = 64;

static __device__ __forceinline__ float together(float x) {
#pragma unroll
    for (int step = 16; step; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

extern "C" __global__ void __launch_bounds__(256) loss(const __grid_constant__ LossParams p) {
    __shared__ float halves[2 * CELLS][KEPT];
    __shared__ float losses[2 * CELLS], errors[2 * CELLS];
    const int thread = threadIdx.x, sub = thread & (FINE - 1), lane = thread & 31;
    const i64 plane = (i64)p.height * p.width, cells = p.batch * plane;
    const i64 cell = (i64)blockIdx.x * CELLS + thread / FINE;
    const bool there = cell < cells;
    const int b = there ? (int)(cell / plane) : 0, at = there ? (int)(cell - b * plane) : 0;
    const int y = at / p.width, x = at - y * p.width;
    const i64 mask = b * p.mask_b + y * p.mask_y + x * p.mask_x + sub * p.mask_c;
    float w[9], v[KEPT];
    float most = -1e30f, sum = 0.f, surprise = 0.f, distance = 0.f;
#pragma unroll
    for (int i = 0; i < KEPT; ++i) v[i] = 0.f;
    if (there) {
#pragma unroll
        for (int k = 0; k < 9; ++k) {
            w[k] = widened(p.mask[mask + k * FINE * p.mask_c]);
            most = fmaxf(most, w[k]);
        }
#pragma unroll
        for (int k = 0; k < 9; ++k) {
            w[k] = __expf(w[k] - most);
            sum += w[k];
        }
        const float inverse = 1.f / sum;
        const float *field = p.field + b * VALUES * plane;
        float fine[VALUES], near[9][VALUES];
#pragma unroll
        for (int c = 0; c < VALUES; ++c) fine[c] = 0.f;
#pragma unroll
        for (int k = 0; k < 9; ++k) {
            w[k] *= inverse;
            const int ty = y + k / 3 - 1, tx = x + k % 3 - 1;
            const bool inside = ty >= 0 && ty < p.height && tx >= 0 && tx < p.width;
#pragma unroll
            for (int c = 0; c < VALUES; ++c) {
                near[k][c] = inside ? field[c * plane + (i64)ty * p.width + tx] : 0.f;
                fine[c] += w[k] * near[k][c];
            }
        }
        const i64 wide_row = (i64)SIDE * p.width;
        const i64 pixel = ((i64)y * SIDE + sub / SIDE) * wide_row + (i64)x * SIDE + sub % SIDE, pixels = plane * FINE;
        float g[VALUES];
#pragma unroll
        for (int c = 0; c < VALUES; ++c) g[c] = 0.f;
        if (p.counted[b * pixels + pixel]) {
            const float scale1 = fminf(fmaxf(fine[4], 0.f), p.high), scale2 = fminf(fmaxf(fine[5], p.low), 0.f);
            const float rate1 = __expf(-scale1), rate2 = __expf(-scale2);
            const float top = fmaxf(fine[2], fine[3]), apart = __expf(-fabsf(fine[2] - fine[3]));
            const float both = top + log1pf(apart);
            const float share1 = 1.f / (1.f + __expf(fine[3] - fine[2]));
            float of_scale1 = 0.f, of_scale2 = 0.f;
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const float away = fine[c] - p.truth[(2 * b + c) * pixels + pixel], error = fabsf(away);
                const float wide = fine[2] - scale1 - error * rate1, narrow = fine[3] - scale2 - error * rate2;
                const float larger = fmaxf(wide, narrow), difference = fabsf(wide - narrow);
                surprise += both - larger - log1pf(__expf(-difference)) + 0.69314718f;
                const float q1 = 1.f / (1.f + __expf(narrow - wide)), q2 = 1.f - q1;
                distance += error * error;
                const float slope = q1 * rate1 + q2 * rate2;
                g[c] = away > 0.f ? slope : away < 0.f ? -slope : 0.f;
                g[2] += share1 - q1;
                of_scale1 += q1 * (1.f - error * rate1);
                of_scale2 += q2 * (1.f - error * rate2);
            }
            distance = sqrtf(distance);
            g[3] = -g[2];
            g[4] = fine[4] >= 0.f && fine[4] <= p.high ? of_scale1 : 0.f;
            g[5] = fine[5] >= p.low && fine[5] <= 0.f ? of_scale2 : 0.f;
        }
        float mean = 0.f, dot[9];
#pragma unroll
        for (int k = 0; k < 9; ++k) {
            dot[k] = 0.f;
#pragma unroll
            for (int c = 0; c < VALUES; ++c) {
                dot[k] += g[c] * near[k][c];
                v[k * VALUES + c] = w[k] * g[c];
            }
            mean += w[k] * dot[k];
        }
#pragma unroll
        for (int k = 0; k < 9; ++k) p.grad_mask[mask + k * FINE * p.mask_c] = rounded(w[k] * (dot[k] - mean));
    }
    sums_apart(v, lane);
    halves[thread / 32][2 * lane] = v[0];
    halves[thread / 32][2 * lane + 1] = v[1];
    surprise = together(surprise);
    distance = together(distance);
    if (lane == 0) losses[thread / 32] = surprise, errors[thread / 32] = distance;
    __syncthreads();
    if (there) p.partial[cell * KEPT + sub] = halves[2 * (thread / FINE)][sub] + halves[2 * (thread / FINE) + 1][sub];
    if (thread < 2) {
        float total = 0.f;
#pragma unroll
        for (int i = 0; i < 2 * CELLS; ++i) total += thread ? errors[i] : losses[i];
        p.sums[2 * blockIdx.x + thread] = total;
    }
}

extern "C" __global__ void __launch_bounds__(256) gather(const __grid_constant__ LossParams p) {
    const i64 plane = (i64)p.height * p.width, index = (i64)blockIdx.x * 256 + threadIdx.x;
    if (index >= p.batch * plane) return;
    const int b = (int)(index / plane), at = (int)(index - b * plane), y = at / p.width, x = at - y * p.width;
    float sum[VALUES];
#pragma unroll
    for (int c = 0; c < VALUES; ++c) sum[c] = 0.f;
#pragma unroll
    for (int k = 0; k < 9; ++k) {
        const int from_y = y - (k / 3 - 1), from_x = x - (k % 3 - 1);
        if (from_y < 0 || from_y >= p.height || from_x < 0 || from_x >= p.width) continue;
        const float *partial = p.partial + (b * plane + (i64)from_y * p.width + from_x) * KEPT + k * VALUES;
#pragma unroll
        for (int c = 0; c < VALUES; ++c) sum[c] += partial[c];
    }
#pragma unroll
    for (int c = 0; c < VALUES; ++c) p.grad_field[(b * VALUES + c) * plane + at] = sum[c];
}
