"""Binds an engine's cache in place: maps the bytes of its tensors to the bytes of a block.

Made once for each cache, when an engine starts, and passed to every put and get. The caller describes the tensors (see
`tierstore.device.axes`), and this module checks them against the layout. It copies nothing and allocates no KV.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from tierstore.device.axes import CutTensor, PagedTensor
from tierstore.device.quantization import check_groups
from tierstore.device.segments import SEGMENT, Segment, Span, as_table, merge
from tierstore.device.tensors import TensorView
from tierstore.errors import DeviceError, LayoutError

if TYPE_CHECKING:
    from tierstore.device.segments import Segments
    from tierstore.layout import KVLayout
    from tierstore.quantized import QuantizedBlock
    from tierstore.types import UInt8Array

__all__ = ["PagedKV"]


@dataclass(frozen=True, eq=False)
class PagedKV:
    """A cache that blocks are copied from and to; keeps its tensors alive.

    Attributes:
        block_nbytes: Bytes of a block, over all segments.
        segments: SEGMENT[num_segments], C-contiguous; see `tierstore.device.segments.SEGMENT`.
        groups: Page groups (layers, or runs of them) in the order of copying; each is a list of spans. Together they
            name every segment once, in order. A load has one event for each group.
        num_blocks: For each row of block ids, how many blocks its tensors hold: ids are ``0 … num_blocks - 1``.
        memory: Where the tensors lie, as torch names it: ``"cpu"``, ``"cuda:0"``.
        tensors: The tensors that the segments point into.
        layout: The layout it was bound against; None for plain rows of a caller's buffers.
        sharing: Rows of block ids, grouped by the memory whose blocks they name. A load names no id twice in a group.
        quantized: The form of the blocks in their slots, if they are not kept byte for byte; see `stored`.
    """

    block_nbytes: int
    segments: Segments
    groups: tuple[tuple[Span, ...], ...]
    num_blocks: tuple[int, ...]
    memory: str
    tensors: tuple[TensorView, ...]
    layout: KVLayout | None = None
    sharing: tuple[tuple[int, ...], ...] = ((0,),)
    quantized: QuantizedBlock | None = None

    @classmethod
    def bind(cls, layout: KVLayout, tensors: Sequence[PagedTensor], *, pages_per_group: int | None = None) -> PagedKV:
        """Bind a cache as it lies. Does not block; reads shapes, strides and addresses alone.

        Args:
            layout: The layout of a block. Its order of tokens and heads is the order of bytes in host memory and on
                SSD; a cache in the other order can be bound too, but in shorter rows.
            tensors: The cache: every plane of every page of the layout in exactly one of them.
            pages_per_group: Pages of the layout that share an event: 1 lets an engine start with its first layer
                while the second still moves; None makes all of them one group, which costs least.

        Raises:
            LayoutError: A tensor does not fit the layout, or a page is missing, or is there twice.
        """
        parts = [CutTensor(tensor, layout) for tensor in tensors]
        _check_held(parts, layout)
        count = len(layout.pages) if pages_per_group is None else pages_per_group
        if count < 1:
            raise LayoutError(f"pages_per_group is {count}; pass 1 or more, or None for one group of all pages")
        cut: dict[tuple[int, int], list[Segment]] = {}
        for part in parts:
            own: dict[tuple[int, int], list[Segment]] = {}
            for page, id_row, segment in part.segments():
                own.setdefault((page // count, id_row), []).append(segment)
            for place, segments in own.items():
                cut.setdefault(place, []).extend(merge(segments, rows_apart=True))
        table: list[Segment] = []
        groups: list[list[Span]] = [[] for _ in range(0, len(layout.pages), count)]
        for (group, id_row), segments in sorted(cut.items()):
            first = len(table)
            table += merge(segments, rows_apart=False)
            groups[group].append(Span(id_row, first, len(table)))
        bound = cls(
            block_nbytes=layout.block_nbytes,
            segments=as_table(table),
            groups=tuple(map(tuple, groups)),
            num_blocks=_count_blocks(parts),
            memory=_one_memory([part.view for part in parts]),
            tensors=tuple(part.view for part in parts),
            layout=layout,
            sharing=_find_sharing(parts),
        )
        _check_apart(bound)
        return bound

    @property
    def stored_nbytes(self) -> int:
        """Bytes of a block in its slot."""
        return self.block_nbytes if self.quantized is None else self.quantized.nbytes

    def stored(self, quantized: QuantizedBlock | None) -> PagedKV:
        """The same cache for blocks stored as `quantized` says, or, if None, byte for byte. Made once, then kept.

        Raises:
            LayoutError: A row of the cache is not whole groups of elements that share a scale.
        """
        if quantized == self.quantized:
            return self
        if quantized not in self._as_stored:
            if quantized is not None:
                check_groups(quantized, self.segments)
            self._as_stored[quantized] = replace(self, quantized=quantized)
        return self._as_stored[quantized]

    @cached_property
    def _as_stored(self) -> dict[QuantizedBlock | None, PagedKV]:
        return {}

    @cached_property
    def writable(self) -> bool:
        """Whether blocks may be loaded into it."""
        return all(tensor.writable for tensor in self.tensors)

    @cached_property
    def views(self) -> tuple[UInt8Array, ...]:
        """Of every segment uint8[num_blocks, num_rows, row_nbytes], in place; host memory only."""
        assert self.memory == "cpu", f"numpy cannot see memory of {self.memory}"
        num_blocks = {}
        for id_row, first, end in (span for group in self.groups for span in group):
            num_blocks.update(dict.fromkeys(range(first, end), self.num_blocks[id_row]))
        rows = [Segment(*numbers) for numbers in self.segments.tolist()]
        return tuple(_view(segment, num_blocks[index], self.tensors) for index, segment in enumerate(rows))

    def check_in_place(self) -> None:
        """Raise DeviceError where a tensor's memory has been freed or moved since it was bound. Does not block."""
        for tensor in self.tensors:
            if not tensor.in_place:
                raise DeviceError(f"{tensor} has been freed or moved since it was bound; bind the cache again")


