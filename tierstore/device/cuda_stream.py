"""Streams of a GPU: ordered calls, events that can be waited for, and tasks that run once work has ended.

Made by the CUDA device. Each stream has one thread, which alone makes driver calls for it. The thread enqueues calls
in order, and waits for running work only when it has nothing left to enqueue. So the GPU always has the next copy
while the last one is being reported, and no caller ever waits for the driver.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from tierstore.device.copy_engines import EngineShelf
from tierstore.device.cpu import CpuEvent
from tierstore.errors import ClosedError, DeviceError
from tierstore.worker import Failed, Worker

if TYPE_CHECKING:
    from tierstore.device.base import Event
    from tierstore.device.cuda_runtime import CudaRuntime, Mark

    Task: TypeAlias = Callable[[], None]

__all__ = ["STREAM_CAPACITY", "AdoptedEvent", "CudaEvent", "CudaStream"]

STREAM_CAPACITY = 1 << 16
"""Calls that may wait in one stream; links bound what is in flight far below it."""

_ENQUEUE, _FINISH, _GIVE_BACK = 0, 1, 2
"""Priorities of the stream's thread: what can be enqueued goes before waiting for what runs."""

_logger = logging.getLogger(__name__)


class CudaEvent(CpuEvent):
    """A point in a stream of the GPU. The stream's thread tells `done` and `wait` that it was reached."""

    __slots__ = ("_mark", "_recorded")

    def __init__(self) -> None:
        super().__init__()
        self._recorded = CpuEvent()
        self._mark: Mark | None = None

    def recorded_mark(self) -> Mark:
        """The driver's own event. Blocks until the stream's thread has recorded it, not until it is reached.

        Raises:
            DeviceError: The stream failed before it could record the event.
        """
        self._recorded.wait()
        if self._mark is None:
            raise DeviceError("the copy behind this event was never enqueued: its stream failed; look into the log")
        return self._mark

    def is_recorded(self) -> bool:
        """Whether `recorded_mark` would return at once."""
        return self._recorded.done()

    def set_mark(self, mark: Mark | None) -> None:
        """Called once, by the stream's thread; with None where it could not record."""
        self._mark = mark
        self._recorded.reach()


class AdoptedEvent:
    """An event that torch recorded, as an event of the store.

    Args:
        event: A ``torch.cuda.Event``, recorded.
    """

    def __init__(self, event: Any) -> None:
        self._event = event

    @property
    def handle(self) -> int:
        """The driver's own event."""
        return int(self._event.cuda_event)

    def done(self) -> bool:
        """Whether everything enqueued before the event has ended."""
        return bool(self._event.query())

    def wait(self, timeout: float | None = None) -> bool:
        """Block until done. CUDA's wait has no timeout, so a `timeout` above 0 does not shorten it."""
        if timeout is None or timeout > 0:
            self._event.synchronize()
        return self.done()


