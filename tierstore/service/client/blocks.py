"""A request's blocks as a stream of bytes: from the caller's cache into messages, or from messages into the cache.

Called by the streamed verbs. Blocks that are whole rows of host memory are read and written in place. Blocks of any
other cache pass through a buffer, in batches, so that the device copies many rows at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tierstore.errors import LayoutError
from tierstore.service.wire import encode_data
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.base import Event
    from tierstore.service.client.copies import Copies
    from tierstore.service.wire import Data
    from tierstore.transfer.caller_memory import CallerMemory
    from tierstore.types import Int64Array, UInt8Array

__all__ = ["Sink", "Source"]

_BUFFER_NBYTES = 8 << 20


class Source:
    """The blocks of a put.

    Attributes:
        after: Events to wait for before the first message.

    Args:
        copies: Moves bytes from the cache into the buffer.
        memory: The caller's cache, and where the blocks lie in it.
        num_blocks: How many blocks to send, from the first.
    """

    def __init__(self, copies: Copies, memory: CallerMemory, num_blocks: int) -> None:
        self._copies = copies
        self._memory = memory
        self._num_blocks = num_blocks
        self.after = memory.after
        self._lock = threading.Lock()
        self._finished = False
        self._rows = _whole_rows(memory)
        self._buffer = _Buffer(memory.kv.stored_nbytes, num_blocks, halves=1)

    def messages(self, nbytes: int) -> Iterator[bytes]:
        """The bytes of all blocks in order, in messages of `nbytes`, until `finish`. On any thread; blocks."""
        step = self._num_blocks if self._rows is not None else self._buffer.num_slots
        for first in range(0, self._num_blocks, step or 1):
            rows = self._fetch(np.arange(first, min(first + step, self._num_blocks)))
            for pieces in _cut(rows, nbytes):
                with self._lock:
                    if self._finished:
                        return
                    message = encode_data(pieces, put=True)
                yield message

    def _fetch(self, positions: Int64Array) -> Sequence[memoryview]:
        if self._rows is not None:
            return self._rows[: len(positions)]
        with self._lock:
            if self._finished:
                return []
            offsets = self._buffer.offsets(len(positions))
            self._copies.wait(self._copies.store(self._buffer.memory, offsets, self._memory, positions))
        return [memoryview(block.data) for block in self._buffer.blocks[: len(positions)]]

    def finish(self) -> None:
        """Stop reading the cache. Blocks until a copy in flight has ended."""
        with self._lock:
            self._finished = True


class Sink:
    """The blocks of a get. Used by one thread.

    Messages are copied by assigning memoryviews, which keeps the GIL. A copy by numpy releases the GIL and must get it
    back from gRPC's threads: that adds 10 µs to the 40 µs that half a MiB takes.

    Attributes:
        after: Events to wait for before the first write.

    Args:
        copies: Moves bytes from the buffer into the cache.
        memory: The caller's cache, and where the blocks lie in it.
        num_blocks: Blocks of the request.
    """

    def __init__(self, copies: Copies, memory: CallerMemory, num_blocks: int) -> None:
        self._copies = copies
        self._memory = memory
        self._num_blocks = num_blocks
        self.after = memory.after
        self._nbytes = memory.kv.stored_nbytes
        self._rows = _whole_rows(memory)
        self._buffer = _Buffer(self._nbytes, num_blocks, halves=2)
        self._events: list[list[Event]] = [[], []]
        self._whole = 0
        self._filled = 0
        self._handed = 0

    def write(self, part: Data) -> None:
        """Take the next bytes. Blocks. Raises LayoutError if they exceed the bytes of the blocks."""
        start = 0
        while start < len(part):
            if self._whole == self._num_blocks:
                raise LayoutError("the server sends more bytes than the blocks have")
            count = min(len(part) - start, self._nbytes - self._filled)
            self._block()[self._filled : self._filled + count] = part[start : start + count]
            start += count
            self._filled += count
            if self._filled == self._nbytes:
                self._whole, self._filled = self._whole + 1, 0
                self._hand_on(at_least=self._buffer.num_slots)

    def finish(self) -> int:
        """Finish all copies into the cache; returns how many blocks arrived whole. Blocks."""
        self._hand_on(at_least=1)
        self._copies.wait([event for events in self._events for event in events])
        return self._whole

    def _block(self) -> memoryview:
        """Where the next block goes."""
        if self._rows is not None:
            return self._rows[self._whole]
        return memoryview(self._buffer.blocks[self._whole % len(self._buffer.blocks)].data)

    def _hand_on(self, *, at_least: int) -> None:
        """Enqueue the whole blocks of the half being filled, then wait until the other half may be filled again."""
        positions = np.arange(self._handed, self._whole)
        if self._rows is not None or len(positions) < at_least:
            return
        half = self._handed // self._buffer.num_slots % 2
        offsets = self._buffer.offsets(len(positions), half)
        self._events[half] += self._copies.load(self._buffer.memory, offsets, self._memory, positions)
        self._handed = self._whole
        self._copies.wait(self._events[1 - half])
        self._events[1 - half] = []


class _Buffer:
    """Slots for blocks on their way, in one or two halves."""

    def __init__(self, block_nbytes: int, num_blocks: int, *, halves: int) -> None:
        self._slot_nbytes = -(-block_nbytes // PAGE_NBYTES) * PAGE_NBYTES
        self.num_slots = max(1, min(_BUFFER_NBYTES // self._slot_nbytes, num_blocks))
        self.memory: UInt8Array = np.empty(halves * self.num_slots * self._slot_nbytes, np.uint8)  # taken when touched
        self.blocks = self.memory.reshape(-1, self._slot_nbytes)[:, :block_nbytes]

    def offsets(self, count: int, half: int = 0) -> Int64Array:
        """int64[count]: where the first slots of a half begin."""
        return (np.arange(count, dtype=np.int64) + half * self.num_slots) * self._slot_nbytes


def _cut(rows: Sequence[memoryview], nbytes: int) -> Iterator[list[memoryview]]:
    """Cut consecutive rows into lists of pieces that hold `nbytes` together; the last list may hold fewer."""
    pieces: list[memoryview] = []
    room = nbytes
    for row in rows:
        start = 0
        while start < len(row):
            piece = row[start : start + room]
            pieces.append(piece)
            start += len(piece)
            room -= len(piece)
            if room == 0:
                yield pieces
                pieces, room = [], nbytes
    if pieces:
        yield pieces


def _whole_rows(memory: CallerMemory) -> list[memoryview] | None:
    """The bytes of each block of the request, where blocks are whole rows of host memory."""
    kv = memory.kv
    if kv.memory != "cpu" or kv.quantized is not None or len(kv.segments) != 1:
        return None
    if kv.views[0].shape[1:] != (1, kv.block_nbytes):
        return None
    return [memoryview(kv.views[0][block_id, 0].data) for block_id in memory.block_ids[0].tolist()]
