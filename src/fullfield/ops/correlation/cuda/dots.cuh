// Products of one source pixel with all positions of a window, by one warp, straight from memory.

static __device__ __forceinline__ uint4 load_feature(const u16 *p, bool inside) {
    uint4 v = make_uint4(0, 0, 0, 0);
    if (inside) v = *(const uint4 *)p;
    return v;
}

// Compute dots[r * KP + c], the product with the position (ix + c, iy + r); zero outside the map. `own`: the pixel's features
// in the order of channels, in shared memory. `dots` has space for a multiple of 16 floats.
static __device__ __forceinline__ void window_products(float *dots, const u32 *own, const u16 *f2, int h, int w, int ix, int iy) {
    int lane = lane_id(), quad = lane & 3, r = lane >> 2;
#pragma unroll 1
    for (int t = 0; t < (KP * KP + 15) / 16; t++) {
        int pa = t * 16 + r, pb = pa + 8;
        int xa = ix + pa % KP, ya = iy + pa / KP, xb = ix + pb % KP, yb = iy + pb / KP;
        bool ina = pa < KP * KP && (u32)xa < (u32)w && (u32)ya < (u32)h, inb = pb < KP * KP && (u32)xb < (u32)w && (u32)yb < (u32)h;
        const u16 *fa = f2 + ((i64)ya * w + xa) * ROWLEN + quad * 8, *fb = f2 + ((i64)yb * w + xb) * ROWLEN + quad * 8;
        float d[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll 4
        for (int g = 0; g < CPAD / 32; g++) {
            uint4 va = load_feature(fa + g * 32, ina), vb = load_feature(fb + g * 32, inb);
            uint4 b = *(const uint4 *)(own + g * 16 + quad * 4);
            mma_16816(d, va.x, vb.x, va.y, vb.y, b.x, b.y);
            mma_16816(d, va.z, vb.z, va.w, vb.w, b.z, b.w);
#if SPLIT
            uint4 c = *(const uint4 *)(own + CPAD / 2 + g * 16 + quad * 4);
            mma_16816(d, va.x, vb.x, va.y, vb.y, c.x, c.y);
            mma_16816(d, va.z, vb.z, va.w, vb.w, c.z, c.w);
            va = load_feature(fa + CPAD + g * 32, ina);
            vb = load_feature(fb + CPAD + g * 32, inb);
            mma_16816(d, va.x, vb.x, va.y, vb.y, b.x, b.y);
            mma_16816(d, va.z, vb.z, va.w, vb.w, b.z, b.w);
#endif
        }
        if (quad == 0) {
            dots[pa] = d[0];
            dots[pb] = d[2];
        }
    }
    __syncwarp();
}
