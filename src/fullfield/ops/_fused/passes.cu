// Steps of a network between its convolutions, each in one pass over memory. Built behind common.cuh.

static __device__ __forceinline__ float relu(float x) { return x < 0.f ? 0.f : x; }  // NaN stays
static __device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }
static __device__ __forceinline__ float tangent(float x) { return 1.f - __fdividef(2.f, __expf(2.f * x) + 1.f); }

// ---- frames to 2×2 cells

struct CellsParams {
    const void *frames[2];
    Value *out;                      // [B, cell_rows, cell_columns, 32]: 12 values of each frame, (row, column, colour), zeros
    i64 b[2], c[2], y[2], x[2];      // strides of the frames
    int height, width, top, left;    // size of a frame; rows and columns that are padded before it
    int padded_height, padded_width;
    int cell_rows, cell_columns;     // two before, one behind the padded frame's cells: the border of a 7×7 convolution
    int kind;                        // 0 float32, 1 float16, 2 bfloat16, 3 uint8
};

extern "C" __global__ void __launch_bounds__(256) frames_to_cells(const CellsParams p) {
    const int column = blockIdx.y * 256 + threadIdx.x;
    const int item = blockIdx.x / p.cell_rows, row = blockIdx.x % p.cell_rows;
    if (column >= p.cell_columns) return;
    float v[32];
    clear(v);
    const int y0 = 2 * (row - 2), x0 = 2 * (column - 2);
    if (y0 >= 0 && y0 < p.padded_height && x0 >= 0 && x0 < p.padded_width) {
#pragma unroll
        for (int f = 0; f < 2; f++)
#pragma unroll
            for (int dy = 0; dy < 2; dy++) {
                const int y = min(max(y0 + dy - p.top, 0), p.height - 1);
#pragma unroll
                for (int dx = 0; dx < 2; dx++) {
                    const int x = min(max(x0 + dx - p.left, 0), p.width - 1);
                    const i64 at = item * p.b[f] + y * p.y[f] + x * p.x[f];
#pragma unroll
                    for (int c = 0; c < 3; c++) {
                        const float own = frame_value(p.frames[f], at + c * p.c[f], p.kind);
                        v[f * 12 + dy * 6 + dx * 3 + c] = 2.f * (p.kind == 3 ? __fdiv_rn(own, 255.f) : own) - 1.f;
                    }
                }
            }
    }
    Value *to = p.out + ((i64)blockIdx.x * p.cell_columns + column) * 32;
#pragma unroll
    for (int i = 0; i < 32; i += VEC) {
        float part[VEC];
#pragma unroll
        for (int j = 0; j < VEC; j++) part[j] = v[i + j];
        store(to + i, part);
    }
}

// ---- norms and residuals

struct AffineParams {
    Value *y;
    const Value *x;                   // addend, or null
    const float *scale, *shift;       // [B or 1, C]; scale may be null for 1
    const float *x_scale, *x_shift;   // x_shift is null if x is added unchanged, x_scale may be null for 1
    i64 item;                         // elements of one item of the batch
    u32 vectors, channels;            // numbers in one item
    u32 y_step, x_step;               // floats from one item's statistics to the next: C or 0
};

// y <- relu(y scale + shift), or relu(x x_scale + x_shift + relu(y scale + shift))
extern "C" __global__ void __launch_bounds__(256) affine(const AffineParams p) {
    const u32 index = blockIdx.x * 256 + threadIdx.x;
    if (index >= p.vectors) return;
    const u32 c = index % (p.channels / VEC) * VEC;
    const i64 at = blockIdx.y * p.item + (i64)index * VEC;
    float y[VEC], s[VEC], t[VEC], x[VEC];
    load(p.y + at, y);
    if (p.x) load(p.x + at, x);
    load_floats(p.shift + blockIdx.y * p.y_step + c, t);
    if (p.scale) {
        load_floats(p.scale + blockIdx.y * p.y_step + c, s);
#pragma unroll
        for (int i = 0; i < VEC; i++) y[i] = relu(fmaf(y[i], s[i], t[i]));
    } else {
#pragma unroll
        for (int i = 0; i < VEC; i++) y[i] = relu(y[i] + t[i]);
    }
    if (p.x) {
        if (p.x_shift) {
            load_floats(p.x_shift + blockIdx.y * p.x_step + c, t);
            if (p.x_scale) load_floats(p.x_scale + blockIdx.y * p.x_step + c, s);
#pragma unroll
            for (int i = 0; i < VEC; i++) x[i] = p.x_scale ? fmaf(x[i], s[i], t[i]) : x[i] + t[i];
        }
#pragma unroll
        for (int i = 0; i < VEC; i++) y[i] = relu(x[i] + y[i]);
    }
    store(p.y + at, y);
}

struct MomentsParams {
    const Value *y;
    float *partial;   // [B, chunks, 2, C]
    float *scale, *shift;
    i64 item;
    u32 pixels, channels, chunk, chunks;
    float epsilon;
};

