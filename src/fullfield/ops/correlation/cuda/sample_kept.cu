// Runs ahead of a lookup of a pair that keeps products. Pixels whose windows lie in their patches are blended from them; the others, and
// perhaps their neighbours, are written down for the lookup. A block is 16x8 source pixels and a level, one or two tiles of the lookup.
// #include'd after common, dots, keep and sample.
//
// Macros: NEAR, COHERENT, COSTLY, DIVIDED see below.

#define TILE_PIXELS KEPT_PIXELS
#define WORDS (TILE_PIXELS / 32)
#define WARP_TILES (TILE_W == 8 ? 2 : 1)  // of which a warp has pixels
#define TILES (128 / TILE_PIXELS)
#ifndef NEAR
#define NEAR 2        // a window that moved by so many cells at most since it was last seen will stay in a patch made now
#endif
#ifndef COHERENT
#define COHERENT 1.5f // windows of a tile are coherent if a box around them is at most so many times what it is without motion
#endif
#ifndef COSTLY
#define COSTLY 12     // entries of more chunks than this come first
#endif
#ifndef DIVIDED
#define DIVIDED 20    // and those of more than this are divided into four, of three times as many into sixteen
#endif
#ifndef SAMPLE_BLOCKS
#define SAMPLE_BLOCKS 8
#endif
static_assert(128 % TILE_PIXELS == 0 && (TILE_W == 8 || TILE_W == 16) && TILE_H <= 8, "tiles must fill 16x8 pixels");

// What the pixels of a tile say together.
struct Vote {
    u32 missing[TILE_PIXELS / 32], valid[TILE_PIXELS / 32], near[TILE_PIXELS / 32], unknown[TILE_PIXELS / 32];
    int left, right, top, bottom, pairs, far;
};

