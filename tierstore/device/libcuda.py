"""Calls of the driver library that cupy does not offer: batched copies, and a thread's capture mode.

Called by `tierstore.device.cuda` alone, on machines that have a driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from tierstore.errors import DeviceError

if TYPE_CHECKING:
    from tierstore.types import Int64Array

__all__ = ["BATCHES_SINCE", "BatchCopy", "find_batch_copy", "relax_capture"]

BATCHES_SINCE = 12080
"""The CUDA version whose drivers copy in batches."""

_CAPTURE_RELAXED = 2
_IN_STREAM_ORDER = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: a source is never read before the work that fills it
_OVERLAP_WITH_COMPUTE = 1  # let copy units move a batch, not multiprocessors


@cache
def _libcuda() -> Any:
    return ctypes.CDLL("libcuda.so.1")


def relax_capture() -> None:
    """Let the calling thread work on while another one captures a CUDA graph.

    Otherwise its calls would fail meanwhile, and void that capture.
    """
    _libcuda().cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_CAPTURE_RELAXED)))


class _CopyAttributes(ctypes.Structure):
    """``CUmemcpyAttributes``: order of access to the source, two hints of a location, flags."""

    _fields_ = (("order", ctypes.c_int), ("hints", ctypes.c_int * 4), ("flags", ctypes.c_uint))


class BatchCopy:
    """Batched copies, as CUDA 12.8 has them; later drivers keep that function beside their own.

    Args:
        function: The driver's.
    """

    def __init__(self, function: Callable[..., int]) -> None:
        self._function = function

    def copy(self, dsts: Int64Array, srcs: Int64Array, nbytes: Int64Array, stream: int) -> None:
        """Enqueue int64[n] pieces; each source is read in the stream's order. Raises DeviceError."""
        columns = [np.ascontiguousarray(column) for column in (dsts, srcs, nbytes)]
        attributes = _CopyAttributes(order=_IN_STREAM_ORDER, flags=_OVERLAP_WITH_COMPUTE)
        first, failed = ctypes.c_size_t(0), ctypes.c_size_t(0)
        status = self._function(
            *(column.ctypes.data for column in columns),
            len(dsts),
            ctypes.byref(attributes),
            ctypes.byref(first),
            1,
            ctypes.byref(failed),
            stream,
        )
        if status:
            raise DeviceError(f"cuMemcpyBatchAsync of {len(dsts)} pieces: error {status}, at piece {failed.value}")


def find_batch_copy() -> BatchCopy | None:
    """The driver's batched copy; None where it has none."""
    found, status = ctypes.c_void_p(), ctypes.c_int()
    refused = _libcuda().cuGetProcAddress_v2(
        b"cuMemcpyBatchAsync",
        ctypes.byref(found),
        ctypes.c_int(BATCHES_SINCE),
        ctypes.c_uint64(0),
        ctypes.byref(status),
    )
    if refused or not found.value:
        return None
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    prototype = ctypes.CFUNCTYPE(
        ctypes.c_int, pointer, pointer, pointer, size, pointer, pointer, size, pointer, pointer
    )
    return BatchCopy(prototype(found.value))
