"""Copies into the device pool, from pages or SSD, and back to host memory for borrowers of host slots.

    keep_near:     a put has stored blocks, or a get has loaded them: plan their copy on the device, across no link
    kept_near:     that copy has ended: READY in the device pool, or ABSENT; the request goes on
    slots_near:    slots of the device pool for a get's blocks on SSD, to be read straight into it
    brought_back:  a copy from the device pool into host slots has ended: READY there, or ABSENT; its waiters go on

A copy in the device pool is never promised: without a slot, admission or time it is not made. Pure; called by stories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.copies import copy_pages
from tierstore.control.directory import UNREADABLE
from tierstore.control.entry import State
from tierstore.types import CopyJob, Outcome, TierName

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.control.device_room import DeviceRoom
    from tierstore.control.mind import Mind
    from tierstore.control.requests import JobRecord, Request
    from tierstore.types import Int64Array, Plan, UInt8Array

__all__ = ["brought_back", "coming_near", "keep_near", "kept_near", "slots_near"]


def keep_near(mind: Mind, request: Request, positions: Int64Array, plan: Plan, now: float) -> None:
    """Copy blocks to the device pool too, once the request has stored or loaded them.

    The request waits for this copy, since it touches the caller's pages. Past its deadline no copy is made.
    """
    room = mind.device
    if room is None or request.far is not TierName.DEVICE or now >= request.deadline:
        return
    positions = positions[mind.directory.host.state[request.entries[positions]] == State.READY]
    positions = positions[room.admits(request.entries[positions], request.life.block_nbytes)]
    positions, pages = _take(mind, room, request, positions)
    if len(positions):
        room.occupy(request.entries[positions], pages)
        copy_pages(mind, request, positions, load=False, plan=plan, pool=TierName.DEVICE_POOL)


def _take(mind: Mind, room: DeviceRoom, request: Request, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
    """The blocks that get slots, and their slots; blocks that waiting requests need come first.

    A block that no waiting request needs takes no slot from the window; one that is needed, only from later ones.
    """
    directory, slot_class = mind.directory, request.life.device_class
    awaited = directory.next_use[request.entries[positions]] > 0
    pages = room.take(slot_class, len(positions))
    short = int(np.count_nonzero(awaited)) - len(pages)
    if short > 0:
        latest = directory.window.turns(request.life.number, request.keys[positions[awaited]]).max()
        pages = np.concatenate([pages, room.take(slot_class, short, after_turn=int(latest))])
    first = np.argsort(~awaited, kind="stable")[: len(pages)]
    return positions[np.sort(first)], pages


def kept_near(mind: Mind, record: JobRecord, outcomes: UInt8Array, plan: Plan, now: float) -> None:
    """A copy into the device pool has ended, well or not: its request goes on."""
    job, request = record.job, record.request
    assert mind.device is not None and request is not None and isinstance(job, CopyJob)
    mind.device.filled(request.life.device_class, job.entries, good=job.entries[outcomes == Outcome.OK])
    request.moving -= 1
    request.story.arrived(request, np.empty(0, np.int64), record, plan, now)


def coming_near(mind: Mind, request: Request, entries: Int64Array) -> NDArray[np.bool_]:
    """Which of a get's blocks are being read from SSD into the device pool, from where it can load them."""
    coming: NDArray[np.bool_] = np.zeros(len(entries), np.bool_)
    if mind.device is not None and mind.limits.direct_reads and request.far is TierName.DEVICE:
        filling = (entries >= 0) & (mind.directory.device.state[entries] == State.FILLING)
        for position in filling.nonzero()[0].tolist():
            job = mind.jobs.filling_job(TierName.DEVICE_POOL, int(entries[position]))
            coming[position] = job.src is TierName.SSD
    return coming


def slots_near(mind: Mind, request: Request, entries: Int64Array, held: Int64Array) -> Int64Array | None:
    """Slots of the device pool for direct reads of all of these blocks from SSD; None if not all can be read so.

    A block whose last read failed is read through host memory, the simpler path.

    Args:
        mind: Shared with the stories.
        request: A get.
        entries: int64[n]; its blocks that must be read.
        held: int64[k]; its blocks in the device pool, which must not be evicted for these.
    """
    directory, device_class = mind.directory, request.life.device_class
    if mind.device is None or not mind.limits.direct_reads or request.far is not TierName.DEVICE:
        return None
    straight = (directory.device.state[entries] == State.ABSENT) & (directory.flags[entries] & UNREADABLE == 0)
    straight &= directory.ssd_nbytes[entries] == request.life.block_nbytes  # encoded ones are decoded in host memory
    if not straight.all():
        return None
    mind.device.pin(device_class, held)
    pages = mind.device.take_all(device_class, len(entries))
    mind.device.unpin(device_class, held)
    return pages


def brought_back(mind: Mind, record: JobRecord, outcomes: UInt8Array, plan: Plan, now: float) -> None:
    """A copy from the device pool into host slots has ended: its blocks become READY, then waiters go on."""
    job, life, host = record.job, record.waiters[0][0].life, mind.directory.host
    assert mind.device is not None and isinstance(job, CopyJob)
    entries, good = job.entries, outcomes == Outcome.OK
    gone = host.state[entries] == State.GONE
    mind.host.ready(life.slot_class, entries[good & ~gone], now)
    mind.wake(record, plan, now)
    mind.device.unpin(life.device_class, entries)
    mind.host.failed(life.slot_class, entries[~good & ~gone])
    mind.host.unpin(life.slot_class, entries[gone])
    mind.directory.release(entries)
