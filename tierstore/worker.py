"""Workers: named threads that run tasks in priority order. The only place that makes threads.

Called by streams, links and the engine's timer. A worker's queue is bounded, and its threads are joined on close.
An exception that escapes a task ends only that task; it is kept for the owner and passed to `threading.excepthook`.

A signal handler (Ctrl-C) may raise in the middle of `submit` or `ask`. That leaves the worker intact: `with` takes
and releases the lock in C, and the token that wakes a thread is put before its task, so that at worst a token
without a task is left behind.

A program that ends without close must still end, and no thread may run into the interpreter's finalization. The
interpreter would wait for normal threads before anything could tell them to stop; so the threads are daemons, and
`atexit` closes each worker, newest first. An owner whose tasks wait for something registers its own close with
`atexit` after it has made its workers, so that it runs before theirs.
"""

from __future__ import annotations

import atexit
import heapq
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeAlias, TypeVar

__all__ = ["Failed", "Task", "Worker", "attempt"]

Task: TypeAlias = Callable[[], object]
Failed: TypeAlias = Callable[[BaseException], None]
T = TypeVar("T")


class Worker:
    """Threads that run tasks, lowest priority number first, and in order of submission within one priority.

    Attributes:
        name: As given.
        capacity: As given.
        failure: The first exception that escaped a task, or None.

    Args:
        name: The threads' name; an index is added if there are several.
        capacity: Tasks that may wait; beyond it `submit` refuses. It never blocks.
        threads: How many threads serve the queue; only a single one completes tasks in order.
    """

    def __init__(self, name: str, *, capacity: int, threads: int = 1) -> None:
        assert min(capacity, threads) >= 1, f"worker {name}: capacity {capacity}, threads {threads}"
        self.name = name
        self.capacity = capacity
        self.failure: BaseException | None = None
        self._queue: list[tuple[int, int, Task, Failed | None]] = []
        self._submitted = 0
        self._closing = False
        self._lock = threading.Lock()
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._owner_pid = os.getpid()
        self._threads: list[threading.Thread] = []
        self._num_idle = threads
        atexit.register(self.close)
        for index in range(threads):
            thread = threading.Thread(target=self._run, name=name if threads == 1 else f"{name}-{index}", daemon=True)
            thread.start()
            self._threads.append(thread)

    @property
    def room(self) -> int:
        """Tasks that may still be submitted."""
        return self.capacity - len(self._queue)

    @property
    def prompt(self) -> bool:
        """Whether an idle thread is about to run each queued task."""
        return len(self._queue) <= self._num_idle

    def submit(self, task: Task, priority: int = 0, failed: Failed | None = None) -> bool:
        """Queue a task. Never blocks.

        Args:
            task: What to run.
            priority: Smaller runs first.
            failed: Called on the worker's thread with the exception that escaped the task, to answer its waiters.

        Returns:
            False if the task will not run: the queue is full, `close` has begun (this also refuses tasks that
            a task submits), or this process is a fork of the one that owns the threads.
        """
        if os.getpid() != self._owner_pid:
            return False
        with self._lock:
            if self._closing or len(self._queue) >= self.capacity:
                return False
            self._submitted += 1
            self._tokens.put(None)
            heapq.heappush(self._queue, (priority, self._submitted, task, failed))
        return True

    def ask(self, task: Callable[[], T]) -> T:
        """Run a task on a thread of the worker, and return what it returns or raise what it raises. Blocks.

        If the worker does not take the task, the calling thread runs it. An exception from a signal handler ends the
        wait; the task was then never queued, or still runs to its end.
        """
        question = _Question(task)
        return question.answer() if self.submit(question.work) else task()

    def close(self, patience_seconds: float = math.inf) -> bool:
        """Run what is queued, then join the threads. Blocks; a second call does nothing more.

        A call by one of the worker's own tasks only begins the close; a later call, at the latest the one at exit,
        joins that thread. In a forked child it does nothing: the threads belong to the parent.

        Returns:
            Whether the threads have ended. A thread that hangs in a task for longer than `patience_seconds` is left
            until the process ends, and the tasks queued behind it are dropped.
        """
        if os.getpid() != self._owner_pid:
            return True
        with self._lock:
            self._closing = True
        for _ in self._threads:
            self._tokens.put(None)
        if threading.current_thread() in self._threads:
            return False
        until = time.monotonic() + patience_seconds
        for thread in self._threads:
            thread.join(None if patience_seconds == math.inf else max(0.0, until - time.monotonic()))
        atexit.unregister(self.close)
        hanging = any(thread.is_alive() for thread in self._threads)
        if hanging:
            with self._lock:
                self._queue.clear()
        return not hanging

    def _run(self) -> None:
        while (queued := self._next()) is not None:
            task, failed = queued
            error = self._attempt(task)
            if error is not None and failed is not None:
                self._attempt(partial(failed, error))
            with self._lock:
                self._num_idle += 1
            del queued, task, failed, error  # an idle thread keeps no memory of its last task alive

    def _attempt(self, task: Task) -> BaseException | None:
        """Run a task; returns the exception that escaped it, once kept and passed to the hook."""
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
        while True:
            self._tokens.get()
            with self._lock:
                if self._queue:
                    self._num_idle -= 1
                    return heapq.heappop(self._queue)[2:]
                if self._closing:
                    return None


def attempt(task: Task) -> None:
    """Run a caller's callback. What it raises is passed to `threading.excepthook` and affects nothing else.

    On the main thread, what is not an `Exception` (such as KeyboardInterrupt) is raised: it is to end the program.
    """
    try:
        task()
    except BaseException as error:  # not ours to judge; told, never lost
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            raise
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


class _Question(Generic[T]):
    """A task and its result."""

    def __init__(self, task: Callable[[], T]) -> None:
        self._task = task
        self._values: list[T] = []
        self._error: BaseException | None = None
        self._ended = threading.Lock()
        self._ended.acquire()

    def work(self) -> None:
        """Run the task; on the worker's thread."""
        try:
            self._values.append(self._task())
        except BaseException as error:  # noqa: BLE001 - raised again where it was asked
            self._error = error
        self._ended.release()

    def answer(self) -> T:
        """Wait for the task to end, and return or raise its result."""
        self._ended.acquire()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # or the exception's own frames would keep it alive
        return self._values[0]
