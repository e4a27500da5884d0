// Several problems in one launch, and prefix sums. No system headers (NVRTC).

typedef unsigned u32;
typedef unsigned long long u64;
typedef long long i64;

#define MOST_PROBLEMS 16
#define SUMMED 2048  // numbers of a block of 256 threads

template <class Params> struct Batch {
    Params each[MOST_PROBLEMS];
    int begin[MOST_PROBLEMS + 1];  // first block of each, and the number of blocks
};

// The problem of this block, and the block's number among that problem's.
template <class Params> static __device__ __forceinline__ const Params &problem_of(const Batch<Params> &all, i64 &block) {
    int i = 0;
    while (i < MOST_PROBLEMS - 1 && (int)blockIdx.x >= all.begin[i + 1]) i++;
    block = (i64)((int)blockIdx.x - all.begin[i]);
    return all.each[i];
}

static __device__ __forceinline__ i64 sum_of_block(i64 mine) {
    __shared__ i64 room[8];
    for (int by = 16; by > 0; by /= 2) mine += __shfl_xor_sync(0xffffffffu, mine, by);
    __syncthreads();
    if ((threadIdx.x & 31) == 0) room[threadIdx.x >> 5] = mine;
    __syncthreads();
    mine = 0;
    for (int i = 0; i < 8; i++) mine += room[i];
    return mine;
}

// Of the sums of threads before this one; and of all.
static __device__ __forceinline__ i64 sum_before(i64 mine, i64 &total) {
    __shared__ i64 warps[8];
    i64 up = mine;
    for (int by = 1; by < 32; by *= 2) {
        const i64 other = __shfl_up_sync(0xffffffffu, up, by);
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

// First the sum of every block's numbers ...
template <class In> static __device__ __forceinline__ void sum_part(const In *from, i64 count, i64 *parts, i64 block) {
    i64 sum = 0;
    for (i64 i = block * SUMMED + threadIdx.x; i < (block + 1) * SUMMED && i < count; i += 256) sum += (i64)from[i];
    sum = sum_of_block(sum);
    if (threadIdx.x == 0) parts[block] = sum;
}

// ... then out[i] = from[0] + ... + from[i], perhaps in place. Returns the sum up to and with the block's last number.
template <class In, class Out>
static __device__ __forceinline__ i64 running_sums(const In *from, Out *out, i64 count, const i64 *parts, i64 block) {
    i64 before = 0;
    for (i64 i = threadIdx.x; i < block; i += 256) before += parts[i];
    before = sum_of_block(before);
    const i64 first = block * SUMMED + threadIdx.x * (SUMMED / 256);
    i64 own[SUMMED / 256], sum = 0, total;
#pragma unroll
    for (int i = 0; i < SUMMED / 256; i++) own[i] = sum += first + i < count ? (i64)from[first + i] : 0;
    const i64 base = before + sum_before(sum, total);
#pragma unroll
    for (int i = 0; i < SUMMED / 256; i++)
        if (first + i < count) out[first + i] = (Out)(base + own[i]);
    return before + total;
}
