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

    Few files are open at a time, so that opening them again fails too.

    Every block that is read is compared byte by byte by its user, whatever the disk did.

    Attributes:
        durable: By user: written, then covered by a sync that answered OK, and in no file that was given back.
        deleted: By user: deleted, then covered by a sync that answered OK, and not written since.
    """

    def __init__(self) -> None:
        self.world = SsdWorld(open_files_max=2)
        kinds = [(100, "a"), (4096, "b")]
        self.users = [BlockUser(self.world.pool, self.world.generation(nbytes, tenant)) for nbytes, tenant in kinds]
        self.durable: list[set[int]] = [set(), set()]
        self.deleted: list[set[int]] = [set(), set()]
        self._pending: list[set[int]] = [set(), set()]
        self._dying: list[set[int]] = [set(), set()]

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
        for index, result in enumerate(tier.write(jobs)):
            self.users[index].remember(names, result)
            self._pending[index] |= set(names) & set(self.users[index].where)
            self.deleted[index].difference_update(names)
            self._dying[index].difference_update(names)

    def delete(self, tier: SsdTier, names: range) -> None:
        jobs = [user.delete_job(names) for user in self.users]
        for index, result in enumerate(tier.write(jobs)):
            where = self.users[index].where
            self.users[index].where = {name: extent for name, extent in where.items() if name not in names}
            self.durable[index].difference_update(names)
            self._pending[index].difference_update(names)
            if set(result.outcomes.tolist()) == {OK}:
                self._dying[index].update(names)

    def sync(self, tier: SsdTier) -> None:
        kept = tier.sync().outcome is OK
        for sure, pending in zip(self.durable + self.deleted, self._pending + self._dying, strict=True):
            sure |= pending if kept else set()
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
        for pending in self._pending + self._dying:
            pending.clear()

    def check(self) -> None:
        """Begin a last life on a disk that is whole again: what must be there is."""
        self.world.sim.heal()
        tier = self.world.start()
        batches = list(tier.recover())
        for user, durable, deleted in zip(self.users, self.durable, self.deleted, strict=True):
            found = user.recover(batches)
            assert not deleted & set(found), f"deleted blocks are back: {sorted(deleted & set(found))}"
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
        self.delete(tier, range(8, 11))
        self.read(tier)
        self.discard(tier)
        self.sync(tier)
        self.write(tier, range(14, 17))
        self.end(getattr(self.world, end_life))
        tier = self.start()
        self.delete(tier, range(11, 13))
        self.write(tier, range(20, 25))
        self.sync(tier)
        self.discard(tier)
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
        [7, 13, *range(20, 25)],
        [5, 6, 7, 13, *range(20, 25)],
    ]
    assert [sorted(deleted) for deleted in story.deleted] == [[8, 9, 10, 11, 12]] * 2
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
            verb = rng.choice(["write", "write", "write", "delete", "sync", "sync", "read", "discard", "fail"])
            if verb == "write":
                count = rng.randint(1, 12)
                story.write(tier, range(next_name, next_name + count))
                next_name += count
            elif verb == "delete":
                first = rng.randint(0, next_name)
                story.delete(tier, range(first, first + rng.randint(1, 8)))
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


def test_a_flipped_bit_in_a_sealed_file_is_never_served_and_costs_no_other_block() -> None:
    world = SsdWorld()
    tier, user = world.begin()
    user.write(tier, range(8))
    sealed, opened = sorted(world.files())
    assert "/c.0" in sealed
    whole, beside = world.sim.contents(sealed), world.sim.contents(opened)
    used = [bit for start, end in _used(whole) for bit in range(8 * start, 8 * end)]
    for bit in used[::211]:
        world.kill()
        for path in world.files():
            world.sim.remove(path)
        for path, content in ((sealed, whole), (opened, beside)):
            world.sim.create(path, len(content)).close()
            world.sim.replace(path, content)
        world.sim.flip(sealed, bit)
        tier = world.start()
        found = user.recover(tier.recover())
        outcomes = user.read(tier, found)
        assert len(set(range(8)) - set(found)) + outcomes.count(Outcome.CORRUPT) <= 1, f"bit {bit}"
        assert set(outcomes) <= {OK, Outcome.CORRUPT}
        assert user.write(tier, [9]).outcomes.tolist() == [OK]
    world.kill()


def _used(content: bytes) -> list[tuple[int, int]]:
    """Where a file of blocks of 100 bytes is not padding: headers, payloads with their checksums, the footer."""
    starts = [start for start in range(0, len(content), PAGE_NBYTES) if content[start : start + 8] == b"TIERSTOR"]
    headers = [(start, start + HEADER_NBYTES) for start in starts[:-1]]
    payloads = [(start + PAGE_NBYTES, start + PAGE_NBYTES + 104) for start in starts[:-1]]
    return [*headers, *payloads, (starts[-1], len(content))]


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
