// PTX wrappers and the lookup plan shared by every correlation kernel. No system headers (NVRTC). Built behind halves.cuh and
// products.cuh.
//
// Macros set by the launcher:
//   RADIUS   window radius (1-8)
//   CBLK     channels of one K block, a multiple of 64, at most 256
//   KB       number of K blocks; the feature vectors are KB*CBLK channels long
//   SPLIT    1: every feature is stored as a high and a low half (float32-accurate products), else 0
//   BF16     1: the 16-bit features are bfloat16, else float16
//   OUT      type of the looked-up values: 0 float32, 1 float16, 2 bfloat16
//   CLAST    1: channels-last output, else NCHW
//   GROUPS   pixel groups (of 64) of a tile; BLOCK_W width of a warp's 16 pixels, 16 or 8
//   STREAMED 1: the first map's features are not kept in the L2
//   NCOL     columns (positions of the second map) of one chunk; WIDTHS: admissible chunk widths, ascending
//   HOPPER   1: the lookup is that of lookup_hopper.cu
//   KEPT     how products are kept between the lookups of a pair: 0 not at all, 1 in 16 bits of the results' type, 2 in 24 bits,
//            3 in float32; see keep.cuh

#define KW (2 * RADIUS + 1)        // taps per axis
#define KP (2 * RADIUS + 2)        // integer positions per axis
#define PARTS (1 + SPLIT)
#define CPAD (KB * CBLK)           // channels of one part
#define ROWLEN (CPAD * PARTS)      // 16-bit elements of one feature vector
#define KEPT_TILES (2 / GROUPS)    // whose patches lie together, side by side in the image
#define KEPT_PIXELS 128            // of these tiles
#define TILE_W BLOCK_W             // a tile is GROUPS * 4 blocks, one below the other
#define TILE_H (64 * GROUPS / BLOCK_W)
#define BLOCK_H (16 / BLOCK_W)     // a block: the 16 pixels of a warp
#define LANE_PIXELS (2 * GROUPS)
#define MAXSTRIPS 8
#define MOST_MARGIN 4              // of a patch beside the window
#define MAXLEVELS 8
#define CLASSES 5                  // lists of what a lookup that keeps has to compute, see class_of
#define PARTS_MOST 8
#define BIG 0x3fffffff
#ifndef KEPT
#define KEPT 0
#endif
#ifndef CHUNKS_PER_PIXEL
#define CHUNKS_PER_PIXEL 2
#endif

// What lookups keep for those that follow. A slot is a level of a tile.
struct Kept {
    u8 *patches;                   // null: this lookup keeps nothing
    u32 *counts;                   // zeros: entries of each class, the chunks of all, blocks that are done
    u32 *entries;                  // [CLASSES, most_entries]: what the lookup has to compute, slot << 2 | scattered << 1 | fill; null: everything
    u32 *stamps;                   // [slots]: the preparation of the pair that what a slot says belongs to
    u32 *filled;                   // [slots, pixels / 32]: bits of pixels whose products are kept
    u32 *wanted;                   // the same: pixels whose windows the lookup has to compute
    u32 *origins;                  // [slots, pixels]: where a pixel's patch begins, x + BIAS | y + BIAS << 16; 0: unknown
    const u32 *stamp;              // of the present preparation
    i64 group_bytes;               // of the patches of KEPT_TILES tiles
    int offset[MAXLEVELS];         // in bytes, of a level's patches
    int side[MAXLEVELS];           // of a level's patch, at least KP
    int most_entries;              // of a class
};

struct Params {
    const u16 *f1;                 // [B, H, ceil(W/8), PARTS, CPAD/32, 32 lanes, 8]: A fragments of 8 pixels and 32 channels
    const u16 *f2;                 // levels one after the other, [B, h, w, ROWLEN], natural order
    const float *coords;
    void *out;
    const float *scale;            // one float multiplied into every product
    int *queue;                    // two zeros: items handed out, blocks done
    i64 coord_b, coord_c, coord_y, coord_x;
    i64 level_offset[MAXLEVELS];
    int level_h[MAXLEVELS], level_w[MAXLEVELS];
    int batch, height, width, levels;
    int tiles_x, tiles_y, tiles, items, parts;
    int part_begin[PARTS_MOST], part_end[PARTS_MOST];  // levels of a part of a tile
    int whole;                     // so many tiles are one item each, the others are in parts
    int crew;                      // so many teams work on items at a time
    Kept kept;
};

