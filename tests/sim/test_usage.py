"""How use outlives a run: what one store says of its blocks makes the next one treat them alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tierstore.advice import Usage
from tierstore.control import catalogue
from tierstore.control.index import as_keys, identity_prefixes
from tierstore.testing.engine_world import EngineWorld, chain
from tierstore.transfer.catalogue import adopt
from tierstore.transfer.catalogue import usage as usage_of
from tierstore.types import PAGE_NBYTES, CopyJob, TierName

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

FILE_BLOCKS = 8
BLOCKS = chain("a", FILE_BLOCKS)


def world_of_files() -> EngineWorld:
    """A world whose SSD takes four files, and reclaims one when less than two are free."""
    file_nbytes = FILE_BLOCKS * PAGE_NBYTES
    return EngineWorld(file_blocks=FILE_BLOCKS, ssd_nbytes=4 * file_nbytes, reclaim_below_nbytes=2 * file_nbytes)


def use(world: EngineWorld, hashes: UInt8Array) -> None:
    """Get blocks a second later."""
    world.clock.advance(1)
    world.get(hashes)
    world.settle()


def prefixes(world: EngineWorld, hashes: UInt8Array, layout: int = 0) -> list[int]:
    """The names that usage gives to blocks."""
    return list(identity_prefixes(world.generations[layout].fingerprint, as_keys(hashes)).tolist())


def told(world: EngineWorld) -> dict[int, tuple[int, int]]:
    """Last use and hits of every block that the world tells of, by prefix."""
    rows: dict[int, tuple[int, int]] = {}
    for usage in usage_of(world.engine):
        columns = (usage.prefix.tolist(), usage.last_use.tolist(), usage.hits.tolist())
        for prefix, last_use, hits in zip(*columns, strict=True):
            assert prefix not in rows, f"{prefix} is told twice"
            rows[prefix] = (last_use, hits)
    return rows


def remembered(world: EngineWorld, hashes: UInt8Array, of: dict[int, tuple[int, int]]) -> Usage:
    """Usage of blocks as a start makes it: zeros where an earlier run told nothing."""
    names = prefixes(world, hashes)
    last_use, hits = zip(*(of.get(name, (0, 0)) for name in names), strict=True)
    return Usage(np.array(names, np.uint64), np.array(last_use, np.uint32), np.array(hits, np.uint16))


def kept_when_its_file_goes(world: EngineWorld) -> list[int]:
    """Fill the SSD until the first file has to go; which of BLOCKS are written again, in order."""
    world.clock.advance(100)
    for name, count in (("second", FILE_BLOCKS), ("third", 1)):
        world.put(chain(name, count))
        world.store.end()
        world.write.end(world.write.jobs[-1])
    names = [row.tobytes() for row in BLOCKS]
    jobs = [job for job in world.write.jobs if isinstance(job, CopyJob) and job.src is TierName.SSD]
    return [names.index(row.tobytes()) for job in jobs for row in job.hashes]


def test_usage_of_one_run_is_the_usage_of_the_next() -> None:
    first, second = EngineWorld(), EngineWorld()
    first.keep_on_ssd(BLOCKS)
    for count in (5, 3, 1):
        use(first, BLOCKS[:count])
    second.keep_on_ssd(BLOCKS, usage=remembered(second, BLOCKS, told(first)))
    assert told(second) == told(first)
    assert [hits for _last_use, hits in told(second).values()] == [3, 2, 2, 1, 1, 0, 0, 0]


def test_a_file_of_an_earlier_run_keeps_the_blocks_that_it_would_have_kept() -> None:
    first, second = world_of_files(), world_of_files()
    first.keep_on_ssd(BLOCKS)
    for position in (6, 2, 4, 0, 3, 5):
        use(first, BLOCKS[position : position + 1])
    second.keep_on_ssd(BLOCKS, usage=remembered(second, BLOCKS, told(first)))
    assert kept_when_its_file_goes(second) == [5, 3, 0, 4]
    assert kept_when_its_file_goes(first) == [5, 3, 0, 4]


def test_blocks_that_no_usage_is_known_of_are_cold() -> None:
    first, second = world_of_files(), world_of_files()
    first.keep_on_ssd(BLOCKS[:2])
    use(first, BLOCKS[:2])
    second.keep_on_ssd(BLOCKS, usage=remembered(second, BLOCKS, told(first)))
    assert kept_when_its_file_goes(second) == [0, 1]


def test_without_usage_every_block_is_cold() -> None:
    world = world_of_files()
    world.keep_on_ssd(BLOCKS)
    assert set(told(world).values()) == {(0, 0)}
    assert kept_when_its_file_goes(world) == []


def test_usage_of_blocks_that_there_is_no_room_for_moves_to_no_other_block() -> None:
    world = EngineWorld(capacity=6)
    world.keep_on_ssd(BLOCKS[2:4])
    with world.engine.planning() as mind:
        extents = mind.directory.extents(np.zeros(FILE_BLOCKS, np.int32))
    usage = Usage(
        np.zeros(FILE_BLOCKS, np.uint64), np.arange(FILE_BLOCKS, dtype=np.uint32), np.arange(10, 18, dtype=np.uint16)
    )
    assert adopt(world.engine, world.generations[0].number, BLOCKS, extents, usage) == 4
    names = prefixes(world, BLOCKS)
    assert told(world) == {
        **{names[position]: (0, 0) for position in (2, 3)},
        **{names[position]: (position, 10 + position) for position in (0, 1, 4, 5)},
    }


def test_only_blocks_on_ssd_are_told_of() -> None:
    world = EngineWorld()
    world.keep_in_host(BLOCKS[:2])
    world.put(BLOCKS[2:4])
    world.store.end()
    world.put(BLOCKS[4:])
    assert set(told(world)) == set(prefixes(world, BLOCKS[:2]))


@pytest.mark.parametrize("forget", ["delete", "clear"])
def test_blocks_that_are_deleted_or_cleared_are_told_of_no_more(forget: str) -> None:
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    world.get(BLOCKS[:1])
    if forget == "delete":
        world.delete(BLOCKS)
    else:
        world.clear()
    assert told(world) == {}


def test_one_hash_in_two_namespaces_is_told_of_apart() -> None:
    world = EngineWorld(slot_pages=(1, 2), slab_pages=16)
    for layout in (0, 1):
        world.keep_on_ssd(BLOCKS, layout=layout)
    world.get(BLOCKS[:1], layout=1)
    world.settle()
    both = told(world)
    assert len(both) == 2 * FILE_BLOCKS
    assert both[prefixes(world, BLOCKS, layout=0)[0]][1] == 0
    assert both[prefixes(world, BLOCKS, layout=1)[0]][1] == 1


def test_usage_is_told_in_slices_that_miss_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue, "_USAGE_ENTRIES", 3)
    world = EngineWorld()
    world.keep_on_ssd(BLOCKS)
    slices = [len(usage) for usage in usage_of(world.engine)]
    assert slices == [3, 3, 2]
    assert set(told(world)) == set(prefixes(world, BLOCKS))


def test_a_block_written_again_keeps_its_hits() -> None:
    world = world_of_files()
    world.keep_on_ssd(BLOCKS)
    use(world, BLOCKS[:1])
    kept_when_its_file_goes(world)
    name = prefixes(world, BLOCKS)[0]
    assert told(world)[name][1] == 1
    world.settle()
    assert told(world)[name][1] == 1
