// MVMR: out[r] = bias + sum over row r of features[index] @ weight[cell]. Every output is summed in registers, cell by cell,
// and written once: the same bits in every run.
//
// A warp takes 16 * TILES rows at a time. Each lane points to the first triplet of its row that is not done. The least of
// their cells is multiplied next, for the rows that point to it. Their features are loaded straight into the registers of
// mma.sync, so channels have the order of the loads, in the weights too. The cell before is multiplied meanwhile. A row with
// several points in a cell takes several passes.
//
// More macros, and those of multiply.cuh:
//   TILES    16-row tiles of a warp: 1 or 2
//   RESIDENT 1: the block keeps its weights in shared memory, else they come through the L1
//   THREADS, BLOCKS   of a block; blocks a multiprocessor
//   SLAB_PARTS, CELL_PARTS   if both are 1, every warp takes its own rows. Else there are so few rows that the warps of a
//            block share them: each takes a part of the slabs and of the cells, and their sums are added in order

#define ROWS (16 * TILES)
#define SHARING (SLAB_PARTS * CELL_PARTS)

// The lane's position in its row, and the triplet there.
struct Cursor {
    i64 at, end;
    Word word;
    __device__ __forceinline__ void read(const Triplets &t) {
        if (at < end) word.load(t, at);
    }
    __device__ __forceinline__ int cell(const Triplets &t) const { return at < end ? word.cell_of(t) : NONE; }
    __device__ __forceinline__ void prefetch(const Triplets &t) const {
        for (i64 ahead = at; ahead < end; ahead += 8) asm volatile("prefetch.global.L1 [%0];" ::"l"(t.entries + ahead));
    }
};

typedef Eight Raw[2 * TILES];
typedef uint4 Operands[2 * TILES][PARTS];
typedef float Sums[TILES][OCTETS][4];
#define CHUNK (OCTETS < 4 ? OCTETS : 4)

// Load the lane's rows of one slab; null: no row.
static __device__ __forceinline__ void fetch(Raw &raw, const Value *const (&from)[2 * TILES], int slab, bool inside) {
#pragma unroll
    for (int q = 0; q < 2 * TILES; q++) raw[q].fetch(from[q] + slab * 32, from[q] && inside);
}

// Multiply one slab of one cell for the tiles FIRST .. LAST-1.
template <int FIRST, int LAST>
static __device__ __forceinline__ void multiply_slab(Sums &sums, const Operands &a, const uint4 *weights) {
#pragma unroll
    for (int first = 0; first < OCTETS; first += CHUNK) {
        uint4 b[PARTS][CHUNK];
#pragma unroll
        for (int j = 0; j < PARTS; j++)
#pragma unroll
            for (int n = 0; n < CHUNK; n++) b[j][n] = weights[(j * OCTETS + first + n) * 32];
#if SPLIT
        float part[LAST - FIRST][CHUNK][4];  // sums in the tensor cores lose bits: at most one slab long
        clear(part);
#endif
        // Products that add to the same sums are not neighbours.
#pragma unroll
        for (int product = 0; product < 2 * PARTS - 1; product++) {
            const int i = product == 0 ? PARTS - 1 : 0, j = product == 1 ? 1 : 0;  // small ones first
#pragma unroll
            for (int half = 0; half < 2; half++)
#pragma unroll
                for (int n = 0; n < CHUNK; n++)
#pragma unroll
                    for (int m = FIRST; m < LAST; m++) {
#if SPLIT
                        float(&d)[4] = part[m - FIRST][n];
#else
                        float(&d)[4] = sums[m][first + n];
#endif
                        const uint4 &u = a[2 * m][i], &l = a[2 * m + 1][i], &w = b[j][n];
                        if (half == 0)
                            mma_16816(d, u.x, l.x, u.y, l.y, w.x, w.y);
                        else
                            mma_16816(d, u.z, l.z, u.w, l.w, w.z, w.w);
                    }
        }
#if SPLIT
#pragma unroll
        for (int m = FIRST; m < LAST; m++)
#pragma unroll
            for (int n = 0; n < CHUNK; n++)
#pragma unroll
                for (int i = 0; i < 4; i++) sums[m][first + n][i] += part[m - FIRST][n][i];
#endif
    }
}

// The next cell to multiply, the features of the lane's rows (null for none), and the rows that take part.
struct Pass {
    int cell;
    u32 rows;
    const Value *from[2 * TILES];
    __device__ __forceinline__ void choose(const Triplets &t, Cursor &c, const Value *features, i64 step, int lane) {
        int own_cell = c.cell(t);
        cell = warp_min(own_cell);
        bool mine = own_cell == cell && cell != NONE;
        rows = __ballot_sync(ALL, mine);
        int own = mine ? c.word.index_of(t) : -1;
#pragma unroll
        for (int q = 0; q < 2 * TILES; q++) {
            int index = __shfl_sync(ALL, own, q * 8 + (lane >> 2));
            from[q] = index >= 0 ? features + index * step : nullptr;
        }
        if (mine) {
            c.at++;
            c.read(t);
        }
    }
};

