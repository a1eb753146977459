// Instances of attention.cuh for one type of values, one of indices, one vector width.
#include "attention.cuh"

#define HEADS                                                                                  \
    const Wide<VALUE>*a_dst, const Wide<VALUE>*a_src, Wide<VALUE> slope, int heads, int width
#define ATTENTION                                                                              \
    const INDEX *indices, const VALUE *x, HEADS, VALUE *out, Wide<VALUE>*lse,                  \
        Wide<VALUE>*positive, Wide<VALUE>*share
#define BACK                                                                                   \
    const INDEX *t_indices, const VALUE *x, HEADS, const Wide<VALUE>*lse,                      \
        const Wide<VALUE>*mean, const VALUE *grad, VALUE *dx, Wide<VALUE>*d_src
#define ROWS(lanes)                                                                            \
    KERNEL(attention_rows_##lanes, const Int64* indptr, Int64 num_rows, Int64 limit,           \
           ATTENTION) {                                                                        \
        const Heads<VALUE> at = {a_dst, a_src, slope, heads, width};                           \
        const Kept<VALUE> kept = {out, lse, positive, share};                                  \
        attend_rows<VALUE, INDEX, VECTOR, lanes>(indptr, num_rows, limit, indices, x, at, kept); \
    }                                                                                          \
    KERNEL(attention_back_rows_##lanes, const Int64* indptr, Int64 num_rows, Int64 limit, BACK) { \
        const Heads<VALUE> at = {a_dst, a_src, slope, heads, width};                           \
        attend_back_rows<VALUE, INDEX, VECTOR, lanes>(indptr, num_rows, limit, t_indices, x, at, \
                                                      lse, mean, grad, dx, d_src);             \
    }

ROWS(4)
ROWS(8)
ROWS(16)
ROWS(32)
KERNEL(attention_hubs, const Int64* hubs, const Int64* indptr, ATTENTION) {
    const Heads<VALUE> at = {a_dst, a_src, slope, heads, width};
    const Kept<VALUE> kept = {out, lse, positive, share};
    attend_hubs<VALUE, INDEX, VECTOR>(hubs, indptr, indices, x, at, kept);
}
KERNEL(attention_means, const VALUE* out, const Wide<VALUE>* positive, const Wide<VALUE>* share,
       const VALUE* grad, Wide<VALUE>* mean, Wide<VALUE>* d_dst, Int64 num_heads, int width,
       Wide<VALUE> slope) {
    attention_rows_grad<VALUE, VECTOR>(out, positive, share, grad, mean, d_dst, num_heads, width,
                                       slope);
}
KERNEL(attention_back_hubs, const Int64* hubs, const Int64* indptr, BACK) {
    const Heads<VALUE> at = {a_dst, a_src, slope, heads, width};
    attend_back_hubs<VALUE, INDEX, VECTOR>(hubs, indptr, t_indices, x, at, lse, mean, grad, dx,
                                           d_src);
}
#undef HEADS
#undef ATTENTION
#undef BACK
#undef ROWS
