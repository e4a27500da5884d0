// The machine that kernels compiled against cuda_on_cpu.hpp run on: threads that take turns, shared memory, products.
#include <stdio.h>
#include <sys/mman.h>

#define CUDA_MACHINE
#include "cuda_on_cpu.hpp"

namespace cuda {

Machine machine;
Fiber *self;

#if defined(__x86_64__)
extern "C" void cuda_switch(Context *from, Context *to);
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
static void cuda_switch(Context *from, Context *to) { swapcontext(&from->c, &to->c); }
static void make(Context &c, char *stack, void (*body)()) {
    getcontext(&c.c);
    c.c.uc_stack.ss_sp = stack;
    c.c.uc_stack.ss_size = STACK;
    c.c.uc_link = nullptr;
    makecontext(&c.c, body, 0);
}
#endif

[[noreturn]] void fail(const char *what) {
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
    memset(machine.begin, 0xff, machine.end - machine.begin);
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
void give_way(bool leave) {
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
void pass_on() {
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

int meet(int any) {
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

char *shared_memory(unsigned at, unsigned size, unsigned alignment) {
    char *shared = at >> 24 ? machine.block[(at >> 24) - 1].shared : self->block->shared;  // of a block of the cluster
    unsigned offset = (at & 0xffffff) - SHARED_BASE;
    if (at % alignment) fail("a misaligned address of shared memory");
    if (offset > (unsigned)machine.shared || offset + size > (unsigned)machine.shared) fail("an address outside of shared memory");
    return shared + offset;
}

float half_to_float(uint16_t h) {
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
uint16_t float_to_half(float x) {
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
float bf16_to_float(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
uint16_t float_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

typedef uint32_t Bits __attribute__((vector_size(32)));
typedef float Floats __attribute__((vector_size(32)));
// Eight numbers of half precision in the low halves of words.
template <bool BF16> static inline Floats widened(Bits h) {
    if (BF16) return (Floats)(h << 16);
    Floats x = (Floats)((h & 0x7fff) << 13) * 0x1p112f;
    Bits special = (Bits)((h & 0x7c00) == 0x7c00);
    return (Floats)((special & (0x7f800000 | (h & 0x3ff) << 13)) | (~special & (Bits)x) | (h & 0x8000) << 16);
}
template <bool BF16> void multiply(Product **all) {
    // A word has a pair of k; the second operand's are ordered k by columns.
    union { Bits pairs[16]; uint32_t word[16][8]; };
    union { Floats wide[32]; float a[16][2][8]; };  // of a row the even k, then the odd
    union { Floats sums[16]; float d[16][8]; };
    for (int lane = 0; lane < LANES; lane++) {
        int g = lane >> 2, t = lane & 3;
        for (int i = 0; i < 4; i++) word[(i & 1) * 8 + g][(i >> 1) * 4 + t] = all[lane]->a[i];
    }
    for (int m = 0; m < 16; m++) {
        wide[2 * m] = widened<BF16>(pairs[m] & 0xffff);
        wide[2 * m + 1] = widened<BF16>(pairs[m] >> 16);
    }
    for (int n = 0; n < all[0]->eights; n++) {
        Floats b[16];
        for (int lane = 0; lane < LANES; lane++) {
            int g = lane >> 2, t = lane & 3;
            const Product &p = *all[lane];
            for (int i = 0; i < 2; i++) word[i * 4 + t][g] = p.b[n][i];
            for (int i = 0; i < 4; i++) d[(i >> 1) * 8 + g][2 * t + (i & 1)] = *p.d[4 * n + i];
        }
        for (int k = 0; k < 8; k++) {
            b[2 * k] = widened<BF16>(pairs[k] & 0xffff);
            b[2 * k + 1] = widened<BF16>(pairs[k] >> 16);
        }
        for (int m = 0; m < 16; m += 4) {  // of four rows together: a sum waits for the one before
            Floats sum[4] = {sums[m], sums[m + 1], sums[m + 2], sums[m + 3]};
#pragma GCC unroll 16
            for (int k = 0; k < 16; k++)
#pragma GCC unroll 4
                for (int i = 0; i < 4; i++) sum[i] += a[m + i][k & 1][k >> 1] * b[k];
            for (int i = 0; i < 4; i++) sums[m + i] = sum[i];
        }
        for (int lane = 0; lane < LANES; lane++) {
            int g = lane >> 2, t = lane & 3;
            for (int i = 0; i < 4; i++) *all[lane]->d[4 * n + i] = d[(i >> 1) * 8 + g][2 * t + (i & 1)];
        }
    }
}
template void multiply<false>(Product **);
template void multiply<true>(Product **);

template <int COUNT, bool TRANSPOSED> void load_matrices(Loaded **all) {
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
template void load_matrices<2, false>(Loaded **);
template void load_matrices<4, false>(Loaded **);
template void load_matrices<4, true>(Loaded **);

static inline void copy_now(const Copy &c) {
    if (c.valid) memcpy(c.to, c.from, c.valid);
    memset(c.to + c.valid, 0, c.size - c.valid);
}
void copy_later(unsigned to, const void *from, int size, int valid) {
    Fiber &f = *self;
    aligned(from, size);
    Copy copy = {shared_memory(to, size, size), (const char *)from, size, valid, f.group};
    if (machine.late) {
        if (f.copies == 1024) fail("too many copies under way");
        f.copy[f.copies++] = copy;
    } else
        copy_now(copy);
}
void wait_for_copies(int groups) {
    Fiber &f = *self;
    int left = 0;
    for (int i = 0; i < f.copies; i++)
        if (f.copy[i].group < f.group - groups)
            copy_now(f.copy[i]);
        else
            f.copy[left++] = f.copy[i];
    f.copies = left;
}

void meet_at(int number, int threads) {
    Block &b = *self->block;
    int before = b.turns[number];
    if (++b.named[number] == threads) {
        b.named[number] = 0;
        b.turns[number]++;
    }
    while (b.turns[number] == before) pass_on();
}

// Once per process, for 8 blocks of 1024 threads: what no kernel touches takes no memory.
static char *pages(size_t size) {
    void *found = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return found == MAP_FAILED ? nullptr : (char *)found;
}
static bool allocate(Block &b) {
    if (b.shared) return true;
    b.fibers = (Fiber *)pages(sizeof(Fiber) * MOST_THREADS);
    b.stacks = pages((size_t)STACK * MOST_THREADS);
    char *shared = pages(MOST_SHARED + 2 * BESIDE);
    if (!b.fibers || !b.stacks || !shared) return false;
    b.shared = shared + BESIDE;
    return true;
}

const char *launch(const Entry &e, char *begin, char *end, int blocks, int threads, int shared, const void *given, int schedule,
                   int resident) {
    Machine &m = machine;
    if (threads > e.most_threads || threads > MOST_THREADS || threads % LANES) return "more threads than __launch_bounds__";
    if (blocks <= 0) return "an empty grid";
    if (blocks % e.cluster) return "a part of a cluster";
    m.shared = (shared + 15) / 16 * 16;
    if (m.shared > MOST_SHARED) return "more shared memory than the machine has";
    alignas(16) static char parameters[4096];
    memcpy(parameters, given, e.parameters);
    m.cluster = e.cluster;
    m.met = m.meetings = 0;
    if (e.cluster > 1) resident = e.cluster;
    m.resident = resident < blocks ? resident : blocks;
    if (m.resident > MOST_RESIDENT) m.resident = MOST_RESIDENT;
    m.begin = begin, m.end = end;
    if (begin != end) m.resident = 1;
    m.threads = threads;
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
    for (int i = 0; i < MOST_RESIDENT; i++) m.block[i].running = false;
    for (int i = 0; i < m.resident; i++)
        if (!allocate(m.block[i])) return "no memory for threads";
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
    return m.error[0] ? m.error : nullptr;
}

}  // namespace cuda
