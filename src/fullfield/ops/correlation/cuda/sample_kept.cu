// Runs ahead of a lookup of a pair that keeps products. Pixels whose windows lie in their patches are blended from them; the others, and
// perhaps their neighbours, are written down for the lookup. A block is 16x8 source pixels and a level, one or two tiles of the lookup.
// #include'd after common, dots, keep and sample.
//
// Macros: NEAR, COHERENT, COSTLY, DIVIDED see below.

#if KEPT == 3
#undef HERE
#endif
#define TILE_PIXELS KEPT_PIXELS
#ifndef REGION_W
#define REGION_W 16
#endif
#define REGION_H (128 / REGION_W)
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
#ifndef ALLIF
#define ALLIF
#endif
#ifndef ROWS_UNROLLED
#define ROWS_UNROLLED 1
#endif
#ifdef STAGED
#define ROW_CELL 32
#else
#define ROW_CELL TILE_PIXELS
#endif
#ifndef SAMPLE_BLOCKS
#define SAMPLE_BLOCKS 8
#endif
static_assert(128 % TILE_PIXELS == 0 && (TILE_W == 8 || TILE_W == 16) && TILE_H <= 8, "tiles must fill 16x8 pixels");

// What the pixels of a tile say together.
struct Vote {
    u32 missing[TILE_PIXELS / 32], valid[TILE_PIXELS / 32], near[TILE_PIXELS / 32], unknown[TILE_PIXELS / 32];
    int left, right, top, bottom, far;
#ifdef HERE
    int miss_left, miss_right, miss_top, miss_bottom, here;
#endif
};
#ifdef HERE
struct Filling { int who[TILE_PIXELS], x[TILE_PIXELS], y[TILE_PIXELS]; };  // the pixels whose patches are written by this block, where these begin
#ifndef FILL_INLINE
#define FILL_INLINE __forceinline__
#endif
#define HERE_PITCH (ROWLEN / 2 + 4)   // words from pixel to pixel, so that operands do not conflict
#ifndef AT_ONCE
#define AT_ONCE 32
#endif
#ifndef HERE_AREA
#define HERE_AREA 512
#endif
#endif

template <int N>
static __device__ __forceinline__ void load_row(float (&v)[N], const u8 *patch, const u8 *lower) {
#ifdef NO_LOAD
    for (int c = 0; c < N; c++) v[c] = (float)((u64)patch + c);
    return;
#endif
#pragma unroll
    for (int c = 0; c < N; c++) {
#if KEPT == 1
        v[c] = KeptElement::unpack(((const u16 *)patch)[c * ROW_CELL]);
#elif KEPT == 2
        v[c] = __uint_as_float((u32)((const u16 *)patch)[c * ROW_CELL] << 16 | (u32)lower[c * ROW_CELL] << 8);
#else
        v[c] = ((const float *)patch)[c * ROW_CELL];
#endif
    }
}

