// Arguments, segments of the rows, and the sum of their shares, for both forms of VVOR. Sums have one order, so every run
// gives the same bits.
//
// More macros:
//   INPUTS, OUTPUTS   channels of a share
//   WGMMA             1: the form with wgmma

struct OuterParams {
    Triplets triplets;
    const Value *features, *grad;
    float *shares;                 // [slot][column][cell][INPUTS * OUTPUTS]
    u32 *turns;                    // for wgmma: [slot][column][cell_block][12] zeros, and one that counts blocks; null if every segment has its own slot
    const u32 *magnitude;          // largest magnitudes of features and gradients
    i64 features_row, grad_row;    // elements from row to row
    int inputs, outputs;           // channels of joined groups, padded to multiples of 8
    int input_blocks, output_blocks, columns, cell_blocks, segments, slots;
};

struct SharesParams {
    const float *shares;
    Value *out;                    // [K, inputs, groups * outputs]
    const u32 *magnitude;
    int cells, groups, inputs, outputs, joined;
    int input_blocks, output_blocks, segments;
};

// Return where part `part` of `parts` begins. Parts have whole rows and about the same work.
static __device__ __forceinline__ i64 part_begin(const Triplets &t, int part, int parts) {
    if (part == 0) return 0;
    if (part == parts) return t.count;
    i64 all = t.rows[t.count] + 4 * t.count, wanted = all / parts * part, low = 0, high = t.count;
    while (low < high) {
        i64 middle = (low + high) / 2;
        if (t.rows[middle] + 4 * middle < wanted)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Return where a sum lies in a share. With wgmma the order is that of a warpgroup's threads, four sums each.
static __device__ __forceinline__ int place_of(int input, int output) {
#if WGMMA
    int member = output / 16 * 32 + output % 8 * 4 + input / 2 % 4;
    return input / 8 * 512 + member * 4 + output / 8 % 2 * 2 + input % 2;
#else
    return input * OUTPUTS + output;
#endif
}

// Add the shares.
extern "C" __global__ void __launch_bounds__(256) add_shares(const __grid_constant__ SharesParams p) {
    i64 at = (i64)blockIdx.x * 256 + threadIdx.x;
    i64 width = (i64)p.groups * p.outputs;
    if (at >= p.cells * p.inputs * width) return;
    int output = at % width, input = at / width % p.inputs, cell = at / width / p.inputs;
    int group = output / p.outputs, within = group % p.joined;
    input += within * p.inputs;
    output -= (group - within) * p.outputs;
    int column = (group / p.joined * p.input_blocks + input / INPUTS) * p.output_blocks + output / OUTPUTS;
    i64 columns = (i64)p.groups / p.joined * p.input_blocks * p.output_blocks, step = columns * p.cells * (INPUTS * OUTPUTS);
    const float *from = p.shares + ((i64)column * p.cells + cell) * (INPUTS * OUTPUTS) + place_of(input % INPUTS, output % OUTPUTS);
    float sum = 0.f, inverses[2];
    for (int s = 0; s < p.segments; s++) sum += from[s * step];
    gain_of(p.magnitude, inverses[0]);
    gain_of(p.magnitude + 1, inverses[1]);
    p.out[at] = rounded(sum * (inverses[0] * inverses[1]));
}
