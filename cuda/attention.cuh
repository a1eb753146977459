// Graph attention, fused (K8): y_dh = sum_e w_eh x_src(e)h, where w is the softmax over the row of
// LeakyReLU(a_dst + a_src). Nothing of the size of the edges exists: one log-sum-exp a row and head
// is kept, and the backward pass computes the weights again.
//
// A group of lanes walks a row, a lane owning V columns, all of one head; the running maximum is
// raised, and what was summed scaled down, once for four edges. Where a gradient will be asked for,
// the part of the sums that came over positive scores is kept too: since the gradients of a row's
// scores add up to 0, those by a_dst follow from it without another walk.
//
// H heads, F columns a head. Bytes moved: m i + 4 H (n + m) + X + n H F s as in spmm.cuh, and
// 4 n H F for what is kept; backward m i + 12 H m + X + 2 n H F s.
#pragma once
#include "values.cuh"

template <class W>
struct Score {
    W value;
    bool positive;
};
template <class W>
__device__ __forceinline__ Score<W> leaky(W sum, W slope) {
    return {sum > 0 ? sum : slope * sum, sum > 0};
}

// What a lane sums over a row: its columns, and for its head the scores' exponentials; `above` are
// the parts of both that came over positive scores.
template <class W, int V>
struct Attended {
    W largest, sum, sum_above;
    W value[V], above[V];

    __device__ __forceinline__ void scale(W factor) {
        sum *= factor;
        sum_above *= factor;
#pragma unroll
        for (int k = 0; k < V; ++k) {
            value[k] *= factor;
            above[k] *= factor;
        }
    }
};
template <class W, int V>
__device__ __forceinline__ Attended<W, V> nothing_attended() {
    Attended<W, V> none = {};
    none.largest = minus_infinity();
    return none;
}
template <class W, int V>
__device__ __forceinline__ void add_sums(Attended<W, V>& to, const Attended<W, V>& other) {
    to.sum += other.sum;
    to.sum_above += other.sum_above;
#pragma unroll
    for (int k = 0; k < V; ++k) {
        to.value[k] += other.value[k];
        to.above[k] += other.above[k];
    }
}
// A maximum to take differences from: where there is none yet, inf - inf would be no number.
template <class W>
__device__ __forceinline__ W shift_of(W largest) {
    return largest == W(minus_infinity()) ? W(0) : largest;
}

template <class T>
struct Heads {
    const Wide<T>* a_dst;
    const Wide<T>* a_src;
    Wide<T> slope;
    int heads, width;  // width of a head

    __device__ __forceinline__ int columns() const { return heads * width; }
};

template <class T, class I, int V, int G>
__device__ __forceinline__ void attend(const I* indices, const T* x, const Heads<T>& at, Int64 row,
                                       Int64 begin, Int64 end, int column,
                                       Attended<Wide<T>, V>& state) {
    typedef Wide<T> W;
    const unsigned mask = group_mask<G>();
    const int lane = int(threadIdx.x), columns = at.columns();
    const bool inside = column < columns;
    const int head = inside ? column / at.width : 0;
    const W own = inside ? at.a_dst[row * at.heads + head] : W(0);
    for (Int64 base = begin; base < end; base += G) {
        const I id = base + lane < end ? __ldg(indices + base + lane) : I(0);
        const int count = end - base < G ? int(end - base) : G;
        for (int j = 0; j < count; j += 4) {
            Int64 source[4];
#pragma unroll
            for (int u = 0; u < 4; ++u)
                source[u] = __shfl_sync(mask, id, j + u < count ? j + u : count - 1, G);
            if (!inside) continue;
            W row_x[4][V];
            Score<W> score[4];
            W largest = state.largest;
#pragma unroll
            for (int u = 0; u < 4; ++u) {
                load<T, V>(x + source[u] * columns + column, row_x[u]);
                score[u] = leaky(own + __ldg(at.a_src + source[u] * at.heads + head), at.slope);
                largest = score[u].value > largest ? score[u].value : largest;
            }
            const W shift = shift_of(largest);
            state.scale(exp(state.largest - shift));
            state.largest = largest;
#pragma unroll
            for (int u = 0; u < 4; ++u) {  // beyond the last edge, nothing
                const W w = j + u < count ? exp(score[u].value - shift) : W(0);
                const W above = score[u].positive ? w : W(0);
                state.sum += w;
                state.sum_above += above;
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    state.value[k] += w * row_x[u][k];
                    state.above[k] += above * row_x[u][k];
                }
            }
        }
    }
}

// Outputs of the forward pass; `positive` and `share` are null where no gradient will be asked for.
template <class T>
struct Kept {
    T* out;
    Wide<T>* lse;
    Wide<T>* positive;
    Wide<T>* share;
};

