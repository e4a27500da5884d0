// Products of each pixel's features with those of a window around it. Built behind common.cuh.
//
// A block computes a tile of TH x TW outputs for PI rows of displacements and JN groups of JG columns. A thread computes XR
// neighbouring outputs for one row and one group: XR·JG sums in registers, for which it reads XR + SPAN features a channel.
// Both maps' parts of the tile are loaded into shared memory CC channels at a time, one chunk ahead.
//
// More macros: PI, rows of displacements of a block; CC, channels of a chunk; THREADS of a block, UNITS in whole warps.

#define RH (TH + PI - 1)
#define UNITS (XG * PI * JN * TH)
#define CHUNK (CC * (RH * RW + TH * TW))

extern "C" __global__ void __launch_bounds__(THREADS) spatial_forward(const __grid_constant__ ForwardParams p) {
    extern __shared__ __align__(16) float shared[];
    const Start s(p, PI, JN * JG);
    const auto bring = [&](int turn, int first) {
        float *room = shared + turn * CHUNK;
        fill<CC, RH, READ>(room, RH * RW, RW, p.fmap2, s.map, first, s.y2, s.x2, p);
        fill<CC, TH, TW>(room + CC * RH * RW, TH * TW, TW, p.fmap1, s.map, first, s.y1, s.x1, p);
    };

    const int unit = threadIdx.x < UNITS ? threadIdx.x : 0;
    const int xg = unit % XG, i = unit / XG % PI, jn = unit / (XG * PI) % JN, t = unit / (XG * PI * JN);
    float sums[JG][XR];
    clear(sums);

    bring(0, 0);
    for (int first = 0, turn = 0; first < p.channels; first += CC, turn ^= 1) {
        arrived();
        if (first + CC < p.channels) bring(turn ^ 1, first + CC);
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

    const int h = s.y.cls + (s.y.at * TH + t) * p.y.classes, w = s.x.cls + s.x.at * TW * p.x.classes;
    const bool exists = threadIdx.x < UNITS && s.i0 + i < p.y.patch && h < p.y.out;
    const int columns = (p.x.out - w + p.x.classes - 1) / p.x.classes;
    float *stage = shared + threadIdx.x / 32 * (32 / XG * PITCH);
#pragma unroll
    for (int j = 0; j < JG; j++) {
        const int column = s.j0 + jn * JG + j;
        i64 at = ((s.b * p.y.patch + s.i0 + i) * p.x.patch + column) * p.y.out + h;
        at = exists && column < p.x.patch ? at * p.x.out + w : NOWHERE;
        store_rows(stage, sums[j], p.out, at, p.x.classes, 0, columns);
    }
}
