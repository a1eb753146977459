// Softmax over each row's edges (K7), head by head: p_eh = exp(s_eh - max_d) / sum_d exp(s - max_d).
//
// Scores are (E, H) in row order. A warp takes a row: its lanes are `head_lanes` heads, a power of
// two, times edges, so that a load is contiguous; a maximum and the sum that belongs to it are kept
// in one pass, merged over the edges' lanes by shuffles, and a second pass writes. A hub's row is
// a block's, whose warps merge in shared memory. Bytes moved: 3 m H s + 8 n; backward 5 m H s.
#pragma once
#include "values.cuh"

// The largest score so far and the sum of exp(score - largest).
template <class W>
struct Softmax {
    W largest, sum;

    __device__ __forceinline__ void add(W other_largest, W other_sum) {
        const W both = largest < other_largest ? other_largest : largest;
        const W shift = both == W(minus_infinity()) ? W(0) : both;  // nothing yet: inf - inf is no number
        sum = sum * exp(largest - shift) + other_sum * exp(other_largest - shift);
        largest = both;
    }
};

struct Place {
    int head, first, step;  // an edge's lane starts at `first` and takes every `step`th
};
__device__ __forceinline__ Place place_in_row(int head_lanes, int warp, int num_warps) {
    const int lane = int(threadIdx.x), edges = 32 / head_lanes;
    return {int(blockIdx.y) * head_lanes + lane % head_lanes, warp * edges + lane / head_lanes,
            num_warps * edges};
}

template <class T>
__device__ __forceinline__ Softmax<Wide<T>> softmax_of(const T* scores, Int64 begin, Int64 end,
                                                       int heads, int head_lanes, Place at) {
    typedef Wide<T> W;
    Softmax<W> own = {W(minus_infinity()), W(0)};
    if (at.head < heads)
        for (Int64 e = begin + at.first; e < end; e += at.step)
            own.add(widen(scores[e * heads + at.head]), W(1));
    for (int d = 16; d >= head_lanes; d /= 2) {
        const W largest = __shfl_xor_sync(0xffffffffu, own.largest, d);
        const W sum = __shfl_xor_sync(0xffffffffu, own.sum, d);
        own.add(largest, sum);
    }
    return own;
}

template <class T>
__device__ __forceinline__ void write_softmax(const T* scores, T* out, Int64 begin, Int64 end,
                                              int heads, Place at, Softmax<Wide<T>> row) {
    if (at.head >= heads) return;
    for (Int64 e = begin + at.first; e < end; e += at.step) {
        const Int64 i = e * heads + at.head;
        narrow(out[i], exp(widen(scores[i]) - row.largest) / row.sum);
    }
}

// block (32, warps); grid (rows / warps, heads / head_lanes).
template <class T>
__device__ __forceinline__ void softmax_rows(const Int64* indptr, Int64 num_rows, Int64 limit,
                                             const T* scores, T* out, int heads, int head_lanes) {
    const Int64 row = Int64(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row >= num_rows) return;
    const Int64 begin = indptr[row], end = indptr[row + 1];
    if (end - begin >= limit) return;
    const Place at = place_in_row(head_lanes, 0, 1);
    const Softmax<Wide<T>> whole = softmax_of(scores, begin, end, heads, head_lanes, at);
    write_softmax(scores, out, begin, end, heads, at, whole);
}

// block (32, warps); grid (any, heads / head_lanes); shared 2 * 32 * warps values.
template <class T>
__device__ __forceinline__ void softmax_hubs(const Int64* hubs, const Int64* indptr,
                                             const T* scores, T* out, int heads, int head_lanes) {
    typedef Wide<T> W;
    DYNAMIC_SHARED(Softmax<W>, parts);
    const int num_warps = int(blockDim.y);
    const Place at = place_in_row(head_lanes, int(threadIdx.y), num_warps);
    const Int64 count = hubs[0];
    for (Int64 h = blockIdx.x; h < count; h += gridDim.x) {
        const Int64 row = hubs[1 + h], begin = indptr[row], end = indptr[row + 1];
        parts[threadIdx.y * 32 + threadIdx.x] =
            softmax_of(scores, begin, end, heads, head_lanes, at);
        __syncthreads();
        Softmax<W> whole = {W(minus_infinity()), W(0)};
        for (int w = 0; w < num_warps; ++w) {
            const Softmax<W> part = parts[w * 32 + threadIdx.x];
            whole.add(part.largest, part.sum);
        }
        write_softmax(scores, out, begin, end, heads, at, whole);
        __syncthreads();  // the next row's parts come to the same place
    }
}

// Backward: ds_e = p_e (g_e - sum over the row of p g).
template <class T>
__device__ __forceinline__ Wide<T> product_of(const T* p, const T* grad, Int64 begin, Int64 end,
                                              int heads, int head_lanes, Place at) {
    Wide<T> sum = 0;
    if (at.head < heads)
        for (Int64 e = begin + at.first; e < end; e += at.step) {
            const Int64 i = e * heads + at.head;
            sum += widen(p[i]) * widen(grad[i]);
        }
    for (int d = 16; d >= head_lanes; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    return sum;
}

template <class T>
__device__ __forceinline__ void write_gradient(const T* p, const T* grad, T* out, Int64 begin,
                                               Int64 end, int heads, Place at, Wide<T> sum) {
    if (at.head >= heads) return;
    for (Int64 e = begin + at.first; e < end; e += at.step) {
        const Int64 i = e * heads + at.head;
        narrow(out[i], widen(p[i]) * (widen(grad[i]) - sum));
    }
}

template <class T>
__device__ __forceinline__ void gradient_rows(const Int64* indptr, Int64 num_rows, Int64 limit,
                                              const T* p, const T* grad, T* out, int heads,
                                              int head_lanes) {
    const Int64 row = Int64(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row >= num_rows) return;
    const Int64 begin = indptr[row], end = indptr[row + 1];
    if (end - begin >= limit) return;
    const Place at = place_in_row(head_lanes, 0, 1);
    const Wide<T> sum = product_of(p, grad, begin, end, heads, head_lanes, at);
    write_gradient(p, grad, out, begin, end, heads, at, sum);
}

template <class T>
__device__ __forceinline__ void gradient_hubs(const Int64* hubs, const Int64* indptr, const T* p,
                                              const T* grad, T* out, int heads, int head_lanes) {
    DYNAMIC_SHARED(Wide<T>, parts);
    const int num_warps = int(blockDim.y);
    const Place at = place_in_row(head_lanes, int(threadIdx.y), num_warps);
    const Int64 count = hubs[0];
    for (Int64 h = blockIdx.x; h < count; h += gridDim.x) {
        const Int64 row = hubs[1 + h], begin = indptr[row], end = indptr[row + 1];
        parts[threadIdx.y * 32 + threadIdx.x] =
            product_of(p, grad, begin, end, heads, head_lanes, at);
        __syncthreads();
        Wide<T> sum = 0;
        for (int w = 0; w < num_warps; ++w) sum += parts[w * 32 + threadIdx.x];
        write_gradient(p, grad, out, begin, end, heads, at, sum);
        __syncthreads();  // the next row's parts come to the same place
    }
}
