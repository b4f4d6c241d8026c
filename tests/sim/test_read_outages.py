"""How the store goes on without an SSD that cannot be read, and how it takes it up again."""

from __future__ import annotations

import logging
import math

import pytest

from tests.outage import (
    BLOCKS,
    BROKEN,
    STALL_SECONDS,
    ended,
    lose_reads,
    lose_writes,
    on_ssd,
    probe,
    service,
    why,
)
from tierstore.health import Service
from tierstore.metrics import Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import CopyJob, Outcome, Presence

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome


def test_blocks_on_ssd_are_served_while_only_writes_are_off() -> None:
    world = on_ssd()
    lose_writes(world)
    get = world.get(BLOCKS)
    world.settle()
    assert get.result(0).ok


def test_a_probe_that_reads_and_writes_turns_all_on_again() -> None:
    world = EngineWorld()
    lose_writes(world)
    probe(world, 0.5)
    assert service(world) is Service.SERVING
    assert not why(world)
    world.put(BLOCKS, durable=True)
    world.store.end()
    assert len(world.write.jobs) == 1
    world.settle()
    world.check_idle()


def test_reads_that_fail_in_a_row_turn_reads_off_and_gets_are_misses_at_once() -> None:
    world = on_ssd()
    lose_reads(world)
    assert ended(world.get(BLOCKS)) == [[MISS] * 6]
    assert world.presence(BLOCKS) == [Presence.MISS] * 6
    assert world.engine.leading(0, BLOCKS) == 0
    assert ended(world.prefetch(BLOCKS)) == [[MISS] * 6]
    assert ended(world.put(chain("b", 2), durable=True)) == [[REJECTED] * 2]
    assert world.metrics.value(Metric.SSD_OUTAGES, "read") == 1
    world.check_idle()


def test_with_reads_off_the_host_pool_is_served_up_to_the_first_block_on_ssd() -> None:
    world = on_ssd()
    world.put(chain("lead", 2))
    world.store.end()
    lose_reads(world)
    get = world.get(BLOCKS)
    assert get.done()
    lead = world.get(chain("lead", 2))
    world.load.end()
    assert lead.result(0).ok


def test_blocks_on_ssd_are_there_again_once_reads_are_on() -> None:
    world = on_ssd()
    lose_reads(world)
    probe(world, 0.5)
    assert world.presence(BLOCKS) == [Presence.HIT] * 6
    get = world.get(BLOCKS)
    world.settle()
    assert get.result(0).ok
    world.check_idle()


def test_a_probe_that_only_reads_turns_only_reads_on() -> None:
    world = on_ssd()
    lose_reads(world)
    probe(world, 0.5, [OK, REJECTED])
    assert service(world) is Service.WRITES_OFF
    assert world.presence(BLOCKS) == [Presence.HIT] * 6
    probe(world, 1.0)
    assert service(world) is Service.SERVING


def test_a_good_read_between_failed_ones_keeps_reads_on() -> None:
    world = on_ssd()
    for number, outcome in enumerate([IO_ERROR, IO_ERROR, OK, IO_ERROR, IO_ERROR]):
        world.get(BLOCKS[number : number + 1])
        world.read.end(outcomes=outcome)
    world.settle()
    assert service(world) is Service.SERVING


def test_a_block_that_a_well_disk_does_not_give_twice_is_forgotten_and_written_again() -> None:
    world = on_ssd()
    for turn in range(2):
        world.get(BLOCKS[:1])
        world.read.end(outcomes=IO_ERROR)
        world.get(BLOCKS[1 + turn : 2 + turn])
        world.read.end()
        world.load.end()
    assert world.presence(BLOCKS[:1]) == [Presence.MISS]
    world.put(BLOCKS[:1])
    world.store.end()
    assert [len(job) for job in world.write.jobs if isinstance(job, CopyJob)] == [1]
    world.settle()
    world.check_idle()


def test_a_sick_disk_makes_no_block_forgotten() -> None:
    world = on_ssd()
    for _ in range(3):
        world.get(BLOCKS[:1])
        world.read.end(outcomes=IO_ERROR)
    assert service(world) is Service.READS_OFF
    probe(world, 0.5)
    assert world.presence(BLOCKS[:1]) == [Presence.HIT]


def test_a_get_without_a_deadline_waits_for_a_slow_read() -> None:
    world = on_ssd(read_batch=6)
    get = world.get(BLOCKS)
    world.expire_after(STALL_SECONDS * 0.9)
    assert not get.done()
    world.settle()
    assert get.result(0).ok


