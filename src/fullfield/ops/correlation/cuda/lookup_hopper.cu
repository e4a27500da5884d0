// The lookup on Hopper: a producer warp walks the plan and copies chunks of the second map with the bulk tensor copy, two
// warpgroups multiply them with wgmma (their pixels stay in registers) and sample. #include'd after common, sample and the
// generated wgmma wrappers.

#define PART_BYTES (NCOL * CBLK * 2)
#define STAGE_BYTES (PART_BYTES * PARTS)
#define STEPS (CBLK / 16)

struct Maps { TensorMap map[MAPS]; };

static __device__ __forceinline__ void barrier_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(count)); }
static __device__ __forceinline__ void barrier_arrive(u32 bar) { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory"); }
// With ARRIVE_ALL (for compute-sanitizer's racecheck, which does not see that __syncwarp orders the other lanes before lane 0)
// every lane arrives.
#ifdef ARRIVE_ALL
#define ARRIVALS 32
static __device__ __forceinline__ void warp_arrive(u32 bar) { barrier_arrive(bar); }
#else
#define ARRIVALS 1
static __device__ __forceinline__ void warp_arrive(u32 bar) {
    if (lane_id() == 0) barrier_arrive(bar);
}
#endif
static __device__ __forceinline__ void barrier_expect(u32 bar, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void barrier_wait(u32 bar, u32 parity) {
#ifdef WATCHDOG
    for (u32 tries = 0;; tries++) {
        u32 done;
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(done) : "r"(bar), "r"(parity) : "memory");
        if (done) return;
        if (tries > (1u << 24)) asm volatile("trap;");
    }
#else
    asm volatile("{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(bar), "r"(parity) : "memory");
#endif
}
static __device__ __forceinline__ void copy_box(u32 to, const TensorMap *map, u32 bar, int c, int x, int y, int b) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(c), "r"(x), "r"(y), "r"(b)
                 : "memory");
}

// CHUNK, SCATTERED: what a Step says. ITEM: the tile and levels that follow.
struct __align__(16) Message {
    u32 packed;                    // kind | level << 2 | groups << 6 | width << 16 | rows << 24
    int x, y, first, last, pad[3];
};

