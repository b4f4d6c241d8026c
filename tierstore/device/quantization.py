"""Quantizes KV to one byte an element, with a scale for every token and head: kernels/quantize.cu in numpy.

It loses precision and is off by default. `Namespace.stored_as` names the scheme, so that quantized blocks are never
taken for exact ones. Arithmetic only: the kernels and these functions give the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from tierstore.device.copy_table import BLOCK, BLOCKS_MAX, SEGMENTS_MAX
from tierstore.device.segments import SEGMENT
from tierstore.errors import LayoutError
from tierstore.layout import DTYPE_NBYTES
from tierstore.quantized import SCHEMES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.device.segments import Segments
    from tierstore.quantized import QuantizedBlock
    from tierstore.types import Int64Array, UInt8Array, UInt32Array

    Float32Array = NDArray[np.float32]

__all__ = [
    "QUANTIZE_TABLE",
    "as_elements",
    "as_float32",
    "check_groups",
    "dequantize",
    "kernel_name",
    "quantize",
    "quantize_tables",
]

_SMALLEST = np.float32(2.0**-100)

QUANTIZE_TABLE = np.dtype(
    [
        ("group", np.int64),
        ("scales_offset", np.int64),
        ("num_segments", np.int32),
        ("num_blocks", np.int32),
        ("groups", np.uint64),
        ("segments", SEGMENT, (SEGMENTS_MAX,)),
        ("blocks", BLOCK, (BLOCKS_MAX,)),
    ]
)
"""``QuantizeTable`` of the kernels, byte for byte."""


def quantize_tables(
    block: QuantizedBlock, segments: Segments, slots: Int64Array, block_ids: Int64Array
) -> Iterator[NDArray[np.void]]:
    """Cut a copy into QUANTIZE_TABLE[1] parameters of kernels; every group of every block is in exactly one.

    Args:
        block: How blocks lie in their slots.
        segments: SEGMENT[num_segments] of the cache, as if it were copied as it is.
        slots: int64[n], addresses.
        block_ids: int64[n].

    Raises:
        LayoutError: A row of the cache is not whole groups.
    """
    group_nbytes = check_groups(block, segments)
    groups = segments["num_rows"] * segments["row_nbytes"] // group_nbytes
    for first_block in range(0, len(slots), BLOCKS_MAX):
        part = slice(first_block, first_block + BLOCKS_MAX)
        for first in range(0, len(segments), SEGMENTS_MAX):
            chosen = segments[first : first + SEGMENTS_MAX]
            num_blocks = len(slots[part])
            table = np.zeros(1, QUANTIZE_TABLE)
            table["group"], table["scales_offset"] = block.group, block.scales_offset_nbytes
            table["num_segments"], table["num_blocks"] = len(chosen), num_blocks
            table["groups"] = int(groups[first : first + SEGMENTS_MAX].max())
            table["segments"][0, : len(chosen)] = chosen
            table["blocks"]["slot"][0, :num_blocks] = slots[part]
            table["blocks"]["block_id"][0, :num_blocks] = block_ids[part]
            yield table


def kernel_name(block: QuantizedBlock, *, store: bool) -> str:
    """The kernel that moves such blocks."""
    return f"{'quantize' if store else 'dequantize'}_{block.dtype}_{block.scheme}"


def check_groups(block: QuantizedBlock, segments: Segments) -> int:
    """Bytes of a group in the cache; LayoutError where a row of the cache is not whole groups."""
    group_nbytes = block.group * DTYPE_NBYTES[block.dtype]
    broken = (segments["row_nbytes"] % group_nbytes != 0) | (segments["slot_offset_nbytes"] % group_nbytes != 0)
    if broken.any():
        row_nbytes = int(segments["row_nbytes"][broken][0])
        raise LayoutError(f"rows of {row_nbytes} bytes are not whole groups of {group_nbytes}; bind heads unbroken")
    return group_nbytes


def quantize(values: Float32Array, scheme: str) -> tuple[UInt8Array, Float32Array]:
    """Codes and scales of float32[num_groups, group].

    A group that stays below 2**-100 becomes zeros; one with a value that is not finite gets a scale that is NaN.

    Returns:
        uint8[num_groups, group], float32[num_groups].
    """
    limit = np.float32(SCHEMES[scheme])
    largest = np.abs(values).max(axis=1)
    finite = np.isfinite(largest)
    usable = finite & (largest >= _SMALLEST)
    inverse = np.divide(limit, largest, out=np.zeros_like(largest), where=usable)
    scaled = np.where(usable[:, None], values, np.float32(0)) * inverse[:, None]
    codes = _encode_e4m3(scaled) if scheme == "fp8_e4m3" else _encode_int8(scaled)
    scales = np.divide(largest, limit, out=np.zeros_like(largest), where=usable)
    scales[~finite] = np.nan
    return codes * usable[:, None].astype(np.uint8), scales


def dequantize(codes: UInt8Array, scales: Float32Array, scheme: str) -> Float32Array:
    """float32[num_groups, group] of what `quantize` gave."""
    values = _e4m3_values()[codes] if scheme == "fp8_e4m3" else codes.view(np.int8).astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):  # as on a GPU, what overflows is infinite
        return values * scales[:, None]


def as_float32(elements: UInt8Array, dtype: str) -> Float32Array:
    """Elements of a cache, as the bytes of their last axis, as numbers: exact for each of the three dtypes."""
    if dtype == "bfloat16":
        return (elements.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return elements.view(dtype).astype(np.float32)


def as_elements(values: Float32Array, dtype: str) -> UInt8Array:
    """Numbers as bytes of a cache's elements, along the last axis: to the nearest, ties to even."""
    if dtype != "bfloat16":
        with np.errstate(over="ignore"):  # a half that overflows is infinite, as on a GPU
            return values.astype(dtype).view(np.uint8)
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    rounded[np.isnan(values)] = 0x7FC0
    return rounded.astype(np.uint16).view(np.uint8)


def _encode_int8(scaled: Float32Array) -> UInt8Array:
    codes: UInt8Array = np.clip(np.rint(scaled), -127, 127).astype(np.int8).view(np.uint8)
    return codes


def _encode_e4m3(scaled: Float32Array) -> UInt8Array:
    """To the nearest, ties to even; what is larger than 448 becomes 448."""
    bits: UInt32Array = scaled.view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    denormal = np.rint(np.abs(scaled) * np.float32(512)).astype(np.uint32)
    rounded = (magnitude + np.uint32(0x7FFFF) + ((magnitude >> 20) & 1)) >> 20
    normal = np.where(magnitude >= 0x43E00000, np.uint32(0x7E), rounded - np.uint32(120 << 3))
    code = np.where(magnitude < 0x3C800000, denormal, normal)
    codes: UInt8Array = (code | (bits >> 24 & 0x80)).astype(np.uint8)
    return codes


@functools.cache
def _e4m3_values() -> Float32Array:
    """float32[256]: what each code stands for."""
    codes = np.arange(256, dtype=np.uint8)
    exponent, mantissa = codes >> 3 & 15, (codes & 7).astype(np.float32)
    size = np.where(exponent > 0, np.ldexp(1 + mantissa / 8, exponent.astype(np.int32) - 7), mantissa / 512)
    return np.where(codes & 0x80, -size, size).astype(np.float32)
