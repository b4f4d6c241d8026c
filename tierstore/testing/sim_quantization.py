"""What the quantizing kernels would do, by their table and numpy's arithmetic. For the simulated GPU alone.

Reads the table as kernels/quantize.cu does, address by address; it shares with the code under test the arithmetic,
which the kernels' own tests compare bit for bit, and not the way from a cache to a slot.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tierstore.device.quantization import as_elements, as_float32, dequantize, quantize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.types import UInt8Array

    _Range = tuple[int, int]

__all__ = ["SimQuantization"]


@dataclass(frozen=True, slots=True)
class _Row:
    """One row of whole groups: where its elements, codes and scales lie, and how many groups it is."""

    elements: int
    codes: int
    scales: int
    num_groups: int


class SimQuantization:
    """One launch.

    Attributes:
        slots: (address, bytes) of the codes and scales that it touches.
        pages: The same of the cache's rows.

    Args:
        kernel: Such as ``quantize_bfloat16_int8``.
        table: QUANTIZE_TABLE[1].
    """

    def __init__(self, kernel: str, table: NDArray[np.void]) -> None:
        way, self._dtype, self._scheme = kernel.split("_", 2)
        self._store = way == "quantize"
        self._item_nbytes = 4 if self._dtype == "float32" else 2
        self._group = int(table["group"][0])
        self._rows = self._find_rows(table[0])
        self.slots: list[_Range] = []
        for row in self._rows:
            assert row.scales % 4 == 0, f"{kernel} at a scale of address {row.scales:#x}"
            self.slots += [(row.codes, row.num_groups * self._group), (row.scales, row.num_groups * 4)]
        self.pages: list[_Range] = [
            (row.elements, row.num_groups * self._group * self._item_nbytes) for row in self._rows
        ]

    def run(self) -> None:
        """Do it."""
        for row in self._rows:
            num_elements = row.num_groups * self._group
            elements = _memory(row.elements, num_elements * self._item_nbytes)
            codes = _memory(row.codes, num_elements).reshape(-1, self._group)
            scales = _memory(row.scales, 4 * row.num_groups).view(np.float32)
            if self._store:
                values = as_float32(elements, self._dtype).reshape(-1, self._group)
                codes[:], scales[:] = quantize(values, self._scheme)
            else:
                elements[:] = as_elements(dequantize(codes, scales, self._scheme), self._dtype).ravel()

    def _find_rows(self, table: np.void) -> list[_Row]:
        rows = []
        group_nbytes = self._group * self._item_nbytes
        for slot, block_id in table["blocks"][: table["num_blocks"]].tolist():
            for segment in table["segments"][: table["num_segments"]].tolist():
                base, block_stride, num_rows, row_stride, row_nbytes, offset = segment
                assert row_nbytes % group_nbytes == 0, f"a row of {row_nbytes} bytes, groups of {group_nbytes}"
                for index in range(num_rows):
                    code = (offset + index * row_nbytes) // self._item_nbytes
                    rows.append(
                        _Row(
                            base + block_id * block_stride + index * row_stride,
                            slot + code,
                            slot + int(table["scales_offset"]) + code // self._group * 4,
                            row_nbytes // group_nbytes,
                        )
                    )
        return rows


def _memory(address: int, nbytes: int) -> UInt8Array:
    return np.frombuffer(memoryview((ctypes.c_uint8 * nbytes).from_address(address)).cast("B"), np.uint8)