struct __align__(64) TensorMap { u64 opaque[16]; };

static __device__ __forceinline__ u32 smem_address(const void *p) { return (u32)__cvta_generic_to_shared(p); }

static __device__ __forceinline__ u32 lane_id() { u32 x; asm("mov.u32 %0, %%laneid;" : "=r"(x)); return x; }

template <int T> struct Element;
template <> struct Element<0> { typedef float type; static __device__ __forceinline__ float pack(float x) { return x; }
                                static __device__ __forceinline__ float unpack(float x) { return x; } };
template <> struct Element<1> { typedef u16 type; static __device__ __forceinline__ u16 pack(float x) { return to_f16(x); }
                                static __device__ __forceinline__ float unpack(u16 x) { return from_f16(x); } };
template <> struct Element<2> { typedef u16 type; static __device__ __forceinline__ u16 pack(float x) { return to_bf16(x); }
                                static __device__ __forceinline__ float unpack(u16 x) { return from_bf16(x); } };
typedef Element<OUT> OutElement;
typedef OutElement::type out_t;

static __device__ __forceinline__ void store_streaming(float *p, float x) { asm volatile("st.global.cs.f32 [%0], %1;" ::"l"(p), "f"(x) : "memory"); }
static __device__ __forceinline__ void store_streaming(u16 *p, u16 x) { asm volatile("st.global.cs.u16 [%0], %1;" ::"l"(p), "h"(x) : "memory"); }

static __device__ __forceinline__ int warp_min(int x) { return __reduce_min_sync(0xffffffffu, x); }
static __device__ __forceinline__ int warp_max(int x) { return __reduce_max_sync(0xffffffffu, x); }

// ---------------------------------------------------------------------------------------------------------------------
// The window of one pixel at one level: first column and row, fractions. false: no position of it lies inside the map.
static __device__ __forceinline__ bool window(float x, float y, int level, int h, int w, int &ix, int &iy, float &fx, float &fy) {
    float s = __uint_as_float((u32)(127 - level) << 23);
    x *= s;
    y *= s;
    float bx = floorf(x), by = floorf(y);
    bool inside = w > 0 && h > 0 && bx >= (float)(-RADIUS - 1) && bx <= (float)(w - 1 + RADIUS) && by >= (float)(-RADIUS - 1) &&
                  by <= (float)(h - 1 + RADIUS);
    ix = inside ? (int)bx - RADIUS : -BIG;
    iy = inside ? (int)by - RADIUS : -BIG;
    fx = inside ? x - bx : 0.f;
    fy = inside ? y - by : 0.f;
    return inside;
}

static __device__ __forceinline__ int chunk_width_index(int width) {
    constexpr int widths[] = {WIDTHS};
    constexpr int n = sizeof(widths) / sizeof(int);
    int index = 0;
#pragma unroll
    for (int i = 0; i < n - 1; i++) index += width > widths[i];
    return index;
}
static constexpr u64 packed_widths() {
    constexpr int widths[] = {WIDTHS};
    u64 all = 0;
    for (int i = sizeof(widths) / sizeof(int) - 1; i >= 0; i--) all = all << 8 | widths[i];
    return all;
}
static __device__ __forceinline__ int chunk_width(int index) {
    constexpr u64 all = packed_widths();  // an array would be read from local memory
    return (int)(all >> (8 * index)) & 255;
}
static __device__ constexpr int widest() {
    constexpr int widths[] = {WIDTHS};
    return widths[sizeof(widths) / sizeof(int) - 1];
}

// A tile and the levels begin .. end-1. fill: patches are written, too; scattered: most windows lie apart.
struct Item {
    int batch, tile_x, tile_y, begin, end;
#if KEPT
    bool fill, scattered;
#endif
};

