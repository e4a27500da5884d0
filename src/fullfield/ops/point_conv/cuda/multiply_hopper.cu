// MVMR on Hopper: wgmma over 64 rows of a warpgroup, the features in registers, the weights in a ring in shared memory.
//
// Stages hold DEPTH slabs of a cell's weights for a block of outputs, cell after cell, in a circle. Every warpgroup of the
// block uses each stage in turn, and the last warp that leaves a stage starts the copy of the next weights into it. Most of
// the multiprocessor's memory is left to the L1, which holds the features: neighbours in space are neighbours in memory, and
// the rows of a block read each feature several times.
//
// One warp for each warpgroup lists its passes. Each lane points to the first triplets of two rows that are not done. A pass
// takes the least of their cells and the rows that point to it; a row with several points in a cell stays for the next pass.
// A ring of SLOTS slots in shared memory holds the lists. Features are loaded straight into the registers of wgmma
// (multiply.cuh), one pass ahead, with zeros where a row has no point.
//
// More macros, and those of multiply.cuh:
//   GROUPS   warpgroups that multiply; REGISTERS of their threads
//   LISTING  registers of a thread that lists
//   STAGES   stages of the ring of weights
//   SLOTS    slots of a warpgroup
//   CHUNKED  1: there are more slabs than DEPTH

#define THREADS 128 * GROUPS + 128
#define SLAB (PARTS * OCTETS * 32)  // vectors of the weights of a slab
#define STAGE (DEPTH * SLAB)        // vectors of a stage

// Add one to a counter in shared memory, which restarts after `most`. Return its value before.
static __device__ __forceinline__ u32 count_up(u32 at, u32 most) {
    u32 before;
    asm volatile("atom.shared.inc.u32 %0, [%1], %2;" : "=r"(before) : "r"(at), "r"(most) : "memory");
    return before;
}

// The block's work: a column of outputs, and bands of 64 * GROUPS rows.
struct Work {
    int column, group, block, stride, chunks, positions, rounds;
    __device__ __forceinline__ Work(const MultiplyParams &p) {
        column = blockIdx.x % p.columns, group = column / p.blocks, block = blockIdx.x / p.columns, stride = gridDim.x / p.columns;
        chunks = p.slabs / DEPTH, positions = chunks * p.triplets.cells;
        int bands = (int)((p.triplets.count + 64 * GROUPS - 1) / (64 * GROUPS));
        rounds = block < bands ? (bands - block + stride - 1) / stride : 0;
    }
    __device__ __forceinline__ i64 first_row(int round, int own) const { return ((i64)(block + (i64)round * stride) * GROUPS + own) * 64; }
};

// Header of a pass. Bit 0: it is the first of its rows; bit 1: the first with the next inputs; above: the number of stages of
// weights from the pass before to this one. Negative: there are no more.
typedef int Head;

// A pass, listed by one warp for a warpgroup.
struct Slot {
    uint2 points[32];              // for two rows of eight lanes in each warp, with the top bit set; 0 where a row has none
    Head head;
    u64 full, empty;               // barriers
};

struct Stage {
    u64 full;                      // a barrier
    u32 left;                      // number of warps that have left it
};

struct Room {
    uint4 weights[STAGES][STAGE];
    Slot slots[GROUPS][SLOTS];
    Stage stages[STAGES];
};

// A warp's position in the ring of weights.
struct Ring {
    Room &room;
    const uint4 *weights;
    int positions, coming;         // number of stages of all weights; the stage that is copied next into the one in hand
    int left;                      // stages after the one in hand
    int stage;
    u32 parity;
    __device__ __forceinline__ Ring(Room &room, const MultiplyParams &p, const Work &work)
        : room(room), weights(p.weights + (i64)work.column * work.positions * STAGE), positions(work.positions), coming(STAGES % work.positions), left(work.rounds * work.positions - 1), stage(0), parity(0) {}
    __device__ __forceinline__ void bring(int position, int stage) const {
        barrier_expect(shared_address(&room.stages[stage].full), STAGE * 16);
        copy_bulk(shared_address(room.weights[stage]), weights + (i64)position * STAGE, STAGE * 16, shared_address(&room.stages[stage].full));
    }
    __device__ __forceinline__ void wait() const { barrier_wait(shared_address(&room.stages[stage].full), parity); }
    // Leave the stage in hand, whose wgmma has been waited for. Return to lane 0 how many warps left it before.
    __device__ __forceinline__ u32 leave(int lane) const {
        u32 before = 0;
        if (lane == 0) before = count_up(shared_address(&room.stages[stage].left), 4 * GROUPS - 1);
        return before;
    }
    // Copy new weights into the stage that was left, if this warp was the last. Call after leave and before the next leave.
    __device__ __forceinline__ void refill(u32 before, int stage, int position) const {
        if (before == 4 * GROUPS - 1 && left >= STAGES - 1) bring(position, stage);
    }
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
        if (++coming == positions) coming = 0;
        left--;
    }
    __device__ __forceinline__ void pass_by(int stages, int lane) {
        for (; stages > 0; stages--) {
            __syncwarp();
            int stage_left = stage, position = coming;
            u32 before = leave(lane);
            advance();
            refill(before, stage_left, position);
            wait();
        }
    }
};

