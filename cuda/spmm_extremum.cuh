// spmm, max and min (K4): y_d = w_e x_src(e) of the edge e = arg_d that is extreme, column by column.
//
// The first of equal edges is taken, a NaN before every number, and the first of those: so the
// result depends on no order of work. A min is the max of negated factors. Rows go to groups of
// lanes or, the long ones, to blocks, as in spmm.cuh. Bytes moved: as a sum, and n F i for arg.
#pragma once
#include "spmm.cuh"

// The extreme message of each of V columns, and where it came from; -1 before the first.
template <class T, class I, int V>
struct Extreme {
    Wide<T> value[V];
    I at[V];
};

// Whether `value` comes before what stands, where it came later.
template <class W>
__device__ __forceinline__ bool beats(W value, W standing) {
    return !(value <= standing) && standing == standing;
}

template <class T, class I, int V, int G>
__device__ __forceinline__ void take_edges(const I* indices, const Wide<T>* weight, Wide<T> sign,
                                           const T* x, Int64 begin, Int64 end, int column,
                                           int width, Extreme<T, I, V>& best) {
    typedef Wide<T> W;
    const unsigned mask = group_mask<G>();
    const int lane = int(threadIdx.x);
    const bool inside = column < width;
    for (Int64 base = begin; base < end; base += G) {
        I id = 0;
        W factor = sign;
        if (base + lane < end) {
            id = __ldg(indices + base + lane);
            if (weight) factor = sign * __ldg(weight + base + lane);
        }
        const int count = end - base < G ? int(end - base) : G;
        for (int j = 0; j < count; j += 4) {
            W row[4][V], w[4];
#pragma unroll
            for (int u = 0; u < 4; ++u) {  // beyond the last edge: the last one once more
                const int at = j + u < count ? j + u : count - 1;
                const Int64 source = __shfl_sync(mask, id, at, G);
                w[u] = __shfl_sync(mask, factor, at, G);
                if (inside) load<T, V>(x + source * width + column, row[u]);
            }
            if (!inside) continue;
#pragma unroll
            for (int u = 0; u < 4; ++u) {
                const int at = j + u < count ? j + u : count - 1;
                const I e = I(base + at);
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    const W value = w[u] * row[u][k];
                    const bool better = best.at[k] < 0 || beats(value, best.value[k]);
                    best.value[k] = better ? value : best.value[k];
                    best.at[k] = better ? e : best.at[k];
                }
            }
        }
    }
}

template <class T, class I, int V>
__device__ __forceinline__ void finish_extreme(T* y, I* arg, Extreme<T, I, V>& best, Wide<T> sign) {
#pragma unroll
    for (int k = 0; k < V; ++k) best.value[k] = best.at[k] < 0 ? Wide<T>(0) : sign * best.value[k];
    store<T, V>(y, best.value);
    store<I, V>(arg, best.at);
}

template <class T, class I, int V>
__device__ __forceinline__ Extreme<T, I, V> no_extreme() {
    Extreme<T, I, V> best;
#pragma unroll
    for (int k = 0; k < V; ++k) {
        best.value[k] = 0;
        best.at[k] = -1;
    }
    return best;
}

// block (G, groups); grid (rows / groups, width / (G V)).
template <class T, class I, int V, int G>
__device__ __forceinline__ void extreme_rows(const Int64* indptr, Int64 num_rows, Int64 limit,
                                             const I* indices, const Wide<T>* weight, Wide<T> sign,
                                             const T* x, T* y, I* arg, int width) {
    const Int64 row = Int64(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row >= num_rows) return;
    const Int64 begin = indptr[row], end = indptr[row + 1];
    if (end - begin >= limit) return;
    const int column = int(blockIdx.y * G + threadIdx.x) * V;
    Extreme<T, I, V> best = no_extreme<T, I, V>();
    take_edges<T, I, V, G>(indices, weight, sign, x, begin, end, column, width, best);
    const Int64 at = row * width + column;
    if (column < width) finish_extreme<T, I, V>(y + at, arg + at, best, sign);
}

