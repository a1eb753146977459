// Values and how they travel: storage types, the types sums are kept in, vector loads and stores.
//
// One source for nvcc, NVRTC and, with GNNX_EMULATOR, a host compiler. No header is included, not
// even CUDA's: NVRTC then needs to find none on a user's machine. That is why the two 16-bit types
// and their conversions are here.
#pragma once

#ifdef GNNX_EMULATOR
#include "emulator.h"
#else
#ifndef KERNEL
#define KERNEL(name, ...) extern "C" __global__ void name(__VA_ARGS__)
#endif
#define DYNAMIC_SHARED(type, name)                                      \
    extern __shared__ __align__(16) unsigned char shared_bytes[];       \
    type* const name = reinterpret_cast<type*>(shared_bytes)
__device__ __forceinline__ float half_bits_to_float(unsigned short bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}
__device__ __forceinline__ unsigned short float_to_half_bits(float value) {
    unsigned short bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}
#endif

typedef long long Int64;

struct Half {
    unsigned short bits;
};
struct Bfloat16 {
    unsigned short bits;
};

// What a type is computed in.
template <class T>
struct WideOf {
    typedef float type;
};
template <>
struct WideOf<double> {
    typedef double type;
};
template <>
struct WideOf<int> {
    typedef int type;
};
template <>
struct WideOf<Int64> {
    typedef Int64 type;
};
template <class T>
using Wide = typename WideOf<T>::type;

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ double widen(double x) { return x; }
__device__ __forceinline__ int widen(int x) { return x; }
__device__ __forceinline__ Int64 widen(Int64 x) { return x; }
__device__ __forceinline__ float widen(Half x) { return half_bits_to_float(x.bits); }
__device__ __forceinline__ float widen(Bfloat16 x) { return __uint_as_float(unsigned(x.bits) << 16); }

__device__ __forceinline__ void narrow(float& to, float x) { to = x; }
__device__ __forceinline__ void narrow(double& to, double x) { to = x; }
__device__ __forceinline__ void narrow(int& to, int x) { to = x; }
__device__ __forceinline__ void narrow(Int64& to, Int64 x) { to = x; }
__device__ __forceinline__ void narrow(Half& to, float x) { to.bits = float_to_half_bits(x); }
// To nearest, ties to even; in integers, since the instruction needs sm_80 and a row ends but once.
__device__ __forceinline__ void narrow(Bfloat16& to, float x) {
    const unsigned bits = __float_as_uint(x);
    to.bits = static_cast<unsigned short>(x == x ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : 0x7fff);
}

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// As many bytes as one instruction moves.
template <int BYTES>
struct PacketOf;
template <>
struct PacketOf<1> {
    typedef unsigned char type;
};
template <>
struct PacketOf<2> {
    typedef unsigned short type;
};
template <>
struct PacketOf<4> {
    typedef unsigned type;
};
template <>
struct PacketOf<8> {
    typedef uint2 type;
};
template <>
struct PacketOf<16> {
    typedef uint4 type;
};
template <class T, int V>
union Vector {
    typename PacketOf<sizeof(T) * V>::type packet;
    T values[V];
};

// Reads V values through the read-only path and widens them, in one load where they fit 16 bytes;
// `from` is aligned to all of them, or to 16.
template <class T, int V>
__device__ __forceinline__ void load(const T* from, Wide<T> (&to)[V]) {
    constexpr int STEP = V * sizeof(T) > 16 ? 16 / sizeof(T) : V;
#pragma unroll
    for (int first = 0; first < V; first += STEP) {
        Vector<T, STEP> read;
        read.packet = __ldg(reinterpret_cast<const decltype(read.packet)*>(from + first));
#pragma unroll
        for (int k = 0; k < STEP; ++k) to[first + k] = widen(read.values[k]);
    }
}

template <class T, int V>
__device__ __forceinline__ void store(T* to, const Wide<T> (&from)[V]) {
    constexpr int STEP = V * sizeof(T) > 16 ? 16 / sizeof(T) : V;
#pragma unroll
    for (int first = 0; first < V; first += STEP) {
        Vector<T, STEP> written;
#pragma unroll
        for (int k = 0; k < STEP; ++k) narrow(written.values[k], from[first + k]);
        *reinterpret_cast<decltype(written.packet)*>(to + first) = written.packet;
    }
}

// The lanes of a warp that share a row: G of them, side by side, G a power of two. A block is
// (G, groups), so that threadIdx.x is a lane's place in its group.
template <int G>
__device__ __forceinline__ unsigned group_mask() {
    if (G == 32) return 0xffffffffu;
    return ((1u << (G % 32)) - 1u) << (threadIdx.y * G % 32);
}

// Sum over a group, in the same order for every lane.
template <int G, class W>
__device__ __forceinline__ W group_sum(W value) {
#pragma unroll
    for (int d = G / 2; d; d /= 2) value += __shfl_xor_sync(group_mask<G>(), value, d, G);
    return value;
}
