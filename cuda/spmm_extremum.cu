// Instances of spmm_extremum.cuh for one type of values, one of indices, one vector width.
#include "spmm_extremum.cuh"

#define EXTREMUM                                                                                  \
    const INDEX *indices, const Wide<VALUE>*weight, Wide<VALUE> sign, const VALUE *x, VALUE *y,   \
        INDEX *arg, int width
#define EXTREMUM_ROWS(lanes)                                                                      \
    KERNEL(spmm_extremum_rows_##lanes, const Int64* indptr, Int64 num_rows, Int64 limit, EXTREMUM) { \
        extreme_rows<VALUE, INDEX, VECTOR, lanes>(indptr, num_rows, limit, indices, weight, sign, \
                                                  x, y, arg, width);                              \
    }
#define TERMS                                                                                     \
    const INDEX *edge, const INDEX *row_of, const INDEX *arg, const Wide<VALUE>*weight,           \
        const VALUE *grad
#define WINNINGS TERMS, VALUE *out, int width, int mean
#define WINNINGS_ROWS(lanes)                                                                      \
    KERNEL(winnings_rows_##lanes, const Int64* indptr, Int64 num_rows, Int64 limit, WINNINGS) {   \
        const Winnings<VALUE, INDEX> terms = {edge, row_of, arg, weight, grad};                   \
        sum_rows<VECTOR, lanes>(indptr, num_rows, limit, terms, out, width, mean);                \
    }

EXTREMUM_ROWS(4)
EXTREMUM_ROWS(8)
EXTREMUM_ROWS(16)
EXTREMUM_ROWS(32)
KERNEL(spmm_extremum_hubs, const Int64* hubs, const Int64* indptr, EXTREMUM) {
    extreme_hubs<VALUE, INDEX, VECTOR>(hubs, indptr, indices, weight, sign, x, y, arg, width);
}

KERNEL(winners, const INDEX* arg, INDEX* row_of, Int64 num_rows, int width) {
    rows_of_winners(arg, row_of, num_rows, width);
}
WINNINGS_ROWS(4)
WINNINGS_ROWS(8)
WINNINGS_ROWS(16)
WINNINGS_ROWS(32)
KERNEL(winnings_hubs, const Int64* hubs, const Int64* indptr, WINNINGS) {
    const Winnings<VALUE, INDEX> terms = {edge, row_of, arg, weight, grad};
    sum_hubs<VECTOR>(hubs, indptr, terms, out, width, mean);
}
KERNEL(winnings_strips, const Int64* rows, const Int64* indptr, TERMS, Wide<VALUE>* parts,
       Int64 strip, int width) {
    const Winnings<VALUE, INDEX> terms = {edge, row_of, arg, weight, grad};
    sum_strips<VECTOR>(rows, indptr, terms, parts, strip, width);
}
KERNEL(winnings_parts, const Int64* rows, const Int64* indptr, const Wide<VALUE>* parts, VALUE* y,
       Int64 strip, int width, int mean) {
    sum_parts<VALUE, VECTOR>(rows, indptr, parts, y, strip, width, mean);
}
KERNEL(winners_dot, const INDEX* row_of, const INDEX* arg, const INDEX* indices, const VALUE* grad,
       const VALUE* x, VALUE* out, Int64 num_edges, int width) {
    dot_winners<VALUE, INDEX, VECTOR, 8>(row_of, arg, indices, grad, x, out, num_edges, width);
}
#undef EXTREMUM
#undef EXTREMUM_ROWS
#undef TERMS
#undef WINNINGS
#undef WINNINGS_ROWS
