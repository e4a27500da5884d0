// The second frame sampled where the flow points, and the data term linearised there. Follows images.cuh.
//
// Macros set by the launcher:
//   HALF    whether the level is float16
//   FLOOR   below this squared gradient a pixel says nothing about motion

#if HALF
typedef u16 T;
#else
typedef float T;
#endif

struct WarpParams {
    const float *first, *second;  // [B, height, image_pitch]
    const float *from;            // [B, 2, height, image_pitch] u0
    T *flow, *data, *origin;      // first planes of the level's item 0
    i64 image_plane;              // floats from one plane to the next
    i64 plane, item;              // elements of the level from one plane, one item to the next
    float blend;
    int height, width, image_pitch, pitch, tiles;
};

struct Sample { float value, gx, gy; };

// Keys' cubic convolution, a = -1/2, of the taps at -1, 0, 1, 2.
static __device__ __forceinline__ void cubic(float t, float (&w)[4]) {
    w[0] = 0.5f * t * (t * (2.f - t) - 1.f);
    w[1] = 0.5f * (t * t * (3.f * t - 5.f) + 2.f);
    w[2] = 0.5f * t * (t * (4.f - 3.f * t) + 1.f);
    w[3] = 0.5f * t * t * (t - 1.f);
}

static __device__ __forceinline__ float2 gradient(const float *image, int pitch, int height, int width, int x, int y) {
    const float *row = image + (i64)y * pitch, *above = image + (i64)max(y - 1, 0) * pitch;
    const float *below = image + (i64)min(y + 1, height - 1) * pitch;
    return {0.5f * (row[min(x + 1, width - 1)] - row[max(x - 1, 0)]), 0.5f * (below[x] - above[x])};
}

// The image and its central differences at (x, y), inside the frame; borders replicated.
static __device__ __forceinline__ Sample sample(const float *image, int pitch, int height, int width, float x, float y) {
    const float left = floorf(x), top = floorf(y);
    const int column = (int)left, row = (int)top;
    float wx[4], wy[4];
    cubic(x - left, wx);
    cubic(y - top, wy);
    Sample s = {0.f, 0.f, 0.f};
    if (column >= 2 && column + 3 < width && row >= 2 && row + 3 < height) {
        // The difference of neighbours belongs to the weights: along a row six values make value and gradient.
        const float dx[6] = {-wx[0], -wx[1], wx[0] - wx[2], wx[1] - wx[3], wx[2], wx[3]};
        const float dy[6] = {-wy[0], -wy[1], wy[0] - wy[2], wy[1] - wy[3], wy[2], wy[3]};
        const float *at = image + (i64)(row - 2) * pitch + column - 2;
#pragma unroll
        for (int j = 0; j < 6; j++, at += pitch) {
            const float b = at[1], c = at[2], d = at[3], e = at[4];
            const float across = wx[0] * b + wx[1] * c + wx[2] * d + wx[3] * e;
            s.gy += dy[j] * across;
            if (j >= 1 && j <= 4) {
                s.value += wy[j - 1] * across;
                s.gx += wy[j - 1] * (dx[0] * at[0] + dx[1] * b + dx[2] * c + dx[3] * d + dx[4] * e + dx[5] * at[5]);
            }
        }
        s.gx *= 0.5f, s.gy *= 0.5f;
        return s;
    }
    for (int j = 0; j < 4; j++)
        for (int i = 0; i < 4; i++) {
            const int tx = min(max(column + i - 1, 0), width - 1), ty = min(max(row + j - 1, 0), height - 1);
            const float w = (j == 0 ? wy[0] : j == 1 ? wy[1] : j == 2 ? wy[2] : wy[3]) *
                            (i == 0 ? wx[0] : i == 1 ? wx[1] : i == 2 ? wx[2] : wx[3]);
            const float2 g = gradient(image, pitch, height, width, tx, ty);
            s.value += w * image[(i64)ty * pitch + tx];
            s.gx += w * g.x, s.gy += w * g.y;
        }
    return s;
}

static __device__ __forceinline__ T narrow(float x) {
#if HALF
    return to_f16(x);
#else
    return x;
#endif
}

// A block: 32×8 pixels. Where the target lies outside the frame there is no data term: gradient and residual are zero.
extern "C" __global__ void __launch_bounds__(256) linearise(const __grid_constant__ WarpParams p) {
    u32 block = blockIdx.x;
    const int x = block % p.tiles * 32 + threadIdx.x % 32;
    block /= p.tiles;
    const u32 rows = (p.height + 7) / 8;
    const int y = block % rows * 8 + threadIdx.x / 32;
    const i64 item = block / rows;
    if (x >= p.width || y >= p.height) return;
    const i64 pixel = (i64)y * p.image_pitch + x, at = item * p.item + (i64)y * p.pitch + x;
    const float u = p.from[2 * item * p.image_plane + pixel], v = p.from[(2 * item + 1) * p.image_plane + pixel];
#if HALF
    // The origin is what half precision holds of the flow, and is sampled at; the rest is the flow to start from.
    const T ou = narrow(u), ov = narrow(v);
    const float au = from_f16(ou), av = from_f16(ov);
    p.origin[at] = ou, p.origin[at + p.plane] = ov;
    p.flow[at] = narrow(u - au), p.flow[at + p.plane] = narrow(v - av);
#else
    const float au = u, av = v;
    p.flow[at] = u, p.flow[at + p.plane] = v;
#endif
    const float *first = p.first + item * p.image_plane, *second = p.second + item * p.image_plane;
    const float px = x + au, py = y + av;
    float gx = 0.f, gy = 0.f, residual = 0.f;
    if (px >= 0.f && px <= p.width - 1 && py >= 0.f && py <= p.height - 1) {
        const Sample s = sample(second, p.image_pitch, p.height, p.width, px, py);
        const float2 a = gradient(first, p.image_pitch, p.height, p.width, x, y);
        gx = s.gx + p.blend * (a.x - s.gx);
        gy = s.gy + p.blend * (a.y - s.gy);
        residual = s.value - first[pixel];
#if !HALF
        residual -= gx * au + gy * av;
#endif
        if (!(gx * gx + gy * gy > FLOOR)) gx = gy = residual = 0.f;
    }
    p.data[at] = narrow(gx), p.data[at + p.plane] = narrow(gy), p.data[at + 2 * p.plane] = narrow(residual);
}
