// Instances of spmm.cuh for one type of values, one of indices, one vector width; with TIERED for
// rows of two tiers, without weights.
#include "spmm.cuh"

#ifdef TIERED
typedef Messages<VALUE, INDEX, Tiers<VALUE, INDEX>> Terms;
#define TERMS                                                                                    \
    const INDEX *indices, const Int64 *ids, const int *slot, const VALUE *cache,                 \
        const VALUE *host
#define GIVEN {indices, nullptr, nullptr, nullptr, {ids, slot, cache, host}}
#else
typedef Messages<VALUE, INDEX, Matrix<VALUE, INDEX>> Terms;
#define TERMS                                                                                    \
    const INDEX *indices, const INDEX *edge, const Wide<VALUE>*weight, const Wide<VALUE>*scale,  \
        const VALUE *x
#define GIVEN {indices, edge, weight, scale, {x}}
#endif
#define SPMM TERMS, VALUE *y, int width, int mean
#define SPMM_ROWS(lanes)                                                                         \
    KERNEL(spmm_rows_##lanes, const Int64* indptr, Int64 num_rows, Int64 limit, SPMM) {          \
        const Terms terms = GIVEN;                                                               \
        sum_rows<VECTOR, lanes>(indptr, num_rows, limit, terms, y, width, mean);                 \
    }

SPMM_ROWS(4)
SPMM_ROWS(8)
SPMM_ROWS(16)
SPMM_ROWS(32)

KERNEL(spmm_hubs, const Int64* hubs, const Int64* indptr, SPMM) {
    const Terms terms = GIVEN;
    sum_hubs<VECTOR>(hubs, indptr, terms, y, width, mean);
}
KERNEL(spmm_strips, const Int64* rows, const Int64* indptr, TERMS, Wide<VALUE>* parts,
       Int64 strip, int width) {
    const Terms terms = GIVEN;
    sum_strips<VECTOR>(rows, indptr, terms, parts, strip, width);
}
KERNEL(spmm_parts, const Int64* rows, const Int64* indptr, const Wide<VALUE>* parts, VALUE* y,
       Int64 strip, int width, int mean) {
    sum_parts<VALUE, VECTOR>(rows, indptr, parts, y, strip, width, mean);
}
#undef TERMS
#undef GIVEN
#undef SPMM
#undef SPMM_ROWS
