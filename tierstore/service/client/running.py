"""A transfer of a client: it runs on one of the client's threads, may be withdrawn, and always ends.

Called by the verbs. A caller that only waits does the work itself if no thread has begun it yet: waking a thread and
being woken by it takes 0.6 ms after a copy that has emptied the CPU caches. Refusals and failures of the service become
outcomes, never an exception in the engine.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from tierstore.device.base import DeviceEvent
from tierstore.errors import TierstoreError
from tierstore.shield import interruptible
from tierstore.transfer.future import Transfer
from tierstore.types import Outcome
from tierstore.worker import attempt

if TYPE_CHECKING:
    from tierstore.device.base import Event
    from tierstore.service.client.session import Answer, Cancellable
    from tierstore.transfer.future import TransferResult
    from tierstore.transfer.layers import Layers
    from tierstore.types import UInt8Array
    from tierstore.worker import Worker

__all__ = ["Late", "Running", "Warnings", "Withdrawn"]

_logger = logging.getLogger(__name__)

_WARNING_SECONDS = 60.0

_DEADLINE_SECONDS_MIN = 1e-9
"""In messages 0 is no deadline."""

_LOOK_SECONDS = 0.5
"""How often one that waits for an event of the caller's looks whether he has cancelled, or closed the client."""

T = TypeVar("T")

Work: TypeAlias = "Callable[[Running], TransferResult | None]"
"""What a transfer is: ends with its result, or has found a call to `Running.follow`."""


class Withdrawn(Exception):
    """The caller has cancelled."""


class Late(Withdrawn):
    """The call timed out on the client's side: the server had no part in it."""


class Warnings:
    """Logs failures at a limited rate, since an engine makes thousands of calls."""

    def __init__(self) -> None:
        self.over = False
        self._next = 0.0
        self._passed_over = 0

    def say(self, error: TierstoreError | Late) -> None:
        """Log it, or count it."""
        if self.over:
            return
        now = time.monotonic()
        if now < self._next:
            self._passed_over += 1
            return
        more = f" (and {self._passed_over} more before)" if self._passed_over else ""
        what = "a call was given up" if isinstance(error, Late) else "the service did not do its part"
        _logger.warning("%s: %s%s; going on without it", what, error, more)
        self._next, self._passed_over = now + _WARNING_SECONDS, 0

    def end(self) -> None:
        """The client is being closed: calls that this cuts off are no failures and are not logged."""
        self.over = True


