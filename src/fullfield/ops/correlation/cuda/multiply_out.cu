// Multiplication of marked patches with the features: sums of 64 outputs over chunks of 64 operands by mma.sync on 16-bit
// operands (pairs of float16 with SPLIT). Blocks take items from a queue. No additions are atomic, so every run gives the
// same bits.
//
// For the first map's gradient an item is a tile; its operands are the positions of the second map that some pixel's sums
// cover, in cells of 2x2. For the second map's an item is an 8x8 target tile of one level; its operands are the source pixels
// whose sums cover part of it, found through the marks. If there are few outputs or many operands for each, several items
// split the operands and add their shares in order. The last items wait for the others and write the marked patches again,
// with the lookup that did not fit.
//
// More macros:
//   NCH      channels of a block
//   CHUNKS   2: one chunk is copied while the other is multiplied; 1: one after the other, in less shared memory

#define THREADS 256
#define V_BYTES (64 * NCH * 2)
#define W_BYTES (64 * 64 * 2)
#define RAW_BYTES (64 * 64 * 4)   // the weights before rounding
#define STAGE_BYTES (V_BYTES * PARTS + RAW_BYTES)
#define W_OFFSET (CHUNKS * STAGE_BYTES)
#define LIST_OFFSET (W_OFFSET + W_BYTES * PARTS)
#define BLOCKS (CPAD / NCH)
#define OUTPUTS (NCH / 32)         // 8-wide groups of channels of a warp
#define RING 512
#define FEW_ITEMS 1024
#define LINES (LIST_OFFSET / (PATCH * TILE_PIXELS * 4) < PATCH ? LIST_OFFSET / (PATCH * TILE_PIXELS * 4) : PATCH)  // lines of patches in work at a time

struct Lists {
    union {
        struct { u32 rows[32]; u16 cells[1024]; int count; } first;
        struct { u32 place[RING], pixel[RING], covers[RING]; int tiles[THREADS], counts[2][8]; } second;
        Restart restart;
    };
    int item, items, restart_items, last_block, first_items, first_splits, end[MAXLEVELS], splits[MAXLEVELS];
};

// Return the thread's number, hidden from the compiler, so that values that depend on it are not kept in registers.
static __device__ __forceinline__ int thread_now() {
    int thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}
static __device__ __forceinline__ void matrices(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
// A stage has one row for each operand. Warp w copies the rows w, w + 8, ... of operands and weights. Octets of 16-bit
// elements are swizzled by the row. Return where octet c lies in row r of 128 bytes; r matters modulo 8.
static __device__ __forceinline__ u32 swizzled(int c, int r) { return (c >> 3) * 8192 + ((c ^ r) & 7) * 16; }

// Round the raw weights of two columns that the thread itself copied.
static __device__ __forceinline__ void round_weights(u32 to, u32 raw, float gain) {
    int thread = thread_now(), warp = thread >> 5, lane = thread & 31;
    raw += warp * 256 + lane * 8;
    to += warp * 128 + swizzled(lane >> 2, warp) + (lane & 3) * 4;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float a, b;
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(a), "=f"(b) : "r"(raw + i * 2048) : "memory");
        a *= gain;
        b *= gain;
        u32 high = pack_pair(a, b);
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + i * 1024), "r"(high) : "memory");
#if SPLIT
        u32 low = pack_pair(a - from_f16(high & 0xffff), b - from_f16(high >> 16));
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + i * 1024 + W_BYTES), "r"(low) : "memory");
#endif
    }
}
// Copy one row of operands.
static __device__ __forceinline__ void copy_row(u32 to, const u16 *from, int warp, int lane, bool valid) {
#pragma unroll
    for (int part = 0; part < PARTS; part++)
#pragma unroll
        for (int c = 0; c < NCH / 8; c += 32)
            if (NCH % 256 == 0 || c + lane < NCH / 8)
                copy_async<16>(to + part * V_BYTES + swizzled(c + lane, warp), from + part * CPAD + (c + lane) * 8, valid);
}

typedef float Sums[2][OUTPUTS][4]; // a warp's: 32 outputs, a quarter of the channels

