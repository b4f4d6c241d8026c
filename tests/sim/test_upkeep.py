"""How files are reclaimed and slabs handed over: whole, in slices, and never under a copy."""

from __future__ import annotations

import pytest

from tierstore.control import ssd_room
from tierstore.control.mind import Limits
from tierstore.metrics import Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES, CopyJob, DiscardJob, Outcome, Presence, TierName

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome
FILE_BLOCKS = 8
POOL_BLOCKS = 32


def small_ssd(num_files: int = 3, *, rewrite_share: float = 0.0) -> EngineWorld:
    """A world whose SSD takes some files, and reclaims one when less than a file is free."""
    file_nbytes, limits = FILE_BLOCKS * PAGE_NBYTES, Limits(rewrite_share=rewrite_share)
    return EngineWorld(
        file_blocks=FILE_BLOCKS, ssd_nbytes=num_files * file_nbytes, reclaim_below_nbytes=file_nbytes, limits=limits
    )


def discards(world: EngineWorld) -> list[int]:
    """Files that are being given back."""
    return [job.file for job in world.write.jobs if isinstance(job, DiscardJob)]


def fill(world: EngineWorld, name: str, count: int = FILE_BLOCKS) -> None:
    """Put a chain later than all before it and end its store and its write, nothing else."""
    world.clock.advance(10)
    world.put(chain(name, count))
    world.store.end()
    world.write.end(world.write.jobs[-1])


def on_ssd(world: EngineWorld) -> int:
    """Blocks that the directory knows on SSD."""
    with world.engine.planning() as mind:
        return int((mind.directory.ssd.state == 2).sum())


def test_the_oldest_file_goes_whole_when_less_than_the_reserve_is_free() -> None:
    world = small_ssd()
    fill(world, "first")
    fill(world, "second")
    assert discards(world) == []
    fill(world, "third", 1)
    assert discards(world) == [0]
    assert on_ssd(world) == FILE_BLOCKS + 1
    world.settle()
    assert sorted(world.bytes.file_nbytes) == [1, 2]
    assert world.metrics.value(Metric.RECLAIMED_FILES) == 1
    assert world.metrics.value(Metric.EVICTED_BLOCKS, TierName.SSD) == FILE_BLOCKS
    world.check_idle()


def test_blocks_of_a_reclaimed_file_stay_in_the_host() -> None:
    world = small_ssd()
    for name in ("first", "second", "third"):
        fill(world, name)
    world.settle()
    assert world.presence(chain("first", FILE_BLOCKS)) == [Presence.HIT] * FILE_BLOCKS


def test_a_ssd_that_is_reclaimed_all_the_time_keeps_taking_blocks() -> None:
    world = small_ssd()
    for name in "abcdefghij":
        world.keep_in_host(chain(name, 12))
    assert world.metrics.value(Metric.RECLAIMED_FILES) > 5
    assert world.bytes.free_nbytes >= FILE_BLOCKS * PAGE_NBYTES
    world.check_idle()


def test_a_block_that_is_used_all_the_time_outlives_file_after_file() -> None:
    world = small_ssd(4, rewrite_share=0.5)
    hot = chain("hot", 2)
    world.keep_in_host(hot)
    for name in range(12):
        world.clock.advance(10)
        world.get(hot)
        world.settle()
        world.keep_in_host(chain(f"{name}", 4))
    assert world.metrics.value(Metric.RECLAIMED_FILES) > 3
    world.keep_in_host(chain("what the host holds goes", POOL_BLOCKS))
    assert world.presence(hot) == [Presence.HIT] * 2


def test_now_and_then_the_oldest_file_goes_and_all_that_is_warm_in_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssd_room, "_OLDEST_EVERY", 1)
    world = small_ssd(rewrite_share=0.5)
    fill(world, "first")
    world.get(chain("first", FILE_BLOCKS))
    world.settle()
    world.keep_in_host(chain("second", FILE_BLOCKS + 1))
    assert 0 not in world.bytes.file_nbytes
    assert world.metrics.value(Metric.SSD_REWRITTEN_BLOCKS) == FILE_BLOCKS - 1


def test_a_file_is_forgotten_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssd_room, "_RECLAIM_BLOCKS", 3)
    world = small_ssd()
    fill(world, "first")
    fill(world, "second", FILE_BLOCKS + 1)
    assert discards(world) == [0]
    world.settle()
    world.check_idle()


def test_a_file_waits_for_the_reads_in_it_and_goes_once() -> None:
    world = small_ssd()
    old = chain("old", FILE_BLOCKS)
    world.keep_on_ssd(old)
    gets = [world.get(old[:2]), world.get(old[2:4])]
    first, second = world.read.jobs
    fill(world, "second")
    fill(world, "third", 1)
    assert discards(world) == []
    world.read.end(first)
    assert discards(world) == []
    world.read.end(second)
    assert discards(world) == [0]
    world.settle()
    assert all(get.result(0).ok for get in gets)
    assert sorted(world.bytes.file_nbytes) == [1, 2]
    world.check_idle()


def test_a_file_waits_for_a_read_of_a_block_that_was_deleted() -> None:
    world = small_ssd()
    old = chain("old", FILE_BLOCKS)
    world.keep_on_ssd(old)
    world.get(old[:2])
    world.delete(old)
    fill(world, "second")
    fill(world, "third", 1)
    assert discards(world) == []
    world.read.end()
    assert discards(world) == [0]
    world.settle()
    world.check_idle()


