// VVOR on Hopper: out[k] = sum over the rows of grad[row]^T (x) the row's bucket of cell k, the sum of the features that the row
// has in the cell. wgmma multiplies 16 rows and three cells at a time. A block owns nine cells, 64 x 64 channels of each, and
// a segment of the rows. A warpgroup owns three of the cells and keeps their sums in registers for the whole segment.
//
// The block walks ROWS rows at a time, four a warp, eight lanes a row, eight channels a lane. A stage of shared memory holds
// the rows' buckets of each cell, and the gradients, transposed for wgmma: rows of 64 channels, swizzled by 128 bytes. One
// stage is multiplied while the next is filled. A row's words of the block's cells lie together; its lanes look at WINDOW of
// them at once. They list the first point of each bucket, which is copied asynchronously (zeros where there is none), and
// the other points, which are loaded into registers and added when the copies have arrived. A bucket of two points is added
// in 16 bits, which rounds once; larger ones are summed in float32 and rounded when they are stored. If float16 cannot hold
// a sum, its result shows it: then all sums of the stage are computed again and stored divided by 2^n, and the stage is
// multiplied 2^n times. INPUTS and OUTPUTS are 64.

#define THREADS 384
#define CELLS 9
#define ROWS 48
#define CELL_BYTES (ROWS * 128)
#define STAGE_BYTES ((CELLS + 1) * CELL_BYTES)  // the last: gradients
#define WINDOW 32
#define STRIDE (WINDOW + 4)
#define CELLS_STRIDE 12
#define EXTRAS 4                   // other points of a row that are loaded before they are added

// Make what was written visible to wgmma.
static __device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Copy 16 bytes; write zeros if `index` is negative.
static __device__ __forceinline__ void copy_of(int index, u32 to, const void *from) {
    asm volatile("{\n.reg .pred p;\nsetp.lt.s32 p, %2, 0;\ncp.async.ca.shared.global [%0], [%1], 16, p;\n}" ::"r"(to), "l"(from), "r"(index) : "memory");
}

static __device__ __forceinline__ u32 added(u32 a, u32 b) {
    u32 r;
#if BF16
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#else
    asm("add.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
#endif
    return r;
}

// Set bits 15 or 31 of `seen` if a float16 is not finite.
static __device__ __forceinline__ void look_at(u32 &seen, const uint4 &v) {
    const u32 given[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 4; i++) seen |= BF16 ? 0 : (given[i] & 0x7c007c00) + 0x04000400;
}
static __device__ __forceinline__ bool not_finite(u32 seen) { return (seen & 0x80008000) != 0; }

// Cells and channels of a block.
struct Work {
    int cell, column, group, input, output, segment;
    __device__ __forceinline__ Work(const OuterParams &p, int item) {
        int blocks = p.input_blocks * p.output_blocks;
        cell = item % p.cell_blocks * CELLS;
        item /= p.cell_blocks;
        column = item % p.columns, segment = item / p.columns;
        int within = column % blocks;
        group = column / blocks, input = within / p.output_blocks * INPUTS, output = within % p.output_blocks * OUTPUTS;
    }
};

// Range of a row's words. Nothing is computed from it before the loads have arrived.
struct Place {
    i64 from, to;
    __device__ __forceinline__ void find(const Triplets &t, i64 row, i64 end) {
        from = to = 0;
        if (row < end) from = t.rows[row], to = t.rows[row + 1];
    }
};

// A row's words: `size` from `at` on.
struct Row {
    i64 at;
    int size;
    __device__ __forceinline__ Row(i64 from, i64 to) : at(from), size((int)(to - from)) {}
    // Skip the words before the block's first cell if the row is longer than a window.
    __device__ __forceinline__ void cut(const Triplets &t, int cell) {
        if (size <= WINDOW) return;
        int before = (int)(end_below(t, at, at + size, cell) - at);
        at += before, size -= before;
    }
    __device__ __forceinline__ void load(const Triplets &t, Word (&words)[4]) const {
        int octet = threadIdx.x & 7;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (octet + 8 * i < size) words[i].load(t, at + octet + 8 * i);
    }
};

// Source of a lane's eight channels.
struct Source {
    const Value *features;
    u32 step;                      // bytes from row to row
    int cell;                      // the block's first cell
    __device__ __forceinline__ const uint4 *at(u32 index) const {
        return (const uint4 *)((const u8 *)features + (u64)index * step);
    }
};

// Sum of a bucket of more than two points, or of points whose words did not fit a window.
struct Wide {
    float sum[8];
    __device__ __forceinline__ void start(const uint4 &v) {
        u32 given[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] = widened((Value)(given[i / 2] >> i % 2 * 16));
    }
    __device__ __forceinline__ void add(const uint4 &v) {
        Wide other;
        other.start(v);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] += other.sum[i];
    }
    __device__ __forceinline__ uint4 rounded() const {
        return make_uint4(pack_pair(sum[0], sum[1]), pack_pair(sum[2], sum[3]), pack_pair(sum[4], sum[5]), pack_pair(sum[6], sum[7]));
    }
};

