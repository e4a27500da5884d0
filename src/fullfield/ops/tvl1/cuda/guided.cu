// The guided refinement, as in guided_reference.py. Built behind sampling.cuh and median.cu.
//
// Macros set by the launcher:
//   WARPS, ROWS, BLOCKS   for `guided_iterate`: warps of a block, rows that each of them holds, blocks of a multiprocessor
//   RADIUS, STEPS         for the weighted median: radius of its window, number of steps

// Addresses of a call's tensors. The first kernel writes them, so a recorded graph serves every call.
struct GuidedInputs {
    const float *frame, *prior;
    float *result;
    i64 c, y, x;  // steps of the frame
};

// Planes are `plane` floats apart, rows `pitch`.
struct GuidedParams {
    GuidedInputs *inputs;
    const float *frames[2];            // [C, height, width], any strides
    i64 frame_c[2], frame_y[2], frame_x[2];
    const float *prior, *backward;     // [2, height, width]; backward may be null
    float *result;
    const float *kernel;               // weights of the blur at -taps / 2 ... taps / 2
    float *scratch, *grey;             // 2 planes each, one for each frame
    const float *flow, *dual;          // 2 and 4 planes
    float *flow_out, *dual_out;
    float *system, *edge, *coupling, *fit;  // 5, and 1 each
    int *flags;
    i64 plane;
    float brightest, sensitivity, base, consistent, squared_distance;  // coupling: base + consistent / (1 + d^2 / squared_distance)
    float lambda, squared_epsilon, slowness, sigma, squared_residual, least_fit;
    float colour_scale, per_reach, threshold, per_trust;               // 1 / (C colour^2), 1 / reach^2; 1 / trust^2, 0: everything remains
    int height, width, pitch, channels, taps, tiles, iterations, zero_dual, last;
};

static __device__ __forceinline__ bool is_finite(float x) { return fabsf(x) < __int_as_float(0x7f800000); }

// ---- loading

static __device__ __forceinline__ float grey_at(const GuidedParams &p, int frame, int x, int y) {
    const float *at = p.frames[frame] + y * p.frame_y[frame] + x * p.frame_x[frame];
    if (p.channels == 1) return 255.f * *at;
    return 76.245f * at[0] + 149.685f * at[p.frame_c[frame]] + 29.07f * at[2 * p.frame_c[frame]];
}

// Convert both frames to grey and blur them from top to bottom. Note values out of range.
extern "C" __global__ void __launch_bounds__(256) guided_down(const __grid_constant__ GuidedParams p) {
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *p.inputs = {p.frames[0], p.prior, p.result, p.frame_c[0], p.frame_y[0], p.frame_x[0]};
    const int x = blockIdx.x % p.tiles * 256 + threadIdx.x, row = blockIdx.x / p.tiles;
    const int frame = row >= p.height, y = row - frame * p.height;
    if (x >= p.width) return;
    const float *own = p.frames[frame] + y * p.frame_y[frame] + x * p.frame_x[frame];
    bool good = true;
    for (int c = 0; c < p.channels; c++) good = good && fabsf(own[c * p.frame_c[frame]]) <= p.brightest;
    if (!good) atomicOr(p.flags, 1 << frame);
    float sum = 0.f;
    for (int t = 0; t < p.taps; t++) sum += p.kernel[t] * grey_at(p, frame, x, min(max(y + t - p.taps / 2, 0), p.height - 1));
    p.scratch[frame * p.plane + (i64)y * p.pitch + x] = sum;
}

