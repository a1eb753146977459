// Instances of sddmm.cuh for one type of values, one of indices, one vector width.
#include "sddmm.cuh"

#define SDDMM const INDEX *indices, const VALUE *x_dst, const VALUE *x_src, VALUE *out, int width
#define SDDMM_KERNELS(name, adds, lanes)                                                         \
    KERNEL(name##_rows_##lanes, const Int64* indptr, Int64 num_rows, Int64 limit, SDDMM) {       \
        const Ends<VALUE, INDEX, adds> edges = {indices, x_dst, x_src, out, width};              \
        edge_rows<VECTOR, lanes>(indptr, num_rows, limit, edges);                                \
    }
#define SDDMM_ALL(name, adds)                                                                    \
    SDDMM_KERNELS(name, adds, 4)                                                                 \
    SDDMM_KERNELS(name, adds, 8)                                                                 \
    SDDMM_KERNELS(name, adds, 16)                                                                \
    SDDMM_KERNELS(name, adds, 32)                                                                \
    KERNEL(name##_hubs, const Int64* hubs, const Int64* indptr, SDDMM) {                         \
        const Ends<VALUE, INDEX, adds> edges = {indices, x_dst, x_src, out, width};              \
        edge_hubs<VECTOR>(hubs, indptr, edges);                                                  \
    }

SDDMM_ALL(sddmm, false)
SDDMM_ALL(sddmm_add, true)
#undef SDDMM
#undef SDDMM_KERNELS
#undef SDDMM_ALL