// A warp's four rows of each stage in turn.
struct Quad {
    int own;                       // the lane's row in a stage
    u32 *words;                    // [2][STRIDE] its words, for this stage and the next in turn
    int *table;                    // [CELLS] its first point in each cell, -1 for none
    int2 *list;                    // [EXTRAS] points that are not the first of their buckets, with their cells' places in a stage
    Row row;                       // the row whose words are being loaded
    Place next;                    // the row after it
    Word given[4];
    u32 extras, coming;            // words that are not the first of their buckets, of this stage and the next
    int most, coming_most;         // most such words of a row; above WINDOW if a bucket has three points or a row does not fit the window
    uint4 v[EXTRAS];               // features of the first of them
    int places[EXTRAS];

    __device__ __forceinline__ Word word(int turn, int at) const {
        Word w;
        w.word = words[turn * STRIDE + at];
#if BESIDE
        w.cell = words[(2 * 4 + turn) * STRIDE + at];
#endif
        return w;
    }
    __device__ __forceinline__ void begin(const Triplets &t, int cell, i64 first, i64 end) {
        next.find(t, first + own, end);
        row = Row(next.from, next.to);
        next.find(t, first + ROWS + own, end);
        row.cut(t, cell);
        row.load(t, given);
    }
    // Find the buckets of the rows after `begin`, and load the words of the rows after them.
    __device__ __forceinline__ void look(const Triplets &t, int cell, int turn, i64 begin, i64 end) {
        int octet = threadIdx.x & 7;
        __syncwarp();                  // the table has been read
        table[octet] = -1;
        if (octet < CELLS - 8) table[8 + octet] = -1;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            words[turn * STRIDE + i * 8 + octet] = given[i].word;
#if BESIDE
            words[(2 * 4 + turn) * STRIDE + i * 8 + octet] = given[i].cell;
#endif
        }
        __syncwarp();
        bool long_rows = __any_sync(ALL, row.size > 24);
        u32 votes[4] = {0, 0, 0, 0};
        int cells[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i == 3 && !long_rows) break;
            int at = i * 8 + octet;
            cells[i] = given[i].cell_of(t) - cell;
            bool mine = at < row.size && cells[i] >= 0 && cells[i] < CELLS, first = at == 0 || word(turn, at - 1).cell_of(t) - cell != cells[i];
            if (mine && first) table[cells[i]] = given[i].index_of(t);
            votes[i] = __ballot_sync(ALL, mine && !first);
        }
        u32 own_bytes = (threadIdx.x >> 3 & 3) * 0x11 + 0x40;
        coming = __byte_perm(__byte_perm(votes[0], votes[1], own_bytes), __byte_perm(votes[2], votes[3], own_bytes), 0x5410);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (votes[i] == 0) continue;
            int at = i * 8 + octet, rank = __popc(coming & (1u << at) - 1);
            if (coming >> at & 1 && rank < EXTRAS) list[rank] = {(int)given[i].index_of(t), cells[i] * CELL_BYTES};
        }
        coming_most = warp_max((coming & coming >> 1) != 0 || row.size > WINDOW ? WINDOW + 1 : __popc(coming));
        __syncwarp();
        row = Row(next.from, next.to);
        row.cut(t, cell);
        row.load(t, given);
        next.find(t, begin + 2 * ROWS + own, end);
    }
    // Copy the first points of the buckets, or zeros.
    __device__ __forceinline__ void copy(const Source &source, u32 stage) const {
        int octet = threadIdx.x & 7;
        u32 to = stage + own * 128 + (octet ^ (own & 7)) * 16;
        int index[CELLS_STRIDE];
#pragma unroll
        for (int i = 0; i < CELLS_STRIDE / 4; i++) *(int4 *)(index + 4 * i) = ((const int4 *)table)[i];
#pragma unroll
        for (int c = 0; c < CELLS; c++) copy_of(index[c], to + c * CELL_BYTES, source.at(index[c]));
    }
    __device__ __forceinline__ void fetch(const Source &source) {
        extras = coming, most = coming_most;
        int count = __popc(extras);
#pragma unroll
        for (int i = 0; i < EXTRAS; i++)
            if (i < most) {
                int2 point = list[i];
                places[i] = i < count ? point.y : -1;
                if (i < count) v[i] = *source.at(point.x);
            }
    }
    // Add the other points. Return whether a sum is not finite.
    __device__ __forceinline__ bool add(const Triplets &t, const Source &source, u8 *stage, int turn, i64 begin, i64 end) const {
        u8 *to = stage + own * 128 + ((threadIdx.x & 7) ^ (own & 7)) * 16;
        u32 left = extras;             // words whose points were not fetched
#pragma unroll
        for (int i = 0; i < EXTRAS; i++) left = most > EXTRAS ? left & left - 1 : 0;
        u32 seen = 0;
        auto for_points = [&](auto step) {
#pragma unroll
            for (int i = 0; i < EXTRAS; i++)
                if (i < most && places[i] >= 0) step(places[i], v[i]);
            for (; left; left &= left - 1) {
                Word w = word(turn, __ffs(left) - 1);
                step((w.cell_of(t) - source.cell) * CELL_BYTES, *source.at(w.index_of(t)));
            }
        };
        if (most <= WINDOW) {
            for_points([&](int place, const uint4 &v) {
                uint4 *at = (uint4 *)(to + place), sum = *at;
                *at = sum = make_uint4(added(sum.x, v.x), added(sum.y, v.y), added(sum.z, v.z), added(sum.w, v.w));
                look_at(seen, sum);
            });
            return not_finite(seen);
        }
        Wide sum;
        int last = -1;
        auto store = [&] {
            const uint4 v = sum.rounded();
            *(uint4 *)(to + last) = v;
            look_at(seen, v);
        };
        for_points([&](int place, const uint4 &v) {
            if (place != last) sum.start(*(uint4 *)(to + place));
            last = place;
            sum.add(v);
            store();
        });
        Place place_of_row;
        place_of_row.find(t, begin + own, end);
        Row rest(place_of_row.from, place_of_row.to);
        rest.cut(t, source.cell);
        if (rest.size <= WINDOW) return not_finite(seen);
        int place = (word(turn, WINDOW - 1).cell_of(t) - source.cell) * CELL_BYTES;
        if (place >= 0 && place < CELLS * CELL_BYTES && place != last) sum.start(*(uint4 *)(to + place));
        last = place;
        for (int i = WINDOW; i < rest.size; i++) {
            Word w;
            w.load(t, rest.at + i);
            place = (w.cell_of(t) - source.cell) * CELL_BYTES;
            if (place >= CELLS * CELL_BYTES) break;
            uint4 v = *source.at(w.index_of(t));
            if (place == last)
                sum.add(v);
            else
                sum.start(v);
            last = place;
            store();
        }
        return not_finite(seen);
    }