// Return the square of the forward-backward distance; negative where the flow leaves the frame.
static __device__ __forceinline__ float squared_distance(const GuidedParams &p, int x, int y, float u, float v) {
    const float px = x + u, py = y + v;
    if (!(px >= 0.f && px <= p.width - 1 && py >= 0.f && py <= p.height - 1)) return -1.f;
    const float left = fminf(floorf(px), fmaxf(p.width - 2, 0)), top = fminf(floorf(py), fmaxf(p.height - 2, 0));
    const float tx = px - left, ty = py - top;
    const float *corner = p.backward + (i64)top * p.width + (i64)left;
    const int right = p.width > 1;
    const i64 below = p.height > 1 ? p.width : 0;
    float sum = 0.f;
#pragma unroll
    for (int n = 0; n < 2; n++) {
        const float *at = corner + n * (i64)p.height * p.width;
        const float upper = at[0] * (1.f - tx) + at[right] * tx, lower = at[below] * (1.f - tx) + at[below + right] * tx;
        const float there = upper * (1.f - ty) + lower * ty + (n ? v : u);
        sum += there * there;
    }
    return sum;
}

// Blur both frames from left to right; compute the smoothness's weights of the first frame, and the flow's coupling.
extern "C" __global__ void __launch_bounds__(256) guided_across(const __grid_constant__ GuidedParams p) {
    const int x = blockIdx.x % p.tiles * 256 + threadIdx.x, y = blockIdx.x / p.tiles;
    if (x >= p.width) return;
    const i64 row = (i64)y * p.pitch, at = row + x, packed = (i64)y * p.width + x, size = (i64)p.height * p.width;
#pragma unroll
    for (int frame = 0; frame < 2; frame++) {
        float sum = 0.f;
        for (int t = 0; t < p.taps; t++)
            sum += p.kernel[t] * p.scratch[frame * p.plane + row + min(max(x + t - p.taps / 2, 0), p.width - 1)];
        p.grey[frame * p.plane + at] = sum;
    }
    const float *own = p.frames[0] + y * p.frame_y[0] + x * p.frame_x[0];
    const i64 right = x < p.width - 1 ? p.frame_x[0] : 0, below = y < p.height - 1 ? p.frame_y[0] : 0;
    float total = 0.f;
    for (int c = 0; c < p.channels; c++, own += p.frame_c[0]) {
        const float across = 255.f * (own[right] - *own), down = 255.f * (own[below] - *own);
        total += across * across + down * down;
    }
    p.edge[at] = fmaxf(expf(-p.sensitivity * root(total / p.channels)), 0.05f);
    const float u = p.prior[packed], v = p.prior[packed + size];
    bool good = is_finite(u) && is_finite(v);
    p.flow_out[at] = u;
    p.flow_out[at + p.plane] = v;
    float weight = p.base;
    if (p.backward) {
        const float squared = squared_distance(p, x, y, u, v);
        if (squared >= 0.f) weight += p.consistent / (1.f + squared / p.squared_distance);
        if (!(is_finite(p.backward[packed]) && is_finite(p.backward[packed + size]))) atomicOr(p.flags, 16);
    }
    p.coupling[at] = weight;
    if (!good) atomicOr(p.flags, 8);
}

// ---- the data term

struct Gradient { float x, y; };
static __device__ __forceinline__ Gradient gradient_at(const GuidedParams &p, int x, int y) {
    const float *row = p.grey + (i64)y * p.pitch;
    return {0.5f * (row[min(x + 1, p.width - 1)] - row[max(x - 1, 0)]),
            0.5f * (p.grey[(i64)min(y + 1, p.height - 1) * p.pitch + x] - p.grey[(i64)max(y - 1, 0) * p.pitch + x])};
}

