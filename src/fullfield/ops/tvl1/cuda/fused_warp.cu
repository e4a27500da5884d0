// One warp of the solver in one pass: linearisation of the data term, all iterations, and the median. CLUSTER blocks, one
// below the other, hold a tile of the frame in registers: a block has GROUPS warps of ROWS rows, a lane EACH columns. The
// pixels around the tile's own, as far as iterations and median reach, are computed again by the tiles beside it. Lanes of
// a warp exchange values by shuffles, warps through shared memory, also that of the next block. Only two warps that
// exchange a row wait for one another.
//
// If the frame is at least as large as a region, regions lie inside it (SMALL = 0): then the frame's border is a region's,
// and needs no tests inside. Arithmetic is float32. Built behind halves.cuh, values.cuh (Value: type of the dual variable),
// copies.cuh, barriers.cuh, warps.cuh, iterate_common.cuh (HALF = 0), sampling.cuh and medians.cuh.
//
// Macros set by the launcher:
//   GROUPS, ROWS   warps of a block, rows of a warp
//   EACH           columns of a lane: 1, 2 or 4
//   CLUSTER        blocks of a tile; above 1 from sm_90 on
//   RESIDENT       blocks on a multiprocessor that registers must suffice for
//   SPAN           whole pixels by which a block's flow may differ for the second frame to be sampled in shared memory
//   KEPT           whether the data term is kept in registers, not in shared memory
//   SMALL          whether the frame is narrower or lower than a region
//   CLAMP          whether the divergence takes indices clamped to the frame, or zero outside of it
//   REACH          half the side of the median's window
#if CLUSTER > 1
#define TOGETHER __cluster_dims__(CLUSTER, 1, 1)
#else
#define TOGETHER
#endif
constexpr int WIDE = 32 * EACH, HIGH = GROUPS * ROWS, THREADS = 32 * GROUPS;
constexpr int BELOW = REACH > 1 ? REACH : 1;  // rows below and columns to the right that the last dual step reads
constexpr int STEP = EACH > 2 ? EACH : 2;     // regions begin at multiples of so many columns
constexpr int STILL = WIDE + 8, PATCH = WIDE + 8 + SPAN;  // floats of a row of each frame in shared memory
constexpr int FIELD = WIDE + STEP, FIELD_ROWS = HIGH + 2 * REACH + 1;  // for the median: a row's floats, a component's rows
static_assert(2 * FIELD * FIELD_ROWS <= STILL * (HIGH + 2) + PATCH * (HIGH + 5 + SPAN), "the median takes the frames' place");

struct FusedParams {
    const float *first, *second;  // [B, height, image_pitch]
    const float *from;            // [B, 2, height, image_pitch] the flow before
    float *target;                // [B, 2, height, target_pitch] the flow after; not `from`
    float *const *target_at;      // null, or where the target's address lies
    const Value *dual;            // first plane of item 0; null: zero
    Value *dual_out;              // null: not stored
    i64 image_plane;              // floats from one plane to the next
    i64 plane, item;              // elements of the level from one plane, one item to the next
    i64 from_item;                // floats of the flow from one item to the next
    i64 target_plane, target_item;
    int *flags;                   // null, or where bit 2 is set for NaN or infinity
    float blend, slope, tau, bound;
    int height, width, image_pitch, pitch, target_pitch;
    int iterations, lead;         // lead: columns and rows before a tile's own, even
    int columns, rows;            // size of a tile's own pixels, columns even; tiles at the border have more
    int tiles_x, tiles_y;
};

// A thread's columns of a row.
struct __align__(4 * EACH) Cells { float c[EACH]; };

static __device__ __forceinline__ Cells stored(const Value *at) {
    Cells a;
#if !IN
    a = *(const Cells *)at;
#elif EACH == 1
    a.c[0] = from_f16(*at);
#else
#pragma unroll
    for (int j = 0; j < EACH; j += 2) {
        const u32 both = *(const u32 *)(at + j);
        a.c[j] = from_f16((u16)both), a.c[j + 1] = from_f16((u16)(both >> 16));
    }
#endif
    return a;
}
static __device__ __forceinline__ void store(Value *at, const Cells &a) {
#if !IN
    *(Cells *)at = a;
#elif EACH == 1
    *at = to_f16(a.c[0]);
#else
#pragma unroll
    for (int j = 0; j < EACH; j += 2) *(u32 *)(at + j) = to_f16(a.c[j]) | (u32)to_f16(a.c[j + 1]) << 16;
#endif
}

