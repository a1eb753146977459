// sddmm (K6), dot: s_e = x_dst(e) . x_src(e), and add: s_ef = x_dst(e)f + x_src(e)f. Row by row, so
// that x_dst is read once a row.
//
// A group of lanes works on G edges of its row, some at a time: each lane sums its columns, the
// group adds up by shuffles, and lane j keeps the result of edge j, so that G are written together.
// A hub's edges are shared out in strips of 32 to a block's warps; no edge depends on another.
// Bytes moved: m (i + s) + (n + m) F s without reuse of x_src, m (i + s) + (n + u) F s with all.
#pragma once
#include "values.cuh"

template <class T, class I, int V, int G>
__device__ __forceinline__ void dot_edges(const I* indices, const T* a, const T* x_src, T* out,
                                          Int64 begin, Int64 end, int width) {
    typedef Wide<T> W;
    constexpr int AT_ONCE = V > 4 ? 2 : 4;  // more would take registers from other warps
    const unsigned mask = group_mask<G>();
    const int lane = int(threadIdx.x);
    for (Int64 base = begin; base < end; base += G) {
        const I id = base + lane < end ? __ldg(indices + base + lane) : I(0);
        const int count = end - base < G ? int(end - base) : G;
        W mine = 0;
        for (int j = 0; j < count; j += AT_ONCE) {
            W sum[AT_ONCE] = {};
            const T* b[AT_ONCE];
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) {  // beyond the last edge: the last one once more
                const int at = j + u < count ? j + u : count - 1;
                b[u] = x_src + Int64(__shfl_sync(mask, id, at, G)) * width;
            }
#pragma unroll 1  // most rows take one turn; unrolled, the registers of 16 loads
            for (int column = lane * V; column < width; column += G * V) {
                W left[V], right[AT_ONCE][V];
                load<T, V>(a + column, left);
#pragma unroll
                for (int u = 0; u < AT_ONCE; ++u) load<T, V>(b[u] + column, right[u]);
#pragma unroll
                for (int u = 0; u < AT_ONCE; ++u)
#pragma unroll
                    for (int k = 0; k < V; ++k) sum[u] += left[k] * right[u][k];
            }
#pragma unroll
            for (int u = 0; u < AT_ONCE; ++u) {
                const W total = group_sum<G>(sum[u]);
                if (lane == j + u) mine = total;
            }
        }
        if (base + lane < end) narrow(out[base + lane], mine);
    }
}

// Sums of both ends' rows, (E, F): a group writes the edges of its row one after another.
template <class T, class I, int V, int G>
__device__ __forceinline__ void add_ends(const I* indices, const T* a, const T* x_src, T* out,
                                         Int64 begin, Int64 end, int width) {
    typedef Wide<T> W;
    for (int column = int(threadIdx.x) * V; column < width; column += G * V) {
        W left[V];
        load<T, V>(a + column, left);
        for (Int64 e = begin; e < end; ++e) {
            W right[V];
            load<T, V>(x_src + Int64(__ldg(indices + e)) * width + column, right);
#pragma unroll
            for (int k = 0; k < V; ++k) right[k] += left[k];
            store<T, V>(out + e * width + column, right);
        }
    }
}

// What is computed of the two ends of edges [begin, end) of a row.
template <class T, class I, bool ADD>
struct Ends {
    const I* indices;
    const T* x_dst;
    const T* x_src;
    T* out;
    int width;

    template <int V, int G>
    __device__ __forceinline__ void compute(Int64 row, Int64 begin, Int64 end) const {
        const T* const a = x_dst + row * width;
        if (ADD)
            add_ends<T, I, V, G>(indices, a, x_src, out, begin, end, width);
        else
            dot_edges<T, I, V, G>(indices, a, x_src, out, begin, end, width);
    }
};

// block (G, groups); grid (rows / groups).
template <int V, int G, class Edges>
__device__ __forceinline__ void edge_rows(const Int64* indptr, Int64 num_rows, Int64 limit,
                                          const Edges& edges) {
    const Int64 row = Int64(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row >= num_rows) return;
    const Int64 begin = indptr[row], end = indptr[row + 1];
    if (end - begin >= limit) return;
    edges.template compute<V, G>(row, begin, end);
}

// block (32, warps); grid (any). hubs[0] rows follow.
template <int V, class Edges>
__device__ __forceinline__ void edge_hubs(const Int64* hubs, const Int64* indptr,
                                          const Edges& edges) {
    const Int64 count = hubs[0];
    for (Int64 h = blockIdx.x; h < count; h += gridDim.x) {
        const Int64 row = hubs[1 + h], begin = indptr[row], end = indptr[row + 1];
        for (Int64 strip = begin + 32 * threadIdx.y; strip < end; strip += 32 * blockDim.y) {
            const Int64 stop = strip + 32 < end ? strip + 32 : end;
            edges.template compute<V, 32>(row, strip, stop);
        }
    }
}
