// Several iterations in one pass, line after line: iteration k works on line y - k + 1 while line y is read, and every
// iteration keeps its last two lines, in shared memory (SHARED) or in global memory that is the block's own. A block
// takes a strip; one pixel of halo an iteration is computed again on every side. Reads one set, writes the other.
constexpr int HALO = (DEPTH + PIXELS - 1) / PIXELS;  // words
constexpr int PLANES = 6;                            // of a line: flow, dual

INLINE word *line(word *lines, int k, int y) { return lines + (2 * k + (y & 1)) * PLANES * THREADS + threadIdx.x; }

extern "C" __global__ void __launch_bounds__(THREADS) iterate_lines(const __grid_constant__ IterateParams p) {
#if SHARED
    extern __shared__ __align__(16) word lines[];
#else
    word *lines = p.scratch + (long long)blockIdx.x * (DEPTH + 1) * 2 * PLANES * THREADS;
#endif
    const int own = threadIdx.x, left = own > 0 ? -1 : 0, right = own < THREADS - 1 ? 1 : 0;
    const int strips_down = (p.height + p.rows - 1) / p.rows;
    for (int strip = blockIdx.x; strip < p.strips; strip += gridDim.x) {
        int first_x = (strip % p.columns) * (THREADS - 2 * HALO), x = first_x - HALO + own;
        int row = strip / p.columns, item = row / strips_down, y0 = (row % strips_down) * p.rows;
        int y1 = min(p.height, y0 + p.rows), begin = max(0, y0 - DEPTH), end = min(p.height, y1 + DEPTH);
        bool inside = x >= 0 && x < words_across(p), written = inside && own >= HALO && own < THREADS - HALO;
        for (int t = begin; t < end + DEPTH; t++) {
            if (t < end && inside) {
                Rows r = rows_at(p, item, t);
                word *l = line(lines, 0, t);
                for (int i = 0; i < 2; i++) l[i * THREADS] = r.flow[i * r.plane + x];
                for (int i = 0; i < 4; i++) l[(2 + i) * THREADS] = p.zero_dual ? splat(0.f) : r.dual[i * r.plane + x];
            }
            __syncthreads();
            for (int k = 1; k <= DEPTH; k++) {
                int y = t - k + 1;
                if (y < begin || y > end) continue;
                const word *before = line(lines, k - 1, y), *above = line(lines, k - 1, y - 1);
                word *now = line(lines, k, y), *last = line(lines, k, y - 1);
                if (inside && y < end) {
                    Data d = data_at(rows_at(p, item, y), x, p.bound);
                    word step = data_step(before[0], before[THREADS], d);
                    for (int c = 0; c < 2; c++) {
                        const word *px = before + (2 + 2 * c) * THREADS, *py = px + THREADS;
                        word beside = shifted_left(px[left], px[0], x == 0, p.clamp);
                        word up = y > begin ? above[(3 + 2 * c) * THREADS] : p.clamp ? py[0] : splat(0.f);
                        now[c * THREADS] = flow_step(before[c * THREADS], step, c ? d.n2 : d.n1, px[0], beside, py[0], up);
                    }
                }
                __syncthreads();
                if (inside && y > begin) {
                    Rows r = rows_at(p, item, y - 1);
                    word gradient[4], s[2];
                    for (int c = 0; c < 2; c++) {
                        const word *u = last + c * THREADS;
                        gradient[2 * c] = difference_across(u[0], u[right], x, p.width);
                        gradient[2 * c + 1] = y < end ? sub(now[c * THREADS], u[0]) : splat(0.f);
                    }
                    add_origin(r, x, y - 1, p, gradient);
                    shrinks(gradient[0], gradient[1], gradient[2], gradient[3], p.slope, s[0], s[1]);
                    bool out = k == DEPTH && written && y - 1 >= y0 && y - 1 < y1;
                    for (int i = 0; i < 4; i++) {
                        word next = dual_step(above[(2 + i) * THREADS], splat(p.tau), gradient[i], s[i / 2]);
                        last[(2 + i) * THREADS] = next;
                        if (out) r.dual_out[i * r.plane + x] = next;
                    }
                    for (int c = 0; c < 2 && out; c++) r.flow_out[c * r.plane + x] = last[c * THREADS];
                }
                __syncthreads();
            }
        }
        __syncthreads();
    }
}
