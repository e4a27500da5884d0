// DEPTH iterations in one pass, in registers. A block marches down a strip of the frame. Each of its warps does some of
// the iterations ("stages") on whole rows, WORDS words a lane, and hands the row on through shared memory to the warp
// that does the next ones, one row later. A stage keeps only the flow and the dual of one row in registers: iteration k
// works on row y - k + 1 while row y is read. The strip's outermost DEPTH pixels on every side are computed again by the
// strips beside it.
//
// The last warp, which has the fewest stages, also fetches rows, AHEAD early, and computes what every stage reads of a
// row: the normalised data term and, in half precision, the forward differences of the origin. Lanes touch only their
// own words of those, so warps need one barrier a row. In half precision a word holds the pixels x and x + 32 WORDS.

// Steps are in elements.
struct IterateParams {
    const word *flow, *dual, *data, *origin;
    word *flow_out, *dual_out;
    long long plane, item;
    int pitch, width, height;
    int rows, columns;        // rows of a strip; number of strips across
    float slope, tau, bound;  // tau / theta, tau, lambda theta
    int clamp, zero_dual;
};

constexpr int PER_WARP = (DEPTH + GROUPS - 1) / GROUPS, LAST = DEPTH - (GROUPS - 1) * PER_WARP, LAG = PER_WARP + 1;
constexpr int WIDE = 32 * WORDS, COLUMNS = WIDE * PIXELS;
constexpr int PLANES = HALF ? 11 : 9;                        // planes of a fetched row: flow, dual, data, origin
constexpr int KEPT = HALF ? 8 : 4;                           // words that stages read for a pixel
constexpr int RING = (GROUPS - 1) * LAG + LAST + 1 + HALF;   // rows that stages read; the origin's are read for one row more
constexpr int BYTES = 4 / PIXELS;                            // bytes of a pixel
constexpr int CHUNK = COLUMNS < 128 ? 2 : 4;                 // pixels in a copy
constexpr int COPIES = COLUMNS / CHUNK / 32;                 // copies of a lane for every plane of a row
constexpr int UNIT = HALF ? WORDS : 2;                       // pixels in a store
constexpr int HALO = (DEPTH + UNIT - 1) / UNIT * UNIT, USEFUL = (COLUMNS - HALO - DEPTH) / CHUNK * CHUNK;
constexpr bool PAIRED = WORDS == 2;                          // a lane holds two planes of a row side by side: 16 bytes
constexpr bool CONVERTS = HALF || PAIRED;                    // the first warp cannot read rows as they were fetched
constexpr int SLOTS = AHEAD + (CONVERTS ? 1 : 2);            // rows in flight, and one or two that are read
static_assert(LAST > 0 && USEFUL > 0 && WORDS % 2 == 0 && AHEAD > 0, "no such pipeline");

struct __align__(4 * WORDS) Pack {
    word w[WORDS];
};
struct Geometry {
    int lane, x0, y0, y1, width, height, clamp;
    int begin, end;                  // the strip's own columns, counted from x0
    unsigned from_left, from_right;  // byte selectors that put a word together from the next lane's
    float slope;
    word tau;
};
struct Row {
    word u[2][WORDS], p[4][WORDS];
};

INLINE void take(word (&to)[WORDS], const word *from) {
    Pack pack = *(const Pack *)from;
#pragma unroll
    for (int j = 0; j < WORDS; j++) to[j] = pack.w[j];
}
INLINE void put(word *to, const word (&from)[WORDS]) {
    Pack pack;
#pragma unroll
    for (int j = 0; j < WORDS; j++) pack.w[j] = from[j];
    *(Pack *)to = pack;
}

