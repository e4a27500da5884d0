// The flow after a warp: median of both components, or as it is. Follows images.cuh.
//
// Macros set by the launcher:
//   HALF   whether the level is float16

#if HALF
typedef u16 T;
#else
typedef float T;
#endif

struct MedianParams {
    const T *flow, *origin;   // first planes of the level's item 0; the origin in float16 alone
    float *target;            // [B, 2, height, target_pitch] u
    float *const *target_at;  // null, or where the target's address lies
    i64 plane, item;          // elements of the level from one plane, one item to the next
    i64 target_plane;         // floats from one plane to the next
    int *flags;                // null, or where bit 2 tells of NaN or infinity
    int height, width, pitch, target_pitch;
    int tiles_y, tiles_x;
};

static __device__ __forceinline__ void sort2(float &a, float &b) {
    const float low = fminf(a, b);
    b = fmaxf(a, b);
    a = low;
}
static __device__ __forceinline__ float median_of(float a, float b, float c) { return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c)); }

// Batcher's networks: of four values; merging sorted runs that lie one behind the other. Of what a caller does not use of
// the result nothing is computed.
static __device__ __forceinline__ void sort4(float &a, float &b, float &c, float &d) {
    sort2(a, b), sort2(c, d), sort2(a, c), sort2(b, d), sort2(b, c);
}
static __device__ __forceinline__ void merge_4_4(float (&v)[8]) {
    sort2(v[0], v[4]), sort2(v[2], v[6]), sort2(v[2], v[4]), sort2(v[1], v[5]), sort2(v[3], v[7]), sort2(v[3], v[5]);
    sort2(v[1], v[2]), sort2(v[3], v[4]), sort2(v[5], v[6]);
}
static __device__ __forceinline__ void merge_8_8(float (&v)[16]) {
    sort2(v[0], v[8]), sort2(v[4], v[12]), sort2(v[4], v[8]), sort2(v[2], v[10]), sort2(v[6], v[14]), sort2(v[6], v[10]);
    sort2(v[2], v[4]), sort2(v[6], v[8]), sort2(v[10], v[12]), sort2(v[1], v[9]), sort2(v[5], v[13]), sort2(v[5], v[9]);
    sort2(v[3], v[11]), sort2(v[7], v[15]), sort2(v[7], v[11]), sort2(v[3], v[5]), sort2(v[7], v[9]), sort2(v[11], v[13]);
    sort2(v[1], v[2]), sort2(v[3], v[4]), sort2(v[5], v[6]), sort2(v[7], v[8]), sort2(v[9], v[10]), sort2(v[11], v[12]);
    sort2(v[13], v[14]);
}
// The 5th to 10th of 14: runs of 10 and 4.
static __device__ __forceinline__ void middle_10_4(float (&v)[14], float (&to)[6]) {
    sort2(v[0], v[10]), sort2(v[8], v[10]), sort2(v[4], v[8]), sort2(v[2], v[12]), sort2(v[6], v[12]), sort2(v[2], v[4]);
    sort2(v[6], v[8]), sort2(v[12], v[10]), sort2(v[1], v[11]), sort2(v[9], v[11]), sort2(v[5], v[9]), sort2(v[3], v[13]);
    sort2(v[7], v[13]), sort2(v[3], v[5]), sort2(v[7], v[9]), sort2(v[3], v[4]), sort2(v[5], v[6]), sort2(v[7], v[8]);
    sort2(v[9], v[12]);
#pragma unroll
    for (int i = 0; i < 6; i++) to[i] = v[4 + i];
}
// The 5th and 6th of 10: runs of 6 and 4.
static __device__ __forceinline__ void middle_6_4(float (&v)[10], float &low, float &high) {
    sort2(v[0], v[6]), sort2(v[4], v[6]), sort2(v[2], v[8]), sort2(v[2], v[4]), sort2(v[8], v[6]), sort2(v[1], v[7]);
    sort2(v[5], v[7]), sort2(v[3], v[9]), sort2(v[3], v[5]), sort2(v[3], v[4]), sort2(v[5], v[8]);
    low = v[4], high = v[5];
}

// Medians of the four 5×5 windows in 6×6 values. The 4×4 in the middle belong to all of them: of those, three at each end
// can be no median; of each row of four above and below, and column of four at the sides, the same is said again.
static __device__ __forceinline__ void medians(float (&v)[6][6], float (&out)[2][2]) {
    float core[16];
#pragma unroll
    for (int i = 0; i < 6; i++) sort4(v[1][i], v[2][i], v[3][i], v[4][i]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float pair[8];
#pragma unroll
        for (int i = 0; i < 4; i++) pair[i] = v[1 + i][1 + 2 * half], pair[4 + i] = v[1 + i][2 + 2 * half];
        merge_4_4(pair);
#pragma unroll
        for (int i = 0; i < 8; i++) core[8 * half + i] = pair[i];
    }
    merge_8_8(core);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float *row = v[5 * i], fourteen[14], six[6];
        sort4(row[1], row[2], row[3], row[4]);
#pragma unroll
        for (int k = 0; k < 10; k++) fourteen[k] = core[3 + k];
#pragma unroll
        for (int k = 0; k < 4; k++) fourteen[10 + k] = row[1 + k];
        middle_10_4(fourteen, six);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float ten[10], low, high;
#pragma unroll
            for (int k = 0; k < 6; k++) ten[k] = six[k];
#pragma unroll
            for (int k = 0; k < 4; k++) ten[6 + k] = v[1 + k][5 * j];
            middle_6_4(ten, low, high);
            out[i][j] = fmaxf(low, fminf(high, row[5 * j]));
        }
    }
}

