// What happens to the products of a chunk. A warp owns a block of 16 pixels: it puts their products into its part of shared
// memory, and each pixel streams over the rows of its own window: blend along x, keep the previous row, blend along y, write
// the finished row. Two lanes serve a pixel: the lower half of the warp the first taps in x, the upper half the others.

#define SCATTER_FLOATS (ROWLEN / 2 + (KP * KP + 15) / 16 * 16)
#define STAGING_STRIDE 20          // 16 pixels and 4: neither the writes nor the reads of coherent windows collide
#define STAGING_FLOATS (NCOL * STAGING_STRIDE > SCATTER_FLOATS ? NCOL * STAGING_STRIDE : SCATTER_FLOATS)  // of a warp
#define DX0 (KW / 2)
#define DX1 (KW - DX0)
typedef Element<OUT> OutElement;
typedef OutElement::type out_t;
#if CLAST
#define OUT_BUFFER_BYTES ((16 * KW * KW * (OUT == 0 ? 4 : 2) + 15) / 16 * 16)  // of a warp
#else
#define OUT_BUFFER_BYTES 0
#endif

struct WarpPixel {
    float x, y;
    bool inside;                   // of the image
    int ix, iy;
    bool active;
    bool handled;                  // its taps of this level are written by this item
    float wx0, wx1, wy0, wy1;
    float previous[DX1];
    out_t *base;                   // where the lane's first tap goes
    u32 step_x, step_y;            // bytes from tap to tap
};

// Image coordinates of pixel i of the warp's block.
static __device__ __forceinline__ int block_x(const Item &it, int i) { return it.tile_x * TILE_W + i % BLOCK_W; }
static __device__ __forceinline__ int block_y(const Item &it, int row, int i) { return it.tile_y * TILE_H + row * BLOCK_H + i / BLOCK_W; }

// Prepares the pixel for a level; pixels without a window get their zeros here. row: the warp's block of the tile.
static __device__ __forceinline__ void enter_level(WarpPixel &px, const Params &p, const Item &it, int row, float scale, int level, i64 plane,
                                                   out_t *buffer) {
    int lane = lane_id(), upper = lane >> 4;
    float fx, fy;
    bool valid = window(px.x, px.y, level, p.level_h[level], p.level_w[level], px.ix, px.iy, fx, fy);
    px.active = valid && px.inside;
    px.handled = px.inside && !valid;
    px.wx0 = (1.f - fx) * scale;
    px.wx1 = fx * scale;
    px.wy0 = 1.f - fy;
    px.wy1 = fy;
#if CLAST
    out_t *base = buffer + (lane & 15) * KW * KW;
    i64 step_x = KW, step_y = 1;
#else
    out_t *base = (out_t *)p.out + ((i64)it.batch * p.levels + level) * (KW * KW) * plane + (i64)block_y(it, row, lane & 15) * p.width +
                  block_x(it, lane & 15);
    i64 step_x = KW * plane, step_y = plane;
#endif
    if (px.inside && !valid)
#pragma unroll 1
        for (int o = upper; o < KW * KW; o += 2) {
            out_t *at = base + o / KW * step_x + o % KW * step_y;
#if CLAST
            *at = OutElement::pack(0.f);
#else
            store_streaming(at, OutElement::pack(0.f));
#endif
        }
    px.base = base + upper * DX0 * step_x;
}

#if CLAST
// Writes the warp's handled pixels of a finished level from the buffer, coalesced.
static __device__ __forceinline__ void leave_level(const Params &p, const Item &it, int level, int row, const WarpPixel &px, const out_t *buffer) {
    int lane = lane_id();
    __syncwarp();
    u32 handled = __ballot_sync(0xffffffffu, px.handled);
#pragma unroll 4
        for (int i = 0; i < 16; i++) {
            int x = block_x(it, i), y = block_y(it, row, i);
            out_t *to = (out_t *)p.out + (((i64)it.batch * p.height + y) * p.width + x) * ((i64)p.levels * KW * KW) + level * (KW * KW);
            if (handled >> i & 1)
                for (int c = lane; c < KW * KW; c += 32) store_streaming(to + c, buffer[i * KW * KW + c]);
        }
    __syncwarp();
}
#endif

static __device__ __forceinline__ void store_if(bool yes, u64 at, float x) {
#if CLAST
    if (yes) *(out_t *)at = OutElement::pack(x);
#elif OUT == 0
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p st.global.cs.f32 [%0], %1;\n}" ::"l"(at), "f"(x), "r"((u32)yes) : "memory");
#else
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p st.global.cs.u16 [%0], %1;\n}" ::"l"(at), "h"(OutElement::pack(x)), "r"((u32)yes) : "memory");
#endif
}

static __device__ __forceinline__ void sample_chunk(WarpPixel &px, const Step &step, const float *staging) {
    int lane = lane_id(), upper = lane >> 4;
    bool member = px.active && step.rows > 0 && px.ix >= step.first && px.ix < step.last;
    int k = member ? step.y - px.iy : KP;
    px.handled = px.handled || member;
    const float *column = staging + (member ? px.ix - step.x + upper * DX0 : 0) * STAGING_STRIDE + (lane & 15);
    u64 base = (u64)px.base;
    int stride = step.width * STAGING_STRIDE;
#pragma unroll 1
    for (int ry = 0; ry < step.rows; ry += 2, k += 2, column += 2 * stride) {  // two rows at a time
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
            float h = px.wx0 * v[c] + px.wx1 * v[c + 1], g = px.wx0 * u[c] + px.wx1 * u[c + 1];
            store_if(c < DX0 ? first : first && upper, to + (u64)px.step_x * c, px.wy0 * px.previous[c] + px.wy1 * h);
            store_if(c < DX0 ? second : second && upper, then + (u64)px.step_x * c, px.wy0 * h + px.wy1 * g);
            px.previous[c] = both ? g : h;
        }
    }
}