class CudaStream:
    """One stream of a GPU and its thread, as `tierstore.device.base.Stream` says.

    `record`, `wait`, `call` and `submit` may be called by any thread, never block, and raise ClosedError once the
    stream is closed, DeviceError where `STREAM_CAPACITY` calls wait. What the device submits uses `attempt`, `hold`
    and `mark`, which are for the stream's own thread.

    Attributes:
        handle: The driver's stream.
        engines: The ways to copy on it.

    Args:
        runtime: Of the GPU.
        name: Names the thread.
        high_priority: Whether its kernels go before those of other streams.
    """

    def __init__(self, runtime: CudaRuntime, name: str, *, high_priority: bool = False) -> None:
        self.handle = runtime.new_stream(high_priority=high_priority)
        self.engines = EngineShelf(runtime)
        self._runtime = runtime
        self._failure: DeviceError | None = None
        self._ending: deque[tuple[Mark | None, Task, object]] = deque()
        self._worker = Worker(name, capacity=STREAM_CAPACITY)
        self.submit(runtime.enter)

    @property
    def failure(self) -> BaseException | None:
        """The failure that ended the stream's work, or None. After it, copies are reported but have not moved."""
        return self._failure or self._worker.failure

    def record(self) -> CudaEvent:
        """Mark this point of the stream."""
        event = CudaEvent()
        self.submit(partial(self.mark, event))
        return event

    def wait(self, event: Event) -> None:
        """Make later work on the stream wait until `event` is done. Does not block the caller.

        The GPU itself waits for a GPU event, so that later work is enqueued ahead of time.
        """
        if not event.done():
            self.submit(partial(self.hold, event))

    def call(self, task: Task) -> None:
        """Run `task` on the stream's thread once everything enqueued before has ended, or failed."""
        self.submit(partial(self._mark_end, task))

    def submit(self, task: Task, failed: Failed | None = None) -> None:
        """Run `task`, which enqueues, on the stream's thread in order; `failed` gets an exception that escapes it."""
        self._submit(task, _ENQUEUE, failed)

    def close(self) -> None:
        """Finish what is enqueued and end the stream. Blocks; a second call does nothing."""
        with suppress(ClosedError):
            self._submit(self._give_back, _GIVE_BACK)
        self._worker.close()

    def attempt(self, task: Task) -> None:
        """Run a task that enqueues, unless an earlier one has failed: work behind a lost copy must not run."""
        if self.failure is None:
            try:
                task()
            except DeviceError as error:
                self._fail(error)

    def hold(self, event: Event) -> None:
        """Enqueue nothing that runs before `event` is done."""
        self.attempt(partial(self._hold, event))

    def mark(self, event: CudaEvent, keep: object = None) -> None:
        """Let `event` be this point of the stream; `keep` lives until it is reached."""
        self._mark_end(event.reach, event, keep)

    def _submit(self, task: Task, priority: int, failed: Failed | None = None) -> None:
        if not self._worker.submit(task, priority, failed):
            if self._worker.room > 0:
                raise ClosedError(f"stream {self._worker.name} is closed; open a new one")
            raise DeviceError(f"stream {self._worker.name} holds {STREAM_CAPACITY} calls; wait for some to end")

    def _mark_end(self, task: Task, event: CudaEvent | None = None, keep: object = None) -> None:
        marks: list[Mark] = []
        self.attempt(lambda: marks.append(self._runtime.record(self.handle)))
        mark = marks[0] if marks else None
        if event is not None:
            event.set_mark(mark)
        self._ending.append((mark, task, keep))
        self._worker.submit(self._finish_one, _FINISH)  # refused by a stream that closes: then `_give_back` does it

    def _finish_one(self) -> None:
        """Wait for the oldest event with waiters and tell them; they are told of failures too."""
        if not self._ending:
            return
        mark, task, _keep = self._ending.popleft()
        if mark is not None:
            try:
                self._runtime.finish(mark)
            except DeviceError as error:
                self._fail(error)
        task()

    def _hold(self, event: Event) -> None:
        if isinstance(event, AdoptedEvent):
            self._runtime.hold(self.handle, event)
            return
        while self._ending and not (isinstance(event, CudaEvent) and event.is_recorded()):
            self._finish_one()  # the thread may be held for long, and somebody may wait for these
        if isinstance(event, CudaEvent):
            self._runtime.hold(self.handle, event.recorded_mark())
        else:
            event.wait()

    def _fail(self, error: DeviceError) -> None:
        """Keep the first failure, and wait for the work enqueued before it, so that no waiter is told too early."""
        if self._failure is None:
            self._failure = error
            _logger.error("stream %s: %s; nothing more is copied on it", self._worker.name, error)
            self._drain()

    def _drain(self) -> None:
        with suppress(DeviceError):
            self._runtime.finish(self._runtime.record(self.handle))

    def _give_back(self) -> None:
        while self._ending:
            self._finish_one()
        self._drain()
        self.engines.close()
        self._runtime.drop_stream(self.handle)
