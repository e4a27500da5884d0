// The last items of multiply_out, which write patches again with the lookup that did not fit.

// Box and largest magnitude over a block's threads.
struct Restart { int box[4]; u32 largest; };

static __device__ __forceinline__ float gradient(const GradientParams &q, i64 at) {
    if (q.grad_type == 0) return ((const float *)q.grad)[at];
    u16 half = ((const u16 *)q.grad)[at];
    return q.grad_type == 1 ? from_f16(half) : from_bf16(half);
}

// Write the patches of a marked tile's level as if there had been no lookup before, after `items` items are finished. COUNT
// threads serve a pixel, each every COUNT-th column; LINES lines of the patches are computed at a time, in shared memory.
template <int COUNT, int LINES>
static __device__ __forceinline__ void begin_again(const GradientParams &q, Restart &common, float *patch, int items, int item) {
    constexpr int threads = COUNT * TILE_PIXELS;
    const Params &p = q.p;
    if (threadIdx.x == 0) {        // earlier items read its patches
        volatile int *finished = &q.work->finished;
        while (*finished != items) {
        }
        __threadfence();
        common.box[0] = common.box[1] = BIG;
        common.box[2] = common.box[3] = -BIG;
        common.largest = 0;
    }
    __syncthreads();
    int index = q.full_levels[item], tile = index / p.levels, level = index - tile * p.levels, row = tile / p.tiles_x, batch = row / p.tiles_y;
    int pixel = threadIdx.x & 63, part = threadIdx.x >> 6;
    int x = (tile - row * p.tiles_x) * 8 + (pixel & 7), y = (row - batch * p.tiles_y) * 8 + (pixel >> 3), ix = 0, iy = 0;
    float px = 0.f, py = 0.f, fx = 0.f, fy = 0.f, most = 0.f;
    bool active = x < p.width && y < p.height;
    if (active) {
        const float *at = p.coords + batch * p.coord_b + y * p.coord_y + x * p.coord_x;
        px = at[0];
        py = at[p.coord_c];
    }
    active = window(px, py, level, p.level_h[level], p.level_w[level], ix, iy, fx, fy) && active;
    int4 box = active ? make_int4(ix, iy, ix + KP, iy + KP) : make_int4(BIG, BIG, -BIG, -BIG);
    if (part == 0) q.covered[(i64)index * TILE_PIXELS + pixel] = box;
    i64 from = batch * q.grad_b + (i64)level * (KW * KW) * q.grad_c + y * q.grad_y + x * q.grad_x;
    float4 *to = (float4 *)(q.patches + (i64)index * PATCH_FLOATS);
    for (int top = 0; top < PATCH; top += LINES) {
        int count = min(LINES, PATCH - top) * (PATCH * TILE_PIXELS / 4);
        for (int i = threadIdx.x; i < count; i += threads) ((float4 *)patch)[i] = make_float4(0.f, 0.f, 0.f, 0.f);
        __syncthreads();
        if (active)
#pragma unroll 1
            for (int column = part; column < KP; column += COUNT) {
                float *place = patch + wrapped(ix + column) * TILE_PIXELS + pixel, before_left = 0.f, before_right = 0.f;
                int line = wrapped(iy) - top;
#pragma unroll 5
                for (int k = 0; k < KP; k++) {
                    float left = k < KW && column > 0 ? gradient(q, from + (i64)((column - 1) * KW + k) * q.grad_c) : 0.f;
                    float right = k < KW && column < KW ? gradient(q, from + (i64)(column * KW + k) * q.grad_c) : 0.f;
                    float sum = (1.f - fx) * ((1.f - fy) * right + fy * before_right) + fx * ((1.f - fy) * left + fy * before_left);
                    if (line >= 0 && line < LINES) place[line * (PATCH * TILE_PIXELS)] = sum;
                    if (!BF16) most = fmaxf(most, fabsf(sum));
                    before_left = left;
                    before_right = right;
                    line = line + 1 == PATCH - top ? -top : line + 1;
                }
            }
        __syncthreads();
        for (int i = threadIdx.x; i < count; i += threads) to[top * (PATCH * TILE_PIXELS / 4) + i] = ((const float4 *)patch)[i];
        __syncthreads();
    }
    int left = warp_min(box.x), top = warp_min(box.y), right = warp_max(box.z), bottom = warp_max(box.w);
    u32 largest = warp_max(__float_as_uint(most));
    if ((threadIdx.x & 31) == 0) {
        atomicMin(common.box, left);
        atomicMin(common.box + 1, top);
        atomicMax(common.box + 2, right);
        atomicMax(common.box + 3, bottom);
        atomicMax(&common.largest, largest);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        q.bounds[index] = make_int4(common.box[0], common.box[1], common.box[2], common.box[3]);
        if (!BF16) q.largest[index] = common.largest;
        atomicAnd(q.full + tile, ~(1 << level));
    }
}
