// Runs ahead of a lookup of a pair that keeps products. Pixels whose windows lie in their patches are blended from them; the others, and
// perhaps their neighbours, are written down for the lookup. A block is 128 source pixels, whose patches lie together, and a level.
// #include'd after common, dots, keep and sample.

#define TILE_PIXELS (64 * GROUPS)
#define NEAR 1         // a window that moved by so many cells at most since it was last seen will stay in a patch made now

// Those of a tile's wanted pixels whose windows begin in the same columns.
struct Strip { int left, right, top, bottom, count; };

// What the pixels of a tile say together.
struct Vote {
    Strip strips[MAXSTRIPS];
    u32 missing[TILE_PIXELS / 32], valid[TILE_PIXELS / 32], near[TILE_PIXELS / 32], unknown[TILE_PIXELS / 32];
    int left, right, top, bottom, pairs, far;
};

template <int N>
static __device__ __forceinline__ void load_row(float (&v)[N], const u8 *patch, const u8 *lower) {
#pragma unroll
    for (int c = 0; c < N; c++) {
#if KEPT == 1
        v[c] = OutElement::unpack(((const u16 *)patch)[c * KEPT_PIXELS]);
#elif KEPT == 2
        v[c] = __uint_as_float((u32)((const u16 *)patch)[c * KEPT_PIXELS] << 16 | (u32)lower[c * KEPT_PIXELS] << 8);
#else
        v[c] = ((const float *)patch)[c * KEPT_PIXELS];
#endif
    }
}

// A thread's pixel.
struct KeptPixel {
    int batch, level, x, y, tile_x, tile_y, pixel, which;  // of the image; its tile, in its tile, and which of the block's tiles that is
    bool in_image, has_tile, valid;
    u32 slot;
    int ix, iy;
    float fx, fy;
};

// Of thread i of the block: 16 pixels of a tile, then as many of the one beside it, as patches have them.
static __device__ __forceinline__ KeptPixel kept_pixel(const Params &p, int i) {
    KeptPixel own;
    u32 across = (p.tiles_x + KEPT_TILES - 1) / KEPT_TILES, group = blockIdx.x / p.levels, row = group / across;
    own.which = GROUPS == 1 ? i >> 4 & 1 : 0;
    own.pixel = GROUPS == 1 ? (i >> 5) * 16 + (i & 15) : i;
    own.level = blockIdx.x - group * p.levels;
    own.batch = row / p.tiles_y;
    own.tile_x = (group - row * across) * KEPT_TILES + own.which;
    own.tile_y = row - own.batch * p.tiles_y;
    own.x = own.tile_x * TILE_W + own.pixel % TILE_W;
    own.y = own.tile_y * TILE_H + own.pixel / TILE_W;
    own.has_tile = own.tile_x < p.tiles_x;
    own.slot = own.has_tile ? ((own.batch * p.tiles_y + own.tile_y) * p.tiles_x + own.tile_x) * p.levels + own.level : 0;
    own.in_image = own.x < p.width && own.y < p.height;
    float px = __int_as_float(0x7fc00000), py = px;
    if (own.in_image) {
        const float *at = p.coords + own.batch * p.coord_b + own.y * p.coord_y + own.x * p.coord_x;
        px = at[0];
        py = at[p.coord_c];
    }
    own.valid = window(px, py, own.level, p.level_h[own.level], p.level_w[own.level], own.ix, own.iy, own.fx, own.fy) && own.in_image;
    return own;
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
        if (threadIdx.x < KEPT_TILES) {
            Vote &first = votes[threadIdx.x];
            first.left = first.top = BIG;
            first.right = first.bottom = -BIG;
            first.pairs = first.far = 0;
        }
        if (threadIdx.x < KEPT_TILES * MAXSTRIPS) {
            Strip none = {BIG, -BIG, BIG, -BIG, 0};
            votes[threadIdx.x / MAXSTRIPS].strips[threadIdx.x % MAXSTRIPS] = none;
        }
        __syncthreads();
        int from_x = lead(own.fx, side), from_y = lead(own.fy, side);
        bool known = !stale && origin != 0;
        bool close = known && (u32)(dx - from_x + NEAR) <= 2 * NEAR && (u32)(dy - from_y + NEAR) <= 2 * NEAR;
        u32 valids = __ballot_sync(0xffffffffu, own.valid), misses = __ballot_sync(0xffffffffu, miss), nears = __ballot_sync(0xffffffffu, miss && close);
        u32 unknowns = __ballot_sync(0xffffffffu, miss && !known), pairs = __ballot_sync(0xffffffffu, pair), fars = __ballot_sync(0xffffffffu, far);
        int left = own.valid ? own.ix : BIG, top = own.valid ? own.iy : BIG, right = own.valid ? own.ix : -BIG, bottom = own.valid ? own.iy : -BIG;
#pragma unroll
        for (int i = 8; i; i >>= 1) {
            left = min(left, __shfl_xor_sync(0xffffffffu, left, i));
            top = min(top, __shfl_xor_sync(0xffffffffu, top, i));
            right = max(right, __shfl_xor_sync(0xffffffffu, right, i));
            bottom = max(bottom, __shfl_xor_sync(0xffffffffu, bottom, i));
        }
        if ((threadIdx.x & 15) == 0) {
            int at = threadIdx.x & 16, word = pixel / 16;
            ((u16 *)vote.valid)[word] = (u16)(valids >> at);
            ((u16 *)vote.missing)[word] = (u16)(misses >> at);
            ((u16 *)vote.near)[word] = (u16)(nears >> at);
            ((u16 *)vote.unknown)[word] = (u16)(unknowns >> at);
            atomicAdd(&vote.pairs, __popc(pairs >> at & 0xffff));
            atomicAdd(&vote.far, __popc(fars >> at & 0xffff));
            atomicMin(&vote.left, left);
            atomicMin(&vote.top, top);
            atomicMax(&vote.right, right);
            atomicMax(&vote.bottom, bottom);
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
        bool together = coherent(vote.left, vote.right, vote.top, vote.bottom, level, side), any = missing || scattered;
        bool fill = !scattered && 2 * (near + (together ? unknown : 0)) >= missing, all = scattered || fill && together;
        if (any) wanted = (all ? vote.valid : vote.missing)[pixel / 32];
        bool own_wanted = wanted >> (pixel & 31) & 1;
        int cells = fill ? side : KP, span = widest() - cells + 1;
        bool wide = any && !scattered && vote.right - vote.left >= span;
        if (__syncthreads_or(wide)) {
            if (wide && own_wanted) {
                Strip &strip = vote.strips[min((own.ix - vote.left) / span, MAXSTRIPS - 1)];
                atomicMin(&strip.left, own.ix);
                atomicMin(&strip.top, own.iy);
                atomicMax(&strip.right, own.ix);
                atomicMax(&strip.bottom, own.iy);
                atomicAdd(&strip.count, 1);
            }
            __syncthreads();
        }
        if (any) {
            if (own_wanted) *noted = (u32)(own.ix - from_x + BIAS) | (u32)(own.iy - from_y + BIAS) << 16;
            if (own.has_tile && (pixel & 31) == 0) {
                p.kept.wanted[word] = wanted;
                p.kept.filled[word] = fill ? before | wanted : before & ~wanted;
            }
        }
        int chunks = 0;
        if (pixel < MAXSTRIPS) {
            Strip strip = {vote.left, vote.right, vote.top, vote.bottom, pixel ? 0 : all ? count : missing};
            if (wide) strip = vote.strips[pixel];
            int rows = NCOL / chunk_width(chunk_width_index(strip.right - strip.left + cells));
            if (strip.count) chunks = min((strip.bottom - strip.top + cells + rows - 1) / rows, strip.count * (fill ? 3 : 2));
        }
#pragma unroll
        for (int i = 1; i < MAXSTRIPS; i *= 2) chunks += __shfl_xor_sync(0xffffffffu, chunks, i);
        if (any && own.has_tile && pixel == 0) {
            p.kept.stamps[own.slot] = *p.kept.stamp;
            int which = scattered ? (level ? CLASSES - 1 : 0) : class_of(chunks);
            int at = (int)atomicAdd(p.kept.counts + which, 1u);
            atomicAdd(p.kept.counts + CLASSES, (u32)(scattered ? 2 * count : chunks));
            p.kept.entries[which * p.kept.most_entries + at] = own.slot << 2 | (u32)scattered << 1 | (u32)fill;
        }
    }
    return own.valid && !(wanted >> (pixel & 31) & 1);
}

