"""A probe of an SSD folder finds what a write and a read would find, and leaves nothing behind."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tierstore.testing.ssd_world import SsdWorld
from tierstore.tiers.probing import PROBE_PATH
from tierstore.types import PAGE_NBYTES, Outcome

OK, REJECTED, IO_ERROR = Outcome.OK, Outcome.REJECTED, Outcome.IO_ERROR
FILE_BLOCKS = 7
"""Blocks of 100 bytes in a file of 64 KiB."""


@pytest.fixture
def world() -> Iterator[SsdWorld]:
    world = SsdWorld()
    yield world
    world.kill()


def found(world: SsdWorld) -> tuple[Outcome, Outcome]:
    assert world.tier is not None
    probed = world.tier.probe()
    return probed.reading, probed.writing


def test_a_well_folder_that_nothing_was_written_to_is_found_well_and_left_as_it_was(world: SsdWorld) -> None:
    world.begin()
    names = world.disk.look("").entries
    assert found(world) == (OK, OK)
    assert world.disk.look("").entries == names
    assert world.sim.calls_of("write") > 0
    assert world.sim.calls_of("sync") > 0


def test_a_probe_that_was_cut_off_by_a_kill_does_not_spoil_the_next(world: SsdWorld) -> None:
    world.begin()
    world.disk.create(PROBE_PATH, PAGE_NBYTES).close()
    assert found(world) == (OK, OK)
    assert PROBE_PATH not in [entry.name for entry in world.disk.look("").entries]


def test_a_probe_writes_where_the_next_record_will_lie_and_no_start_sees_it(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, range(3))
    (path,) = world.files()
    before = world.sim.contents(path)
    assert found(world) == (OK, OK)
    assert world.sim.contents(path) == before
    user.write(tier, range(3, 6))
    assert tier.sync().outcome is OK
    world.kill()
    tier = world.start()
    assert sorted(user.recover(tier.recover())) == [*range(6)]
    assert user.read(tier, range(6)) == [OK] * 6


def test_a_probe_begins_the_file_that_the_next_record_needs(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, [1])
    world.sim.fail_call(1, errno=errno.EIO, only="write")
    user.write(tier, [2])  # no record goes to the first file any more
    assert found(world) == (OK, OK)
    assert len(world.files()) == 2
    assert user.write(tier, [3]).outcomes.tolist() == [OK]
    assert len(world.files()) == 2


def test_where_only_the_reserve_is_left_the_probe_gives_it_back(world: SsdWorld) -> None:
    world.capacity_nbytes = 4 * (64 << 10)
    tier, user = world.begin()
    name = 0
    while user.write(tier, [name]).outcomes.tolist() == [OK]:
        name += 1
    files = world.files()
    assert len(files) == 3
    creates = world.sim.calls_of("create")
    assert found(world) == (OK, OK)
    assert world.sim.calls_of("create") > creates
    assert len(world.files()) == 3


@pytest.mark.parametrize("operation", ["write", "sync"])
@pytest.mark.parametrize("written", [False, True])
def test_a_disk_that_takes_nothing_is_found_out(world: SsdWorld, operation: str, written: bool) -> None:
    tier, user = world.begin()
    if written:
        user.write(tier, [1])
    world.sim.fail_from(1, errno=errno.EIO, only=operation)
    for _ in range(3):
        probed = tier.probe()
        assert (probed.reading, probed.writing) == (OK, IO_ERROR)
        assert probed.fault is not None
        assert "EIO" in probed.fault.text
        assert not probed.fault.full
    world.sim.heal()
    assert found(world) == (OK, OK)
    assert user.read(tier, list(user.where) or [1]) == [OK] if written else True


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_without_room_for_a_file_is_full(world: SsdWorld, code: int) -> None:
    tier, user = world.begin()
    assert user.write(tier, range(FILE_BLOCKS)).outcomes.tolist() == [OK] * FILE_BLOCKS
    world.sim.fail_from(1, errno=code, only="create")
    probed = tier.probe()
    assert (probed.reading, probed.writing) == (OK, REJECTED)
    assert probed.fault is not None
    assert probed.fault.full


def test_below_the_floor_nothing_is_begun_and_giving_a_file_back_would_not_help(world: SsdWorld) -> None:
    world.free_floor_nbytes = 1 << 20
    world.sim.capacity_nbytes = 2 << 20
    tier, user = world.begin()
    user.write(tier, range(FILE_BLOCKS))
    world.sim.capacity_nbytes = 1 << 20  # others have taken the rest
    probed = tier.probe()
    assert probed.writing is REJECTED
    assert probed.fault is not None
    assert "free_floor" in probed.fault.text
    assert not probed.fault.full


def test_a_single_file_with_room_that_is_taken_up_again_is_found_well(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, [1])
    assert tier.sync().outcome is OK
    world.kill()
    world.free_floor_nbytes = 1 << 20
    world.sim.capacity_nbytes = (1 << 20) + 5 * (64 << 10) // 2  # this one, the one in reserve, and half a file
    tier = world.start()
    user.recover(tier.recover())
    assert found(world) == (OK, OK)
    assert not tier.shortage
    assert user.write(tier, range(2, FILE_BLOCKS + 1)).outcomes.tolist() == [OK] * (FILE_BLOCKS - 1)
    assert found(world) == (OK, REJECTED)


def test_room_that_others_make_is_found_although_the_capacity_allows_no_look_at_it(world: SsdWorld) -> None:
    """With the reserve in use no file is begun, and what the file system had free was not asked for again."""
    world.capacity_nbytes = 4 * (64 << 10)
    world.free_floor_nbytes = 1 << 20
    tier, user = world.begin()
    blocks = 3 * FILE_BLOCKS
    assert user.write(tier, range(blocks)).outcomes.tolist() == [OK] * blocks
    assert user.delete(tier, [0]).outcomes.tolist() == [OK]
    assert len(world.files()) == 4, "the reserve is begun for a deletion"
    world.sim.capacity_nbytes = 1 << 20  # others have taken the rest
    deletions = (user.delete(tier, [name]) for name in range(1, blocks))
    refused = next(result for result in deletions if result.outcomes.tolist() == [REJECTED])
    assert refused.fault is not None
    assert "free_floor" in refused.fault.text
    assert found(world) == (OK, REJECTED)
    world.sim.capacity_nbytes = 8 << 20
    assert found(world) == (OK, OK)


def test_a_disk_that_gives_nothing_is_found_out(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, [1])
    world.sim.fail_from(1, errno=errno.EIO, only="read")
    assert found(world) == (IO_ERROR, IO_ERROR)
    world.sim.heal()
    assert found(world) == (OK, OK)


def test_one_file_that_cannot_be_read_is_no_sick_disk(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, range(2 * FILE_BLOCKS))
    world.sim.fail_call(2, errno=errno.EIO, only="read")  # the first one reads back what was written
    assert found(world) == (OK, OK)


def test_a_folder_that_could_not_be_listed_at_start_is_never_found_well(world: SsdWorld) -> None:
    world.begin()
    world.kill()
    tier = world.start()
    world.sim.fail_call(1, errno=errno.EIO, only="look")
    list(tier.recover())
    probed = tier.probe()
    assert probed.writing is IO_ERROR
    assert probed.fault is not None
    assert "could not be listed at start" in probed.fault.text
