// Instances of edge_softmax.cuh for one type of values.
#include "edge_softmax.cuh"

KERNEL(edge_softmax_rows_32, const Int64* indptr, Int64 num_rows, Int64 limit, const VALUE* scores,
       VALUE* out, int heads, int head_lanes) {
    softmax_rows(indptr, num_rows, limit, scores, out, heads, head_lanes);
}
KERNEL(edge_softmax_hubs, const Int64* hubs, const Int64* indptr, const VALUE* scores, VALUE* out,
       int heads, int head_lanes) {
    softmax_hubs(hubs, indptr, scores, out, heads, head_lanes);
}
KERNEL(edge_softmax_grad_rows_32, const Int64* indptr, Int64 num_rows, Int64 limit, const VALUE* p,
       const VALUE* grad, VALUE* out, int heads, int head_lanes) {
    gradient_rows(indptr, num_rows, limit, p, grad, out, heads, head_lanes);
}
KERNEL(edge_softmax_grad_hubs, const Int64* hubs, const Int64* indptr, const VALUE* p,
       const VALUE* grad, VALUE* out, int heads, int head_lanes) {
    gradient_hubs(hubs, indptr, p, grad, out, heads, head_lanes);
}
