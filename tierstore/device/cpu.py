"""The CPU device: the reference for all other devices; it needs no GPU.

Called by the device link and by the benchmark. A stream is one worker thread that runs its calls in order.
Everything is checked before it is enqueued, so that a copy which has begun cannot fail. Nothing here waits for a
copy on the caller's thread.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING

import numpy as np

from tierstore.device.block_copying import BlockCopy
from tierstore.device.checksums import checksums
from tierstore.device.copying import CopyPrimitive, choose
from tierstore.device.paging import check_copy
from tierstore.device.quantized_copying import QuantizedCopy
from tierstore.errors import ClosedError, DeviceError, DeviceMemoryError
from tierstore.settings import format_size
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.device.base import Event, Stream
    from tierstore.device.paged_kv import PagedKV
    from tierstore.types import Int32Array, Int64Array, UInt8Array, UInt32Array

__all__ = ["STREAM_CAPACITY", "CallersStream", "CpuDevice", "CpuEvent", "CpuStream"]

STREAM_CAPACITY = 4096
"""Calls that may wait in one stream; links bound what is in flight far below it."""

_PATIENCE_SECONDS = 2.0
"""How long a stream that is closed waits for events of others before it drops what they hold."""

_LOOK_SECONDS = 0.5
"""How often a stream that waits for an event looks whether it has been closed."""


class CpuEvent:
    """A point in a stream. Costs an object; a lock is made only by a thread that has to wait."""

    __slots__ = ("_done", "_sleepers")

    def __init__(self) -> None:
        self._done = False
        self._sleepers: list[threading.Lock] = []

    def done(self) -> bool:
        """Whether everything enqueued before the event has ended."""
        return self._done

    def wait(self, timeout: float | None = None) -> bool:
        """Block until done, or until `timeout` seconds pass; returns `done()`."""
        if not self._done:
            sleeper = threading.Lock()
            sleeper.acquire()
            self._sleepers.append(sleeper)
            if not self._done:  # else `reach` may have looked at the sleepers before this one came
                sleeper.acquire(timeout=-1 if timeout is None else max(timeout, 0.0))
        return self._done

    def reach(self) -> None:
        """Called once, when the stream reaches the event: wakes the waiters."""
        self._done = True
        for sleeper in self._sleepers:
            sleeper.release()


class CpuStream:
    """A worker thread of its own, as `tierstore.device.base.Stream` says.

    Every method raises ClosedError once the stream is closed, and DeviceError where `STREAM_CAPACITY` calls wait.
    """

    def __init__(self, name: str) -> None:
        self._worker = Worker(name, capacity=STREAM_CAPACITY)
        self._until = math.inf
        self._given_up: ClosedError | None = None

    @property
    def failure(self) -> BaseException | None:
        """The first exception on the stream's thread, or None: a copy that raised has not moved what it says."""
        return self._given_up or self._worker.failure

    def record(self) -> CpuEvent:
        """Mark this point of the stream."""
        event = CpuEvent()
        self.call(event.reach)
        return event

    def wait(self, event: Event) -> None:
        """Hold what is enqueued from now on until `event` is done. Does not block the caller."""

        def hold() -> None:
            self.hold(event)

        if not event.done():
            self.call(hold)

    def hold(self, event: Event) -> bool:
        """Wait for an event on the stream's own thread. False if nothing may be copied any more: see `failure`.

        A stream that is being closed does not wait long for an event, because the engine may have gone.
        """
        while self.failure is None and not event.wait(_LOOK_SECONDS):
            if time.monotonic() >= self._until:
                self._given_up = ClosedError(f"stream {self._worker.name} was closed while copies waited for an event")
        return self.failure is None

    def call(self, task: Callable[[], None]) -> None:
        """Run `task` on the stream's thread once everything enqueued before has ended."""
        if not self._worker.submit(task):
            if self._worker.room > 0:
                raise ClosedError(f"stream {self._worker.name} is closed; open a new one")
            raise DeviceError(f"stream {self._worker.name} holds {STREAM_CAPACITY} calls; wait for some to end")

    def close(self) -> None:
        """Finish what is enqueued, except work whose events do not come, and end the stream. Blocks."""
        self._until = time.monotonic() + _PATIENCE_SECONDS
        self._worker.close()


