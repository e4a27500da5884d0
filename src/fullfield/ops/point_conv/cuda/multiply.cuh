// Arguments, order of the weights, loads and stores, shared by both forms of the forward product.
//
// More macros:
//   COLUMNS  outputs of a block: 16, 32, 64 or, with wgmma, 128
//   WGMMA    1: for multiply_hopper.cu
//   KEEPS    1: a load that is not wanted leaves its target unchanged; 0: it writes zeros
//   DEPTH    slabs of 32 inputs of a cell that lie together

#define OCTETS (COLUMNS / 8)

struct PackParams {
    const Value *weight;           // [K, inputs, groups * outputs]; transposed: [K, outputs, groups * inputs]
    uint4 *packed;
    const u32 *magnitude;
    int cells, groups, inputs, outputs;   // inputs and outputs of a group
    int joined;                    // number of groups that are multiplied as one, with zeros between them
    int slabs, blocks;             // 32 inputs each; blocks of COLUMNS outputs of joined groups
    int transposed;                // 1: inputs and outputs of each group change places; 2: and the cells' order turns round
    int *queue;                    // the product's counters, one for each column, set to 0
};

struct MultiplyParams {
    Triplets triplets;
    const Value *features;
    const uint4 *weights;
    const Value *bias;
    Value *out;
    const u32 *magnitude;          // largest magnitudes of features and weights
    i64 features_row, out_row;     // elements from row to row
    int inputs, outputs;           // channels of joined groups; inputs with their padding, a multiple of 8
    int slabs, blocks, columns;    // columns: blocks of all groups
    int *queue;                    // for multiply.cu: units of rows handed out, for each column
};

// Write the weights in the order of the kernel that reads them, 8 inputs each, with slabs DEPTH at a time:
//   mma.sync  [column][slabs][cell][slab][part][octet of outputs][lane]
//   wgmma     [column][slabs][cell][slab][part][step of 16 inputs][half][output]: matrices of 8x8 for shared memory
// Inputs and outputs are permuted, so that a lane loads 8 neighbouring inputs for two steps and stores COLUMNS / 4
// neighbouring outputs.
extern "C" __global__ void __launch_bounds__(256) pack(const __grid_constant__ PackParams p) {
    i64 at = (i64)blockIdx.x * 256 + threadIdx.x, left = at / (OCTETS * 32);
    int within = at % (OCTETS * 32), slab = left % p.slabs;
    if (at < p.blocks * (p.groups / p.joined)) p.queue[at] = 0;
    left /= p.slabs;
    int cell = left % p.cells, column = left / p.cells;
    if (column >= p.blocks * (p.groups / p.joined)) return;
#if WGMMA
    int number = within % COLUMNS, octet = number >> 3, g = number & 7, first = within / COLUMNS * 2;
#else
    int octet = within >> 5, g = within >> 2 & 7, first = (within & 3) * 8;
#endif
    int group = column / p.blocks, output = (column % p.blocks) * COLUMNS + (g >> 1) * (COLUMNS / 4) + octet * 2 + (g & 1);
    float inverse, gain = gain_of(p.magnitude, inverse), v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
#if WGMMA
        int input = slab * 32 + (i >> 1) * 8 + first + (i & 1);
#else
        int input = slab * 32 + first + i;
#endif
        bool inside = output < p.outputs * p.joined && input < p.inputs * p.joined && output / p.outputs == input / p.inputs;
        i64 from;
        if (p.transposed)
            from = ((i64)(p.transposed == 2 ? p.cells - 1 - cell : cell) * p.outputs + output % p.outputs) * ((i64)p.groups * p.inputs) +
                   (i64)group * p.joined * p.inputs + input;
        else
            from = ((i64)cell * p.inputs + input % p.inputs) * ((i64)p.groups * p.outputs) + (i64)group * p.joined * p.outputs + output;
        v[i] = inside ? widened(p.weight[from]) * gain : 0.f;
    }
    i64 to = (((i64)column * (p.slabs / DEPTH) + slab / DEPTH) * p.cells + cell) * DEPTH + slab % DEPTH;
    to = to * (PARTS * OCTETS * 32) + within;
    to_operands(v, p.packed + to, OCTETS * 32);
}

