// spmm, sum and mean: y_d = sum_e w_e x_src(e), divided by the degree for a mean.
//
//   K1, K1s  sum_rows  a group of 32, 16, 8 or 4 lanes a row, as many as its width keeps busy
//   K2       sum_hubs  a block a row, for the rows that K1 leaves out
//   K3       sum_strips, sum_parts  for the longest: a block a strip of edges, then its parts
//   K5       the same over the transposed order, whose edge e is edge[e] in the order of the weights
//   K10      the same with rows of two tiers, as K9 has them
//
// Sums have one order, whatever the launch: no atomics. Bytes moved, n rows, m edges, F width,
// s bytes a value, i an index, u distinct sources: 8 n + m (i + 4 weighted) + X + n F s, where X is
// m F s without reuse in the caches and u F s with perfect reuse; K5 adds m i for `edge`.
#pragma once
#include "values.cuh"

// Rows of a matrix by their number.
template <class T, class I>
struct Matrix {
    typedef I Place;
    const T* x;
    __device__ __forceinline__ I place(I source) const { return source; }
    __device__ __forceinline__ const T* row(I place, int width) const {
        return x + Int64(place) * width;
    }
};

// Rows of two tiers (K10, as K9 has them): source s is node ids[s], whose row is cache[slot], or
// host[node] where the slot is below 0. The lane that reads an edge finds the place of its row, once
// for the group. A host row crosses the link once an edge: gather first where sources are reused.
template <class T, class I>
struct Tiers {
    typedef Int64 Place;  // of the cache, or below 0 the complement of the host's
    const Int64* ids;
    const int* slot;
    const T* cache;
    const T* host;
    __device__ __forceinline__ Int64 place(I source) const {
        const Int64 node = __ldg(ids + source), held = __ldg(slot + node);
        return held >= 0 ? held : ~node;
    }
    __device__ __forceinline__ const T* row(Int64 place, int width) const {
        return place >= 0 ? cache + place * width : host + ~place * width;
    }
};

// What comes over the edges of a CSR: w_e x_src(e).
template <class T, class I, class Rows>
struct Messages {
    typedef T Value;
    const I* indices;
    const I* edge;          // where an edge's weight is; its own place if null
    const Wide<T>* weight;  // 1 if null
    const Wide<T>* scale;   // a factor for each source; 1 if null
    Rows rows;

    // Adds those of edges [begin, end) of a row at V columns from `column`.
    //
    // The group reads G ids in one coalesced load and hands them round by shuffles; four rows of x
    // are in flight at once. Lanes beyond the width take part in the shuffles alone.
    template <int V, int G>
    __device__ __forceinline__ void add(Int64, Int64 begin, Int64 end, int column, int width,
                                        Wide<T> (&sum)[V]) const {
        typedef Wide<T> W;
        const unsigned mask = group_mask<G>();
        const int lane = int(threadIdx.x);
        const bool plain = !weight && !scale, inside = column < width;
        for (Int64 base = begin; base < end; base += G) {
            typename Rows::Place place = 0;
            W factor = 1;
            if (base + lane < end) {
                const Int64 e = base + lane;
                const I id = __ldg(indices + e);
                place = rows.place(id);
                if (weight) factor = __ldg(weight + (edge ? Int64(__ldg(edge + e)) : e));
                if (scale) factor *= __ldg(scale + id);
            }
            const int count = end - base < G ? int(end - base) : G;
            int j = 0;
            for (; j + 4 <= count; j += 4) {
                W row[4][V], w[4];
#pragma unroll
                for (int u = 0; u < 4; ++u) {
                    const auto at = __shfl_sync(mask, place, j + u, G);
                    w[u] = plain ? W(1) : __shfl_sync(mask, factor, j + u, G);
                    if (inside) load<T, V>(rows.row(at, width) + column, row[u]);
                }
                if (inside) {
#pragma unroll
                    for (int u = 0; u < 4; ++u)
#pragma unroll
                        for (int k = 0; k < V; ++k) sum[k] += w[u] * row[u][k];
                }
            }
            for (; j < count; ++j) {
                const auto at = __shfl_sync(mask, place, j, G);
                const W w = plain ? W(1) : __shfl_sync(mask, factor, j, G);
                if (inside) {
                    W row[V];
                    load<T, V>(rows.row(at, width) + column, row);
#pragma unroll
                    for (int k = 0; k < V; ++k) sum[k] += w * row[k];
                }
            }
        }
    }
};

template <class T, int V>
__device__ __forceinline__ void finish_row(T* y, Wide<T> (&sum)[V], Int64 degree, int mean) {
    if (mean && degree > 1) {
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] /= Wide<T>(degree);
    }
    store<T, V>(y, sum);
}

// block (G, groups); grid (rows / groups, width / (G V)). Rows of `limit` edges and more are left.
template <int V, int G, class Terms>
__device__ __forceinline__ void sum_rows(const Int64* indptr, Int64 num_rows, Int64 limit,
                                         const Terms& terms, typename Terms::Value* y, int width,
                                         int mean) {
    typedef typename Terms::Value T;
    const Int64 row = Int64(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row >= num_rows) return;
    const Int64 begin = indptr[row], end = indptr[row + 1];
    if (end - begin >= limit) return;
    const int column = int(blockIdx.y * G + threadIdx.x) * V;
    Wide<T> sum[V] = {};
    terms.template add<V, G>(row, begin, end, column, width, sum);
    if (column < width) finish_row<T, V>(y + row * width + column, sum, end - begin, mean);
}

