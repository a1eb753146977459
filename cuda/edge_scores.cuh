// Scores of GATv2, z_eh = sum_f att_hf LeakyReLU(x_dst(e)hf + x_src(e)hf), and their gradients. Rows
// of x are the heads side by side.
//
// Forward as sddmm: a group of lanes walks the edges of its row, a head a block of the grid's y.
// Backward, by either end: a sum over that end's edges as in spmm, for which the sums u of both rows
// are computed again; nothing of size E F is kept. Bytes moved, n rows, m edges, H heads, F their
// width: 8 n + m (i + H s) + n H F s + X forward, and as much again for each of the three gradients,
// + m i by source; X is m H F s without reuse in the caches.
#pragma once
#include "sddmm.cuh"
#include "spmm.cuh"

template <class T, class I>
struct Scores {
    const I* indices;
    const T* x_dst;
    const T* x_src;
    const Wide<T>* att;
    T* out;
    Wide<T> slope;
    int width;  // of a head

    template <int V, int G>
    __device__ __forceinline__ void compute(Int64 row, Int64 begin, Int64 end) const {
        typedef Wide<T> W;
        constexpr int AT_ONCE = V > 4 ? 2 : 4;
        const unsigned mask = group_mask<G>();
        const int lane = int(threadIdx.x);
        const Int64 num_heads = gridDim.y, head = blockIdx.y, stride = num_heads * width;
        const T* const a = x_dst + row * stride + head * width;
        const T* const there = x_src + head * width;
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
                    b[u] = there + Int64(__shfl_sync(mask, id, at, G)) * stride;
                }
#pragma unroll 1
                for (int column = lane * V; column < width; column += G * V) {
                    W factor[V], left[V], right[AT_ONCE][V];
                    load<W, V>(att + head * width + column, factor);
                    load<T, V>(a + column, left);
#pragma unroll
                    for (int u = 0; u < AT_ONCE; ++u) load<T, V>(b[u] + column, right[u]);
#pragma unroll
                    for (int u = 0; u < AT_ONCE; ++u)
#pragma unroll
                        for (int k = 0; k < V; ++k) {
                            const W both = left[k] + right[u][k];
                            sum[u] += factor[k] * (both > 0 ? both : slope * both);
                        }
                }
#pragma unroll
                for (int u = 0; u < AT_ONCE; ++u) {
                    const W total = group_sum<G>(sum[u]);
                    if (lane == j + u) mine = total;
                }
            }
            if (base + lane < end) narrow(out[(base + lane) * num_heads + head], mine);
        }
    }
};

// What an edge gives to the gradient by one of its ends, g_eh att (1 or slope), or, without att, to
// the gradient by att itself: g_eh LeakyReLU(u).
template <class T, class I>
struct ScoreBack {
    typedef Wide<T> Value;
    const I* indices;  // of the other ends
    const I* edge;     // where an edge's gradient is; its own place if null
    const T* x_own;
    const T* x_other;
    const T* grad;
    const Wide<T>* att;
    Wide<T> slope;
    int head_width;  // a multiple of V

    template <int V, int G>
    __device__ __forceinline__ void add(Int64 row, Int64 begin, Int64 end, int column, int width,
                                        Wide<T> (&sum)[V]) const {
        typedef Wide<T> W;
        const unsigned mask = group_mask<G>();
        const int lane = int(threadIdx.x);
        const bool inside = column < width;
        const Int64 num_heads = width / head_width, head = column / head_width;
        W own[V] = {}, factor[V] = {};
        if (inside) {
            load<T, V>(x_own + row * width + column, own);
            if (att) load<W, V>(att + column, factor);
        }
        for (Int64 base = begin; base < end; base += G) {
            I other_id = 0, edge_id = 0;
            if (base + lane < end) {
                const Int64 e = base + lane;
                other_id = __ldg(indices + e);
                edge_id = edge ? __ldg(edge + e) : I(e);
            }
            const int count = end - base < G ? int(end - base) : G;
            for (int j = 0; j < count; ++j) {
                const Int64 other_row = __shfl_sync(mask, other_id, j, G);
                const Int64 e = __shfl_sync(mask, edge_id, j, G);
                if (!inside) continue;
                W g[1], other[V];
                load<T, 1>(grad + e * num_heads + head, g);
                load<T, V>(x_other + other_row * width + column, other);
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    const W both = own[k] + other[k];
                    const W share = both <= 0 ? slope * g[0] : g[0];
                    sum[k] += share * (att ? factor[k] : both);
                }
            }
        }
    }
};
