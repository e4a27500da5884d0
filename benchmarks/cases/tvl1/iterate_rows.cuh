// Neighbours in rows of words in memory, where a word of half precision holds two pixels side by side.

// As romera.py packs it. Steps in elements.
struct IterateParams {
    const word *flow, *dual, *data, *origin;
    word *flow_out, *dual_out, *scratch;
    long long plane, item;
    int pitch, width, height;
    int rows, columns, strips;  // of a strip; strips across; in all
    float slope, tau, bound;    // tau / theta, tau, lambda theta
    int clamp, zero_dual;
};

INLINE int words_across(const IterateParams &p) { return (p.width + PIXELS - 1) / PIXELS; }

// The word one pixel to the left. `left`: the word before it; `first`: there is none, as the borders will have it.
INLINE word shifted_left(word left, word own, bool first, int clamp) {
#if HALF
    unsigned before = first ? (clamp ? own & 0xffff : 0) : left >> 16;
    return before | own << 16;
#else
    return first ? (clamp ? own : 0.f) : left;
#endif
}

// Forward difference across of the word at `x`, zero at the far border.
INLINE word difference_across(word own, word right, int x, int width) {
#if HALF
    word d = sub(own >> 16 | right << 16, own);
    return 2 * x + 1 < width - 1 ? d : 2 * x < width - 1 ? d & 0xffff : 0;
#else
    return x < width - 1 ? right - own : 0.f;
#endif
}

// One row of the planes of an item, in words.
struct Rows {
    const word *flow, *dual, *data, *origin;
    word *flow_out, *dual_out;
    long long plane;
};

INLINE Rows rows_at(const IterateParams &p, int item, int y) {
    long long at = (item * p.item + (long long)y * p.pitch) / PIXELS;
    return {p.flow + at, p.dual + at, p.data + at, p.origin + at, p.flow_out + at, p.dual_out + at, p.plane / PIXELS};
}

INLINE Data data_at(const Rows &r, int x, float bound) {
    return normalised(r.data[x], r.data[r.plane + x], r.data[2 * r.plane + x], bound);
}

// Of the origin's, which half precision adds to the flow's; zero at the far borders.
INLINE void add_origin(const Rows &r, int x, int y, const IterateParams &p, word (&gradient)[4]) {
#if HALF
    int right = 2 * x + 2 < p.width ? x + 1 : x, below = y < p.height - 1 ? p.pitch / PIXELS : 0;
    for (int c = 0; c < 2; c++) {
        const word *o = r.origin + c * r.plane;
        gradient[2 * c] = add(gradient[2 * c], difference_across(o[x], o[right], x, p.width));
        gradient[2 * c + 1] = add(gradient[2 * c + 1], sub(o[below + x], o[x]));
    }
#endif
}
