// The guided refinement, as in guided_reference.py. Built behind sampling.cuh, median.cu and guided_steps.cuh.
//
// Macros set by the launcher:
//   WARPS, ROWS, BLOCKS   for `guided_iterate`: warps of a block, rows that each of them holds, blocks of a multiprocessor
//   RADIUS                of the weighted median's window
//   FILTER_STEPS, SPARSE_FILTER_STEPS   its steps, STEP(softening in pixels, EVEN and ODD of `median_step`) each

// Addresses of a call's tensors. `guided_start` writes them, so a recorded graph serves every call.
struct GuidedInputs {
    const float *frame, *prior, *backward;
    float *result;
    i64 c, y, x;  // steps of the frame
};
// Fit of a block's pixels: sum, and number of targets inside the frame.
struct BlockFit { float sum, inside; };
// Shares of the change that remain: of the passes after the first one, then of all passes.
struct Shares { float later, all; };

// Planes are `plane` floats apart, rows `pitch`.
struct GuidedParams {
    GuidedInputs *inputs;
    const float *frames[2];            // [C, height, width], any strides
    i64 frame_c[2], frame_y[2], frame_x[2];
    const float *prior, *backward;     // [2, height, width]; backward may be null
    float *result;
    const float *given;                // 2 planes, the flow that this pass refines; null: `prior` of the inputs
    float *refined;                    // 2 planes, the pass's result; null: `result` of the inputs
    const float *after_first;          // 2 planes, result of the first pass; null if there is no other
    const float *kernel;               // weights of the blur at -taps / 2 ... taps / 2
    float *scratch;                    // 2 planes, one for each frame
    float2 *gradients;                 // of the blurred frames; as many as 2 planes hold for each
    const float *flow, *dual;          // 2 and 4 planes
    float *flow_out, *dual_out;
    float *system, *edge, *coupling, *fit;  // 5, and 1 each
    BlockFit *fits;                    // of each block that linearises; null: not judged
    double *misfits;                   // before each judged round, the last of which is `judged`
    Shares *shares;                    // null: everything remains
    const float *later;                // null, or the share of the later passes; at 0 their kernels do nothing
    int *flags;
    u32 *jumps;                        // a bit a pixel, pitch / 32 words a row
    i64 plane;
    float brightest, sensitivity, base, consistent, squared_distance;  // coupling: base + consistent / (1 + d^2 / squared_distance)
    float lambda, squared_epsilon, slowness, sigma, squared_residual, least_fit, least_fall, passes_fall;
    float colour_scale, per_reach, threshold, per_trust;               // 255 / (sqrt(C) colour), 1 / reach^2; 1 / trust^2, 0: everything remains
    int height, width, pitch, channels, taps, tiles, iterations, zero_dual, last, judged, fit_blocks;
};

static __device__ __forceinline__ bool is_finite(float x) { return fabsf(x) < __int_as_float(0x7f800000); }

// ---- loading

constexpr int GROUP = 4, USUAL_TAPS = 5;  // rows of a thread that loads; weights of the blur for which no loop is needed

// Blur the GROUP rows of a frame's column from y0 on, in grey, from top to bottom. Return whether all values are in range.
template <int CHANNELS> static __device__ __forceinline__ bool blur_down(const GuidedParams &p, int frame, int x, int y0) {
    const float *columns[CHANNELS];
#pragma unroll
    for (int c = 0; c < CHANNELS; c++) columns[c] = p.frames[frame] + c * p.frame_c[frame] + x * p.frame_x[frame];
    bool good = true;
    const auto grey_at = [&](int y) {
        const i64 row = min(max(y, 0), p.height - 1) * p.frame_y[frame];
        float value[CHANNELS];
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) value[c] = columns[c][row], good = good && fabsf(value[c]) <= p.brightest;
        return CHANNELS == 1 ? 255.f * value[0] : 76.245f * value[0] + 149.685f * value[CHANNELS / 2] + 29.07f * value[CHANNELS - 1];
    };
    float *to = p.scratch + frame * p.plane + (i64)y0 * p.pitch + x;
    if (p.taps == USUAL_TAPS) {
        float grey[GROUP + USUAL_TAPS - 1], weight[USUAL_TAPS];
#pragma unroll
        for (int t = 0; t < USUAL_TAPS; t++) weight[t] = p.kernel[t];
#pragma unroll
        for (int j = 0; j < GROUP + USUAL_TAPS - 1; j++) grey[j] = grey_at(y0 + j - USUAL_TAPS / 2);
#pragma unroll
        for (int r = 0; r < GROUP; r++) {
            float sum = 0.f;
#pragma unroll
            for (int t = 0; t < USUAL_TAPS; t++) sum += weight[t] * grey[r + t];
            if (y0 + r < p.height) to[(i64)r * p.pitch] = sum;
        }
    } else {
        for (int r = 0; r < GROUP && y0 + r < p.height; r++) {
            float sum = 0.f;
            for (int t = 0; t < p.taps; t++) sum += p.kernel[t] * grey_at(y0 + r + t - p.taps / 2);
            to[(i64)r * p.pitch] = sum;
        }
    }
    return good;
}

