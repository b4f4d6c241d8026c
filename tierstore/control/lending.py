"""How much of the host pool is lent to borrowers. Pure; called by the planner.

A borrower copies from or to the slots by itself, and may take long: slots it holds can be neither evicted nor moved.
So at most half of the pool is lent; a request beyond that is cut short at once. A slot lent to several borrowers counts
once, since it costs the pool no more than one loan. Other requests do not wait for a borrower that takes too long to
fill its slots: see `withdrawn`.
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
    from tierstore.types import Int64Array, Plan

__all__ = ["Lending"]


class Lending:
    """The account of lent slots.

    Args:
        mind: Shared with the stories; at most half of its host pool is lent.
        upkeep: Discards blocks.

    Attributes:
        lent_nbytes: Bytes of the slots that borrowing requests hold or may still take, each slot counted once.
    """

    def __init__(self, mind: Mind, upkeep: Upkeep) -> None:
        self._mind = mind
        self._upkeep = upkeep
        self._limit_nbytes = mind.host.pool_nbytes // 2
        self._num_loans = np.zeros(mind.directory.capacity, np.int32)  # these two by entry, taken as they are lent
        self._num_pages = np.zeros(mind.directory.capacity, np.int32)
        self.lent_nbytes = 0

    def open(self, request: Request, hi: int, plan: Plan, now: float) -> None:
        """Plan blocks [request.opened, hi) of a borrower's request, as far as slots may be lent; reject the rest."""
        lo, fills = request.opened, request.story.verb == "put"
        room = max(0, self._limit_nbytes - self.lent_nbytes) // _slot_nbytes(request)
        if not fills and hi - lo <= room:  # all fit, whichever of them are lent already
            request.story.open(request, hi, plan, now)
            self._lend(request, request.entries[lo : request.opened])
            return
        entries = self._mind.directory.find(request.life.number, request.keys[lo:hi])
        absent = self._mind.in_host(entries) == State.ABSENT
        new = absent if fills else (entries < 0) | (self._num_loans.take(entries, mode="clip") == 0)
        fits = int(np.searchsorted(np.cumsum(new), room, side="right"))
        if fits < len(new):
            request.stop = hi = lo + fits
            request.outcomes[hi:] = Outcome.REJECTED
        num_filled = request.frontier
        request.story.open(request, hi, plan, now)
        filled = lo + absent.nonzero()[0][: request.frontier - num_filled]
        self._lend(request, request.entries[filled if fills else slice(lo, request.opened)])

    def handed(self, plan: Plan, requests: RequestTable) -> None:
        """Requests of this plan were handed so many blocks and take no more: end the loans beyond."""
        for request_id, num_blocks in plan.handed:
            request = requests.get(request_id)
            if request is not None and len(request.lent) > num_blocks:
                self._give_back(request, num_blocks)

    def withdrawn(self, request: Request, plan: Plan, now: float) -> None:
        """Discard the blocks that the borrower has not filled, and wake the requests that waited for them.

        The slots stay reserved until the borrower ends its copies: it may still be writing to them.
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
        """A request has ended: end its loans."""
        if len(request.lent):
            self._give_back(request, 0)

    def check(self, requests: RequestTable) -> None:
        """Assert that the account is right."""
        loans = [request.lent for request in requests.all()]
        lent, counts = np.unique(np.concatenate([np.empty(0, np.int64), *loans]), return_counts=True)
        assert np.array_equal(self._num_loans[lent], counts), "entries are lent more or less often than is counted"
        assert np.count_nonzero(self._num_loans) == len(lent), "entries count as lent that no request has"
        nbytes = int(self._num_pages[lent].sum()) * PAGE_NBYTES
        assert self.lent_nbytes == nbytes, f"{self.lent_nbytes} bytes count as lent, {nbytes} are"

    def _lend(self, request: Request, entries: Int64Array) -> None:
        assert (entries >= 0).all(), "blocks are lent that have no entry"
        new = entries[self._num_loans[entries] == 0]
        self._num_loans[entries] += 1
        self._num_pages[new] = _slot_nbytes(request) // PAGE_NBYTES
        request.lent = np.concatenate([request.lent, entries])
        self._count(len(new) * _slot_nbytes(request))

    def _give_back(self, request: Request, kept: int) -> None:
        """End all loans of a request but the first `kept`."""
        entries, counts = np.unique(request.lent[kept:], return_counts=True)  # twice if lent again after a failure
        request.lent = request.lent[:kept]
        self._num_loans[entries] -= counts
        free = entries[self._num_loans[entries] == 0]
        self._count(-int(self._num_pages[free].sum()) * PAGE_NBYTES)

    def _count(self, nbytes: int) -> None:
        if nbytes:
            self.lent_nbytes += nbytes
            self._mind.metrics.set(Metric.HOST_LENT_BYTES, self.lent_nbytes)


def _slot_nbytes(request: Request) -> int:
    return -(-request.life.block_nbytes // PAGE_NBYTES) * PAGE_NBYTES
