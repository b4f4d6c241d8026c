"""A device without threads: streams are queues, and the test decides which one takes its next step.

For tests of whatever moves blocks: it keeps the contract of `tierstore.device.base` and is as unkind as that
allows. What a copy will write is spoilt when the copy is enqueued, and what it reads is read only when the
test steps the stream, so reading too early and reusing memory too soon both show as wrong bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tierstore.device.paging import check_copy, view_pages
from tierstore.errors import ClosedError
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.base import Event, Pages, Stream
    from tierstore.types import Int32Array, Int64Array, UInt8Array

__all__ = ["POISON", "SimDevice", "SimEvent", "SimStream"]

POISON = 0xDB
"""The byte that fills the destination of a copy until the copy has been stepped."""


class SimEvent:
    """A point in a simulated stream."""

    def __init__(self, device: SimDevice) -> None:
        self._device = device
        self._done = False

    def done(self) -> bool:
        """Whether everything enqueued before the event has been stepped."""
        return self._done

    def wait(self, timeout: float | None = None) -> bool:
        """Step all streams, in turn, until done or until none can; `timeout` means nothing without a clock."""
        while not self._done and self._device.step_all():
            pass
        return self._done

    def reach(self) -> None:
        """Called by the stream that got here."""
        self._done = True


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One thing a stream will do: run `task` once `gate` is done. `src_rows` are read by it."""

    task: Callable[[], None]
    gate: Event | None = None
    src_rows: tuple[UInt8Array, ...] = ()


class SimStream:
    """Steps in the order in which they were enqueued. Copies take one step a page."""

    def __init__(self, name: str, device: SimDevice) -> None:
        self.name = name
        self.steps: deque[_Step] = deque()
        self._device = device
        self._closed = False

    def record(self) -> SimEvent:
        """Mark this point of the stream."""
        event = SimEvent(self._device)
        self.enqueue(_Step(event.reach))
        return event

    def wait(self, event: Event) -> None:
        """Hold what is enqueued from now on until `event` is done."""
        self.enqueue(_Step(_do_nothing, gate=event))

    def call(self, task: Callable[[], None]) -> None:
        """Run `task` once everything enqueued before has been stepped; what it raises, the stepping test gets."""
        self.enqueue(_Step(task))

    def close(self) -> None:
        """Step this stream to its end, and the others where it waits for them."""
        self._closed = True
        while self.steps:
            assert self.step() or self._device.step_all(), f"stream {self.name} waits for an event that nobody reaches"

    def enqueue(self, step: _Step) -> None:
        """Add a step. Raises ClosedError."""
        if self._closed:
            raise ClosedError(f"stream {self.name} is closed; open a new one")
        self.steps.append(step)

    def step(self) -> bool:
        """Do the next thing; False where there is none, or where it waits for an event that is not done."""
        if not self.steps:
            return False
        gate = self.steps[0].gate
        if gate is not None and not gate.done():
            return False
        self.steps.popleft().task()
        return True


class SimDevice:
    """A device in the test's own hands.

    Attributes:
        streams: Every stream made, in order.
        num_pinned: Buffers pinned and not yet let go.
    """

    name = "sim"

    def __init__(self) -> None:
        self.streams: list[SimStream] = []
        self.num_pinned = 0

    def new_stream(self, name: str) -> SimStream:
        """A queue of its own."""
        self.streams.append(SimStream(name, self))
        return self.streams[-1]

    def step(self, stream: Stream) -> bool:
        """One step of one stream; False where it cannot take any."""
        assert isinstance(stream, SimStream), f"{stream!r} is no stream of a simulated device"
        return stream.step()

    def step_all(self) -> bool:
        """One step of every stream that can take one; False where none could."""
        return sum(stream.step() for stream in self.streams) > 0

    def run_all(self) -> None:
        """Step until nothing can."""
        while self.step_all():
            pass

    def pin(self, buffer: UInt8Array) -> Callable[[], None]:
        """Count."""
        self.num_pinned += 1
        return self._unpin

    def pages(self, buffers: object, block_nbytes: int) -> Pages:
        """See `tierstore.device.paging.view_pages`."""
        return view_pages(buffers, block_nbytes)

    def load(
        self, host: UInt8Array, slots: Int32Array, pages: Pages, block_ids: Int64Array, stream: Stream
    ) -> list[Event]:
        """Spoil the pages' rows and enqueue host → pages."""
        check_copy(host, slots, pages, block_ids, into_pool=False)
        pairs = [
            [(page_row, host_row) for host_row, page_row in rows] for rows in _match_rows(host, slots, pages, block_ids)
        ]
        return self._enqueue(pairs, stream)

    def store(self, host: UInt8Array, slots: Int32Array, pages: Pages, block_ids: Int64Array, stream: Stream) -> None:
        """Spoil the slots' blocks and enqueue pages → host."""
        check_copy(host, slots, pages, block_ids, into_pool=True)
        self._enqueue(_match_rows(host, slots, pages, block_ids), stream)

    def _enqueue(self, pairs: list[list[tuple[UInt8Array, UInt8Array]]], stream: Stream) -> list[Event]:
        assert isinstance(stream, SimStream), f"{stream!r} is no stream of a simulated device"
        still_read = self._read_before(stream)
        for rows in pairs:
            for dst, _ in rows:
                if not any(np.may_share_memory(dst, src) for src in still_read):
                    dst.fill(POISON)
        events: list[Event] = []
        for rows in pairs:
            event = SimEvent(self)
            stream.enqueue(_Step(partial(_copy_rows, rows, event), src_rows=tuple(src for _, src in rows)))
            events.append(event)
        return events

    def _read_before(self, stream: SimStream) -> list[UInt8Array]:
        """What queued copies will rightly read before anything enqueued now: all streams' where this one waits."""
        ordered = self.streams if any(step.gate is not None for step in stream.steps) else [stream]
        return [src for other in ordered for step in other.steps for src in step.src_rows]

    def _unpin(self) -> None:
        self.num_pinned -= 1


def _match_rows(
    host: UInt8Array, slots: Int32Array, pages: Pages, block_ids: Int64Array
) -> list[list[tuple[UInt8Array, UInt8Array]]]:
    """(row in the pool, row in the page) of every block, page by page."""
    matched = []
    offset = 0
    for page in pages:
        width = page.shape[1]
        starts = [slot * PAGE_NBYTES + offset for slot in slots.tolist()]
        matched.append(
            [(host[start : start + width], page[row]) for start, row in zip(starts, block_ids.tolist(), strict=True)]
        )
        offset += width
    return matched


def _copy_rows(rows: list[tuple[UInt8Array, UInt8Array]], event: SimEvent) -> None:
    for dst, src in rows:
        dst[:] = src
    event.reach()


def _do_nothing() -> None:
    pass
