"""A start with a smaller capacity than the run before, and what goes then."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest

from tierstore.testing.block_user import BlockUser
from tierstore.testing.ssd_world import SsdWorld
from tierstore.tiers.chunkfile import slots_per_file
from tierstore.tiers.record import RecordShape
from tierstore.types import Outcome

OK = Outcome.OK
PER_FILE = slots_per_file(64 << 10, RecordShape(100))
"""Blocks of 100 bytes in one of the world's files."""


@pytest.fixture
def world() -> Iterator[SsdWorld]:
    world = SsdWorld()
    yield world
    world.kill()


def interleaved(world: SsdWorld) -> tuple[list[list[int]], BlockUser, BlockUser]:
    """Eleven full files with a needed deletion each, and the newest one, which holds the oldest block too.

    Returns:
        Living names of the eleven, oldest file first; their user, and that of the newest.
    """
    tier, user = world.begin()
    other = BlockUser(world.pool, world.generation(block_nbytes=5000, tenant="other"))
    other.write(tier, [0])
    for first in range(0, 55, 5):
        user.write(tier, range(first, first + 5))
        user.delete(tier, [first])
    for _ in range(2 * 11):
        other.delete_job([0])  # never run: each user numbers its own jobs, and the next one is to be the newest
    other.write(tier, range(1, 5))
    assert len(world.files()) == 12
    world.close()
    return [list(range(first + 1, first + 5)) for first in range(0, 55, 5)], user, other


@pytest.mark.parametrize(("capacity_files", "gone"), [(12, 2), (11, 3), (8, 7), (6, 10)])
def test_a_smaller_capacity_takes_the_oldest_files_though_deletions_in_them_must_be_kept(
    world: SsdWorld, capacity_files: int, gone: int
) -> None:
    files, user, other = interleaved(world)
    world.capacity_nbytes = capacity_files * world.file_nbytes
    left = [name for file in files[gone:] for name in file]
    for _life in range(2):
        tier = world.start()
        found = list(tier.recover())
        assert user.recover(found) == left
        assert other.recover(found) == list(range(5))
        assert sum(world.files().values()) + world.file_nbytes <= world.capacity_nbytes
    before = len(world.files())
    tier.discard(other.where[0][0])
    assert len(world.files()) == before - 1


def test_after_a_start_at_exactly_the_capacity_a_file_goes_though_its_deletions_must_be_kept(world: SsdWorld) -> None:
    files, user, _other = interleaved(world)
    world.capacity_nbytes = 12 * world.file_nbytes
    tier = world.start()
    user.recover(tier.recover())
    for oldest in files[2:6]:
        file = user.where[oldest[0]][0]
        tier.discard(file)
        assert file not in tier.files, "it stays though it was given back"
        assert sum(world.files().values()) <= world.capacity_nbytes
    assert user.recover(world.start().recover()) == [name for file in files[6:] for name in file]


def test_a_file_that_cannot_go_while_the_folder_shrinks_is_still_read(world: SsdWorld) -> None:
    files, user, _other = interleaved(world)
    world.capacity_nbytes = 11 * world.file_nbytes
    tier = world.start()
    world.sim.fail_call(1, errno=errno.EIO, only="create")
    left = files[:1] + files[4:]
    assert user.recover(tier.recover()) == [name for file in left for name in file]
    assert set(user.read(tier, files[0])) == {OK}
    tier.discard(user.where[files[0][0]][0])
    assert user.recover(world.start().recover()) == [name for file in files[4:] for name in file]


def test_files_without_a_living_block_go_before_the_oldest_where_the_capacity_is_smaller(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, range(4 * PER_FILE))
    for name in range(PER_FILE, 3 * PER_FILE):
        user.write(tier, [name])
    assert len(world.files()) == 6
    world.close()
    world.capacity_nbytes = 5 * world.file_nbytes
    assert sorted(user.recover(world.start().recover())) == list(range(4 * PER_FILE))
