"""The operators on a CPU: serial numba kernels, spread over the pool of `gnnx.threads`."""

from gnnx.ops._numba.edges import sddmm
from gnnx.ops._numba.reduce import extremum_grad_weight, extremum_grad_x, spmm, spmm_extremum
from gnnx.ops._numba.rows import dropout, transpose, transpose_into

__all__ = [
    "dropout",
    "extremum_grad_weight",
    "extremum_grad_x",
    "sddmm",
    "spmm",
    "spmm_extremum",
    "transpose",
    "transpose_into",
]
