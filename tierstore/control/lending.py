"""How much of the host pool is in borrowers' hands. Pure; called by the planner.

Others copy from and to their slots by themselves, and may take their time: what they hold can neither be evicted
nor moved. So no more than a share of the pool is lent, and beyond it a request is cut short at once. And nobody waits
for what a borrower was to fill once he has taken too long: see `withdrawn`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.entry import State
from tierstore.metrics import Metric
from tierstore.types import PAGE_NBYTES, CopyJob, Outcome, TierName

if TYPE_CHECKING:
    from tierstore.control.mind import Mind
    from tierstore.control.requests import Request, RequestTable
    from tierstore.control.upkeep import Upkeep
    from tierstore.types import Plan

__all__ = ["Lending"]


class Lending:
    """The account of what is lent.

    Args:
        mind: Of whose pool at most half is lent at the same time.
        upkeep: Makes blocks unknown.

    Attributes:
        lent_nbytes: Of slots that requests hold or may still take.
    """

    def __init__(self, mind: Mind, upkeep: Upkeep) -> None:
        self._mind = mind
        self._upkeep = upkeep
        self._limit_nbytes = mind.host.pool_nbytes // 2
        self.lent_nbytes = 0

    def open(self, request: Request) -> None:
        """A request is to be lent slots for all of its blocks: for the first that may be; REJECTED for the others."""
        room = (self._limit_nbytes - self.lent_nbytes) // _slot_nbytes(request)
        request.far = TierName.BORROWER
        request.stop = min(request.stop, max(0, room))
        request.outcomes[request.stop :] = Outcome.REJECTED
        self._hold(request, request.stop * _slot_nbytes(request))

    def handed(self, plan: Plan, requests: RequestTable) -> None:
        """Some were lent so many slots and take no more."""
        for request_id, num_blocks in plan.handed:
            request = requests.get(request_id)
            if request is not None and request.lent_nbytes:
                self._hold(request, min(request.lent_nbytes, num_blocks * _slot_nbytes(request)))

    def withdrawn(self, request: Request, plan: Plan, now: float) -> None:
        """What its borrower was to fill is unknown from now on, and who waited for that goes without.

        The slots stay his until he has ended his copies: he may be writing to them still.
        """
        for record in self._mind.jobs.records():
            job = record.job
            if record.request is request and isinstance(job, CopyJob) and job.src is TierName.BORROWER:
                filling = self._mind.directory.host.state[job.entries] == State.FILLING
                self._upkeep.discard(request.life, job.entries[filling])
                record.outcomes = np.full(len(job), Outcome.CANCELLED, np.uint8)
                self._mind.wake(record, plan, now)
                record.waiters.clear()

    def close(self, request: Request) -> None:
        """It has ended."""
        self._hold(request, 0)

    def _hold(self, request: Request, nbytes: int) -> None:
        if nbytes != request.lent_nbytes:
            self.lent_nbytes += nbytes - request.lent_nbytes
            request.lent_nbytes = nbytes
            self._mind.metrics.set(Metric.HOST_LENT_BYTES, self.lent_nbytes)


def _slot_nbytes(request: Request) -> int:
    return -(-request.life.block_nbytes // PAGE_NBYTES) * PAGE_NBYTES