// Tiles are counted in strips of 256 pixels' width, so that those worked on at a time share much of the second map.
#define STRIP (256 / TILE_W)
static __device__ __forceinline__ Item decode_tile(const Params &p, u32 tile, int begin, int end) {
    u32 each = p.tiles_x * p.tiles_y, batch = tile / each, rest = tile - batch * each, strip = rest / (u32)(STRIP * p.tiles_y);
    rest -= strip * (STRIP * p.tiles_y);
    u32 width = min(STRIP, p.tiles_x - (int)strip * STRIP), row = rest / width;
    Item it;
    it.tile_x = strip * STRIP + rest - row * width;
    it.batch = batch;
    it.tile_y = row;
    it.begin = begin;
    it.end = end;
#if KEPT
    it.fill = it.scattered = false;
#endif
    return it;
}

// Whole tiles first, then level 0 of the others (the costliest part), then their other parts: small items come last.
static __device__ __forceinline__ Item decode_item(const Params &p, int item) {
    if (item < p.whole) return decode_tile(p, item, 0, p.levels);
    u32 count = p.tiles - p.whole, part = (u32)(item - p.whole) / count;
    return decode_tile(p, item - part * count, p.part_begin[part], p.part_end[part]);
}

// The coordinates of the lane's pixels; NaN outside the image.
static __device__ __forceinline__ void load_coords(const Params &p, const Item &it, float (&x)[LANE_PIXELS], float (&y)[LANE_PIXELS]) {
    int lane = lane_id(), px = it.tile_x * TILE_W + lane % BLOCK_W, py = it.tile_y * TILE_H + lane / BLOCK_W;
    const float *c = p.coords + it.batch * p.coord_b + py * p.coord_y + px * p.coord_x;
    i64 step = 32 / BLOCK_W * p.coord_y;
#pragma unroll
    for (int i = 0; i < LANE_PIXELS; i++, py += 32 / BLOCK_W, c += step) {
        x[i] = y[i] = __int_as_float(0x7fc00000);
        if (px < p.width && py < p.height) {
            x[i] = c[0];
            y[i] = c[p.coord_c];
        }
    }
}

#if KEPT
#define BIAS 64
static __device__ __forceinline__ int slot_of(const Params &p, const Item &it, int level) {
    return (((it.batch * p.tiles_y) + it.tile_y) * p.tiles_x + it.tile_x) * p.levels + level;
}
// The list of an entry of so many chunks. Scattered ones, which are never divided, are in the first if they are of the finest level,
// of whose map only a part stays in the L2, and in the last.
static __device__ __forceinline__ int class_of(int chunks) { return chunks > 40 ? 1 : chunks > 20 ? 2 : chunks > 6 ? 3 : 4; }
// How the entries of all classes are dealt out as items: lane c of a warp knows where those of class c begin, and in how many parts each is.
struct Dealt {
    int begin, parts, items;
};
// An entry is divided if it would take as long as half of what each team has to do; the parts
// of one take more chunks together than the whole.
static __device__ __forceinline__ Dealt deal(const Params &p) {
    const volatile u32 *counts = p.kept.counts;
    int own = (int)lane_id(), count = own < CLASSES ? (int)counts[own] : 0, fair = (int)counts[CLASSES] / (2 * p.crew);
    Dealt dealt;
    dealt.parts = own == 1 ? (fair < 20 ? 16 : 4) : own == 2 ? (fair < 10 ? 16 : fair < 20 ? 4 : 1) : own == 3 && fair < 8 ? 4 : 1;
    int end = count * dealt.parts;
    dealt.begin = end;
#pragma unroll
    for (int i = 1; i < CLASSES; i *= 2) {
        int before = __shfl_up_sync(0xffffffffu, end, i);
        if (own >= i) end += before;
    }
    dealt.begin = own < CLASSES ? end - dealt.begin : BIG;
    dealt.items = __shfl_sync(0xffffffffu, end, CLASSES - 1);
    return dealt;
}
// Which of an entry's pixels are meant, 4 * GROUPS to a bit: blocks of 16 * GROUPS of them are as square as can be.
static __device__ __forceinline__ u32 part_pixels(int part, int parts) {
    constexpr int across = BLOCK_W / (4 * GROUPS);
    if (parts == 1) return 0xffffu;
    if (parts == 16) return 1u << part;
    return across == 4 ? 0x1111u << part : across == 2 ? 0x55u << ((part & 1) + (part >> 1) * 8) : 0xfu << (part * 4);
}
// The item of this number; only its wanted pixels keep their coordinates.
static __device__ __forceinline__ Item dealt_item(const Params &p, const Dealt &dealt, int number, float (&x)[LANE_PIXELS], float (&y)[LANE_PIXELS]) {
    int which = __popc(__ballot_sync(0xffffffffu, number >= dealt.begin)) - 1, parts = __shfl_sync(0xffffffffu, dealt.parts, which);
    number -= __shfl_sync(0xffffffffu, dealt.begin, which);
    u32 entry = ((const volatile u32 *)p.kept.entries)[which * p.kept.most_entries + number / parts], pixels = part_pixels(number % parts, parts);
    u32 slot = entry >> 2, tile = slot / (u32)p.levels, row = tile / (u32)p.tiles_x, batch = row / (u32)p.tiles_y;
    Item it;
    it.batch = batch;
    it.tile_y = row - batch * p.tiles_y;
    it.tile_x = tile - row * p.tiles_x;
    it.begin = slot - tile * p.levels;
    it.end = it.begin + 1;
    it.fill = entry & 1;
    it.scattered = entry >> 1 & 1;
    load_coords(p, it, x, y);
    const volatile u32 *wanted = p.kept.wanted + slot * LANE_PIXELS;
#pragma unroll
    for (int i = 0; i < LANE_PIXELS; i++)
        if (!(wanted[i] >> lane_id() & 1 && pixels >> (i * 32 + (int)lane_id()) / (4 * GROUPS) & 1)) x[i] = __int_as_float(0x7fc00000);
    return it;
}
// Windows so far apart are hardly computed together. Where most neighbours in a row are, no product of the tile is kept and pixels may be
// worked on alone: that is decided by the present windows only, for such products may differ in their last bits.
static __device__ __forceinline__ bool apart(int x, int y, int other_x, int other_y) {
    return (u32)(x - other_x + KP / 2) > KP || (u32)(y - other_y + KP / 2) > KP;
}
// Whether windows that begin in these columns and rows lie together: a box around a tile's is hardly larger than it is without motion.
static __device__ __forceinline__ bool coherent(int left, int right, int top, int bottom, int level, int side) {
    float least = ((TILE_W >> level) + side) * ((TILE_H >> level) + side);
    return ((float)(right - left) + side) * ((float)(bottom - top) + side) <= 1.5f * least;
}
// So many columns, or rows, of a patch lie before the window that it is made for: half of those that it has more, the larger half on
// the side that is nearer.
static __device__ __forceinline__ int lead(float fraction, int side) {
    int more = side - KP;
    return (more & 1 && fraction < 0.5f) + more / 2;
}
#endif

