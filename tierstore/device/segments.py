"""How a cache is described to whatever copies it: as runs of equal rows of every block, in plain numbers.

Made by whoever binds an engine's cache, consumed alike by the kernels, by the copy engines and by the CPU. It
knows neither layers nor heads, reads no memory and keeps none alive: the binding that made a table does.
"""

from __future__ import annotations

import numpy as np

__all__ = ["BLOCK", "SEGMENT"]

SEGMENT = np.dtype(
    [
        ("base", np.int64),
        ("block_stride", np.int64),
        ("num_rows", np.int64),
        ("row_stride", np.int64),
        ("row_nbytes", np.int64),
        ("slot_offset", np.int64),
    ]
)
"""Row r of block b lies at ``base + b * block_stride + r * row_stride``, an address, and belongs in its slot at
``slot_offset + r * row_nbytes``: dense in the slot, any distance apart in the cache. All but `num_rows` in bytes."""

BLOCK = np.dtype([("slot", np.int64), ("block_id", np.int64)])
"""Where one block lies: the address of its slot, and its row in the cache."""
