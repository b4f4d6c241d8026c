"""How gets go: what they pin, read, join and wait for, and where they stop."""

from __future__ import annotations

import numpy as np
import pytest

from tierstore.control import planner
from tierstore.control.mind import Limits
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.transfer.base import ended
from tierstore.types import PAGE_NBYTES, CopyJob, Job, Outcome, Presence, Priority

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome
BLOCKS = chain("a", 6)
POOL_BLOCKS = 32


def sizes(jobs: list[Job]) -> list[int]:
    """Blocks of each copy job."""
    return [len(job) for job in jobs if isinstance(job, CopyJob)]


def test_get_loads_what_the_host_holds_in_one_job() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    get = world.get(BLOCKS)
    assert sizes(world.load.jobs) == [6]
    assert not get.done()
    world.load.end()
    assert get.result(0).leading == 6
    world.check_idle()


def test_get_reads_what_only_ssd_holds_and_then_loads_it() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    get = world.get(BLOCKS)
    assert not world.load.jobs
    world.read.end()
    world.load.end()
    assert get.result(0).leading == 6
    world.check_idle()


def test_get_of_nothing_ends_at_once() -> None:
    assert EngineWorld().get(BLOCKS[:0]).result(0).ok


def test_get_stops_at_the_first_miss() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS[:2])
    world.keep_in_host(BLOCKS[3:])
    get = world.get(BLOCKS)
    world.load.end()
    assert get.result(0).outcomes == [OK, OK, MISS, MISS, MISS, MISS]
    world.check_idle()


def test_get_loads_a_ready_head_while_the_tail_is_read() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS[:2])
    world.keep_on_ssd(BLOCKS[2:])
    world.get(BLOCKS)
    assert sizes(world.load.jobs) == [2]


def test_get_loads_in_prefix_order_though_reads_end_in_another() -> None:
    world = EngineWorld(limits=Limits(read_batch_nbytes=2 * PAGE_NBYTES))
    world.keep_on_ssd(BLOCKS)
    get = world.get(BLOCKS)
    first, second, third = world.read.jobs
    world.read.end(third)
    world.read.end(second)
    assert not world.load.jobs
    world.read.end(first)
    assert sizes(world.load.jobs) == [6]
    world.load.end()
    assert get.result(0).ok


def test_get_joins_a_read_in_flight() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    gets = [world.get(BLOCKS), world.get(BLOCKS[:4])]
    assert len(world.read.jobs) == 1
    world.settle()
    assert [get.result(0).leading for get in gets] == [6, 4]
    world.check_idle()


def test_get_joins_a_store_in_flight() -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    get = world.get(BLOCKS)
    assert not world.load.jobs
    world.settle()
    assert get.result(0).ok


def test_get_lifts_a_prefetch_that_it_joins() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.prefetch(BLOCKS)
    (read,) = world.read.jobs
    assert isinstance(read, CopyJob)
    assert read.priority is Priority.PREFETCH
    get = world.get(BLOCKS)
    assert world.read.lifted == [read.job_id]
    world.settle()
    assert get.result(0).ok


def test_get_does_not_lift_a_read_that_serves_a_get_already() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.get(BLOCKS)
    world.get(BLOCKS)
    assert not world.read.lifted


def test_get_short_of_slots_takes_a_shorter_prefix_and_pins_nothing_behind_it() -> None:
    world = EngineWorld()
    head, tail = chain("head", 30), chain("tail", 4)
    world.keep_on_ssd(head)
    world.keep_in_host(tail)
    world.put(chain("busy", 4))
    get = world.get(np.concatenate([head, tail]))
    world.settle()
    assert get.result(0).outcomes == [OK] * 28 + [MISS] * 6
    world.check_idle()


def test_get_without_a_free_slot_ends_at_once() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.put(chain("busy", POOL_BLOCKS))
    assert world.get(BLOCKS).result(0).outcomes == [MISS] * 6


def test_a_failed_read_shortens_every_get_that_waits_and_leaves_no_pin() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    gets = [world.get(BLOCKS), world.get(BLOCKS[1:]), world.get(BLOCKS[:3])]
    world.read.end(outcomes=[OK, OK, OK, IO_ERROR, OK, OK])
    world.settle()
    assert [get.result(0).leading for get in gets] == [3, 2, 3]
    assert gets[0].result(0).outcomes[3] is IO_ERROR
    world.check_idle()


def test_a_block_that_could_not_be_read_is_tried_again() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.get(BLOCKS)
    world.read.end(outcomes=IO_ERROR)
    get = world.get(BLOCKS)
    world.settle()
    assert get.result(0).ok


