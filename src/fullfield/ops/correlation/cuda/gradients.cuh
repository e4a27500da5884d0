// Parameters shared by the two kernels of the backward. A lookup's gradient is linear in the features. So a backward pass
// sums the gradients of its lookups per pixel and position (collect), and multiplies them with the features (multiply_out)
// only where a window left the patch that is kept for it, and once at the end.
//
// Source pixels lie in tiles of 8x8. For every pixel and level a patch of PATCH x PATCH positions is kept in float32;
// position (x, y) of the second map lies at (x % PATCH, y % PATCH), so a patch covers any PATCH consecutive columns and rows.
//
// More macros: PATCH; for collect GRAD, the element type of the incoming gradient.

#define TILE_PIXELS 64
#define PATCH_FLOATS (PATCH * PATCH * TILE_PIXELS)
#define BANDS 64

enum { FIRST_LOOKUP = 0, ADD = 1, END = 2 };

// Marks for multiply_out, which zeroes them. finished: number of its items that are multiplied; done: of its blocks.
struct Work { int handed_out, finished, done, levels, tiles, targets[MAXLEVELS]; };

struct GradientParams {
    Params p;                      // f1 and f2 as [B, h, w, ROWLEN]; scale: [1] for the first map's gradient, [2] for the second's
    const void *grad;              // elements of grad_type: see Element
    i64 grad_b, grad_c, grad_y, grad_x;
    float *g1, *g2;                // sums, [B, H, W, CPAD], and the levels one after the other
    float *patches;                // [tiles, levels, PATCH, PATCH, 64 pixels]
    int4 *covered;                 // [tiles, levels, 64 pixels]: first x and y of the patch's sums, and those past the last
    int4 *bounds;                  // [tiles, levels]: the same of all pixels
    u32 *largest;                  // [tiles, levels]: bits of the largest magnitude
    int *full;                     // [tiles]: bit l: level l is to be multiplied out
    int *full_levels;              // the bits, as tile * levels + level, in any order
    int *full_tiles;               // the tiles with a bit, in any order
    u64 *bands;                    // [target tiles]: which rows of tiles (in BANDS bands) hold something to multiply out for it
    int *full_targets;             // the target tiles with a bit, in any order, from target_begin[level] on
    u32 *target_largest;           // [target tiles]: bits of the largest magnitude that it adds
    int *turn;                     // [tiles and target tiles, channel blocks]: the split that may add its share
    Work *work;
    int mode, grad_type, want_first, want_second;
    int target_begin[MAXLEVELS], splits[MAXLEVELS];
};

static __device__ __forceinline__ int wrapped(int i) { return (u32)(i + PATCH * 4096) % PATCH; }
static __device__ __forceinline__ int count_tiles(int size) { return (size + 7) / 8; }
