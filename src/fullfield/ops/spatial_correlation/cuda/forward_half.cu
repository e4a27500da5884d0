// As forward.cu, with the products of 16-bit features on tensor cores. Built behind products.cuh and common.cuh.
//
// A warp: 16 neighbouring outputs of a row and PI rows of displacements. For each of those rows it multiplies the outputs'
// features by those of NT·8 columns of fmap2, of which the diagonal band of PJ columns is what is wanted: 16·PJ of 128·NT
// products. Features stay in the maps' order, pixels side by side: ldmatrix turns them round.
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
#define BAND 20           // of a row of results in shared memory
#define RESIDENT (__CUDA_ARCH__ >= 800 ? 2 : 1)   // blocks of a multiprocessor: before 8.0 shared memory holds one

struct ForwardParams {
    const Value *fmap1, *fmap2;    // [B, C, H, W]
    Value *out;                    // [B, PH, PW, OH, OW]
    int channels, row_blocks, column_blocks;
    Axis y, x;
};

static __device__ __forceinline__ void fetch_half(u16 *to, const u16 *from, bool inside, const u16 *anywhere) {
#if VEC == 4
    copy_async<8>(shared_address(to), inside ? from : anywhere, inside);
#else
    *to = inside ? *from : (u16)0;
#endif
}

// CC channels of ``rows`` rows of ``columns`` pixels.
static __device__ __forceinline__ void fill_half(u16 *to, int stride, int pitch, const u16 *map, i64 begin, int first, int y0, int x0, int rows, int columns,
                                                 const ForwardParams &p) {
    const i64 plane = (i64)p.y.in * p.x.in;
    for (int n = threadIdx.x; n < CC * rows * (columns / VEC); n += THREADS) {
        const int column = n % (columns / VEC) * VEC, left = n / (columns / VEC), row = left % rows, c = left / rows;
        const int y = y0 + row * p.y.step, x = x0 + column * p.x.step;
        const bool inside = first + c < p.channels && (u32)y < (u32)p.y.in && (u32)x < (u32)p.x.in;
        fetch_half(to + c * stride + row * pitch + column, map + begin + (first + c) * plane + (i64)y * p.x.in + x, inside, map);
    }
}

static __device__ __forceinline__ void turned(u32 (&r)[4], const u16 *at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(at)));
}

extern "C" __global__ void __launch_bounds__(THREADS, RESIDENT) spatial_forward_half(const __grid_constant__ ForwardParams p) {
    extern __shared__ __align__(16) u16 shared[];
    u32 number = blockIdx.x;
    const Place px = place_of(number, p.x), py = place_of(number, p.y);
    const int i0 = number % p.row_blocks * PI;
    number /= p.row_blocks;
    const int j0 = number % p.column_blocks * PJ;
    const i64 b = number / p.column_blocks, map = b * p.channels * p.y.in * p.x.in;
    const int y1 = p.y.stride * py.cls - p.y.padding + py.at * TH * p.y.step;
    const int x1 = p.x.stride * px.cls - p.x.padding + px.at * TW * p.x.step;
    const int y2 = y1 - p.y.radius + i0 * p.y.step, x2 = x1 - p.x.radius + j0 * p.x.step;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, t = warp / 2, left = warp % 2 * 16;
    float sums[PI][NT][4];
#pragma unroll
    for (int i = 0; i < PI; i++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int k = 0; k < 4; k++) sums[i][n][k] = 0.f;

    fill_half(shared, STRIDE2, HALF_RW, p.fmap2, map, 0, y2, x2, RH, HALF_RW, p);
    fill_half(shared + CC * STRIDE2, STRIDE1, TW, p.fmap1, map, 0, y1, x1, TH, TW, p);
    for (int first = 0, turn = 0; first < p.channels; first += CC, turn ^= 1) {
#if VEC == 4
        await_all_copies();
#endif
        __syncthreads();
        if (first + CC < p.channels) {
            u16 *next = shared + (turn ^ 1) * CHUNK;
            fill_half(next, STRIDE2, HALF_RW, p.fmap2, map, first + CC, y2, x2, RH, HALF_RW, p);
            fill_half(next + CC * STRIDE2, STRIDE1, TW, p.fmap1, map, first + CC, y1, x1, TH, TW, p);
        }
        const u16 *two = shared + turn * CHUNK + lane * STRIDE2 + t * HALF_RW + left;
        const u16 *one = shared + turn * CHUNK + CC * STRIDE2 + (lane / 16 * 8 + lane % 8) * STRIDE1 + t * TW + left + lane / 8 % 2 * 8;
        u32 a[2][4];
        turned(a[0], one);
        turned(a[1], one + 16 * STRIDE1);
#pragma unroll
        for (int i = 0; i < PI; i++)
#pragma unroll
            for (int n = 0; n < NT; n++) {
                u32 f[4];
                turned(f, two + i * HALF_RW + n * 8);
                mma_16816(sums[i][n], a[0][0], a[0][1], a[0][2], a[0][3], f[0], f[1]);
                mma_16816(sums[i][n], a[1][0], a[1][1], a[1][2], a[1][3], f[2], f[3]);
            }
    }
    __syncthreads();

    // A thread of the product holds outputs lane / 4 and 8 further, columns 2·(lane % 4) and the next of each octet.
    float *band = (float *)shared + warp * (PJ * BAND);
    const int h = py.cls + (py.at * TH + t) * p.y.classes, w = px.cls + (px.at * TW + left + lane % 16) * p.x.classes;
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
        if (i0 + i < p.y.patch && h < p.y.out && w < p.x.out)
            for (int j = lane / 16; j < PJ && j0 + j < p.x.patch; j += 2)
                p.out[(((b * p.y.patch + i0 + i) * p.x.patch + j0 + j) * p.y.out + h) * p.x.out + w] = rounded(band[j * BAND + lane % 16]);
        __syncwarp();
    }
}
