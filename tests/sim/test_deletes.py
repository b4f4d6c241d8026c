"""How delete and clear go: unknown at once, dropped when the copy in flight ends, never back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import Outcome, Presence

OK, MISS, REJECTED, CORRUPT, IO_ERROR, CANCELLED = Outcome
BLOCKS = chain("a", 6)
POOL_BLOCKS = 32

Forget = Callable[[EngineWorld], object]


def delete(world: EngineWorld) -> None:
    assert world.delete(BLOCKS) == 6


def clear(world: EngineWorld) -> None:
    world.clear()


forgetting = pytest.mark.parametrize("forget", [delete, clear])


def free_slots(world: EngineWorld) -> int:
    with world.engine.planning() as mind:
        return mind._mind.host.slots.free(0)


def check_forgotten(world: EngineWorld) -> None:
    """Nothing of the blocks is known, before and after what was under way has ended; their slots are back."""
    assert world.presence(BLOCKS) == [Presence.MISS] * 6
    world.settle()
    assert world.presence(BLOCKS) == [Presence.MISS] * 6
    assert free_slots(world) == POOL_BLOCKS
    world.check_idle()


def test_delete_counts_what_was_known() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS[:2])
    world.keep_on_ssd(BLOCKS[2:3])
    assert world.delete(BLOCKS) == 3
    assert world.delete(BLOCKS) == 0


def test_delete_of_one_hash_twice_counts_it_once() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS[:1])
    assert world.delete(BLOCKS[[0, 0]]) == 1


@forgetting
def test_blocks_in_both_tiers_are_forgotten(forget: Forget) -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    forget(world)
    check_forgotten(world)


@forgetting
def test_blocks_on_ssd_are_forgotten(forget: Forget) -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    forget(world)
    check_forgotten(world)


@forgetting
def test_what_a_store_brings_late_is_dropped(forget: Forget) -> None:
    world = EngineWorld()
    put = world.put(BLOCKS)
    forget(world)
    check_forgotten(world)
    assert put.result(0).outcomes == [CANCELLED] * 6


@forgetting
def test_what_a_read_brings_late_is_dropped(forget: Forget) -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    get = world.get(BLOCKS)
    forget(world)
    check_forgotten(world)
    assert get.result(0).leading == 0


@forgetting
def test_what_a_prefetch_brings_late_is_dropped(forget: Forget) -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    prefetch = world.prefetch(BLOCKS)
    forget(world)
    check_forgotten(world)
    assert prefetch.result(0).outcomes == [CANCELLED] * 6


@forgetting
def test_blocks_being_loaded_give_their_slots_back_when_the_load_has_ended(forget: Forget) -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS)
    get = world.get(BLOCKS)
    forget(world)
    assert free_slots(world) == POOL_BLOCKS - 6
    check_forgotten(world)
    assert get.result(0).ok


@forgetting
def test_blocks_being_written_give_their_slots_back_when_the_write_has_ended(forget: Forget) -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    world.store.end()
    forget(world)
    assert free_slots(world) == POOL_BLOCKS - 6
    check_forgotten(world)


@forgetting
@pytest.mark.parametrize("outcome", [IO_ERROR, REJECTED, CANCELLED])
def test_a_copy_that_fails_after_its_blocks_were_forgotten_leaves_nothing(forget: Forget, outcome: Outcome) -> None:
    world = EngineWorld()
    world.put(BLOCKS)
    forget(world)
    world.store.end(outcomes=outcome)
    world.put(BLOCKS)
    world.store.end()
    forget(world)
    world.write.end(outcomes=outcome)
    world.keep_on_ssd(BLOCKS)
    world.get(BLOCKS)
    forget(world)
    world.read.end(outcomes=outcome)
    check_forgotten(world)


def test_a_corrupt_block_that_was_deleted_meanwhile_is_gone_once() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.get(BLOCKS)
    world.delete(BLOCKS)
    world.read.end(outcomes=CORRUPT)
    check_forgotten(world)


@forgetting
def test_blocks_put_again_while_the_old_ones_are_on_their_way_are_new_ones(forget: Forget) -> None:
    world = EngineWorld()
    old = world.put(BLOCKS)
    forget(world)
    new = world.put(BLOCKS)
    first, second = world.store.jobs
    world.store.end(second)
    assert new.result(0).ok
    world.store.end(first)
    assert old.result(0).outcomes == [CANCELLED] * 6
    get = world.get(BLOCKS)
    world.settle()
    assert get.result(0).ok
    world.check_idle()


def test_clear_of_one_namespace_leaves_the_other() -> None:
    world = EngineWorld(slot_pages=(1, 2), slab_pages=16)
    world.keep_in_host(BLOCKS, layout=0)
    world.keep_in_host(BLOCKS, layout=1)
    world.clear(layout=0)
    assert world.presence(BLOCKS, layout=0) == [Presence.MISS] * 6
    assert world.presence(BLOCKS, layout=1) == [Presence.HIT] * 6


def test_clear_takes_slots_back_from_more_entries_than_one_slice_sees() -> None:
    world = EngineWorld(slab_pages=256, capacity=2048)
    world.keep_in_host(chain("long", 1000))
    world.clear()
    assert free_slots(world) == 1024
