"""How a delete lasts: a tombstone for every hash, then one sync; job ids tell what was put before and after."""

from __future__ import annotations

import pytest

from tierstore.control import planner
from tierstore.metrics import Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.transfer import engine
from tierstore.transfer.base import Done
from tierstore.types import CopyJob, Job, JobId, Outcome, Presence, SyncJob, TombstoneJob

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome
BLOCKS = chain("a", 6)


def check_forgotten(world: EngineWorld) -> None:
    """Nothing of the blocks is known, before and after what was under way has ended."""
    assert world.presence(BLOCKS) == [Presence.MISS] * 6
    world.settle()
    assert world.presence(BLOCKS) == [Presence.MISS] * 6
    world.check_idle()


def buried(world: EngineWorld) -> list[list[bytes]]:
    """The hashes of each tombstone job under way."""
    return [[row.tobytes() for row in job.hashes] for job in world.write.jobs if isinstance(job, TombstoneJob)]


def rows(count: int) -> list[bytes]:
    """The first hashes of BLOCKS."""
    return [row.tobytes() for row in BLOCKS[:count]]


def test_delete_ends_after_its_tombstones_and_a_sync_that_begins_after_them() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    deletion = world.start_delete(BLOCKS)
    assert world.presence(BLOCKS) == [Presence.MISS] * 6
    assert buried(world) == [rows(6)]
    assert len(world.write.jobs) == 1
    world.write.end()
    assert [type(job) for job in world.write.jobs] == [SyncJob]
    assert not deletion.done()
    world.write.end()
    assert deletion.result(0).ok
    assert world.metrics.value(Metric.DELETED_BLOCKS) == 6
    world.check_idle()


def test_unknown_blocks_get_tombstones_too_and_are_told_as_misses() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS[:2])
    deletion = world.start_delete(BLOCKS)
    assert buried(world) == [rows(6)]
    world.settle()
    assert deletion.result(0).outcomes == [OK] * 2 + [MISS] * 4
    assert world.metrics.value(Metric.DELETED_BLOCKS) == 2


@pytest.mark.parametrize("outcome", [IO_ERROR, REJECTED])
def test_a_tombstone_that_is_not_written_is_the_outcome_of_its_block_which_stays_unknown(outcome: Outcome) -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS[:4])
    deletion = world.start_delete(BLOCKS)
    world.write.end(outcomes=[outcome, OK, OK, OK, outcome, OK])
    world.write.end()
    assert deletion.result(0).outcomes == [outcome, OK, OK, OK, outcome, MISS]
    check_forgotten(world)


@pytest.mark.parametrize("outcome", [IO_ERROR, REJECTED])
def test_a_sync_that_fails_is_the_outcome_of_the_whole_delete(outcome: Outcome) -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS[:4])
    deletion = world.start_delete(BLOCKS)
    world.write.end()
    world.write.end(outcomes=outcome)
    assert deletion.result(0).outcomes == [outcome] * 6
    check_forgotten(world)


def test_a_delete_for_which_the_link_has_no_room_is_rejected_at_once_and_its_blocks_are_unknown() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    world.write.capacity = 0
    assert world.start_delete(BLOCKS).result(0).outcomes == [REJECTED] * 6
    check_forgotten(world)


def test_a_delete_without_an_ssd_tier_ends_at_once() -> None:
    world = EngineWorld(ssd=False)
    world.keep_in_host(BLOCKS[:2])
    assert world.start_delete(BLOCKS).result(0).outcomes == [OK] * 2 + [MISS] * 4
    check_forgotten(world)


def test_a_delete_of_nothing_ends_at_once_and_writes_nothing() -> None:
    world = EngineWorld()
    assert world.start_delete(BLOCKS[:0]).result(0).ok
    world.check_idle()


@pytest.mark.parametrize("num_ended", [0, 1])
def test_a_cancelled_delete_ends_at_once_and_what_is_under_way_is_still_written(num_ended: int) -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    deletion = world.start_delete(BLOCKS)
    for _ in range(num_ended):
        world.write.end()
    deletion.cancel()
    assert deletion.result(0).outcomes == [CANCELLED] * 6
    assert len(world.write.jobs) == 1
    check_forgotten(world)


