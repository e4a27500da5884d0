// Lattices, loads and stores of whole rows, shared by the forward and the backward kernels. Built behind halves.cuh,
// values.cuh and copies.cuh.
//
// If the stride s divides the step d between displacements, the problem splits into (d / s)² classes: the outputs
// (q + a·d/s) read fmap1 at s·q − padding + a·d and fmap2 at the same place minus the radius plus i·d. Each class is a
// dense window on a lattice of every d-th pixel, and the same code serves it.
//
// Macros set by the launcher:
//   IN    0 float32, 1 float16, 2 bfloat16
//   VEC   features of a load: 4 if steps are 1 and every row and tile begins at a multiple of four, else 1
//   JG    displacements of a row that a thread keeps
//   JN    such groups side by side in a block

#define NOWHERE (-(1LL << 62))
#define TH 4              // rows and columns of a tile
#define TW 32
#define XR 8              // columns of a thread
#define XG (TW / XR)
#define PITCH (TW + 4)
#define SPAN ((XR + JG - 1 + 3) / 4 * 4)                  // features of a row that a thread reads
#define READ ((XG - 1) * XR + (JN - 1) * JG + SPAN)       // features of a row that a block reads
#define RW (READ / 8 * 8 + (READ % 8 > 4 ? 12 : 4))       // ≡ 4 (mod 8): neighbouring rows lie in other banks

struct Axis {
    int step, classes, stride, padding, radius, patch, in, out, tiles;
};

// Place of a block along one axis.
struct Place {
    int at, cls;
};
static __device__ __forceinline__ Place place_of(u32 &number, const Axis &axis) {
    Place found;
    found.at = number % axis.tiles;
    number /= axis.tiles;
    found.cls = number % axis.classes;
    number /= axis.classes;
    return found;
}

struct ForwardParams {
    const Value *fmap1, *fmap2;    // [B, C, H, W]
    Value *out;                    // [B, PH, PW, OH, OW]
    int channels, row_blocks, column_blocks;
    Axis y, x;
};

// Work of a forward kernel's block: its place along both axes, its first displacement, and where its parts of the maps begin.
struct Start {
    Place x, y;
    int i0, j0, y1, x1, y2, x2;
    i64 b, map;
    __device__ __forceinline__ Start(const ForwardParams &p, int rows, int columns) {
        u32 number = blockIdx.x;
        x = place_of(number, p.x), y = place_of(number, p.y);
        i0 = number % p.row_blocks * rows;
        number /= p.row_blocks;
        j0 = number % p.column_blocks * columns;
        b = number / p.column_blocks, map = b * p.channels * p.y.in * p.x.in;
        y1 = p.y.stride * y.cls - p.y.padding + y.at * TH * p.y.step;
        x1 = p.x.stride * x.cls - p.x.padding + x.at * TW * p.x.step;
        y2 = y1 - p.y.radius + i0 * p.y.step;
        x2 = x1 - p.x.radius + j0 * p.x.step;
    }
};

// Load VEC features, or zeros, into shared memory as floats. float32 arrives asynchronously.
static __device__ __forceinline__ void fetch(float *to, const Value *from, bool inside, const Value *anywhere) {
#if IN == 0
    copy_async<4 * VEC>(shared_address(to), inside ? from : anywhere, inside);
#elif VEC == 4
    uint2 v = make_uint2(0, 0);
    if (inside) v = *(const uint2 *)from;
    *(float4 *)to = make_float4(widened((u16)v.x), widened((u16)(v.x >> 16)), widened((u16)v.y), widened((u16)(v.y >> 16)));
#else
    *to = inside ? widened(*from) : 0.f;
#endif
}
#if IN
// Copy VEC 16-bit features unchanged. Four arrive asynchronously.
static __device__ __forceinline__ void fetch(u16 *to, const u16 *from, bool inside, const u16 *anywhere) {
#if VEC == 4
    copy_async<8>(shared_address(to), inside ? from : anywhere, inside);
#else
    *to = inside ? *from : (u16)0;
#endif
}
#endif
static __device__ __forceinline__ void arrived() {
#if IN == 0
    await_all_copies();
#endif
    __syncthreads();
}

static __device__ __forceinline__ void read4(float *to, const float *from) {
    const float4 v = *(const float4 *)from;
    to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

// Load ROWS rows of COLUMNS pixels from (y0, x0) on, of COUNT channels from `first` on.
template <int COUNT, int ROWS, int COLUMNS, class T>
static __device__ __forceinline__ void fill(T *to, int channel_step, int row_step, const Value *map, i64 begin, int first, int y0, int x0, const ForwardParams &p) {
    const i64 plane = (i64)p.y.in * p.x.in;
    for (int n = threadIdx.x; n < COUNT * ROWS * (COLUMNS / VEC); n += THREADS) {
        const int column = n % (COLUMNS / VEC) * VEC, left = n / (COLUMNS / VEC), row = left % ROWS, c = left / ROWS;
        const int y = y0 + row * p.y.step, x = x0 + column * p.x.step;
        const bool inside = first + c < p.channels && (u32)y < (u32)p.y.in && (u32)x < (u32)p.x.in;
        fetch(to + c * channel_step + row * row_step + column, map + begin + (first + c) * plane + (i64)y * p.x.in + x, inside, map);
    }
}

// Store a warp's eight rows of TW values, XR a lane, through shared memory, a row at a time. `at`: where the lane's row
// begins, or NOWHERE; `step`: between its columns; `left`, `right`: the columns that exist.
static __device__ __forceinline__ void store_rows(float *stage, const float *v, Value *to, i64 at, int step, int left, int right) {
    const int lane = threadIdx.x % 32;
    float *mine = stage + lane / XG * PITCH + lane % XG * XR;
#pragma unroll
    for (int x = 0; x < XR; x += 4) *(float4 *)(mine + x) = make_float4(v[x], v[x + 1], v[x + 2], v[x + 3]);
    __syncwarp();
#pragma unroll
    for (int row = 0; row < 32 / XG; row++) {
        const i64 begin = __shfl_sync(ALL, at, row * XG);
        if (begin != NOWHERE && lane >= left && lane < right) to[begin + (i64)lane * step] = rounded(stage[row * PITCH + lane]);
    }
    __syncwarp();
}
