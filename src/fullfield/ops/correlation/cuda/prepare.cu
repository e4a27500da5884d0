// Conversion of both maps to the kernels' layout, once per pair. The second map is pooled 2x2 repeatedly to at most four
// levels, which are averages of the unrounded input.
//
// More macros: SRC, element type of the inputs (0 float32, 1 float16, 2 bfloat16); SCALED, 1 to multiply by a power of two
// that brings the largest magnitude of each map to 2^14..2^15, so that float16 keeps 11 bits over 29 octaves; F1_PLAIN, if
// defined, to lay out the first map as the second.

typedef Element<SRC>::type src_t;

struct Source { const src_t *data; i64 b, c, y, x; int height, width; };
struct PrepareParams {
    Source source[2];
    u16 *f1, *f2;
    float *scale;                  // out: factors of products, of gradients of the first map and of the second
    u32 *magnitude;                // two words, zeroed by the caller: bits of the largest magnitude of each map
    i64 level_offset[MAXLEVELS];
    int level_h[MAXLEVELS], level_w[MAXLEVELS];
    int batch, channels, levels, tiles_x[2], tiles_y[2];
    float inverse_root;            // 1/sqrt(channels)
};

typedef Element<1 + BF16> Half;

static __device__ __forceinline__ void store_octet(u16 *to, const float (&v)[8], int part_stride = CPAD) {
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        u32 w[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            u16 a = Half::pack(v[2 * j]), b = Half::pack(v[2 * j + 1]);
            if (part) {
                a = Half::pack(v[2 * j] - Half::unpack(a));
                b = Half::pack(v[2 * j + 1] - Half::unpack(b));
            }
            w[j] = (u32)a | (u32)b << 16;
        }
        *(uint4 *)(to + part * part_stride) = make_uint4(w[0], w[1], w[2], w[3]);
    }
}

#define CS 265                     // shared-memory stride of a channel (8 rows of 33, plus 1)

// Pool channels of shared memory, CHANNEL floats apart in rows of ROW, to LEVEL. Store them, and to `to` for the next level.
template <int LEVEL, int CHANNEL, int ROW, int TO_CHANNEL, int TO_ROW>
static __device__ __forceinline__ void pool(const PrepareParams &p, const float *from, float *to, int batch, int x0, int y0, int c0) {
    constexpr int wide = 32 >> LEVEL;
    const int q = threadIdx.x & 3, pixel = threadIdx.x >> 2, y = pixel / wide, x = pixel % wide;
    if (pixel >= wide * (8 >> LEVEL)) return;
    float v[8];
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const float *a = from + (q * 8 + j) * CHANNEL + y * (2 * ROW) + x * 2;
        v[j] = 0.25f * ((a[0] + a[1]) + (a[ROW] + a[ROW + 1]));
        if (LEVEL < 3) to[(q * 8 + j) * TO_CHANNEL + y * TO_ROW + x] = v[j];
    }
    int gy = (y0 >> LEVEL) + y, gx = (x0 >> LEVEL) + x;
    if (gy >= p.level_h[LEVEL] || gx >= p.level_w[LEVEL]) return;
    const i64 at = ((i64)batch * p.level_h[LEVEL] + gy) * p.level_w[LEVEL] + gx;
    store_octet(p.f2 + p.level_offset[LEVEL] + at * ROWLEN + c0 + q * 8, v);
}

