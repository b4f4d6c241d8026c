"""What the checksum kernel would do, by its table and the crc32c package. For the simulated GPU alone."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from crc32c import crc32c

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["SimChecksums"]


class SimChecksums:
    """One launch. The first sum of a block is its whole checksum, the others are nothing.

    Attributes:
        ranges: (address, bytes) that it touches.

    Args:
        table: CHECKSUM_TABLE[1].
    """

    def __init__(self, table: NDArray[np.void]) -> None:
        row = table[0]
        self._nbytes, self._num_pieces = int(row["nbytes"]), int(row["num_pieces"])
        self._blocks: list[int] = row["blocks"][: row["num_blocks"]].tolist()
        self._sums = int(row["sums"])
        assert not any(address % 16 for address in self._blocks), "crc32c of a block that is not aligned to 16 bytes"
        sums = self._sums, 4 * self._num_pieces * len(self._blocks)
        self.ranges = (sums, *((address, self._nbytes) for address in self._blocks))

    def run(self) -> None:
        """Do it."""
        sums = (ctypes.c_uint32 * (self._num_pieces * len(self._blocks))).from_address(self._sums)
        for index, address in enumerate(self._blocks):
            block = (ctypes.c_uint8 * self._nbytes).from_address(address)
            sums[index * self._num_pieces] = crc32c(memoryview(block).cast("B"))
            for piece in range(1, self._num_pieces):
                sums[index * self._num_pieces + piece] = 0
