// VVOR on Hopper: out[k] = sum over the rows of features[index]^T (x) grad[row], wgmma over 64 rows at a time. A block owns nine
// cells, 64 x 64 channels of each, and a segment of the rows; a warpgroup owns three of the cells and keeps their sums in
// registers for the whole segment.
//
// The block walks TILE rows at a time. Their gradients come into shared memory once, as they lie. A table says which point each
// row wants of each cell, in each of the first TIMES triplets that it has there; what is left is listed in another turn. A pass
// is 64 rows, a cell and one of the times, of which at least one row has something: its features come into a stage of shared
// memory, zeros where a row has none, AHEAD passes before they are multiplied. Both operands lie as wgmma takes them transposed:
// rows of 64 channels, swizzled by 128 bytes.
//
// More macros, and those of outer.cuh, of which both are 64:
//   TILE    rows, a multiple of 64
//   TIMES   3 * TIMES * TILE / 64 is 32 at most
//   AHEAD   passes

#define THREADS 384
#define CELLS 9
#define SUBS (TILE / 64)
#define ROWS_BYTES (64 * 128)
#define STAGES (AHEAD + 1)

static __device__ __forceinline__ void together(int group) { asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory"); }
// What was written is there for wgmma.
static __device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
static __device__ __forceinline__ void commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
static __device__ __forceinline__ void finish() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

typedef float Sums[32];

struct Tile {
    int *table;                    // [CELLS][TIMES][TILE] the point that a row wants, -1 for none
    volatile u8 *used;             // [3][32] the passes of each warpgroup: [3][SUBS][TIMES]
    volatile int *more;            // whether a row has a cell more often than the table tells

    // Lists the rows' triplets of the cells cell ..., those that come `first` + 0 ... TIMES - 1 times before.
    __device__ __forceinline__ void list(const Triplets &t, i64 begin, i64 end, int cell, int first) const {
        for (int r = threadIdx.x; r < TILE; r += THREADS) {
            for (int i = 0; i < CELLS * TIMES; i++) table[i * TILE + r] = -1;
            if (begin + r >= end) continue;
            i64 from = t.rows[begin + r];
            int size = (int)(t.rows[begin + r + 1] - from), low = 0, high = size;
            while (high - low > 4) {
                int middle = (low + high) / 2;
                if (cell_at(t, from + middle) < cell)
                    low = middle + 1;
                else
                    high = middle;
            }
            int last = -1, time = 0;
            for (bool go = low < size; go; low += 4, go = go && low < size) {
                Word words[4];
#pragma unroll
                for (int i = 0; i < 4; i++)
                    if (low + i < size) words[i].load(t, from + low + i);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int c = low + i < size ? words[i].cell_of(t) - cell : CELLS;
                    if (c >= CELLS) go = false;
                    if (c < 0 || c >= CELLS) continue;
                    time = c == last ? time + 1 : 0;
                    last = c;
                    if (time >= first + TIMES) *more = 1;
                    if (time < first || time >= first + TIMES) continue;
                    table[(c * TIMES + time - first) * TILE + r] = words[i].index_of(t);
                    used[c / 3 * 32 + (c % 3 * SUBS + r / 64) * TIMES + time - first] = 1;
                }
            }
        }
    }
};

struct Gather {
    const Value *features;
    i64 step;
    int width;                     // channels from the block's first
    u32 stages;                    // of the warpgroup
    const int *table;              // of its cells
    int member;
    // The features of a pass.
    __device__ __forceinline__ void fetch(int pass, int stage) const {
        const int *list = table + (pass / (SUBS * TIMES) * TIMES + pass % TIMES) * TILE + pass / TIMES % SUBS * 64;
        int octet = member & 7, row = member >> 3;
        u32 to = stages + stage * ROWS_BYTES + row * 128 + (octet ^ (row & 7)) * 16;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int index = list[i * 16 + row];
            bool any = index >= 0 && octet * 8 < width;
            const Value *from = features + (any ? (i64)index * step + octet * 8 : 0);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to + i * 2048), "l"(from), "r"(any ? 16 : 0) : "memory");
        }
    }
};

