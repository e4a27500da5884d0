// Arrays whose length changes, in memory of fixed size. No system headers (NVRTC). Built behind batches.cuh.

#define COPIED 2048  // numbers of a block of 256 threads

struct PaddingParams {
    const unsigned char *from;  // [count] numbers
    unsigned char *to;          // [room]
    i64 count, room;            // count: at most `room`; with 0 nothing is written
    int bytes;                  // of a number: 1, 4 or 8
};
typedef Batch<PaddingParams> PaddingBatch;

template <class Number> static __device__ __forceinline__ void repeat_last(const PaddingParams &p, i64 first) {
    const Number *from = (const Number *)p.from;
    Number *to = (Number *)p.to;
#pragma unroll
    for (int i = 0; i < COPIED / 256; i++) {
        const i64 at = first + 256 * i;
        if (at < p.room) to[at] = from[at < p.count ? at : p.count - 1];
    }
}

extern "C" __global__ void __launch_bounds__(256) pad(const __grid_constant__ PaddingBatch all) {
    i64 block;
    const PaddingParams &p = problem_of(all, block);
    if (p.count == 0) return;
    const i64 first = block * COPIED + threadIdx.x;
    if (p.bytes == 8)
        repeat_last<u64>(p, first);
    else if (p.bytes == 4)
        repeat_last<u32>(p, first);
    else
        repeat_last<unsigned char>(p, first);
}