class Running:
    """One transfer in flight.

    Args:
        num_blocks: Blocks of the request.
        block_nbytes: Bytes of each.
        failed: The outcome of all blocks if the service does not answer.
        warnings: Logs such a failure.
        layers: Progress of a get, layer by layer.
        seconds: How long it may take, from now on.
    """

    def __init__(
        self,
        num_blocks: int,
        block_nbytes: int,
        failed: Outcome,
        warnings: Warnings,
        layers: Layers | None = None,
        *,
        seconds: float = math.inf,
    ) -> None:
        self.transfer = Transfer(block_nbytes, self._withdraw, num_blocks, layers, self._help_out)
        self._num_blocks = num_blocks
        self._failed = failed
        self._warnings = warnings
        self._seconds = seconds
        self._until = time.monotonic() + seconds
        self._lock = threading.Lock()
        self._withdrawn = False
        self._call: Cancellable | None = None
        self._work: Work | None = None
        self._worker: Worker | None = None
        self._doing = threading.Lock()
        self._afterwards: Callable[[], None] | None = None

    def start(self, worker: Worker, work: Work) -> Transfer:
        """Hand the work to a thread; REJECTED if its queue is full. Does not block."""
        self._work, self._worker = work, worker
        if not worker.submit(self._attend):
            self._end(Outcome.REJECTED)
        return self.transfer

    def _attend(self) -> None:
        """The thread's part: do the work, or wait for the caller that does it. It ends no sooner than the work."""
        try:
            self._do()
        finally:
            self._tell()
            if self._afterwards is not None:
                self._afterwards()

    def _help_out(self) -> None:
        """A waiting caller's part: do the work in place of a free thread: threads still bound what is in flight.

        Skipped where a signal handler may raise: its exception would leave the work half done.
        """
        if self._worker is not None and self._worker.prompt and not interruptible():
            attempt(self._do)

    def _do(self) -> None:
        """Do the work, or wait for the thread that is doing it."""
        with self._doing:
            work, self._work = self._work, None
            if work is not None:
                self._run(work)

    def _run(self, work: Work) -> None:
        follows = False
        try:
            self.check()
            result = work(self)
            follows = result is None
            if result is not None:
                self.transfer.settle(result.leading, self._of_all(result.codes))
        except (TierstoreError, Late) as error:
            self.fail(error)
        except Withdrawn:
            self._end(Outcome.CANCELLED)
        finally:
            if not follows:  # does nothing unless an unexpected error left the transfer open
                self._end(self._failed)

    def afterwards(self, task: Callable[[], None]) -> None:
        """Run a task on the thread once the transfer has ended, in whatever way. Nobody waits for the task."""
        self._afterwards = task

    def _tell(self) -> None:
        if self.transfer.done():
            self.transfer.call_back()

    def _of_all(self, codes: UInt8Array) -> UInt8Array:
        """The outcomes of the whole request, including blocks that the server was not asked for."""
        all_codes = np.full(self._num_blocks, self._failed, np.uint8)
        all_codes[: len(codes)] = codes
        return all_codes

    def fail(self, error: TierstoreError | Late) -> None:
        """End the transfer as without a service, and log the error."""
        self._warnings.say(error)
        self._end(Outcome.CANCELLED if self._withdrawn else self._failed)

    def follow(self, call: Answer[T], result: Callable[[Answer[T]], TransferResult]) -> None:
        """End the transfer when a call in flight ends, and cancel that call if it is withdrawn. Does not block."""
        with self._lock:
            self._call = call
            withdrawn = self._withdrawn

        beginner = threading.get_ident()

        def ended(_call: object) -> None:
            try:
                self._run(lambda _running: result(call))
            finally:
                if threading.get_ident() != beginner:  # else it was answered already, and `_attend` comes behind this
                    self._tell()

        call.add_done_callback(ended)
        if withdrawn:
            call.cancel()

    def _end(self, outcome: Outcome) -> None:
        if not self.transfer.done():
            self.transfer.settle(0, np.full(self._num_blocks, outcome, np.uint8))

    def check(self) -> None:
        """Raise Withdrawn where the caller has cancelled."""
        if self._withdrawn:
            raise Withdrawn

    @contextmanager
    def calling(self, call: Cancellable) -> Iterator[None]:
        """Within this context a withdrawal cancels the call, and the call's error becomes Withdrawn."""
        with self._lock:
            self._call = call
        try:
            self.check()
            yield
        except TierstoreError:
            self.check()
            raise
        finally:
            with self._lock:
                self._call = None
            call.cancel()

    def begin(self) -> None:
        """Raise Late if no thread was free before the time was over."""
        if self.left() <= 0:
            raise Late(f"no thread was free for it within {self._seconds:g} s; make fewer calls at a time")

    def left(self, at_least: float = 0.0) -> float:
        """Seconds left, but at least `at_least` (its whole time, if shorter): enough to judge the server by."""
        return max(min(at_least, self._seconds), self._until - time.monotonic())

    def left_of(self, deadline_seconds: float) -> float:
        """A deadline as the server must have it: less the time that the call has waited for a thread. 0: none."""
        if not deadline_seconds:
            return 0.0
        return max(_DEADLINE_SECONDS_MIN, deadline_seconds - (self._seconds - self.left()))

    def hold(self, events: Iterable[Event]) -> None:
        """Wait for the events that the caller's copies depend on, no longer than the transfer may take. Blocks.

        Events recorded by the device are skipped: the device waits for those.

        Raises:
            Late: An event has not come in time.
            Withdrawn: The caller has cancelled, or closes the client.
        """
        for event in events:
            while not isinstance(event, DeviceEvent) and not event.wait(min(self.left(), _LOOK_SECONDS)):
                self.check()
                if self._warnings.over:
                    raise Withdrawn
                if self.left() <= 0:
                    raise Late(
                        f"the event that its copies wait for has not come within {self._seconds:g} s; pass one of work "
                        "that ends, or a longer deadline_seconds"
                    )

    def _withdraw(self, _transfer: Transfer) -> None:
        with self._lock:
            self._withdrawn = True
            call = self._call
        if call is not None:
            call.cancel()
