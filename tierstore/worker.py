"""The only place that makes threads: a named worker that runs what it is given, in priority order.

Called by streams, links and the engine's timer. A worker is bounded and joined on close; what a task
lets escape ends nothing but that task, is kept for the owner and told to `threading.excepthook`.

A program that ends without close must still end, and no thread may run on into the interpreter's
finalization. So the threads are daemons to the interpreter, which would otherwise wait for them before
anything could tell them to stop, and each worker is closed by `atexit`, newest first. An owner whose
tasks wait for something registers its own close with `atexit` after it has made its workers: that one
runs before theirs.
"""

from __future__ import annotations

import atexit
import heapq
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

__all__ = ["Failed", "Task", "Worker"]

Task: TypeAlias = Callable[[], None]
Failed: TypeAlias = Callable[[BaseException], None]


class Worker:
    """Threads that run tasks, lowest priority number first and in order of submission within one.

    Attributes:
        name: As given.
        capacity: As given.
        failure: The first exception that a task let escape, or None.

    Args:
        name: The threads' name; an index is added where there are several.
        capacity: Tasks that may wait; `submit` refuses beyond it and never blocks.
        threads: How many threads serve the queue; order of completion is only kept with one.
    """

    def __init__(self, name: str, *, capacity: int, threads: int = 1) -> None:
        assert min(capacity, threads) >= 1, f"worker {name}: capacity {capacity}, threads {threads}"
        self.name = name
        self.capacity = capacity
        self.failure: BaseException | None = None
        self._queue: list[tuple[int, int, Task, Failed | None]] = []
        self._submitted = 0
        self._closing = False
        self._wake = threading.Condition()
        self._owner_pid = os.getpid()
        self._threads: list[threading.Thread] = []
        atexit.register(self.close)
        for index in range(threads):
            thread = threading.Thread(target=self._run, name=name if threads == 1 else f"{name}-{index}", daemon=True)
            thread.start()
            self._threads.append(thread)

    @property
    def room(self) -> int:
        """Tasks that may still be submitted."""
        return self.capacity - len(self._queue)

    def submit(self, task: Task, priority: int = 0, failed: Failed | None = None) -> bool:
        """Queue a task. Never blocks.

        Args:
            task: What to run.
            priority: Smaller runs first.
            failed: Told on the worker's thread what the task let escape, so that whoever waits is answered.

        Returns:
            False where the task will not run: the queue is full, `close` has begun (also for a task that
            submits from inside), or this process is a fork of the one whose threads these are.
        """
        if os.getpid() != self._owner_pid:
            return False
        with self._wake:
            if self._closing or len(self._queue) >= self.capacity:
                return False
            heapq.heappush(self._queue, (priority, self._submitted, task, failed))
            self._submitted += 1
            self._wake.notify()
        return True

    def close(self) -> None:
        """Run what is queued, then join the threads. Blocks; a second call does nothing more.

        Called by one of the worker's own tasks it only begins: a later call, at the latest the one at
        exit, joins that thread. In a forked child it does nothing: the threads are the parent's.
        """
        if os.getpid() != self._owner_pid:
            return
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        if threading.current_thread() in self._threads:
            return
        for thread in self._threads:
            thread.join()
        atexit.unregister(self.close)

    def _run(self) -> None:
        while (queued := self._next()) is not None:
            task, failed = queued
            error = self._attempt(task)
            if error is not None and failed is not None:
                self._attempt(partial(failed, error))
            del queued, task, failed, error  # an idle thread keeps no memory of its last task alive

    def _attempt(self, task: Task) -> BaseException | None:
        """Run a task; returns what it let escape, once that is kept and told."""
        try:
            task()
        except BaseException as error:  # noqa: BLE001 - the top of a worker: kept, told, never lost
            if self.failure is None:
                self.failure = error
            threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))
            return error
        return None

    def _next(self) -> tuple[Task, Failed | None] | None:
        """Wait for the next task; None once the worker is closing and has run all of them."""
        with self._wake:
            while not self._queue:
                if self._closing:
                    return None
                self._wake.wait()
            return heapq.heappop(self._queue)[2:]