// Medians of the four 3×3 windows in 4×4 values, from sorted columns.
static __device__ __forceinline__ void medians(float (&v)[4][4], float (&out)[2][2]) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float low[4], middle[4], high[4];
#pragma unroll
        for (int x = 0; x < 4; x++) {
            float a = v[i][x], b = v[i + 1][x], c = v[i + 2][x];
            sort2(a, b), sort2(b, c), sort2(a, b);
            low[x] = a, middle[x] = b, high[x] = c;
        }
#pragma unroll
        for (int j = 0; j < 2; j++)
            out[i][j] = median_of(fmaxf(fmaxf(low[j], low[j + 1]), low[j + 2]), median_of(middle[j], middle[j + 1], middle[j + 2]),
                                  fminf(fminf(high[j], high[j + 1]), high[j + 2]));
    }
}
static __device__ __forceinline__ void medians(float (&v)[2][2], float (&out)[2][2]) {
#pragma unroll
    for (int i = 0; i < 4; i++) out[i >> 1][i & 1] = v[i >> 1][i & 1];
}

// The flow at one pixel and, for even addresses, at two.
static __device__ __forceinline__ float flow_at(const T *flow, const T *origin, i64 at) {
#if HALF
    return from_f16(origin[at]) + from_f16(flow[at]);
#else
    return flow[at];
#endif
}
static __device__ __forceinline__ float2 flows_at(const T *flow, const T *origin, i64 at) {
#if HALF
    const u32 a = *(const u32 *)(origin + at), b = *(const u32 *)(flow + at);
    return {from_f16((u16)a) + from_f16((u16)b), from_f16((u16)(a >> 16)) + from_f16((u16)(b >> 16))};
#else
    return *(const float2 *)(flow + at);
#endif
}

// A thread: 2×2 pixels of a plane; a block: 64×8. REACH: half the window's side.
template <int REACH> static __device__ __forceinline__ void filter(const MedianParams &p) {
    constexpr int SIDE = 2 * REACH + 2;
    u32 block = blockIdx.x;
    const int x0 = (block % p.tiles_x * 32 + threadIdx.x % 32) * 2;
    block /= p.tiles_x;
    const int y0 = (block % p.tiles_y * 4 + threadIdx.x / 32) * 2;
    const i64 number = block / p.tiles_y;
    if (x0 >= p.width || y0 >= p.height) return;
    const i64 begin = (number >> 1) * p.item + (number & 1) * p.plane;
    float v[SIDE][SIDE], out[2][2];
    if (REACH % 2 == 0 && x0 >= REACH && x0 + REACH + 1 < p.width && y0 >= REACH && y0 + REACH + 1 < p.height) {
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j += 2) {
                const float2 two = flows_at(p.flow, p.origin, begin + (i64)(y0 - REACH + i) * p.pitch + x0 - REACH + j);
                v[i][j] = two.x, v[i][j + 1] = two.y;
            }
    } else {
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++) {
                const int x = min(max(x0 - REACH + j, 0), p.width - 1), y = min(max(y0 - REACH + i, 0), p.height - 1);
                v[i][j] = flow_at(p.flow, p.origin, begin + (i64)y * p.pitch + x);
            }
    }
    medians(v, out);
    float *to = (p.target_at ? *p.target_at : p.target) + number * p.target_plane + (i64)y0 * p.target_pitch + x0;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 2; i++, to += p.target_pitch) {
        if (y0 + i >= p.height) break;
        finite = finite && fabsf(out[i][0]) < __int_as_float(0x7f800000);
        if (x0 + 1 == p.width) {
            *to = out[i][0];
            continue;
        }
        finite = finite && fabsf(out[i][1]) < __int_as_float(0x7f800000);
        if ((unsigned long long)to & 7) to[0] = out[i][0], to[1] = out[i][1];
        else *(float2 *)to = {out[i][0], out[i][1]};
    }
    if (p.flags && !finite) atomicOr(p.flags, 4);
}

extern "C" __global__ void __launch_bounds__(128) median5(const __grid_constant__ MedianParams p) { filter<2>(p); }
extern "C" __global__ void __launch_bounds__(128) median3(const __grid_constant__ MedianParams p) { filter<1>(p); }
extern "C" __global__ void __launch_bounds__(128) settle(const __grid_constant__ MedianParams p) { filter<0>(p); }
