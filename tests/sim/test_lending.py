"""Leases and reservations in the mind: slots whose copies others make."""

from __future__ import annotations

from tierstore.metrics import Metric
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES, CopyJob, Outcome, Presence, TierName

POOL_BLOCKS = 32
LENT_BLOCKS = POOL_BLOCKS // 2


def lent(world: EngineWorld) -> int:
    """Blocks that borrowers have in their hands."""
    return sum(len(job) for job in world.lend.jobs if isinstance(job, CopyJob))


def lent_nbytes(world: EngineWorld) -> float:
    """What counts as lent of the pool."""
    return world.metrics.value(Metric.HOST_LENT_BYTES)


def test_leased_blocks_are_not_evicted() -> None:
    world = EngineWorld(ssd=False)
    leased, others = chain("leased", 10), chain("others", POOL_BLOCKS)
    world.keep_in_host(leased)
    lease = world.acquire(leased)
    put = world.put(others)
    world.store.end()
    assert world.num_in_host(leased) == 10
    assert put.result(0).leading == POOL_BLOCKS - 10
    world.lend.end()
    assert lease.result(0).leading == 10
    world.keep_in_host(chain("more", POOL_BLOCKS))
    assert world.num_in_host(leased) == 0
    world.check_idle()


def test_no_more_than_half_of_the_pool_is_lent() -> None:
    world = EngineWorld(ssd=False)
    blocks = chain("blocks", POOL_BLOCKS)
    world.keep_in_host(blocks)
    first, second = world.acquire(blocks), world.acquire(blocks[LENT_BLOCKS:])
    assert lent(world) == LENT_BLOCKS
    assert second.result(0).outcomes == [Outcome.REJECTED] * LENT_BLOCKS
    world.lend.end()
    assert first.result(0).outcomes == [Outcome.OK] * LENT_BLOCKS + [Outcome.REJECTED] * LENT_BLOCKS
    third = world.acquire(blocks)
    assert lent(world) == LENT_BLOCKS
    world.lend.end()
    assert third.done()
    world.check_idle()


def test_a_block_that_is_lent_to_many_counts_once() -> None:
    world = EngineWorld(ssd=False)
    blocks = chain("blocks", LENT_BLOCKS + 1)
    world.keep_in_host(blocks)
    leases = [world.acquire(blocks) for _ in range(POOL_BLOCKS)]
    assert lent(world) == POOL_BLOCKS * LENT_BLOCKS
    assert lent_nbytes(world) == LENT_BLOCKS * PAGE_NBYTES
    other = world.reserve(chain("other", 1))
    assert other.result(0).outcomes == [Outcome.REJECTED]
    for _ in leases:
        world.lend.end()
    assert [lease.result(0).leading for lease in leases] == [LENT_BLOCKS] * POOL_BLOCKS
    assert lent_nbytes(world) == 0
    world.check_idle()


def test_a_block_that_is_lent_to_many_counts_until_the_last_has_given_it_back() -> None:
    world = EngineWorld(ssd=False)
    blocks = chain("blocks", LENT_BLOCKS)
    world.keep_in_host(blocks)
    leases = [world.acquire(blocks[:few]) for few in (4, LENT_BLOCKS)]
    world.lend.end()
    assert [lease.done() for lease in leases] == [True, False]
    assert lent_nbytes(world) == LENT_BLOCKS * PAGE_NBYTES
    world.lend.end()
    assert lent_nbytes(world) == 0
    world.check_idle()


def test_a_lease_that_waits_for_a_reservation_adds_nothing_to_what_is_lent() -> None:
    world = EngineWorld(ssd=False)
    blocks = chain("blocks", LENT_BLOCKS)
    reservation, lease = world.reserve(blocks), world.acquire(blocks)
    assert lent_nbytes(world) == LENT_BLOCKS * PAGE_NBYTES
    world.lend.end()
    assert reservation.result(0).ok
    assert (lent(world), lent_nbytes(world)) == (LENT_BLOCKS, LENT_BLOCKS * PAGE_NBYTES)
    world.lend.end()
    assert lease.result(0).ok
    world.check_idle()


def test_what_a_lease_did_not_find_can_be_lent_to_others() -> None:
    world = EngineWorld(ssd=False)
    few = chain("few", 2)
    world.keep_in_host(few)
    lease = world.acquire(chain("few", LENT_BLOCKS))
    assert lent(world) == 2
    other = world.reserve(chain("other", LENT_BLOCKS))
    assert lent(world) == LENT_BLOCKS
    world.settle()
    assert lease.done()
    assert other.result(0).outcomes == [Outcome.OK] * (LENT_BLOCKS - 2) + [Outcome.REJECTED] * 2
    world.check_idle()


def test_a_lease_waits_for_what_lies_on_ssd() -> None:
    world = EngineWorld()
    blocks = chain("blocks", 6)
    world.keep_on_ssd(blocks)
    lease = world.acquire(blocks)
    assert lent(world) == 0
    world.read.end()
    assert lent(world) == 6
    world.lend.end()
    assert lease.result(0).leading == 6
    world.check_idle()