// Linearise at the flow: M11, M12, M22, B1, B2; before a weighted median also the fit of the gradients. A block: 32×8 pixels.
extern "C" __global__ void __launch_bounds__(256) guided_linearise(const __grid_constant__ GuidedParams p) {
    const int x = blockIdx.x % p.tiles * 32 + threadIdx.x % 32, y = blockIdx.x / p.tiles * 8 + threadIdx.x / 32;
    if (x >= p.width || y >= p.height) return;
    const i64 at = (i64)y * p.pitch + x, packed = (i64)y * p.width + x;
    const float u = p.flow[at], v = p.flow[at + p.plane], c = p.coupling[at];
    const float *prior = p.inputs->prior + packed;
    const float fu = prior[0], fv = prior[(i64)p.height * p.width];
    const Frames frames = {p.grey, p.grey + p.plane, p.pitch, p.height, p.width, 0.f};
    Place place;
    const bool inside = placed<true>(frames, x, y, u, v, place);
    const Sample s = sampled(frames, place);
    const Gradient own = gradient_at(p, x, y), right = gradient_at(p, min(x + 1, p.width - 1), y);
    const Gradient left = gradient_at(p, max(x - 1, 0), y), below = gradient_at(p, x, min(y + 1, p.height - 1));
    const Gradient above = gradient_at(p, x, max(y - 1, 0));
    const float xx = 0.5f * (right.x - left.x), xy = 0.5f * (right.y - left.y), yy = 0.5f * (below.y - above.y);
    const float rx = 0.5f * s.gx - own.x, ry = 0.5f * s.gy - own.y, data = inside ? p.lambda : 0.f;
    const float wx = data * reciprocal_root(rx * rx + p.squared_epsilon), wy = data * reciprocal_root(ry * ry + p.squared_epsilon);
    if (p.last) p.fit[at] = (inside ? p.squared_residual / (p.squared_residual + (rx * rx + ry * ry)) : 0.f) + p.least_fit;
    const float cx = xx * u + xy * v - rx, cy = xy * u + yy * v - ry;
    const float k = c + p.slowness;
    const float a = wx * xx * xx + wy * xy * xy + k, b = wx * xx * xy + wy * xy * yy, d = wx * xy * xy + wy * yy * yy + k;
    const float inverse = 1.f / (a * d - b * b);
    const float r1 = wx * xx * cx + wy * xy * cy + c * fu, r2 = wx * xy * cx + wy * yy * cy + c * fv;
    float *to = p.system + at;
    to[0] = d * inverse;
    to[p.plane] = -b * inverse;
    to[2 * p.plane] = a * inverse;
    to[3 * p.plane] = (d * r1 - b * r2) * inverse;
    to[4 * p.plane] = (a * r2 - b * r1) * inverse;
}

// ---- iterations

// Run several iterations in one pass. A block holds a tile of 64 columns, two a lane, and WARPS * ROWS rows in registers. As
// far as the iterations reach, its border is computed by the neighbours too. Warps pass a row of the flow up and a row of
// the dual variable down.
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) guided_iterate(const __grid_constant__ GuidedParams p) {
    __shared__ float2 first_flow[WARPS][2][32], last_dual[WARPS][2][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, reach = p.iterations + (p.iterations & 1);
    const int x0 = blockIdx.x % p.tiles * (64 - 2 * reach), y0 = blockIdx.x / p.tiles * (WARPS * ROWS - 2 * p.iterations);
    const int x = x0 - reach + 2 * lane, y = y0 - p.iterations + warp * ROWS;
    const float sx[2] = {x < p.width - 1 ? p.sigma : 0.f, x + 1 < p.width - 1 ? p.sigma : 0.f};
    float u[2][ROWS][2], dual[4][ROWS][2], m[3][ROWS][2], b[2][ROWS][2], edge[ROWS][2];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const bool exists = x >= 0 && x < p.width && y + r >= 0 && y + r < p.height, second = x + 1 < p.width;
        const i64 at = (i64)(y + r) * p.pitch + x;
        const auto load = [&](const float *from, float (&to)[2]) {
            float2 two = {0.f, 0.f};
            if (exists) two = *(const float2 *)(from + at);
            to[0] = two.x;
            to[1] = second ? two.y : 0.f;
        };
#pragma unroll
        for (int n = 0; n < 2; n++) load(p.flow + n * p.plane, u[n][r]);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (p.zero_dual) dual[n][r][0] = dual[n][r][1] = 0.f;
            else load(p.dual + n * p.plane, dual[n][r]);
        }
#pragma unroll
        for (int n = 0; n < 3; n++) load(p.system + n * p.plane, m[n][r]);
#pragma unroll
        for (int n = 0; n < 2; n++) load(p.system + (3 + n) * p.plane, b[n][r]);
        load(p.edge, edge[r]);
    }
    for (int k = 0; k < p.iterations; k++) {
#pragma unroll
        for (int n = 0; n < 2; n++) last_dual[warp][n][lane] = {dual[2 * n + 1][ROWS - 1][0], dual[2 * n + 1][ROWS - 1][1]};
        __syncthreads();
        float up[2][2];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float2 two = warp ? last_dual[warp - 1][n][lane] : float2{0.f, 0.f};
            up[n][0] = two.x, up[n][1] = two.y;
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            float next[2][2];
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const float *across = dual[2 * n][r], *down = dual[2 * n + 1][r];
                const float left = __shfl_up_sync(ALL, across[1], 1);
                next[n][0] = p.slowness * u[n][r][0] + ((across[0] - left) + (down[0] - up[n][0]));
                next[n][1] = p.slowness * u[n][r][1] + ((across[1] - across[0]) + (down[1] - up[n][1]));
                up[n][0] = down[0], up[n][1] = down[1];
            }
