"""What the mind does between requests, a bounded slice at a time: reap, reclaim, drain. Pure.

Called by the planner after every verb and result while something is due. Each step touches at most a few
hundred blocks, so that no lock hold grows with the size of the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tierstore.control.jobs import JobRecord
from tierstore.types import DiscardJob

if TYPE_CHECKING:
    from tierstore.control.mind import Mind
    from tierstore.control.requests import Life
    from tierstore.types import Int32Array, Plan

__all__ = ["Upkeep"]

_REAP_ENTRIES = 512
"""Directory entries looked at in one reaping step."""


class Upkeep:
    """Old generations to reap, files to reclaim, slabs to drain."""

    def __init__(self, mind: Mind) -> None:
        self._mind = mind
        self._reaping: list[tuple[Life, int]] = []

    def reap(self, life: Life) -> None:
        """Drop every block of a generation that is over, from the next steps on."""
        self._reaping.append((life, 0))

    @property
    def due(self) -> bool:
        """Whether a step might get something done."""
        ssd = self._mind.ssd
        return bool(self._reaping) or self._mind.host.draining or (ssd is not None and ssd.reclaiming)

    def step(self, plan: Plan) -> bool:
        """Do one bounded slice of what is due; True while there is more that can be done now."""
        mind = self._mind
        more = self._reap_step()
        mind.host.drain()
        if mind.ssd is not None and mind.ssd.reclaiming:
            file = mind.ssd.reclaim()
            if file is not None:
                job = DiscardJob(mind.jobs.next_id(), file)
                mind.jobs.open(JobRecord(job))
                plan.jobs.append(job)
            more = more or mind.ssd.forgetting
        return more

    def _reap_step(self) -> bool:
        if not self._reaping:
            return False
        life, start = self._reaping[0]
        directory = self._mind.directory
        entries = directory.held(start, start + _REAP_ENTRIES)
        self.discard(life, entries[directory.index.generation[entries] == life.number])
        if start + _REAP_ENTRIES >= directory.high_water:
            self._reaping.pop(0)
        else:
            self._reaping[0] = (life, start + _REAP_ENTRIES)
        return bool(self._reaping)

    def discard(self, life: Life, entries: Int32Array) -> None:
        """Make held entries unknown at once; what is pinned or filling is freed when its copy ends."""
        if not len(entries):
            return
        mind = self._mind
        mind.directory.detach(entries)
        mind.host.discard(life.slot_class, entries)
        if mind.ssd is not None:
            mind.ssd.discard(entries)
        mind.directory.release(entries)
