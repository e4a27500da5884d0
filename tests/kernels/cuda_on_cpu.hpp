// Enough of CUDA to run this project's kernels on a CPU, one block after the other: see emulator.py.
//
// Every thread of a block is a fiber. A fiber runs until it must wait: for the rest of its warp (shuffles, ballots, ldmatrix, mma,
// __syncwarp), for the block (__syncthreads), or for another block (SPIN, written by emulator.py into loops that poll memory; a
// cluster's blocks run side by side). The order in which those that can run do run is chosen by the schedule. What all lanes of a warp must do together, and do not, is an
// error, as are a standstill, misaligned or outside addresses of shared memory in PTX, and writing beside the dynamic shared memory.
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#if !defined(__x86_64__)
#include <ucontext.h>
#endif

#define __global__
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(n) alignas(n)
#define __shared__ static __attribute__((section("cuda_shared")))

struct uint3 { unsigned x, y, z; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) int4 { int x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(8) int2 { int x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

extern char __start_cuda_shared[] __attribute__((weak, visibility("hidden")));
extern char __stop_cuda_shared[] __attribute__((weak, visibility("hidden")));

namespace cuda {

constexpr int LANES = 32, MOST_THREADS = 1024, MOST_RESIDENT = 8, STACK = 256 << 10, BESIDE = 4096;
constexpr unsigned SHARED_BASE = 2064;  // of dynamic shared memory; of 16 bytes, no more
enum State { DONE, READY, IN_WARP, IN_BLOCK };

// A copy of cp.async that has not happened yet.
struct Copy { char *to; const char *from; int size, valid, group; };

#if defined(__x86_64__)
struct Context { void *stack; };
extern "C" void cuda_switch(Context *from, Context *to) __attribute__((visibility("hidden")));
asm(R"(
.text
.hidden cuda_switch
.globl cuda_switch
.type cuda_switch, @function
cuda_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq (%rsi), %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size cuda_switch, .-cuda_switch
)");
static void make(Context &c, char *stack, void (*body)()) {
    void **top = (void **)(stack + STACK) - 2;  // as if called: the stack is aligned but for the return address
    top[-2] = (void *)body;
    c.stack = top - 8;
}
#else
struct Context { ucontext_t c; };
static void cuda_switch(Context *from, Context *to) { swapcontext(&from->c, &to->c); }
static void make(Context &c, char *stack, void (*body)()) {
    getcontext(&c.c);
    c.c.uc_stack.ss_sp = stack;
    c.c.uc_stack.ss_size = STACK;
    c.c.uc_link = nullptr;
    makecontext(&c.c, body, 0);
}
#endif

struct Warp;
struct Block;
struct Fiber {
    Context context;
    State state;
    int lane;
    uint3 thread;
    Warp *warp;
    Block *block;
    int copies, group;             // groups committed so far
    int meetings;                  // waits at the cluster's barrier
    Copy copy[1024];
};
struct Warp {
    int ready, alive, arrived, kind;
    void *given[LANES];
    Fiber *fibers;
};
struct Block {
    uint3 index;
    int warps, alive, waiting, any, told, turn;
    int named[16], turns[16];      // threads at the barriers with numbers, and how often these have opened
    bool running;
    char *shared;
    Warp warp[MOST_THREADS / LANES];
    Fiber *fibers;
    char *stacks;
};

struct Machine {
    Context main;
    Block block[MOST_RESIDENT];
    int resident, threads, shared, reversed, late, backwards, cluster;
    int met, meetings;             // threads at the cluster's barrier, and how often that has opened
    uint3 blocks, threads3;
    unsigned next;
    long spins;
    void (*kernel)(const void *);
    const void *parameters;
    char error[400];
};
extern Machine machine __attribute__((visibility("hidden")));
extern Fiber *self __attribute__((visibility("hidden")));
Machine machine;
Fiber *self;

[[noreturn]] static void fail(const char *what) {
    snprintf(machine.error, sizeof machine.error, "%s (block %u, thread %u)", what, self->block->index.x, self->thread.x);
    Context lost;
    cuda_switch(&lost, &machine.main);
    __builtin_unreachable();
}

static void run_thread();
static bool start_block(Block &b) {
    if (machine.next == machine.blocks.x) return false;
    const int part = machine.next % machine.cluster;
    if (machine.cluster > 1 && &b != machine.block + part) return false;
    for (int i = 0; machine.cluster > 1 && part == 0 && i < machine.cluster; i++)  // one cluster after the other
        if (machine.block[i].running) return false;
    b.index = {machine.backwards ? machine.blocks.x - 1 - machine.next : machine.next, 0, 0};
    machine.next++;
    b.warps = (machine.threads + LANES - 1) / LANES;
    b.alive = machine.threads;
    b.waiting = b.any = 0;
    for (int i = 0; i < 16; i++) b.named[i] = b.turns[i] = 0;
    b.turn = machine.reversed ? b.warps - 1 : 0;
    b.running = true;
    memset(b.shared - BESIDE, 0xff, machine.shared + 2 * BESIDE);
    if (__start_cuda_shared != __stop_cuda_shared) memset(__start_cuda_shared, 0xff, __stop_cuda_shared - __start_cuda_shared);
    for (int w = 0; w < b.warps; w++) b.warp[w] = {0, 0, 0, 0, {}, b.fibers + w * LANES};
    for (int t = 0; t < machine.threads; t++) {
        Fiber &f = b.fibers[t];
        f.lane = t % LANES;
        f.thread = {(unsigned)t, 0, 0};
        f.warp = b.warp + t / LANES;
        f.block = &b;
        f.state = READY;
        f.copies = f.group = 0;
        f.meetings = machine.meetings;
        f.warp->ready++;
        f.warp->alive++;
        make(f.context, b.stacks + (size_t)t * STACK, run_thread);
    }
    if (part + 1 < machine.cluster) start_block(machine.block[part + 1]);
    return true;
}

// The lane of the warp that goes on after `lane`.
static Fiber *lane_after(Warp &w, int lane) {
    for (int i = 1; i <= LANES; i++) {
        int at = (machine.reversed ? lane - i : lane + i) & (LANES - 1);
        if (w.fibers + at < w.fibers + LANES && w.fibers[at].state == READY) return w.fibers + at;
    }
    return nullptr;
}
static Fiber *thread_of(Block &b) {
    if (!b.running) return nullptr;
    for (int i = 0; i < b.warps; i++) {
        int at = (b.turn + (machine.reversed ? b.warps - i : i)) % b.warps;
        if (b.warp[at].ready == 0) continue;
        b.turn = at;
        return lane_after(b.warp[at], machine.reversed ? 0 : LANES - 1);
    }
    return nullptr;
}
// Goes on with another thread: of the warp, else of the block, else of another block; with `leave` of another block or warp first.
static void give_way(bool leave = false) {
    Fiber *from = self, *to = nullptr;
    if (!leave && from->warp->ready) to = lane_after(*from->warp, from->lane);
    int own = (int)(from->block - machine.block);
    if (leave) from->block->turn = (from->block->turn + (machine.reversed ? from->block->warps - 1 : 1)) % from->block->warps;
    for (int i = leave ? 1 : 0; !to && i <= machine.resident; i++) to = thread_of(machine.block[(own + i) % machine.resident]);
    if (!to) fail("every thread waits");
    if (to == from) return;
    self = to;
    cuda_switch(&from->context, &to->context);
}
// For a thread that polls: the other lanes of its warp go on, then other warps.
static void pass_on() {
    if (++machine.spins > 20000000) fail("waits for ever");
    Fiber *from = self, *to = lane_after(*from->warp, from->lane);
    if (machine.reversed ? to->lane >= from->lane : to->lane <= from->lane) return give_way(true);
    self = to;
    cuda_switch(&from->context, &to->context);
}
static void release(Block &b) {
    b.waiting = 0, b.told = b.any;
    for (int t = 0; t < machine.threads; t++)
        if (b.fibers[t].state == IN_BLOCK) {
            b.fibers[t].state = READY;
            b.fibers[t].warp->ready++;
        }
}
static void run_thread() {
    machine.kernel(machine.parameters);
    Block &b = *self->block;
    Warp &w = *self->warp;
    self->state = DONE;
    w.ready--;
    w.alive--;
    b.alive--;
    if (w.arrived) fail("a thread ended while its warp waits for it");
    if (b.alive && b.waiting == b.alive) release(b);
    if (b.alive == 0) {
        b.running = false;
        for (int i = 0; i < BESIDE; i++)
            if ((b.shared[-1 - i] & b.shared[machine.shared + i] & 255) != 255) fail("written beside the dynamic shared memory");
        Context ended;
        cuda_switch(&ended, &machine.main);
    }
    give_way();
    __builtin_unreachable();
}

enum Kind { SYNC = 1, BALLOT, SHUFFLE, REDUCE, MATCH, MATRICES, PRODUCT };
// What a warp does together: `whole` is called once, with what every lane gave.
template <class T, class F> static inline void together(int kind, T &mine, F whole) {
    Warp &w = *self->warp;
    if (w.arrived && w.kind != kind) fail("the lanes of a warp do different things");
    if (w.alive != LANES) fail("lanes are missing in a warp");
    w.kind = kind;
    w.given[self->lane] = &mine;
    if (++w.arrived < LANES) {
        self->state = IN_WARP;
        w.ready--;
        give_way();
        return;
    }
    w.arrived = 0;
    whole((T **)w.given);
    for (int i = 0; i < LANES; i++)
        if (w.fibers[i].state == IN_WARP) w.fibers[i].state = READY;
    w.ready = LANES;
}

static int meet(int any) {
    Block &b = *self->block;
    b.any = b.waiting ? b.any | any : any;
    if (self->warp->arrived) fail("a thread is at __syncthreads while its warp waits for it");
    b.waiting++;
    if (b.waiting == b.alive) {
        release(b);
        give_way(true);
    } else {
        self->state = IN_BLOCK;
        self->warp->ready--;
        give_way(machine.resident > 1);
    }
    return b.told;  // not what the first who came to the next meeting said
}

// A cluster's barrier: who arrives may go on, and waits later for all to have arrived.
static inline void cluster_arrive() {
    Machine &m = machine;
    if (++m.met == m.cluster * m.threads) m.met = 0, m.meetings++;
}
static inline void cluster_wait() {
    int before = self->meetings++;
    while (machine.meetings == before) pass_on();
}

static inline unsigned shared_address(const void *p) { return (unsigned)((const char *)p - self->block->shared) + SHARED_BASE; }
static inline char *shared_memory(unsigned at, unsigned size, unsigned alignment) {
    char *shared = at >> 24 ? machine.block[(at >> 24) - 1].shared : self->block->shared;  // of a block of the cluster
    unsigned offset = (at & 0xffffff) - SHARED_BASE;
    if (at % alignment) fail("a misaligned address of shared memory");
    if (offset > (unsigned)machine.shared || offset + size > (unsigned)machine.shared) fail("an address outside of shared memory");
    return shared + offset;
}
static inline void aligned(const void *p, unsigned alignment) {
    if ((uintptr_t)p % alignment) fail("a misaligned address");
}

static inline float half_to_float(uint16_t h) {
    uint32_t bits = (uint32_t)(h & 0x7fff) << 13, sign = (uint32_t)(h & 0x8000) << 16;
    float x;
    memcpy(&x, &bits, 4);
    x *= 0x1p112f;
    memcpy(&bits, &x, 4);
    bits = (h & 0x7c00) == 0x7c00 ? 0x7f800000u | (uint32_t)(h & 0x3ff) << 13 : bits;
    bits |= sign;
    memcpy(&x, &bits, 4);
    return x;
}
static inline uint16_t float_to_half(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    uint32_t sign = bits >> 16 & 0x8000;
    bits &= 0x7fffffff;
    if (bits > 0x7f800000) return 0x7fff;
    if (bits >= 0x477ff000) return sign | 0x7c00;
    if (bits < 0x38800000) {
        float a;
        memcpy(&a, &bits, 4);
        a += 0.5f;
        memcpy(&bits, &a, 4);
        return sign | (bits - 0x3f000000);
    }
    bits += 0xfff + (bits >> 13 & 1);
    return sign | (bits - 0x38000000) >> 13;
}
static inline float bf16_to_float(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline uint16_t float_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

template <class T> struct Shuffled { T value, got; int other; };
template <class T> static inline T shuffle(T value, int other) {
    Shuffled<T> mine = {value, value, other};
    together(SHUFFLE, mine, [](Shuffled<T> **all) {
        for (int i = 0; i < LANES; i++)
            if (all[i]->other >= 0) all[i]->got = all[all[i]->other & 31]->value;
    });
    return mine.got;
}
template <class T, class F> static inline T reduce(T value, F choose) {
    T mine = value;
    together(REDUCE, mine, [&](T **all) {
        T found = *all[0];
        for (int i = 1; i < LANES; i++) found = choose(found, *all[i]);
        for (int i = 0; i < LANES; i++) *all[i] = found;
    });
    return mine;
}

// Multiplied and added in float32, k in order; hardware truncates and orders otherwise. A lane gives its words of the first operand, and of
// every eight columns its sums and words of the second.
struct Product { uint32_t a[4]; int eights; float **d; const uint32_t (*b)[2]; };
typedef uint32_t Bits __attribute__((vector_size(32)));
typedef float Floats __attribute__((vector_size(32)));
typedef uint16_t Halves __attribute__((vector_size(16)));
template <bool BF16> __attribute__((always_inline, optimize("O2"))) static inline Floats widened(const uint16_t *half) {
    Halves words;
    memcpy(&words, half, sizeof words);
    const Bits h = __builtin_convertvector(words, Bits);
    if (BF16) return (Floats)(h << 16);
    Floats x = (Floats)((h & 0x7fff) << 13) * 0x1p112f;
    Bits special = (Bits)((h & 0x7c00) == 0x7c00);
    return (Floats)((special & (0x7f800000 | (h & 0x3ff) << 13)) | (~special & (Bits)x) | (h & 0x8000) << 16);
}
template <bool BF16> __attribute__((optimize("O2"))) static void multiply(Product **all) {
    uint16_t half[16][16];
    union { Floats v[32]; float a[16][16]; };
    union { Floats sums[16]; float d[16][8]; };
    for (int lane = 0; lane < LANES; lane++) {
        int g = lane >> 2, t = (lane & 3) * 2;
        for (int i = 0; i < 4; i++) memcpy(&half[(i & 1) * 8 + g][(i >> 1) * 8 + t], &all[lane]->a[i], 4);
    }
    for (int i = 0; i < 32; i++) v[i] = widened<BF16>(half[0] + 8 * i);
    for (int n = 0; n < all[0]->eights; n++) {
        Floats b[16];
        for (int lane = 0; lane < LANES; lane++) {
            int g = lane >> 2, t = (lane & 3) * 2;
            const Product &p = *all[lane];
            for (int i = 0; i < 4; i++) half[(i >> 1) * 4 + t / 2][(i & 1) * 8 + g] = (uint16_t)(p.b[n][i >> 1] >> (i & 1) * 16);
            for (int i = 0; i < 4; i++) d[(i >> 1) * 8 + g][t + (i & 1)] = *p.d[4 * n + i];
        }
        for (int k = 0; k < 16; k++) b[k] = widened<BF16>(half[0] + 8 * k);
        for (int m = 0; m < 16; m++) {
            Floats sum = sums[m];
            for (int k = 0; k < 16; k++) sum += a[m][k] * b[k];
            sums[m] = sum;
        }
        for (int lane = 0; lane < LANES; lane++) {
            int g = lane >> 2, t = (lane & 3) * 2;
            for (int i = 0; i < 4; i++) *all[lane]->d[4 * n + i] = d[(i >> 1) * 8 + g][t + (i & 1)];
        }
    }
}

struct Loaded { uint32_t *r[4]; const char *row; };
template <int COUNT, bool TRANSPOSED> static void load_matrices(Loaded **all) {
    for (int m = 0; m < COUNT; m++) {
        uint16_t matrix[8][8];
        for (int i = 0; i < 8; i++) memcpy(matrix[i], all[m * 8 + i]->row, 16);
        for (int lane = 0; lane < LANES; lane++) {
            int g = lane >> 2, t = (lane & 3) * 2;
            uint32_t low = TRANSPOSED ? matrix[t][g] : matrix[g][t], high = TRANSPOSED ? matrix[t + 1][g] : matrix[g][t + 1];
            *all[lane]->r[m] = low | high << 16;
        }
    }
}

static inline void copy_now(const Copy &c) {
    if (c.valid) memcpy(c.to, c.from, c.valid);
    memset(c.to + c.valid, 0, c.size - c.valid);
}
static inline void copy_later(unsigned to, const void *from, int size, int valid) {
    Fiber &f = *self;
    aligned(from, size);
    Copy copy = {shared_memory(to, size, size), (const char *)from, size, valid, f.group};
    if (machine.late) {
        if (f.copies == 1024) fail("too many copies under way");
        f.copy[f.copies++] = copy;
    } else
        copy_now(copy);
}
// All but those of the last `groups` groups; with -1 those of no group too.
static inline void wait_for_copies(int groups = -1) {
    Fiber &f = *self;
    int left = 0;
    for (int i = 0; i < f.copies; i++)
        if (f.copy[i].group < f.group - groups)
            copy_now(f.copy[i]);
        else
            f.copy[left++] = f.copy[i];
    f.copies = left;
}

// A barrier with a number, of so many threads.
static inline void meet_at(int number, int threads) {
    Block &b = *self->block;
    int before = b.turns[number];
    if (++b.named[number] == threads) {
        b.named[number] = 0;
        b.turns[number]++;
    }
    while (b.turns[number] == before) pass_on();
}

// An mbarrier. Bulk copies happen at once.
struct Barrier {
    uint16_t expected, pending;
    int32_t bytes : 31;
    uint32_t phase : 1;
    void arrived(int size) {
        bytes -= size;
        look();
    }
    void look() {
        if (pending == 0 && bytes == 0) phase ^= 1, pending = expected;
    }
};
static inline Barrier &barrier_at(unsigned at) { return *(Barrier *)shared_memory(at, 8, 8); }

struct Entry { const char *name; size_t parameters; int most_threads, cluster; void (*call)(const void *); };

}  // namespace cuda

// ---- what kernels call

#define threadIdx (cuda::self->thread)
#define blockIdx (cuda::self->block->index)
#define blockDim (cuda::machine.threads3)
#define gridDim (cuda::machine.blocks)
#define SPIN                                                                       \
    do {                                                                           \
        if (++cuda::machine.spins > 20000000) cuda::fail("waits for another block for ever"); \
        cuda::give_way(true);                                                      \
    } while (0)

static inline void __syncthreads() { cuda::meet(0); }
static inline int __syncthreads_or(int any) { return cuda::meet(any != 0); }
static inline void __syncwarp(unsigned = ~0u) {
    int mine = 0;
    cuda::together(cuda::SYNC, mine, [](int **) {});
}
static inline void __threadfence() {}
static inline unsigned __ballot_sync(unsigned, int yes) {
    unsigned mine = yes != 0;
    cuda::together(cuda::BALLOT, mine, [](unsigned **all) {
        unsigned found = 0;
        for (int i = 0; i < cuda::LANES; i++) found |= *all[i] << i;
        for (int i = 0; i < cuda::LANES; i++) *all[i] = found;
    });
    return mine;
}
static inline int __any_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) != 0; }
template <class T> static inline T __shfl_sync(unsigned, T value, int lane) { return cuda::shuffle(value, lane & 31); }
template <class T> static inline T __shfl_xor_sync(unsigned, T value, int mask) { return cuda::shuffle(value, cuda::self->lane ^ mask); }
template <class T> static inline T __shfl_up_sync(unsigned, T value, unsigned by) {
    return cuda::shuffle(value, cuda::self->lane >= (int)by ? cuda::self->lane - (int)by : -1);
}
template <class T> struct Matched { T value; unsigned same; };
template <class T> static inline unsigned __match_any_sync(unsigned, T value) {
    Matched<T> mine = {value, 0};
    cuda::together(cuda::MATCH, mine, [](Matched<T> **all) {
        for (int i = 0; i < cuda::LANES; i++)
            for (int j = 0; j < cuda::LANES; j++) all[i]->same |= (unsigned)(all[i]->value == all[j]->value) << j;
    });
    return mine.same;
}
template <class T> static inline T __reduce_min_sync(unsigned, T value) { return cuda::reduce(value, [](T a, T b) { return a < b ? a : b; }); }
template <class T> static inline T __reduce_max_sync(unsigned, T value) { return cuda::reduce(value, [](T a, T b) { return a > b ? a : b; }); }

template <class A, class B> static inline auto min(A a, B b) -> decltype(a + b) { return decltype(a + b)(a) < decltype(a + b)(b) ? a : b; }
template <class A, class B> static inline auto max(A a, B b) -> decltype(a + b) { return decltype(a + b)(a) > decltype(a + b)(b) ? a : b; }
static inline float floorf(float x) { return __builtin_floorf(x); }
static inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
static inline float fabsf(float x) { return __builtin_fabsf(x); }
static inline float fminf(float a, float b) { return __builtin_fminf(a, b); }
static inline float rintf(float x) { return __builtin_rintf(x); }
static inline float sqrtf(float x) { return __builtin_sqrtf(x); }
static inline float __sinf(float x) { return __builtin_sinf(x); }
static inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline float expf(float x) { return __builtin_expf(x); }
static inline float __expf(float x) { return __builtin_expf(x); }
static inline float powf(float x, float y) { return __builtin_powf(x, y); }
static inline float log1pf(float x) { return __builtin_log1pf(x); }
static inline float log2f(float x) { return __builtin_log2f(x); }
static inline float exp2f(float x) { return __builtin_exp2f(x); }
static inline double floor(double x) { return __builtin_floor(x); }
static inline double fmin(double a, double b) { return __builtin_fmin(a, b); }
static inline double fmax(double a, double b) { return __builtin_fmax(a, b); }
// Rounded once each: g++ fuses nothing without being told which processor.
#define ROUNDED(TYPE, SIGN, NAME) static inline TYPE NAME(TYPE a, TYPE b) { return a SIGN b; }
ROUNDED(float, +, __fadd_rn)
ROUNDED(float, -, __fsub_rn)
ROUNDED(float, *, __fmul_rn)
ROUNDED(float, /, __fdiv_rn)
ROUNDED(double, +, __dadd_rn)
ROUNDED(double, -, __dsub_rn)
ROUNDED(double, *, __dmul_rn)
ROUNDED(double, /, __ddiv_rn)
static inline long long __double_as_longlong(double x) {
    long long bits;
    memcpy(&bits, &x, 8);
    return bits;
}
static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
    unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned to = 0;
    for (int i = 0; i < 4; i++) to |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
    return to;
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz(x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline float __uint_as_float(unsigned x) {
    float f;
    memcpy(&f, &x, 4);
    return f;
}
static inline float __int_as_float(int x) { return __uint_as_float((unsigned)x); }
static inline unsigned __float_as_uint(float f) {
    unsigned x;
    memcpy(&x, &f, 4);
    return x;
}
static inline int __float_as_int(float f) { return (int)__float_as_uint(f); }
static inline unsigned long long __cvta_generic_to_shared(const void *p) { return cuda::shared_address(p); }
template <class T> static inline T atomicAdd(T *at, T by) { T old = *at; *at += by; return old; }
template <class T> static inline T atomicMax(T *at, T by) { T old = *at; if (by > old) *at = by; return old; }
template <class T, class U> static inline T atomicMin(T *at, U by) { T old = *at; if ((T)by < old) *at = by; return old; }
template <class T, class U, class V> static inline T atomicCAS(T *at, U seen, V then) { T old = *at; if (old == (T)seen) *at = then; return old; }
template <class T, class U> static inline T atomicOr(T *at, U by) { T old = *at; *at |= by; return old; }
template <class T, class U> static inline T atomicAnd(T *at, U by) { T old = *at; *at &= by; return old; }

// ---- PTX, operands in the order of the instruction's template

static inline void ptx_laneid(unsigned &to) { to = cuda::self->lane; }
static inline void ptx_to_f16(unsigned short &to, float x) { to = cuda::float_to_half(x); }
static inline void ptx_from_f16(float &to, unsigned short x) { to = cuda::half_to_float(x); }
static inline void ptx_to_bf16(unsigned short &to, float x) { to = cuda::float_to_bf16(x); }
static inline void ptx_meet_at(unsigned number) { cuda::meet_at(number, 128); }
static inline void ptx_kept_if(unsigned &to, unsigned x, unsigned mask) { to = x & mask; }
static inline void ptx_barrier_init(unsigned at, unsigned count) { cuda::barrier_at(at) = {(uint16_t)count, (uint16_t)count, 0, 0}; }
static inline void ptx_barrier_arrive(unsigned at) {
    cuda::Barrier &b = cuda::barrier_at(at);
    if (b.pending == 0) cuda::fail("more arrivals than an mbarrier expects");
    b.pending--;
    b.look();
}
static inline void ptx_barrier_expect(unsigned at, unsigned bytes) {
    cuda::barrier_at(at).bytes += bytes;
    ptx_barrier_arrive(at);
}
static inline void ptx_barrier_try(unsigned &done, unsigned at, unsigned parity) {
    done = cuda::barrier_at(at).phase != parity;
    if (!done) cuda::pass_on();
}
static inline void ptx_in_part(unsigned &to, unsigned at, unsigned part) { to = (part + 1) << 24 | at; }
template <class... All> static inline void ptx_give(unsigned at, All... values) {
    const float all[] = {values...};
    memcpy(cuda::shared_memory(at, sizeof all, sizeof all), all, sizeof all);
}
static inline void ptx_send(unsigned at, float a, unsigned barrier) { ptx_give(at, a), cuda::barrier_at(barrier).arrived(4); }
static inline void ptx_send(unsigned at, float a, float b, unsigned barrier) { ptx_give(at, a, b), cuda::barrier_at(barrier).arrived(8); }
static inline void ptx_send(unsigned at, float a, float b, float c, float d, unsigned barrier) {
    ptx_give(at, a, b, c, d), cuda::barrier_at(barrier).arrived(16);
}
static inline void ptx_cluster_arrive() { cuda::cluster_arrive(); }
static inline void ptx_cluster_wait() { cuda::cluster_wait(); }
static inline void ptx_copy_bulk(unsigned to, const void *from, unsigned bytes, unsigned at) {
    cuda::aligned(from, 16);
    memcpy(cuda::shared_memory(to, bytes, 16), from, bytes);
    cuda::barrier_at(at).arrived(bytes);
}
// What a wgmma is given: its sums, and the words beside them.
namespace cuda {
struct Operands {
    float *d[128];
    unsigned w[8];
    int sums = 0, words = 0;
    template <class... All> explicit Operands(All &...all) { (take(all), ...); }
    void take(float &x) { d[sums++] = &x; }
    template <class T> void take(T &x) { w[words++] = (unsigned)x; }
};
}  // namespace cuda
// A warp's 16 rows of wgmma with its first operand in registers and the second in shared memory, not swizzled: done at once.
template <bool BF16, class... All> static inline void ptx_wgmma(All &&...all) {
    cuda::Operands to(all...);
    auto &d = to.d;
    auto &w = to.w;
    unsigned at = (w[4] & 0x3fff) * 16, half = (w[4] >> 16 & 0x3fff) * 16, lane = cuda::self->lane;
    if (cuda::SHARED_BASE % 16) cuda::fail("descriptors tell no such addresses");
    unsigned b[32][2];
    for (int n = 0; n < to.sums / 4; n++) {
        if (!w[5]) *d[4 * n] = *d[4 * n + 1] = *d[4 * n + 2] = *d[4 * n + 3] = 0.f;
        unsigned from = at + n * 128 + (lane >> 2) * 16 + (lane & 3) * 4;
        for (int i = 0; i < 2; i++) b[n][i] = *(unsigned *)cuda::shared_memory(from + i * half, 4, 4);
    }
    cuda::Product mine = {{w[0], w[1], w[2], w[3]}, to.sums / 4, d, b};
    cuda::together(cuda::PRODUCT, mine, cuda::multiply<BF16>);
}
// A warp's 16 rows of wgmma with both operands in shared memory, k by rows of 64 swizzled by 128 bytes, the next 64 as far on as the
// descriptor tells: done at once.
template <bool BF16, class... All> static inline void ptx_wgmma_shared(All &&...all) {
    cuda::Operands to(all...);
    auto &d = to.d;
    auto &w = to.w;
    unsigned lane = cuda::self->lane, row = cuda::self->thread.x / 32 % 4 * 16;
    auto at = [&](unsigned descriptor, int k, int channel) {
        unsigned from = (descriptor & 0x3fff) * 16 + channel / 64 * (descriptor >> 16 & 0x3fff) * 16 + k * 128;
        from += ((channel / 8 % 8) ^ (from >> 7 & 7)) * 16 + channel % 8 * 2;
        return (unsigned)*(uint16_t *)cuda::shared_memory(from, 2, 2);
    };
    auto two = [&](unsigned descriptor, int k, int channel) { return at(descriptor, k, channel) | at(descriptor, k + 1, channel) << 16; };
    unsigned b[32][2];
    cuda::Product mine = {{}, to.sums / 4, d, b};
    for (int i = 0; i < 4; i++) mine.a[i] = two(w[0], (i >> 1) * 8 + (lane & 3) * 2, row + (i & 1) * 8 + (lane >> 2));
    for (int n = 0; n < to.sums / 4; n++)
        for (int i = 0; i < 2; i++) b[n][i] = two(w[1], i * 8 + (lane & 3) * 2, n * 8 + (lane >> 2));
    cuda::together(cuda::PRODUCT, mine, cuda::multiply<BF16>);
}
static inline void ptx_pair_f16(unsigned &to, float high, float low) {
    to = (unsigned)cuda::float_to_half(high) << 16 | cuda::float_to_half(low);
}
static inline void ptx_pair_bf16(unsigned &to, float high, float low) {
    to = (unsigned)cuda::float_to_bf16(high) << 16 | cuda::float_to_bf16(low);
}
template <class P, class T> static inline void ptx_store(P to, T x) {
    static_assert(sizeof(x) == 4 || sizeof(x) == 2, "");
    cuda::aligned((void *)to, sizeof x);
    memcpy((void *)to, &x, sizeof x);
}
template <class P, class T> static inline void ptx_store_if(P to, T x, unsigned yes) {
    if (yes) ptx_store(to, x);
}
template <class P> static inline void ptx_store8_if(P to, unsigned a, unsigned b, unsigned yes) {
    unsigned both[2] = {a, b};
    if (!yes) return;
    cuda::aligned((void *)to, 8);
    memcpy((void *)to, both, 8);
}
static inline void ptx_policy(unsigned long long &policy) { policy = 0; }
static inline void ptx_load4(unsigned &a, unsigned &b, unsigned &c, unsigned &d, const void *from, unsigned long long) {
    cuda::aligned(from, 16);
    unsigned v[4];
    memcpy(v, from, 16);
    a = v[0], b = v[1], c = v[2], d = v[3];
}
static inline void ptx_gather(unsigned &a, unsigned &b, unsigned &c, unsigned &d, const void *from, unsigned yes) {
    if (yes) ptx_load4(a, b, c, d, from, 0);
}
static inline void ptx_word(unsigned &to, const void *from, unsigned yes) {
    if (yes) to = *(const unsigned *)from;
}
static inline void ptx_byte(unsigned &to, const void *from, unsigned yes) {
    if (yes) to = *(const unsigned char *)from;
}
static inline void ptx_count_up(unsigned &before, unsigned at, unsigned most) {
    unsigned &count = *(unsigned *)cuda::shared_memory(at, 4, 4);
    before = count;
    count = before >= most ? 0 : before + 1;
}
static inline void ptx_copy16(unsigned to, const void *from, int valid = 16) { cuda::copy_later(to, from, 16, valid); }
static inline void ptx_copy16_of(unsigned to, const void *from, int index) { cuda::copy_later(to, from, 16, index < 0 ? 0 : 16); }
static inline void ptx_copy4(unsigned to, const void *from, int valid) { cuda::copy_later(to, from, 4, valid); }
static inline void ptx_copy8(unsigned to, const void *from, int valid) { cuda::copy_later(to, from, 8, valid); }
static inline void ptx_copies() { cuda::wait_for_copies(); }
static inline void ptx_wait_for(int groups) { cuda::wait_for_copies(groups); }
static inline void ptx_commit() { cuda::self->group++; }
static inline void ptx_nothing(...) {}
static inline void ptx_shared_load2(float &a, float &b, unsigned at) {
    const char *from = cuda::shared_memory(at, 8, 8);
    memcpy(&a, from, 4);
    memcpy(&b, from + 4, 4);
}
static inline void ptx_shared_store(unsigned at, unsigned x) { memcpy(cuda::shared_memory(at, 4, 4), &x, 4); }
static inline void ptx_root(float &to, float x) { to = __builtin_sqrtf(x); }
static inline void ptx_reciprocal(float &to, float x) { to = 1 / x; }
static inline void ptx_reciprocal_root(float &to, float x) { to = 1 / __builtin_sqrtf(x); }
template <class F> static inline unsigned by_halves(F what) {
    return cuda::float_to_half(what(0)) | (unsigned)cuda::float_to_half(what(16)) << 16;
}
static inline float half_of(unsigned x, int shift) { return cuda::half_to_float((uint16_t)(x >> shift)); }
// Rounded once to float32 and once more to half precision; fused is within that.
#define PTX_HALVES(NAME, RESULT)                                          \
    static inline void NAME(unsigned &to, unsigned x, unsigned y) {       \
        to = by_halves([=](int shift) {                                   \
            float a = half_of(x, shift), b = half_of(y, shift);           \
            return RESULT;                                                \
        });                                                               \
    }
PTX_HALVES(ptx_add_halves, a + b)
PTX_HALVES(ptx_sub_halves, a - b)
PTX_HALVES(ptx_mul_halves, a *b)
PTX_HALVES(ptx_mul_halves_to_one, fminf(fmaxf(a * b, 0.f), 1.f))  // NaN becomes 0
PTX_HALVES(ptx_min_halves, fminf(a, b))
PTX_HALVES(ptx_max_halves, fmaxf(a, b))
static inline void ptx_add_bf16(unsigned &to, unsigned x, unsigned y) {
    auto sum = [=](int shift) { return (unsigned)cuda::float_to_bf16(cuda::bf16_to_float((uint16_t)(x >> shift)) + cuda::bf16_to_float((uint16_t)(y >> shift))) << shift; };
    to = sum(0) | sum(16);
}
static inline void ptx_neg_halves(unsigned &to, unsigned x) { to = x ^ 0x80008000u; }
static inline void ptx_fma_halves(unsigned &to, unsigned x, unsigned y, unsigned z) {
    to = by_halves([=](int shift) { return half_of(x, shift) * half_of(y, shift) + half_of(z, shift); });
}
static inline void ptx_matrices2(unsigned &r0, unsigned &r1, unsigned at) {
    cuda::Loaded mine = {{&r0, &r1, nullptr, nullptr}, cuda::shared_memory(at, 16, 16)};
    cuda::together(cuda::MATRICES, mine, cuda::load_matrices<2, false>);
}
static inline void ptx_matrices4(unsigned &r0, unsigned &r1, unsigned &r2, unsigned &r3, unsigned at) {
    cuda::Loaded mine = {{&r0, &r1, &r2, &r3}, cuda::shared_memory(at, 16, 16)};
    cuda::together(cuda::MATRICES, mine, cuda::load_matrices<4, false>);
}
static inline void ptx_matrices4_transposed(unsigned &r0, unsigned &r1, unsigned &r2, unsigned &r3, unsigned at) {
    cuda::Loaded mine = {{&r0, &r1, &r2, &r3}, cuda::shared_memory(at, 16, 16)};
    cuda::together(cuda::MATRICES + 16, mine, cuda::load_matrices<4, true>);
}
#define PTX_PRODUCT(NAME, BF16)                                                                                                          \
    static inline void NAME(float &d0, float &d1, float &d2, float &d3, unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0, \
                            unsigned b1) {                                                                                                \
        float *d[4] = {&d0, &d1, &d2, &d3};                                                                                               \
        const unsigned b[1][2] = {{b0, b1}};                                                                                              \
        cuda::Product mine = {{a0, a1, a2, a3}, 1, d, b};                                                                                 \
        cuda::together(cuda::PRODUCT, mine, cuda::multiply<BF16>);                                                                 \
    }
PTX_PRODUCT(ptx_mma_f16, false)
PTX_PRODUCT(ptx_mma_bf16, true)

// ---- launching

extern const cuda::Entry cuda_entries[];
extern const int cuda_entry_count;

// What went wrong, or null. schedule: bit 0: the last threads first; bit 1: asynchronous copies as late as possible; bit 2: the last
// blocks first, where there are no clusters; resident: blocks
// that run side by side, which a kernel with static shared memory cannot.
extern "C" __attribute__((visibility("default"))) const char *cuda_launch(int entry, int blocks, int threads, int shared, void **arguments,
                                                                          int schedule, int resident) {
    using namespace cuda;
    Machine &m = machine;
    const Entry &e = cuda_entries[entry];
    if (threads > e.most_threads || threads > MOST_THREADS || threads % LANES) return "more threads than __launch_bounds__";
    if (blocks <= 0) return "an empty grid";
    alignas(16) static char parameters[4096];
    memcpy(parameters, arguments[0], e.parameters);
    m.cluster = e.cluster;
    m.met = m.meetings = 0;
    if (e.cluster > 1) resident = e.cluster;
    if (blocks % e.cluster) return "a part of a cluster";
    m.resident = resident < blocks ? resident : blocks;
    if (m.resident > MOST_RESIDENT) m.resident = MOST_RESIDENT;
    if (__start_cuda_shared != __stop_cuda_shared) m.resident = 1;
    m.threads = threads;
    m.shared = (shared + 15) / 16 * 16;
    m.reversed = schedule & 1;
    m.late = schedule >> 1 & 1;
    m.backwards = schedule >> 2 & e.cluster == 1;
    m.blocks = {(unsigned)blocks, 1, 1};
    m.threads3 = {(unsigned)threads, 1, 1};
    m.next = 0;
    m.spins = 0;
    m.kernel = e.call;
    m.parameters = parameters;
    m.error[0] = 0;
    size_t fibers = sizeof(Fiber) * threads, stacks = (size_t)STACK * threads, memory = m.shared + 2 * BESIDE + 64;
    for (int i = 0; i < m.resident; i++) {
        Block &b = m.block[i];
        b.fibers = (Fiber *)mmap(nullptr, fibers, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        b.stacks = (char *)mmap(nullptr, stacks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        b.shared = (char *)mmap(nullptr, memory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) + BESIDE;
    }
    for (int i = m.resident; i < MOST_RESIDENT; i++) m.block[i].running = false;
    for (int i = 0; i < m.resident; i++) start_block(m.block[i]);
    for (int i = 0; i < m.resident && !m.error[0];) {  // comes back when a block has ended
        if (m.block[i].running || start_block(m.block[i])) {
            self = thread_of(m.block[i]);
            if (self) {
                cuda_switch(&m.main, &self->context);
                i = 0;
                continue;
            }
        }
        i++;
    }
    for (int i = 0; i < m.resident; i++) {
        munmap(m.block[i].fibers, fibers);
        munmap(m.block[i].stacks, stacks);
        munmap(m.block[i].shared - BESIDE, memory);
    }
    return m.error[0] ? m.error : nullptr;
}

#define CUDA_EXPORT extern "C" __attribute__((visibility("default")))
CUDA_EXPORT int cuda_count() { return cuda_entry_count; }
CUDA_EXPORT const char *cuda_name(int entry) { return cuda_entries[entry].name; }
CUDA_EXPORT int cuda_parameters(int entry) { return (int)cuda_entries[entry].parameters; }
