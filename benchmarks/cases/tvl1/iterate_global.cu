// Two kernels an iteration, nothing but global memory: one word a thread, in place.

INLINE bool find(const IterateParams &p, int &item, int &x, int &y) {
    int chunks = (words_across(p) + THREADS - 1) / THREADS, row = blockIdx.x / chunks;
    x = (blockIdx.x % chunks) * THREADS + threadIdx.x;
    item = row / p.height;
    y = row % p.height;
    return x < words_across(p);
}

extern "C" __global__ void __launch_bounds__(THREADS) update_flow(const __grid_constant__ IterateParams p) {
    int item, x, y;
    if (!find(p, item, x, y)) return;
    Rows r = rows_at(p, item, y);
    word u[2], across[2], left[2], down[2], up[2];
    for (int c = 0; c < 2; c++) {
        const word *px = r.dual + 2 * c * r.plane, *py = px + r.plane;
        u[c] = r.flow[c * r.plane + x];
        across[c] = p.zero_dual ? splat(0.f) : px[x];
        left[c] = shifted_left(p.zero_dual || x == 0 ? splat(0.f) : px[x - 1], across[c], x == 0, p.clamp);
        down[c] = p.zero_dual ? splat(0.f) : py[x];
        up[c] = y == 0 ? (p.clamp ? down[c] : splat(0.f)) : p.zero_dual ? splat(0.f) : py[x - p.pitch / PIXELS];
    }
    Data d = data_at(r, x, p.bound);
    word step = data_step(u[0], u[1], d);
    for (int c = 0; c < 2; c++)
        r.flow_out[c * r.plane + x] = flow_step(u[c], step, c ? d.n2 : d.n1, across[c], left[c], down[c], up[c]);
}

extern "C" __global__ void __launch_bounds__(THREADS) update_dual(const __grid_constant__ IterateParams p) {
    int item, x, y;
    if (!find(p, item, x, y)) return;
    Rows r = rows_at(p, item, y);
    word gradient[4];
    int right = (x + 1) * PIXELS < p.width ? x + 1 : x, below = y < p.height - 1 ? p.pitch / PIXELS : 0;
    for (int c = 0; c < 2; c++) {
        const word *u = r.flow + c * r.plane;
        gradient[2 * c] = difference_across(u[x], u[right], x, p.width);
        gradient[2 * c + 1] = sub(u[below + x], u[x]);
    }
    add_origin(r, x, y, p, gradient);
    word s[2];
    shrinks(gradient[0], gradient[1], gradient[2], gradient[3], p.slope, s[0], s[1]);
    for (int i = 0; i < 4; i++) {
        word old = p.zero_dual ? splat(0.f) : r.dual[i * r.plane + x];
        r.dual_out[i * r.plane + x] = dual_step(old, splat(p.tau), gradient[i], s[i / 2]);
    }
}
