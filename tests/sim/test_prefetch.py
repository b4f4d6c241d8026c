"""How prefetches go: by deadline, within a budget, into free or cold slots only, and never hanging."""

from __future__ import annotations

import numpy as np
import pytest

from tierstore.control import planner
from tierstore.control.mind import Limits
from tierstore.metrics import Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES, CopyJob, Outcome, Presence, TierName

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome
BLOCKS = chain("a", 6)
POOL_BLOCKS = 32
COLD_SECONDS = 30.0


def fates(world: EngineWorld) -> tuple[float, float]:
    """Prefetched blocks that were used, and that were evicted unused."""
    useful, wasted = (world.metrics.value(Metric.PREFETCHED_BLOCKS, fate) for fate in ("useful", "wasted"))
    return useful, wasted


def read_hashes(world: EngineWorld) -> list[bytes]:
    """The first hash of every read job, in order of submission."""
    return [job.hashes[0].tobytes() for job in world.read.jobs if isinstance(job, CopyJob)]


def test_prefetch_brings_blocks_from_ssd_into_the_host() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    prefetch = world.prefetch(BLOCKS)
    assert not prefetch.done()
    world.read.end()
    assert prefetch.result(0).ok
    get = world.get(BLOCKS)
    assert not world.read.jobs
    world.settle()
    assert get.result(0).ok
    world.check_idle()


def test_prefetch_of_nothing_and_of_what_the_host_holds_ends_at_once() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    assert world.prefetch(BLOCKS[:0]).result(0).ok
    assert world.prefetch(BLOCKS).result(0).ok


def test_prefetch_stops_at_the_first_miss() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS[:2])
    world.keep_on_ssd(BLOCKS[3:])
    prefetch = world.prefetch(BLOCKS)
    world.settle()
    assert prefetch.result(0).outcomes == [OK, OK, MISS, MISS, MISS, MISS]
    assert len(world.bytes.slots[TierName.HOST]) == 2


def test_prefetches_start_in_the_order_of_their_deadlines() -> None:
    world = EngineWorld(limits=Limits(prefetch_inflight_nbytes_max=PAGE_NBYTES))
    blocks = chain("b", 4)
    world.keep_on_ssd(blocks)
    for position, within in enumerate([9.0, 7.0, 8.0]):
        world.prefetch(blocks[position : position + 1], within=within)
    world.prefetch(blocks[3:])
    started = []
    while world.read.jobs:
        started += read_hashes(world)
        world.read.end()
    assert started == [blocks[position].tobytes() for position in (0, 1, 2, 3)]


def test_prefetches_of_a_higher_priority_start_first_whatever_their_deadlines() -> None:
    world = EngineWorld(limits=Limits(prefetch_inflight_nbytes_max=PAGE_NBYTES))
    blocks = chain("b", 5)
    world.keep_on_ssd(blocks)
    begun = [(0, 9.0), (-1, 1.0), (0, 7.0), (3, 8.0), (3, 6.0)]
    prefetches = [
        world.prefetch(blocks[position : position + 1], priority=priority, within=within)
        for position, (priority, within) in enumerate(begun)
    ]
    prefetches[3].cancel()
    started = []
    while world.read.jobs:
        started += read_hashes(world)
        world.read.end()
    assert started == [blocks[position].tobytes() for position in (0, 4, 2, 1)]


def test_prefetches_hold_no_more_than_their_budget_in_flight() -> None:
    world = EngineWorld(limits=Limits(prefetch_inflight_nbytes_max=4 * PAGE_NBYTES, read_batch_nbytes=PAGE_NBYTES))
    world.keep_on_ssd(BLOCKS)
    prefetch = world.prefetch(BLOCKS)
    assert len(world.read.jobs) == 4
    world.read.end()
    assert len(world.read.jobs) == 4
    world.settle()
    assert prefetch.result(0).ok
    world.check_idle()


def test_a_block_larger_than_the_budget_is_prefetched_alone() -> None:
    world = EngineWorld(limits=Limits(prefetch_inflight_nbytes_max=0))
    world.keep_on_ssd(BLOCKS)
    prefetch = world.prefetch(BLOCKS)
    assert len(world.read.jobs) == 1
    world.settle()
    assert prefetch.result(0).ok


def test_prefetch_evicts_nothing_that_is_warm_and_is_rejected() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.keep_in_host(chain("warm", POOL_BLOCKS))
    world.clock.advance(COLD_SECONDS - 1)
    assert world.prefetch(BLOCKS).result(0).outcomes == [REJECTED] * 6
    assert world.presence(chain("warm", POOL_BLOCKS)) == [Presence.HIT] * POOL_BLOCKS
    world.check_idle()


def test_prefetch_evicts_what_is_cold() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.keep_in_host(chain("cold", POOL_BLOCKS))
    world.clock.advance(COLD_SECONDS + 1)
    prefetch = world.prefetch(BLOCKS)
    world.settle()
    assert prefetch.result(0).ok


