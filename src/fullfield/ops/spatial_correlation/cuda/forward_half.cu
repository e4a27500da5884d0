// The products of forward.cu for 16-bit features, on tensor cores. Built behind products.cuh and common.cuh.
//
// A warp computes 16 neighbouring outputs of a row for PI rows of displacements. For each of those rows it multiplies the
// outputs' features by those of NT·8 columns of fmap2, and keeps the diagonal band of PJ columns: 16·PJ of 128·NT products.
// Features stay in the maps' order, pixels side by side; ldmatrix transposes them.
//
// More macros:
//   PI, PJ   rows and columns of displacements of a block
//   NT       octets of columns: (15 + PJ) / 8, rounded up
//   CC       channels of a chunk: 32

#define RH (TH + PI - 1)
#define HALF_RW (16 + NT * 8)
#define STRIDE2 (RH * HALF_RW + (RH * HALF_RW / 8 % 2 ? 0 : 8))   // an odd number of octets: channels lie in other banks
#define STRIDE1 (TH * TW + 8)
#define CHUNK (CC * (STRIDE1 + STRIDE2))
#define BAND 20           // floats of a row of results in shared memory
#define RESIDENT (__CUDA_ARCH__ >= 800 ? 2 : 1)   // blocks of a multiprocessor: before 8.0 shared memory holds one

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) spatial_forward_half(const __grid_constant__ ForwardParams p) {
    extern __shared__ __align__(16) u16 shared[];
    const Start s(p, PI, PJ);
    const auto bring = [&](int turn, int first) {
        u16 *room = shared + turn * CHUNK;
        fill<CC, RH, HALF_RW>(room, STRIDE2, HALF_RW, p.fmap2, s.map, first, s.y2, s.x2, p);
        fill<CC, TH, TW>(room + CC * STRIDE2, STRIDE1, TW, p.fmap1, s.map, first, s.y1, s.x1, p);
    };

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = warp / 2, left = warp % 2 * 16;
    float sums[PI][NT][4];
    clear(sums);

    bring(0, 0);
    for (int first = 0, turn = 0; first < p.channels; first += CC, turn ^= 1) {
#if VEC == 4
        await_all_copies();
#endif
        __syncthreads();
        if (first + CC < p.channels) bring(turn ^ 1, first + CC);
        const u16 *two = shared + turn * CHUNK + lane * STRIDE2 + t * HALF_RW + left;
        const u16 *one = shared + turn * CHUNK + CC * STRIDE2 + (lane / 16 * 8 + lane % 8) * STRIDE1 + t * TW + left + lane / 8 % 2 * 8;
        u32 a[2][4];
        matrices_transposed(a[0], shared_address(one));
        matrices_transposed(a[1], shared_address(one + 16 * STRIDE1));
#pragma unroll
        for (int i = 0; i < PI; i++)
#pragma unroll
            for (int n = 0; n < NT; n++) {
                u32 f[4];
                matrices_transposed(f, shared_address(two + i * HALF_RW + n * 8));
                mma_16816(sums[i][n], a[0][0], a[0][1], a[0][2], a[0][3], f[0], f[1]);
                mma_16816(sums[i][n], a[1][0], a[1][1], a[1][2], a[1][3], f[2], f[3]);
            }
    }
    __syncthreads();

    // A thread of the product holds outputs lane / 4 and 8 further, columns 2·(lane % 4) and the next of each octet.
    float *band = (float *)shared + warp * (PJ * BAND);
    const int h = s.y.cls + (s.y.at * TH + t) * p.y.classes, w = s.x.cls + (s.x.at * TW + left + lane % 16) * p.x.classes;
#pragma unroll
    for (int i = 0; i < PI; i++) {
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int m = lane / 4 + k / 2 * 8, j = n * 8 + lane % 4 * 2 + k % 2 - m;
                if (j >= 0 && j < PJ) band[j * BAND + m] = sums[i][n][k];
            }
        __syncwarp();
        if (s.i0 + i < p.y.patch && h < p.y.out && w < p.x.out)
            for (int j = lane / 16; j < PJ && s.j0 + j < p.x.patch; j += 2)
                p.out[(((s.b * p.y.patch + s.i0 + i) * p.x.patch + s.j0 + j) * p.y.out + h) * p.x.out + w] = rounded(band[j * BAND + lane % 16]);
        __syncwarp();
    }
}
