"""The copies that stories plan. Each is a job in the job table; its blocks keep their places until it ends.

    copy_pages:      between the caller's memory and the slots of a pool
    read_blocks:     from SSD into slots already taken, a few blocks a job
    write_blocks:    from host memory to SSD
    rewrite_blocks:  from one SSD file to another
    bring_back:      from the device pool into host slots already taken

Pure; called by stories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.requests import JobRecord
from tierstore.types import CopyJob, Priority, TierName

if TYPE_CHECKING:
    from tierstore.control.mind import Mind
    from tierstore.control.requests import Life, Request
    from tierstore.types import Int32Array, Int64Array, Plan

__all__ = ["bring_back", "copy_pages", "read_blocks", "rewrite_blocks", "write_blocks"]

_READ_NBYTES_MIN = 1 << 20
"""Smaller read jobs cost more planning than they gain by running in parallel."""


def copy_pages(
    mind: Mind, request: Request, positions: Int64Array, *, load: bool, plan: Plan, pool: TierName = TierName.HOST
) -> None:
    """Copy between the caller's memory and the slots of these blocks in a pool, as one job."""
    entries = request.entries[positions]
    pages = _pages(mind, pool)[entries]
    job = CopyJob(
        job_id=mind.jobs.next_id(),
        generation=request.life.generation,
        src=pool if load else request.far,
        dst=request.far if load else pool,
        entries=entries,
        hashes=request.hashes[positions],
        src_locations=pages if load else positions,
        dst_locations=positions if load else pages,
        priority=Priority.GET if load else Priority.WRITE_BACK,
        request_id=request.request_id,
    )
    mind.jobs.open(JobRecord(job, request, positions), None if load else pool, entries)
    request.moving += 1
    plan.jobs.append(job)


def read_blocks(
    mind: Mind, request: Request, positions: Int64Array, pool: TierName, plan: Plan, *, priority: Priority
) -> None:
    """Read blocks from SSD into slots of a pool already taken, a few a job; the request waits for them."""
    assert mind.ssd is not None
    mind.ssd.pin(request.entries[positions])
    block_nbytes, limits = request.life.block_nbytes, mind.limits
    share_nbytes = len(positions) * block_nbytes // (2 * limits.read_threads)
    count = max(1, min(limits.read_batch_nbytes, max(_READ_NBYTES_MIN, share_nbytes)) // block_nbytes)
    for first in range(0, len(positions), count):
        piece = positions[first : first + count]
        entries = request.entries[piece]
        job = CopyJob(
            job_id=mind.jobs.next_id(),
            generation=request.life.generation,
            src=TierName.SSD,
            dst=pool,
            entries=entries,
            hashes=request.hashes[piece],
            src_locations=mind.directory.extents(entries),
            dst_locations=_pages(mind, pool)[entries],
            priority=priority,
        )
        mind.jobs.open(JobRecord(job, waiters=[(request, piece)]), pool, entries)
        plan.jobs.append(job)
    request.awaiting += len(positions)


def write_blocks(mind: Mind, request: Request, positions: Int64Array, plan: Plan) -> JobRecord:
    """Write READY host blocks to SSD, which must want them; they stay pinned until the write ends."""
    assert mind.ssd is not None
    entries = request.entries[positions]
    mind.host.pin(request.life.slot_class, entries)
    mind.ssd.reserve(entries)
    mind.write_inflight_nbytes += len(entries) * request.life.block_nbytes
    job = CopyJob(
        job_id=mind.jobs.next_id(),
        generation=request.life.generation,
        src=TierName.HOST,
        dst=TierName.SSD,
        entries=entries,
        hashes=request.hashes[positions],
        parents=request.parents[positions],
        src_locations=mind.directory.host_page[entries],
        priority=Priority.WRITE_BACK,
        checksums=mind.directory.checksums(entries),
    )
    record = JobRecord(job, request, positions)
    mind.jobs.open(record, TierName.SSD, entries)
    plan.jobs.append(job)
    return record


def rewrite_blocks(mind: Mind, life: Life, entries: Int64Array, plan: Plan) -> None:
    """Write READY blocks again, from their SSD file to another; they stay pinned until the write ends."""
    assert mind.ssd is not None
    mind.ssd.pin(entries)
    job = CopyJob(
        job_id=mind.jobs.next_id(),
        generation=life.generation,
        src=TierName.SSD,
        dst=TierName.SSD,
        entries=entries,
        hashes=mind.directory.index.keys[entries].view(np.uint8),
        src_locations=mind.directory.extents(entries),
        priority=Priority.WRITE_BACK,
    )
    mind.jobs.open(JobRecord(job))
    plan.jobs.append(job)


def bring_back(mind: Mind, request: Request, positions: Int64Array, plan: Plan) -> None:
    """Copy blocks that the device pool holds into host slots already taken; the request waits for them."""
    assert mind.device is not None
    entries = request.entries[positions]
    mind.device.pin(request.life.device_class, entries)
    job = CopyJob(
        job_id=mind.jobs.next_id(),
        generation=request.life.generation,
        src=TierName.DEVICE_POOL,
        dst=TierName.HOST,
        entries=entries,
        hashes=request.hashes[positions],
        src_locations=_pages(mind, TierName.DEVICE_POOL)[entries],
        dst_locations=_pages(mind, TierName.HOST)[entries],
        priority=Priority.GET,
    )
    mind.jobs.open(JobRecord(job, waiters=[(request, positions)]), TierName.HOST, entries)
    request.awaiting += len(positions)
    plan.jobs.append(job)


def _pages(mind: Mind, pool: TierName) -> Int32Array:
    """The column with the first page of each entry's slot in a pool."""
    return mind.directory.host_page if pool is TierName.HOST else mind.directory.device_page
