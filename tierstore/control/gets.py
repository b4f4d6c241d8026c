"""The story of a get: pin READY blocks, read blocks on SSD, join copies in flight, load in prefix order.

    open:     pin READY blocks; reserve slots for blocks on SSD and read them; join FILLING blocks; stop at
              the first miss. Blocks in the device pool are loaded from there, or copied to host slots for a
              lease. With direct reads SSD blocks are read into the device pool, if it has room for all of them
    arrived:  a read or store that the get waited for has ended: pin its blocks, or stop before the first lost one
    advance:  load the run of ready blocks that starts at the frontier
    loaded:   unpin, count as used; resolve when no wanted block is left

Short of slots, the get is shortened; it never waits for room. Pure; called by the planner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.copies import bring_back, copy_pages, read_blocks
from tierstore.control.directory import UNREADABLE
from tierstore.control.entry import State
from tierstore.control.near_copies import coming_near, keep_near, slots_near
from tierstore.control.requests import leading_run
from tierstore.metrics import Metric
from tierstore.types import CopyJob, Extents, Outcome, Priority, TierName

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.control.mind import Mind
    from tierstore.control.requests import JobRecord, Request
    from tierstore.control.write_back import WriteBack
    from tierstore.types import Int64Array, Plan, UInt8Array

__all__ = ["Gets"]

_POOLED, _COMING = 4, 5
"""Replace the host state of blocks that the device pool holds, or is filling; not members of `State`."""


class Gets:
    """The story of a get, and of the loads and reads that serve it."""

    verb = "get"

    def __init__(self, mind: Mind, write_back: WriteBack) -> None:
        self._mind = mind
        self._write_back = write_back

    def open(self, request: Request, hi: int, plan: Plan, now: float) -> None:
        """Plan blocks [request.opened, hi)."""
        mind, lo, life = self._mind, request.opened, request.life
        entries = mind.directory.find(life.number, request.keys[lo:hi])
        host, ssd = mind.states(entries)
        pooled = mind.in_device_pool(entries)
        run = leading_run(mind.usable(entries, host, ssd) | pooled)
        if mind.device is not None and request.far is TierName.DEVICE:
            host[pooled] = _POOLED
            host[coming_near(mind, request, entries) & (host == State.ABSENT)] = _COMING
        ready = (host[:run] == State.READY).nonzero()[0]
        if len(ready):
            mind.host.pin(life.slot_class, entries[ready])
        missing = (host[:run] == State.ABSENT).nonzero()[0]
        held = entries[:run][host[:run] == _POOLED]
        near = slots_near(mind, request, entries[missing], held) if len(missing) else None
        if near is not None:
            assert mind.device is not None
            mind.device.occupy(entries[missing], near)
        elif len(missing):
            pages = mind.host.take(life.slot_class, len(missing), again=True)
            if len(pages) < len(missing):
                pages, run = self._shift(life.slot_class, entries, ready, missing, pages)
                missing, ready = missing[: len(pages)], ready[ready < run]
            mind.host.occupy(entries[missing], pages)
        request.entries[lo : lo + run] = entries[:run]
        request.ready[lo + ready] = True
        self._count_hits(request, entries[:run], host[:run], ssd[:run], pooled[:run])
        mind.host.prefetched.used(life.slot_class, entries[ready])
        if len(ready) < run:
            self._take_pooled(request, lo + (host[:run] == _POOLED).nonzero()[0])
            for state, pool in ((State.FILLING, TierName.HOST), (_COMING, TierName.DEVICE_POOL)):
                filling = (host[:run] == state).nonzero()[0]
                if len(filling):
                    mind.lift(mind.jobs.join(pool, entries[filling], request, lo + filling), plan)
            if near is not None:
                read_blocks(mind, request, lo + missing, TierName.DEVICE_POOL, plan, priority=Priority.GET)
            elif len(missing):
                self._fetch(request, lo + missing, pooled[missing], plan)
        request.opened = hi
        if run < hi - lo:
            request.stop = request.opened = lo + run
        self._advance(request, plan)

    def _fetch(self, request: Request, positions: Int64Array, pooled: NDArray[np.bool_], plan: Plan) -> None:
        """Fill the slots taken for these blocks: from the device pool if it holds a block, else from SSD."""
        if np.count_nonzero(pooled):
            bring_back(self._mind, request, positions[pooled], plan)
        if not pooled.all():
            read_blocks(self._mind, request, positions[~pooled], TierName.HOST, plan, priority=Priority.GET)

    def _take_pooled(self, request: Request, positions: Int64Array) -> None:
        """Pin blocks in the device pool, where they are READY, whatever their state in the host pool."""
        if len(positions):
            assert self._mind.device is not None
            self._mind.device.pin(request.life.device_class, request.entries[positions])
            request.ready[positions] = request.pooled[positions] = True
            self._mind.host.prefetched.used(request.life.slot_class, request.entries[positions])

    def _give_back(self, request: Request, positions: Int64Array) -> None:
        """Unpin READY blocks, each in the pool where this request pinned it."""
        entries = request.entries[positions]
        if self._mind.device is not None:
            pooled = request.pooled[positions]
            self._mind.device.unpin(request.life.device_class, entries[pooled])
            entries = entries[~pooled]
        if len(entries):
            self._mind.host.unpin(request.life.slot_class, entries)
        request.ready[positions] = False

    def _shift(
        self, slot_class: int, entries: Int64Array, ready: Int64Array, missing: Int64Array, pages: Int64Array
    ) -> tuple[Int64Array, int]:
        """Shorten a get that is short of slots: unpin its last READY blocks, so that its first missing ones get slots.

        Returns:
            Slots for the first missing blocks, and the position at which the get now stops.
        """
        host, behind = self._mind.host, len(ready) - np.searchsorted(ready, missing)
        fits = int(np.count_nonzero(np.arange(1, len(missing) + 1) <= len(pages) + behind))
        stop = int(missing[len(pages)])
        if fits > len(pages):
            stop = int(missing[fits - 1]) + 1
            host.unpin(slot_class, entries[ready[ready >= stop]])
            pages = np.concatenate([pages, host.take(slot_class, fits - len(pages))])
            ready = ready[ready < stop]
            stop = stop if len(pages) == fits else int(missing[len(pages)])
        host.unpin(slot_class, entries[ready[ready >= stop]])
        return pages, stop

    def _count_hits(
        self, request: Request, entries: Int64Array, host: UInt8Array, ssd: UInt8Array, pooled: NDArray[np.bool_]
    ) -> None:
        """Count every block once, by the tier it comes from; a FILLING one that SSD does not hold counts as host."""
        metrics, block_tokens = self._mind.metrics, request.life.generation.layout.block_tokens
        if request.opened == 0:
            metrics.add(Metric.GET_TOKENS, len(request) * block_tokens)
        if not len(entries):
            return
        hits, num_host, num_pooled = self._mind.directory.hits, int(np.count_nonzero(host == State.READY)), 0
        hits[entries] = np.minimum(hits[entries], 0xFFFE) + 1
        num_ssd = len(entries) - num_host
        if num_ssd:
            from_pool = pooled & ((host == _POOLED) | (host == State.ABSENT))
            num_pooled = int(np.count_nonzero(from_pool))
            num_ssd = int(np.count_nonzero((host != State.READY) & ~from_pool & (ssd == State.READY)))
            num_host = len(entries) - num_ssd - num_pooled
        tiers = ((TierName.DEVICE_POOL, num_pooled), (TierName.HOST, num_host), (TierName.SSD, num_ssd))
        for tier, num_blocks in tiers:
            if num_blocks:
                metrics.add(Metric.HIT_BLOCKS, num_blocks, tier)
                metrics.add(Metric.HIT_TOKENS, num_blocks * block_tokens, tier)

    def arrived(self, request: Request, positions: Int64Array, record: JobRecord, plan: Plan, now: float) -> None:
        """Pin the blocks that came; stop before the first that did not."""
        mind = self._mind
        entries = request.entries[positions]
        near = isinstance(record.job, CopyJob) and record.job.dst is TierName.DEVICE_POOL
        came = (mind.directory.device if near else mind.directory.host).state[entries] == State.READY
        wanted = came & (positions < request.stop)
        if near:
            self._take_pooled(request, positions[wanted])
        elif np.count_nonzero(wanted):
            mind.host.pin(request.life.slot_class, entries[wanted])
            request.ready[positions[wanted]] = True
            mind.host.prefetched.used(request.life.slot_class, entries[wanted])
        if np.count_nonzero(came) < len(came):
            lost = positions[~came]
            losses = record.losses(request.entries[lost])
            told = (losses == Outcome.CANCELLED) & (lost >= request.stop)  # withdrawn, for it was given up already
            request.outcomes[lost[~told]] = losses[~told]
            self._stop_at(request, int(lost.min()))
        self._advance(request, plan)

    def loaded(self, record: JobRecord, outcomes: UInt8Array, plan: Plan, now: float) -> None:
        """A copy into the caller's memory has ended."""
        mind, request, positions = self._mind, record.request, record.positions
        assert request is not None and positions is not None
        entries, slot_class = request.entries[positions], request.life.slot_class
        request.moving -= 1
        request.outcomes[positions] = outcomes
        mind.host.touch(slot_class, entries, now)
        if mind.device is not None:
            mind.device.touch(request.life.device_class, entries)
        if mind.ssd is not None:
            self._write_back.offer(request, self._only_in_host(positions, entries), plan, now)
        self._give_back(request, positions)
        if not np.count_nonzero(outcomes):
            keep_near(mind, request, positions, plan, now)
        else:
            keep_near(mind, request, positions[outcomes == Outcome.OK], plan, now)
            self._stop_at(request, int(positions[outcomes != Outcome.OK].min()))
        self._advance(request, plan)

    def _only_in_host(self, positions: Int64Array, entries: Int64Array) -> Int64Array:
        """Positions of blocks READY in host memory and ABSENT on SSD: a use may have made them worth writing."""
        directory = self._mind.directory
        only: Int64Array = positions[
            (directory.ssd.state[entries] == State.ABSENT) & (directory.host.state[entries] == State.READY)
        ]
        return only

    def read(self, record: JobRecord, job: CopyJob, outcomes: UInt8Array, plan: Plan, now: float) -> None:
        """A read from SSD into a pool has ended: verified blocks become READY, then waiters go on."""
        mind, entries = self._mind, job.entries
        assert mind.ssd is not None
        life, near = record.waiters[0][0].life, mind.device if job.dst is TierName.DEVICE_POOL else None
        gone = (mind.directory.host if near is None else mind.directory.device).state[entries] == State.GONE
        good, bad = entries[(outcomes == Outcome.OK.value) & ~gone], entries[(outcomes != Outcome.OK.value) & ~gone]
        if near is not None:
            near.filled(life.device_class, entries, good=good)
        else:
            mind.host.ready(life.slot_class, good, now)
        if job.priority is Priority.PREFETCH:
            mind.host.prefetched.came(life.slot_class, good)
            mind.host.prefetched.inflight_nbytes -= len(entries) * life.block_nbytes
        mind.wake(record, plan, now)
        assert isinstance(job.src_locations, Extents), f"job {job.job_id} does not read from SSD"
        mind.ssd.unpin(entries, job.src_locations.file)
        mind.ssd.count_read(good)
        if len(good) < len(entries):
            if near is None:
                mind.host.failed(life.slot_class, bad)
                mind.host.unpin(life.slot_class, entries[gone])
            spoilt = (outcomes == Outcome.CORRUPT) | (outcomes == Outcome.MISS)  # or its file has gone
            lost = entries[spoilt | self._unreadable(entries, outcomes)]
            mind.ssd.discard(lost[mind.directory.ssd.state[lost] == State.READY])
            mind.directory.release(entries)

    def _unreadable(self, entries: Int64Array, outcomes: UInt8Array) -> NDArray[np.bool_]:
        """Blocks that a healthy disk failed to read twice in a row: they are dropped, to be written elsewhere."""
        flags, failed = self._mind.directory.flags, outcomes == Outcome.IO_ERROR
        again: NDArray[np.bool_] = failed & (flags[entries] & UNREADABLE > 0) & self._mind.health.reads_well
        flags[entries[failed]] |= UNREADABLE
        return again

    def shorten(self, request: Request, outcome: Outcome, plan: Plan, now: float) -> None:
        """Load the run of ready blocks at the frontier and give up the rest; withdraw reads nobody else waits for."""
        unfinished = np.arange(request.frontier, len(request))
        end = request.frontier + self._ready_run(request)
        request.outcomes[unfinished[unfinished >= end]] = outcome
        self._stop_at(request, end)
        request.opened = max(request.opened, request.stop)
        self._advance(request, plan)
        self._mind.withdraw(plan)

    def _stop_at(self, request: Request, stop: int) -> None:
        """Give up the blocks from `stop` on, and unpin those that are pinned."""
        if stop >= request.stop:
            return
        request.stop = stop
        pinned = stop + request.ready[stop:].nonzero()[0]
        pinned = pinned[pinned >= request.frontier]
        self._give_back(request, pinned)

    def _ready_run(self, request: Request) -> int:
        return leading_run(request.ready[request.frontier : min(request.stop, request.opened)])

    def _advance(self, request: Request, plan: Plan) -> None:
        run = self._ready_run(request)
        if run:
            positions = np.arange(request.frontier, request.frontier + run)
            request.in_pieces = request.in_pieces or request.frontier > 0
            request.frontier += run
            parts = [(TierName.HOST, positions)]
            if self._mind.device is not None:
                pooled = request.pooled[positions]
                parts = [(TierName.HOST, positions[~pooled]), (TierName.DEVICE_POOL, positions[pooled])]
            for pool, part in parts:
                if len(part):
                    copy_pages(self._mind, request, part, load=True, plan=plan, pool=pool)
        if request.frontier >= request.stop:
            plan.handed.append((request.request_id, request.stop))
            if not request.moving:
                self._mind.resolve(request, plan)
