"""A simulated store: the planner with a simulated clock and modelled links. Takes verbs and advances time to their end.

Called by `engine` and `run`. A block counts as one page of the pool, whatever its size in bytes: the planner sees as
many slots and files as the simulated tiers have, and no memory is taken for them.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.link_rates import LinkRates
from tierstore.control.mind import Limits
from tierstore.control.planner import SLICE_BLOCKS, Planner
from tierstore.control.slabs import SLAB_SLOTS_MIN, SLABS_MIN, SlotAllocator
from tierstore.errors import ConfigError
from tierstore.keys import Namespace
from tierstore.layout import KVLayout
from tierstore.metrics import Metrics
from tierstore.replay.links import LINKS, LinkModel, LinkQueue
from tierstore.replay.ssd import ReplaySsd
from tierstore.settings import format_size
from tierstore.types import (
    HASH_NBYTES,
    PAGE_NBYTES,
    CopyJob,
    CopyResult,
    DiscardJob,
    Generation,
    Outcome,
    ProbeJob,
    TierName,
)

if TYPE_CHECKING:
    from tierstore.advice import LoadAdvice
    from tierstore.control.loading import LoadRequest
    from tierstore.control.requests import Request
    from tierstore.policy.base import AdmissionPolicy, NewPolicy
    from tierstore.types import Finished, Job, JobId, Plan, RequestId, UInt8Array

__all__ = ["LIFE", "Setup", "World"]

LIFE = 1
"""Number of the one generation of a replay."""

HOST_BLOCKS_MIN = SLABS_MIN * SLAB_SLOTS_MIN
_SLABS_MAX = 256
_SLACK_ENTRIES = 1 << 16
_READ_BATCH_NBYTES = 8 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The store that a trace is replayed into.

    Attributes:
        host_blocks: Blocks that the host pool holds.
        ssd_blocks: Blocks that the SSD holds; 0 without one.
        file_blocks: Blocks of one chunk file.
        block_nbytes: Bytes of a block, for the times of links and the sizes of batches.
        block_tokens: Tokens of a block.
        tokens_per_second: The engine's prefill speed; None if the replay takes none into account.
        new_policy: The eviction policy.
        admission: The admission policy of the SSD.
        links: Speeds by the names of `LINKS`; a missing link takes no time.
        write_nbytes_per_day: Bytes of the model that write-backs may put on SSD in a day; None for no bound.
        rewrite_share: The share of a reclaimed chunk file's blocks that may be rewritten.
    """

    host_blocks: int
    ssd_blocks: int
    file_blocks: int
    block_nbytes: int
    block_tokens: int
    new_policy: NewPolicy
    admission: AdmissionPolicy
    links: Mapping[str, LinkModel]
    tokens_per_second: float | None = None
    write_nbytes_per_day: int | None = None
    rewrite_share: float = 0.5


