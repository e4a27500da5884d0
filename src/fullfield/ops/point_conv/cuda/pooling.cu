// Pooling over the rows of triplets: a thread computes one channel of one row, in the row's order. Built behind halves.cuh
// and values.cuh.
//
// Macro: BESIDE, 1 if the cells of triplets lie apart from the words.

struct PoolParams {
    const i64 *rows;         // [R + 1]
    const u32 *words;        // [T]
    const Value *features;   // [N, C]
    int *winners;            // [R, C]: index of each maximum, -1 for none; the gradient reads it
    Value *out;              // [R, C]
    i64 count;               // R * C
    int channels, bits;
};

static __device__ __forceinline__ u32 index_at(const PoolParams &p, i64 at) {
    return p.words[at] & ((1u << (BESIDE ? 31 : p.bits)) - 1);
}

extern "C" __global__ void __launch_bounds__(256) pool_sum(const __grid_constant__ PoolParams p) {
    const i64 t = (i64)blockIdx.x * 256 + threadIdx.x;
    if (t >= p.count) return;
    const i64 row = t / p.channels, channel = t - row * p.channels;
    Sum sum = 0;
    for (i64 at = p.rows[row]; at < p.rows[row + 1]; at++) sum += widened(p.features[(i64)index_at(p, at) * p.channels + channel]);
    p.out[t] = rounded(sum);
}

// Find the maxima. NaN is larger than any number; the first of equal points wins.
extern "C" __global__ void __launch_bounds__(256) pool_max(const __grid_constant__ PoolParams p) {
    const i64 t = (i64)blockIdx.x * 256 + threadIdx.x;
    if (t >= p.count) return;
    const i64 row = t / p.channels, channel = t - row * p.channels;
    Sum best = 0;
    Value kept = 0;
    int winner = -1;
    for (i64 at = p.rows[row]; at < p.rows[row + 1]; at++) {
        const int index = (int)index_at(p, at);
        const Value value = p.features[(i64)index * p.channels + channel];
        const Sum x = widened(value);
        const bool equal = x == best || (x != x && best != best), more = x > best || (x != x && best == best);
        if (winner < 0 || more || (equal && index < winner)) best = x, kept = value, winner = index;
    }
    p.out[t] = kept;
    p.winners[t] = winner;
}

// Sum the maxima's gradients, given as features, over the centres that chose each point.
extern "C" __global__ void __launch_bounds__(256) pool_max_backward(const __grid_constant__ PoolParams p) {
    const i64 t = (i64)blockIdx.x * 256 + threadIdx.x;
    if (t >= p.count) return;
    const i64 row = t / p.channels, channel = t - row * p.channels;
    Sum sum = 0;
    for (i64 at = p.rows[row]; at < p.rows[row + 1]; at++) {
        const i64 from = (i64)index_at(p, at) * p.channels + channel;
        if (p.winners[from] == (int)row) sum += widened(p.features[from]);
    }
    p.out[t] = rounded(sum);
}
