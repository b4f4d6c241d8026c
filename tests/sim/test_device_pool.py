"""The device pool: what comes in, what is served from there, and that nothing but room depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tierstore.control.device_room import DevicePool
from tierstore.control.slabs import SlotAllocator
from tierstore.errors import ConfigError
from tierstore.metrics import Metric
from tierstore.policy.admission import AdmitAlways, AdmitSecondHit
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES, CopyJob, Outcome, Presence, TierName

if TYPE_CHECKING:
    from tierstore.policy.base import AdmissionPolicy
    from tierstore.testing.sim_link import SimLink
    from tierstore.types import UInt8Array

POOL_BLOCKS = 32


def new_world(*, seldom: bool = False, ssd: bool = False, slabs: int = 16) -> EngineWorld:
    """A device pool of 32 blocks, beside a host pool of four times as many, which takes all or what gets have used."""
    return EngineWorld(ssd=ssd, slabs=slabs, device_pool=device_pool(AdmitSecondHit() if seldom else AdmitAlways()))


def device_pool(admission: AdmissionPolicy, *, slabs: int = 4, slab_pages: int = 8) -> DevicePool:
    slab_nbytes = slab_pages * PAGE_NBYTES
    return DevicePool(SlotAllocator(pool_nbytes=slabs * slab_nbytes, slab_nbytes=slab_nbytes), admission)


def ways(link: SimLink) -> list[tuple[str, str, int]]:
    """Source, destination and number of blocks of every job in a link."""
    return [(job.src, job.dst, len(job)) for job in link.jobs if isinstance(job, CopyJob)]


def get(world: EngineWorld, hashes: UInt8Array) -> int:
    """Get, and end all that it leads to; how many blocks it loaded."""
    transfer = world.get(hashes)
    world.settle()
    return transfer.result(0).leading


def num_hits(world: EngineWorld, tier: TierName) -> float:
    return world.metrics.value(Metric.HIT_BLOCKS, tier)


def test_what_a_get_has_used_is_copied_on_the_device_and_served_from_there() -> None:
    world, hashes = new_world(seldom=True), chain("a", 4)
    world.keep_in_host(hashes)
    transfer = world.get(hashes)
    world.load.end()
    assert (transfer.done(), ways(world.store)) == (False, [("device", "device-pool", 4)])
    world.store.end()
    assert transfer.result(0).ok
    again = world.get(hashes)
    assert ways(world.load) == [("device-pool", "device", 4)]
    world.load.end()
    assert again.result(0).ok
    assert [num_hits(world, tier) for tier in (TierName.HOST, TierName.DEVICE_POOL)] == [4, 4]
    world.check_idle()


def test_a_put_leaves_a_copy_where_the_policy_takes_all() -> None:
    world, hashes = new_world(), chain("a", 4)
    transfer = world.put(hashes)
    world.store.end()
    assert (transfer.done(), ways(world.store)) == (False, [("device", "device-pool", 4)])
    world.store.end()
    assert transfer.result(0).ok
    world.get(hashes)
    assert ways(world.load) == [("device-pool", "device", 4)]


def test_a_prefix_comes_from_every_tier_at_once() -> None:
    world, hashes = new_world(seldom=True, ssd=True), chain("a", 6)
    world.keep_in_host(hashes[2:4])
    world.keep_on_ssd(hashes[4:])
    world.keep_in_host(hashes[:2])
    assert get(world, hashes[:2]) == 2
    transfer = world.get(hashes)
    assert ways(world.load) == [("host", "device", 2), ("device-pool", "device", 2)]
    world.settle()
    assert transfer.result(0).leading == 6


def test_what_only_the_device_pool_holds_is_a_hit_until_it_leaves() -> None:
    world, first = new_world(slabs=4), chain("first", 8)
    world.keep_in_host(first)
    for number in range(3):
        world.keep_in_host(chain(f"other {number}", 8))  # both pools are full
    assert get(world, first) == 8
    for number in range(4):
        hashes = chain(f"more {number}", 8)
        world.put(hashes)
        world.store.end(outcomes=[Outcome.OK] * 8)
        world.store.end(outcomes=[Outcome.IO_ERROR] * 8)  # no copy of these on the device
    assert world.num_in_host(first) == 0
    assert world.presence(first) == [Presence.HIT] * 8
    assert get(world, first) == 8
    for number in range(4):
        world.keep_in_host(chain(f"last {number}", 8))
    assert world.presence(first) == [Presence.MISS] * 8
    assert world.metrics.value(Metric.EVICTED_BLOCKS, TierName.DEVICE_POOL) > 0
    world.check_idle()


@pytest.mark.parametrize("outcome", [Outcome.IO_ERROR, Outcome.REJECTED])
def test_a_copy_that_fails_costs_nobody_anything(outcome: Outcome) -> None:
    world, hashes = new_world(ssd=True), chain("a", 4)
    transfer, flush = world.put(hashes), world.flush()
    world.store.end()
    world.store.end(outcomes=[outcome] * 4)
    assert transfer.result(0).ok
    world.settle()
    assert flush.result(0).ok
    world.get(hashes)
    assert ways(world.load) == [("host", "device", 4)]
    world.settle()
    world.check_idle()


def test_a_deleted_block_leaves_the_device_pool_too_also_on_its_way_in() -> None:
    world, there, coming = new_world(), chain("there", 4), chain("coming", 4)
    world.keep_in_host(there)
    world.put(coming)
    world.store.end()
    reading = world.get(there)
    for hashes in (there, coming):
        world.delete(hashes)
        assert world.presence(hashes) == [Presence.MISS] * 4
    world.settle()
    assert reading.result(0).ok  # it was promised before
    assert [get(world, hashes) for hashes in (there, coming)] == [0, 0]
    world.check_idle()
    with world.engine.planning() as planner:
        planner.gauge()
    assert world.metrics.value(Metric.DEVICE_POOL_USED_BYTES) == 0


def test_clear_forgets_what_the_device_pool_holds() -> None:
    world, hashes = new_world(), chain("a", 8)
    world.keep_in_host(hashes)
    world.clear()
    assert world.presence(hashes) == [Presence.MISS] * 8
    world.settle()
    world.check_idle()


def test_a_get_past_its_deadline_leaves_no_copy() -> None:
    world, hashes = new_world(seldom=True), chain("a", 4)
    world.keep_in_host(hashes)
    transfer = world.get(hashes, within=1.0)
    world.expire_after(2.0)
    world.load.end()
    assert transfer.done()
    assert not world.store.jobs


def world_with_blocks_in_the_device_pool_alone(hashes: UInt8Array) -> EngineWorld:
    world = new_world(slabs=4)
    world.keep_in_host(hashes)
    for number in range(4):  # of these no copy is kept on the device
        world.put(chain(str(number), 8))
        world.store.end()
        world.store.end(outcomes=[Outcome.IO_ERROR] * 8)
    assert world.num_in_host(hashes) == 0
    assert world.presence(hashes) == [Presence.HIT] * len(hashes)
    return world


def test_a_lease_missed_what_only_the_device_pool_holds_though_a_look_up_calls_it_a_hit() -> None:
    hashes = chain("a", 4)
    world = world_with_blocks_in_the_device_pool_alone(hashes)
    lease = world.acquire(hashes)
    assert ways(world.store) == [("device-pool", "host", 4)]
    assert not world.lend.jobs
    world.store.end()
    assert ways(world.lend) == [("host", "borrower", 4)]
    world.lend.end()
    assert lease.result(0).leading == 4
    assert world.num_in_host(hashes) == 4
    assert num_hits(world, TierName.DEVICE_POOL) == 4
    world.check_idle()


def test_a_lease_goes_without_what_the_device_does_not_bring_back_and_joins_what_comes() -> None:
    hashes = chain("a", 4)
    world = world_with_blocks_in_the_device_pool_alone(hashes)
    first, second = world.acquire(hashes), world.acquire(hashes)
    assert len(world.store.jobs) == 1
    world.store.end(outcomes=[Outcome.OK, Outcome.OK, Outcome.IO_ERROR, Outcome.OK])
    world.settle()
    for lease in (first, second):
        assert (lease.result(0).leading, lease.result(0).outcomes[2]) == (2, Outcome.IO_ERROR)
    assert world.presence(hashes) == [Presence.HIT] * 4
    world.check_idle()


def test_a_block_deleted_on_its_way_back_from_the_device_pool_is_lent_to_nobody() -> None:
    hashes = chain("a", 4)
    world = world_with_blocks_in_the_device_pool_alone(hashes)
    lease = world.acquire(hashes)
    world.delete(hashes)
    world.settle()
    assert lease.result(0).outcomes == [Outcome.CANCELLED] * 4
    assert world.presence(hashes) == [Presence.MISS] * 4
    world.check_idle()


def test_who_fills_slots_that_he_is_lent_leaves_no_copy_on_the_device() -> None:
    world = new_world(slabs=4)
    reserved = world.reserve(chain("lent", 4))
    world.lend.end()
    assert reserved.result(0).ok
    assert not world.store.jobs
    world.check_idle()


def test_blocks_that_are_being_loaded_are_not_evicted_for_others() -> None:
    world, held = new_world(), chain("held", POOL_BLOCKS)
    world.keep_in_host(held)
    loading = world.get(held)
    assert ways(world.load) == [("device-pool", "device", POOL_BLOCKS)]
    world.put(chain("new", 4))
    world.store.end()
    assert not world.store.jobs  # no slot on the device, so no copy there
    world.load.end()
    assert loading.result(0).ok


def test_blocks_leave_the_device_pool_in_the_policys_order() -> None:
    world = new_world()
    chains = [chain(str(number), 8) for number in range(5)]
    for hashes in chains[:4]:
        world.keep_in_host(hashes)
    assert get(world, chains[0]) == 8
    world.keep_in_host(chains[4])
    for number, from_device in ((0, 8), (2, 8), (3, 8), (4, 8), (1, 0)):
        before = num_hits(world, TierName.DEVICE_POOL)
        assert get(world, chains[number]) == 8
        assert num_hits(world, TierName.DEVICE_POOL) - before == from_device


def test_a_class_of_blocks_that_comes_late_gets_slabs_of_the_device_pool() -> None:
    pool = device_pool(AdmitAlways(), slab_pages=16)
    world = EngineWorld(slot_pages=(1, 2), slab_pages=16, slabs=16, ssd=False, device_pool=pool)
    for number in range(8):
        world.keep_in_host(chain(f"small {number}", 8))
    for number in range(12):
        world.keep_in_host(chain(f"large {number}", 4), layout=1)
    large = np.concatenate([chain(f"large {number}", 4) for number in (10, 11)])
    for first in (0, 4):
        world.get(large[first : first + 4], layout=1)
    assert ways(world.load) == [("device-pool", "device", 4)] * 2
    world.settle()
    world.check_idle()


def test_a_block_that_fits_no_slab_of_the_device_pool_is_refused_by_its_setting() -> None:
    with pytest.raises(ConfigError, match=rf"\[device\] pool_size to at least {4 * 8 * 2 * PAGE_NBYTES} bytes"):
        EngineWorld(slot_pages=(2,), slab_pages=16, device_pool=device_pool(AdmitAlways()))