def test_a_lease_by_its_deadline_has_what_is_ready() -> None:
    world = EngineWorld()
    blocks = chain("blocks", 6)
    world.keep_in_host(blocks[:2])
    world.keep_on_ssd(blocks[2:])
    lease = world.acquire(blocks, within=1.0)
    world.expire_after(1.0)
    assert lent(world) == 2
    world.lend.end()
    assert lease.result(0).leading == 2
    world.settle()
    world.check_idle()


def test_a_reserved_block_is_pending_until_it_is_committed() -> None:
    world = EngineWorld()
    blocks = chain("blocks", 4)
    reservation = world.reserve(blocks)
    assert world.presence(blocks) == [Presence.PENDING] * 4
    get = world.get(blocks)
    world.lend.end()
    assert reservation.result(0).ok
    world.load.end()
    assert get.result(0).leading == 4
    world.settle()
    assert world.bytes.records, "a committed block is written back as any other"
    world.check_idle()


def test_who_waits_for_an_abandoned_block_goes_without() -> None:
    world = EngineWorld()
    blocks = chain("blocks", 4)
    reservation, get, put = world.reserve(blocks), world.get(blocks), world.put(blocks)
    world.lend.end(outcomes=Outcome.CANCELLED)
    for transfer in (reservation, get, put):
        assert transfer.result(0).leading == 0
    assert world.presence(blocks) == [Presence.MISS] * 4
    world.check_idle()


def test_nobody_waits_for_a_reservation_that_was_withdrawn_and_its_slots_stay_lent() -> None:
    world = EngineWorld(ssd=False)
    blocks = chain("blocks", LENT_BLOCKS)
    reservation, get, put = world.reserve(blocks), world.get(blocks), world.put(blocks)
    reservation.cancel()
    assert [transfer.result(0).leading for transfer in (get, put)] == [0, 0]
    assert world.presence(blocks) == [Presence.MISS] * LENT_BLOCKS
    others = world.put(chain("others", POOL_BLOCKS))
    world.store.end()
    assert others.result(0).leading == POOL_BLOCKS - LENT_BLOCKS
    again = world.put(blocks)
    world.store.end()
    assert again.result(0).ok
    world.lend.end()
    assert reservation.result(0).outcomes == [Outcome.CANCELLED] * LENT_BLOCKS
    assert world.presence(blocks) == [Presence.HIT] * LENT_BLOCKS
    world.check_idle()


def test_who_waits_for_a_reserved_block_that_was_deleted_goes_without_once_it_is_withdrawn() -> None:
    world = EngineWorld(ssd=False)
    blocks = chain("blocks", 4)
    reservation, get = world.reserve(blocks), world.get(blocks)
    world.delete(blocks)
    reservation.cancel()
    assert get.result(0).leading == 0
    world.lend.end()
    world.check_idle()


def test_a_reservation_has_no_slot_for_what_is_held() -> None:
    world = EngineWorld()
    blocks = chain("blocks", 6)
    world.keep_in_host(blocks[:4])
    reservation = world.reserve(blocks)
    (job,) = world.lend.jobs
    assert isinstance(job, CopyJob)
    assert job.src is TierName.BORROWER
    assert job.src_locations.tolist() == [4, 5]  # type: ignore[union-attr]
    world.lend.end()
    assert reservation.result(0).ok
    world.settle()
    world.check_idle()


def test_a_durable_reservation_ends_behind_the_sync() -> None:
    world = EngineWorld()
    reservation = world.reserve(chain("blocks", 4), durable=True)
    world.lend.end()
    assert not reservation.done()
    world.settle()
    assert reservation.result(0).ok
    world.check_idle()


def test_a_leased_block_that_is_deleted_keeps_its_slot_until_the_lease_ends() -> None:
    world = EngineWorld(ssd=False)
    blocks = chain("blocks", LENT_BLOCKS)
    world.keep_in_host(blocks)
    lease = world.acquire(blocks)
    assert world.delete(blocks) == LENT_BLOCKS
    put = world.put(chain("others", POOL_BLOCKS))
    world.store.end()
    assert put.result(0).leading == POOL_BLOCKS - LENT_BLOCKS
    world.lend.end()
    assert lease.result(0).leading == LENT_BLOCKS
    world.check_idle()


def test_how_long_a_borrower_takes_says_nothing_of_a_link() -> None:
    world = EngineWorld(ssd=False)
    blocks = chain("blocks", 4)
    world.keep_in_host(blocks)
    with world.engine.planning() as planner:
        before = planner.loading.rates.load.nbytes_per_second(world.clock.now)
    world.acquire(blocks)
    world.clock.advance(100.0)
    world.lend.end()
    with world.engine.planning() as planner:
        assert planner.loading.rates.load.nbytes_per_second(world.clock.now) == before