// not yet
static __device__ __forceinline__ void put_result(out_t *at, float x) {
#ifdef NO_STORE
    if (x != 12345.f) return;
#endif
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
    int regions_x = (p.width + REGION_W - 1) / REGION_W, regions_y = (p.height + REGION_H - 1) / REGION_H, region = blockIdx.x / p.levels, region_row = region / regions_x;
    int column = threadIdx.x % REGION_W, line = threadIdx.x / REGION_W;
    own.level = blockIdx.x - region * p.levels;
    own.batch = region_row / regions_y;
    own.x = (region - region_row * regions_x) * REGION_W + column;
    own.y = (region_row - own.batch * regions_y) * REGION_H + line;
    own.which = column / TILE_W + line / TILE_H;
    own.pixel = line % TILE_H * TILE_W + column % TILE_W;
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

#ifdef HERE
// Writes the patches of a tile's pixels that are noted in what. features: of AT_ONCE pixels.
static __device__ FILL_INLINE void fill_here(const Params &p, int level, int batch, int left, int top, int count, const Filling &what, u32 *features) {
    const int side = p.kept.side[level], h = p.level_h[level], w = p.level_w[level];
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, quad = lane & 3, r = lane >> 2;
    i64 tile = ((i64)batch * p.tiles_y + top / TILE_H) * p.tiles_x + left / TILE_W;
    u8 *patch = patch_of(p, tile, level);
    const u16 *f2 = p.f2 + p.level_offset[level] + (i64)batch * h * w * ROWLEN;
    float scale = *p.scale;
#pragma unroll 1
    for (int begin = 0; begin < count; begin += AT_ONCE) {
        int n = min(AT_ONCE, count - begin), eights = (n + 7) / 8;
        __syncthreads();
#pragma unroll 1
        for (int c = lane; c < ROWLEN / 8; c += 32) {
#pragma unroll 1
            for (int i0 = 0; i0 < AT_ONCE / 4; i0 += 4) {
            uint4 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int who = what.who[begin + min((i0 + i) * 4 + warp, n - 1)], x = left + who % TILE_W;
                v[i] = *((const uint4 *)pixel_octet(p, batch, top + who / TILE_W, x / 8) + (x & 7) * 4 + (c >> 2) * 32 + (c & 3));
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 *to = features + ((i0 + i) * 4 + warp) * HERE_PITCH + (c >> 2) * 16 + (c & 3);
                to[0] = v[i].x;
                to[4] = v[i].y;
                to[8] = v[i].z;
                to[12] = v[i].w;
            }
            }
        }
        int x0 = BIG, y0 = BIG, x1 = -BIG, y1 = -BIG;
        for (int i = lane; i < n; i += 32) {
            x0 = min(x0, what.x[begin + i]);
            y0 = min(y0, what.y[begin + i]);
            x1 = max(x1, what.x[begin + i]);
            y1 = max(y1, what.y[begin + i]);
        }
        x0 = warp_min(x0), y0 = warp_min(y0), x1 = warp_max(x1) + side, y1 = warp_max(y1) + side;
        int width = x1 - x0, cells = width * (y1 - y0);
        __syncthreads();
#pragma unroll 1
        for (int t = warp * 16; t < cells; t += 64) {
            int ya = y0 + (t + r) / width, xa = x0 + (t + r) % width, yb = y0 + (t + r + 8) / width, xb = x0 + (t + r + 8) % width;
            bool ina = (u32)xa < (u32)w && (u32)ya < (u32)h, inb = (u32)xb < (u32)w && (u32)yb < (u32)h;
            const uint2 *fa = (const uint2 *)(f2 + ((i64)ya * w + xa) * ROWLEN) + quad, *fb = (const uint2 *)(f2 + ((i64)yb * w + xb) * ROWLEN) + quad;
            float d[AT_ONCE / 8][4];
#pragma unroll
            for (int i = 0; i < AT_ONCE / 8; i++) d[i][0] = d[i][1] = d[i][2] = d[i][3] = 0.f;
#pragma unroll 1
            for (int s = 0; s < CPAD / 16; s += 4) {
                uint2 a[4], b[4];
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    a[j] = b[j] = make_uint2(0, 0);
                    if (ina) a[j] = fa[(s + j) * 4];
                    if (inb) b[j] = fb[(s + j) * 4];
                }
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int i = 0; i < AT_ONCE / 8; i++)
                        if (i < eights) {
                            uint2 c = *(const uint2 *)(features + (i * 8 + r) * HERE_PITCH + (s + j) * 8 + quad * 2);
                            mma_16816(d[i], a[j].x, b[j].x, a[j].y, b[j].y, c.x, c.y);
                        }
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE / 8; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    int number = i * 8 + quad * 2 + (j & 1);
                    if (number >= n) continue;
                    int x = (j < 2 ? xa : xb) - what.x[begin + number], y = (j < 2 ? ya : yb) - what.y[begin + number];
                    if ((u32)x < (u32)side && (u32)y < (u32)side)
                        keep_product(patch, side, (y * side + x) * TILE_PIXELS + what.who[begin + number], as_kept(d[i][j], scale));
                }
        }
    }
}
#endif

static __device__ __forceinline__ int in_patch(u32 origin, int ix, int shift) { return ix - ((int)(origin >> shift & 0xffff) - BIAS); }