#if !BF16
    // Store the sums of the lane's row again, divided by 2^shift. Return whether a finite one does not fit. Two channels at a
    // time save registers; this is rare.
    __device__ __forceinline__ bool shrink(const Triplets &t, const Source &source, u8 *stage, int shift, i64 begin, i64 end) const {
        const float factor = __uint_as_float((u32)(127 - shift) << 23);
        bool large = false;
#pragma unroll 1
        for (int part = 0; part < 4; part++) {
            u8 *to = stage + own * 128 + ((threadIdx.x & 7) ^ (own & 7)) * 16 + 4 * part;
            float x = 0.f, y = 0.f;
            int last = -1;
            const i64 row = begin + own;
            if (row >= end) continue;
#pragma unroll 1
            for (i64 at = t.rows[row];; at++) {
                int cell = CELLS;
                Word w;
                if (at < t.rows[row + 1]) {
                    w.load(t, at);
                    cell = (int)w.cell_of(t) - source.cell;
                    if (cell < 0) continue;
                }
                if (cell != last) {
                    if (last >= 0) {
                        x *= factor, y *= factor;
                        large = large || (fmaxf(fabsf(x), fabsf(y)) >= 65520.f && fabsf(x) + fabsf(y) < 1e38f);
                        *(u32 *)(to + last * CELL_BYTES) = pack_pair(x, y);
                    }
                    x = y = 0.f;
                    last = cell;
                }
                if (cell >= CELLS) break;
                const u32 v = ((const u32 *)source.at(w.index_of(t)))[part];
                x += widened((Value)v), y += widened((Value)(v >> 16));
            }
        }
        return large;
    }
