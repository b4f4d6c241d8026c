"""The story of a prefetch: queued by priority and deadline, within a budget, into free or cold slots, behind gets.

A prefetch is a request that touches no caller's memory. Its blocks are looked up again when it reaches the head of
the queue: some may have come or been evicted meanwhile. It ends when every block wanted is in host memory, at the
first hole, at its deadline or when it is cancelled. Pure; called by the planner.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from tierstore.control.copies import read_blocks
from tierstore.control.entry import State
from tierstore.control.host_room import tick
from tierstore.control.requests import leading_run
from tierstore.metrics import Metric
from tierstore.types import Outcome, Priority, TierName

if TYPE_CHECKING:
    from tierstore.control.mind import Mind
    from tierstore.control.requests import JobRecord, Request
    from tierstore.types import Int64Array, Plan

__all__ = ["Prefetches"]


class Prefetches:
    """The queue of prefetches: the highest priority first; among equals, the nearest deadline."""

    verb = "prefetch"

    def __init__(self, mind: Mind) -> None:
        self._mind = mind
        self._queue: list[tuple[int, float, int, Request]] = []
        self._num_withdrawn = 0

    def open(self, request: Request, hi: int, plan: Plan, now: float) -> None:
        """Queue blocks [request.opened, hi), and start what the budget allows."""
        if request.opened == 0:
            heapq.heappush(self._queue, (-request.priority, request.deadline, request.request_id, request))
        request.opened = hi
        self.pump(plan, now)
        self._settle(request, plan)

    def pump(self, plan: Plan, now: float) -> None:
        """Start reads from the head of the queue until the budget or the cold slots are used up."""
        mind = self._mind
        while self._queue:
            request = self._queue[0][-1]
            block_nbytes, inflight_nbytes = request.life.block_nbytes, mind.host.prefetched.inflight_nbytes
            budget = max(
                mind.limits.prefetch_inflight_nbytes_max - inflight_nbytes, 0 if inflight_nbytes else block_nbytes
            )
            if not request.done and request.frontier < request.stop:
                if request.frontier >= request.opened or budget < block_nbytes:
                    return
                if not self._start(request, budget, plan, now):
                    if mind.host.prefetched.inflight_nbytes:
                        return
                    self._refuse(request)
            if request.done or request.frontier >= request.stop:
                heapq.heappop(self._queue)
                self._settle(request, plan)

    def _start(self, request: Request, budget: int, plan: Plan, now: float) -> bool:
        """Start the next piece of one request; false if there were too few free or cold slots for it."""
        mind, life, lo = self._mind, request.life, request.frontier
        hi = min(request.opened, request.stop, lo + max(1, budget // life.block_nbytes))
        entries = mind.directory.find(life.number, request.keys[lo:hi])
        host, ssd = mind.near(entries)
        usable = mind.usable(entries, host, ssd)
        run = leading_run(usable)
        if run < hi - lo:
            request.stop = lo + run
        missing = (host[:run] == State.ABSENT).nonzero()[0]
        cold_before = tick(max(0.0, now - mind.limits.cold_seconds)) + (mind.limits.cold_seconds == 0)
        held = entries[:run][host[:run] == State.READY]
        mind.host.touch(life.slot_class, held, now)
        count = min(len(missing), mind.host.num_ahead(life.slot_class, mind.limits.prefetch_share))
        pages = mind.host.take(life.slot_class, count, cold_before=cold_before) if len(missing) else missing
        if len(pages) < len(missing):
            run = int(missing[len(pages)])
            missing = missing[: len(pages)]
        request.entries[lo : lo + run] = entries[:run]
        request.frontier = lo + run
        if len(missing):
            mind.host.occupy(entries[missing], pages)
            mind.host.prefetched.inflight_nbytes += len(missing) * life.block_nbytes
            read_blocks(mind, request, lo + missing, TierName.HOST, plan, priority=Priority.PREFETCH)
        filling = (host[:run] == State.FILLING).nonzero()[0]
        if len(filling):
            mind.jobs.join(TierName.HOST, entries[filling], request, lo + filling)
        request.outcomes[lo + (host[:run] == State.READY).nonzero()[0]] = Outcome.OK
        return request.frontier == min(hi, request.stop)

    def _refuse(self, request: Request) -> None:
        """Reject the rest: no slot is cold and no prefetch in flight will free one. Prefetches never wait for room."""
        request.outcomes[request.frontier : request.stop] = Outcome.REJECTED
        request.stop = request.frontier

    def arrived(self, request: Request, positions: Int64Array, record: JobRecord, plan: Plan, now: float) -> None:
        """A job has ended: its blocks are in host memory, or lost."""
        directory = self._mind.directory
        entries = request.entries[positions]
        there = directory.host.state[entries] == State.READY
        request.outcomes[positions[there]] = Outcome.OK
        lost = positions[~there]
        if len(lost):
            request.outcomes[lost] = record.losses(request.entries[lost])
            request.stop = min(request.stop, int(lost.min()))
        self._settle(request, plan)

    def shorten(self, request: Request, outcome: Outcome, plan: Plan, now: float) -> None:
        """End at once; withdraw reads that nobody else waits for."""
        mind = self._mind
        unknown = (request.outcomes == Outcome.MISS).nonzero()[0]
        request.outcomes[unknown] = outcome
        mind.metrics.add(Metric.PREFETCHED_BLOCKS, len(unknown), "cancelled")
        mind.resolve(request, plan)
        mind.withdraw(plan)
        self._num_withdrawn += 1
        if 2 * self._num_withdrawn > len(self._queue):
            self._queue = [entry for entry in self._queue if not entry[-1].done]
            heapq.heapify(self._queue)
            self._num_withdrawn = 0

    def _settle(self, request: Request, plan: Plan) -> None:
        if not request.done and request.frontier >= request.stop and request.awaiting <= 0:
            self._mind.resolve(request, plan)