// Whether the lookup has nothing to do for the pixel; notes what it has to do for others. x, y: where the window begins in the patch.
static __device__ __forceinline__ bool check_pixel(const Params &p, const KeptPixel &own, Vote *votes, u32 *features, int &x, int &y) {
    const int level = own.level, pixel = own.pixel, side = p.kept.side[level], word = own.slot * (TILE_PIXELS / 32) + pixel / 32;
    u32 *noted = p.kept.origins + (i64)own.slot * TILE_PIXELS + pixel, origin = *noted, before = p.kept.filled[word];
    bool stale = p.kept.stamps[own.slot] != *p.kept.stamp;
    if (stale) before = 0;
    int dx = in_patch(origin, own.ix, 0), dy = in_patch(origin, own.iy, 16);
    x = dx;
    y = dy;
    bool hit = before >> (pixel & 31) & 1 && (u32)dx <= (u32)(side - KP) && (u32)dy <= (u32)(side - KP), miss = own.valid && !hit;
    u32 wanted = 0;
    if (__syncthreads_or(miss)) {
        Vote &vote = votes[own.which];
        if (threadIdx.x < TILES) {
            Vote &first = votes[threadIdx.x];
            for (int i = 0; i < TILE_PIXELS / 32; i++) first.missing[i] = first.valid[i] = first.near[i] = first.unknown[i] = 0;
            first.left = first.top = BIG;
            first.right = first.bottom = -BIG;
            first.far = 0;
#ifdef HERE
            first.miss_left = first.miss_top = BIG;
            first.miss_right = first.miss_bottom = -BIG;
            first.here = 0;
#endif
        }
        __syncthreads();
        // Neighbours so far apart are hardly computed together.
        int other_x = __shfl_up_sync(0xffffffffu, own.ix, 1), other_y = __shfl_up_sync(0xffffffffu, own.iy, 1);
        bool other_valid = __shfl_up_sync(0xffffffffu, (int)own.valid, 1);
        bool far = own.x % TILE_W && own.valid && other_valid && ((u32)(own.ix - other_x + KP / 2) > KP || (u32)(own.iy - other_y + KP / 2) > KP);
        int from_x = lead(own.fx, side), from_y = lead(own.fy, side);
        if (own.valid) {
            u32 bit = 1u << (pixel & 31);
            bool known = !stale && origin != 0;
            atomicOr(vote.valid + pixel / 32, bit);
            if (miss) atomicOr(vote.missing + pixel / 32, bit);
#ifdef HERE
            if (miss) {
                atomicMin(&vote.miss_left, own.ix);
                atomicMin(&vote.miss_top, own.iy);
                atomicMax(&vote.miss_right, own.ix);
                atomicMax(&vote.miss_bottom, own.iy);
            }
#endif
            if (miss && !known) atomicOr(vote.unknown + pixel / 32, bit);
            if (miss && known && (u32)(dx - from_x + NEAR) <= 2 * NEAR && (u32)(dy - from_y + NEAR) <= 2 * NEAR) atomicOr(vote.near + pixel / 32, bit);
            if (far) atomicAdd(&vote.far, 1);
            atomicMin(&vote.left, own.ix);
            atomicMin(&vote.top, own.iy);
            atomicMax(&vote.right, own.ix);
            atomicMax(&vote.bottom, own.iy);
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
        bool scattered = 2 * vote.far > count;
        if (missing) {
            float area = ((float)(vote.right - vote.left) + side) * ((float)(vote.bottom - vote.top) + side);
            float least = ((TILE_W >> level) + side) * ((TILE_H >> level) + side);
            bool coherent = area <= COHERENT * least;
            bool fill = 2 * (near + (coherent ? unknown : 0)) >= missing, all = fill && coherent ALLIF;
            wanted = (all ? vote.valid : vote.missing)[pixel / 32];
#ifdef HERE
            if (own.has_tile && pixel == 0 && fill) {
                int wide = all ? vote.right - vote.left : vote.miss_right - vote.miss_left, high = all ? vote.bottom - vote.top : vote.miss_bottom - vote.miss_top;
                if ((wide + side) * (high + side) <= HERE_AREA && *(volatile u32 *)(p.kept.counts + 3) < HERE) vote.here = atomicAdd(p.kept.counts + 3, 1u) < HERE ? all ? count : missing : 0;
            }
#endif
            if (wanted >> (pixel & 31) & 1) *noted = (u32)(own.ix - from_x + BIAS) | (u32)(own.iy - from_y + BIAS) << 16;
            if (own.has_tile && (pixel & 31) == 0) {
                p.kept.wanted[word] = wanted;
                p.kept.filled[word] = fill ? before | wanted : before & ~wanted;
            }
            if (own.has_tile && pixel == 0) {
                p.kept.stamps[own.slot] = *p.kept.stamp;
#ifdef HERE
                if (!vote.here) {
#endif
                int chunks = (all ? count : missing) * (fill ? 3 : 2);
                if (!scattered) chunks = min(chunks, (int)(min(area, least * (1.f + vote.far * (8.f / TILE_PIXELS))) / (NCOL * 2 / 3)) + 1);
                int parts = scattered || chunks <= DIVIDED ? 1 : chunks > 3 * DIVIDED ? 16 : 4, at = (int)atomicAdd(p.kept.counts + (chunks <= COSTLY), (u32)parts);
                for (int part = 0; part < parts; part++, at++) {
                    u32 *entry = p.kept.entries + 2 * (chunks > COSTLY ? at : p.kept.most_entries - 1 - at);
                    entry[0] = own.slot << 1 | (u32)fill;
                    entry[1] = ((1u << 16 / parts) - 1) << part * (16 / parts);
                }
#ifdef HERE
                }
#endif
            }
        }
#ifdef HERE
        __syncthreads();
        if (vote.here && wanted >> (pixel & 31) & 1) {
            int rank = __popc(wanted & ((1u << (pixel & 31)) - 1));
            for (int i = 0; i < pixel / 32; i++) rank += __popc(vote.here == count ? vote.valid[i] : vote.missing[i]);
            Filling &to = ((Filling *)(features + AT_ONCE * HERE_PITCH))[own.which];
            to.who[rank] = pixel;
            to.x[rank] = own.ix - from_x;
            to.y[rank] = own.iy - from_y;
            x = from_x;
            y = from_y;
            wanted = 0;
        }
        __syncthreads();
        for (int i = 0; i < TILES; i++)
            if (votes[i].here) {
                int left = own.x - (int)(threadIdx.x % REGION_W) + (REGION_W > TILE_W ? i * TILE_W : 0), top = own.y - (int)(threadIdx.x / REGION_W) + (REGION_W > TILE_W ? 0 : i * TILE_H);
                fill_here(p, own.level, own.batch, left, top, votes[i].here, ((const Filling *)(features + AT_ONCE * HERE_PITCH))[i], features);
            }
        __syncthreads();
#endif
    }
    return own.valid && !(wanted >> (pixel & 31) & 1);
}

#ifdef STAGED
// A warp's pixels are two groups of 16 that follow one another in a tile.
static __device__ __forceinline__ int group_of(int pixel) { return TILE_W == 8 ? threadIdx.x >> 3 & 1 : threadIdx.x >> 4 & 1; }

// Copies those cells of the warp's patches that its pixels ask for to shared memory: [row][column][two groups of 16 pixels].
static __device__ __forceinline__ void stage_patches(const Params &p, const KeptPixel &own, bool ours, int dx, int dy, u8 *stage) {
    int lane = threadIdx.x & 31, side = p.kept.side[own.level], group = group_of(own.pixel);
    u32 columns = __reduce_or_sync(0xffffffffu, ours ? 1u << (16 * group + dx) : 0u), rows = __reduce_or_sync(0xffffffffu, ours ? 1u << (16 * group + dy) : 0u);
    constexpr int bytes = KEPT == 3 ? 4 : 2, pieces = bytes;
    const u8 *patch = patch_of(p, own.tile, own.level) + (own.pixel & ~15) * bytes, *lower = patch_of(p, own.tile, own.level) + side * side * (2 * TILE_PIXELS) + (own.pixel & ~15);
    u32 to = smem_address(stage);
#pragma unroll
    for (int g = 0; g < 2; g++) {
        int from = TILE_W == 8 ? g * 8 : g * 16;
        u64 source = __shfl_sync(0xffffffffu, (u64)patch, from), source_lower = __shfl_sync(0xffffffffu, (u64)lower, from);
        u32 x = columns >> (16 * g) & 0xffff, y = rows >> (16 * g) & 0xffff;
        if (!x) continue;
        int x0 = __ffs(x) - 1, y0 = __ffs(y) - 1, width = 31 - __clz(x) - x0 + KP, height = 31 - __clz(y) - y0 + KP;
        int c = lane / pieces, cell = y0 * side + x0 + c, last = (y0 + height - 1) * side + x0 + width - 1;
        while (c >= width) c -= width, cell += side - width;
        while (cell <= last) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + cell * (32 * bytes) + g * (16 * bytes) + lane % pieces * 16), "l"((const void *)(source + cell * (TILE_PIXELS * bytes) + lane % pieces * 16)) : "memory");
            c += 32 / pieces;
            cell += 32 / pieces;
            while (c >= width) c -= width, cell += side - width;
        }
