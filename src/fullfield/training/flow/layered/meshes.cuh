// Meshes of layered scenes, as in raster.py: a key for each sample and triangle, the least of which is visible, and what is
// computed of a triangle once it is known.

constexpr float NEAREST_SURFACE = 1e-2f, DEPTH_TOLERANCE = 1e-3f, EDGE_TOLERANCE = 2e-2f;
constexpr int INDEX_BITS = 26, LAYER_SHIFT = INDEX_BITS + 31, MESH_COLOURS = 13, NO_LAYER = 63;
constexpr u64 EMPTY = 0x7fffffffffffffffull;

struct Hit {
    float weights[3], right[3], down[3], depth;  // of the corners, and their derivatives by the pixel
    bool front, covers;                          // the plane is in front of the camera; and the ray meets the triangle
};

static __device__ __forceinline__ int unpack_layer(u64 key) { return (int)(key >> LAYER_SHIFT); }
static __device__ __forceinline__ int unpack_triangle(u64 key) { return (int)(key & ((1u << INDEX_BITS) - 1)); }

static __device__ __forceinline__ i64 key_at(const LayeredParams &p, int b, int frame, int moment, int x, int y) {
    return ((((i64)b * 2 + frame) * (1 + p.exposures) + moment) * p.height + y) * p.width + x;
}

// Read the corners of a triangle at a time between the frames: (x z, y z, z) each.
static __device__ __forceinline__ void read_corners(const LayeredParams &p, int triangle, float time, float *corners) {
#pragma unroll
    for (int corner = 0; corner < 3; ++corner) {
        const float *first = p.points + 6 * (i64)p.corners[3 * (i64)triangle + corner];
#pragma unroll
        for (int i = 0; i < 3; ++i) corners[3 * corner + i] = first[i] + time * (first[3 + i] - first[i]);
    }
}

// The products of an edge are rounded one by one, so that both triangles at an edge have it alike but for its sign.
static __device__ __forceinline__ float edge_of(float x, float y, float next_x, float next_y) {
    return __fsub_rn(__fmul_rn(x, next_y), __fmul_rn(next_x, y));
}

template <bool derivatives>
static __device__ __forceinline__ void intersect(const float *corners, float x, float y, Hit &hit) {
    float across[3], below[3], edges[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        across[i] = corners[3 * i] - corners[3 * i + 2] * x;
        below[i] = corners[3 * i + 1] - corners[3 * i + 2] * y;
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        const int after = (i + 1) % 3, last = (i + 2) % 3;
        edges[i] = edge_of(across[after], below[after], across[last], below[last]);
    }
    const float area = edges[0] + edges[1] + edges[2], inverse = 1.f / (area == 0.f ? 1.f : area);
    hit.depth = 0.f;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        hit.weights[i] = edges[i] * inverse;
        hit.depth += hit.weights[i] * corners[3 * i + 2];
    }
    hit.front = area != 0.f && hit.depth > NEAREST_SURFACE;
    hit.covers = hit.front && ((edges[0] >= 0.f && edges[1] >= 0.f && edges[2] >= 0.f) ||
                               (edges[0] <= 0.f && edges[1] <= 0.f && edges[2] <= 0.f));
    if (!derivatives) return;
    float right = 0.f, down = 0.f;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        const int after = (i + 1) % 3, last = (i + 2) % 3;
        hit.right[i] = corners[3 * last + 2] * below[after] - corners[3 * after + 2] * below[last];
        hit.down[i] = across[last] * corners[3 * after + 2] - across[after] * corners[3 * last + 2];
        right += hit.right[i];
        down += hit.down[i];
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        hit.right[i] = (hit.right[i] - hit.weights[i] * right) * inverse;
        hit.down[i] = (hit.down[i] - hit.weights[i] * down) * inverse;
    }
}

// Compute the colours that a sample of a frame shows of a triangle.
static __device__ void shade(const LayeredParams &p, int triangle, int frame, float time, float x, float y, float *colour) {
    float corners[9], texels[9];
    read_corners(p, triangle, time, corners);
    Hit hit;
    intersect<true>(corners, x, y, hit);
    float lit = 0.f;
#pragma unroll
    for (int corner = 0; corner < 3; ++corner) {
        const float *at = p.mesh_texels + 3 * (i64)p.corners[3 * (i64)triangle + corner];
#pragma unroll
        for (int i = 0; i < 3; ++i) texels[3 * corner + i] = at[i];
        lit += hit.weights[corner] * p.mesh_light[6 * (i64)triangle + 2 * corner + frame];
    }
    lit = fmaxf(lit, 0.f);
    // The texture lies in the plane of two coordinates that the triangle faces most.
    float first[3], second[3], facing[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) first[i] = texels[3 + i] - texels[i], second[i] = texels[6 + i] - texels[i];
#pragma unroll
    for (int i = 0; i < 3; ++i)
        facing[i] = fabsf(edge_of(first[(i + 1) % 3], first[(i + 2) % 3], second[(i + 1) % 3], second[(i + 2) % 3]));
    const int most = facing[0] >= facing[1] ? (facing[0] >= facing[2] ? 0 : 2) : (facing[1] >= facing[2] ? 1 : 2);
    float u = 0.f, v = 0.f, ux = 0.f, vx = 0.f, uy = 0.f, vy = 0.f;
#pragma unroll
    for (int corner = 0; corner < 3; ++corner) {
        const float *at = texels + 3 * corner;
        const float across = most == 0 ? at[1] : most == 1 ? at[2] : at[0];
        const float below = most == 0 ? at[2] : most == 1 ? at[0] : at[1];
        u += hit.weights[corner] * across, v += hit.weights[corner] * below;
        ux += hit.right[corner] * across, vx += hit.right[corner] * below;
        uy += hit.down[corner] * across, vy += hit.down[corner] * below;
    }
    const int row = p.owners[3 * (i64)triangle + 2];
    const float *colours = p.mesh_colours + MESH_COLOURS * (i64)row, *c = colours + 1 + 6 * frame;
    const float steps = fmaxf(fmaxf(ux * ux + vx * vx, uy * uy + vy * vy), 1e-16f);
    colour[0] = colour[1] = colour[2] = 0.f;
    between_levels(p, p.mesh_pictures[row], u, v, 0.5f * log2f(steps) + colours[0], colour);
#pragma unroll
    for (int i = 0; i < 3; ++i) colour[i] = held(lit * (colour[i] * (1.f / 255.f) * c[i] + c[3 + i]), 0.f, 1.f);
}