class _Memory:
    """Memory at an address as numpy takes it; keeps its owners."""

    __slots__ = ("__array_interface__", "owners")

    def __init__(self, interface: dict[str, object], owners: tuple[TensorView, ...]) -> None:
        self.__array_interface__ = interface
        self.owners = owners


def _view(segment: Segment, num_blocks: int, owners: tuple[TensorView, ...]) -> UInt8Array:
    interface: dict[str, object] = {
        "version": 3,
        "typestr": "|u1",
        "data": (segment.base_address, False),
        "shape": (num_blocks, segment.num_rows, segment.row_nbytes),
        "strides": (segment.block_stride_nbytes, segment.row_stride_nbytes, 1),
    }
    return np.asarray(_Memory(interface, owners))


def _check_held(parts: Sequence[CutTensor], layout: KVLayout) -> None:
    """Refuse a layout's plane that no tensor holds, or more than one."""
    held = Counter(place for part in parts for place in part.held)
    for page, spec in enumerate(layout.pages):
        for plane in range(spec.planes):
            if held[page, plane] != 1:
                raise LayoutError(
                    f"plane {plane} of page {spec.name!r} is in {held[page, plane]} of the tensors; bind all pages of "
                    "the layout, each once"
                )


def _count_blocks(parts: Sequence[CutTensor]) -> tuple[int, ...]:
    counts: dict[int, int] = {}
    for part in parts:
        for id_row in part.id_rows:
            counts[id_row] = min(part.num_blocks, counts.get(id_row, part.num_blocks))
    missing = sorted(set(range(max(counts) + 1)) - set(counts))
    if missing:
        raise LayoutError(f"row {missing[0]} of the block ids names blocks of no tensor; number id_rows from 0")
    return tuple(counts[id_row] for id_row in range(len(counts)))


def _find_sharing(parts: Sequence[CutTensor]) -> tuple[tuple[int, ...], ...]:
    """Rows of block ids that name blocks of one tensor, or of tensors that lie in one place."""
    rows: dict[int, set[int]] = {}
    places: dict[tuple[int, int], int] = {}
    for part in parts:
        first = places.setdefault(part.place, part.id_rows[0])
        together = set().union(*(rows.get(row, {row}) for row in (first, *part.id_rows)))
        rows.update(dict.fromkeys(together, together))
    return tuple(sorted({tuple(sorted(together)) for together in rows.values()}))


def _one_memory(views: Sequence[TensorView]) -> str:
    for view in views[1:]:
        if view.memory != views[0].memory:
            raise LayoutError(
                f"{views[0]} is on {views[0].memory}, {view} on {view.memory}; bind tensors of one device"
            )
    return views[0].memory


def _check_apart(bound: PagedKV) -> None:
    """Refuse a cache in which one row of block ids names a byte twice, such as a tensor bound for two pages."""
    for id_row in range(len(bound.num_blocks)):
        spans = [span for group in bound.groups for span in group if span.id_row == id_row]
        table = np.concatenate([bound.segments[span.first : span.end] for span in spans], dtype=SEGMENT)
        rows = np.repeat(table, table["num_rows"])
        step = np.arange(len(rows)) - np.repeat(np.cumsum(table["num_rows"]) - table["num_rows"], table["num_rows"])
        begin = rows["base_address"] + step * rows["row_stride_nbytes"]
        order = np.argsort(begin)
        begin, end = begin[order], (begin + rows["row_nbytes"])[order]
        if (begin[1:] < end[:-1]).any():
            raise LayoutError("two pages lie in the same memory and share their block ids; give each tensor its own")
