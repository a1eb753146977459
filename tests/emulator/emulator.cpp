// The scheduler behind emulator.h: a block's threads as fibers, one block after another.
#include "emulator.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

namespace emulator {

Lane* self;
dim3 block_index, block_size, grid_size;
void* shared_memory;

namespace {

constexpr std::size_t STACK_BYTES = 64 * 1024;

struct Stacks {
    char* base = nullptr;
    std::size_t count = 0;

    void reserve(std::size_t wanted) {
        if (wanted <= count) return;
        if (base) munmap(base, count * STACK_BYTES);
        count = wanted;
        void* at = mmap(nullptr, count * STACK_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        base = static_cast<char*>(at);
    }
};

Stacks stacks;
std::vector<Lane> lanes;
std::vector<Warp> warps;
void* scheduler;  // where the scheduler's own stack was left
unsigned alive, at_barrier;
bool shuffled;
char error[256];
void (*kernel_body)(void*);
void* kernel_argument;

// Saves the registers that a call preserves on the old stack and takes them from the new one.
#if defined(__x86_64__)
constexpr std::size_t SAVED = 6, RETURN = 6;
__attribute__((naked, noinline)) void change(void** /*save*/, void* /*next*/) {
    asm volatile(
        "pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15\n"
        "movq %rsp, (%rdi); movq %rsi, %rsp\n"
        "popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp; ret");
}
#elif defined(__aarch64__)
constexpr std::size_t SAVED = 20, RETURN = 11;
__attribute__((noinline)) void change(void** save, void* next);
asm("_ZN8emulator12_GLOBAL__N_16changeEPPvS1_:\n"
    "sub sp, sp, #160\n stp x19, x20, [sp]\n stp x21, x22, [sp, #16]\n stp x23, x24, [sp, #32]\n"
    "stp x25, x26, [sp, #48]\n stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n"
    "stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n stp d12, d13, [sp, #128]\n"
    "stp d14, d15, [sp, #144]\n mov x2, sp\n str x2, [x0]\n mov sp, x1\n"
    "ldp x19, x20, [sp]\n ldp x21, x22, [sp, #16]\n ldp x23, x24, [sp, #32]\n"
    "ldp x25, x26, [sp, #48]\n ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n"
    "ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n ldp d12, d13, [sp, #128]\n"
    "ldp d14, d15, [sp, #144]\n add sp, sp, #160\n ret\n");
#else
#error "emulator.cpp: no change of stacks for this processor"
#endif

void name_error(const char* what) {
    std::snprintf(error, sizeof error, "%s (block %u,%u,%u thread %u,%u,%u)", what, block_index.x,
                  block_index.y, block_index.z, self->thread.x, self->thread.y, self->thread.z);
}

// Ends the launch from a fiber: control goes back to the scheduler and to no fiber any more.
void fail(const char* what) {
    name_error(what);
    void* dropped;
    change(&dropped, scheduler);
}

// Leaves a fiber that has to wait for the next one of its warp that has not, or the scheduler.
void leave() {
    Lane* me = self;
    Warp* warp = me->warp;
    warp->ready &= ~(1u << me->lane);
    if (!warp->ready || shuffled) return change(&me->stack_pointer, scheduler);
    const unsigned after = warp->ready & ~((2u << me->lane) - 1);
    self = warp->lanes + __builtin_ctz(after ? after : warp->ready);
    change(&me->stack_pointer, self->stack_pointer);
}

// Does an operation all of whose lanes have come, or have left the kernel.
void complete(Warp* warp, unsigned mask) {
    const unsigned there = mask & warp->waiting;
    const Operation operation = warp->lanes[__builtin_ctz(there)].operation;
    for (unsigned m = there; m; m &= m - 1) {
        Lane& lane = warp->lanes[__builtin_ctz(m)];
        if (lane.mask != mask) return fail("lanes of one warp operation give different masks");
        if (lane.operation != operation) return fail("lanes of one mask call different operations");
        lane.state = State::ready;
    }
    if (!operation(warp->lanes, there)) return fail("a shuffle reads a lane that takes no part");
    warp->waiting &= ~there;
    warp->ready |= there;
}

bool all_there(const Warp* warp, unsigned mask) { return !(mask & ~(warp->waiting | warp->gone)); }

void begin_fiber() {
    kernel_body(kernel_argument);
    Warp* warp = self->warp;
    self->state = State::gone;
    warp->gone |= 1u << self->lane;
    --alive;
    for (unsigned m = warp->waiting; m; m &= m - 1) {  // those that waited for this lane
        Lane& lane = warp->lanes[__builtin_ctz(m)];
        if (lane.state == State::in_operation && all_there(warp, lane.mask))
            complete(warp, lane.mask);
    }
    leave();
}

void prepare(Lane& lane, char* stack) {
    void** top = reinterpret_cast<void**>(stack + STACK_BYTES) - 2;
    top -= SAVED;
    std::memset(top, 0, SAVED * sizeof(void*));
    top[RETURN] = reinterpret_cast<void*>(&begin_fiber);
    lane.stack_pointer = top;
    lane.state = State::ready;
}

void begin_block() {
    const unsigned count = block_size.x * block_size.y * block_size.z;
    for (unsigned i = 0; i < count; ++i) {
        Lane& lane = lanes[i];
        lane.thread = {i % block_size.x, i / block_size.x % block_size.y,
                       i / (block_size.x * block_size.y)};
        lane.lane = i % 32;
        lane.warp = &warps[i / 32];
        prepare(lane, stacks.base + i * STACK_BYTES);
    }
    for (unsigned w = 0; w < warps.size(); ++w) {
        const unsigned in_warp = std::min(32u, count - w * 32);
        const unsigned ready = in_warp == 32 ? ~0u : (1u << in_warp) - 1;
        warps[w] = {&lanes[w * 32], in_warp, 0, 0, ready};
    }
    alive = count;
    at_barrier = 0;
}

// Runs the fibers of a warp until each waits or has ended.
bool run_warp(Warp& warp, std::mt19937& random) {
    bool progress = false;
    unsigned order[32];
    std::iota(order, order + 32, 0u);
    while (warp.ready && !*error) {
        if (shuffled) std::shuffle(order, order + 32, random);
        for (unsigned i : order) {
            if (!(warp.ready >> i & 1)) continue;
            self = &warp.lanes[i];
            change(&scheduler, self->stack_pointer);
            if (*error) return false;
            progress = true;
        }
    }
    return progress;
}

void open_barrier() {
    at_barrier = 0;
    for (Lane& lane : lanes) {
        if (lane.state != State::in_barrier) continue;
        lane.state = State::ready;
        lane.warp->ready |= 1u << lane.lane;
    }
}

void run_block(std::mt19937& random) {
    begin_block();
    std::vector<unsigned> order(warps.size());
    std::iota(order.begin(), order.end(), 0u);
    while (alive) {
        bool progress = false;
        if (shuffled) std::shuffle(order.begin(), order.end(), random);
        for (unsigned w : order) {
            progress |= run_warp(warps[w], random);
            if (*error) return;
        }
        if (alive && at_barrier == alive) {
            open_barrier();
        } else if (alive && !progress) {
            for (Lane& lane : lanes)
                if (lane.state != State::gone) self = &lane;
            return name_error("threads wait at a barrier or an operation that others never reach");
        }
    }
}

}  // namespace

void barrier() {
    self->state = State::in_barrier;
    ++at_barrier;
    leave();
}

void operate(unsigned mask, int source, Operation operation) {
    Lane* me = self;
    Warp* warp = me->warp;
    if (!(mask >> me->lane & 1)) return fail("a lane's mask leaves out the lane itself");
    if (warp->count < 32 && mask >> warp->count) return fail("a mask names lanes that are not");
    me->mask = mask;
    me->source = source;
    me->operation = operation;
    warp->waiting |= 1u << me->lane;
    if (all_there(warp, mask)) return complete(warp, mask);
    me->state = State::in_operation;
    leave();
}

const char* run(const unsigned* dims, std::size_t shared_bytes, unsigned seed,
                void (*body)(void*), void* argument) {
    grid_size = {dims[0], dims[1], dims[2]};
    block_size = {dims[3], dims[4], dims[5]};
    const unsigned count = block_size.x * block_size.y * block_size.z;
    *error = 0;
    shuffled = seed != 0;
    kernel_body = body;
    kernel_argument = argument;
    lanes.resize(count);
    warps.resize((count + 31) / 32);
    stacks.reserve(count);
    std::vector<long> order(long(grid_size.x) * grid_size.y * grid_size.z);
    std::iota(order.begin(), order.end(), 0L);
    std::mt19937 random(seed);
    if (shuffled) std::shuffle(order.begin(), order.end(), random);
    for (long i : order) {
        // A GPU's holds what another block left: NaN makes a read of it unwritten show.
        std::vector<char> shared(shared_bytes, char(0xff));
        shared_memory = shared.data();
        block_index = {unsigned(i % grid_size.x), unsigned(i / grid_size.x % grid_size.y),
                       unsigned(i / (long(grid_size.x) * grid_size.y))};
        run_block(random);
        if (*error) return error;
    }
    return nullptr;
}

}  // namespace emulator