constexpr int OWN = WORDS * (PAIRED ? 2 : 1);  // words from one lane to the next
struct __align__(16) Pair {
    Pack a, b;
};
INLINE void take(word (&a)[WORDS], word (&b)[WORDS], const word *from) {
    if (PAIRED) {
        Pair pair = *(const Pair *)from;
#pragma unroll
        for (int j = 0; j < WORDS; j++) a[j] = pair.a.w[j], b[j] = pair.b.w[j];
    } else {
        take(a, from), take(b, from + WIDE);
    }
}
INLINE void put(word *to, const word (&a)[WORDS], const word (&b)[WORDS]) {
    if (PAIRED) {
        Pair pair;
#pragma unroll
        for (int j = 0; j < WORDS; j++) pair.a.w[j] = a[j], pair.b.w[j] = b[j];
        *(Pair *)to = pair;
    } else {
        put(to, a), put(to + WIDE, b);
    }
}

// Return the word to the left or right of a lane's words. At the strip's end it is the value outside the frame, computed
// from the word at the border; where the frame goes on, nobody reads it. In half precision the two halves of the strip meet
// at their seam.
INLINE word from_left(word a, word first, const Geometry &g) {
    word got = __shfl_sync(ALL, a, g.lane - 1 & 31);
#if HALF
    return __byte_perm(got, g.clamp ? first : 0, g.from_left);
#else
    return g.lane > 0 ? got : g.clamp ? first : 0.f;
#endif
}
INLINE word from_right(word a, word last, const Geometry &g) {
    word got = __shfl_sync(ALL, a, g.lane + 1 & 31);
#if HALF
    return __byte_perm(got, last, g.from_right);
#else
    return g.lane < 31 ? got : last;
#endif
}

// Masks and flags of a row at the frame's border; unused inside.
struct Borders {
    unsigned first[WORDS], last[WORDS];  // ones if the pixel is in the first or last column
    bool top, bottom;                    // the row is the first; the row above is the last
};

INLINE word choose(unsigned mask, word a, word b) {
#if HALF
    return (a & mask) | (b & ~mask);
#else
    return mask ? a : b;
#endif
}

INLINE void find_columns(Borders &at, const Geometry &g) {
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        int x = g.x0 + g.lane * WORDS + j, beyond = HALF ? x + WIDE : x;
        at.first[j] = (x == 0 ? 0xffffu : 0) | (beyond == 0 ? 0xffff0000u : 0);
        at.last[j] = (x == g.width - 1 ? 0xffffu : 0) | (beyond == g.width - 1 ? 0xffff0000u : 0);
    }
}

// Run one iteration on a row, whose state comes in `row`; return the row above there. `above` is the row that came
// before. Rows outside the frame hold any values, and so do results computed from them.
template <bool EDGE>
INLINE void stage(Row &row, Row &above, const word *data, const word *origin, const Borders &at, const Geometry &g) {
    Row now;
    word left[2], right[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        left[i] = from_left(row.p[2 * i][WORDS - 1], row.p[2 * i][0], g);
        right[i] = from_right(above.u[i][0], above.u[i][WORDS - 1], g);
    }
    word n1[WORDS], n2[WORDS], c[WORDS], most[WORDS];
    take(n1, n2, data), take(c, most, data + 2 * WIDE);
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        word step = data_step(row.u[0][j], row.u[1][j], {n1[j], n2[j], c[j], most[j]});
#pragma unroll
        for (int i = 0; i < 2; i++) {
            word across = row.p[2 * i][j], down = row.p[2 * i + 1][j], up = above.p[2 * i + 1][j];
            word before = j ? row.p[2 * i][j - 1] : left[i];
            if (EDGE) {
                before = choose(at.first[j], g.clamp ? across : splat(0.f), before);
                up = at.top ? (g.clamp ? down : splat(0.f)) : up;
            }
            now.u[i][j] = flow_step(row.u[i][j], step, i ? n2[j] : n1[j], across, before, down, up);
        }
    }
#if HALF
    word of_origin[4][WORDS];
    take(of_origin[0], of_origin[2], origin), take(of_origin[1], of_origin[3], origin + 2 * WIDE);
