// Normalisation of rows [N, C] with what follows it: scale, shift, a residual, a ReLU; and the gradients. No system
// headers (NVRTC). Built behind halves.cuh and values.cuh. Sums are float32 and taken in one order: no atomics.
//
// "layer" kernels take the statistics of each row, in one pass. Those of groups of rows ("batch": one group, "instance": a
// group per cloud) go over the rows twice: sums of chunks of rows, joined by a second kernel, then the result.
//
// Macros set by the launcher:
//   IN, PARAM  features; scale, shift and running statistics: 0 float32, 1 float16, 2 bfloat16
//   VEC        channels that a lane loads at once: 16 bytes of them, or 1
//   LANES      of a row, a power of two up to 32
//   STEPS      loads of a lane: LANES * STEPS * VEC channels or fewer

#define THREADS 128
#define WARPS (THREADS / 32)
#define SIDE (THREADS / LANES)  // rows that a block takes side by side
#define VALUES (STEPS * VEC)
#define ALL 0xffffffffu
#define MOST_GROUPS 64

#if PARAM == 0
typedef float Learned;
#else
typedef u16 Learned;
#endif

struct NormParams {
    const Value *x, *residual, *y, *grad;  // [N, C]; y: the result, where a ReLU cut it
    const Learned *weight, *bias;          // [C]
    Value *out, *grad_residual;            // [N, C]; null where nobody wants the latter
    float *mean, *scale;                   // [groups, C]: 1 / sqrt(variance + eps)
    float *partial, *sums;                 // [chunks, 2, C], [groups, 2, C]
    Learned *grad_weight, *grad_bias;      // [C]
    Learned *running_mean, *running_var;   // [C] or null
    i64 rows;
    int channels, chunk, chunks, groups;   // rows of a chunk
    int relu, fixed;                       // fixed: the statistics are the running ones
    float eps, momentum;
    i64 first[MOST_GROUPS + 1];            // of every group: its first row ...
    int begin[MOST_GROUPS + 1];            // ... and its first chunk
};

static __device__ __forceinline__ float learned(const Learned *from, int channel) {
#if PARAM == 0
    return from[channel];
#elif PARAM == 1
    return from_f16(from[channel]);
#else
    return from_bf16(from[channel]);
#endif
}
static __device__ __forceinline__ void learn(Learned *to, int channel, float x) {
#if PARAM == 0
    to[channel] = x;
#elif PARAM == 1
    to[channel] = to_f16(x);
#else
    to[channel] = to_bf16(x);
#endif
}
static __device__ __forceinline__ float reciprocal_root(float x) {
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

typedef float Lane[VALUES];  // a lane's channels of a row

struct Vector {
#if VEC == 1
    Value v[1];
#else
    uint4 v;
#endif
};

static __device__ __forceinline__ int channel_of(int step, int lane) { return (step * LANES + lane) * VEC; }

// Zeros where the row has no such channel, or nothing is to be read.
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
        to[i] = c < channels ? learned(from, c) : 0.f;
    }
}
static __device__ __forceinline__ void load_floats(Lane &to, const float *from, int channels, int lane) {
#pragma unroll
    for (int i = 0; i < VALUES; i++) {
        const int c = channel_of(i / VEC, lane) + i % VEC;
        to[i] = c < channels ? from[c] : 0.f;
    }
}

static __device__ __forceinline__ float over_row(float x) {
#pragma unroll
    for (int by = LANES / 2; by > 0; by /= 2) x += __shfl_xor_sync(ALL, x, by);
    return x;
}

// Takes the mean from the row; what lies behind its end stays 0. Returns the reciprocal deviation.
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

// The gradient behind the ReLU, which is that of the residual, too.
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

// The block's sums, channel by channel.
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
#pragma unroll
    for (int i = 0; i < VALUES; i++) of_weight[i] = of_bias[i] = 0.f;
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

