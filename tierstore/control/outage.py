"""Turns the SSD tier off and on: requests that wait for it go on without it, and it is probed. Pure.

The planner calls it with every SSD job that begins or ends, and at the deadlines it asked for. When writes are off,
queued writes are withdrawn and durable puts end REJECTED. When reads are off too, every request that waits for a
read ends with the blocks it has. Slots that a read is filling stay reserved until the disk has answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierstore.control.requests import JobRecord
from tierstore.health import Service
from tierstore.metrics import Metric
from tierstore.types import CopyJob, DiscardJob, Outcome, ProbeJob, SyncJob, TierName

if TYPE_CHECKING:
    from tierstore.control.mind import Mind
    from tierstore.control.requests import Request, RequestTable
    from tierstore.types import CopyResult, Job, Plan

__all__ = ["Outage"]


class Outage:
    """Carries out the changes that `SsdHealth` finds.

    Args:
        mind: Shared with the stories.
        requests: Every request that has not ended.
    """

    def __init__(self, mind: Mind, requests: RequestTable) -> None:
        self._mind = mind
        self._requests = requests
        self._service = Service.SERVING
        self._stalled = False

    def follow(self, plan: Plan, now: float) -> None:
        """Complete a plan before it is carried out: act on a change of service, register SSD jobs, add notices."""
        if self._mind.ssd is None:
            return
        self._heed(plan, now)
        health = self._mind.health
        for job in plan.jobs:
            if _is_of_ssd(job):
                health.began(job, now)
        if health.notices:
            plan.notices += health.notices
            health.notices.clear()
        plan.expire_at = health.next_deadline()

    def ended(self, job: Job, result: CopyResult, now: float) -> None:
        """A job of any link has ended. Called before any story takes the result in."""
        health = self._mind.health
        if isinstance(job, ProbeJob):
            health.probed(result, now)
            self._mind.metrics.add(Metric.SSD_PROBES, 1, "ok" if not result.outcomes.any() else "failed")
        elif _is_of_ssd(job):
            health.ended(job, result, now)
            if isinstance(job, DiscardJob):
                health.hasten(now)
        if isinstance(job, SyncJob) and result.outcomes[0] == Outcome.IO_ERROR:
            for request in self._requests.all():
                request.doubted = True

    def expire(self, plan: Plan, now: float) -> None:
        """Look for stalled reads and writes; plan a probe if one is due."""
        self._mind.health.look(now)
        if self._mind.health.take_probe(now):
            job = ProbeJob(self._mind.jobs.next_id())
            self._mind.jobs.open(JobRecord(job))
            plan.jobs.append(job)

    def _heed(self, plan: Plan, now: float) -> None:
        """Act on a change of service since the last call."""
        health = self._mind.health
        assert self._mind.ssd is not None
        self._mind.ssd.kept_as_it_is = not health.writes_on and not health.full
        if health.service is self._service and health.writes_stalled <= self._stalled:
            self._stalled = health.writes_stalled
            return
        before, self._service, self._stalled = self._service, health.service, health.writes_stalled
        if not health.writes_on:
            if before is Service.SERVING:
                self._mind.metrics.add(Metric.SSD_OUTAGES, 1, "write")
            self._end_writes(plan, now)
        if not health.reads_on and before is not Service.READS_OFF:
            self._mind.metrics.add(Metric.SSD_OUTAGES, 1, "read")
            self._end_reads(plan, now)

    def _end_writes(self, plan: Plan, now: float) -> None:
        """Withdraw queued writes; if the write worker has stalled, end every request that waits for it."""
        for record in self._mind.jobs.records():
            job = record.job
            if isinstance(job, CopyJob) and (job.src, job.dst) == (TierName.HOST, TierName.SSD):
                plan.withdraws.append(job.job_id)
        for request in self._requests.all() if self._stalled else ():
            if request.durable or request.story.verb not in ("get", "put", "prefetch"):
                self._shorten(request, Outcome.REJECTED, plan, now)

    def _end_reads(self, plan: Plan, now: float) -> None:
        """End requests that wait for a read, as if its blocks were missing, and withdraw queued reads."""
        for record in self._mind.jobs.records():
            job = record.job
            if isinstance(job, CopyJob) and job.src is TierName.SSD and job.dst is not TierName.SSD:
                for request, _positions in record.waiters:
                    outcome = Outcome.REJECTED if request.story.verb == "put" else Outcome.MISS
                    self._shorten(request, outcome, plan, now)
                plan.withdraws.append(job.job_id)

    def _shorten(self, request: Request, outcome: Outcome, plan: Plan, now: float) -> None:
        if not request.done:
            request.story.shorten(request, outcome, plan, now)


def _is_of_ssd(job: Job) -> bool:
    """Whether a job runs in a link of the SSD tier; probes do not count."""
    return not isinstance(job, ProbeJob) and (not isinstance(job, CopyJob) or TierName.SSD in (job.src, job.dst))
