"""Blocks between the pool and a cache in host memory, as the fewest copies that numpy can make of them.

Called by the CPU device on its streams' threads. Trusts what it is given: whoever calls has checked that all of
it lies inside the pool and the cache.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise, starmap
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tierstore.device.copying import choose
from tierstore.device.paging import slot_nbytes
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.copying import CopyPrimitive
    from tierstore.device.paged_kv import PagedKV
    from tierstore.types import Int32Array, Int64Array, UInt8Array

    Places: TypeAlias = tuple[list[slice], list[slice]]

__all__ = ["BlockCopy"]


class BlockCopy:
    """One copy of n blocks.

    Args:
        host: uint8[pool_nbytes].
        slots: int32[n]; offsets in the pool, in 4 KiB pages. Not looked at again, as the block ids.
        kv: A cache in host memory.
        block_ids: int64[num_id_rows, n].
        into_pool: Whether `host` is written.
        primitive: How to copy; None takes the fastest here for each row size.
    """

    def __init__(
        self,
        host: UInt8Array,
        slots: Int32Array,
        kv: PagedKV,
        block_ids: Int64Array,
        *,
        into_pool: bool,
        primitive: CopyPrimitive | None = None,
    ) -> None:
        self._host = host
        self._kv = kv
        self._into_pool = into_pool
        self._primitive = primitive
        self._places = [_find_runs(slots, ids, slot_nbytes(kv.block_nbytes) // PAGE_NBYTES) for ids in block_ids]

    def run(self, group: int) -> None:
        """Copy one page group of all blocks. Blocks until the last byte has moved."""
        for id_row, first, end in self._kv.groups[group]:
            for segment in range(first, end):
                self._copy_segment(segment, *self._places[id_row])

    def _copy_segment(self, segment: int, in_pool: list[slice], in_cache: list[slice]) -> None:
        cache = self._kv.views[segment]
        offset = int(self._kv.segments["slot_offset_nbytes"][segment])
        num_rows, row_nbytes = cache.shape[1:]
        num_slots = (len(self._host) - offset - num_rows * row_nbytes) // PAGE_NBYTES + 1
        pool = np.ndarray((num_slots, num_rows, row_nbytes), np.uint8, self._host, offset, (PAGE_NBYTES, row_nbytes, 1))
        copy = self._primitive or choose(into_pool=self._into_pool, row_nbytes=row_nbytes).copy
        pool_rows, cache_rows = map(pool.__getitem__, in_pool), map(cache.__getitem__, in_cache)
        pairs = zip(pool_rows, cache_rows) if self._into_pool else zip(cache_rows, pool_rows)  # noqa: B905
        deque(starmap(copy, pairs), maxlen=0)


def _find_runs(slots: Int32Array, block_ids: Int64Array, slot_pages: int) -> Places:
    """Neighbours in the pool that are neighbours in the cache, to be copied by one call a segment.

    Rows of 4 KiB move three times faster in runs of 16 than one by one, so a run is as long as it can be.

    Returns:
        Where each run lies in the pool, in pages of 4 KiB, and in the cache.
    """
    goes_on = (np.diff(slots) == slot_pages) & (np.diff(block_ids) == 1)
    edges = [0, *((~goes_on).nonzero()[0] + 1).tolist(), len(slots)] if len(slots) else []
    places: Places = [], []
    for first, end in pairwise(edges):
        slot, block_id, count = int(slots[first]), int(block_ids[first]), end - first
        places[0].append(slice(slot, slot + (count - 1) * slot_pages + 1, slot_pages))
        places[1].append(slice(block_id, block_id + count))
    return places
