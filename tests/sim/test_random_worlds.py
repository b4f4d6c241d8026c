"""Whatever is asked, in whatever order jobs end and fail, the mind keeps its invariants and drains to nothing.

Two layouts share a small pool and a small SSD. After every job and verb `EngineWorld` checks the mind; its
bytes check that no copy reads a place that holds another block, and that a get's OK blocks were loaded. A
world that fails is named by its seed: ``pytest "tests/sim/test_random_worlds.py::test_...[7]"``.
"""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tierstore.control import device_room, host_room, lookahead, planner, ssd_room, upkeep
from tierstore.control.device_room import DevicePool
from tierstore.control.mind import Limits
from tierstore.control.slabs import SlotAllocator
from tierstore.metrics import Metric
from tierstore.policy.admission import AdmitAlways, AdmitContinued, AdmitLeaving, AdmitSecondHit
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.testing.sim_link import SimLink
from tierstore.transfer import engine, scheduling
from tierstore.transfer.base import num_outcomes
from tierstore.transfer.future import Transfer
from tierstore.types import PAGE_NBYTES, CopyJob, DiscardJob, Job, Outcome, Presence, SyncJob, TierName

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

SEEDS = range(16)
STEPS = 400
CHAINS = 7
CHAIN_BLOCKS = 14
WRITE_NBYTES_PER_DAY = 24 * 60 * PAGE_NBYTES
"""Worlds live a minute: they may write what an hour is worth, enough to reclaim files and less than they would."""


