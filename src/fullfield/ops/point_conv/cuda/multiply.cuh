// Of the forward product: its arguments, the order of its weights, and what reads triplets and stores results.
//
// More macros:
//   COLUMNS  outputs of a block: 16, 32 or 64
//   RESIDENT 1: the block keeps its weights in shared memory, else they come through the L1

#define OCTETS (COLUMNS / 8)

struct PackParams {
    const Value *weight;           // [K, inputs, groups * outputs]
    uint4 *packed;
    const u32 *magnitude;
    int cells, groups, inputs, outputs;   // inputs and outputs of a group
    int joined;                    // so many groups are multiplied as one, with zeros between them
    int slabs, blocks;             // 32 inputs each; blocks of COLUMNS outputs of joined groups
};

struct MultiplyParams {
    Triplets triplets;
    const Value *features;
    const uint4 *weights;
    const Value *bias;
    Value *out;
    const u32 *magnitude;          // of the features and of the weights
    i64 features_row, out_row;     // elements from row to row
    int inputs, outputs;           // of joined groups; inputs with their padding, a multiple of 8
    int slabs, blocks, columns;    // columns: blocks of all groups
    int *queue;                    // units of rows handed out, of each column
};

// Weights in the order in which lanes read them, 8 inputs each: [column][cell][slab][part][octet of outputs][lane].
// Inputs and outputs are numbered as the loads of features and the stores of results want them: a lane loads 8 inputs in
// a row for two steps, and stores COLUMNS / 4 outputs in a row.
extern "C" __global__ void __launch_bounds__(256) pack(const __grid_constant__ PackParams p) {
    i64 at = (i64)blockIdx.x * 256 + threadIdx.x, left = at / (OCTETS * 32);
    int within = at % (OCTETS * 32), slab = left % p.slabs;
    left /= p.slabs;
    int cell = left % p.cells, column = left / p.cells;
    if (column >= p.blocks * (p.groups / p.joined)) return;
    int octet = within >> 5, g = within >> 2 & 7, first = (within & 3) * 8;
    int group = column / p.blocks, output = (column % p.blocks) * COLUMNS + (g >> 1) * (COLUMNS / 4) + octet * 2 + (g & 1);
    float inverse, gain = gain_of(p.magnitude, inverse), v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        int input = slab * 32 + first + i;
        bool inside = output < p.outputs * p.joined && input < p.inputs * p.joined && output / p.outputs == input / p.inputs;
        i64 from = ((i64)cell * p.inputs + input % p.inputs) * ((i64)p.groups * p.outputs) + (i64)group * p.joined * p.outputs + output;
        v[i] = inside ? widened(p.weight[from]) * gain : 0.f;
    }
    uint4 high = make_uint4(pack_pair(v[0], v[1]), pack_pair(v[2], v[3]), pack_pair(v[4], v[5]), pack_pair(v[6], v[7]));
    i64 to = (((i64)column * p.cells + cell) * p.slabs + slab) * (PARTS * OCTETS * 32) + within;
    p.packed[to] = high;
#if SPLIT
    p.packed[to + OCTETS * 32] = make_uint4(rest(v[0], v[1], high.x), rest(v[2], v[3], high.y), rest(v[4], v[5], high.z), rest(v[6], v[7], high.w));
#endif
}

// Eight channels of a row, as they come from memory; zeros where there is none. Where the weights leave little of the L1, they
// are not kept there, for the triplets need it: the next triplet of a row is known only when the one before has been read.
#if RESIDENT
#define KEPT "L1::no_allocate."
#else
#define KEPT
#endif
struct Eight {
#if IN == 0
    uint4 low, high;
#else
    uint4 v;
#endif
    static __device__ __forceinline__ void load(uint4 &v, const Value *from, bool wanted) {
        v = make_uint4(0, 0, 0, 0);
        asm volatile("{\n.reg .pred p;\nsetp.ne.u32 p, %5, 0;\n@p ld.global.nc." KEPT "v4.u32 {%0, %1, %2, %3}, [%4];\n}"
                     : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                     : "l"(from), "r"((u32)wanted));
    }
    __device__ __forceinline__ void fetch(const Value *from, bool wanted) {
#if IN == 0
        load(low, from, wanted);
        load(high, from + 4, wanted);
#else
        load(v, from, wanted);
#endif
    }
    __device__ __forceinline__ void take(uint4 (&parts)[PARTS], float gain) const {
#if IN == 0
        float a[8] = {__uint_as_float(low.x), __uint_as_float(low.y), __uint_as_float(low.z), __uint_as_float(low.w),
                      __uint_as_float(high.x), __uint_as_float(high.y), __uint_as_float(high.z), __uint_as_float(high.w)};
#pragma unroll
        for (int i = 0; i < 8; i++) a[i] *= gain;
        uint4 h = parts[0] = make_uint4(pack_pair(a[0], a[1]), pack_pair(a[2], a[3]), pack_pair(a[4], a[5]), pack_pair(a[6], a[7]));
#if SPLIT
        parts[1] = make_uint4(rest(a[0], a[1], h.x), rest(a[2], a[3], h.y), rest(a[4], a[5], h.z), rest(a[6], a[7], h.w));
#endif
#else
        parts[0] = v;
#endif
    }
};

// The lane's place in its row, and the triplet there.
struct Cursor {
    i64 at, end;
    Word word;
    __device__ __forceinline__ void read(const Triplets &t) {
        if (at < end) word.load(t, at);
    }
    __device__ __forceinline__ int cell(const Triplets &t) const { return at < end ? word.cell_of(t) : NONE; }
    __device__ __forceinline__ void prefetch(const Triplets &t) const {
        for (i64 ahead = at; ahead < end; ahead += 8) asm volatile("prefetch.global.L1 [%0];" ::"l"(t.entries + ahead));
    }
};

// A row of the lane's outputs, first ... of its group; `sums` of its octets, 2 each.
static __device__ __forceinline__ void store(const MultiplyParams &p, i64 row, int first, const Value *bias, Value *out, const float (&sums)[OCTETS][2],
                                             float scale) {
    int limit = p.outputs;
    out += row * p.out_row;
    bool whole = limit % 4 == 0 && p.out_row % 4 == 0 && (u32)(i64)p.out % (4 * sizeof(Value)) == 0;
#pragma unroll
    for (int n = 0; n < OCTETS; n += 2) {
        int at = first + n * 2;
        float v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[i] = sums[n + (i >> 1)][i & 1] * scale;
            if (bias && at + i < limit) v[i] += widened(bias[at + i]);
        }
        if (whole) {
            if (at < limit) {
#if IN == 0
                *(float4 *)(out + at) = make_float4(v[0], v[1], v[2], v[3]);
#else
                *(uint2 *)(out + at) = make_uint2((u32)rounded(v[0]) | (u32)rounded(v[1]) << 16, (u32)rounded(v[2]) | (u32)rounded(v[3]) << 16);
#endif
            }
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (at + i < limit) out[at + i] = rounded(v[i]);
        }
    }
}

