// A baseline: the lookup as Briedis et al. (CVPR 2026, supplement, algorithm 1) describe their kernel, reimplemented. No
// system headers (NVRTC). Built behind halves.cuh, values.cuh and products.cuh.
//
// Both maps lie in blocks of 8x8 pixels. A thread block owns the 64 pixels of one block of the first map, one a thread.
// Each thread knows which blocks of the second map its window touches; the threads vote for the smallest number, multiply
// that block with theirs (64x64xC, 32 channels at a time, tensor cores), and those that voted for it add what they read
// of it to the output, which begins as zeros. Then they vote again.
//
// Where it differs from the printed listing: a thread's blocks are a rectangle, walked in order, not a list in registers,
// and a thread reads its 64 products from shared memory, not from a copy in registers.
//
// Macros set by the launcher:
//   IN     features: 1 float16, 2 bfloat16; products are summed in float32
//   BF16   1 where IN is 2
//   STEPS  steps that run: 0 none, 1 a thread's blocks, 2 also the votes, 3 also the products, 4 all

#define SIDE 8
#define CELLS 64
#define THREADS 64
#define CHUNK 32  // channels multiplied at a time
#define PITCH 65  // floats between rows of products: no two threads read one bank
#define NONE 0x7fffffff

struct VotingParams {
    const Value *first, *second;  // [B, rows, columns, 64, C], C a multiple of 32, zeros beyond the maps
    const float *coords;          // [B, 2, H, W], x and y on the finest level
    float *out;                   // of this level: [B, (2r+1)^2, H, W] in items of out_item
    i64 out_item;                 // floats between two items of the batch
    int height, width;            // H, W
    int height2, width2;          // of the level
    int channels, radius;
    float shrink, scale;          // 1 / 2^level, 1 / sqrt(channels of the maps)
};

// Keep the compiler from removing x, which only a step that is left out reads: it cannot know that nothing is stored.
static __device__ __forceinline__ void keep(float x, float *at) {
    if (x == 1.2345e30f) *at = x;
}

// Which 16 bytes of a row of CHUNK channels lie where: eight rows of one column are in eight banks.
static __device__ __forceinline__ int place(int row, int part) { return row * CHUNK + ((part ^ ((row >> 1) & 3)) << 3); }

static __device__ __forceinline__ u32 shared_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

static __device__ __forceinline__ void load4(u32 (&r)[4], const Value *at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(at))
                 : "memory");
}

// CHUNK channels of 64 pixels.
static __device__ __forceinline__ void fetch(Value *to, const Value *from, int channels) {
    for (int i = threadIdx.x; i < CELLS * CHUNK / 8; i += THREADS) {
        const int row = i / (CHUNK / 8), part = i % (CHUNK / 8);
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + place(row, part))),
                     "l"(from + (i64)row * channels + 8 * part)
                     : "memory");
    }
}

