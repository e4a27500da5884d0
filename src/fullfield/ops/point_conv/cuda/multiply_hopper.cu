// MVMR on Hopper, for weights that fit into shared memory: as multiply.cu, with wgmma. A warpgroup takes 64 rows at a time,
// a warp 16 of them. It first counts how often each cell has to be multiplied (the most triplets that a row has there),
// so that its warps need not agree on the next cell; then features go from memory into the registers that wgmma takes,
// AHEAD slabs before they are multiplied.
//
// More macros, and those of multiply.cuh:
//   GROUPS   warpgroups of a block

#define THREADS (128 * GROUPS)
#define SLAB (PARTS * OCTETS * 32)  // vectors of the weights of a slab
#if IN == 0
#define SETS 4
#else
#define SETS 8
#endif
#define AHEAD (SETS - 1)
#define END 0xffffffffu

static __device__ __forceinline__ void together(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }

typedef Eight Raw[2];

struct Rows {
    const MultiplyParams &p;
    const Value *features;
    const int *counts;
    u32 base;                      // of the weights: the low half of a wgmma descriptor
    int lane, width;
    Cursor cursor;
    int cell, left, slab;
    const Value *from[2];          // null for none

    // The features of the next slab, and where its weights lie; END after the last.
    __device__ __forceinline__ u32 fetch(Raw &raw) {
        const Triplets &t = p.triplets;
        if (slab == p.slabs) {
            slab = 0;
            while (left == 0 && cell < t.cells) left = ++cell < t.cells ? counts[cell] : 0;
            left--;
            bool mine = cursor.cell(t) == cell;
            int own = mine ? cursor.word.index_of(t) : -1;
#pragma unroll
            for (int q = 0; q < 2; q++) {
                int index = __shfl_sync(ALL, own, q * 8 + (lane >> 2));
                from[q] = index >= 0 ? features + index * p.features_row : nullptr;
            }
            if (mine) {
                cursor.at++;
                cursor.read(t);
            }
        }
        if (cell >= t.cells) {
            slab = p.slabs;
            left = 0;
            return END;
        }
        bool inside = slab * 32 < width;
#pragma unroll
        for (int q = 0; q < 2; q++) raw[q].fetch(from[q] + slab * 32, from[q] && inside);
        return base + (cell * p.slabs + slab++) * SLAB;
    }
    // How often each cell has to be multiplied.
    __device__ __forceinline__ void count(int *counts) const {
        i64 at = cursor.at;
        int last = NONE, run = 0;
        while (at < cursor.end) {
            int next[4];
            Word words[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (at + i < cursor.end) words[i].load(p.triplets, at + i);
#pragma unroll
            for (int i = 0; i < 4; i++) next[i] = at + i < cursor.end ? words[i].cell_of(p.triplets) : NONE;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (next[i] != last) {
                    if (last != NONE && run > *(volatile int *)(counts + last)) atomicMax(counts + last, run);
                    run = 0;
                    last = next[i];
                }
                run++;
            }
            at += 4;
        }
        if (last != NONE && run > *(volatile int *)(counts + last)) atomicMax(counts + last, run);
    }
};

// wgmma takes words of both rows in turn, and the compiler would bring them into that order as soon as they are loaded, and so
// wait for them. It cannot tell that these words stay what they are.
static __device__ __forceinline__ u32 changed(u32 v, u32 nothing) {
    u32 same;
    asm volatile("xor.b32 %0, %1, %2;" : "=r"(same) : "r"(v), "r"(nothing));
    return same;
}
static __device__ __forceinline__ uint4 changed(const uint4 &v, u32 nothing) {
    return make_uint4(changed(v.x, nothing), changed(v.y, nothing), changed(v.z, nothing), changed(v.w, nothing));
}