#endif
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        word gradient[4], s[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            word own = above.u[i][j];
            gradient[2 * i] = sub(j < WORDS - 1 ? above.u[i][j < WORDS - 1 ? j + 1 : j] : right[i], own);
            gradient[2 * i + 1] = sub(now.u[i][j], own);
#if HALF
            gradient[2 * i] = add(gradient[2 * i], of_origin[2 * i][j]);
            gradient[2 * i + 1] = add(gradient[2 * i + 1], of_origin[2 * i + 1][j]);
#endif
            if (EDGE) {
                gradient[2 * i] = choose(at.last[j], splat(0.f), gradient[2 * i]);
                gradient[2 * i + 1] = at.bottom ? splat(0.f) : gradient[2 * i + 1];
            }
        }
        shrinks(gradient[0], gradient[1], gradient[2], gradient[3], g.slope, s[0], s[1]);
#pragma unroll
        for (int i = 0; i < 4; i++) now.p[i][j] = dual_step(above.p[i][j], g.tau, gradient[i], s[i / 2]);
    }
    // Return the row above; this one takes its place.
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            row.u[i][j] = above.u[i][j];
            above.u[i][j] = now.u[i][j];
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            above.p[i][j] = row.p[i][j];
            row.p[i][j] = now.p[i][j];
        }
    }
}

// ---- rows from and to global memory

// Store without a branch, after which the compiler would no longer know that the warp is whole.
INLINE void store4_if(void *to, unsigned a, unsigned yes) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %2, 0;\n@p st.global.b32 [%0], %1;\n}" ::"l"(to), "r"(a), "r"(yes) : "memory");
}
INLINE void store8_if(void *to, unsigned a, unsigned b, unsigned yes) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n@p st.global.v2.b32 [%0], {%1, %2};\n}" ::"l"(to), "r"(a), "r"(b), "r"(yes) : "memory");
}

// A lane's copies of the next row of every plane.
struct Fetch {
    const char *flow, *dual, *data, *origin;
    long long plane, pitch;  // bytes
    bool valid[COPIES];      // whether each copy lies inside the plane
    unsigned to;
};

INLINE Fetch fetching(const IterateParams &p, int item, int y, const Geometry &g, const word *slots) {
    Fetch f;
    long long at = (item * p.item + (long long)y * p.pitch + g.x0 + g.lane * CHUNK) * BYTES;
    f.flow = (const char *)p.flow + at, f.dual = (const char *)p.dual + at;
    f.data = (const char *)p.data + at, f.origin = (const char *)p.origin + at;
    f.plane = p.plane * BYTES, f.pitch = (long long)p.pitch * BYTES;
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        int x = g.x0 + (g.lane + 32 * i) * CHUNK;
        f.valid[i] = x < p.pitch;
    }
    f.to = shared_address(slots) + g.lane * (CHUNK * BYTES);
    return f;
}

// Fetch a row of some planes; with `zero` it is zeros and nothing is read.
INLINE void fetch_planes(const Fetch &f, const char *&from, int first, int count, unsigned to, int zero = 0) {
    const char *plane = from;
#pragma unroll
    for (int n = 0; n < count; n++, plane += f.plane)
#pragma unroll
        for (int i = 0; i < COPIES; i++) {
            int offset = i * 32 * CHUNK * BYTES;
            copy_async<CHUNK * BYTES>(to + (first + n) * WIDE * 4 + offset, plane + offset, f.valid[i] && !zero);
        }
    from += f.pitch;
}

INLINE void fetch(Fetch &f, const IterateParams &p, int slot) {
    unsigned to = f.to + slot * (PLANES * WIDE * 4);
    fetch_planes(f, f.flow, 0, 2, to);
    fetch_planes(f, f.dual, 2, 4, to, p.zero_dual);
    fetch_planes(f, f.data, 6, 3, to);
#if HALF
    fetch_planes(f, f.origin, 9, 2, to);
#endif
}

