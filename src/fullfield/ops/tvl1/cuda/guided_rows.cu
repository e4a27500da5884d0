// DEPTH iterations of the guided refinement in one pass, row after row, as iterate_registers.cu does the solver's.
//
// A block marches down a strip of 128 columns, four a lane. Each of its GROUPS warps does some of the iterations ("stages")
// on a whole row, and hands the row on through shared memory to the warp that does the next ones, one row later. A stage
// keeps only the flow and the dual variable of one row in registers: iteration k works on row y - k + 1 while row y is read. The
// strip's outermost DEPTH pixels on every side are computed again by the strips beside it. The last warp, which has the fewest
// stages, also fetches rows, AHEAD early. Built behind halves.cuh, copies.cuh and guided_steps.cuh.

// Steps are in floats.
struct RowsParams {
    const float *flow, *dual, *system;  // 2, 4 and 6 planes: M11, M12, M22, B1, B2 and the smoothness's weight
    float *flow_out, *dual_out;
    const float *later;                 // as in GuidedParams
    i64 plane;
    int pitch, width, height;
    int rows, columns;                  // rows of a strip; number of strips across
    int zero_dual;
    float slowness, sigma;
};

#define INLINE static __device__ __forceinline__
constexpr int WORDS = 4, WIDE = 32 * WORDS, STATE = 6, SYSTEM = 6;  // columns of a lane and of a strip; planes
constexpr int PER_WARP = (DEPTH + GROUPS - 1) / GROUPS, LAST = DEPTH - (GROUPS - 1) * PER_WARP, LAG = PER_WARP + 1;
constexpr int RING = (GROUPS - 1) * LAG + LAST + 2 + AHEAD;         // rows of the system: those read by stages, and those under way
constexpr int SLOTS = AHEAD + 2;                                    // rows of flow and dual variable
constexpr int HALO = (DEPTH + 1) / 2 * 2, USEFUL = (WIDE - HALO - DEPTH) / 4 * 4;
static_assert(LAST > 0 && USEFUL > 0 && AHEAD > 0, "no such pipeline");
static_assert(2 + (GROUPS - 1) * LAG + LAST <= 2 * RING, "places of the first rows are counted from twice the ring's length");

struct Strip {
    int lane, x0, y0, y1, width, height;
    int begin, end;  // the strip's own columns, counted from x0
    float slowness, sigma;
};
struct Row {
    float u[2][WORDS], p[4][WORDS];
};

INLINE void take(float (&to)[WORDS], const float *from) {
    const float4 four = *(const float4 *)from;
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
INLINE void put(float *to, const float (&from)[WORDS]) { *(float4 *)to = {from[0], from[1], from[2], from[3]}; }
INLINE void take(Row &row, const float *from) {
#pragma unroll
    for (int n = 0; n < 2; n++) take(row.u[n], from + n * WIDE);
#pragma unroll
    for (int n = 0; n < 4; n++) take(row.p[n], from + (2 + n) * WIDE);
}
INLINE void put(float *to, const Row &row) {
#pragma unroll
    for (int n = 0; n < 2; n++) put(to + n * WIDE, row.u[n]);
#pragma unroll
    for (int n = 0; n < 4; n++) put(to + (2 + n) * WIDE, row.p[n]);
}

// Return the neighbour of a lane's columns. At the strip's end it is what the frame's border asks for; where the frame goes on,
// what is computed from it is never read.
INLINE float from_left(float last, int lane) {
    const float other = __shfl_sync(ALL, last, lane - 1 & 31);
    return lane > 0 ? other : 0.f;
}
INLINE float from_right(float first, float last, int lane) {
    const float other = __shfl_sync(ALL, first, lane + 1 & 31);
    return lane < 31 ? other : last;
}

// Run one iteration on a row, whose state comes in `row`; return the row above there. `above` is the row that came
// before. Rows outside the frame hold any values, and so do results computed from them. EDGE: the frame's border may be near.
template <bool EDGE>
INLINE void stage(Row &row, Row &above, const float *system, const float *system_above, bool is_top, bool is_below, const Strip &s) {
    Row now;
    float left[2], right[2], m11[WORDS], m12[WORDS], m22[WORDS], b1[WORDS], b2[WORDS], edge[WORDS];
#pragma unroll
    for (int n = 0; n < 2; n++) {
        left[n] = from_left(row.p[2 * n][WORDS - 1], s.lane);
        right[n] = from_right(above.u[n][0], above.u[n][WORDS - 1], s.lane);
    }
    take(m11, system), take(m12, system + WIDE), take(m22, system + 2 * WIDE);
    take(b1, system + 3 * WIDE), take(b2, system + 4 * WIDE);
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        float next[2];
#pragma unroll
        for (int n = 0; n < 2; n++) {
            float before = j ? row.p[2 * n][j ? j - 1 : 0] : left[n], up = above.p[2 * n + 1][j];
            if (EDGE) {
                before = s.x0 + s.lane * WORDS + j == 0 ? 0.f : before;
                up = is_top ? 0.f : up;
            }
            next[n] = flow_and_divergence(row.u[n][j], s.slowness, row.p[2 * n][j], before, row.p[2 * n + 1][j], up);
        }
        now.u[0][j] = fmaf(m11[j], next[0], fmaf(m12[j], next[1], b1[j]));
        now.u[1][j] = fmaf(m12[j], next[0], fmaf(m22[j], next[1], b2[j]));
    }
    take(edge, system_above + 5 * WIDE);
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
            const float own = above.u[n][j];
            float across = (j < WORDS - 1 ? above.u[n][j < WORDS - 1 ? j + 1 : j] : right[n]) - own, down = now.u[n][j] - own;
            if (EDGE) {
                across = s.x0 + s.lane * WORDS + j == s.width - 1 ? 0.f : across;
                down = is_below ? 0.f : down;
            }
            now.p[2 * n][j] = above.p[2 * n][j], now.p[2 * n + 1][j] = above.p[2 * n + 1][j];
            dual_step(now.p[2 * n][j], now.p[2 * n + 1][j], across, down, s.sigma, s.sigma, edge[j]);
        }
    }
    // Return the row above; this one takes its place.
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
#pragma unroll
        for (int n = 0; n < 2; n++) row.u[n][j] = above.u[n][j], above.u[n][j] = now.u[n][j];
