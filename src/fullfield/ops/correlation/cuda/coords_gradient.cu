// The gradient of the coordinates: a warp computes a pixel's products with its window and differentiates the blend. Built
// behind dots.cuh and sample.cuh. GRAD: element type of the incoming gradient.

typedef Element<GRAD>::type grad_t;

struct CoordsParams {
    Params p;
    const grad_t *grad;
    i64 grad_b, grad_c, grad_y, grad_x;
    float *grad_coords;             // [B, 2, H, W], every element is written
};

#define DOTS ((KP * KP + 15) / 16 * 16)

extern "C" __global__ void __launch_bounds__(256) coords_gradient(const __grid_constant__ CoordsParams q) {
    extern __shared__ __align__(16) float raw[];
    const Params &p = q.p;
    int warp = threadIdx.x >> 5, lane = lane_id();
    u32 columns = (p.width + 7) / 8, line = blockIdx.x / columns;
    int x = (blockIdx.x - line * columns) * 8 + warp, y = line % p.height, batch = line / p.height;
    if (x >= p.width) return;
    u32 *own = (u32 *)(raw + warp * (ROWLEN / 2 + DOTS));
    float *dots = (float *)own + ROWLEN / 2;
    const float *at = p.coords + batch * p.coord_b + y * p.coord_y + x * p.coord_x;
    float px = at[0], py = at[p.coord_c];
    gather_pixel(own, p, batch, y, x);
    __syncwarp();
    float sum_x = 0.f, sum_y = 0.f;
#pragma unroll 1
    for (int level = 0; level < p.levels; level++) {
        int h = p.level_h[level], w = p.level_w[level], ix, iy;
        float fx, fy;
        if (!window(px, py, level, h, w, ix, iy, fx, fy)) continue;
        const u16 *f2 = p.f2 + p.level_offset[level] + (i64)batch * h * w * ROWLEN;
        window_products(dots, own, f2, h, w, ix, iy);
        const grad_t *grad = q.grad + batch * q.grad_b + (i64)level * (KW * KW) * q.grad_c + y * q.grad_y + x * q.grad_x;
        float gx = 0.f, gy = 0.f;
#pragma unroll 1
        for (int o = lane; o < KW * KW; o += 32) {
            const float *v = dots + o % KW * KP + o / KW;
            float g = Element<GRAD>::unpack(grad[o * q.grad_c]);
            gx += g * ((1.f - fy) * (v[1] - v[0]) + fy * (v[KP + 1] - v[KP]));
            gy += g * ((1.f - fx) * (v[KP] - v[0]) + fx * (v[KP + 1] - v[1]));
        }
        float share = __uint_as_float((u32)(127 - level) << 23);
        sum_x += share * gx;
        sum_y += share * gy;
        __syncwarp();
    }
    sum_over_warp(sum_x, sum_y);
    if (lane == 0) {
        i64 plane = (i64)p.height * p.width;
        float *to = q.grad_coords + 2 * batch * plane + (i64)y * p.width + x;
        to[0] = sum_x * *p.scale;
        to[plane] = sum_y * *p.scale;
    }
}
