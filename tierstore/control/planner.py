"""The planner: verbs go in; jobs to run and ended requests come out. Pure: no I/O, no threads, no clock.

The engine calls it under its one lock and passes the time. A request is planned in slices of at most
`SLICE_BLOCKS`, so that the lock hold does not grow with it. After every verb and result the engine calls `tend`
until nothing more is due. A story holds the rules of a verb: `gets`, `puts`, `prefetch`, `lookahead`, `flushes`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.catalogue import Catalogue
from tierstore.control.checking import check
from tierstore.control.counting import count_request, gauge
from tierstore.control.deletes import Deletes
from tierstore.control.device_room import DeviceRoom
from tierstore.control.directory import Directory
from tierstore.control.flushes import NO_LIFE, Flushes
from tierstore.control.gets import Gets
from tierstore.control.host_room import HostRoom
from tierstore.control.jobs import JobTable
from tierstore.control.lending import Lending
from tierstore.control.loading import Loading
from tierstore.control.lookahead import Lookahead
from tierstore.control.mind import Limits, Mind
from tierstore.control.outage import Outage
from tierstore.control.prefetch import Prefetches
from tierstore.control.puts import Puts
from tierstore.control.requests import FAR, JobRecord, Life, Request, RequestTable
from tierstore.control.results import Results
from tierstore.control.ssd_health import SsdHealth
from tierstore.control.ssd_room import SsdRoom
from tierstore.control.upkeep import Upkeep
from tierstore.control.write_back import WriteBack
from tierstore.types import HASH_NBYTES, CopyJob, CopyResult, Generation, Outcome, Plan, RequestId, TierName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tierstore.advice import LoadAdvice
    from tierstore.control.device_room import DevicePool
    from tierstore.control.loading import LoadRequest
    from tierstore.control.lookahead import Waiting
    from tierstore.control.slabs import SlotAllocator
    from tierstore.metrics import Metrics
    from tierstore.policy.base import AdmissionPolicy, NewPolicy
    from tierstore.types import UInt8Array

__all__ = ["SLICE_BLOCKS", "Planner"]

SLICE_BLOCKS = 512
"""Blocks planned in one lock hold."""

_OVER = replace(NO_LIFE, generation=replace(NO_LIFE.generation, number=-2))


class Planner:
    """Makes every decision of the store.

    Attributes:
        catalogue: Look-ups of blocks; they change no state.
        health: Whether the SSD tier is read and written; doors only read it.
        loading: Advises whether loading beats recomputing.

    Args:
        capacity: Entries of the directory.
        slots: Allocator of the host pool's slots.
        device_pool: The device pool; None if there is none.
        new_policy: Makes the eviction policy of one slot class.
        admission: Decides which blocks are written back.
        limits: Bounds on what is in flight.
        metrics: Where it counts.
        reclaim_below_nbytes: Free SSD bytes below which a chunk file is reclaimed; None if there is no SSD tier.
    """

    def __init__(
        self,
        *,
        capacity: int,
        slots: SlotAllocator,
        new_policy: NewPolicy,
        admission: AdmissionPolicy,
        limits: Limits,
        metrics: Metrics,
        reclaim_below_nbytes: int | None,
        device_pool: DevicePool | None = None,
    ) -> None:
        directory = Directory(capacity)
        host = HostRoom(directory, slots, new_policy, metrics)
        below, share = reclaim_below_nbytes, limits.rewrite_share
        ssd = None if below is None else SsdRoom(directory, below, share, metrics)
        self.health = SsdHealth(limits.stall_seconds)
        self._mind = Mind(directory, host, ssd, JobTable(), limits, metrics, self.health)
        if device_pool is not None:
            self._mind.device = DeviceRoom(directory, device_pool, new_policy, metrics)
        self._write_back = WriteBack(self._mind, admission)
        self._gets = Gets(self._mind, self._write_back)
        self._puts = Puts(self._mind, self._write_back)
        self._prefetches = Prefetches(self._mind)
        self._lookahead = Lookahead(self._mind)
        self.loading = Loading(self._mind, limits.prefill_tokens_per_second)
        self._flushes = Flushes(self._mind, self._write_back.parking)
        self._lives: dict[int, Life] = {}
        self._upkeep = Upkeep(self._mind, self._lives, self._write_back, self._puts.unpark)
        self._lending = Lending(self._mind, self._upkeep)
        self._deletes = Deletes(self._mind, self._upkeep)
        self._results = Results(self._mind, self._gets, self._puts, self._write_back, self._upkeep)
        self.catalogue = Catalogue(self._mind, self._lives)
        self._requests = RequestTable(limits.requests_max)
        self._outage = Outage(self._mind, self._requests)

    @property
    def directory(self) -> Directory:
        """The directory; for checks and gauges."""
        return self._mind.directory

    @property
    def num_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._requests)

    @property
    def num_jobs(self) -> int:
        """Jobs in flight plus parked batches, which wait for room on SSD."""
        return len(self._mind.jobs) + len(self._write_back.parking)

    def open_life(self, generation: Generation, slot_nbytes: int) -> None:
        """Begin a generation, unless it has begun already; ConfigError if the pool cannot hold its blocks."""
        if generation.number not in self._lives:
            self._lives[generation.number] = self._mind.new_life(generation, slot_nbytes)

    def end_life(self, number: int) -> None:
        """End a generation. No verb finds its blocks from now on; `tend` drops them in slices, then the life."""
        self._lookahead.end_life(number)
        self._upkeep.reap(self._lives[number])

    def get(self, number: int, hashes: UInt8Array, deadline: float = math.inf) -> Request | None:
        """Open a get of uint8[n, 32] distinct hashes in prefix order; None if too many requests are open."""
        request = self._requests.open(self._gets, self._life(number), hashes, deadline=deadline)
        if request is not None and self._mind.ssd is not None:
            request.parents = np.concatenate([np.zeros((1, HASH_NBYTES), np.uint8), hashes[:-1]])[: len(hashes)]
        return request

    def put(
        self,
        number: int,
        hashes: UInt8Array,
        parents: UInt8Array,
        *,
        durable: bool = False,
        deadline: float = math.inf,
    ) -> Request | None:
        """Open a put; `parents` is uint8[n, 32], each block's predecessor."""
        request = self._requests.open(self._puts, self._life(number), hashes, deadline=deadline)
        if request is not None:
            request.parents = parents
            request.durable = durable
        return request

    def lent(self, request: Request | None) -> Request | None:
        """Mark a get or put, just opened, as lent: its caller copies from or to the slots by itself."""
        if request is not None:
            request.far = TierName.BORROWER
        return request

    def prefetch(
        self, number: int, hashes: UInt8Array, deadline: float = math.inf, *, priority: int = 0
    ) -> Request | None:
        """Open a prefetch. The highest priority is served first; among equals, the nearest deadline."""
        return self._requests.open(self._prefetches, self._life(number), hashes, deadline=deadline, priority=priority)

    def hint(
        self, session_id: int, number: int, now: float, *, added: Sequence[Waiting] = (), removed: Sequence[int] = ()
    ) -> Plan:
        """Update which requests wait in an engine; the plan reads ahead for them. See `Lookahead.hint`."""
        assert sum(len(hashes) for _rank, hashes in added) <= SLICE_BLOCKS, "a hint is larger than a slice"
        plan, life = Plan(), self._life(number)
        self._lookahead.hint(session_id, life, () if self._is_over(life) else added, removed)
        self._lookahead.leave(plan)
        self._lookahead.pump(plan)
        return self._closed(plan, now)

    def end_session(self, session_id: int, now: float) -> Plan:
        """An engine has gone. Its waiting requests count no longer; `tend` takes them out of the window in slices."""
        self._lookahead.end_session(session_id)
        plan = Plan()
        self._lookahead.pump(plan)
        return self._closed(plan, now)

    def plan_load(self, number: int, places: UInt8Array, wanted: LoadRequest, now: float) -> tuple[LoadAdvice, bool]:
        """See `Loading.consider`; if the second value is true, call `probe` next."""
        return self.loading.consider(self._life(number), places, wanted, now)

    def probe(self, number: int, wanted: LoadRequest, advice: LoadAdvice, now: float) -> Plan:
        """See `Loading.probe`."""
        plan = Plan()
        self.loading.probe(self._life(number), wanted, advice, plan, now)
        return self._closed(plan, now)

    def delete(self, number: int, hashes: UInt8Array) -> Request | None:
        """Open a delete of uint8[n, 32] distinct hashes."""
        return self._requests.open(self._deletes, self._life(number), hashes)

    def flush(self) -> Request | None:
        """Open a flush."""
        request = self._requests.open(self._flushes, NO_LIFE, np.empty((0, HASH_NBYTES), np.uint8))
        if request is not None:
            request.outcomes = np.full(1, Outcome.MISS, np.uint8)
            request.stop = 1
        return request

    def step(self, request: Request, now: float) -> Plan:
        """Plan the next slice of a request. Call it at least once, and until `request.planned`."""
        plan = Plan()
        request.begun = min(request.begun, now)
        if self._is_over(request.life) and not request.done:
            request.story.shorten(request, Outcome.CANCELLED, plan, now)
        elif not request.done and (request.opened == 0 or not request.planned):  # of no blocks it still has a slice
            opener = self._lending if request.far is TierName.BORROWER else request.story
            opener.open(request, min(request.stop, request.opened + SLICE_BLOCKS), plan, now)
        return self._closed(plan, now)

    def _life(self, number: int) -> Life:
        """A generation by number. A verb may come after its end: `_OVER` stands for every ended one."""
        return self._lives.get(number, _OVER)

    def _is_over(self, life: Life) -> bool:
        return life is not NO_LIFE and (life.number not in self._lives or self._upkeep.reaps(life))

    def complete(self, result: CopyResult, now: float) -> Plan:
        """Take in the result of a job."""
        plan, mind = Plan(), self._mind
        job = mind.jobs.get(result.job_id).job
        fills = job.dst if isinstance(job, CopyJob) and job.dst not in (*FAR, job.src) else None
        record = mind.jobs.close(result.job_id, fills, job.entries if isinstance(job, CopyJob) else None)
        record.outcomes, record.checksums = result.outcomes, result.checksums
        self._flushes.heed(record)
        self._outage.ended(job, result, now)
        self.loading.rates.ended(job, result, now)
        self._results.take_in(record, result, plan, now)
        self._prefetches.pump(plan, now)
        self._lookahead.pump(plan)
        return self._closed(plan, now, record)

    def gauge(self) -> None:
        """Bring the gauges of the metrics up to date; costs a pass over the pins."""
        gauge(self._mind, self._requests.all())
        self._lookahead.gauge()

    def cancel(self, request_id: RequestId, now: float) -> Plan:
        """Cancel a request. It ends at once, or with the last copy that touches the caller's memory."""
        plan, request = Plan(), self._requests.get(request_id)
        if request is not None:
            self._lending.withdrawn(request, plan, now)
        return self._shorten(plan, [request_id], now)

    def expire(self, now: float) -> Plan:
        """End requests past their deadline. Copies into the caller's memory that have begun still finish."""
        plan = Plan()
        self._outage.expire(plan, now)
        return self._shorten(plan, self._requests.due(now), now)

    def next_deadline(self) -> float:
        """When `expire` must be called next, for an open request or the SSD's health; infinity for neither."""
        return min(self._requests.next_deadline(), self._mind.health.next_deadline())

    def _shorten(self, plan: Plan, request_ids: list[RequestId], now: float) -> Plan:
        for request_id in request_ids:
            request = self._requests.get(request_id)
            if request is not None and not request.done:
                request.story.shorten(request, Outcome.CANCELLED, plan, now)
        return self._closed(plan, now)

    def tend(self, now: float) -> tuple[Plan, bool]:
        """Plan one bounded slice of upkeep. Also returns whether more is due at once."""
        plan = Plan()
        more = self._upkeep.step(plan, now)
        more = self._lookahead.leave(plan) or more
        return self._closed(plan, now), more

    def _closed(self, plan: Plan, now: float, ended: JobRecord | None = None) -> Plan:
        self._flushes.follow(plan, ended)
        self._outage.follow(plan, now)
        self.loading.rates.began(plan.jobs, now)
        self._lending.handed(plan, self._requests)
        for finished in plan.finished:
            request = self._requests.close(finished.request_id)
            self._lending.close(request)
            count_request(self._mind, request, now)
        plan.due = self._upkeep.due or self._lookahead.due
        return plan

    def check(self) -> None:
        """Assert every invariant of the mind; costs a pass over the whole directory."""
        check(self._mind)
        self._lending.check(self._requests)
