// The lookup plan shared by every correlation kernel. Built behind halves.cuh, products.cuh, copies.cuh and warps.cuh.
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
//   NCOL     columns (positions of the second map) of one chunk; WIDTHS: its WCOUNT admissible widths, ascending

#define KW (2 * RADIUS + 1)        // taps per axis
#define KP (2 * RADIUS + 2)        // integer positions per axis
#define PARTS (1 + SPLIT)
#define CPAD (KB * CBLK)           // channels of one part
#define ROWLEN (CPAD * PARTS)      // 16-bit elements of one feature vector
#define TILE_W BLOCK_W             // a tile is GROUPS * 4 blocks, one below the other
#define TILE_H (64 * GROUPS / BLOCK_W)
#define BLOCK_H (16 / BLOCK_W)     // a block: the 16 pixels of a warp
#define LANE_PIXELS (2 * GROUPS)
#define MAXSTRIPS 8
#define MAXLEVELS 8
#define PARTS_MOST 8
#define BIG 0x3fffffff
#define CHUNKS_PER_PIXEL 2

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
    int tiles_x, tiles_y, tiles, items;
    int part_begin[PARTS_MOST], part_end[PARTS_MOST];  // levels of a part of a tile
    int whole;                     // number of tiles that are one item each; the others are in parts
    int active_teams;              // teams that work on items at a time
};

// Return the power of two that scales values up to the magnitude into float16's range, and its inverse; 1 for bfloat16.
static __device__ __forceinline__ float gain_of(u32 magnitude, float &inverse) {
    int e = (int)(magnitude >> 23) - 127;
    e = BF16 ? 0 : magnitude == 0 || e == 128 ? 14 : e < -100 ? -100 : e;
    inverse = BF16 ? 1.f : __uint_as_float((u32)(127 - 14 + e) << 23);
    return BF16 ? 1.f : __uint_as_float((u32)(127 + 14 - e) << 23);
}

struct __align__(64) TensorMap { u64 opaque[16]; };

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

// Find the window of one pixel at one level: first column and row, fractions. Return whether it meets the map.
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

static constexpr int width_at(int index) {
    constexpr int widths[] = {WIDTHS};
    return widths[index];
}
#define WIDEST width_at(WCOUNT - 1)
static __device__ __forceinline__ int chunk_width_index(int width) {
    int index = 0;
#pragma unroll
    for (int i = 0; i < WCOUNT - 1; i++) index += width > width_at(i);
    return index;
}
static constexpr u64 packed_widths() {
    u64 all = 0;
    for (int i = WCOUNT - 1; i >= 0; i--) all = all << 8 | width_at(i);
    return all;
}
static __device__ __forceinline__ int chunk_width(int index) {
    constexpr u64 all = packed_widths();  // an array would be read from local memory
    return (int)(all >> (8 * index)) & 255;
}

// A tile and the levels begin .. end-1.
struct Item {
    int batch, tile_x, tile_y, begin, end;
};

// Tiles are counted in strips of 256 pixels' width, so that tiles in work at the same time share much of the second map.
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
    return it;
}

// Whole tiles come first, then level 0 of the others, which costs most, then their other parts: small items come last.
static __device__ __forceinline__ Item decode_item(const Params &p, int item) {
    if (item < p.whole) return decode_tile(p, item, 0, p.levels);
    u32 count = p.tiles - p.whole, part = (u32)(item - p.whole) / count;
    return decode_tile(p, item - part * count, p.part_begin[part], p.part_end[part]);
}

// Load the coordinates of the lane's pixels; NaN outside the image.
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

// One step of work on a tile: a chunk (a rectangle of the second map, multiplied with the pixels of the tile), or a strip
// whose pixels are scattered so widely that each takes its own dot products.
enum { CHUNK = 0, SCATTERED = 1, ITEM = 2, EXIT = 3 };
struct Step {
    int kind, level, x, y, width_index, width, rows;
    int first, last;               // the pixels whose windows begin in columns first .. last-1 take part
    int groups;                    // bit g: some pixel of group g (64 pixels) needs this chunk
};

