// VVOR: out[k] = sum over the triplets of cell k of features[index] (x) grad[row]. A block owns CELLS cells, INPUTS * HALVES x
// OUTPUTS channels of each, and a segment of the rows; a warp owns one cell and INPUTS x OUTPUTS channels, and keeps their sums
// in registers for the whole segment.
//
// The block walks TILE rows at a time. It loads their gradients into shared memory and finds where each row's cells begin.
// Then every warp collects the triplets of its cell, 32 at a time, in order. It copies their features into shared memory
// while it multiplies those before with mma.sync, and reads both operands by ldmatrix.
//
// More macros, and those of outer.cuh:
//   CELLS, HALVES     cells of a block, its groups of INPUTS channels; THREADS = 32 * CELLS * HALVES
//   TILE     rows in work together, a multiple of 32
//   INPUTS, OUTPUTS   channels of a warp: 16, 32 or 64
//   BUFFERS  buffers of a warp for the features of 32 pairs

#define AHEAD (BUFFERS - 1)
#define F_BYTES (32 * INPUTS * 2)          // features of 32 pairs, one part
#define G_BYTES ((TILE + 1) * OUTPUTS * 2) // gradients of the tile and a row of zeros
#define LISTS 8

struct Shared {
    u8 *features, *grad;
    i64 *base;                     // [TILE] where rows begin
    int *offset;                   // [CELLS + 1][TILE] where their cells begin, from there
    int *index;                    // [LISTS][32] features' rows of the warp's pairs
    u16 *row;
};

// Return where octet c of row r lies, of CHANNELS a row. The same octet of eight rows lies in different banks.
template <int CHANNELS> static __device__ __forceinline__ u32 place(int r, int c) {
    constexpr int octets = CHANNELS / 8, rows = 8 / octets;  // rows of 128 bytes
    return r * (CHANNELS * 2) + ((c ^ (r / rows)) & (octets - 1)) * 16;
}

// Load eight channels of a row into shared memory, or zeros. Parts lie BYTES apart. 16-bit channels arrive asynchronously.
template <int BYTES> static __device__ __forceinline__ void bring(u8 *to, const Value *from, bool any, float gain) {
#if IN == 0
    float4 a = make_float4(0.f, 0.f, 0.f, 0.f), b = a;
    if (any) a = *(const float4 *)from, b = *(const float4 *)(from + 4);
    const float v[8] = {a.x * gain, a.y * gain, a.z * gain, a.w * gain, b.x * gain, b.y * gain, b.z * gain, b.w * gain};
    to_operands(v, (uint4 *)to, BYTES / 16);
#else
    copy_async<16>(shared_address(to), from, any);
#endif
}

typedef float Sums[INPUTS / 16][OUTPUTS / 8][4];

static __device__ __forceinline__ void add_to(float *share, Sums &sums, bool first) {
    int lane = threadIdx.x & 31;
#pragma unroll
    for (int m = 0; m < INPUTS / 16; m++)
#pragma unroll
        for (int n = 0; n < OUTPUTS / 8; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float2 *at = (float2 *)(share + (m * 16 + half * 8 + (lane >> 2)) * OUTPUTS + n * 8 + (lane & 3) * 2);
                float2 v = {sums[m][n][2 * half], sums[m][n][2 * half + 1]};
                if (!first) {
                    float2 before = *at;
                    v.x += before.x;
                    v.y += before.y;
                }
                *at = v;
                sums[m][n][2 * half] = sums[m][n][2 * half + 1] = 0.f;
            }
}

