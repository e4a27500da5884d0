// Products of each pixel's features with those of a window around it. Built behind common.cuh.
//
// A block: a tile of TH x TW outputs, PI rows of displacements, JN groups of JG columns. A thread: XR neighbouring outputs,
// one row and one group of displacements: XR·JG sums in registers, for which it reads XR + SPAN features a channel. Both
// maps' parts of the tile come to shared memory CC channels at a time, one chunk ahead.
//
// More macros:
//   PI   rows of displacements of a block
//   CC   channels of a chunk
//   THREADS   of a block: UNITS in whole warps

#define RH (TH + PI - 1)
#define UNITS (XG * PI * JN * TH)
#define CHUNK (CC * (RH * RW + TH * TW))

struct ForwardParams {
    const Value *fmap1, *fmap2;    // [B, C, H, W]
    Value *out;                    // [B, PH, PW, OH, OW]
    int channels, row_blocks, column_blocks;
    Axis y, x;
};

struct Tile {
    int y1, x1, y2, x2;            // of the first pixel of either map
};

static __device__ __forceinline__ void fill(const ForwardParams &p, const Tile &tile, float *room, i64 map, int first) {
    const i64 plane = (i64)p.y.in * p.x.in;
    for (int n = threadIdx.x; n < CC * RH * (READ / VEC); n += THREADS) {
        const int column = n % (READ / VEC) * VEC, left = n / (READ / VEC), row = left % RH, c = left / RH;
        const int y = tile.y2 + row * p.y.step, x = tile.x2 + column * p.x.step;
        const bool inside = first + c < p.channels && (u32)y < (u32)p.y.in && (u32)x < (u32)p.x.in;
        fetch(room + (c * RH + row) * RW + column, p.fmap2 + map + (first + c) * plane + (i64)y * p.x.in + x, inside, p.fmap2);
    }
    room += CC * RH * RW;
    for (int n = threadIdx.x; n < CC * TH * (TW / VEC); n += THREADS) {
        const int column = n % (TW / VEC) * VEC, left = n / (TW / VEC), row = left % TH, c = left / TH;
        const int y = tile.y1 + row * p.y.step, x = tile.x1 + column * p.x.step;
        const bool inside = first + c < p.channels && (u32)y < (u32)p.y.in && (u32)x < (u32)p.x.in;
        fetch(room + (c * TH + row) * TW + column, p.fmap1 + map + (first + c) * plane + (i64)y * p.x.in + x, inside, p.fmap1);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) spatial_forward(const __grid_constant__ ForwardParams p) {
    extern __shared__ __align__(16) float shared[];
    u32 number = blockIdx.x;
    const Place px = place_of(number, p.x), py = place_of(number, p.y);
    const int i0 = number % p.row_blocks * PI;
    number /= p.row_blocks;
    const int j0 = number % p.column_blocks * (JN * JG);
    const i64 b = number / p.column_blocks, map = b * p.channels * p.y.in * p.x.in;
    Tile tile;
    tile.y1 = p.y.stride * py.cls - p.y.padding + py.at * TH * p.y.step;
    tile.x1 = p.x.stride * px.cls - p.x.padding + px.at * TW * p.x.step;
    tile.y2 = tile.y1 - p.y.radius + i0 * p.y.step;
    tile.x2 = tile.x1 - p.x.radius + j0 * p.x.step;

    const int unit = threadIdx.x < UNITS ? threadIdx.x : 0;
    const int xg = unit % XG, i = unit / XG % PI, jn = unit / (XG * PI) % JN, t = unit / (XG * PI * JN);
    float sums[JG][XR];
#pragma unroll
    for (int j = 0; j < JG; j++)
#pragma unroll
        for (int x = 0; x < XR; x++) sums[j][x] = 0.f;

    fill(p, tile, shared, map, 0);
    for (int first = 0, turn = 0; first < p.channels; first += CC, turn ^= 1) {
        arrived();
        if (first + CC < p.channels) fill(p, tile, shared + (turn ^ 1) * CHUNK, map, first + CC);
        const float *two = shared + turn * CHUNK + (t + i) * RW + xg * XR + jn * JG;
        const float *one = shared + turn * CHUNK + CC * RH * RW + t * TW + xg * XR;
#pragma unroll 2
        for (int c = 0; c < CC; c++) {
            float a[XR], f[SPAN];
#pragma unroll
            for (int x = 0; x < XR; x += 4) read4(a + x, one + c * TH * TW + x);
#pragma unroll
            for (int x = 0; x < SPAN; x += 4) read4(f + x, two + c * RH * RW + x);
#pragma unroll
            for (int j = 0; j < JG; j++)
#pragma unroll
                for (int x = 0; x < XR; x++) sums[j][x] += a[x] * f[x + j];
        }
    }
    __syncthreads();

    const int h = py.cls + (py.at * TH + t) * p.y.classes, w = px.cls + px.at * TW * p.x.classes;
    const bool exists = threadIdx.x < UNITS && i0 + i < p.y.patch && h < p.y.out;
    const int columns = (p.x.out - w + p.x.classes - 1) / p.x.classes;
    float *stage = shared + threadIdx.x / 32 * (32 / XG * PITCH);
#pragma unroll
    for (int j = 0; j < JG; j++) {
        const int column = j0 + jn * JG + j;
        i64 at = ((b * p.y.patch + i0 + i) * p.x.patch + column) * p.y.out + h;
        at = exists && column < p.x.patch ? at * p.x.out + w : NOWHERE;
        store_rows(stage, sums[j], p.out, at, p.x.classes, 0, columns);
    }
}