class World:
    """The planner and everything that happens to it.

    Attributes:
        planner: The store's own.
        metrics: What it counts.
        now: Seconds since the trace began.
        queues: The links that take time, by their names here.
        has_ssd: Whether there is an SSD tier.
        piece_blocks: Blocks of one put, at most.
    """

    def __init__(self, setup: Setup) -> None:
        self.metrics = Metrics()
        self.now = 0.0
        self.planner = _planner(setup, self.metrics)
        layout = KVLayout.opaque(block_nbytes=PAGE_NBYTES, block_tokens=setup.block_tokens)
        fingerprint = Namespace(model="replay", layout=layout).fingerprint
        self.planner.open_life(Generation(LIFE, fingerprint, 0, layout), PAGE_NBYTES)
        self._ssd = ReplaySsd(num_blocks=setup.ssd_blocks, file_blocks=setup.file_blocks, block_nbytes=PAGE_NBYTES)
        self.queues = {LINKS[name]: LinkQueue(model, setup.block_nbytes) for name, model in sorted(setup.links.items())}
        self.has_ssd = setup.ssd_blocks > 0
        self.piece_blocks = max(1, setup.host_blocks // 8) if self.has_ssd else 1 << 30
        self._ended: deque[Job] = deque()
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._then: dict[RequestId, Callable[[Finished], None]] = {}

    def get(self, hashes: UInt8Array, deadline: float, then: Callable[[Finished], None]) -> None:
        """Get blocks; `then` is called when that has ended."""
        self._start(self.planner.get(LIFE, hashes, deadline), then)

    def advise(self, wanted: LoadRequest) -> LoadAdvice:
        """What of a prompt is worth loading now."""
        slices = range(0, len(wanted.hashes), SLICE_BLOCKS)
        places = [self.planner.loading.places(LIFE, wanted.hashes[first : first + SLICE_BLOCKS]) for first in slices]
        advice, probe = self.planner.plan_load(LIFE, np.concatenate(places), wanted, self.now)
        if probe:
            self.run(self.planner.probe(LIFE, wanted, advice, self.now))
        return advice

    def put(self, hashes: UInt8Array, piece: slice, then: Callable[[Finished], None]) -> None:
        """Put a piece of a chain of uint8[n, 32] hashes; what is held is not copied."""
        before = hashes[piece.start - 1 : piece.start] if piece.start else np.zeros((1, HASH_NBYTES), np.uint8)
        own = hashes[piece]
        self._start(self.planner.put(LIFE, own, np.concatenate([before, own[:-1]])), then)

    def prefetch(self, hashes: UInt8Array, deadline: float, then: Callable[[Finished], None]) -> RequestId | None:
        """Prefetch blocks; `then` is called when that has ended. None where it has already."""
        request = self._start(self.planner.prefetch(LIFE, hashes, deadline), then)
        return None if request.done else request.request_id

    def cancel(self, request_id: RequestId) -> None:
        """Cancel a request that has not ended."""
        self.run(self.planner.cancel(request_id, self.now))

    def run(self, plan: Plan) -> None:
        """Carry a plan out."""
        for job_id in plan.lifts:
            for queue in self.queues.values():
                queue.lift(job_id)
        for job in plan.jobs:
            queue_of = self.queues.get(_link(job))
            if queue_of is None or not isinstance(job, CopyJob):
                self._ended.append(job)
            else:
                queue_of.push(job)
                self._pump(queue_of)
        for job_id in plan.withdraws:
            self._withdraw(job_id)
        for finished in plan.finished:
            self._then.pop(finished.request_id)(finished)
        if plan.due:
            self._tend()

    def at(self, seconds: float, call: Callable[[], None]) -> None:
        """Schedule a call at a future time."""
        self._num_events += 1
        heapq.heappush(self._events, (seconds, self._num_events, call))

    def settle(self) -> None:
        """End every job that takes no time."""
        while self._ended:
            self._end(self._ended.popleft())

    @property
    def next_event(self) -> float:
        """The time of the next event; infinity if there is none."""
        deadline = self.planner.next_deadline()
        return min(self._events[0][0], deadline) if self._events else deadline

    def advance(self) -> None:
        """Advance time to the next event or deadline, and run it; a job that ends at its deadline is in time."""
        self.now = max(self.now, self.next_event)
        if self._events and self._events[0][0] <= self.now:
            heapq.heappop(self._events)[2]()
        else:
            self.run(self.planner.expire(self.now))

    def _start(self, request: Request | None, then: Callable[[Finished], None]) -> Request:
        assert request is not None, "too many requests are open"
        self._then[request.request_id] = then
        while True:
            self.run(self.planner.step(request, self.now))
            if request.planned:
                return request

    def _tend(self) -> None:
        more = True
        while more:
            plan, more = self.planner.tend(self.now)
            plan.due = False
            if plan.jobs or plan.finished:
                self.run(plan)

    def _pump(self, queue: LinkQueue) -> None:
        begun = queue.begin(self.now)
        if begun is None:
            return
        job, ends_at = begun
        self.at(queue.free_at, lambda: self._pump(queue))
        self.at(ends_at, lambda: self._end(job))

    def _withdraw(self, job_id: JobId) -> None:
        for queue in self.queues.values():
            job = queue.withdraw(job_id)
            if job is not None:
                self.run(self.planner.complete(_result(job, Outcome.CANCELLED), self.now))

    def _end(self, job: Job) -> None:
        if isinstance(job, DiscardJob):
            result = self._ssd.discard(job)
        elif isinstance(job, CopyJob) and job.dst is TierName.SSD:
            result = self._ssd.write(job)
        elif isinstance(job, ProbeJob):
            result = CopyResult(job.job_id, np.zeros(2, np.uint8))
        else:
            result = _result(job, Outcome.OK)
        self.run(self.planner.complete(result, self.now))


def _result(job: Job, outcome: Outcome) -> CopyResult:
    outcomes = np.zeros(len(job) if isinstance(job, CopyJob) else 1, np.uint8)
    if outcome is not Outcome.OK:
        outcomes[:] = outcome.value
    return CopyResult(job.job_id, outcomes)


def _link(job: Job) -> str:
    if not isinstance(job, CopyJob):
        return ""
    if job.dst is TierName.SSD:
        return "write"
    if job.src is TierName.SSD:
        return "read"
    return "load" if job.dst is TierName.DEVICE else "store"


def _planner(setup: Setup, metrics: Metrics) -> Planner:
    """A planner with the limits that a store of these sizes would have."""
    if setup.host_blocks < HOST_BLOCKS_MIN:
        raise ConfigError(
            f"the host tier holds {setup.host_blocks} blocks; give it at least {HOST_BLOCKS_MIN} "
            f"({format_size(HOST_BLOCKS_MIN * setup.block_nbytes)})"
        )
    scale = PAGE_NBYTES / setup.block_nbytes
    inflight_nbytes = max(1, setup.host_blocks // 4) * PAGE_NBYTES
    slab_blocks = _slab_blocks(setup.host_blocks)
    budget = setup.write_nbytes_per_day
    planner = Planner(
        capacity=setup.host_blocks + setup.ssd_blocks + setup.ssd_blocks // 16 + _SLACK_ENTRIES,
        slots=SlotAllocator(pool_nbytes=setup.host_blocks * PAGE_NBYTES, slab_nbytes=slab_blocks * PAGE_NBYTES),
        new_policy=setup.new_policy,
        admission=setup.admission,
        limits=Limits(
            requests_max=1 << 20,
            read_threads=4,
            read_batch_nbytes=_read_batch_nbytes(setup, scale),
            write_inflight_nbytes_max=inflight_nbytes,
            prefetch_inflight_nbytes_max=inflight_nbytes,
            write_nbytes_per_day=None if budget is None else int(budget * scale),
            prefill_tokens_per_second=setup.tokens_per_second,
            rewrite_share=setup.rewrite_share,
        ),
        metrics=metrics,
        reclaim_below_nbytes=setup.file_blocks * PAGE_NBYTES if setup.ssd_blocks else None,
    )
    planner.loading.rates = LinkRates(scale)
    return planner


def _read_batch_nbytes(setup: Setup, scale: float) -> int:
    """As a store cuts its reads, so that loads begin before the last one; where reads take no time, not at all."""
    timed = "ssd.read" in setup.links or setup.tokens_per_second is not None
    return max(PAGE_NBYTES, int(_READ_BATCH_NBYTES * scale)) if timed else setup.host_blocks * PAGE_NBYTES


def _slab_blocks(host_blocks: int) -> int:
    """Blocks a slab, chosen to leave as little of the pool unused as possible; among equals, the fewest slabs."""
    counts = range(SLABS_MIN, min(_SLABS_MAX, host_blocks // SLAB_SLOTS_MIN) + 1)
    return host_blocks // min(counts, key=lambda count: host_blocks % count)
