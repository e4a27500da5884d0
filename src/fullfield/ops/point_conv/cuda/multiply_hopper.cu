// MVMR on Hopper: wgmma over 64 rows of a warpgroup, the features in registers, the weights in a ring in shared memory.
//
// One warp copies the weights of a block of outputs into the ring: DEPTH slabs of a cell a stage, cell after cell, in a circle.
// Every warpgroup of the block takes each stage as it comes. That leaves most of the multiprocessor's memory to the L1, where features are found: neighbours in space are
// neighbours in memory, and the rows of a block want each feature several times.
//
// Before a warpgroup multiplies its rows, it counts how often each cell comes (as often as the row that has it most), and lists
// in a table which point each row wants in each of these passes. Then features go from memory straight into the registers that
// wgmma takes (multiply.cuh), one pass ahead.
//
// More macros, and those of multiply.cuh:
//   GROUPS   warpgroups that multiply; REGISTERS: of their threads
//   STAGES   of the ring
//   WINDOW   passes that the table holds

#define THREADS 128 * GROUPS + 128
#define SLAB (PARTS * OCTETS * 32)  // vectors of the weights of a slab
#define STAGE (DEPTH * SLAB)        // vectors of a stage

static __device__ __forceinline__ u32 address(const void *p) { return (u32)__cvta_generic_to_shared(p); }
static __device__ __forceinline__ void barrier_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory"); }
static __device__ __forceinline__ void barrier_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory"); }
static __device__ __forceinline__ void barrier_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void barrier_wait(u32 bar, u32 parity) {
    u32 done = 0;
    while (!done) {
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    }
}
static __device__ __forceinline__ void copy_bulk(u32 to, const void *from, u32 bytes, u32 bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
static __device__ __forceinline__ void together(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

// wgmma takes words of both rows in turn, and the compiler would bring them into that order as soon as they are loaded, and so
// wait for them. It cannot tell that these words stay what they are.
static __device__ __forceinline__ u32 same(u32 v, u32 nothing) {
    u32 w;
    asm volatile("xor.b32 %0, %1, %2;" : "=r"(w) : "r"(v), "r"(nothing));
    return w;
}

struct Ring {
    u32 full, empty;
    int stage;
    u32 parity;
    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    __device__ __forceinline__ void wait() const { barrier_wait(full + 8 * stage, parity); }
    // The warp is done with the stage; its lanes have met since they waited for it.
    __device__ __forceinline__ void leave(int lane) {
        if (lane == 0) barrier_arrive(empty + 8 * stage);
        advance();
    }
    __device__ __forceinline__ void pass_by(int stages, int lane) {
        for (int i = 0; i < stages; i++) {
            wait();
            __syncwarp();
            leave(lane);
        }
    }
};

// The triplets of the warp's 16 rows, 32 at a time, a lane each.
struct Batch {
    int offset;                    // of the lane's row (in lane 16: of what follows) from the warp's first triplet
    int cell, index, row, time;    // of the lane's triplet; how many its row has in the cell before it
    int before, run;               // row and cell of the last triplet, and how many came with the same
    __device__ __forceinline__ void take(const Triplets &t, const Word &word, int at, int lane) {
        row = 0;
#pragma unroll
        for (int step = 8; step > 0; step >>= 1)
            if (__shfl_sync(ALL, offset, row + step) <= at) row += step;
        cell = word.cell_of(t), index = word.index_of(t);
        int key = row << 16 | cell, last = __shfl_up_sync(ALL, key, 1);
        u32 heads = __ballot_sync(ALL, key != (lane ? last : before)) & (2u << lane) - 1;
        time = heads ? lane - 31 + __clz(heads) : run + lane;
        before = __shfl_sync(ALL, key, 31);
        run = __shfl_sync(ALL, time, 31) + 1;
    }
};
template <class F> static __device__ __forceinline__ void each_triplet(const Triplets &t, i64 begin, int offset, int lane, F use) {
    int size = __shfl_sync(ALL, offset, 16);
    Batch batch;
    batch.offset = offset, batch.before = -1, batch.run = 0;
    for (int from = 0; from < size; from += 128) {
        Word words[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (from + i * 32 + lane < size) words[i].load(t, begin + from + i * 32 + lane);
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (from + i * 32 < size) {
                int at = from + i * 32 + lane;
                batch.take(t, words[i], at, lane);
                if (at < size) use(batch);
            }
    }
}

typedef float Sums[COLUMNS / 2];
typedef Eight Raw[DEPTH][2];
typedef u32 Operands[DEPTH][PARTS][8];

struct Gather {
    const Value *features;
    const int2 *at;                // in the table: the points of the lane's two rows in the next pass
    u32 step;
    int inside;                    // channels of the lane's that there are
    __device__ __forceinline__ void fetch(Raw &raw) {
        int2 index = *at;
        at += 8;
        const Value *u = features + (u64)(u32)index.x * step, *l = features + (u64)(u32)index.y * step;
#pragma unroll
        for (int d = 0; d < DEPTH; d++) {
            raw[d][0].fetch(u + d * 32, index.x >= 0 && d * 32 < inside);
            raw[d][1].fetch(l + d * 32, index.y >= 0 && d * 32 < inside);
        }
    }
};

static __device__ __forceinline__ void take(Operands &a, const Raw &raw, float gain, u32 nothing) {
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        uint4 u[PARTS], l[PARTS];
        raw[d][0].take(u, gain);
        raw[d][1].take(l, gain);
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            u32 v[8] = {u[i].x, l[i].x, u[i].y, l[i].y, u[i].z, l[i].z, u[i].w, l[i].w};
#pragma unroll
            for (int j = 0; j < 8; j++) a[d][i][j] = same(v[j], nothing);
        }
    }
}

// Both steps of a slab; weights: a descriptor's low half.
static __device__ __forceinline__ void multiply_slab(Sums &sums, const u32 (&a)[8], u32 weights, int add) {
    wgmma_rs(sums, a[0], a[1], a[2], a[3], weights, add);
    wgmma_rs(sums, a[4], a[5], a[6], a[7], weights + 2 * COLUMNS, 1);
}
static __device__ __forceinline__ void settle(Sums &sums) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

static __device__ __forceinline__ void store_row(const MultiplyParams &p, i64 row, int first, const Value *bias, Value *out, const float (&v)[2 * OCTETS]) {
    constexpr int most = 16 / sizeof(Value), wide = most < 2 * OCTETS ? most : 2 * OCTETS;
    out += row * p.out_row;
    bool whole = p.outputs % wide == 0 && p.out_row % wide == 0 && (u32)(i64)p.out % 16 == 0;
#pragma unroll
    for (int n = 0; n < 2 * OCTETS; n += wide) {
        int at = first + n;
        float w[wide];
#pragma unroll
        for (int i = 0; i < wide; i++) w[i] = v[n + i] + (bias && at + i < p.outputs ? widened(bias[at + i]) : 0.f);
        if (whole) {
            if (at >= p.outputs) continue;
#if IN == 0
            *(float4 *)(out + at) = make_float4(w[0], w[1], w[2], w[3]);
#elif COLUMNS == 16
            *(uint2 *)(out + at) = make_uint2(pack_pair(w[0], w[1]), pack_pair(w[2], w[3]));
#else
            *(uint4 *)(out + at) = make_uint4(pack_pair(w[0], w[1]), pack_pair(w[2], w[3]), pack_pair(w[4], w[5]), pack_pair(w[6], w[7]));
#endif
        } else {
#pragma unroll
            for (int i = 0; i < wide; i++)
                if (at + i < p.outputs) out[at + i] = rounded(w[i]);
        }
    }
}

// The block's part of the work: columns of outputs, and bands of 64 * GROUPS rows.
struct Work {
    int column, group, block, stride, chunks, positions, rounds;
    __device__ __forceinline__ Work(const MultiplyParams &p) {
        column = blockIdx.x % p.columns, group = column / p.blocks, block = blockIdx.x / p.columns, stride = gridDim.x / p.columns;
        chunks = p.slabs / DEPTH, positions = chunks * p.triplets.cells;
        int bands = (int)((p.triplets.count + 64 * GROUPS - 1) / (64 * GROUPS));
        rounds = block < bands ? (bands - block + stride - 1) / stride : 0;
    }
};

static __device__ __forceinline__ void bring_weights(const MultiplyParams &p, const Work &work, Ring ring, uint4 *stages) {
    const uint4 *weights = p.weights + (i64)work.column * work.positions * STAGE;
    int all = work.rounds * work.positions, position = 0;
    for (int i = 0; i < all; i++) {
        if (i >= STAGES) barrier_wait(ring.empty + 8 * ring.stage, ring.parity ^ 1);
        barrier_expect(ring.full + 8 * ring.stage, STAGE * 16);
        copy_bulk(address(stages + ring.stage * STAGE), weights + (i64)position * STAGE, STAGE * 16, ring.full + 8 * ring.stage);
        ring.advance();
        if (++position == work.positions) position = 0;
    }
}

static __device__ __forceinline__ void multiply_rows(const MultiplyParams &p, const Work &work, Ring ring, u32 stages, int *tables, int *lists) {
    const Triplets &t = p.triplets;
    int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5, own = thread >> 7, member = thread & 127;
    // Of each warpgroup how often cells come, thrice; of each warp where its passes of a cell begin.
    int *table = tables + warp * (16 * WINDOW), *counters = lists + own * 3 * (t.cells + 1), *begins = lists + (GROUPS * 3 + warp) * (t.cells + 1);
    int first_channel = (lane & 3) * 8;
    const Value *features = p.features + (i64)work.group * p.inputs + first_channel;
    u32 descriptor = stages >> 4 | COLUMNS << 16;
    float inverses[2], gain = gain_of(p.magnitude, inverses[0]);
    gain_of(p.magnitude + 1, inverses[1]);
    auto first_row = [&](int round) { return ((i64)(work.block + (i64)round * work.stride) * GROUPS + own) * 64 + (member >> 5) * 16; };
    auto place = [&](int round) { return t.rows[min(first_row(round) + min(lane, 16), t.count)]; };
    // Where the lane's row begins, in this round and the next two.
    i64 places[3] = {0, place(0), place(1)};
    int third = 0;
    for (int k = member; k < 3 * (t.cells + 1); k += 128) counters[k] = 0;
    together(own);
    for (int round = 0; round < work.rounds; round++) {
        places[0] = places[1], places[1] = places[2], places[2] = place(round + 2);
        i64 begin = __shfl_sync(ALL, places[0], 0);
        int offset = (int)(places[0] - begin);
        int *counts = counters + third * (t.cells + 1);
        third = third == 2 ? 0 : third + 1;
        for (int k = member; k < t.cells; k += 128) counters[third * (t.cells + 1) + k] = 0;
        each_triplet(t, begin, offset, lane, [&](const Batch &b) {
            if (b.time >= *(volatile int *)(counts + b.cell)) atomicMax(counts + b.cell, b.time + 1);
        });
        together(own);
        int passes = 0;
        for (int k = 0; k < t.cells; k += 32) {
            int mine = k + lane < t.cells ? counts[k + lane] : 0, upto = mine;
#pragma unroll
            for (int d = 1; d < 32; d *= 2) {
                int other = __shfl_up_sync(ALL, upto, d);
                if (lane >= d) upto += other;
            }
            if (k + lane < t.cells) begins[k + lane] = passes + upto - mine;
            passes += __shfl_sync(ALL, upto, 31);
        }
        if (lane == 0) begins[t.cells] = passes;
        __syncwarp();
        int cell = 0, chunk = 0, pass = 0, left = begins[1], passed = 0, window = -1;
        {
            i64 from = __shfl_sync(ALL, places[1], 0), to = __shfl_sync(ALL, places[1], 16);
            for (from += lane * 32; from < to; from += 32 * 32) asm volatile("prefetch.global.L1 [%0];" ::"l"(t.entries + from));
        }
        Sums sums;
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) sums[i] = 0.f;
        bool arrived = false;          // the stage in hand
        for (int steps = passes * work.chunks; steps > 0;) {
            // As many as the table holds and as have the same inputs.
            int want = passes <= WINDOW ? 0 : pass;
            if (window != want) {
                window = want;
                __syncwarp();
                for (int i = lane; i < WINDOW * 4; i += 32) ((int4 *)table)[i] = make_int4(-1, -1, -1, -1);
                __syncwarp();
                each_triplet(t, begin, offset, lane, [&](const Batch &b) {
                    u32 at = begins[b.cell] + b.time - window;
                    if (at < WINDOW) table[at * 16 + (b.row & 7) * 2 + (b.row >> 3)] = b.index;
                });
                __syncwarp();
            }
            int now = min(steps, min(passes, window + WINDOW) - pass);
            Gather gather = {features + chunk * (DEPTH * 32), (const int2 *)table + (pass - window) * 8 + (lane >> 2), (u32)p.features_row,
                             p.inputs - first_channel - chunk * (DEPTH * 32)};
            steps -= now;
            pass += now;
            Raw raw;
            gather.fetch(raw);
            if (!arrived) {
                ring.wait();
                __syncwarp();
            }
            arrived = true;
            while (true) {
                while (left == 0) {
                    ring.leave(lane);
                    passed++;
                    if (++cell == t.cells) cell = 0;
                    left = begins[cell + 1] - begins[cell];
                    ring.wait();
                    if (left == 0) __syncwarp();
                }
                left--;
                Operands a;
                take(a, raw, gain, p.nothing);
                u32 weights = descriptor + ring.stage * STAGE;
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#if SPLIT
                // The tensor cores' sums lose bits: at most one slab long.
                Sums part;
                multiply_slab(part, a[0][1], weights, 0);
                multiply_slab(part, a[0][0], weights + OCTETS * 32, 1);
                multiply_slab(part, a[0][0], weights, 1);
#else
#pragma unroll
                for (int d = 0; d < DEPTH; d++) multiply_slab(sums, a[d][0], weights + d * SLAB, 1);
#endif
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                bool more = --now > 0;
                if (more) gather.fetch(raw);
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#if SPLIT
                settle(part);
#pragma unroll
                for (int i = 0; i < COLUMNS / 2; i++) sums[i] += part[i];
#endif
                if (!more) break;
            }
            if (pass == passes) pass = 0, chunk++;
        }
        settle(sums);
        // The stages left of this round: the one in hand and those of cells that nobody needs.
        if (!arrived) ring.wait();
        __syncwarp();
        ring.leave(lane);
        ring.pass_by(work.positions - 1 - passed, lane);
        int at = work.column % p.blocks * COLUMNS + (lane & 3) * (COLUMNS / 4), group = work.group * p.outputs;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float mine[2 * OCTETS];
#pragma unroll
            for (int n = 0; n < OCTETS; n++)
#pragma unroll
                for (int i = 0; i < 2; i++) mine[2 * n + i] = sums[4 * n + 2 * half + i] * (inverses[0] * inverses[1]);
            i64 row = first_row(round) + half * 8 + (lane >> 2);
            if (row < t.count) store_row(p, row, at, p.bias ? p.bias + group : p.bias, p.out + group, mine);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) multiply(const __grid_constant__ MultiplyParams p) {
    extern __shared__ __align__(128) uint4 shared[];
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    int *tables = (int *)(shared + STAGES * STAGE), *lists = tables + GROUPS * 4 * 16 * WINDOW;
    u32 bars = (address(lists + GROUPS * 7 * (p.triplets.cells + 1)) + 7) & ~7u;
    Ring ring = {bars, bars + 8 * STAGES, 0, 0};
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(ring.full + 8 * i, 1);
            barrier_init(ring.empty + 8 * i, 4 * GROUPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    Work work(p);
    if (warp < 4 * GROUPS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
        if (work.rounds) multiply_rows(p, work, ring, address(shared), tables, lists);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (warp == 4 * GROUPS && lane == 0) bring_weights(p, work, ring, shared);
    }
}
