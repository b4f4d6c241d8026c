"""The SSD tier on a disk that fails, tears and flips: outcomes, never an exception and never a wrong byte."""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random

import pytest

from tierstore.errors import DiskError
from tierstore.testing.block_user import BlockUser
from tierstore.testing.ssd_world import SsdWorld
from tierstore.tiers.record import HEADER_NBYTES
from tierstore.tiers.ssd import SsdTier
from tierstore.types import PAGE_NBYTES, Outcome

OK = Outcome.OK
CODES = [errno.EIO, errno.ENOSPC, errno.EROFS, 0]
"""How a call fails; 0: it ends halfway."""


class Story:
    """Two users' blocks through several lives of a folder, and which of them must be there in the end.

    Every block that is read is compared byte by byte by its user, whatever the disk did.

    Attributes:
        durable: By user: written, then covered by a sync that answered OK, and in no file that was given back.
    """

    def __init__(self) -> None:
        self.world = SsdWorld()
        kinds = [(100, "a"), (4096, "b")]
        self.users = [BlockUser(self.world.pool, self.world.generation(nbytes, tenant)) for nbytes, tenant in kinds]
        self.durable: list[set[int]] = [set(), set()]
        self._pending: list[set[int]] = [set(), set()]

    def start(self) -> SsdTier:
        """Begin a life. A manifest that the disk fails is tried again, as whoever restarts a service does."""
        for _ in range(3):
            with suppress(DiskError):
                tier = self.world.start()
                batches = list(tier.recover())
                for user in self.users:
                    user.recover(batches)
                self.read(tier)
                return tier
        pytest.fail("the folder cannot be opened")

    def write(self, tier: SsdTier, names: range) -> None:
        jobs = [user.write_job(names, first_page=64 * turn) for turn, user in enumerate(self.users)]
        for user, pending, result in zip(self.users, self._pending, tier.write(jobs), strict=True):
            user.remember(names, result)
            pending |= set(names) & set(user.where)

    def sync(self, tier: SsdTier) -> None:
        kept = tier.sync() is OK
        for durable, pending in zip(self.durable, self._pending, strict=True):
            durable |= pending if kept else set()
            pending.clear()

    def read(self, tier: SsdTier) -> None:
        for user in self.users:
            if user.where:
                user.read(tier, list(user.where)[:40])

    def discard(self, tier: SsdTier) -> None:
        """Give the file of the oldest known block back, as reclaim does."""
        files = [extent[0] for user in self.users for extent in user.where.values()]
        if not files:
            return
        assert tier.discard(min(files)) >= 0
        for user, durable, pending in zip(self.users, self.durable, self._pending, strict=True):
            gone = {name for name, extent in user.where.items() if extent[0] == min(files)}
            durable -= gone
            pending -= gone
            user.where = {name: extent for name, extent in user.where.items() if name not in gone}

    def end(self, end_life: Callable[[], None]) -> None:
        end_life()
        for pending in self._pending:
            pending.clear()

    def check(self) -> None:
        """Begin a last life on a disk that is whole again: what must be there is."""
        self.world.sim.heal()
        tier = self.world.start()
        batches = list(tier.recover())
        for user, durable in zip(self.users, self.durable, strict=True):
            found = user.recover(batches)
            assert durable <= set(found), f"durable blocks are lost: {sorted(durable - set(found))}"
            for name, outcome in zip(found, user.read(tier, found) if found else [], strict=True):
                assert outcome is OK or (outcome is Outcome.CORRUPT and name not in durable)
        assert sum(self.world.files().values()) <= self.world.capacity_nbytes
        self.world.kill()

    def run(self, end_life: str) -> None:
        """Put, sync, read, discard and reopen, in a fixed order."""
        tier = self.start()
        self.write(tier, range(5))
        self.sync(tier)
        self.write(tier, range(5, 10))
        self.sync(tier)
        self.write(tier, range(10, 14))
        self.read(tier)
        self.discard(tier)
        self.sync(tier)
        self.write(tier, range(14, 17))
        self.end(getattr(self.world, end_life))
        tier = self.start()
        self.write(tier, range(20, 25))
        self.sync(tier)
        self.write(tier, range(25, 27))
        self.end(getattr(self.world, end_life))


def calls_of_a_run(end_life: str) -> int:
    story = Story()
    calls = story.world.sim.calls
    story.run(end_life)
    return story.world.sim.calls - calls


