// What the kernels of the guided refinement share: the arithmetic of an iteration at one pixel, and when there is nothing to do.
// Built behind halves.cuh.

// Return whether nothing remains of the passes to which a kernel belongs; `share` is null for those of which all is needed.
static __device__ __forceinline__ bool is_skipped(const float *share) { return share && *share == 0.f; }

// Return what the inverse of the linearised data term multiplies: the flow over its step, and the dual variable's divergence.
static __device__ __forceinline__ float flow_and_divergence(float u, float slowness, float across, float left, float down, float up) {
    return fmaf(slowness, u, (across - left) + (down - up));
}

// Return a product clamped to 0 ... 1; 0 for NaN.
static __device__ __forceinline__ float multiply_to_one(float a, float b) {
    float r;
    asm("mul.sat.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}

// Step the dual variable (p, q) of a component along its gradient, times sigma, and pull it back to the length `edge`.
static __device__ __forceinline__ void dual_step(float &p, float &q, float across, float down, float sigma_x, float sigma_y, float edge) {
    const float g = fmaf(sigma_x, across, p), h = fmaf(sigma_y, down, q);
    const float shrink = multiply_to_one(edge, reciprocal_root(fmaf(g, g, h * h)));
    p = shrink * g;
    q = shrink * h;
}