// Compute (x z, y z, z) in the second frame of what a pixel of the first shows of a triangle.
static __device__ void carry(const LayeredParams &p, int triangle, float x, float y, float *point) {
    float corners[9];
    read_corners(p, triangle, 0.f, corners);
    Hit hit;
    intersect<false>(corners, x, y, hit);
    read_corners(p, triangle, 1.f, corners);
#pragma unroll
    for (int i = 0; i < 3; ++i)
        point[i] = hit.weights[0] * corners[i] + hit.weights[1] * corners[3 + i] + hit.weights[2] * corners[6 + i];
}

// Return whether meshes hide a surface of this layer and depth at a point inside the second frame.
static __device__ bool meshes_hide(const LayeredParams &p, int b, float x, float y, int layer, float depth) {
    const int left = (int)floorf(x), top = (int)floorf(y);
    const int nearest = (x - left >= 0.5f) + 2 * (y - top >= 0.5f);
    bool met = false, beside = false;
    u64 before = EMPTY;
    for (int corner = 0; corner < 4; ++corner) {
        const int column = min(left + (corner & 1), p.width - 1), row = min(top + (corner >> 1), p.height - 1);
        const u64 key = p.keys[key_at(p, b, 1, 0, column, row)];
        if (unpack_layer(key) > layer) continue;
        if (unpack_triangle(key) == unpack_triangle(before) && before != EMPTY && corner != nearest) continue;
        before = key;
        float corners[9];
        read_corners(p, unpack_triangle(key), 1.f, corners);
        Hit hit;
        intersect<false>(corners, x, y, hit);
        const bool nearer = unpack_layer(key) < layer;
        if (hit.covers && (nearer || hit.depth < depth * (1.f - DEPTH_TOLERANCE))) return true;
        met |= hit.covers;
        if (corner == nearest) beside = nearer || (hit.front && hit.depth < depth * (1.f - EDGE_TOLERANCE));
    }
    return beside && !met;
}

// A warp draws one triangle at one moment: lanes take the pixels of its bounds by turns.
extern "C" __global__ void __launch_bounds__(256) draw_triangles(const __grid_constant__ LayeredParams p) {
    const int moments = 2 * (1 + p.exposures), lane = threadIdx.x & 31;
    const i64 warp = (i64)blockIdx.x * 8 + (threadIdx.x >> 5);
    const int triangle = (int)(warp / moments), at = (int)(warp - (i64)triangle * moments);
    if (triangle >= p.triangles) return;
    const int b = p.owners[3 * (i64)triangle], layer = p.owners[3 * (i64)triangle + 1];
    const int frame = at > p.exposures, moment = at - frame * (1 + p.exposures);
    if (moment > p.instants[b]) return;
    const float *exposed = p.exposed + 3 * (((i64)b * 2 + frame) * p.exposures + moment - 1);
    const float time = moment ? 1.f - exposed[0] : (float)frame;
    const float right = moment ? exposed[1] : 0.f, down = moment ? exposed[2] : 0.f;
    float corners[9];
    read_corners(p, triangle, time, corners);
    int in_front = 0;
    float low_x = 1e30f, low_y = 1e30f, high_x = -1e30f, high_y = -1e30f;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        const float z = corners[3 * i + 2];
        if (!(z > NEAREST_SURFACE)) continue;
        ++in_front;
        const float x = corners[3 * i] / z - right, y = corners[3 * i + 1] / z - down;
        low_x = fminf(low_x, x), high_x = fmaxf(high_x, x), low_y = fminf(low_y, y), high_y = fmaxf(high_y, y);
    }
    if (!in_front) return;
    const float width = (float)p.width, height = (float)p.height;
    const bool whole = in_front < 3;  // one that reaches behind the camera may be seen anywhere
    const int left = whole ? 0 : (int)held(-floorf(-low_x), 0.f, width);
    const int top = whole ? 0 : (int)held(-floorf(-low_y), 0.f, height);
    const int columns = (whole ? p.width : (int)held(floorf(high_x) + 1.f, 0.f, width)) - left;
    const int rows = (whole ? p.height : (int)held(floorf(high_y) + 1.f, 0.f, height)) - top;
    if (columns <= 0 || rows <= 0) return;
    u64 *keys = p.keys + key_at(p, b, frame, moment, left, top);
    const u64 own = (u64)layer << LAYER_SHIFT | (unsigned)triangle;
    const int count = columns * rows;
    for (int pixel = lane; pixel < count; pixel += 32) {
        const int row = pixel / columns, column = pixel - row * columns;
        Hit hit;
        intersect<false>(corners, left + column + right, top + row + down, hit);
        if (!hit.covers) continue;
        const u64 key = own | (u64)__float_as_uint(hit.depth) << INDEX_BITS;
        u64 *slot = keys + (i64)row * p.width + column;
        if (key < *slot) atomicMin(slot, key);
    }
}
