"""What follows when the SSD tier is turned off or on: who waits for it goes on without, and it is probed. Pure.

Called by the planner with every SSD job that begins and ends, and when a time that was asked for has come.
Off means that nothing new waits for the disk: writes that are queued are withdrawn, durable puts end REJECTED;
with reads off too, every request that waits for a read ends with what it has. The slots that reads still fill
stay theirs until the disk has answered.
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
    """Carries out what `SsdHealth` finds.

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
        """Add to a plan that is about to be carried out what follows from what has changed."""
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
        """A job of any link has ended, and nothing has followed from it yet."""
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
        """Find what has stalled, probe what is off."""
        self._mind.health.look(now)
        if self._mind.health.take_probe(now):
            job = ProbeJob(self._mind.jobs.next_id())
            self._mind.jobs.open(JobRecord(job))
            plan.jobs.append(job)

    def _heed(self, plan: Plan, now: float) -> None:
        """Do what a change asks for."""
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
        """Withdraw writes that are queued; behind a write worker that is stuck nobody waits for anything."""
        for record in self._mind.jobs.records():
            job = record.job
            if isinstance(job, CopyJob) and (job.src, job.dst) == (TierName.HOST, TierName.SSD):
                plan.withdraws.append(job.job_id)
        for request in self._requests.all() if self._stalled else ():
            if request.durable or request.story.verb not in ("get", "put", "prefetch"):
                self._shorten(request, Outcome.REJECTED, plan, now)

    def _end_reads(self, plan: Plan, now: float) -> None:
        """End whoever waits for a read as if its blocks were not there, and withdraw reads that are queued."""
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
    """Whether a job runs in a link of the SSD tier; a probe is no work of its own."""
    return not isinstance(job, ProbeJob) and (not isinstance(job, CopyJob) or TierName.SSD in (job.src, job.dst))
