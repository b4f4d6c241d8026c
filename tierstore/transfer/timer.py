"""A timer: one thread that sleeps until the next deadline and then calls. The first deadline starts it."""

from __future__ import annotations

import atexit
import math
import os
import threading
from collections.abc import Callable
from typing import Protocol

from tierstore.worker import Worker

__all__ = ["Alarm", "Timer"]


class Alarm(Protocol):
    """Calls back at a given time: a `Timer`, or a test that decides itself when the time has come."""

    def arm(self, deadline: float) -> None:
        """Make sure that the call comes at this time or sooner."""

    def close(self) -> None:
        """Call no more."""


class Timer:
    """Calls `expire` when the time armed has come.

    Args:
        clock: Seconds, as `expire`'s deadlines count them.
        expire: Ends what is due and returns the next deadline, infinity where there is none.
        name: The thread's name.
    """

    def __init__(self, clock: Callable[[], float], expire: Callable[[], float], name: str = "deadlines") -> None:
        self._clock = clock
        self._name = name
        self._expire = expire
        self._next = math.inf
        self._closing = False
        self._changed = threading.Condition()
        self._worker: Worker | None = None
        self._owner_pid = os.getpid()

    def arm(self, deadline: float) -> None:
        """Make sure that `expire` is called at this time or sooner."""
        with self._changed:
            if self._closing or deadline >= self._next:
                return
            self._next = deadline
            if self._worker is None:
                self._worker = Worker(self._name, capacity=1)
                atexit.register(self.close)  # before the worker's own, which would wait for a task that waits
                self._worker.submit(self._run)
            self._changed.notify()

    def close(self, patience_seconds: float = math.inf) -> None:
        """End the thread; one that hangs in `expire` for longer than that is left behind.

        In a forked child it does nothing: the thread is the parent's.
        """
        atexit.unregister(self.close)
        if os.getpid() != self._owner_pid:
            return
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._worker is not None:
            self._worker.close(patience_seconds)
        self._expire = _never  # breaks the cycle with the owner, which holds this timer

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closing and (wait := self._next - self._clock()) > 0:
                    self._changed.wait(min(wait, threading.TIMEOUT_MAX))
                if self._closing:
                    return
                self._next = math.inf
            self.arm(self._expire())


def _never() -> float:
    return math.inf