// Multiply one chunk. TRANSPOSED: the weights lie as [operand][output], else as [output][operand].
template <bool TRANSPOSED>
static __device__ __forceinline__ void multiply(Sums &sums, u32 stage, u32 weights) {
    int thread = thread_now(), warp = thread >> 5, lane = thread & 31, upper = warp & 1, quarter = warp >> 1;
#if SPLIT
    Sums part;                     // the tensor cores' sums lose bits: at most one chunk long
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < OUTPUTS; n++) part[m][n][0] = part[m][n][1] = part[m][n][2] = part[m][n][3] = 0.f;
#else
    Sums &part = sums;
#endif
    u32 a_at[2], b_at[OUTPUTS / 2];
#pragma unroll
    for (int m = 0; m < 2; m++)
        a_at[m] = TRANSPOSED ? weights + ((lane & 7) + (lane >> 4) * 8) * 128 + swizzled(upper * 4 + m * 2 + (lane >> 3 & 1), lane)
                             : weights + ((upper * 4 + m * 2) * 8 + (lane & 15)) * 128;
#pragma unroll
    for (int n = 0; n < OUTPUTS / 2; n++) b_at[n] = stage + (lane & 15) * 128 + swizzled(quarter * (NCH / 32) + n * 2 + (lane >> 4), lane);
#pragma unroll
    for (int s = 0; s < 4; s++) {
        u32 a[PARTS][2][4];
#pragma unroll
        for (int i = 0; i < PARTS; i++)
#pragma unroll
            for (int m = 0; m < 2; m++) {
                if (TRANSPOSED)
                    matrices_transposed(a[i][m], a_at[m] + i * W_BYTES + s * 2048);
                else
                    matrices(a[i][m], a_at[m] + i * W_BYTES + swizzled(s * 2 + (lane >> 4), lane));
            }
#pragma unroll
        for (int n = 0; n < OUTPUTS / 2; n++) {
#pragma unroll
            for (int j = 0; j < PARTS; j++) {
                u32 b[4];
                matrices_transposed(b, b_at[n] + j * V_BYTES + s * 2048);
#pragma unroll
                for (int i = 0; i < PARTS - j; i++)
#pragma unroll
                    for (int m = 0; m < 2; m++) {
                        mma_16816(part[m][2 * n], a[i][m][0], a[i][m][1], a[i][m][2], a[i][m][3], b[0], b[1]);
                        mma_16816(part[m][2 * n + 1], a[i][m][0], a[i][m][1], a[i][m][2], a[i][m][3], b[2], b[3]);
                    }
            }
        }
    }
#if SPLIT
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < OUTPUTS; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[m][n][i] += part[m][n][i];
#endif
}

static __device__ __forceinline__ void add(float *to, const Sums &sums, int m, int half, float scale) {
#pragma unroll
    for (int n = 0; n < OUTPUTS; n++) {
        float2 v = *(float2 *)(to + n * 8);
        v.x += sums[m][n][2 * half] * scale;
        v.y += sums[m][n][2 * half + 1] * scale;
        *(float2 *)(to + n * 8) = v;
    }
}