def test_a_delete_in_slices_has_a_tombstone_a_slice_and_one_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (planner, engine):
        monkeypatch.setattr(module, "SLICE_BLOCKS", 4)
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    deletion = world.start_delete(BLOCKS)
    first, second = world.write.jobs
    world.write.end(second)
    assert world.write.jobs == [first]
    world.write.end(first, [OK, IO_ERROR, OK, OK])
    assert [type(job) for job in world.write.jobs] == [SyncJob]
    world.write.end()
    assert deletion.result(0).outcomes == [OK, IO_ERROR, OK, OK, OK, OK]
    world.check_idle()


def test_a_delete_whose_tombstones_are_written_before_its_next_slice_syncs_after_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def write_at_once() -> None:
        for job in [job for job in world.write.jobs if isinstance(job, TombstoneJob)]:
            world.write.end(job)

    for module in (planner, engine):
        monkeypatch.setattr(module, "SLICE_BLOCKS", 2)
    world = EngineWorld(on_taken=write_at_once)
    deletion = world.start_delete(BLOCKS)
    assert world.write.num_ended == 3
    assert world.write.jobs == [SyncJob(JobId(4))]
    world.write.end()
    assert deletion.result(0).outcomes == [MISS] * 6
    world.check_idle()


def test_two_deletes_of_one_block_each_write_a_tombstone_and_one_of_them_counts_it() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS[:1])
    deletions = [world.start_delete(BLOCKS[:1]) for _ in range(2)]
    assert buried(world) == [rows(1)] * 2
    world.settle()
    assert [deletion.result(0).outcomes for deletion in deletions] == [[OK], [MISS]]


def write_ids(world: EngineWorld) -> list[int]:
    """Ids of the write-backs under way."""
    return [job.job_id for job in world.write.jobs if isinstance(job, CopyJob)]


def tombstone_id(world: EngineWorld) -> int:
    """Id of the one tombstone under way."""
    (job_id,) = (job.job_id for job in world.write.jobs if isinstance(job, TombstoneJob))
    return job_id


def test_a_write_planned_before_a_delete_has_a_lower_id_and_one_of_a_put_after_it_a_higher_one() -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    world.store.end()
    world.start_delete(BLOCKS)
    world.put(BLOCKS)
    world.store.end()
    before, after = write_ids(world)
    assert before < tombstone_id(world) < after


def test_a_put_whose_store_is_under_way_when_its_blocks_are_deleted_is_never_written() -> None:
    world = EngineWorld()
    old = world.put(BLOCKS, durable=True)
    world.start_delete(BLOCKS)
    world.put(BLOCKS)
    old_store, new_store = world.store.jobs
    world.store.end(new_store)
    world.store.end(old_store)
    (after,) = write_ids(world)
    assert tombstone_id(world) < after
    world.settle()
    assert old.result(0).outcomes == [CANCELLED] * 6
    assert world.presence(BLOCKS) == [Presence.HIT] * 6


def test_a_put_after_a_delete_has_a_higher_id_though_its_write_is_submitted_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = EngineWorld()
    submit = world.write.submit

    def late(job: Job, done: Done) -> bool:
        if isinstance(job, TombstoneJob):
            world.put(BLOCKS)
            world.store.end()
        return submit(job, done)

    monkeypatch.setattr(world.write, "submit", late)
    deletion = world.start_delete(BLOCKS)
    assert [type(job) for job in world.write.jobs] == [CopyJob, TombstoneJob]
    assert tombstone_id(world) < write_ids(world)[0]
    world.settle()
    assert deletion.result(0).outcomes == [MISS] * 6
    assert world.presence(BLOCKS) == [Presence.HIT] * 6
    world.check_idle()


def test_a_write_planned_before_a_delete_has_a_lower_id_though_it_is_submitted_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = EngineWorld()
    submit = world.write.submit

    def late(job: Job, done: Done) -> bool:
        if isinstance(job, CopyJob):
            world.start_delete(BLOCKS)
        return submit(job, done)

    monkeypatch.setattr(world.write, "submit", late)
    world.put(BLOCKS)
    world.store.end()
    assert [type(job) for job in world.write.jobs] == [TombstoneJob, CopyJob]
    assert write_ids(world)[0] < tombstone_id(world)
    check_forgotten(world)
