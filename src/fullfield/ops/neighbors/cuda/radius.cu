// Radius search: points lie in hash buckets by the cell of a grid, cells as wide as the radius. A warp looks at the 27 cells
// around a query. Built behind clouds.cuh, batches.cuh and sort_rows.cuh.
//
// A launch runs several searches, or fills several tables, a range of blocks each.
//
// A bucket may hold points of several cells in any order: the distance decides, and every bucket is read once for a query.
// 4 x 4 x 4 cells lie together in the table, so that points near in space are near in memory.

#define WARPS 8
#define QUERIES 8  // that a warp takes one after the other

struct RadiusParams {
    const float *points, *queries;        // [N, 3], [M, 3]
    const i64 *offsets, *query_offsets;   // [B + 1]; null for one cloud
    float4 *sorted;                       // [N]: x, y, z, number
    u32 *starts;                          // [mask + 2]: first point of every bucket; counts while the table is filled
    u32 *places;                          // [N]: place of a point in its bucket
    i64 *rows;                            // [M + 1]
    u64 *passed;                          // words between blocks that sum row offsets or the buckets' starts
    i64 *total;                           // pairs
    int *indices;
    i64 count, asked, batches;            // N, M, B
    double inverse;                       // inverse of a cell's width
    float limit;                          // largest square of a distance
    u32 mask;                             // buckets - 1
    int own;                              // whether the queries are the points
    int sort;                             // whether a row's indices rise
};
typedef Batch<RadiusParams> RadiusBatch;

struct Cell {
    i64 x, y, z;
    u32 cloud;
};

static __device__ __forceinline__ i64 cell_at(float x, double inverse) {
    // Points beyond 2^62 cells share the last.
    return (i64)floor(fmin(fmax(__dmul_rn((double)x, inverse), -4e18), 4e18));
}

static __device__ __forceinline__ u32 bucket_of(i64 x, i64 y, i64 z, u32 cloud, u32 mask) {
    const u64 h = mixed((u64)(x >> 2) + mixed((u64)(y >> 2) + mixed((u64)(z >> 2) + mixed(cloud + 1ull))));
    return ((u32)(h >> 20) << 6 | (u32)(z & 3) << 4 | (u32)(y & 3) << 2 | (u32)(x & 3)) & mask;
}

static __device__ __forceinline__ u32 bucket_of_point(const RadiusParams &p, i64 i) {
    const float *at = p.points + 3 * i;
    return bucket_of(cell_at(at[0], p.inverse), cell_at(at[1], p.inverse), cell_at(at[2], p.inverse),
                     cloud_of(p.offsets, p.batches, i), p.mask);
}

extern "C" __global__ void __launch_bounds__(256) count_points(const __grid_constant__ RadiusBatch all) {
    i64 block;
    const RadiusParams &p = problem_of(all, block);
    const i64 i = block * 256 + threadIdx.x;
    if (i < p.count) p.places[i] = atomicAdd(p.starts + bucket_of_point(p, i) + 1, 1u);
}

extern "C" __global__ void __launch_bounds__(256) start_buckets(const __grid_constant__ RadiusBatch all) {
    i64 block;
    const RadiusParams &p = problem_of(all, block);
    running_sums(p.starts, p.starts, (i64)p.mask + 2, p.passed, block);
}

extern "C" __global__ void __launch_bounds__(256) place_points(const __grid_constant__ RadiusBatch all) {
    i64 block;
    const RadiusParams &p = problem_of(all, block);
    const i64 i = block * 256 + threadIdx.x;
    if (i >= p.count) return;
    const float *at = p.points + 3 * i;
    p.sorted[p.starts[bucket_of_point(p, i)] + p.places[i]] = make_float4(at[0], at[1], at[2], __int_as_float((int)i));
}

// Buckets that a warp reads around its query.
struct Around {
    u32 start, end;  // the lane's bucket, from `start`; `end` counts the candidates up to and with it
    u32 total;
};

static __device__ __forceinline__ Around look_around(const RadiusParams &p, const Cell &cell, int lane) {
    Around found = {0, 0, 0};
    u32 bucket = 0xffffffffu;  // in no table: its size is at most 2^31
    if (lane < 27)
        bucket = bucket_of(cell.x + lane % 3 - 1, cell.y + lane / 3 % 3 - 1, cell.z + lane / 9 - 1, cell.cloud, p.mask);
    const u32 same = __match_any_sync(ALL, bucket);
    u32 size = 0;
    if (lane < 27 && (same & ((1u << lane) - 1)) == 0) {
        found.start = p.starts[bucket];
        size = p.starts[bucket + 1] - found.start;
    }
    found.end = size;
    for (int by = 1; by < 32; by *= 2) {
        const u32 other = __shfl_up_sync(ALL, found.end, by);
        if (lane >= by) found.end += other;
    }
    found.total = __shfl_sync(ALL, found.end, 31);
    found.start -= found.end - size;  // plus the candidate's number: where the candidate lies
    return found;
}