// One step of work on a tile: either a chunk (a rectangle of the second map, multiplied with the pixels of the tile), or
// a strip whose pixels are scattered so widely that each takes its own dot products.
enum { CHUNK = 0, SCATTERED = 1, ITEM = 2, EXIT = 3 };
struct Step {
    int kind, level, x, y, width_index, width, rows;
    int first, last;               // the pixels whose windows begin in columns first .. last-1 take part
    int groups;                    // bit g: some pixel of group g (64 pixels) needs this chunk; bit 7: its products are kept
};

// Walks a tile's levels; for each level its strips (ranges of window origins narrow enough for one chunk width); for each
// strip the rows that some pixel asks for. Run by a full warp; lane i knows pixels i, i+32, i+64, ... of the tile.
// Where products are kept, strips whose pixels would be scattered are cut into ones that are as narrow as can be, unless most windows of
// the tile lie apart.
struct Plan {
    float x[LANE_PIXELS], y[LANE_PIXELS];
    int ix[LANE_PIXELS], iy[LANE_PIXELS];
    int level, level_end, strip, strips, xmin, bin, sx, width_index, width, rows, row, bottom;
    int group_top[GROUPS], group_bottom[GROUPS];
    bool walking, gaps;
#if KEPT
    int side;                      // of what is computed for a pixel: its window, or its patch
    enum { FILL = 1, APART = 2, NARROW = 4 };
    u32 is;                        // patches are written, most windows lie apart, a strip is being cut: one word, for registers are scarce
    int cursor, narrow_end;
#define SIDE side
#else
#define SIDE KP
#endif

