"""Frames: header pages and tail pages that turn a run of pool slots into records.

A frame belongs to one thread and is reused for every run. It lays [header, slot, tail] views side by side, so that
one vectored call moves many records without copying a payload. It also writes and reads the checksums behind the
payloads. It touches no file; the only pool bytes it changes are a slot's padding.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from tierstore.tiers.record import CHECKSUM_NBYTES, HEADER, RecordShape
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.tiers.record import HeaderArray
    from tierstore.types import Int32Array, UInt8Array, UInt32Array

__all__ = ["FRAME_RECORDS", "RUN_NBYTES", "Frame", "Pool", "Scratch", "aligned_buffer", "run_records"]

RUN_NBYTES = 16 << 20
"""Bytes one vectored call aims for: long enough that the call's cost vanishes."""

FRAME_RECORDS = 1024 // 3
"""Records a frame can hold: a vectored call takes 1024 buffers, a record up to three."""


def run_records(shape: RecordShape) -> int:
    """How many records of one shape make a run."""
    return max(1, min(FRAME_RECORDS, RUN_NBYTES // shape.pitch_nbytes))


def aligned_buffer(nbytes: int) -> UInt8Array:
    """uint8[nbytes] of zeros at a page boundary, fit for direct I/O; freed with its last view."""
    return np.frombuffer(mmap.mmap(-1, nbytes), dtype=np.uint8)


class Scratch:
    """Page-aligned memory of one thread at a time, as large as the largest piece it was ever asked for."""

    def __init__(self) -> None:
        self._memory = aligned_buffer(PAGE_NBYTES)

    def take(self, nbytes: int) -> UInt8Array:
        """uint8[nbytes], the same memory every time; memory taken before must no longer be used."""
        if nbytes > len(self._memory):
            self._memory = aligned_buffer(nbytes)
        return self._memory[:nbytes]


class Pool:
    """The host pool as the SSD tier sees it: the same bytes as a buffer, by page, and for checksums.

    Args:
        memory: uint8[pool_nbytes], starting at a page boundary, whole pages.
    """

    def __init__(self, memory: UInt8Array) -> None:
        assert memory.ctypes.data % PAGE_NBYTES == 0, "the pool must start at a page boundary"
        assert memory.size % PAGE_NBYTES == 0, f"the pool must be whole pages; it has {memory.size} bytes"
        self.pages = memory.reshape(-1, PAGE_NBYTES)
        self.view = memory.data

    def payload(self, slot: int, nbytes: int) -> memoryview:
        """The first `nbytes` of the slot that starts at page `slot`."""
        start = slot * PAGE_NBYTES
        return self.view[start : start + nbytes]


class Frame:
    """Header and tail pages for up to `FRAME_RECORDS` records (2.7 MiB, page-aligned).

    Attributes:
        headers: `HEADER`[FRAME_RECORDS]; row i belongs to the run's i-th record.
        header_views: The same, page by page.
    """

    def __init__(self) -> None:
        memory = aligned_buffer(2 * FRAME_RECORDS * PAGE_NBYTES)
        half = FRAME_RECORDS * PAGE_NBYTES
        view = memory.data
        pages = [view[page : page + PAGE_NBYTES] for page in range(0, 2 * half, PAGE_NBYTES)]
        self.headers: HeaderArray = memory[:half].view(HEADER)
        self._tails = memory[half:].reshape(FRAME_RECORDS, PAGE_NBYTES)
        self.header_views, self._tail_views = pages[:FRAME_RECORDS], pages[FRAME_RECORDS:]

    def buffers(self, pool: Pool, slots: Sequence[int], shape: RecordShape, *, first: int = 0) -> list[memoryview]:
        """Views of whole records, one after another, their frame rows counted from `first`.

        Args:
            pool: Where the payloads lie.
            slots: Pool page of each payload.
            shape: Of every record.
            first: Row of the frame that belongs to ``slots[0]``.
        """
        buffers: list[memoryview] = []
        for row, slot in enumerate(slots, first):
            buffers.append(self.header_views[row])
            buffers.append(pool.payload(slot, shape.slot_nbytes))
            if shape.has_tail:
                buffers.append(self._tail_views[row])
        return buffers

    def place_checksums(self, pool: Pool, slots: Int32Array, checksums: UInt32Array, shape: RecordShape) -> None:
        """Put uint32[n] behind the payloads of the first n rows, and zeros behind them up to the page's end."""
        placed = _bytes_of(checksums)
        inline = shape.inline_nbytes
        if inline:
            last, end = _last_page(slots, shape), shape.nbytes % PAGE_NBYTES
            pool.pages[last, end : end + inline] = placed[:, :inline]
            pool.pages[last, end + inline :] = 0
        if shape.has_tail:
            self._tails[: len(slots), :CHECKSUM_NBYTES] = 0
            self._tails[: len(slots), : CHECKSUM_NBYTES - inline] = placed[:, inline:]

    def collect_checksums(self, pool: Pool, slots: Int32Array, shape: RecordShape) -> UInt32Array:
        """The uint32[n] that lie behind the payloads of the first n rows."""
        collected = np.empty((len(slots), CHECKSUM_NBYTES), dtype=np.uint8)
        inline = shape.inline_nbytes
        if inline:
            last, end = _last_page(slots, shape), shape.nbytes % PAGE_NBYTES
            collected[:, :inline] = pool.pages[last, end : end + inline]
        if shape.has_tail:
            collected[:, inline:] = self._tails[: len(slots), : CHECKSUM_NBYTES - inline]
        return collected.view("<u4").reshape(-1).astype(np.uint32, copy=False)


def _bytes_of(checksums: UInt32Array) -> UInt8Array:
    """uint32[n] as they lie on disk: uint8[n, 4]."""
    return np.ascontiguousarray(checksums, dtype="<u4").view(np.uint8).reshape(-1, CHECKSUM_NBYTES)


def _last_page(slots: Int32Array, shape: RecordShape) -> Int32Array:
    """The pool page in which each payload ends."""
    return slots + np.int32(shape.slot_nbytes // PAGE_NBYTES - 1)