class RandomWorld:
    """One world, driven by one seed.

    Attributes:
        world: The engine.
        transfers: Every transfer begun.
        waiting: Session, layout and rank of requests that wait.
        num_queued: Requests that ever waited.
        layout_share: How much is of the second layout; a rare one's chunk file stays open until its turn to go.
        stopped: It drains.
    """

    def __init__(self, seed: int, *, ssd: bool, device_pool: DevicePool | None = None, direct: bool = False) -> None:
        self.random = Random(seed)
        self.world = EngineWorld(
            slot_pages=(1, 2),
            slab_pages=16,
            slabs=4 if direct else 6,
            capacity=self.random.choice([110, 500]),
            limits=Limits(
                requests_max=30,
                read_batch_nbytes=3 * PAGE_NBYTES,
                write_inflight_nbytes_max=(20, 8)[seed // 8 % 2] * PAGE_NBYTES,
                prefetch_inflight_nbytes_max=6 * PAGE_NBYTES,
                cold_seconds=1.0,
                write_nbytes_per_day=WRITE_NBYTES_PER_DAY if seed % 4 < 2 else None,
                direct_reads=direct,
            ),
            ssd=ssd,
            file_blocks=8,
            ssd_nbytes=110 * PAGE_NBYTES,
            reclaim_below_nbytes=40 * PAGE_NBYTES,
            admission=(AdmitAlways, AdmitSecondHit, AdmitLeaving, AdmitContinued)[seed // 2 % 4](),
            device_pool=device_pool,
            on_taken=self.meanwhile,
        )
        self.chains = [chain(f"chain {number}", CHAIN_BLOCKS) for number in range(CHAINS)]
        self.transfers: list[Transfer] = []
        self.layout_share = self.random.choice([0.5, 0.05])
        self.waiting: list[tuple[int, int, int]] = []
        self.num_queued = 0
        self.stopped = False

    def run(self) -> None:
        """Live, then drain."""
        verbs = [self.get, self.put, self.prefetch, self.flush, self.delete, self.clear, self.cancel, self.congest]
        verbs += [self.queue, self.serve, self.hang_up, self.stall, self.acquire, self.reserve]
        weights = [20, 20, 10, 2, 2, 0.3, 3, 3, 10, 10, 0.2, 5, 2, 2]
        for _ in range(STEPS):
            self.world.expire_after(self.random.random() * 0.3)
            self.random.choices(verbs, weights)[0]()
            while self.random.random() < 0.6:
                self.end_any()
        self.stopped = True
        for link in self.world.links:
            link.capacity = 1 << 20
        self.world.settle()
        self.world.check_idle()
        assert all(transfer.done() for transfer in self.transfers)

    def draw(self) -> tuple[UInt8Array, int, float]:
        """Part of a chain, a layout and how many seconds a request may take."""
        start = self.random.choice([0, 0, 0, self.random.randrange(6)])
        stop = self.random.randint(start, CHAIN_BLOCKS)
        within = math.inf if self.random.random() < 0.7 else self.random.random() * 2
        layout = int(self.random.random() < self.layout_share)
        return self.random.choice(self.chains)[start:stop], layout, within

    def get(self) -> None:
        hashes, layout, within = self.draw()
        self.transfers.append(self.world.get(hashes, layout=layout, within=within))

    def put(self) -> None:
        hashes, layout, within = self.draw()
        durable = self.random.random() < 0.3
        self.transfers.append(self.world.put(hashes, durable=durable, layout=layout, within=within))

    def prefetch(self) -> None:
        hashes, layout, within = self.draw()
        self.transfers.append(self.world.prefetch(hashes, layout=layout, within=within))

    def acquire(self) -> None:
        hashes, _layout, within = self.draw()
        self.transfers.append(self.world.acquire(hashes, within=within))

    def reserve(self) -> None:
        hashes, _layout, within = self.draw()
        self.transfers.append(self.world.reserve(hashes, durable=self.random.random() < 0.3, within=within))

    def flush(self) -> None:
        self.transfers.append(self.world.flush())

    def delete(self) -> None:
        hashes, layout, _within = self.draw()
        self.transfers.append(self.world.start_delete(hashes, layout=layout))
        assert set(self.world.presence(hashes, layout=layout)) <= {Presence.MISS}

    def clear(self) -> None:
        layout = self.random.randrange(2)
        self.world.clear(layout=layout)
        assert set(self.world.presence(np.concatenate(self.chains), layout=layout)) == {Presence.MISS}

    def cancel(self) -> None:
        if self.transfers:
            self.random.choice(self.transfers[-20:]).cancel()
            self.world.check()

    def queue(self) -> None:
        """A request waits, of one session or another."""
        hashes, layout, _within = self.draw()
        session_id = self.random.randrange(2)
        self.num_queued += 1
        self.world.hint([(self.num_queued, hashes)], layout=layout, session_id=session_id)
        self.waiting.append((session_id, layout, self.num_queued))

    def serve(self) -> None:
        """A request waits no longer, most often the first."""
        if self.waiting:
            place = 0 if self.random.random() < 0.8 else self.random.randrange(len(self.waiting))
            session_id, layout, rank = self.waiting.pop(place)
            self.world.hint(removed=[rank], layout=layout, session_id=session_id)

    def hang_up(self) -> None:
        """An engine goes."""
        session_id = self.random.randrange(2)
        self.world.end_session(session_id)
        self.waiting = [row for row in self.waiting if row[0] != session_id]

    def congest(self) -> None:
        """Let one link run full, or have room again."""
        self.random.choice(self.world.links).capacity = self.random.choice([0, 2, 1 << 20, 1 << 20])

    def stall(self) -> None:
        """Nothing moves for a while, most often where something should."""
        if self.world.read.jobs or self.random.random() < 0.1:
            self.world.expire_after(40)

    def meanwhile(self) -> None:
        """What other threads do while this one submits its plan."""
        if not self.stopped and self.random.random() < 0.15:
            self.end_any()

    def end_any(self) -> None:
        """Let one job of any link end, or begin."""
        busy = [link for link in self.world.links if link.jobs]
        if not busy:
            return
        link = self.random.choice(busy)
        job = link.jobs[0] if link is self.world.write else self.random.choice(link.jobs)
        if link is self.world.read and self.random.random() < 0.2:
            link.begin(job)
        else:
            self.end(link, job)

    def end(self, link: SimLink, job: Job) -> None:
        if isinstance(job, DiscardJob):
            link.end(job)
            return
        failures = [Outcome.IO_ERROR]
        if isinstance(job, CopyJob) and job.src is TierName.SSD:
            failures += [Outcome.CORRUPT, Outcome.REJECTED] if job.dst is TierName.SSD else [Outcome.CORRUPT]
        if job.dst is TierName.SSD and not (isinstance(job, CopyJob) and job.src is TierName.SSD):
            sick = self.random.random() < 0.1  # one write that fails turns all of them off for a while
            failures = [*(failures if sick else ()), Outcome.REJECTED]
        fails = [self.random.random() < 0.07 for _ in range(num_outcomes(job))]
        outcomes = [self.random.choice(failures) if failed else Outcome.OK for failed in fails]
        files = list(self.world.bytes.file_nbytes)
        failed_sync = isinstance(job, SyncJob) and outcomes != [Outcome.OK] and files
        link.end(job, outcomes, in_doubt=(self.random.choice(files),) if failed_sync else ())


@pytest.fixture(autouse=True)
def _short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut every slice short, so that a world of few blocks has many."""
    for module, name in (
        (planner, "SLICE_BLOCKS"),
        (engine, "SLICE_BLOCKS"),
        (scheduling, "SLICE_BLOCKS"),
        (lookahead, "_LEAVE_BLOCKS"),
        (ssd_room, "_RECLAIM_BLOCKS"),
        (host_room, "_DRAIN_BLOCKS"),
        (device_room, "_DRAIN_BLOCKS"),
    ):
        monkeypatch.setattr(module, name, 5)
    monkeypatch.setattr(upkeep, "_REAP_ENTRIES", 50)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_world_keeps_its_invariants_and_drains(seed: int) -> None:
    RandomWorld(seed, ssd=True).run()


@pytest.mark.parametrize("seed", SEEDS[:4])
def test_a_random_world_without_an_ssd_tier_does_too(seed: int) -> None:
    RandomWorld(seed, ssd=False).run()


def test_random_worlds_with_a_device_pool_do_too_and_meet_what_it_is_for() -> None:
    """The pool is smaller than the host's, so that what it holds alone is forgotten, and larger, so that it helps."""
    worlds = []
    for seed in (0, 4, 5, 7, 18, 32):  # three of them lend what the device pool alone holds
        slab_nbytes = 16 * PAGE_NBYTES
        slots = SlotAllocator(pool_nbytes=(4, 9)[seed // 2 % 2] * slab_nbytes, slab_nbytes=slab_nbytes)
        pool = DevicePool(slots, (AdmitAlways, AdmitSecondHit)[seed % 2]())
        worlds.append(RandomWorld(seed, ssd=seed % 4 > 0, device_pool=pool))
    for world in worlds:
        world.run()

    def total(metric: Metric, *labels: str | int) -> float:
        return sum(world.world.metrics.value(metric, *labels) for world in worlds)

    assert total(Metric.EVICTED_BLOCKS, TierName.DEVICE_POOL) > 20
    assert total(Metric.HIT_BLOCKS, TierName.DEVICE_POOL) > 100
    for link in ("pool-load", "pool-fill"):
        assert total(Metric.LINK_BLOCKS, link, Outcome.OK) > 50
        assert total(Metric.LINK_BLOCKS, link, Outcome.IO_ERROR) > 5
        assert total(Metric.LINK_BLOCKS, link, Outcome.REJECTED) > 0
    assert total(Metric.LINK_BLOCKS, "pool-return", Outcome.OK) > 4


def test_random_worlds_whose_reads_go_past_host_memory_do_too() -> None:
    num_read = 0.0
    for seed in (1, 11, 12):
        slots = SlotAllocator(pool_nbytes=64 * PAGE_NBYTES, slab_nbytes=16 * PAGE_NBYTES)
        world = RandomWorld(seed, ssd=True, device_pool=DevicePool(slots, AdmitSecondHit()), direct=True)
        world.run()
        num_read += world.world.metrics.value(Metric.LINK_BLOCKS, "ssd-direct", Outcome.OK)
    assert num_read > 10


def test_random_worlds_meet_what_they_are_for() -> None:
    """Worlds in which nothing is evicted, reclaimed or read prove nothing."""
    worlds = [RandomWorld(seed, ssd=True) for seed in SEEDS]
    for world in worlds:
        world.run()

    def total(metric: Metric, *labels: str | int) -> float:
        return sum(world.world.metrics.value(metric, *labels) for world in worlds)

    for tier in (TierName.HOST, TierName.SSD):
        assert total(Metric.EVICTED_BLOCKS, tier) > 20
        assert total(Metric.HIT_BLOCKS, tier) > 20
    for link in ("load", "store", "lease", "reserve", "ssd-read", "ssd-write", "ssd-rewrite"):
        assert total(Metric.LINK_BLOCKS, link, Outcome.OK) > 50
        assert total(Metric.LINK_BLOCKS, link, Outcome.IO_ERROR) > 0
    for way in ("read", "write"):
        assert total(Metric.SSD_OUTAGES, way) > 3
    for found in ("ok", "failed"):
        assert total(Metric.SSD_PROBES, found) > 3
    for outcome in (Outcome.CORRUPT, Outcome.REJECTED):
        assert total(Metric.LINK_BLOCKS, "ssd-rewrite", outcome) > 0
    for reason in ("not_admitted", "write_budget", "write_refused", "write_queue_full"):
        assert total(Metric.NOT_STORED_BLOCKS, reason) > 4
    for fate in ("useful", "wasted"):
        assert total(Metric.SSD_WRITTEN_BLOCKS, fate) > 20
    assert total(Metric.DELETED_BLOCKS) > 10
    assert total(Metric.RECLAIMED_FILES) > 2
    ended = {outcome for world in worlds for transfer in world.transfers for outcome in transfer.result(0).outcomes}
    assert ended == set(Outcome)