    __device__ __forceinline__ void start(const Item &it) {
        level = it.begin - 1;
        level_end = it.end;
        strip = strips = 0;
        walking = false;
#if KEPT
        is = (it.fill ? FILL : 0) | (it.scattered ? APART : 0);
        side = KP;
#endif
    }
    // Whether the windows of level 0 spread so widely that the tile may cost several times what others cost.
    __device__ __forceinline__ bool spread(const Params &p) const {
        int left = BIG, right = -BIG, top = BIG, bottom = -BIG;
#pragma unroll
        for (int i = 0; i < LANE_PIXELS; i++) {
            int wx, wy;
            float fx, fy;
            if (window(x[i], y[i], 0, p.level_h[0], p.level_w[0], wx, wy, fx, fy)) {
                left = min(left, wx);
                right = max(right, wx);
                top = min(top, wy);
                bottom = max(bottom, wy);
            }
        }
        left = warp_min(left);
        if (left == BIG) return false;
        int strips = (warp_max(right) - left) / (widest() - KP + 1) + 1;
        return strips * (warp_max(bottom) - warp_min(top) + KP) > 3 * (TILE_H + KP);
    }
    __device__ __forceinline__ bool member(int i, int a, int b) const { return ix[i] >= a && ix[i] < b; }
    __device__ __forceinline__ int next_needed(int a, int b, int from) const {
        int n = BIG;
#pragma unroll
        for (int i = 0; i < LANE_PIXELS; i++)
            if (member(i, a, b) && iy[i] + SIDE > from) n = min(n, max(iy[i], from));
        return warp_min(n);
    }

#if KEPT
    // What sample_kept says of the levels of tiles that it lists. With SPLIT it always does: there are no registers for their boxes.
    __device__ __forceinline__ void judge(const Params &p) {
        int pairs = 0, far = 0, left = BIG, right = -BIG, top = BIG, bottom = -BIG;
#pragma unroll
        for (int i = 0; i < LANE_PIXELS; i++) {
            int other_x = __shfl_up_sync(0xffffffffu, ix[i], 1), other_y = __shfl_up_sync(0xffffffffu, iy[i], 1);
            bool pair = lane_id() % BLOCK_W && ix[i] != -BIG && other_x != -BIG;
            pairs += __popc(__ballot_sync(0xffffffffu, pair));
            far += __popc(__ballot_sync(0xffffffffu, pair && apart(ix[i], iy[i], other_x, other_y)));
            if (ix[i] != -BIG) {
                left = min(left, ix[i]);
                right = max(right, ix[i]);
                top = min(top, iy[i]);
                bottom = max(bottom, iy[i]);
            }
        }
        is = 2 * far > pairs ? APART : 0;
        if (!SPLIT && !is && p.kept.patches && coherent(warp_min(left), warp_max(right), warp_min(top), warp_max(bottom), level, p.kept.side[level])) is = FILL;
    }
    __device__ __forceinline__ int narrow_bin() const { return chunk_width(chunk_width_index(side)) - side + 1; }
#endif

