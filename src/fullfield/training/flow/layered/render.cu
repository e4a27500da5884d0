// Both frames of a pair, flow, validity and occlusion, as in reference.py. A thread renders one pixel.

static __device__ void seen_at(
    const LayeredParams &p, int b, int frame, int exposure, int column, int row, float *sum
) {
    const i64 cards = (i64)b * p.layers;
    const float *e = p.exposed + 3 * (((i64)b * 2 + frame) * p.exposures + exposure);
    const i64 instant = (((i64)b * 2 + frame) * (1 + p.exposures) + 1 + exposure) * p.layers;
    const float *matrices = p.to_card + 9 * instant, *centres = p.centres + 3 * instant;
    const float x = column + e[1], y = row + e[2];
    const int count = p.counts[b];
    const u64 key = p.keys ? p.keys[key_at(p, b, frame, 1 + exposure, column, row)] : EMPTY;
    const int mesh_layer = layer_of(key);
    float clear = 1.f;
    for (int layer = 0; layer < count && clear > CLEAR; ++layer) {
        const float *paint = p.paint + PAINT * (cards + layer);
        if (layer == mesh_layer) {
            float colour[3];
            shade(p, triangle_of(key), frame, 1.f - e[0], x, y, colour);
#pragma unroll
            for (int i = 0; i < 3; ++i) sum[i] += clear * colour[i];
            return;
        }
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
    if (clear > CLEAR) {
#pragma unroll
        for (int i = 0; i < 3; ++i) sum[i] += clear * p.background[3 * b + i];
    }
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

extern "C" __global__ void __launch_bounds__(256, 2) render_frames(const __grid_constant__ LayeredParams p) {
    const i64 plane = (i64)p.height * p.width, at = (i64)blockIdx.x * 256 + threadIdx.x;
    if (at >= 2 * p.batch * plane) return;
    const int image = (int)(at / plane), frame = image >= p.batch, b = image - frame * p.batch;
    const i64 pixel = at - image * plane;
    const int y = (int)(pixel / p.width), x = (int)(pixel - (i64)y * p.width);
    float sum[3] = {0.f, 0.f, 0.f};
    const int instants = p.instants[b];
    for (int exposure = 0; exposure < instants; ++exposure) seen_at(p, b, frame, exposure, x, y, sum);
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
    const int owner = owner_at(p, b, 0, (float)x, (float)y, count, layer_of(key), place);
    float to_x = 0.f, to_y = 0.f;
    bool valid = false, occluded = true;
    if (owner < count) {
        const float *m = p.to_frame + 12 * ((i64)b * p.layers + owner);
        const int shape = p.ids[2 * ((i64)b * p.layers + owner) + 1];
        const bool round = shape == ELLIPSOID;
        float depth, there[3];
        if (shape == MESH) {
            carry(p, triangle_of(key), (float)x, (float)y, there);
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
