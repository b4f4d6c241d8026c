"""The story of a delete: forget the blocks at once, write tombstones, make them durable with one sync.

With an SSD tier every hash gets a tombstone, known or not: the disk may hold a record that the directory does not
know (of a write reported as failed, or of a block for which there was no entry). A put planned before the delete
loses to it and one planned after it wins, in whatever order the links work. Pure; called by the planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.requests import JobRecord
from tierstore.metrics import Metric
from tierstore.types import Outcome, SyncJob, TombstoneJob

if TYPE_CHECKING:
    from tierstore.control.mind import Mind
    from tierstore.control.requests import Request
    from tierstore.control.upkeep import Upkeep
    from tierstore.types import Int64Array, Plan

__all__ = ["Deletes"]


class Deletes:
    """The story of a delete."""

    verb = ""

    def __init__(self, mind: Mind, upkeep: Upkeep) -> None:
        self._mind = mind
        self._upkeep = upkeep

    def open(self, request: Request, hi: int, plan: Plan, now: float) -> None:
        """Forget blocks [request.opened, hi) and plan their tombstones."""
        mind, lo = self._mind, request.opened
        positions = np.arange(lo, hi)
        entries = mind.directory.find(request.life.number, request.keys[lo:hi])
        found, known = np.unique(entries, return_index=True)
        known = known[found >= 0]
        self._upkeep.discard(request.life, entries[known])
        mind.metrics.add(Metric.DELETED_BLOCKS, len(known))
        request.outcomes[lo + known] = Outcome.OK
        request.opened = hi
        if mind.health.writes_stalled:
            request.outcomes[lo:hi] = Outcome.REJECTED
        elif mind.ssd is not None and len(positions):
            job = TombstoneJob(mind.jobs.next_id(), request.life.generation, request.hashes[lo:hi])
            mind.jobs.open(JobRecord(job, request, positions, waiters=[(request, positions)]))
            request.awaiting += len(positions)
            plan.jobs.append(job)
        self._settle(request, plan)

    def arrived(self, request: Request, positions: Int64Array, record: JobRecord, plan: Plan, now: float) -> None:
        """Tombstones are written, or synced. If that failed, the next start may find the blocks again."""
        assert record.outcomes is not None
        if isinstance(record.job, SyncJob):
            if (ended := request.synced(record)) is not Outcome.OK:
                request.outcomes[:] = ended
            self._mind.resolve(request, plan)
            return
        failed = record.outcomes != Outcome.OK
        request.outcomes[positions[failed]] = record.outcomes[failed]
        self._settle(request, plan)

    def shorten(self, request: Request, outcome: Outcome, plan: Plan, now: float) -> None:
        """End at once. Forgotten blocks stay unknown in this run; tombstones in flight are still written."""
        request.outcomes[:] = outcome
        request.stop = request.opened
        self._mind.resolve(request, plan)

    def _settle(self, request: Request, plan: Plan) -> None:
        if request.done or not request.planned or request.awaiting > 0 or request.syncing:
            return
        if self._mind.ssd is None or self._mind.health.writes_stalled or not len(request):
            self._mind.resolve(request, plan)
            return
        request.syncing = True
        self._mind.sync_job(request, plan)
