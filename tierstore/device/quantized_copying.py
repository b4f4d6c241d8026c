"""Copies blocks between the pool and a cache in host memory, quantized to a byte an element, with numpy.

Called by the CPU device and the simulated one, on their streams. Much slower than plain copying: it is the reference
for the kernels, and a choice if room matters more than speed. Checks nothing, like `block_copying`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.device.quantization import as_elements, as_float32, dequantize, quantize
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.paged_kv import PagedKV
    from tierstore.types import Int32Array, Int64Array, UInt8Array

__all__ = ["QuantizedCopy"]


class QuantizedCopy:
    """One copy of n blocks.

    Args:
        host: uint8[pool_nbytes].
        slots: int32[n]; offsets in the pool, in 4 KiB pages.
        kv: A cache in host memory, with `PagedKV.quantized`.
        block_ids: int64[num_id_rows, n].
        into_pool: Whether `host` is written.
    """

    def __init__(
        self, host: UInt8Array, slots: Int32Array, kv: PagedKV, block_ids: Int64Array, *, into_pool: bool
    ) -> None:
        assert kv.quantized is not None, "a cache whose blocks are kept as they are is copied by BlockCopy"
        self._host = host
        self._kv = kv
        self._block = kv.quantized
        self._into_pool = into_pool
        self._starts = [slot * PAGE_NBYTES for slot in slots.tolist()]
        self._block_ids: list[list[int]] = block_ids.tolist()

    def run(self, group: int) -> None:
        """Copy one page group of all blocks. Blocks until the last byte has moved."""
        for id_row, first, end in self._kv.groups[group]:
            for segment in range(first, end):
                for start, block_id in zip(self._starts, self._block_ids[id_row], strict=True):
                    self._copy(segment, start, block_id)

    def _copy(self, segment: int, start: int, block_id: int) -> None:
        """One segment of one block: bounded memory, whatever the size of the batch."""
        block, rows = self._block, self._kv.views[segment][block_id]
        begin = int(self._kv.segments["slot_offset_nbytes"][segment])
        of_codes, of_scales = block.slot_ranges(begin, begin + rows.size)
        codes = self._host[start + of_codes[0] : start + of_codes[1]].reshape(-1, block.group)
        scales = self._host[start + of_scales[0] : start + of_scales[1]].view(np.float32)
        if self._into_pool:
            values = as_float32(np.ascontiguousarray(rows), block.dtype).reshape(-1, block.group)
            codes[:], scales[:] = quantize(values, block.scheme)
        else:
            values = dequantize(codes, scales, block.scheme)
            rows[:] = as_elements(values, block.dtype).reshape(rows.shape)
