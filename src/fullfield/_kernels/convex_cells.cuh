// Gradients of a convex up-sampling by 8. Built behind halves.cuh, values.cuh (Value: type of the weights) and warps.cuh.
//
// Macro: CHANNELS, of the field, 1 to 7.
//
// A block computes CELLS cells, a thread one of a cell's 64 fine pixels. Gradients of the field are summed in two steps in
// a fixed order: `keep_sums` over the pixels of a cell, `gather_field` over the cells that see a value.

#define SIDE 8
#define FINE 64
#define CELLS 4
#define PER ((9 * CHANNELS + 31) / 32)  // sums that a lane ends with
#define KEPT (32 * PER)

// A thread's fine pixel.
struct Fine {
    bool there;      // the cell exists
    int b, y, x;     // place of the cell
    i64 cell;        // number of the cell
    i64 mask;        // where the pixel's first weight lies
    i64 pixel;       // number in the fine plane
    template <class Params> __device__ __forceinline__ Fine(const Params &p) {
        const int thread = threadIdx.x, sub = thread % FINE;
        const i64 plane = (i64)p.height * p.width;
        cell = (i64)blockIdx.x * CELLS + thread / FINE;
        there = cell < p.batch * plane;
        b = there ? (int)(cell / plane) : 0;
        const int at = there ? (int)(cell - b * plane) : 0;
        y = at / p.width, x = at - y * p.width;
        mask = b * p.mask_b + y * p.mask_y + x * p.mask_x + sub * p.mask_c;
        pixel = ((i64)y * SIDE + sub / SIDE) * SIDE * p.width + (i64)x * SIDE + sub % SIDE;
    }
};

// Load the pixel's nine weights and compute their softmax.
template <class Params> static __device__ __forceinline__ void load_weights(const Params &p, const Fine &fine, float (&w)[9]) {
    float most = -1e30f, sum = 0.f;
#pragma unroll
    for (int k = 0; k < 9; k++) {
        w[k] = widened(p.mask[fine.mask + k * FINE * p.mask_c]);
        most = fmaxf(most, w[k]);
    }
#pragma unroll
    for (int k = 0; k < 9; k++) w[k] = __expf(w[k] - most), sum += w[k];
    const float inverse = 1.f / sum;
#pragma unroll
    for (int k = 0; k < 9; k++) w[k] *= inverse;
}

// Return channel `c` of the field at neighbour `k` of the cell; zero outside.
template <class Params> static __device__ __forceinline__ float neighbor(const Params &p, const Fine &fine, int k, int c) {
    const int y = fine.y + k / 3 - 1, x = fine.x + k % 3 - 1;
    const bool inside = y >= 0 && y < p.height && x >= 0 && x < p.width;
    return inside ? p.field[(fine.b * CHANNELS + c) * ((i64)p.height * p.width) + (i64)y * p.width + x] : 0.f;
}

// Load the neighbours of the block's cells; the whole block must call it, and synchronise before they are read.
template <class Params> static __device__ __forceinline__ void load_neighbors(const Params &p, float (&neighbors)[CELLS][9 * CHANNELS]) {
    const i64 plane = (i64)p.height * p.width, first = (i64)blockIdx.x * CELLS;
    for (int i = threadIdx.x; i < CELLS * 9 * CHANNELS; i += CELLS * FINE) {
        const int own = i / (9 * CHANNELS), value = i % (9 * CHANNELS), k = value / CHANNELS, c = value % CHANNELS;
        const i64 cell = first + own;
        float loaded = 0.f;
        if (cell < p.batch * plane) {
            const int b = (int)(cell / plane), at = (int)(cell - b * plane);
            const int y = at / p.width + k / 3 - 1, x = at % p.width + k % 3 - 1;
            if (y >= 0 && y < p.height && x >= 0 && x < p.width) loaded = p.field[((i64)b * CHANNELS + c) * plane + (i64)y * p.width + x];
        }
        neighbors[own][value] = loaded;
    }
}

// Write the gradients of the pixel's weights and return its shares `v` of the field's; `g` is the blend's gradient, and
// `near` returns the field at a neighbour.
template <class Params, class Near>
static __device__ __forceinline__ void spread(const Params &p, const Fine &fine, const float (&w)[9], Near near, const float (&g)[CHANNELS],
                                              float (&v)[KEPT]) {
    float dot[9], mean = 0.f;
#pragma unroll
    for (int k = 0; k < 9; k++) {
        dot[k] = 0.f;
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) {
            dot[k] += g[c] * near(k, c);
            v[k * CHANNELS + c] = w[k] * g[c];
        }
        mean += w[k] * dot[k];
    }
#pragma unroll
    for (int k = 0; k < 9; k++) p.grad_mask[fine.mask + k * FINE * p.mask_c] = rounded(w[k] * (dot[k] - mean));
}

// Sum the shares over the pixels of each cell; `halves` is shared memory. The whole block must call it.
template <class Params>
static __device__ __forceinline__ void keep_sums(const Params &p, const Fine &fine, float (&halves)[2 * CELLS][KEPT], float (&v)[KEPT]) {
    const int thread = threadIdx.x, sub = thread % FINE, lane = thread % 32, first = 2 * (thread / FINE);
    sums_apart(v, lane);
#pragma unroll
    for (int i = 0; i < PER; i++) halves[thread / 32][PER * lane + i] = v[i];
    __syncthreads();
    if (fine.there && sub < KEPT) p.partial[fine.cell * KEPT + sub] = halves[first][sub] + halves[first + 1][sub];
}

// Sum the shares over the cells that see a value; a thread computes one cell.
template <class Params> static __device__ __forceinline__ void gather_field(const Params &p) {
    const i64 plane = (i64)p.height * p.width, index = (i64)blockIdx.x * 256 + threadIdx.x;
    if (index >= p.batch * plane) return;
    const int b = (int)(index / plane), at = (int)(index - b * plane), y = at / p.width, x = at - y * p.width;
    float sum[CHANNELS];
    clear(sum);
#pragma unroll
    for (int k = 0; k < 9; k++) {
        const int from_y = y - (k / 3 - 1), from_x = x - (k % 3 - 1);
        if (from_y < 0 || from_y >= p.height || from_x < 0 || from_x >= p.width) continue;
        const float *partial = p.partial + (b * plane + (i64)from_y * p.width + from_x) * KEPT + k * CHANNELS;
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) sum[c] += partial[c];
    }
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) p.grad_field[(b * CHANNELS + c) * plane + at] = sum[c];
}