    __device__ __forceinline__ bool next(const Params &p, Step &step) {
        while (true) {
#if KEPT
            if (!walking && is & NARROW) {
                int from = BIG;
#pragma unroll
                for (int i = 0; i < LANE_PIXELS; i++)
                    if (member(i, cursor, narrow_end)) from = min(from, ix[i]);
                cursor = warp_min(from);
                if (cursor == BIG) {
                    is &= ~NARROW;
                    strip++;
                }
            }
            int a = is & NARROW ? cursor : xmin + strip * bin, b = is & NARROW ? min(a + narrow_bin(), narrow_end) : a + bin;
#else
            int a = xmin + strip * bin, b = a + bin;
#endif
            if (walking) {
                int next_row = gaps ? next_needed(a, b, row) : row;
                if (next_row >= bottom) {
                    walking = false;
#if KEPT
                    if (is & NARROW) {
                        cursor = b;
                        continue;
                    }
#endif
                    strip++;
                    continue;
                }
                int groups = 0;
#pragma unroll
                for (int g = 0; g < GROUPS; g++)
                    if (group_bottom[g] > next_row && group_top[g] < next_row + rows) groups |= 1 << g;
                step.kind = CHUNK;
                step.level = level;
                step.x = sx;
                step.y = next_row;
                step.width_index = width_index;
                step.width = width;
                step.rows = rows;
                step.first = a;
                step.last = b;
#if KEPT
                if (is & FILL) groups |= 128;
#endif
                step.groups = groups;
                row = next_row + rows;
                return true;
            }
            if (strip < strips) {
                int lo = BIG, hi = -BIG, top = BIG;
#pragma unroll
                for (int g = 0; g < GROUPS; g++) {
                    int t = BIG, u = -BIG;
#pragma unroll
                    for (int i = 2 * g; i < 2 * g + 2; i++)
                        if (member(i, a, b)) {
                            lo = min(lo, ix[i]);
                            hi = max(hi, ix[i]);
                            t = min(t, iy[i]);
                            u = max(u, iy[i]);
                        }
                    group_top[g] = warp_min(t);
                    group_bottom[g] = warp_max(u) + SIDE;
                    top = min(top, group_top[g]);
                }
                lo = warp_min(lo);
                if (lo == BIG) {
                    strip++;
                    continue;
                }
                hi = warp_max(hi);
                bottom = group_bottom[0];
#pragma unroll
                for (int g = 1; g < GROUPS; g++) bottom = max(bottom, group_bottom[g]);
                sx = lo;
                width_index = chunk_width_index(hi - lo + SIDE);
                width = chunk_width(width_index);
                rows = NCOL / width;
                row = top;
                gaps = bottom - top > TILE_H + SIDE + 8;
#if KEPT
                if (is & NARROW) gaps = true;
                else
#endif
                if (gaps) {
                    int pixels = 0, chunks = 0;
#pragma unroll
                    for (int i = 0; i < LANE_PIXELS; i++) pixels += __popc(__ballot_sync(0xffffffffu, member(i, a, b)));
                    for (int r = top; chunks <= CHUNKS_PER_PIXEL * pixels; chunks++) {
                        r = next_needed(a, b, r) + rows;
                        if (r >= BIG) break;
                    }
                    if (chunks > CHUNKS_PER_PIXEL * pixels) {
#if KEPT
                        if (!(is & APART)) {
                            is |= NARROW;
                            cursor = a;
                            narrow_end = b;
                            continue;
                        }
#endif
                        step.kind = SCATTERED;
                        step.level = level;
                        step.width = step.rows = 0;
                        step.first = a;
                        step.last = b;
                        step.groups = (1 << GROUPS) - 1;
                        strip++;
                        return true;
                    }
                }
                walking = true;
                continue;
            }
            if (++level >= level_end) return false;
            int h = p.level_h[level], w = p.level_w[level];
            int lo = BIG, hi = -BIG;
#if KEPT
            if (!p.kept.entries) is = 0;
#pragma unroll 2
            for (bool judged = p.kept.entries;; judged = true) {  // again with what belongs to patches, if that is found
#endif
#pragma unroll
            for (int i = 0; i < LANE_PIXELS; i++) {
                float fx, fy;
                if (window(x[i], y[i], level, h, w, ix[i], iy[i], fx, fy)) {
#if KEPT
                    if (is & FILL) {
                        ix[i] -= lead(fx, p.kept.side[level]);
                        iy[i] -= lead(fy, p.kept.side[level]);
                    }
#endif
                    lo = min(lo, ix[i]);
                    hi = max(hi, ix[i]);
                }
            }
#if KEPT
                if (judged) break;
                judge(p);
                if (SPLIT || !(is & FILL)) break;
                lo = BIG;
                hi = -BIG;
            }
            side = is & FILL ? p.kept.side[level] : KP;
#endif
            lo = warp_min(lo);
            hi = warp_max(hi);
            strip = 0;
            strips = 0;
            if (lo == BIG) continue;
            const int span = widest() - SIDE + 1;  // window origins that fit into one chunk width
            strips = (hi - lo) / span + 1;
            xmin = lo;
            bin = (hi - lo) / strips + 1;
#if KEPT
            if (strips > MAXSTRIPS && !(is & APART)) {
                strips = 1;
                is |= NARROW;
                cursor = lo;
                narrow_end = hi + 1;
                continue;
            }
#endif
            if (strips > MAXSTRIPS) {
                strips = 0;
                step.kind = SCATTERED;
                step.level = level;
                step.width = step.rows = 0;
                step.first = lo;
                step.last = hi + 1;
                step.groups = (1 << GROUPS) - 1;
                return true;
            }
        }
    }
};