def test_a_corrupt_block_is_discarded_from_ssd() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    get = world.get(BLOCKS)
    world.read.end(outcomes=[OK, OK, CORRUPT, OK, OK, OK])
    world.settle()
    assert get.result(0).outcomes[:3] == [OK, OK, CORRUPT]
    assert world.presence(BLOCKS) == [Presence.HIT, Presence.HIT, Presence.MISS, *[Presence.HIT] * 3]


def test_a_failed_load_ends_the_prefix_before_it_and_keeps_the_block() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    get = world.get(BLOCKS)
    world.load.end(outcomes=[OK, OK, IO_ERROR, OK, OK, OK])
    assert get.result(0).leading == 2
    assert world.presence(BLOCKS) == [Presence.HIT] * 6
    world.check_idle()


def test_a_block_deleted_while_it_is_read_is_no_part_of_the_prefix() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    get = world.get(BLOCKS)
    world.delete(BLOCKS[3:4])
    world.settle()
    assert get.result(0).outcomes == [OK, OK, OK, CANCELLED, MISS, MISS]
    world.check_idle()


def test_a_block_deleted_while_it_is_loaded_reaches_the_get_and_nobody_else() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    get = world.get(BLOCKS)
    world.delete(BLOCKS)
    assert world.presence(BLOCKS) == [Presence.MISS] * 6
    world.load.end()
    assert get.result(0).ok
    world.check_idle()


def test_a_block_under_load_keeps_its_slot_however_short_the_pool_is() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    get = world.get(BLOCKS)
    put = world.put(chain("b", POOL_BLOCKS))
    world.store.end()
    assert put.result(0).leading == POOL_BLOCKS - 6
    world.load.end()
    assert get.result(0).ok


def test_what_a_get_used_is_evicted_leaves_before_parents() -> None:
    world = EngineWorld(ssd=False)
    world.keep_in_host(BLOCKS)
    world.keep_in_host(chain("b", POOL_BLOCKS - 6))
    world.get(BLOCKS)
    world.load.end()
    world.keep_in_host(chain("c", POOL_BLOCKS - 6 + 2))
    assert world.presence(BLOCKS) == [Presence.HIT] * 4 + [Presence.MISS] * 2


def test_what_was_put_is_evicted_leaves_before_parents() -> None:
    world = EngineWorld(ssd=False)
    world.keep_in_host(BLOCKS)
    world.keep_in_host(chain("b", POOL_BLOCKS - 6 + 2))
    assert world.presence(BLOCKS) == [Presence.HIT] * 4 + [Presence.MISS] * 2


def test_more_gets_than_may_be_open_are_rejected() -> None:
    world = EngineWorld(limits=Limits(requests_max=1))
    world.keep_on_ssd(BLOCKS)
    first = world.get(BLOCKS)
    assert world.get(BLOCKS).result(0).outcomes == [REJECTED] * 6
    world.settle()
    assert first.result(0).ok
    again = world.get(BLOCKS)
    world.settle()
    assert again.result(0).ok


@pytest.mark.parametrize("full", ["read", "load"])
def test_a_link_without_room_shortens_the_get_and_nothing_leaks(full: str) -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    getattr(world, full).capacity = 0
    get = world.get(BLOCKS)
    world.settle()
    assert get.result(0).outcomes == [REJECTED] * 6
    world.check_idle()


def test_a_get_of_many_slices_is_one_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "SLICE_BLOCKS", 4)
    world = EngineWorld()
    blocks = chain("long", 30)
    world.keep_in_host(blocks[:13])
    world.keep_on_ssd(blocks[13:])
    get = world.get(blocks)
    world.settle()
    assert get.result(0).leading == 30
    world.check_idle()


def test_a_get_that_is_shortened_between_two_slices_opens_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planner, "SLICE_BLOCKS", 4)
    world = EngineWorld()
    blocks = chain("long", 12)
    world.keep_in_host(blocks[:2])
    world.keep_on_ssd(blocks[2:4])
    world.keep_in_host(blocks[4:])
    with world.engine.planning() as mind:
        request = mind.get(0, blocks)
        assert request is not None
        read, load = mind.step(request, 0.0).jobs
        mind.complete(ended(read, IO_ERROR), 0.0)
        assert not mind.step(request, 0.0).jobs
        (finished,) = mind.complete(ended(load, OK), 0.0).finished
        assert finished.leading == 2
    world.check_idle()