// Splits of an item add their shares one after the other. Items are handed out in order, so earlier ones have started.
static __device__ __forceinline__ void await_turn(volatile int *turn, int split, int splits) {
    if (splits == 1) return;
    if (threadIdx.x == 0) {
        while (*turn != split) {
        }
        __threadfence();
    }
    __syncthreads();
}
static __device__ __forceinline__ void pass_turn(volatile int *turn, int split, int splits) {
    if (splits == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *turn = split + 1 == splits ? 0 : split + 1;
}

// ---- the first map's gradient

struct FirstMap {
    const GradientParams &q;
    Lists &lists;
    int tile, tile_x, tile_y, batch, block, levels, split, splits, chunk;
    int level, h, w, x0, y0, x1, y1, sx, sy;  // the rectangle that is covered, and a square of 64x64 positions in it
    int cells, at;
    int4 pair[2];                  // what the lane's two pixels cover
    const float *patches;
    const u16 *f2;

    __device__ __forceinline__ FirstMap(const GradientParams &q, Lists &lists, int item) : q(q), lists(lists) {
        const Params &p = q.p;
        splits = lists.first_splits;
        split = item % splits;
        item /= splits;
        block = item % BLOCKS;
        tile = q.full_tiles[item / BLOCKS];
        levels = q.full[tile];
        int row = tile / p.tiles_x;
        tile_x = tile - row * p.tiles_x;
        batch = row / p.tiles_y;
        tile_y = row - batch * p.tiles_y;
        level = -1;
        cells = at = chunk = 0;
        x0 = x1 = y0 = y1 = sx = sy = 0;
    }
    __device__ __forceinline__ int4 clipped(int pixel) const {
        int4 box = q.covered[((i64)tile * q.p.levels + level) * TILE_PIXELS + pixel];
        return make_int4(max(box.x, 0), max(box.y, 0), min(box.z, w), min(box.w, h));
    }
    __device__ u32 magnitude() const {
        u32 most = 0;
        for (int l = 0; l < q.p.levels; l++)
            if (levels >> l & 1) most = max(most, q.largest[tile * q.p.levels + l]);
        return most;
    }
    // Advance to the next chunk; the whole block calls it. Return whether there is one.
    __device__ __forceinline__ bool next() {
        const Params &p = q.p;
        while (true) {
            at += 16;
            if (at < cells) {
                if (chunk++ % splits == split) return true;
                continue;
            }
            sx += 64;
            if (sx >= x1) {
                sx = x0;
                sy += 64;
            }
            if (sy >= y1) {
                if (levels == 0) return false;
                level = __ffs(levels) - 1;
                levels &= levels - 1;
                h = p.level_h[level];
                w = p.level_w[level];
                int4 all = q.bounds[tile * p.levels + level];
                x0 = sx = max(all.x, 0), y0 = sy = max(all.y, 0), x1 = min(all.z, w), y1 = min(all.w, h);
                int lane = threadIdx.x & 31;
                pair[0] = clipped(2 * lane);
                pair[1] = clipped(2 * lane + 1);
                patches = q.patches + ((i64)tile * p.levels + level) * PATCH_FLOATS + 2 * lane;
                f2 = p.f2 + p.level_offset[level] + (i64)batch * h * w * ROWLEN + block * NCH;
            }
            __syncthreads();           // the last list is read
            if (threadIdx.x < 32) lists.first.rows[threadIdx.x] = 0;
            __syncthreads();
            if (threadIdx.x < TILE_PIXELS) {
                int4 box = clipped(threadIdx.x);
                int left = max(box.x - sx, 0) / 2, right = (min(box.z - sx, 64) + 1) / 2, top = max(box.y - sy, 0) / 2, bottom = (min(box.w - sy, 64) + 1) / 2;
                if (box.z > sx && box.w > sy && left < right) {
                    u32 columns = (right == 32 ? 0xffffffffu : (1u << right) - 1) & ~((1u << left) - 1);
                    for (int r = top; r < bottom; r++) atomicOr(lists.first.rows + r, columns);
                }
            }
            __syncthreads();
            if (threadIdx.x < 32) {
                u32 row = lists.first.rows[threadIdx.x];
                int own = __popc(row), before = own;
#pragma unroll
                for (int i = 1; i < 32; i *= 2) {
                    int other = __shfl_up_sync(ALL, before, i);
                    if (threadIdx.x >= i) before += other;
                }
                if (threadIdx.x == 31) lists.first.count = before;
                for (int i = before - own; row; row &= row - 1) lists.first.cells[i++] = threadIdx.x * 32 + __ffs(row) - 1;
            }
            __syncthreads();
            cells = lists.first.count;
            at = -16;
        }
    }
    __device__ __forceinline__ bool position(int k, int &x, int &y) const {  // operand k of the chunk
        int cell = at + (k >> 2);
        bool valid = cell < cells;
        int packed = valid ? lists.first.cells[cell] : 0;
        x = sx + (packed & 31) * 2 + (k & 1);
        y = sy + (packed >> 5) * 2 + (k >> 1 & 1);
        return valid && x < w && y < h;
    }
    static __device__ __forceinline__ bool covers(const int4 &box, int x, int y) {
        return x >= box.x && x < box.z && y >= box.y && y < box.w;
    }
    __device__ __forceinline__ void copy(u32 stage) const {
        int thread = thread_now(), warp = thread >> 5, lane = thread & 31;
        u32 raw = stage + V_BYTES * PARTS + warp * 256 + lane * 8;
        stage += warp * 128;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int x, y;
            bool valid = position(i * 8 + warp, x, y);
            if (!valid) x = y = 0;
            copy_row(stage + i * 1024, f2 + ((i64)y * w + x) * ROWLEN, warp, lane, valid);
            const float *from = patches + ((u32)y % PATCH * PATCH + (u32)x % PATCH) * TILE_PIXELS;
            copy_async<4>(raw + i * 2048, from, valid && covers(pair[0], x, y));
            copy_async<4>(raw + i * 2048 + 4, from + 1, valid && covers(pair[1], x, y));
        }
    }
    __device__ __forceinline__ void finish(const Sums &sums, float inverse, bool any) const {
        const Params &p = q.p;
        int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        volatile int *turn = q.turn + tile * BLOCKS + block;
        await_turn(turn, split, splits);
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int pixel = (warp & 1) * 32 + m * 16 + half * 8 + (lane >> 2), x = tile_x * 8 + (pixel & 7), y = tile_y * 8 + (pixel >> 3);
                if (any && x < p.width && y < p.height)
                    add(q.g1 + (((i64)batch * p.height + y) * p.width + x) * CPAD + block * NCH + (warp >> 1) * (NCH / 4) + (lane & 3) * 2, sums, m, half,
                        p.scale[1] * inverse);
            }
        pass_turn(turn, split, splits);
    }
};

