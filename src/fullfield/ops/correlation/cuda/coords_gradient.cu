// The gradient of the coordinates: a warp per pixel takes the pixel's products with its window and differentiates the blend.
// After common and sample. GRAD: element type of the incoming gradient.

typedef Element<GRAD>::type grad_t;

struct CoordsParams {
    Params p;
    const grad_t *grad;
    i64 grad_b, grad_c, grad_y, grad_x;
    float *moved;                  // [B, 2, H, W], every element is written
};

#define DOTS ((KP * KP + 15) / 16 * 16)

extern "C" __global__ void __launch_bounds__(256) coords_gradient(const __grid_constant__ CoordsParams q) {
    extern __shared__ __align__(16) float raw[];
    const Params &p = q.p;
    int warp = threadIdx.x >> 5, lane = lane_id(), quad = lane & 3, r = lane >> 2;
    u32 columns = (p.width + 7) / 8, line = blockIdx.x / columns;
    int x = (blockIdx.x - line * columns) * 8 + warp, y = line % p.height, batch = line / p.height;
    if (x >= p.width) return;
    u32 *own = (u32 *)(raw + warp * (ROWLEN / 2 + DOTS));
    float *dots = (float *)own + ROWLEN / 2;
    const float *at = p.coords + batch * p.coord_b + y * p.coord_y + x * p.coord_x;
    float px = at[0], py = at[p.coord_c];
    int block = y / BLOCK_H, pixel = y % BLOCK_H * BLOCK_W + x % BLOCK_W;
    Item it = {batch, x / BLOCK_W, block / (4 * GROUPS), 0, 0, 0};
    const u32 *f1 = (const u32 *)(p.f1 + pixel_block(p, it, block % (4 * GROUPS))) + (pixel & 7) * 16 + (pixel >> 3);
    for (int c = lane; c < ROWLEN / 4; c += 32) {  // from the order of fragments to that of channels
        const u32 *from = f1 + (c >> 2) * 128 + (c & 3) * 4;
        own[(c >> 2) * 8 + (c & 3)] = from[0];
        own[(c >> 2) * 8 + 4 + (c & 3)] = from[2];
    }
    __syncwarp();
    float sum_x = 0.f, sum_y = 0.f;
#pragma unroll 1
    for (int level = 0; level < p.levels; level++) {
        int h = p.level_h[level], w = p.level_w[level], ix, iy;
        float fx, fy;
        if (!window(px, py, level, h, w, ix, iy, fx, fy)) continue;
        const u16 *f2 = p.f2 + p.level_offset[level] + (i64)batch * h * w * ROWLEN;
#pragma unroll 1
        for (int t = 0; t < DOTS / 16; t++) {
            int pa = t * 16 + r, pb = pa + 8;
            int xa = ix + pa % KP, ya = iy + pa / KP, xb = ix + pb % KP, yb = iy + pb / KP;
            bool ina = pa < KP * KP && (u32)xa < (u32)w && (u32)ya < (u32)h, inb = pb < KP * KP && (u32)xb < (u32)w && (u32)yb < (u32)h;
            const u16 *fa = f2 + ((i64)ya * w + xa) * ROWLEN + quad * 8, *fb = f2 + ((i64)yb * w + xb) * ROWLEN + quad * 8;
            float d[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll 4
            for (int g = 0; g < CPAD / 32; g++) {
                uint4 va = load_feature(fa + g * 32, ina), vb = load_feature(fb + g * 32, inb);
                uint4 b = *(const uint4 *)(own + g * 16 + quad * 4);
                mma_16816(d, va.x, vb.x, va.y, vb.y, b.x, b.y);
                mma_16816(d, va.z, vb.z, va.w, vb.w, b.z, b.w);
#if SPLIT
                uint4 c = *(const uint4 *)(own + CPAD / 2 + g * 16 + quad * 4);
                mma_16816(d, va.x, vb.x, va.y, vb.y, c.x, c.y);
                mma_16816(d, va.z, vb.z, va.w, vb.w, c.z, c.w);
                va = load_feature(fa + CPAD + g * 32, ina);
                vb = load_feature(fb + CPAD + g * 32, inb);
                mma_16816(d, va.x, vb.x, va.y, vb.y, b.x, b.y);
                mma_16816(d, va.z, vb.z, va.w, vb.w, b.z, b.w);
#endif
            }
            if (quad == 0) {
                dots[pa] = d[0];
                dots[pb] = d[2];
            }
        }
        __syncwarp();
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
#pragma unroll
    for (int i = 16; i; i >>= 1) {
        sum_x += __shfl_xor_sync(0xffffffffu, sum_x, i);
        sum_y += __shfl_xor_sync(0xffffffffu, sum_y, i);
    }
    if (lane == 0) {
        i64 plane = (i64)p.height * p.width;
        float *to = q.moved + 2 * batch * plane + (i64)y * p.width + x;
        to[0] = sum_x * *p.scale;
        to[plane] = sum_y * *p.scale;
    }
}