def test_a_block_whose_file_leaves_while_it_is_read_is_in_the_host_afterwards() -> None:
    world = small_ssd()
    old = chain("old", FILE_BLOCKS)
    world.keep_on_ssd(old)
    world.get(old)
    fill(world, "second")
    fill(world, "third", 1)
    world.settle()
    assert world.presence(old) == [Presence.HIT] * FILE_BLOCKS
    assert on_ssd(world) == FILE_BLOCKS + 1
    world.check_idle()


def test_a_block_whose_file_leaves_under_a_failing_read_is_unknown() -> None:
    world = small_ssd()
    old = chain("old", FILE_BLOCKS)
    world.keep_on_ssd(old)
    world.get(old)
    fill(world, "second")
    fill(world, "third", 1)
    world.read.end(outcomes=IO_ERROR)
    assert world.presence(old) == [Presence.MISS] * FILE_BLOCKS
    world.settle()
    world.check_idle()


def test_a_durable_put_of_a_block_whose_file_is_leaving_is_rejected() -> None:
    world = small_ssd()
    old = chain("old", FILE_BLOCKS)
    world.keep_on_ssd(old)
    world.get(old)
    put = world.put(old, durable=True)
    fill(world, "second")
    fill(world, "third", 1)
    world.settle()
    assert put.result(0).outcomes == [REJECTED] * FILE_BLOCKS


def test_the_only_file_is_never_reclaimed() -> None:
    world = small_ssd(num_files=1)
    fill(world, "first")
    assert discards(world) == []


def two_layouts() -> EngineWorld:
    """A world of two block sizes, each with an open file of its own; any two files are one too many."""
    return EngineWorld(
        slot_pages=(1, 2),
        slab_pages=16,
        file_blocks=FILE_BLOCKS,
        ssd_nbytes=100 * PAGE_NBYTES,
        reclaim_below_nbytes=90 * PAGE_NBYTES,
        limits=Limits(rewrite_share=0.0),
    )


def test_a_write_that_lands_in_a_file_on_its_way_out_is_not_kept() -> None:
    world = two_layouts()
    first, late, big = chain("first", 2), chain("late", 2), chain("big", 5)
    world.put(first)
    world.store.end()
    world.write.end()
    world.put(big, layout=1)
    world.store.end()
    (big_write,) = world.write.jobs
    durable = world.put(late, durable=True)
    world.store.end()
    (late_write,) = (job for job in world.write.jobs if isinstance(job, CopyJob) and job is not big_write)
    world.write.end(big_write)
    assert discards(world) == [0]
    world.write.end(late_write)
    assert discards(world) == [0]
    world.settle()
    assert durable.result(0).outcomes == [CANCELLED] * 2
    assert world.presence(late) == [Presence.HIT] * 2
    world.check_idle()


def test_a_discard_for_which_the_link_has_no_room_is_made_after_the_next_write() -> None:
    world = small_ssd()
    fill(world, "first")
    fill(world, "second")
    world.put(chain("third", 1))
    world.store.end()
    world.write.capacity = 0
    world.write.end()
    assert discards(world) == []
    assert sorted(world.bytes.file_nbytes) == [0, 1, 2]
    world.check_idle()
    world.write.capacity = 8
    fill(world, "fourth", 1)
    assert discards(world) == [0]
    world.settle()
    assert sorted(world.bytes.file_nbytes) == [1, 2]
    world.check_idle()


def test_a_full_index_reclaims_the_oldest_file() -> None:
    world = EngineWorld(capacity=16, file_blocks=FILE_BLOCKS)
    world.keep_on_ssd(chain("first", FILE_BLOCKS))
    world.keep_on_ssd(chain("second", FILE_BLOCKS))
    world.put(chain("third", 1))
    world.settle()
    put = world.put(chain("third", FILE_BLOCKS))
    world.settle()
    assert put.result(0).ok
    world.check_idle()


def full_of_two_sizes() -> EngineWorld:
    """A pool of 4 slabs of 16 pages, all of them of blocks of one page, 64 in all."""
    world = EngineWorld(slot_pages=(1, 2), slab_pages=16, ssd=False)
    world.keep_in_host(chain("small", 64))
    return world


def test_a_class_without_a_slab_gets_the_one_with_another_ones_coldest_block() -> None:
    world = full_of_two_sizes()
    big = chain("big", 4)
    world.clock.advance(1)
    assert world.put(big, layout=1).result(0).outcomes == [REJECTED] * 4
    put = world.put(big, layout=1)
    world.settle()
    assert put.result(0).ok
    kept = world.presence(chain("small", 64))
    assert kept.count(Presence.MISS) == 16
    assert kept[-1] == Presence.MISS


def test_a_slab_changes_hands_only_when_the_last_pin_in_it_is_gone() -> None:
    world = full_of_two_sizes()
    small, big = chain("small", 64), chain("big", 4)
    get = world.get(small[60:])
    world.clock.advance(1)
    for _ in range(2):
        assert world.put(big, layout=1).result(0).outcomes == [REJECTED] * 4
    assert world.presence(small[48:]) == [Presence.MISS] * 12 + [Presence.HIT] * 4
    world.load.end()
    assert get.result(0).ok
    assert world.presence(small[60:]) == [Presence.MISS] * 4
    put = world.put(big, layout=1)
    world.settle()
    assert put.result(0).ok
    world.check_idle()


def test_the_last_slab_of_a_class_is_not_taken() -> None:
    world = full_of_two_sizes()
    for name in "abcdefgh":
        world.clock.advance(1)
        world.put(chain(name, 8), layout=1)
        world.settle()
    with world.engine.planning() as mind:
        assert [mind._mind.host.slots.num_slabs(slot_class) for slot_class in (0, 1)] == [1, 3]
    assert world.presence(chain("small", 64)).count(Presence.HIT) == 16
