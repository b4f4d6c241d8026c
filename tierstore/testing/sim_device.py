"""A device without threads: streams are queues, and the test decides which one takes its next step.

For tests of whatever moves blocks: it keeps the contract of `tierstore.device.base` and is as unkind as that
allows. What a copy will write is spoilt as soon as nothing it waits for stands before it, and what it reads is
read only when the test steps the stream, so reading too early, reusing memory too soon and a wait that is
missing all show as wrong bytes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tierstore.device.checksums import checksums
from tierstore.device.paging import check_copy
from tierstore.device.quantized_copying import QuantizedCopy
from tierstore.errors import ClosedError
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.device.base import Event, Stream
    from tierstore.device.paged_kv import PagedKV
    from tierstore.types import Int32Array, Int64Array, UInt8Array, UInt32Array

    _Rows: TypeAlias = list[tuple[UInt8Array, UInt8Array]]
    _Copy: TypeAlias = tuple[_Rows, Callable[[], None]]

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
    """Steps in the order in which they were enqueued.

    A copy takes one step a page group, and where it waits for something one before it, which spoils its destination.
    """

    def __init__(self, name: str, device: SimDevice) -> None:
        self.name = name
        self.steps: deque[_Step] = deque()
        self.failure: BaseException | None = None
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

    @property
    def ready(self) -> bool:
        """Whether there is a next thing, and no event that is not done before it."""
        return bool(self.steps) and (self.steps[0].gate is None or self.steps[0].gate.done())

    def step(self) -> bool:
        """Do the next thing; False where the stream is not ready for any."""
        if not self.ready:
            return False
        self.steps.popleft().task()
        return True


class SimDevice:
    """A device in the test's own hands.

    Attributes:
        streams: Every stream made, in order.
        num_pinned: Buffers pinned and not yet let go.
        num_allocated: Pools of the device, likewise.
    """

    name = "sim"
    memory = "cpu"
    pinned_nbytes = 0

    def __init__(self) -> None:
        self.streams: list[SimStream] = []
        self.num_pinned = 0
        self.num_allocated = 0

    def as_event(self, given: object) -> object | None:
        """As given."""
        return given

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

    def allocate(self, nbytes: int) -> tuple[UInt8Array, Callable[[], None]]:
        """Memory that holds nothing that a test expects."""
        self.num_allocated += 1
        return np.full(nbytes, POISON, np.uint8), self._free

    def adopt(self, pool: UInt8Array) -> Callable[[], None]:
        """Counted as what it gives itself is, and filled with what no test expects."""
        self.num_allocated += 1
        pool[:] = POISON
        return self._free

    def checksums(self, pool: UInt8Array, slots: Int32Array, nbytes: int) -> UInt32Array:
        """uint32[n]: the CRC32C of each slot's first `nbytes`. Blocks."""
        return checksums(pool, slots, nbytes)

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
        """Enqueue host → cache, spoiling the cache's rows."""
        return self._copy(host, slots, kv, block_ids, stream, groups=groups, after=after, into_pool=False)

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
        """Enqueue cache → host, spoiling the slots."""
        self._copy(host, slots, kv, block_ids, stream, groups=groups, after=after, into_pool=True)

    def _copy(
        self,
        host: UInt8Array,
        slots: Int32Array,
        kv: PagedKV,
        block_ids: Int64Array,
        stream: Stream,
        *,
        groups: range | None,
        after: Sequence[Event],
        into_pool: bool,
    ) -> list[Event]:
        copied = check_copy(
            host, slots, kv, block_ids, memory=self.memory, into_pool=into_pool, groups=groups, num_events=len(after)
        )
        quantized = kv.quantized and QuantizedCopy(host, slots, kv, block_ids, into_pool=into_pool)
        copies: list[_Copy] = []
        for group in copied:
            matched = _match_rows(host, slots, kv, block_ids, group)
            rows = matched if into_pool else [(cached, pooled) for pooled, cached in matched]
            copies.append((rows, partial(quantized.run, group) if quantized else partial(_copy, rows)))
        return self._enqueue(copies, stream, after)

    def _enqueue(self, copies: list[_Copy], stream: Stream, after: Sequence[Event]) -> list[Event]:
        assert isinstance(stream, SimStream), f"{stream!r} is no stream of a simulated device"
        before = [*stream.steps]  # at once: a store's readers enqueue on threads of their own
        held = any(step.gate is not None for step in before)
        still_read = [src for step in before for src in step.src_rows]
        events: list[Event] = []
        for copy, gate in zip_longest(copies, after):
            held = held or gate is not None
            if copy is None:
                stream.enqueue(_Step(_do_nothing, gate))
                continue
            rows, move = copy
            if held:
                stream.enqueue(_Step(partial(_spoil, rows), gate))
            else:
                _spoil(
                    [(dst, src) for dst, src in rows if not any(np.may_share_memory(dst, row) for row in still_read)]
                )
            event = SimEvent(self)
            stream.enqueue(_Step(partial(_move, move, event), src_rows=tuple(src for _, src in rows)))
            events.append(event)
        return events

    def _free(self) -> None:
        self.num_allocated -= 1

    def _unpin(self) -> None:
        self.num_pinned -= 1


def _match_rows(host: UInt8Array, slots: Int32Array, kv: PagedKV, block_ids: Int64Array, group: int) -> _Rows:
    """(rows in the pool, rows in the cache) of every block in one page group; of codes and scales once each."""
    matched = []
    for id_row, first, end in kv.groups[group]:
        for segment in range(first, end):
            rows, offset = kv.views[segment], int(kv.segments["slot_offset_nbytes"][segment])
            nbytes = rows.shape[1] * rows.shape[2]
            for slot, block_id in zip(slots.tolist(), block_ids[id_row].tolist(), strict=True):
                own = host[slot * PAGE_NBYTES :]
                if kv.quantized is None:
                    matched.append((own[offset : offset + nbytes].reshape(rows.shape[1:]), rows[block_id]))
                else:
                    ranges = kv.quantized.slot_ranges(offset, offset + nbytes)
                    matched += [(own[begin:end], rows[block_id]) for begin, end in ranges]
    return matched


def _spoil(rows: _Rows) -> None:
    for dst, _ in rows:
        dst.fill(POISON)


def _move(move: Callable[[], None], event: SimEvent) -> None:
    move()
    event.reach()


def _copy(rows: _Rows) -> None:
    for dst, src in rows:
        dst[:] = src


def _do_nothing() -> None:
    pass
