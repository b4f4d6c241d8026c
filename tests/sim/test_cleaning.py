"""How blocks reach SSD before they leave, and that no prefix stands there without its head, whoever is admitted."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from tests.outage import BROKEN, probe
from tierstore.control import cleaning
from tierstore.control.entry import State
from tierstore.control.index import as_keys
from tierstore.control.mind import Limits
from tierstore.metrics import Metric
from tierstore.policy.admission import AdmitAlways, AdmitContinued, AdmitLeaving, AdmitSecondHit
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES, CopyJob, Outcome

if TYPE_CHECKING:
    from tierstore.policy.base import AdmissionPolicy
    from tierstore.types import UInt8Array

POOL_BLOCKS = 32
A = chain("a", 12)


def written(world: EngineWorld) -> list[bytes]:
    """The hashes of every write that waits, in order."""
    return [row.tobytes() for job in world.write.jobs if isinstance(job, CopyJob) for row in job.hashes]


def rows(blocks: UInt8Array) -> list[bytes]:
    return [row.tobytes() for row in blocks]


def put(world: EngineWorld, blocks: UInt8Array) -> None:
    """Put blocks into host memory, and no further."""
    world.put(blocks)
    while world.store.jobs:
        world.store.end()


def on_ssd(world: EngineWorld, blocks: UInt8Array) -> list[bool]:
    """Which blocks are on SSD or on their way there."""
    with world.engine.planning() as planner:
        entries = planner.directory.find(world.generations[0].number, as_keys(blocks))
        states = planner.directory.ssd.state[entries]
    there: list[bool] = ((entries >= 0) & ((states == State.READY) | (states == State.FILLING))).tolist()
    return there


def test_what_is_in_no_danger_is_not_written() -> None:
    world = EngineWorld(admission=AdmitLeaving())
    put(world, A)
    world.get(A)
    world.load.end()
    assert not world.write.jobs


def test_what_would_leave_next_is_written_behind_its_head() -> None:
    world = EngineWorld(admission=AdmitLeaving())
    put(world, A)
    put(world, chain("b", POOL_BLOCKS - 12))
    assert written(world) == rows(A), "its last blocks are the next victims, and nothing without the first"
    world.write.end()
    put(world, chain("c", 4))
    get = world.get(A)
    world.settle()
    assert get.result(0).ok
    world.check_idle()


def test_what_is_used_again_or_deleted_in_time_is_never_written() -> None:
    world = EngineWorld(admission=AdmitLeaving())
    put(world, A)
    world.delete(A)
    for name in "bcdefg":
        put(world, chain(name, 4))
    assert not written(world)


def test_what_has_to_leave_before_it_is_written_is_lost_and_nothing_hangs() -> None:
    world = EngineWorld(admission=AdmitLeaving(), limits=Limits(write_inflight_nbytes_max=2 * PAGE_NBYTES))
    for name in "abcd":
        put(world, chain(name, 30))
    assert len(written(world)) == 2
    world.settle()
    world.check_idle()
    assert world.metrics.value(Metric.NOT_STORED_BLOCKS, "unwritten") > 0


def held(world: EngineWorld, blocks: UInt8Array) -> int:
    """How many of these blocks lead, in any tier."""
    get = world.get(blocks)
    world.settle()
    return get.result(0).leading


def kept(world: EngineWorld, blocks: UInt8Array) -> None:
    """Put blocks that are on SSD at once, too."""
    world.put(blocks, durable=True)
    world.settle()


def test_a_get_of_much_evicts_what_ssd_holds_before_what_still_waits_to_be_written() -> None:
    world = EngineWorld(admission=AdmitLeaving(), limits=Limits(write_inflight_nbytes_max=0))
    b, c, fresh = chain("b", 20), chain("c", 12), chain("fresh", 8)
    for blocks in (A, b, c):
        kept(world, blocks)
    put(world, fresh)
    assert held(world, b[:12]) == held(world, c) == 12, "now what is fresh is the oldest"
    assert held(world, A) == 12
    assert held(world, fresh) == 8
    assert not world.metrics.value(Metric.NOT_STORED_BLOCKS, "unwritten")
    put(world, chain("more", POOL_BLOCKS - 8))
    assert held(world, A) == 12, "a get goes first where nothing else is left"
    assert world.metrics.value(Metric.NOT_STORED_BLOCKS, "unwritten") == 12


def test_a_get_of_more_than_the_pool_is_cut_short_rather_than_that_something_is_lost() -> None:
    world = EngineWorld(admission=AdmitLeaving(), limits=Limits(write_inflight_nbytes_max=0))
    large = chain("large", 2 * POOL_BLOCKS)
    kept(world, large[:POOL_BLOCKS])
    world.put(large[POOL_BLOCKS:], parent=large[POOL_BLOCKS - 1], durable=True)
    world.settle()
    fresh = chain("fresh", 24)
    put(world, fresh)
    kept(world, chain("other", POOL_BLOCKS - 24))
    assert held(world, large) == POOL_BLOCKS - 24, "as many as SSD holds, too"
    assert held(world, fresh) == 24
    assert not world.metrics.value(Metric.NOT_STORED_BLOCKS, "unwritten")


def test_what_waits_for_room_in_the_queue_is_written_as_writes_end() -> None:
    world = EngineWorld(admission=AdmitLeaving(), limits=Limits(write_inflight_nbytes_max=2 * PAGE_NBYTES))
    put(world, A)
    put(world, chain("b", POOL_BLOCKS - 12))
    assert written(world) == rows(A[:2])
    world.settle()
    assert all(on_ssd(world, A[:8])), "an eighth would have been these two"


def test_what_ssd_does_not_want_is_not_spared() -> None:
    day = Limits(write_nbytes_per_day=24 * PAGE_NBYTES)
    world = EngineWorld(admission=AdmitLeaving(), limits=day)
    for name in "abcdef":
        put(world, chain(name, 8))
        world.settle()
    assert world.metrics.value(Metric.NOT_STORED_BLOCKS, "write_budget") > 0
    assert held(world, chain("f", 8)) == 8
    assert not world.metrics.value(Metric.NOT_STORED_BLOCKS, "unwritten"), "they left in order of age, counted once"


def lost(world: EngineWorld) -> dict[str, int]:
    """Blocks that SSD did not take, by reason."""
    reasons = ("not_admitted", "head_missing", "write_queue_full", "write_budget", "unwritten")
    counts = {reason: int(world.metrics.value(Metric.NOT_STORED_BLOCKS, reason)) for reason in reasons}
    return {reason: count for reason, count in counts.items() if count}


def test_what_ssd_refuses_is_counted_once_however_often_it_is_looked_at() -> None:
    """Each step counted its victims again, and each put and get as not admitted what is asked about later."""
    world = EngineWorld(admission=AdmitLeaving(), limits=Limits(write_nbytes_per_day=1))
    put(world, A)
    put(world, chain("b", POOL_BLOCKS - 12))
    assert held(world, chain("b", POOL_BLOCKS - 12)) == POOL_BLOCKS - 12
    for step in range(4):
        put(world, chain(f"{step}", 1))
    assert lost(world) == {"write_budget": 12}


UNWRITTEN = Limits(write_inflight_nbytes_max=0, cold_seconds=1.0)


def test_what_the_window_gives_up_before_it_is_written_counts_as_lost() -> None:
    world = EngineWorld(admission=AdmitLeaving(), limits=UNWRITTEN)
    world.hint([(0, A)])
    put(world, A)
    put(world, chain("b", POOL_BLOCKS - 12))
    put(world, chain("c", POOL_BLOCKS))
    assert lost(world) == {"unwritten": POOL_BLOCKS}


def test_what_a_prefetch_evicts_before_it_is_written_counts_as_lost() -> None:
    world = EngineWorld(admission=AdmitLeaving(), limits=UNWRITTEN)
    world.keep_on_ssd(A)
    put(world, chain("b", POOL_BLOCKS))
    world.clock.advance(2)
    world.prefetch(A[:4])
    world.settle()
    assert lost(world) == {"unwritten": 4}


def test_what_a_slab_loses_before_it_is_written_when_it_changes_hands_counts_as_lost() -> None:
    world = EngineWorld(slot_pages=(1, 2), slab_pages=16, admission=AdmitLeaving(), limits=UNWRITTEN)
    put(world, chain("b", 64))
    world.clock.advance(2)
    world.put(chain("large", 8), layout=1)
    world.settle()
    world.clock.advance(2)
    world.put(chain("large", 8), layout=1)
    world.settle()
    assert world.num_in_host(chain("large", 8), layout=1) == 8
    assert lost(world)["unwritten"] == 64 - world.num_in_host(chain("b", 64)) == 16


def test_an_ssd_that_is_well_again_is_given_what_waits_at_once() -> None:
    """And what came meanwhile counts as not wanted no longer: the next put would have evicted it first."""
    world = EngineWorld(admission=AdmitLeaving())
    put(world, A)
    put(world, chain("b", POOL_BLOCKS - 12))
    world.write.end(outcomes=Outcome.IO_ERROR, fault=BROKEN)
    put(world, chain("c", 2))
    assert not world.write.jobs
    probe(world, after=0.5)
    assert written(world)[:10] == rows(A[:10])


def test_no_head_leaves_before_what_stands_behind_it_when_ssd_wants_neither() -> None:
    """Of a chain whose first blocks the budget has refused the others were spared, as if their turn came later."""
    unpaid = Limits(write_nbytes_per_day=1, write_inflight_nbytes_max=8 * PAGE_NBYTES)
    world = EngineWorld(admission=AdmitLeaving(), limits=unpaid)
    put(world, A)
    put(world, chain("b", POOL_BLOCKS - 12))
    put(world, chain("c", 5))
    assert held(world, A) == 12 - 5
    assert not world.metrics.value(Metric.NOT_STORED_BLOCKS, "unwritten")


def test_a_step_writes_no_more_than_a_slice_and_goes_on_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cleaning, "_WRITE_BLOCKS", 5)
    world = EngineWorld(admission=AdmitLeaving())
    put(world, A)
    put(world, chain("b", POOL_BLOCKS - 12))
    assert [len(job) for job in world.write.jobs if isinstance(job, CopyJob)] == [5, 5]
    assert written(world) == rows(A[:10])


def test_the_tail_of_a_conversation_waits_until_it_goes_on() -> None:
    world = EngineWorld(admission=AdmitContinued())
    put(world, A[:6])
    assert not written(world)
    put(world, A)
    assert written(world) == rows(A[:6])
    world.get(A)
    world.settle()
    assert all(on_ssd(world, A))


def test_a_block_whose_head_was_dropped_is_not_written_before_it() -> None:
    world = EngineWorld(limits=Limits(write_inflight_nbytes_max=4 * PAGE_NBYTES))
    put(world, chain("other", 4))
    put(world, A[:3])
    world.write.end()
    world.put(A[3:6], parent=A[2])
    world.store.end()
    assert not any(on_ssd(world, A)), "there is room again, and the head is still missing"
    assert world.metrics.value(Metric.NOT_STORED_BLOCKS, "write_queue_full") == 3
    assert world.metrics.value(Metric.NOT_STORED_BLOCKS, "head_missing") == 3
    put(world, A[:4])
    assert on_ssd(world, A[:6]) == [True] * 4 + [False] * 2


def test_a_block_behind_one_that_nobody_holds_is_not_written() -> None:
    world = EngineWorld()
    put(world, A[3:6])
    assert all(on_ssd(world, A[3:6])), "it was put as a head"
    world.put(A[8:], parent=A[7])
    world.store.end()
    assert not any(on_ssd(world, A[8:]))


@pytest.mark.parametrize("admission", [AdmitAlways, AdmitSecondHit, AdmitContinued, AdmitLeaving])
@pytest.mark.parametrize("seed", range(2))
def test_no_prefix_stands_on_ssd_without_its_head(admission: type[AdmissionPolicy], seed: int) -> None:
    random = Random(seed)
    limits = Limits(write_inflight_nbytes_max=5 * PAGE_NBYTES, write_nbytes_per_day=24 * 60 * PAGE_NBYTES)
    world = EngineWorld(admission=admission(), limits=limits)
    chains = [chain(f"{name}", 14) for name in range(6)]
    for _step in range(80):
        blocks = random.choice(chains)[: random.randint(1, 14)]
        if random.random() < 0.6:
            world.put(blocks)
        else:
            world.get(blocks)
        world.clock.advance(random.random() * 5)
        for link in world.links:
            while link.jobs and random.random() < 0.6:
                link.end(link.jobs[0])
        for whole in chains:
            there = on_ssd(world, whole)
            assert there == sorted(there, reverse=True), f"a hole: {there}"
    world.settle()
    world.check_idle()
    assert world.metrics.value(Metric.LINK_BLOCKS, "ssd-write", Outcome.OK) > 10
