"""How blocks reach SSD: offered once they are in host memory, admitted, written, and pinned until the write ends.

A write-back beyond its budget is dropped and counted. A durable put bypasses admission; the pool alone bounds it.
Blocks that SSD has no room for are parked in host memory while a file is reclaimed, and blocks admitted meanwhile
are parked behind them. Pure; called by the stories of puts and gets and by the planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.chains import Chains
from tierstore.control.copies import write_blocks
from tierstore.control.counting import count_written
from tierstore.control.directory import AGAIN, COUNTED, PARKED
from tierstore.control.entry import State
from tierstore.control.parking import Parking
from tierstore.control.write_budget import WriteBudget
from tierstore.policy.base import Offer
from tierstore.types import Outcome, TierName

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.control.mind import Mind
    from tierstore.control.requests import JobRecord, Request
    from tierstore.policy.base import AdmissionPolicy
    from tierstore.types import CopyJob, CopyResult, Int64Array, Plan

__all__ = ["WriteBack"]


class WriteBack:
    """Decides what is written to SSD, and takes in the results.

    Attributes:
        chains: The predecessor of each block.
        parking: Blocks that wait for room on SSD.
    """

    def __init__(self, mind: Mind, admission: AdmissionPolicy) -> None:
        self._mind = mind
        self._admission = admission
        self._budget = WriteBudget(mind.limits.write_nbytes_per_day)
        self.chains = Chains(mind.directory)
        self.parking = Parking(mind)

    @property
    def asks_when_leaving(self) -> bool:
        """Whether blocks are also offered just before they are evicted."""
        return self._mind.ssd is not None and self._admission.asks_when_leaving

    def offer(self, request: Request, positions: Int64Array, plan: Plan, now: float, *, leaving: bool = False) -> None:
        """Write READY blocks back that SSD does not hold and admission wants; a durable put waits for the write.

        Called when a put has filled a block, when a put finds it held, and when a get has used it: a block not
        admitted at first may be admitted now. Also for blocks about to be evicted (`leaving`), if the admission
        policy asks for them.
        """
        mind, durable = self._mind, request.durable and not request.done
        if mind.ssd is None or not len(positions):
            return
        ssd = mind.directory.ssd.state[request.entries[positions]]
        if durable:
            filling = positions[ssd == State.FILLING]
            mind.jobs.join(TierName.SSD, request.entries[filling], request, filling)
            request.outcomes[positions[ssd == State.GONE]] = Outcome.REJECTED
        wanted = positions[mind.ssd.wanting(request.entries[positions])]
        if not mind.health.writes_on:
            mind.not_stored("ssd_off", len(wanted))
            if durable:
                request.outcomes[wanted] = Outcome.REJECTED
            return
        if not durable:
            wanted = self._admit(request, wanted, now, leaving=leaving)
        if not len(wanted):
            return
        if self.parking and not durable:
            self.parking.park(request, wanted)
            return
        job = write_blocks(mind, request, wanted, plan)
        if durable:
            job.waiters.append((request, wanted))
            request.awaiting += len(wanted)

    def _admit(self, request: Request, wanted: Int64Array, now: float, *, leaving: bool) -> Int64Array:
        """The blocks that the policy admits, whose predecessors are written too, and that fit queue and budget."""
        mind, block_nbytes = self._mind, request.life.block_nbytes
        if self.parking:  # parked blocks were admitted, and count, already
            wanted = wanted[mind.directory.flags[request.entries[wanted]] & PARKED == 0]
        if not len(wanted):
            return wanted
        entries = request.entries[wanted]
        hits, again = mind.directory.hits[entries].astype(np.int32), mind.directory.flags[entries] & AGAIN > 0
        offer = Offer(entries, hits, again, leaving, TierName.SSD, block_nbytes)
        admits = np.array(self._admission.admit(offer), np.bool_)
        admitted = wanted[admits]
        if leaving or not self.asks_when_leaving:  # else it is asked again
            self._drop("not_admitted", entries[~admits])
        if not self.parking:
            admitted = self._rooted(request, admitted)
        room = (mind.limits.write_inflight_nbytes_max - mind.write_inflight_nbytes) // block_nbytes
        fits = max(0, min(len(admitted), room))
        self._drop("write_queue_full", request.entries[admitted[fits:]])
        admitted = admitted[:fits]
        if not self.parking:
            return self._paid(request, admitted, now)
        # A predecessor may be parked: that is checked, and the budget paid, when they are written.
        affordable = self._budget.affords(fits, block_nbytes, now)
        self._drop("write_budget", request.entries[admitted[affordable:]])
        return admitted[:affordable]

    def _paid(self, request: Request, positions: Int64Array, now: float) -> Int64Array:
        """The blocks that the write budget pays for; they must be written now."""
        paid = self._budget.take(len(positions), request.life.block_nbytes, now)
        self._drop("write_budget", request.entries[positions[paid:]])
        return positions[:paid]

    def _rooted(self, request: Request, positions: Int64Array) -> Int64Array:
        """The blocks whose predecessor is on SSD, on its way there, or among these before them; or that have none."""
        rooted = self.chains.rooted(request.entries[positions])
        self._drop("head_missing", request.entries[positions[~rooted]])
        return positions[rooted]

    def _drop(self, reason: str, entries: Int64Array) -> None:
        """Count blocks that are not written; once for each stay in host memory, if they are offered repeatedly."""
        if not len(entries):
            return
        if self.asks_when_leaving:
            flags = self._mind.directory.flags
            entries = entries[flags[entries] & COUNTED == 0]
            flags[entries] |= COUNTED
        self._mind.not_stored(reason, len(entries))

    def written(self, record: JobRecord, job: CopyJob, result: CopyResult, plan: Plan, now: float) -> None:
        """A write to SSD has ended: its blocks are READY there, and unpinned in the host pool."""
        mind, entries, outcomes = self._mind, job.entries, result.outcomes
        outcomes = record.outcomes = np.where(outcomes == Outcome.CANCELLED.value, np.uint8(Outcome.REJECTED), outcomes)
        request, ssd = record.request, mind.ssd
        assert request is not None and ssd is not None
        gone = mind.directory.ssd.state[entries] == State.GONE
        good = (outcomes == Outcome.OK.value) & ~gone
        all_good = np.count_nonzero(good) == len(good)
        if result.dst_locations is not None:
            ssd.written(entries[good], result.dst_locations.rows(good))
        if not all_good:
            ssd.failed(entries[~good & ~gone])
            ssd.drop_write(entries[gone])
        if result.dst_free_nbytes is not None:
            ssd.free_nbytes = result.dst_free_nbytes
            record.retry = ssd.reclaiming
        count_written(mind, result, "first")
        mind.write_inflight_nbytes -= len(entries) * request.life.block_nbytes
        mind.wake(record, plan, now)  # durable puts park their refused blocks first; the others are parked below
        refused = (outcomes == Outcome.REJECTED) & ~gone
        if np.count_nonzero(refused):
            self._refused(record, entries, refused)
        mind.host.unpin(request.life.slot_class, entries)
        mind.directory.release(entries)

    def _refused(self, record: JobRecord, entries: Int64Array, refused: NDArray[np.bool_]) -> None:
        """A write found no room for some of its blocks: park those that no durable put has parked."""
        if not record.retry or not self._mind.health.writes_on:
            self._mind.not_stored("write_refused", int(np.count_nonzero(refused)))
            return
        assert record.request is not None and record.positions is not None
        theirs = [put.entries[positions] for put, positions in record.waiters if put.durable and not put.done]
        if theirs:
            refused = refused & ~np.isin(entries, np.concatenate(theirs))
        if np.count_nonzero(refused):
            self.parking.park_refused(record, record.request, record.positions[refused], durable=False)

    def unpark(self, plan: Plan, now: float) -> list[Request]:
        """Write parked batches that are due; returns the durable puts that go on."""
        mind = self._mind
        resumed: list[Request] = []
        for batch in self.parking.take():
            request, positions = batch.request, batch.positions
            entries = request.entries[positions]
            there = mind.directory.host.state[entries] == State.READY
            mind.directory.release(entries[~there])
            if not batch.durable:
                self._write_parked(request, positions[there], plan, now, paid=batch.num_gone > 0)
            elif request.durable and not request.done:
                request.outcomes[positions[~there]] = Outcome.CANCELLED
                self.offer(request, positions[there], plan, now)
                resumed.append(request)
            writing = entries[there & (mind.directory.ssd.state[entries] == State.FILLING)]
            self.parking.went_on(batch, mind.jobs.fillers(TierName.SSD, writing))
        return resumed

    def _write_parked(self, request: Request, positions: Int64Array, plan: Plan, now: float, *, paid: bool) -> None:
        """Write blocks, admitted when they were parked, that SSD still does not hold."""
        mind = self._mind
        assert mind.ssd is not None
        wanted = positions[mind.ssd.wanting(request.entries[positions])]
        if not mind.health.writes_on:
            mind.not_stored("ssd_off", len(wanted))
            return
        rooted = self._rooted(request, wanted)
        if not paid:
            rooted = self._paid(request, rooted, now)
        if len(rooted):
            write_blocks(mind, request, rooted, plan)
