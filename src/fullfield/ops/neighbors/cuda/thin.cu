// Grid downsampling: keeps every cell's point nearest to its centre, the first of equally near ones. The number of points
// may be known to the device only. Built behind clouds.cuh and batches.cuh.
//
// Cells are slots of a hash table, identified by a point in them. That point changes from run to run, the result does not.
// Coordinates are computed in float64, in the reference's order.

struct ThinParams {
    const void *points;   // [N, 3] float32 or float64
    const i64 *offsets;   // [B + 1]; null for one cloud of `count` points
    u64 *nearest;         // [mask + 1]: bits of the smallest squared distance to the centre; all of the table begins as ones
    int *owners;          // [mask + 1]: a point of the slot's cell, -1 for none
    u32 *winners;         // [mask + 1]: the first point at that distance
    int *slots;           // [N]: slots of the points
    u64 *passed;          // words between the blocks that count the points that stay
    i64 *kept;            // numbers of the points that stay
    void *fewer;          // their coordinates
    i64 *ends;            // [B + 1]: offsets of those that stay
    u64 *largest;         // bits of the largest magnitude, as float64, of all coordinates; or null
    double cell;
    i64 count, batches;
    u32 mask;             // slots of the table - 1
    int wide;             // whether the points are float64
};

struct Place {
    i64 x, y, z;
    u32 cloud;
    u64 away;  // bits of the squared distance to the cell's centre, in cells
};

static __device__ __forceinline__ i64 count_of(const ThinParams &p) { return p.offsets ? p.offsets[p.batches] : p.count; }

static __device__ __forceinline__ double coordinate(const ThinParams &p, i64 i, int axis) {
    return p.wide ? ((const double *)p.points)[3 * i + axis] : (double)((const float *)p.points)[3 * i + axis];
}

static __device__ __forceinline__ double offset_in_cell(double value, double cell, i64 &corner) {
    const double scaled = __ddiv_rn(value, cell), low = floor(scaled);
    corner = (i64)low;
    const double away = __dsub_rn(__dsub_rn(scaled, low), 0.5);
    return __dmul_rn(away, away);
}

static __device__ __forceinline__ Place place_of(const ThinParams &p, i64 i) {
    Place found;
    const double x = offset_in_cell(coordinate(p, i, 0), p.cell, found.x);
    const double y = offset_in_cell(coordinate(p, i, 1), p.cell, found.y);
    const double z = offset_in_cell(coordinate(p, i, 2), p.cell, found.z);
    found.away = (u64)__double_as_longlong(__dadd_rn(__dadd_rn(x, y), z));
    found.cloud = cloud_of(p.offsets, p.batches, i);
    return found;
}

static __device__ __forceinline__ void note_largest(const ThinParams &p, i64 i, i64 count) {
    u64 most = 0;
    for (int axis = 0; axis < 3; axis++) {
        const u64 bits = i < count ? (u64)__double_as_longlong(coordinate(p, i, axis)) << 1 >> 1 : 0;  // NaN above infinity
        most = bits > most ? bits : most;
    }
    for (int by = 16; by > 0; by /= 2) {
        const u64 other = __shfl_xor_sync(ALL, most, by);
        most = other > most ? other : most;
    }
    if ((threadIdx.x & 31) == 0 && most > *(volatile u64 *)p.largest) atomicMax(p.largest, most);
}

extern "C" __global__ void __launch_bounds__(256) claim_cells(const __grid_constant__ ThinParams p) {
    const i64 i = (i64)blockIdx.x * 256 + threadIdx.x, count = count_of(p);
    if (p.largest) note_largest(p, i, count);
    if (i >= count) return;
    const Place own = place_of(p, i);
    u32 slot = (u32)(mixed((u64)own.x + mixed((u64)own.y + mixed((u64)own.z + mixed(own.cloud + 1ull)))) >> 20) & p.mask;
    for (;; slot = (slot + 1) & p.mask) {
        int owner = *(volatile int *)(p.owners + slot);
        if (owner < 0) owner = atomicCAS(p.owners + slot, -1, (int)i);
        if (owner < 0 || owner == (int)i) break;
        const Place other = place_of(p, owner);
        if (own.x == other.x && own.y == other.y && own.z == other.z && own.cloud == other.cloud) break;
    }
    p.slots[i] = (int)slot;
    if (own.away < *(volatile u64 *)(p.nearest + slot)) atomicMin(p.nearest + slot, own.away);
}

extern "C" __global__ void __launch_bounds__(256) choose_points(const __grid_constant__ ThinParams p) {
    const i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= count_of(p)) return;
    const u32 slot = (u32)p.slots[i];
    if (place_of(p, i).away != p.nearest[slot]) return;
    if ((u32)i < *(volatile u32 *)(p.winners + slot)) atomicMin(p.winners + slot, (u32)i);
}

static __device__ __forceinline__ bool stays(const ThinParams &p, i64 i) { return p.winners[(u32)p.slots[i]] == (u32)i; }

extern "C" __global__ void __launch_bounds__(256) keep_points(const __grid_constant__ ThinParams p) {
    const i64 block = next_block(p.passed), begin = block * SUMMED, count = count_of(p);
    if (begin >= count && block) return;
    const i64 first = begin + threadIdx.x * (SUMMED / 256);
    u32 flags = 0;
    i64 own = 0, total;
    for (int i = 0; i < SUMMED / 256; i++)
        if (first + i < count && stays(p, first + i)) flags |= 1u << i, own++;
    const i64 inside = sum_before(own, total), before = sum_of_blocks_before(total, p.passed, block);
    i64 to = before + inside;
    for (int i = 0; i < SUMMED / 256; i++) {
        if ((flags >> i & 1) == 0) continue;
        p.kept[to] = first + i;
        for (int axis = 0; axis < 3; axis++) {
            if (p.wide) ((double *)p.fewer)[3 * to + axis] = ((const double *)p.points)[3 * (first + i) + axis];
            else ((float *)p.fewer)[3 * to + axis] = ((const float *)p.points)[3 * (first + i) + axis];
        }
        to++;
    }
    if (threadIdx.x == 0 && begin + SUMMED >= count) {
        p.ends[0] = 0;
        p.ends[p.batches] = before + total;
    }
}

// Find where the clouds after the first begin among the points that stay.
extern "C" __global__ void __launch_bounds__(256) cut_clouds(const __grid_constant__ ThinParams p) {
    const i64 cloud = (i64)blockIdx.x * 256 + threadIdx.x;
    if (cloud < 1 || cloud >= p.batches) return;
    i64 low = 0, high = p.ends[p.batches];
    while (low < high) {
        const i64 middle = (low + high) >> 1;
        if (p.kept[middle] < p.offsets[cloud]) low = middle + 1;
        else high = middle;
    }
    p.ends[cloud] = low;
}