#if HALF
struct __align__(2 * WORDS) Halves {
    unsigned h[WORDS / 2];
};
#endif

// Convert a plane's fetched row to words.
INLINE void arrived(word (&to)[WORDS], const word *slot, int plane, int lane) {
#if HALF
    const char *at = (const char *)(slot + plane * WIDE) + lane * WORDS * 2;
    Halves near = *(const Halves *)at, far = *(const Halves *)(at + WIDE * 2);
#pragma unroll
    for (int j = 0; j < WORDS; j++) to[j] = __byte_perm(near.h[j / 2], far.h[j / 2], j % 2 ? 0x7632 : 0x5410);
#else
    take(to, slot + plane * WIDE + lane * WORDS);
#endif
}

// Store the strip's own pixels of a plane's row; `to` is the strip's first pixel.
INLINE void store(char *to, const word (&row)[WORDS], const Geometry &g) {
#pragma unroll
    for (int i = 0; i < WORDS * PIXELS / UNIT; i++) {
        int offset = HALF ? i * WIDE + g.lane * WORDS : g.lane * WORDS + i * UNIT;
        unsigned yes = offset >= g.begin && offset < g.end;
#if HALF
        unsigned pair[WORDS / 2];
#pragma unroll
        for (int j = 0; j < WORDS / 2; j++) pair[j] = __byte_perm(row[2 * j], row[2 * j + 1], i ? 0x7632 : 0x5410);
#if WORDS == 4
        store8_if(to + offset * BYTES, pair[0], pair[1], yes);
#else
        store4_if(to + offset * BYTES, pair[0], yes);
#endif
#else
        store8_if(to + offset * BYTES, __float_as_uint(row[i * 2]), __float_as_uint(row[i * 2 + 1]), yes);
#endif
    }
}

// A fetched row on its way to the form that stages read.
struct Came {
    word data[3][WORDS], row[CONVERTS ? 6 : 1][WORDS];
#if HALF
    word origin[2][WORDS], above[2][WORDS];  // origins of the row and of the row above
#endif
};

// Read a fetched row. The origin's difference down needs the next row: until then its place holds the origin itself.
INLINE void read(Came &came, const word *slot, const word *before, int lane) {
#pragma unroll
    for (int i = 0; i < 3; i++) arrived(came.data[i], slot, 6 + i, lane);
#pragma unroll
    for (int i = 0; i < (CONVERTS ? 6 : 0); i++) arrived(came.row[i], slot, i, lane);
#if HALF
    arrived(came.origin[0], slot, 9, lane), arrived(came.origin[1], slot, 10, lane);
    take(came.above[0], came.above[1], before + 6 * WIDE);
#endif
}

INLINE void digest(Came &came, word *kept, word *before, word *handed, float bound, const Geometry &g) {
    word most[WORDS];
#pragma unroll
    for (int j = 0; j < WORDS; j++) {
        Data d = normalised(came.data[0][j], came.data[1][j], came.data[2][j], bound);
        came.data[0][j] = d.n1, came.data[1][j] = d.n2, came.data[2][j] = d.c, most[j] = d.most;
    }
    put(kept, came.data[0], came.data[1]), put(kept + 2 * WIDE, came.data[2], most);
#pragma unroll
    for (int i = 0; i < (CONVERTS ? 6 : 0); i += 2) put(handed + i * WIDE, came.row[i], came.row[i + 1]);
#if HALF
    word across[2][WORDS];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        word(&o)[WORDS] = came.origin[i], right = from_right(o[0], o[WORDS - 1], g);
#pragma unroll
        for (int j = 0; j < WORDS; j++) {
            across[i][j] = sub(j < WORDS - 1 ? o[j < WORDS - 1 ? j + 1 : j] : right, o[j]);
            came.above[i][j] = sub(o[j], came.above[i][j]);
        }
    }
    put(kept + 4 * WIDE, across[0], across[1]);
    put(kept + 6 * WIDE, came.origin[0], came.origin[1]);
    put(before + 6 * WIDE, came.above[0], came.above[1]);