template <class T, int V>
__device__ __forceinline__ void finish_attention(const Kept<T>& kept, const Heads<T>& at, Int64 row,
                                                 int column, bool empty,
                                                 Attended<Wide<T>, V>& state) {
    typedef Wide<T> W;
    const Int64 to = row * at.columns() + column, head = row * at.heads + column / at.width;
    const W lse = empty ? W(0) : state.largest + log(state.sum);
    if (!empty) state.scale(W(1) / state.sum);
    store<T, V>(kept.out + to, state.value);
    if (kept.positive) store<W, V>(kept.positive + to, state.above);
    if (column % at.width == 0) {  // one lane of each head
        kept.lse[head] = lse;
        if (kept.share) kept.share[head] = state.sum_above;
    }
}

// block (G, groups); grid (rows / groups, H F / (G V)).
template <class T, class I, int V, int G>
__device__ __forceinline__ void attend_rows(const Int64* indptr, Int64 num_rows, Int64 limit,
                                            const I* indices, const T* x, const Heads<T>& at,
                                            const Kept<T>& kept) {
    const Int64 row = Int64(blockIdx.x) * blockDim.y + threadIdx.y;
    if (row >= num_rows) return;
    const Int64 begin = indptr[row], end = indptr[row + 1];
    if (end - begin >= limit) return;
    const int column = int(blockIdx.y * G + threadIdx.x) * V;
    Attended<Wide<T>, V> state = nothing_attended<Wide<T>, V>();
    attend<T, I, V, G>(indices, x, at, row, begin, end, column, state);
    if (column < at.columns()) finish_attention<T, V>(kept, at, row, column, begin == end, state);
}

// block (32, warps); grid (any, H F / (32 V)); shared 32 (2 V + 3) warps values.
template <class T, class I, int V>
__device__ __forceinline__ void attend_hubs(const Int64* hubs, const Int64* indptr,
                                            const I* indices, const T* x, const Heads<T>& at,
                                            const Kept<T>& kept) {
    typedef Attended<Wide<T>, V> State;
    DYNAMIC_SHARED(State, states);
    const int num_warps = int(blockDim.y), column = int(blockIdx.y * 32 + threadIdx.x) * V;
    const Int64 count = hubs[0];
    for (Int64 h = blockIdx.x; h < count; h += gridDim.x) {
        const Int64 row = hubs[1 + h], begin = indptr[row], end = indptr[row + 1];
        State state = nothing_attended<Wide<T>, V>();
        for (Int64 first = begin + 32 * threadIdx.y; first < end; first += 32 * num_warps) {
            const Int64 stop = first + 32 < end ? first + 32 : end;
            attend<T, I, V, 32>(indices, x, at, row, first, stop, column, state);
        }
        states[threadIdx.y * 32 + threadIdx.x] = state;
        __syncthreads();
        if (threadIdx.y == 0 && column < at.columns()) {
            for (int w = 1; w < num_warps; ++w) {
                State other = states[w * 32 + threadIdx.x];
                const Wide<T> largest =
                    other.largest > state.largest ? other.largest : state.largest;
                state.scale(exp(state.largest - shift_of(largest)));
                other.scale(exp(other.largest - shift_of(largest)));
                state.largest = largest;
                add_sums<Wide<T>, V>(state, other);
            }
            finish_attention<T, V>(kept, at, row, column, false, state);
        }
        __syncthreads();  // the next row's states come to the same place
    }
}

// Backward, with p_e = exp(score_e - lse_d) and m_d = dy_d . y_d: the gradient of a score is
// p_e (dy_d . x_s - m_d), steeper by 1 or `slope`. Row by row first: m, and the gradient by a_dst,
// (1 - slope) (dy . positive - m share). block (8, groups); grid (D H / groups).
template <class T, int V>
__device__ __forceinline__ void attention_rows_grad(const T* out, const Wide<T>* positive,
                                                    const Wide<T>* share, const T* grad,
                                                    Wide<T>* mean, Wide<T>* d_dst, Int64 num_heads,
                                                    int width, Wide<T> slope) {
    typedef Wide<T> W;
    const Int64 head = Int64(blockIdx.x) * blockDim.y + threadIdx.y;
    if (head >= num_heads) return;
    W whole = 0, part = 0;
    for (int f = int(threadIdx.x) * V; f < width; f += 8 * V) {
        W dy[V], y[V], above[V];
        load<T, V>(grad + head * width + f, dy);
        load<T, V>(out + head * width + f, y);
        load<W, V>(positive + head * width + f, above);
#pragma unroll
        for (int k = 0; k < V; ++k) {
            whole += dy[k] * y[k];
            part += dy[k] * above[k];
        }
    }
    whole = group_sum<8>(whole);
    part = group_sum<8>(part);
    if (threadIdx.x) return;
    mean[head] = whole;
    d_dst[head] = (1 - slope) * (part - whole * share[head]);
}