def test_when_no_read_ends_gets_become_misses_and_queued_reads_are_withdrawn() -> None:
    world = on_ssd()
    get, late = world.get(BLOCKS[:4]), world.get(BLOCKS[4:])
    running = world.read.jobs[0]
    world.read.begin(running)
    world.expire_after(STALL_SECONDS)
    assert ended(get, late) == [[MISS] * 4, [MISS] * 2]
    assert world.read.jobs == [running]
    assert service(world) is Service.READS_OFF
    assert "no read has ended for 10 s" in why(world)


def test_slots_that_a_stalled_read_fills_stay_its_own_until_it_returns() -> None:
    world = on_ssd()
    world.get(BLOCKS[:1])
    (running,) = world.read.jobs
    world.read.begin(running)
    world.expire_after(STALL_SECONDS)
    assert isinstance(running, CopyJob)
    assert running.dst_locations is not None
    world.put(chain("flood", 40))  # more than the pool holds
    (store,) = world.store.jobs
    assert isinstance(store, CopyJob)
    assert store.dst_locations is not None
    assert not set(store.dst_locations.tolist()) & set(running.dst_locations.tolist())
    world.read.end(running)
    world.settle()
    world.check_idle()


def test_a_deadline_does_not_wait_for_a_stalled_read() -> None:
    world = on_ssd()
    get = world.get(BLOCKS[:1], within=2)
    world.read.begin(world.read.jobs[0])
    world.expire_after(2)
    assert ended(get) == [[CANCELLED]]
    assert service(world) is Service.SERVING
    assert world.presence(BLOCKS[:1]) == [Presence.PENDING]
    world.expire_after(STALL_SECONDS)
    assert world.presence(BLOCKS[:1]) == [Presence.MISS]


def test_nobody_joins_a_stalled_read() -> None:
    world = on_ssd()
    world.get(BLOCKS[:1])
    world.read.begin(world.read.jobs[0])
    world.expire_after(STALL_SECONDS)
    get, put, ahead = world.get(BLOCKS[:1]), world.put(BLOCKS[:1]), world.prefetch(BLOCKS[:1])
    assert ended(get, put, ahead) == [[MISS], [REJECTED], [MISS]]
    world.read.end()
    world.check_idle()


def test_reads_stay_off_while_one_is_stuck_whatever_a_probe_says() -> None:
    world = on_ssd()
    world.get(BLOCKS[:1])
    world.read.begin(world.read.jobs[0])
    world.expire_after(STALL_SECONDS)
    probe(world, 0.5)
    assert service(world) is Service.READS_OFF
    world.read.end()
    probe(world, 1.0)
    assert service(world) is Service.SERVING


def test_reads_that_take_seconds_each_turn_reads_off() -> None:
    world = on_ssd()
    get = world.get(BLOCKS)
    for _ in range(3):
        world.read.end(seconds=STALL_SECONDS)
    assert service(world) is Service.READS_OFF
    while world.load.jobs:
        world.load.end()
    assert ended(get) == [[OK] * 3 + [MISS] * 3]


def test_an_ssd_that_is_idle_is_never_said_to_stall() -> None:
    world = on_ssd(read_batch=6)
    world.expire_after(1000)
    get = world.get(BLOCKS)
    world.expire_after(STALL_SECONDS * 0.9)
    world.settle()
    assert get.result(0).ok
    assert world.engine.expire() == math.inf


def test_reads_that_fail_now_and_then_are_told_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    world = on_ssd()
    with caplog.at_level(logging.WARNING):
        for turn in range(0, 6, 2):
            world.get(BLOCKS[turn : turn + 1])
            world.read.end(outcomes=IO_ERROR, fault=BROKEN)
            world.get(BLOCKS[turn + 1 : turn + 2])
            world.read.end()
    assert len(caplog.messages) == 1


def test_gauges_say_what_is_on() -> None:
    world = on_ssd()
    for lose, expected in ((lambda _world: None, (1, 1)), (lose_writes, (1, 0)), (lose_reads, (0, 0))):
        lose(world)
        with world.engine.planning() as planner:
            planner.gauge()
        assert tuple(world.metrics.value(Metric.SSD_ON, way) for way in ("read", "write")) == expected


def test_the_alarm_is_set_to_the_next_probe_and_the_next_stall() -> None:
    world = on_ssd()
    world.get(BLOCKS)
    assert world.engine.expire() == world.clock.now + STALL_SECONDS
    world.settle()
    lose_writes(world)
    assert world.engine.expire() == world.clock.now + 0.5
