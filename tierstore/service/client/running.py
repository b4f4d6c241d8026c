"""A transfer of a client: runs on one of its threads, may be withdrawn, and always ends.

Called by the verbs. A caller that only waits does the work itself if a free thread has not begun it yet: waking one
and being woken by it takes 0.6 ms after a copy that has emptied the processor's caches. Refusals and failures of the
service become outcomes, never an exception in the engine.
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

_LOOK_SECONDS = 0.5
"""How often one that waits for an event of the caller's looks whether he has cancelled, or closed the client."""

T = TypeVar("T")

Work: TypeAlias = "Callable[[Running], TransferResult | None]"
"""What a transfer is: ends with its result, or has found a call to `Running.follow`."""


class Withdrawn(Exception):
    """The caller has cancelled."""


class Late(Withdrawn):
    """The call's time was over before the server had a part in it."""


class Warnings:
    """At most one line in so many seconds: an engine makes thousands of calls."""

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
        """The client is being closed: what that cuts off is nobody's failure, and no line."""
        self.over = True


class Running:
    """One transfer under way.

    Args:
        num_blocks: Blocks of the request.
        block_nbytes: Bytes of each.
        failed: The outcome of blocks where the service does not answer.
        warnings: Where that is said.
        layers: Of a get.
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
        """Have the work done. Does not block."""
        self._work, self._worker = work, worker
        if not worker.submit(self._attend):
            self._end(Outcome.REJECTED)
        return self.transfer

    def _attend(self) -> None:
        """The thread: see it through, whoever does it, so that no thread ends before it."""
        try:
            self._do()
        finally:
            self._tell()
            if self._afterwards is not None:
                self._afterwards()

    def _help_out(self) -> None:
        """One who waits, in place of a thread that is free: no more is under way at a time than there are threads.

        Where a signal handler may raise, nothing is begun that this would tear apart.
        """
        if self._worker is not None and self._worker.prompt and not interruptible():
            attempt(self._do)

    def _do(self) -> None:
        """Do the work, or wait for who does."""
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
            if not follows:  # it has ended, but for what nobody expected
                self._end(self._failed)

    def afterwards(self, task: Callable[[], None]) -> None:
        """Do something on the thread once the transfer has ended, however it does: nobody waits for it."""
        self._afterwards = task

    def _tell(self) -> None:
        if self.transfer.done():
            self.transfer.call_back()

    def _of_all(self, codes: UInt8Array) -> UInt8Array:
        """The outcomes with those of blocks that the server was not asked for."""
        all_codes = np.full(self._num_blocks, self._failed, np.uint8)
        all_codes[: len(codes)] = codes
        return all_codes

    def fail(self, error: TierstoreError | Late) -> None:
        """End it as it ends where the service does not answer."""
        self._warnings.say(error)
        self._end(Outcome.CANCELLED if self._withdrawn else self._failed)

    def follow(self, call: Answer[T], result: Callable[[Answer[T]], TransferResult]) -> None:
        """End it with a call that is under way, and withdraw that call with it. Does not block."""
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
        """While it lasts a withdrawal cancels this call; what comes of that is Withdrawn."""
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
        """Raise Late where its turn has come too late."""
        if self.left() <= 0:
            raise Late(f"no thread was free for it within {self._seconds:g} s; make fewer calls at a time")

    def left(self, at_least: float = 0.0) -> float:
        """Seconds that it may still take; where it may take so many at all, at least those, to judge the server by."""
        return max(min(at_least, self._seconds), self._until - time.monotonic())

    def hold(self, events: Iterable[Event]) -> None:
        """Wait for what the caller gave copies to wait for, no longer than this may take. Blocks.

        What the device has recorded is the device's to wait for.

        Raises:
            Late: It has not come.
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
