"""The memory that a request copies from or to: the caller's cache, block ids, and the events that copies wait for.

It is checked when a verb is called. The engine holds it until the request has ended, and device links read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tierstore.device.base import Event
from tierstore.device.cpu import CpuEvent
from tierstore.errors import LayoutError
from tierstore.transfer.layers import Layers

if TYPE_CHECKING:
    from tierstore.device.paged_kv import PagedKV
    from tierstore.types import Int64Array

__all__ = ["BlockIds", "CallerMemory"]

BlockIds = Sequence[int] | Sequence[Sequence[int]]
"""One id a block, or a sequence of them for each row of block ids that a cache was bound with."""


@dataclass(frozen=True, slots=True, eq=False)
class CallerMemory:
    """The caller's side of a request.

    Attributes:
        kv: The cache.
        block_ids: int64[num_id_rows, n]; where each block of the request lies in it.
        after: ``after[i]`` is done before the i-th page group is touched. One event delays all groups, none no group.
        layers: Told of every load; None for a request that loads nothing.
    """

    kv: PagedKV
    block_ids: Int64Array
    after: tuple[Event, ...] = ()
    layers: Layers | None = None

    def complete(self, num_blocks: int) -> None:
        """See `Layers.complete`."""
        if self.layers is not None:
            self.layers.complete(num_blocks)

    def recall(self) -> None:
        """Do nothing: copies that have begun end soon."""

    @classmethod
    def check(
        cls,
        kv: PagedKV,
        num_blocks: int,
        block_ids: BlockIds | None,
        after: Sequence[object],
        *,
        written: bool,
    ) -> CallerMemory:
        """Check what a verb was given; raises a LayoutError that says what does not fit.

        Args:
            kv: The cache, or buffers bound as one.
            num_blocks: Blocks of the request.
            block_ids: See `BlockIds`. None: block i is block i of the cache, which holds no others.
            after: See `CallerMemory`; None for a page group that waits for nothing.
            written: Whether blocks are loaded into the cache.
        """
        events = _check_events(after)
        if len(events) not in (0, 1, len(kv.groups)):
            raise LayoutError(
                f"{len(events)} events for {len(kv.groups)} page groups; pass one for all, or one a group"
            )
        if block_ids is not None:
            ids = _check_ids(kv, num_blocks, block_ids)
        elif set(kv.num_blocks) == {num_blocks}:
            ids = np.tile(np.arange(num_blocks), (len(kv.num_blocks), 1))
        else:
            raise LayoutError(
                f"{num_blocks} hashes but buffers of {max(kv.num_blocks)} blocks; pass one row a hash, or block_ids"
            )
        if not written:
            return cls(kv, ids, events)
        if not kv.writable:
            raise LayoutError("a buffer is read-only, so nothing can be loaded into it; pass a writable one")
        if block_ids is not None or len(ids) > 1:
            _check_distinct(kv, ids)
        return cls(kv, ids, events, Layers(len(kv.groups)))


def _check_events(after: Sequence[object]) -> tuple[Event, ...]:
    """The events that copies wait for; a None among others becomes an event that is done."""
    if all(event is None for event in after):
        return ()
    done = CpuEvent()
    done.reach()
    events = []
    for given in after:
        event = done if given is None else given
        if not isinstance(event, Event):
            raise LayoutError(f"after is of type {type(event).__name__}; pass an event of the device, or None")
        events.append(event)
    return tuple(events)


def _check_ids(kv: PagedKV, num_blocks: int, block_ids: BlockIds) -> Int64Array:
    """int64[num_id_rows, num_blocks]: the block ids, checked to be in the cache."""
    try:
        ids = np.array(block_ids, np.int64)
    except (TypeError, ValueError, OverflowError) as error:
        raise LayoutError(f"block_ids are no whole numbers of one row for each hash: {error}") from error
    if ids.ndim == 1 and len(kv.num_blocks) == 1:
        ids = ids[np.newaxis]
    if ids.shape != (len(kv.num_blocks), num_blocks):
        rows = f", in {len(kv.num_blocks)} rows" if len(kv.num_blocks) > 1 else ""
        raise LayoutError(f"{num_blocks} hashes but block_ids of shape {np.shape(block_ids)}; pass one a hash{rows}")
    for row, count in zip(ids, kv.num_blocks, strict=True):
        outside = row[(row < 0) | (row >= count)]
        if len(outside):
            raise LayoutError(f"block id {outside[0]} lies outside buffers of {count} blocks")
    return ids


def _check_distinct(kv: PagedKV, ids: Int64Array) -> None:
    """Refuse ids that give one place in the cache to two blocks, or to two parts of one."""
    for rows in kv.sharing:
        values, counts = np.unique(ids[list(rows)], return_counts=True)
        if (counts > 1).any():
            twice = values[counts > 1][0]
            raise LayoutError(f"block id {twice} is named twice; each block of a get needs a row of its own")
