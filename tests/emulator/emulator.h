// CUDA's language and intrinsics for a host compiler, so that the sources in cuda/ run on a CPU.
//
// Every thread of a block is a fiber; a block's fibers share one OS thread and change places at
// barriers and at warp operations alone (emulator.cpp). What CUDA leaves undefined is an error here:
// a mask without its caller, lanes of one mask in different operations, a shuffle from a lane that
// takes no part, a barrier that some threads never reach.
//
// Only what the kernels use is here. Not covered: tensor cores, asynchronous copies, textures,
// atomics, waits of one block for another, weak memory. Kernels take dynamic shared memory only,
// since it is filled anew with NaN for every block.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#define __device__
#define __forceinline__ inline __attribute__((always_inline))

struct dim3 {
    unsigned x = 1, y = 1, z = 1;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

namespace emulator {

struct Lane;
// Computes a warp operation for all lanes of a mask that are there; false where one may not ask.
typedef bool (*Operation)(Lane* lanes, unsigned there);

struct Warp {
    Lane* lanes;
    unsigned count, waiting, gone, ready;
};
enum class State { ready, in_operation, in_barrier, gone };
struct Lane {
    void* stack_pointer;
    dim3 thread;
    unsigned lane;
    Warp* warp;
    State state;
    unsigned mask;
    int source;
    std::uint64_t in, out;
    Operation operation;
};

extern Lane* self;
extern dim3 block_index, block_size, grid_size;
extern void* shared_memory;

// A launch's error, or null. `dims` are grid and block; a seed other than 0 shuffles the order of
// blocks, warps and lanes.
const char* run(const unsigned* dims, std::size_t shared_bytes, unsigned seed,
                void (*body)(void*), void* argument);
void barrier();
void operate(unsigned mask, int source, Operation operation);

inline bool shuffle(Lane* lanes, unsigned there) {
    for (unsigned m = there; m; m &= m - 1) {
        Lane& lane = lanes[__builtin_ctz(m)];
        if (!(there >> lane.source & 1)) {
            self = &lane;
            return false;
        }
        lane.out = lanes[lane.source].in;
    }
    return true;
}
inline bool ballot(Lane* lanes, unsigned there) {
    unsigned votes = 0;
    for (unsigned m = there; m; m &= m - 1)
        votes |= unsigned(lanes[__builtin_ctz(m)].in != 0) << __builtin_ctz(m);
    for (unsigned m = there; m; m &= m - 1) lanes[__builtin_ctz(m)].out = votes;
    return true;
}

template <class T>
T exchange(unsigned mask, T value, int source, Operation operation) {
    static_assert(sizeof(T) <= 8, "a warp operation takes at most 8 bytes");
    self->in = 0;
    std::memcpy(&self->in, &value, sizeof value);
    operate(mask, source, operation);
    std::memcpy(&value, &self->out, sizeof value);
    return value;
}

// What a kernel takes, a letter for kind and a digit for size each: p8 i8 i4 f4.
template <class A>
void describe(char*& at) {
    *at++ = std::is_pointer_v<A> ? 'p' : std::is_integral_v<A> ? 'i' : 'f';
    *at++ = char('0' + sizeof(A));
}
template <class... A>
const char* signature(void (*)(A...)) {
    static char text[2 * sizeof...(A) + 1];
    char* at = text;
    (describe<A>(at), ...);
    return text;
}

// Unpacks an array of pointers to arguments, the form that cuLaunchKernel takes.
template <class... A, std::size_t... N>
const char* launch(void (*kernel)(A...), const unsigned* dims, std::size_t shared_bytes,
                   unsigned seed, void** args, std::index_sequence<N...>) {
    struct Call {
        void (*kernel)(A...);
        void** args;
    } call{kernel, args};
    auto body = [](void* it) {
        Call* call = static_cast<Call*>(it);
        call->kernel(*static_cast<A*>(call->args[N])...);
    };
    return run(dims, shared_bytes, seed, body, &call);
}
template <class... A>
const char* launch(void (*kernel)(A...), const unsigned* dims, std::size_t shared_bytes,
                   unsigned seed, void** args) {
    return launch(kernel, dims, shared_bytes, seed, args, std::index_sequence_for<A...>{});
}

}  // namespace emulator

#define KERNEL(name, ...)                                                                \
    extern "C" void name(__VA_ARGS__);                                                   \
    extern "C" const char* name##_signature() { return emulator::signature(name); }      \
    extern "C" const char* name##_launch(const unsigned* dims, std::size_t shared_bytes, \
                                         unsigned seed, void** args) {                   \
        return emulator::launch(name, dims, shared_bytes, seed, args);                   \
    }                                                                                    \
    extern "C" void name(__VA_ARGS__)
#define DYNAMIC_SHARED(type, name) type* const name = static_cast<type*>(emulator::shared_memory)

#define threadIdx (emulator::self->thread)
#define blockIdx emulator::block_index
#define blockDim emulator::block_size
#define gridDim emulator::grid_size

inline void __syncthreads() { emulator::barrier(); }

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    const int lane = int(emulator::self->lane);
    return emulator::exchange(mask, value, (lane & ~(width - 1)) | (source & (width - 1)),
                              emulator::shuffle);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
    const int lane = int(emulator::self->lane), source = lane ^ bits;
    return emulator::exchange(mask, value, source > (lane | (width - 1)) ? lane : source,
                              emulator::shuffle);
}
inline unsigned __ballot_sync(unsigned mask, int vote) {
    return unsigned(emulator::exchange<std::uint64_t>(mask, vote != 0, 0, emulator::ballot));
}

using std::exp;
using std::log;

template <class T>
T __ldg(const T* p) {
    return *p;
}
inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
inline float __uint_as_float(unsigned bits) {
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline unsigned __float_as_uint(float value) {
    unsigned bits;
    std::memcpy(&bits, &value, 4);
    return bits;
}
inline float half_bits_to_float(unsigned short bits) {
    _Float16 value;
    std::memcpy(&value, &bits, 2);
    return float(value);
}
inline unsigned short float_to_half_bits(float value) {
    const _Float16 narrow = _Float16(value);
    unsigned short bits;
    std::memcpy(&bits, &narrow, 2);
    return bits;
}