extern "C" __global__ void __launch_bounds__(KEPT_PIXELS, 6) sample_kept(const __grid_constant__ Params p) {
    __shared__ Vote votes[KEPT_TILES];
#if CLAST
    __shared__ out_t results[128 * KW * KW];
    __shared__ u32 blended_pixels[4];
#endif
#if HOPPER
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");  // the lookup's blocks take the place of those that end
#endif
    KeptPixel own = kept_pixel(p, threadIdx.x);
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
        for (int o = 0; o < KW * KW; o++) *(out_t *)(to + (u64)step_y * (u32)o) = OutElement::pack(0.f);
    }
    if (ours) {
        float scale = KEPT == 1 ? 1.f : *p.scale, wx0 = (1.f - own.fx) * scale, wx1 = own.fx * scale, wy0 = 1.f - own.fy, wy1 = own.fy;
        float previous[KW];
        constexpr int bytes = KEPT == 3 ? 4 : 2;
        const u8 *patch = patches_of(p, own.batch, own.tile_x, own.tile_y, level), *lower = patch + side * side * (2 * KEPT_PIXELS);
        int first = (dy * side + dx) * KEPT_PIXELS + threadIdx.x;
        patch += first * bytes;
        lower += first;
#pragma unroll 1
        for (int row = 0; row < KP; row += 2) {
            float v[KP], u[KP];
            load_row(v, patch, lower);
            load_row(u, patch + side * (KEPT_PIXELS * bytes), lower + side * KEPT_PIXELS);
            patch += 2 * side * (KEPT_PIXELS * bytes);
            lower += 2 * side * KEPT_PIXELS;
#pragma unroll
            for (int c = 0; c < KW; c++) {
                float above = blended(wx0, v[c], wx1, v[c + 1]), below = blended(wx0, u[c], wx1, u[c + 1]);
                if (row) *(out_t *)(to - step_y + (u64)step_x * c) = OutElement::pack(blended(wy0, previous[c], wy1, above));
                *(out_t *)(to + (u64)step_x * c) = OutElement::pack(blended(wy0, above, wy1, below));
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
    int left = (own.tile_x - own.which) * TILE_W, top = own.tile_y * TILE_H;
    for (int i = threadIdx.x / 32; i < 128; i += 4)
        if (blended_pixels[i / 32] >> (i & 31) & 1) {
            int which = GROUPS == 1 ? i >> 4 & 1 : 0, at_pixel = GROUPS == 1 ? (i >> 5) * 16 + (i & 15) : i;
            out_t *at = image + ((i64)(top + at_pixel / TILE_W) * p.width + left + which * TILE_W + at_pixel % TILE_W) * step;
#pragma unroll
            for (int c = 0; c < KW * KW; c += 32)
                if (c + lane < KW * KW) store_streaming(at + c + lane, results[i * KW * KW + c + lane]);
        }
#endif
}
