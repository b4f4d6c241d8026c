"""The story of a flush: wait for every store and write in flight or parked, then for one sync. Pure.

A flush also reports failures from before it was opened: no request waited for a write-back that failed, and a failed
sync, whichever request it was for, concerns every write before it. A failure is reported once: to all flushes open
at that time, or else to the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.requests import FAR, Life
from tierstore.layout import KVLayout
from tierstore.types import CopyJob, Generation, Outcome, SyncJob, TierName

if TYPE_CHECKING:
    from tierstore.control.mind import Mind
    from tierstore.control.parking import Parking
    from tierstore.control.requests import JobRecord, Request
    from tierstore.types import Int64Array, JobId, Plan, RequestId

__all__ = ["NO_LIFE", "Flushes"]

NO_LIFE = Life(Generation(-1, b"", 0, KVLayout.opaque(block_nbytes=1)), slot_class=-1, block_nbytes=0)
"""A flush belongs to no namespace."""


class Flushes:
    """Open flushes, each with the jobs and the parked batches it still waits for."""

    verb = ""

    def __init__(self, mind: Mind, parking: Parking) -> None:
        self._mind = mind
        self._parking = parking
        self._waiting: list[tuple[Request, set[JobId]]] = []
        self._told_before: dict[RequestId, int] = {}
        self._num_failed = self._num_told = 0

    def open(self, request: Request, hi: int, plan: Plan, now: float) -> None:
        """Record the jobs in flight and the parked batches."""
        request.opened = request.stop
        self._told_before[request.request_id] = self._num_told
        if self._mind.health.writes_stalled:
            self._end(request, Outcome.IO_ERROR, plan)
            return
        jobs = {record.job.job_id for record in self._mind.jobs.records() if self._matters(record.job)}
        self._waiting.append((request, jobs | self._parking.numbers))
        self._sync_if_quiet(plan)

    def heed(self, record: JobRecord) -> None:
        """A job has ended: count a failure. Called before any story takes the result in."""
        assert record.outcomes is not None
        if np.count_nonzero(record.outcomes) and (isinstance(record.job, SyncJob) or self._matters(record.job)):
            self._num_failed += bool((record.outcomes == Outcome.IO_ERROR).any())

    def follow(self, plan: Plan, ended: JobRecord | None) -> None:
        """Wait, instead of for the job that has ended, for the jobs in `plan` and the parked batches it led to.

        Called before a plan is carried out. A batch taken from parking is replaced only by the jobs that write it:
        a flush that waited for everything written meanwhile might wait for ever.
        """
        parked, instead_of = self._parking.take_news()
        if not self._waiting:
            return
        if ended is not None:
            led_to = {job.job_id for job in plan.jobs if self._matters(job)} | parked
            instead_of.append((ended.job.job_id, led_to))
        for over, instead in instead_of:
            for _request, jobs in self._waiting:
                if over in jobs:
                    jobs.remove(over)
                    jobs |= instead
        self._sync_if_quiet(plan)

    def _matters(self, job: object) -> bool:
        if not isinstance(job, CopyJob):
            return False
        return (job.src in FAR and job.dst is TierName.HOST) or job.dst is TierName.SSD

    def _sync_if_quiet(self, plan: Plan) -> None:
        quiet = [request for request, jobs in self._waiting if not jobs and not request.done]
        self._waiting = [(request, jobs) for request, jobs in self._waiting if jobs and not request.done]
        for request in quiet:
            if self._mind.ssd is None:
                self._end(request, Outcome.OK, plan)
            else:
                self._mind.sync_job(request, plan)

    def arrived(self, request: Request, positions: Int64Array, record: JobRecord, plan: Plan, now: float) -> None:
        """The sync has ended."""
        assert record.outcomes is not None
        self._end(request, Outcome(int(record.outcomes[0])), plan)

    def _end(self, request: Request, outcome: Outcome, plan: Plan) -> None:
        """End a flush with this outcome, or with IO_ERROR if a failure was not reported yet."""
        untold = self._num_failed > self._told_before.pop(request.request_id)
        self._num_told = self._num_failed
        request.outcomes[:] = Outcome.IO_ERROR if untold else outcome
        self._mind.resolve(request, plan)

    def shorten(self, request: Request, outcome: Outcome, plan: Plan, now: float) -> None:
        """Stop waiting, and leave failures for the next flush to report."""
        self._told_before.pop(request.request_id, None)  # none where it was not opened yet
        request.outcomes[:] = outcome
        self._mind.resolve(request, plan)
