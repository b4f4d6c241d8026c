"""Copies between blocks in host memory (the attached pool, or a buffer for streams) and a caller's cache.

Called on the client's threads, which wait for them. Uses the device that the caches lie on, as the store itself does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.errors import DeviceError
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tierstore.device.base import Device, Event
    from tierstore.transfer.caller_memory import CallerMemory
    from tierstore.types import Int64Array, UInt8Array

__all__ = ["Copies"]


class Copies:
    """One stream a direction.

    Args:
        device: Where caches lie.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._load = device.new_stream("client-load")
        self._store = device.new_stream("client-store")

    def load(self, host: UInt8Array, offsets: Int64Array, memory: CallerMemory, positions: Int64Array) -> list[Event]:
        """Enqueue blocks at byte offsets of host memory into the cache; `positions` are theirs in the request.

        Returns:
            An event a page group; see `wait`.
        """
        block_ids = np.take(memory.block_ids, positions, axis=1)
        slots = (offsets // PAGE_NBYTES).astype(np.int32)
        events = self._device.load(host, slots, memory.kv, block_ids, self._load, after=memory.after)
        if memory.layers is not None:
            memory.layers.add(events, len(positions))
        return events

    def store(self, host: UInt8Array, offsets: Int64Array, memory: CallerMemory, positions: Int64Array) -> list[Event]:
        """Enqueue blocks of the cache to byte offsets of host memory."""
        block_ids = np.take(memory.block_ids, positions, axis=1)
        slots = (offsets // PAGE_NBYTES).astype(np.int32)
        self._device.store(host, slots, memory.kv, block_ids, self._store, after=memory.after)
        return [self._store.record()]

    def wait(self, events: Sequence[Event]) -> None:
        """Until they are done. Blocks. Raises DeviceError where a stream has failed."""
        for event in events:
            event.wait()
        failure = self._load.failure or self._store.failure
        if failure is not None:
            raise DeviceError(f"blocks could not be copied: {failure}") from failure

    def close(self) -> None:
        """Finish the streams. Blocks."""
        self._load.close()
        self._store.close()


def slots_of(num_blocks: int, slot_nbytes: int) -> Int64Array:
    """int64[n]: where blocks begin that lie one after another."""
    return np.arange(num_blocks, dtype=np.int64) * slot_nbytes
