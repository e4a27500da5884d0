// Layer normalisation of rows [N, C] with scale, shift, a residual and a ReLU, and its gradients. Built behind halves.cuh
// and values.cuh. Sums are float32 and have one order: no atomics.
//
// Macros set by the launcher:
//   IN, PARAM  types of features, of scale and shift: 0 float32, 1 float16, 2 bfloat16
//   VEC        channels that a lane loads at once: 16 bytes of them, or 1
//   LANES      lanes of a row, a power of two up to 32
//   STEPS      loads of a lane: up to LANES * STEPS * VEC channels

#define THREADS 128
#define WARPS (THREADS / 32)
#define SIDE (THREADS / LANES)  // rows that a block takes side by side
#define VALUES (STEPS * VEC)

#if PARAM == 0
typedef float Learned;
static __device__ __forceinline__ float learned(Learned v) { return v; }
static __device__ __forceinline__ Learned to_learn(float x) { return x; }
#else
typedef Value Learned;  // the features' type
static __device__ __forceinline__ float learned(Learned v) { return widened(v); }
static __device__ __forceinline__ Learned to_learn(float x) { return rounded(x); }
#endif

struct NormParams {
    const Value *x, *residual, *y, *grad;  // [N, C]; y: the result, where a ReLU cut it
    const Learned *weight, *bias;          // [C]
    Value *out, *grad_residual;            // [N, C]; the latter may be null
    float *partial;                        // [chunks, 2, C]
    Learned *grad_weight, *grad_bias;      // [C]
    i64 rows;
    int channels, chunk, chunks, relu;     // chunk: rows of a chunk
    float eps;
};

typedef float Lane[VALUES];  // a lane's channels of a row

struct Vector {
#if VEC == 1
    Value v[1];
#else
    uint4 v;
#endif
};

static __device__ __forceinline__ int channel_of(int step, int lane) { return (step * LANES + lane) * VEC; }

// Load the lane's channels of a row; zeros beyond its end or if not `wanted`.
static __device__ __forceinline__ void load(Lane &to, const Value *row, int channels, int lane, bool wanted) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int c = channel_of(s, lane);
        union {
            Vector whole;
            Value v[VEC];
        } u;
        const bool inside = wanted && c < channels;
        if (inside) u.whole = *(const Vector *)(row + c);
#pragma unroll
        for (int i = 0; i < VEC; i++) to[s * VEC + i] = inside ? widened(u.v[i]) : 0.f;
    }
}
static __device__ __forceinline__ void store(Value *row, const Lane &from, int channels, int lane, bool wanted) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        const int c = channel_of(s, lane);
        union {
            Vector whole;
            Value v[VEC];
        } u;
#pragma unroll
        for (int i = 0; i < VEC; i++) u.v[i] = rounded(from[s * VEC + i]);
        if (wanted && c < channels) *(Vector *)(row + c) = u.whole;
    }
}
static __device__ __forceinline__ void load_learned(Lane &to, const Learned *from, int channels, int lane) {
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const int c = channel_of(i / VEC, lane) + i % VEC;
        to[i] = c < channels ? learned(from[c]) : 0.f;
    }
}

static __device__ __forceinline__ float over_row(float x) {
#pragma unroll
    for (int by = LANES / 2; by > 0; by /= 2) x += __shfl_xor_sync(ALL, x, by);
    return x;
}

// Subtract the mean from the row; values beyond its end stay 0. Return the reciprocal deviation.
static __device__ __forceinline__ float centred(Lane &x, int channels, int lane, float eps) {
    float sum = 0.f, square = 0.f;
#pragma unroll
    for (int i = 0; i < VALUES; i++) sum += x[i];
    const float mean = over_row(sum) / (float)channels;
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        x[i] = channel_of(i / VEC, lane) + i % VEC < channels ? x[i] - mean : 0.f;
        square += x[i] * x[i];
    }
    return reciprocal_root(over_row(square) / (float)channels + eps);
}

static __device__ __forceinline__ void finish(const NormParams &p, Lane &x, i64 row, int lane, bool inside) {
    if (p.residual) {
        Lane more;
        load(more, p.residual + row * p.channels, p.channels, lane, inside);
#pragma unroll
        for (int i = 0; i < VALUES; i++) x[i] += more[i];
    }
    if (p.relu)
#pragma unroll
        for (int i = 0; i < VALUES; i++) x[i] = x[i] < 0.f ? 0.f : x[i];  // NaN stays
    store(p.out + row * p.channels, x, p.channels, lane, inside);
}

