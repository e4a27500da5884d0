// Gradients of both feature maps, for every GPU from sm_80 (mma.sync, bfloat16 operands). One block per tile and block of
// channels walks all levels. Per chunk it builds the weights of its pixels on the chunk's columns (the transposed bilinear blend
// of the incoming gradient) in shared memory and multiplies twice: weights x second map -> first map's gradient, kept in
// registers and added to memory once (no atomics: deterministic); weights^T x first map -> second map's gradient, added to
// memory with float atomics (the order of additions is not fixed).
// Macros beside common's: GRAD element type of the incoming gradient. Both maps lie as [B, h, w, ROWLEN], natural channel order.

typedef Element<GRAD>::type grad_t;

struct BackwardParams {
    Params p;
    const grad_t *grad;
    i64 grad_b, grad_c, grad_y, grad_x;
    float *g1, *g2;                // [B, H, W, CPAD] and the levels one after the other
    float scale;
};

#define NPX (64 * GROUPS)
#define THREADS (256 * GROUPS)     // two warps for each row of 16 pixels: each half of the channels, every second row of a chunk
#define ROWS (4 * GROUPS)
#define PART_BYTES (NCOL * CBLK * 2)
#define F1_BYTES (NPX * CBLK * 2)
#define WSTRIDE (NCOL + 8)         // 16-bit elements of a row of weights
#define W_BYTES (NPX * WSTRIDE * 2)
#define F1_OFFSET (PART_BYTES * PARTS)
#define W_OFFSET (F1_OFFSET + F1_BYTES * PARTS)
#define COORDS_OFFSET (W_OFFSET + W_BYTES * PARTS)
#define SCRATCH_OFFSET (COORDS_OFFSET + NPX * 8)
#define HALF (RADIUS + 1)          // columns of a window that one lane serves

static __device__ __forceinline__ void copy16(u32 to, const u16 *from, bool inside) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}
static __device__ __forceinline__ void matrices(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
static __device__ __forceinline__ void matrices_transposed(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
static __device__ __forceinline__ void add_pair(float *to, float a, float b) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(a), "f"(b) : "memory");
#else
    atomicAdd(to, a);
    atomicAdd(to + 1, b);
#endif
}
// Address of 8 channels (octet c of the block) of row `row` in a swizzled array of `rows` rows.
static __device__ __forceinline__ u32 octet_address(u32 base, int rows, int row, int c) { return base + (c >> 3) * (rows * 128) + row * 128 + ((c ^ row) & 7) * 16; }

struct Pixel {
    float x, y, wx0, wx1, wy0, wy1;
    int ix, iy;
    bool inside, active;
    const grad_t *grad;            // of the level's first tap
};