def test_prefetch_takes_the_cold_slots_there_are_and_the_rest_is_rejected() -> None:
    world = EngineWorld(ssd=True)
    world.keep_on_ssd(BLOCKS)
    world.keep_in_host(chain("warm", POOL_BLOCKS - 4))
    prefetch = world.prefetch(BLOCKS)
    world.settle()
    assert prefetch.result(0).outcomes == [OK] * 4 + [REJECTED] * 2
    world.check_idle()


def test_prefetch_does_not_evict_the_head_of_its_own_prefix() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS[:2])
    world.keep_on_ssd(BLOCKS[2:])
    world.keep_in_host(chain("cold", POOL_BLOCKS - 2))
    world.clock.advance(COLD_SECONDS + 1)
    prefetch = world.prefetch(BLOCKS)
    world.settle()
    assert prefetch.result(0).ok
    world.get(BLOCKS)
    assert not world.read.jobs


def test_prefetch_joins_reads_and_stores_in_flight() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS[:3])
    world.get(BLOCKS[:3])
    world.put(BLOCKS[3:])
    prefetch = world.prefetch(BLOCKS)
    assert len(world.read.jobs) == 1
    assert not world.read.lifted
    world.settle()
    assert prefetch.result(0).ok


@pytest.mark.parametrize("outcome", [IO_ERROR, CORRUPT])
def test_prefetch_says_which_read_failed_and_asks_for_nothing_behind_it(outcome: Outcome) -> None:
    limits = Limits(prefetch_inflight_nbytes_max=2 * PAGE_NBYTES, read_batch_nbytes=2 * PAGE_NBYTES)
    world = EngineWorld(limits=limits)
    world.keep_on_ssd(BLOCKS)
    prefetch = world.prefetch(BLOCKS)
    world.read.end(outcomes=[OK, outcome])
    assert not world.read.jobs
    assert prefetch.result(0).outcomes == [OK, outcome, MISS, MISS, MISS, MISS]
    world.check_idle()


def test_a_queued_prefetch_that_is_cancelled_never_starts() -> None:
    world = EngineWorld(limits=Limits(prefetch_inflight_nbytes_max=PAGE_NBYTES))
    world.keep_on_ssd(BLOCKS)
    first, second, third = (world.prefetch(BLOCKS[position : position + 1]) for position in range(3))
    second.cancel()
    world.read.end()
    assert read_hashes(world) == [BLOCKS[2].tobytes()]
    world.settle()
    assert [one.result(0).outcomes for one in (first, second, third)] == [[OK], [CANCELLED], [OK]]
    world.check_idle()


def test_a_withdrawn_read_makes_room_for_the_next_prefetch() -> None:
    world = EngineWorld(limits=Limits(prefetch_inflight_nbytes_max=PAGE_NBYTES))
    world.keep_on_ssd(BLOCKS)
    first, second = world.prefetch(BLOCKS[:1]), world.prefetch(BLOCKS[1:2])
    first.cancel()
    assert read_hashes(world) == [BLOCKS[1].tobytes()]
    world.settle()
    assert second.result(0).ok


def test_a_prefetch_that_waits_in_the_queue_sees_what_was_put_and_deleted_meanwhile() -> None:
    world = EngineWorld(limits=Limits(prefetch_inflight_nbytes_max=PAGE_NBYTES))
    world.keep_on_ssd(BLOCKS)
    world.prefetch(BLOCKS[5:])
    prefetch = world.prefetch(BLOCKS[:4])
    world.put(BLOCKS[:1])
    world.store.end()
    world.delete(BLOCKS[2:3])
    world.settle()
    assert prefetch.result(0).outcomes == [OK, OK, MISS, MISS]


def test_a_read_link_without_room_ends_the_prefetch() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.read.capacity = 0
    assert world.prefetch(BLOCKS).result(0).outcomes == [REJECTED] * 6
    world.check_idle()


def test_a_prefetch_of_many_slices_is_one_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "SLICE_BLOCKS", 4)
    world = EngineWorld()
    blocks = chain("long", 30)
    world.keep_on_ssd(blocks)
    prefetch = world.prefetch(blocks)
    world.settle()
    assert prefetch.result(0).leading == 30
    world.check_idle()


def test_a_prefetch_is_useful_once_when_a_get_uses_it() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.prefetch(BLOCKS)
    world.settle()
    for _ in range(2):
        world.get(BLOCKS[:4])
        world.settle()
    assert fates(world) == (4, 0)


def test_a_prefetch_that_a_get_joins_is_useful() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.prefetch(BLOCKS)
    world.get(BLOCKS)
    world.settle()
    assert fates(world) == (6, 0)
    world.keep_in_host(chain("b", POOL_BLOCKS))
    assert fates(world) == (6, 0)


def test_a_prefetch_is_wasted_when_it_is_evicted_unused() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.prefetch(BLOCKS)
    world.settle()
    world.get(BLOCKS[:4])
    world.settle()
    world.keep_in_host(chain("b", POOL_BLOCKS))
    assert fates(world) == (4, 2)


def test_a_read_for_a_get_is_no_prefetch() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.get(BLOCKS)
    world.settle()
    world.get(BLOCKS)
    world.settle()
    world.keep_in_host(np.concatenate([chain("b", POOL_BLOCKS)]))
    assert fates(world) == (0, 0)