// ---- the second map's gradient

struct SecondMap {
    const GradientParams &q;
    Lists &lists;
    int level, h, w, x0, y0, x1, y1, batch, block, split, splits, target;
    u64 bands;                     // bands that are not looked at yet
    int from, until, tiles, tile, turn; // tiles of the present bands; the list of those that meet the target
    int head, tail;
    const u16 *f1;

    __device__ __forceinline__ SecondMap(const GradientParams &q, Lists &lists, int item) : q(q), lists(lists) {
        const Params &p = q.p;
        level = p.levels - 1;
        while (item >= lists.end[level]) level--;
        if (level + 1 < p.levels) item -= lists.end[level + 1];
        h = p.level_h[level];
        w = p.level_w[level];
        splits = lists.splits[level];
        split = item % splits;
        item /= splits;
        block = item % BLOCKS;
        item = q.full_targets[q.target_begin[level] + item / BLOCKS];
        target = q.target_begin[level] + item;
        int across = count_tiles(w), row = item / across;
        x0 = (item - row * across) * 8;
        batch = row / count_tiles(h);
        y0 = (row - batch * count_tiles(h)) * 8;
        x1 = min(x0 + 8, w);
        y1 = min(y0 + 8, h);
        bands = q.bands[target];
        from = until = tiles = tile = turn = 0;
        head = -64;
        tail = 0;
        f1 = p.f1 + (i64)batch * p.height * p.width * ROWLEN + block * NCH;
    }
    __device__ u32 magnitude() const { return q.target_largest[target]; }
    // Return the thread's place among those for which `yes`, and their number.
    __device__ __forceinline__ int place(bool yes, int &total) {
        int warp = threadIdx.x >> 5, *counts = lists.second.counts[turn];
        turn ^= 1;
        u32 those = __ballot_sync(ALL, yes);
        if ((threadIdx.x & 31) == 0) counts[warp] = __popc(those);
        __syncthreads();
        int before = __popc(those & ((1u << (threadIdx.x & 31)) - 1));
        total = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int n = counts[i];
            if (i < warp) before += n;
            total += n;
        }
        return before;
    }
    static __device__ __forceinline__ u32 bits(int first, int past) {  // bits first .. past - 1, within 0 .. 7
        first = max(first, 0);
        past = min(past, 8);
        return first < past ? (1u << past) - (1u << first) : 0;
    }
    __device__ __forceinline__ bool next() {
        const Params &p = q.p;
        head += 64;
        if (head > tail) head = tail;
        while (tail - head < 64) {
            if (tile >= tiles) {
                while (from >= until) {
                    if (bands == 0) return tail > head;
                    int first = __ffsll(bands) - 1, past = first, per_band = (p.tiles_y + BANDS - 1) / BANDS;
                    while (past < BANDS && bands >> past & 1) bands &= ~(1ull << past++);
                    from = first * per_band * p.tiles_x;
                    until = min(past * per_band, p.tiles_y) * p.tiles_x;
                }
                int local = from + threadIdx.x, y = local / p.tiles_x, x = local - y * p.tiles_x;
                int index = (batch * p.tiles_y * p.tiles_x + local) * p.levels + level;
                bool meets = local < until && (splits == 1 || (x + 3 * y) % splits == split);
                if (meets) {
                    int4 all = q.bounds[index];
                    meets = all.x < x1 && all.z > x0 && all.y < y1 && all.w > y0 && q.full[batch * p.tiles_y * p.tiles_x + local] >> level & 1;
                }
                int at = place(meets, tiles);
                if (meets) lists.second.tiles[at] = local;
                __syncthreads();
                tile = 0;
                from += THREADS;
                continue;
            }
            int candidate = tile + (threadIdx.x >> 6), pixel = threadIdx.x & 63, local = 0;
            u32 columns = 0, rows = 0;
            i64 index = 0;
            if (candidate < tiles) {
                local = lists.second.tiles[candidate];
                index = (i64)((batch * p.tiles_y * p.tiles_x + local) * p.levels + level) * TILE_PIXELS + pixel;
                int4 box = q.covered[index];
                columns = bits(box.x - x0, min(box.z, w) - x0);
                rows = bits(box.y - y0, min(box.w, h) - y0);
            }
            int total, at = place(columns && rows, total);
            if (columns && rows) {
                int to = (tail + at) % RING, y = local / p.tiles_x, x = local - y * p.tiles_x;
                lists.second.place[to] = (local << 6) + pixel;
                lists.second.pixel[to] = (y * 8 + (pixel >> 3)) * p.width + x * 8 + (pixel & 7);
                lists.second.covers[to] = rows << 8 | columns;
            }
            tail += total;
            tile += 4;
        }
        return true;
    }
    __device__ __forceinline__ void copy(u32 stage) const {
        const Params &p = q.p;
        int thread = thread_now(), warp = thread >> 5, lane = thread & 31;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            bool valid = head + i * 8 + warp < tail;
            copy_row(stage + warp * 128 + i * 1024, f1 + (valid ? (i64)lists.second.pixel[(head + i * 8 + warp) % RING] * ROWLEN : 0), warp, lane, valid);
        }
        u32 raw = stage + V_BYTES * PARTS + warp * 256 + lane * 8;  // the warp's rows: column `warp` of the target tile
        int column = (u32)(x0 + warp) % PATCH * TILE_PIXELS;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            int k = head + 2 * lane + j;
            bool valid = k < tail;
            u32 place = valid ? lists.second.place[k % RING] : 0, covers = valid ? lists.second.covers[k % RING] : 0;
            const float *from = q.patches + ((i64)(batch * p.tiles_y * p.tiles_x + (place >> 6)) * p.levels + level) * PATCH_FLOATS + (place & 63) + column;
            u32 rows = covers >> warp & 1 ? covers >> 8 : 0;
            int line = (u32)y0 % PATCH;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                copy_async<4>(raw + i * 2048 + 4 * j, from + line * (PATCH * TILE_PIXELS), rows >> i & 1);
                line = line + 1 == PATCH ? 0 : line + 1;
            }
        }
    }
    __device__ __forceinline__ void finish(const Sums &sums, float inverse, bool any) const {
        const Params &p = q.p;
        int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
        volatile int *turn = q.turn + (p.tiles + target) * BLOCKS + block;
        await_turn(turn, split, splits);
        if (any) {
            float *g2 = q.g2 + p.level_offset[level] / PARTS + (i64)batch * h * w * CPAD + block * NCH + (warp >> 1) * (NCH / 4) + (lane & 3) * 2;
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    int output = (warp & 1) * 32 + m * 16 + half * 8 + (lane >> 2), x = x0 + (output & 7), y = y0 + (output >> 3);
                    if (x < w && y < h) add(g2 + ((i64)y * w + x) * CPAD, sums, m, half, p.scale[2] * inverse);
                }
        }
        pass_turn(turn, split, splits);
    }
};