// Signals from one warp to another. `barrier` is an mbarrier of 32 arrivals; before sm_80, which has none, it counts them.
static __device__ __forceinline__ void make(i64 *barrier, int arrivals) {
#if __CUDA_ARCH__ >= 800
    barrier_init(shared_address(barrier), arrivals);
#else
    *(volatile u32 *)barrier = 0;
#endif
}
#if __CUDA_ARCH__ >= 800
static __device__ __forceinline__ void tell(i64 *barrier) { barrier_arrive(shared_address(barrier)); }
static __device__ __forceinline__ void await(const i64 *barrier, u32 parity) { barrier_wait(shared_address(barrier), parity); }
#else
static __device__ __forceinline__ void tell(i64 *barrier) {
    __threadfence_block();
    atomicAdd((u32 *)barrier, 1u);
}
static __device__ __forceinline__ void await(const i64 *barrier, u32 parity) {
    const volatile u32 *count = (const volatile u32 *)barrier;
    while ((*count >> 5 & 1) == parity) {}
    __threadfence_block();
}
#endif

#if CLUSTER > 1
// Return the address of an object in this block's shared memory as it is in block `part` of the cluster.
static __device__ __forceinline__ u32 in_part(const void *own, int part) {
    u32 at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(own)), "r"(part));
    return at;
}
static __device__ __forceinline__ void give(u32 at, const Cells &a) {
#if EACH == 4
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at), "f"(a.c[0]), "f"(a.c[1]), "f"(a.c[2]), "f"(a.c[3]) : "memory");
#elif EACH == 2
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(at), "f"(a.c[0]), "f"(a.c[1]) : "memory");
#else
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(a.c[0]) : "memory");
#endif
}
// Send values to another block, whose barrier counts the bytes that arrive.
#define ASYNC "st.async.shared::cluster.mbarrier::complete_tx::bytes"
static __device__ __forceinline__ void send(u32 at, const Cells &a, u32 barrier) {
#if EACH == 4
    asm volatile(ASYNC ".v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(at), "f"(a.c[0]), "f"(a.c[1]), "f"(a.c[2]), "f"(a.c[3]), "r"(barrier) : "memory");
#elif EACH == 2
    asm volatile(ASYNC ".v2.f32 [%0], {%1, %2}, [%3];" ::"r"(at), "f"(a.c[0]), "f"(a.c[1]), "r"(barrier) : "memory");
#else
    asm volatile(ASYNC ".f32 [%0], %1, [%2];" ::"r"(at), "f"(a.c[0]), "r"(barrier) : "memory");
#endif
}
static __device__ __forceinline__ void expect(const i64 *barrier, u32 bytes) { barrier_expect(shared_address(barrier), bytes); }
#endif

template <int N> struct Floats { static constexpr int value = N; };
struct Yes { static constexpr bool value = true; };
struct No { static constexpr bool value = false; };

extern "C" __global__ void __launch_bounds__(32 * GROUPS, RESIDENT) TOGETHER fused_warp(const __grid_constant__ FusedParams p) {
    extern __shared__ __align__(16) float4 memory[];
    float4 *data = memory;  // [HIGH, EACH, 32], a row's rotated by 8 / EACH for every column of a lane
    // [GROUPS + 1, 2, 32]: the flow of every warp's first row, last the block's below; the dual variable's share
    // down of every warp's last row, first the block's above.
    Cells *edge_u = (Cells *)(memory + HIGH * WIDE), *edge_p = edge_u + (GROUPS + 1) * 64;
    int4 *boxes = (int4 *)(edge_p + (GROUPS + 1) * 64);  // one for every warp
    // Barriers of every warp: rows from the warp above and below have come.
    i64 *from_above = (i64 *)(boxes + GROUPS), *from_below = from_above + GROUPS;
    i64 *arrived = from_below + GROUPS;              // the same for the frames
    float *still = (float *)(arrived + 2);           // [HIGH + 2, STILL] the first frame, from a row up on
    float *patch = still + (HIGH + 2) * STILL;     // [HIGH + 5 + SPAN, PATCH] the second
    const int group = __shfl_sync(ALL, threadIdx.x / 32, 0);
    u32 number;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(number));  // once: a loop would read threadIdx again and again
    const int lane = number;
    u32 block = blockIdx.x;
    const int part = block % CLUSTER;
    block /= CLUSTER;
    const int tile_x = block % p.tiles_x;
    block /= p.tiles_x;
    const int tile_y = block % p.tiles_y;
    const i64 item = block / p.tiles_y;
    const bool across = CLUSTER > 1 && (threadIdx.x == 0 || threadIdx.x == 2 * GROUPS - 1);  // bytes from another block
    if (threadIdx.x < 2 * GROUPS) make(from_above + threadIdx.x, across ? 1 : 32);
#if CLUSTER > 1
    if (threadIdx.x == 0) make(arrived, 1);
    if (across) expect(from_above + threadIdx.x, 64 * sizeof(Cells));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    __syncwarp();
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    const int x0 = tile_x ? tile_x * p.columns + p.lead : 0, x1 = tile_x < p.tiles_x - 1 ? (tile_x + 1) * p.columns + p.lead : p.width;
    const int y0 = tile_y ? tile_y * p.rows + p.lead : 0, y1 = tile_y < p.tiles_y - 1 ? (tile_y + 1) * p.rows + p.lead : p.height;
    const int left = max(0, min(x0 - p.lead, p.width + STEP - 1 - WIDE & -STEP));
    const int top = max(0, min(y0 - p.lead, p.height - HIGH * CLUSTER)) + part * HIGH;
    const float *flow = p.from + item * p.from_item;

    // The thread's rows from `y` on and columns from `x` on.
    const int x = left + EACH * lane, y = top + group * ROWS;
    Cells u[2][ROWS], q[4][ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int cx = SMALL ? min(x, p.width - 1 & -EACH) : x, cy = SMALL ? min(y + r, p.height - 1) : y + r;
        const i64 from = (i64)cy * p.image_pitch + cx;
#pragma unroll
        for (int i = 0; i < 2; i++) u[i][r] = *(const Cells *)(flow + i * p.image_plane + from);
    }

    // Copy rows of a frame from (from_x, from_y) on, from_x a multiple of 4: `pitch` floats, of which `wide` are read.
    // Pixels outside the frame repeat its border. Warps before `end` copy, if rows arrive by bulk copies. Return the bytes
    // that `arrived` will count; 0 if every thread has to wait for its own copies.
    const auto fetch = [&](const float *image, float *to, auto pitch, int from_x, int from_y, int wide, int high, int end) {
        constexpr int FLOATS = decltype(pitch)::value, FOURS = FLOATS / 4;
        if (from_x >= 0 && from_x + FLOATS <= p.width) {
#if CLUSTER > 1
            for (int r = group * 32 + lane; r < high && group < end; r += end * 32) {
                const float *from = image + (i64)min(max(from_y + r, 0), p.height - 1) * p.image_pitch + from_x;
                copy_bulk(shared_address(to + r * FLOATS), from, 4 * FLOATS, shared_address(arrived));
            }
            return 4 * FLOATS * high;
#else
            for (int n = threadIdx.x; n < high * FOURS; n += THREADS) {
                const int r = n / FOURS, c = n % FOURS * 4;
                const float *from = image + (i64)min(max(from_y + r, 0), p.height - 1) * p.image_pitch + from_x + c;
                copy_async<16>(shared_address(to + r * FLOATS + c), from, true);
            }
#endif
        } else {
            for (int r = group; r < high; r += GROUPS) {
                const float *line = image + (i64)min(max(from_y + r, 0), p.height - 1) * p.image_pitch;
                const u32 at = shared_address(to + r * FLOATS);
                for (int c = lane; c < wide; c += 32) copy_async<4>(at + 4 * c, line + min(max(from_x + c, 0), p.width - 1), true);
            }
        }
        return 0;
    };
    const int still_x = left - 1 & -4;
    const int still_bytes = fetch(p.first + item * p.image_plane, still, Floats<STILL>{}, still_x, top - 1, STILL, HIGH + 2, 1);
    constexpr int TURN = EACH > 1 ? 8 / EACH : 0;
    float4 *own = data + group * ROWS * WIDE;
#pragma unroll
    for (int n = 0; n < ROWS * EACH; n++) own[n * 32 + (lane + n % EACH * TURN & 31)] = {u[0][n / EACH].c[n % EACH], u[1][n / EACH].c[n % EACH], 0.f, 0.f};

    // Find the box of whole pixels that the flow points to, over the block's part of the region.
    const Frames frames = {p.first + item * p.image_plane, p.second + item * p.image_plane, p.image_pitch, p.height, p.width, p.blend};
    int low_x = 1 << 20, high_x = -(1 << 20), low_y = 1 << 20, high_y = -(1 << 20);
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
    low_x = warp_min(low_x), high_x = warp_max(high_x);
    low_y = warp_min(low_y), high_y = warp_max(high_y);
    if (lane == 0) boxes[group] = make_int4(low_x, high_x, low_y, high_y);
    __syncthreads();
    const int4 box = boxes[lane % GROUPS];
    low_x = warp_min(box.x), high_x = warp_max(box.y);
    low_y = warp_min(box.z), high_y = warp_max(box.w);
    const bool narrow = high_x - low_x <= SPAN && high_y - low_y <= SPAN;
    const int patch_x = left + low_x - 2 & -4, patch_y = top + low_y - 2;
    const bool any = narrow && high_x >= low_x;
    const int patch_bytes = any ? fetch(frames.second, patch, Floats<PATCH>{}, patch_x, patch_y, left + WIDE + 3 + high_x - patch_x, HIGH + 5 + high_y - low_y, GROUPS) : 0;
    // The dual variable is loaded while the data term is computed.
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int cx = SMALL ? min(x, p.width - 1 & -EACH) : x, cy = SMALL ? min(y + r, p.height - 1) : y + r;
        const i64 at = item * p.item + (i64)cy * p.pitch + cx;
#pragma unroll
        for (int i = 0; i < 4; i++) q[i][r] = p.dual ? stored(p.dual + at + i * p.plane) : Cells{};
    }