typedef float Sums[COLUMNS / 2];
typedef Eight Raw[DEPTH][2];
typedef u32 Operands[DEPTH][PARTS][8];

// Arrange the words of both rows in turn, as wgmma takes them; zeros where a row has none.
static __device__ __forceinline__ void take(Operands &a, Raw &raw, u32 upper, u32 lower, float gain) {
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        uint4 u[PARTS], l[PARTS];
#if IN == 0
        raw[d][0].keep_if(upper);
        raw[d][1].keep_if(lower);
#endif
        raw[d][0].take(u, gain);
        raw[d][1].take(l, gain);
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            u32 v[8] = {u[i].x, l[i].x, u[i].y, l[i].y, u[i].z, l[i].z, u[i].w, l[i].w};
#pragma unroll
            for (int j = 0; j < 8; j++) a[d][i][j] = IN ? kept_if(v[j], j & 1 ? lower : upper) : v[j];
        }
    }
}

// Multiply both steps of a slab; `weights`: a descriptor's low half.
static __device__ __forceinline__ void multiply_slab(Sums &sums, const u32 (&a)[8], u32 weights, int add) {
    wgmma_rs(sums, a[0], a[1], a[2], a[3], weights, add);
    wgmma_rs(sums, a[4], a[5], a[6], a[7], weights + 2 * COLUMNS, 1);
}
static __device__ __forceinline__ void settle(Sums &sums) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

// The first triplet of a row that is not done, and the next, which is loaded while a pass is listed.
struct Cursor {
    int at, end;                   // counted from the warpgroup's first triplet
    bool moved;
    Word word, next, coming;
    __device__ __forceinline__ void start(const Triplets &t, i64 base, i64 begin, i64 end_) {
        at = (int)(begin - base), end = (int)(end_ - base), moved = true;
        if (at < end) word.load(t, begin);
        coming.fetch(t, base + at + 1, at + 1 < end);
    }
    __device__ __forceinline__ int cell(const Triplets &t) const { return at < end ? word.cell_of(t) : NONE; }
    __device__ __forceinline__ void step(const Triplets &t, i64 base, bool wanted) {
        next.choose(coming, moved);
        word.choose(next, wanted);
        at += wanted, moved = wanted;
        coming.fetch(t, base + at + 1, wanted && at + 1 < end);
    }
};

// List the passes of warpgroup `own`; one warp runs this.
static __device__ __forceinline__ void list_passes(const MultiplyParams &p, const Work &work, int own, Slot *slots) {
    const Triplets &t = p.triplets;
    int lane = threadIdx.x & 31, position = 0, stage = 0;
    u32 parity = 1;
    i64 next[4], base, next_base;
    auto find = [&](int round) {
        i64 first = work.first_row(round, own), row = first + (lane >> 3) * 16 + (lane & 7);
#pragma unroll
        for (int i = 0; i < 4; i++) next[i] = t.rows[min(row + (i >> 1) * 8 + (i & 1), t.count)];
        next_base = t.rows[min(first, t.count)];
    };
    auto emit = [&](Head head, uint2 found) {
        Slot &slot = slots[stage];
        barrier_wait(shared_address(&slot.empty), parity);
        slot.points[lane] = found;
        if (lane == 0) slot.head = head;
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&slot.full));
        if (++stage == SLOTS) stage = 0, parity ^= 1;
    };
    find(0);
    for (int round = 0; round < work.rounds; round++) {
        i64 bounds[4] = {next[0], next[1], next[2], next[3]};
        base = next_base;
        find(round + 1);
        for (int chunk = 0; chunk < work.chunks; chunk++) {
            Cursor upper, lower;
            upper.start(t, base, bounds[0], bounds[1]);
            lower.start(t, base, bounds[2], bounds[3]);
            int first = chunk ? 2 : 1, begin = (round * work.chunks + chunk) * t.cells;
            while (true) {
                int u = upper.cell(t), l = lower.cell(t), cell = warp_min(min(u, l));
                if (cell == NONE) {
                    if (!first) break;
                    cell = -1;
                }
                bool hit_u = u == cell, hit_l = l == cell;
                int at = begin + max(cell, 0);
                emit((at - position) << 2 | first, make_uint2(hit_u ? upper.word.index_of(t) | 1u << 31 : 0, hit_l ? lower.word.index_of(t) | 1u << 31 : 0));
                position = at, first = 0;
                upper.step(t, base, hit_u);
                lower.step(t, base, hit_l);
            }
        }
    }
    emit(-1, make_uint2(0, 0));
}