// Compute sums and sums of squares over `chunk` pixels.
extern "C" __global__ void __launch_bounds__(256) moments(const MomentsParams p) {
    __shared__ float sums[2 * 256 * VEC];
    const u32 lanes = p.channels / VEC, rows = 256 / lanes, row = threadIdx.x / lanes, lane = threadIdx.x % lanes;
    float first[VEC], second[VEC];
    clear(first), clear(second);
    const u32 end = min(p.pixels, (blockIdx.x + 1) * p.chunk);
    const Value *from = p.y + blockIdx.y * p.item + lane * VEC;
    if (row < rows)
#pragma unroll 4
        for (u32 pixel = blockIdx.x * p.chunk + row; pixel < end; pixel += rows) {
            float v[VEC];
            load(from + (i64)pixel * p.channels, v);
#pragma unroll
            for (int i = 0; i < VEC; i++) first[i] += v[i], second[i] = fmaf(v[i], v[i], second[i]);
        }
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        sums[i * 256 + threadIdx.x] = first[i];
        sums[(VEC + i) * 256 + threadIdx.x] = second[i];
    }
    __syncthreads();
    for (u32 e = threadIdx.x; e < 2 * p.channels; e += 256) {
        const u32 which = e / p.channels, c = e % p.channels;
        const float *from = sums + (which * VEC + c % VEC) * 256 + c / VEC;
        float total = 0.f;
        for (u32 r = 0; r < rows; r++) total += from[r * lanes];
        p.partial[((i64)blockIdx.y * p.chunks + blockIdx.x) * 2 * p.channels + e] = total;
    }
}

// Add the chunks, and compute the scale and shift that bring a channel to mean 0 and variance 1. A block: 32 channels.
extern "C" __global__ void __launch_bounds__(1024) moments_end(const MomentsParams p) {
    __shared__ double sums[2][32][33];
    const u32 lane = threadIdx.x % 32, part = threadIdx.x / 32, c = blockIdx.x * 32 + lane;
    double first = 0, second = 0;
    if (c < p.channels)
        for (u32 chunk = part; chunk < p.chunks; chunk += 32) {
            const float *from = p.partial + ((i64)blockIdx.y * p.chunks + chunk) * 2 * p.channels + c;
            first += from[0], second += from[p.channels];
        }
    sums[0][part][lane] = first, sums[1][part][lane] = second;
    __syncthreads();
    if (part == 0 && c < p.channels) {
        for (int i = 1; i < 32; i++) first += sums[0][i][lane], second += sums[1][i][lane];
        const double mean = first / p.pixels, variance = second / p.pixels - mean * mean;
        const double scale = 1.0 / sqrt((variance < 0 ? 0 : variance) + p.epsilon);  // NaN stays
        p.scale[blockIdx.y * p.channels + c] = (float)scale;
        p.shift[blockIdx.y * p.channels + c] = (float)(-mean * scale);
    }
}

// ---- the update

#define TARGETS 4

// Slices of channels that a result is written to; transposed: [B, w, h, C] instead of [B, h, w, C].
struct Targets {
    Value *to[TARGETS];  // null where there are fewer
    i64 ld[TARGETS];
    u32 transposed[TARGETS];
    u32 plane, width;
};

static __device__ __forceinline__ void store_all(const Targets &t, u32 pixel, u32 c, const float (&v)[VEC]) {
#pragma unroll
    for (int i = 0; i < TARGETS; i++)
        if (t.to[i]) {
            u32 at = pixel;
            if (t.transposed[i]) {
                const u32 inside = pixel % t.plane;
                at = pixel - inside + inside % t.width * (t.plane / t.width) + inside / t.width;
            }
            store(t.to[i] + at * t.ld[i] + c, v);
        }
}

struct PackParams {
    Targets targets;
    const Value *from;    // [pixels, channels]
    const float *bias;    // null: from is not changed
    const float *coords;  // [B, 2, h, w], or null
    u32 pixels, channels;
    u32 flow_channel;     // channel of the flow's x, the next one holds y; a multiple of 2
};

// to <- relu(from + bias), with the flow in two of the channels
extern "C" __global__ void __launch_bounds__(256) pack(const PackParams p) {
    const u32 index = blockIdx.x * 256 + threadIdx.x, lanes = p.channels / VEC;
    const u32 pixel = index / lanes, c = index % lanes * VEC;
    if (pixel >= p.pixels) return;
    float v[VEC];
    load(p.from + (i64)index * VEC, v);
    if (p.bias) {
        float t[VEC];
        load_floats(p.bias + c, t);
#pragma unroll
        for (int i = 0; i < VEC; i++) v[i] = relu(v[i] + t[i]);
    }
    if (p.coords) {
        const u32 plane = p.targets.plane, width = p.targets.width;
#pragma unroll
        for (int i = 0; i < VEC; i++)
            if (c + i - p.flow_channel < 2) {
                const u32 axis = c + i - p.flow_channel, at = pixel % plane;
                v[i] = p.coords[((i64)(pixel / plane) * 2 + axis) * plane + at] - (float)(axis ? at / width : at % width);
            }
    }
    store_all(p.targets, pixel, c, v);
}

struct PatchesParams {
    const float *coords;
    Value *out;            // [B, h, w, channels]: (row, column, x or y) of a side × side window of the flow, zeros
    u32 pixels, channels, plane, width, height, side;
};

