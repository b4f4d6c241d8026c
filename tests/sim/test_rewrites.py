"""How warm blocks leave a file before it goes: written again, latest used first, at most half of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tierstore.advice import Usage
from tierstore.control import ssd_room
from tierstore.control.entry import State
from tierstore.metrics import Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES, CopyJob, DiscardJob, Outcome, Presence, SyncJob, TierName

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome
FILE_BLOCKS = 8
OLD = chain("old", FILE_BLOCKS)


def used(count: int) -> Usage:
    """Usage of blocks that an earlier run used once, each later than the one before it."""
    return Usage(np.zeros(count, np.uint64), np.arange(count, dtype=np.uint32), np.ones(count, np.uint16))


def world_of_files() -> EngineWorld:
    """A world whose SSD takes four files, and reclaims one when less than two are free."""
    file_nbytes = FILE_BLOCKS * PAGE_NBYTES
    return EngineWorld(file_blocks=FILE_BLOCKS, ssd_nbytes=4 * file_nbytes, reclaim_below_nbytes=2 * file_nbytes)


def fill(world: EngineWorld, name: str, count: int = FILE_BLOCKS) -> None:
    """Put a chain later than all before it and end its store and its write, nothing else."""
    world.clock.advance(10)
    world.put(chain(name, count))
    world.store.end()
    world.write.end(world.write.jobs[-1])


def leaving() -> EngineWorld:
    """A world whose oldest file, of the blocks OLD that no host slot holds, has begun to leave."""
    world = world_of_files()
    world.keep_on_ssd(OLD, usage=used(FILE_BLOCKS))
    fill(world, "second")
    fill(world, "third", 1)
    return world


def rewrites(world: EngineWorld) -> list[CopyJob]:
    """Rewrites under way."""
    return [job for job in world.write.jobs if isinstance(job, CopyJob) and job.src is TierName.SSD]


def discards(world: EngineWorld) -> list[int]:
    """Files that are being given back."""
    return [job.file for job in world.write.jobs if isinstance(job, DiscardJob)]


def positions(job: CopyJob) -> list[int]:
    """Which blocks of OLD a job moves, in its order."""
    names = [row.tobytes() for row in OLD]
    return [names.index(row.tobytes()) for row in job.hashes]


def files(world: EngineWorld, hashes: UInt8Array = OLD) -> list[int | None]:
    """The chunk file that each block lies in; None where SSD does not hold it."""
    with world.engine.planning() as mind:
        directory = mind.directory
        entries = directory.find(world.generations[0].number, hashes.view(np.uint64))
        held = (entries >= 0) & (directory.ssd.state[entries] == State.READY)
        places = zip(directory.ssd_file[entries].tolist(), held.tolist(), strict=True)
        return [file if there else None for file, there in places]


def test_blocks_used_since_they_were_written_move_and_the_others_are_forgotten() -> None:
    world = world_of_files()
    world.keep_on_ssd(OLD)
    world.get(OLD[2:4])
    world.settle()
    fill(world, "second")
    fill(world, "third", 1)
    (rewrite,) = rewrites(world)
    assert positions(rewrite) == [2, 3]
    assert files(world) == [None] * 2 + [0] * 2 + [None] * 4
    world.settle()
    assert files(world) == [None] * 2 + [2] * 2 + [None] * 4
    assert world.metrics.value(Metric.SSD_REWRITTEN_BLOCKS) == 2
    assert world.metrics.value(Metric.EVICTED_BLOCKS, TierName.SSD) == 6
    assert world.metrics.value(Metric.RECLAIMED_FILES) == 1
    world.check_idle()


def test_at_most_half_of_a_file_is_written_again_the_latest_used_first() -> None:
    world = world_of_files()
    world.keep_on_ssd(OLD)
    for position in (5, 1, 7, 0, 3, 2, 6, 4):
        world.clock.advance(1)
        world.get(OLD[position : position + 1])
        world.settle()
    fill(world, "second")
    fill(world, "third", 1)
    (rewrite,) = rewrites(world)
    assert positions(rewrite) == [4, 6, 2, 3]


def test_half_of_a_file_is_the_bound_however_many_slices_look_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssd_room, "_RECLAIM_BLOCKS", 3)
    world = leaving()
    assert [positions(job) for job in rewrites(world)] == [[5, 4], [7, 6]]
    world.settle()
    assert world.metrics.value(Metric.SSD_REWRITTEN_BLOCKS) == FILE_BLOCKS // 2
    world.check_idle()


def test_a_block_that_was_kept_and_is_not_used_again_goes_in_its_turn() -> None:
    world = leaving()
    world.settle()
    assert files(world) == [None] * 4 + [2] * 4
    fill(world, "fourth")
    fill(world, "fifth")
    world.settle()
    assert 2 not in world.bytes.file_nbytes
    assert files(world) == [None] * FILE_BLOCKS
    world.check_idle()


@pytest.mark.parametrize("first", ["read", "write"])
def test_a_get_during_a_rewrite_reads_the_old_place_and_the_file_waits_for_both(first: str) -> None:
    world = leaving()
    get = world.get(OLD[4:])
    second = "write" if first == "read" else "read"
    getattr(world, first).end()
    assert discards(world) == []
    getattr(world, second).end()
    assert discards(world) == [0]
    world.settle()
    assert get.result(0).ok
    assert files(world) == [None] * 4 + [2] * 4
    world.check_idle()


@pytest.mark.parametrize("outcome", [IO_ERROR, CORRUPT, REJECTED])
def test_a_block_whose_rewrite_fails_is_forgotten_with_its_file(outcome: Outcome) -> None:
    world = leaving()
    world.write.end(outcomes=[OK, outcome, OK, OK])
    assert files(world) == [None] * 4 + [2, 2, None, 2]
    assert world.presence(OLD)[4:] == [Presence.HIT, Presence.HIT, Presence.MISS, Presence.HIT]
    assert discards(world) == [0]
    world.settle()
    assert world.metrics.value(Metric.SSD_REWRITTEN_BLOCKS) == 3
    assert world.metrics.value(Metric.EVICTED_BLOCKS, TierName.SSD) == 5
    world.check_idle()


def test_a_rewrite_for_which_the_link_has_no_room_forgets_its_blocks() -> None:
    world = world_of_files()
    world.keep_on_ssd(OLD, usage=used(FILE_BLOCKS))
    fill(world, "second")
    world.put(chain("third", 1))
    world.store.end()
    world.write.capacity = 0
    world.write.end()
    assert world.presence(OLD) == [Presence.MISS] * FILE_BLOCKS
    assert world.metrics.value(Metric.LINK_BLOCKS, "ssd-rewrite", REJECTED) == 4
    world.check_idle()


def test_a_file_goes_once_after_its_last_rewrite_and_its_last_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssd_room, "_RECLAIM_BLOCKS", 3)
    world = leaving()
    get = world.get(OLD[4:7])
    world.write.end()
    world.read.end()
    assert discards(world) == []
    world.write.end()
    assert discards(world) == [0]
    fill(world, "fourth", 1)
    assert discards(world) == [0]
    world.settle()
    assert get.result(0).ok
    assert sorted(world.bytes.file_nbytes) == [1, 2]
    world.check_idle()


def test_a_block_found_corrupt_while_it_is_written_again_can_be_stored_and_reclaimed_anew() -> None:
    world = leaving()
    world.get(OLD[4:5])
    world.read.end(outcomes=CORRUPT)
    assert world.presence(OLD[4:5]) == [Presence.MISS]
    world.put(OLD[4:5])
    world.store.end()
    world.settle()
    assert files(world, OLD[4:5]) == [None]
    get = world.get(OLD[4:5])
    world.settle()
    assert get.result(0).ok
    assert files(world, OLD[4:5]) == [2]
    fill(world, "fourth")
    fill(world, "fifth")
    world.settle()
    assert 2 not in world.bytes.file_nbytes
    world.check_idle()


def test_a_read_of_the_old_place_that_ends_corrupt_after_the_rewrite_forgets_the_new_place() -> None:
    world = leaving()
    get = world.get(OLD[4:])
    world.write.end()
    world.read.end(outcomes=[OK, CORRUPT, OK, OK])
    world.settle()
    assert get.result(0).outcomes == [OK, CORRUPT, MISS, MISS]
    assert files(world) == [None] * 4 + [2, None, 2, 2]
    world.check_idle()


def test_a_rewrite_that_lands_in_the_leaving_file_itself_keeps_nothing() -> None:
    world = EngineWorld(
        slot_pages=(1, 2),
        slab_pages=16,
        file_blocks=FILE_BLOCKS,
        ssd_nbytes=100 * PAGE_NBYTES,
        reclaim_below_nbytes=90 * PAGE_NBYTES,
    )
    world.keep_on_ssd(OLD[:4], usage=used(4))
    world.keep_in_host(chain("big", 5), layout=1)
    assert world.metrics.value(Metric.SSD_REWRITTEN_BLOCKS) == 2
    assert world.presence(OLD) == [Presence.MISS] * FILE_BLOCKS
    assert sorted(world.bytes.file_nbytes) == [1]
    world.check_idle()


def delete(world: EngineWorld) -> None:
    world.start_delete(OLD)


def clear(world: EngineWorld) -> None:
    world.clear()


@pytest.mark.parametrize("forget", [delete, clear])
@pytest.mark.parametrize("outcome", [OK, IO_ERROR])
def test_blocks_forgotten_while_they_are_written_again_stay_so_and_their_file_waits(
    forget: Callable[[EngineWorld], None], outcome: Outcome
) -> None:
    world = leaving()
    (rewrite,) = rewrites(world)
    forget(world)
    assert world.presence(OLD) == [Presence.MISS] * FILE_BLOCKS
    assert discards(world) == []
    world.write.end(rewrite, outcome)
    assert discards(world) == [0]
    world.settle()
    assert world.presence(OLD) == [Presence.MISS] * FILE_BLOCKS
    assert world.metrics.value(Metric.SSD_REWRITTEN_BLOCKS) == 0
    world.check_idle()


def test_a_block_put_again_while_its_deleted_self_is_written_again_is_a_new_one() -> None:
    world = leaving()
    (rewrite,) = rewrites(world)
    world.start_delete(OLD)
    world.put(OLD[4:])
    world.store.end()
    world.write.end(rewrite)
    world.settle()
    assert files(world) == [None] * 4 + [2] * 3 + [3]
    world.check_idle()


@pytest.mark.parametrize(("outcome", "durable"), [(OK, OK), (IO_ERROR, REJECTED)])
def test_a_durable_put_of_blocks_being_written_again_is_as_durable_as_they_become(
    outcome: Outcome, durable: Outcome
) -> None:
    world = leaving()
    put = world.put(OLD[4:], durable=True)
    world.store.end()
    world.write.end(outcomes=outcome)
    world.settle()
    assert put.result(0).outcomes == [durable] * 4
    world.check_idle()


@pytest.mark.parametrize(("outcome", "told"), [(OK, OK), (IO_ERROR, IO_ERROR), (CORRUPT, OK)])
def test_flush_waits_for_a_rewrite_and_tells_of_one_that_the_disk_failed(outcome: Outcome, told: Outcome) -> None:
    world = leaving()
    flush = world.flush()
    assert not any(isinstance(job, SyncJob) for job in world.write.jobs)
    world.write.end(outcomes=outcome)
    world.settle()
    assert flush.result(0).outcomes == [told]