// Whether one of the warp's pixels needs a row of the chunk.
static __device__ __forceinline__ bool warp_needs(const WarpPixel &px, const Step &step) {
    return __any_sync(0xffffffffu, px.active && px.ix >= step.first && px.ix < step.last && px.iy < step.y + step.rows && px.iy + KP > step.y);
}

static __device__ __forceinline__ uint4 load_feature(const u16 *p, bool inside) {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (inside) v = *(const uint4 *)p;
    return v;
}

// Where the features of the warp's block begin.
static __device__ __forceinline__ i64 pixel_block(const Params &p, const Item &it, int row) {
    int rows = (p.height + BLOCK_H - 1) / BLOCK_H;
    return (((i64)it.batch * rows + min(it.tile_y * (TILE_H / BLOCK_H) + row, rows - 1)) * p.tiles_x + it.tile_x) * (16 * ROWLEN);
}

#ifndef SCATTER_INLINE
#define SCATTER_INLINE __forceinline__
#endif
// A warp's own share (16 pixels) of a scattered strip: per pixel, the products with its (2r+2)^2 positions, read straight from
// memory. scratch: SCATTER_FLOATS floats of the warp. xs, ys: coordinates of the warp's pixels.
static __device__ SCATTER_INLINE void scattered_pixels(const Params &p, int level, int first, int last, float scale, const Item &it, int row,
                                                     const float *xs, float *scratch, out_t *buffer) {
    const float *ys = xs + 16;
    int lane = lane_id(), q = lane & 3, r = lane >> 2;
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
        const u32 *f1 = (const u32 *)(p.f1 + pixel_block(p, it, row)) + (i & 7) * 16 + (i >> 3);
        __syncwarp();
        for (int c = lane; c < ROWLEN / 4; c += 32) {  // back to the natural order of channels
            const u32 *from = f1 + (c >> 2) * 128 + (c & 3) * 4;
            own[(c >> 2) * 8 + (c & 3)] = from[0];
            own[(c >> 2) * 8 + 4 + (c & 3)] = from[2];
        }
        __syncwarp();
#pragma unroll 1
        for (int t = 0; t < (KP * KP + 15) / 16; t++) {
            int pa = t * 16 + r, pb = pa + 8;
            int xa = ix + pa % KP, ya = iy + pa / KP, xb = ix + pb % KP, yb = iy + pb / KP;
            bool ina = pa < KP * KP && (u32)xa < (u32)w && (u32)ya < (u32)h, inb = pb < KP * KP && (u32)xb < (u32)w && (u32)yb < (u32)h;
            const u16 *fa = f2 + ((i64)ya * w + xa) * ROWLEN + q * 8, *fb = f2 + ((i64)yb * w + xb) * ROWLEN + q * 8;
            float d[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll 4
            for (int g = 0; g < CPAD / 32; g++) {
                uint4 va = load_feature(fa + g * 32, ina), vb = load_feature(fb + g * 32, inb);
                uint4 b = *(const uint4 *)(own + g * 16 + q * 4);
                mma_16816(d, va.x, vb.x, va.y, vb.y, b.x, b.y);
                mma_16816(d, va.z, vb.z, va.w, vb.w, b.z, b.w);
#if SPLIT
                uint4 c = *(const uint4 *)(own + CPAD / 2 + g * 16 + q * 4);
                mma_16816(d, va.x, vb.x, va.y, vb.y, c.x, c.y);
                mma_16816(d, va.z, vb.z, va.w, vb.w, c.z, c.w);
                va = load_feature(fa + CPAD + g * 32, ina);
                vb = load_feature(fb + CPAD + g * 32, inb);
                mma_16816(d, va.x, vb.x, va.y, vb.y, b.x, b.y);
                mma_16816(d, va.z, vb.z, va.w, vb.w, b.z, b.w);
#endif
            }
            if (q == 0) {
                dots[pa] = d[0];
                dots[pb] = d[2];
            }
        }
        __syncwarp();
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

// The A operand of 16 pixels' products: `from` is the lane's place in their block.
template <int N>
static __device__ __forceinline__ void load_pixels(u32 (&a)[N][4], const u16 *from) {
#pragma unroll
    for (int s = 0; s < N; s++) {
        uint4 v = *(const uint4 *)(from + s * 256);
        a[s][0] = v.x;
        a[s][1] = v.y;
        a[s][2] = v.z;
        a[s][3] = v.w;
    }
}

// A warp's 16 rows of the accumulators of a 64 x NCOL product, in the layout shared by mma.sync and wgmma.
template <int N>
static __device__ __forceinline__ void put_products(const float (&d)[N], float *staging) {
    int lane = lane_id();
    float *at = staging + (lane & 3) * 2 * STAGING_STRIDE + (lane >> 2);
#pragma unroll
    for (int j = 0; j < N / 4; j++) {
        at[(8 * j) * STAGING_STRIDE] = d[4 * j];
        at[(8 * j + 1) * STAGING_STRIDE] = d[4 * j + 1];
        at[(8 * j) * STAGING_STRIDE + 8] = d[4 * j + 2];
        at[(8 * j + 1) * STAGING_STRIDE + 8] = d[4 * j + 3];
    }
}