// Return v & mask. wgmma takes words of both rows in turn; the compiler would reorder them as soon as they are loaded, and
// so wait for them. It cannot move this.
static __device__ __forceinline__ u32 kept_if(u32 v, u32 mask) {
    u32 w;
    asm volatile("and.b32 %0, %1, %2;" : "=r"(w) : "r"(v), "r"(mask));
    return w;
}

// Eight channels of a row as read from memory; zeros where there is none.
struct Eight {
#if IN == 0
    uint4 low, high;
#else
    uint4 v;
#endif
    static __device__ __forceinline__ void load(uint4 &v, const Value *from, u32 wanted) {
#if !KEEPS
        v = make_uint4(0, 0, 0, 0);
#endif
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                     : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                     : "l"(from), "r"(wanted));
    }
    __device__ __forceinline__ void fetch(const Value *from, u32 wanted) {
#if IN == 0
        load(low, from, wanted);
        load(high, from + 4, wanted);
#else
        load(v, from, wanted);
#endif
    }
#if IN == 0
    __device__ __forceinline__ void keep_if(u32 mask) {
        u32 *words[8] = {&low.x, &low.y, &low.z, &low.w, &high.x, &high.y, &high.z, &high.w};
#pragma unroll
        for (int i = 0; i < 8; i++) *words[i] = kept_if(*words[i], mask);
    }
#endif
    __device__ __forceinline__ void take(uint4 (&parts)[PARTS], float gain) const {
#if IN == 0
        float a[8] = {__uint_as_float(low.x), __uint_as_float(low.y), __uint_as_float(low.z), __uint_as_float(low.w),
                      __uint_as_float(high.x), __uint_as_float(high.y), __uint_as_float(high.z), __uint_as_float(high.w)};
#pragma unroll
        for (int i = 0; i < 8; i++) a[i] *= gain;
        to_operands(a, parts, 1);
#else
        parts[0] = v;
#endif
    }
};

// Store neighbouring outputs of a row, from `first` of its group on, with the bias added.
static __device__ __forceinline__ void store_row(const MultiplyParams &p, i64 row, int first, const Value *bias, Value *out, const float (&v)[2 * OCTETS]) {
    constexpr int most = WGMMA ? 16 / sizeof(Value) : 4, wide = most < 2 * OCTETS ? most : 2 * OCTETS;
    out += row * p.out_row;
    bool whole = p.outputs % wide == 0 && p.out_row % wide == 0 && (u32)(i64)p.out % 16 == 0;
#pragma unroll
    for (int n = 0; n < 2 * OCTETS; n += wide) {
        int at = first + n;
        float w[wide];
#pragma unroll
        for (int i = 0; i < wide; i++) w[i] = v[n + i] + (bias && at + i < p.outputs ? widened(bias[at + i]) : 0.f);
        if (whole) {
            if (at >= p.outputs) continue;
#if IN == 0
            *(float4 *)(out + at) = make_float4(w[0], w[1], w[2], w[3]);
#elif WGMMA && COLUMNS > 16
            *(uint4 *)(out + at) = make_uint4(rounded_pair(w[0], w[1]), rounded_pair(w[2], w[3]), rounded_pair(w[4], w[5]), rounded_pair(w[6], w[7]));
#else
            *(uint2 *)(out + at) = make_uint2(rounded_pair(w[0], w[1]), rounded_pair(w[2], w[3]));
#endif
        } else {
#pragma unroll
            for (int i = 0; i < wide; i++)
                if (at + i < p.outputs) out[at + i] = rounded(w[i]);
        }
    }
}

// Store the lane's two of a warp's 16 rows from `first` on, where they exist.
static __device__ __forceinline__ void store_rows(const MultiplyParams &p, i64 first, int column, int group, const float (&sums)[4 * OCTETS], float scale) {
    int lane = threadIdx.x & 31, at = column % p.blocks * COLUMNS + (lane & 3) * (COLUMNS / 4);
    group *= p.outputs;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float own[2 * OCTETS];
#pragma unroll
        for (int n = 0; n < OCTETS; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) own[2 * n + i] = sums[4 * n + 2 * half + i] * scale;
        i64 row = first + half * 8 + (lane >> 2);
        if (row < p.triplets.count) store_row(p, row, at, p.bias ? p.bias + group : p.bias, p.out + group, own);
    }
}