// Slabs or cells from `begin` to before `end`.
struct Range {
    int begin, end;
};
// Compute the sums of ROWS rows from `first` on over ranges of slabs and cells.
static __device__ __forceinline__ void sum_rows(const MultiplyParams &p, Sums &sums, i64 first, Range slabs, Range cells, const Value *features,
                                                const uint4 *weights, int width, float gain) {
    const Triplets &t = p.triplets;
    const int lane = threadIdx.x & 31;
    Cursor cursor;
    i64 row = first + lane;
    bool any = lane < ROWS && row < t.count;
    cursor.at = any ? t.rows[row] : 0;
    cursor.end = any ? t.rows[row + 1] : 0;
    cursor.prefetch(t);
    if (CELL_PARTS > 1) {
        i64 end = cursor.end;
        cursor.at = end_below(t, cursor.at, end, cells.begin);
        cursor.end = end_below(t, cursor.at, end, cells.end);
    }
    cursor.read(t);
    clear(sums);
    Pass pass;
    pass.choose(t, cursor, features, p.features_row, lane);
    Raw raw;
    if (pass.cell != NONE) fetch(raw, pass.from, slabs.begin, slabs.begin * 32 < width);
    for (int slab = slabs.begin; pass.cell != NONE;) {
        Operands a;
#pragma unroll
        for (int q = 0; q < 2 * TILES; q++) raw[q].take(a[q], gain);
        const uint4 *w = weights + ((i64)slab * t.cells + pass.cell) * (PARTS * OCTETS * 32);
        u32 rows = pass.rows;
        if (++slab == slabs.end) {
            slab = slabs.begin;
            pass.choose(t, cursor, features, p.features_row, lane);
        }
        if (pass.cell != NONE) fetch(raw, pass.from, slab, slab * 32 < width);
        if (TILES == 1)
            multiply_slab<0, 1>(sums, a, w);
        else if ((rows & 0xffff) == 0)
            multiply_slab<TILES - 1, TILES>(sums, a, w);
        else if (rows >> 16 == 0)
            multiply_slab<0, 1>(sums, a, w);
        else
            multiply_slab<0, TILES>(sums, a, w);
    }
}

static __device__ __forceinline__ void store_tiles(const MultiplyParams &p, const Sums &sums, i64 first, int column, float scale) {
#pragma unroll
    for (int m = 0; m < TILES; m++) store_rows(p, first + 16 * m, column, column / p.blocks, *(const float(*)[4 * OCTETS])sums[m], scale);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) multiply(const __grid_constant__ MultiplyParams p) {
    extern __shared__ __align__(16) uint4 shared[];
    const Triplets &t = p.triplets;
    int thread = threadIdx.x, lane = thread & 31;
    int column = blockIdx.x % p.columns;
    i64 each = (i64)t.cells * p.slabs * (PARTS * OCTETS * 32);
    const uint4 *weights = p.weights + column * each;
#if RESIDENT
    for (int at = thread; at < (int)each; at += THREADS) shared[at] = weights[at];
    weights = shared;
    __syncthreads();
#endif
    weights += lane;
    float inverses[2], gain = gain_of(p.magnitude, inverses[0]);
    gain_of(p.magnitude + 1, inverses[1]);
    const Value *features = p.features + (i64)(column / p.blocks) * p.inputs + (lane & 3) * 8;
    int width = p.inputs - (lane & 3) * 8;
    Sums sums;
#if SHARING > 1
    const i64 first = (i64)(blockIdx.x / p.columns) * ROWS;
    const int warp = thread >> 5, slab = warp % SLAB_PARTS, cell = warp / SLAB_PARTS;
    const Range slabs = {slab * p.slabs / SLAB_PARTS, (slab + 1) * p.slabs / SLAB_PARTS};
    const Range cells = {cell * t.cells / CELL_PARTS, (cell + 1) * t.cells / CELL_PARTS};
    sum_rows(p, sums, first, slabs, cells, features, weights, width, gain);
    float *room = (float *)shared + lane, *own = &sums[0][0][0];  // [warp][sum][lane]
    const int count = TILES * OCTETS * 4;
#pragma unroll
    for (int i = 0; i < count; i++) room[(warp * count + i) * 32] = own[i];
    __syncthreads();
    for (int i = warp; i < count; i += SHARING) {
        float sum = room[i * 32];
        for (int other = 1; other < SHARING; other++) sum += room[(other * count + i) * 32];
        room[i * 32] = sum;
    }
    __syncthreads();
    if (warp) return;
#pragma unroll
    for (int i = 0; i < count; i++) own[i] = room[i * 32];
    store_tiles(p, sums, first, column, inverses[0] * inverses[1]);
#else
    while (true) {
        int unit = 0;
        if (lane == 0) unit = atomicAdd(p.queue + column, 1);
        i64 first = (i64)__shfl_sync(ALL, unit, 0) * ROWS;
        if (first >= t.count) break;
        sum_rows(p, sums, first, Range{0, p.slabs}, Range{0, t.cells}, features, weights, width, gain);
        store_tiles(p, sums, first, column, inverses[0] * inverses[1]);
    }
#endif
}