#pragma unroll
        for (int n = 0; n < 4; n++) above.p[n][j] = row.p[n][j], row.p[n][j] = now.p[n][j];
    }
}

// Store without a branch, after which the compiler would no longer know that the warp is whole.
INLINE void store8_if(void *to, unsigned a, unsigned b, unsigned yes) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p st.global.v2.b32 [%0], {%1, %2};\n}" ::"l"(to), "r"(a), "r"(b), "r"(yes) : "memory");
}

// Store the strip's own columns of a plane's row; `to` is the strip's first column.
INLINE void store(float *to, const float (&row)[WORDS], const Strip &s) {
#pragma unroll
    for (int i = 0; i < WORDS; i += 2) {
        const int column = s.lane * WORDS + i;
        store8_if(to + column, __float_as_uint(row[i]), __float_as_uint(row[i + 1]), column >= s.begin && column < s.end);
    }
}

INLINE int after(int slot, int slots) { return slot + 1 < slots ? slot + 1 : 0; }

// State of a warp between rows. FETCHES: it is the last warp, which has LAST stages.
template <bool FETCHES> struct March {
    static constexpr int STAGES = FETCHES ? LAST : PER_WARP;
    static constexpr bool TWICE = !FETCHES;  // two rows at a time: state changes registers without being moved
    const RowsParams &p;
    const Strip &s;
    float *ring, *slots, *handed;
    int group, begin, end;                   // rows that are read
    const float *flow, *dual, *system;       // of the lane's next copies
    float *flow_out, *dual_out;
    bool valid;                              // the lane's copies lie inside the planes
    Row above[STAGES];
    int place[STAGES + 1];                   // in the ring, of this warp's row and those above it
    int newest, slot;                        // in the ring and in the slots, of the row that arrived last

    __device__ __forceinline__ March(const RowsParams &p, const Strip &s, float *memory, int group) : p(p), s(s), group(group) {
        ring = memory + s.lane * WORDS;
        slots = ring + RING * SYSTEM * WIDE;
        handed = slots + SLOTS * STATE * WIDE;
        begin = max(0, s.y0 - DEPTH);
        end = min(p.height, s.y1 + DEPTH);
        const i64 at = (i64)begin * p.pitch + s.x0 + s.lane * WORDS, own = (i64)s.y0 * p.pitch + s.x0;
        flow = p.flow + at, dual = p.dual + at, system = p.system + at;
        flow_out = p.flow_out + own, dual_out = p.dual_out + own;
        valid = s.x0 + s.lane * WORDS < p.pitch;
        newest = RING - 1;
        slot = SLOTS - 1;
#pragma unroll
        for (int i = 0; i <= STAGES; i++) place[i] = (2 * RING - 2 - group * LAG - i) % RING;
#pragma unroll
        for (int i = 0; i < STAGES; i++) clear(above[i].u), clear(above[i].p);
    }

    __device__ __forceinline__ void advance() {
        slot = after(slot, SLOTS);
        newest = after(newest, RING);
#pragma unroll
        for (int i = STAGES; i > 0; i--) place[i] = place[i - 1];
        place[0] = after(place[0], RING);
    }

    // Fetch the next row, `ahead` rows below the newest.
    __device__ __forceinline__ void fetch(int ahead) {
        const int in_ring = newest + ahead < RING ? newest + ahead : newest + ahead - RING;
        const int in_slots = slot + ahead < SLOTS ? slot + ahead : slot + ahead - SLOTS;
        const u32 to_ring = shared_address(ring + in_ring * SYSTEM * WIDE), to_slots = shared_address(slots + in_slots * STATE * WIDE);
#pragma unroll
        for (int n = 0; n < SYSTEM; n++) copy_async<16>(to_ring + n * WIDE * 4, system + n * p.plane, valid);
#pragma unroll
        for (int n = 0; n < 2; n++) copy_async<16>(to_slots + n * WIDE * 4, flow + n * p.plane, valid);
#pragma unroll
        for (int n = 0; n < 4; n++) copy_async<16>(to_slots + (2 + n) * WIDE * 4, dual + n * p.plane, valid && !p.zero_dual);
        system += p.pitch, flow += p.pitch, dual += p.pitch;
    }

    // Wait for row t, and fetch a later one. Rows beyond the last hold any values and are never read.
    __device__ __forceinline__ void receive(int t) {
        await_copies<AHEAD - 1>();
        if (t + AHEAD < end) fetch(AHEAD);
        commit_copies();
    }

    // Run the warp's iterations on its row of step t.
    template <bool EDGE> __device__ __forceinline__ void step(int t) {
        const int y = t - 1 - group * LAG;
        advance();
        Row row;
        const float *from = handed + (2 * (group - 1) + (t - 1 & 1)) * STATE * WIDE;
        if (group == 0) from = slots + (slot > 0 ? slot - 1 : SLOTS - 1) * STATE * WIDE;
        take(row, from);
        if (FETCHES) receive(t);
#pragma unroll
        for (int i = 0; i < STAGES; i++)
            stage<EDGE>(row, above[i], ring + place[i] * SYSTEM * WIDE, ring + place[i + 1] * SYSTEM * WIDE, y - i == 0, y - i == s.height, s);
        if (!FETCHES) {
            put(handed + (2 * group + (t & 1)) * STATE * WIDE, row);
        } else if (y - LAST >= s.y0 && y - LAST < s.y1) {
#pragma unroll
            for (int n = 0; n < 2; n++) store(flow_out + n * p.plane, row.u[n], s);
#pragma unroll
            for (int n = 0; n < 4; n++) store(dual_out + n * p.plane, row.p[n], s);
            flow_out += p.pitch, dual_out += p.pitch;
        }
        __syncthreads();
    }

    // March down the strip. At step t row t arrives and warp `group` works on row y = t - 1 - group LAG. A warp begins
    // with the first row that its iterations need and ends with the last.
    __device__ __forceinline__ void run() {
        if (FETCHES) {
#pragma unroll 1
            for (int i = 0; i < AHEAD; i++) {
                if (begin + i < end) fetch(1 + i);
                commit_copies();
            }
        }
        const int delay = 1 + group * LAG, first = group * PER_WARP;
        const int begins = max(begin, s.y0 - DEPTH + first + delay), ends = s.y1 + DEPTH - first + delay;
        const bool columns = s.x0 + WIDE > s.width;  // the frame's last is not the strip's
        const int inner = columns ? ends : delay + STAGES, outer = min(ends, s.height + delay);  // the rows between are all inside
        int t = begin;
#pragma unroll 1
        for (; t < begins; t++) {
            advance();
            if (FETCHES) receive(t);
            __syncthreads();
        }
#pragma unroll 1
        while (t < ends) {
            if (t >= inner && t + TWICE < outer) {
                step<false>(t);
                if (TWICE) step<false>(t + 1);
                t += 1 + TWICE;
            } else {
                step<true>(t);
                t++;
            }
        }
#pragma unroll 1
        for (; t <= s.y1 + (GROUPS - 1) * LAG + LAST; t++) __syncthreads();
    }
};

