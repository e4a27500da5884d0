// Grid downsampling: every cell's point nearest to its centre, of equally near ones the first. No system headers (NVRTC).
//
// Cells are slots of a hash table, known by a point in them; which point that is changes from run to run, the result
// does not. Coordinates are worked on in float64, in the order that the plain form has.

typedef unsigned u32;
typedef unsigned long long u64;
typedef long long i64;

struct ThinParams {
    const void *points;   // [N, 3] float32 or float64
    const i64 *offsets;   // [B + 1]; null for one cloud
    int *owners;          // [mask + 1]: a point of the slot's cell, -1 for none
    u64 *nearest;         // [mask + 1]: bits of the smallest squared distance to the centre
    int *winners;         // [mask + 1]: the first point that has it
    int *slots;           // [N]: of the points
    unsigned char *kept;  // [N]
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
    found.cloud = 0;
    if (p.offsets) {
        i64 low = 0, high = p.batches;
        while (high - low > 1) {
            const i64 middle = (low + high) >> 1;
            if (p.offsets[middle] <= i) low = middle;
            else high = middle;
        }
        found.cloud = (u32)low;
    }
    return found;
}

static __device__ __forceinline__ u64 mixed(u64 x) {
    x *= 0x9e3779b97f4a7c15ull;
    return x ^ (x >> 32);
}

extern "C" __global__ void __launch_bounds__(256) claim_cells(const __grid_constant__ ThinParams p) {
    const i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i >= p.count) return;
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
    if (i >= p.count) return;
    const u32 slot = (u32)p.slots[i];
    if (place_of(p, i).away != p.nearest[slot]) return;
    if ((int)i < *(volatile int *)(p.winners + slot)) atomicMin(p.winners + slot, (int)i);
}

extern "C" __global__ void __launch_bounds__(256) keep_points(const __grid_constant__ ThinParams p) {
    const i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    if (i < p.count) p.kept[i] = p.winners[(u32)p.slots[i]] == (int)i;
}