// Convert both frames to grey and blur them from top to bottom. Note values out of range.
extern "C" __global__ void __launch_bounds__(256) guided_down(const __grid_constant__ GuidedParams p) {
    const int x = blockIdx.x % p.tiles * 256 + threadIdx.x, group = blockIdx.x / p.tiles, groups = (p.height + GROUP - 1) / GROUP;
    const int frame = group >= groups, y0 = (group - frame * groups) * GROUP;
    if (x >= p.width) return;
    const bool good = p.channels == 1 ? blur_down<1>(p, frame, x, y0) : blur_down<3>(p, frame, x, y0);
    if (!good) atomicOr(p.flags, 1 << frame);
}

// Return the flow that this pass refines.
static __device__ __forceinline__ float2 given_at(const GuidedParams &p, int x, int y) {
    const i64 at = (i64)y * (p.given ? p.pitch : p.width) + x;
    const float *from = p.given ? p.given : p.inputs->prior;
    return {from[at], from[at + (p.given ? p.plane : (i64)p.height * p.width)]};
}

// Return the square of the forward-backward distance; negative where the flow leaves the frame.
static __device__ __forceinline__ float squared_distance(const GuidedParams &p, const float *backward, int x, int y, float u, float v) {
    const float px = x + u, py = y + v;
    if (!(px >= 0.f && px <= p.width - 1 && py >= 0.f && py <= p.height - 1)) return -1.f;
    const float left = fminf(floorf(px), fmaxf(p.width - 2, 0)), top = fminf(floorf(py), fmaxf(p.height - 2, 0));
    const float tx = px - left, ty = py - top;
    const float *corner = backward + (i64)top * p.width + (i64)left;
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

// Blur both frames from left to right, for their gradients; compute the smoothness's weights of the first frame.
extern "C" __global__ void __launch_bounds__(256) guided_across(const __grid_constant__ GuidedParams p) {
    const int x = blockIdx.x % p.tiles * 256 + threadIdx.x, y = blockIdx.x / p.tiles;
    if (x >= p.width) return;
    const i64 at = (i64)y * p.pitch + x;
#pragma unroll
    for (int frame = 0; frame < 2; frame++) {
        const float *plane = p.scratch + frame * p.plane;
        const float *own = plane + at, *above = own - (y > 0 ? p.pitch : 0), *below = own + (y < p.height - 1 ? p.pitch : 0);
        float2 gradient = {0.f, 0.f};
        if (p.taps == USUAL_TAPS && x > USUAL_TAPS / 2 && x + USUAL_TAPS / 2 + 1 < p.width) {
#pragma unroll
            for (int t = 0; t < USUAL_TAPS; t++) {
                const int i = t - USUAL_TAPS / 2;
                gradient.x += 0.5f * p.kernel[t] * (own[i + 1] - own[i - 1]);
                gradient.y += 0.5f * p.kernel[t] * (below[i] - above[i]);
            }
        } else {
            const auto column = [&](int center, int t) {  // counted from x
                return min(max(min(max(center, 0), p.width - 1) + t - p.taps / 2, 0), p.width - 1) - x;
            };
            for (int t = 0; t < p.taps; t++) {
                gradient.x += 0.5f * p.kernel[t] * (own[column(x + 1, t)] - own[column(x - 1, t)]);
                gradient.y += 0.5f * p.kernel[t] * (below[column(x, t)] - above[column(x, t)]);
            }
        }
        p.gradients[frame * p.plane + at] = gradient;
    }
    const float *own = p.frames[0] + y * p.frame_y[0] + x * p.frame_x[0];
    const i64 right = x < p.width - 1 ? p.frame_x[0] : 0, below = y < p.height - 1 ? p.frame_y[0] : 0;
    float total = 0.f;
    for (int c = 0; c < p.channels; c++, own += p.frame_c[0]) {
        const float across = 255.f * (own[right] - *own), down = 255.f * (own[below] - *own);
        total += across * across + down * down;
    }
    p.edge[at] = fmaxf(expf(-p.sensitivity * root(total / p.channels)), 0.05f);
}

// Copy the flow that a pass refines, and compute its coupling. The first pass notes the addresses of the call's tensors, and
// values that are not finite.
extern "C" __global__ void __launch_bounds__(256) guided_start(const __grid_constant__ GuidedParams p) {
    if (is_skipped(p.later)) return;
    if (!p.given && blockIdx.x == 0 && threadIdx.x == 0)
        *p.inputs = {p.frames[0], p.prior, p.backward, p.result, p.frame_c[0], p.frame_y[0], p.frame_x[0]};
    const int x = blockIdx.x % p.tiles * 256 + threadIdx.x, y = blockIdx.x / p.tiles;
    if (x >= p.width) return;
    const i64 at = (i64)y * p.pitch + x, packed = (i64)y * p.width + x, size = (i64)p.height * p.width;
    const float *backward = p.given ? p.inputs->backward : p.backward;
    const float2 flow = p.given ? given_at(p, x, y) : float2{p.prior[packed], p.prior[packed + size]};
    p.flow_out[at] = flow.x;
    p.flow_out[at + p.plane] = flow.y;
    float weight = p.base;
    if (backward) {
        const float squared = squared_distance(p, backward, x, y, flow.x, flow.y);
        if (squared >= 0.f) weight += p.consistent / (1.f + squared / p.squared_distance);
    }
    p.coupling[at] = weight;
    if (p.given) return;
    if (backward && !(is_finite(backward[packed]) && is_finite(backward[packed + size]))) atomicOr(p.flags, 16);
    if (!(is_finite(flow.x) && is_finite(flow.y))) atomicOr(p.flags, 8);
}

// ---- the data term

// Blend the 4×4 gradients around a target, of which `at(j, i)` returns one.
template <class At> static __device__ __forceinline__ float2 blended(const Place &place, At at) {
    float2 sum = {0.f, 0.f};
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float2 across = {0.f, 0.f};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 gradient = at(j, i);
            across.x += place.wx[i] * gradient.x;
            across.y += place.wx[i] * gradient.y;
        }
        sum.x += place.wy[j] * across.x;
        sum.y += place.wy[j] * across.y;
    }
    return sum;
}

