// Depthwise 7×7 convolution: with a bias and layer norm over the channels, or alone. Built behind common.cuh.
//
// Macros: CHANNELS, a multiple of 64, at most 2048.
//
// A block has CHANNELS / 2 threads and computes STRIP pixels of a row. A thread computes two channels of all of them, so
// a warp accesses 32 neighbouring pairs. Sums over the channels use shuffles that halve the number of values.

#define STRIP 8
#define WARPS (CHANNELS / 64)
#define BLOCKS (2048 / CHANNELS)  // that run on a multiprocessor at once

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

// Load one row that a block reads; zeros outside the image. INNER: all columns are inside.
template <bool INNER>
static __device__ __forceinline__ void load_row(const Value *x, int y, int x0, const DepthwiseParams &p, Pair (&v)[STRIP + 6]) {
    const bool inside = y >= 0 && y < p.height;
    const Value *from = x + ((i64)y * p.width + x0 - 3) * CHANNELS;
#pragma unroll
    for (int j = 0; j < STRIP + 6; j++) {
        v[j] = Pair();
        if (inside && (INNER || (u32)(x0 - 3 + j) < (u32)p.width)) v[j] = *(const Pair *)(from + j * CHANNELS);
    }
}

template <bool INNER>
static __device__ __forceinline__ void convolve(const Value *x, int y0, int x0, const DepthwiseParams &p, float2 (&total)[STRIP]) {
    const float *weight = p.weight + 2 * threadIdx.x;
    Pair next[STRIP + 6];
    load_row<INNER>(x, y0 - 3, x0, p, next);
#pragma unroll
    for (int k = 0; k < 7; k++) {
        float2 w[7];
        Pair row[STRIP + 6];
#pragma unroll
        for (int j = 0; j < STRIP + 6; j++) row[j] = next[j];
        if (k < 6) load_row<INNER>(x, y0 - 2 + k, x0, p, next);
#pragma unroll
        for (int i = 0; i < 7; i++) w[i] = __ldg((const float2 *)(weight + (k * 7 + i) * CHANNELS));
#pragma unroll
        for (int j = 0; j < STRIP + 6; j++) {
            const float2 v = widened(row[j]);
#pragma unroll
            for (int i = 0; i < STRIP; i++)
                if (j - i >= 0 && j - i < 7) {
                    total[i].x = fmaf(v.x, w[j - i].x, total[i].x);
                    total[i].y = fmaf(v.y, w[j - i].y, total[i].y);
                }
        }
    }
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
    const int c = 2 * threadIdx.x, x0 = blockIdx.y * STRIP, item = blockIdx.x / p.height, y0 = blockIdx.x % p.height;
    const Value *x = p.x + (i64)item * p.height * p.width * CHANNELS + c;
    float2 total[STRIP];
#pragma unroll
    for (int i = 0; i < STRIP; i++) total[i] = make_float2(0.f, 0.f);
    if (x0 >= 3 && x0 + STRIP + 3 <= p.width) convolve<true>(x, y0, x0, p, total);
    else convolve<false>(x, y0, x0, p, total);
    Value *out = p.out + (((i64)item * p.height + y0) * p.width + x0) * CHANNELS + c;
#pragma unroll
    for (int i = 0; i < STRIP; i++)
        if (x0 + i < p.width) store_pair(out + i * CHANNELS, total[i].x, total[i].y);
}

extern "C" __global__ void __launch_bounds__(CHANNELS / 2, BLOCKS) depthwise_norm(const DepthwiseParams p) {
    __shared__ float partial[WARPS][2 * STRIP];
    __shared__ float2 norms[STRIP];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, c = 2 * threadIdx.x;
    const int x0 = blockIdx.y * STRIP, item = blockIdx.x / p.height, y0 = blockIdx.x % p.height;
    const Value *x = p.x + (i64)item * p.height * p.width * CHANNELS + c;
    float2 total[STRIP];
    const float2 bias = *(const float2 *)(p.bias + c);
#pragma unroll
    for (int i = 0; i < STRIP; i++) total[i] = bias;
    if (x0 >= 3 && x0 + STRIP + 3 <= p.width) convolve<true>(x, y0, x0, p, total);
    else convolve<false>(x, y0, x0, p, total);
    // Lane l ends with the warp's sum of value l: sums of the pixels, then sums of squares.
    float v[2 * STRIP];
#pragma unroll
    for (int i = 0; i < STRIP; i++) {
        const float2 t = total[i];
        v[i] = t.x + t.y;
        v[STRIP + i] = fmaf(t.x, t.x, t.y * t.y);
    }
#pragma unroll
    for (int half = 16; half > STRIP; half /= 2)
#pragma unroll
        for (int i = 0; i < 2 * STRIP; i++) v[i] += __shfl_xor_sync(ALL, v[i], half);
#pragma unroll
    for (int half = STRIP; half > 0; half /= 2) {
        const bool upper = lane & half;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float mine = upper ? v[i + half] : v[i], other = upper ? v[i] : v[i + half];
            v[i] = mine + __shfl_xor_sync(ALL, other, half);
        }
    }
    if (lane < 2 * STRIP) partial[warp][lane] = v[0];
    __syncthreads();
    if (threadIdx.x < STRIP) {
        float first = 0.f, second = 0.f;
        for (int i = 0; i < WARPS; i++) first += partial[i][threadIdx.x], second += partial[i][STRIP + threadIdx.x];
        const float mean = first / CHANNELS, variance = second / CHANNELS - mean * mean;
        norms[threadIdx.x] = make_float2(mean, 1.f / sqrtf((variance < 0.f ? 0.f : variance) + p.epsilon));  // NaN stays
    }
    __syncthreads();
    Value *out = p.out + (i64)item * p.height * p.width * CHANNELS + c;
#pragma unroll
    for (int i = 0; i < STRIP; i++) {
        if (x0 + i >= p.width) continue;
        const float2 n = norms[i], t = total[i];
        store_pair(out + ((i64)y0 * p.width + x0 + i) * CHANNELS, (t.x - n.x) * n.y, (t.y - n.x) * n.y);
    }
}
