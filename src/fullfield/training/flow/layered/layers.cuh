// Layers of scenes: where rays meet them, what they cover and their colours, as in reference.py.

struct LayeredParams {
    const float *to_card;    // [B, 2, 1 + exposures, layers, 9]
    const float *centres;    // [B, 2, 1 + exposures, layers, 3]
    const float *to_frame;   // [B, layers, 12]
    const float *paint;      // [B, layers, 38]
    const int *ids;          // [B, layers, 2]
    const int *counts;       // [B]
    const float *exposed;    // [B, 2, exposures, 3]
    const int *instants;     // [B]: exposures that a scene averages
    const float *background; // [B, 3]
    const float *sensor;     // [B, 2]
    const int *noise;        // [B]
    const u8 *texels;        // levels one after the other, RGBX
    const u8 *shapes;        // [shape_count, shape_side, shape_side]
    const float *points;     // [V, 2, 3]: of meshes, in both frames; null where no scene has any
    const float *mesh_texels; // [V, 3]
    const int *corners;      // [T, 3]
    const float *mesh_light; // [T, 3, 2]
    const int *owners;       // [T, 3]: scene, layer, row of mesh_colours
    const int *mesh_pictures; // [N]
    const float *mesh_colours; // [N, 13]
    u64 *keys;               // [B, 2, 1 + exposures, height, width]: nearest triangle of a sample
    float *frame1;           // [B, 3, height, width]
    float *frame2;
    float *flow;             // [B, 2, height, width]
    u8 *valid;               // [B, height, width]
    u8 *occluded;
    int batch, height, width, layers, exposures;
    int pictures, side, levels, shape_count, shape_side, triangles;
};

constexpr float NEAREST = 1e-9f, CLEAR = 0.004f;
constexpr int INFINITE = -1, SQUARE = -2, ELLIPSOID = -3, MESH = -4;
constexpr int TEXTURE = 10, SOFTNESS = 16, BIAS = 17, COLOURS = 18, DEPTH_TEXTURE = 30, LIGHT = 32, PAINT = 38;
constexpr float GRAZING = 1e-3f;  // least cosine at an ellipsoid's outline, where derivatives have no limit

// A point of a layer: (a, b) on a card, (a, b, c) on the unit sphere of an ellipsoid; 1 / depth; derivatives by the pixel;
// for an ellipsoid the distance inside its outline in pixels.
struct Place { float a, b, c, w, ax, ay, bx, by, cx, cy, inside; };

static __device__ __forceinline__ float held(float value, float low, float high) { return fminf(fmaxf(value, low), high); }

// Return the sine of an angle up to some thousands; PyTorch's differs by less than 1e-5.
static __device__ __forceinline__ float sine_of(float angle) {
    const float turns = rintf(angle * 0.15915494f);
    return __sinf(fmaf(-turns, -1.7484556e-7f, fmaf(-turns, 6.2831855f, angle)));
}

static __device__ __forceinline__ void wave(const float *paint, float share, float &x, float &y) {
    const float from_x = x, from_y = y;
#pragma unroll
    for (int at = 0; at < 10; at += 5) {
        if (paint[at] == 0.f && paint[at + 1] == 0.f) continue;
        const float sine = sine_of(paint[at + 2] * from_x + paint[at + 3] * from_y + paint[at + 4]) * share;
        x += paint[at] * sine;
        y += paint[at + 1] * sine;
    }
}

// Return whether the pixel's ray meets this card in front of the camera.
static __device__ __forceinline__ bool find_card(const float *m, float x, float y, Place &p) {
    p.w = m[6] * x + m[7] * y + m[8];
    if (!(p.w > NEAREST)) return false;
    const float inverse = 1.f / p.w;
    p.a = (m[0] * x + m[1] * y + m[2]) * inverse;
    p.b = (m[3] * x + m[4] * y + m[5]) * inverse;
    p.ax = (m[0] - p.a * m[6]) * inverse;
    p.ay = (m[1] - p.a * m[7]) * inverse;
    p.bx = (m[3] - p.b * m[6]) * inverse;
    p.by = (m[4] - p.b * m[7]) * inverse;
    p.c = p.cx = p.cy = p.inside = 0.f;
    return true;
}

