"""Prefixes leave the host pool from their tail, in however many pieces their blocks came or were used."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.planner import SLICE_BLOCKS
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.types import CopyResult, Presence

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

POOL_BLOCKS = 32
BLOCKS = chain("a", 12)


def evict(world: EngineWorld, count: int) -> None:
    """Fill the pool with blocks of others until `count` of those that lay there have gone."""
    with world.engine.planning() as planner:
        free = planner._mind.host.slots.free(0)
    world.clock.advance(1)
    world.put(chain("others", free + count))
    world.settle()


def held(world: EngineWorld, hashes: UInt8Array) -> list[bool]:
    return [presence is Presence.HIT for presence in world.presence(hashes)]


def test_a_put_on_top_of_a_held_prefix_leaves_from_its_tail() -> None:
    world = EngineWorld(ssd=False)
    world.keep_in_host(BLOCKS[:5])
    world.clock.advance(1)
    world.get(BLOCKS[:5])
    world.settle()
    world.put(BLOCKS)
    world.settle()
    evict(world, 3)
    assert held(world, BLOCKS) == [True] * 9 + [False] * 3


def test_a_put_of_several_slices_leaves_from_its_tail() -> None:
    blocks = chain("long", 2 * SLICE_BLOCKS + 8)
    world = EngineWorld(ssd=False, capacity=4096, slab_pages=len(blocks) // 4 + 8)
    world.put(blocks)
    world.settle()
    evict(world, 5)
    assert held(world, blocks) == [True] * (len(blocks) - 5) + [False] * 5


def test_a_get_that_was_read_in_pieces_leaves_from_its_tail() -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.get(BLOCKS[4:])
    world.read.end()
    world.settle()
    world.get(BLOCKS)
    world.settle()
    evict(world, 2)
    with world.engine.planning() as planner:
        directory = planner.directory
        entries = directory.find(world.generations[0].number, BLOCKS.view(np.uint64))
        assert directory.host.state[entries].tolist() == [2] * 10 + [0] * 2


def test_a_block_knows_how_deep_it_lies() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS[:5])
    world.put(BLOCKS)
    world.settle()
    with world.engine.planning() as planner:
        directory = planner.directory
        entries = directory.find(world.generations[0].number, BLOCKS.view(np.uint64))
        assert directory.depth[entries].tolist() == list(range(12))


def test_the_last_blocks_of_a_put_that_is_too_large_do_not_evict_its_first() -> None:
    blocks = chain("long", 2 * SLICE_BLOCKS)
    pool_blocks = SLICE_BLOCKS + 8
    world = EngineWorld(ssd=False, capacity=4096, slab_pages=pool_blocks // 4)
    world.put(blocks[: SLICE_BLOCKS - 8])
    world.settle()
    with world.engine.planning() as planner:
        request = planner.put(world.generations[0].number, blocks, blocks)
        assert request is not None
        for _ in range(2):
            for job in planner.step(request, 0.0).jobs:
                planner.complete(CopyResult(job.job_id, np.zeros(len(job), np.uint8)), 0.0)  # type: ignore[arg-type]
        planner.check()
        assert request.done
        assert request.leading() == pool_blocks
        assert not planner.directory.host.pins.any()
    assert held(world, blocks) == [True] * pool_blocks + [False] * (len(blocks) - pool_blocks)


def test_a_put_that_finds_all_its_slices_held_leaves_from_its_tail() -> None:
    blocks = chain("long", 2 * SLICE_BLOCKS + 8)
    world = EngineWorld(ssd=False, capacity=4096, slab_pages=len(blocks) // 4 + 8)
    for _ in range(2):
        world.put(blocks)
        world.settle()
    evict(world, 5)
    assert held(world, blocks) == [True] * (len(blocks) - 5) + [False] * 5