// Load the gradient before the ReLU, which is also the residual's.
static __device__ __forceinline__ void load_gradient(const NormParams &p, Lane &g, i64 row, int lane, bool inside, bool kept) {
    load(g, p.grad + row * p.channels, p.channels, lane, inside);
    if (p.relu) {
        Lane y;
        load(y, p.y + row * p.channels, p.channels, lane, inside);
#pragma unroll
        for (int i = 0; i < VALUES; i++) g[i] = y[i] <= 0.f ? 0.f : g[i];
    }
    if (kept && p.grad_residual) store(p.grad_residual + row * p.channels, g, p.channels, lane, inside);
}

// Sum over the block, channel by channel.
static __device__ __forceinline__ void join(Lane &a, float *to, int channels) {
    __shared__ float room[WARPS][LANES * VALUES];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % LANES;
#pragma unroll
    for (int i = 0; i < VALUES; i++)
#pragma unroll
        for (int by = LANES; by < 32; by *= 2) a[i] += __shfl_xor_sync(ALL, a[i], by);
    __syncthreads();
    if (threadIdx.x % 32 < LANES)
#pragma unroll
        for (int i = 0; i < VALUES; i++) room[warp][channel_of(i / VEC, lane) + i % VEC] = a[i];
    __syncthreads();
    for (int c = threadIdx.x; c < channels; c += THREADS) {
        float sum = 0.f;
#pragma unroll
        for (int w = 0; w < WARPS; w++) sum += room[w][c];
        to[c] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) layer_forward(const __grid_constant__ NormParams p) {
    const int lane = threadIdx.x % LANES;
    Lane weight, bias;
    load_learned(weight, p.weight, p.channels, lane);
    load_learned(bias, p.bias, p.channels, lane);
    for (i64 base = (i64)blockIdx.x * SIDE; base < p.rows; base += (i64)gridDim.x * SIDE) {
        const i64 row = base + threadIdx.x / LANES;
        const bool inside = row < p.rows;
        Lane x;
        load(x, p.x + row * p.channels, p.channels, lane, inside);
        const float scale = centred(x, p.channels, lane, p.eps);
#pragma unroll
        for (int i = 0; i < VALUES; i++) x[i] = x[i] * scale * weight[i] + bias[i];
        finish(p, x, row, lane, inside);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) layer_backward(const __grid_constant__ NormParams p) {
    const int lane = threadIdx.x % LANES;
    const i64 begin = (i64)blockIdx.x * p.chunk, end = begin + p.chunk < p.rows ? begin + p.chunk : p.rows;
    Lane weight, of_weight, of_bias;
    load_learned(weight, p.weight, p.channels, lane);
    clear(of_weight), clear(of_bias);
    for (i64 base = begin; base < end; base += SIDE) {
        const i64 row = base + threadIdx.x / LANES;
        const bool inside = row < end;
        Lane x, g;
        load(x, p.x + row * p.channels, p.channels, lane, inside);
        load_gradient(p, g, row, lane, inside, true);
        const float scale = centred(x, p.channels, lane, p.eps);
        float one = 0.f, two = 0.f;
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            x[i] *= scale;
            of_weight[i] += g[i] * x[i];
            of_bias[i] += g[i];
            g[i] *= weight[i];
            one += g[i];
            two += g[i] * x[i];
        }
        one = over_row(one) / (float)p.channels;
        two = over_row(two) / (float)p.channels;
#pragma unroll
        for (int i = 0; i < VALUES; i++) g[i] = (g[i] - one - x[i] * two) * scale;
        store(p.out + row * p.channels, g, p.channels, lane, inside);
    }
    float *to = p.partial + (i64)blockIdx.x * 2 * p.channels;
    join(of_weight, to, p.channels);
    join(of_bias, to + p.channels, p.channels);
}

// Add the chunks' sums of scale and shift. A block: 32 sums, 8 threads each.
extern "C" __global__ void __launch_bounds__(256) add_chunks(const __grid_constant__ NormParams p) {
    __shared__ float room[8][32];
    const int column = threadIdx.x % 32, slice = threadIdx.x / 32, at = blockIdx.x * 32 + column;
    const bool inside = at < 2 * p.channels;
    float sum = 0.f;
    if (inside)
        for (int chunk = slice; chunk < p.chunks; chunk += 8) sum += p.partial[(i64)chunk * 2 * p.channels + at];
    room[slice][column] = sum;
    __syncthreads();
    if (slice || !inside) return;
    sum = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) sum += room[i][column];
    if (at < p.channels) p.grad_weight[at] = to_learn(sum);
    else p.grad_bias[at - p.channels] = to_learn(sum);
}