// Sample the second frame's gradient.
static __device__ __forceinline__ float2 sampled_gradient(const GuidedParams &p, const Place &place) {
    const float2 *second = p.gradients + p.plane;
    const int x = place.column - 1, y = place.row - 1;
    if (x >= 0 && x + 3 < p.width && y >= 0 && y + 3 < p.height) {
        const float2 *corner = second + (i64)y * p.pitch + x;
        return blended(place, [&](int j, int i) { return corner[(i64)j * p.pitch + i]; });
    }
    return blended(place, [&](int j, int i) {
        return second[(i64)min(max(y + j, 0), p.height - 1) * p.pitch + min(max(x + i, 0), p.width - 1)];
    });
}

// Sum the fit of a block's pixels in a fixed order.
static __device__ __forceinline__ void sum_fit(const GuidedParams &p, float fit) {
    __shared__ BlockFit warps[8];
    const int inside = __popc(__ballot_sync(ALL, fit != 0.f));
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) fit += __shfl_xor_sync(ALL, fit, mask);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = {fit, (float)inside};
    __syncthreads();
    if (threadIdx.x) return;
    BlockFit total = {0.f, 0.f};
    for (int n = 0; n < 8; n++) total.sum += warps[n].sum, total.inside += warps[n].inside;
    p.fits[blockIdx.x] = total;
}

// Linearise at the flow: M11, M12, M22, B1, B2; before a weighted median also the fit of the gradients, and before a judged
// round the sum of theirs. A block: 32×8 pixels.
extern "C" __global__ void __launch_bounds__(256) guided_linearise(const __grid_constant__ GuidedParams p) {
    if (is_skipped(p.later)) return;
    const int own_x = blockIdx.x % p.tiles * 32 + threadIdx.x % 32, own_y = blockIdx.x / p.tiles * 8 + threadIdx.x / 32;
    const bool exists = own_x < p.width && own_y < p.height;
    if (!exists && !p.fits) return;
    const int x = min(own_x, p.width - 1), y = min(own_y, p.height - 1);
    const i64 at = (i64)y * p.pitch + x;
    const float u = p.flow[at], v = p.flow[at + p.plane], c = p.coupling[at];
    const float2 given = given_at(p, x, y);
    const float2 *gradient = p.gradients + at;
    const float2 own = *gradient, left = gradient[x > 0 ? -1 : 0], right = gradient[x < p.width - 1];
    const float above = gradient[y > 0 ? -p.pitch : 0].y, below = gradient[y < p.height - 1 ? p.pitch : 0].y;
    Place place;
    const bool inside = placed<true>({nullptr, nullptr, p.pitch, p.height, p.width, 0.f}, x, y, u, v, place);
    const float2 there = sampled_gradient(p, place);
    const float xx = 0.5f * (right.x - left.x), xy = 0.5f * (right.y - left.y), yy = 0.5f * (below - above);
    const float rx = there.x - own.x, ry = there.y - own.y, data = inside ? p.lambda : 0.f;
    const float wx = data * reciprocal_root(rx * rx + p.squared_epsilon), wy = data * reciprocal_root(ry * ry + p.squared_epsilon);
    const float fit = inside && exists ? p.squared_residual / (p.squared_residual + (rx * rx + ry * ry)) : 0.f;
    if (p.fits) sum_fit(p, fit);
    if (!exists) return;
    if (p.last) p.fit[at] = fit + p.least_fit;
    const float cx = xx * u + xy * v - rx, cy = xy * u + yy * v - ry;
    const float k = c + p.slowness;
    const float a = wx * xx * xx + wy * xy * xy + k, b = wx * xx * xy + wy * xy * yy, d = wx * xy * xy + wy * yy * yy + k;
    const float inverse = 1.f / (a * d - b * b);
    const float r1 = wx * xx * cx + wy * xy * cy + c * given.x, r2 = wx * xy * cx + wy * yy * cy + c * given.y;
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
    if (is_skipped(p.later)) return;
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
                next[n][0] = flow_and_divergence(u[n][r][0], p.slowness, across[0], left, down[0], up[n][0]);
                next[n][1] = flow_and_divergence(u[n][r][1], p.slowness, across[1], across[0], down[1], up[n][1]);
                up[n][0] = down[0], up[n][1] = down[1];
            }
