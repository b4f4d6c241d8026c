"""The story of a put: copy new blocks into host slots, write them back afterwards, sync if it must be durable.

    open:     blocks already READY are done; FILLING ones are joined; of the new ones the longest leading part
              that fits gets slots and a store job; the rest is REJECTED
    stored:   READY, the put resolves; admitted blocks are written back, pinned until the write has ended
    written:  readable on SSD; durable once a sync that began later has ended
    durable:  a durable put waits for its writes and then for one sync

`write_back` decides what is written. Pure; called by the planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.copies import copy_pages
from tierstore.control.directory import AGAIN, CHECKED
from tierstore.control.entry import State
from tierstore.control.index import as_keys
from tierstore.control.near_copies import keep_near
from tierstore.control.window import NEVER
from tierstore.types import CopyJob, Outcome, SyncJob, TierName

if TYPE_CHECKING:
    from tierstore.control.mind import Mind
    from tierstore.control.requests import JobRecord, Request
    from tierstore.control.write_back import WriteBack
    from tierstore.types import Int64Array, Plan, UInt8Array

__all__ = ["Puts"]

_OK = Outcome.OK.value


class Puts:
    """The story of a put, and of the stores that serve it."""

    verb = "put"

    def __init__(self, mind: Mind, write_back: WriteBack) -> None:
        self._mind = mind
        self._write_back = write_back

    def open(self, request: Request, hi: int, plan: Plan, now: float) -> None:
        """Plan blocks [request.opened, hi)."""
        mind, lo, life = self._mind, request.opened, request.life
        if request.durable and (mind.ssd is None or not mind.health.writes_on):
            self._refuse(request, plan)
            return
        entries = mind.directory.find(life.number, request.keys[lo:hi])
        host = mind.in_host(entries)
        held = (host == State.READY).nonzero()[0]
        if len(held):
            mind.host.pin(life.slot_class, entries[held])
        taken = self._take(request, entries, (host == State.ABSENT).nonzero()[0])
        if len(held):
            mind.host.touch(life.slot_class, entries[held], now, used=False)
            request.outcomes[lo + held] = _OK
            request.in_pieces = request.in_pieces or lo > 0
            request.ready[lo + held] = True
        request.entries[lo:hi] = entries
        if mind.ssd is not None:
            self._write_back.chains.link(request, lo, entries)
            mind.directory.flags[entries[held]] |= AGAIN
        request.opened = hi
        self._release(request)
        if len(taken):
            request.frontier += len(taken)
            copy_pages(mind, request, lo + taken, load=False, plan=plan)
        if request.planned:
            plan.handed.append((request.request_id, request.frontier))
        filling = (host == State.FILLING).nonzero()[0]
        if len(filling):
            self._join(request, lo + filling, plan)
        if len(held):
            self._write_back.offer(request, lo + held, plan, now)
        self._settle(request, plan)

    def _join(self, request: Request, filling: Int64Array, plan: Plan) -> None:
        """Join the jobs that fill these blocks; reject those that wait for a read from an SSD that is off."""
        mind = self._mind
        stuck = mind.stuck(request.entries[filling])
        request.outcomes[filling[stuck]] = Outcome.REJECTED
        filling = filling[~stuck]
        if len(filling):
            mind.lift(mind.jobs.join(TierName.HOST, request.entries[filling], request, filling), plan)

    def _refuse(self, request: Request, plan: Plan) -> None:
        """Reject the rest of a durable put: nothing can be made durable without an SSD tier that takes writes."""
        request.outcomes[request.opened :] = Outcome.REJECTED
        request.opened = request.stop
        self._release(request)
        self._settle(request, plan)

    def _take(self, request: Request, entries: Int64Array, missing: Int64Array) -> Int64Array:
        """Take slots and entries for the leading part of the missing blocks; reject the rest."""
        mind, lo, life = self._mind, request.opened, request.life
        if not len(missing):
            return missing
        unknown = entries[missing] < 0
        fits, num_new = len(missing), int(np.count_nonzero(unknown))
        if num_new > mind.directory.room:
            mind.host.forget(life.slot_class, num_new - mind.directory.room)
        if num_new > mind.directory.room:
            fits = int(np.searchsorted(np.cumsum(unknown), mind.directory.room, side="right"))
            mind.not_stored("index_full", len(missing) - fits)
        pages = self._slots(request, lo + missing[:fits])
        if len(pages) < fits:
            mind.not_stored("pool_full", fits - len(pages))
            fits = len(pages)
        if fits < len(missing):
            request.outcomes[lo + missing[fits:]] = Outcome.REJECTED
            missing, unknown = missing[:fits], unknown[:fits]
        new = missing[unknown]
        if len(new):
            entries[new] = added = mind.directory.add(life.number, request.keys[lo + new])
            mind.directory.depth[added] = np.minimum(self._depth(request) + lo + new, 0xFFFF)
        mind.host.occupy(entries[missing], pages)
        return missing

    def _slots(self, request: Request, positions: Int64Array) -> Int64Array:
        """Slots for the leading part of these blocks.

        Without an SSD tier, an evicted block is lost. Then a block that no waiting request needs takes no slot from
        the look-ahead window, and one that is needed takes slots only from blocks needed later.
        """
        mind, life, count = self._mind, request.life, len(positions)
        window = mind.directory.window
        if mind.ssd is not None or not window.num_blocks:
            return mind.host.take(life.slot_class, count)
        turns = window.turns(life.number, request.keys[positions])
        pages = mind.host.take(life.slot_class, count, after_turn=NEVER)
        short = int(np.count_nonzero(turns)) - len(pages)
        if short > 0:
            pages = np.concatenate([pages, mind.host.take(life.slot_class, short, after_turn=int(turns.max()))])
        return pages

    def _release(self, request: Request) -> None:
        """Unpin the blocks once the whole put is planned; until then its last blocks must not evict its first."""
        held = request.ready.nonzero()[0]
        if request.planned and len(held):
            request.ready[held] = False
            self._mind.host.unpin(request.life.slot_class, request.entries[held])

    def _depth(self, request: Request) -> int:
        """Blocks before the request's first one in its chain; 0 if the directory does not hold its parent."""
        if request.depth < 0:
            directory, parent = self._mind.directory, request.parents[:1]
            entry = int(directory.find(request.life.number, as_keys(parent))[0]) if parent.any() else -1
            request.depth = int(directory.depth[entry]) + 1 if entry >= 0 else 0
        return request.depth

    def stored(self, record: JobRecord, job: CopyJob, outcomes: UInt8Array, plan: Plan, now: float) -> None:
        """A copy out of the caller's memory has ended."""
        mind, request, positions, entries = self._mind, record.request, record.positions, job.entries
        assert request is not None and positions is not None
        slot_class = request.life.slot_class
        gone = mind.directory.host.state[entries] == State.GONE
        request.moving -= 1
        request.in_pieces = request.in_pieces or int(positions[0]) > 0
        request.outcomes[positions] = outcomes
        if record.checksums is not None:
            mind.directory.host_checksum[entries] = record.checksums
            mind.directory.flags[entries] |= CHECKED
        bad = np.count_nonzero(outcomes) + np.count_nonzero(gone)
        if bad:
            request.outcomes[positions[gone]] = Outcome.CANCELLED
            good = (outcomes == _OK) & ~gone
            positions, entries = positions[good], entries[good]
        mind.host.ready(slot_class, entries, now)
        if not request.planned:
            mind.host.pin(slot_class, entries)
            request.ready[positions] = True
        self._write_back.offer(request, positions, plan, now)
        mind.wake(record, plan, now)
        keep_near(mind, request, positions, plan, now)
        if bad:
            mind.host.failed(slot_class, job.entries[~good & ~gone])
            mind.host.unpin(slot_class, job.entries[gone])
            mind.directory.release(job.entries)
        self._settle(request, plan)

    def arrived(self, request: Request, positions: Int64Array, record: JobRecord, plan: Plan, now: float) -> None:
        """A store or read that was joined, a write, or the sync of a durable put has ended."""
        mind, job = self._mind, record.job
        if isinstance(job, SyncJob):
            durable = request.outcomes == Outcome.OK
            if (ended := request.synced(record)) is not Outcome.OK:
                request.outcomes[durable] = ended
            else:  # a put larger than the SSD: its first blocks were reclaimed to make room for its last ones
                assert mind.ssd is not None
                lasting = mind.ssd.lasting(mind.directory.find(request.life.number, request.keys))
                request.outcomes[durable & ~lasting] = Outcome.REJECTED
            mind.resolve(request, plan)
            return
        assert isinstance(job, CopyJob)
        entries = request.entries[positions]
        if job.dst is TierName.SSD:
            there = mind.directory.ssd.state[entries] == State.READY
        else:
            there = mind.directory.host.state[entries] == State.READY
        request.outcomes[positions[there]] = Outcome.OK
        lost = positions[~there]
        if len(lost):
            request.outcomes[lost] = record.losses(request.entries[lost])
            if record.retry and request.durable and mind.health.writes_on:
                self._retry(record, request, lost)
        if request.durable and job.dst is TierName.HOST:
            self._write_back.offer(request, positions[there], plan, now)
        self._settle(request, plan)

    def _retry(self, record: JobRecord, request: Request, lost: Int64Array) -> None:
        """Park blocks of a durable put that a full SSD refused, until the file being reclaimed is gone."""
        entries = request.entries[lost]
        directory = self._mind.directory
        here = (directory.host.state[entries] == State.READY) & (directory.ssd.state[entries] == State.ABSENT)
        refused = lost[here & (request.outcomes[lost] == Outcome.REJECTED)]
        if len(refused):
            request.outcomes[refused] = Outcome.OK
            self._write_back.parking.park_refused(record, request, refused, durable=True)

    def unpark(self, plan: Plan, now: float) -> None:
        """Offer parked blocks again once they are due, and continue their durable puts."""
        for request in self._write_back.unpark(plan, now):
            self._settle(request, plan)

    def shorten(self, request: Request, outcome: Outcome, plan: Plan, now: float) -> None:
        """Plan nothing more; wait only for the copies out of the caller's memory."""
        unknown = (request.outcomes == Outcome.MISS).nonzero()[0]
        request.outcomes[unknown] = outcome
        if request.durable:
            request.outcomes[request.outcomes == Outcome.OK] = outcome
        request.stop = request.opened
        self._release(request)
        request.awaiting = 0
        request.durable = request.syncing = False
        self._settle(request, plan)

    def _settle(self, request: Request, plan: Plan) -> None:
        if request.done or not request.planned or request.moving or request.awaiting > 0 or request.syncing:
            return
        if request.durable and (request.outcomes == Outcome.OK).any():
            request.syncing = True
            self._mind.sync_job(request, plan)
            return
        self._mind.resolve(request, plan)
