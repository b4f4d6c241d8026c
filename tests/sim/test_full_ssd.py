"""What a full SSD has no room for waits in host memory for the file that is leaving, never for one that is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tests.outage import BROKEN
from tierstore.control.entry import State
from tierstore.control.index import as_keys
from tierstore.control.mind import Limits
from tierstore.metrics import Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES, CopyJob, DiscardJob, Outcome, Presence, TierName

if TYPE_CHECKING:
    from tierstore.transfer.future import Transfer
    from tierstore.types import UInt8Array

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome
FILE_BLOCKS = 4


def full_ssd(num_files: int = 4, limits: Limits | None = None) -> EngineWorld:
    """A world whose SSD is full but for a file."""
    file_nbytes = FILE_BLOCKS * PAGE_NBYTES
    world = EngineWorld(
        file_blocks=FILE_BLOCKS, ssd_nbytes=num_files * file_nbytes, reclaim_below_nbytes=file_nbytes, limits=limits
    )
    world.keep_in_host(chain("old", FILE_BLOCKS * (num_files - 1)))
    world.clock.advance(10)
    return world


def on_ssd(world: EngineWorld, blocks: UInt8Array) -> int:
    """How many blocks the SSD holds."""
    with world.engine.planning() as planner:
        entries = planner.directory.find(world.generations[0].number, as_keys(blocks))
        return int(np.count_nonzero(planner.directory.ssd.state[entries[entries >= 0]] == State.READY))


def not_stored(world: EngineWorld) -> dict[str, int]:
    """Blocks that a tier did not take, by reason."""
    reasons = ("not_admitted", "head_missing", "write_queue_full", "write_refused", "ssd_off", "pool_full")
    counts = {reason: int(world.metrics.value(Metric.NOT_STORED_BLOCKS, reason)) for reason in reasons}
    return {reason: count for reason, count in counts.items() if count}


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


def test_a_write_back_larger_than_what_is_free_waits_for_files_that_leave() -> None:
    world = full_ssd()
    blocks = chain("new", 3 * FILE_BLOCKS)
    world.keep_in_host(blocks)
    assert on_ssd(world, blocks) == 3 * FILE_BLOCKS
    assert not_stored(world) == {}
    world.check_idle()


def test_what_is_put_behind_a_parked_block_is_written_behind_it() -> None:
    world = full_ssd()
    blocks = chain("new", 3 * FILE_BLOCKS)
    world.put(blocks[: 2 * FILE_BLOCKS])
    world.store.end()
    world.write.end()  # half of it is parked
    world.put(blocks)
    world.store.end()
    world.settle()
    assert on_ssd(world, blocks) == 3 * FILE_BLOCKS
    assert not_stored(world) == {}
    world.check_idle()


def test_a_flush_waits_for_what_is_parked() -> None:
    world = full_ssd()
    blocks = chain("new", 3 * FILE_BLOCKS)
    world.put(blocks)
    world.store.end()
    world.write.end()
    flush = world.flush()
    while not flush.done():
        before = on_ssd(world, blocks)
        world.write.end()
    assert before == 3 * FILE_BLOCKS
    world.settle()
    world.check_idle()


def test_a_parked_write_back_that_is_deleted_does_not_come_back() -> None:
    world = full_ssd()
    blocks = chain("new", 3 * FILE_BLOCKS)
    world.put(blocks)
    world.store.end()
    world.write.end()
    assert world.delete(blocks[-1:]) == 1
    world.settle()
    assert world.presence(blocks) == [Presence.HIT] * (len(blocks) - 1) + [Presence.MISS]
    world.check_idle()


def test_what_is_parked_counts_as_being_written() -> None:
    world = full_ssd(limits=Limits(write_inflight_nbytes_max=3 * FILE_BLOCKS * PAGE_NBYTES))
    world.put(chain("new", 3 * FILE_BLOCKS))
    world.store.end()
    world.write.end()
    world.put(chain("more", 2 * FILE_BLOCKS))
    world.store.end()
    assert not_stored(world) == {"write_queue_full": FILE_BLOCKS}
    world.settle()
    world.check_idle()


def test_what_is_parked_when_the_ssd_goes_off_is_let_go() -> None:
    world = full_ssd()
    world.put(chain("new", 3 * FILE_BLOCKS))
    world.store.end()
    world.write.end()
    world.put(chain("other", 1), durable=True)
    world.store.end()
    failing = next(job for job in world.write.jobs if isinstance(job, CopyJob) and job.src is TierName.HOST)
    world.write.end(failing, IO_ERROR, fault=BROKEN)
    assert not_stored(world) == {"ssd_off": 2 * FILE_BLOCKS}
    world.settle()
    world.check_idle()


def with_parked_blocks(limits: Limits | None = None) -> tuple[EngineWorld, UInt8Array]:
    """A world, and blocks of which the last two thirds are parked while a file leaves."""
    world = full_ssd(num_files=6 if limits else 4, limits=limits)
    blocks = chain("new", 3 * FILE_BLOCKS)
    world.put(blocks)
    world.store.end()
    world.write.end()
    assert any(isinstance(job, DiscardJob) for job in world.write.jobs)
    return world, blocks


def on_ssd_before_the_end_of(flush: Transfer, world: EngineWorld, blocks: UInt8Array) -> int:
    """How many blocks the SSD holds when the last job is answered that a flush waits for."""
    before = -1
    while not flush.done():
        before = on_ssd(world, blocks)
        world.write.end()
    return before


def test_a_flush_waits_for_a_put_that_is_parked_behind_a_later_one() -> None:
    world = full_ssd()
    blocks = chain("mine", 2)
    world.put(blocks)
    flush = world.flush()
    world.put(chain("later", 3 * FILE_BLOCKS))
    world.store.end(world.store.jobs[1])
    world.write.end()  # what the flush does not wait for is parked
    world.store.end()  # and behind it what it does wait for
    assert on_ssd_before_the_end_of(flush, world, blocks) == len(blocks)
    world.settle()
    world.check_idle()


def test_a_flush_waits_for_parked_blocks_that_a_durable_put_writes_meanwhile() -> None:
    world, blocks = with_parked_blocks()
    flush = world.flush()
    world.put(blocks, durable=True)
    assert on_ssd_before_the_end_of(flush, world, blocks) == len(blocks)
    world.settle()
    world.check_idle()


def test_a_flush_ends_however_much_is_parked_behind_it() -> None:
    world, _blocks = with_parked_blocks(Limits(write_inflight_nbytes_max=5 * FILE_BLOCKS * PAGE_NBYTES))
    flush = world.flush()
    for later in range(40):
        world.put(chain(f"later {later}", FILE_BLOCKS + 2))
        while world.store.jobs:
            world.store.end()
        world.write.end()
        if flush.done():
            break
    assert flush.done()
    world.settle()
    world.check_idle()


def test_a_block_is_parked_once_however_often_it_is_named() -> None:
    world, blocks = with_parked_blocks()
    with world.engine.planning() as planner:
        num_waiting = planner.num_jobs
    world.put(blocks)
    world.get(blocks)
    world.load.end()
    with world.engine.planning() as planner:
        assert planner.num_jobs == num_waiting
    world.settle()
    assert on_ssd(world, blocks) == len(blocks)
    world.check_idle()


def test_a_durable_put_of_a_part_of_a_write_leaves_the_rest_of_it_to_be_parked() -> None:
    world = full_ssd()
    blocks = chain("new", 3 * FILE_BLOCKS)
    world.put(blocks)
    world.store.end()
    put = world.put(blocks[FILE_BLOCKS + 1 : FILE_BLOCKS + 3], parent=blocks[FILE_BLOCKS], durable=True)
    world.settle()
    assert put.result(0).ok
    assert on_ssd(world, blocks) == len(blocks)
    assert not_stored(world) == {}
    world.check_idle()