// The chunks' sums of each group, and of all groups those of scale and shift. 32 sums a block, 8 threads each.
extern "C" __global__ void __launch_bounds__(256) add_chunks(const __grid_constant__ NormParams p) {
    __shared__ float room[8][32];
    const int column = threadIdx.x % 32, slice = threadIdx.x / 32, at = blockIdx.x * 32 + column;
    const bool inside = at < 2 * p.channels;
    float total = 0.f;
    for (int group = 0; group < p.groups; group++) {
        float sum = 0.f;
        if (inside)
            for (int chunk = p.begin[group] + slice; chunk < p.begin[group + 1]; chunk += 8) sum += p.partial[(i64)chunk * 2 * p.channels + at];
        __syncthreads();
        room[slice][column] = sum;
        __syncthreads();
        sum = 0.f;
#pragma unroll
        for (int i = 0; i < 8; i++) sum += room[i][column];
        if (slice == 0 && inside && p.sums) p.sums[(i64)group * 2 * p.channels + at] = sum;
        total += sum;
    }
    if (slice || !inside) return;
    if (at < p.channels) learn(p.grad_weight, at, total);
    else learn(p.grad_bias, at - p.channels, total);
}

static __device__ __forceinline__ int group_of(const NormParams &p, i64 row) {
    int low = 0, high = p.groups;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (p.first[middle] <= row) low = middle;
        else high = middle;
    }
    return low;
}

struct Chunk {
    int group;
    i64 begin, end;  // rows
};
static __device__ __forceinline__ Chunk chunk_at(const NormParams &p, int number) {
    Chunk found;
    int low = 0, high = p.groups;
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (p.begin[middle] <= number) low = middle;
        else high = middle;
    }
    found.group = low;
    found.begin = p.first[low] + (i64)(number - p.begin[low]) * p.chunk;
    found.end = found.begin + p.chunk < p.first[low + 1] ? found.begin + p.chunk : p.first[low + 1];
    return found;
}

// Of a chunk: the mean of every channel and the sum of the squares around it.
extern "C" __global__ void __launch_bounds__(THREADS) moments(const __grid_constant__ NormParams p) {
    const int lane = threadIdx.x % LANES;
    const Chunk own = chunk_at(p, (int)blockIdx.x);
    float *to = p.partial + (i64)blockIdx.x * 2 * p.channels;
    Lane mean, sum;
#pragma unroll
    for (int i = 0; i < VALUES; i++) mean[i] = 0.f;
    for (int pass = 0; pass < 2; pass++) {
#pragma unroll
        for (int i = 0; i < VALUES; i++) sum[i] = 0.f;
        for (i64 base = own.begin; base < own.end; base += SIDE) {
            const i64 row = base + threadIdx.x / LANES;
            const bool inside = row < own.end;
            Lane x;
            load(x, p.x + row * p.channels, p.channels, lane, inside);
#pragma unroll
            for (int i = 0; i < VALUES; i++) {
                const float away = inside ? x[i] - mean[i] : 0.f;
                sum[i] += pass ? away * away : away;
            }
        }
        join(sum, to + pass * p.channels, p.channels);
        if (pass) break;
        __syncthreads();
        for (int c = threadIdx.x; c < p.channels; c += THREADS) to[c] /= (float)(own.end - own.begin);
        __syncthreads();
        load_floats(mean, to, p.channels, lane);
    }
}

