// Depthwise 7×7 convolution: with a bias and layer norm over the channels, or alone. Built behind common.cuh.
//
// Macros: CHANNELS, a multiple of 64, at most 2048.
//
// A block has CHANNELS / 2 threads and computes STRIP pixels of each of ROWS rows, which share what they read; blocks of
// one row would wait for memory. A thread computes two channels of all of them, so a warp accesses 32 neighbouring pairs. Sums
// over the channels use shuffles that halve the number of values.

#define STRIP 8
#define ROWS 2
#define PIXELS (ROWS * STRIP)
#define WARPS (CHANNELS / 64)
#define BLOCKS (CHANNELS > 1024 ? 1 : 1280 / CHANNELS)  // that run on a multiprocessor at once
// Rows of the image added before and after the loop over the others, and by how many that is unrolled. On an H200 this takes
// less time in float16 on maps of 429x1024, not on those of 270x480; in bfloat16 such a form took more time
// (benchmarks/notes/prepared_precisions.md). Before Hopper it spills registers.
#define PEELING (IN == 1 && __CUDA_ARCH__ >= 900)
#define PEELED (PEELING ? ROWS - 1 : 0)
#define UNROLLED (PEELING ? 2 : 1)

struct DepthwiseParams {
    const Value *x;          // [B, h, w, CHANNELS]
    const float *weight;     // [49, CHANNELS]
    const float *bias;       // [CHANNELS]; of depthwise_norm
    Value *out;              // [B, h, w, CHANNELS]; of depthwise_norm with mean 0, variance 1
    int height, width;
    float epsilon;
};

#if IN == 0
typedef float2 Pair;
static __device__ __forceinline__ float2 widened(Pair v) { return v; }
#else
typedef u32 Pair;
static __device__ __forceinline__ float2 widened(Pair v) {
    float2 w;
    split(v, w.x, w.y);
    return w;
}
#endif

// Load a pair of row y that a block reads; zero outside the image. INNER: all columns are inside.
template <bool INNER>
static __device__ __forceinline__ Pair load_pair(const Value *x, int y, int x0, int j, const DepthwiseParams &p) {
    const bool inside = (u32)y < (u32)p.height && (INNER || (u32)(x0 - 3 + j) < (u32)p.width);
    return inside ? *(const Pair *)(x + ((i64)y * p.width + x0 - 3) * CHANNELS + j * CHANNELS) : Pair();
}

// Add the convolution to the pixels: row by row of the image, of which the next is loaded while one is added.
template <bool INNER>
static __device__ __forceinline__ void convolve(const Value *x, int y0, int x0, const DepthwiseParams &p, float2 (&total)[PIXELS]) {
    const float *weight = p.weight + 2 * threadIdx.x;
    Pair row[STRIP + 6];
    float2 w[ROWS][7];  // row k - r of the weights, which row r of the pixels needs
#pragma unroll
    for (int j = 0; j < STRIP + 6; j++) row[j] = load_pair<INNER>(x, y0 - 3, x0, j, p);
    const auto add_row = [&](int k) {
#pragma unroll
        for (int i = 0; i < 7; i++) {
#pragma unroll
            for (int r = ROWS - 1; r > 0; r--) w[r][i] = w[r - 1][i];
            if (k < 7) w[0][i] = __ldg((const float2 *)(weight + i * CHANNELS));
        }
#pragma unroll
        for (int j = 0; j < STRIP + 6; j++) {
            const float2 v = widened(row[j]);
            if (k < ROWS + 5) row[j] = load_pair<INNER>(x, y0 - 2 + k, x0, j, p);
#pragma unroll
            for (int n = 0; n < PIXELS; n++) {
                const int r = n / STRIP, i = j - n % STRIP;
                if (k < r || k > r + 6 || i < 0 || i > 6) continue;
                total[n].x = fmaf(v.x, w[r][i].x, total[n].x);
                total[n].y = fmaf(v.y, w[r][i].y, total[n].y);
            }
        }
        weight += 7 * CHANNELS;
    };
#pragma unroll
    for (int k = 0; k < PEELED; k++) add_row(k);
#pragma unroll UNROLLED
    for (int k = PEELED; k < ROWS + 6 - PEELED; k++) add_row(k);
#pragma unroll
    for (int k = ROWS + 6 - PEELED; k < ROWS + 6; k++) add_row(k);
}