#if CLUSTER > 1
    if (threadIdx.x == 0) expect(arrived, still_bytes + patch_bytes);
    await(arrived, 0);
    if (still_bytes == 0 || any && patch_bytes == 0)
#endif
    {
        await_all_copies();
        __syncthreads();
    }

    // Compute the data term of pixel `k` of a warp's rows; that of pixels outside the frame does not matter.
    const auto linearise = [&](int k, auto borders, auto second) {
        const int row = k / EACH, column = k % EACH * 32 + lane, cx = left + column, cy = y + row;
        float4 *at = own + (row * EACH + lane % EACH) * 32 + (column / EACH + lane % EACH * TURN & 31);
        const float a = at->x, b = at->y, *here = still + (group * ROWS + row + 1) * STILL + cx - still_x;
        Place place;
        const bool inside = placed<decltype(borders)::value>(frames, cx, cy, a, b, place) && cx < p.width && (!SMALL || cy < p.height);
        const Sample s = second(place, inside);
        const Linear l = blended(s, here[0], here[1] - here[-1], here[STILL] - here[-STILL], p.blend);
        float4 d = {l.gx, l.gy, l.residual - (l.gx * a + l.gy * b), 0.f};
        if (!inside) d = {0.f, 0.f, 0.f, 0.f};
        normalise(d.x, d.y, d.z, d.w, p.bound);
        *at = d;
    };
    const auto from_patch = [&](const Place &place, bool inside) {
        const float *corner = patch + (inside ? (place.row - 2 - patch_y) * PATCH + place.column - 2 - patch_x : 0);
        return sampled(place, [=](int j) { return [=](int i) { return corner[j * PATCH + i]; }; });
    };
    if (!narrow) {
#pragma unroll 1
        for (int k = 0; k < ROWS * EACH; k++)
            linearise(k, Yes{}, [&](const Place &place, bool inside) { return inside ? sampled(frames, place) : Sample{0.f, 0.f, 0.f}; });
    } else if (left + low_x > 0 && left + WIDE + high_x < p.width - 1 && top + low_y > 0 && top + HIGH + high_y < p.height - 1) {
#pragma unroll 2
        for (int k = 0; k < ROWS * EACH; k++) linearise(k, No{}, from_patch);
    } else {
#pragma unroll 1
        for (int k = 0; k < ROWS * EACH; k++) linearise(k, Yes{}, from_patch);
    }

    // Return the iterations of the warp whose rows begin at `row`: later ones need fewer rows around the tile's own.
    const auto turns_at = [&](int row) { return p.iterations - max(0, max(y0 - REACH - row - ROWS + 1, row - y1 - BELOW + 1)); };
    const bool has_above = group > 0 || part > 0, has_below = group < GROUPS - 1 || part < CLUSTER - 1;
    const bool first_out = CLUSTER > 1 && group == 0, last_out = CLUSTER > 1 && group == GROUPS - 1;  // to another block, if at all
    const int turns = turns_at(y);
    // Iterations in which the warp gets the dual's share from above and gives the flow, and the same below.
    const int get_above = has_above ? min(turns, turns_at(y - ROWS) + 1) : 0, give_above = has_above ? min(turns, turns_at(y - ROWS)) : 0;
    const int get_below = has_below ? min(turns, turns_at(y + ROWS)) : 0, give_below = has_below ? min(turns + 1, turns_at(y + ROWS)) : 0;
    Cells *own_u = edge_u + group * 64 + lane, *own_p = edge_p + (group + 1) * 64 + lane;
