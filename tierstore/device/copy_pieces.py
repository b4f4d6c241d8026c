"""Splits a copy into contiguous pieces, for copy engines that take addresses. A piece is contiguous on both sides.

Called by the CUDA device's copy engines. Arithmetic on numbers only; the kernels do not need it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tierstore.device.segments import Segments
    from tierstore.quantized import QuantizedBlock
    from tierstore.types import Int64Array

__all__ = ["Pieces", "SpanCopy", "cut_pieces", "split_pieces"]


@dataclass(frozen=True, slots=True, eq=False)
class SpanCopy:
    """Blocks to be copied one way, between their slots and one span of segments.

    Attributes:
        store: Whether the slots are written (device to host) or the cache is.
        segments: SEGMENT[num_segments], all of blocks that `block_ids` names.
        slots: int64[n], the address of each block's slot.
        block_ids: int64[n].
        origin: Address where the host memory of the slots begins.
        quantized: The form of the blocks in their slots, if they are not kept byte for byte.
    """

    store: bool
    segments: Segments
    slots: Int64Array
    block_ids: Int64Array
    origin: int
    quantized: QuantizedBlock | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that it moves."""
        return int((self.segments["num_rows"] * self.segments["row_nbytes"]).sum()) * len(self.slots)

    def filled(self) -> list[tuple[int, int]]:
        """(begin, end) of what it moves of a block as the cache has it, neighbours joined."""
        segments = self.segments[np.argsort(self.segments["slot_offset_nbytes"])]
        begins = segments["slot_offset_nbytes"]
        ends = begins + segments["num_rows"] * segments["row_nbytes"]
        first = np.concatenate([[True], begins[1:] != ends[:-1]])
        return list(zip(begins[first].tolist(), ends[np.append(first[1:], True)].tolist(), strict=True))


class Pieces(NamedTuple):
    """int64[num_pieces] each: addresses in the cache and in the slots, and lengths."""

    pages: Int64Array
    hosts: Int64Array
    nbytes: Int64Array


def cut_pieces(copy: SpanCopy) -> Pieces:
    """Every row of a copy, those that follow one another on both sides joined."""
    segments = copy.segments
    of_row = np.repeat(np.arange(len(segments)), segments["num_rows"])
    firsts = np.cumsum(segments["num_rows"]) - segments["num_rows"]
    row = np.arange(len(of_row)) - firsts[of_row]
    table = segments[of_row]
    in_cache = table["base_address"] + row * table["row_stride_nbytes"]
    in_slot = table["slot_offset_nbytes"] + row * table["row_nbytes"]
    pages = (in_cache + copy.block_ids[:, None] * table["block_stride_nbytes"]).ravel()
    hosts = (in_slot + copy.slots[:, None]).ravel()
    nbytes = np.tile(table["row_nbytes"], len(copy.slots))
    return _joined(Pieces(pages, hosts, nbytes))


def split_pieces(pieces: Pieces, *, origin: int, slice_nbytes: int) -> Pieces:
    """The same bytes, no piece crossing a multiple of `slice_nbytes` behind the address `origin` of host memory.

    Memory that is registered in slices must be copied slice by slice.
    """
    pages, hosts, nbytes = pieces
    begin, end = (hosts - origin) // slice_nbytes, (hosts + nbytes - 1 - origin) // slice_nbytes
    if np.array_equal(begin, end):
        return pieces
    of_part = np.repeat(np.arange(len(hosts)), end - begin + 1)
    firsts = np.cumsum(end - begin + 1) - (end - begin + 1)
    cut = origin + (begin[of_part] + np.arange(len(of_part)) - firsts[of_part]) * slice_nbytes
    starts = np.maximum(hosts[of_part], cut)
    ends = np.minimum((hosts + nbytes)[of_part], cut + slice_nbytes)
    return Pieces(pages[of_part] + starts - hosts[of_part], starts, ends - starts)


def _joined(pieces: Pieces) -> Pieces:
    pages, hosts, nbytes = pieces
    if not len(pages):
        return pieces
    apart = (pages[1:] != pages[:-1] + nbytes[:-1]) | (hosts[1:] != hosts[:-1] + nbytes[:-1])
    first = np.concatenate([[0], np.flatnonzero(apart) + 1])
    return Pieces(pages[first], hosts[first], np.add.reduceat(nbytes, first))