// Multiply 32 pairs. All operands of a step are loaded before the first is waited for.
static __device__ __forceinline__ void multiply_pairs(Sums &sums, u32 features, u32 grad, const u16 *row) {
    int lane = threadIdx.x & 31;
    const int rows[2] = {row[lane & 15], row[16 + (lane & 15)]};
#pragma unroll
    for (int s = 0; s < 2; s++) {
        u32 a[PARTS][INPUTS / 16][4];
        int k = s * 16 + (lane & 7) + (lane >> 4) * 8;
#pragma unroll
        for (int i = 0; i < PARTS; i++)
#pragma unroll
            for (int m = 0; m < INPUTS / 16; m++) matrices_transposed(a[i][m], features + i * F_BYTES + place<INPUTS>(k, m * 2 + (lane >> 3 & 1)));
#pragma unroll
        for (int j = 0; j < PARTS; j++) {
            u32 b[OUTPUTS / 16][4];
#pragma unroll
            for (int n = 0; n < OUTPUTS / 16; n++) matrices_transposed(b[n], grad + j * G_BYTES + place<OUTPUTS>(rows[s], n * 2 + (lane >> 4)));
#pragma unroll
            for (int i = 0; i < PARTS - j; i++)
#pragma unroll
                for (int n = 0; n < OUTPUTS / 16; n++)
#pragma unroll
                    for (int m = 0; m < INPUTS / 16; m++) {
                        mma_16816(sums[m][2 * n], a[i][m][0], a[i][m][1], a[i][m][2], a[i][m][3], b[n][0], b[n][1]);
                        mma_16816(sums[m][2 * n + 1], a[i][m][0], a[i][m][1], a[i][m][2], a[i][m][3], b[n][2], b[n][3]);
                    }
        }
    }
}

// Load the features of 32 pairs of the warp; -1: no pair.
static __device__ __forceinline__ void bring_features(u8 *to, const Value *features, i64 step, int width, const int *index, float gain) {
    constexpr int octets = INPUTS / 8, rows = 32 / octets;
    int lane = threadIdx.x & 31, c = lane % octets, j[32 / rows];
#pragma unroll
    for (int i = 0; i < 32 / rows; i++) j[i] = index[i * rows + lane / octets];
#pragma unroll
    for (int i = 0; i < 32 / rows; i++) {
        int pair = i * rows + lane / octets;
        bool any = j[i] >= 0 && c * 8 < width;
        bring<F_BYTES>(to + place<INPUTS>(pair, c), features + (any ? j[i] * step + c * 8 : 0), any, gain);
    }
#if IN != 0
    commit_copies();
#endif
}

// Load the gradients of the tile's rows.
static __device__ __forceinline__ void bring_gradients(u8 *to, const Value *grad, i64 step, int width, i64 first, i64 end, float gain) {
    constexpr int octets = OUTPUTS / 8;
    for (int at = threadIdx.x; at < (TILE + 1) * octets; at += THREADS) {
        int r = at / octets, c = at % octets;
        bool any = r < TILE && first + r < end && c * 8 < width;
        bring<G_BYTES>(to + place<OUTPUTS>(r, c), grad + (any ? (first + r) * step + c * 8 : 0), any, gain);
    }
}

// Find where the rows of a tile begin, and in each of them the cells first .. first + CELLS.
static __device__ __forceinline__ void find_cells(const Triplets &t, const Shared &s, i64 tile, i64 end, int first) {
    for (int r = threadIdx.x; r < TILE; r += THREADS) {
        i64 row = tile + r, base = 0;
        int size = 0;
        if (row < end) {
            base = t.rows[row];
            size = (int)(t.rows[row + 1] - base);
        }
        s.base[r] = base;
        int low = (int)(end_below(t, base, base + size, first) - base);
        int cell = low < size ? cell_at(t, base + low) : NONE;
        for (int c = 0; c <= CELLS; c++) {
            while (cell < first + c) {
                low++;
                cell = low < size ? cell_at(t, base + low) : NONE;
            }
            s.offset[c * TILE + r] = low;
        }
    }
}