#endif
};

typedef float Sums[96];

// Begin the products of a stage: the warpgroup's cells and the gradients.
static __device__ __forceinline__ void multiply(Sums &sums, u32 features, u32 grad) {
    u32 a = grad >> 4, b = features >> 4 | CELL_BYTES / 16 << 16;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < ROWS / 16; k++) wgmma_ss(sums, a + k * 128, b + k * 128);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Segments that share a slot add to it one after the other, each warp its part. Blocks take their work in the order in which
// they start, so earlier ones have started.
struct Turn {
    volatile u32 *at;
    u32 link;
    __device__ __forceinline__ void await() const {
        if (link == 0) return;
        if ((threadIdx.x & 31) == 0) {
            while (*at != link) {
            }
        }
        __syncwarp();
        __threadfence();
    }
    __device__ __forceinline__ void pass() const {
        if (at == nullptr) return;
        __threadfence();
        __syncwarp();
        if ((threadIdx.x & 31) == 0) *at = link + 1;
    }
};
static __device__ __forceinline__ Turn turn_of(const OuterParams &p, int segment, int column, int cell_block, int warp) {
    i64 at = ((i64)(segment % p.slots) * p.columns + column) * p.cell_blocks + cell_block;
    return {p.turns ? p.turns + at * 12 + warp : nullptr, (u32)(segment / p.slots)};
}

