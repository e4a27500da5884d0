// Sampling of a chunk's products. A warp owns a block of 16 pixels and puts their products into its part of shared memory.
// Each pixel walks over the rows of its own window: it blends along x, keeps the previous row, blends along y and writes the
// finished row. Two lanes serve a pixel: the lower half of the warp the first taps in x, the upper half the others.
// Built behind dots.cuh.

#define PART_BYTES (NCOL * CBLK * 2)
#define STAGE_BYTES (PART_BYTES * PARTS)
#define STEPS (CBLK / 16)
#define TILE_PIXELS (64 * GROUPS)
#define SCATTER_FLOATS (ROWLEN / 2 + (KP * KP + 15) / 16 * 16)
#define STAGING_STRIDE 20          // 16 pixels and 4: neither the writes nor the reads of coherent windows collide
#define STAGING_FLOATS (NCOL * STAGING_STRIDE > SCATTER_FLOATS ? NCOL * STAGING_STRIDE : SCATTER_FLOATS)  // a warp's
#define DX0 (KW / 2)
#define DX1 (KW - DX0)
#if CLAST
#define OUT_BUFFER_BYTES ((16 * KW * KW * (OUT == 0 ? 4 : 2) + 15) / 16 * 16)  // a warp's
#else
#define OUT_BUFFER_BYTES 0
#endif

struct WarpPixel {
    bool inside;                   // inside the image
    bool active;
    bool handled;                  // its taps of this level are written by this item
    int ix, iy;
    float wx0, wx1, wy0, wy1;
    float previous[DX1];
    out_t *base;                   // where the lane's first tap goes
    u32 step_x, step_y;            // bytes from tap to tap
};

// Return w0 * a + w1 * b, rounded in one way everywhere.
static __device__ __forceinline__ float blended(float w0, float a, float w1, float b) { return fmaf(w1, b, __fmul_rn(w0, a)); }

// Return the image coordinates of pixel i of the warp's block.
static __device__ __forceinline__ int block_x(const Item &it, int i) { return it.tile_x * TILE_W + i % BLOCK_W; }
static __device__ __forceinline__ int block_y(const Item &it, int row, int i) { return it.tile_y * TILE_H + row * BLOCK_H + i / BLOCK_W; }

static __device__ __forceinline__ void set_steps(WarpPixel &px, const Params &p) {
    px.step_y = (CLAST ? 1 : (u32)p.height * (u32)p.width) * sizeof(out_t);  // a plane has less than 2^26 pixels
    px.step_x = KW * px.step_y;
    asm volatile("" : "+r"(px.step_x), "+r"(px.step_y));  // kept, not recomputed
}

// Prepare the pixel for a tile's levels from it.begin on. `row`: the warp's block of the tile.
static __device__ __forceinline__ void enter_tile(WarpPixel &px, const Params &p, const Item &it, int row, out_t *buffer) {
    int lane = lane_id(), x = block_x(it, lane & 15), y = block_y(it, row, lane & 15);
    px.inside = x < p.width && y < p.height;
#if CLAST
    px.base = buffer + (lane & 15) * KW * KW + (lane >> 4) * (DX0 * KW);
#else
    i64 plane = (i64)p.height * p.width;
    i64 tap = ((i64)it.batch * p.levels + it.begin - 1) * (KW * KW) + (lane >> 4) * (DX0 * KW);
    px.base = (out_t *)p.out + tap * plane + (i64)y * p.width + x;
#endif
}

// Prepare the pixel, whose coordinates are x and y, for the next level; pixels without a window get their zeros here.
static __device__ __forceinline__ void enter_level(WarpPixel &px, const Params &p, float x, float y, float scale, int level) {
    int upper = lane_id() >> 4;
    float fx, fy;
    bool valid = window(x, y, level, p.level_h[level], p.level_w[level], px.ix, px.iy, fx, fy);
    px.active = valid && px.inside;
    px.handled = px.inside && !valid;
    px.wx0 = (1.f - fx) * scale;
    px.wx1 = fx * scale;
    px.wy0 = 1.f - fy;
    px.wy1 = fy;
#if !CLAST
    px.base = (out_t *)((u64)px.base + (u64)px.step_x * KW);
#endif
    if (px.handled) {
        u64 first = (u64)px.base - (u64)px.step_x * (upper * DX0);
#pragma unroll 1
        for (int o = upper; o < KW * KW; o += 2) {
            out_t *at = (out_t *)(first + (u64)px.step_x * (o / KW) + (u64)px.step_y * (o % KW));
#if CLAST
            *at = OutElement::pack(0.f);
#else
            store_streaming(at, OutElement::pack(0.f));
#endif
        }
    }
}

