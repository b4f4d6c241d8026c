"""Work between requests, in bounded slices: unpark, reap, renew, clean, drain, reclaim. Pure.

The planner calls `step` after every verb and result while something is due. A step touches at most some
hundreds of blocks, so that the time the lock is held does not grow with the size of the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.cleaning import Cleaning
from tierstore.control.copies import rewrite_blocks
from tierstore.control.counting import count_written
from tierstore.control.entry import State
from tierstore.control.requests import JobRecord
from tierstore.metrics import Metric
from tierstore.types import DiscardJob, Extents, Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from tierstore.control.mind import Mind
    from tierstore.control.requests import Life
    from tierstore.control.write_back import WriteBack
    from tierstore.types import CopyJob, CopyResult, Int64Array, Plan

__all__ = ["Upkeep"]

_REAP_ENTRIES = 512
"""Directory entries looked at in one reaping step."""


class Upkeep:
    """Reaps old generations, reclaims chunk files, drains slabs, and calls what else runs between requests.

    Args:
        mind: Shared with the stories.
        lives: Every generation by its number; the planner's own mapping. A reaped one is removed from it.
        write_back: Writes blocks that are about to be evicted.
        unpark: Writes parked batches that are due.
    """

    def __init__(
        self, mind: Mind, lives: dict[int, Life], write_back: WriteBack, unpark: Callable[[Plan, float], None]
    ) -> None:
        self._mind = mind
        self._parking = write_back.parking
        self._unpark = unpark
        self._cleaning = Cleaning(mind, write_back, lives)
        self._lives = lives
        self._reaping: list[tuple[Life, int]] = []

    def reap(self, life: Life) -> None:
        """Drop every block of a generation that is over, from the next steps on."""
        self._reaping.append((life, 0))

    def reaps(self, life: Life) -> bool:
        """Whether a generation is over and its blocks are being dropped."""
        return any(life is other for other, _start in self._reaping)

    @property
    def due(self) -> bool:
        """Whether a step might have work to do."""
        ssd = self._mind.ssd
        return (
            bool(self._reaping)
            or self._parking.due
            or self._mind.ageing.due
            or self._cleaning.due
            or self._mind.host.draining
            or (ssd is not None and ssd.reclaiming)
        )

    def step(self, plan: Plan, now: float) -> bool:
        """Do one bounded slice of what is due; true if more can be done at once."""
        mind = self._mind
        self._unpark(plan, now)
        more = self._reap_step()
        mind.ageing.step(now)
        if not self._parking.due:  # else what was dropped just now would be parked again, and never end
            self._cleaning.step(plan, now)
        mind.host.drain()
        return self._reclaim_step(plan) or mind.ageing.due or self._parking.due or more

    def _reclaim_step(self, plan: Plan) -> bool:
        """Look at some of the leaving file's blocks; plan their rewrite, or the file's discard once it is empty."""
        mind = self._mind
        if mind.ssd is None or not mind.ssd.reclaiming:
            return False
        warm = mind.ssd.reclaim()
        generations = mind.directory.index.generation[warm]
        for number in dict.fromkeys(generations.tolist()):
            rewrite_blocks(mind, self._lives[number], warm[generations == number], plan)
        file = mind.ssd.take_empty()
        if file is not None:
            job = DiscardJob(mind.jobs.next_id(), file)
            mind.jobs.open(JobRecord(job))
            plan.jobs.append(job)
        return mind.ssd.forgetting

    def discarded(self, job: DiscardJob, result: CopyResult) -> None:
        """The discard of a file has ended, or its link refused it."""
        assert self._mind.ssd is not None
        if result.outcomes[0] == Outcome.REJECTED:
            self._mind.ssd.kept(job.file)
        else:
            self._mind.ssd.discarded(job.file, result.dst_free_nbytes)

    def settled(self, result: CopyResult) -> None:
        """Tombstones, a sync or a probe have ended: take in the tier's new files, free bytes and files in doubt."""
        ssd = self._mind.ssd
        if ssd is not None and result.dst_locations is not None:
            ssd.adopt_files([file for file in set(result.dst_locations.file.tolist()) if file >= 0])
        if ssd is not None and result.dst_free_nbytes is not None:
            ssd.free_nbytes = result.dst_free_nbytes
        if ssd is not None:
            ssd.doubt(result.in_doubt)

    def rewritten(self, job: CopyJob, result: CopyResult) -> None:
        """A rewrite has ended: blocks written are in their new file; the others are forgotten with the old one."""
        mind, entries = self._mind, job.entries
        assert mind.ssd is not None and isinstance(job.src_locations, Extents)
        there = mind.directory.ssd.state[entries] == State.READY
        good = there & (result.outcomes == Outcome.OK)
        mind.ssd.end_rewrite(entries, job.src_locations.file)
        if result.dst_locations is not None:
            mind.ssd.moved(entries[good], result.dst_locations.rows(good))
        mind.ssd.forget(entries[there & ~good])
        if result.dst_free_nbytes is not None:
            mind.ssd.free_nbytes = result.dst_free_nbytes
        mind.metrics.add(Metric.SSD_REWRITTEN_BLOCKS, int(np.count_nonzero(good)))
        count_written(mind, result, "again")
        mind.directory.release(entries)

    def _reap_step(self) -> bool:
        if not self._reaping:
            return False
        life, start = self._reaping[0]
        directory = self._mind.directory
        entries = directory.held(start, start + _REAP_ENTRIES)
        self.discard(life, entries[directory.index.generation[entries] == life.number])
        if start + _REAP_ENTRIES >= directory.high_water:
            self._reaping.pop(0)
            del self._lives[life.number]
        else:
            self._reaping[0] = (life, start + _REAP_ENTRIES)
        return bool(self._reaping)

    def discard(self, life: Life, entries: Int64Array) -> None:
        """Make held entries unknown at once; slots that are pinned or filling are freed when their copies end."""
        if not len(entries):
            return
        mind = self._mind
        mind.directory.detach(entries)
        mind.host.discard(life.slot_class, entries)
        if mind.device is not None:
            mind.device.discard(life.device_class, entries)
        if mind.ssd is not None:
            mind.ssd.discard(entries)
        mind.directory.release(entries)
