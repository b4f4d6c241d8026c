"""An engine's cache, bound as it is: which bytes of which tensor are which bytes of a block.

Made once a cache, when an engine comes up; passed to every put and get. Described by the caller's own words
(axes and strides), checked here against the layout, never guessed from a shape. Copies nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tierstore.device.segments import Segments, Span

__all__ = ["PagedKV"]


@dataclass(frozen=True, slots=True, eq=False)
class PagedKV:
    """A cache that blocks are copied from and to; keeps its tensors alive.

    Attributes:
        block_nbytes: Bytes of a block, over all segments.
        segments: SEGMENT[num_segments], C-contiguous; see `tierstore.device.segments.SEGMENT`.
        groups: Page groups (layers, or runs of them) in the order in which they are copied; of each the spans that
            make it up. Together they name every segment once, in order. A load has one event a group.
        num_blocks: For each row of block ids, how many blocks its tensors hold: ids are ``0 … num_blocks - 1``.
        memory: Where the tensors lie, as torch names it: ``"cpu"``, ``"cuda:0"``.
        writable: Whether blocks may be loaded into it.
        tensors: What the segments point into.
    """

    block_nbytes: int
    segments: Segments
    groups: tuple[tuple[Span, ...], ...]
    num_blocks: tuple[int, ...]
    memory: str
    writable: bool
    tensors: tuple[object, ...]