// The gradient of the taps (first-1+j, k), zero outside of the window.
static __device__ __forceinline__ void gradient_row(const BackwardParams &q, const Pixel &px, int k, int first, float (&row)[HALF + 1]) {
#pragma unroll
    for (int j = 0; j <= HALF; j++) {
        int dx = first - 1 + j;
        bool valid = (u32)dx < (u32)KW && (u32)k < (u32)KW;
        row[j] = valid ? Element<GRAD>::unpack(px.grad[(i64)(dx * KW + k) * q.grad_c]) : 0.f;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) backward(const __grid_constant__ BackwardParams q) {
    extern __shared__ u8 raw[];
    const Params &p = q.p;
    u32 base = (smem_address(raw) + 1023) & ~1023u;
    u8 *smem = raw + (base - smem_address(raw));
    int lane = threadIdx.x & 31, upper = lane >> 4, warp = (threadIdx.x >> 5) % ROWS, side = (threadIdx.x >> 5) / ROWS;  // row, half
    int kb = blockIdx.y;
    Item it = decode_item(p, blockIdx.x);
    Plan plan;  // every warp walks the same plan
    float *coords = (float *)(smem + COORDS_OFFSET);
    plan.x.at = coords + lane;
    plan.y.at = coords + NPX + lane;
    if (threadIdx.x < 32) plan.load(p, it);
    __syncthreads();
    plan.start(it);
    Pixel px;
    px.x = coords[warp * 16 + (lane & 15)];
    px.y = coords[NPX + warp * 16 + (lane & 15)];
    int gx = it.tile_x * TILE_W + (lane & 15), gy = it.tile_y * TILE_H + warp;
    px.inside = gx < p.width && gy < p.height;
    // The tile's pixels of the first map.
    for (int i = threadIdx.x; i < NPX * (CBLK / 8) * PARTS; i += THREADS) {
        int c = i % (CBLK / 8), part = i / (CBLK / 8) % PARTS, pixel = i / (CBLK / 8 * PARTS);
        int x = it.tile_x * TILE_W + (pixel & 15), y = it.tile_y * TILE_H + (pixel >> 4);
        bool inside = x < p.width && y < p.height;
        const u16 *from = inside ? p.f1 + (((i64)it.batch * p.height + y) * p.width + x) * ROWLEN + part * CPAD + kb * CBLK + c * 8 : p.f1;
        copy16(octet_address(base + F1_OFFSET + part * F1_BYTES, NPX, pixel, c), from, inside);
    }
    float d1[CBLK / 16][4];
#pragma unroll
    for (int n = 0; n < CBLK / 16; n++) d1[n][0] = d1[n][1] = d1[n][2] = d1[n][3] = 0.f;
    int first = upper ? HALF : 0;
    int level = -1;
    u16 *weights = (u16 *)(smem + W_OFFSET) + warp * 16 * WSTRIDE;
    Step step;
    while (plan.next(p, step)) {
        int h = p.level_h[step.level], w = p.level_w[step.level];
        if (level != step.level) {
            level = step.level;
            float fx, fy;
            px.active = window(px.x, px.y, level, h, w, px.ix, px.iy, fx, fy) && px.inside;
            px.wx0 = (1.f - fx) * q.scale;
            px.wx1 = fx * q.scale;
            px.wy0 = 1.f - fy;
            px.wy1 = fy;
            px.grad = q.grad + it.batch * q.grad_b + (i64)level * (KW * KW) * q.grad_c + gy * q.grad_y + gx * q.grad_x;
        }
        const u16 *f2 = p.f2 + p.level_offset[level] + (i64)it.batch * h * w * ROWLEN;
        float *g2 = q.g2 + p.level_offset[level] / PARTS + (i64)it.batch * h * w * CPAD + kb * CBLK;
        bool member = px.active && px.ix >= step.first && px.ix < step.last;
        if (step.kind == SCATTERED) {
            // One pixel at a time, lanes over channels.
            float *tap = (float *)(smem + SCRATCH_OFFSET) + (threadIdx.x >> 5) * (KP * KP);
#pragma unroll 1
            for (int i = side * 8; i < side * 8 + 8; i++) {
                int ix = __shfl_sync(0xffffffffu, px.ix, i), iy = __shfl_sync(0xffffffffu, px.iy, i);
                if (!__shfl_sync(0xffffffffu, (int)member, i)) continue;
                float wx0 = __shfl_sync(0xffffffffu, px.wx0, i), wx1 = __shfl_sync(0xffffffffu, px.wx1, i);
                float wy0 = __shfl_sync(0xffffffffu, px.wy0, i), wy1 = __shfl_sync(0xffffffffu, px.wy1, i);
                const grad_t *grad = (const grad_t *)__shfl_sync(0xffffffffu, (u64)px.grad, i);
                __syncwarp();
                for (int o = lane; o < KP * KP; o += 32) {
                    int c = o % KP, r = o / KP;
                    float sum = 0.f;
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        int dx = c - (j & 1), dy = r - (j >> 1);
                        if ((u32)dx < (u32)KW && (u32)dy < (u32)KW)
                            sum += (j & 1 ? wx1 : wx0) * (j >> 1 ? wy1 : wy0) * Element<GRAD>::unpack(grad[(i64)(dx * KW + dy) * q.grad_c]);
                    }
                    tap[o] = sum;
                }
                __syncwarp();
                int x = it.tile_x * TILE_W + i;
                i64 pixel = ((i64)it.batch * p.height + gy) * p.width + x;
#pragma unroll 1
                for (int c = lane * 2; c < CBLK; c += 64) {
                    float a[2], sum[2] = {0.f, 0.f};
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        const u16 *f = p.f1 + pixel * ROWLEN + kb * CBLK + c + e;
                        a[e] = from_bf16(f[0]) + (PARTS > 1 ? from_bf16(f[(PARTS - 1) * CPAD]) : 0.f);
                    }
                    for (int o = 0; o < KP * KP; o++) {
                        int xx = ix + o % KP, yy = iy + o / KP;
                        if ((u32)xx >= (u32)w || (u32)yy >= (u32)h) continue;
                        i64 at = (i64)yy * w + xx;
                        float t = tap[o];
#pragma unroll
                        for (int e = 0; e < 2; e++) {
                            const u16 *f = f2 + at * ROWLEN + kb * CBLK + c + e;
                            sum[e] += t * (from_bf16(f[0]) + (PARTS > 1 ? from_bf16(f[(PARTS - 1) * CPAD]) : 0.f));
                        }
                        add_pair(g2 + at * CPAD + c, t * a[0], t * a[1]);
                    }
                    float *to = q.g1 + pixel * CPAD + kb * CBLK + c;
                    to[0] += sum[0];
                    to[1] += sum[1];
                }
            }
            __syncwarp();
            continue;
        }
        int columns = step.rows * step.width;
        __syncthreads();               // the products of the last chunk are done with shared memory
        for (int i = threadIdx.x; i < columns * (CBLK / 8) * PARTS; i += THREADS) {
            int c = i % (CBLK / 8), part = i / (CBLK / 8) % PARTS, column = i / (CBLK / 8 * PARTS);
            int ry = column / step.width, x = step.x + column - ry * step.width, y = step.y + ry;
            bool inside = (u32)x < (u32)w && (u32)y < (u32)h;
            const u16 *from = inside ? f2 + ((i64)y * w + x) * ROWLEN + part * CPAD + kb * CBLK + c * 8 : f2;
            copy16(octet_address(base + part * PART_BYTES, NCOL, column, c), from, inside);
        }
        for (int i = threadIdx.x; i < (NCOL - columns) * (CBLK / 8) * PARTS; i += THREADS) {  // columns without a position: finite
            int c = i % (CBLK / 8), part = i / (CBLK / 8) % PARTS, column = columns + i / (CBLK / 8 * PARTS);
            copy16(octet_address(base + part * PART_BYTES, NCOL, column, c), f2, false);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
#pragma unroll
        for (int part = 0; part < PARTS; part++)
            for (int i = side * 32 + lane; i < 16 * WSTRIDE / 8; i += 64) *(uint4 *)(weights + part * (W_BYTES / 2) + i * 8) = make_uint4(0, 0, 0, 0);
        asm volatile("bar.sync %0, 64;" ::"r"(warp + 1) : "memory");  // the two warps of this row
        {
            int k = (member ? step.y - px.iy : KP) + side;
            u16 *at = weights + (lane & 15) * WSTRIDE + (member ? px.ix - step.x + first : 0) + side * step.width;
#pragma unroll 1
            for (int ry = side; ry < step.rows; ry += 2, k += 2, at += 2 * step.width) {
                if ((u32)k >= (u32)KP) continue;
                float row[HALF + 1], previous[HALF + 1];
                gradient_row(q, px, k, first, row);
                gradient_row(q, px, k - 1, first, previous);
#pragma unroll
                for (int j = 0; j < HALF; j++) {
                    float left = px.wy0 * row[j] + px.wy1 * previous[j], right = px.wy0 * row[j + 1] + px.wy1 * previous[j + 1];
                    float value = px.wx0 * right + px.wx1 * left;
                    u16 high = to_bf16(value);
                    at[j] = high;
                    if (PARTS > 1) at[j + W_BYTES / 2] = to_bf16(value - from_bf16(high));
                }
            }
        }
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        u32 wbase = base + W_OFFSET;
        // first map: 16 pixels x columns x half the channels
        bool needed = __any_sync(0xffffffffu, member && px.iy < step.y + step.rows && px.iy + KP > step.y);
        if (needed) {
#pragma unroll
            for (int product = 0; product < (PARTS > 1 ? 3 : 1); product++) {
                u32 wat = wbase + (product == 1 ? W_BYTES : 0), fat = base + (product == 2 ? PART_BYTES : 0);
#pragma unroll
                for (int s = 0; s < NCOL / 16; s++) {
                    u32 a[4];
                    matrices(a, wat + (warp * 16 + (lane & 15)) * (WSTRIDE * 2) + (s * 16 + (lane >> 4) * 8) * 2);
                    int row = s * 16 + (lane & 15);
#pragma unroll
                    for (int n = 0; n < CBLK / 32; n++) {
                        u32 b[4];
                        matrices_transposed(b, octet_address(fat, NCOL, row, side * (CBLK / 16) + n * 2 + (lane >> 4)));
                        mma_16816(d1[2 * n], a[0], a[1], a[2], a[3], b[0], b[1]);
                        mma_16816(d1[2 * n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
                    }
                }
            }
        }
        // second map: 16 columns x pixels x a quarter of the channels
#pragma unroll 1
        for (int job = threadIdx.x >> 5; job < NCOL / 16 * 4; job += 2 * ROWS) {
            int m = job % (NCOL / 16), quarter = job / (NCOL / 16);
            if (m * 16 >= columns) continue;
            float d2[CBLK / 32][4];
#pragma unroll
            for (int n = 0; n < CBLK / 32; n++) d2[n][0] = d2[n][1] = d2[n][2] = d2[n][3] = 0.f;
#pragma unroll
            for (int product = 0; product < (PARTS > 1 ? 3 : 1); product++) {
                u32 wat = wbase + (product == 1 ? W_BYTES : 0), fat = base + F1_OFFSET + (product == 2 ? F1_BYTES : 0);
#pragma unroll 2
                for (int s = 0; s < NPX / 16; s++) {
                    u32 a[4];
                    matrices_transposed(a, wat + (s * 16 + (lane & 7) + (lane >> 4) * 8) * (WSTRIDE * 2) + (m * 16 + (lane >> 3 & 1) * 8) * 2);
                    int row = s * 16 + (lane & 15);
#pragma unroll
                    for (int n = 0; n < CBLK / 64; n++) {
                        u32 b[4];
                        matrices_transposed(b, octet_address(fat, NPX, row, quarter * (CBLK / 32) + n * 2 + (lane >> 4)));
                        mma_16816(d2[2 * n], a[0], a[1], a[2], a[3], b[0], b[1]);
                        mma_16816(d2[2 * n + 1], a[0], a[1], a[2], a[3], b[2], b[3]);
                    }
                }
            }
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int column = m * 16 + half * 8 + (lane >> 2), ry = column / step.width, x = step.x + column - ry * step.width, y = step.y + ry;
                if (column < columns && (u32)x < (u32)w && (u32)y < (u32)h) {
                    float *to = g2 + ((i64)y * w + x) * CPAD + quarter * (CBLK / 4) + (lane & 3) * 2;
#pragma unroll
                    for (int n = 0; n < CBLK / 32; n++) add_pair(to + n * 8, d2[n][2 * half], d2[n][2 * half + 1]);
                }
            }
        }
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();                   // scattered pixels have added to memory already
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int x = it.tile_x * TILE_W + half * 8 + (lane >> 2);
        if (x < p.width && gy < p.height) {
            float *to = q.g1 + (((i64)it.batch * p.height + gy) * p.width + x) * CPAD + kb * CBLK + side * (CBLK / 2) + (lane & 3) * 2;
#pragma unroll
            for (int n = 0; n < CBLK / 16; n++) {
                float2 v = *(float2 *)(to + n * 8);
                v.x += d1[n][2 * half];
                v.y += d1[n][2 * half + 1];
                *(float2 *)(to + n * 8) = v;
            }
        }
    }
}

// Accumulated gradients -> the feature maps' gradients: levels summed (the transpose of pooling), [B, C, H, W] with any strides.
struct FinishParams {
    const float *from;             // [B, h, w, CPAD] levels one after the other
    void *to;
    i64 level_offset[MAXLEVELS];   // in floats
    int level_h[MAXLEVELS], level_w[MAXLEVELS];
    i64 b, c, y, x;                // strides of `to`
    int batch, channels, levels;
};
extern "C" __global__ void __launch_bounds__(256) finish(const __grid_constant__ FinishParams p) {
    __shared__ float tile[32][33];
    int h = p.level_h[0], w = p.level_w[0], tiles = (w + 31) / 32;
    int x0 = blockIdx.x % tiles * 32, y = blockIdx.x / tiles % h, batch = blockIdx.x / tiles / h, c0 = blockIdx.y * 32;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    for (int i = warp; i < 32; i += 8) {
        int x = x0 + i;
        float sum = 0.f, share = 1.f;
        if (x < w)
            for (int level = 0; level < p.levels; level++, share *= 0.25f) {
                int lh = p.level_h[level], lw = p.level_w[level], ly = y >> level, lx = x >> level;
                if (ly < lh && lx < lw) sum += share * p.from[p.level_offset[level] + (((i64)batch * lh + ly) * lw + lx) * CPAD + c0 + lane];
            }
        tile[i][lane] = sum;
    }
    __syncthreads();
    for (int i = warp; i < 32; i += 8) {
        bool along_c = p.c == 1;
        int x = x0 + (along_c ? i : lane), c = c0 + (along_c ? lane : i);
        if (x < w && c < p.channels)
            ((grad_t *)p.to)[batch * p.b + c * p.c + y * p.y + x * p.x] = Element<GRAD>::pack(tile[along_c ? i : lane][along_c ? lane : i]);
    }
}