#pragma unroll
            for (int c = 0; c < 2; c++) {
                u[0][r][c] = m[0][r][c] * next[0][c] + (m[1][r][c] * next[1][c] + b[0][r][c]);
                u[1][r][c] = m[1][r][c] * next[0][c] + (m[2][r][c] * next[1][c] + b[1][r][c]);
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++) first_flow[warp][n][lane] = {u[n][0][0], u[n][0][1]};
        __syncthreads();
        float2 below[2];
#pragma unroll
        for (int n = 0; n < 2; n++) below[n] = warp < WARPS - 1 ? first_flow[warp + 1][n][lane] : float2{0.f, 0.f};
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float sy = y + r < p.height - 1 ? p.sigma : 0.f;
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const float right = __shfl_sync(ALL, u[n][r][0], lane + 1);
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const float own = u[n][r][c], beside = c ? right : u[n][r][1];
                    const float under = r < ROWS - 1 ? u[n][r < ROWS - 1 ? r + 1 : r][c] : c ? below[n].y : below[n].x;
                    const float g = dual[2 * n][r][c] + sx[c] * (beside - own), h = dual[2 * n + 1][r][c] + sy * (under - own);
                    const float least = fmaxf(edge[r][c], 1e-6f);
                    const float shrink = edge[r][c] * reciprocal_root(fmaxf(least * least, g * g + h * h));
                    dual[2 * n][r][c] = shrink * g;
                    dual[2 * n + 1][r][c] = shrink * h;
                }
            }
        }
    }
    const int x1 = min(x0 + 64 - 2 * reach, p.width), y1 = min(y0 + WARPS * ROWS - 2 * p.iterations, p.height);
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (x < x0 || x >= x1 || y + r < y0 || y + r >= y1) continue;
        const i64 at = (i64)(y + r) * p.pitch + x;  // a row's pitch has space for the other column
#pragma unroll
        for (int n = 0; n < 2; n++) *(float2 *)(p.flow_out + n * p.plane + at) = {u[n][r][0], u[n][r][1]};
#pragma unroll
        for (int n = 0; n < 4; n++) *(float2 *)(p.dual_out + n * p.plane + at) = {dual[n][r][0], dual[n][r][1]};
    }
}

// ---- the weighted median, and the result after the last one

constexpr int SPAN = 2 * RADIUS + 1, ACROSS = 32, DOWN = 16;                  // side of a window; columns and rows of a block
constexpr int NEAR_X = ACROSS + 2 * RADIUS + 1, NEAR_Y = DOWN + 2 * RADIUS + 1;  // one more row and column, for differences
static_assert(SPAN <= 16, "eight lanes share a window's columns, two each");
static_assert(STEPS % 2 == 0, "steps come in pairs, one for each colour of the chessboard");

