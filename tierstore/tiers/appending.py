"""Writes staged records in order on a thread of its own, while the write worker stages the next ones.

Called by `tierstore.tiers.writing` on the tier's write worker, which alone decides what goes where. Each write needs
a header page for every record; made during the write before, they cost the disk no time. After a failed write,
nothing staged behind it is written.
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
        batch: The batch they belong to.
        rows: int64[n]; their rows in the batch.
        chunk: The file to write to.
        headers: `HEADER`[n], in `buffers` too.
        buffers: The records' pages, one after another.
        offset: Offset of the first page in the file.
        error: Why the run was not written; None if it was.
        ended: Set once the run is written, or will not be.
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
    """Writes runs in order, to one file at a time.

    Args:
        written: Called with each run that is on disk, on the caller's thread, in order.
        lost: Called likewise with each run that is not.
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
        """Begin to write a run behind the earlier ones; blocks while too many are in flight.

        Raises:
            DiskError: An earlier write failed; this run is lost with it.
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
            DiskError: A write failed; the runs behind it are lost with it.
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