// A block of the second map times that of this thread block: products[64 of the first][64 of the second].
static __device__ void multiply(float *products, Value *mine, Value *theirs, const Value *first, const Value *second, int channels) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float sums[2][8][4];
#pragma unroll
    for (int i = 0; i < 2 * 8 * 4; i++) sums[i >> 5][(i >> 2) & 7][i & 3] = 0.f;
    for (int c = 0; c < channels; c += CHUNK) {
        __syncthreads();  // nobody reads what is overwritten
        fetch(mine, first + c, channels);
        fetch(theirs, second + c, channels);
        asm volatile("cp.async.wait_all;" ::: "memory");
        __syncthreads();
#pragma unroll
        for (int k = 0; k < CHUNK / 16; k++) {
            u32 a[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) load4(a[i], mine + place(32 * warp + 16 * i + (lane & 15), 2 * k + (lane >> 4)));
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u32 b[4];
                load4(b, theirs + place(16 * j + (lane & 7) + 8 * (lane >> 4), 2 * k + ((lane >> 3) & 1)));
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    mma_16816(sums[i][2 * j], a[i][0], a[i][1], a[i][2], a[i][3], b[0], b[1]);
                    mma_16816(sums[i][2 * j + 1], a[i][0], a[i][1], a[i][2], a[i][3], b[2], b[3]);
                }
            }
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int row = 32 * warp + 16 * i + (lane >> 2) + 8 * (e >> 1), column = 8 * j + 2 * (lane & 3) + (e & 1);
                products[row * PITCH + column] = sums[i][j][e];
            }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS) vote(const __grid_constant__ VotingParams p) {
    extern __shared__ __align__(16) float products[];  // CELLS * PITCH; before that the channels, as in the paper
    Value *mine = (Value *)products, *theirs = mine + CELLS * CHUNK;
    __shared__ int ballot;
    if (STEPS == 0) return;
    const int columns = (p.width + SIDE - 1) / SIDE, rows = (p.height + SIDE - 1) / SIDE;
    const int columns2 = (p.width2 + SIDE - 1) / SIDE, rows2 = (p.height2 + SIDE - 1) / SIDE;
    const int item = blockIdx.x / (rows * columns), own = blockIdx.x % (rows * columns), t = threadIdx.x;
    const int y = own / columns * SIDE + t / SIDE, x = own % columns * SIDE + t % SIDE;
    const int side = 2 * p.radius + 1;

    // The window's first column and row, its weights, and the rectangle of blocks that it touches.
    int left = 0, top = 0, from_x = 0, to_x = -1, from_y = 0, to_y = -1;
    float nw = 0.f, ne = 0.f, sw = 0.f, se = 0.f;
    if (y < p.height && x < p.width) {
        const i64 plane = (i64)p.height * p.width;
        const float *at = p.coords + item * 2 * plane + (i64)y * p.width + x;
        const float u = at[0] * p.shrink - p.radius, v = at[plane] * p.shrink - p.radius;
        if (u > -1.f - side && u < p.width2 && v > -1.f - side && v < p.height2) {  // never for NaN
            const float across = floorf(u), down = floorf(v), a = u - across, b = v - down;
            left = (int)across, top = (int)down;
            nw = (1.f - a) * (1.f - b) * p.scale, ne = a * (1.f - b) * p.scale;
            sw = (1.f - a) * b * p.scale, se = a * b * p.scale;
            from_x = max(left, 0) / SIDE, to_x = min(left + side, p.width2 - 1) / SIDE;
            from_y = max(top, 0) / SIDE, to_y = min(top + side, p.height2 - 1) / SIDE;
            if (left + side < 0 || top + side < 0) to_y = -1;
        }
    }
    int block_x = from_x, block_y = from_y;
    float *out = p.out + item * p.out_item + (i64)y * p.width + x;
    const Value *first = p.first + ((i64)item * rows * columns + own) * CELLS * p.channels;

    if (STEPS == 1) {
        keep(nw + ne + sw + se + (float)(left + top + from_x + to_x + from_y + to_y), p.out);
        return;
    }
    if (t == 0) ballot = NONE;
    __syncthreads();
    while (true) {
        const int wanted = block_y <= to_y && from_x <= to_x ? block_y * columns2 + block_x : NONE;
        if (wanted != NONE) atomicMin(&ballot, wanted);
        __syncthreads();
        const int next = ballot;
        __syncthreads();
        if (next == NONE) break;
        if (t == 0) ballot = NONE;
        if (STEPS > 2)
            multiply(products, mine, theirs, first, p.second + ((i64)item * rows2 * columns2 + next) * CELLS * p.channels, p.channels);
        else
            __syncthreads();       // nobody votes before the ballot is empty
        if (next != wanted) continue;
        const float *row = products + t * PITCH;
        if (STEPS == 3) keep(row[next % CELLS], p.out);
        const int x0 = left - block_x * SIDE, y0 = top - block_y * SIDE;  // of the window in the block
        for (int dy = max(-1 - y0, 0); STEPS > 3 && dy <= min(SIDE - 1 - y0, side - 1); dy++)
            for (int dx = max(-1 - x0, 0); dx <= min(SIDE - 1 - x0, side - 1); dx++) {
                const int i = y0 + dy, j = x0 + dx;
                float value = 0.f;
                if (i >= 0) {
                    if (j >= 0) value += nw * row[i * SIDE + j];
                    if (j + 1 < SIDE) value += ne * row[i * SIDE + j + 1];
                }
                if (i + 1 < SIDE) {
                    if (j >= 0) value += sw * row[(i + 1) * SIDE + j];
                    if (j + 1 < SIDE) value += se * row[(i + 1) * SIDE + j + 1];
                }
                out[(i64)(dx * side + dy) * p.height * p.width] += value;
            }
        if (++block_x > to_x) block_x = from_x, block_y++;
    }
}
