// Both frames of a pair, flow, validity and occlusion, as in reference.py. A thread renders one pixel.

constexpr int TILE = 16, MAX_INSTANTS = 64;

// Return whether a card may cover samples of a tile, whose corners are given with the reach of waves and soft edges.
static __device__ bool card_reaches(const float *m, float left, float top, float right, float bottom, bool bounded) {
    float low_a = 1e30f, high_a = -1e30f, low_b = 1e30f, high_b = -1e30f;
    int behind = 0;
#pragma unroll
    for (int corner = 0; corner < 4; ++corner) {
        const float x = (corner & 1) ? right : left, y = (corner >> 1) ? bottom : top;
        const float w = m[6] * x + m[7] * y + m[8];
        if (!(w > NEAREST)) {
            ++behind;
            continue;
        }
        const float a = (m[0] * x + m[1] * y + m[2]) / w, b = (m[3] * x + m[4] * y + m[5]) / w;
        low_a = fminf(low_a, a), high_a = fmaxf(high_a, a), low_b = fminf(low_b, b), high_b = fmaxf(high_b, b);
    }
    if (behind == 4) return false;
    return behind || !bounded || (low_a < 1.f && high_a > -1.f && low_b < 1.f && high_b > -1.f);
}

// Return whether an ellipsoid may cover samples within `reach` of a point. Inside its outline a quadratic function of the
// pixel is positive; if that is concave, value over slope is at most the distance from the outline.
static __device__ bool ellipsoid_reaches(const float *m, const float *v, float x, float y, float reach) {
    const float across[3] = {m[0], m[3], m[6]}, down[3] = {m[1], m[4], m[7]};
    float u[3];
#pragma unroll
    for (int i = 0; i < 3; ++i) u[i] = across[i] * x + down[i] * y + m[3 * i + 2];
    const float outside = dot(v, v) - 1.f, av = dot(across, v), dv = dot(down, v), uv = dot(u, v);
    const float xx = av * av - outside * dot(across, across), yy = dv * dv - outside * dot(down, down);
    const float xy = av * dv - outside * dot(across, down);
    if (!(xx < 0.f && xx * yy - xy * xy > 1e-4f * xx * yy)) return true;
    const float value = uv * uv - dot(u, u) * outside;
    const float right = 2.f * (uv * av - outside * dot(across, u)), below = 2.f * (uv * dv - outside * dot(down, u));
    return value > -reach * sqrtf(right * right + below * below);
}

// Return whether a layer may be visible in a tile at an instant of an exposure; meshes are not asked.
static __device__ bool layer_reaches(const LayeredParams &p, int b, int frame, int exposure, int layer, int x, int y) {
    const i64 card = (i64)b * p.layers + layer;
    const int shape = p.ids[2 * card + 1];
    if (shape == MESH) return false;
    const i64 image = (i64)b * 2 + frame, at = (image * (1 + p.exposures) + 1 + exposure) * p.layers + layer;
    const float *e = p.exposed + 3 * (image * p.exposures + exposure), *paint = p.paint + PAINT * card;
    const float soft = fmaxf(paint[SOFTNESS], 1.f) + 1.f, share = fabsf(e[0]);
    const float reach_x = soft + share * (fabsf(paint[0]) + fabsf(paint[5]));
    const float reach_y = soft + share * (fabsf(paint[1]) + fabsf(paint[6]));
    const float left = x + e[1] - reach_x, top = y + e[2] - reach_y;
    const float right = x + e[1] + TILE - 1 + reach_x, bottom = y + e[2] + TILE - 1 + reach_y;
    if (shape == ELLIPSOID) {
        const float half_x = 0.5f * (right - left), half_y = 0.5f * (bottom - top);
        const float reach = sqrtf(half_x * half_x + half_y * half_y);
        return ellipsoid_reaches(p.to_card + 9 * at, p.centres + 3 * at, left + half_x, top + half_y, reach);
    }
    return card_reaches(p.to_card + 9 * at, left, top, right, bottom, shape != INFINITE);
}

