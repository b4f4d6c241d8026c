"""Threads for work that would block the event loop: counts over many blocks, and verbs that wait for a disk.

Called by the service's handlers. The queue is bounded: a task that finds no room is refused at once.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import TypeVar

from tierstore.errors import LimitError, TierstoreError
from tierstore.worker import Worker

__all__ = ["Workers"]

_WAITING_MAX = 4096

T = TypeVar("T")


class Workers:
    """Runs tasks on threads of its own, for coroutines of one loop."""

    def __init__(self, name: str, *, threads: int) -> None:
        self._worker = Worker(name, capacity=_WAITING_MAX, threads=threads)

    def start(self, task: Callable[[], T]) -> asyncio.Future[T]:
        """Begin; the future is told on the loop. Raises LimitError where too many wait."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            try:
                value = task()
            except TierstoreError as error:
                fail(error)
            else:
                loop.call_soon_threadsafe(_succeed, future, value)

        def fail(error: BaseException) -> None:
            loop.call_soon_threadsafe(_fail, future, error)

        if not self._worker.submit(work, failed=fail):
            raise LimitError(f"{_WAITING_MAX} tasks wait for {self._worker.name} already; try later")
        return future

    async def run(self, task: Callable[[], T]) -> T:
        """Run a task. A cancelled caller still waits for the task's end, so that no copy runs on after it."""
        future = self.start(task)
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait({future})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            future.exception()
            raise cancelled
        return future.result()

    def close(self, patience_seconds: float = math.inf) -> None:
        """End the threads after the queued tasks; a thread that hangs beyond `patience_seconds` is left. Blocks."""
        self._worker.close(patience_seconds)


def _succeed(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _fail(future: asyncio.Future[T], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