static __device__ __forceinline__ void settle_at(const GuidedParams &p, int x, int y, float u, float v) {
    if (!p.last) {
        const i64 at = (i64)y * p.pitch + x;
        p.flow_out[at] = u;
        p.flow_out[at + p.plane] = v;
        return;
    }
    const i64 at = (i64)y * p.width + x, size = (i64)p.height * p.width;
    const GuidedInputs &in = *p.inputs;
    const float fu = in.prior[at], fv = in.prior[at + size], du = u - fu, dv = v - fv;
    const float share = expf(-p.per_trust * (du * du + dv * dv));
    u = p.per_trust > 0.f ? fu + share * du : u;
    v = p.per_trust > 0.f ? fv + share * dv : v;
    in.result[at] = u;
    in.result[at + size] = v;
    if (!(is_finite(u) && is_finite(v))) atomicOr(p.flags, 4);
}

// Run one step of Weiszfeld's over the neighbours on squares of one colour of a chessboard: a lane reads one column in every row.
template <int SQUARE>
static __device__ __forceinline__ void median_step(const float2 *corner, const float (&weight)[SPAN][2], float soft, float &u, float &v) {
    float total = 0.f, sum_u = 0.f, sum_v = 0.f;
#pragma unroll
    for (int j = 0; j < SPAN; j++) {
        const int i = (j + SQUARE) % 2;
        const float2 other = corner[j * NEAR_X + i];
        const float du = other.x - u, dv = other.y - v;
        const float w = weight[j][i] * reciprocal_root(du * du + (dv * dv + soft));
        total += w;
        sum_u += w * other.x;
        sum_v += w * other.y;
    }
#pragma unroll
    for (int mask = 1; mask < 16; mask *= mask == 2 ? 4 : 2) {  // the lanes that share a pixel: see `part`
        total += __shfl_xor_sync(ALL, total, mask);
        sum_u += __shfl_xor_sync(ALL, sum_u, mask);
        sum_v += __shfl_xor_sync(ALL, sum_v, mask);
    }
    total += 1e-12f;
    u = sum_u / total;
    v = sum_v / total;
}