// The triplets of the warp's cell in the lane's row, of which the first is being loaded.
struct Run {
    i64 at;
    int left;
    Word word;
    __device__ __forceinline__ void look(const Triplets &t, const Shared &s, int own, int r) {
        left = 0;
        if (r == TILE) return;
        r += threadIdx.x & 31;
        int from = s.offset[own * TILE + r];
        at = s.base[r] + from;
        left = s.offset[(own + 1) * TILE + r] - from;
        if (left > 0) word.load(t, at);
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, 1) outer(const __grid_constant__ OuterParams p) {
    extern __shared__ __align__(16) uint4 shared[];
    const Triplets &t = p.triplets;
    int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
    Shared s;
    s.features = (u8 *)shared + warp * (BUFFERS * PARTS * F_BYTES);
    s.grad = (u8 *)shared + CELLS * HALVES * (BUFFERS * PARTS * F_BYTES);
    s.base = (i64 *)(s.grad + PARTS * G_BYTES);
    s.offset = (int *)(s.base + TILE);
    s.index = s.offset + (CELLS + 1) * TILE + warp * (LISTS * 32);
    s.row = (u16 *)(s.offset + (CELLS + 1) * TILE + CELLS * HALVES * (LISTS * 32)) + warp * (LISTS * 32);

    int item = blockIdx.x, cell = item % p.cell_blocks * CELLS, own = warp % CELLS;
    item /= p.cell_blocks;
    int columns = p.columns / HALVES, column = item % columns * HALVES, segment = item / columns, blocks = p.input_blocks * p.output_blocks;
    int group = column / blocks, within = column % blocks / HALVES;
    int output_block = within % p.output_blocks, input_block = within / p.output_blocks * HALVES + warp / CELLS;
    int input = input_block * INPUTS, output = output_block * OUTPUTS;
    column = (group * p.input_blocks + input_block) * p.output_blocks + output_block;
    i64 begin = part_begin(t, segment, p.segments), end = part_begin(t, segment + 1, p.segments);
    const Value *features = p.features + (i64)group * p.inputs + input, *grad = p.grad + (i64)group * p.outputs + output;
    float *share = p.shares + (((i64)segment * p.columns + column) * t.cells + cell + own) * (INPUTS * OUTPUTS);
    float inverse, gain = gain_of(p.magnitude, inverse), grad_gain = gain_of(p.magnitude + 1, inverse);
    Sums sums;
    clear(sums);
    bool first = true;
    for (i64 tile = begin; tile < end; tile += TILE) {
        __syncthreads();               // all warps have used the last tile
        bring_gradients(s.grad, grad, p.grad_row, p.outputs - output, tile, end, grad_gain);
        find_cells(t, s, tile, end, cell);
#if IN != 0
        await_all_copies();
#endif
        __syncthreads();
        int count = 0, brought = 0;    // pairs listed; batches of 32 loaded
        Run ahead;
        ahead.look(t, s, own, 0);
        for (int r = 0; r <= TILE; r += 32) {  // the last turn fills the last batch
            Run run = ahead;
            if (r < TILE) ahead.look(t, s, own, r + 32);
            while (true) {
                bool mine = r < TILE ? run.left > 0 : lane < (-count & 31);
                u32 all = __ballot_sync(ALL, mine);
                if (all == 0) break;
                if (mine) {
                    int to = (count + __popc(all & ((1u << lane) - 1))) & (LISTS * 32 - 1);
                    s.index[to] = r < TILE ? run.word.index_of(t) : -1;
                    s.row[to] = min(r + lane, TILE);
                    run.left--;
                    run.at++;
                    if (r < TILE && run.left > 0) run.word.load(t, run.at);
                }
                count += __popc(all);
                __syncwarp();
                if (brought < count >> 5) {
                    u8 *to = s.features + brought % BUFFERS * (PARTS * F_BYTES);
                    bring_features(to, features, p.features_row, p.inputs - input, s.index + (brought & (LISTS - 1)) * 32, gain);
#if IN == 0
                    __syncwarp();
                    multiply_pairs(sums, shared_address(to), shared_address(s.grad), s.row + (brought & (LISTS - 1)) * 32);
                    __syncwarp();
#if SPLIT
                    if (brought % 16 == 15) {  // sums in the tensor cores lose bits: at most 16 batches long
                        add_to(share, sums, first);
                        first = false;
                    }
#endif
#else
                    if (brought >= AHEAD) {
                        await_copies<AHEAD>();
                        __syncwarp();
                        int done = brought - AHEAD;
                        multiply_pairs(sums, shared_address(s.features + done % BUFFERS * F_BYTES), shared_address(s.grad), s.row + (done & (LISTS - 1)) * 32);
                        __syncwarp();
                    }
#endif
                    brought++;
                }
            }
        }
#if IN != 0
        await_copies<0>();
        __syncwarp();
        for (int done = max(brought - AHEAD, 0); done < brought; done++)
            multiply_pairs(sums, shared_address(s.features + done % BUFFERS * F_BYTES), shared_address(s.grad), s.row + (done & (LISTS - 1)) * 32);
#endif
#if SPLIT
        if (cell + own < t.cells) add_to(share, sums, first);
        first = false;
#endif
    }
    if ((!SPLIT || first) && cell + own < t.cells) add_to(share, sums, true);
}
