"""Runs what an exception from a signal handler must not tear apart.

Python runs signal handlers on the main thread alone, between any two steps of whatever it is doing there. What a
handler raises (KeyboardInterrupt, or SystemExit on SIGTERM) would split a change of the store's state in the
middle. So whatever changes it is run on another thread, and the main thread waits: an exception ends the waiting
and never the work. Called by the store and the engine; on any other thread it costs nothing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from tierstore.forks import check_owner
from tierstore.worker import Worker

__all__ = ["Shield", "Shielded", "interruptible", "unshielded"]

_CALLS_MAX = 1024
"""Calls that may wait: the main thread waits for each, so that there are more only after as many exceptions."""

T = TypeVar("T")


class Shielded(Protocol):
    """Calls a task and returns what it returns, or raises what it raises."""

    def __call__(self, task: Callable[[], T], /) -> T:
        """Blocks as long as the task does."""


def unshielded(task: Callable[[], T], /) -> T:
    """Call it here; for whoever has no signals to fear, such as simulations."""
    return task()


def interruptible() -> bool:
    """Whether a signal handler may raise on this thread."""
    return threading.current_thread() is threading.main_thread()


class Shield:
    """A thread for the calls of the main thread: 0.02 to 0.05 ms more for each."""

    def __init__(self) -> None:
        self._worker = Worker("verbs", capacity=_CALLS_MAX)
        self._owner_pid = os.getpid()

    def __call__(self, task: Callable[[], T], /) -> T:
        """Call a task where nothing interrupts it, and wait for it. After `close` it is called here.

        Raises:
            ForkError: In a fork of the process that made this.
        """
        check_owner(self._owner_pid)
        return self._worker.ask(task) if interruptible() else task()

    def later(self, task: Callable[[], None]) -> None:
        """Call a task after all that came before, without waiting; it may close the shield."""
        self._worker.submit(task)

    def close(self) -> None:
        """End the thread."""
        self._worker.close()