class CallersStream:
    """A stream without a thread: the caller's thread does the work before the call returns. For callers that wait."""

    failure = None

    def hold(self, event: Event) -> bool:
        """Wait for an event."""
        return event.wait()

    def call(self, task: Callable[[], None]) -> None:
        """Run `task` at once; what it raises is raised here."""
        task()


class CpuDevice:
    """Memory of the CPU as a device, as `tierstore.device.base.Device` says.

    Args:
        primitive: The way to copy; None takes the fastest on this machine, measured by `pin` or the first copy.
    """

    name = memory = "cpu"
    pinned_nbytes = 0

    def __init__(self, primitive: CopyPrimitive | None = None) -> None:
        self._primitive = primitive

    def as_event(self, given: object) -> object | None:
        """As given."""
        return given

    def new_stream(self, name: str) -> CpuStream:
        """A stream of its own, with one thread called `name`."""
        return CpuStream(name)

    def pin(self, buffer: UInt8Array) -> Callable[[], None]:
        """Nothing needs pinning. Finds the fastest copies now (0.2 s, once a process), so that no get pays for it."""
        if self._primitive is None:
            choose(into_pool=True, row_nbytes=len(buffer))
        return _do_nothing

    def allocate(self, nbytes: int) -> tuple[UInt8Array, Callable[[], None]]:
        """Ordinary memory, taken as it is touched."""
        try:
            return np.zeros(nbytes, np.uint8), _do_nothing
        except MemoryError as error:
            raise DeviceMemoryError(
                f"this machine has no {format_size(nbytes)} of memory for the device pool; set device.pool_size lower"
            ) from error

    def adopt(self, pool: UInt8Array) -> Callable[[], None]:
        """Nothing to do: lent memory is ordinary memory."""
        return _do_nothing

    def checksums(self, pool: UInt8Array, slots: Int32Array, nbytes: int) -> UInt32Array:
        """uint32[n]: the CRC32C of each slot's first `nbytes`. Blocks."""
        return checksums(pool, slots, nbytes)

    def load(
        self,
        host: UInt8Array,
        slots: Int32Array,
        kv: PagedKV,
        block_ids: Int64Array,
        stream: Stream | CallersStream,
        *,
        groups: range | None = None,
        after: Sequence[Event] = (),
    ) -> list[Event]:
        """Enqueue host → cache; returns one event a group. Raises what `check_copy` does, before a byte moves."""
        return self._enqueue(host, slots, kv, block_ids, stream, groups=groups, after=after, into_pool=False)

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
        """Enqueue cache → host. Raises what `check_copy` does, before a byte moves."""
        self._enqueue(host, slots, kv, block_ids, stream, groups=groups, after=after, into_pool=True)

    def _enqueue(
        self,
        host: UInt8Array,
        slots: Int32Array,
        kv: PagedKV,
        block_ids: Int64Array,
        stream: Stream | CallersStream,
        *,
        groups: range | None,
        after: Sequence[Event],
        into_pool: bool,
    ) -> list[Event]:
        copied = check_copy(
            host, slots, kv, block_ids, memory=self.memory, into_pool=into_pool, groups=groups, num_events=len(after)
        )
        copy = (
            BlockCopy(host, slots, kv, block_ids, into_pool=into_pool, primitive=self._primitive)
            if kv.quantized is None
            else QuantizedCopy(host, slots, kv, block_ids, into_pool=into_pool)
        )
        assert isinstance(stream, CpuStream | CallersStream), f"{stream!r} is no stream of the CPU"
        events = [CpuEvent() for _ in copied]

        def copy_groups() -> None:
            waiting = iter(events)
            try:
                for group, gate in zip_longest(copied, after):
                    if stream.failure is not None or (gate is not None and not stream.hold(gate)):
                        break
                    if group is not None:
                        copy.run(group)
                        next(waiting).reach()
            finally:  # whoever waits is let go where nothing moves any more; the stream tells
                for event in waiting:
                    event.reach()

        stream.call(copy_groups)
        return list(events)


def _do_nothing() -> None:
    pass
