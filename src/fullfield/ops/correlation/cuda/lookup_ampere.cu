// The lookup on GPUs from sm_75 on, with the same plan and sampling as on Hopper, cp.async (sm_80) and mma.sync.

#define STAGING_OFFSET STAGE_BYTES
#define BUFFER_OFFSET (STAGING_OFFSET + GROUPS * 4 * STAGING_FLOATS * 4)
#define COORDS_OFFSET (BUFFER_OFFSET + GROUPS * 4 * OUT_BUFFER_BYTES)

extern "C" __global__ void __launch_bounds__(128 * GROUPS, MIN_BLOCKS) lookup(const __grid_constant__ Params p) {
    extern __shared__ u8 raw[];
    u32 base = (shared_address(raw) + 1023) & ~1023u;
    u8 *smem = raw + (base - shared_address(raw));
    float *coords = (float *)(smem + COORDS_OFFSET);
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = warp >> 2;
    float *staging = (float *)(smem + STAGING_OFFSET) + warp * STAGING_FLOATS;
    out_t *buffer = (out_t *)(smem + BUFFER_OFFSET + warp * OUT_BUFFER_BYTES);
    float scale = *p.scale;
    WarpPixel px;
    set_steps(px, p);
    Plan plan;  // every warp walks the same plan
    Item it = decode_item(p, blockIdx.x);
    load_coords(p, it, plan.x, plan.y);
    plan.start(it);
    enter_tile(px, p, it, warp, buffer);
    float own_x, own_y;
    {
        float x = plan.x[0], y = plan.y[0];
#pragma unroll
        for (int i = 1; i < LANE_PIXELS; i++) {
            x = warp >> 1 == i ? plan.x[i] : x;
            y = warp >> 1 == i ? plan.y[i] : y;
        }
        own_x = __shfl_sync(ALL, x, (warp & 1) * 16 + (lane & 15));
        own_y = __shfl_sync(ALL, y, (warp & 1) * 16 + (lane & 15));
    }
    if (lane < 16) {
        coords[warp * 32 + lane] = own_x;
        coords[warp * 32 + 16 + lane] = own_y;
    }
    __syncwarp();
    u32 a[PARTS][STEPS][4];
    if (KB == 1) load_parts(a, p, it, warp);
    int level = it.begin - 1;
    bool more = true;
    while (more) {
        Step step;
        more = plan.next(p, step);
        int until = more ? step.level : it.end;
        while (level < until) {
            if (level >= it.begin) leave_level(p, it, level, warp, px, buffer);
            if (++level < it.end) enter_level(px, p, own_x, own_y, scale, level);
        }
        if (!more) break;
        if (step.kind == CHUNK) {
            int width = step.width, columns = step.rows * width;
            int h = p.level_h[level], w = p.level_w[level];
            const u16 *f2 = p.f2 + p.level_offset[level] + (i64)it.batch * h * w * ROWLEN;
            float d[NCOL / 2];
            clear(d);
#pragma unroll
            for (int kb = 0; kb < KB; kb++) {
                __syncthreads();
                constexpr int pieces = CBLK / 8 * PARTS;  // 16-byte pieces of a column
                for (int i = threadIdx.x; i < columns * pieces; i += 128 * GROUPS) {
                    int column = i / pieces, piece = i % pieces, part = piece / (CBLK / 8), c = piece % (CBLK / 8);
                    int ry = column / width, x = step.x + column - ry * width, y = step.y + ry;
                    bool inside = (u32)x < (u32)w && (u32)y < (u32)h;
                    const u16 *from = inside ? f2 + ((i64)y * w + x) * ROWLEN + part * CPAD + kb * CBLK + c * 8 : f2;
                    u32 to = base + part * PART_BYTES + c / 8 * (NCOL * 128) + column * 128 + ((c ^ column) & 7) * 16;
                    copy_async<16>(to, from, inside);
                }
                commit_copies();
                await_copies<0>();
                __syncthreads();
                if (step.groups >> group & 1) {
                    if (KB > 1) load_parts(a, p, it, warp, kb);
#pragma unroll
                    for (int part = PARTS - 1; part >= 0; part--)  // small products first: the loss of a sum grows with its magnitude
#pragma unroll
                        for (int s = 0; s < STEPS; s++)
#pragma unroll
                            for (int j = 0; j < NCOL / 8; j++) {
                                int column = j * 8 + (lane & 7), c = s % 4 * 2 + (lane >> 3 & 1);
                                u32 at = base + s / 4 * (NCOL * 128) + column * 128 + ((c ^ column) & 7) * 16, b0, b1;
                                asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(b0), "=r"(b1) : "r"(at) : "memory");
                                float(&dj)[4] = *(float(*)[4])(d + 4 * j);
                                mma_16816(dj, a[part][s][0], a[part][s][1], a[part][s][2], a[part][s][3], b0, b1);
                                if (part) {
                                    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                                                 : "=r"(b0), "=r"(b1)
                                                 : "r"(at + PART_BYTES)
                                                 : "memory");
                                    mma_16816(dj, a[0][s][0], a[0][s][1], a[0][s][2], a[0][s][3], b0, b1);
                                }
                            }
                }
            }
            if (warp_needs(px, step)) {
                __syncwarp();
                put_products(d, staging);
                __syncwarp();
                sample_chunk(px, step, staging);
            }
        } else {
            __syncwarp();
            px.handled = px.handled || px.active && is_member(px, step);
            scattered_pixels(p, step.level, step.first, step.last, scale, it, warp, coords + warp * 32, staging, buffer);
            if (KB == 1) load_parts(a, p, it, warp);
        }
    }
}
