// The gradient of one of the two maps. Built behind common.cuh.
//
// A pixel's gradient is the sum over its window of the other map's features times the incoming gradient of that pair. For
// fmap1 the gradient is read at the pixel, for fmap2 at the other map's pixel, with the displacements reversed. One thread
// computes a sum in one order, so results are deterministic; nothing is accumulated in memory.
//
// A block computes a tile of TH x TW pixels and CB channels, a thread XR neighbouring pixels of CR channels. The block walks
// over the rows of displacements and loads one row ahead: the weights of a row, and TH rows of features in a ring that gains
// one row a step.
//
// More macros: CB and CR, the channels of a block and of a thread; THREADS of a block, XG * TH * (CB / CR).

#define RING (TH + 1)
#define WEIGHTS (JN * JG * TH * PITCH)

struct BackwardParams {
    const Value *features, *grad;  // [B, C, H, W] the other map; [B, PH, PW, OH, OW]
    Value *out;                    // [B, C, H, W]
    int channels, channel_blocks, column_blocks;
    int second;                    // 1: the gradient is fmap2's
    Axis y, x;
};

// Along one axis: a tile's first pixel, the first pixel of its window, and the output whose gradient is read first.
struct Begin {
    int target, features, output;
};
static __device__ __forceinline__ Begin begin_of(const Axis &axis, Place place, int tile, int second) {
    Begin found;
    const int first = axis.stride * place.cls - axis.padding, ahead = place.at * tile;
    if (second) {
        int rest = (first - axis.radius) % axis.step;
        rest += rest < 0 ? axis.step : 0;
        const int start = ahead - (first - axis.radius - rest) / axis.step - (axis.patch - 1);  // in steps from the class's first pixel of fmap1
        found.target = rest + ahead * axis.step;
        found.features = first + start * axis.step;
        found.output = place.cls + start * axis.classes;
    } else {
        found.target = first + ahead * axis.step;
        found.features = found.target - axis.radius;
        found.output = place.cls + ahead * axis.classes;
    }
    return found;
}

struct Step {
    int block, i;                  // block of columns; row of displacements
};

static __device__ __forceinline__ void fill(const BackwardParams &p, const Begin &y, const Begin &x, float *weights, float *ring, Step step, i64 map, i64 grads,
                                            int first) {
    const i64 plane = (i64)p.y.in * p.x.in;
    const int j0 = step.block * JN * JG, rows = step.i ? 1 : TH;
    for (int n = threadIdx.x; n < rows * CB * (READ / VEC); n += THREADS) {
        const int column = n % (READ / VEC) * VEC, left = n / (READ / VEC), c = left % CB, row = left / CB + (step.i ? step.i + TH - 1 : 0);
        const int from_y = y.features + row * p.y.step, from_x = x.features + (j0 + column) * p.x.step;
        const bool inside = first + c < p.channels && (u32)from_y < (u32)p.y.in && (u32)from_x < (u32)p.x.in;
        fetch(ring + (c * RING + row % RING) * RW + column, p.features + map + (first + c) * plane + (i64)from_y * p.x.in + from_x, inside, p.features);
    }
    const int i = p.second ? p.y.patch - 1 - step.i : step.i;
    for (int n = threadIdx.x; n < JN * JG * TH * TW; n += THREADS) {
        const int column = n % TW, t = n / TW % TH, at = n / (TW * TH), j = j0 + at;
        const int h = y.output + (t + (p.second ? step.i : 0)) * p.y.classes, w = x.output + (column + (p.second ? j : 0)) * p.x.classes;
        const bool inside = j < p.x.patch && (u32)h < (u32)p.y.out && (u32)w < (u32)p.x.out;
        const i64 from = ((grads + i) * p.x.patch + (p.second ? p.x.patch - 1 - j : j)) * p.y.out + h;
        float *to = weights + (at * TH + t) * PITCH + column;
#if IN == 0
        copy_async<4>(shared_address(to), inside ? p.grad + from * p.x.out + w : p.grad, inside);
#else
        *to = inside ? widened(p.grad[from * p.x.out + w]) : 0.f;
#endif
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) spatial_backward(const __grid_constant__ BackwardParams p) {
    extern __shared__ __align__(16) float shared[];
    u32 number = blockIdx.x;
    const Place px = place_of(number, p.x), py = place_of(number, p.y);
    const int first = number % p.channel_blocks * CB;
    const i64 b = number / p.channel_blocks, map = b * p.channels * p.y.in * p.x.in, grads = b * p.y.patch;
    const Begin y = begin_of(p.y, py, TH, p.second), x = begin_of(p.x, px, TW, p.second);
    float *ring = shared + 2 * WEIGHTS;

    const int xg = threadIdx.x % XG, t = threadIdx.x / XG % TH, cg = threadIdx.x / (XG * TH);
    float sums[CR][XR];
    clear(sums);

    Step now = {0, 0};
    fill(p, y, x, shared, ring, now, map, grads, first);
    for (int turn = 0; now.block < p.column_blocks; turn ^= 1) {
        arrived();
        Step next = now;
        if (++next.i == p.y.patch) next.block++, next.i = 0;
        if (next.i) fill(p, y, x, shared + (turn ^ 1) * WEIGHTS, ring, next, map, grads, first);
#pragma unroll 1
        for (int jn = 0; jn < JN; jn++) {
            const float *from = ring + (cg * CR * RING + (t + now.i) % RING) * RW + xg * XR + jn * JG;
            const float *weight = shared + turn * WEIGHTS + (jn * JG * TH + t) * PITCH + xg * XR;
            float f[CR][SPAN];
#pragma unroll
            for (int c = 0; c < CR; c++)
#pragma unroll
                for (int k = 0; k < SPAN; k += 4) read4(f[c] + k, from + c * RING * RW + k);
#pragma unroll
            for (int j = 0; j < JG; j++) {
                float g[XR];
#pragma unroll
                for (int k = 0; k < XR; k += 4) read4(g + k, weight + j * TH * PITCH + k);
#pragma unroll
                for (int c = 0; c < CR; c++)
#pragma unroll
                    for (int k = 0; k < XR; k++) sums[c][k] += g[k] * f[c][k + j];
            }
        }
        if (!next.i && next.block < p.column_blocks) {  // the ring begins again
            __syncthreads();
            fill(p, y, x, shared + (turn ^ 1) * WEIGHTS, ring, next, map, grads, first);
        }
        now = next;
    }
    __syncthreads();

    // Pixels of fmap1 are stored if they have an output, those of fmap2 if they are in the class.
    const int row = y.target + t * p.y.step;
    const bool exists = (u32)row < (u32)p.y.in && (p.second || y.output + t * p.y.classes < p.y.out);
    int left = x.target < 0 ? (-x.target + p.x.step - 1) / p.x.step : 0, right = (p.x.in - x.target + p.x.step - 1) / p.x.step;
    if (!p.second) right = min(right, (p.x.out - x.output + p.x.classes - 1) / p.x.classes);
    float *stage = shared + threadIdx.x / 32 * (32 / XG * PITCH);
#pragma unroll
    for (int c = 0; c < CR; c++) {
        const int channel = first + cg * CR + c;
        const i64 at = exists && channel < p.channels ? (map + (i64)channel * p.y.in * p.x.in) + (i64)row * p.x.in + x.target : NOWHERE;
        store_rows(stage, sums[c], p.out, at, p.x.step, left, right);
    }
}
