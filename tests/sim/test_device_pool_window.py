"""What waiting requests need stays in the device pool: the furthest goes first, and only for what is needed sooner."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.device_room import DevicePool
from tierstore.control.entry import State
from tierstore.control.index import as_keys
from tierstore.control.slabs import SlotAllocator
from tierstore.policy.admission import AdmitAlways
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import PAGE_NBYTES

if TYPE_CHECKING:
    from tierstore.types import UInt8Array


def full_pool() -> tuple[EngineWorld, list[UInt8Array]]:
    """A device pool full of four chains, the first the oldest; the host pool holds them, too."""
    slots = SlotAllocator(pool_nbytes=32 * PAGE_NBYTES, slab_nbytes=8 * PAGE_NBYTES)
    world = EngineWorld(ssd=False, slabs=16, device_pool=DevicePool(slots, AdmitAlways()))
    chains = [chain(str(number), 8) for number in range(4)]
    for hashes in chains:
        world.keep_in_host(hashes)
    return world, chains


def num_near(world: EngineWorld, hashes: UInt8Array) -> int:
    """How many of these blocks the device pool holds."""
    with world.engine.planning() as mind:
        entries = mind.directory.find(0, as_keys(hashes))
        return int(np.count_nonzero(mind.directory.device.state[entries[entries >= 0]] == State.READY))


def test_the_device_pool_ordered_by_age_alone_lost_what_waiting_requests_need() -> None:
    world, chains = full_pool()
    world.hint([(1, chains[0])])
    world.keep_in_host(chain("new", 8))
    assert [num_near(world, hashes) for hashes in chains] == [8, 0, 8, 8]
    world.hint(removed=[1])
    world.keep_in_host(chain("newer", 8))
    assert [num_near(world, hashes) for hashes in chains] == [0, 0, 8, 8]
    world.check_idle()


def test_of_what_waiting_requests_need_the_furthest_leaves_the_device_pool_for_what_comes_sooner() -> None:
    world, chains = full_pool()
    world.hint(list(enumerate(chains, 1)))
    sooner, later = chain("sooner", 8), chain("later", 8)
    world.hint([(1, sooner)], session_id=1)
    world.hint([(9, later)])
    world.keep_in_host(sooner)
    world.keep_in_host(later)
    assert [num_near(world, hashes) for hashes in (*chains, sooner, later)] == [8, 8, 8, 0, 8, 0]
    world.check_idle()


def test_what_no_waiting_request_needs_takes_no_slot_of_the_device_pool_from_what_one_does() -> None:
    world, chains = full_pool()
    world.hint(list(enumerate(chains, 1)))
    other, sooner = chain("other", 6), chain("sooner", 4)
    world.hint([(1, sooner)], session_id=1)
    world.keep_in_host(other)
    world.keep_in_host(np.concatenate([other[:2], sooner]))
    assert [num_near(world, hashes) for hashes in (*chains, other, sooner)] == [8, 8, 8, 4, 0, 4]
    world.check_idle()