extern "C" __global__ void __launch_bounds__(256) prepare(const __grid_constant__ PrepareParams p) {
    __shared__ float full[32 * CS], half[32 * 69], quarter[32 * 19];
    int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    i64 block = blockIdx.x, first_blocks = (i64)p.batch * (CPAD / 32) * p.tiles_x[0] * p.tiles_y[0];
    int second = block >= first_blocks;
    if (second) block -= first_blocks;
    int tx = block % p.tiles_x[second];
    block /= p.tiles_x[second];
    int group = block % (CPAD / 32);
    block /= CPAD / 32;
    int ty = block % p.tiles_y[second], batch = block / p.tiles_y[second];
    const Source &s = p.source[second];
    float inverse, gain = SCALED ? gain_of(p.magnitude[second], inverse) : 1.f;
    if (blockIdx.x == 0 && thread == 0) {
        const float one = SCALED ? gain_of(p.magnitude[0], inverse) : 1.f, two = SCALED ? gain_of(p.magnitude[1], inverse) : 1.f;
        p.scale[0] = p.inverse_root / one / two;
        p.scale[1] = p.inverse_root / two;
        p.scale[2] = p.inverse_root / one;
    }
    int x0 = tx * 32, y0 = ty * 8, c0 = group * 32;
    const src_t *from = s.data + batch * s.b + y0 * s.y + x0 * s.x + c0 * s.c;
    int rows = min(8, s.height - y0), columns = min(32, s.width - x0), channels = max(0, min(32, p.channels - c0));
    if (s.c == 1) {
#pragma unroll 8
        for (int i = 0; i < 32; i++) {
            int pixel = warp * 32 + i, y = pixel >> 5, x = pixel & 31;
            float v = 0.f;
            if (y < rows && x < columns && lane < channels) v = Element<SRC>::unpack(from[y * s.y + x * s.x + lane]);
            full[lane * CS + y * 33 + x] = v * gain;
        }
    } else {
#pragma unroll 8
        for (int i = 0; i < 32; i++) {
            int c = warp * 4 + (i >> 3), y = i & 7;
            float v = 0.f;
            if (y < rows && lane < columns && c < channels) v = Element<SRC>::unpack(from[y * s.y + lane * s.x + c * s.c]);
            full[c * CS + y * 33 + lane] = v * gain;
        }
    }
    __syncthreads();
#ifndef F1_PLAIN
    if (!second) {
        int q = lane & 3, octets = (s.width + 7) / 8;
#pragma unroll
        for (int i = 0; i < 4; i++) {  // a warp writes the fragments of 8 pixels and 32 channels
            int by = i * 2 + (warp >> 2), bx = warp & 3;
            if (by < rows && bx * 8 < columns) {
                float v[8];
#pragma unroll
                for (int j = 0; j < 8; j++) v[j] = full[((j >> 1) * 8 + q * 2 + (j & 1)) * CS + by * 33 + bx * 8 + (lane >> 2)];
                i64 at = ((i64)batch * s.height + y0 + by) * octets + x0 / 8 + bx;
                store_octet(p.f1 + at * (8 * ROWLEN) + group * 256 + lane * 8, v, CPAD * 8);
            }
        }
        return;
    }
#endif
    int q = thread & 3;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int pixel = i * 64 + (thread >> 2), y = pixel >> 5, x = pixel & 31;
        if (y < rows && x < columns) {
            float v[8];
#pragma unroll
            for (int j = 0; j < 8; j++) v[j] = full[(q * 8 + j) * CS + y * 33 + x];
            store_octet((second ? p.f2 : p.f1) + (((i64)batch * s.height + y0 + y) * s.width + x0 + x) * ROWLEN + c0 + q * 8, v);
        }
    }
    if (!second || p.levels < 2) return;
    pool<1, CS, 33, 69, 17>(p, full, half, batch, x0, y0, c0);
    if (p.levels < 3) return;
    __syncthreads();
    pool<2, 69, 17, 19, 9>(p, half, quarter, batch, x0, y0, c0);
    if (p.levels < 4) return;
    __syncthreads();
    pool<3, 19, 9, 1, 1>(p, quarter, nullptr, batch, x0, y0, c0);
}

// Find the largest finite magnitude of both maps, for SCALED.
extern "C" __global__ void __launch_bounds__(256) magnitude(const __grid_constant__ PrepareParams p) {
    for (int m = 0; m < 2; m++) {
        const Source &s = p.source[m];
        i64 n = (i64)p.batch * p.channels * s.height * s.width;
        bool channels_fast = s.c == 1;
        u32 largest = 0;
        for (i64 i = (i64)blockIdx.x * 256 + threadIdx.x; i < n; i += (i64)gridDim.x * 256) {
            i64 rest = i;
            int c, y, x;
            if (channels_fast) { c = rest % p.channels; rest /= p.channels; }
            x = rest % s.width; rest /= s.width;
            y = rest % s.height; rest /= s.height;
            if (!channels_fast) { c = rest % p.channels; rest /= p.channels; }
            float v = Element<SRC>::unpack(s.data[rest * s.b + c * s.c + y * s.y + x * s.x]);
            u32 bits = __float_as_uint(v) & 0x7fffffffu;
            if (bits < 0x7f800000u) largest = max(largest, bits);
        }
        largest = warp_max(largest);
        if ((threadIdx.x & 31) == 0) atomicMax(p.magnitude + m, largest);
    }
}