// block (32, warps), warps a power of two; grid (any, width / (32 V)); shared 32 V warps values,
// then as many positions.
template <class T, class I, int V>
__device__ __forceinline__ void extreme_hubs(const Int64* hubs, const Int64* indptr,
                                             const I* indices, const Wide<T>* weight, Wide<T> sign,
                                             const T* x, T* y, I* arg, int width) {
    typedef Wide<T> W;
    DYNAMIC_SHARED(W, values);
    const int num_warps = int(blockDim.y), column = int(blockIdx.y * 32 + threadIdx.x) * V;
    W* const value = values + threadIdx.y * 32 * V + threadIdx.x;
    I* const at = reinterpret_cast<I*>(values + num_warps * 32 * V) + (value - values);
    const Int64 count = hubs[0];
    for (Int64 h = blockIdx.x; h < count; h += gridDim.x) {
        const Int64 row = hubs[1 + h], begin = indptr[row], end = indptr[row + 1];
        Extreme<T, I, V> best = no_extreme<T, I, V>();
        for (Int64 strip = begin + 32 * threadIdx.y; strip < end; strip += 32 * num_warps) {
            const Int64 stop = strip + 32 < end ? strip + 32 : end;
            take_edges<T, I, V, 32>(indices, weight, sign, x, strip, stop, column, width, best);
        }
#pragma unroll
        for (int k = 0; k < V; ++k) {
            value[k * 32] = best.value[k];
            at[k * 32] = best.at[k];
        }
        __syncthreads();
        for (int half = num_warps / 2; half; half /= 2) {
            if (int(threadIdx.y) < half) {
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    const W other = value[(half * V + k) * 32], own = value[k * 32];
                    const I other_at = at[(half * V + k) * 32], own_at = at[k * 32];
                    const bool later = other_at > own_at;
                    // the earlier of the two stands unless the later one beats it
                    const bool better = own_at < 0 || (later ? beats(other, own) : !beats(own, other));
                    if (other_at >= 0 && better) {
                        value[k * 32] = other;
                        at[k * 32] = other_at;
                    }
                }
            }
            __syncthreads();
        }
        if (threadIdx.y == 0 && column < width) {
#pragma unroll
            for (int k = 0; k < V; ++k) {
                best.value[k] = value[k * 32];
                best.at[k] = at[k * 32];
            }
            const Int64 to = row * width + column;
            finish_extreme<T, I, V>(y + to, arg + to, best, sign);
        }
    }
}

// Backward. Each gradient goes to the one source whose edge won: a sum over the transposed order,
// where an edge counts in the columns that it won. Which row an edge is in only matters where it
// won, and there arg tells it: row_of[arg[d, f]] = d, the same from every column.
template <class I>
__device__ __forceinline__ void rows_of_winners(const I* arg, I* row_of, Int64 num_rows, int width) {
    const Int64 i = Int64(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i >= num_rows * width) return;
    const I e = arg[i];
    if (e >= 0) row_of[e] = I(i / width);
}

// What comes back over the edges of the transposed order: the gradient where the edge won, or 0.
template <class T, class I>
struct Winnings {
    typedef T Value;
    const I* edge;  // the position of each edge in the order of the rows
    const I* row_of;
    const I* arg;
    const Wide<T>* weight;
    const T* grad;

    template <int V, int G>
    __device__ __forceinline__ void add(Int64, Int64 begin, Int64 end, int column, int width,
                                        Wide<T> (&sum)[V]) const {
        typedef Wide<T> W;
        const unsigned mask = group_mask<G>();
        const int lane = int(threadIdx.x);
        for (Int64 base = begin; base < end; base += G) {
            I own = 0, own_row = -1;
            W factor = 1;
            if (base + lane < end) {
                own = __ldg(edge + base + lane);
                own_row = __ldg(row_of + own);
                if (weight) factor = __ldg(weight + own);
            }
            const int count = end - base < G ? int(end - base) : G;
            for (int j = 0; j < count; ++j) {
                const I e = __shfl_sync(mask, own, j, G), row = __shfl_sync(mask, own_row, j, G);
                const W w = __shfl_sync(mask, factor, j, G);
                if (row < 0 || column >= width) continue;  // it won nowhere
                const Int64 at = Int64(row) * width + column;
                W share[V];
                I winner[V];
                load<T, V>(grad + at, share);
                load<I, V>(arg + at, winner);
#pragma unroll
                for (int k = 0; k < V; ++k) sum[k] += winner[k] == e ? w * share[k] : W(0);
            }
        }
    }
};

// dw_e = sum over the columns that e won of grad x_src(e). block (G, groups); grid (edges / groups).
template <class T, class I, int V, int G>
__device__ __forceinline__ void dot_winners(const I* row_of, const I* arg, const I* indices,
                                            const T* grad, const T* x, T* out, Int64 num_edges,
                                            int width) {
    typedef Wide<T> W;
    const Int64 e = Int64(blockIdx.x) * blockDim.y + threadIdx.y;
    if (e >= num_edges) return;
    const I row = __ldg(row_of + e);
    const Int64 source = __ldg(indices + e);
    W sum = 0;
    if (row >= 0) {
        for (int column = int(threadIdx.x) * V; column < width; column += G * V) {
            const Int64 at = Int64(row) * width + column;
            W share[V], value[V];
            I winner[V];
            load<T, V>(grad + at, share);
            load<T, V>(x + source * width + column, value);
            load<I, V>(arg + at, winner);
#pragma unroll
            for (int k = 0; k < V; ++k) sum += winner[k] == I(e) ? share[k] * value[k] : W(0);
        }
    }
    sum = group_sum<G>(sum);
    if (threadIdx.x == 0) narrow(out[e], sum);
}