// Then source by source, over the transposed order. With q = sum p dy and q+ its part over positive
// scores, dx_s = q, and the gradient by a_src is x_s . (slope q + (1 - slope) q+) less the sum of
// p m, steepened likewise: so no edge's product has to be summed over lanes, only the source's.
// `sum` is that of p m here.
template <class T, class I, int V, int G>
__device__ __forceinline__ void attend_back(const I* t_indices, const Heads<T>& at,
                                            const Wide<T>* lse, const Wide<T>* mean, const T* grad,
                                            Int64 source, Int64 begin, Int64 end, int column,
                                            Attended<Wide<T>, V>& state) {
    typedef Wide<T> W;
    const unsigned mask = group_mask<G>();
    const int lane = int(threadIdx.x), columns = at.columns();
    const bool inside = column < columns;
    const int head = inside ? column / at.width : 0;
    const W own = inside ? at.a_src[source * at.heads + head] : W(0);
    for (Int64 base = begin; base < end; base += G) {
        const I id = base + lane < end ? __ldg(t_indices + base + lane) : I(0);
        const int count = end - base < G ? int(end - base) : G;
        for (int j = 0; j < count; j += 4) {
            Int64 row[4];
#pragma unroll
            for (int u = 0; u < 4; ++u)
                row[u] = __shfl_sync(mask, id, j + u < count ? j + u : count - 1, G);
            if (!inside) continue;
            W dy[4][V];
#pragma unroll
            for (int u = 0; u < 4; ++u) load<T, V>(grad + row[u] * columns + column, dy[u]);
#pragma unroll
            for (int u = 0; u < 4; ++u) {
                const Int64 to = row[u] * at.heads + head;
                const Score<W> score = leaky(own + __ldg(at.a_dst + to), at.slope);
                const W p = j + u < count ? exp(score.value - __ldg(lse + to)) : W(0);
                const W above = score.positive ? p : W(0), m = __ldg(mean + to);
                state.sum += p * m;
                state.sum_above += above * m;
#pragma unroll
                for (int k = 0; k < V; ++k) {
                    state.value[k] += p * dy[u][k];
                    state.above[k] += above * dy[u][k];
                }
            }
        }
    }
}

// Writes dx, and for each V columns what they give of the gradient by a_src: d_src (S, H, F / V).
template <class T, int V>
__device__ __forceinline__ void finish_back(const T* x, T* dx, Wide<T>* d_src, const Heads<T>& at,
                                            Int64 source, int column,
                                            const Attended<Wide<T>, V>& state) {
    typedef Wide<T> W;
    const Int64 to = source * at.columns() + column;
    W value[V], total = 0;
    load<T, V>(x + to, value);
#pragma unroll
    for (int k = 0; k < V; ++k)
        total += value[k] * (at.slope * state.value[k] + (1 - at.slope) * state.above[k]);
    if (column % at.width == 0) total -= at.slope * state.sum + (1 - at.slope) * state.sum_above;
    d_src[to / V] = total;
    store<T, V>(dx + to, state.value);
}

// block (G, groups); grid (sources / groups, H F / (G V)).
template <class T, class I, int V, int G>
__device__ __forceinline__ void attend_back_rows(const Int64* t_indptr, Int64 num_src, Int64 limit,
                                                 const I* t_indices, const T* x,
                                                 const Heads<T>& at, const Wide<T>* lse,
                                                 const Wide<T>* mean, const T* grad, T* dx,
                                                 Wide<T>* d_src) {
    const Int64 source = Int64(blockIdx.x) * blockDim.y + threadIdx.y;
    if (source >= num_src) return;
    const Int64 begin = t_indptr[source], end = t_indptr[source + 1];
    if (end - begin >= limit) return;
    const int column = int(blockIdx.y * G + threadIdx.x) * V;
    Attended<Wide<T>, V> state = {};
    attend_back<T, I, V, G>(t_indices, at, lse, mean, grad, source, begin, end, column, state);
    if (column < at.columns()) finish_back<T, V>(x, dx, d_src, at, source, column, state);
}

// block (32, warps); grid (any, H F / (32 V)); shared 32 (2 V + 3) warps values.
template <class T, class I, int V>
__device__ __forceinline__ void attend_back_hubs(const Int64* hubs, const Int64* t_indptr,
                                                 const I* t_indices, const T* x,
                                                 const Heads<T>& at, const Wide<T>* lse,
                                                 const Wide<T>* mean, const T* grad, T* dx,
                                                 Wide<T>* d_src) {
    typedef Attended<Wide<T>, V> State;
    DYNAMIC_SHARED(State, states);
    const int num_warps = int(blockDim.y), column = int(blockIdx.y * 32 + threadIdx.x) * V;
    const Int64 count = hubs[0];
    for (Int64 h = blockIdx.x; h < count; h += gridDim.x) {
        const Int64 source = hubs[1 + h], begin = t_indptr[source], end = t_indptr[source + 1];
        State state = {};
        for (Int64 first = begin + 32 * threadIdx.y; first < end; first += 32 * num_warps) {
            const Int64 stop = first + 32 < end ? first + 32 : end;
            attend_back<T, I, V, 32>(t_indices, at, lse, mean, grad, source, first, stop, column,
                                     state);
        }
        states[threadIdx.y * 32 + threadIdx.x] = state;
        __syncthreads();
        if (threadIdx.y == 0 && column < at.columns()) {
            for (int w = 1; w < num_warps; ++w)
                add_sums<Wide<T>, V>(state, states[w * 32 + threadIdx.x]);
            finish_back<T, V>(x, dx, d_src, at, source, column, state);
        }
        __syncthreads();  // the next row's states come to the same place
    }
}
