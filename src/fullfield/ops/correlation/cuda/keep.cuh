// The form in which products are kept between lookups, and how a lookup writes them. Patches hold SIDE x SIDE products for each
// pixel of one tile or two: [row][column][pixel], the upper and the lower bytes of 24 bits one after the other. Every result is made of
// products in this form, kept or not, so that it never matters when one was computed.

// The product as it would come back from a patch; of 16 bits multiplied with the scale already.
static __device__ __forceinline__ float as_kept(float product, float scale) {
#if KEPT == 1
    return OutElement::unpack(OutElement::pack(product * scale));
#elif KEPT == 2
    return __uint_as_float(__float_as_uint(product) & 0xffffff00u);
#else
    return product;
#endif
}

#if KEPT
// The patches of a level of the tiles that lie together with this one.
static __device__ __forceinline__ u8 *patches_of(const Params &p, int batch, int tile_x, int tile_y, int level) {
    i64 group = ((i64)batch * p.tiles_y + tile_y) * ((p.tiles_x + KEPT_TILES - 1) / KEPT_TILES) + tile_x / KEPT_TILES;
    return p.kept.patches + group * p.kept.group_bytes + p.kept.offset[level];
}
// Where in a cell of these a pixel's product lies: 16 pixels of a tile, then as many of the one beside it.
static __device__ __forceinline__ int kept_place(int tile_x, int pixel) {
    return GROUPS == 1 ? (pixel >> 4) * 32 + (tile_x & 1) * 16 + (pixel & 15) : pixel;
}

// index: of the product in the patch.
static __device__ __forceinline__ void keep_product(u8 *patch, int side, int index, float product) {
#if KEPT == 1
    ((u16 *)patch)[index] = OutElement::pack(product);
#elif KEPT == 2
    u32 bits = __float_as_uint(product);
    ((u16 *)patch)[index] = bits >> 16;
    (patch + side * side * (2 * KEPT_PIXELS))[index] = bits >> 8;
#else
    ((float *)patch)[index] = product;
#endif
}
#endif