template <int N>
static __device__ __forceinline__ void load_row(float (&v)[N], const u8 *patch, const u8 *lower) {
#pragma unroll
    for (int c = 0; c < N; c++) {
#if KEPT == 1
        v[c] = KeptElement::unpack(((const u16 *)patch)[c * TILE_PIXELS]);
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


// A thread's pixel.
struct KeptPixel {
    int batch, level, x, y, pixel, which;  // of the image; in its tile, and which of the block's tiles that is
    bool in_image, has_tile, valid;
    i64 tile;
    u32 slot;
    int ix, iy;
    float fx, fy;
};

static __device__ __forceinline__ KeptPixel kept_pixel(const Params &p) {
    KeptPixel own;
    int regions_x = (p.width + 15) / 16, regions_y = (p.height + 7) / 8, region = blockIdx.x / p.levels, region_row = region / regions_x;
    int column = threadIdx.x & 15, line = threadIdx.x >> 4;
    own.level = blockIdx.x - region * p.levels;
    own.batch = region_row / regions_y;
    own.x = (region - region_row * regions_x) * 16 + column;
    own.y = (region_row - own.batch * regions_y) * 8 + line;
    own.which = TILE_W == 8 ? column >> 3 : line / TILE_H;
    own.pixel = TILE_W == 8 ? line * 8 + (column & 7) : line % TILE_H * 16 + column;
    int tile_x = own.x / TILE_W, tile_y = own.y / TILE_H;
    own.in_image = own.x < p.width && own.y < p.height;
    own.has_tile = tile_x < p.tiles_x && tile_y < p.tiles_y;
    own.tile = own.has_tile ? ((i64)own.batch * p.tiles_y + tile_y) * p.tiles_x + tile_x : 0;
    own.slot = own.tile * p.levels + own.level;
    float px = __int_as_float(0x7fc00000), py = px;
    if (own.in_image) {
        const float *at = p.coords + own.batch * p.coord_b + own.y * p.coord_y + own.x * p.coord_x;
        px = at[0];
        py = at[p.coord_c];
    }
    own.valid = window(px, py, own.level, p.level_h[own.level], p.level_w[own.level], own.ix, own.iy, own.fx, own.fy) && own.in_image;
    return own;
}

// Of the warp's pixels, those of its tile `which`: bits of the lanes to bits of the pixels. pixel: the first lane's.
static __device__ __forceinline__ void put_bits(u32 *to, u32 lanes, int which, int pixel) {
    if (WARP_TILES == 1)
        to[pixel / 32] = lanes;
    else {
        lanes >>= 8 * which;
        ((u16 *)to)[pixel / 16] = (u16)((lanes & 0xff) | (lanes >> 8 & 0xff00));
    }
}

static __device__ __forceinline__ int in_patch(u32 origin, int ix, int shift) { return ix - ((int)(origin >> shift & 0xffff) - BIAS); }

// Whether the lookup has nothing to do for the pixel; notes what it has to do for others. x, y: where the window begins in the patch.
static __device__ __forceinline__ bool check_pixel(const Params &p, const KeptPixel &own, Vote *votes, int &x, int &y) {
    const int level = own.level, pixel = own.pixel, side = p.kept.side[level], word = own.slot * (TILE_PIXELS / 32) + pixel / 32;
    u32 *noted = p.kept.origins + (i64)own.slot * TILE_PIXELS + pixel, origin = *noted, before = p.kept.filled[word];
    bool stale = p.kept.stamps[own.slot] != *p.kept.stamp;
    if (stale) before = 0;
    int dx = in_patch(origin, own.ix, 0), dy = in_patch(origin, own.iy, 16);
    x = dx;
    y = dy;
    bool hit = before >> (pixel & 31) & 1 && (u32)dx <= (u32)(side - KP) && (u32)dy <= (u32)(side - KP), miss = own.valid && !hit;
    int other_x = __shfl_up_sync(0xffffffffu, own.ix, 1), other_y = __shfl_up_sync(0xffffffffu, own.iy, 1);
    bool other_valid = __shfl_up_sync(0xffffffffu, (int)own.valid, 1);
    bool pair = own.x % TILE_W && own.valid && other_valid, far = pair && apart(own.ix, own.iy, other_x, other_y);
    u32 wanted = 0;
    if (__syncthreads_or(miss || far)) {
        Vote &vote = votes[own.which];
        if (threadIdx.x < TILES) {
            Vote &first = votes[threadIdx.x];
            first.left = first.top = BIG;
            first.right = first.bottom = -BIG;
            first.pairs = first.far = 0;
        }
        __syncthreads();
        int from_x = lead(own.fx, side), from_y = lead(own.fy, side);
        bool known = !stale && origin != 0;
        bool close = known && (u32)(dx - from_x + NEAR) <= 2 * NEAR && (u32)(dy - from_y + NEAR) <= 2 * NEAR;
        u32 valids = __ballot_sync(0xffffffffu, own.valid), misses = __ballot_sync(0xffffffffu, miss), nears = __ballot_sync(0xffffffffu, miss && close);
        u32 unknowns = __ballot_sync(0xffffffffu, miss && !known), pairs = __ballot_sync(0xffffffffu, pair), fars = __ballot_sync(0xffffffffu, far);
#pragma unroll
        for (int i = 0; i < WARP_TILES; i++) {
            u32 mask = WARP_TILES == 1 ? 0xffffffffu : 0xff00ffu << 8 * i;
            bool mine = own.valid && (WARP_TILES == 1 || own.which == i);
            int left = warp_min(mine ? own.ix : BIG), top = warp_min(mine ? own.iy : BIG);
            int right = warp_max(mine ? own.ix : -BIG), bottom = warp_max(mine ? own.iy : -BIG);
            Vote &to = WARP_TILES == 1 ? vote : votes[i];
            if ((threadIdx.x & 31) == 0) {
                put_bits(to.valid, valids, i, pixel);
                put_bits(to.missing, misses, i, pixel);
                put_bits(to.near, nears, i, pixel);
                put_bits(to.unknown, unknowns, i, pixel);
                if (valids & mask) {
                    atomicAdd(&to.pairs, __popc(pairs & mask));
                    atomicAdd(&to.far, __popc(fars & mask));
                    atomicMin(&to.left, left);
                    atomicMin(&to.top, top);
                    atomicMax(&to.right, right);
                    atomicMax(&to.bottom, bottom);
                }
            }
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
        bool scattered = 2 * vote.far > vote.pairs;
        if (missing || scattered) {
            float area = ((float)(vote.right - vote.left) + side) * ((float)(vote.bottom - vote.top) + side);
            float least = ((TILE_W >> level) + side) * ((TILE_H >> level) + side);
            bool coherent = area <= COHERENT * least;
            bool fill = !scattered && 2 * (near + (coherent ? unknown : 0)) >= missing, all = scattered || fill && coherent;
            wanted = (all ? vote.valid : vote.missing)[pixel / 32];
            if (wanted >> (pixel & 31) & 1) *noted = (u32)(own.ix - from_x + BIAS) | (u32)(own.iy - from_y + BIAS) << 16;
            if (own.has_tile && (pixel & 31) == 0) {
                p.kept.wanted[word] = wanted;
                p.kept.filled[word] = fill ? before | wanted : before & ~wanted;
            }
            if (own.has_tile && pixel == 0) {
                p.kept.stamps[own.slot] = *p.kept.stamp;
                int chunks = (all ? count : missing) * (fill ? 3 : 2);
                if (!scattered) chunks = min(chunks, (int)(min(area, least * (1.f + vote.far * (8.f / TILE_PIXELS))) / (NCOL * 2 / 3)) + 1);
                int parts = scattered || chunks <= DIVIDED ? 1 : chunks > 3 * DIVIDED ? 16 : 4, at = (int)atomicAdd(p.kept.counts + (chunks <= COSTLY), (u32)parts);
                for (int part = 0; part < parts; part++, at++) {
                    u32 *entry = p.kept.entries + 2 * (chunks > COSTLY ? at : p.kept.most_entries - 1 - at);
                    entry[0] = own.slot << 2 | (u32)scattered << 1 | (u32)fill;
                    entry[1] = ((1u << 16 / parts) - 1) << part * (16 / parts);
                }
            }
        }
    }
    return own.valid && !(wanted >> (pixel & 31) & 1);
}

extern "C" __global__ void __launch_bounds__(128, SAMPLE_BLOCKS) sample_kept(const __grid_constant__ Params p) {
    __shared__ Vote votes[TILES];
#if CLAST
    __shared__ out_t results[128 * KW * KW];
    __shared__ u32 blended_pixels[4];
#endif
#ifdef EARLY
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    KeptPixel own = kept_pixel(p);
    const int level = own.level, pixel = own.pixel, side = p.kept.side[level];
    int dx, dy;
    bool ours = check_pixel(p, own, votes, dx, dy);
    u32 step_y = (CLAST ? 1 : (u32)p.height * (u32)p.width) * sizeof(out_t), step_x = KW * step_y;
#if CLAST
    u64 to = (u64)(results + threadIdx.x * (KW * KW));
#else
    i64 tap = ((i64)own.batch * p.levels + level) * (KW * KW);
    u64 to = (u64)((out_t *)p.out + tap * ((i64)p.height * p.width) + (i64)own.y * p.width + own.x);
#endif
    if (own.in_image && !own.valid) {
#pragma unroll 1
        for (int o = 0; o < KW * KW; o++) put_result((out_t *)(to + (u64)step_y * (u32)o), 0.f);
    }
    if (ours) {
        float scale = KEPT == 1 ? 1.f : *p.scale, wx0 = (1.f - own.fx) * scale, wx1 = own.fx * scale, wy0 = 1.f - own.fy, wy1 = own.fy;
        float previous[KW];
        constexpr int bytes = KEPT == 3 ? 4 : 2;
        const u8 *patch = patch_of(p, own.tile, level), *lower = patch + side * side * (2 * TILE_PIXELS);
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
    u32 written = __ballot_sync(0xffffffffu, ours || own.in_image && !own.valid);
    if ((threadIdx.x & 31) == 0) blended_pixels[threadIdx.x / 32] = written;
    __syncthreads();
    int lane = threadIdx.x & 31;
    i64 step = (i64)p.levels * KW * KW;
    out_t *image = (out_t *)p.out + (i64)own.batch * p.height * p.width * step + level * (KW * KW);
    for (int i = threadIdx.x / 32; i < 128; i += 4)
        if (blended_pixels[i / 32] >> (i & 31) & 1) {
            out_t *at = image + ((i64)(own.y - (int)(threadIdx.x >> 4) + (i >> 4)) * p.width + own.x - (int)(threadIdx.x & 15) + (i & 15)) * step;
#pragma unroll
            for (int c = 0; c < KW * KW; c += 32)
                if (c + lane < KW * KW) store_streaming(at + c + lane, results[i * KW * KW + c + lane]);
        }
#endif
}
