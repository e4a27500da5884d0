// One kernel an iteration: a block keeps the new flow of its tile in shared memory, and computes it again for the row
// below and the column right of the tile, which the forward differences need. Reads one set of planes, writes the other.
constexpr int ACROSS = 32;

INLINE void new_flow(const IterateParams &p, int item, int x, int y, word &u1, word &u2) {
    Rows r = rows_at(p, item, y);
    word u[2], divergence[2];
    for (int c = 0; c < 2; c++) {
        u[c] = r.flow[c * r.plane + x];
        divergence[c] = splat(0.f);
        if (!p.zero_dual) {
            const word *px = r.dual + 2 * c * r.plane, *py = px + r.plane;
            word across = px[x], down = py[x];
            word left = shifted_left(x > 0 ? px[x - 1] : across, across, x == 0, p.clamp);
            word up = y > 0 ? py[x - p.pitch / PIXELS] : p.clamp ? down : splat(0.f);
            divergence[c] = add(sub(across, left), sub(down, up));
        }
    }
    Data d = data_at(r, x, p.bound);
    word step = data_step(u[0], u[1], d);
    u1 = add(fma(step, d.n1, u[0]), divergence[0]);
    u2 = add(fma(step, d.n2, u[1]), divergence[1]);
}

extern "C" __global__ void __launch_bounds__(THREADS) iterate_fused(const __grid_constant__ IterateParams p) {
    extern __shared__ __align__(16) word flow[];  // [2][rows + 1][ACROSS + 1]
    const int plane = (p.rows + 1) * (ACROSS + 1);
    int strips_down = (p.height + p.rows - 1) / p.rows;
    int x0 = (blockIdx.x % p.columns) * ACROSS, row = blockIdx.x / p.columns;
    int item = row / strips_down, y0 = (row % strips_down) * p.rows;
    for (int i = threadIdx.x; i < plane; i += THREADS) {
        int x = x0 + i % (ACROSS + 1), y = y0 + i / (ACROSS + 1);
        if (x < words_across(p) && y < p.height) new_flow(p, item, x, y, flow[i], flow[plane + i]);
    }
    __syncthreads();
    int x = x0 + threadIdx.x % ACROSS;
    if (x >= words_across(p)) return;
    for (int j = threadIdx.x / ACROSS; j < p.rows && y0 + j < p.height; j += THREADS / ACROSS) {
        int y = y0 + j, at = j * (ACROSS + 1) + threadIdx.x % ACROSS;
        Rows r = rows_at(p, item, y);
        word gradient[4], s[2];
        for (int c = 0; c < 2; c++) {
            const word *u = flow + c * plane + at;
            gradient[2 * c] = difference_across(u[0], (x + 1) * PIXELS < p.width ? u[1] : u[0], x, p.width);
            gradient[2 * c + 1] = y < p.height - 1 ? sub(u[ACROSS + 1], u[0]) : splat(0.f);
            r.flow_out[c * r.plane + x] = u[0];
        }
        add_origin(r, x, y, p, gradient);
        shrinks(gradient[0], gradient[1], gradient[2], gradient[3], p.slope, s[0], s[1]);
        for (int i = 0; i < 4; i++) {
            word old = p.zero_dual ? splat(0.f) : r.dual[i * r.plane + x];
            r.dual_out[i * r.plane + x] = dual_step(old, splat(p.tau), gradient[i], s[i / 2]);
        }
    }
}
