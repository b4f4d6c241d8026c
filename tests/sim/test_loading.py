"""Load or recompute, in a world where copies take time: nobody ends later than without a store, whatever the disk."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tierstore.advice import LoadAdvice
from tierstore.control.loading import LoadRequest
from tierstore.control.mind import Limits
from tierstore.layout import KVLayout
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.testing.sim_link import SimLink
from tierstore.transfer import scheduling
from tierstore.types import PAGE_NBYTES, CopyJob, Priority

if TYPE_CHECKING:
    from tierstore.transfer.future import Transfer
    from tierstore.types import UInt8Array

BLOCK_NBYTES = 128 * PAGE_NBYTES
BLOCK_TOKENS = KVLayout.opaque(block_nbytes=BLOCK_NBYTES).block_tokens

FAST, SLOW = 1e9, 1.0 * BLOCK_NBYTES
"""Bytes a second of a disk that is well and of one that is not."""

A = chain("a", 24)


@dataclass
class Machine:
    """A world, and how long its links take for what they do.

    Attributes:
        world: The engine; its pool holds 32 blocks.
        disk: Bytes a second that are read.
        copies: Bytes a second that are loaded.
        tokens_per_second: What the engine computes.
    """

    world: EngineWorld
    disk: float = FAST
    copies: float = 10e9
    tokens_per_second: float = 100.0
    _left: dict[int, float] = field(default_factory=dict)

    def _next(self, link: SimLink) -> CopyJob | None:
        jobs = [job for job in link.jobs if isinstance(job, CopyJob)]
        running = [job for job in jobs if job.job_id in self._left]
        return min(running or jobs, key=lambda job: (job.priority, job.job_id), default=None)

    def run(self, until: Callable[[], bool], seconds: float) -> None:
        """Let time pass."""
        world, end = self.world, self.world.clock.now + seconds
        while not until() and world.clock.now < end:
            with world.engine.planning() as planner:
                step, first = min(end, planner.next_deadline()) - world.clock.now, None
            for link, rate in ((world.read, self.disk), (world.load, self.copies)):
                job = self._next(link)
                if job is not None:
                    left = self._left.setdefault(job.job_id, len(job) * BLOCK_NBYTES / rate)
                    if left <= step:
                        step, first = left, (link, job)
            for job_id in self._left:
                self._left[job_id] -= step
            world.expire_after(step)
            if first is not None and first[1] in first[0].jobs:
                del self._left[first[1].job_id]
                first[0].end(first[1])
            self._left = {job_id: left for job_id, left in self._left.items() if self._waits(job_id)}

    def _waits(self, job_id: int) -> bool:
        return any(job.job_id == job_id for link in (self.world.read, self.world.load) for job in link.jobs)

    def advice(self, hashes: UInt8Array, **wanted: object) -> LoadAdvice:
        number = self.world.generations[0].number
        return scheduling.plan_load(self.world.engine, number, LoadRequest(hashes, **wanted))  # type: ignore[arg-type]

    def compute(self, num_blocks: int) -> float:
        return num_blocks * BLOCK_TOKENS / self.tokens_per_second

    def serve(self, hashes: UInt8Array) -> float:
        """Serve a prompt as an engine does that follows the advice; returns how long it took."""
        began = self.world.clock.now
        advice = self.advice(hashes)
        leading = 0
        if advice.stop > advice.first:
            get: Transfer = self.world.get(hashes[: advice.stop], within=advice.recompute_seconds or 1e9)
            self.run(get.done, 1e6)
            leading = get.result(0).leading
        seconds = self.compute(len(hashes) - leading)
        self.run(lambda: False, seconds)
        if seconds:
            tokens = (len(hashes) - leading) * BLOCK_TOKENS
            with self.world.engine.planning() as planner:
                prefill = planner.loading.prefill(self.world.generations[0].fingerprint)
                prefill.report(prefix_tokens=leading * BLOCK_TOKENS, num_tokens=tokens, seconds=seconds)
        return self.world.clock.now - began


@pytest.fixture
def machine() -> Machine:
    limits = Limits(prefill_tokens_per_second=100.0, read_batch_nbytes=4 * BLOCK_NBYTES, stall_seconds=0)
    world = EngineWorld(slot_pages=(128,), slab_pages=128 * 8, limits=limits)
    world.keep_on_ssd(A)
    return Machine(world)


def forget(machine: Machine) -> None:
    """Fill the pool with others, so that the prompt lies on SSD alone."""
    world = machine.world
    others = chain(f"others {world.clock.now}", 32)
    world.put(others)
    while world.store.jobs or world.write.jobs:
        for link in (world.store, world.write):
            if link.jobs:
                link.end()


def test_a_prompt_on_a_fast_disk_is_loaded(machine: Machine) -> None:
    advice = machine.advice(A)
    assert (advice.leading, advice.first, advice.stop) == (24, 0, 24)
    assert advice.recompute_seconds == pytest.approx(machine.compute(24))
    assert machine.serve(A) < machine.compute(24) / 100


def test_where_nobody_says_what_computing_costs_all_is_loaded() -> None:
    world = EngineWorld()
    world.keep_on_ssd(A)
    advice = Machine(world).advice(np.concatenate([A, chain("unknown", 2)]))
    assert advice == LoadAdvice(24, 0, 24, advice.load_seconds, None, in_host=advice.in_host)
    assert advice.load_seconds > 0


def test_no_request_is_predicted_to_end_later_than_without_a_store(machine: Machine) -> None:
    for disk in (FAST, SLOW, 20 * SLOW, FAST):
        machine.disk = disk
        for _round in range(6):
            forget(machine)
            advice = machine.advice(A)
            assert advice.recompute_seconds is not None
            assert advice.load_seconds <= advice.recompute_seconds
            machine.serve(A)


def test_the_store_backs_off_from_a_slow_disk_and_returns_when_it_is_fast(machine: Machine) -> None:
    machine.serve(A)
    empty = machine.compute(24)
    machine.disk = SLOW
    forget(machine)
    assert machine.serve(A) <= 2 * empty + 0.01, "the request under which it slows down has a deadline"
    for _round in range(20):
        forget(machine)
        assert machine.serve(A) <= 1.01 * empty
    machine.disk = FAST
    seconds = []
    for _round in range(30):
        forget(machine)
        seconds.append(machine.serve(A))
    assert max(seconds) <= 1.01 * empty
    assert seconds[-1] < empty / 10


def test_a_slow_disk_is_read_a_little_at_a_time_to_learn_when_it_is_fast(machine: Machine) -> None:
    machine.disk = SLOW
    machine.serve(A)
    for _round in range(10):
        forget(machine)
        machine.serve(A)
        assert sum(len(job) for job in machine.world.read.jobs if isinstance(job, CopyJob)) <= 2
        assert {job.priority for job in machine.world.read.jobs if isinstance(job, CopyJob)} <= {Priority.PREFETCH}


def test_a_stalled_disk_is_seen_before_anything_ends(machine: Machine) -> None:
    machine.serve(A)
    forget(machine)
    stuck = machine.world.get(A[:4])
    machine.world.clock.advance(100.0)
    advice = machine.advice(A)
    assert advice.stop == 0
    machine.run(stuck.done, 1.0)
    assert stuck.result(0).ok


def test_what_waits_in_the_links_counts(machine: Machine) -> None:
    before = machine.advice(A[:4])
    machine.world.get(A[4:])
    assert machine.advice(A[:4]).load_seconds > before.load_seconds


def test_a_block_under_way_is_waited_for_where_that_is_cheaper(machine: Machine) -> None:
    machine.world.get(A[:8])
    advice = machine.advice(A[:8])
    assert (advice.leading, advice.stop) == (8, 8)
    machine.world.clock.advance(1000.0)
    assert machine.advice(A[:8]).stop == 0


def test_only_the_head_in_host_memory_is_loaded_where_the_disk_is_slow(machine: Machine) -> None:
    machine.serve(A[:6])
    machine.disk = SLOW
    other = chain("b", 8)
    machine.world.keep_on_ssd(other)
    machine.serve(other)
    machine.serve(other)
    assert machine.advice(A).stop == 6


def test_what_the_engine_has_computed_is_not_loaded(machine: Machine) -> None:
    advice = machine.advice(A, computed_tokens=10 * BLOCK_TOKENS + 1)
    assert (advice.first, advice.stop) == (10, 24)
    assert advice.recompute_seconds == pytest.approx(machine.compute(14) - 1 / machine.tokens_per_second)
    assert machine.advice(A, computed_tokens=100 * BLOCK_TOKENS).first == 24


def test_a_deadline_shortens_what_is_loaded(machine: Machine) -> None:
    whole = machine.advice(A)
    half = machine.advice(A, within=whole.load_seconds / 2)
    assert 0 < half.stop < whole.stop
    assert machine.advice(A, within=0.0).stop == 0


def test_a_tail_is_loaded_while_the_head_is_computed(machine: Machine) -> None:
    machine.disk = machine.tokens_per_second / BLOCK_TOKENS * BLOCK_NBYTES  # as fast as the engine
    machine.serve(A)
    forget(machine)
    machine.serve(A)
    forget(machine)
    advice = machine.advice(A, from_tail=True)
    assert advice.stop == 24
    assert advice.first == pytest.approx(12, abs=2)
    assert advice.load_seconds <= machine.compute(14)


def test_the_longer_the_prefix_the_dearer_a_token(machine: Machine) -> None:
    fingerprint = machine.world.generations[0].fingerprint
    with machine.world.engine.planning() as planner:
        prefill = planner.loading.prefill(fingerprint)
    for prefix_tokens, seconds in ((0, 1.0), (100_000, 4.0)):
        prefill.report(prefix_tokens=prefix_tokens, num_tokens=1000, seconds=seconds)
    totals = prefill.seconds_until(np.array([0, 1000, 2000, 100_000, 101_000]))
    assert totals[0] == 0
    assert totals[1] == pytest.approx(1.0)
    assert totals[4] - totals[3] == pytest.approx(4.0)
    prefill.report(prefix_tokens=0, num_tokens=1000, seconds=3.0)
    assert 1.0 < prefill.seconds_until(np.array([1000]))[0] < 3.0


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 0.0])
def test_a_report_that_is_no_measurement_spoils_no_advice(machine: Machine, seconds: float) -> None:
    before = machine.advice(A)
    fingerprint = machine.world.generations[0].fingerprint
    with machine.world.engine.planning() as planner:
        prefill = planner.loading.prefill(fingerprint)
    prefill.report(prefix_tokens=0, num_tokens=1000, seconds=seconds)
    prefill.report(prefix_tokens=0, num_tokens=0, seconds=1.0)
    prefill.report(prefix_tokens=-5000, num_tokens=1, seconds=1.0)
    assert machine.advice(A) == before
