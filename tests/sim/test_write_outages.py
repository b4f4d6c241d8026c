"""How the store goes on without an SSD that cannot be written, and how it takes it up again."""

from __future__ import annotations

import logging
import math

import pytest

from tests.outage import (
    BLOCKS,
    BROKEN,
    FULL,
    STALL_SECONDS,
    ended,
    lose_writes,
    probe,
    service,
    why,
)
from tierstore.control import planner
from tierstore.control.mind import Limits
from tierstore.health import Service
from tierstore.metrics import Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES, DiscardJob, Outcome, Presence, ProbeJob, TierName

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome


def not_stored(world: EngineWorld) -> float:
    return world.metrics.value(Metric.NOT_STORED_BLOCKS, "ssd_off")


def test_after_a_failed_write_write_backs_are_dropped_and_counted_by_reason() -> None:
    world = EngineWorld()
    lose_writes(world)
    put = world.put(BLOCKS)
    world.store.end()
    assert put.result(0).ok
    assert not world.write.jobs
    assert not_stored(world) == len(BLOCKS)
    assert why(world) == BROKEN.text
    get = world.get(BLOCKS)
    world.load.end()
    assert get.result(0).ok
    world.check_idle()


def test_after_a_failed_write_durable_puts_are_rejected_at_once() -> None:
    world = EngineWorld()
    lose_writes(world)
    assert ended(world.put(BLOCKS, durable=True)) == [[REJECTED] * 6]
    world.check_idle()


def test_writes_that_are_queued_behind_a_failed_one_are_withdrawn_and_durable_puts_rejected() -> None:
    world = EngineWorld()
    first, second = world.put(BLOCKS[:2], durable=True), world.put(BLOCKS[2:], durable=True)
    world.store.end()
    world.store.end()
    world.write.end(outcomes=IO_ERROR, fault=BROKEN)
    assert not world.write.jobs
    assert ended(first, second) == [[IO_ERROR] * 2, [REJECTED] * 4]
    world.check_idle()


def test_a_durable_put_that_is_refused_when_half_of_it_is_planned_holds_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner, "SLICE_BLOCKS", 2)
    failing = False

    def meanwhile() -> None:
        if failing and world.write.jobs:
            world.write.end(outcomes=IO_ERROR, fault=BROKEN)

    world = EngineWorld(on_taken=meanwhile)
    world.put(BLOCKS)
    while world.store.jobs:
        world.store.end()
    while world.write.jobs:
        world.write.end(outcomes=IO_ERROR, fault=BROKEN)
    probe(world, 0.5)
    failing = True
    assert ended(world.put(BLOCKS, durable=True)) == [[IO_ERROR] * 2 + [REJECTED] * 4]
    world.check_idle()


def test_what_an_ssd_without_room_of_its_own_refuses_is_no_outage() -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    world.store.end()
    world.write.end(outcomes=REJECTED)
    assert service(world) is Service.SERVING


def test_probes_that_fail_come_further_and_further_apart() -> None:
    world = EngineWorld()
    lose_writes(world)
    for seconds in (0.5, 1, 2, 4, 8, 16, 30, 30):
        probe(world, seconds, [OK, IO_ERROR])
    assert world.metrics.value(Metric.SSD_PROBES, "failed") == 8
    probe(world, 30)
    assert service(world) is Service.SERVING


def test_trouble_that_comes_back_soon_is_probed_later_and_after_a_calm_as_soon_as_at_first() -> None:
    world = EngineWorld()
    lose_writes(world)
    probe(world, 0.5)
    lose_again(world)
    probe(world, 1.0)
    lose_again(world)
    probe(world, 2.0)
    world.expire_after(61)
    lose_again(world)
    probe(world, 0.5)


def lose_again(world: EngineWorld) -> None:
    world.put(chain(f"again {world.clock.now}", 1))
    world.store.end()
    world.write.end(outcomes=IO_ERROR, fault=BROKEN)
    assert service(world) is Service.WRITES_OFF


def test_no_probe_begins_before_the_last_one_has_ended() -> None:
    world = EngineWorld()
    lose_writes(world)
    world.expire_after(1)
    world.expire_after(100)
    assert len(world.write.jobs) == 1
    assert world.engine.expire() == math.inf
    world.settle()


def test_a_probe_that_takes_seconds_finds_nothing_well() -> None:
    world = EngineWorld()
    lose_writes(world)
    probe(world, 0.5, seconds=STALL_SECONDS)
    assert service(world) is Service.WRITES_OFF
    assert "took 10.0 s" in why(world)


