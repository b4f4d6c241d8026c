"""Where the bytes of a block lie in an engine's cache: a table of segments, the seam between binding and copying.

Built once by `tierstore.device.paged_kv`; read by every device, by kernels as it lies in memory. Arithmetic
on numbers only: nothing here touches a byte of KV.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Segments: TypeAlias = NDArray[np.void]

__all__ = ["SEGMENT", "Span"]

SEGMENT = np.dtype(
    [
        ("base_address", np.int64),
        ("block_stride_nbytes", np.int64),
        ("num_rows", np.int64),
        ("row_stride_nbytes", np.int64),
        ("row_nbytes", np.int64),
        ("slot_offset_nbytes", np.int64),
    ]
)
"""One row of the table: six int64, in this order, with no padding.

Row ``j`` of this segment of block ``b`` is the ``row_nbytes`` contiguous bytes at ``base_address + b *
block_stride_nbytes + j * row_stride_nbytes``, and its place in the block's slot is ``slot_offset_nbytes + j *
row_nbytes``: in the slot the rows of a segment lie one after another. Strides may be negative. The rows of all
segments cover ``[0, block_nbytes)`` of a slot exactly once, and no two rows of one cache overlap."""


class Span(NamedTuple):
    """Segments ``[first, end)`` of the table, whose blocks are all named by one row of the block ids.

    A copy of n blocks has block ids int64[num_id_rows, n]; a kernel that copies this span takes ``block_ids[id_row]``
    (int64[n], contiguous), the n addresses of the slots, and the segments from `first` to `end`.
    """

    id_row: int
    first: int
    end: int
