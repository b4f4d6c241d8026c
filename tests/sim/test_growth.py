"""The mind keeps nothing of what is over: generations, requests, deadlines, prefetches that were withdrawn."""

from __future__ import annotations

import pytest

from tierstore.control.mind import Limits
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES, Outcome, Presence

BLOCKS = chain("a", 6)
MANY = 2000
HOUR_SECONDS = 3600.0


def test_a_generation_that_was_reaped_is_forgotten() -> None:
    world = EngineWorld()
    for _ in range(20):
        world.keep_in_host(BLOCKS)
        world.clear()
    with world.engine.planning() as planner:
        assert list(planner._lives) == [world.generations[0].number]
        assert not planner._upkeep.due
    world.check_idle()


def test_a_generation_that_ends_under_a_copy_is_forgotten_all_the_same() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    get, put = world.get(BLOCKS), world.put(chain("b", 3), durable=True)
    world.clear()
    world.settle()
    assert set(get.result(0).outcomes) == {Outcome.CANCELLED}
    assert set(put.result(0).outcomes) == {Outcome.CANCELLED}
    with world.engine.planning() as planner:
        assert len(planner._lives) == 1
    world.check_idle()


@pytest.mark.parametrize("verb", ["get", "put", "prefetch", "delete"])
def test_a_verb_that_comes_too_late_for_its_generation_is_cancelled(verb: str) -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    late = world.generations[0]
    world.clear()
    world.generations.append(late)
    start = {"get": world.get, "put": world.put, "prefetch": world.prefetch, "delete": world.start_delete}[verb]
    assert start(BLOCKS, layout=1).result(0).outcomes == [Outcome.CANCELLED] * 6
    assert world.presence(BLOCKS, layout=1) == [Presence.MISS] * 6
    assert world.engine.leading(late.number, BLOCKS) == 0
    world.check_idle()


def test_deadlines_of_requests_that_have_ended_are_forgotten() -> None:
    world = EngineWorld()
    for _ in range(MANY):
        assert world.get(BLOCKS, within=HOUR_SECONDS).done()
    with world.engine.planning() as planner:
        assert len(planner._requests._deadlines) < 200
        assert planner.next_deadline() > HOUR_SECONDS


def test_prefetches_withdrawn_from_a_queue_that_stands_still_are_forgotten() -> None:
    world = EngineWorld(limits=Limits(prefetch_inflight_nbytes_max=PAGE_NBYTES))
    world.keep_on_ssd(BLOCKS)
    first = world.prefetch(BLOCKS)
    for _ in range(MANY):
        transfer = world.prefetch(BLOCKS[::-1].copy())
        assert not transfer.done()
        transfer.cancel()
    with world.engine.planning() as planner:
        assert len(planner._prefetches._queue) < 200
    world.settle()
    assert first.result(0).ok
    world.check_idle()