// Write the warp's handled pixels of a finished level from the buffer, coalesced, if the output is channels-last.
static __device__ __forceinline__ void leave_level(const Params &p, const Item &it, int level, int row, const WarpPixel &px, const out_t *buffer) {
#if CLAST
    int lane = lane_id();
    __syncwarp();
    u32 handled = __ballot_sync(ALL, px.handled);
    i64 pixel = (i64)p.levels * KW * KW;
    out_t *to = (out_t *)p.out + (((i64)it.batch * p.height + block_y(it, row, 0)) * p.width + block_x(it, 0)) * pixel + level * (KW * KW) + lane;
    buffer += lane;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        if (handled >> i & 1)
#pragma unroll
            for (int c = 0; c < KW * KW; c += 32)
                if (c + 32 <= KW * KW || lane < KW * KW - c) store_streaming(to + c, buffer[i * KW * KW + c]);
        to += i % BLOCK_W == BLOCK_W - 1 ? (p.width - BLOCK_W + 1) * pixel : pixel;
    }
    __syncwarp();
#endif
}

static __device__ __forceinline__ void store_if(bool yes, u64 at, float x) {
#if CLAST
    if (yes) *(out_t *)at = OutElement::pack(x);
#elif OUT == 0
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p st.global.cs.f32 [%0], %1;\n}" ::"l"(at), "f"(x), "r"((u32)yes) : "memory");
#else
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p st.global.cs.u16 [%0], %1;\n}" ::"l"(at), "h"(OutElement::pack(x)), "r"((u32)yes) : "memory");
#endif
}

// Return whether the pixel takes part in the chunk.
static __device__ __forceinline__ bool is_member(const WarpPixel &px, const Step &step) {
    return px.ix >= step.first && px.ix < step.last;
}

static __device__ __forceinline__ void sample_chunk(WarpPixel &px, const Step &step, const float *staging) {
    int lane = lane_id(), upper = lane >> 4;
    bool member = px.active && step.rows > 0 && is_member(px, step);
    int k = member ? step.y - px.iy : KP;
    px.handled = px.handled || member;
    const float *column = staging + (member ? px.ix - step.x + upper * DX0 : 0) * STAGING_STRIDE + (lane & 15);
    u64 base = (u64)px.base;
    int stride = step.width * STAGING_STRIDE;
#pragma unroll 1
    for (int ry = 0; ry < step.rows; ry += 2, k += 2, column += 2 * stride) {  // two rows at a time
        if (!__any_sync(ALL, (u32)(k + 1) <= KP)) continue;  // no pixel's window has these rows
        bool both = ry + 1 < step.rows;
        const float *below = both ? column + stride : column;
        float v[DX1 + 1], u[DX1 + 1];
#pragma unroll
        for (int c = 0; c <= DX1; c++) v[c] = column[c * STAGING_STRIDE];
#pragma unroll
        for (int c = 0; c <= DX1; c++) u[c] = below[c * STAGING_STRIDE];
        bool first = (u32)(k - 1) < (u32)KW, second = (u32)k < (u32)KW && both;
        u64 to = base + (u64)px.step_y * (u32)(first ? k - 1 : 0), then = base + (u64)px.step_y * (u32)(second ? k : 0);
#pragma unroll
        for (int c = 0; c < DX1; c++) {
            float h = blended(px.wx0, v[c], px.wx1, v[c + 1]), g = blended(px.wx0, u[c], px.wx1, u[c + 1]);
            store_if(c < DX0 ? first : first && upper, to + (u64)px.step_x * c, blended(px.wy0, px.previous[c], px.wy1, h));
            store_if(c < DX0 ? second : second && upper, then + (u64)px.step_x * c, blended(px.wy0, h, px.wy1, g));
            px.previous[c] = both ? g : h;
        }
    }
}

// Return whether one of the warp's pixels needs a row of the chunk.
static __device__ __forceinline__ bool warp_needs(const WarpPixel &px, const Step &step) {
    return __any_sync(ALL, px.active && is_member(px, step) && px.iy < step.y + step.rows && px.iy + KP > step.y);
}

// Return the features of 8 pixels, those from 8 * octet on in row y of the image; the nearest ones if these are outside.
static __device__ __forceinline__ const u16 *pixel_octet(const Params &p, int batch, int y, int octet) {
    int octets = (p.width + 7) / 8;
    return p.f1 + (((i64)batch * p.height + min(y, p.height - 1)) * octets + min(octet, octets - 1)) * (8 * ROWLEN);
}

// Load one pixel's features in the order of channels into shared memory.
static __device__ __forceinline__ void gather_pixel(u32 *own, const Params &p, int batch, int y, int x) {
    const uint4 *from = (const uint4 *)pixel_octet(p, batch, y, x / 8) + (x & 7) * 4;
    for (int c = lane_id(); c < ROWLEN / 8; c += 32) {
        uint4 v = from[(c >> 2) * 32 + (c & 3)];
        u32 *to = own + (c >> 2) * 16 + (c & 3);
        to[0] = v.x;
        to[4] = v.y;
        to[8] = v.z;
        to[12] = v.w;
    }
}