// The passes of the warpgroup that are left in the table; `grad`: the tile's.
static __device__ __forceinline__ void multiply_passes(Sums (&sums)[3], const Gather &gather, u32 wanted, u32 grad, int own) {
    u32 fetched = wanted;
    int stage = 0, ahead = 0;
    auto fetch = [&]() {
        if (fetched) {
            gather.fetch(__ffs(fetched) - 1, ahead);
            fetched &= fetched - 1;
        }
        commit();
        if (++ahead == STAGES) ahead = 0;
    };
#pragma unroll
    for (int i = 0; i < AHEAD; i++) fetch();
#pragma unroll
    for (int c = 0; c < 3; c++) {
        u32 mine = wanted >> c * SUBS * TIMES & (u32)((1ull << SUBS * TIMES) - 1);
        while (mine) {
            int sub = (__ffs(mine) - 1) / TIMES;
            mine &= mine - 1;
            asm volatile("cp.async.wait_group %0;" ::"n"(AHEAD - 1) : "memory");
            publish();
            finish();                  // the pass before: its stage is free
            together(own);
            fetch();
            u32 a = (gather.stages + stage * ROWS_BYTES) >> 4, b = (grad + sub * ROWS_BYTES) >> 4;
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
            for (int k = 0; k < 4; k++) wgmma_ss(sums[c], a + k * 128, b + k * 128);
            asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
            if (++stage == STAGES) stage = 0;
        }
        finish();
    }
    asm volatile("cp.async.wait_all;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) outer(const __grid_constant__ OuterParams p) {
    extern __shared__ __align__(1024) uint4 shared[];
    const Triplets &t = p.triplets;
    int thread = threadIdx.x, lane = thread & 31, own = thread >> 7, member = thread & 127;
    u32 stages = (address(shared) + 1023) & ~1023u, grad_at = stages + 3 * STAGES * ROWS_BYTES;  // swizzled: at multiples of 1024
    Tile tile;
    tile.table = (int *)((u8 *)shared + (grad_at - address(shared)) + SUBS * ROWS_BYTES);
    tile.used = (volatile u8 *)(tile.table + CELLS * TIMES * TILE);
    tile.more = (volatile int *)(tile.used + 96);

    int item = blockIdx.x, cell = item % p.cell_blocks * CELLS;
    item /= p.cell_blocks;
    int column = item % p.columns, segment = item / p.columns, within = column % (p.input_blocks * p.output_blocks);
    int group = column / (p.input_blocks * p.output_blocks), input = within / p.output_blocks * INPUTS, output = within % p.output_blocks * OUTPUTS;
    i64 first = part_begin(t, segment, p.segments), end = part_begin(t, segment + 1, p.segments);
    const Value *grad = p.grad + (i64)group * p.outputs + output;
    Gather gather = {p.features + (i64)group * p.inputs + input, p.features_row,           p.inputs - input,
                     stages + own * (STAGES * ROWS_BYTES),       tile.table + own * 3 * TIMES * TILE, member};
    Sums sums[3];
#pragma unroll
    for (int c = 0; c < 3; c++)
#pragma unroll
        for (int i = 0; i < 32; i++) sums[c][i] = 0.f;
    for (i64 begin = first; begin < end; begin += TILE) {
        __syncthreads();               // the last tile is done with
        for (int at = thread; at < TILE * 8; at += THREADS) {
            int r = at >> 3, c = at & 7;
            bool any = begin + r < end && output + c * 8 < p.outputs;
            copy16(grad_at + r * 128 + (c ^ (r & 7)) * 16, grad + (any ? (begin + r) * p.grad_row + c * 8 : 0), any ? 16 : 0);
        }
        commit();
        // Where the next tile's triplets lie, which are to be on their way.
        i64 next = min(begin + TILE, end), entry = t.rows[next], limit = t.rows[min(next + TILE, end)];
        if (next + thread * 16 < min(next + TILE, end)) asm volatile("prefetch.global.L1 [%0];" ::"l"(t.rows + next + thread * 16));
        bool again = true;
        for (int time = 0; again; time += TIMES) {
            if (time) __syncthreads();
            if (thread < 96) tile.used[thread] = 0;
            if (thread == 0) *tile.more = 0;
            __syncthreads();
            tile.list(t, begin, end, cell, time);
            asm volatile("cp.async.wait_all;" ::: "memory");
            publish();
            __syncthreads();
            again = *tile.more;
            u32 wanted = __ballot_sync(ALL, tile.used[own * 32 + lane]);
            if (time == 0)
                for (i64 at = entry + thread * 32; at < limit; at += THREADS * 32) asm volatile("prefetch.global.L1 [%0];" ::"l"(t.entries + at));
            multiply_passes(sums, gather, wanted, grad_at, own);
        }
    }
#pragma unroll
    for (int c = 0; c < 3; c++) {
#pragma unroll
        for (int i = 0; i < 32; i++) asm volatile("" : "+f"(sums[c][i])::"memory");
        int k = cell + own * 3 + c;
        if (k >= t.cells) continue;
        float *share = p.shares + (((i64)segment * p.columns + column) * t.cells + k) * (INPUTS * OUTPUTS);
        share += ((member >> 5) * 16 + (lane >> 2)) * OUTPUTS + (lane & 3) * 2;
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) *(float2 *)(share + half * 8 * OUTPUTS + n * 8) = {sums[c][4 * n + 2 * half], sums[c][4 * n + 2 * half + 1]};
    }
}