#pragma unroll
            for (int c = 0; c < 2; c++) {
                u[0][r][c] = fmaf(m[0][r][c], next[0][c], fmaf(m[1][r][c], next[1][c], b[0][r][c]));
                u[1][r][c] = fmaf(m[1][r][c], next[0][c], fmaf(m[2][r][c], next[1][c], b[1][r][c]));
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
                    dual_step(dual[2 * n][r][c], dual[2 * n + 1][r][c], beside - own, under - own, sx[c], sy, edge[r][c]);
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

// ---- the plain median

// Return the first of the 2×2 pixels that a thread filters, for blocks of 64×8 pixels.
static __device__ __forceinline__ int2 find_median_pixels(const GuidedParams &p) {
    return {(int)(blockIdx.x % p.tiles * 32 + threadIdx.x % 32) * 2, (int)(blockIdx.x / p.tiles * 4 + threadIdx.x / 32) * 2};
}

extern "C" __global__ void __launch_bounds__(128) guided_plain_median_float32(const __grid_constant__ GuidedParams p) {
    if (is_skipped(p.later)) return;
    const auto [x0, y0] = find_median_pixels(p);
    if (x0 >= p.width || y0 >= p.height) return;
    MedianParams median = {};
    median.flow = p.flow, median.target = p.flow_out;
    median.plane = median.target_plane = p.plane;
    median.height = p.height, median.width = p.width, median.pitch = median.target_pitch = p.pitch;
    for (int n = 0; n < 2; n++) filter_pixels<2>(median, x0, y0, n);
}

// Filter both components at once in half precision, against the flow at one of the pixels.
extern "C" __global__ void __launch_bounds__(128) guided_plain_median_float16(const __grid_constant__ GuidedParams p) {
    if (is_skipped(p.later)) return;
    const auto [x0, y0] = find_median_pixels(p);
    if (x0 >= p.width || y0 >= p.height) return;
    const float *from_u = p.flow, *from_v = p.flow + p.plane;
    const i64 own = (i64)y0 * p.pitch + x0;
    const float own_u = from_u[own], own_v = from_v[own];
    u32 window[6][6], out[2][2];
    load_windows(
        window, x0, y0, p.width, p.height,
        [&](int x, int y) {
            const i64 at = (i64)y * p.pitch + x;
            const float2 u = *(const float2 *)(from_u + at), v = *(const float2 *)(from_v + at);
            return uint2{pair_f16(u.x - own_u, v.x - own_v), pair_f16(u.y - own_u, v.y - own_v)};
        },
        [&](int x, int y) {
            const i64 at = (i64)y * p.pitch + x;
            return pair_f16(from_u[at] - own_u, from_v[at] - own_v);
        });
    medians(window, out);
    float *to = p.flow_out + own;
#pragma unroll
    for (int i = 0; i < 2; i++, to += p.pitch) {
        if (y0 + i >= p.height) break;
        float u[2], v[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const u32 within = upper_of(lower_of(out[i][j], 0x7bff7bff), 0xfbfffbff);  // of differences too long for halves
            u[j] = own_u + from_f16((u16)within), v[j] = own_v + from_f16((u16)(within >> 16));
        }
        *(float2 *)to = {u[0], u[1]};  // a row's pitch has space for the other column
        *(float2 *)(to + p.plane) = {v[0], v[1]};
    }
}

// ---- the weighted median, and the result after the last one

constexpr int SPAN = 2 * RADIUS + 1, ACROSS = 32;  // side of a window; columns of a block
constexpr int NEAR_X = ACROSS + 2 * RADIUS + 1;    // one more column, which only lanes without weight read
static_assert(RADIUS == 7, "two columns each of eight lanes, or four of four lanes, hold a window");

// Interpolate as torch.lerp does: with a share of 1 the result is `to`.
static __device__ __forceinline__ float lerp(float from, float to, float share) {
    return share < 0.5f ? from + share * (to - from) : to - (to - from) * (1.f - share);
}

// Write a filtered pixel: the next warp's flow, or a pass's result.
static __device__ __forceinline__ void settle_at(const GuidedParams &p, int x, int y, float u, float v) {
    const i64 at = (i64)y * p.pitch + x, packed = (i64)y * p.width + x, size = (i64)p.height * p.width;
    if (!p.last) {
        p.flow_out[at] = u;
        p.flow_out[at + p.plane] = v;
        return;
    }
    if (p.after_first && p.shares->later == 0.f) {  // the later passes were skipped
        u = p.after_first[at], v = p.after_first[at + p.plane];
    } else if (p.per_trust > 0.f) {
        const float2 given = given_at(p, x, y);
        const float du = u - given.x, dv = v - given.y, share = expf(-p.per_trust * (du * du + dv * dv));
        u = given.x + share * du;
        v = given.y + share * dv;
    }
    if (!(is_finite(u) && is_finite(v))) atomicOr(p.flags, 4);
    if (p.refined) {
        p.refined[at] = u;
        p.refined[at + p.plane] = v;
        return;
    }
    const GuidedInputs &in = *p.inputs;
    if (p.shares) {
        const Shares shares = *p.shares;
        if (p.after_first) u = lerp(p.after_first[at], u, shares.later), v = lerp(p.after_first[at + p.plane], v, shares.later);
        u = lerp(in.prior[packed], u, shares.all), v = lerp(in.prior[packed + size], v, shares.all);
    }
    in.result[packed] = u;
    in.result[packed + size] = v;
}

// Compute the misfit before the judged round, as `guided_reference.misfits`, and what remains, as `guided.remaining`. One block.
extern "C" __global__ void __launch_bounds__(1024) guided_judge(const __grid_constant__ GuidedParams p) {
    __shared__ double sums[1024], insides[1024];
    double sum = 0., inside = 0.;
    for (int n = threadIdx.x; n < p.fit_blocks; n += 1024) {
        const BlockFit one = p.fits[n];
        sum += one.sum, inside += one.inside;
    }
    sums[threadIdx.x] = sum, insides[threadIdx.x] = inside;
    for (int half = 512; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) {
            sums[threadIdx.x] += sums[threadIdx.x + half];
            insides[threadIdx.x] += insides[threadIdx.x + half];
        }
    }
    if (threadIdx.x) return;
    const double misfit = 1. - sums[0] / fmax(insides[0], 1.);
    p.misfits[p.judged] = misfit;
    if (!p.shares) return;
    Shares shares = {1.f, 1.f};
    if (p.judged) {
        const double fall = 1. - misfit / fmax(p.misfits[0], 1e-12);
        if (p.passes_fall > 0.f) shares.later = (float)fmin(fmax(4. * fall / p.passes_fall - 3., 0.), 1.);
        if (p.least_fall > 0.f) shares.all = (float)fmin(fmax(fall / p.least_fall, 0.), 1.);
    }
    *p.shares = shares;
}

