"""Builds the parameter of a copy kernel, a table, and chooses the kernel that fits the alignment.

Called by the CUDA device's kernel engine and by the tests that run the kernels on a CPU. Numbers only: it uses no
GPU, reads no memory of a cache and launches nothing. Mirrors the structures of ``kernels/gather_scatter.cu``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tierstore.device.segments import SEGMENT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.device.segments import Segments
    from tierstore.types import Int64Array

__all__ = ["BLOCK", "BLOCKS_MAX", "COPY_TABLE", "SEGMENTS_MAX", "WARP", "Launch", "launches", "vector_nbytes"]

SEGMENTS_MAX = 40
BLOCKS_MAX = 128
"""What one table holds: with both full it stays below the 4 KiB of parameters that every architecture takes."""

WARP = 32
_VECTORS_PER_LANE = 4
_VECTORS_NBYTES = (16, 8, 4, 2)

BLOCK = np.dtype([("slot", np.int64), ("block_id", np.int64)])
"""Where one block lies: the address of its slot, and its place in the cache."""

COPY_TABLE = np.dtype(
    [
        ("num_segments", np.int32),
        ("num_blocks", np.int32),
        ("tiles", np.uint64),
        ("segments", SEGMENT, (SEGMENTS_MAX,)),
        ("blocks", BLOCK, (BLOCKS_MAX,)),
    ]
)
"""``CopyTable`` of the kernels, byte for byte."""


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """One launch of a kernel.

    Attributes:
        vector_nbytes: Width of its loads and stores; the kernel is ``gather_<width>`` or ``scatter_<width>``.
        table: COPY_TABLE[1], its parameter.
        num_tiles: Tiles, of which one warp takes one at a time: more warps than this have nothing to do.
    """

    vector_nbytes: int
    table: NDArray[np.void]
    num_tiles: int


def vector_nbytes(segments: Segments, slots: Int64Array) -> int:
    """The widest access, 16 to 1 bytes, that divides every address, stride and row of a copy.

    Args:
        segments: SEGMENT[num_segments].
        slots: int64[n], addresses.
    """
    several = segments["num_rows"] > 1
    numbers: list[NDArray[Any]] = [
        slots,
        segments["base_address"],
        segments["block_stride_nbytes"],
        segments["row_stride_nbytes"] * several,
        segments["row_nbytes"],
        segments["slot_offset_nbytes"],
    ]
    bits = int(np.bitwise_or.reduce([np.bitwise_or.reduce(column) for column in numbers]))
    return next((width for width in _VECTORS_NBYTES if bits % width == 0), 1)


def launches(segments: Segments, slots: Int64Array, block_ids: Int64Array) -> Iterator[Launch]:
    """Cut a copy into tables. Every row of every block is in exactly one of them.

    Args:
        segments: SEGMENT[num_segments] of blocks that one row of ids names.
        slots: int64[n], the address of each block's slot.
        block_ids: int64[n].
    """
    assert slots.shape == block_ids.shape, f"{slots.shape} slots for {block_ids.shape} block ids"
    width = vector_nbytes(segments, slots)
    tile_nbytes = width * WARP * _VECTORS_PER_LANE
    tiles = segments["num_rows"] * -(-segments["row_nbytes"] // tile_nbytes)
    for first_block in range(0, len(slots), BLOCKS_MAX):
        part = slice(first_block, first_block + BLOCKS_MAX)
        for first in range(0, len(segments), SEGMENTS_MAX):
            chosen = segments[first : first + SEGMENTS_MAX]
            num_blocks = len(slots[part])
            table = np.zeros(1, COPY_TABLE)
            table["num_segments"], table["num_blocks"] = len(chosen), num_blocks
            table["tiles"] = most = int(tiles[first : first + SEGMENTS_MAX].max())
            table["segments"][0, : len(chosen)] = chosen
            table["blocks"]["slot"][0, :num_blocks] = slots[part]
            table["blocks"]["block_id"][0, :num_blocks] = block_ids[part]
            yield Launch(width, table, most * len(chosen) * num_blocks)
