"""State that all stories share: the directory, the rooms, the jobs in flight and the limits. Pure.

The planner builds one `Mind` and passes it to each story (`gets`, `puts`, `prefetch`, `upkeep`). It holds the
few steps that several stories share, and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tierstore.control.ageing import Ageing
from tierstore.control.entry import State
from tierstore.control.requests import JobRecord, Life
from tierstore.metrics import Metric
from tierstore.types import CopyJob, Finished, Plan, Priority, SyncJob, TierName

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tierstore.control.device_room import DeviceRoom
    from tierstore.control.directory import Directory
    from tierstore.control.host_room import HostRoom
    from tierstore.control.jobs import JobTable
    from tierstore.control.requests import Request
    from tierstore.control.ssd_health import SsdHealth
    from tierstore.control.ssd_room import SsdRoom
    from tierstore.metrics import Metrics
    from tierstore.types import Generation, Int64Array, JobId, UInt8Array

    BoolArray: TypeAlias = NDArray[np.bool_]

__all__ = ["Limits", "Mind"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what may be in flight.

    Attributes:
        requests_max: Requests open at once.
        read_threads: Reads at once. A request's blocks are cut so that each thread gets two jobs.
        read_batch_nbytes: Most bytes of one read job.
        write_inflight_nbytes_max: Host memory that write-backs may pin.
        prefetch_inflight_nbytes_max: Host memory that prefetches may be filling.
        prefetch_share: Share of the pool for prefetched blocks not used yet, beyond what is free.
        cold_seconds: A prefetch evicts only blocks unused for so long.
        write_nbytes_per_day: Bytes a day for write-back to SSD; None for no bound.
        stall_seconds: Turn the SSD off if no read ends for so long; 0: never.
        prefill_tokens_per_second: Prefill speed of the engine; None until it reports its own.
        direct_reads: Whether SSD reads may go straight into the device pool, bypassing host memory.
        rewrite_share: Share of a reclaimed chunk file that may be written again.
    """

    requests_max: int = 1024
    read_threads: int = 1
    read_batch_nbytes: int = 2 << 20
    write_inflight_nbytes_max: int = 256 << 20
    prefetch_inflight_nbytes_max: int = 256 << 20
    prefetch_share: float = 0.5
    cold_seconds: float = 30.0
    write_nbytes_per_day: int | None = None
    stall_seconds: float = 10.0
    prefill_tokens_per_second: float | None = None
    direct_reads: bool = False
    rewrite_share: float = 0.5


