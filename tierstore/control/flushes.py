"""How a flush goes: wait for every store and write that was in flight or parked, then for one sync. Pure.

What failed before it was opened counts too: nobody waited for that write-back, and a sync that failed for another
request was to make every write before it durable. A failure is told once, to all flushes that are open then or else
to the next one.
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
    """Flushes under way, each with the jobs and the parked batches it still waits for."""

    verb = ""

    def __init__(self, mind: Mind, parking: Parking) -> None:
        self._mind = mind
        self._parking = parking
        self._waiting: list[tuple[Request, set[JobId]]] = []
        self._told_before: dict[RequestId, int] = {}
        self._num_failed = self._num_told = 0

    def open(self, request: Request, hi: int, plan: Plan, now: float) -> None:
        """Begin: note what is in flight."""
        request.opened = request.stop
        self._told_before[request.request_id] = self._num_told
        if self._mind.health.writes_stalled:
            self._end(request, Outcome.IO_ERROR, plan)
            return
        jobs = {record.job.job_id for record in self._mind.jobs.records() if self._matters(record.job)}
        self._waiting.append((request, jobs | self._parking.numbers))
        self._sync_if_quiet(plan)

    def heed(self, record: JobRecord) -> None:
        """A job has ended, and nothing has followed from it yet."""
        assert record.outcomes is not None
        if np.count_nonzero(record.outcomes) and (isinstance(record.job, SyncJob) or self._matters(record.job)):
            self._num_failed += bool((record.outcomes == Outcome.IO_ERROR).any())

    def follow(self, plan: Plan, ended: JobRecord | None) -> None:
        """Before a plan is carried out: what a job that has ended led to, now in it or parked, is waited for instead.

        Each parked batch leads to its own: who waited for all that is written meanwhile might wait for ever.
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
        """Say how it ended, unless something has failed that nobody was told of."""
        untold = self._num_failed > self._told_before.pop(request.request_id)
        self._num_told = self._num_failed
        request.outcomes[:] = Outcome.IO_ERROR if untold else outcome
        self._mind.resolve(request, plan)

    def shorten(self, request: Request, outcome: Outcome, plan: Plan, now: float) -> None:
        """Stop waiting, and leave what has failed to the next one."""
        self._told_before.pop(request.request_id, None)  # none where it was not opened yet
        request.outcomes[:] = outcome
        self._mind.resolve(request, plan)
