// Addition of a lookup's gradient to the patches of its pixels by the transposed bilinear blend. A block serves one tile and
// level; two threads serve a pixel, each half of the columns. If a pixel's window does not fit into its patch with what the
// patch holds, the tile's level is left unchanged and marked, and multiply_out writes it again.

#define HALF (RADIUS + 1)
#define BATCH_ROWS (RADIUS <= 4 ? KW : 3)  // rows of taps that are loaded at a time

// Mark a tile's level and the target tiles that it adds to for multiply_out.
static __device__ __forceinline__ void mark(const GradientParams &q, int index, int tile, int batch, int tile_y, int level) {
    const Params &p = q.p;
    int4 all = q.bounds[index];
    int h = p.level_h[level], w = p.level_w[level], across = count_tiles(w), down = count_tiles(h), per_band = (p.tiles_y + BANDS - 1) / BANDS;
    int x0 = max(all.x, 0) / 8, x1 = (min(all.z, w) + 7) / 8, y0 = max(all.y, 0) / 8, y1 = (min(all.w, h) + 7) / 8;
    if (x0 >= x1 || y0 >= y1) return;
    if (threadIdx.x == 0) {
        if (atomicOr(q.full + tile, 1 << level) == 0 && q.want_first) q.full_tiles[atomicAdd(&q.work->tiles, 1)] = tile;
        q.full_levels[atomicAdd(&q.work->levels, 1)] = index;
    }
    if (!q.want_second) return;
    u64 band = 1ull << (tile_y / per_band);
    u32 magnitude = BF16 ? 0 : q.largest[index];
    bool compact = (i64)(x1 - x0) * (y1 - y0) <= 256;
    if (!compact) {                // box by box: a thread takes one pixel's
        if (threadIdx.x >= TILE_PIXELS) return;
        int4 own = q.covered[(i64)index * TILE_PIXELS + threadIdx.x];
        x0 = max(own.x, 0) / 8, x1 = (min(own.z, w) + 7) / 8, y0 = max(own.y, 0) / 8, y1 = (min(own.w, h) + 7) / 8;
    }
    int n = max(x1 - x0, 0) * max(y1 - y0, 0);
    for (int i = compact ? threadIdx.x : 0; i < n; i += compact ? blockDim.x : 1) {
        int y = i / (x1 - x0), local = (batch * down + y0 + y) * across + x0 + i - y * (x1 - x0), target = q.target_begin[level] + local;
        if (atomicOr(q.bands + target, band) == 0) q.full_targets[q.target_begin[level] + atomicAdd(&q.work->targets[level], 1)] = local;
        if (!BF16) atomicMax(q.target_largest + target, magnitude);
    }
}