extern "C" __global__ void __launch_bounds__(256) flow_patches(const PatchesParams p) {
    const u32 index = blockIdx.x * 256 + threadIdx.x, lanes = p.channels / VEC;
    const u32 at = index / lanes, first = index % lanes * VEC;
    if (at >= p.pixels) return;
    const u32 item = at / p.plane, pixel = at % p.plane;
    const int y = pixel / p.width, x = pixel % p.width, half = p.side / 2;
    float v[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i += 2) {
        const u32 tap = (first + i) / 2, row = tap / p.side;
        const int ty = y + (int)row - half, tx = x + (int)(tap - row * p.side) - half;
        v[i] = v[i + 1] = 0.f;
        if (row < p.side && ty >= 0 && ty < (int)p.height && tx >= 0 && tx < (int)p.width) {
            const float *from = p.coords + (i64)item * 2 * p.plane + ty * p.width + tx;
            v[i] = from[0] - (float)tx, v[i + 1] = from[p.plane] - (float)ty;
        }
    }
    store(p.out + (i64)index * VEC, v);
}

struct GateParams {
    Targets targets;        // where the new or the reset state goes
    const Value *zr, *zr_map;   // [pixels, 2 channels]: update gate, reset gate; the context's addend
    const Value *q, *q_map;  // [pixels, channels]
    const Value *h;         // the state
    i64 h_ld;
    u32 pixels, channels;
};

// targets <- sigmoid(r) h
extern "C" __global__ void __launch_bounds__(256) gate_reset(const GateParams p) {
    const u32 index = blockIdx.x * 256 + threadIdx.x, lanes = p.channels / VEC;
    const u32 pixel = index / lanes, c = index % lanes * VEC;
    if (pixel >= p.pixels) return;
    const i64 at = (i64)pixel * 2 * p.channels + p.channels + c;
    float r[VEC], m[VEC], h[VEC];
    load(p.zr + at, r), load(p.zr_map + at, m), load(p.h + pixel * p.h_ld + c, h);
#pragma unroll
    for (int i = 0; i < VEC; i++) h[i] *= sigmoid(r[i] + m[i]);
    store_all(p.targets, pixel, c, h);
}

// targets <- (1 - sigmoid(z)) h + sigmoid(z) tanh(q)
extern "C" __global__ void __launch_bounds__(256) gate_update(const GateParams p) {
    const u32 index = blockIdx.x * 256 + threadIdx.x, lanes = p.channels / VEC;
    const u32 pixel = index / lanes, c = index % lanes * VEC;
    if (pixel >= p.pixels) return;
    const i64 at = (i64)pixel * 2 * p.channels + c;
    float z[VEC], m[VEC], q[VEC], n[VEC], h[VEC];
    load(p.zr + at, z), load(p.zr_map + at, m);
    load(p.q + (i64)index * VEC, q), load(p.q_map + (i64)index * VEC, n);
    load(p.h + pixel * p.h_ld + c, h);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        const float part = sigmoid(z[i] + m[i]);
        h[i] += part * (tangent(q[i] + n[i]) - h[i]);
    }
    store_all(p.targets, pixel, c, h);
}

struct StepParams {
    float *coords;         // [B, 2, h, w]
    const Value *taps;     // [B, h, w, ld]: (row, column, x or y) of the 3×3 products of every pixel
    const float *bias;     // 2
    u32 pixels, plane, height, width, ld;
};

// coords += bias + the products that the neighbours hold for this pixel
extern "C" __global__ void __launch_bounds__(256) flow_step(const StepParams p) {
    const u32 index = blockIdx.x * 256 + threadIdx.x;
    if (index >= p.pixels) return;
    const u32 item = index / p.plane, pixel = index % p.plane;
    const int y = pixel / p.width, x = pixel % p.width;
    float u = p.bias[0], v = p.bias[1];
#pragma unroll
    for (int tap = 0; tap < 9; tap++) {
        const int ty = y + tap / 3 - 1, tx = x + tap % 3 - 1;
        if (ty >= 0 && ty < (int)p.height && tx >= 0 && tx < (int)p.width) {
            const Value *from = p.taps + ((i64)item * p.plane + ty * p.width + tx) * p.ld + 2 * tap;
            u += widened(from[0]), v += widened(from[1]);
        }
    }
    p.coords[(i64)item * 2 * p.plane + pixel] += u;
    p.coords[((i64)item * 2 + 1) * p.plane + pixel] += v;
}

struct GeluParams {
    Value *y;
    u32 vectors;
};

// y <- y Φ(y), in place
extern "C" __global__ void __launch_bounds__(256) gelu(const GeluParams p) {
    const u32 index = blockIdx.x * 256 + threadIdx.x;
    if (index >= p.vectors) return;
    float v[VEC];
    load(p.y + (i64)index * VEC, v);
#pragma unroll
    for (int i = 0; i < VEC; i++) v[i] = 0.5f * v[i] * (1.f + erff(v[i] * 0.70710678f));
    store(p.y + (i64)index * VEC, v);
}