#if KEPT == 2
        c = lane, cell = y0 * side + x0 + c;
        while (c >= width) c -= width, cell += side - width;
        while (cell <= last) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + side * side * 64 + cell * 32 + g * 16), "l"((const void *)(source_lower + cell * TILE_PIXELS)) : "memory");
            c += 32;
            cell += 32;
            while (c >= width) c -= width, cell += side - width;
        }
#endif
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncwarp();
}
#endif

extern "C" __global__ void __launch_bounds__(128, SAMPLE_BLOCKS) sample_kept(const __grid_constant__ Params p) {
#if defined(STAGED) || defined(HERE)
    extern __shared__ __align__(16) u8 staged_patches[];
#endif
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
#ifdef HERE
    u32 *features = (u32 *)staged_patches;
#else
    u32 *features = nullptr;
#endif
    bool ours = check_pixel(p, own, votes, features, dx, dy);
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
#ifdef STAGED
    u8 *stage = staged_patches + (threadIdx.x / 32) * (32 * STAGED);
    stage_patches(p, own, ours, dx, dy, stage);
    constexpr int CELL = 32;
#else
    constexpr int CELL = TILE_PIXELS;
#endif
    if (ours) {
        float scale = KEPT == 1 ? 1.f : *p.scale, wx0 = (1.f - own.fx) * scale, wx1 = own.fx * scale, wy0 = 1.f - own.fy, wy1 = own.fy;
        float previous[KW];
        constexpr int bytes = KEPT == 3 ? 4 : 2;
#ifdef STAGED
        const u8 *patch = stage, *lower = stage + side * side * (2 * 32);
        int first = (dy * side + dx) * CELL + group_of(pixel) * 16 + (pixel & 15);
#else
        const u8 *patch = patch_of(p, own.tile, level), *lower = patch + side * side * (2 * TILE_PIXELS);
        int first = (dy * side + dx) * TILE_PIXELS + pixel;
#endif
        patch += first * bytes;
        lower += first;
#ifdef PIPELINED
        float v[KP], u[KP];
        load_row(v, patch, lower);
        load_row(u, patch + side * (CELL * bytes), lower + side * CELL);
#endif
#pragma unroll ROWS_UNROLLED
        for (int row = 0; row < KP; row += 2) {
#ifdef PIPELINED
            float next_v[KP], next_u[KP];
            patch += 2 * side * (CELL * bytes);
            lower += 2 * side * CELL;
            if (row + 2 < KP) {
                load_row(next_v, patch, lower);
                load_row(next_u, patch + side * (CELL * bytes), lower + side * CELL);
            }
#else
            float v[KP], u[KP];
            load_row(v, patch, lower);
            load_row(u, patch + side * (CELL * bytes), lower + side * CELL);
            patch += 2 * side * (CELL * bytes);
            lower += 2 * side * CELL;
#endif
#pragma unroll
            for (int c = 0; c < KW; c++) {
                float above = blended(wx0, v[c], wx1, v[c + 1]), below = blended(wx0, u[c], wx1, u[c + 1]);
                if (row) put_result((out_t *)(to - step_y + (u64)step_x * c), blended(wy0, previous[c], wy1, above));
                put_result((out_t *)(to + (u64)step_x * c), blended(wy0, above, wy1, below));
                previous[c] = below;
            }
            to += 2 * (u64)step_y;
#ifdef PIPELINED
#pragma unroll
            for (int c = 0; c < KP; c++) v[c] = next_v[c], u[c] = next_u[c];
#endif
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