// A block first lists the pixels of its tile that are near a jump. Eight lanes take one pixel, each two columns of its
// window, and keep the weights in registers through all steps.
extern "C" __global__ void __launch_bounds__(256, 2) guided_median(const __grid_constant__ GuidedParams p) {
    __shared__ float4 colours[NEAR_Y * NEAR_X];
    __shared__ float2 flows[NEAR_Y * NEAR_X];
    __shared__ unsigned jumps[NEAR_Y][2];
    __shared__ unsigned short list[ACROSS * DOWN];
    __shared__ int found;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int x0 = blockIdx.x % p.tiles * ACROSS, y0 = blockIdx.x / p.tiles * DOWN;
    if (threadIdx.x == 0) found = 0;
    for (int n = threadIdx.x; n < NEAR_X * NEAR_Y; n += 256) {
        const int x = x0 - RADIUS + n % NEAR_X, y = y0 - RADIUS + n / NEAR_X;
        const bool exists = x >= 0 && x < p.width && y >= 0 && y < p.height;
        const i64 at = (i64)y * p.pitch + x;
        flows[n] = exists ? float2{p.flow[at], p.flow[at + p.plane]} : float2{0.f, 0.f};
    }
    __syncthreads();
    for (int r = warp; r < NEAR_Y - 1; r += 8) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int column = lane + 32 * half, x = x0 - RADIUS + column, y = y0 - RADIUS + r, at = r * NEAR_X + column;
            bool jump = false;
            if (column < NEAR_X - 1 && x >= 0 && x < p.width && y >= 0 && y < p.height) {
                const float2 own = flows[at];
                const float2 right = x < p.width - 1 ? flows[at + 1] : own, below = y < p.height - 1 ? flows[at + NEAR_X] : own;
                const float across = fmaxf(fabsf(right.x - own.x), fabsf(right.y - own.y));
                jump = fmaxf(across, fmaxf(fabsf(below.x - own.x), fabsf(below.y - own.y))) > p.threshold;
            }
            const unsigned all = __ballot_sync(ALL, jump);
            if (lane == 0) jumps[r][half] = all;
        }
    }
    __syncthreads();
    for (int r = warp; r < DOWN; r += 8) {
        unsigned low = 0, high = 0;
        for (int j = 0; j < SPAN; j++) low |= jumps[r + j][0], high |= jumps[r + j][1];
        const unsigned long long both = (unsigned long long)high << 32 | low;
        const bool exists = x0 + lane < p.width && y0 + r < p.height;
        const bool active = exists && (both >> lane & ((1 << SPAN) - 1)) != 0;
        const unsigned all = __ballot_sync(ALL, active);
        int begin = 0;
        if (lane == 0 && all) begin = atomicAdd(&found, __popc(all));
        begin = __shfl_sync(ALL, begin, 0);
        if (active) list[begin + __popc(all & ((1u << lane) - 1))] = (unsigned short)(r * ACROSS + lane);
        if (exists && !active) {
            const float2 own = flows[(r + RADIUS) * NEAR_X + lane + RADIUS];
            settle_at(p, x0 + lane, y0 + r, own.x, own.y);
        }
    }
    __syncthreads();
    const int count = found;
    if (count == 0) return;
    const GuidedInputs in = *p.inputs;
    for (int n = threadIdx.x; n < NEAR_X * (NEAR_Y - 1); n += 256) {
        const int x = x0 - RADIUS + n % NEAR_X, y = y0 - RADIUS + n / NEAR_X;
        float4 colour = {1e18f, 0.f, 0.f, 0.f};  // outside the frame: like no colour
        if (x >= 0 && x < p.width && y >= 0 && y < p.height) {
            const float *at = in.frame + y * in.y + x * in.x;
            colour.x = 255.f * at[0];
            if (p.channels == 3) colour.y = 255.f * at[in.c], colour.z = 255.f * at[2 * in.c];
            colour.w = p.fit[(i64)y * p.pitch + x];
        }
        colours[n] = colour;
    }
    __syncthreads();
    // Eight lanes in a row read every second of eight columns for two pixels beside each other: so no two use one bank.
    const int part = lane % 4 + (lane & 8) / 2, slot = (lane & 4) / 4 + (lane & 16) / 8;
    for (int begin = warp * 4; begin < count; begin += 32) {
        const int number = begin + slot, pixel = list[min(number, count - 1)];
        const int row = pixel / ACROSS, column = pixel % ACROSS, corner = row * NEAR_X + column + 2 * part;
        const float4 own = colours[(row + RADIUS) * NEAR_X + column + RADIUS];
        const float2 before = flows[(row + RADIUS) * NEAR_X + column + RADIUS];
        float weight[SPAN][2];
#pragma unroll
        for (int j = 0; j < SPAN; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int dx = 2 * part + i - RADIUS;
                const float4 other = colours[corner + j * NEAR_X + i];
                const float r = other.x - own.x, g = other.y - own.y, b = other.z - own.z;
                const float alike = fmaxf(1.f - p.colour_scale * (r * r + g * g + b * b), 0.f);
                const float near = fmaxf(1.f - p.per_reach * (dx * dx + (j - RADIUS) * (j - RADIUS)), 0.f);
                weight[j][i] = dx <= RADIUS ? near * alike * alike * other.w : 0.f;
            }
        float u = before.x, v = before.y, soft = 0.64f * 0.64f;
        for (int step = 0; step < STEPS; step += 2) {  // the last one reads the pixel itself, too
            median_step<1>(flows + corner, weight, soft, u, v);
            median_step<0>(flows + corner, weight, 0.25f * soft, u, v);
            soft *= 0.0625f;
        }
        if (part == 0 && number < count) settle_at(p, x0 + column, y0 + row, u, v);
    }
}
