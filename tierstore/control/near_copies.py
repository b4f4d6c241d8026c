"""How copies come into the device pool: behind a copy of a request, from the caller's pages, where they are admitted.

    keep_near:  a put has stored blocks, or a get has loaded them: plan their copy on the device, which crosses no link
    kept_near:  it has ended: READY in the device pool, or not there; the request goes on

Nobody is promised such a copy: for want of a slot, of admission or of time it is not made. Pure; called by stories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.entry import State
from tierstore.types import CopyJob, Outcome, TierName

if TYPE_CHECKING:
    from tierstore.control.jobs import JobRecord
    from tierstore.control.mind import Mind
    from tierstore.control.requests import Request
    from tierstore.types import Int64Array, Plan, UInt8Array

__all__ = ["keep_near", "kept_near"]


def keep_near(mind: Mind, request: Request, positions: Int64Array, plan: Plan, now: float) -> None:
    """Copy blocks that a copy of the request has just moved into the device pool too.

    The request waits for it, since its pages are the caller's; one that is past its deadline does without.
    """
    room = mind.device
    if room is None or request.far is not TierName.DEVICE or now >= request.deadline:
        return
    positions = positions[mind.directory.host.state[request.entries[positions]] == State.READY]
    positions = positions[room.admits(request.entries[positions], request.life.block_nbytes)]
    pages = room.take(request.life.device_class, len(positions))
    positions = positions[: len(pages)]
    if len(positions):
        room.occupy(request.entries[positions], pages)
        mind.device_job(request, positions, load=False, plan=plan, pool=TierName.DEVICE_POOL)


def kept_near(mind: Mind, record: JobRecord, outcomes: UInt8Array, plan: Plan, now: float) -> None:
    """A copy into the device pool has ended: its request goes on, however that went."""
    job, request = record.job, record.request
    assert mind.device is not None and request is not None and isinstance(job, CopyJob)
    mind.device.filled(request.life.device_class, job.entries, good=job.entries[outcomes == Outcome.OK])
    request.moving -= 1
    request.story.arrived(request, np.empty(0, np.int64), record, plan, now)
