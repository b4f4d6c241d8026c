"""Copies blocks between the pool and a cache in host memory, in as few numpy calls as possible.

Called by the CPU device on its streams' threads. It checks nothing: the caller has checked that all of the copy
lies inside the pool and the cache.

A numpy call costs 0.2 to 0.7 µs and releases the GIL once; another thread may then keep the GIL for a while. So
neighbouring blocks move in one call. Short rows that are evenly spaced at the source, as blocks in the pool often
are, move in one call a segment, whatever their destination. Rows scattered on both sides move some dozens a call,
through a buffer of numpy's own that stays in the processor's cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tierstore.device.copying import choose
from tierstore.device.paging import slot_nbytes
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.copying import CopyPrimitive
    from tierstore.device.paged_kv import PagedKV
    from tierstore.types import Int32Array, Int64Array, UInt8Array

    Index: TypeAlias = int | slice
    Pairs: TypeAlias = list[tuple[Index, Index]]

__all__ = ["BlockCopy"]

_SHORT_NBYTES = 32 << 10
"""Rows below are copied by an assignment of numpy, whose overhead is the least, whatever the fastest primitive is:
0.23 µs a call against 0.45 (`python -m bench.pages`)."""

_MANY_RUNS = 8
"""From so many on it pays to look whether blocks are evenly spaced."""

_SCATTERED_NBYTES = 8 << 10
"""Rows up to this are copied twice, by dozens, where they are scattered where they come from. By turns beside memcpy by
rows on a busy machine: 4 KiB at 58 to 72 % against 51 to 56 one by one, 8 KiB at 61 to 64 against 53 to 56; from 16 KiB
on it is slower. (Tried on a quiet one and left out: ``np.take`` into a buffer of our own and ``np.put`` from it, the
destination as a slice where it is evenly spaced, rows of uint64 instead of whole elements, all within 6 points or
slower; ``process_vm_readv`` on this process, 54 % at 4 and 66 % at 8 KiB.)"""

_BUFFER_NBYTES = 256 << 10
"""What a call may bring into numpy's buffer: inside of a second-level cache. 64 KiB were 3 to 7 points slower, 512 KiB
to 2 MiB no faster."""

_RUN_BLOCKS = 4
"""Neighbours of so many and more are better copied in runs, in place."""


class BlockCopy:
    """One copy of n blocks.

    Args:
        host: uint8[pool_nbytes].
        slots: int32[n]; offsets in the pool, in 4 KiB pages. Like the block ids, not read after construction.
        kv: A cache in host memory.
        block_ids: int64[num_id_rows, n].
        into_pool: Whether `host` is written.
        primitive: The way to copy; None takes the fastest on this machine for each row size.
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
        in_pool, slot_pages = slots.tolist(), slot_nbytes(kv.block_nbytes) // PAGE_NBYTES
        self._runs = [_find_runs(in_pool, ids, slot_pages, into_pool=into_pool) for ids in block_ids.tolist()]
        places = slots.astype(np.int64)
        self._scattered = [
            ((places, ids) if into_pool else (ids, places)) if len(runs) >= _MANY_RUNS else None
            for runs, ids in zip(self._runs, block_ids, strict=True)
        ]

    def run(self, group: int) -> None:
        """Copy one page group of all blocks. Blocks until the last byte has moved."""
        for id_row, first, end in self._kv.groups[group]:
            for segment in range(first, end):
                self._copy_segment(segment, id_row)

    def _copy_segment(self, segment: int, id_row: int) -> None:
        cache = self._kv.views[segment]
        offset = int(self._kv.segments["slot_offset_nbytes"][segment])
        _, num_rows, row_nbytes = cache.shape
        num_places = (len(self._host) - offset - num_rows * row_nbytes) // PAGE_NBYTES + 1
        shape, strides = (num_places, num_rows, row_nbytes), (PAGE_NBYTES, row_nbytes, 1)
        pool = np.ndarray(shape, np.uint8, self._host, offset, strides)
        dst, src = (pool, cache) if self._into_pool else (cache, pool)
        if self._primitive is None and row_nbytes < _SHORT_NBYTES:
            if not self._copy_scattered(dst, src, id_row):
                for to, at in self._runs[id_row]:
                    dst[to] = src[at]
        else:
            copy = self._primitive or choose(into_pool=self._into_pool, row_nbytes=row_nbytes).copy
            for to, at in self._runs[id_row]:
                copy(dst[to], src[at])

    def _copy_scattered(self, dst: UInt8Array, src: UInt8Array, id_row: int) -> bool:
        """Copy short rows by index, whole rows as elements; False where runs are better."""
        scattered = self._scattered[id_row]
        if scattered is None:
            return False
        to, at = scattered
        row_nbytes = src.shape[-1]
        row = np.dtype((np.void, row_nbytes))
        evenly = _as_slice(at)
        if evenly is not None:
            parts: list[tuple[Int64Array, slice | Int64Array]] = [(to, evenly)]
        elif row_nbytes > _SCATTERED_NBYTES or len(to) >= _RUN_BLOCKS * len(self._runs[id_row]):
            return False
        else:
            count = max(1, _BUFFER_NBYTES // row_nbytes)
            parts = [(to[first : first + count], at[first : first + count]) for first in range(0, len(to), count)]
        for dst_rows, src_rows in zip(dst.view(row)[..., 0].T, src.view(row)[..., 0].T, strict=True):
            for dst_part, src_part in parts:
                dst_rows[dst_part] = src_rows[src_part]
        return True


def _find_runs(slots: list[int], block_ids: list[int], slot_pages: int, *, into_pool: bool) -> Pairs:
    """Where each run of neighbours goes to and comes from: blocks that are neighbours in the pool and in the cache.

    Rows of 4 KiB move three times faster in runs of 16 than one by one, so a run is as long as it can be.
    """
    pairs: Pairs = []
    first = 0
    for place in range(1, len(slots) + 1):  # faster than numpy up to 500 blocks
        if (
            place < len(slots)
            and slots[place] == slots[place - 1] + slot_pages
            and block_ids[place] == block_ids[place - 1] + 1
        ):
            continue
        count, slot, block_id = place - first, slots[first], block_ids[first]
        in_pool = slice(slot, slot + (count - 1) * slot_pages + 1, slot_pages) if count > 1 else slot
        in_cache = slice(block_id, block_id + count) if count > 1 else block_id
        pairs.append((in_pool, in_cache) if into_pool else (in_cache, in_pool))
        first = place
    return pairs if slots else []


def _as_slice(places: Int64Array) -> slice | None:
    """Rising places that are evenly spaced, as a slice; None for others."""
    first, last = int(places[0]), int(places[-1])
    step = int(places[1]) - first
    if step <= 0 or (np.diff(places) != step).any():
        return None
    return slice(first, last + 1, step)
