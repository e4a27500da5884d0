// Arithmetic of one inner iteration on words: a float, or two half-precision numbers. README.md describes the scheme.
// Built behind halves.cuh.
#if HALF
typedef u32 word;  // two pixels, one in the low half and one in the high half
#else
typedef float word;
#endif
#define INLINE __device__ __forceinline__
constexpr int PIXELS = HALF + 1;  // in a word
constexpr float GRADIENT_FLOOR = 1e-6f;

INLINE float reciprocal(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

#if HALF
#define TWO(NAME, OPERATION)                                                    \
    INLINE word NAME(word a, word b) {                                          \
        word r;                                                                 \
        asm(OPERATION ".f16x2 %0, %1, %2;" : "=r"(r) : "r"(a), "r"(b));         \
        return r;                                                               \
    }
TWO(add, "add")
TWO(sub, "sub")
TWO(mul, "mul")
TWO(mul_to_one, "mul.sat")  // clamped to 0 ... 1; NaN becomes 0
INLINE word negative(word a) {
    word r;
    asm("neg.f16x2 %0, %1;" : "=r"(r) : "r"(a));
    return r;
}
INLINE word fma(word a, word b, word c) {
    word r;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c));
    return r;
}
INLINE float low(word a) { return from_f16((u16)a); }
INLINE float high(word a) { return low(a >> 16); }
INLINE word pack(float a, float b) { return pair_f16(a, b); }
INLINE word splat(float a) { return pack(a, a); }
#if __CUDA_ARCH__ >= 800
TWO(smaller, "min")
TWO(larger, "max")
#else
INLINE word smaller(word a, word b) { return pack(fminf(low(a), low(b)), fminf(high(a), high(b))); }
INLINE word larger(word a, word b) { return pack(fmaxf(low(a), low(b)), fmaxf(high(a), high(b))); }
#endif
#else
INLINE word add(word a, word b) { return a + b; }
INLINE word sub(word a, word b) { return a - b; }
INLINE word mul(word a, word b) { return a * b; }
INLINE word fma(word a, word b, word c) { return a * b + c; }
INLINE word smaller(word a, word b) { return fminf(a, b); }
INLINE word larger(word a, word b) { return fmaxf(a, b); }
INLINE word negative(word a) { return -a; }
INLINE word splat(float a) { return a; }
#endif

// The data term at a pixel in pixels: the gradient's direction, the distance to its line, the largest step.
struct Data {
    word n1, n2, c, most;
};

INLINE void normalise(float &gx, float &gy, float &c, float &most, float bound) {
    float squared = gx * gx + gy * gy;
    float inverse = squared > GRADIENT_FLOOR ? reciprocal_root(squared) : 0.f;
    gx *= inverse;
    gy *= inverse;
    c *= inverse;
    most = bound * (squared * inverse);
}

INLINE Data normalised(word gx, word gy, word c, float bound) {
#if HALF
    float x0 = low(gx), y0 = low(gy), c0 = low(c), m0, x1 = high(gx), y1 = high(gy), c1 = high(c), m1;
    normalise(x0, y0, c0, m0, bound);
    normalise(x1, y1, c1, m1, bound);
    return {pack(x0, x1), pack(y0, y1), pack(c0, c1), pack(m0, m1)};
#else
    float most;
    normalise(gx, gy, c, most, bound);
    return {gx, gy, c, most};
#endif
}

// Return minus the step along the gradient.
INLINE word data_step(word u1, word u2, const Data &d) {
    word distance = fma(d.n1, u1, fma(d.n2, u2, d.c));
    return negative(larger(smaller(distance, d.most), negative(d.most)));
}

INLINE word flow_step(word u, word step, word n, word across, word left, word down, word up) {
    return add(fma(step, n, u), add(sub(across, left), sub(down, up)));
}

// Compute 1 / (1 + slope |gradient|) of both components with one reciprocal.
INLINE void shrinks(word x1, word y1, word x2, word y2, float slope, word &s1, word &s2) {
    word squared1 = fma(x1, x1, mul(y1, y1)), squared2 = fma(x2, x2, mul(y2, y2));
#if HALF
    // The reciprocal is a line through the bits, at most 6 % off, with the next two terms of its error's series. It is
    // zero where the squares overflow, beyond 256 px from pixel to pixel, or the product passes 31104: there both components
    // change by more than 175 px over the slope.
    word one = splat(1.f), steep = splat(slope);
    word a1 = fma(pack(root(low(squared1)), root(high(squared1))), steep, one);
    word a2 = fma(pack(root(low(squared2)), root(high(squared2))), steep, one);
    word both = mul(a1, a2), guess = 0x77987798u - both, wrong = fma(negative(both), guess, one);
    word inverse = fma(guess, fma(wrong, wrong, wrong), guess);
    s1 = mul_to_one(inverse, a2);
    s2 = mul_to_one(inverse, a1);
#else
    float a1 = 1.f + slope * root(squared1), a2 = 1.f + slope * root(squared2);
    float both = reciprocal(a1 * a2);
    s1 = both * a2;
    s2 = both * a1;
#endif
}

INLINE word dual_step(word p, word tau, word gradient, word shrink) { return mul(fma(tau, gradient, p), shrink); }
