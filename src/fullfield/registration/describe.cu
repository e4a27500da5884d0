// Input of a learned descriptor: normals and local shapes, FPFH, the cells of neighbours, means over rings. The CPU's form
// is in _cpu_kernels.py. A warp works on a point. Sums have one order: no floating-point atomics. Built behind batches.cuh
// and warps.cuh.
//
// Macros: INPUTS, numbers of a point: its shape and three histograms of BINS; RINGS, ELEVATIONS, BENDS, the kernel's cells.

#define WARPS 8
#define CELLS (RINGS * ELEVATIONS * BENDS)
#define HISTOGRAMS (3 * BINS)
#define WIDTH (INPUTS + RINGS * INPUTS + CELLS)
#define SWEEPS 6

struct DescribeParams {
    const double *fine, *queries;   // [F, 3], [N, 3]
    const float *points, *normals;  // [N, 3]
    const i64 *rows;                // [N + 1]
    const int *indices;             // neighbours
    const float *edges;             // between two rings, elevations (sines), bends (cosines); then tangents between bins
    const float *counts;            // [N, CELLS] of known_properties
    const u32 *words;               // entries of known_properties
    float *upright;                 // [N, 3] normals to be written
    float *features;                // [N, INPUTS]
    float *own;                     // [N, HISTOGRAMS] of a point's own pairs, or null
    float *cells;                   // [N, CELLS]
    u32 *entries;                   // cell << bits | neighbour, by point, cell and neighbour
    float *known;                   // [N, WIDTH]
    i64 count;
    double near;                    // square of the shape's radius; normals take all neighbours
    double reach;                   // the shape's radius
    int bits;
};

static __device__ __forceinline__ i64 own_point(const DescribeParams &p) {
    return (i64)blockIdx.x * WARPS + (threadIdx.x >> 5);
}

// ---- normals and shapes

static __device__ __forceinline__ void rotate(double (&a)[3][3], double (&v)[3][3], int i, int j) {
    if (a[i][j] == 0.0) return;
    const double turn = (a[j][j] - a[i][i]) / (2.0 * a[i][j]);
    const double size = (turn < 0.0 ? -turn : turn) + sqrt(turn * turn + 1.0);
    const double t = (turn < 0.0 ? -1.0 : 1.0) / size, c = 1.0 / sqrt(t * t + 1.0), s = t * c;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const double x = a[k][i], y = a[k][j];
        a[k][i] = c * x - s * y, a[k][j] = s * x + c * y;
    }
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const double x = a[i][k], y = a[j][k], vx = v[k][i], vy = v[k][j];
        a[i][k] = c * x - s * y, a[j][k] = s * x + c * y;
        v[k][i] = c * vx - s * vy, v[k][j] = s * vx + c * vy;
    }
    a[i][j] = a[j][i] = 0.0;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) local_shapes(const __grid_constant__ DescribeParams p) {
    const i64 i = own_point(p);
    if (i >= p.count) return;
    const int lane = threadIdx.x & 31;
    const double x = p.queries[3 * i], y = p.queries[3 * i + 1], z = p.queries[3 * i + 2];
    double sums[2][10];
#pragma unroll
    for (int k = 0; k < 10; k++) sums[0][k] = sums[1][k] = 0.0;
    for (i64 at = p.rows[i] + lane; at < p.rows[i + 1]; at += 32) {
        const double *from = p.fine + 3 * (i64)p.indices[at];
        const double dx = from[0] - x, dy = from[1] - y, dz = from[2] - z;
        const double one[10] = {1.0, dx, dy, dz, dx * dx, dx * dy, dx * dz, dy * dy, dy * dz, dz * dz};
        const double inside = one[4] + one[7] + one[9] <= p.near ? 1.0 : 0.0;
#pragma unroll
        for (int k = 0; k < 10; k++) sums[0][k] += one[k], sums[1][k] += inside * one[k];
    }
#pragma unroll
    for (int k = 0; k < 10; k++) sum_over_warp(sums[0][k], sums[1][k]);
    if (lane >= 2) return;  // the first lane computes the normal, the second the shape
    double m[10];
#pragma unroll
    for (int k = 0; k < 10; k++) m[k] = sums[lane][k];
    const double each = 1.0 / (m[0] > 1.0 ? m[0] : 1.0);
#pragma unroll
    for (int k = 1; k < 10; k++) m[k] *= each;
    double v[3][3] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
    double a[3][3] = {{m[4] - m[1] * m[1], m[5] - m[1] * m[2], m[6] - m[1] * m[3]},
                      {m[5] - m[1] * m[2], m[7] - m[2] * m[2], m[8] - m[2] * m[3]},
                      {m[6] - m[1] * m[3], m[8] - m[2] * m[3], m[9] - m[3] * m[3]}};
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        rotate(a, v, 0, 1);
        rotate(a, v, 0, 2);
        rotate(a, v, 1, 2);
    }
    const double variances[3] = {fmax(a[0][0], 0.0), fmax(a[1][1], 0.0), fmax(a[2][2], 0.0)};
    int least = variances[1] < variances[0] ? 1 : 0;
    if (variances[2] < variances[least]) least = 2;
    const double nx = least == 0 ? v[0][0] : least == 1 ? v[0][1] : v[0][2];
    const double ny = least == 0 ? v[1][0] : least == 1 ? v[1][1] : v[1][2];
    const double nz = least == 0 ? v[2][0] : least == 1 ? v[2][1] : v[2][2];
    if (lane == 0) {
        p.upright[3 * i] = (float)nx, p.upright[3 * i + 1] = (float)ny, p.upright[3 * i + 2] = (float)nz;
        return;
    }
    const double low = fmin(variances[0], fmin(variances[1], variances[2]));
    const double high = fmax(variances[0], fmax(variances[1], variances[2]));
    const double sum = variances[0] + variances[1] + variances[2];
    const double middle = sqrt(fmax(sum - low - high, 0.0)), far = fmax(sqrt(high), 1e-6);
    const double height = m[1] * nx + m[2] * ny + m[3] * nz;
    float *to = p.features + i * INPUTS;
    to[0] = (float)(3.0 * low / fmax(sum, 1e-12));
    to[1] = (float)((middle - sqrt(low)) / far);
    to[2] = (float)((sqrt(high) - middle) / far);
    to[3] = (float)((height < 0.0 ? -height : height) / p.reach);
}