static __device__ __forceinline__ float dot(const float *one, const float *two) {
    return one[0] * two[0] + one[1] * two[1] + one[2] * two[2];
}

// Return whether the pixel's ray comes within a few pixels of the ellipsoid's outline or meets it, in front of the camera.
static __device__ __forceinline__ bool find_ellipsoid(const float *m, const float *v, float x, float y, Place &p) {
    const float across[3] = {m[0], m[3], m[6]}, down[3] = {m[1], m[4], m[7]};
    float u[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) u[i] = across[i] * x + down[i] * y + m[3 * i + 2];
    const float uu = dot(u, u), uv = dot(u, v), outside = dot(v, v) - 1.f;
    if (!(outside > 0.f && uv > 0.f)) return false;
    const float found = uv * uv - uu * outside;
    const float right = 2.f * (uv * dot(across, v) - outside * dot(across, u));
    const float below = 2.f * (uv * dot(down, v) - outside * dot(down, u));
    p.inside = found / fmaxf(sqrtf(right * right + below * below), 1e-20f);
    const float depth = (uv - sqrtf(fmaxf(found, 0.f))) / uu;
    if (!(depth > 0.f)) return false;
    float s[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) s[i] = depth * u[i] - v[i];
    p.a = s[0], p.b = s[1], p.c = s[2], p.w = 1.f / depth;
    const float towards = fminf(dot(s, u), -GRAZING * sqrtf(uu));
    const float slope_x = dot(s, across) / towards, slope_y = dot(s, down) / towards;
    p.ax = depth * (across[0] - u[0] * slope_x), p.ay = depth * (down[0] - u[0] * slope_y);
    p.bx = depth * (across[1] - u[1] * slope_x), p.by = depth * (down[1] - u[1] * slope_y);
    p.cx = depth * (across[2] - u[2] * slope_x), p.cy = depth * (down[2] - u[2] * slope_y);
    return true;
}

static __device__ __forceinline__ bool find(const float *m, const float *v, float x, float y, int shape, Place &p) {
    return shape == ELLIPSOID ? find_ellipsoid(m, v, x, y, p) : find_card(m, x, y, p);
}

// Return whether a point of the unit sphere looks towards the camera along a pixel's ray.
static __device__ __forceinline__ bool faces(const float *m, float x, float y, const Place &p) {
    const float u[3] = {m[0] * x + m[1] * y + m[2], m[3] * x + m[4] * y + m[5], m[6] * x + m[7] * y + m[8]};
    const float s[3] = {p.a, p.b, p.c};
    return dot(s, u) < 0.f;
}

static __device__ float coverage(const LayeredParams &p, const Place &at, const float *paint, int shape) {
    if (shape == INFINITE) return 1.f;
    const float softness = paint[SOFTNESS];
    if (shape == ELLIPSOID) return held(at.inside / softness + 0.5f, 0.f, 1.f);
    const float along = sqrtf(at.ax * at.ax + at.ay * at.ay), across = sqrtf(at.bx * at.bx + at.by * at.by);
    if (shape == SQUARE || p.shape_count == 0) {
        const float inside = fminf((1.f - fabsf(at.a)) / along, (1.f - fabsf(at.b)) / across);
        return held(inside / softness + 0.5f, 0.f, 1.f);
    }
    if (!(fabsf(at.a) < 1.f && fabsf(at.b) < 1.f)) return 0.f;
    const int side = p.shape_side;
    const float half = 0.5f * side, u = (at.a + 1.f) * half - 0.5f, v = (at.b + 1.f) * half - 0.5f;
    const int column = (int)floorf(u), row = (int)floorf(v);
    const float right = u - column, down = v - row;
    const u8 *image = p.shapes + (i64)(shape % p.shape_count) * side * side;
    float found = 0.f;
#pragma unroll
    for (int corner = 0; corner < 4; ++corner) {
        const int c = column + (corner & 1), r = row + (corner >> 1);
        if (c < 0 || c >= side || r < 0 || r >= side) continue;
        found += ((corner & 1) ? right : 1.f - right) * ((corner >> 1) ? down : 1.f - down) * image[r * side + c];
    }
    const float sharper = fmaxf(1.f / (half * fmaxf(along, across) * softness), 1.f);
    return held((found * (1.f / 255.f) - 0.5f) * sharper + 0.5f, 0.f, 1.f);
}

