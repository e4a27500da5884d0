// A baseline: convolution by triplets as the supplement of PointCNN++ describes its kernels, reimplemented. No system
// headers (NVRTC). Built behind halves.cuh and values.cuh. A warp walks LENGTH triplets with 32 x 32 weights in its
// registers, a lane an output; what it has summed goes to memory by atomic additions when the output changes. Products
// are not made by tensor cores.
//
// Macros set by the launcher:
//   IN   features and weights: 0 float32, 1 float16, 2 bfloat16; sums are float32

#define WARPS 8
#define LENGTH 128

struct ListingParams {
    const Value *weight;      // [K, Cin, Cout]; of the outer products the outputs' gradients [M, Cout]
    const Value *features;    // [N, Cin]
    const int *outs, *ins, *cells;  // [T] each
    float *out;               // [M, Cout], zeros; of the outer products [K, Cin, Cout]
    i64 count;                // T
    int inputs, outputs;
    int blocks_in, blocks_out;  // of 32 channels
};

struct Share {
    i64 first, last;
    int in, out, lane;  // first channels
};

static __device__ __forceinline__ Share share_of(const ListingParams &p) {
    i64 number = (i64)blockIdx.x * WARPS + (threadIdx.x >> 5);
    Share s;
    s.out = (int)(number % p.blocks_out) * 32, number /= p.blocks_out;
    s.in = (int)(number % p.blocks_in) * 32, number /= p.blocks_in;
    s.first = number * LENGTH;
    s.last = s.first + LENGTH < p.count ? s.first + LENGTH : p.count;
    s.lane = threadIdx.x & 31;
    return s;
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 2) multiply(const __grid_constant__ ListingParams p) {
    const Share s = share_of(p);
    const bool in = s.in + s.lane < p.inputs, out = s.out + s.lane < p.outputs;
    float weight[32], feature = 0.f, sum = 0.f;
    int cell = -1, input = -1, output = -1;
    for (i64 t = s.first; t < s.last; t++) {
        if (p.cells[t] != cell) {
            cell = p.cells[t];
#pragma unroll
            for (int c = 0; c < 32; c++) {
                const bool there = out && s.in + c < p.inputs;
                weight[c] = there ? widened(p.weight[((i64)cell * p.inputs + s.in + c) * p.outputs + s.out + s.lane]) : 0.f;
            }
        }
        if (p.ins[t] != input) {
            input = p.ins[t];
            feature = in ? widened(p.features[(i64)input * p.inputs + s.in + s.lane]) : 0.f;
        }
        if (p.outs[t] != output) {
            if (output >= 0 && out) atomicAdd(p.out + (i64)output * p.outputs + s.out + s.lane, sum);
            output = p.outs[t], sum = 0.f;
        }
#pragma unroll
        for (int c = 0; c < 32; c++) sum += weight[c] * __shfl_sync(ALL, feature, c);
    }
    if (output >= 0 && out) atomicAdd(p.out + (i64)output * p.outputs + s.out + s.lane, sum);
}

extern "C" __global__ void __launch_bounds__(WARPS * 32, 3) outer(const __grid_constant__ ListingParams p) {
    const Share s = share_of(p);
    const bool in = s.in + s.lane < p.inputs, out = s.out + s.lane < p.outputs;
    float sums[32], feature = 0.f, grad = 0.f;
    int cell = -1, input = -1, output = -1;
    for (i64 t = s.first; t <= s.last; t++) {
        if (t == s.last || p.cells[t] != cell) {
#pragma unroll
            for (int c = 0; c < 32; c++) {
                if (cell >= 0 && out && s.in + c < p.inputs)
                    atomicAdd(p.out + ((i64)cell * p.inputs + s.in + c) * p.outputs + s.out + s.lane, sums[c]);
                sums[c] = 0.f;
            }
            if (t >= s.last) break;
            cell = p.cells[t];
        }
        if (p.ins[t] != input) {
            input = p.ins[t];
            feature = in ? widened(p.features[(i64)input * p.inputs + s.in + s.lane]) : 0.f;
        }
        if (p.outs[t] != output) {
            output = p.outs[t];
            grad = out ? widened(p.weight[(i64)output * p.outputs + s.out + s.lane]) : 0.f;
        }
#pragma unroll
        for (int c = 0; c < 32; c++) sums[c] += grad * __shfl_sync(ALL, feature, c);
    }
}
