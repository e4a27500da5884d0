// The gradients of convex.cu's blend for a factor of 8. Built behind convex_cells.cuh.

struct ConvexGradientParams {
    const Value *mask;         // [B, 576, h, w] by strides
    const float *field;        // [B, CHANNELS, h, w]
    const float *grad;         // [B, CHANNELS, 8 h, 8 w]
    Value *grad_mask;          // by the mask's strides
    float *partial;            // [B h w, KEPT]: gradients of the nine neighbours' values
    float *grad_field;         // as field
    i64 mask_b, mask_c, mask_y, mask_x;
    int batch, height, width;
};

extern "C" __global__ void __launch_bounds__(256) convex_gradients(const ConvexGradientParams p) {
    __shared__ float halves[2 * CELLS][KEPT];
    const Fine fine(p);
    float v[KEPT];
    clear(v);
    if (fine.there) {
        const i64 pixels = (i64)p.height * p.width * FINE;
        float w[9], g[CHANNELS];
        load_weights(p, fine, w);
#pragma unroll
        for (int c = 0; c < CHANNELS; c++) g[c] = p.grad[(fine.b * CHANNELS + c) * pixels + fine.pixel];
        spread(p, fine, w, [&](int k, int c) { return neighbor(p, fine, k, c); }, g, v);
    }
    keep_sums(p, fine, halves, v);
}

extern "C" __global__ void __launch_bounds__(256) convex_gather(const ConvexGradientParams p) { gather_field(p); }
