// The lookup on Hopper. A block has TEAMS independent teams, which share only the queue and the list of shared tiles. A
// team has a planner warp and GROUPS warpgroups. The planner walks the plan and copies chunks of the second map into the
// team's ring of stages by bulk tensor copies. The warpgroups keep their pixels in registers, multiply chunks with wgmma and
// sample. Built behind sample.cuh, the generated wgmma_rs and barriers.cuh.

struct Maps { TensorMap map[MAPS]; };

static __device__ __forceinline__ void warp_arrive(u32 bar) {
    if (lane_id() == 0) barrier_arrive(bar);
}
// Wait for a barrier by branches in PTX, without a register for the result.
static __device__ __forceinline__ void barrier_spin(u32 bar, u32 parity) {
    asm volatile("{\n.reg .pred p;\nWAIT:\nmbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n@p bra DONE;\nbra WAIT;\nDONE:\n}" ::"r"(bar), "r"(parity) : "memory");
}
static __device__ __forceinline__ void copy_box(u32 to, const TensorMap *map, u32 bar, int c, int x, int y, int b) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(bar), "r"(c), "r"(x), "r"(y), "r"(b)
                 : "memory");
}

// A message of the planner: a step, or with ITEM the tile and levels that the next steps belong to.
struct __align__(16) Message {
    u32 packed;                    // kind | level << 2 | groups << 6 | width << 16 | rows << 24
    int x, y, first, last, pad[3];
};

static __device__ __forceinline__ Step read_message(const Message *from) {
    Step step;
    uint4 m = *(const uint4 *)from;
    step.kind = m.x & 3;
    step.level = m.x >> 2 & 15;
    step.groups = m.x >> 6 & 255;
    step.width = m.x >> 16 & 255;
    step.rows = m.x >> 24;
    step.x = m.y;
    step.y = m.z;
    step.first = m.w;
    step.last = from->last;
    return step;
}

#define WARPS (4 * GROUPS)         // warps of a team that multiply and sample
#define THREADS (32 * (WARPS * TEAMS + 4))
// Shared memory: the stages of all teams, the areas of warps that multiply, then the teams' messages and barriers.
#define STAGING_OFFSET (TEAMS * STAGES * STAGE_BYTES)
#define BUFFER_OFFSET (STAGING_OFFSET + TEAMS * WARPS * STAGING_FLOATS * 4)
#define NOTE_OFFSET (BUFFER_OFFSET + TEAMS * WARPS * OUT_BUFFER_BYTES)
#define TEAM_OFFSET (NOTE_OFFSET + TEAMS * WARPS * 192)
#define TEAM_BYTES (STAGES * 48)
#define FULL (STAGES * 32)         // after the messages: barriers for full and for empty stages
#define EMPTY (FULL + STAGES * 8)
#define SHARED_OFFSET (TEAM_OFFSET + TEAMS * TEAM_BYTES)
#define SHARED_TILES 16

// State that a warp does not keep in registers: coordinates of its pixels, their tile, the chunk whose products are staged.
struct __align__(16) Note {
    float x[16], y[16];
    Item it;
    Message chunk;
};
static_assert(sizeof(Note) == 192, "the layout of shared memory counts on it");

struct Ring {                      // a stage, and the parity of the rounds so far
    int at;
    u32 phase;
    __device__ __forceinline__ void advance() {
        if (++at == STAGES) at = 0, phase ^= 1;
    }
};

// Offer the levels from 1 on of a tile to any planner of the block. Tiles are stored plus one; 0 is a free place.
static __device__ __forceinline__ bool share(u32 *shared, u32 tile) {
    bool kept = false;
    if (lane_id() == 0)
        for (int i = 0; i < SHARED_TILES && !kept; i++) kept = atomicCAS(shared + i, 0u, tile + 1) == 0;
    return __shfl_sync(ALL, kept, 0);
}
static __device__ __forceinline__ int take_shared(u32 *shared) {
    u32 found = 0;
    if (lane_id() < SHARED_TILES) found = ((volatile u32 *)shared)[lane_id()];
    u32 which = __ballot_sync(ALL, found != 0);
    while (which) {
        int i = __ffs(which) - 1;
        u32 tile = __shfl_sync(ALL, found, i), taken = 0;
        if (lane_id() == 0) taken = atomicCAS(shared + i, tile, 0u) == tile;
        if (__shfl_sync(ALL, taken, 0)) return tile - 1;
        which &= which - 1;
    }
    return -1;
}