static __device__ __forceinline__ int reflected(int at, int side) {
    at = at >= 2 * side ? at - 2 * side : at;
    return at < side ? at : 2 * side - 1 - at;
}

static __device__ void sample(const LayeredParams &p, int picture, float u, float v, int level, float weight, float *sum) {
    const int side = p.side >> level;
    const float scale = 1.f / (1 << level), period = 2.f * side;
    float x = u * scale - 0.5f, y = v * scale - 0.5f;
    x -= period * floorf(x / period);
    y -= period * floorf(y / period);
    const int column = (int)x, row = (int)y;
    const float right = x - column, down = y - row;
    const int columns[2] = {reflected(column, side), reflected(column + 1, side)};
    const int rows[2] = {reflected(row, side), reflected(row + 1, side)};
    // The levels before hold pictures * side^2 * (1 + 1/4 + ...) texels.
    const i64 whole = (i64)p.side * p.side, own = (i64)side * side;
    const i64 base = (i64)p.pictures * (4 * (whole - own) / 3) + (i64)picture * own;
#pragma unroll
    for (int corner = 0; corner < 4; ++corner) {
        const float part = weight * ((corner & 1) ? right : 1.f - right) * ((corner >> 1) ? down : 1.f - down);
        const unsigned texel = ((const unsigned *)p.texels)[base + (i64)rows[corner >> 1] * side + columns[corner & 1]];
        sum[0] += part * (texel & 255u);
        sum[1] += part * ((texel >> 8) & 255u);
        sum[2] += part * ((texel >> 16) & 255u);
    }
}

// Add the colours of a picture at texels (u, v), between two levels.
static __device__ void between_levels(const LayeredParams &p, int picture, float u, float v, float level, float *colour) {
    level = held(level, 0.f, (float)(p.levels - 1));
    const int floor = (int)level;
    const float part = level - floor;
    picture = (picture % p.pictures + p.pictures) % p.pictures;
    sample(p, picture, u, v, floor, 1.f - part, colour);
    if (part > 0.f) sample(p, picture, u, v, floor + 1, part, colour);
}

static __device__ void texture(const LayeredParams &p, const Place &at, const float *paint, int picture, float *colour) {
    const float *t = paint + TEXTURE, *d = paint + DEPTH_TEXTURE;
    const float u = t[0] * at.a + t[1] * at.b + d[0] * at.c + t[2], v = t[3] * at.a + t[4] * at.b + d[1] * at.c + t[5];
    const float ux = t[0] * at.ax + t[1] * at.bx + d[0] * at.cx, vx = t[3] * at.ax + t[4] * at.bx + d[1] * at.cx;
    const float uy = t[0] * at.ay + t[1] * at.by + d[0] * at.cy, vy = t[3] * at.ay + t[4] * at.by + d[1] * at.cy;
    const float texels = fmaxf(fmaxf(ux * ux + vx * vx, uy * uy + vy * vy), 1e-16f);
    colour[0] = colour[1] = colour[2] = 0.f;
    between_levels(p, picture, u, v, 0.5f * log2f(texels) + paint[BIAS], colour);
}