// Compute a warp's 16 pixels of a scattered strip: each one's products with its (2r+2)^2 positions, straight from memory.
// `scratch`: SCATTER_FLOATS floats of the warp. `xs`: the x coordinates of the warp's pixels, then the y coordinates.
static __device__ __forceinline__ void scattered_pixels(const Params &p, int level, int first, int last, float scale, const Item &it, int row,
                                                     const float *xs, float *scratch, out_t *buffer) {
    const float *ys = xs + 16;
    int lane = lane_id();
    int h = p.level_h[level], w = p.level_w[level];
    int batch = it.batch;
    const u16 *f2 = p.f2 + p.level_offset[level] + (i64)batch * h * w * ROWLEN;
    u32 *own = (u32 *)scratch;
    float *dots = scratch + ROWLEN / 2;
    i64 plane = (i64)p.height * p.width;
#pragma unroll 1
    for (int i = 0; i < 16; i++) {
        int ix, iy, x = block_x(it, i), y = block_y(it, row, i);
        float fx, fy;
        if (x >= p.width || y >= p.height) continue;
        if (!window(xs[i], ys[i], level, h, w, ix, iy, fx, fy) || ix < first || ix >= last) continue;
        __syncwarp();
        gather_pixel(own, p, batch, y, x);
        __syncwarp();
        window_products(dots, own, f2, h, w, ix, iy);
#pragma unroll 1
        for (int o = lane; o < KW * KW; o += 32) {
            int dx = o / KW, dy = o % KW;
            const float *v = dots + dy * KP + dx;
            float value = (1.f - fy) * ((1.f - fx) * v[0] + fx * v[1]) + fy * ((1.f - fx) * v[KP] + fx * v[KP + 1]);
            out_t packed = OutElement::pack(value * scale);
#if CLAST
            buffer[i * KW * KW + o] = packed;
#else
            store_streaming((out_t *)p.out + (((i64)batch * p.levels + level) * (KW * KW) + o) * plane + (i64)y * p.width + x, packed);
#endif
        }
    }
    __syncwarp();
}

// Return the cache policy of the first map's features, which are read once: with STREAMED they leave the L2 to the second's.
static __device__ __forceinline__ u64 streaming_policy() {
    u64 policy = 0;
#if __CUDA_ARCH__ >= 800
#if STREAMED
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
#else
    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
#endif
#endif
    return policy;
}
static __device__ __forceinline__ void load_streaming(u32 &a, u32 &b, u32 &c, u32 &d, const u16 *from, u64 policy) {
#if __CUDA_ARCH__ >= 800
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "l"(from), "l"(policy));
#else
    const uint4 v = *(const uint4 *)from;
    a = v.x, b = v.y, c = v.z, d = v.w;
#endif
}

// Load the A operand of the products of the warp's block: steps of 16 channels from `step` of the vectors on.
template <int N>
static __device__ __forceinline__ void load_pixels(u32 (&a)[N][4], const Params &p, const Item &it, int row, int step) {
    const u16 *first = pixel_octet(p, it.batch, block_y(it, row, 0), block_x(it, 0) / 8) + step * 128 + lane_id() * 8;
    const u16 *second = pixel_octet(p, it.batch, block_y(it, row, 8), block_x(it, 8) / 8) + step * 128 + lane_id() * 8;
    u64 policy = streaming_policy();
#pragma unroll
    for (int s = 0; s < N; s += 2) {
        load_streaming(a[s][0], a[s][2], a[s + 1][0], a[s + 1][2], first + s * 128, policy);
        load_streaming(a[s][1], a[s][3], a[s + 1][1], a[s + 1][3], second + s * 128, policy);
    }
}

// Load all parts of a K block.
template <int N>
static __device__ __forceinline__ void load_parts(u32 (&a)[PARTS][N][4], const Params &p, const Item &it, int row, int kb = 0) {
#pragma unroll
    for (int part = 0; part < PARTS; part++) load_pixels(a[part], p, it, row, (part * CPAD + kb * CBLK) / 16);
}

// Store a warp's 16 rows of the accumulators of a 64 x NCOL product, laid out by mma.sync or wgmma; `add` them if set.
template <int N>
static __device__ __forceinline__ void put_products(const float (&d)[N], float *staging, bool add = false) {
    int lane = lane_id();
    float *at = staging + (lane & 3) * 2 * STAGING_STRIDE + (lane >> 2);
#pragma unroll
    for (int j = 0; j < N / 4; j++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float *to = at + (8 * j + (i & 1)) * STAGING_STRIDE + (i >> 1) * 8, sum = add ? *to + d[4 * j + i] : d[4 * j + i];
            *to = sum;
        }
}

