"""The only place that makes threads: a named worker that runs what it is given, in priority order.

Called by streams, links and the engine's timer. A worker is bounded and joined on close; what a task
lets escape ends nothing but that task, is kept for the owner and told to `threading.excepthook`.

An exception that a signal handler raises in the middle of `submit` or `ask` (Ctrl-C) tears nothing apart: the lock
is taken and given back by C alone, and threads are woken by a token that is put before the task it stands for, so
that the worst that is left behind is a token for no task.

A program that ends without close must still end, and no thread may run on into the interpreter's
finalization. So the threads are daemons to the interpreter, which would otherwise wait for them before
anything could tell them to stop, and each worker is closed by `atexit`, newest first. An owner whose
tasks wait for something registers its own close with `atexit` after it has made its workers: that one
runs before theirs.
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
        """Whether each task that waits has a thread that is about to run it."""
        return len(self._queue) <= self._num_idle

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
        with self._lock:
            if self._closing or len(self._queue) >= self.capacity:
                return False
            self._submitted += 1
            self._tokens.put(None)
            heapq.heappush(self._queue, (priority, self._submitted, task, failed))
        return True

    def ask(self, task: Callable[[], T]) -> T:
        """Run a task on a thread of the worker, and return what it returns or raise what it raises. Blocks.

        Where the worker is closed it is run here. An exception from a signal handler ends the waiting; the task is
        then still run to its end, or was never queued.
        """
        question = _Question(task)
        return question.answer() if self.submit(question.work) else task()

    def close(self, patience_seconds: float = math.inf) -> bool:
        """Run what is queued, then join the threads. Blocks; a second call does nothing more.

        Called by one of the worker's own tasks it only begins: a later call, at the latest the one at
        exit, joins that thread. In a forked child it does nothing: the threads are the parent's.

        Returns:
            Whether the threads have ended. One that hangs in a task for longer than `patience_seconds` is left to
            the end of the process, and what is queued behind it is dropped.
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
        while True:
            self._tokens.get()
            with self._lock:
                if self._queue:
                    self._num_idle -= 1
                    return heapq.heappop(self._queue)[2:]
                if self._closing:
                    return None


def attempt(task: Task) -> None:
    """Run what is a caller's own: what it raises is told to `threading.excepthook`, and takes nobody with it.

    On the main thread what is no Exception goes on: it is to end the program.
    """
    try:
        task()
    except BaseException as error:  # not ours to judge; told, never lost
        if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
            raise
        threading.excepthook(threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread())))


class _Question(Generic[T]):
    """A task, and what came of it."""

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
        """Wait for the end."""
        self._ended.acquire()
        error, self._error = self._error, None
        if error is not None:
            try:
                raise error
            finally:
                del error  # or the exception's own frames would keep it alive
        return self._values[0]