// Mark the pixels after which the flow jumps, a bit each, and keep the flow of all pixels; `guided_median` filters those near
// a jump. A block: 32×8 pixels.
extern "C" __global__ void __launch_bounds__(256) guided_jumps(const __grid_constant__ GuidedParams p) {
    if (is_skipped(p.later)) return;
    const int lane = threadIdx.x % 32, x = blockIdx.x % p.tiles * 32 + lane, y = blockIdx.x / p.tiles * 8 + threadIdx.x / 32;
    if (y >= p.height) return;
    bool jump = false;
    if (x < p.width) {
        const float *at = p.flow + (i64)y * p.pitch + x;
        const i64 right = x < p.width - 1, below = y < p.height - 1 ? p.pitch : 0;
        const float u = at[0], v = at[p.plane];
        const float across = fmaxf(fabsf(at[right] - u), fabsf(at[p.plane + right] - v));
        jump = fmaxf(across, fmaxf(fabsf(at[below] - u), fabsf(at[p.plane + below] - v))) > p.threshold;
        settle_at(p, x, y, u, v);
    }
    const u32 all = __ballot_sync(ALL, jump);
    if (lane == 0) p.jumps[(i64)y * (p.pitch / 32) + x / 32] = all;
}

// List the pixels of a block's tile of DOWN rows that are near a jump; return how many there are.
template <int DOWN> static __device__ __forceinline__ int list_near_jumps(const GuidedParams &p, u16 *list) {
    constexpr int NEAR_Y = DOWN + 2 * RADIUS;
    __shared__ u64 jumps[NEAR_Y];
    __shared__ int found;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int x0 = blockIdx.x % p.tiles * ACROSS, y0 = blockIdx.x / p.tiles * DOWN;
    if (threadIdx.x < NEAR_Y) {
        const int y = y0 - RADIUS + threadIdx.x, words = p.pitch / 32, word = x0 / 32;
        u64 row = 0;
        if (y >= 0 && y < p.height) {
            const u32 *at = p.jumps + (i64)y * words + word;
            row = (u64)at[0] << RADIUS;
            if (word > 0) row |= at[-1] >> 32 - RADIUS;
            if (word + 1 < words && x0 + 32 < p.width) row |= (u64)at[1] << 32 + RADIUS;
        }
        jumps[threadIdx.x] = row;
    }
    if (threadIdx.x == 0) found = 0;
    __syncthreads();
    for (int r = warp; r < DOWN; r += 8) {
        u64 near = 0;
        for (int j = 0; j < SPAN; j++) near |= jumps[r + j];
        const bool active = x0 + lane < p.width && y0 + r < p.height && (near >> lane & ((1 << SPAN) - 1)) != 0;
        const u32 all = __ballot_sync(ALL, active);
        int begin = 0;
        if (lane == 0 && all) begin = atomicAdd(&found, __popc(all));
        begin = __shfl_sync(ALL, begin, 0);
        if (active) list[begin + __popc(all & ((1u << lane) - 1))] = (u16)(r * ACROSS + lane);
    }
    __syncthreads();
    return found;
}

