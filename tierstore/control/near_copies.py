"""How blocks come into the device pool, from pages or SSD, and back to host memory for who borrows slots there.

    keep_near:     a put has stored blocks, or a get has loaded them: plan their copy on the device, across no link
    kept_near:     it has ended: READY in the device pool, or not there; the request goes on
    slots_near:    a get wants blocks that SSD alone holds: slots for them here, past host memory, where there are some
    brought_back:  a copy from there into host slots has ended: READY in host memory too, or not; its waiters go on

Nobody is promised a copy in the device pool: for want of a slot, of admission or of time it is not made. Pure; called
by stories.
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
    """Copy blocks that a copy of the request has just moved into the device pool too.

    The request waits for it, since its pages are the caller's; one that is past its deadline does without.
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
    """Slots for as many of these blocks as there are, and which: those first that waiting requests need.

    A block takes none from one that they need sooner, or at all where none needs it itself.
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
    """A copy into the device pool has ended: its request goes on, however that went."""
    job, request = record.job, record.request
    assert mind.device is not None and request is not None and isinstance(job, CopyJob)
    mind.device.filled(request.life.device_class, job.entries, good=job.entries[outcomes == Outcome.OK])
    request.moving -= 1
    request.story.arrived(request, np.empty(0, np.int64), record, plan, now)


def coming_near(mind: Mind, request: Request, entries: Int64Array) -> NDArray[np.bool_]:
    """Which of a get's blocks are on their way from SSD into the device pool, where it can take them from."""
    coming: NDArray[np.bool_] = np.zeros(len(entries), np.bool_)
    if mind.device is not None and mind.limits.direct_reads and request.far is TierName.DEVICE:
        filling = (entries >= 0) & (mind.directory.device.state[entries] == State.FILLING)
        for position in filling.nonzero()[0].tolist():
            job = mind.jobs.filling_job(TierName.DEVICE_POOL, int(entries[position]))
            coming[position] = job.src is TierName.SSD
    return coming


def slots_near(mind: Mind, request: Request, entries: Int64Array, held: Int64Array) -> Int64Array | None:
    """Slots of the device pool for all of these blocks, to be read from SSD straight into them; None where not.

    One whose last read has failed goes by way of host memory, which asks less of the machine.

    Args:
        mind: Shared with the stories.
        request: A get.
        entries: int64[n] of what it misses.
        held: int64[k] of what it will take from the device pool, and must not lose to these.
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
    """A copy from the device pool into host slots has ended: its blocks become visible, then waiters go on."""
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