def test_the_story_itself_makes_blocks_durable() -> None:
    story = Story()
    story.run("crash")
    assert [sorted(durable) for durable in story.durable] == [
        [*range(7, 14), *range(20, 25)],
        [*range(14), *range(20, 25)],
    ]
    story.check()


@pytest.mark.parametrize("end_life", ["close", "kill", "crash"])
@pytest.mark.parametrize("code", [errno.EIO, 0])
def test_any_one_call_may_fail(code: int, end_life: str) -> None:
    for call in range(1, calls_of_a_run(end_life) + 1):
        story = Story()
        story.world.sim.fail_call(call, errno=code)
        story.run(end_life)
        story.check()


@pytest.mark.parametrize("only", ["create", "open", "read", "write", "sync", "remove", "look", None])
@pytest.mark.parametrize("code", CODES)
def test_a_disk_may_fail_from_any_moment_of_a_life_on(code: int, only: str | None) -> None:
    for call in range(1, 40, 5):
        story = Story()
        tier = story.start()
        story.world.sim.fail_from(call, errno=code, only=only)
        story.write(tier, range(5))
        story.sync(tier)
        story.write(tier, range(5, 20))
        story.sync(tier)
        story.read(tier)
        story.discard(tier)
        story.write(tier, range(20, 25))
        story.sync(tier)
        story.end(story.world.crash)
        story.check()


@pytest.mark.parametrize("seed", range(60))
def test_a_power_loss_with_torn_sectors_leaves_what_was_synced(seed: int) -> None:
    rng = Random(seed)
    story, next_name = Story(), 0
    for _ in range(rng.randint(1, 4)):
        tier = story.start()
        for _ in range(rng.randint(1, 12)):
            verb = rng.choice(["write", "write", "write", "sync", "read", "discard", "fail"])
            if verb == "write":
                count = rng.randint(1, 12)
                story.write(tier, range(next_name, next_name + count))
                next_name += count
            elif verb == "fail":
                story.world.sim.fail_call(
                    rng.randint(1, 6), errno=rng.choice(CODES), only=rng.choice(["write", "sync"])
                )
            else:
                getattr(story, verb)(tier)
        story.end(lambda: story.world.crash(rng.randrange(1 << 30)))
    story.check()


@pytest.mark.parametrize("block_nbytes", [100, 4094])
def test_any_flipped_bit_that_means_something_makes_a_block_corrupt(block_nbytes: int) -> None:
    world = SsdWorld()
    tier, user = world.begin(block_nbytes)
    user.write(tier, [1, 2])
    (path,) = world.files()
    step = 1 if block_nbytes == 100 else 61
    used = [*range(HEADER_NBYTES * 8), *range(PAGE_NBYTES * 8, (PAGE_NBYTES + block_nbytes + 4) * 8)]
    for bit in used[::step]:
        world.sim.flip(path, bit)
        assert user.read(tier, [1, 2]) == [Outcome.CORRUPT, OK], f"bit {bit}"
        world.sim.flip(path, bit)
    assert user.read(tier, [1, 2]) == [OK, OK]
    world.kill()


def test_any_flipped_bit_that_means_nothing_changes_nothing() -> None:
    world = SsdWorld()
    tier, user = world.begin()
    user.write(tier, [1])
    (path,) = world.files()
    padding = [*range(HEADER_NBYTES * 8, PAGE_NBYTES * 8), *range((PAGE_NBYTES + 104) * 8, 2 * PAGE_NBYTES * 8)]
    for bit in padding[::997]:
        world.sim.flip(path, bit)
        assert user.read(tier, [1]) == [OK]
    world.kill()


def test_a_flipped_bit_before_a_start_makes_a_block_corrupt_or_a_miss() -> None:
    world = SsdWorld()
    tier, user = world.begin()
    user.write(tier, [1, 2, 3])
    (path,) = world.files()
    whole = world.sim.contents(path)
    used = [*range(HEADER_NBYTES * 8), *range(PAGE_NBYTES * 8, (PAGE_NBYTES + 104) * 8)]
    for bit in used[::37]:
        world.kill()
        for old in world.files():
            world.sim.remove(old)
        world.sim.create(path, len(whole)).close()
        world.sim.replace(path, whole)
        world.sim.flip(path, 2 * PAGE_NBYTES * 8 + bit)
        tier = world.start()
        found = user.recover(tier.recover())
        assert set(found) - {2} == {1, 3}
        assert user.read(tier, found) == [OK if name != 2 else Outcome.CORRUPT for name in found]
    world.kill()
