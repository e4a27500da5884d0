// The products of one source pixel with all positions of a window, by one warp, straight from memory. The bits are those of the lookups'
// chunks: the same 16 channels a product of the tensor cores (whose order among themselves does not matter), the same order of these.

static __device__ __forceinline__ uint2 load_feature(const u16 *p, bool inside) {
    uint2 v = make_uint2(0, 0);
    if (inside) v = *(const uint2 *)p;
    return v;
}

// own: the pixel's features in the order of channels, in shared memory. dots[r * side + c]: the product with the position (ix + c, iy + r),
// zero outside of the map; room for a multiple of 16 floats.
static __device__ __forceinline__ void window_products(float *dots, const u32 *own, const u16 *f2, int h, int w, int ix, int iy, int side = KP) {
    int lane = lane_id(), quad = lane & 3, r = lane >> 2;
#pragma unroll 1
    for (int t = 0; t < (side * side + 15) / 16; t++) {
        int pa = t * 16 + r, pb = pa + 8, ra = pa / side, rb = pb / side;
        int xa = ix + pa - ra * side, ya = iy + ra, xb = ix + pb - rb * side, yb = iy + rb;
        bool ina = ra < side && (u32)xa < (u32)w && (u32)ya < (u32)h, inb = rb < side && (u32)xb < (u32)w && (u32)yb < (u32)h;
        const u16 *fa = f2 + ((i64)ya * w + xa) * ROWLEN + quad * 4, *fb = f2 + ((i64)yb * w + xb) * ROWLEN + quad * 4;
        float d[4] = {0.f, 0.f, 0.f, 0.f};
        // Adds 16 channels, `first` of the pixel's vector with `second` of the positions'.
        auto add = [&](float(&sum)[4], int first, int second) {
            uint2 va = load_feature(fa + second, ina), vb = load_feature(fb + second, inb), b = *(const uint2 *)(own + first / 2 + quad * 2);
            mma_16816(sum, va.x, vb.x, va.y, vb.y, b.x, b.y);
        };
#if SPLIT
#pragma unroll 1
        for (int c = 0; c < CPAD; c += CBLK) {
#if HOPPER
            float first[4] = {0.f, 0.f, 0.f, 0.f}, second[4] = {0.f, 0.f, 0.f, 0.f};
#else
            float(&first)[4] = d, (&second)[4] = d;
#endif
#pragma unroll 4
            for (int s = 0; s < CBLK; s += 16) {
                add(first, CPAD + c + s, c + s);
                add(first, c + s, CPAD + c + s);
            }
#pragma unroll 4
            for (int s = 0; s < CBLK / 2; s += 16) add(first, c + s, c + s);
#pragma unroll 4
            for (int s = CBLK / 2; s < CBLK; s += 16) add(second, c + s, c + s);
#if HOPPER
#pragma unroll
            for (int i = 0; i < 4; i++) d[i] = (c ? d[i] + first[i] : first[i]) + second[i];
#endif
        }
#else
#pragma unroll 8
        for (int c = 0; c < CPAD; c += 16) add(d, c, c);
#endif
        if (quad == 0) {
            dots[pa] = d[0];
            dots[pb] = d[2];
        }
    }
    __syncwarp();
}
