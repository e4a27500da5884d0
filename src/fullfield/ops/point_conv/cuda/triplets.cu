// Triplets: cells of neighbours, rows sorted by cell and point, and the transposed rows. A warp sorts a row; a launch builds
// several sets, a range of blocks each. Built behind batches.cuh and sort_rows.cuh.
//
// Macros set by the launcher:
//   BESIDE   1 if the written words do not hold the cells, which then lie apart; KEY is a u64 then, else a u32
//   GIVEN    1 if the words that are transposed do not hold their cells

#define WARPS 8

struct TripletParams {
    const i64 *from;                 // [R + 1]: row offsets of neighbours, or of the triplets to transpose
    const int *numbers;              // [T]: neighbours, or the words to transpose
    const unsigned char *numbers_beside;
    const float *points, *centers;   // [N, 3], [M, 3]
    const i64 *rows;                 // [rows + 1] offsets of the rows that are written
    int *counts;                     // [columns]: entries of the rows that are written
    i64 *transposed;                 // their offsets [columns + 1], the same as `rows`
    u64 *passed;                     // words between the blocks that sum the offsets
    u32 *words;                      // [T]
    unsigned char *beside;           // [T]
    i64 count, entries;              // rows to read, T
    i64 columns;                     // rows of the other side
    float grid;
    int sides[3];
    int bits;                        // bits of an index in a word
};
typedef Batch<TripletParams> TripletBatch;

struct Row {
    u32 *words;
    unsigned char *beside;
    int bits;
    __device__ __forceinline__ KEY get(unsigned i) const {
#if BESIDE
        const u32 word = words[i];
        return (u64)(beside[i] | word >> 31 << 8) << 32 | (word & 0x7fffffffu);
#else
        return words[i];
#endif
    }
    __device__ __forceinline__ void put(unsigned i, KEY key) const {
#if BESIDE
        const u32 cell = (u32)(key >> 32);
        words[i] = (u32)key | cell >> 8 << 31;
        beside[i] = (unsigned char)cell;
#else
        words[i] = key;
#endif
    }
};

static __device__ __forceinline__ KEY key_of(u32 cell, u32 index, int bits) {
#if BESIDE
    return (u64)cell << 32 | index;
#else
    return cell << bits | index;
#endif
}

static __device__ __forceinline__ u32 index_of(u32 word, int bits) {
    return word & ((1u << (GIVEN ? 31 : bits)) - 1);
}

static __device__ __forceinline__ Row row_at(const TripletParams &p, i64 start) {
    return Row{p.words + start, p.beside + (BESIDE ? start : 0), p.bits};
}

// Return the cell along one axis of a point that lies `away` from the centre; halves round to even.
static __device__ __forceinline__ int step_of(float away, float grid, int side) {
    const float steps = rintf(fminf(fmaxf(__fdiv_rn(away, grid), -64.f), 64.f));
    return min(max((int)steps + side / 2, 0), side - 1);
}

static __device__ __forceinline__ KEY key_of_neighbor(const TripletParams &p, const float *center, i64 at) {
    const int index = p.numbers[at];
    const float *point = p.points + 3ll * index;
    int cell = 0;
#pragma unroll
    for (int axis = 0; axis < 3; axis++)
        cell = cell * p.sides[axis] + step_of(__fsub_rn(point[axis], center[axis]), p.grid, p.sides[axis]);
    return key_of((u32)cell, (u32)index, p.bits);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) assemble_rows(const __grid_constant__ TripletBatch all) {
    __shared__ KEY kept[WARPS][ROOM];
    i64 block;
    const TripletParams &p = problem_of(all, block);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const i64 number = block * WARPS + warp;
    if (number >= p.count) return;
    const i64 start = p.from[number];
    const u32 size = (u32)(p.from[number + 1] - start);
    const float center[3] = {p.centers[3 * number], p.centers[3 * number + 1], p.centers[3 * number + 2]};
    const Row row = row_at(p, start);
    for (u32 i = lane; i < size; i += 32) {
        const KEY key = key_of_neighbor(p, center, start + i);
        if (size <= ROOM) kept[warp][i] = key;
        else row.put(i, key);
    }
    sort_kept(kept[warp], row, size, lane);
}

extern "C" __global__ void __launch_bounds__(256) count_entries(const __grid_constant__ TripletBatch all) {
    i64 block;
    const TripletParams &p = problem_of(all, block);
    const i64 at = block * 256 + threadIdx.x;
    if (at < p.entries) atomicAdd(p.counts + index_of((u32)p.numbers[at], p.bits), 1);
}

extern "C" __global__ void __launch_bounds__(256) start_rows(const __grid_constant__ TripletBatch all) {
    i64 block;
    const TripletParams &p = problem_of(all, block);
    running_sums(p.counts, p.transposed + 1, p.columns, p.passed, block);
    if (block == 0 && threadIdx.x == 0) p.transposed[0] = 0;
}

// Write entries into the rows of their indices in any order; `counts` holds how many are still to come.
extern "C" __global__ void __launch_bounds__(WARPS * 32) scatter_entries(const __grid_constant__ TripletBatch all) {
    i64 block;
    const TripletParams &p = problem_of(all, block);
    const i64 number = block * WARPS + (threadIdx.x >> 5);
    if (number >= p.count) return;
    for (i64 at = p.from[number] + (threadIdx.x & 31); at < p.from[number + 1]; at += 32) {
        const u32 word = (u32)p.numbers[at], index = index_of(word, p.bits);
#if GIVEN
        const u32 cell = p.numbers_beside[at] | word >> 31 << 8;
#else
        const u32 cell = word >> p.bits;
#endif
        const i64 start = p.rows[index];
        row_at(p, start).put((u32)atomicAdd(p.counts + index, -1) - 1, key_of(cell, (u32)number, p.bits));
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) sort_rows(const __grid_constant__ TripletBatch all) {
    __shared__ KEY kept[WARPS][ROOM];
    i64 block;
    const TripletParams &p = problem_of(all, block);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const i64 number = block * WARPS + warp;
    if (number >= p.columns) return;
    const i64 start = p.rows[number];
    const u32 size = (u32)(p.rows[number + 1] - start);
    const Row row = row_at(p, start);
    if (size <= ROOM)
        for (u32 i = lane; i < size; i += 32) kept[warp][i] = row.get(i);
    sort_kept(kept[warp], row, size, lane);
}