// Add what a sample shows; `layers` has a bit for every layer that may be visible in its tile.
static __device__ void seen_at(
    const LayeredParams &p, int b, int frame, int exposure, u64 layers, int column, int row, float *sum
) {
    const i64 cards = (i64)b * p.layers;
    const float *e = p.exposed + 3 * (((i64)b * 2 + frame) * p.exposures + exposure);
    const i64 instant = (((i64)b * 2 + frame) * (1 + p.exposures) + 1 + exposure) * p.layers;
    const float *matrices = p.to_card + 9 * instant, *centres = p.centres + 3 * instant;
    const float x = column + e[1], y = row + e[2];
    const u64 key = p.keys ? p.keys[key_at(p, b, frame, 1 + exposure, column, row)] : EMPTY;
    const int mesh_layer = unpack_layer(key);
    float clear = 1.f;
    for (; layers && clear > CLEAR; layers &= layers - 1) {
        const int layer = __ffsll((i64)layers) - 1;
        if (layer > mesh_layer) break;
        const float *paint = p.paint + PAINT * (cards + layer);
        float at_x = x, at_y = y;
        wave(paint, e[0], at_x, at_y);
        Place at;
        const int shape = p.ids[2 * (cards + layer) + 1];
        if (!find(matrices + 9 * layer, centres + 3 * layer, at_x, at_y, shape, at)) continue;
        const float alpha = coverage(p, at, paint, shape);
        if (!(alpha > 0.f)) continue;
        float colour[3];
        texture(p, at, paint, p.ids[2 * (cards + layer)], colour);
        const float seen = clear * alpha;
        const float *c = paint + COLOURS + 6 * frame, *light = paint + LIGHT + 3 * frame;
        const float lit = fmaxf(1.f + light[0] * at.a + light[1] * at.b + light[2] * at.c, 0.f);
#pragma unroll
        for (int i = 0; i < 3; ++i) sum[i] += seen * held(lit * (colour[i] * (1.f / 255.f) * c[i] + c[3 + i]), 0.f, 1.f);
        clear *= 1.f - alpha;
    }
    if (!(clear > CLEAR)) return;
    float colour[3] = {p.background[3 * b], p.background[3 * b + 1], p.background[3 * b + 2]};
    if (mesh_layer < NO_LAYER) shade(p, unpack_triangle(key), frame, 1.f - e[0], x, y, colour);
#pragma unroll
    for (int i = 0; i < 3; ++i) sum[i] += clear * colour[i];
}

// Return the first layer before `limit` that covers a pixel of a frame, or `limit` if there is none. `mesh_layer` is that
// of the meshes which the pixel shows.
static __device__ int owner_at(
    const LayeredParams &p, int b, int frame, float x, float y, int limit, int mesh_layer, Place &found
) {
    const i64 cards = (i64)b * p.layers;
    const i64 instant = ((i64)b * 2 + frame) * (1 + p.exposures) * p.layers;
    for (int layer = 0; layer < limit; ++layer) {
        if (layer == mesh_layer) return layer;
        const float *paint = p.paint + PAINT * (cards + layer);
        float at_x = x, at_y = y;
        if (frame == 0) wave(paint, 1.f, at_x, at_y);
        const int shape = p.ids[2 * (cards + layer) + 1];
        const float *matrix = p.to_card + 9 * (instant + layer), *centre = p.centres + 3 * (instant + layer);
        if (find(matrix, centre, at_x, at_y, shape, found) && coverage(p, found, paint, shape) >= 0.5f) return layer;
    }
    return limit;
}

static __device__ __forceinline__ unsigned hashed(unsigned word) {
    word = (word ^ (word >> 16)) * 0x85ebca6bu;
    word = (word ^ (word >> 13)) * 0xc2b2ae35u;
    return word ^ (word >> 16);
}

