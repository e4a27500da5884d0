// Runs ahead of a lookup of a pair that keeps products. A block is 16x8 source pixels and a level, one or two tiles of the lookup. Pixels whose
// windows lie in their patches are blended from them; what the lookup has to compute for the others is written down. #include'd after
// common, dots, keep and sample.
//
// Macros: NEAR, COHERENT, COSTLY, DIVIDED see below.

#define TILE_PIXELS KEPT_PIXELS
#define TILES (128 / TILE_PIXELS)
#ifndef NEAR
#define NEAR 2        // a window that moved by so many cells at most since it was last seen will stay in a patch made now
#endif
#ifndef COHERENT
#define COHERENT 1.5f // windows of a tile are coherent if a box around them is at most so many times what it is without motion
#endif
#ifndef COSTLY
#define COSTLY 12     // entries with more chunks than this come first
#endif
#ifndef DIVIDED
#define DIVIDED 24    // and those with more than this are divided into four
#endif
#ifndef SAMPLE_BLOCKS
#define SAMPLE_BLOCKS 8
#endif
static_assert(128 % TILE_PIXELS == 0 && (TILE_W == 8 || TILE_W == 16) && TILE_H <= 8, "tiles must fill 16x8 pixels");

// What the pixels of a tile say together.
struct Vote {
    u32 missing[TILE_PIXELS / 32], valid[TILE_PIXELS / 32], near[TILE_PIXELS / 32], unknown[TILE_PIXELS / 32];
    int left, right, top, bottom;
};

template <int N>
static __device__ __forceinline__ void load_row(float (&v)[N], const u8 *patch, const u8 *lower) {
#pragma unroll
    for (int c = 0; c < N; c++) {
#if KEPT == 1
        v[c] = Element<OUT>::unpack(((const u16 *)patch)[c * TILE_PIXELS]);
#elif KEPT == 2
        v[c] = __uint_as_float((u32)((const u16 *)patch)[c * TILE_PIXELS] << 16 | (u32)lower[c * TILE_PIXELS] << 8);
#else
        v[c] = ((const float *)patch)[c * TILE_PIXELS];
#endif
    }
}

static __device__ __forceinline__ void put_result(out_t *at, float x) {
#if CLAST || !defined(SAMPLE_STREAMING)
    *at = OutElement::pack(x);
#else
    store_streaming(at, OutElement::pack(x));
#endif
}

