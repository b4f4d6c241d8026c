"""Quantizes blocks into GPU memory and back, by the kernels of kernels/quantize.cu.

Called by the staging engine, which copies that memory to and from the host. Only enqueues.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierstore.device.copy_table import WARP
from tierstore.device.cuda_runtime import THREADS
from tierstore.device.quantization import kernel_name, quantize_tables

if TYPE_CHECKING:
    from tierstore.device.copy_pieces import SpanCopy
    from tierstore.device.cuda_runtime import CudaRuntime

__all__ = ["QuantizeKernel"]


class QuantizeKernel:
    """One warp a head and token.

    Args:
        runtime: Of the GPU.
        quota: Thread blocks of a launch at most: multiprocessors that it may keep from other work.
    """

    def __init__(self, runtime: CudaRuntime, quota: int) -> None:
        self._runtime = runtime
        self._quota = quota

    def copy(self, copy: SpanCopy, stream: int) -> None:
        """One launch a table of `tierstore.device.quantization`."""
        assert copy.quantized is not None, "blocks that are kept byte for byte are not quantized"
        kernel = kernel_name(copy.quantized, store=copy.store)
        for table in quantize_tables(copy.quantized, copy.segments, copy.slots, copy.block_ids):
            num_warps = int(table["groups"][0]) * int(table["num_segments"][0]) * int(table["num_blocks"][0])
            grid = min(self._quota, -(-num_warps * WARP // THREADS))
            self._runtime.launch(kernel, grid, table, stream)