#endif
}

// ---- the march

INLINE int after(int slot, int slots) { return slot + 1 < slots ? slot + 1 : 0; }

// State of a warp between rows. FETCHES: it is the last warp, which has LAST stages.
template <bool FETCHES> struct March {
    static constexpr int STAGES = FETCHES ? LAST : PER_WARP;
    // Unroll two rows if the loops of both roles then still fit the instruction caches.
    static constexpr bool TWICE = WORDS == 2 || !HALF && !FETCHES;
    const IterateParams &p;
    const Geometry &g;
    word *ring, *slots, *handed;
    int group, begin, end;  // rows that are read
    Fetch f;
    char *flow_out, *dual_out;
    Row above[STAGES];
    int place[STAGES + 1];  // in the ring, of this warp's row and those above it
    int newest, slot;       // in the ring and in the slots, of the row that is digested

    INLINE March(const IterateParams &p, const Geometry &g, word *memory, int item, int group) : p(p), g(g), group(group) {
        ring = memory + g.lane * OWN;
        slots = memory + RING * KEPT * WIDE;
        handed = slots + SLOTS * PLANES * WIDE + g.lane * OWN;
        begin = max(0, g.y0 - DEPTH);
        end = min(p.height, g.y1 + DEPTH);
        f = fetching(p, item, begin, g, slots);
        long long at = (item * p.item + (long long)g.y0 * p.pitch + g.x0) * BYTES;
        flow_out = (char *)p.flow_out + at;
        dual_out = (char *)p.dual_out + at;
        newest = RING - 1;
        slot = SLOTS - 1;
#pragma unroll
        for (int i = 0; i <= STAGES; i++) place[i] = (2 * RING - 2 - group * LAG - i) % RING;
#pragma unroll
        for (int i = 0; i < STAGES * 6; i++)
#pragma unroll
            for (int j = 0; j < WORDS; j++) (i % 6 < 2 ? above[i / 6].u[i % 6 & 1] : above[i / 6].p[i % 6 - 2 & 3])[j] = splat(0.f);
    }

    INLINE void advance() {
        slot = after(slot, SLOTS);
        newest = after(newest, RING);
#pragma unroll
        for (int i = STAGES; i > 0; i--) place[i] = place[i - 1];
        place[0] = after(place[0], RING);
    }
    INLINE word *before() { return ring + (newest > 0 ? newest - 1 : RING - 1) * KEPT * WIDE; }

    // Read row t, once it has arrived, and fetch a later one. Rows beyond the last hold any values; nobody reads them.
    INLINE void receive(Came &came, int t) {
        await_copies<AHEAD - 1>();
        __syncwarp();
        read(came, slots + slot * PLANES * WIDE, before(), g.lane);
        if (t + AHEAD < end) fetch(f, p, slot + AHEAD < SLOTS ? slot + AHEAD : slot + AHEAD - SLOTS);
        commit_copies();
    }
    INLINE void pass_on(Came &came, int t) {
        digest(came, ring + newest * KEPT * WIDE, before(), handed + (t & 1) * 6 * WIDE, p.bound, g);
    }

    // Run the warp's iterations on its row of step t.
    template <bool EDGE> INLINE void step(int t) {
        const int y = t - 1 - group * LAG;
        advance();
        // Read everything before writing anything, so that both tasks overlap.
        Came came;
        if (FETCHES) receive(came, t);
        Row row;
        const word *from = handed + (2 * (group - !CONVERTS) + (t - 1 & 1)) * 6 * WIDE;
        if (!CONVERTS && group == 0) from = slots + (slot > 0 ? slot - 1 : SLOTS - 1) * PLANES * WIDE + g.lane * OWN;
        take(row.u[0], row.u[1], from), take(row.p[0], row.p[1], from + 2 * WIDE), take(row.p[2], row.p[3], from + 4 * WIDE);
        Borders at;
        if (EDGE) find_columns(at, g);
#pragma unroll
        for (int i = 0; i < STAGES; i++) {
            at.top = y - i == 0;
            at.bottom = y - i == g.height;
            stage<EDGE>(row, above[i], ring + place[i] * KEPT * WIDE, ring + (place[i + 1] * KEPT + 4) * WIDE, at, g);
        }
        if (!FETCHES) {
            word *to = handed + (2 * (group + CONVERTS) + (t & 1)) * 6 * WIDE;
            put(to, row.u[0], row.u[1]), put(to + 2 * WIDE, row.p[0], row.p[1]), put(to + 4 * WIDE, row.p[2], row.p[3]);
        } else {
            pass_on(came, t);
        }
        if (FETCHES && y - LAST >= g.y0 && y - LAST < g.y1) {
            char *plane = dual_out;
            store(flow_out, row.u[0], g), store(flow_out + f.plane, row.u[1], g);
#pragma unroll
            for (int i = 0; i < 4; i++, plane += f.plane) store(plane, row.p[i], g);
            flow_out += f.pitch, dual_out += f.pitch;
        }
        __syncthreads();
    }

    // March down the strip. At step t row t is digested and warp `group` works on row y = t - 1 - group LAG. A warp begins
    // with the first row that its iterations need and ends with the last.
    INLINE void run() {
        if (FETCHES)
#pragma unroll 1
            for (int i = 0; i < AHEAD; i++) {
                if (begin + i < end) fetch(f, p, i);
                commit_copies();
            }
        const int delay = 1 + group * LAG, first = group * PER_WARP;
        const int begins = max(begin, g.y0 - DEPTH + first + delay), ends = g.y1 + DEPTH - first + delay;
        const bool columns = g.x0 + COLUMNS > g.width;  // the frame's last is not the strip's
        // The rows of these steps are all inside. Two at a time, state changes registers without being moved.
        const int inner = columns ? ends : delay + STAGES, outer = min(ends, g.height + delay);
        int t = begin;
#pragma unroll 1
        for (; t < begins; t++) {
            advance();
            if (FETCHES) {
                Came came;
                receive(came, t);
                pass_on(came, t);
            }
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
        for (; t <= g.y1 + (GROUPS - 1) * LAG + LAST; t++) __syncthreads();
    }
};

extern "C" __global__ void __launch_bounds__(32 * GROUPS, BLOCKS) iterate_registers(const __grid_constant__ IterateParams p) {
    extern __shared__ __align__(16) word memory[];
    // Warp n of every block runs on the same quarter of a multiprocessor, which then fetches one role's instructions only.
    const int lane = threadIdx.x % 32, group = __shfl_sync(ALL, threadIdx.x / 32, 0);
    const int strips_down = (p.height + p.rows - 1) / p.rows, line = blockIdx.x / p.columns;
    const int y0 = line % strips_down * p.rows, y1 = min(p.height, y0 + p.rows);
    // Strips overlap by their halos; the first begins with the frame and the last ends with it, as far as copies allow.
    const int column = blockIdx.x % p.columns, usual = column * USEFUL, last = column == p.columns - 1;
    const int x0 = last ? max(0, min(usual, (p.width - COLUMNS + CHUNK - 1) / CHUNK * CHUNK)) : usual;
    const int begin = column > 0 ? usual + HALO - x0 : 0, end = last ? p.width - x0 : HALO + USEFUL;
    const Geometry g = {lane, x0, y0, y1, p.width, p.height, p.clamp, begin, end,
                        lane == 0 ? 0x1054u : 0x3210u, lane == 31 ? 0x7632u : 0x3210u, p.slope, splat(p.tau)};
    if (group == GROUPS - 1)
        March<true>(p, g, memory, line / strips_down, group).run();
    else
        March<false>(p, g, memory, line / strips_down, group).run();
}
