"""What became of writes to SSD: useful once read from there, wasted where a block leaves unread; each block once."""

from __future__ import annotations

import pytest

from tierstore.metrics import Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES, CopyJob, Outcome, TierName

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome
BLOCKS = chain("a", 6)
FILE_BLOCKS = 8


def fates(world: EngineWorld) -> tuple[float, float]:
    """Blocks whose write was useful, and wasted."""
    useful, wasted = (world.metrics.value(Metric.SSD_WRITTEN_BLOCKS, fate) for fate in ("useful", "wasted"))
    return useful, wasted


def forget(world: EngineWorld, by: str) -> None:
    if by == "delete":
        world.delete(BLOCKS)
    else:
        world.clear()
    world.settle()


@pytest.mark.parametrize("by", ["delete", "clear"])
def test_what_is_deleted_or_cleared_before_it_was_read_is_wasted(by: str) -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    transfer = world.get(BLOCKS[:2])
    world.settle()
    assert transfer.result(0).ok
    assert fates(world) == (2, 0)
    forget(world, by)
    assert fates(world) == (2, 4)
    world.check_idle()


@pytest.mark.parametrize("by", ["delete", "clear"])
def test_a_read_under_way_when_its_block_is_forgotten_is_one(by: str) -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.get(BLOCKS[:2])
    forget(world, by)
    assert fates(world) == (2, 4)


def test_a_block_whose_bytes_turn_out_to_be_bad_is_wasted() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.get(BLOCKS)
    world.read.end(outcomes=[OK, OK, CORRUPT, OK, OK, OK])
    world.settle()
    useful, wasted = fates(world)
    assert (useful, wasted) == (5, 1)


def test_a_rewrite_under_way_when_its_block_is_deleted_is_no_read() -> None:
    file_nbytes = FILE_BLOCKS * PAGE_NBYTES
    world = EngineWorld(file_blocks=FILE_BLOCKS, ssd_nbytes=4 * file_nbytes, reclaim_below_nbytes=2 * file_nbytes)
    old = chain("old", FILE_BLOCKS)
    world.keep_in_host(old)
    world.get(old[:2])
    world.settle()
    for name, count in (("second", FILE_BLOCKS), ("third", 1)):
        world.put(chain(name, count))
        world.store.end()
        world.write.end(world.write.jobs[-1])
    assert [len(job) for job in world.write.jobs if isinstance(job, CopyJob) and job.src is TierName.SSD] == [2]
    assert fates(world) == (0, FILE_BLOCKS - 2)
    world.delete(old[:2])
    world.settle()
    assert fates(world) == (0, FILE_BLOCKS)


def test_write_amplification_is_one_figure() -> None:
    file_nbytes = FILE_BLOCKS * PAGE_NBYTES
    world = EngineWorld(file_blocks=FILE_BLOCKS, ssd_nbytes=4 * file_nbytes, reclaim_below_nbytes=2 * file_nbytes)
    assert amplification(world) == 0
    world.keep_in_host(chain("old", FILE_BLOCKS))
    assert amplification(world) == 1
    world.get(chain("old", FILE_BLOCKS)[:2])
    world.settle()
    world.keep_in_host(chain("second", FILE_BLOCKS))
    world.keep_in_host(chain("third", 1))
    assert world.metrics.value(Metric.SSD_REWRITTEN_BLOCKS) == 2
    assert amplification(world) == (2 * FILE_BLOCKS + 1 + 2) / (2 * FILE_BLOCKS + 1)


def test_jobs_in_flight_are_told_link_by_link() -> None:
    world = EngineWorld()
    world.put(chain("a", 2))
    world.put(chain("b", 2))
    assert (in_flight(world, "store"), in_flight(world, "ssd-write")) == (2, 0)
    world.store.end()
    assert (in_flight(world, "store"), in_flight(world, "ssd-write")) == (1, 1)
    world.settle()
    assert (in_flight(world, "store"), in_flight(world, "ssd-write")) == (0, 0)


def in_flight(world: EngineWorld, link: str) -> float:
    with world.engine.planning() as planner:
        planner.gauge()
    return world.metrics.value(Metric.LINK_INFLIGHT_JOBS, link)


def amplification(world: EngineWorld) -> float:
    with world.engine.planning() as planner:
        planner.gauge()
    return world.metrics.value(Metric.SSD_WRITE_AMPLIFICATION_RATIO)
