// One warp of the solver in one pass: the data term linearised, all iterations, the median. A block does it for a tile of
// the frame, in registers: 32 lanes of EACH columns, GROUPS warps of ROWS rows. What lies around the tile's
// own pixels, as far as iterations and median reach, is computed again by its neighbours. Neighbours in a warp's rows
// come by shuffles, the rows of the warps above and below through shared memory.
//
// A region never leaves the frame where the frame is at least as large (SMALL = 0): then the frame's border is the
// region's, and needs no tests inside. Arithmetic is float32, whatever the level is stored in. Follows images.cuh,
// iterate_common.cuh (HALF = 0), sampling.cuh and medians.cuh.
//
// Macros set by the launcher:
//   GROUPS, ROWS, EACH   as said; EACH is 1 or 2
//   KEPT           whether the data term is kept in registers, not in shared memory
//   SMALL          whether the frame is narrower or lower than a region
//   CLAMP          whether the divergence takes indices clamped to the frame, or zero outside of it
//   REACH          of the median: half the window's side
//   NARROW         whether the dual variable is stored in half precision
#if NARROW
typedef u16 T;
#else
typedef float T;
#endif
constexpr int WIDE = 32 * EACH, HIGH = GROUPS * ROWS, THREADS = 32 * GROUPS;
constexpr int BELOW = REACH > 1 ? REACH : 1;  // rows below and columns beside that the last dual step reads
constexpr int FIELD = WIDE + 2;               // floats of a row for the median
// A patch of the second frame in shared memory, where the whole pixels of the region's flow differ by SPAN at most.
constexpr int SPAN = 16, PATCH = WIDE + 5 + SPAN, STILL = WIDE + 2;
static_assert(sizeof(float4) * WIDE >= 2 * sizeof(float) * FIELD, "the median takes the data term's place");

struct FusedParams {
    const float *first, *second;  // [B, height, image_pitch]
    const float *from;            // [B, 2, height, image_pitch] the flow before
    float *target;                // [B, 2, height, target_pitch] the flow after; not `from`
    float *const *target_at;      // null, or where the target's address lies
    const T *dual;                // first plane of item 0; null: zero
    T *dual_out;                  // null: of no use
    i64 image_plane;              // floats from one plane to the next
    i64 plane, item;              // elements of the level from one plane, one item to the next
    i64 from_item;                // floats of the flow from one item to the next
    i64 target_plane, target_item;
    int *flags;                   // null, or where bit 2 tells of NaN or infinity
    float blend, slope, tau, bound;
    int height, width, image_pitch, pitch, target_pitch;
    int iterations, lead;           // lead: columns and rows before a tile's own, even
    int columns, rows;              // of a tile's own pixels, columns even; tiles at the border have more
    int tiles_x, tiles_y;
};

// What a thread has of a row.
struct __align__(4 * EACH) Cells { float c[EACH]; };

static __device__ __forceinline__ Cells stored(const T *at) {
    Cells a;
#if !NARROW
    a = *(const Cells *)at;
#elif EACH == 2
    const u32 both = *(const u32 *)at;
    a = {from_f16((u16)both), from_f16((u16)(both >> 16))};
#else
    a = {from_f16(*at)};
#endif
    return a;
}
static __device__ __forceinline__ void store(T *at, const Cells &a) {
#if !NARROW
    *(Cells *)at = a;
#elif EACH == 2
    *(u32 *)at = to_f16(a.c[0]) | (u32)to_f16(a.c[EACH - 1]) << 16;
#else
    *at = to_f16(a.c[0]);
#endif
}