// A block renders a tile of a frame. First its threads find the layers that may be visible there at each instant.
extern "C" __global__ void __launch_bounds__(256, 2) render_frames(const __grid_constant__ LayeredParams p) {
    __shared__ u32 reaching[MAX_INSTANTS][2];
    const int columns = (p.width + TILE - 1) / TILE, rows = (p.height + TILE - 1) / TILE;
    const int image = blockIdx.x / (columns * rows), frame = image >= p.batch, b = image - frame * p.batch;
    const int tile = blockIdx.x - image * columns * rows, tile_y = tile / columns;
    const int top = TILE * tile_y, left = TILE * (tile - columns * tile_y), count = p.counts[b];
    for (int at = threadIdx.x; at < 2 * MAX_INSTANTS; at += 256) reaching[at >> 1][at & 1] = 0;
    __syncthreads();
    for (int at = threadIdx.x; at < p.instants[b] * count; at += 256) {
        const int exposure = at / count, layer = at - exposure * count;
        if (layer_reaches(p, b, frame, exposure, layer, left, top))
            atomicOr(&reaching[exposure][layer >> 5], 1u << (layer & 31));
    }
    __syncthreads();
    const int x = left + (threadIdx.x & (TILE - 1)), y = top + threadIdx.x / TILE;
    if (x >= p.width || y >= p.height) return;
    const i64 plane = (i64)p.height * p.width, pixel = (i64)y * p.width + x;
    float sum[3] = {0.f, 0.f, 0.f};
    const int instants = p.instants[b];
    for (int exposure = 0; exposure < instants; ++exposure) {
        const u64 layers = reaching[exposure][0] | (u64)reaching[exposure][1] << 32;
        seen_at(p, b, frame, exposure, layers, x, y, sum);
    }
    float *out = (frame ? p.frame2 : p.frame1) + 3 * b * plane + pixel;
    const float exponent = p.sensor[2 * b], strength = p.sensor[2 * b + 1];
    const unsigned seed = hashed((unsigned)p.noise[b]);
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        const unsigned word = hashed((unsigned)((3 * frame + i) * plane + pixel) ^ seed);
        const int total = (word & 255) + (word >> 8 & 255) + (word >> 16 & 255) + (word >> 24);
        const float value = powf(held(sum[i] / instants, 1e-4f, 1.f), exponent);
        out[i * plane] = held(value + strength * ((total - 510) * (1.f / 147.8005f)), 0.f, 1.f);
    }
}

extern "C" __global__ void __launch_bounds__(256, 2) render_truth(const __grid_constant__ LayeredParams p) {
    const i64 plane = (i64)p.height * p.width, at = (i64)blockIdx.x * 256 + threadIdx.x;
    if (at >= p.batch * plane) return;
    const int b = (int)(at / plane);
    const i64 pixel = at - b * plane;
    const int y = (int)(pixel / p.width), x = (int)(pixel - (i64)y * p.width), count = p.counts[b];
    const u64 key = p.keys ? p.keys[key_at(p, b, 0, 0, x, y)] : EMPTY;
    Place place;
    const int owner = owner_at(p, b, 0, (float)x, (float)y, count, unpack_layer(key), place);
    float to_x = 0.f, to_y = 0.f;
    bool valid = false, occluded = true;
    if (owner < count) {
        const float *m = p.to_frame + 12 * ((i64)b * p.layers + owner);
        const int shape = p.ids[2 * ((i64)b * p.layers + owner) + 1];
        const bool round = shape == ELLIPSOID;
        float depth, there[3];
        if (shape == MESH) {
            carry(p, unpack_triangle(key), (float)x, (float)y, there);
        } else {
            const float third = round ? place.c : 1.f, fourth = round ? 1.f : 0.f;
#pragma unroll
            for (int i = 0; i < 3; ++i)
                there[i] = m[4 * i] * place.a + m[4 * i + 1] * place.b + m[4 * i + 2] * third + m[4 * i + 3] * fourth;
        }
        depth = there[2];
        valid = depth > NEAREST;
        if (valid) {
            to_x = there[0] / depth;
            to_y = there[1] / depth;
            const bool inside = to_x >= 0.f && to_x <= p.width - 1 && to_y >= 0.f && to_y <= p.height - 1;
            const float *second = p.to_card + 9 * (((i64)b * 2 + 1) * (1 + p.exposures) * p.layers + owner);
            const bool turned = round && !faces(second, to_x, to_y, place);
            occluded = !inside || turned || owner_at(p, b, 1, to_x, to_y, owner, NO_LAYER, place) < owner ||
                       (p.keys && meshes_hide(p, b, to_x, to_y, owner, depth));
        }
    }
    p.flow[2 * b * plane + pixel] = valid ? to_x - x : 0.f;
    p.flow[(2 * b + 1) * plane + pixel] = valid ? to_y - y : 0.f;
    p.valid[at] = valid;
    p.occluded[at] = occluded;
}
