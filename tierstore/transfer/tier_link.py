"""Reads and writes: runs jobs between host slots and the tier below on worker threads.

Several threads serve reads by priority. One thread serves writes, syncs and discards in order of submission;
neighbouring writes become one call, neighbouring syncs one fdatasync (group commit).
"""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tierstore.transfer.base import ended
from tierstore.types import CopyJob, CopyResult, DiscardJob, Outcome, Priority, ProbeJob, TombstoneJob
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.tiers.base import TierWork
    from tierstore.transfer.base import Done
    from tierstore.types import Job, JobId

__all__ = ["ReadLink", "WriteLink"]

_PATIENCE_SECONDS = 2.0
"""What a call that nobody waits for any more may still take when a link is closed."""

_WRITE_BLOCKS_MAX = 512
"""Blocks written in one call, so that a sync or a discard behind them is not kept waiting for long."""


class ReadLink:
    """Tier → host, by priority.

    Args:
        tier: The tier to read from.
        name: The threads' name.
        threads: Concurrent reads.
        capacity: Jobs that may wait.
    """

    def __init__(self, tier: TierWork, *, name: str, threads: int, capacity: int) -> None:
        self._tier = tier
        self._queued: dict[JobId, tuple[CopyJob, Done]] = {}
        self._worker = Worker(name, capacity=capacity, threads=threads)

    @property
    def num_queued(self) -> int:
        """Reads that no thread has begun yet."""
        return len(self._queued)

    def submit(self, job: Job, done: Done) -> bool:
        """Queue a read."""
        assert isinstance(job, CopyJob), f"a read link moves blocks, not {job!r}"
        self._queued[job.job_id] = (job, done)
        if self._submit(job, done, job.priority):
            return True
        return self._queued.pop(job.job_id, None) is None  # gone: it was withdrawn, and so is answered

    def _submit(self, job: CopyJob, done: Done, priority: Priority) -> bool:
        # A lifted job is queued twice; the turn that comes first takes it out of the dictionary.
        def run() -> None:
            if self._queued.pop(job.job_id, None) is not None:
                begun = time.perf_counter()
                result = self._tier.read(job)
                done(replace(result, seconds=time.perf_counter() - begun))

        return self._worker.submit(run, priority, lambda _error: done(ended(job, Outcome.IO_ERROR)))

    def lift(self, job_id: JobId) -> None:
        """Raise a queued prefetch to the priority of a get."""
        queued = self._queued.get(job_id)
        if queued is not None:
            self._submit(*queued, Priority.GET)

    def withdraw(self, job_id: JobId) -> None:
        """Answer CANCELLED if no thread has begun the job."""
        queued = self._queued.pop(job_id, None)
        if queued is not None:
            job, done = queued
            done(ended(job, Outcome.CANCELLED))

    def close(self) -> bool:
        """Finish what is queued; a call that hangs is not waited for."""
        return self._worker.close(_PATIENCE_SECONDS)


class WriteLink:
    """Host → tier, with its syncs and discards, in order.

    Args:
        tier: The tier to write to.
        name: The thread's name.
        capacity: Jobs that may wait.
    """

    def __init__(self, tier: TierWork, *, name: str, capacity: int) -> None:
        self._tier = tier
        self._queue: dict[JobId, tuple[Job, Done]] = {}
        self._queue_lock = threading.Lock()
        self._taken: list[tuple[Job, Done]] = []
        self._worker = Worker(name, capacity=capacity)

    @property
    def num_queued(self) -> int:
        """Jobs that the thread has not taken."""
        return len(self._queue)

    def submit(self, job: Job, done: Done) -> bool:
        """Queue a job. Each queued job brings one turn of the worker; a turn may serve several jobs."""
        if self._worker.room == 0:
            return False
        with self._queue_lock:
            self._queue[job.job_id] = job, done
        if self._worker.submit(self._turn, failed=self._fail):
            return True
        return self._drop(job.job_id) is None  # gone: an earlier turn has served it

    def _turn(self) -> None:
        self._taken = self._take()
        if not self._taken:
            return
        job = self._taken[0][0]
        begun = time.perf_counter()
        if isinstance(job, CopyJob | TombstoneJob):
            results = self._tier.write([job for job, _done in self._taken if isinstance(job, CopyJob | TombstoneJob)])
        elif isinstance(job, DiscardJob):
            free_nbytes = self._tier.discard(job.file)
            results = [CopyResult(job.job_id, np.zeros(1, np.uint8), dst_free_nbytes=free_nbytes)]
        elif isinstance(job, ProbeJob):
            found = self._tier.probe()
            codes = np.array([found.reading, found.writing], np.uint8)
            results = [CopyResult(job.job_id, codes, dst_free_nbytes=found.free_nbytes, fault=found.fault)]
        else:
            synced = self._tier.sync()
            results = [replace(ended(job, synced.outcome), in_doubt=synced.in_doubt) for job, _done in self._taken]
        seconds = (time.perf_counter() - begun) / len(results)
        answered, self._taken = self._taken, []
        for (_job, done), result in zip(answered, results, strict=True):
            done(replace(result, seconds=seconds))

    def _take(self) -> list[tuple[Job, Done]]:
        """The head of the queue with the neighbours that one call can serve."""
        taken: list[tuple[Job, Done]] = []
        num_blocks = 0
        with self._queue_lock:
            for job, done in self._queue.values():
                if taken and (_is_alone(job) or _is_alone(taken[0][0]) or _is_written(job) != _is_written(taken[0][0])):
                    break
                num_blocks += len(job) if isinstance(job, CopyJob) else 0
                if taken and num_blocks > _WRITE_BLOCKS_MAX:
                    break
                taken.append((job, done))
            for job, _done in taken:
                del self._queue[job.job_id]
        return taken

    def _drop(self, job_id: JobId) -> tuple[Job, Done] | None:
        """Take a job out of the queue; None if it is not queued."""
        with self._queue_lock:
            return self._queue.pop(job_id, None)

    def _fail(self, _error: BaseException) -> None:
        answered, self._taken = self._taken, []
        for job, done in answered:
            done(ended(job, Outcome.IO_ERROR))

    def lift(self, job_id: JobId) -> None:
        """Does nothing: writes keep their order."""

    def withdraw(self, job_id: JobId) -> None:
        """Answer CANCELLED if the worker has not begun the job."""
        queued = self._drop(job_id)
        if queued is not None:
            job, done = queued
            done(ended(job, Outcome.CANCELLED))

    def close(self) -> bool:
        """Finish what is queued; a call that hangs is not waited for."""
        return self._worker.close(_PATIENCE_SECONDS)


def _is_alone(job: Job) -> bool:
    """Whether a job cannot be served together with its neighbours."""
    return isinstance(job, DiscardJob | ProbeJob)


def _is_written(job: Job) -> bool:
    """Whether a job appends records, rather than syncing or discarding."""
    return isinstance(job, CopyJob | TombstoneJob)
