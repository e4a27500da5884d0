// The mixture loss of a convex up-sampled field and its gradients. Built behind convex_cells.cuh with 6 CHANNELS.

struct LossParams {
    const float *field;      // [B, 6, h, w]: flow in pixels, two logits, two logarithms of scales
    const Value *mask;       // [B, 576, h, w] by strides
    const float *truth;      // [B, 2, 8 h, 8 w]
    const u8 *counted;       // [B, 8 h, 8 w]
    Value *grad_mask;        // by the mask's strides
    float *partial;          // [B h w, KEPT]: gradients of the nine neighbours' six values
    float *grad_field;       // [B, 6, h, w]
    float *sums;             // [blocks, 2]: of the loss and of the end-point errors
    i64 mask_b, mask_c, mask_y, mask_x;
    int batch, height, width;
    float low, high;
};

extern "C" __global__ void __launch_bounds__(256) loss(const __grid_constant__ LossParams p) {
    __shared__ float halves[2 * CELLS][KEPT], losses[2 * CELLS], errors[2 * CELLS];
    __shared__ float neighbors[CELLS][9 * CHANNELS];  // of each cell: they are the same for all of its fine pixels
    const int thread = threadIdx.x;
    const Fine fine(p);
    load_neighbors(p, neighbors);
    __syncthreads();
    const float *near = neighbors[thread / FINE];
    float v[KEPT], surprise = 0.f, distance = 0.f;
    clear(v);
    if (fine.there) {
        const i64 pixels = (i64)p.height * p.width * FINE;
        float w[9], f[CHANNELS], g[CHANNELS];
        load_weights(p, fine, w);
        clear(f), clear(g);
#pragma unroll
        for (int k = 0; k < 9; ++k)
#pragma unroll
            for (int c = 0; c < CHANNELS; ++c) f[c] += w[k] * near[k * CHANNELS + c];
        if (p.counted[fine.b * pixels + fine.pixel]) {
            const float scale1 = fminf(fmaxf(f[4], 0.f), p.high), scale2 = fminf(fmaxf(f[5], p.low), 0.f);
            const float rate1 = __expf(-scale1), rate2 = __expf(-scale2);
            const float top = fmaxf(f[2], f[3]), apart = __expf(-fabsf(f[2] - f[3]));
            const float both = top + log1pf(apart);
            const float share1 = 1.f / (1.f + __expf(f[3] - f[2]));
            float of_scale1 = 0.f, of_scale2 = 0.f;
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                const float away = f[c] - p.truth[(2 * fine.b + c) * pixels + fine.pixel], error = fabsf(away);
                const float wide = f[2] - scale1 - error * rate1, narrow = f[3] - scale2 - error * rate2;
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
            g[4] = f[4] >= 0.f && f[4] <= p.high ? of_scale1 : 0.f;
            g[5] = f[5] >= p.low && f[5] <= 0.f ? of_scale2 : 0.f;
        }
        spread(p, fine, w, [&](int k, int c) { return near[k * CHANNELS + c]; }, g, v);
    }
    sum_over_warp(surprise, distance);
    if (thread % 32 == 0) losses[thread / 32] = surprise, errors[thread / 32] = distance;
    keep_sums(p, fine, halves, v);
    if (thread < 2) {
        float total = 0.f;
#pragma unroll
        for (int i = 0; i < 2 * CELLS; ++i) total += thread ? errors[i] : losses[i];
        p.sums[2 * blockIdx.x + thread] = total;
    }
}

extern "C" __global__ void __launch_bounds__(256) gather(const __grid_constant__ LossParams p) { gather_field(p); }
