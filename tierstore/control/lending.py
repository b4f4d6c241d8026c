"""How much of the host pool is in borrowers' hands. Pure; called by the planner.

Others copy from and to their slots by themselves, and may take their time: what they hold can neither be evicted
nor moved. So no more than a share of the pool is lent, and beyond it a request is cut short at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierstore.metrics import Metric
from tierstore.types import PAGE_NBYTES, Outcome, TierName

if TYPE_CHECKING:
    from tierstore.control.requests import Request, RequestTable
    from tierstore.metrics import Metrics
    from tierstore.types import Plan

__all__ = ["Lending"]


class Lending:
    """The account of what is lent.

    Args:
        limit_nbytes: Of slots, lent at the same time.
        metrics: Told of it.

    Attributes:
        lent_nbytes: Of slots that requests hold or may still take.
    """

    def __init__(self, limit_nbytes: int, metrics: Metrics) -> None:
        self._limit_nbytes = limit_nbytes
        self._metrics = metrics
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

    def close(self, request: Request) -> None:
        """It has ended."""
        self._hold(request, 0)

    def _hold(self, request: Request, nbytes: int) -> None:
        if nbytes != request.lent_nbytes:
            self.lent_nbytes += nbytes - request.lent_nbytes
            request.lent_nbytes = nbytes
            self._metrics.set(Metric.HOST_LENT_BYTES, self.lent_nbytes)


def _slot_nbytes(request: Request) -> int:
    return -(-request.life.block_nbytes // PAGE_NBYTES) * PAGE_NBYTES
