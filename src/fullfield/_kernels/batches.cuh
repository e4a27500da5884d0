// Launches of several problems at once, and prefix sums. Built behind halves.cuh.

#define MAX_PROBLEMS 16
#define SUMMED 2048  // numbers of a block of 256 threads

template <class Params> struct Batch {
    Params each[MAX_PROBLEMS];
    int begin[MAX_PROBLEMS + 1];  // first block of each, and the number of blocks
};

// Return this block's problem; `block` becomes its number among the problem's blocks.
template <class Params> static __device__ __forceinline__ const Params &problem_of(const Batch<Params> &all, i64 &block) {
    int i = 0;
    while (i < MAX_PROBLEMS - 1 && (int)blockIdx.x >= all.begin[i + 1]) i++;
    block = (i64)((int)blockIdx.x - all.begin[i]);
    return all.each[i];
}

// Return the sum over the threads before this one; `total` becomes the sum over all.
static __device__ __forceinline__ i64 sum_before(i64 mine, i64 &total) {
    __shared__ i64 warps[8];
    i64 up = mine;
    for (int by = 1; by < 32; by *= 2) {
        const i64 other = __shfl_up_sync(ALL, up, by);
        if ((int)(threadIdx.x & 31) >= by) up += other;
    }
    __syncthreads();
    if ((threadIdx.x & 31) == 31) warps[threadIdx.x >> 5] = up;
    __syncthreads();
    up -= mine;
    total = 0;
    for (int i = 0; i < 8; i++) {
        if (i < (int)(threadIdx.x >> 5)) up += warps[i];
        total += warps[i];
    }
    return up;
}

// ---- prefix sums in one pass: a block adds what the blocks before it came to
//
// Blocks take numbers in the order in which they begin, so a block waits only for blocks that run or have run. Each
// writes one word: its own sum, then the sum up to and with it; 0 means nothing yet. A word is written and read whole,
// and nothing else is passed, so no fence is needed.
//
//   passed   [1 + blocks], zeros at first: how many blocks have begun, then the word of each
//   Sums are at least 0 and below 2^62.

#define OWN_SUM (1ull << 62)
#define WHOLE_SUM (2ull << 62)

// Return this block's number among those that sum.
static __device__ __forceinline__ i64 next_block(u64 *passed) {
    __shared__ i64 number;
    if (threadIdx.x == 0) number = (i64)atomicAdd(passed, 1ull);
    __syncthreads();
    return number;
}

// Return the sum of the blocks before this one, whose own sum is `own`.
static __device__ __forceinline__ i64 sum_of_blocks_before(i64 own, u64 *passed, i64 block) {
    __shared__ i64 before;
    if (threadIdx.x < 32) {
        volatile u64 *words = passed + 1;
        const int lane = threadIdx.x;
        if (lane == 0) words[block] = (block ? OWN_SUM : WHOLE_SUM) | (u64)own;
        i64 sum = 0;
        for (i64 last = block - 1; last >= 0; last -= 32) {
            u64 word;
            for (;;) {
                word = last >= lane ? words[last - lane] : WHOLE_SUM;  // before the first: a whole sum of nothing
                if (!__any_sync(ALL, word < OWN_SUM)) break;
            }
            const u32 whole = __ballot_sync(ALL, word >= WHOLE_SUM);
            const int nearest = whole ? __ffs((int)whole) - 1 : 31;
            i64 part = lane <= nearest ? (i64)(word & (OWN_SUM - 1)) : 0;
            for (int by = 16; by > 0; by /= 2) part += __shfl_xor_sync(ALL, part, by);
            sum += part;
            if (whole) break;
        }
        if (lane == 0) {
            if (block) words[block] = WHOLE_SUM | (u64)(sum + own);
            before = sum;
        }
    }
    __syncthreads();
    return before;
}

// Write out[i] = from[0] + ... + from[i]; `out` may be `from`. Return the sum up to and with the block's last number.
template <class In, class Out>
static __device__ __forceinline__ i64 running_sums(const In *from, Out *out, i64 count, u64 *passed, i64 &block) {
    block = next_block(passed);
    const i64 first = block * SUMMED + threadIdx.x * (SUMMED / 256);
    i64 own[SUMMED / 256], sum = 0, total;
#pragma unroll
    for (int i = 0; i < SUMMED / 256; i++) own[i] = sum += first + i < count ? (i64)from[first + i] : 0;
    const i64 threads = sum_before(sum, total), blocks = sum_of_blocks_before(total, passed, block);
#pragma unroll
    for (int i = 0; i < SUMMED / 256; i++)
        if (first + i < count) out[first + i] = (Out)(blocks + threads + own[i]);
    return blocks + total;
}
