// The form in which products are kept between lookups, and how a lookup writes them. A patch holds SIDE x SIDE products for each
// pixel of a tile: [row][column][pixel], the upper and the lower bytes of 24 bits one after the other. Every result is made of
// products in this form, kept or not, so that it never matters when one was computed.

#ifndef KEPT_TYPE
#define KEPT_TYPE OUT
#endif
typedef Element<KEPT_TYPE> KeptElement;

// The product as it would come back from a patch; of 16 bits multiplied with the scale already.
static __device__ __forceinline__ float as_kept(float product, float scale) {
#if KEPT == 1
    return KeptElement::unpack(KeptElement::pack(product * scale));
#elif KEPT == 2
    return __uint_as_float(__float_as_uint(product) & 0xffffff00u);
#else
    return product;
#endif
}

#if KEPT
static __device__ __forceinline__ u8 *patch_of(const Params &p, i64 tile, int level) {
    return p.kept.patches + tile * p.kept.tile_bytes + p.kept.offset[level];
}

// index: of the product in the patch.
static __device__ __forceinline__ void keep_product(u8 *patch, int side, int index, float product) {
#if KEPT == 1
    ((u16 *)patch)[index] = KeptElement::pack(product);
#elif KEPT == 2
    u32 bits = __float_as_uint(product);
    ((u16 *)patch)[index] = bits >> 16;
    (patch + side * side * (2 * KEPT_PIXELS))[index] = bits >> 8;
#else
    ((float *)patch)[index] = product;
#endif
}
#endif
