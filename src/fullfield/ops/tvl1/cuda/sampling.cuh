// Sampling of the second frame where the flow points, and the data term linearised there.

struct Frames {
    const float *first, *second;  // planes of one item
    int pitch, height, width;
    float blend;
};
struct Linear { float gx, gy, residual; };  // the residual: I2 - I1, without gradient times flow

// Compute Keys' cubic weights, a = -1/2, of the taps at -1, 0, 1, 2; `cell` is the place of the tap at 0. A tap outside the
// frame repeats the one at the border, and so does its gradient, so its weight goes there. BORDERS: there may be such taps.
template <bool BORDERS> static __device__ __forceinline__ void cubic(float t, int cell, int size, float (&w)[4]) {
    const float s = 1.f - t, half = -0.5f * (t * s);
    w[0] = half * s;
    w[3] = half * t;
    w[1] = t * s + s + 3.f * w[3];
    w[2] = t * s + t + 3.f * w[0];
    if (BORDERS && cell == 0) w[1] += w[0], w[0] = 0.f;
    if (BORDERS && cell == size - 2) w[2] += w[3], w[3] = 0.f;
}

// Target of a pixel's flow: the cell, and the weights of the taps around it.
struct Place {
    int column, row;
    float wx[4], wy[4];
};

// Find the target of the pixel (x, y) with flow (u, v); BORDERS as for `cubic`. If it lies outside the frame, return false,
// and the place of the pixel itself.
template <bool BORDERS> static __device__ __forceinline__ bool placed(const Frames &f, int x, int y, float u, float v, Place &p) {
    float px = x + u, py = y + v;
    const bool inside = px >= 0.f && px <= f.width - 1 && py >= 0.f && py <= f.height - 1;
    px = inside ? px : x, py = inside ? py : y;
    const float left = floorf(px), top = floorf(py);
    p.column = (int)left, p.row = (int)top;
    cubic<BORDERS>(px - left, p.column, f.width, p.wx);
    cubic<BORDERS>(py - top, p.row, f.height, p.wy);
    return inside;
}

struct Sample { float value, gx, gy; };  // gradients twice as large

// Sample in the 6×6 values from two above and left of the cell on; `row(j)(i)` returns one, outside the frame the border's.
// Differences of neighbours are part of the weights: six values of a row give value and gradient.
template <class Row> static __device__ __forceinline__ Sample sampled(const Place &p, Row row) {
    const float dx[6] = {-p.wx[0], -p.wx[1], p.wx[0] - p.wx[2], p.wx[1] - p.wx[3], p.wx[2], p.wx[3]};
    const float dy[6] = {-p.wy[0], -p.wy[1], p.wy[0] - p.wy[2], p.wy[1] - p.wy[3], p.wy[2], p.wy[3]};
    Sample s = {0.f, 0.f, 0.f};
#pragma unroll
    for (int j = 0; j < 6; j++) {
        const auto at = row(j);
        const float b = at(1), c = at(2), d = at(3), e = at(4);
        const float across = p.wx[0] * b + p.wx[1] * c + p.wx[2] * d + p.wx[3] * e;
        s.gy += dy[j] * across;
        if (j >= 1 && j <= 4) {
            s.value += p.wy[j - 1] * across;
            s.gx += p.wy[j - 1] * (dx[0] * at(0) + dx[1] * b + dx[2] * c + dx[3] * d + dx[4] * e + dx[5] * at(5));
        }
    }
    return s;
}

// Sample in global memory; `p` lies inside the frame.
static __device__ __forceinline__ Sample sampled(const Frames &f, const Place &p) {
    if (p.column >= 2 && p.column + 3 < f.width && p.row >= 2 && p.row + 3 < f.height) {
        const float *corner = f.second + (i64)(p.row - 2) * f.pitch + p.column - 2;
        return sampled(p, [&](int j) {
            const float *line = corner + (i64)j * f.pitch;
            return [=](int i) { return line[i]; };
        });
    }
    return sampled(p, [&](int j) {
        const float *line = f.second + (i64)min(max(p.row - 2 + j, 0), f.height - 1) * f.pitch;
        return [&f, &p, line](int i) { return line[min(max(p.column - 2 + i, 0), f.width - 1)]; };
    });
}

// Return the data term at a pixel from a sample of the second frame, and the first frame and its differences.
static __device__ __forceinline__ Linear blended(const Sample &s, float first, float across, float down, float blend) {
    return {0.5f * (s.gx + blend * (across - s.gx)), 0.5f * (s.gy + blend * (down - s.gy)), s.value - first};
}

// Linearise at the pixel (x, y), whose flow is (u, v). If the target lies outside the frame, the data term is zero.
static __device__ __forceinline__ Linear linearised(const Frames &f, int x, int y, float u, float v) {
    Place p;
    if (!placed<true>(f, x, y, u, v, p)) return {0.f, 0.f, 0.f};
    const float *own = f.first + (i64)y * f.pitch, *above = f.first + (i64)max(y - 1, 0) * f.pitch;
    const float *below = f.first + (i64)min(y + 1, f.height - 1) * f.pitch;
    const float across = own[min(x + 1, f.width - 1)] - own[max(x - 1, 0)];
    return blended(sampled(f, p), own[x], across, below[x] - above[x], f.blend);
}
