// Instances of sddmm.cuh for one type of values, one of indices, one vector width.
#include "sddmm.cuh"

#define SDDMM const INDEX *indices, const VALUE *x_dst, const VALUE *x_src, VALUE *out, int width
#define SDDMM_ROWS(lanes)                                                                       \
    KERNEL(sddmm_rows_##lanes, const Int64* indptr, Int64 num_rows, Int64 limit, SDDMM) {       \
        dot_rows<VALUE, INDEX, VECTOR, lanes>(indptr, num_rows, limit, indices, x_dst, x_src, out, \
                                              width);                                           \
    }                                                                                           \
    KERNEL(sddmm_add_rows_##lanes, const Int64* indptr, Int64 num_rows, Int64 limit, SDDMM) {   \
        add_rows<VALUE, INDEX, VECTOR, lanes>(indptr, num_rows, limit, indices, x_dst, x_src, out, \
                                              width);                                           \
    }

SDDMM_ROWS(4)
SDDMM_ROWS(8)
SDDMM_ROWS(16)
SDDMM_ROWS(32)

KERNEL(sddmm_hubs, const Int64* hubs, const Int64* indptr, SDDMM) {
    dot_hubs<VALUE, INDEX, VECTOR>(hubs, indptr, indices, x_dst, x_src, out, width);
}
KERNEL(sddmm_add_hubs, const Int64* hubs, const Int64* indptr, SDDMM) {
    add_hubs<VALUE, INDEX, VECTOR>(hubs, indptr, indices, x_dst, x_src, out, width);
}
#undef SDDMM
#undef SDDMM_ROWS
