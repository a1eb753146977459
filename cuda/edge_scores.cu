// Instances of edge_scores.cuh for one type of values, one of indices, one vector width.
#include "edge_scores.cuh"

#define SCORES                                                                                   \
    const INDEX *indices, const VALUE *x_dst, const VALUE *x_src, const Wide<VALUE>*att,         \
        VALUE *out, Wide<VALUE> slope, int width
#define SCORES_ROWS(lanes)                                                                       \
    KERNEL(edge_scores_rows_##lanes, const Int64* indptr, Int64 num_rows, Int64 limit, SCORES) { \
        const Scores<VALUE, INDEX> edges = {indices, x_dst, x_src, att, out, slope, width};      \
        edge_rows<VECTOR, lanes>(indptr, num_rows, limit, edges);                                \
    }
#define TERMS                                                                                    \
    const INDEX *indices, const INDEX *edge, const VALUE *x_own, const VALUE *x_other,           \
        const VALUE *grad, const Wide<VALUE>*att, Wide<VALUE> slope, int head_width
#define GIVEN {indices, edge, x_own, x_other, grad, att, slope, head_width}
#define BACK TERMS, Wide<VALUE> *out, int width, int mean
#define BACK_ROWS(lanes)                                                                         \
    KERNEL(edge_scores_back_rows_##lanes, const Int64* indptr, Int64 num_rows, Int64 limit,      \
           BACK) {                                                                               \
        const ScoreBack<VALUE, INDEX> terms = GIVEN;                                             \
        sum_rows<VECTOR, lanes>(indptr, num_rows, limit, terms, out, width, mean);               \
    }

SCORES_ROWS(4)
SCORES_ROWS(8)
SCORES_ROWS(16)
SCORES_ROWS(32)
KERNEL(edge_scores_hubs, const Int64* hubs, const Int64* indptr, SCORES) {
    const Scores<VALUE, INDEX> edges = {indices, x_dst, x_src, att, out, slope, width};
    edge_hubs<VECTOR>(hubs, indptr, edges);
}

BACK_ROWS(4)
BACK_ROWS(8)
BACK_ROWS(16)
BACK_ROWS(32)
KERNEL(edge_scores_back_hubs, const Int64* hubs, const Int64* indptr, BACK) {
    const ScoreBack<VALUE, INDEX> terms = GIVEN;
    sum_hubs<VECTOR>(hubs, indptr, terms, out, width, mean);
}
KERNEL(edge_scores_back_strips, const Int64* rows, const Int64* indptr, TERMS, Wide<VALUE>* parts,
       Int64 strip, int width) {
    const ScoreBack<VALUE, INDEX> terms = GIVEN;
    sum_strips<VECTOR>(rows, indptr, terms, parts, strip, width);
}
KERNEL(edge_scores_back_parts, const Int64* rows, const Int64* indptr, const Wide<VALUE>* parts,
       Wide<VALUE>* y, Int64 strip, int width, int mean) {
    sum_parts<Wide<VALUE>, VECTOR>(rows, indptr, parts, y, strip, width, mean);
}
#undef SCORES
#undef SCORES_ROWS
#undef TERMS
#undef GIVEN
#undef BACK
#undef BACK_ROWS