typedef float Sums[COLUMNS / 2];
// Both steps of a slab; weights: in vectors.
static __device__ __forceinline__ void multiply_slab(Sums &d, const uint4 &u, const uint4 &l, u32 weights, int add) {
    wgmma_rs(d, u.x, l.x, u.y, l.y, weights, add);
    wgmma_rs(d, u.z, l.z, u.w, l.w, weights + 2 * COLUMNS, 1);
}
static __device__ __forceinline__ void settle(Sums &d) {
#pragma unroll
    for (int i = 0; i < COLUMNS / 2; i++) asm volatile("" : "+f"(d[i])::"memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) multiply(const __grid_constant__ MultiplyParams p) {
    extern __shared__ __align__(128) uint4 shared[];
    const Triplets &t = p.triplets;
    int thread = threadIdx.x, lane = thread & 31, own = thread >> 7, member = thread & 127;
    int column = blockIdx.x % p.columns, group = column / p.blocks, each = t.cells * p.slabs * SLAB;
    for (int at = thread; at < each; at += THREADS) shared[at] = p.weights[(i64)column * each + at];
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    volatile int *unit = (int *)(shared + each) + own * (t.cells + 1);
    int *counts = (int *)unit + 1;
    float inverses[2], gain = gain_of(p.magnitude, inverses[0]);
    gain_of(p.magnitude + 1, inverses[1]);
    Rows rows = {p, p.features + (i64)group * p.inputs + (lane & 3) * 8, counts, (u32)__cvta_generic_to_shared(shared) >> 4 | COLUMNS << 16, lane, p.inputs - (lane & 3) * 8};
    while (true) {
        if (member == 0) *unit = atomicAdd(p.queue + column, 1);
        for (int k = member; k < t.cells; k += 128) counts[k] = 0;
        together(own);
        i64 first = (i64)*unit * 64 + (member >> 5) * 16;
        if ((i64)*unit * 64 >= t.count) break;
        bool any = lane < 16 && first + lane < t.count;
        rows.cursor.at = any ? t.rows[first + lane] : 0;
        rows.cursor.end = any ? t.rows[first + lane + 1] : 0;
        rows.count(counts);
        rows.cursor.read(t);
        together(own);
        rows.cell = -1;
        rows.left = 0;
        rows.slab = p.slabs;
        Raw raw[SETS];
        u32 weights[SETS];
        Sums sums;
#pragma unroll
        for (int i = 0; i < COLUMNS / 2; i++) sums[i] = 0.f;
#if SPLIT
        Sums part;
#endif
#pragma unroll
        for (int s = 0; s < AHEAD; s++) weights[s] = rows.fetch(raw[s]);
        bool more = true;
        while (more) {
#pragma unroll
            for (int s = 0; s < SETS; s++) {
                if (weights[s] == END) {
                    more = false;
                    break;
                }
                weights[(s + AHEAD) % SETS] = rows.fetch(raw[(s + AHEAD) % SETS]);
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
                uint4 u[PARTS], l[PARTS];
                raw[s][0].take(u, gain);
                raw[s][1].take(l, gain);
#if IN != 0
                u[0] = changed(u[0], p.nothing), l[0] = changed(l[0], p.nothing);
#endif
                asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#if SPLIT
                multiply_slab(part, u[1], l[1], weights[s], 0);
                multiply_slab(part, u[0], l[0], weights[s] + OCTETS * 32, 1);
                multiply_slab(part, u[0], l[0], weights[s], 1);
#else
                multiply_slab(sums, u[0], l[0], weights[s], 1);
#endif
                asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#if SPLIT
                // The tensor cores' sums lose bits: at most one slab long.
                asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
                settle(part);
#pragma unroll
                for (int i = 0; i < COLUMNS / 2; i++) sums[i] += part[i];
#endif
            }
        }
#if !SPLIT
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        settle(sums);
#endif
        int offset = group * p.outputs, at = (column % p.blocks) * COLUMNS + (lane & 3) * (COLUMNS / 4);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float mine[OCTETS][2];
#pragma unroll
            for (int n = 0; n < OCTETS; n++) mine[n][0] = sums[4 * n + 2 * half], mine[n][1] = sums[4 * n + 2 * half + 1];
            i64 to = first + half * 8 + (lane >> 2);
            if (to < t.count) store(p, to, at, p.bias ? p.bias + offset : p.bias, p.out + offset, mine, inverses[0] * inverses[1]);
        }
        together(own);                 // the counts are read
    }
}
