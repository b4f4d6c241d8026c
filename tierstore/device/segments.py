"""The table of segments, which says where the bytes of a block lie in an engine's cache. Links binding and copying.

`tierstore.device.paged_kv` builds it once; every device reads it, and kernels read it as it lies in memory.
Arithmetic on numbers only: nothing here touches a byte of KV.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Segments: TypeAlias = NDArray[np.void]

__all__ = ["SEGMENT", "Loop", "Segment", "Span", "as_table", "cut", "merge"]


class Segment(NamedTuple):
    """Rows of a block that lie a fixed distance apart in the cache, and one after another in the slot.

    Row ``j`` of this segment of block ``b`` is the ``row_nbytes`` contiguous bytes at ``base_address + b *
    block_stride_nbytes + j * row_stride_nbytes``; its place in the block's slot is ``slot_offset_nbytes + j *
    row_nbytes``. Strides may be negative.
    """

    base_address: int
    block_stride_nbytes: int
    num_rows: int
    row_stride_nbytes: int
    row_nbytes: int
    slot_offset_nbytes: int

    @property
    def nbytes(self) -> int:
        """Bytes of one block in this segment."""
        return self.num_rows * self.row_nbytes


SEGMENT = np.dtype([(name, np.int64) for name in Segment._fields])
"""One row of the table: the six numbers of a `Segment` as int64, in that order, with no padding. The rows of all
segments cover ``[0, block_nbytes)`` of a slot exactly once, and no two rows of one cache overlap."""


class Span(NamedTuple):
    """Segments ``[first, end)`` of the table, whose blocks are all named by one row of the block ids.

    A copy of n blocks has block ids int64[num_id_rows, n]; a kernel that copies this span takes ``block_ids[id_row]``
    (int64[n], contiguous), the n addresses of the slots, and the segments from `first` to `end`.
    """

    id_row: int
    first: int
    end: int


class Loop(NamedTuple):
    """One axis of a tensor within a block: the number of steps, and the stride of each in the cache and in the slot."""

    num_steps: int
    stride_nbytes: int
    slot_stride_nbytes: int


def cut(loops: Iterable[Loop], *, address: int, block_stride_nbytes: int, slot_offset_nbytes: int) -> Iterator[Segment]:
    """Cut a nest of loops over bytes into segments of rows that are as long as they can be.

    Args:
        loops: The axes of a tensor within a block, the bytes of an element among them, in any order.
        address: Where all loops begin, in block 0.
        block_stride_nbytes: From a block to the next in the cache.
        slot_offset_nbytes: Where all loops begin, in the slot.
    """
    nest: list[Loop] = []  # outermost first; an axis that goes on where the one inside it ends is none of its own
    for inner in sorted((loop for loop in loops if loop.num_steps > 1), key=lambda loop: -loop.slot_stride_nbytes):
        goes_on = nest and nest[-1][1:] == (
            inner.num_steps * inner.stride_nbytes,
            inner.num_steps * inner.slot_stride_nbytes,
        )
        nest.append(inner._replace(num_steps=nest.pop().num_steps * inner.num_steps) if goes_on else inner)
    row_nbytes = nest.pop().num_steps if nest and nest[-1][1:] == (1, 1) else 1
    rows = nest.pop() if nest and nest[-1].slot_stride_nbytes == row_nbytes else Loop(1, row_nbytes, row_nbytes)
    for steps in itertools.product(*(range(loop.num_steps) for loop in nest)):
        yield Segment(
            address + sum(step * loop.stride_nbytes for step, loop in zip(steps, nest, strict=True)),
            block_stride_nbytes,
            rows.num_steps,
            rows.stride_nbytes,
            row_nbytes,
            slot_offset_nbytes + sum(step * loop.slot_stride_nbytes for step, loop in zip(steps, nest, strict=True)),
        )


def merge(segments: Iterable[Segment], *, rows_apart: bool) -> list[Segment]:
    """Join neighbours in the slot: bytes that go on in the cache become one row.

    Args:
        segments: Of one row of block ids, in any order.
        rows_apart: Whether rows that lie apart may become one segment, too. Only within one tensor: a segment
            that reaches from one allocation into another would look to numpy as if it held what lies between.
    """
    merged: list[Segment] = []
    for segment in sorted(segments, key=lambda segment: segment.slot_offset_nbytes):
        joined = _join(merged[-1], segment, rows_apart=rows_apart) if merged else None
        if joined is None:
            merged.append(segment)
        else:
            merged[-1] = joined
    return merged


def _join(first: Segment, second: Segment, *, rows_apart: bool) -> Segment | None:
    """Both as one segment; None where they are not."""
    distance = second.base_address - first.base_address
    if (
        first.block_stride_nbytes != second.block_stride_nbytes
        or first.slot_offset_nbytes + first.nbytes != second.slot_offset_nbytes
    ):
        return None
    if first.num_rows == second.num_rows == 1 and distance == first.row_nbytes:
        row_nbytes = first.row_nbytes + second.row_nbytes
        return first._replace(row_nbytes=row_nbytes, row_stride_nbytes=row_nbytes)
    stride = first.row_stride_nbytes if first.num_rows > 1 else distance
    if (
        rows_apart
        and first.row_nbytes == second.row_nbytes
        and first.num_rows * stride == distance
        and (second.num_rows == 1 or second.row_stride_nbytes == stride)
    ):
        return first._replace(num_rows=first.num_rows + second.num_rows, row_stride_nbytes=stride)
    return None


def as_table(segments: Iterable[Segment]) -> Segments:
    """SEGMENT[num_segments], as devices get it."""
    return np.array(list(segments), SEGMENT)
