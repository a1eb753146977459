"""Memory for results, in large pages where the system grants them.

A result is new memory every time, and the first touch of a 4 KiB page costs more than to fill it:
a third of an spmm that writes 128 MiB. In pages of 2 MiB that is gone, and so are most address
look-ups of the next operator that gathers rows from it. Linux gives large pages to those who ask.
"""

from __future__ import annotations

import ctypes
import mmap
import sys

import torch
from torch import Tensor

_PAGE_BYTES = 2 << 20
_SMALLEST = 2 * _PAGE_BYTES  # below it no page may fit between the ends


def empty(*shape: int, dtype: torch.dtype) -> Tensor:
    """`torch.empty` that asks for large pages."""
    out = torch.empty(shape, dtype=dtype)
    if sys.platform == "linux" and out.nbytes >= _SMALLEST:
        begin = -(-out.data_ptr() // _PAGE_BYTES) * _PAGE_BYTES
        end = (out.data_ptr() + out.nbytes) // _PAGE_BYTES * _PAGE_BYTES
        # a refusal, where the kernel knows none, leaves the memory as good as it was
        ctypes.CDLL(None).madvise(
            ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_HUGEPAGE
        )
    return out