// Loads of features for the next pass.
struct Gather {
    const MultiplyParams &p;
    Slot *slots;
    int stage;
    u32 parity;
    u64 features;                  // address of point -2^31: the top bit of an index adds 2^31
    u32 row;                       // bytes from row to row
    int lane, place, inside;       // inside: number of channels from the lane's first on
    __device__ __forceinline__ Gather(const MultiplyParams &p, const Work &work, Slot *slots)
        : p(p), slots(slots), stage(0), parity(0), row((u32)p.features_row * sizeof(Value)), lane(threadIdx.x & 31), place((threadIdx.x & 127) >> 2) {
        rewind(work);
    }
    __device__ __forceinline__ void rewind(const Work &work) {
        int first = (lane & 3) * 8;
        features = (u64)(p.features + (i64)work.group * p.inputs + first) - ((u64)row << 31), inside = p.inputs - first;
    }
    // Load the features. `masks`: all bits set for each of the lane's two rows that has a point.
    __device__ __forceinline__ Head bring(Raw &raw, u32 (&masks)[2], const Work &work) {
        Slot &slot = slots[stage];
        barrier_wait(shared_address(&slot.full), parity);
        uint2 index = slot.points[place];
        Head head = slot.head;
        __syncwarp();
        if (lane == 0) barrier_arrive(shared_address(&slot.empty));
        if (++stage == SLOTS) stage = 0, parity ^= 1;
#if CHUNKED
        if (head & 1) rewind(work);
        else if (head & 2) features += DEPTH * 32 * sizeof(Value), inside -= DEPTH * 32;
#endif
        masks[0] = (u32)((int)index.x >> 31), masks[1] = (u32)((int)index.y >> 31);
        const Value *u = (const Value *)(features + (u64)index.x * row), *l = (const Value *)(features + (u64)index.y * row);
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            raw[d][0].fetch(u + d * 32, KEEPS || d * 32 < inside ? masks[0] : 0);
            raw[d][1].fetch(l + d * 32, KEEPS || d * 32 < inside ? masks[1] : 0);
        }
        return head;
    }
};

static __device__ __forceinline__ void multiply_rows(const MultiplyParams &p, const Work &work, Room &room, int own) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3;
    u32 descriptor = shared_address(room.weights) >> 4 | COLUMNS << 16;
    float inverses[2], gain = gain_of(p.magnitude, inverses[0]);
    gain_of(p.magnitude + 1, inverses[1]);
    float scale = inverses[0] * inverses[1];
    Ring ring(room, p, work);
    if (threadIdx.x == 0)
        for (int i = 0; i < min(STAGES, ring.left + 1); i++) ring.bring(i % ring.positions, i);
    Gather gather(p, work, room.slots[own]);
    Raw raw;
    u32 masks[2];
    Head head = gather.bring(raw, masks, work);
    Sums sums;
    int round = -1;
    ring.wait();
    while (true) {
        if (head & (1 << 31 | 1)) {
            if (round >= 0) store_rows(p, work.first_row(round, own) + warp * 16, work.column, work.group, sums, scale);
            if (head < 0) break;
            round++;
            clear(sums);
        }
        int on = head >> 2, stage_left = 0, position = 0;
        u32 before = 0;
        if (on) {
            if (on > 1) ring.pass_by(on - 1, lane);
            __syncwarp();
            stage_left = ring.stage, position = ring.coming;
            before = ring.leave(lane);
            ring.advance();
            ring.wait();
        }
        Operands a;
        take(a, raw, masks[0], masks[1], gain);
        u32 at = descriptor + ring.stage * STAGE;
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#if SPLIT
        // Sums in the tensor cores lose bits: at most one slab long.
        Sums part;
        multiply_slab(part, a[0][1], at, 0);
        multiply_slab(part, a[0][0], at + OCTETS * 32, 1);
        multiply_slab(part, a[0][0], at, 1);
#else
#pragma unroll
        for (int d = 0; d < DEPTH; d++) multiply_slab(sums, a[d][0], at + d * SLAB, 1);
#endif
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        ring.refill(before, stage_left, position);
        head = gather.bring(raw, masks, work);
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#if SPLIT
        settle(part);
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) sums[i] += part[i];
#else
        settle(sums);
#endif
    }
    ring.pass_by(ring.left, lane);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) multiply(const __grid_constant__ MultiplyParams p) {
    extern __shared__ __align__(128) uint4 shared[];
    Room &room = *(Room *)shared;
    // The shuffle keeps the compiler from computing it again each time.
    int warp = __shfl_sync(ALL, threadIdx.x >> 5, 0);
    Work work(p);
    if (!work.rounds) return;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(shared_address(&room.stages[i].full), 1);
            room.stages[i].left = 0;
        }
        for (int i = 0; i < GROUPS * SLOTS; i++) {
            barrier_init(shared_address(&room.slots[0][i].full), 1);
            barrier_init(shared_address(&room.slots[0][i].empty), 4);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp < 4 * GROUPS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
        multiply_rows(p, work, room, warp >> 2);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LISTING));
        int own = warp - 4 * GROUPS;
        if (own < GROUPS) list_passes(p, work, own, room.slots[own]);
    }
}
