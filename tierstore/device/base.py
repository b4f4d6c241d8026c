"""The interface between the store and the device whose memory holds an engine's cache.

Three implementations: `tierstore.device.cpu` (the reference), `tierstore.device.cuda` and the simulated
device of `tierstore.testing`. Every call enqueues and returns; nothing here waits for a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from tierstore.device.paged_kv import PagedKV
    from tierstore.types import Int32Array, Int64Array, UInt8Array, UInt32Array

__all__ = ["Device", "DeviceEvent", "DeviceMemory", "Event", "Stream"]


@runtime_checkable
class Event(Protocol):
    """A point in a stream's order."""

    def done(self) -> bool:
        """Whether everything enqueued before the event has ended."""

    def wait(self, timeout: float | None = None) -> bool:
        """Block the calling thread until done, or until `timeout` seconds pass; returns `done()`."""


@runtime_checkable
class DeviceEvent(Event, Protocol):
    """An event recorded on the device itself: it is sure to come, and the device's streams can wait for it."""

    @property
    def handle(self) -> int:
        """The driver's own event."""


@runtime_checkable
class Stream(Protocol):
    """Runs work in the order in which it was enqueued, concurrently with other streams."""

    @property
    def failure(self) -> BaseException | None:
        """The failure that ended the stream's work, or None. After a failure nothing is copied, but calls still run."""

    def record(self) -> Event:
        """Mark this point of the stream."""

    def wait(self, event: Event) -> None:
        """Make later work on the stream wait until `event` is done. Does not block the caller."""

    def call(self, task: Callable[[], None]) -> None:
        """Run `task` on the stream's thread once everything enqueued before has ended."""

    def close(self) -> None:
        """Finish what is enqueued and end the stream. Blocks."""


class DeviceMemory(Protocol):
    """Memory that blocks are copied from and to: pinned host memory, and the device's own."""

    @property
    def pinned_nbytes(self) -> int:
        """Host memory that the device copies from and to by itself; 0 for a CPU, and where pinning was refused."""

    def pin(self, buffer: UInt8Array) -> Callable[[], None]:
        """Pin host memory for this device; returns a function that undoes it. The CPU needs no pinning."""

    def allocate(self, nbytes: int) -> tuple[UInt8Array, Callable[[], None]]:
        """Allocate device memory for a pool; returns it and a function that frees it once no copy touches it. Blocks.

        Unless the device is a CPU, the CPU cannot access these bytes: only `load` and `store` may, which take them
        like a host pool.

        Raises:
            DeviceMemoryError: There is no such memory left.
        """

    def adopt(self, pool: UInt8Array) -> Callable[[], None]:
        """Take device memory that the engine lends as a pool, as if `allocate` had returned it.

        Args:
            pool: uint8[pool_nbytes], as `tierstore.device.binding.bind_lent` returns it.

        Returns:
            A function that releases it, to be called once no copy touches it.
        """

    def checksums(self, pool: UInt8Array, slots: Int32Array, nbytes: int) -> UInt32Array:
        """CRC32C of blocks in memory from `allocate`, computed in place: for blocks that direct reads brought there.

        Blocks until the result is there; from any thread.

        Args:
            pool: uint8[pool_nbytes], as given.
            slots: int32[n]; offsets in the pool, in 4 KiB pages.
            nbytes: Of each block, at least 1.

        Returns:
            uint32[n].

        Raises:
            DeviceError: The device does not answer.
        """


@runtime_checkable
class Device(DeviceMemory, Protocol):
    """A device whose caches the store copies from and to.

    Attributes:
        name: The value of the setting ``device.name``: ``"cpu"``, ``"cuda"``.
        memory: The memory of the caches that it copies, by torch's name: ``"cpu"``, ``"cuda:0"``.
    """

    name: str
    memory: str

    def as_event(self, given: object) -> object | None:
        """Convert what a caller passed as `after` to an event of the store; other values are returned unchanged.

        An event of the tensors' framework becomes an event of the store. None becomes the point that the calling
        thread's work on the device has reached; on a CPU, where calls return when done, it stays None.

        Raises:
            DeviceError: The event is of another device, or was never recorded.
        """

    def new_stream(self, name: str) -> Stream:
        """A stream of its own, with one thread."""

    def load(
        self,
        host: UInt8Array,
        slots: Int32Array,
        kv: PagedKV,
        block_ids: Int64Array,
        stream: Stream,
        *,
        groups: range | None = None,
        after: Sequence[Event] = (),
    ) -> list[Event]:
        """Enqueue host → device, all of it or nothing: slot i into block ``block_ids[:, i]`` of the cache.

        Args:
            host: uint8[pool_nbytes], the pool: of host memory, or one that `allocate` gave.
            slots: int32[n]; offset of each block in the pool, in 4 KiB pages.
            kv: The destination.
            block_ids: int64[num_id_rows, n]; blocks of the cache. Not read after the call returns.
            stream: Where to enqueue.
            groups: Page groups to copy, in this order; None for all.
            after: ``after[i]`` is done before the first byte of the i-th of these groups moves. So one event delays
                the whole copy, and one event a group lets each group follow the work on its own pages.

        Returns:
            One event a group of `groups`, recorded after that group's rows of all blocks: an engine may start with
            the first while the next still moves.

        Raises:
            LayoutError, DeviceError: As `tierstore.device.paging.check_copy` says, before a byte moves.
        """

    def store(
        self,
        host: UInt8Array,
        slots: Int32Array,
        kv: PagedKV,
        block_ids: Int64Array,
        stream: Stream,
        *,
        groups: range | None = None,
        after: Sequence[Event] = (),
    ) -> None:
        """Enqueue device → host, the mirror of `load`."""
