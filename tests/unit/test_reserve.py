"""The clean file in reserve: whoever has begun it leaves room for what lets the next file go."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from tierstore.testing.block_user import BlockUser
from tierstore.testing.ssd_world import SsdWorld
from tierstore.tiers.ssd import SsdTier
from tierstore.types import Outcome

OK, REJECTED = Outcome.OK, Outcome.REJECTED


@pytest.fixture
def world() -> Iterator[SsdWorld]:
    world = SsdWorld(capacity_nbytes=6 * (64 << 10))
    yield world
    world.kill()


def full(world: SsdWorld) -> tuple[SsdTier, BlockUser]:
    """One file of another layout with the oldest blocks, then four full ones with a needed deletion each, no clean one.

    Of names 0 to 4, 5 to 9 and so on, the first is deleted.
    """
    tier, user = world.begin()
    other = BlockUser(world.pool, world.generation(block_nbytes=5000, tenant="other"))
    other.write(tier, range(5))
    for first in range(0, 20, 5):
        user.write(tier, range(first, first + 5))
        user.delete(tier, [first])
    assert len(world.files()) == 5
    assert user.write(tier, [20]).outcomes.tolist() == [REJECTED]
    return tier, user


def assert_goes(world: SsdWorld, tier: SsdTier, file: int) -> None:
    tier.discard(file)
    assert file not in tier.files, "it stays though it was given back"
    assert sum(world.files().values()) + world.file_nbytes <= world.capacity_nbytes


def test_deletions_on_a_full_ssd_leave_room_for_those_of_the_file_that_goes_next(world: SsdWorld) -> None:
    tier, user = full(world)
    taken = [user.delete(tier, [name]).outcomes.tolist() for name in range(100, 110)]
    assert taken[0] == [OK]
    assert taken[-1] == [REJECTED]
    for first in range(0, 20, 5):
        assert_goes(world, tier, user.where[first + 1][0])
        assert user.delete(tier, [first]).outcomes.tolist() == [OK]


def test_rewrites_leave_room_for_the_deletions_of_the_file_they_come_from(world: SsdWorld) -> None:
    tier, user = full(world)
    old = user.where[1][0]
    assert user.delete(tier, [100]).outcomes.tolist() == [OK]
    again = user.rewrite(tier, [1, 2, 3, 4]).outcomes.tolist()
    assert again == [OK, OK, REJECTED, REJECTED]
    assert_goes(world, tier, old)
    assert user.read(tier, [1, 2]) == [OK, OK]


def test_deletions_of_an_array_whose_metadata_are_lost_go_to_a_file_of_another_one(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, range(8))
    user.delete(tier, [0])
    world.close()
    path = f"arrays/{user.generation.layout.fingerprint.hex()}-raw/zarr.json"
    world.sim.replace(path, b"{}")
    tier = world.start()
    user.recover(tier.recover())
    other = BlockUser(world.pool, world.generation(block_nbytes=5000, tenant="other"))
    other.write(tier, range(5))
    assert len(world.files()) == 3
    assert_goes(world, tier, user.where[7][0])
    assert user.recover(world.start().recover()) == list(range(1, 7))


def test_a_rewrite_never_goes_to_the_file_it_comes_from(world: SsdWorld) -> None:
    tier, user = world.begin()
    user.write(tier, [0, 1])
    old = user.where[0][0]
    assert user.rewrite(tier, [0, 1]).outcomes.tolist() == [OK, OK]
    assert old not in {user.where[name][0] for name in (0, 1)}
    assert_goes(world, tier, old)
    assert user.read(tier, [0, 1]) == [OK, OK]


def test_a_full_ssd_goes_round_though_every_file_holds_deletions(world: SsdWorld) -> None:
    tier, user = full(world)
    names = count(20)
    for _turn in range(40):
        user.delete(tier, [next(names)])
        oldest = min(tier.files[1:])
        user.rewrite(tier, [name for name, extent in user.where.items() if extent[0] == oldest][:2])
        assert_goes(world, tier, oldest)
        user.where = {name: extent for name, extent in user.where.items() if extent[0] != oldest}
        while user.write(tier, [next(names)]).outcomes.tolist() == [OK]:
            pass
