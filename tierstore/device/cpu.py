"""The CPU as a device: the reference that every other one is compared with, and the one that needs no GPU.

Called by the device link and by the benchmark. A stream is one worker thread that runs what it is given in
order. Everything is checked before it is enqueued, so that a copy which has begun cannot fail; nothing here
waits for a copy on the caller's thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tierstore.device.copying import CopyPrimitive, choose
from tierstore.device.paging import check_copy, slot_nbytes, view_pages
from tierstore.errors import ClosedError, DeviceError
from tierstore.types import PAGE_NBYTES
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.device.base import Event, Pages, Stream
    from tierstore.types import Int32Array, Int64Array, UInt8Array

__all__ = ["STREAM_CAPACITY", "CpuDevice", "CpuEvent", "CpuStream"]

STREAM_CAPACITY = 4096
"""Calls that may wait in one stream; links bound what is in flight far below it."""


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
        """Called once, by the stream that got here: wakes who waits."""
        self._done = True
        for sleeper in self._sleepers:
            sleeper.release()


class CpuStream:
    """A worker thread of its own, as `tierstore.device.base.Stream` says.

    Every method raises ClosedError once the stream is closed, and DeviceError where `STREAM_CAPACITY` calls wait.
    """

    def __init__(self, name: str) -> None:
        self._worker = Worker(name, capacity=STREAM_CAPACITY)

    def record(self) -> CpuEvent:
        """Mark this point of the stream."""
        event = CpuEvent()
        self.call(event.reach)
        return event

    def wait(self, event: Event) -> None:
        """Hold what is enqueued from now on until `event` is done. Does not block the caller."""
        if not event.done():
            self.call(partial(_wait_for, event))

    def call(self, task: Callable[[], None]) -> None:
        """Run `task` on the stream's thread once everything enqueued before has ended."""
        if not self._worker.submit(task):
            if self._worker.room > 0:
                raise ClosedError(f"stream {self._worker.name} is closed; open a new one")
            raise DeviceError(f"stream {self._worker.name} holds {STREAM_CAPACITY} calls; wait for some to end")

    def close(self) -> None:
        """Finish what is enqueued and end the stream. Blocks."""
        self._worker.close()


class CpuDevice:
    """Memory of the CPU as a device, as `tierstore.device.base.Device` says.

    Args:
        primitive: How to copy; None takes the one that is fastest here, found by `pin` or by the first copy.
    """

    name = "cpu"

    def __init__(self, primitive: CopyPrimitive | None = None) -> None:
        self._primitive = primitive

    def new_stream(self, name: str) -> CpuStream:
        """A stream of its own, with one thread called `name`."""
        return CpuStream(name)

    def pin(self, buffer: UInt8Array) -> Callable[[], None]:
        """Nothing needs pinning. Finds the fastest copies now (0.2 s, once a process), so that no get pays for it."""
        if self._primitive is None:
            choose(into_pool=True, row_nbytes=len(buffer))
        return _do_nothing

    def pages(self, buffers: object, block_nbytes: int) -> Pages:
        """See `tierstore.device.paging.view_pages`."""
        return view_pages(buffers, block_nbytes)

    def load(
        self, host: UInt8Array, slots: Int32Array, pages: Pages, block_ids: Int64Array, stream: Stream
    ) -> list[Event]:
        """Enqueue host → pages; returns one event a page. Raises what `check_copy` does, before a byte moves."""
        return self._enqueue(host, slots, pages, block_ids, stream, into_pool=False)

    def store(self, host: UInt8Array, slots: Int32Array, pages: Pages, block_ids: Int64Array, stream: Stream) -> None:
        """Enqueue pages → host. Raises what `check_copy` does, before a byte moves."""
        self._enqueue(host, slots, pages, block_ids, stream, into_pool=True)

    def _enqueue(
        self,
        host: UInt8Array,
        slots: Int32Array,
        pages: Pages,
        block_ids: Int64Array,
        stream: Stream,
        *,
        into_pool: bool,
    ) -> list[Event]:
        block_nbytes = check_copy(host, slots, pages, block_ids, into_pool=into_pool)
        runs = _find_runs(slots, block_ids, slot_nbytes(block_nbytes))
        events = [CpuEvent() for _ in pages]

        def copy_rows() -> None:
            in_pool = [host[start:end].reshape(count, -1) for start, end, _, count in runs]
            offset = 0
            for page, event in zip(pages, events, strict=True):
                width = page.shape[1]
                copy = self._primitive or choose(into_pool=into_pool, row_nbytes=width).copy
                for blocks, (_, _, first, count) in zip(in_pool, runs, strict=True):
                    host_rows, page_rows = blocks[:, offset : offset + width], page[first : first + count]
                    if into_pool:
                        copy(host_rows, page_rows)
                    else:
                        copy(page_rows, host_rows)
                offset += width
                event.reach()

        stream.call(copy_rows)
        return list(events)


def _find_runs(slots: Int32Array, block_ids: Int64Array, slot_nbytes: int) -> list[tuple[int, int, int, int]]:
    """Neighbours in the pool that are neighbours in the pages, to be copied by one call a page.

    Rows of 4 KiB move three times faster in runs of 16 than one by one, so a run is as long as it can be.

    Returns:
        (start and end in the pool in bytes, first block id, count) of each run, in order.
    """
    runs: list[tuple[int, int, int, int]] = []
    start = end = first = count = 0
    for slot, block_id in zip(slots.tolist(), block_ids.tolist(), strict=True):  # faster than numpy up to 500 blocks
        offset = slot * PAGE_NBYTES
        if count and offset == end and block_id == first + count:
            end += slot_nbytes
            count += 1
            continue
        if count:
            runs.append((start, end, first, count))
        start, end, first, count = offset, offset + slot_nbytes, block_id, 1
    if count:
        runs.append((start, end, first, count))
    return runs


def _wait_for(event: Event) -> None:
    event.wait()


def _do_nothing() -> None:
    pass