static __device__ __forceinline__ void add_to_share(const OuterParams &p, const Sums &sums, int item) {
    int own = threadIdx.x >> 7, member = threadIdx.x & 127;
    Work work(p, item);
    Turn turn = turn_of(p, work.segment, work.column, work.cell / CELLS, threadIdx.x >> 5);
    turn.await();
#pragma unroll
    for (int c = 0; c < 3; c++) {
        int k = work.cell + own * 3 + c;
        if (k >= p.triplets.cells) continue;
        float4 *share = (float4 *)(p.shares + (((i64)(work.segment % p.slots) * p.columns + work.column) * p.triplets.cells + k) * (INPUTS * OUTPUTS)) + member;
        float4 before[8];
#pragma unroll
        for (int n = 0; n < 8; n++) before[n] = turn.link ? share[n * 128] : make_float4(0.f, 0.f, 0.f, 0.f);
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const float *own_sums = sums + c * 32 + 4 * n;
            share[n * 128] = make_float4(before[n].x + own_sums[0], before[n].y + own_sums[1], before[n].z + own_sums[2], before[n].w + own_sums[3]);
        }
    }
    turn.pass();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) outer(const __grid_constant__ OuterParams p) {
    extern __shared__ __align__(1024) uint4 shared[];
    const Triplets &t = p.triplets;
    u8 *stages = (u8 *)shared + (((shared_address(shared) + 1023) & ~1023u) - shared_address(shared));  // swizzled: at multiples of 1024
    u32 *words = (u32 *)(stages + 2 * STAGE_BYTES);
    int *tables = (int *)(words + THREADS / 32 * (1 + BESIDE) * 2 * 4 * STRIDE);
    volatile int &kept_item = tables[CELLS_STRIDE - 1];  // no cell's: registers are rare
    if (threadIdx.x == 0) kept_item = p.turns ? atomicAdd(p.turns + (i64)p.slots * p.columns * p.cell_blocks * 12, 1u) : blockIdx.x;
    __syncthreads();
    int item = kept_item, lane = threadIdx.x & 31, warp = __shfl_sync(ALL, (int)(threadIdx.x >> 5), 0), octet = lane & 7;
    Work work(p, item);
    i64 first = part_begin(t, work.segment, p.segments), end = part_begin(t, work.segment + 1, p.segments);
    // Missing channels are replaced by others, whose sums nobody reads.
    int in = work.input + octet * 8 < p.inputs ? octet * 8 : 0, out = work.output + octet * 8 < p.outputs ? octet * 8 : 0;
    Source source = {p.features + (i64)work.group * p.inputs + work.input + in, (u32)(p.features_row * sizeof(Value)), work.cell};
    Quad quad = {0, nullptr, nullptr, nullptr, Row(0, 0)};
    quad.own = warp * 4 + (lane >> 3);
    quad.words = words + warp * ((1 + BESIDE) * 2 * 4 * STRIDE) + (lane >> 3) * (2 * STRIDE);
    quad.table = tables + quad.own * CELLS_STRIDE;
    quad.list = (int2 *)(tables + ROWS * CELLS_STRIDE) + quad.own * EXTRAS;
    const Value *grad = p.grad + (i64)work.group * p.outputs + work.output + out + (first + quad.own) * p.grad_row;
    auto copy = [&](i64 begin, u32 stage) {
        quad.copy(source, stage);
        copy_of(begin + quad.own < end ? 0 : -1, stage + CELLS * CELL_BYTES + quad.own * 128 + (octet ^ (quad.own & 7)) * 16, grad);
        grad += ROWS * p.grad_row;
    };
    Sums sums;
    clear(sums);
    u32 at = shared_address(stages), own_cells = warp / 4 * 3 * CELL_BYTES;
    int turn = 0;
    quad.begin(t, work.cell, first, end);
    quad.look(t, work.cell, 0, first, end);
    copy(first, at);
    quad.fetch(source);
    quad.look(t, work.cell, 1, first + ROWS, end);
    for (i64 begin = first; begin < end; begin += ROWS, turn ^= 1) {
        await_all_copies();
        bool large = quad.add(t, source, stages + turn * STAGE_BYTES, turn, begin, end);
        publish();
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#if BF16
        __syncthreads();               // this stage is full, and the other has been multiplied
#else
        int shift = 0;
        if (__syncthreads_or(large)) { // the same
            for (bool more = true; more; more = __syncthreads_or(large)) {
                large = quad.shrink(t, source, stages + turn * STAGE_BYTES, ++shift, begin, end);
                publish();
            }
            quad.begin(t, work.cell, begin + 2 * ROWS, end);  // loads `given` again, which is not kept across this for want of registers
        }
#endif
        u32 stage = at + turn * STAGE_BYTES;
        copy(begin + ROWS, at + (turn ^ 1) * STAGE_BYTES);
        quad.fetch(source);
        multiply(sums, stage + own_cells, stage + CELLS * CELL_BYTES);
#if !BF16
        for (int again = (1 << shift) - 1; again > 0; again--) multiply(sums, stage + own_cells, stage + CELLS * CELL_BYTES);
#endif
        quad.look(t, work.cell, turn, begin + 2 * ROWS, end);
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    await_all_copies();
#pragma unroll
    for (int i = 0; i < 96; i++) asm volatile("" : "+f"(sums[i])::"memory");
    add_to_share(p, sums, kept_item);
}