extern "C" __global__ void __launch_bounds__(128, SAMPLE_BLOCKS) sample_kept(const __grid_constant__ Params p) {
    __shared__ Vote votes[TILES];
#if CLAST
    __shared__ out_t results[128 * KW * KW];
    __shared__ u32 blended_pixels[4];
#endif
    int regions_x = (p.width + 15) / 16, regions_y = (p.height + 7) / 8, level = blockIdx.x % p.levels, region = blockIdx.x / p.levels;
    int region_row = region / regions_x, batch = region_row / regions_y;
    int column = threadIdx.x & 15, line = threadIdx.x >> 4, which = TILE_W == 8 ? column >> 3 : line / TILE_H;
    int x = (region - region_row * regions_x) * 16 + column, y = (region_row - batch * regions_y) * 8 + line;
    int pixel = TILE_W == 8 ? line * 8 + (column & 7) : line % TILE_H * 16 + column, tile_x = x / TILE_W, tile_y = y / TILE_H;
    bool in_image = x < p.width && y < p.height, has_tile = tile_x < p.tiles_x && tile_y < p.tiles_y;
    i64 tile = has_tile ? ((i64)batch * p.tiles_y + tile_y) * p.tiles_x + tile_x : 0;
    u32 slot = tile * p.levels + level;
    int h = p.level_h[level], w = p.level_w[level], side = p.kept.side[level];
    float px = __int_as_float(0x7fc00000), py = px, fx, fy;
    if (in_image) {
        const float *at = p.coords + batch * p.coord_b + y * p.coord_y + x * p.coord_x;
        px = at[0];
        py = at[p.coord_c];
    }
    u32 origin = p.kept.origins[(i64)slot * TILE_PIXELS + pixel], before = p.kept.filled[slot * (TILE_PIXELS / 32) + pixel / 32];
    bool stale = p.kept.stamps[slot] != *p.kept.stamp;
    int ix, iy;
    bool valid = window(px, py, level, h, w, ix, iy, fx, fy) && in_image;
    if (stale) before = 0;
    int dx = ix - ((int)(origin & 0xffff) - BIAS), dy = iy - ((int)(origin >> 16) - BIAS);  // of the window in its patch
    bool hit = valid && before >> (pixel & 31) & 1 && (u32)dx <= (u32)(side - KP) && (u32)dy <= (u32)(side - KP), miss = valid && !hit;
    if (__syncthreads_or(miss)) {
        Vote &vote = votes[which];
        if (threadIdx.x < TILES) {
            Vote &own = votes[threadIdx.x];
            for (int i = 0; i < TILE_PIXELS / 32; i++) own.missing[i] = own.valid[i] = own.near[i] = own.unknown[i] = 0;
            own.left = own.top = BIG;
            own.right = own.bottom = -BIG;
        }
        __syncthreads();
        int from_x = lead(fx, side), from_y = lead(fy, side);
        if (valid) {
            u32 bit = 1u << (pixel & 31);
            atomicOr(vote.valid + pixel / 32, bit);
            if (miss) atomicOr(vote.missing + pixel / 32, bit);
            bool known = !stale && origin != 0;
            if (miss && !known) atomicOr(vote.unknown + pixel / 32, bit);
            if (miss && known && ((u32)(dx - from_x + NEAR) <= 2 * NEAR && (u32)(dy - from_y + NEAR) <= 2 * NEAR)) atomicOr(vote.near + pixel / 32, bit);
            atomicMin(&vote.left, ix);
            atomicMin(&vote.top, iy);
            atomicMax(&vote.right, ix);
            atomicMax(&vote.bottom, iy);
        }
        __syncthreads();
        int missing = 0, near = 0, unknown = 0, count = 0;
#pragma unroll
        for (int i = 0; i < TILE_PIXELS / 32; i++) {
            missing += __popc(vote.missing[i]);
            near += __popc(vote.near[i]);
            unknown += __popc(vote.unknown[i]);
            count += __popc(vote.valid[i]);
        }
        if (missing) {
            float area = ((float)(vote.right - vote.left) + side) * ((float)(vote.bottom - vote.top) + side);
            bool coherent = area <= COHERENT * ((TILE_W >> level) + side) * ((TILE_H >> level) + side);
            bool fill = 2 * (near + (coherent ? unknown : 0)) >= missing, all = fill && coherent;
            u32 wanted = (all ? vote.valid : vote.missing)[pixel / 32];
            if (wanted >> (pixel & 31) & 1) {
                p.kept.origins[(i64)slot * TILE_PIXELS + pixel] = (u32)(ix - from_x + BIAS) | (u32)(iy - from_y + BIAS) << 16;
                hit = false;
            }
            if (has_tile && (pixel & 31) == 0) {
                p.kept.wanted[slot * (TILE_PIXELS / 32) + pixel / 32] = wanted;
                p.kept.filled[slot * (TILE_PIXELS / 32) + pixel / 32] = fill ? before | wanted : before & ~wanted;
            }
            if (has_tile && pixel == 0) {
                p.kept.stamps[slot] = *p.kept.stamp;
                int each = fill ? 3 : 2, pixels = all ? count : missing;
                int chunks = min((int)min(area / (NCOL * 2 / 3), 1e6f) + 1, pixels * each);
                u32 entry = slot << 5 | (u32)fill << 4;
                if (chunks > DIVIDED) {
                    for (int part = 0; part < 4; part++)
                        p.kept.entries[atomicAdd(p.kept.counts, 1u)] = entry | 1u << part;
                } else if (chunks > COSTLY)
                    p.kept.entries[atomicAdd(p.kept.counts, 1u)] = entry | 15;
                else
                    p.kept.entries[p.kept.most_entries - 1 - (int)atomicAdd(p.kept.counts + 1, 1u)] = entry | 15;
            }
        }
    }
    u32 step_y = (CLAST ? 1 : (u32)p.height * (u32)p.width) * sizeof(out_t), step_x = KW * step_y;
#if CLAST
    u64 to = (u64)(results + threadIdx.x * (KW * KW));
#else
    u64 to = (u64)((out_t *)p.out + ((i64)batch * p.levels + level) * (KW * KW) * ((i64)p.height * p.width) + (i64)y * p.width + x);
#endif
    if (in_image && !valid) {
#pragma unroll 1
        for (int o = 0; o < KW * KW; o++) put_result((out_t *)(to + (u64)step_y * (u32)o), 0.f);
    }
    if (hit) {
        float scale = KEPT == 1 ? 1.f : *p.scale, wx0 = (1.f - fx) * scale, wx1 = fx * scale, wy0 = 1.f - fy, wy1 = fy;
        float previous[KW];
        constexpr int bytes = KEPT == 3 ? 4 : 2;
        const u8 *patch = patch_of(p, tile, level), *lower = patch + side * side * (2 * TILE_PIXELS);
        int first = (dy * side + dx) * TILE_PIXELS + pixel;
        patch += first * bytes;
        lower += first;
#pragma unroll 1
        for (int row = 0; row < KP; row += 2) {
            float v[KP], u[KP];
            load_row(v, patch, lower);
            load_row(u, patch + side * (TILE_PIXELS * bytes), lower + side * TILE_PIXELS);
            patch += 2 * side * (TILE_PIXELS * bytes);
            lower += 2 * side * TILE_PIXELS;
#pragma unroll
            for (int c = 0; c < KW; c++) {
                float above = blended(wx0, v[c], wx1, v[c + 1]), below = blended(wx0, u[c], wx1, u[c + 1]);
                if (row) put_result((out_t *)(to - step_y + (u64)step_x * c), blended(wy0, previous[c], wy1, above));
                put_result((out_t *)(to + (u64)step_x * c), blended(wy0, above, wy1, below));
                previous[c] = below;
            }
            to += 2 * (u64)step_y;
        }
    }
#if CLAST
    u32 written = __ballot_sync(0xffffffffu, hit || in_image && !valid);
    if ((threadIdx.x & 31) == 0) blended_pixels[threadIdx.x / 32] = written;
    __syncthreads();
    int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    i64 step = (i64)p.levels * KW * KW;
    out_t *image = (out_t *)p.out + (i64)batch * p.height * p.width * step + level * (KW * KW);
    for (int i = warp; i < 128; i += 4)
        if (blended_pixels[i / 32] >> (i & 31) & 1) {
            out_t *pixel_out = image + ((i64)(y - line + (i >> 4)) * p.width + x - column + (i & 15)) * step;
#pragma unroll
            for (int c = 0; c < KW * KW; c += 32)
                if (c + lane < KW * KW) store_streaming(pixel_out + c + lane, results[i * KW * KW + c + lane]);
        }
#endif
}
