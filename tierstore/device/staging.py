"""Lays a copy out in staging memory: splits it into parts that fit, and packs the blocks of a part one after another.

Called by the staging engine. Arithmetic on numbers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tierstore.device.copy_pieces import Pieces, SpanCopy
from tierstore.device.quantization import check_groups
from tierstore.device.segments import Segment, as_table

if TYPE_CHECKING:
    from tierstore.types import Int64Array

__all__ = ["Staged", "cut_to_fit"]

_ALIGNMENT = 256
"""Places in staging memory differ from those in slots by a multiple of it, so that no access becomes narrower."""

_SCALE_NBYTES = 4


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """One part of a copy, as it lies in staging memory: one place for each block, `pitch_nbytes` apart.

    Attributes:
        copy: The part; its slots are those of the copy that it was cut from.
        in_staging: The same, with the offsets and scales of a place.
        pitch_nbytes: Bytes from one place to the next.
        ranges: int64[num_ranges, 3]: where each contiguous piece begins in a place, where in a slot, and its length.
    """

    copy: SpanCopy
    in_staging: SpanCopy
    pitch_nbytes: int
    ranges: Int64Array

    @classmethod
    def of(cls, copy: SpanCopy) -> Staged:
        """A copy that fits as a whole."""
        spans = copy.filled()
        begin, end = spans[0][0], spans[-1][1]
        segments = copy.segments.copy()
        if copy.quantized is None:
            begin -= begin % _ALIGNMENT
            packed, nbytes = None, end - begin
            ranges = [(first - begin, first, last - first) for first, last in spans]
        else:
            item_nbytes = check_groups(copy.quantized, segments) // copy.quantized.group
            packed = replace(copy.quantized, num_elements=(end - begin) // item_nbytes)
            nbytes = packed.nbytes
            ranges = [
                (place[0], slot[0], slot[1] - slot[0])
                for first, last in spans
                for place, slot in zip(
                    packed.slot_ranges(first - begin, last - begin),
                    copy.quantized.slot_ranges(first, last),
                    strict=True,
                )
            ]
        segments["slot_offset_nbytes"] -= begin
        pitch_nbytes = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return cls(copy, replace(copy, segments=segments, quantized=packed), pitch_nbytes, np.array(ranges, np.int64))

    def round(self, blocks: slice, place: int) -> tuple[SpanCopy, Pieces]:
        """Some of its blocks, in places from an address on: between cache and places, and between places and slots."""
        slots = self.copy.slots[blocks]
        places = place + np.arange(len(slots), dtype=np.int64) * self.pitch_nbytes
        in_place, in_slot, nbytes = self.ranges.T[:, :, np.newaxis]
        lengths = np.broadcast_to(nbytes, (len(self.ranges), len(slots)))
        across = Pieces((places + in_place).ravel(), (slots + in_slot).ravel(), lengths.ravel())
        return replace(self.in_staging, slots=places, block_ids=self.copy.block_ids[blocks]), across


def cut_to_fit(copy: SpanCopy, room_nbytes: int) -> Iterator[Staged]:
    """The same copy in parts, none of which takes more than `room_nbytes` of staging memory a block."""
    limit_nbytes = _limit(copy, room_nbytes)
    spans = copy.filled()
    if spans[-1][1] - spans[0][0] <= limit_nbytes:
        yield Staged.of(copy)
        return
    unit_nbytes = 1 if copy.quantized is None else check_groups(copy.quantized, copy.segments)
    rows = [Segment(*numbers) for numbers in copy.segments.tolist()]
    part: list[Segment] = []
    for whole in sorted(rows, key=lambda segment: segment.slot_offset_nbytes):
        for segment in _split(whole, limit_nbytes // unit_nbytes * unit_nbytes):
            end = segment.slot_offset_nbytes + segment.nbytes
            if part and end - part[0].slot_offset_nbytes > limit_nbytes:
                yield Staged.of(replace(copy, segments=as_table(part)))
                part = []
            part.append(segment)
    yield Staged.of(replace(copy, segments=as_table(part)))


def _limit(copy: SpanCopy, room_nbytes: int) -> int:
    """Bytes of a block as the cache has it whose staged form fits."""
    room_nbytes -= _ALIGNMENT
    if copy.quantized is None:
        return room_nbytes
    group = copy.quantized.group
    return room_nbytes // (group + _SCALE_NBYTES) * check_groups(copy.quantized, copy.segments)


def _split(segment: Segment, limit_nbytes: int) -> Iterator[Segment]:
    """Pieces of at most so many bytes: as many rows as fit, or parts of a row that is longer."""
    assert limit_nbytes > 0, "staging memory is too small for a single group of elements"
    rows = max(1, limit_nbytes // segment.row_nbytes)
    length = min(segment.row_nbytes, limit_nbytes)
    for first in range(0, segment.num_rows, rows):
        for begin in range(0, segment.row_nbytes, length):
            yield segment._replace(
                base_address=segment.base_address + first * segment.row_stride_nbytes + begin,
                num_rows=min(rows, segment.num_rows - first),
                row_nbytes=min(length, segment.row_nbytes - begin),
                slot_offset_nbytes=segment.slot_offset_nbytes + first * segment.row_nbytes + begin,
            )