// Adds up the messages of edges [begin, end) of a row over a block (32, warps), warps a power of two: warps
// take 32 edges in turn, a tree in shared memory (32 V warps values) adds up theirs. The result is
// the first warp's.
template <int V, class Terms>
__device__ __forceinline__ void sum_in_block(const Terms& terms, Int64 row, Int64 begin, Int64 end,
                                             int column, int width,
                                             Wide<typename Terms::Value> (&sum)[V]) {
    typedef Wide<typename Terms::Value> W;
    DYNAMIC_SHARED(W, sums);
    const int num_warps = int(blockDim.y);
    W* const own = sums + threadIdx.y * 32 * V + threadIdx.x;
    for (Int64 first = begin + 32 * threadIdx.y; first < end; first += 32 * num_warps) {
        const Int64 stop = first + 32 < end ? first + 32 : end;
        terms.template add<V, 32>(row, first, stop, column, width, sum);
    }
#pragma unroll
    for (int k = 0; k < V; ++k) own[k * 32] = sum[k];
    __syncthreads();
    for (int half = num_warps / 2; half; half /= 2) {
        if (int(threadIdx.y) < half) {
#pragma unroll
            for (int k = 0; k < V; ++k) own[k * 32] += own[(half * V + k) * 32];
        }
        __syncthreads();
    }
    if (threadIdx.y == 0) {  // reads its own place: the others may go on to other edges
#pragma unroll
        for (int k = 0; k < V; ++k) sum[k] = own[k * 32];
    }
}

// block (32, warps); grid (any, width / (32 V)). hubs[0] rows follow.
template <int V, class Terms>
__device__ __forceinline__ void sum_hubs(const Int64* hubs, const Int64* indptr, const Terms& terms,
                                         typename Terms::Value* y, int width, int mean) {
    typedef typename Terms::Value T;
    const int column = int(blockIdx.y * 32 + threadIdx.x) * V;
    const Int64 count = hubs[0];
    for (Int64 h = blockIdx.x; h < count; h += gridDim.x) {
        const Int64 row = hubs[1 + h], begin = indptr[row], end = indptr[row + 1];
        Wide<T> sum[V] = {};
        sum_in_block<V>(terms, row, begin, end, column, width, sum);
        if (threadIdx.y == 0 && column < width)
            finish_row<T, V>(y + row * width + column, sum, end - begin, mean);
    }
}

// The longest rows, `strip` edges and more each, would keep one block busy after all others. So the
// edges are cut in strips at multiples of `strip`, whatever the rows: a strip meets at most one row
// of `rows` that began before it and one that begins in it, whose sums go to its two parts.
//
// block (32, warps); grid (edges / strip, width / (32 V)); parts (2 strips, width).
template <int V, class Terms>
__device__ __forceinline__ void sum_strips(const Int64* rows, const Int64* indptr,
                                           const Terms& terms, Wide<typename Terms::Value>* parts,
                                           Int64 strip, int width) {
    typedef Wide<typename Terms::Value> W;
    const Int64 first = blockIdx.x * strip, stop = first + strip;
    const int column = int(blockIdx.y * 32 + threadIdx.x) * V;
    Int64 low = 0, high = rows[0];  // the first row that ends within or behind the strip
    while (low < high) {
        const Int64 middle = (low + high) / 2;
        if (indptr[rows[1 + middle] + 1] <= first)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < rows[0] && indptr[rows[1 + low]] < stop; ++low) {
        const Int64 row = rows[1 + low], begin = indptr[row], end = indptr[row + 1];
        W sum[V] = {};
        sum_in_block<V>(terms, row, begin > first ? begin : first, end < stop ? end : stop,
                        column, width, sum);
        if (threadIdx.y == 0 && column < width)
            store<W, V>(parts + (2 * Int64(blockIdx.x) + (begin >= first)) * width + column, sum);
    }
}

// Adds up the parts of each long row, in order. block (32, 1); grid (any, width / (32 V)).
template <class T, int V>
__device__ __forceinline__ void sum_parts(const Int64* rows, const Int64* indptr,
                                          const Wide<T>* parts, T* y, Int64 strip, int width,
                                          int mean) {
    typedef Wide<T> W;
    const int column = int(blockIdx.y * 32 + threadIdx.x) * V;
    const Int64 count = rows[0];
    if (column >= width) return;
    for (Int64 h = blockIdx.x; h < count; h += gridDim.x) {
        const Int64 row = rows[1 + h], begin = indptr[row], end = indptr[row + 1];
        W sum[V] = {};
        for (Int64 s = begin / strip; s * strip < end; ++s) {
            W part[V];
            load<W, V>(parts + (2 * s + (begin >= s * strip)) * width + column, part);
#pragma unroll
            for (int k = 0; k < V; ++k) sum[k] += part[k];
        }
        finish_row<T, V>(y + row * width + column, sum, end - begin, mean);
    }
}