extern "C" __global__ void __launch_bounds__(32 * GROUPS, 16 / GROUPS) fused_warp(const __grid_constant__ FusedParams p) {
    extern __shared__ __align__(16) float4 memory[];
    float4 *data = memory;  // [HIGH, EACH, 32]
    // Of every warp's first row the flow, of its last the dual's share down: [GROUPS, 2, 32].
    Cells *edge_u = (Cells *)(memory + HIGH * WIDE), *edge_p = edge_u + GROUPS * 64;
    int4 *boxes = (int4 *)(edge_p + GROUPS * 64);  // of every warp
    float *still = (float *)(boxes + GROUPS);      // [HIGH + 2, STILL] the first frame, from a pixel up and left on
    float *patch = still + (HIGH + 2) * STILL;     // [HIGH + 5 + SPAN, PATCH] the second
    const int lane = threadIdx.x % 32, group = __shfl_sync(~0u, threadIdx.x / 32, 0);
    u32 block = blockIdx.x;
    const int tile_x = block % p.tiles_x;
    block /= p.tiles_x;
    const int tile_y = block % p.tiles_y;
    const i64 item = block / p.tiles_y;
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    const int x0 = tile_x ? tile_x * p.columns + p.lead : 0, x1 = tile_x < p.tiles_x - 1 ? (tile_x + 1) * p.columns + p.lead : p.width;
    const int y0 = tile_y ? tile_y * p.rows + p.lead : 0, y1 = tile_y < p.tiles_y - 1 ? (tile_y + 1) * p.rows + p.lead : p.height;
    const int left = max(0, min(x0 - p.lead, p.width + 1 - WIDE & ~1)), top = max(0, min(y0 - p.lead, p.height - HIGH));
    const float *flow = p.from + item * p.from_item;

    // A thread's own: rows from `y` on, columns from `x` on.
    const int x = left + EACH * lane, y = top + group * ROWS;
    Cells u[2][ROWS], q[4][ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int cx = SMALL ? min(x, p.width - 1 & -EACH) : x, cy = SMALL ? min(y + r, p.height - 1) : y + r;
        const i64 from = (i64)cy * p.image_pitch + cx, at = item * p.item + (i64)cy * p.pitch + cx;
#pragma unroll
        for (int i = 0; i < 2; i++) u[i][r] = *(const Cells *)(flow + i * p.image_plane + from);
#pragma unroll
        for (int i = 0; i < 4; i++) q[i][r] = p.dual ? stored(p.dual + at + i * p.plane) : Cells{};
    }

    // Pixels beside a frame are those at its border.
    const auto fetch = [&](const float *image, float *to, int pitch, int from_x, int from_y, int wide, int high) {
        for (int r = group; r < high; r += GROUPS) {
            const float *line = image + (i64)min(max(from_y + r, 0), p.height - 1) * p.image_pitch;
            const u32 at = (u32)__cvta_generic_to_shared(to + r * pitch);
            for (int c = lane; c < wide; c += 32)
                asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(at + 4 * c), "l"(line + min(max(from_x + c, 0), p.width - 1)), "r"(4) : "memory");
        }
    };
    fetch(p.first + item * p.image_plane, still, STILL, left - 1, top - 1, WIDE + 2, HIGH + 2);