// Sum over all chunks of one item. Return whether there were any.
template <bool TRANSPOSED, class Operands>
static __device__ __forceinline__ bool sum_up(Operands &operands, Sums &sums, u32 base, float gain) {
    if (!operands.next()) return false;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < OUTPUTS; n++) sums[m][n][0] = sums[m][n][1] = sums[m][n][2] = sums[m][n][3] = 0.f;
    __syncthreads();
    operands.copy(base);
    bool more = true;
    for (u32 stage = base, other = base + (CHUNKS - 1) * STAGE_BYTES; more;) {
        more = operands.next();
        await_all_copies();
        __syncthreads();               // the last chunk is multiplied, the next one's list is complete
        if (CHUNKS == 2 && more) operands.copy(other);
        round_weights(base + W_OFFSET, stage + V_BYTES * PARTS, gain);
        __syncthreads();
        multiply<TRANSPOSED>(sums, stage, base + W_OFFSET);
        if (CHUNKS == 1 && more) {
            __syncthreads();           // the chunk is read
            operands.copy(base);
        }
        u32 swap = stage;
        stage = other;
        other = swap;
    }
    return true;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) multiply_out(const __grid_constant__ GradientParams q) {
    extern __shared__ u8 raw[];
    if (q.work->levels == 0) return;
    u32 base = (shared_address(raw) + 1023) & ~1023u;
    Lists &lists = *(Lists *)(raw + (base - shared_address(raw)) + LIST_OFFSET);
    if (threadIdx.x == 0) {
        const Work &work = *q.work;
        int end = 0, most = q.p.tiles * q.p.levels, outputs = work.tiles;
        for (int level = 0; level < q.p.levels; level++) outputs += work.targets[level];
        int few = max(1, min(4, FEW_ITEMS / outputs));  // splits that give every block work
        lists.first_splits = few;
        lists.first_items = work.tiles * BLOCKS * few;
        for (int level = q.p.levels - 1; level >= 0; level--) {  // the coarsest level first
            int splits = max(few, min(q.splits[level], 1 + (int)((i64)q.splits[level] * 2 * work.levels / most)));
            end += work.targets[level] * BLOCKS * splits;
            lists.end[level] = end;
            lists.splits[level] = splits;
        }
        lists.items = lists.first_items + end;
        lists.restart_items = q.mode == ADD ? work.levels : 0;
    }
    while (true) {
        if (threadIdx.x == 0) lists.item = atomicAdd(&q.work->handed_out, 1);
        __syncthreads();
        int item = lists.item;
        if (item >= lists.items + lists.restart_items) break;
        if (item >= lists.items) {
            begin_again<THREADS / TILE_PIXELS, LINES>(q, lists.restart, (float *)(raw + (base - shared_address(raw))), lists.items, item - lists.items);
            __syncthreads();
            continue;
        }
        Sums sums;
        float inverse;
        if (item < lists.first_items) {
            FirstMap operands(q, lists, item);
            float gain = gain_of(BF16 ? 0 : operands.magnitude(), inverse);
            bool any = sum_up<true>(operands, sums, base, gain);
            operands.finish(sums, inverse, any);
        } else {
            SecondMap operands(q, lists, item - lists.first_items);
            float gain = gain_of(BF16 ? 0 : operands.magnitude(), inverse);
            bool any = sum_up<false>(operands, sums, base, gain);
            operands.finish(sums, inverse, any);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            atomicAdd(&q.work->finished, 1);
        }
    }
    if (threadIdx.x == 0) {
        __threadfence();
        lists.last_block = atomicAdd(&q.work->done, 1) == gridDim.x - 1;
    }
    __syncthreads();
    if (!lists.last_block) return;
    for (int level = 0; level < q.p.levels; level++)  // the last block leaves marks and counts as they were
        for (int i = threadIdx.x; i < q.work->targets[level]; i += THREADS) {
            int target = q.target_begin[level] + q.full_targets[q.target_begin[level] + i];
            q.bands[target] = 0;
            q.target_largest[target] = 0;
        }
    __syncthreads();
    if (threadIdx.x == 0) {
        q.work->handed_out = q.work->finished = q.work->done = q.work->levels = q.work->tiles = 0;
        for (int level = 0; level < MAXLEVELS; level++) q.work->targets[level] = 0;
    }
}