def test_behind_a_write_that_does_not_end_nobody_waits() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    durable = world.put(chain("b", 2), durable=True)
    world.store.end()
    world.write.begin(world.write.jobs[0])
    flush, delete = world.flush(), world.start_delete(BLOCKS[:1])
    world.expire_after(3 * STALL_SECONDS)
    assert ended(durable, flush, delete) == [[REJECTED] * 2, [REJECTED], [REJECTED]]
    assert ended(world.flush(), world.start_delete(BLOCKS[1:2])) == [[IO_ERROR], [REJECTED]]
    assert world.presence(BLOCKS[:2]) == [Presence.MISS] * 2
    assert service(world) is Service.WRITES_OFF
    world.settle()
    world.check_idle()


def test_a_sync_that_failed_for_another_fails_a_durable_put_that_had_begun_to_write() -> None:
    world = EngineWorld()
    world.put(BLOCKS[:3])
    durable = world.put(BLOCKS, durable=True)
    world.store.end()
    world.write.end()
    other = world.put(chain("b", 1), durable=True)
    world.store.end(world.store.jobs[-1])
    world.write.end()
    world.write.end(outcomes=IO_ERROR)
    world.settle()
    assert ended(other, durable) == [[IO_ERROR], [IO_ERROR] * 3 + [REJECTED] * 3]


def test_a_sync_that_failed_for_another_fails_a_delete_that_had_begun_to_write() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    flush, delete = world.flush(), world.start_delete(BLOCKS[:2])
    sync, tombstones = world.write.jobs
    world.write.end(tombstones)
    world.write.end(sync, outcomes=IO_ERROR)
    world.settle()
    assert ended(flush, delete) == [[IO_ERROR], [IO_ERROR] * 2]


def test_deletes_are_still_written_down_while_writes_are_off_but_move() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    lose_writes(world, FULL)
    assert world.delete(BLOCKS) == 6


def test_writes_that_take_seconds_each_turn_writes_off() -> None:
    world = EngineWorld()
    for number in range(3):
        assert service(world) is Service.SERVING
        world.put(BLOCKS[number : number + 1])
        world.store.end()
        world.write.end(seconds=STALL_SECONDS)
    assert service(world) is Service.WRITES_OFF
    assert why(world) == "writes take 10.0 s"


def test_a_stall_of_nought_seconds_means_never() -> None:
    world = EngineWorld(limits=Limits(stall_seconds=0))
    world.keep_on_ssd(BLOCKS)
    get = world.get(BLOCKS)
    world.expire_after(1e6)
    assert service(world) is Service.SERVING
    assert world.engine.expire() == math.inf
    world.settle()
    assert get.result(0).ok


def full_of_files() -> EngineWorld:
    """A world with three files, whose SSD has no room for a fourth."""
    world = EngineWorld(file_blocks=4, ssd_nbytes=13 * PAGE_NBYTES, reclaim_below_nbytes=2 * PAGE_NBYTES)
    world.keep_in_host(chain("old", 10))
    return world


def test_a_full_disk_is_given_one_file_back_and_probed_at_once() -> None:
    world = full_of_files()
    world.bytes.free_nbytes = 0
    lose_writes(world, FULL)
    (discard,) = [job for job in world.write.jobs if isinstance(job, DiscardJob)]
    world.write.end(discard)
    assert not world.write.jobs
    world.engine.expire()
    (again,) = world.write.jobs
    assert isinstance(again, ProbeJob)
    world.write.end(again, [OK, REJECTED], fault=FULL)
    assert not world.write.jobs, "what has not helped once is not given away again"


def test_a_sick_disk_is_given_no_file_back() -> None:
    world = full_of_files()
    world.bytes.free_nbytes = 0
    lose_writes(world, BROKEN)
    assert not world.write.jobs
    assert world.metrics.value(Metric.RECLAIMED_FILES) == 0


def test_an_outage_is_told_once_and_its_end_once(caplog: pytest.LogCaptureFixture) -> None:
    world = EngineWorld()
    with caplog.at_level(logging.WARNING):
        lose_writes(world)
        for _ in range(20):
            world.put(chain(f"more {_}", 1))
            world.store.end()
        for seconds in (0.5, 1, 2, 4):
            probe(world, seconds, [OK, IO_ERROR])
        probe(world, 8)
    off, on = caplog.messages
    assert BROKEN.text in off
    assert "well again" in on


def test_a_tier_that_never_was_is_never_off() -> None:
    world = EngineWorld(ssd=False)
    world.put(BLOCKS)
    world.store.end()
    get = world.get(BLOCKS)
    world.load.end()
    assert get.result(0).ok
    assert world.metrics.value(Metric.NOT_STORED_BLOCKS, "ssd_off") == 0
    assert world.metrics.value(Metric.HIT_BLOCKS, TierName.HOST) == 6
