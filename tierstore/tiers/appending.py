"""Writes staged records on a thread of its own, in order, while the next are staged.

Called by the writing of records on the tier's write worker, which alone decides what goes where. Between two
calls of a disk lies a header page for every record of the next; made meanwhile, they cost the disk no time.
After a write that failed nothing that was staged behind it is written.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tierstore.errors import DiskError
from tierstore.tiers.frame import Frame
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.tiers.batch import Batch
    from tierstore.tiers.chunkfile import ChunkFile
    from tierstore.tiers.record import HeaderArray
    from tierstore.types import Int64Array

__all__ = ["Appender", "Staged"]

_STAGED_MAX = 2
"""Runs under way: one that is being written, and one for which the disk then need not wait."""


@dataclass(slots=True, eq=False)
class Staged:
    """A run's records, ready to be written.

    Attributes:
        batch: Whose.
        rows: int64[n]; of the batch.
        chunk: Where to.
        headers: `HEADER`[n], in `buffers` too.
        buffers: The records' pages, one after another.
        offset: Of the first of them in the file.
        error: Why it was not written.
        ended: Set once it was, or will not be.
    """

    batch: Batch
    rows: Int64Array
    chunk: ChunkFile
    headers: HeaderArray
    buffers: list[memoryview]
    offset: int
    error: BaseException | None = None
    ended: threading.Event = field(default_factory=threading.Event)


class Appender:
    """The order of writes to one file at a time.

    Args:
        written: Told of each run that is on disk, on the caller's thread, in order.
        lost: Told of each that is not, likewise.
    """

    def __init__(self, written: Callable[[Staged], None], lost: Callable[[Staged], None]) -> None:
        self._written = written
        self._lost = lost
        self._frames = deque(Frame() for _ in range(_STAGED_MAX))
        self._staged: deque[Staged] = deque()
        self._worker = Worker("ssd-append", capacity=_STAGED_MAX)

    @property
    def frame(self) -> Frame:
        """Header and tail pages for the run that is staged next."""
        return self._frames[0]

    def begin(self, staged: Staged) -> None:
        """Write a run behind those begun before it; blocks until few enough are under way.

        Raises:
            DiskError: An earlier one failed; this one is lost with it.
        """
        self._staged.append(staged)
        self._frames.rotate(-1)
        accepted = self._worker.submit(lambda: _write(staged), failed=lambda error: _fail(staged, error))
        assert accepted, "no more runs are under way than the worker takes, and none after close"
        while len(self._staged) >= _STAGED_MAX:
            self._end_first()

    def drain(self) -> None:
        """Block until every run has ended.

        Raises:
            DiskError: One failed; those behind it are lost with it.
        """
        while self._staged:
            self._end_first()

    def close(self) -> None:
        """End the thread; blocks."""
        self._worker.close()

    def _end_first(self) -> None:
        first = self._staged[0]
        first.ended.wait()
        if first.error is None:
            self._staged.popleft()
            self._written(first)
            return
        lost, self._staged = self._staged, deque()
        for staged in lost:
            staged.ended.wait()
        for staged in reversed(lost):
            self._lost(staged)
        raise first.error


def _write(staged: Staged) -> None:
    """Write one run; on the thread."""
    try:
        staged.chunk.write(staged.buffers, staged.offset)
    except DiskError as error:
        staged.error = error
    staged.ended.set()


def _fail(staged: Staged, error: BaseException) -> None:
    staged.error = error
    staged.ended.set()
