"""What a full SSD has no room for is parked, whoever put it: what comes behind it, who waits, what lets it go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.full_ssd import FILE_BLOCKS, full_ssd, not_stored, on_ssd
from tests.outage import BROKEN, STALL_SECONDS, service
from tierstore.control import parking
from tierstore.control.mind import Limits
from tierstore.health import Service
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES, CopyJob, DiscardJob, Outcome, Presence, SyncJob, TierName

if TYPE_CHECKING:
    from tierstore.transfer.future import Transfer
    from tierstore.types import UInt8Array

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome


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


def test_what_waits_for_room_in_the_index_is_written_by_a_store_that_is_idle_otherwise() -> None:
    """No job was left to end, so what was parked stayed so, although room had come."""
    world = EngineWorld(slot_pages=(1, 2), slab_pages=16, capacity=16, file_blocks=FILE_BLOCKS)
    blocks = chain("new", 8)
    world.put(blocks)
    world.store.end()
    world.keep_on_ssd(chain("old", 8), layout=1)
    with world.engine.planning() as planner:
        planner.end_life(world.generations[1].number)
    world.write.end(outcomes=REJECTED)  # while the index is full; the first step of the upkeep empties it
    world.settle()
    assert on_ssd(world, blocks) == len(blocks)
    world.check_idle()


def test_a_flush_hears_at_once_that_an_outage_lets_go_what_it_waits_for() -> None:
    """It heard so with the next job or probe that ended; a read that hangs ends none."""
    file_nbytes = FILE_BLOCKS * PAGE_NBYTES
    limits = Limits(stall_seconds=STALL_SECONDS)
    world = EngineWorld(
        file_blocks=FILE_BLOCKS, ssd_nbytes=4 * file_nbytes, reclaim_below_nbytes=file_nbytes, limits=limits
    )
    world.keep_on_ssd(chain("elsewhere", FILE_BLOCKS))
    world.keep_in_host(chain("old", 2 * FILE_BLOCKS))
    world.get(chain("elsewhere", FILE_BLOCKS))
    for job in world.read.jobs:
        world.read.begin(job)
    world.put(chain("new", 3 * FILE_BLOCKS))
    world.store.end()
    world.write.end()
    flush = world.flush()
    assert not any(isinstance(job, SyncJob) for job in world.write.jobs), "two thirds are parked"
    world.expire_after(STALL_SECONDS)
    assert service(world) is Service.READS_OFF
    assert any(isinstance(job, SyncJob) for job in world.write.jobs)
    world.settle()
    assert flush.result(0).ok
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


def test_the_budget_pays_for_what_is_written_and_once() -> None:
    """What was parked behind others paid when it came, and once more room had come its head was missing."""
    hourly = (3 + 3 + 1) * FILE_BLOCKS * PAGE_NBYTES
    world = full_ssd(limits=Limits(write_nbytes_per_day=24 * hourly))
    blocks, more = chain("new", 3 * FILE_BLOCKS), chain("more", FILE_BLOCKS)
    world.put(blocks)
    world.store.end()
    world.write.end()
    world.put(chain("tail", FILE_BLOCKS), parent=chain("head", 1)[0])
    world.store.end()
    world.settle()
    assert on_ssd(world, blocks) == len(blocks), "what found no room is not paid for again"
    assert not_stored(world) == {"head_missing": FILE_BLOCKS}
    world.keep_in_host(more)
    assert on_ssd(world, more) == len(more)
    world.check_idle()


def test_what_is_refused_again_stays_before_what_was_parked_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking, "_STEP_BATCHES", 1)
    monkeypatch.setattr(parking, "_WRITES_BLOCKS", 1)
    world, blocks = with_parked_blocks()
    tail = chain("tail", FILE_BLOCKS)
    world.put(tail, parent=blocks[-1])
    world.store.end()
    world.settle()
    assert on_ssd(world, tail) == len(tail)
    assert not_stored(world) == {}
    world.check_idle()


def test_no_more_is_unparked_than_the_link_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All was planned in one hold of the lock, 0.1 s for a thousand batches, and the link refused what was too much."""
    monkeypatch.setattr(parking, "_WRITES_BLOCKS", 2)
    world, _blocks = with_parked_blocks(Limits(write_inflight_nbytes_max=1 << 30))
    world.write.capacity = 4
    for name in "abcdefgh":
        world.put(chain(name, 1))
        world.store.end()
    world.settle()
    assert [on_ssd(world, chain(name, 1)) for name in "abcdefgh"] == [1] * 8
    assert not_stored(world) == {}
    world.check_idle()
