// Convex up-sampling: softmax over nine weights and the blend, in one pass. Built behind common.cuh (Value: type of weights).
//
// Macros: FACTOR, 2 to 8. CLAST, whether the weights' channels are neighbours in memory (and 16-byte aligned).
//
// A thread computes one of the FACTOR fine rows of a cell. Neighbouring threads take the rows of a cell if CLAST, else
// neighbouring cells.

struct ConvexParams {
    const Value *mask;                         // [B, 9 FACTOR², h, w] by strides
    const float *field;                        // [B, channels, h, w] by strides
    float *out;                                // [B, channels, out_height, out_width] by strides, x next to each other
    i64 mask_b, mask_c, mask_y, mask_x;
    i64 field_b, field_c, field_y, field_x;
    i64 out_b, out_c, out_y;
    int channels, height, width;
    int first_row, rows;                       // the rows of cells that mask holds
    int top, left, out_height, out_width;      // where out lies in the fine field
    float gain;
};

extern "C" __global__ void __launch_bounds__(256) convex(const ConvexParams p) {
    const u32 index = blockIdx.y * 256 + threadIdx.x;
    const int x = CLAST ? index / FACTOR : index % p.width, part = CLAST ? index % FACTOR : index / p.width;
    if (x >= p.width || part >= FACTOR) return;
    const int item = blockIdx.x / p.rows, row = blockIdx.x % p.rows, y = p.first_row + row;
    const int fine_y = y * FACTOR + part - p.top, fine_x = x * FACTOR - p.left;
    if (fine_y < 0 || fine_y >= p.out_height || fine_x <= -FACTOR || fine_x >= p.out_width) return;
    const Value *mask = p.mask + item * p.mask_b + row * p.mask_y + x * p.mask_x + part * FACTOR * p.mask_c;
    float w[9][FACTOR];
#pragma unroll
    for (int k = 0; k < 9; k++) {
        const Value *from = mask + k * FACTOR * FACTOR * p.mask_c;
#if CLAST && FACTOR == 8
#pragma unroll
        for (int j = 0; j < FACTOR; j += VEC) {
            float v[VEC];
            load(from + j, v);
#pragma unroll
            for (int i = 0; i < VEC; i++) w[k][j + i] = v[i];
        }
#else
#pragma unroll
        for (int j = 0; j < FACTOR; j++) w[k][j] = widened(from[j * p.mask_c]);
#endif
    }
#pragma unroll
    for (int j = 0; j < FACTOR; j++) {
        float most = w[0][j], sum = 0.f;
#pragma unroll
        for (int k = 1; k < 9; k++) most = fmaxf(most, w[k][j]);
#pragma unroll
        for (int k = 0; k < 9; k++) w[k][j] = __expf(w[k][j] - most), sum += w[k][j];
        const float inverse = p.gain / sum;
#pragma unroll
        for (int k = 0; k < 9; k++) w[k][j] *= inverse;
    }
    for (int c = 0; c < p.channels; c++) {
        const float *field = p.field + item * p.field_b + c * p.field_c;
        float v[FACTOR];
        clear(v);
#pragma unroll
        for (int k = 0; k < 9; k++) {
            const int ty = y + k / 3 - 1, tx = x + k % 3 - 1;
            const bool inside = ty >= 0 && ty < p.height && tx >= 0 && tx < p.width;
            const float at = inside ? field[ty * p.field_y + tx * p.field_x] : 0.f;
#pragma unroll
            for (int j = 0; j < FACTOR; j++) v[j] = fmaf(w[k][j], at, v[j]);
        }
        float *to = p.out + item * p.out_b + c * p.out_c + fine_y * p.out_y + fine_x;
#if FACTOR % 4 == 0
        if (fine_x >= 0 && fine_x + FACTOR <= p.out_width && ((u32)(unsigned long long)to & 15) == 0) {
#pragma unroll
            for (int j = 0; j < FACTOR; j += 4) *(float4 *)(to + j) = make_float4(v[j], v[j + 1], v[j + 2], v[j + 3]);
            continue;
        }
#endif
#pragma unroll
        for (int j = 0; j < FACTOR; j++)
            if (fine_x + j >= 0 && fine_x + j < p.out_width) to[j] = v[j];
    }
}