// Return whether candidate `c` of the warp's query, if it exists, is a neighbour, and its number.
static __device__ __forceinline__ bool is_near(const RadiusParams &p, const Query &q, const Around &around, u32 c, u32 &number) {
    int run = 0;
    for (int by = 16; by > 0; by /= 2) {
        const u32 end = __shfl_sync(ALL, around.end, run + by - 1);
        if (c >= end) run += by;
    }
    const u32 at = __shfl_sync(ALL, around.start, run) + c;
    if (c >= around.total) return false;
    const float4 v = p.sorted[at];
    const float x = __fsub_rn(q.x, v.x), y = __fsub_rn(q.y, v.y), z = __fsub_rn(q.z, v.z);
    number = (u32)__float_as_int(v.w);
    return square(x, y, z) <= p.limit && number >= q.first && number < q.last;
}

// Call `found` with each query of the warp and the buckets around it.
template <class Found> static __device__ __forceinline__ void for_queries(const RadiusParams &p, i64 block, Found found) {
    const i64 begin = (block * WARPS + (threadIdx.x >> 5)) * QUERIES;
    const i64 end = begin + QUERIES < p.asked ? begin + QUERIES : p.asked;
    Cell before = {0, 0, 0, 0xffffffffu};
    Around around = {0, 0, 0};
    for (i64 step = begin; step < end; step++) {
        const Query q = query_at(p, step);
        const Cell cell = {cell_at(q.x, p.inverse), cell_at(q.y, p.inverse), cell_at(q.z, p.inverse), q.cloud};
        if (cell.x != before.x || cell.y != before.y || cell.z != before.z || cell.cloud != before.cloud)
            around = look_around(p, cell, threadIdx.x & 31);
        before = cell;
        found(q, around);
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) count_neighbors(const __grid_constant__ RadiusBatch all) {
    i64 block;
    const RadiusParams &p = problem_of(all, block);
    const int lane = threadIdx.x & 31;
    if (block == 0 && threadIdx.x == 0) p.rows[0] = 0;
    for_queries(p, block, [&](const Query &q, const Around &around) {
        i64 found = 0;
        for (u32 c = lane; c < around.total + lane; c += 32) {
            u32 number;
            found += __popc(__ballot_sync(ALL, is_near(p, q, around, c, number)));
        }
        if (lane == 0) p.rows[q.number + 1] = found;
    });
}

extern "C" __global__ void __launch_bounds__(256) start_rows(const __grid_constant__ RadiusBatch all) {
    i64 block;
    const RadiusParams &p = problem_of(all, block);
    const i64 sum = running_sums(p.rows, p.rows, p.asked + 1, p.passed, block);
    if (threadIdx.x == 0 && (block + 1) * SUMMED > p.asked) *p.total = sum;
}

struct RowKeys {
    int *row;
    __device__ __forceinline__ u32 get(unsigned i) const { return (u32)row[i]; }
    __device__ __forceinline__ void put(unsigned i, u32 key) const { row[i] = (int)key; }
};

extern "C" __global__ void __launch_bounds__(WARPS * 32) write_neighbors(const __grid_constant__ RadiusBatch all) {
    __shared__ u32 kept[WARPS][ROOM];
    i64 block;
    const RadiusParams &p = problem_of(all, block);
    u32 *keys = kept[threadIdx.x >> 5];
    const int lane = threadIdx.x & 31;
    for_queries(p, block, [&](const Query &q, const Around &around) {
        int *row = p.indices + p.rows[q.number];
        const u32 size = (u32)(p.rows[q.number + 1] - p.rows[q.number]);
        u32 found = 0;
        for (u32 c = lane; c < around.total + lane; c += 32) {
            u32 number;
            const bool near = is_near(p, q, around, c, number);
            const u32 all = __ballot_sync(ALL, near), at = found + __popc(all & ((1u << lane) - 1));
            if (near && p.sort && size <= ROOM) keys[at] = number;
            if (near && !(p.sort && size <= ROOM)) row[at] = (int)number;
            found += __popc(all);
        }
        if (p.sort) sort_kept(keys, RowKeys{row}, size, lane);
    });
}
