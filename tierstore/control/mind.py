"""What the stories share: the directory, the rooms, the jobs in flight and the limits. Pure.

Built once by the planner and passed to each story (`gets`, `puts`, `prefetch`, `upkeep`). Holds the few
steps that more than one of them takes; decides nothing.
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
        read_threads: Reads at once; a request's blocks are cut so that each thread gets two jobs.
        read_batch_nbytes: Blocks of one read job together, at most.
        write_inflight_nbytes_max: Host memory pinned by write-backs.
        prefetch_inflight_nbytes_max: Host memory that prefetches are filling.
        prefetch_share: Of the pool, for blocks that were read ahead and not used, beyond what is free.
        cold_seconds: A prefetch evicts only blocks that nobody used for so long.
        write_nbytes_per_day: What write-backs may put on SSD; None for no bound.
        stall_seconds: How long reads from SSD may go without one that ends; 0 for ever.
        prefill_tokens_per_second: What the engine computes; None until it reports it.
        direct_reads: Whether reads from SSD may go into the device pool, past host memory.
        rewrite_share: Of a chunk file that goes, the blocks that may be written again.
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
        """A generation with slots in each pool; ConfigError where one cannot hold its blocks."""
        device_class = -1 if self.device is None else self.device.open_class(slot_nbytes)
        slot_class = self.host.open_class(slot_nbytes)
        return Life(generation, slot_class, generation.layout.block_nbytes, device_class)

    def in_device_pool(self, entries: Int64Array) -> BoolArray:
        """Which blocks are READY in the device pool; not where the entry is -1."""
        if self.device is None:
            return np.zeros(len(entries), np.bool_)
        there: BoolArray = (self.directory.device.state[entries] == State.READY) & (entries >= 0)
        return there

    def near(self, entries: Int64Array) -> tuple[UInt8Array, UInt8Array]:
        """As `states`, but READY in the first also where the device pool holds a block: it need not come nearer."""
        host, ssd = self.states(entries)
        host[self.in_device_pool(entries)] = State.READY
        return host, ssd

    def usable(self, entries: Int64Array, host: UInt8Array, ssd: UInt8Array) -> BoolArray:
        """Which blocks may be counted on: held, promised, or to be read from an SSD that is on."""
        if self.health.reads_on:
            usable: BoolArray = (host == State.READY) | (host == State.FILLING) | (ssd == State.READY)
        else:
            usable = host == State.READY
            filling = (host == State.FILLING).nonzero()[0]
            usable[filling] = ~self.stuck(entries[filling])
        return usable

    def stuck(self, entries: Int64Array) -> BoolArray:
        """Which blocks that are FILLING in host memory wait for a read from an SSD that is off."""
        stuck: BoolArray = np.zeros(len(entries), np.bool_)
        if not self.health.reads_on:
            for position, entry in enumerate(entries.tolist()):
                stuck[position] = self.jobs.filling_job(TierName.HOST, entry).src is TierName.SSD
        return stuck

    def not_stored(self, reason: str, num_blocks: int) -> None:
        """Count blocks that a tier did not take."""
        if num_blocks:
            self.metrics.add(Metric.NOT_STORED_BLOCKS, num_blocks, reason)

    def sync_job(self, request: Request, plan: Plan) -> None:
        """Plan a sync that the request waits for."""
        job = SyncJob(self.jobs.next_id())
        self.jobs.open(JobRecord(job, request, waiters=[(request, np.empty(0, np.int64))]))
        plan.jobs.append(job)

    def wake(self, record: JobRecord, plan: Plan, now: float) -> None:
        """Tell everybody who waited for a job that it has ended."""
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
        """Serve reads that a get has joined before any prefetch."""
        for job_id in job_ids:
            job = self.jobs.get(job_id).job
            if isinstance(job, CopyJob) and job.src is TierName.SSD and job.priority is not Priority.GET:
                plan.lifts.append(job_id)

    def withdraw(self, plan: Plan) -> None:
        """Drop reads that are still queued and that nobody waits for any more, now or in a queue."""
        for record in self.jobs.records():
            job = record.job
            if not isinstance(job, CopyJob) or job.src is not TierName.SSD or job.dst is TierName.SSD:
                continue
            if self.directory.next_use[job.entries].any():
                continue
            if all(request.done or positions[0] >= request.stop for request, positions in record.waiters):
                plan.withdraws.append(job.job_id)