extern "C" __global__ void __launch_bounds__(128) collect(const __grid_constant__ GradientParams q) {
    extern __shared__ __align__(16) float patch[];
    __shared__ int limits[2][4];
    __shared__ u32 magnitudes[4];
    const Params &p = q.p;
    int index = blockIdx.x, tile = index / p.levels, level = index - tile * p.levels;
    int row = tile / p.tiles_x, tile_x = tile - row * p.tiles_x, batch = row / p.tiles_y, tile_y = row - batch * p.tiles_y;
    if (q.mode == END) {
        mark(q, index, tile, batch, tile_y, level);
        return;
    }
    int pixel = threadIdx.x & 63, upper = threadIdx.x >> 6, x = tile_x * 8 + (pixel & 7), y = tile_y * 8 + (pixel >> 3);
    bool inside = x < p.width && y < p.height;
    float *memory = q.patches + (i64)index * PATCH_FLOATS;
    int4 &own = q.covered[(i64)index * TILE_PIXELS + pixel];
    float px = 0.f, py = 0.f;
    if (inside) {
        const float *at = p.coords + batch * p.coord_b + y * p.coord_y + x * p.coord_x;
        px = at[0];
        py = at[p.coord_c];
    }
    int4 box = make_int4(BIG, BIG, -BIG, -BIG);
    if (q.mode == ADD) {
        box = own;
        u32 to = shared_address(patch);
        for (int i = threadIdx.x; i < PATCH_FLOATS / 4; i += 128) copy_async<16>(to + i * 16, memory + i * 4, true);
    } else
        for (int i = threadIdx.x; i < PATCH_FLOATS / 4; i += 128) *(float4 *)(patch + i * 4) = make_float4(0.f, 0.f, 0.f, 0.f);
    const Element<GRAD>::type *grad = (const Element<GRAD>::type *)q.grad + batch * q.grad_b + (i64)level * (KW * KW) * q.grad_c + (inside ? y * q.grad_y + x * q.grad_x : 0);
    int first = upper ? HALF : 0;
    float taps[BATCH_ROWS][HALF + 1];
    const auto load_taps = [&](int top) {
#pragma unroll
        for (int k = 0; k < BATCH_ROWS; k++)
#pragma unroll
            for (int j = 0; j <= HALF; j++) {
                bool valid = (top ? top + k < KW : inside) && (j > 0 || upper) && (j < HALF || !upper);
                taps[k][j] = valid ? Element<GRAD>::unpack(grad[(i64)((first - 1 + j) * KW + top + k) * q.grad_c]) : 0.f;
            }
    };
    load_taps(0);
    int ix, iy;
    float fx, fy;
    bool active = window(px, py, level, p.level_h[level], p.level_w[level], ix, iy, fx, fy) && inside;
    if (active) {
        box.x = min(box.x, ix);
        box.y = min(box.y, iy);
        box.z = max(box.z, ix + KP);
        box.w = max(box.w, iy + KP);
    }
    bool fits = !active || box.z - box.x <= PATCH && box.w - box.y <= PATCH;
    if (__syncthreads_or(!fits)) {
        await_all_copies();
        mark(q, index, tile, batch, tile_y, level);
        return;
    }
    int lowest_x = warp_min(box.x), lowest_y = warp_min(box.y), highest_x = warp_max(box.z), highest_y = warp_max(box.w);
    if (upper == 0) {
        own = box;
        if ((threadIdx.x & 31) == 0) {
            int *to = limits[threadIdx.x >> 5];
            to[0] = lowest_x, to[1] = lowest_y, to[2] = highest_x, to[3] = highest_y;
        }
    }
    await_all_copies();
    __syncthreads();
    float most = 0.f;
    if (active) {
        float wx0 = 1.f - fx, wy0 = 1.f - fy;
        int at[HALF], line = wrapped(iy), column = wrapped(ix + first);
#pragma unroll
        for (int j = 0; j < HALF; j++) {
            at[j] = column * TILE_PIXELS + pixel;
            column = column + 1 == PATCH ? 0 : column + 1;
        }
        float previous[HALF + 1];
        clear(previous);
        float *to = patch + line * (PATCH * TILE_PIXELS);
#pragma unroll 1
        for (int top = 0; top < KP; top += BATCH_ROWS) {
            if (top) load_taps(top);
#pragma unroll
            for (int k = 0; k < BATCH_ROWS; k++) {
                if (top + k >= KP) break;
#pragma unroll
                for (int j = 0; j < HALF; j++) {
                    float left = wy0 * taps[k][j] + fy * previous[j], right = wy0 * taps[k][j + 1] + fy * previous[j + 1];
                    float sum = to[at[j]] + (wx0 * right + fx * left);
                    to[at[j]] = sum;
                    if (!BF16) most = fmaxf(most, fabsf(sum));
                }
#pragma unroll
                for (int j = 0; j <= HALF; j++) previous[j] = taps[k][j];
                line = line + 1 == PATCH ? 0 : line + 1;
                to = patch + line * (PATCH * TILE_PIXELS);
            }
        }
    }
#if !BF16
    u32 magnitude = warp_max(__float_as_uint(most));
    if ((threadIdx.x & 31) == 0) magnitudes[threadIdx.x >> 5] = magnitude;
#endif
    __syncthreads();
    for (int i = threadIdx.x; i < PATCH_FLOATS / 4; i += 128) *(float4 *)(memory + i * 4) = *(const float4 *)(patch + i * 4);
    if (threadIdx.x == 0) {
        q.bounds[index] = make_int4(min(limits[0][0], limits[1][0]), min(limits[0][1], limits[1][1]), max(limits[0][2], limits[1][2]),
                                    max(limits[0][3], limits[1][3]));
#if !BF16
        u32 now = max(max(magnitudes[0], magnitudes[1]), max(magnitudes[2], magnitudes[3]));
        q.largest[index] = q.mode == ADD ? max(q.largest[index], now) : now;
#endif
    }
}