static __device__ __forceinline__ void prefetch_pixels(const Params &p, const Item &it) {
    int lane = lane_id();
    const u16 *from = pixel_octet(p, it.batch, block_y(it, lane / 2, lane % 2 * 8), block_x(it, lane % 2 * 8) / 8);
    u64 policy = streaming_policy();
    if (lane < 2 * WARPS) asm volatile("cp.async.bulk.prefetch.L2.global.L2::cache_hint [%0], %1, %2;" ::"l"(from), "r"(16 * ROWLEN), "l"(policy));
}

static __device__ __forceinline__ void plan_tiles(const Params &p, const Maps &maps, u32 base, u8 *smem, int team) {
    Message *messages = (Message *)(smem + TEAM_OFFSET + team * TEAM_BYTES);
    u32 bars = base + TEAM_OFFSET + team * TEAM_BYTES, full = bars + FULL, empty = bars + EMPTY;
    u32 stages = base + team * (STAGES * STAGE_BYTES);
    u32 *shared = (u32 *)(smem + SHARED_OFFSET);
    int lane = lane_id(), item = blockIdx.x + gridDim.x * team;
    Ring ring = {0, 0};
    Plan plan;
    float x[LANE_PIXELS], y[LANE_PIXELS];  // coordinates of the next item, read while this one's chunks are copied
    const int items = p.items;
    // Return the item of this number and load its pixels' coordinates.
    auto read_item = [&](int number) {
        Item found = decode_item(p, number);
        load_coords(p, found, x, y);
        return found;
    };
    Item coming;
    if (item < items) coming = read_item(item);
    auto go_on = [&](int following) {
        item = __shfl_sync(ALL, following, 0);
        if (item < items) coming = read_item(item);
    };
    while (true) {
        Item it;
        Step step;
        int following = 0, tile = take_shared(shared), own = item;
        bool rest = tile >= 0, ahead = rest;
        if (rest) {
            it = decode_tile(p, tile, 1, p.levels);
            load_coords(p, it, plan.x, plan.y);
        } else {
            if (item >= items) break;
            if (lane == 0) following = p.active_teams + atomicAdd(p.queue, 1);
            it = coming;
#pragma unroll
            for (int i = 0; i < LANE_PIXELS; i++) {
                plan.x[i] = x[i];
                plan.y[i] = y[i];
            }
        }
        prefetch_pixels(p, it);
        if (it.begin == 0 && it.end > 1 && plan.spread(p) && share(shared, own)) it.end = 1;
        plan.start(it);
        bool more = plan.next(p, step);
        barrier_spin(empty + ring.at * 8, ring.phase ^ 1);
        float *coords = (float *)(smem + (team * STAGES + ring.at) * STAGE_BYTES);  // they are sent in the stage itself
#pragma unroll
        for (int i = 0; i < LANE_PIXELS; i++) {
            coords[i * 32 + lane] = plan.x[i];
            coords[TILE_PIXELS + i * 32 + lane] = plan.y[i];
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncwarp();
        if (lane == 0) {
            Message m = {(u32)(ITEM | it.begin << 2 | it.end << 6), it.tile_x, it.tile_y, it.batch};
            messages[ring.at] = m;
        }
        __syncwarp();
        warp_arrive(full + ring.at * 8);
        __syncwarp();
        ring.advance();
        while (more) {
            int blocks = step.kind == CHUNK ? KB : 1;
            for (int kb = 0; kb < blocks; kb++) {
                barrier_spin(empty + ring.at * 8, ring.phase ^ 1);
                if (lane == 0) {
                    Message m = {(u32)(step.kind | step.level << 2 | step.groups << 6 | step.width << 16 | step.rows << 24), step.x, step.y, step.first,
                                 step.last};
                    messages[ring.at] = m;
                    if (step.kind == CHUNK) {
                        u32 to = stages + ring.at * STAGE_BYTES, bar = full + ring.at * 8;
                        const TensorMap *map = &maps.map[step.level * WCOUNT + step.width_index];
                        barrier_expect(bar, step.rows * step.width * CBLK * 2 * PARTS);
#pragma unroll
                        for (int part = 0; part < PARTS; part++)
#pragma unroll
                            for (int panel = 0; panel < CBLK / 64; panel++)
                                copy_box(to + part * PART_BYTES + panel * NCOL * 128, map, bar, part * CPAD + kb * CBLK + panel * 64, step.x, step.y,
                                         it.batch);
                    } else
                        barrier_arrive(full + ring.at * 8);
                }
                __syncwarp();
                ring.advance();
            }
            if (!ahead) {
                ahead = true;
                go_on(following);
            }
            more = plan.next(p, step);
        }
        if (!ahead) go_on(following);
    }
    barrier_spin(empty + ring.at * 8, ring.phase ^ 1);
    if (lane == 0) {
        messages[ring.at].packed = EXIT;
        __threadfence();           // the last planner of all leaves the queue as it found it
        if (atomicAdd(p.queue + 1, 1) == p.active_teams - 1) {
            p.queue[0] = 0;
            p.queue[1] = 0;
        }
    }
    __syncwarp();
    warp_arrive(full + ring.at * 8);
}

static __device__ __forceinline__ void multiply_and_sample(const Params &p, u32 base, u8 *smem, int team, int warp) {
    u32 bars = base + TEAM_OFFSET + team * TEAM_BYTES, stages = base + team * (STAGES * STAGE_BYTES);
    int lane = lane_id();
    Ring ring = {0, 0};
    Note *note = (Note *)(smem + NOTE_OFFSET) + team * WARPS + warp;
    float *staging = (float *)(smem + STAGING_OFFSET) + (team * WARPS + warp) * STAGING_FLOATS;
    out_t *buffer = (out_t *)(smem + BUFFER_OFFSET + (team * WARPS + warp) * OUT_BUFFER_BYTES);
    float scale = *p.scale;
    WarpPixel px;
    px.active = false;
    set_steps(px, p);
    u32 a[PARTS][STEPS][4];
    int level = -1, begin = 0, end = 0;
    bool staged = false;           // products of the chunk in note->chunk wait in shared memory
    auto sample_staged = [&]() { sample_chunk(px, read_message(&note->chunk), staging); };
    while (true) {
        barrier_spin(bars + FULL + ring.at * 8, ring.phase);
        const Message *message = (const Message *)(smem + TEAM_OFFSET + team * TEAM_BYTES) + ring.at;
        u32 packed = message->packed;
        if ((packed & 3) == CHUNK) {
            if (GROUPS == 1 || packed >> (6 + (warp >> 2)) & 1) {
                float d[NCOL / 2];
                bool needed = false;
                // The loss of a sum in the tensor cores grows with its magnitude. So the small products of split features come
                // first, and two halves of the large ones are added outside.
#pragma unroll
                for (int kb = 0; kb < KB; kb++) {
                    if (kb) barrier_spin(bars + FULL + ring.at * 8, ring.phase);
                    if (KB > 1) {
                        Item it = note->it;
                        load_parts(a, p, it, warp, kb);
                    }
                    u32 at = __shfl_sync(ALL, (stages + ring.at * STAGE_BYTES) >> 4 | 1 << 16, 0);
#pragma unroll
                    for (int half = 0; half < PARTS; half++) {
                        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#if SPLIT
                        if (half == 0)
#pragma unroll
                        for (int s = 0; s < STEPS; s++) {
                            u32 b = at + (s / 4 * NCOL * 128 + s % 4 * 32) / 16;
                            wgmma_rs(d, a[1][s][0], a[1][s][1], a[1][s][2], a[1][s][3], b, s > 0);
                            wgmma_rs(d, a[0][s][0], a[0][s][1], a[0][s][2], a[0][s][3], b + PART_BYTES / 16, 1);
                        }
#endif
#pragma unroll
                        for (int s = 0; s < STEPS; s++)
                            if (s / (STEPS / PARTS) == half)
                                wgmma_rs(d, a[0][s][0], a[0][s][1], a[0][s][2], a[0][s][3], at + (s / 4 * NCOL * 128 + s % 4 * 32) / 16,
                                     SPLIT ? half == 0 || s > STEPS / PARTS : kb > 0 || s > 0);
                        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                        if (kb == 0 && half == 0) {
                            if (staged) sample_staged();
                            Step step = read_message((const Message *)(smem + TEAM_OFFSET + team * TEAM_BYTES) + ring.at);
                            while (level < step.level) {
                                if (level >= begin) leave_level(p, note->it, level, warp, px, buffer);
                                level++;
                                enter_level(px, p, note->x[lane & 15], note->y[lane & 15], scale, level);
                            }
                            needed = warp_needs(px, step);
                            __syncwarp();  // other lanes may still sample what is overwritten now
                            if (needed && lane == 0) {
                                Message m = {(u32)(step.level << 2 | step.width << 16 | step.rows << 24), step.x, step.y, step.first, step.last};
                                note->chunk = m;
                            }
                        }
                        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
                        for (int i = 0; i < NCOL / 2; i++) asm volatile("" : "+f"(d[i])::"memory");
                        if (half == PARTS - 1) {
                            warp_arrive(bars + EMPTY + ring.at * 8);
                            ring.advance();
                        }
                        if (needed && (SPLIT || kb == KB - 1)) put_products(d, staging, SPLIT && kb + half > 0);
                    }
                }
                staged = needed;
                __syncwarp();
            } else {
#pragma unroll 1
                for (int kb = 0; kb < KB; kb++) {
                    if (kb) barrier_spin(bars + FULL + ring.at * 8, ring.phase);
                    __syncwarp();
                    warp_arrive(bars + EMPTY + ring.at * 8);
                    ring.advance();
                }
            }
            continue;
        }
        Step step = read_message(message);
        const float *sent = (const float *)(smem + (team * STAGES + ring.at) * STAGE_BYTES);
        float x = sent[warp * 16 + (lane & 15)], y = sent[TILE_PIXELS + warp * 16 + (lane & 15)];
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // the copy engine writes this stage next
        __syncwarp();
        warp_arrive(bars + EMPTY + ring.at * 8);
        ring.advance();
        Item it = {step.first, step.x, step.y, step.level, step.groups};
        if (KB == 1 && step.kind == ITEM) load_parts(a, p, it, warp);  // they arrive while the last chunk is sampled
        if (staged) sample_staged();
        staged = false;
        __syncwarp();
        int until = step.kind == SCATTERED ? step.level : end;
        while (level < until) {
            if (level >= begin) leave_level(p, note->it, level, warp, px, buffer);
            if (++level < end) enter_level(px, p, note->x[lane & 15], note->y[lane & 15], scale, level);
        }
        if (step.kind == EXIT) break;
        if (step.kind == ITEM) {
            begin = it.begin;
            end = it.end;
            level = begin - 1;
            __syncwarp();
            if (lane < 16) {
                note->x[lane] = x;
                note->y[lane] = y;
            }
            if (lane == 0) note->it = it;
            enter_tile(px, p, it, warp, buffer);
            __syncwarp();
        } else {
            px.handled = px.handled || px.active && is_member(px, step);
            it = note->it;
            scattered_pixels(p, step.level, step.first, step.last, scale, it, warp, note->x, staging, buffer);
#pragma unroll
            for (int i = 0; i < DX1; i++) px.previous[i] = 0.f;
            if (KB == 1) load_parts(a, p, it, warp);  // again, so that the registers need not live through them
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) lookup(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
    extern __shared__ u8 raw[];
    u32 base = (shared_address(raw) + 1023) & ~1023u;
    asm volatile("" : "+r"(base));  // kept, not recomputed
    u8 *smem = (u8 *)__cvta_shared_to_generic(base);
    int warp = __shfl_sync(ALL, threadIdx.x >> 5, 0);
    if (threadIdx.x == 0) {
        for (int team = 0; team < TEAMS; team++) {
            u32 bars = base + TEAM_OFFSET + team * TEAM_BYTES;
            for (int i = 0; i < STAGES; i++) {
                barrier_init(bars + FULL + i * 8, 1);
                barrier_init(bars + EMPTY + i * 8, WARPS);
            }
        }
        for (int i = 0; i < SHARED_TILES; i++) ((u32 *)(smem + SHARED_OFFSET))[i] = 0;
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (warp < TEAMS * WARPS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        int team = TEAMS == 1 ? 0 : warp / WARPS;
        multiply_and_sample(p, base, smem, team, warp - team * WARPS);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        warp -= TEAMS * WARPS;
        if (warp < TEAMS) plan_tiles(p, maps, base, smem, warp);
    }
}
