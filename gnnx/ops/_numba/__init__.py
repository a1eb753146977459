"""The operators on a CPU: serial numba kernels, spread over the pool of `gnnx.threads`."""

from gnnx.ops._numba.attend import attention, attention_grad
from gnnx.ops._numba.edges import edge_softmax, edge_softmax_grad, sddmm, sddmm_add
from gnnx.ops._numba.reduce import extremum_grad_weight, extremum_grad_x, spmm, spmm_extremum
from gnnx.ops._numba.rows import dropout, transpose, transpose_into
from gnnx.ops._numba.scores import edge_scores, edge_scores_grad

__all__ = [
    "attention",
    "attention_grad",
    "dropout",
    "edge_scores",
    "edge_scores_grad",
    "edge_softmax",
    "edge_softmax_grad",
    "extremum_grad_weight",
    "extremum_grad_x",
    "sddmm",
    "sddmm_add",
    "spmm",
    "spmm_extremum",
    "transpose",
    "transpose_into",
]
