// Enough of CUDA to run this project's kernels on a CPU, one block after the other: see emulator.py. What every kernel's library would
// compile anew is in cuda_machine.cpp, one library for all of them.
//
// Every thread of a block is a fiber. A fiber runs until it must wait: for the rest of its warp (shuffles, ballots, ldmatrix, mma,
// __syncwarp), for the block (__syncthreads), or for another block (SPIN, written by emulator.py into loops that poll memory; a
// cluster's blocks run side by side). The order in which those that can run do run is chosen by the schedule. What all lanes of a warp must do together, and do not, is an
// error, as are a standstill, misaligned or outside addresses of shared memory in PTX, and writing beside the dynamic shared memory.
#include <stdint.h>
#include <string.h>
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

#define MACHINE __attribute__((visibility("default")))  // defined in cuda_machine.cpp

namespace cuda {

constexpr int LANES = 32, MOST_THREADS = 1024, MOST_RESIDENT = 8, STACK = 256 << 10, BESIDE = 4096, MOST_SHARED = 256 << 10;
constexpr unsigned SHARED_BASE = 2064;  // of dynamic shared memory; of 16 bytes, no more
enum State { DONE, READY, IN_WARP, IN_BLOCK };

// A copy of cp.async that has not happened yet.
struct Copy { char *to; const char *from; int size, valid, group; };

#if defined(__x86_64__)
struct Context { void *stack; };
#else
struct Context { ucontext_t c; };
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
    char *begin, *end;             // of static shared memory
    char error[400];
};
extern MACHINE Machine machine;
extern MACHINE Fiber *self;

[[noreturn]] MACHINE void fail(const char *what);
// Goes on with another thread: of the warp, else of the block, else of another block; with `leave` of another block or warp first.
MACHINE void give_way(bool leave = false);
// For a thread that polls: the other lanes of its warp go on, then other warps.
MACHINE void pass_on();
MACHINE int meet(int any);

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
MACHINE char *shared_memory(unsigned at, unsigned size, unsigned alignment);
static inline void aligned(const void *p, unsigned alignment) {
    if ((uintptr_t)p % alignment) fail("a misaligned address");
}

MACHINE float half_to_float(uint16_t h);
MACHINE uint16_t float_to_half(float x);
MACHINE float bf16_to_float(uint16_t h);
MACHINE uint16_t float_to_bf16(float x);

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
template <bool BF16> MACHINE void multiply(Product **all);

struct Loaded { uint32_t *r[4]; const char *row; };
template <int COUNT, bool TRANSPOSED> MACHINE void load_matrices(Loaded **all);

MACHINE void copy_later(unsigned to, const void *from, int size, int valid);
// All but those of the last `groups` groups; with -1 those of no group too.
MACHINE void wait_for_copies(int groups = -1);
// A barrier with a number, of so many threads.
MACHINE void meet_at(int number, int threads);

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
// What went wrong, or null. schedule: bit 0: the last threads first; bit 1: asynchronous copies as late as possible; bit 2: the last
// blocks first, where there are no clusters; resident: blocks that run side by side, of a kernel without static shared memory.
MACHINE const char *launch(const Entry &entry, char *begin, char *end, int blocks, int threads, int shared, const void *parameters,
                           int schedule, int resident);

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
static inline void __threadfence_block() {}
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
template <class... All> static inline void ptx_shared_store(unsigned at, All... words) {
    const unsigned all[] = {words...};
    memcpy(cuda::shared_memory(at, sizeof all, sizeof all), all, sizeof all);
}
static inline void ptx_root(float &to, float x) { to = __builtin_sqrtf(x); }
static inline void ptx_reciprocal(float &to, float x) { to = 1 / x; }
static inline void ptx_reciprocal_root(float &to, float x) { to = 1 / __builtin_sqrtf(x); }
static inline void ptx_mul_to_one(float &to, float a, float b) { to = fminf(fmaxf(a * b, 0.f), 1.f); }  // NaN becomes 0
template <class F> static inline unsigned by_halves(F what) {
    return cuda::float_to_half(what(0)) | (unsigned)cuda::float_to_half(what(16)) << 16;
}
static inline float choose_half_tiles(unsigned x, int shift) { return cuda::half_to_float((uint16_t)(x >> shift)); }
// Rounded once to float32 and once more to half precision; fused is within that.
#define PTX_HALVES(NAME, RESULT)                                          \
    static inline void NAME(unsigned &to, unsigned x, unsigned y) {       \
        to = by_halves([=](int shift) {                                   \
            float a = choose_half_tiles(x, shift), b = choose_half_tiles(y, shift);           \
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
static inline void ptx_abs_halves(unsigned &to, unsigned x) { to = x & 0x7fff7fffu; }
static inline void ptx_fma_halves(unsigned &to, unsigned x, unsigned y, unsigned z) {
    to = by_halves([=](int shift) { return choose_half_tiles(x, shift) * choose_half_tiles(y, shift) + choose_half_tiles(z, shift); });
}
static inline void ptx_fma_halves_to_one(unsigned &to, unsigned x, unsigned y, unsigned z) {
    to = by_halves([=](int shift) { return fminf(fmaxf(choose_half_tiles(x, shift) * choose_half_tiles(y, shift) + choose_half_tiles(z, shift), 0.f), 1.f); });
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
static inline void ptx_mma8_f16(float &d0, float &d1, float &d2, float &d3, unsigned a0, unsigned a1, unsigned b0) {
    ptx_mma_f16(d0, d1, d2, d3, a0, a1, 0, 0, b0, 0);
}

// ---- launching

#if !defined(CUDA_MACHINE)
extern const cuda::Entry cuda_entries[];
extern const int cuda_entry_count;

#define CUDA_EXPORT extern "C" __attribute__((visibility("default")))
CUDA_EXPORT const char *cuda_launch(int entry, int blocks, int threads, int shared, void **arguments, int schedule, int resident) {
    return cuda::launch(cuda_entries[entry], __start_cuda_shared, __stop_cuda_shared, blocks, threads, shared, arguments[0], schedule, resident);
}
CUDA_EXPORT int cuda_count() { return cuda_entry_count; }
CUDA_EXPORT const char *cuda_name(int entry) { return cuda_entries[entry].name; }
CUDA_EXPORT int cuda_parameters(int entry) { return (int)cuda_entries[entry].parameters; }
#endif