#define TILE_PIXELS (64 * GROUPS)
#define STAGING_OFFSET (STAGES * STAGE_BYTES)
#define BUFFER_OFFSET (STAGING_OFFSET + GROUPS * 4 * STAGING_FLOATS * 4)
#define COORDS_OFFSET (BUFFER_OFFSET + GROUPS * 4 * OUT_BUFFER_BYTES)
#define MESSAGE_OFFSET (COORDS_OFFSET + 2 * TILE_PIXELS * 4)
#ifndef PLANNERS
#define PLANNERS 1
#endif
#define BARRIER_OFFSET (MESSAGE_OFFSET + STAGES * 32)
#define TURN_OFFSET (BARRIER_OFFSET + STAGES * 16)  // a barrier for each planner, then the state they hand over
#define THREADS (128 * (GROUPS + 1))

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) lookup(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
    extern __shared__ u8 raw[];
    u32 base = (smem_address(raw) + 1023) & ~1023u;
    u8 *smem = raw + (base - smem_address(raw));
    Message *messages = (Message *)(smem + MESSAGE_OFFSET);
    u32 full = base + BARRIER_OFFSET, empty = full + STAGES * 8;
    u32 turns = base + TURN_OFFSET;
    volatile int *handed = (volatile int *)(smem + TURN_OFFSET + PLANNERS * 8);  // stage, phase, planners without further items
    int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + i * 8, ARRIVALS);
            barrier_init(empty + i * 8, 4 * GROUPS * ARRIVALS);
        }
        for (int i = 0; i < PLANNERS; i++) barrier_init(turns + i * 8, 1);
        handed[0] = handed[1] = handed[2] = 0;
        barrier_arrive(turns);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();

    int stage = 0;
    u32 phase = 0;
    if (warp >= 4 * GROUPS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        warp = __shfl_sync(0xffffffffu, warp - 4 * GROUPS, 0);
        if (warp < PLANNERS) {  // the planners take turns by item: one sets its next item up while the other fills the stages
            int item = blockIdx.x + warp * gridDim.x, following = 0;
            u32 turn = 0;
            bool counted = false;
            while (true) {
                bool any = item < p.items, more = false;
                Item it;
                Plan plan;
                Step step;
                if (any) {
                    if (lane == 0) following = PLANNERS * gridDim.x + atomicAdd(p.queue, 1);
                    it = decode_item(p, item);
                    plan.load(p, it);
                    plan.start(it);
                    more = plan.next(p, step);
                    if ((more || !it.deal) && lane < 4 * GROUPS)
                        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p.f1 + pixel_block(p, it, lane)), "r"(32 * ROWLEN));
                }
                barrier_wait(turns + warp * 8, turn);
                turn ^= 1;
                stage = handed[0];
                phase = handed[1];
                int done = handed[2];
                __syncwarp();
                if (done == PLANNERS) break;
                if (!any && !counted) {
                    done++;
                    counted = true;
                }
                if (done == PLANNERS || any && (more || !it.deal)) {
                    barrier_wait(empty + stage * 8, phase ^ 1);
                    if (any) {             // the coordinates travel in the stage itself
                        float *coords = (float *)(smem + stage * STAGE_BYTES);
#pragma unroll
                        for (int i = 0; i < LANE_PIXELS; i++) {
                            coords[i * 32 + lane] = plan.x[i];
                            coords[TILE_PIXELS + i * 32 + lane] = plan.y[i];
                        }
                        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
                        __syncwarp();
                    }
                    if (lane == 0) {
                        Message m = {any ? (u32)(ITEM | it.begin << 2 | it.end << 6) : (u32)EXIT, it.tile_x, it.tile_y, it.batch};
                        messages[stage] = m;
                    }
                    __syncwarp();
                    warp_arrive(full + stage * 8);
                    __syncwarp();
                    if (++stage == STAGES) stage = 0, phase ^= 1;
                }
                while (more) {
                    int blocks = step.kind == CHUNK ? KB : 1;
                    for (int kb = 0; kb < blocks; kb++) {
                        barrier_wait(empty + stage * 8, phase ^ 1);
                        if (lane == 0) {
                            Message m = {(u32)(step.kind | step.level << 2 | step.groups << 6 | step.width << 16 | step.rows << 24), step.x, step.y, step.first,
                                         step.last};
                            messages[stage] = m;
                            if (step.kind == CHUNK) {
                                u32 to = base + stage * STAGE_BYTES, bar = full + stage * 8;
                                const TensorMap *map = &maps.map[step.level * WCOUNT + step.width_index];
                                barrier_expect(bar, step.rows * step.width * CBLK * 2 * PARTS);
#pragma unroll
                                for (int part = 0; part < PARTS; part++)
#pragma unroll
                                    for (int panel = 0; panel < CBLK / 64; panel++)
                                        copy_box(to + part * PART_BYTES + panel * NCOL * 128, map, bar, part * CPAD + kb * CBLK + panel * 64, step.x, step.y,
                                                 it.batch);
                            } else
                                barrier_arrive(full + stage * 8);
                        }
#ifdef ARRIVE_ALL
                        if (lane) barrier_arrive(full + stage * 8);
#endif
                        __syncwarp();
                        if (++stage == STAGES) stage = 0, phase ^= 1;
                    }
                    more = plan.next(p, step);
                }
                if (lane == 0) {
                    handed[0] = stage;
                    handed[1] = phase;
                    handed[2] = done;
                    barrier_arrive(turns + (warp + 1) % PLANNERS * 8);
                    if (done == PLANNERS) {  // the last block leaves the queue as it found it
                        __threadfence();
                        if (atomicAdd(p.queue + 1, 1) == gridDim.x - 1) {
                            p.queue[0] = 0;
                            p.queue[1] = 0;
                        }
                    }
                }
                if (done == PLANNERS) break;
                if (any) item = __shfl_sync(0xffffffffu, following, 0);
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        warp = __shfl_sync(0xffffffffu, warp, 0);
        int group = warp >> 2;
        float *coords = (float *)(smem + COORDS_OFFSET) + warp * 32;
        float *staging = (float *)(smem + STAGING_OFFSET) + warp * STAGING_FLOATS;
        out_t *buffer = (out_t *)(smem + BUFFER_OFFSET + warp * OUT_BUFFER_BYTES);
        float scale = *p.scale;
        i64 plane = (i64)p.height * p.width;
        WarpPixel px;
        px.active = false;
        px.step_y = (CLAST ? 1 : (u32)plane) * sizeof(out_t);  // a plane has less than 2^26 pixels
        px.step_x = KW * px.step_y;
        asm volatile("" : "+r"(px.step_x), "+r"(px.step_y));  // kept, not recomputed
        u32 a[PARTS][STEPS][4];
        const u16 *own = nullptr;  // the lane's place in the features of the warp's pixels
        Item it = {0, 0, 0, 0, 0, 0};
        int level = 0;
        Step staged;               // the chunk whose products wait in shared memory
        staged.rows = 0;
        while (true) {
            barrier_wait(full + stage * 8, phase);
            Step step;
            {
                uint4 m = *(const uint4 *)&messages[stage];
                step.kind = m.x & 3;
                step.level = m.x >> 2 & 15;
                step.groups = m.x >> 6 & 255;
                step.width = m.x >> 16 & 255;
                step.rows = m.x >> 24;
                step.x = m.y;
                step.y = m.z;
                step.first = m.w;
                step.last = messages[stage].last;
            }
            if (step.kind == CHUNK) {
                if (step.groups >> group & 1) {
                    float d[NCOL / 2];
#pragma unroll
                    for (int kb = 0; kb < KB; kb++) {
                        if (kb) barrier_wait(full + stage * 8, phase);
                        if (KB > 1) {
#pragma unroll
                            for (int part = 0; part < PARTS; part++) load_pixels(a[part], own + (part * CPAD + kb * CBLK) * 16);
                        }
                        u32 at = __shfl_sync(0xffffffffu, (base + stage * STAGE_BYTES) >> 4 | 1 << 16, 0);
                        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
                        for (int s = 0; s < STEPS; s++) {
                            u32 b = at + (s / 4 * NCOL * 128 + s % 4 * 32) / 16;
                            wgmma_rs(d, a[0][s][0], a[0][s][1], a[0][s][2], a[0][s][3], b, kb > 0 || s > 0);
#if SPLIT
                            wgmma_rs(d, a[1][s][0], a[1][s][1], a[1][s][2], a[1][s][3], b, 1);
                            wgmma_rs(d, a[0][s][0], a[0][s][1], a[0][s][2], a[0][s][3], b + PART_BYTES / 16, 1);
#endif
                        }
                        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                        if (kb == KB - 1) sample_chunk(px, staged, staging);
                        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
                        for (int i = 0; i < NCOL / 2; i++) asm volatile("" : "+f"(d[i])::"memory");
                        warp_arrive(empty + stage * 8);
                        if (++stage == STAGES) stage = 0, phase ^= 1;
                    }
                    while (level < step.level) {
#if CLAST
                        if (level >= it.begin) leave_level(p, it, level, warp, px, buffer);
#endif
                        level++;
                        enter_level(px, p, it, warp, scale, level, plane, buffer);
                    }
                    staged.rows = 0;
                    if (warp_needs(px, step)) {
                        staged = step;
                        __syncwarp();  // other lanes may still sample what is overwritten now
                        put_products(d, staging);
                        __syncwarp();
                    }
                } else {
#pragma unroll 1
                    for (int kb = 0; kb < KB; kb++) {
                        if (kb) barrier_wait(full + stage * 8, phase);
                        __syncwarp();
                        warp_arrive(empty + stage * 8);
                        if (++stage == STAGES) stage = 0, phase ^= 1;
                    }
                }
                continue;
            }
            float x = ((float *)(smem + stage * STAGE_BYTES))[warp * 16 + (lane & 15)], y = ((float *)(smem + stage * STAGE_BYTES))[TILE_PIXELS + warp * 16 + (lane & 15)];
            asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the copy engine writes this stage next
            __syncwarp();
            warp_arrive(empty + stage * 8);
            if (++stage == STAGES) stage = 0, phase ^= 1;
            sample_chunk(px, staged, staging);
            staged.rows = 0;
            __syncwarp();
            int until = step.kind == SCATTERED ? step.level : it.end;
            while (level < until) {
#if CLAST
                if (level >= it.begin) leave_level(p, it, level, warp, px, buffer);
#endif
                if (++level < it.end) enter_level(px, p, it, warp, scale, level, plane, buffer);
            }
            if (step.kind == EXIT) break;
            if (step.kind == ITEM) {
                it.begin = step.level;
                it.end = step.groups;
                it.tile_x = step.x;
                it.tile_y = step.y;
                it.batch = step.first;
                level = it.begin - 1;
                px.x = x;
                px.y = y;
                px.inside = block_x(it, lane & 15) < p.width && block_y(it, warp, lane & 15) < p.height;
                if (lane < 16) {
                    coords[lane] = x;
                    coords[16 + lane] = y;
                }
                own = p.f1 + pixel_block(p, it, warp) + lane * 8;
                __syncwarp();
            } else {
                px.handled = px.handled || px.active && px.ix >= step.first && px.ix < step.last;
                scattered_pixels(p, step.level, step.first, step.last, scale, it, warp, coords, staging, buffer);
#pragma unroll
                for (int i = 0; i < DX1; i++) px.previous[i] = 0.f;
            }
            if (KB == 1) {  // after scattered pixels again, so that the registers need not live through them
#pragma unroll
                for (int part = 0; part < PARTS; part++) load_pixels(a[part], own + part * CPAD * 16);
            }
        }
    }
}
