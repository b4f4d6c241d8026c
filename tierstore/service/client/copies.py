"""Copies between blocks in host memory (the attached pool, or a buffer for streams) and a caller's cache.

Called on the client's threads, which wait for them. Uses the device that the caches lie on, as the store itself does.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c

from tierstore.device.cpu import CallersStream, CpuDevice
from tierstore.errors import DeviceError
from tierstore.service.client.cores import core, off
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tierstore.device.base import Device, Event, Stream
    from tierstore.transfer.caller_memory import CallerMemory
    from tierstore.types import Int64Array, UInt8Array, UInt32Array

__all__ = ["Copies"]


_STREAMS = 2
"""On a CPU each stream is a thread; two of them copy half as much again as one, and a client has no more to do. A GPU
loads in one; of two that store from it one copies while the other computes checksums."""

_PIECE_NBYTES = 8 << 20
"""Copied between two looks at checksums, which find it in the processor's cache then."""

_SHARE = 4
"""Of two threads that share a load each takes such a part of what is left: much at first and little at the end, so that
neither is done long before the other. A get of 128 MiB in eight equal parts waited 0.6 ms for the last one."""

_PARTS_MAX = 32
"""Smaller than such a part of the whole is none: each costs 0.05 ms."""

_PIECES_AHEAD = 8
"""Enqueued by one call at a time: streams are bounded, and others use them too."""

_SPLIT_NBYTES = 1 << 20
"""Less is copied by one of them: it takes no longer than to tell the others."""


class Copies:
    """Streams, a few a direction.

    Args:
        device: Where caches lie.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        num_loads = _STREAMS if device.memory == "cpu" else 1
        self._loads = [device.new_stream(f"client-load-{index}") for index in range(num_loads)]
        self._stores = [device.new_stream(f"client-store-{index}") for index in range(_STREAMS)]
        self._turns = cycle(self._stores)

    def load(self, host: UInt8Array, offsets: Int64Array, memory: CallerMemory, positions: Int64Array) -> list[Event]:
        """Enqueue blocks at byte offsets of host memory into the cache; `positions` are theirs in the request.

        Returns:
            Events to `wait` for.
        """
        slots = (offsets // PAGE_NBYTES).astype(np.int32)
        awaited: list[Event] = []
        split = len(slots) > 1 and len(slots) * memory.kv.stored_nbytes >= _SPLIT_NBYTES
        streams = self._loads if split else self._loads[:1]
        for stream, part in zip(streams, np.array_split(np.arange(len(slots)), len(streams)), strict=True):
            block_ids = np.take(memory.block_ids, positions[part], axis=1)
            events = self._device.load(host, slots[part], memory.kv, block_ids, stream, after=memory.after)
            if memory.layers is not None:
                memory.layers.add(events, len(part))
            awaited += events
        return awaited

    def bring(self, host: UInt8Array, offsets: Int64Array, memory: CallerMemory) -> None:
        """Copy the request's leading blocks from byte offsets of host memory into the cache. Blocks.

        On a CPU the calling thread copies too: it runs already, while a helper must be woken first. Each thread takes
        the next part when it has finished one. Several page groups, or little data, are left to the streams.

        Raises:
            DeviceError: As `wait` does.
        """
        device, nbytes = self._device, len(offsets) * memory.kv.stored_nbytes
        if not isinstance(device, CpuDevice) or len(memory.kv.groups) > 1 or nbytes < _SPLIT_NBYTES:
            self.wait(self.load(host, offsets, memory, np.arange(len(offsets))))
            return
        slots = (offsets // PAGE_NBYTES).astype(np.int32)
        parts = iter(_shared(len(offsets)))

        def work() -> None:
            for part in parts:
                block_ids = memory.block_ids[:, part]
                events = device.load(host, slots[part], memory.kv, block_ids, CallersStream(), after=memory.after)
                if memory.layers is not None:
                    memory.layers.add(events, part.stop - part.start)

        def help_out(taken: int = core()) -> None:
            with off(taken):
                work()

        stream = self._loads[-1]
        stream.call(help_out)
        helped = stream.record()
        try:
            work()
        finally:  # nothing is written behind the caller's back, whatever has failed
            self.wait([helped])

    def store(self, host: UInt8Array, offsets: Int64Array, memory: CallerMemory, positions: Int64Array) -> list[Event]:
        """Enqueue blocks of the cache to byte offsets of host memory; the next call uses another stream."""
        return [self._store(host, offsets, memory, positions).record()]

    def fill(self, host: UInt8Array, offsets: Int64Array, memory: CallerMemory, positions: Int64Array) -> UInt32Array:
        """Copy blocks of the cache to byte offsets of host memory, and take their checksums there. Blocks.

        Returns:
            uint32[n]: the CRC32C of each.

        Raises:
            DeviceError: As `wait` does.
        """
        nbytes = memory.kv.stored_nbytes
        checksums = np.zeros(len(offsets), np.uint32)
        step = max(1, _PIECE_NBYTES // nbytes)
        events: deque[Event] = deque()
        try:
            for first in range(0, len(offsets), step):
                piece = slice(first, first + step)
                stream = self._store(host, offsets[piece], memory, positions[piece])
                stream.call(partial(_take_checksums, host, offsets[piece], nbytes, out=checksums[piece]))
                events.append(stream.record())
                if len(events) > _PIECES_AHEAD:
                    self.wait([events.popleft()])
        finally:  # nothing is written behind the caller's back, whatever has failed
            self.wait(events)
        return checksums

    def _store(self, host: UInt8Array, offsets: Int64Array, memory: CallerMemory, positions: Int64Array) -> Stream:
        block_ids = np.take(memory.block_ids, positions, axis=1)
        slots, stream = (offsets // PAGE_NBYTES).astype(np.int32), next(self._turns)
        self._device.store(host, slots, memory.kv, block_ids, stream, after=memory.after)
        return stream

    def wait(self, events: Iterable[Event]) -> None:
        """Until they are done. Blocks. Raises DeviceError where a stream has failed."""
        for event in events:
            event.wait()
        for stream in (*self._loads, *self._stores):
            if stream.failure is not None:
                raise DeviceError(f"blocks could not be copied: {stream.failure}") from stream.failure

    def close(self) -> None:
        """Finish the streams. Blocks."""
        for stream in (*self._loads, *self._stores):
            stream.close()


def _shared(count: int) -> list[slice]:
    """Parts of `count` blocks for two threads; each thread takes the next part when it has finished one."""
    parts: list[slice] = []
    first = 0
    while first < count:
        size = max(1, count // _PARTS_MAX, (count - first) // _SHARE)
        parts.append(slice(first, min(first + size, count)))
        first += size
    return parts


def _take_checksums(host: UInt8Array, offsets: Int64Array, nbytes: int, *, out: UInt32Array) -> None:
    for place, start in enumerate(offsets.tolist()):
        out[place] = crc32c(host[start : start + nbytes].data)