// Of a group: its chunks' moments joined in order; or the running statistics.
extern "C" __global__ void __launch_bounds__(128) join_moments(const __grid_constant__ NormParams p) {
    const int c = blockIdx.x * 128 + threadIdx.x, group = c / p.channels, channel = c % p.channels;
    if (group >= p.groups) return;
    if (p.fixed) {
        p.mean[c] = learned(p.running_mean, channel);
        p.scale[c] = reciprocal_root(learned(p.running_var, channel) + p.eps);
        return;
    }
    float count = 0.f, mean = 0.f, square = 0.f;
    const i64 rows = p.first[group + 1] - p.first[group];
    for (int chunk = p.begin[group]; chunk < p.begin[group + 1]; chunk++) {
        const i64 left = rows - (i64)(chunk - p.begin[group]) * p.chunk;
        const float more = (float)(left < p.chunk ? left : p.chunk);
        const float *from = p.partial + (i64)chunk * 2 * p.channels + channel;
        const float away = from[0] - mean, part = more / (count + more);
        mean += away * part;
        square += from[p.channels] + away * away * count * part;
        count += more;
    }
    p.mean[c] = mean;
    p.scale[c] = reciprocal_root((rows ? square / (float)rows : 0.f) + p.eps);
    if (p.running_mean && rows > 1) {
        learn(p.running_mean, channel, learned(p.running_mean, channel) * (1.f - p.momentum) + mean * p.momentum);
        learn(p.running_var, channel, learned(p.running_var, channel) * (1.f - p.momentum) + square / (float)(rows - 1) * p.momentum);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) group_forward(const __grid_constant__ NormParams p) {
    const int lane = threadIdx.x % LANES;
    Lane weight, bias;
    load_learned(weight, p.weight, p.channels, lane);
    load_learned(bias, p.bias, p.channels, lane);
    for (i64 base = (i64)blockIdx.x * SIDE; base < p.rows; base += (i64)gridDim.x * SIDE) {
        const i64 row = base + threadIdx.x / LANES;
        const bool inside = row < p.rows;
        const i64 stats = (i64)(inside ? group_of(p, row) : 0) * p.channels;
        Lane x, mean, scale;
        load(x, p.x + row * p.channels, p.channels, lane, inside);
        load_floats(mean, p.mean + stats, p.channels, lane);
        load_floats(scale, p.scale + stats, p.channels, lane);
#pragma unroll
        for (int i = 0; i < VALUES; i++) x[i] = (x[i] - mean[i]) * scale[i] * weight[i] + bias[i];
        finish(p, x, row, lane, inside);
    }
}

// Of a chunk: the sums of the gradient times the normalised value, and of the gradient.
extern "C" __global__ void __launch_bounds__(THREADS) group_sums(const __grid_constant__ NormParams p) {
    const int lane = threadIdx.x % LANES;
    const Chunk own = chunk_at(p, (int)blockIdx.x);
    Lane mean, scale, of_weight, of_bias;
    load_floats(mean, p.mean + (i64)own.group * p.channels, p.channels, lane);
    load_floats(scale, p.scale + (i64)own.group * p.channels, p.channels, lane);
#pragma unroll
    for (int i = 0; i < VALUES; i++) of_weight[i] = of_bias[i] = 0.f;
    for (i64 base = own.begin; base < own.end; base += SIDE) {
        const i64 row = base + threadIdx.x / LANES;
        const bool inside = row < own.end;
        Lane x, g;
        load(x, p.x + row * p.channels, p.channels, lane, inside);
        load_gradient(p, g, row, lane, inside, false);
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            of_weight[i] += g[i] * (x[i] - mean[i]) * scale[i];
            of_bias[i] += g[i];
        }
    }
    float *to = p.partial + (i64)blockIdx.x * 2 * p.channels;
    join(of_weight, to, p.channels);
    join(of_bias, to + p.channels, p.channels);
}

extern "C" __global__ void __launch_bounds__(THREADS) group_backward(const __grid_constant__ NormParams p) {
    const int lane = threadIdx.x % LANES;
    Lane weight;
    load_learned(weight, p.weight, p.channels, lane);
    for (i64 base = (i64)blockIdx.x * SIDE; base < p.rows; base += (i64)gridDim.x * SIDE) {
        const i64 row = base + threadIdx.x / LANES;
        const bool inside = row < p.rows;
        const int group = inside ? group_of(p, row) : 0;
        const float share = p.fixed ? 0.f : 1.f / (float)(p.first[group + 1] - p.first[group]);
        const float *sums = p.sums + (i64)group * 2 * p.channels;
        Lane x, g, mean, scale, one, two;
        load(x, p.x + row * p.channels, p.channels, lane, inside);
        load_gradient(p, g, row, lane, inside, true);
        load_floats(mean, p.mean + (i64)group * p.channels, p.channels, lane);
        load_floats(scale, p.scale + (i64)group * p.channels, p.channels, lane);
        load_floats(two, sums, p.channels, lane);
        load_floats(one, sums + p.channels, p.channels, lane);
#pragma unroll
        for (int i = 0; i < VALUES; i++)
            g[i] = (g[i] - (one[i] + (x[i] - mean[i]) * scale[i] * two[i]) * share) * scale[i] * weight[i];
        store(p.out + row * p.channels, g, p.channels, lane, inside);
    }
}
