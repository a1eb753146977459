"""cuSPARSE's SpMM as fast as it can be had: algorithm chosen, preprocessed, descriptors reused.

Called through ctypes in the library that torch has loaded, since no Python package offers the
preprocessing. Names and numbers are those of cusparse.h.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ALGORITHMS = {"ALG2": 6, "ALG3": 12}  # CUSPARSE_SPMM_CSR_ALG2, _ALG3
_INDEX_32I, _BASE_ZERO, _ORDER_ROW, _NO_TRANSPOSE, _HOST = 2, 0, 2, 0, 0
_REAL = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}  # CUDA_R_32F, _16F, _16BF
_FLOAT32 = 0


class Spmm:
    """y = A x for one sparse A (D, S) in float32 and one dense x (S, F), into one y.

    Parameters
    ----------
    indptr
        (D + 1,) int32.
    indices
        (E,) int32.
    values
        (E,), of the dtype of `x`.
    x
        (S, F), contiguous.
    algorithm
        Key of `ALGORITHMS`.
    """

    def __init__(
        self, indptr: Tensor, indices: Tensor, values: Tensor, x: Tensor, algorithm: str
    ) -> None:
        self.library = _loaded()
        self.out = x.new_empty(len(indptr) - 1, x.shape[1])
        self.kept = indptr, indices, values, x  # the descriptors hold bare addresses
        self.one, self.zero = ctypes.c_float(1), ctypes.c_float(0)
        self.algorithm = ALGORITHMS[algorithm]
        self.handle, self.matrix = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("Create", ctypes.byref(self.handle))
        self._call("SetStream", self.handle, _pointer(torch.cuda.current_stream().cuda_stream))
        self._call("SetPointerMode", self.handle, _HOST)
        real = _REAL[x.dtype]
        sizes = (ctypes.c_int64(n) for n in (len(indptr) - 1, len(x), len(indices)))
        arrays = (_pointer(t.data_ptr()) for t in (indptr, indices, values))
        types = _INDEX_32I, _INDEX_32I, _BASE_ZERO, real
        self._call("CreateCsr", ctypes.byref(self.matrix), *sizes, *arrays, *types)
        self.x, self.y = (self._dense(t, real) for t in (x, self.out))
        size = ctypes.c_size_t()
        self._call("SpMM_bufferSize", *self._arguments(), ctypes.byref(size))
        self.buffer = torch.empty(max(size.value, 1), dtype=torch.uint8, device=x.device)
        if algorithm == "ALG3":  # ALG2 has nothing to prepare
            self._call("SpMM_preprocess", *self._arguments(), _pointer(self.buffer.data_ptr()))

    def __call__(self) -> Tensor:
        self._call("SpMM", *self._arguments(), _pointer(self.buffer.data_ptr()))
        return self.out

    def _arguments(self) -> tuple[Any, ...]:
        one, zero = ctypes.byref(self.one), ctypes.byref(self.zero)
        operands = one, self.matrix, self.x, zero, self.y
        return self.handle, _NO_TRANSPOSE, _NO_TRANSPOSE, *operands, _FLOAT32, self.algorithm

    def _dense(self, matrix: Tensor, real: int) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        rows, columns = (ctypes.c_int64(n) for n in matrix.shape)
        address = _pointer(matrix.data_ptr())
        layout = rows, columns, columns, address, real, _ORDER_ROW
        self._call("CreateDnMat", ctypes.byref(made), *layout)
        return made

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self.library, f"cusparse{name}")(*arguments)
        if status:
            raise RuntimeError(f"cusparse{name} returned status {status}")


def _pointer(address: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(address)


def _loaded() -> ctypes.CDLL:
    """Find the library in this process; a first product makes torch load it."""
    eye = torch.eye(2, device="cuda")
    torch.sparse.mm(eye.to_sparse_csr(), eye)
    paths = re.findall(r"/\S*libcusparse\.so\S*", Path("/proc/self/maps").read_text())
    if not paths:
        raise RuntimeError("torch has loaded no libcusparse")
    return ctypes.CDLL(paths[0])