// ---- pairs of a point and a neighbour

struct Pair {
    float distance, phi, ahead, along;  // own normal on direction, the other's on it, one on the other
    float across, beside;               // length of direction x own normal, the other's normal on it
};

static __device__ __forceinline__ Pair pair_of(const DescribeParams &p, i64 i, i64 j) {
    const float *a = p.points + 3 * i, *b = p.points + 3 * j, *u = p.normals + 3 * i, *n = p.normals + 3 * j;
    float dx = b[0] - a[0], dy = b[1] - a[1], dz = b[2] - a[2];
    Pair q;
    q.distance = sqrtf(dx * dx + dy * dy + dz * dz);
    const float scale = 1.f / fmaxf(q.distance, 1e-6f);
    dx *= scale, dy *= scale, dz *= scale;
    const float vx = dy * u[2] - dz * u[1], vy = dz * u[0] - dx * u[2], vz = dx * u[1] - dy * u[0];
    q.across = sqrtf(vx * vx + vy * vy + vz * vz);
    q.beside = vx * n[0] + vy * n[1] + vz * n[2];
    q.phi = u[0] * dx + u[1] * dy + u[2] * dz;
    q.ahead = n[0] * dx + n[1] * dy + n[2] * dz;
    q.along = u[0] * n[0] + u[1] * n[1] + u[2] * n[2];
    return q;
}

static __device__ __forceinline__ int bin_of(float value) { return min(max((int)(value * BINS), 0), BINS - 1); }

static __device__ __forceinline__ int cell_of(const DescribeParams &p, const Pair &q) {
    const float *edges = p.edges;
    float height = q.phi, alike = q.along, ahead = q.ahead;
    if (height < 0.f) height = -height, alike = -alike;
    if (alike < 0.f) alike = -alike, ahead = -ahead;
    const int slightly = alike < edges[RINGS + ELEVATIONS - 2], strongly = alike < edges[RINGS + ELEVATIONS - 1];
    int bend = ahead >= height || strongly ? 2 + slightly + strongly : 1 - slightly;
    if (alike >= 1.f) bend = 1;
    const int ring = (q.distance > edges[0]) + (q.distance > edges[1]);
    const int elevation = (height > edges[RINGS - 1]) + (height > edges[RINGS]);
    return (ring * ELEVATIONS + elevation) * BENDS + bend;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) look_at_pairs(const __grid_constant__ DescribeParams p) {
    __shared__ int bins[WARPS][HISTOGRAMS + 1], places[WARPS][CELLS];
    const i64 i = own_point(p);
    if (i >= p.count) return;
    const int lane = threadIdx.x & 31;
    int *counted = bins[threadIdx.x >> 5], *place = places[threadIdx.x >> 5];
    for (int k = lane; k < HISTOGRAMS + 1; k += 32) counted[k] = 0;
    for (int k = lane; k < CELLS; k += 32) place[k] = 0;
    __syncwarp();
    const i64 begin = p.rows[i], end = p.rows[i + 1];
    for (i64 at = begin + lane; at < end; at += 32) {
        const i64 j = p.indices[at];
        if (j == i) continue;
        const Pair q = pair_of(p, i, j);
        atomicAdd(place + cell_of(p, q), 1);
        if (!p.own || q.across < 1e-6f) continue;
        const float side = q.along < 0.f ? -1.f : 1.f, mirrored = q.phi < 0.f ? -1.f : 1.f, scale = 1.f / q.across;
        const float along = q.along * side, aside = (q.ahead - q.phi * q.along) * scale * side * mirrored;
        int theta = 0;
#pragma unroll
        for (int k = 0; k < BINS - 1; k++) theta += aside >= along * p.edges[RINGS + ELEVATIONS + k];
        atomicAdd(counted + bin_of((q.beside * side * scale + 1.f) * 0.5f), 1);
        atomicAdd(counted + BINS + bin_of(q.phi * mirrored), 1);
        atomicAdd(counted + 2 * BINS + theta, 1);
    }
    __syncwarp();
    if (p.own) {
        int pairs = lane < BINS ? counted[lane] : 0;
        sum_over_warp(pairs);
        for (int k = lane; k < HISTOGRAMS; k += 32) p.own[i * HISTOGRAMS + k] = (float)counted[k] / (float)max(pairs, 1);
    }
    for (int k = lane; k < CELLS; k += 32) p.cells[i * CELLS + k] = (float)place[k];
    __syncwarp();
    if (lane == 0)
        for (int k = 0, sum = 0; k < CELLS; k++) {
            const int own = place[k];
            place[k] = sum;
            sum += own;
        }
    __syncwarp();
    u32 *to = p.entries + begin - i;  // an entry less, its own, for each point before
    for (i64 first = begin; first < end; first += 32) {  // in order, so that a cell's neighbours stay sorted
        const i64 at = first + lane, j = at < end ? p.indices[at] : i;
        const int cell = j == i ? CELLS : cell_of(p, pair_of(p, i, j));
        const u32 same = __match_any_sync(ALL, cell), before = same & ((1u << lane) - 1);
        const int start = cell < CELLS ? place[cell] : 0;
        __syncwarp();
        if (cell < CELLS) {
            to[start + __popc(before)] = (u32)cell << p.bits | (u32)j;
            if (before == 0) place[cell] = start + __popc(same);
        }
        __syncwarp();
    }
}

