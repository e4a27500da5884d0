// Medians of small windows by sorting networks. A value is a float, or a word of two half-precision numbers, of which each
// has a median of its own. Built behind halves.cuh.

static __device__ __forceinline__ float lower_of(float a, float b) { return fminf(a, b); }
static __device__ __forceinline__ float upper_of(float a, float b) { return fmaxf(a, b); }
#if __CUDA_ARCH__ >= 800
static __device__ __forceinline__ u32 lower_of(u32 a, u32 b) {
    u32 r;
    asm("min.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
static __device__ __forceinline__ u32 upper_of(u32 a, u32 b) {
    u32 r;
    asm("max.f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));
    return r;
}
#else
static __device__ __forceinline__ u32 lower_of(u32 a, u32 b) {
    return pair_f16(fminf(from_f16((u16)a), from_f16((u16)b)), fminf(from_f16((u16)(a >> 16)), from_f16((u16)(b >> 16))));
}
static __device__ __forceinline__ u32 upper_of(u32 a, u32 b) {
    return pair_f16(fmaxf(from_f16((u16)a), from_f16((u16)b)), fmaxf(from_f16((u16)(a >> 16)), from_f16((u16)(b >> 16))));
}
#endif

// Load the windows of the 2×2 pixels from (x, y) on. Pixels outside the frame repeat its border. `one` returns the value at
// a pixel; `two` also its right neighbour, at an even distance from x.
template <int SIDE, class Value, class Two, class One>
static __device__ __forceinline__ void load_windows(Value (&v)[SIDE][SIDE], int x, int y, int width, int height, Two two, One one) {
    constexpr int R = SIDE / 2 - 1;
    if (R % 2 == 0 && x >= R && x + R + 1 < width && y >= R && y + R + 1 < height) {
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j += 2) {
                const auto both = two(x - R + j, y - R + i);
                v[i][j] = both.x, v[i][j + 1] = both.y;
            }
    } else {
#pragma unroll
        for (int i = 0; i < SIDE; i++)
#pragma unroll
            for (int j = 0; j < SIDE; j++) v[i][j] = one(min(max(x - R + j, 0), width - 1), min(max(y - R + i, 0), height - 1));
    }
}

template <class Value> static __device__ __forceinline__ void sort2(Value &a, Value &b) {
    const Value low = lower_of(a, b);
    b = upper_of(a, b);
    a = low;
}
static __device__ __forceinline__ float median_of(float a, float b, float c) { return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c)); }

// Batcher's networks sort four values and merge sorted runs that follow one another. The compiler drops comparisons whose
// results are not used.
template <class Value> static __device__ __forceinline__ void sort4(Value &a, Value &b, Value &c, Value &d) {
    sort2(a, b), sort2(c, d), sort2(a, c), sort2(b, d), sort2(b, c);
}
template <class Value> static __device__ __forceinline__ void merge_4_4(Value (&v)[8]) {
    sort2(v[0], v[4]), sort2(v[2], v[6]), sort2(v[2], v[4]), sort2(v[1], v[5]), sort2(v[3], v[7]), sort2(v[3], v[5]);
    sort2(v[1], v[2]), sort2(v[3], v[4]), sort2(v[5], v[6]);
}
template <class Value> static __device__ __forceinline__ void merge_8_8(Value (&v)[16]) {
    sort2(v[0], v[8]), sort2(v[4], v[12]), sort2(v[4], v[8]), sort2(v[2], v[10]), sort2(v[6], v[14]), sort2(v[6], v[10]);
    sort2(v[2], v[4]), sort2(v[6], v[8]), sort2(v[10], v[12]), sort2(v[1], v[9]), sort2(v[5], v[13]), sort2(v[5], v[9]);
    sort2(v[3], v[11]), sort2(v[7], v[15]), sort2(v[7], v[11]), sort2(v[3], v[5]), sort2(v[7], v[9]), sort2(v[11], v[13]);
    sort2(v[1], v[2]), sort2(v[3], v[4]), sort2(v[5], v[6]), sort2(v[7], v[8]), sort2(v[9], v[10]), sort2(v[11], v[12]);
    sort2(v[13], v[14]);
}
// Return the 5th to 10th of 14 values, given as sorted runs of 10 and 4.
template <class Value> static __device__ __forceinline__ void middle_10_4(Value (&v)[14], Value (&to)[6]) {
    sort2(v[0], v[10]), sort2(v[8], v[10]), sort2(v[4], v[8]), sort2(v[2], v[12]), sort2(v[6], v[12]), sort2(v[2], v[4]);
    sort2(v[6], v[8]), sort2(v[12], v[10]), sort2(v[1], v[11]), sort2(v[9], v[11]), sort2(v[5], v[9]), sort2(v[3], v[13]);
    sort2(v[7], v[13]), sort2(v[3], v[5]), sort2(v[7], v[9]), sort2(v[3], v[4]), sort2(v[5], v[6]), sort2(v[7], v[8]);
    sort2(v[9], v[12]);
#pragma unroll
    for (int i = 0; i < 6; i++) to[i] = v[4 + i];
}
// Return the 5th and 6th of 10 values, given as sorted runs of 6 and 4.
template <class Value> static __device__ __forceinline__ void middle_6_4(Value (&v)[10], Value &low, Value &high) {
    sort2(v[0], v[6]), sort2(v[4], v[6]), sort2(v[2], v[8]), sort2(v[2], v[4]), sort2(v[8], v[6]), sort2(v[1], v[7]);
    sort2(v[5], v[7]), sort2(v[3], v[9]), sort2(v[3], v[5]), sort2(v[3], v[4]), sort2(v[5], v[8]);
    low = v[4], high = v[5];
}

// Return the medians of the four 5×5 windows in 6×6 values. The windows share the 4×4 values in the middle, whose three
// smallest and three largest cannot be a median. Each row of four above or below, and each column of four at the sides, is
// shared by two windows and excludes more values in the same way.
template <class Value> static __device__ __forceinline__ void medians(Value (&v)[6][6], Value (&out)[2][2]) {
    Value core[16];
#pragma unroll
    for (int i = 0; i < 6; i++) sort4(v[1][i], v[2][i], v[3][i], v[4][i]);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        Value pair[8];
#pragma unroll
        for (int i = 0; i < 4; i++) pair[i] = v[1 + i][1 + 2 * half], pair[4 + i] = v[1 + i][2 + 2 * half];
        merge_4_4(pair);
#pragma unroll
        for (int i = 0; i < 8; i++) core[8 * half + i] = pair[i];
    }
    merge_8_8(core);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        Value *row = v[5 * i], fourteen[14], six[6];
        sort4(row[1], row[2], row[3], row[4]);
#pragma unroll
        for (int k = 0; k < 10; k++) fourteen[k] = core[3 + k];
#pragma unroll
        for (int k = 0; k < 4; k++) fourteen[10 + k] = row[1 + k];
        middle_10_4(fourteen, six);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            Value ten[10], low, high;
#pragma unroll
            for (int k = 0; k < 6; k++) ten[k] = six[k];
#pragma unroll
            for (int k = 0; k < 4; k++) ten[6 + k] = v[1 + k][5 * j];
            middle_6_4(ten, low, high);
            out[i][j] = upper_of(low, lower_of(high, row[5 * j]));
        }
    }
}

// Return the medians of the four 3×3 windows in 4×4 values, from sorted columns.
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

// Return windows of one pixel as they are.
static __device__ __forceinline__ void medians(float (&v)[2][2], float (&out)[2][2]) {
#pragma unroll
    for (int i = 0; i < 4; i++) out[i >> 1][i & 1] = v[i >> 1][i & 1];
}
