"""How deadlines and cancel go: what is queued is withdrawn, what runs into the caller's memory finishes."""

from __future__ import annotations

import math

import pytest

from tierstore.control.mind import Limits
from tierstore.metrics import Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES, Outcome, Presence

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome
BLOCKS = chain("a", 6)


def half_on_ssd() -> EngineWorld:
    """A world whose host holds the first half of the blocks, and its SSD the rest."""
    world = EngineWorld()
    world.keep_in_host(BLOCKS[:3])
    world.keep_on_ssd(BLOCKS[3:])
    return world


def test_a_get_whose_time_is_up_ends_with_what_was_ready() -> None:
    world = half_on_ssd()
    get = world.get(BLOCKS, within=1)
    world.load.end()
    world.expire_after(1)
    assert get.result(0).outcomes == [OK] * 3 + [CANCELLED] * 3
    world.settle()
    world.check_idle()


def test_a_get_whose_time_is_up_ends_only_after_the_load_that_runs() -> None:
    world = half_on_ssd()
    get = world.get(BLOCKS, within=1)
    world.expire_after(1)
    assert not get.done()
    world.load.end()
    assert get.result(0).outcomes == [OK] * 3 + [CANCELLED] * 3


def test_a_deadline_ends_nothing_early() -> None:
    world = half_on_ssd()
    get = world.get(BLOCKS, within=1)
    world.expire_after(0.99)
    world.settle()
    assert get.result(0).ok


def test_the_next_deadline_is_that_of_a_request_that_has_not_ended() -> None:
    world = half_on_ssd()
    world.get(BLOCKS, within=5)
    first = world.get(BLOCKS[3:], within=1)
    assert world.engine.expire() == world.clock.now + 1
    first.cancel()
    assert world.engine.expire() == world.clock.now + 5
    world.settle()
    assert world.engine.expire() == math.inf


def test_cancel_of_a_get_ends_it_once_no_copy_touches_its_memory() -> None:
    world = half_on_ssd()
    get = world.get(BLOCKS)
    get.cancel()
    assert not get.done()
    world.load.end()
    assert get.result(0).outcomes == [OK] * 3 + [CANCELLED] * 3


def test_cancel_of_a_get_withdraws_the_reads_that_only_it_waits_for() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    get = world.get(BLOCKS)
    get.cancel()
    assert not world.read.jobs
    assert get.result(0).outcomes == [CANCELLED] * 6
    world.check_idle()


def test_cancel_of_a_get_under_load_withdraws_the_reads_behind() -> None:
    world = half_on_ssd()
    get = world.get(BLOCKS)
    get.cancel()
    assert not world.read.jobs
    world.load.end()
    assert get.result(0).leading == 3
    world.check_idle()


def test_cancel_leaves_a_read_that_runs_and_one_that_others_wait_for() -> None:
    world = EngineWorld(limits=Limits(read_batch_nbytes=2 * PAGE_NBYTES))
    world.keep_on_ssd(BLOCKS)
    get, other = world.get(BLOCKS), world.get(BLOCKS[:2])
    wanted, running, _queued = world.read.jobs
    world.read.begin(running)
    get.cancel()
    assert world.read.jobs == [wanted, running]
    world.settle()
    assert other.result(0).ok
    assert world.presence(BLOCKS) == [Presence.HIT] * 6
    world.check_idle()


def test_cancel_of_what_has_ended_does_nothing() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    get = world.get(BLOCKS)
    world.settle()
    get.cancel()
    assert get.result(0).ok


def test_cancel_of_a_put_ends_it_after_the_copy_out_of_its_memory() -> None:
    world = EngineWorld()
    put = world.put(BLOCKS)
    put.cancel()
    assert not put.done()
    world.store.end()
    assert put.result(0).ok
    assert world.presence(BLOCKS) == [Presence.HIT] * 6


def test_a_put_that_waits_for_another_ones_store_ends_at_its_deadline() -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    put = world.put(BLOCKS, within=1)
    world.expire_after(1)
    assert put.result(0).outcomes == [CANCELLED] * 6
    world.settle()
    world.check_idle()


@pytest.mark.parametrize("num_ended", [1, 2])
def test_a_durable_put_whose_time_is_up_is_not_durable_and_stays_readable(num_ended: int) -> None:
    world = EngineWorld()
    put = world.put(BLOCKS, durable=True, within=1)
    world.store.end()
    for _ in range(num_ended - 1):
        world.write.end()
    world.expire_after(1)
    assert put.result(0).outcomes == [CANCELLED] * 6
    world.settle()
    assert world.presence(BLOCKS) == [Presence.HIT] * 6
    world.check_idle()


def test_a_prefetch_whose_time_is_up_ends_and_its_queued_reads_are_withdrawn() -> None:
    world = EngineWorld(limits=Limits(read_batch_nbytes=2 * PAGE_NBYTES))
    world.keep_on_ssd(BLOCKS)
    prefetch = world.prefetch(BLOCKS, within=1)
    running, _queued, _queued_too = world.read.jobs
    world.read.begin(running)
    world.expire_after(1)
    assert world.read.jobs == [running]
    assert prefetch.result(0).outcomes == [CANCELLED] * 6
    assert world.metrics.value(Metric.PREFETCHED_BLOCKS, "cancelled") == 6
    world.settle()
    world.check_idle()


def test_cancel_of_a_prefetch_leaves_a_read_that_a_get_has_joined() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    prefetch = world.prefetch(BLOCKS)
    get = world.get(BLOCKS)
    prefetch.cancel()
    assert prefetch.result(0).outcomes == [CANCELLED] * 6
    world.settle()
    assert get.result(0).ok