#pragma unroll
    for (int n = 0; n < ROWS * EACH; n++) data[(group * ROWS * EACH + n) * 32 + lane] = {u[0][n / EACH].c[n % EACH], u[1][n / EACH].c[n % EACH], 0.f, 0.f};

    // Where the flow points: whole pixels, over the region.
    const Frames frames = {p.first + item * p.image_plane, p.second + item * p.image_plane, p.image_pitch, p.height, p.width, p.blend};
    int low_x = 1 << 30, high_x = -(1 << 30), low_y = 1 << 30, high_y = -(1 << 30);
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const float px = x + j + u[0][r].c[j], py = y + r + u[1][r].c[j];
            if (x + j < p.width && y + r < p.height && px >= 0.f && px <= p.width - 1 && py >= 0.f && py <= p.height - 1) {
                const int dx = (int)floorf(px) - x - j, dy = (int)floorf(py) - y - r;
                low_x = min(low_x, dx), high_x = max(high_x, dx), low_y = min(low_y, dy), high_y = max(high_y, dy);
            }
        }
    low_x = __reduce_min_sync(~0u, low_x), high_x = __reduce_max_sync(~0u, high_x);
    low_y = __reduce_min_sync(~0u, low_y), high_y = __reduce_max_sync(~0u, high_y);
    if (lane == 0) boxes[group] = make_int4(low_x, high_x, low_y, high_y);
    __syncthreads();
    const int4 box = boxes[lane % GROUPS];
    low_x = __reduce_min_sync(~0u, box.x), high_x = __reduce_max_sync(~0u, box.y);
    low_y = __reduce_min_sync(~0u, box.z), high_y = __reduce_max_sync(~0u, box.w);
    const bool narrow = high_x - low_x <= SPAN && high_y - low_y <= SPAN;
    const int patch_x = left + low_x - 2, patch_y = top + low_y - 2;
    if (narrow && high_x >= low_x)
        fetch(frames.second, patch, PATCH, patch_x, patch_y, WIDE + 5 + high_x - low_x, HIGH + 5 + high_y - low_y);
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();

    // The data term, pixel after pixel along the rows; those beside the frame are of no use.
    const auto linearise = [&](int k, auto second) {
        const int n = k * THREADS + threadIdx.x, cx = left + n % WIDE, cy = top + n / WIDE;
        float4 *at = data + (n / WIDE * EACH + n % EACH) * 32 + n % WIDE / EACH;
        const float a = at->x, b = at->y, *own = still + (n / WIDE + 1) * STILL + n % WIDE + 1;
        Place place;
        const bool inside = placed(frames, cx, cy, a, b, place) && cx < p.width && (!SMALL || cy < p.height);
        const Sample s = second(place, inside);
        const Linear l = blended(s, own[0], own[1] - own[-1], own[STILL] - own[-STILL], p.blend);
        float4 d = {l.gx, l.gy, l.residual - (l.gx * a + l.gy * b), 0.f};
        if (!inside) d = {0.f, 0.f, 0.f, 0.f};
        normalise(d.x, d.y, d.z, d.w, p.bound);
        *at = d;
    };
    if (narrow) {
#pragma unroll 2
        for (int k = 0; k < ROWS * EACH; k++)
            linearise(k, [&](const Place &place, bool inside) {
                const float *corner = patch + (inside ? (place.row - 2 - patch_y) * PATCH + place.column - 2 - patch_x : 0);
                return sampled(place, [=](int j) { return [=](int i) { return corner[j * PATCH + i]; }; });
            });
    } else {
#pragma unroll 1
        for (int k = 0; k < ROWS * EACH; k++)
            linearise(k, [&](const Place &place, bool inside) { return inside ? sampled(frames, place) : Sample{0.f, 0.f, 0.f}; });
    }
#pragma unroll
    for (int i = 0; i < 2; i++) edge_p[(group * 2 + i) * 32 + lane] = q[2 * i + 1][ROWS - 1];
    __syncthreads();
    const float4 *own = data + group * ROWS * WIDE + lane;
#if KEPT
    float4 kept[ROWS][EACH];
#pragma unroll
    for (int n = 0; n < ROWS * EACH; n++) kept[n / EACH][n % EACH] = own[n * 32];
#endif

#pragma unroll 1
    for (int spare = p.iterations - 1; spare >= 0; spare--) {  // iterations to come
        // Towards the end fewer rows are of use to the tile's own pixels.
        const bool busy = y + ROWS > y0 - REACH - spare && y < y1 + BELOW + spare;
        if (busy) {
            Cells above[2] = {};
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (group) above[i] = edge_p[((group - 1) * 2 + i) * 32 + lane];
                else if (CLAMP) above[i] = q[2 * i + 1][0];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float before[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    before[i] = __shfl_sync(~0u, q[2 * i][r].c[EACH - 1], (lane + 31) & 31);
                    if (lane == 0) before[i] = CLAMP ? q[2 * i][r].c[0] : 0.f;
                }
#pragma unroll
                for (int j = 0; j < EACH; j++) {
#if KEPT
                    const float4 d = kept[r][j];
#else
                    const float4 d = own[(r * EACH + j) * 32];
#endif
                    const float step = data_step(u[0][r].c[j], u[1][r].c[j], {d.x, d.y, d.z, d.w});
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const float up = r ? q[2 * i + 1][r ? r - 1 : 0].c[j] : above[i].c[j], across = q[2 * i][r].c[j];
                        u[i][r].c[j] = flow_step(u[i][r].c[j], step, i ? d.y : d.x, across, before[i], q[2 * i + 1][r].c[j], up);
                        before[i] = across;
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < 2; i++) edge_u[(group * 2 + i) * 32 + lane] = u[i][0];
        }
        __syncthreads();
        if (busy) {
            Cells below[2];
#pragma unroll
            for (int i = 0; i < 2; i++) below[i] = group < GROUPS - 1 ? edge_u[((group + 1) * 2 + i) * 32 + lane] : u[i][ROWS - 1];
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float right[2];
#pragma unroll
                for (int i = 0; i < 2; i++) right[i] = __shfl_sync(~0u, u[i][r].c[0], (lane + 1) & 31);
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    float gx[2], gy[2], s[2];
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const float down = r < ROWS - 1 ? u[i][r < ROWS - 1 ? r + 1 : r].c[j] : below[i].c[j];
                        gx[i] = (j < EACH - 1 ? u[i][r].c[j < EACH - 1 ? j + 1 : j] : right[i]) - u[i][r].c[j];
                        gy[i] = down - u[i][r].c[j];
                        if (x + j == p.width - 1) gx[i] = 0.f;
                        if (SMALL && y + r == p.height - 1) gy[i] = 0.f;
                    }
                    shrinks(gx[0], gy[0], gx[1], gy[1], p.slope, s[0], s[1]);
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        q[2 * i][r].c[j] = dual_step(q[2 * i][r].c[j], p.tau, gx[i], s[i]);
                        q[2 * i + 1][r].c[j] = dual_step(q[2 * i + 1][r].c[j], p.tau, gy[i], s[i]);
                    }
                }
            }
