// kNN search: a tree of boxes over points sorted along a Morton curve, 32 children a node. A warp walks it for a query,
// nearest children first. Built behind clouds.cuh and warps.cuh.
//
// Macro: SLOTS, the neighbours that a lane keeps: at most 32 * SLOTS a query.
//
// Distances are summed as in the search by brute force. Rounding is monotone, so a box is never farther than its points.

#define WARPS 8
#define LEVELS 7  // 32^7 points
#define FAR 0x7f800000u  // bits of infinity

struct TreeParams {
    const float *points, *queries;       // [N, 3], [M, 3]
    const i64 *offsets, *query_offsets;  // [B + 1]; null for one cloud
    const float *low, *high;             // [3] each: the points' box
    i64 *keys;                           // [N]: cloud, then Morton code
    const i64 *order;                    // [N]: points as the keys order them
    float4 *sorted;                      // [N]: x, y, z, number
    float4 *boxes;                       // two a box, smallest and largest corner, level by level
    const i64 *rows;                     // [M + 1]
    int *indices;
    i64 begin[LEVELS], size[LEVELS];     // places of the levels' boxes; level 0 holds points
    i64 count, asked, batches;           // N, M, B
    int levels, level, bits, k, own;     // bits: of a coordinate in the code; level: the one to compute
};

// Spread the low 21 bits to every third place.
static __device__ __forceinline__ u64 spaced_bits(u64 x) {
    x = (x | x << 32) & 0x001f00000000ffffull;
    x = (x | x << 16) & 0x001f0000ff0000ffull;
    x = (x | x << 8) & 0x100f00f00f00f00full;
    x = (x | x << 4) & 0x10c30c30c30c30c3ull;
    return (x | x << 2) & 0x1249249249249249ull;
}

extern "C" __global__ void __launch_bounds__(256) make_keys(const __grid_constant__ TreeParams p) {
    const i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= p.count) return;
    u64 code = 0;
    const double steps = (double)((1 << p.bits) - 1);
    for (int axis = 0; axis < 3; axis++) {
        const double low = p.low[axis], extent = p.high[axis] - low;
        const double share = extent > 0.0 ? ((double)p.points[3 * i + axis] - low) / extent : 0.0;
        code |= spaced_bits((u64)(share * steps)) << axis;
    }
    p.keys[i] = (i64)((u64)cloud_of(p.offsets, p.batches, i) << 3 * p.bits | code);
}

extern "C" __global__ void __launch_bounds__(256) sort_points(const __grid_constant__ TreeParams p) {
    const i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= p.count) return;
    const i64 from = p.order[i];
    const float *at = p.points + 3 * from;
    p.sorted[i] = make_float4(at[0], at[1], at[2], __int_as_float((int)from));
}

// Compute the boxes of a level; a warp joins 32 points, or 32 boxes of the level below.
extern "C" __global__ void __launch_bounds__(WARPS * 32) make_boxes(const __grid_constant__ TreeParams p) {
    const i64 child = (i64)blockIdx.x * (WARPS * 32) + threadIdx.x;
    const i64 limit = p.level == 0 ? p.count : p.size[p.level - 1];
    const float most = __uint_as_float(FAR);
    float4 low = make_float4(most, most, most, 0.f), high = make_float4(-most, -most, -most, 0.f);
    if (child < limit) {
        if (p.level == 0) {
            low = high = p.sorted[child];
        } else {
            low = p.boxes[2 * (p.begin[p.level - 1] + child)];
            high = p.boxes[2 * (p.begin[p.level - 1] + child) + 1];
        }
    }
    for (int by = 16; by > 0; by /= 2) {
        low.x = fminf(low.x, __shfl_xor_sync(ALL, low.x, by));
        low.y = fminf(low.y, __shfl_xor_sync(ALL, low.y, by));
        low.z = fminf(low.z, __shfl_xor_sync(ALL, low.z, by));
        high.x = fmaxf(high.x, __shfl_xor_sync(ALL, high.x, by));
        high.y = fmaxf(high.y, __shfl_xor_sync(ALL, high.y, by));
        high.z = fmaxf(high.z, __shfl_xor_sync(ALL, high.z, by));
    }
    if ((threadIdx.x & 31) == 0 && child < limit) {
        float4 *box = p.boxes + 2 * (p.begin[p.level] + child / 32);
        box[0] = low, box[1] = high;
    }
}