@dataclass(slots=True, eq=False)
class Mind:
    """The shared state of every story."""

    directory: Directory
    host: HostRoom
    ssd: SsdRoom | None
    jobs: JobTable
    limits: Limits
    metrics: Metrics
    health: SsdHealth
    device: DeviceRoom | None = None
    write_inflight_nbytes: int = 0
    ageing: Ageing = field(init=False)

    def __post_init__(self) -> None:
        self.ageing = Ageing(self.directory, self.host)

    @property
    def rooms(self) -> Iterator[tuple[HostRoom | DeviceRoom, TierName]]:
        """Every pool's room."""
        yield self.host, TierName.HOST
        if self.device is not None:
            yield self.device, TierName.DEVICE_POOL

    def states(self, entries: Int64Array) -> tuple[UInt8Array, UInt8Array]:
        """Host and SSD state of each entry; ABSENT where the entry is -1."""
        host, ssd = self.in_host(entries), self.directory.ssd.state[entries]
        ssd[entries < 0] = State.ABSENT
        return host, ssd

    def in_host(self, entries: Int64Array) -> UInt8Array:
        """Host state of each entry; ABSENT where the entry is -1."""
        host = self.directory.host.state[entries]
        host[entries < 0] = State.ABSENT
        return host

    def new_life(self, generation: Generation, slot_nbytes: int) -> Life:
        """A generation with a slot class in each pool; ConfigError if a pool cannot hold its blocks."""
        device_class = -1 if self.device is None else self.device.open_class(slot_nbytes)
        slot_class = self.host.open_class(slot_nbytes)
        return Life(generation, slot_class, generation.layout.block_nbytes, device_class)

    def in_device_pool(self, entries: Int64Array) -> BoolArray:
        """Which blocks are READY in the device pool; false where the entry is -1."""
        if self.device is None:
            return np.zeros(len(entries), np.bool_)
        there: BoolArray = (self.directory.device.state[entries] == State.READY) & (entries >= 0)
        return there

    def near(self, entries: Int64Array) -> tuple[UInt8Array, UInt8Array]:
        """As `states`, but a block READY in the device pool counts as READY in host: no read is needed."""
        host, ssd = self.states(entries)
        host[self.in_device_pool(entries)] = State.READY
        return host, ssd

    def usable(self, entries: Int64Array, host: UInt8Array, ssd: UInt8Array) -> BoolArray:
        """Which blocks a request can rely on: READY or FILLING in host memory, or readable from an SSD that is on."""
        if self.health.reads_on:
            usable: BoolArray = (host == State.READY) | (host == State.FILLING) | (ssd == State.READY)
        else:
            usable = host == State.READY
            filling = (host == State.FILLING).nonzero()[0]
            usable[filling] = ~self.stuck(entries[filling])
        return usable

    def stuck(self, entries: Int64Array) -> BoolArray:
        """Which of these blocks, FILLING in host memory, wait for a read from an SSD that is off."""
        stuck: BoolArray = np.zeros(len(entries), np.bool_)
        if not self.health.reads_on:
            for position, entry in enumerate(entries.tolist()):
                stuck[position] = self.jobs.filling_job(TierName.HOST, entry).src is TierName.SSD
        return stuck

    def not_stored(self, reason: str, num_blocks: int) -> None:
        """Count blocks that a tier did not take, by reason."""
        if num_blocks:
            self.metrics.add(Metric.NOT_STORED_BLOCKS, num_blocks, reason)

    def sync_job(self, request: Request, plan: Plan) -> None:
        """Plan a sync that the request waits for."""
        job = SyncJob(self.jobs.next_id())
        self.jobs.open(JobRecord(job, request, waiters=[(request, np.empty(0, np.int64))]))
        plan.jobs.append(job)

    def wake(self, record: JobRecord, plan: Plan, now: float) -> None:
        """Tell every request that waits for a job that it has ended."""
        for request, positions in record.waiters:
            request.awaiting -= len(positions)
            if not request.done:
                request.story.arrived(request, positions, record, plan, now)

    def resolve(self, request: Request, plan: Plan) -> None:
        """End a request with the outcomes it has."""
        assert not request.done and not request.moving, f"request {request.request_id} ends with copies under way"
        request.done = True
        if request.in_pieces:
            self.ageing.renew(request.life, request.keys[: request.stop], request.entries[: request.stop])
        plan.finished.append(Finished(request.request_id, request.leading(), request.outcomes))

    def lift(self, job_ids: list[JobId], plan: Plan) -> None:
        """Move reads that a get or put has joined ahead of every prefetch."""
        for job_id in job_ids:
            job = self.jobs.get(job_id).job
            if isinstance(job, CopyJob) and job.src is TierName.SSD and job.priority is not Priority.GET:
                plan.lifts.append(job_id)

    def withdraw(self, plan: Plan) -> None:
        """Withdraw queued reads that no open request and no request in the look-ahead window needs any more."""
        for record in self.jobs.records():
            job = record.job
            if not isinstance(job, CopyJob) or job.src is not TierName.SSD or job.dst is TierName.SSD:
                continue
            if self.directory.next_use[job.entries].any():
                continue
            if all(request.done or positions[0] >= request.stop for request, positions in record.waiters):
                plan.withdraws.append(job.job_id)