#pragma unroll
            for (int i = 0; i < 2; i++) edge_p[(group * 2 + i) * 32 + lane] = q[2 * i + 1][ROWS - 1];
        }
        __syncthreads();
    }

    // The tile's own pixels.
    if (p.dual_out && x >= x0 && x < x1)
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (y + r >= y0 && y + r < y1) {
                T *at = p.dual_out + item * p.item + (i64)(y + r) * p.pitch + x;
#pragma unroll
                for (int i = 0; i < 4; i++) store(at + i * p.plane, q[i][r]);
            }
    float *field = (float *)memory;  // [2, HIGH, FIELD]
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) *(Cells *)(field + (i * HIGH + group * ROWS + r) * FIELD + EACH * lane) = u[i][r];
    __syncthreads();
    float *target = (p.target_at ? *p.target_at : p.target) + item * p.target_item;
    const int cells_x = (x1 - x0 + 1) / 2, cells = cells_x * ((y1 - y0 + 1) / 2);
    bool finite = true;
#pragma unroll 1
    for (int n = threadIdx.x; n < 2 * cells; n += THREADS) {
        constexpr int SIDE = 2 * REACH + 2;
        const int i = n >= cells, cell = i ? n - cells : n, cx = x0 + cell % cells_x * 2, cy = y0 + cell / cells_x * 2;
        float v[SIDE][SIDE], out[2][2];
        if (REACH % 2 == 0 && cx >= REACH && cx + REACH + 1 < p.width && cy >= REACH && cy + REACH + 1 < p.height) {
            const float *corner = field + (i * HIGH + cy - REACH - top) * FIELD + cx - REACH - left;
#pragma unroll
            for (int a = 0; a < SIDE; a++)
#pragma unroll
                for (int b = 0; b < SIDE; b += 2) {
                    const float2 two = *(const float2 *)(corner + a * FIELD + b);
                    v[a][b] = two.x, v[a][b + 1] = two.y;
                }
        } else {
#pragma unroll
            for (int a = 0; a < SIDE; a++)
#pragma unroll
                for (int b = 0; b < SIDE; b++)
                    v[a][b] = field[(i * HIGH + min(max(cy - REACH + a, 0), p.height - 1) - top) * FIELD +
                                    min(max(cx - REACH + b, 0), p.width - 1) - left];
        }
        medians(v, out);
        float *to = target + i * p.target_plane + (i64)cy * p.target_pitch + cx;
#pragma unroll
        for (int a = 0; a < 2; a++)
#pragma unroll
            for (int b = 0; b < 2; b++)
                if (cx + b < x1 && cy + a < y1) {
                    to[a * (i64)p.target_pitch + b] = out[a][b];
                    finite = finite && fabsf(out[a][b]) < __int_as_float(0x7f800000);
                }
    }
    if (p.flags && !finite) atomicOr(p.flags, 4);
}