// Walk over a tile's levels, each level's strips (ranges of window origins narrow enough for one chunk width), and the rows
// of a strip that some pixel needs. A full warp runs it; lane i knows pixels i, i+32, i+64, ... of the tile.
struct Plan {
    float x[LANE_PIXELS], y[LANE_PIXELS];
    int ix[LANE_PIXELS], iy[LANE_PIXELS];
    int level, level_end, strip, strips, xmin, bin, sx, width_index, width, rows, row, bottom;
    int group_top[GROUPS], group_bottom[GROUPS];
    bool walking, gaps;

    __device__ __forceinline__ void start(const Item &it) {
        level = it.begin - 1;
        level_end = it.end;
        strip = strips = 0;
        walking = false;
    }
    // Return whether the windows of level 0 spread so widely that the tile may cost several times as much as others.
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
        int strips = (warp_max(right) - left) / (WIDEST - KP + 1) + 1;
        return strips * (warp_max(bottom) - warp_min(top) + KP) > 3 * (TILE_H + KP);
    }
    __device__ __forceinline__ bool member(int i, int a, int b) const { return ix[i] >= a && ix[i] < b; }
    __device__ __forceinline__ int next_needed(int a, int b, int from) const {
        int n = BIG;
#pragma unroll
        for (int i = 0; i < LANE_PIXELS; i++)
            if (member(i, a, b) && iy[i] + KP > from) n = min(n, max(iy[i], from));
        return warp_min(n);
    }
    // Return a step in which the pixels whose windows begin in columns first .. last-1 take their own dot products.
    __device__ __forceinline__ bool scatter(Step &step, int first, int last) const {
        step.kind = SCATTERED;
        step.level = level;
        step.width = step.rows = 0;
        step.first = first;
        step.last = last;
        step.groups = (1 << GROUPS) - 1;
        return true;
    }
    __device__ __forceinline__ bool next(const Params &p, Step &step) {
        while (true) {
            int a = xmin + strip * bin, b = a + bin;
            if (walking) {
                int next_row = gaps ? next_needed(a, b, row) : row;
                if (next_row >= bottom) {
                    walking = false;
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
                    group_bottom[g] = warp_max(u) + KP;
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
                width_index = chunk_width_index(hi - lo + KP);
                width = chunk_width(width_index);
                rows = NCOL / width;
                row = top;
                gaps = bottom - top > TILE_H + KP + 8;
                if (gaps) {
                    int pixels = 0, chunks = 0;
#pragma unroll
                    for (int i = 0; i < LANE_PIXELS; i++) pixels += __popc(__ballot_sync(ALL, member(i, a, b)));
                    for (int r = top; chunks <= CHUNKS_PER_PIXEL * pixels; chunks++) {
                        r = next_needed(a, b, r) + rows;
                        if (r >= BIG) break;
                    }
                    if (chunks > CHUNKS_PER_PIXEL * pixels) {
                        strip++;
                        return scatter(step, a, b);
                    }
                }
                walking = true;
                continue;
            }
            if (++level >= level_end) return false;
            int h = p.level_h[level], w = p.level_w[level];
            int lo = BIG, hi = -BIG;
#pragma unroll
            for (int i = 0; i < LANE_PIXELS; i++) {
                float fx, fy;
                if (window(x[i], y[i], level, h, w, ix[i], iy[i], fx, fy)) {
                    lo = min(lo, ix[i]);
                    hi = max(hi, ix[i]);
                }
            }
            lo = warp_min(lo);
            hi = warp_max(hi);
            strip = 0;
            strips = 0;
            if (lo == BIG) continue;
            const int span = WIDEST - KP + 1;  // window origins that fit into one chunk width
            strips = (hi - lo) / span + 1;
            xmin = lo;
            bin = (hi - lo) / strips + 1;
            if (strips > MAXSTRIPS) {
                strips = 0;
                return scatter(step, lo, hi + 1);
            }
        }
    }
};
