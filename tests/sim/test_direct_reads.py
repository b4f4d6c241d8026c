"""Reads from SSD straight into the device pool: when blocks go that way, and what becomes of those that do not come."""

from __future__ import annotations

import pytest

from tierstore.control.device_room import DevicePool
from tierstore.control.mind import Limits
from tierstore.control.slabs import SlotAllocator
from tierstore.metrics import Metric
from tierstore.policy.admission import AdmitSecondHit
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.testing.sim_link import SimLink
from tierstore.types import PAGE_NBYTES, CopyJob, Outcome, Presence, TierName

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome
POOL_BLOCKS = 32
BLOCKS = chain("a", 6)


@pytest.fixture
def world() -> EngineWorld:
    """Six blocks that SSD alone holds, and room in both pools."""
    slots = SlotAllocator(pool_nbytes=POOL_BLOCKS * PAGE_NBYTES, slab_nbytes=8 * PAGE_NBYTES)
    made = EngineWorld(limits=Limits(direct_reads=True), device_pool=DevicePool(slots, AdmitSecondHit()))
    made.keep_on_ssd(BLOCKS)
    return made


def ways(link: SimLink) -> list[tuple[str, str, int]]:
    """Source, destination and number of blocks of every job in a link."""
    return [(job.src, job.dst, len(job)) for job in link.jobs if isinstance(job, CopyJob)]


def test_a_get_takes_what_ssd_alone_holds_past_host_memory(world: EngineWorld) -> None:
    get = world.get(BLOCKS)
    assert ways(world.read) == [("ssd", "device-pool", 6)]
    world.read.end()
    assert ways(world.load) == [("device-pool", "device", 6)]
    world.load.end()
    assert get.result(0).ok
    assert world.num_in_host(BLOCKS) == 0
    assert world.metrics.value(Metric.HIT_BLOCKS, TierName.SSD) == 6
    again = world.get(BLOCKS)
    assert ways(world.load) == [("device-pool", "device", 6)]
    world.settle()
    assert again.result(0).ok
    world.check_idle()


def test_a_second_get_joins_a_direct_read_in_flight(world: EngineWorld) -> None:
    first, second = world.get(BLOCKS[:4]), world.get(BLOCKS)
    assert ways(world.read) == [("ssd", "device-pool", 4), ("ssd", "device-pool", 2)]
    world.settle()
    assert first.result(0).ok
    assert second.result(0).ok
    world.check_idle()


def test_a_block_that_is_not_what_it_should_be_ends_the_prefix_and_is_forgotten(world: EngineWorld) -> None:
    get = world.get(BLOCKS)
    world.read.end(outcomes=[OK, OK, CORRUPT, OK, OK, OK])
    world.settle()
    assert get.result(0).leading == 2
    assert get.result(0).outcomes[2] is CORRUPT
    assert world.presence(BLOCKS) == [Presence.HIT] * 2 + [Presence.MISS] + [Presence.HIT] * 3
    world.check_idle()


def test_a_block_that_a_direct_read_did_not_bring_comes_by_way_of_host_memory(world: EngineWorld) -> None:
    failed = world.get(BLOCKS)
    world.read.end(outcomes=IO_ERROR)
    assert failed.result(0).leading == 0
    get = world.get(BLOCKS)
    assert ways(world.read) == [("ssd", "host", 6)]
    world.settle()
    assert get.result(0).ok
    world.check_idle()


def test_without_room_for_all_of_them_blocks_come_by_way_of_host_memory_and_none_is_evicted(world: EngineWorld) -> None:
    held = chain("held", POOL_BLOCKS - 5)
    world.keep_on_ssd(held)
    loading = world.get(held)
    world.read.end()
    get = world.get(BLOCKS)
    assert ways(world.read) == [("ssd", "host", 6)]
    assert world.metrics.value(Metric.EVICTED_BLOCKS, TierName.DEVICE_POOL) == 0
    world.settle()
    assert loading.result(0).ok
    assert get.result(0).ok
    world.check_idle()


def test_what_waiting_requests_need_makes_no_room_for_a_direct_read(world: EngineWorld) -> None:
    held = chain("held", POOL_BLOCKS - 5)
    world.keep_on_ssd(held)
    world.get(held)
    world.settle()
    world.hint([(1, held)])
    world.get(BLOCKS)
    assert ways(world.read) == [("ssd", "host", 6)]
    world.settle()
    world.check_idle()


def test_who_is_lent_host_slots_gets_no_direct_read(world: EngineWorld) -> None:
    lease = world.acquire(BLOCKS)
    assert ways(world.read) == [("ssd", "host", 6)]
    world.settle()
    assert lease.result(0).ok
    world.check_idle()


def test_a_lease_of_blocks_on_their_way_past_host_memory_reads_them_into_it(world: EngineWorld) -> None:
    get, lease = world.get(BLOCKS), world.acquire(BLOCKS)
    assert ways(world.read) == [("ssd", "device-pool", 6), ("ssd", "host", 6)]
    world.settle()
    assert get.result(0).ok
    assert lease.result(0).ok
    world.check_idle()


def test_a_block_deleted_during_a_direct_read_is_loaded_by_nobody(world: EngineWorld) -> None:
    get = world.get(BLOCKS)
    world.delete(BLOCKS)
    world.settle()
    assert get.result(0).outcomes == [CANCELLED] * 6
    assert world.presence(BLOCKS) == [Presence.MISS] * 6
    world.check_idle()


def test_a_cancelled_get_withdraws_its_direct_read(world: EngineWorld) -> None:
    get = world.get(BLOCKS)
    get.cancel()
    assert not world.read.jobs
    assert get.result(0).outcomes == [CANCELLED] * 6
    assert world.presence(BLOCKS) == [Presence.HIT] * 6
    world.check_idle()


def test_a_prefetch_reads_into_host_memory(world: EngineWorld) -> None:
    world.prefetch(BLOCKS)
    assert ways(world.read) == [("ssd", "host", 6)]


def test_what_a_get_takes_from_the_device_pool_is_not_evicted_for_the_rest_of_it(world: EngineWorld) -> None:
    first = world.get(BLOCKS[:2])
    world.settle()
    assert first.result(0).ok
    others = chain("others", POOL_BLOCKS - 2)
    world.keep_on_ssd(others)
    filling = world.get(others)  # used later than the two, so that these are the next to go
    world.settle()
    assert filling.result(0).ok
    get = world.get(BLOCKS)
    assert ways(world.load) == [("device-pool", "device", 2)]
    assert ways(world.read) == [("ssd", "device-pool", 4)]
    assert world.metrics.value(Metric.EVICTED_BLOCKS, TierName.DEVICE_POOL) == 4
    world.settle()
    assert get.result(0).ok
    world.check_idle()