// Run one step of Weiszfeld's over every second column of the window: from EVEN on in rows of even number, from ODD on in the
// others; -1: none of these rows.
template <int EVEN, int ODD>
static __device__ __forceinline__ void median_step(const float2 *corner, const float (&weight)[SPAN][2], float soft, float &u, float &v) {
    float total = 0.f, sum_u = 0.f, sum_v = 0.f;
#pragma unroll
    for (int j = 0; j < SPAN; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (i != (j % 2 ? ODD : EVEN)) continue;
            const float2 other = corner[j * NEAR_X + i];
            const float du = other.x - u, dv = other.y - v;
            const float w = weight[j][i] * reciprocal_root(du * du + (dv * dv + soft * soft));
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

// Filter the pixels near a jump in float32. Eight lanes take one pixel, each two columns of its window, and keep the weights
// in registers through all steps. SPARSE: every second column of every second row, in fewer steps.
template <bool SPARSE> static __device__ __forceinline__ void filter_in_floats(const GuidedParams &p) {
    constexpr int DOWN = 16, NEAR_Y = DOWN + 2 * RADIUS;
    __shared__ float4 colours[NEAR_Y * NEAR_X];
    __shared__ float2 flows[NEAR_Y * NEAR_X];
    __shared__ u16 list[ACROSS * DOWN];
    if (is_skipped(p.later)) return;
    const int count = list_near_jumps<DOWN>(p, list);
    if (count == 0) return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int x0 = blockIdx.x % p.tiles * ACROSS, y0 = blockIdx.x / p.tiles * DOWN;
    const GuidedInputs in = *p.inputs;
    for (int n = threadIdx.x; n < NEAR_X * NEAR_Y; n += 256) {
        const int x = x0 - RADIUS + n % NEAR_X, y = y0 - RADIUS + n / NEAR_X;
        const i64 own = (i64)y * p.pitch + x;
        float4 colour = {1e18f, 0.f, 0.f, 0.f};  // outside the frame: like no colour
        float2 flow = {0.f, 0.f};
        if (x >= 0 && x < p.width && y >= 0 && y < p.height) {
            const float *at = in.frame + y * in.y + x * in.x;
            colour.x = p.colour_scale * at[0];
            if (p.channels == 3) colour.y = p.colour_scale * at[in.c], colour.z = p.colour_scale * at[2 * in.c];
            colour.w = p.fit[own];
            flow = {p.flow[own], p.flow[own + p.plane]};
        }
        colours[n] = colour;
        flows[n] = flow;
    }
    __syncthreads();
    // Eight lanes in a row read every second of eight columns for two pixels beside each other: so no two use one bank.
    const int part = lane % 4 + (lane & 8) / 2, slot = (lane & 4) / 4 + (lane & 16) / 8;
    float near_across[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int dx = 2 * part + i - RADIUS;
        near_across[i] = dx <= RADIUS ? 1.f - p.per_reach * (dx * dx) : -1e9f;
    }
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
                if (SPARSE && !(j % 2 && i)) continue;
                const float4 other = colours[corner + j * NEAR_X + i];
                const float r = other.x - own.x, g = other.y - own.y, b = other.z - own.z;
                const float alike = fmaxf(1.f - (r * r + g * g + b * b), 0.f);
                const float near = fmaxf(near_across[i] - p.per_reach * ((j - RADIUS) * (j - RADIUS)), 0.f);
                weight[j][i] = near * alike * (alike * other.w);
            }
        float u = before.x, v = before.y;
        const float2 *window = flows + corner;
#define STEP(SOFT, EVEN, ODD) median_step<EVEN, ODD>(window, weight, SOFT, u, v);
        if (SPARSE) {
            SPARSE_FILTER_STEPS
        } else {
            FILTER_STEPS  // the last one reads the pixel itself, too
        }
#undef STEP
        if (part == 0 && number < count) settle_at(p, x0 + column, y0 + row, u, v);
    }
}

extern "C" __global__ void __launch_bounds__(256, 2) guided_median_float32(const __grid_constant__ GuidedParams p) {
    filter_in_floats<false>(p);
}
extern "C" __global__ void __launch_bounds__(256, 2) guided_median_float32_sparse(const __grid_constant__ GuidedParams p) {
    filter_in_floats<true>(p);
}

