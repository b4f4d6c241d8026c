"""The only place that makes threads: a named worker that runs what it is given, in priority order.

Called by streams, links and the engine's timer. A worker is bounded, never a daemon and joined on
close; what a task lets escape ends nothing but that task and is kept for the owner to see.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable
from typing import TypeAlias

__all__ = ["Task", "Worker"]

Task: TypeAlias = Callable[[], None]


class Worker:
    """Threads that run tasks, lowest priority number first and in order of submission within one.

    Args:
        name: The threads' name; an index is added where there are several.
        capacity: Tasks that may wait; `submit` refuses beyond it and never blocks.
        threads: How many threads serve the queue; order of completion is only kept with one.
    """

    def __init__(self, name: str, *, capacity: int, threads: int = 1) -> None:
        assert capacity >= 1 and threads >= 1, f"worker {name}: capacity {capacity}, threads {threads}"
        self.name = name
        self.capacity = capacity
        self.failure: BaseException | None = None
        self._queue: list[tuple[int, int, Task]] = []
        self._submitted = 0
        self._closing = False
        self._wake = threading.Condition()
        self._threads = [
            threading.Thread(target=self._run, name=name if threads == 1 else f"{name}-{index}", daemon=False)
            for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def room(self) -> int:
        """Tasks that may still be submitted."""
        return self.capacity - len(self._queue)

    def submit(self, task: Task, priority: int = 0) -> bool:
        """Queue a task; False where the queue is full or the worker is closing. Never blocks."""
        with self._wake:
            if self._closing or len(self._queue) >= self.capacity:
                return False
            heapq.heappush(self._queue, (priority, self._submitted, task))
            self._submitted += 1
            self._wake.notify()
        return True

    def close(self) -> None:
        """Run what is queued, then join the threads. Blocks; a second call does nothing more."""
        with self._wake:
            self._closing = True
            self._wake.notify_all()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._queue:
                    if self._closing:
                        return
                    self._wake.wait()
                _, _, task = heapq.heappop(self._queue)
            try:
                task()
            except BaseException as error:  # the top of a worker: kept for the owner, never lost
                self.failure = error