#if CLUSTER > 1
    const u32 far_u = in_part(edge_u + GROUPS * 64 + lane, max(part - 1, 0)), far_p = in_part(edge_p + lane, min(part + 1, CLUSTER - 1));
    const u32 told_u = in_part(from_below + GROUPS - 1, max(part - 1, 0)), told_p = in_part(from_above, min(part + 1, CLUSTER - 1));
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
    const auto pass_down = [&]() {
#if CLUSTER > 1
        if (last_out) {
            send(far_p, q[1][ROWS - 1], told_p), send(far_p + 32 * sizeof(Cells), q[3][ROWS - 1], told_p);
            return;
        }
#endif
        own_p[0] = q[1][ROWS - 1], own_p[32] = q[3][ROWS - 1];
        tell(from_above + group + 1);
    };
    __syncwarp();
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");  // the frames are of no more use to this warp
#endif
    if (give_below > 0) pass_down();
#if KEPT
    float4 kept[ROWS][EACH];
#pragma unroll
    for (int n = 0; n < ROWS * EACH; n++) kept[n / EACH][n % EACH] = own[n * 32 + (lane + n % EACH * TURN & 31)];
#endif

    const auto iterate = [&](auto border) {
#pragma unroll 1
        for (int turn = 0; turn < turns; turn++) {
            // The row of another warp is read last.
            Cells above[2] = {};
#pragma unroll
            for (int r = ROWS - 1; r >= 0; r--) {
                if (r == 0) {
                    if (turn < get_above) {
                        await(from_above + group, turn & 1);
#if CLUSTER > 1
                        if (first_out && lane == 0) expect(from_above, 64 * sizeof(Cells));
#endif
                        above[0] = own_p[-64], above[1] = own_p[-32];
                    } else if (CLAMP) {
                        above[0] = q[1][0], above[1] = q[3][0];
                    }
                }
                float before[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    before[i] = __shfl_sync(ALL, q[2 * i][r].c[EACH - 1], (lane + 31) & 31);
                    if (lane == 0) before[i] = CLAMP ? q[2 * i][r].c[0] : 0.f;
                }
#pragma unroll
                for (int j = 0; j < EACH; j++) {
#if KEPT
                    const float4 d = kept[r][j];
#else
                    const float4 d = own[(r * EACH + j) * 32 + (lane + j * TURN & 31)];
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
            if (turn < give_above) {
#if CLUSTER > 1
                if (first_out) {
                    send(far_u, u[0][0], told_u), send(far_u + 32 * sizeof(Cells), u[1][0], told_u);
                } else
#endif
                {
                    own_u[0] = u[0][0], own_u[32] = u[1][0];
                    tell(from_below + group - 1);
                }
            }
            Cells below[2] = {u[0][ROWS - 1], u[1][ROWS - 1]};
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r == ROWS - 1 && turn < get_below) {
                    await(from_below + group, turn & 1);
#if CLUSTER > 1
                    if (last_out && lane == 0) expect(from_below + group, 64 * sizeof(Cells));
#endif
                    below[0] = own_u[64], below[1] = own_u[96];
                }
                float right[2];
#pragma unroll
                for (int i = 0; i < 2; i++) right[i] = __shfl_sync(ALL, u[i][r].c[0], (lane + 1) & 31);
#pragma unroll
                for (int j = 0; j < EACH; j++) {
                    float gx[2], gy[2], s[2];
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const float down = r < ROWS - 1 ? u[i][r < ROWS - 1 ? r + 1 : r].c[j] : below[i].c[j];
                        gx[i] = (j < EACH - 1 ? u[i][r].c[j < EACH - 1 ? j + 1 : j] : right[i]) - u[i][r].c[j];
                        gy[i] = down - u[i][r].c[j];
                        if (decltype(border)::value && x + j == p.width - 1) gx[i] = 0.f;
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
            if (turn + 1 < give_below) pass_down();
        }
    };
    if (SMALL || tile_x == p.tiles_x - 1) iterate(Yes{});
    else iterate(No{});

    // The flow for the median takes the frames' place; it includes rows of the blocks above and below.
    float *field = still + REACH * FIELD;  // [2, FIELD_ROWS, FIELD] from row -REACH on
#if CLUSTER > 1
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
    const bool upwards = part > 0 && turns_at(top) == p.iterations && turns_at(top - ROWS) == p.iterations;
    const bool downwards = part < CLUSTER - 1 && turns_at(top + HIGH) == p.iterations && turns_at(top + HIGH - ROWS) == p.iterations;
    const u32 field_above = in_part(field, max(part - 1, 0)), field_below = in_part(field, min(part + 1, CLUSTER - 1));
#else
    __syncthreads();
#endif
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const int row = group * ROWS + r, at = i * FIELD_ROWS * FIELD + EACH * lane;
            *(Cells *)(field + row * FIELD + at) = u[i][r];
#if CLUSTER > 1
            if (upwards && row < REACH) give(field_above + 4 * ((HIGH + row) * FIELD + at), u[i][r]);
            if (downwards && row >= HIGH - REACH) give(field_below + 4 * ((row - HIGH) * FIELD + at), u[i][r]);
#endif
        }
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
    // Store the tile's own pixels.
    if (p.dual_out && x >= x0 && x < x1)
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (y + r >= y0 && y + r < y1) {
                Value *at = p.dual_out + item * p.item + (i64)(y + r) * p.pitch + x;
#pragma unroll
                for (int i = 0; i < 4; i++) store(at + i * p.plane, q[i][r]);
            }
#if CLUSTER > 1
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
    float *target = (p.target_at ? *p.target_at : p.target) + item * p.target_item;
    const int from_y = max(y0, top), to_y = min(y1, top + HIGH);
    const int cells_x = (x1 - x0 + 1) / 2, cells = cells_x * max(0, (to_y - from_y + 1) / 2);
    bool finite = true;
#pragma unroll 1
    for (int n = threadIdx.x; n < 2 * cells; n += THREADS) {
        constexpr int SIDE = 2 * REACH + 2;
        const int i = n >= cells, cell = i ? n - cells : n, cx = x0 + cell % cells_x * 2, cy = from_y + cell / cells_x * 2;
        float v[SIDE][SIDE], out[2][2];
        const float *plane = field + i * FIELD_ROWS * FIELD;
        load_windows(
            v, cx, cy, p.width, p.height, [&](int x, int y) { return *(const float2 *)(plane + (y - top) * FIELD + x - left); },
            [&](int x, int y) { return plane[(y - top) * FIELD + x - left]; });
        medians(v, out);
        float *to = target + i * p.target_plane + (i64)cy * p.target_pitch + cx;
#pragma unroll
        for (int a = 0; a < 2; a++)
#pragma unroll
            for (int b = 0; b < 2; b++)
                if (cx + b < x1 && cy + a < to_y) {
                    to[a * (i64)p.target_pitch + b] = out[a][b];
                    finite = finite && fabsf(out[a][b]) < __int_as_float(0x7f800000);
                }
    }
    if (p.flags && !finite) atomicOr(p.flags, 4);
}