// The filter in half precision, two columns in a word: colours over `filter_colour`, and flows against the one in the tile's
// middle.
#define HALVES(NAME, OPERATION)                                              \
    static __device__ __forceinline__ u32 NAME(u32 a, u32 b) {               \
        u32 r;                                                               \
        asm(OPERATION ".f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));      \
        return r;                                                            \
    }
HALVES(add_halves, "add")
HALVES(subtract_halves, "sub")
HALVES(multiply_halves, "mul")
static __device__ __forceinline__ u32 negate_halves(u32 a) {
    u32 r;
    asm("neg.f16x2 %0, %1;" : "=r"(r) : "r"(a));
    return r;
}
static __device__ __forceinline__ u32 multiply_add_halves(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
// Clamped to 0 ... 1.
static __device__ __forceinline__ u32 multiply_add_to_one(u32 a, u32 b, u32 c) {
    u32 r;
    asm("fma.rn.sat.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}

// Return the reciprocal roots of two positive numbers to 4 %: half of the negative exponent, with a straight line between powers.
static __device__ __forceinline__ u32 rough_reciprocal_roots(u32 a) {
    u32 r;
    asm("abs.f16x2 %0, %1;" : "=r"(r) : "r"(0x59bb59bb - (a >> 1)));  // the sign is a bit of the other number
    return r;
}

constexpr int SHARERS = 4;                                            // lanes that share a pixel
constexpr int PAIRS_X = ACROSS + SPAN / 2;                            // words of a row: pixels x and x + 8

// Run one step of Weiszfeld's as `median_step`. Differences are summed: of long flows, halves have too few digits.
template <int EVEN, int ODD>
static __device__ __forceinline__ void halves_step(
    const u32 (&weight)[SPAN][2], const u32 (&flow_u)[SPAN][2], const u32 (&flow_v)[SPAN][2], float soft, float &u, float &v) {
    const u32 own_u = pair_f16(u, u), own_v = pair_f16(v, v), squared_soft = pair_f16(soft * soft, soft * soft);
    u32 totals = 0, sums_u = 0, sums_v = 0;
#pragma unroll
    for (int j = 0; j < SPAN; j++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (i != (j % 2 ? ODD : EVEN)) continue;
            const u32 du = subtract_halves(flow_u[j][i], own_u), dv = subtract_halves(flow_v[j][i], own_v);
            const u32 squared = multiply_add_halves(dv, dv, multiply_add_halves(du, du, squared_soft));
            const u32 w = multiply_halves(weight[j][i], rough_reciprocal_roots(squared));
            totals = add_halves(totals, w);
            sums_u = multiply_add_halves(w, du, sums_u);
            sums_v = multiply_add_halves(w, dv, sums_v);
        }
    u32 sums = add_halves(__byte_perm(sums_u, sums_v, 0x5410), __byte_perm(sums_u, sums_v, 0x7632));  // u, v
#pragma unroll
    for (int mask = 1; mask < SHARERS; mask *= 2) {
        totals = add_halves(totals, __shfl_xor_sync(ALL, totals, mask));
        sums = add_halves(sums, __shfl_xor_sync(ALL, sums, mask));
    }
    const float total = from_f16((u16)totals) + from_f16((u16)(totals >> 16));
    const float inverse_root = reciprocal_root(total + 1e-12f), inverse = inverse_root * inverse_root;
    const float sum_u = from_f16((u16)sums), sum_v = from_f16((u16)(sums >> 16));
    u = from_f16(to_f16(u)) + sum_u * inverse;
    v = from_f16(to_f16(v)) + sum_v * inverse;
}

// Filter the pixels near a jump in half precision. Four lanes take one pixel and hold its window in registers, four columns
// each: 0, 1, 8 and 9; 2, 3, 10 and 11; ... SPARSE: as above.
template <bool SPARSE> static __device__ __forceinline__ void filter_in_halves(const GuidedParams &p) {
    constexpr int DOWN = 32, NEAR_Y = DOWN + 2 * RADIUS;
    __shared__ uint4 colours[NEAR_Y * PAIRS_X];  // red, green, blue and fit of two pixels each
    __shared__ uint2 flows[NEAR_Y * PAIRS_X];    // u of two pixels, v of them
    __shared__ u32 near_down[SPAN];              // what a row takes from the nearness
    __shared__ u16 list[ACROSS * DOWN];
    if (is_skipped(p.later)) return;
    const int count = list_near_jumps<DOWN>(p, list);
    if (count == 0) return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int x0 = blockIdx.x % p.tiles * ACROSS, y0 = blockIdx.x / p.tiles * DOWN;
    const GuidedInputs in = *p.inputs;
    if (threadIdx.x < SPAN) {
        const int dy = (int)threadIdx.x - RADIUS;
        const float taken = fmaxf(-p.per_reach * (dy * dy), -8.f);
        near_down[threadIdx.x] = pair_f16(taken, taken);
    }
    const float *middle = p.flow + (i64)min(y0 + DOWN / 2, p.height - 1) * p.pitch + min(x0 + ACROSS / 2, p.width - 1);
    const float middle_u = middle[0], middle_v = middle[p.plane];
    // Several pixels are fetched before the first one is stored: loads do not pass stores to shared memory.
    constexpr int PIXELS = NEAR_Y * NEAR_X, BATCH = 3;
    for (int begin = threadIdx.x; begin < PIXELS; begin += BATCH * 256) {
        float values[BATCH][6];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int n = begin + k * 256, column = x0 - RADIUS + n % NEAR_X, row = y0 - RADIUS + n / NEAR_X;
            const int x = min(max(column, 0), p.width - 1), y = min(max(row, 0), p.height - 1);
            const i64 own = (i64)y * p.pitch + x;
            const float *at = in.frame + y * in.y + x * in.x;
#pragma unroll
            for (int c = 0; c < 3; c++) values[k][c] = c < p.channels ? at[c * in.c] : 0.5f;
            values[k][3] = x == column && y == row ? p.fit[own] : 0.f;  // outside the frame: no weight
            values[k][4] = p.flow[own], values[k][5] = p.flow[own + p.plane];
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const int n = begin + k * 256, column = n % NEAR_X, row = n / NEAR_X;
            const bool stores = n < PIXELS;
            u16 halves[6];
#pragma unroll
            for (int c = 0; c < 3; c++) halves[c] = to_f16(fminf(fmaxf(p.colour_scale * (values[k][c] - 0.5f), -100.f), 100.f));
            halves[3] = to_f16(values[k][3]);
            halves[4] = to_f16(fminf(fmaxf(values[k][4] - middle_u, -3e4f), 3e4f));
            halves[5] = to_f16(fminf(fmaxf(values[k][5] - middle_v, -3e4f), 3e4f));
#pragma unroll
            for (int second = 0; second < 2; second++) {
                const int at = row * PAIRS_X + column - 8 * second;
                if (!stores || (second ? column < 8 : column >= PAIRS_X)) continue;
#pragma unroll
                for (int c = 0; c < 4; c++) ((u16 *)colours)[8 * at + 2 * c + second] = halves[c];
#pragma unroll
                for (int c = 0; c < 2; c++) ((u16 *)flows)[4 * at + 2 * c + second] = halves[4 + c];
            }
        }
    }
    __syncthreads();
    const int part = lane % SHARERS, slot = lane / SHARERS;
    const u32 one = 0x3c003c00;
    u32 near_across[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int dx = 2 * part + i - RADIUS;
        const float second = dx + 8 <= RADIUS ? 1.f - p.per_reach * ((dx + 8) * (dx + 8)) : -8.f;
        near_across[i] = pair_f16(fmaxf(1.f - p.per_reach * (dx * dx), -8.f), fmaxf(second, -8.f));
    }
    int kept = -1;  // a pixel that the lane has yet to write: every fourth time all lanes write one
    float kept_u, kept_v;
    for (int begin = warp * 8, turn = 0; begin < count; begin += 64, turn++) {
        const int number = begin + slot, pixel = list[min(number, count - 1)];
        const int row = pixel / ACROSS, column = pixel % ACROSS, centre = (row + RADIUS) * PAIRS_X + column + RADIUS;
        const int corner = row * PAIRS_X + column + 2 * part;
        const uint4 own = colours[centre];
        const u32 red = __byte_perm(own.x, 0, 0x1010), green = __byte_perm(own.y, 0, 0x1010), blue = __byte_perm(own.z, 0, 0x1010);
        float u = from_f16((u16)flows[centre].x), v = from_f16((u16)flows[centre].y);
        u32 weight[SPAN][2], flow_u[SPAN][2], flow_v[SPAN][2];
#pragma unroll
        for (int j = 0; j < SPAN; j++) {
            const u32 down = near_down[j];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (SPARSE && !(j % 2 && i)) continue;
                const uint4 other = colours[corner + j * PAIRS_X + i];
                const uint2 flow = flows[corner + j * PAIRS_X + i];
                const u32 r = subtract_halves(other.x, red), g = subtract_halves(other.y, green), b = subtract_halves(other.z, blue);
                u32 alike = multiply_add_halves(negate_halves(r), r, one);
                alike = multiply_add_halves(negate_halves(g), g, alike);
                alike = multiply_add_to_one(negate_halves(b), b, alike);
                const u32 near = multiply_add_to_one(near_across[i], one, down);
                weight[j][i] = multiply_halves(multiply_halves(multiply_halves(alike, alike), other.w), near);
                flow_u[j][i] = flow.x, flow_v[j][i] = flow.y;
            }
        }
#define STEP(SOFT, EVEN, ODD) halves_step<EVEN, ODD>(weight, flow_u, flow_v, SOFT, u, v);
        if (SPARSE) {
            SPARSE_FILTER_STEPS
        } else {
            FILTER_STEPS
        }
#undef STEP
        if (turn % SHARERS == part && number < count) kept = pixel, kept_u = u, kept_v = v;
        if (turn % SHARERS < SHARERS - 1 && begin + 64 < count) continue;
        if (kept >= 0) settle_at(p, x0 + kept % ACROSS, y0 + kept / ACROSS, middle_u + kept_u, middle_v + kept_v);
        kept = -1;
    }
}

extern "C" __global__ void __launch_bounds__(256, __CUDA_ARCH__ < 800 ? 1 : 2) guided_median_float16(const __grid_constant__ GuidedParams p) {
    filter_in_halves<false>(p);
}
extern "C" __global__ void __launch_bounds__(256, __CUDA_ARCH__ < 800 ? 2 : 4) guided_median_float16_sparse(const __grid_constant__ GuidedParams p) {
    filter_in_halves<true>(p);
}
