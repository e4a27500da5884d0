// The mean position under each row's softmax, and the gradient of the products. Built behind halves.cuh, values.cuh
// (Value: type of the features) and warps.cuh.
//
// A block reads one row of the matrix once, and keeps only its mean and the logarithm of its sum. `PositionParams` holds
// some rows at a time. Every thread has its own largest product and sums, which are joined at the end.

struct PositionParams {
    float *products;         // [batch, rows, pitch]: products of features, not scaled; columns from `count` on are padding
    float *flow;             // [batch, 2, pixels]: mean position less the pixel's own
    float *logarithms;       // [batch, pixels]: log2 of the sum of 2^(products · sharpness)
    const float *grad;       // [batch, 2, pixels]
    const float *unit;       // divisor of the gradient; null for 1
    Value *grad_products;    // [batch, rows, pitch]; may be where the products are
    i64 pixels;              // number of pixels of the first map
    i64 begin;               // number of the first row
    int rows, count, pitch;  // a multiple of 4
    int width, own_width;    // width of the searched map and of the first map
    float sharpness, scale;  // the softmax's scale in units of log 2; the same in its own
};

constexpr int THREADS = 256, WARPS = THREADS / 32;
constexpr float LEAST = -3.4e38f;  // not infinite, so that differences of it are numbers

struct Place {
    i64 pixel, flow;
    float x, y;
};

static __device__ __forceinline__ Place place_of(const PositionParams &p) {
    const i64 batch = blockIdx.x / p.rows, row = p.begin + (blockIdx.x - batch * p.rows);
    const i64 y = row / p.own_width;
    return {batch * p.pixels + row, 2 * batch * p.pixels + row, (float)(row - y * p.own_width), (float)y};
}

extern "C" __global__ void __launch_bounds__(THREADS) positions(const __grid_constant__ PositionParams p) {
    __shared__ float kept[4][WARPS];
    const int thread = threadIdx.x, lane = thread & 31;
    const float4 *from = (const float4 *)(p.products + (i64)blockIdx.x * p.pitch);
    float most = LEAST, sum = 0.f, of_x = 0.f, of_y = 0.f;
    for (int at = 4 * thread; at < p.count; at += 4 * THREADS) {
        const float4 four = from[at >> 2];
        float v[4] = {four.x, four.y, four.z, four.w};
        int y = (int)((u32)at / (u32)p.width), x = at - y * p.width;
        float larger = most;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            v[i] *= p.sharpness;
            if (at + i < p.count) larger = fmaxf(larger, v[i]);
        }
        const float shrink = exp2f(most - larger);
        most = larger;
        sum *= shrink, of_x *= shrink, of_y *= shrink;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (at + i < p.count) {
                const float share = exp2f(v[i] - most);
                sum += share;
                of_x += share * (float)x;
                of_y += share * (float)y;
            }
            if (++x == p.width) x = 0, ++y;
        }
    }
    float largest = most;
#pragma unroll
    for (int step = 16; step; step >>= 1) largest = fmaxf(largest, __shfl_xor_sync(ALL, largest, step));
    if (lane == 0) kept[0][thread / 32] = largest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < WARPS; ++i) largest = fmaxf(largest, kept[0][i]);
    const float shrink = exp2f(most - largest);
    sum *= shrink, of_x *= shrink, of_y *= shrink;
    sum_over_warp(sum, of_x, of_y);
    if (lane == 0) kept[1][thread / 32] = sum, kept[2][thread / 32] = of_x, kept[3][thread / 32] = of_y;
    __syncthreads();
    if (thread == 0) {
        sum = of_x = of_y = 0.f;
#pragma unroll
        for (int i = 0; i < WARPS; ++i) sum += kept[1][i], of_x += kept[2][i], of_y += kept[3][i];
        const Place place = place_of(p);
        p.flow[place.flow] = of_x / sum - place.x;
        p.flow[place.flow + p.pixels] = of_y / sum - place.y;
        p.logarithms[place.pixel] = largest + log2f(sum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) gradient(const __grid_constant__ PositionParams p) {
    const Place place = place_of(p);
    const float unit = p.unit ? p.scale / *p.unit : p.scale, logarithm = p.logarithms[place.pixel];
    const float grad_x = p.grad[place.flow] * unit, grad_y = p.grad[place.flow + p.pixels] * unit;
    const float mean_x = p.flow[place.flow] + place.x, mean_y = p.flow[place.flow + p.pixels] + place.y;
    const i64 row = (i64)blockIdx.x * p.pitch;
    for (int at = 4 * threadIdx.x; at < p.pitch; at += 4 * THREADS) {
        const float4 four = *(const float4 *)(p.products + row + at);
        const float v[4] = {four.x, four.y, four.z, four.w};
        int y = (int)((u32)at / (u32)p.width), x = at - y * p.width;
        alignas(4 * sizeof(Value)) Value out[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float share = exp2f(v[i] * p.sharpness - logarithm);
            const float moved = grad_x * ((float)x - mean_x) + grad_y * ((float)y - mean_y);
            out[i] = rounded(at + i < p.count ? share * moved : 0.f);
            if (++x == p.width) x = 0, ++y;
        }
#if IN == 0
        *(float4 *)(p.grad_products + row + at) = make_float4(out[0], out[1], out[2], out[3]);
#else
        *(uint2 *)(p.grad_products + row + at) =
            make_uint2(out[0] | (u32)out[1] << 16, out[2] | (u32)out[3] << 16);
#endif
    }
}
