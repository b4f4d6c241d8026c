"""What is written to SSD: offered when put and whenever used, admitted, within a day's bytes, judged by its reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tierstore.control.mind import Limits
from tierstore.metrics import Metric
from tierstore.policy.admission import AdmitSecondHit
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES, CopyJob, Outcome, TierName

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome
BLOCKS = chain("a", 6)
FILE_BLOCKS = 8
OLD = chain("old", FILE_BLOCKS)
HOUR_SECONDS = 3600


def writes(world: EngineWorld) -> list[int]:
    """Blocks of each write-back under way."""
    return [len(job) for job in world.write.jobs if isinstance(job, CopyJob) and job.src is TierName.HOST]


def not_stored(world: EngineWorld, reason: str) -> float:
    return world.metrics.value(Metric.NOT_STORED_BLOCKS, reason)


def fates(world: EngineWorld) -> tuple[float, float]:
    """Blocks whose write was useful, and wasted."""
    useful, wasted = (world.metrics.value(Metric.SSD_WRITTEN_BLOCKS, fate) for fate in ("useful", "wasted"))
    return useful, wasted


def get(world: EngineWorld, hashes: UInt8Array = BLOCKS) -> None:
    """Get blocks, and end all that this leads to."""
    transfer = world.get(hashes)
    world.settle()
    assert transfer.result(0).ok


def test_by_second_hit_a_put_is_not_written_and_its_first_get_writes_it() -> None:
    world = EngineWorld(admission=AdmitSecondHit())
    world.keep_in_host(BLOCKS)
    assert not world.bytes.records
    assert not_stored(world, "not_admitted") == 6
    world.get(BLOCKS[:4])
    assert writes(world) == []
    world.load.end()
    assert writes(world) == [4]
    world.settle()
    assert len(world.bytes.records) == 4
    assert not_stored(world, "not_admitted") == 6
    world.check_idle()


def test_by_second_hit_a_second_put_of_a_block_is_no_use() -> None:
    world = EngineWorld(admission=AdmitSecondHit())
    world.keep_in_host(BLOCKS)
    assert world.put(BLOCKS).result(0).ok
    assert writes(world) == []


def test_by_second_hit_a_durable_put_is_written_at_once() -> None:
    world = EngineWorld(admission=AdmitSecondHit())
    put = world.put(BLOCKS, durable=True)
    world.settle()
    assert put.result(0).ok
    assert len(world.bytes.records) == 6


def test_by_second_hit_a_block_put_again_after_a_delete_starts_without_hits() -> None:
    world = EngineWorld(admission=AdmitSecondHit())
    world.keep_in_host(BLOCKS)
    get(world)
    assert len(world.bytes.records) == 6
    world.delete(BLOCKS)
    world.keep_in_host(BLOCKS)
    assert not_stored(world, "not_admitted") == 12
    assert len(world.bytes.records) == 6


def test_two_gets_at_once_write_a_block_once() -> None:
    world = EngineWorld(admission=AdmitSecondHit())
    world.keep_in_host(BLOCKS)
    for _ in range(2):
        world.get(BLOCKS)
    world.load.end()
    world.load.end()
    assert writes(world) == [6]
    world.settle()
    world.check_idle()


def test_a_get_of_blocks_that_ssd_holds_writes_nothing() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    get(world)
    assert len(world.bytes.records) == 6


def test_a_get_writes_what_an_earlier_write_lost() -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    world.store.end()
    world.write.end(outcomes=[OK, REJECTED, OK, OK, REJECTED, OK])
    world.get(BLOCKS)
    world.load.end()
    assert writes(world) == [2]


def test_a_block_deleted_while_it_is_loaded_is_not_offered() -> None:
    world = EngineWorld(admission=AdmitSecondHit())
    world.keep_in_host(BLOCKS)
    world.get(BLOCKS)
    world.delete(BLOCKS[4:])
    world.load.end()
    assert writes(world) == [4]
    world.settle()
    world.check_idle()


def test_a_block_written_because_of_a_get_stays_in_the_host_until_it_is_written() -> None:
    world = EngineWorld(admission=AdmitSecondHit())
    world.keep_in_host(BLOCKS)
    world.get(BLOCKS)
    world.load.end()
    put = world.put(chain("b", 32))
    world.settle()
    assert put.result(0).leading == 32 - 6
    assert len(world.bytes.records) == 6


def with_budget(blocks_per_hour: int) -> EngineWorld:
    """A world that may write so many blocks an hour."""
    return EngineWorld(limits=Limits(write_nbytes_per_day=24 * blocks_per_hour * PAGE_NBYTES))


def test_what_is_over_the_budget_is_not_written_and_counted() -> None:
    world = with_budget(4)
    world.put(BLOCKS)
    world.store.end()
    assert writes(world) == [4]
    assert not_stored(world, "write_budget") == 2


def test_a_block_that_was_over_the_budget_is_written_once_it_is_used_and_the_budget_allows() -> None:
    world = with_budget(4)
    world.keep_in_host(BLOCKS)
    get(world)
    assert len(world.bytes.records) == 4
    world.clock.advance(HOUR_SECONDS / 2)
    get(world)
    assert len(world.bytes.records) == 6


def test_a_durable_put_is_written_over_the_budget_and_takes_nothing_off_it() -> None:
    world = with_budget(4)
    put = world.put(chain("durable", 10), durable=True)
    world.settle()
    assert put.result(0).ok
    world.put(BLOCKS)
    world.store.end()
    assert writes(world) == [4]


def test_what_admission_or_the_queue_refuses_takes_nothing_off_the_budget() -> None:
    limits = Limits(write_nbytes_per_day=24 * 4 * PAGE_NBYTES, write_inflight_nbytes_max=PAGE_NBYTES)
    world = EngineWorld(limits=limits, admission=AdmitSecondHit())
    world.keep_in_host(BLOCKS)
    for _ in range(5):
        get(world)
    assert len(world.bytes.records) == 4
    assert not_stored(world, "write_queue_full") == 5 + 4 + 3 + 2 + 1
    assert not_stored(world, "write_budget") == 1


def test_a_rewrite_takes_nothing_off_the_budget() -> None:
    world = world_of_files(Limits(write_nbytes_per_day=24 * 20 * PAGE_NBYTES))
    world.keep_on_ssd(OLD)
    world.clock.advance(10)
    get(world, OLD[:4])
    for name in ("second", "third"):
        world.keep_in_host(chain(name, FILE_BLOCKS))
    assert world.metrics.value(Metric.SSD_REWRITTEN_BLOCKS) == 4
    world.put(chain("fourth", FILE_BLOCKS))
    world.store.end()
    assert writes(world) == [4]


@pytest.mark.parametrize("blocks_per_hour", [1, 7])
def test_over_days_no_more_is_written_than_a_day_allows_and_almost_all_of_that(blocks_per_hour: int) -> None:
    world = with_budget(blocks_per_hour)
    num_days = 3
    for quarter in range(num_days * 96):
        world.keep_in_host(chain(f"quarter {quarter}", 4))
        world.clock.advance(HOUR_SECONDS / 4)
    allowed = num_days * 24 * blocks_per_hour
    assert allowed - blocks_per_hour <= len(world.bytes.records) <= allowed + blocks_per_hour


def world_of_files(limits: Limits | None = None) -> EngineWorld:
    """A world whose SSD takes four files, and reclaims one when less than two are free."""
    file_nbytes = FILE_BLOCKS * PAGE_NBYTES
    return EngineWorld(
        file_blocks=FILE_BLOCKS, ssd_nbytes=4 * file_nbytes, reclaim_below_nbytes=2 * file_nbytes, limits=limits
    )


def leave(world: EngineWorld) -> None:
    """Put blocks until the first file has begun to go; ends nothing but what that needs."""
    world.clock.advance(10)
    for name, count in (("second", FILE_BLOCKS), ("third", 1)):
        world.put(chain(name, count))
        world.store.end()
        world.write.end(world.write.jobs[-1])


def test_a_write_is_useful_once_however_often_it_is_read() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    for _ in range(3):
        get(world)
        world.keep_in_host(chain(f"pushes it out {world.store.num_ended}", 32))
    assert world.metrics.value(Metric.LINK_BLOCKS, "ssd-read", OK) == 18
    assert fates(world) == (6, 0)


def test_a_write_that_nobody_read_is_wasted_when_its_file_goes() -> None:
    world = world_of_files()
    world.keep_on_ssd(OLD)
    leave(world)
    world.settle()
    assert fates(world) == (0, FILE_BLOCKS)


def test_a_write_whose_first_read_is_under_way_when_its_file_goes_is_useful_and_not_wasted() -> None:
    world = world_of_files()
    world.keep_on_ssd(OLD)
    world.get(OLD[:3])
    leave(world)
    world.settle()
    assert fates(world) == (3, FILE_BLOCKS - 3)


def test_a_block_that_was_read_and_is_forgotten_later_is_not_wasted() -> None:
    world = world_of_files()
    world.keep_on_ssd(OLD)
    get(world, OLD)
    world.clock.advance(10)
    get(world, OLD[:4])
    leave(world)
    world.settle()
    assert world.metrics.value(Metric.EVICTED_BLOCKS, TierName.SSD) == 4
    assert fates(world) == (FILE_BLOCKS, 0)


@pytest.mark.parametrize("outcome", [IO_ERROR, CORRUPT, REJECTED])
def test_a_write_used_in_the_host_alone_is_wasted_once_when_its_rewrite_fails(outcome: Outcome) -> None:
    world = world_of_files(Limits(rewrite_share=0.25))
    world.keep_in_host(OLD)
    world.clock.advance(10)
    get(world, OLD[:2])
    leave(world)
    assert fates(world) == (0, FILE_BLOCKS - 2)
    world.write.end(outcomes=outcome)
    assert fates(world) == (0, FILE_BLOCKS)
    world.settle()
    assert fates(world) == (0, FILE_BLOCKS)


def test_a_block_written_again_has_one_fate() -> None:
    world = world_of_files(Limits(rewrite_share=0.25))
    world.keep_in_host(OLD)
    world.clock.advance(10)
    get(world, OLD[:2])
    leave(world)
    world.settle()
    assert world.metrics.value(Metric.SSD_REWRITTEN_BLOCKS) == 2
    assert fates(world) == (0, FILE_BLOCKS - 2)
    for name in ("fourth", "fifth"):
        world.keep_in_host(chain(name, FILE_BLOCKS))
    num_written = world.metrics.value(Metric.LINK_BLOCKS, "ssd-write", OK)
    assert fates(world) == (0, num_written - len(world.bytes.records))


def test_bytes_on_ssd_are_counted_apart_for_first_writes_and_for_rewrites() -> None:
    world = world_of_files(Limits(rewrite_share=0.25))
    world.keep_in_host(OLD)
    world.clock.advance(10)
    get(world, OLD[:2])
    leave(world)
    world.settle()
    assert world.metrics.value(Metric.SSD_ENCODED_BYTES, "first") == (2 * FILE_BLOCKS + 1) * PAGE_NBYTES
    assert world.metrics.value(Metric.SSD_ENCODED_BYTES, "again") == 2 * PAGE_NBYTES
