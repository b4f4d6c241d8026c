"""The directory: entries come and go, and its check fails for every way in which it can be wrong."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tierstore.control.directory import Directory
from tierstore.control.entry import State
from tierstore.control.index import as_keys
from tierstore.testing.engine_world import EngineWorld, chain

if TYPE_CHECKING:
    from tierstore.types import Int64Array

KEYS = as_keys(chain("directory", 8))


def filled(count: int = 4, capacity: int = 8) -> Directory:
    """A directory with some blocks READY in the host: its first entries."""
    directory = Directory(capacity)
    entries = directory.add(0, KEYS[:count])
    directory.host.reserve(entries)
    directory.host.filled(entries)
    directory.check()
    return directory


def entries_of(*entries: int) -> Int64Array:
    return np.array(entries, np.int64)


def test_an_entry_that_no_tier_holds_is_released_and_given_again() -> None:
    directory = filled()
    gone = entries_of(1, 3)
    directory.host.evict(gone)
    directory.release(gone)
    assert directory.find(0, KEYS[:4]).tolist() == [0, -1, 2, -1]
    assert directory.room == 6
    again = directory.add(0, KEYS[4:6])
    assert sorted(again.tolist()) == [1, 3]
    assert directory.high_water == 4


def test_an_entry_that_one_tier_holds_is_not_released() -> None:
    directory = filled()
    entries = entries_of(0, 1)
    directory.ssd.reserve(entries)
    directory.host.evict(entries)
    directory.release(entries)
    directory.check()
    assert directory.find(0, KEYS[:2]).tolist() == [0, 1]


def test_releasing_twice_frees_once() -> None:
    directory = filled()
    entries = entries_of(2)
    directory.host.evict(entries)
    directory.release(entries)
    directory.release(entries)
    directory.check()
    assert directory.num_entries == 3


def test_a_detached_entry_is_found_by_nobody_and_lives_until_it_is_released() -> None:
    directory = filled()
    entries = entries_of(0)
    directory.host.pin(entries)
    directory.detach(entries)
    directory.host.discard(entries)
    directory.check()
    assert directory.find(0, KEYS[:1]).tolist() == [-1]
    assert directory.num_entries == 4
    directory.host.unpin(entries)
    directory.release(entries)
    directory.check()
    assert directory.num_entries == 3


def test_a_given_entry_has_no_past() -> None:
    directory = filled()
    directory.hits[1], directory.flags[1] = 7, 1
    directory.host.evict(entries_of(1))
    directory.release(entries_of(1))
    assert directory.add(0, KEYS[5:6]).tolist() == [1]
    assert (directory.hits[1], directory.flags[1]) == (0, 0)


def test_refuses_more_entries_than_it_has_room_for() -> None:
    with pytest.raises(AssertionError, match="5 numbers wanted, room for 4"):
        filled().add(1, KEYS[:5])


def test_takes_about_a_hundred_bytes_an_entry() -> None:
    capacity = 1 << 20
    tracemalloc.start()
    try:
        directory = Directory(capacity)
        nbytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert directory.capacity == capacity
    assert (
        nbytes / capacity <= 130
    )  # 110 of them columns, 9 of which a device pool alone touches; the rest is the window


def set_state(state: int, pins: int = 0) -> Callable[[Directory], None]:
    def damage(directory: Directory) -> None:
        directory.host.state[1], directory.host.pins[1] = state, pins

    return damage


def lose_key(directory: Directory) -> None:
    directory.index.remove(entries_of(1))


def change_key(directory: Directory) -> None:
    directory.index.keys[1, 2] ^= np.uint64(1)


def free_twice(directory: Directory) -> None:
    for _ in range(2):
        directory._numbers.give_back(entries_of(1))


def free_in_use(directory: Directory) -> None:
    directory._numbers.give_back(entries_of(1))


def forget_free(directory: Directory) -> None:
    directory.host.state[1] = State.ABSENT
    directory._tie[1] = 0


def hold_free(directory: Directory) -> None:
    directory.host.evict(entries_of(1))
    directory.release(entries_of(1))
    directory.ssd.state[1] = State.READY


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (set_state(State.ABSENT), "no tier holds"),
        (set_state(State.READY, -1), "negative pins"),
        (set_state(State.FILLING, 1), "pins on what is not READY"),
        (set_state(State.GONE, 0), "GONE without a pin"),
        (set_state(State.GONE, 1), "still found by its key"),
        (lose_key, "not found by its key"),
        (change_key, "not found by its key"),
        (free_twice, "free twice"),
        (free_in_use, "the free list is not what is free"),
        (forget_free, "the free list is not what is free"),
        (hold_free, "free entries that a tier holds"),
    ],
)
def test_its_check_fails_when_it_should(damage: Callable[[Directory], None], complaint: str) -> None:
    directory = filled()
    damage(directory)
    with pytest.raises(AssertionError, match=complaint):
        directory.check()


BLOCKS = chain("world", 4)


def busy_world() -> EngineWorld:
    """A world with blocks in both tiers, one being stored, one being written and one being read."""
    world = EngineWorld()
    world.keep_in_host(BLOCKS[:1])
    world.keep_on_ssd(BLOCKS[1:2])
    world.get(BLOCKS[1:2])
    world.put(BLOCKS[2:3])
    world.store.end()
    world.put(BLOCKS[3:])
    world.check()
    return world


def forget_job(world: EngineWorld) -> None:
    with world.engine.planning() as planner:
        filling = planner._mind.jobs._filling
        for jobs in filling.values():
            jobs.clear()


def share_slot(world: EngineWorld) -> None:
    with world.engine.planning() as planner:
        planner.directory.host_page[0] = planner.directory.host_page[1]


def misplace(world: EngineWorld) -> None:
    with world.engine.planning() as planner:
        planner.directory.host_page[2] += 8


def hide_from_policy(world: EngineWorld) -> None:
    with world.engine.planning() as planner:
        entry = planner.directory.find(0, as_keys(BLOCKS[:1]))
        planner._mind.host._policies[0].set_evictable(entry, False)


def lose_slot(world: EngineWorld) -> None:
    with world.engine.planning() as planner:
        planner._mind.host.slots.take(0, 1)


def lose_file(world: EngineWorld) -> None:
    with world.engine.planning() as planner:
        ssd = planner._mind.ssd
        assert ssd is not None
        ssd._files.clear()


def lose_batches(world: EngineWorld) -> None:
    with world.engine.planning() as planner:
        ssd = planner._mind.ssd
        assert ssd is not None
        for ledger in ssd._files.values():
            ledger.batches.clear()


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (forget_job, "without a job"),
        (share_slot, "two blocks in one slot"),
        (misplace, "a slot does not know its block"),
        (hide_from_policy, "policies offer"),
        (lose_slot, "slots are taken"),
        (lose_file, "the ledger does not know"),
        (lose_batches, "its ledger misses"),
    ],
)
def test_the_planners_check_fails_when_it_should(damage: Callable[[EngineWorld], None], complaint: str) -> None:
    world = busy_world()
    damage(world)
    with pytest.raises(AssertionError, match=complaint):
        world.check()