extern "C" __global__ void __launch_bounds__(32 * GROUPS, BLOCKS) guided_rows(const __grid_constant__ RowsParams p) {
    extern __shared__ __align__(16) float memory[];
    if (is_skipped(p.later)) return;
    // Warp n of every block runs on the same quarter of a multiprocessor, which then fetches one role's instructions only.
    const int lane = threadIdx.x % 32, group = __shfl_sync(ALL, threadIdx.x / 32, 0);
    const int y0 = blockIdx.x / p.columns * p.rows, y1 = min(p.height, y0 + p.rows);
    // Strips overlap by their halos; the first begins with the frame and the last ends with it, as far as copies allow.
    const int column = blockIdx.x % p.columns, usual = column * USEFUL;
    const bool is_last = column == p.columns - 1;
    const int x0 = is_last ? max(0, min(usual, (p.width - WIDE + 3) / 4 * 4)) : usual;
    const int begin = column > 0 ? usual + HALO - x0 : 0, end = is_last ? p.width - x0 : HALO + USEFUL;
    const Strip s = {lane, x0, y0, y1, p.width, p.height, begin, end, p.slowness, p.sigma};
    if (group == GROUPS - 1)
        March<true>(p, s, memory, group).run();
    else
        March<false>(p, s, memory, group).run();
}