// ---- sums over neighbours: lane l has columns l and l + 32

extern "C" __global__ void __launch_bounds__(WARPS * 32) weigh_histograms(const __grid_constant__ DescribeParams p) {
    __shared__ float rows[WARPS][HISTOGRAMS];
    const i64 i = own_point(p);
    if (i >= p.count) return;
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const float x = p.points[3 * i], y = p.points[3 * i + 1], z = p.points[3 * i + 2];
    const i64 begin = p.rows[i], end = p.rows[i + 1];
    float low = 0.f, high = 0.f;
    for (i64 first = begin; first < end; first += 32) {
        const int count = end - first < 32 ? (int)(end - first) : 32;
        const int mine = lane < count ? p.indices[first + lane] : (int)i;
        const float *at = p.points + 3 * (i64)mine;
        const float dx = at[0] - x, dy = at[1] - y, dz = at[2] - z, square = dx * dx + dy * dy + dz * dz;
        const float weight = square > 0.f ? 1.f / square : 0.f;
#pragma unroll 4
        for (int n = 0; n < count; n++) {
            const i64 j = __shfl_sync(ALL, mine, n);
            const float w = __shfl_sync(ALL, weight, n), *from = p.own + j * HISTOGRAMS;
            low += w * from[lane];
            if (lane + 32 < HISTOGRAMS) high += w * from[lane + 32];
        }
    }
    rows[warp][lane] = low;
    if (lane + 32 < HISTOGRAMS) rows[warp][lane + 32] = high;
    __syncwarp();
    for (int k = lane; k < HISTOGRAMS; k += 32) {
        float sum = 0.f;
        for (int b = 0; b < BINS; b++) sum += rows[warp][k / BINS * BINS + b];
        p.features[i * INPUTS + INPUTS - HISTOGRAMS + k] = sum > 0.f ? sqrtf(rows[warp][k] / sum) : 0.f;
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) known_properties(const __grid_constant__ DescribeParams p) {
    const i64 i = own_point(p);
    if (i >= p.count) return;
    const int lane = threadIdx.x & 31;
    const bool more = lane + 32 < INPUTS;
    const float *own = p.features + i * INPUTS, *counts = p.counts + i * CELLS;
    float *to = p.known + i * WIDTH;
    to[lane] = own[lane];
    if (more) to[lane + 32] = own[lane + 32];
    const u32 mask = (1u << p.bits) - 1;
    i64 at = p.rows[i];
    const float total = fmaxf((float)(p.rows[i + 1] - at), 1.f);
    for (int ring = 0; ring < RINGS; ring++) {
        float counted = 0.f;
        for (int k = lane; k < CELLS / RINGS; k += 32) counted += counts[ring * (CELLS / RINGS) + k];
        sum_over_warp(counted);
        const i64 end = at + (i64)counted;
        float low = 0.f, high = 0.f;
        while (at < end) {
            const int count = end - at < 32 ? (int)(end - at) : 32;
            const u32 mine = lane < count ? p.words[at + lane] & mask : 0u;
#pragma unroll 4
            for (int n = 0; n < count; n++) {
                const float *from = p.features + (i64)__shfl_sync(ALL, mine, n) * INPUTS;
                low += from[lane];
                if (more) high += from[lane + 32];
            }
            at += count;
        }
        const float each = 1.f / fmaxf(counted, 1.f);
        to += INPUTS;
        to[lane] = low * each;
        if (more) to[lane + 32] = high * each;
    }
    to += INPUTS;
    for (int k = lane; k < CELLS; k += 32) to[k] = sqrtf(counts[k] / total);
}
