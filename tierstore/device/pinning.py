"""Registers (pins) the host pool with a GPU, slice by slice, near the GPU. A refusal is tolerated.

Called by the CUDA device when a store starts. Registered memory is copied at the speed of the link, and kernels can
reach it. If the system refuses (a memlock limit, no memory left), copies go through the driver's own buffers: slower,
and logged once.
"""

from __future__ import annotations

import ctypes
import logging
import platform
from typing import TYPE_CHECKING

from tierstore.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tierstore.device.cuda_runtime import CudaRuntime
    from tierstore.types import UInt8Array

__all__ = ["SLICE_NBYTES", "PinnedMemory"]

SLICE_NBYTES = 1 << 30
"""Host memory registered by one call: a GiB takes the driver a fraction of a second."""

_MBIND = {"x86_64": 237, "aarch64": 235}
_MPOL_PREFERRED = 1

_logger = logging.getLogger(__name__)


class PinnedMemory:
    """Host memory registered with one GPU, all of it or none. Blocks for up to a second a GiB.

    Attributes:
        address: Its first address.
        nbytes: Registered bytes: the whole size, or 0 if the system refused.

    Args:
        runtime: Of the GPU.
        buffer: uint8[nbytes]; a registration keeps no memory alive, so it must be released first.
        on_progress: Told after each slice how many bytes are registered.
    """

    def __init__(
        self, runtime: CudaRuntime, buffer: UInt8Array, on_progress: Callable[[int], None] | None = None
    ) -> None:
        self.address = buffer.ctypes.data
        self.nbytes = 0
        self._runtime = runtime
        self._slices: list[int] = []
        node = runtime.facts.numa_node
        if node is not None:
            _prefer_node(self.address, buffer.nbytes, node)
        for offset in range(0, buffer.nbytes, SLICE_NBYTES):
            length = min(SLICE_NBYTES, buffer.nbytes - offset)
            try:
                runtime.register(self.address + offset, length)
            except DeviceError as error:
                self.release()
                _logger.warning(
                    "the host pool of %d bytes is not pinned: %s; copies are slower. Raise the limit of locked memory "
                    "(ulimit -l), or lower [host] size",
                    buffer.nbytes,
                    error,
                )
                return
            self._slices.append(self.address + offset)
            self.nbytes += length
            _logger.info("pinned %d of %d bytes of the host pool", self.nbytes, buffer.nbytes)
            if on_progress is not None:
                on_progress(self.nbytes)

    def release(self) -> None:
        """Undo it; a second call does nothing. No copy may be using the memory."""
        while self._slices:
            self._runtime.unregister(self._slices.pop())
        self.nbytes = 0


def _prefer_node(address: int, nbytes: int, node: int) -> None:
    """Ask the kernel to take pages of this memory from one node; on others where that has none left."""
    call = _MBIND.get(platform.machine())
    if call is None:
        return
    mask = (ctypes.c_ulong * (node // 64 + 1))()
    mask[node // 64] = 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(
        ctypes.c_long(call),
        ctypes.c_void_p(address),
        ctypes.c_ulong(nbytes),
        ctypes.c_int(_MPOL_PREFERRED),
        mask,
        ctypes.c_ulong(64 * len(mask) + 1),
        ctypes.c_uint(0),
    )
    if result != 0:
        _logger.info("the host pool is not bound to node %d: errno %d", node, ctypes.get_errno())
