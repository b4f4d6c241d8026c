"""What a full SSD has no room for waits in host memory for the file that is leaving, never for one that is not."""

from __future__ import annotations

from tests.full_ssd import FILE_BLOCKS, full_ssd
from tierstore.metrics import Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES, DiscardJob, Outcome, Presence

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome


def test_a_durable_put_larger_than_what_is_free_is_written_whole() -> None:
    world = full_ssd()
    blocks = chain("new", 3 * FILE_BLOCKS)
    put = world.put(blocks, durable=True)
    world.settle()
    assert put.result(0).ok
    assert world.metrics.value(Metric.RECLAIMED_FILES) >= 2
    world.check_idle()


def test_a_durable_put_larger_than_the_ssd_is_refused_in_part_and_ends() -> None:
    world = full_ssd(num_files=3)
    put = world.put(chain("new", 6 * FILE_BLOCKS), durable=True)
    world.settle()
    assert REJECTED in put.result(0).outcomes
    world.check_idle()


def test_blocks_that_wait_for_room_are_not_evicted() -> None:
    world = full_ssd()
    blocks = chain("new", 3 * FILE_BLOCKS)
    put = world.put(blocks, durable=True)
    world.store.end()
    world.write.end()  # the write: what found no room is parked, the oldest file leaves
    world.put(chain("flood", 32))
    world.store.end()
    assert not put.done()
    assert world.presence(blocks) == [Presence.HIT] * len(blocks)


def test_a_parked_put_that_is_cancelled_ends_at_once_and_leaves_no_pin() -> None:
    world = full_ssd()
    put = world.put(chain("new", 3 * FILE_BLOCKS), durable=True)
    world.store.end()
    world.write.end()
    assert any(isinstance(job, DiscardJob) for job in world.write.jobs)
    put.cancel()
    assert CANCELLED in put.result(0).outcomes
    world.settle()
    world.check_idle()


def test_a_parked_block_that_is_deleted_does_not_come_back() -> None:
    world = full_ssd()
    blocks = chain("new", 3 * FILE_BLOCKS)
    put = world.put(blocks, durable=True)
    world.store.end()
    world.write.end()
    assert world.delete(blocks[-1:]) == 1
    world.settle()
    assert put.result(0).outcomes[-1] in (CANCELLED, REJECTED)
    world.check_idle()


def test_without_a_file_to_reclaim_a_durable_put_is_refused_at_once() -> None:
    world = EngineWorld(file_blocks=FILE_BLOCKS, ssd_nbytes=0, reclaim_below_nbytes=PAGE_NBYTES)
    put = world.put(chain("new", 2), durable=True)
    world.settle()
    assert put.result(0).outcomes == [REJECTED] * 2
    world.check_idle()