// Return the bits of the distance to box `index` of `level`; FAR if it holds no point of the query's cloud.
static __device__ __forceinline__ u32 box_distance(const TreeParams &p, const Query &q, int level, i64 index) {
    const i64 wide = 32ll << 5 * level;
    if (index >= p.size[level] || index * wide >= q.last || (index + 1) * wide <= q.first) return FAR;
    const float4 low = p.boxes[2 * (p.begin[level] + index)], high = p.boxes[2 * (p.begin[level] + index) + 1];
    const float x = fmaxf(fmaxf(__fsub_rn(low.x, q.x), __fsub_rn(q.x, high.x)), 0.f);
    const float y = fmaxf(fmaxf(__fsub_rn(low.y, q.y), __fsub_rn(q.y, high.y)), 0.f);
    const float z = fmaxf(fmaxf(__fsub_rn(low.z, q.z), __fsub_rn(q.z, high.z)), 0.f);
    const u32 bits = __float_as_uint(square(x, y, z));
    return bits < FAR ? bits : FAR - 1;  // an overflow is far, but not empty
}

// Insert `key`, which is not in the list. Elements rise with slot, then lane; the largest drops out.
static __device__ __forceinline__ void insert(u64 (&list)[SLOTS], u64 key, int lane) {
#pragma unroll
    for (int s = SLOTS - 1; s >= 0; s--) {
        u64 below = __shfl_up_sync(ALL, list[s], 1);
        if (s > 0) {
            const u64 last = __shfl_sync(ALL, list[s > 0 ? s - 1 : 0], 31);
            if (lane == 0) below = last;
        } else if (lane == 0) {
            below = 0;
        }
        list[s] = key < below ? below : key < list[s] ? key : list[s];
    }
}

static __device__ __forceinline__ u64 element(const u64 (&list)[SLOTS], int index) {
    u64 found = 0;
#pragma unroll
    for (int s = 0; s < SLOTS; s++) {
        const u64 value = __shfl_sync(ALL, list[s], index & 31);
        if (s == index >> 5) found = value;
    }
    return found;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) find_nearest(const __grid_constant__ TreeParams p) {
    __shared__ u32 far[WARPS][LEVELS][32];
    __shared__ i64 node[WARPS][LEVELS];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const i64 step = (i64)blockIdx.x * WARPS + warp;
    if (step >= p.asked) return;
    const Query q = query_at(p, step);
    const int wanted = (int)(q.last - q.first < p.k ? q.last - q.first : p.k);
    u64 list[SLOTS];
#pragma unroll
    for (int s = 0; s < SLOTS; s++) list[s] = ~0ull;
    u64 worst = ~0ull;
    int level = p.levels - 1;
    node[warp][level] = 0;
    far[warp][level][lane] = box_distance(p, q, level, lane);
    while (wanted > 0) {
        const u32 mine = far[warp][level][lane], least = warp_min(mine);
        if (least == FAR || least > (u32)(worst >> 32)) {
            if (++level == p.levels) break;
            continue;
        }
        const int winner = __ffs((int)__ballot_sync(ALL, mine == least)) - 1;
        if (lane == winner) far[warp][level][lane] = FAR;
        __syncwarp();
        const i64 child = node[warp][level] * 32 + winner;
        if (level > 0) {
            level--;
            if (lane == 0) node[warp][level] = child;
            far[warp][level][lane] = box_distance(p, q, level, child * 32 + lane);
            __syncwarp();
            continue;
        }
        const i64 at = child * 32 + lane;
        u64 key = ~0ull;
        if (at >= q.first && at < q.last) {
            const float4 v = p.sorted[at];
            const float away = square(__fsub_rn(q.x, v.x), __fsub_rn(q.y, v.y), __fsub_rn(q.z, v.z));
            key = (u64)__float_as_uint(away) << 32 | (u32)__float_as_int(v.w);
        }
        u32 better = __ballot_sync(ALL, key < worst);
        while (better) {
            const u64 next = __shfl_sync(ALL, key, __ffs((int)better) - 1);
            better &= better - 1;
            if (next < worst) {
                insert(list, next, lane);
                worst = element(list, wanted - 1);
            }
        }
    }
    int *row = p.indices + p.rows[q.number];
#pragma unroll
    for (int s = 0; s < SLOTS; s++)
        if (32 * s + lane < wanted) row[32 * s + lane] = (int)(u32)list[s];
}
