"""CRC32C of blocks in device memory, for blocks read from disk without passing the CPU. On a GPU: kernels/crc32c.cu.

Called by devices, for direct reads. Blocks until the GPU has answered; several threads may call at once, and take
turns.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c

from tierstore.device.copy_table import BLOCKS_MAX, WARP
from tierstore.device.cuda_runtime import THREADS
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.device.cuda_runtime import CudaRuntime
    from tierstore.types import Int32Array, Int64Array, UInt8Array, UInt32Array

__all__ = ["CHECKSUM_TABLE", "PIECE_NBYTES", "GpuChecksums", "checksum_tables", "checksums"]

PIECE_NBYTES = 64 << 10
"""What one warp takes: enough that placing its sum, some hundred times a word's work, is little beside it."""

_QUOTA = 32
"""Thread blocks of a launch at most: multiprocessors that it may keep from other work."""

CHECKSUM_TABLE = np.dtype(
    [
        ("nbytes", np.int64),
        ("piece_nbytes", np.int64),
        ("num_pieces", np.int64),
        ("sums", np.int64),
        ("num_blocks", np.int32),
        ("reserved", np.int32),
        ("blocks", np.int64, (BLOCKS_MAX,)),
    ]
)
"""``ChecksumTable`` of the kernel, byte for byte."""


def checksum_tables(blocks: Int64Array, nbytes: int, sums: int) -> Iterator[NDArray[np.void]]:
    """CHECKSUM_TABLE[1] parameters of launches, one after another.

    Args:
        blocks: int64[n], addresses, multiples of 16.
        nbytes: Of each block, at least 1.
        sums: Address of uint32[n, num_pieces], which the kernel fills: of every block's row the XOR is its CRC32C.
    """
    num_pieces = -(-nbytes // PIECE_NBYTES)
    for first in range(0, len(blocks), BLOCKS_MAX):
        part = blocks[first : first + BLOCKS_MAX]
        table = np.zeros(1, CHECKSUM_TABLE)
        table["nbytes"], table["piece_nbytes"], table["num_pieces"] = nbytes, PIECE_NBYTES, num_pieces
        table["sums"], table["num_blocks"] = sums + first * num_pieces * 4, len(part)
        table["blocks"][0, : len(part)] = part
        yield table


def checksums(pool: UInt8Array, slots: Int32Array, nbytes: int) -> UInt32Array:
    """The same of host memory: uint32[n] of the first `nbytes` behind each of int32[n] 4 KiB pages."""
    starts = (slots.astype(np.int64) * PAGE_NBYTES).tolist()
    return np.array([crc32c(pool[start : start + nbytes].data) for start in starts], np.uint32)


class GpuChecksums:
    """A stream, and memory for sums.

    Args:
        runtime: Of the GPU.

    Raises:
        DeviceError: The GPU refuses.
    """

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime
        self._turn = threading.Lock()
        self._stream = runtime.new_stream(high_priority=True)
        self._memory, self._nbytes = 0, 0

    def of(self, blocks: Int64Array, nbytes: int) -> UInt32Array:
        """uint32[n]: the CRC32C of each of int64[n] addresses' first `nbytes`. Blocks. Raises DeviceError."""
        num_pieces = -(-nbytes // PIECE_NBYTES)
        sums = np.zeros((len(blocks), num_pieces), np.uint32)
        with self._turn:
            self._runtime.enter()
            memory = self._take(sums.nbytes)
            for table in checksum_tables(blocks, nbytes, memory):
                num_warps = num_pieces * int(table["num_blocks"][0])
                self._runtime.launch("crc32c", min(_QUOTA, -(-num_warps * WARP // THREADS)), table, self._stream)
            if sums.nbytes:
                self._runtime.copy(sums.ctypes.data, memory, sums.nbytes, self._stream)
            self._runtime.finish(self._runtime.record(self._stream))
        found: UInt32Array = np.bitwise_xor.reduce(sums, axis=1)
        return found

    def _take(self, nbytes: int) -> int:
        """Memory of the GPU for so many bytes; the last call's has been read."""
        if nbytes > self._nbytes:
            if self._nbytes:
                self._runtime.free(self._memory)
                self._nbytes = 0
            self._memory = self._runtime.allocate(nbytes)
            self._nbytes = nbytes
        return self._memory

    def close(self) -> None:
        """Give back memory and stream."""
        self._runtime.drop_stream(self._stream)
        if self._nbytes:
            self._runtime.free(self._memory)