// Write two channels of a pixel.
static __device__ __forceinline__ void store_pair(Value *to, float first, float second) {
#if IN == 0
    *(float2 *)to = make_float2(first, second);
#else
    *(u32 *)to = rounded_pair(first, second);
#endif
}

extern "C" __global__ void __launch_bounds__(CHANNELS / 2, BLOCKS) depthwise(const DepthwiseParams p) {
    const int strips = (p.height + ROWS - 1) / ROWS, c = 2 * threadIdx.x;
    const int x0 = blockIdx.y * STRIP, item = blockIdx.x / strips, y0 = blockIdx.x % strips * ROWS;
    const Value *x = p.x + (i64)item * p.height * p.width * CHANNELS + c;
    float2 total[PIXELS];
#pragma unroll
    for (int n = 0; n < PIXELS; n++) total[n] = make_float2(0.f, 0.f);
    if (x0 >= 3 && x0 + STRIP + 3 <= p.width) convolve<true>(x, y0, x0, p, total);
    else convolve<false>(x, y0, x0, p, total);
    Value *out = p.out + (i64)item * p.height * p.width * CHANNELS + c;
#pragma unroll
    for (int n = 0; n < PIXELS; n++) {
        const int y = y0 + n / STRIP, column = x0 + n % STRIP;
        if (y < p.height && column < p.width) store_pair(out + ((i64)y * p.width + column) * CHANNELS, total[n].x, total[n].y);
    }
}

extern "C" __global__ void __launch_bounds__(CHANNELS / 2, BLOCKS) depthwise_norm(const DepthwiseParams p) {
    __shared__ float partial[WARPS][2 * PIXELS];
    __shared__ float2 norms[PIXELS];
    const int strips = (p.height + ROWS - 1) / ROWS, lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = 2 * threadIdx.x;
    const int x0 = blockIdx.y * STRIP, item = blockIdx.x / strips, y0 = blockIdx.x % strips * ROWS;
    const Value *x = p.x + (i64)item * p.height * p.width * CHANNELS + c;
    float2 total[PIXELS];
    const float2 bias = *(const float2 *)(p.bias + c);
#pragma unroll
    for (int n = 0; n < PIXELS; n++) total[n] = bias;
    if (x0 >= 3 && x0 + STRIP + 3 <= p.width) convolve<true>(x, y0, x0, p, total);
    else convolve<false>(x, y0, x0, p, total);
    // Lane l ends with the warp's sum of value l: sums of the pixels, then sums of squares.
    float v[2 * PIXELS];
#pragma unroll
    for (int n = 0; n < PIXELS; n++) {
        const float2 t = total[n];
        v[n] = t.x + t.y;
        v[PIXELS + n] = fmaf(t.x, t.x, t.y * t.y);
    }
#pragma unroll
    for (int step = 0; step < 5; step++) {
        const int half = PIXELS >> step;
        const bool upper = lane & half;
#pragma unroll
        for (int i = 0; i < PIXELS; i++) {
            if (i >= half) continue;  // a bound of PIXELS, not half, is unrolled
            const float mine = upper ? v[i + half] : v[i], other = upper ? v[i] : v[i + half];
            v[i] = mine + __shfl_xor_sync(ALL, other, half);
        }
    }
    partial[warp][lane] = v[0];
    __syncthreads();
    if (threadIdx.x < PIXELS) {
        float first = 0.f, second = 0.f;
        for (int i = 0; i < WARPS; i++) first += partial[i][threadIdx.x], second += partial[i][PIXELS + threadIdx.x];
        const float mean = first / CHANNELS, variance = second / CHANNELS - mean * mean;
        norms[threadIdx.x] = make_float2(mean, 1.f / sqrtf((variance < 0.f ? 0.f : variance) + p.epsilon));  // NaN stays
    }
    __syncthreads();
    Value *out = p.out + (i64)item * p.height * p.width * CHANNELS + c;
#pragma unroll
    for (int n = 0; n < PIXELS; n++) {
        const int y = y0 + n / STRIP, column = x0 + n % STRIP;
        if (y >= p.height || column >= p.width) continue;
        const float2 m = norms[n], t = total[n];
        store_pair(out + ((i64)y * p.width + column) * CHANNELS, (t.x - m.x) * m.y, (t.y - m.x) * m.y);
    }
}
