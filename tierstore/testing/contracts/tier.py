"""What every tier below the host pool must do; see `tierstore.tiers.base`.

Subclassed by whoever writes a tier, run by pytest. Every block's bytes follow from its identity, so a
wrong byte is found wherever it comes from.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pytest

from tierstore.testing.block_user import BlockUser
from tierstore.tiers.base import Tier
from tierstore.types import CopyJob, Extents, Generation, Outcome, TombstoneJob

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

__all__ = ["TierContract", "TierWorld"]

_OK = Outcome.OK
_WRITES_MAX = 10_000


class TierWorld(Protocol):
    """A place with one tier whose lives begin and end."""

    @property
    def pool(self) -> UInt8Array:
        """At least 512 KiB of memory that every life copies from and to."""

    def start(self) -> Tier:
        """Begin a life; one that runs is killed first. `recover` has not been called."""

    def kill(self) -> None:
        """End a life without a close: what is not synced may be lost."""

    def generation(self, block_nbytes: int = 100, tenant: str | None = None) -> Generation:
        """The living generation of a namespace of the tier."""


def fresh(world: TierWorld) -> Tier:
    """Begin a life that finds nothing."""
    tier = world.start()
    assert list(tier.recover()) == []
    return tier


class TierContract:
    """Subclass it and give a fixture ``world``: an empty tier that can take at most some MiB."""

    def test_keeps_the_protocol(self, world: TierWorld) -> None:
        assert isinstance(world.start(), Tier)

    @pytest.mark.parametrize("block_nbytes", [1, 100, 4091, 4092, 4093, 4095, 4096, 4097, 10_000])
    def test_blocks_come_back_exactly(self, world: TierWorld, block_nbytes: int) -> None:
        tier = fresh(world)
        user = BlockUser(world.pool, world.generation(block_nbytes))
        result = user.write(tier, range(6))
        assert result.outcomes.tolist() == [_OK] * 6
        assert user.read(tier, [3, 0, 5, 1, 4, 2]) == [_OK] * 6

    def test_jobs_of_one_call_are_answered_in_their_order(self, world: TierWorld) -> None:
        tier = fresh(world)
        kinds = [(64, "a"), (64, "b"), (5000, "a")]
        users = [BlockUser(world.pool, world.generation(nbytes, tenant)) for nbytes, tenant in kinds]
        jobs = [users[turn % 3].write_job([turn, turn + 10], first_page=turn * 4) for turn in range(6)]
        jobs = [replace(job, job_id=type(job.job_id)(100 + turn)) for turn, job in enumerate(jobs)]
        results = tier.write(jobs)
        assert [result.job_id for result in results] == [job.job_id for job in jobs]
        for turn, result in enumerate(results):
            users[turn % 3].remember([turn, turn + 10], result)
        for turn, user in enumerate(users):
            assert user.read(tier, [turn, turn + 10, turn + 3, turn + 13]) == [_OK] * 4

    def test_no_jobs_are_no_results(self, world: TierWorld) -> None:
        assert fresh(world).write([]) == []

    def test_a_block_under_another_identity_is_corrupt(self, world: TierWorld) -> None:
        tier = fresh(world)
        generation = world.generation()
        user = BlockUser(world.pool, generation)
        user.write(tier, [1, 2])
        assert user.read(tier, [1, 2]) == [_OK, _OK]
        user.where[1], user.where[2] = user.where[2], user.where[1]
        assert user.read(tier, [1, 2]) == [Outcome.CORRUPT] * 2
        for stranger in (replace(generation, epoch=generation.epoch + 1), world.generation(tenant="other")):
            other = BlockUser(world.pool, stranger)
            other.where = dict(user.where)
            other.where[2] = user.where[1]
            assert other.read(tier, [2]) == [Outcome.CORRUPT]

    def test_a_block_of_another_length_or_checksum_is_corrupt(self, world: TierWorld) -> None:
        tier = fresh(world)
        user = BlockUser(world.pool, world.generation())
        user.write(tier, [1, 2, 3])
        file, page, nbytes, checksum = user.where[2]
        user.where[2] = (file, page, nbytes - 1, checksum)
        assert user.read(tier, [1, 2, 3]) == [_OK, Outcome.CORRUPT, _OK]
        user.where[2] = (file, page, nbytes, checksum ^ 1)
        assert user.read(tier, [1, 2, 3]) == [_OK, Outcome.CORRUPT, _OK]

    def test_a_block_that_is_nowhere_is_an_outcome(self, world: TierWorld) -> None:
        tier = fresh(world)
        user = BlockUser(world.pool, world.generation())
        user.write(tier, [1, 2])
        file, page, nbytes, checksum = user.where[2]
        for nowhere in ((file + 77, page, nbytes, checksum), (file, 0xFFFF_FFF0, nbytes, checksum)):
            user.where[2] = nowhere
            assert user.read(tier, [1, 2]) == [_OK, Outcome.IO_ERROR]

    def test_synced_blocks_outlive_a_kill_in_their_order(self, world: TierWorld) -> None:
        tier = fresh(world)
        user = BlockUser(world.pool, world.generation())
        for names in ([7, 3], [9], [1, 5, 4]):
            user.write(tier, names)
        assert tier.sync().outcome is _OK
        tier = world.start()
        assert user.recover(tier.recover()) == [7, 3, 9, 1, 5, 4]
        assert user.read(tier, [1, 3, 4, 5, 7, 9]) == [_OK] * 6

    def test_unsynced_blocks_are_lost_or_right(self, world: TierWorld) -> None:
        tier = fresh(world)
        user = BlockUser(world.pool, world.generation())
        user.write(tier, [1, 2])
        assert tier.sync().outcome is _OK
        user.write(tier, [3, 4])
        tier = world.start()
        names = user.recover(tier.recover())
        assert names[:2] == [1, 2]
        assert set(user.read(tier, names)) == {_OK}

    def test_every_life_adds_to_the_one_before(self, world: TierWorld) -> None:
        fresh(world)
        user = BlockUser(world.pool, world.generation())
        for life in range(4):
            tier = world.start()
            assert user.recover(tier.recover()) == list(range(2 * life))
            user.write(tier, [2 * life, 2 * life + 1])
            assert tier.sync().outcome is _OK
            assert set(user.read(tier, range(2 * life + 2))) == {_OK}

    def test_the_last_record_of_an_identity_counts(self, world: TierWorld) -> None:
        tier = fresh(world)
        user = BlockUser(world.pool, world.generation())
        user.write(tier, [1, 2, 3])
        user.write(tier, [2])
        last_page = user.where[2][1]
        assert tier.sync().outcome is _OK
        tier = world.start()
        assert user.recover(tier.recover()) == [1, 3, 2]
        assert user.where[2][1] == last_page
        assert user.read(tier, [1, 2, 3]) == [_OK] * 3

    def test_a_deleted_block_does_not_come_back(self, world: TierWorld) -> None:
        tier = fresh(world)
        user, other = (BlockUser(world.pool, world.generation(tenant=tenant)) for tenant in "ab")
        user.write(tier, range(5))
        other.write(tier, range(5))
        assert user.delete(tier, [1, 3, 77]).outcomes.tolist() == [_OK] * 3
        assert tier.sync().outcome is _OK
        for _ in range(2):
            tier = world.start()
            batches = list(tier.recover())
            assert user.recover(batches) == [0, 2, 4]
            assert other.recover(batches) == [0, 1, 2, 3, 4]

    def test_a_block_that_is_written_again_after_its_delete_lives(self, world: TierWorld) -> None:
        tier = fresh(world)
        user = BlockUser(world.pool, world.generation())
        user.write(tier, [1, 2])
        user.delete(tier, [1, 2])
        user.write(tier, [2])
        assert tier.sync().outcome is _OK
        tier = world.start()
        assert user.recover(tier.recover()) == [2]
        assert user.read(tier, [2]) == [_OK]

    @pytest.mark.parametrize("turned", [False, True])
    @pytest.mark.parametrize("calls", [1, 2])
    def test_of_a_write_and_a_delete_the_one_planned_later_counts(
        self, world: TierWorld, turned: bool, calls: int
    ) -> None:
        tier = fresh(world)
        user = BlockUser(world.pool, world.generation())
        jobs: list[CopyJob | TombstoneJob] = [user.write_job([1]), user.delete_job([1]), user.delete_job([2])]
        jobs.append(user.write_job([2], first_page=1))
        if turned:
            jobs.reverse()
        for part in (jobs,) if calls == 1 else (jobs[:2], jobs[2:]):
            results = tier.write(part)
            assert [result.job_id for result in results] == [job.job_id for job in part]
            assert [result.outcomes.tolist() for result in results] == [[_OK]] * len(part)
        assert tier.sync().outcome is _OK
        assert user.recover(world.start().recover()) == [2]

    def test_a_delete_of_an_earlier_run_is_outlived_by_a_write_of_this_one(self, world: TierWorld) -> None:
        tier = fresh(world)
        user = BlockUser(world.pool, world.generation())
        for _ in range(5):
            user.delete(tier, [1])
        assert tier.sync().outcome is _OK
        tier, again = world.start(), BlockUser(world.pool, world.generation())
        assert list(tier.recover()) == []
        again.write(tier, [1])
        assert tier.sync().outcome is _OK
        assert again.recover(world.start().recover()) == [1]

    def test_thousands_of_blocks_are_deleted_in_one_job(self, world: TierWorld) -> None:
        tier = fresh(world)
        user = BlockUser(world.pool, world.generation())
        for start in range(0, 60, 10):
            user.write(tier, range(start, start + 10))
        assert set(user.delete(tier, [*range(5, 60), *range(1000, 2000)]).outcomes.tolist()) == {_OK}
        assert tier.sync().outcome is _OK
        assert user.recover(world.start().recover()) == [0, 1, 2, 3, 4]

    def test_a_full_tier_still_takes_deletes(self, world: TierWorld) -> None:
        tier = fresh(world)
        user = BlockUser(world.pool, world.generation())
        written = 0
        while user.write(tier, [written]).outcomes[0] == _OK:
            written += 1
        assert set(user.delete(tier, range(10, written)).outcomes.tolist()) == {_OK}
        assert tier.sync().outcome is _OK
        assert user.recover(world.start().recover()) == list(range(10))

    def test_a_start_tells_how_far_it_is(self, world: TierWorld) -> None:
        tier = fresh(world)
        user = BlockUser(world.pool, world.generation())
        for start in range(0, 60, 10):
            user.write(tier, range(start, start + 10))
        tier.close()
        told: list[tuple[int, int]] = []
        list(world.start().recover(lambda done, total: told.append((done, total))))
        assert told == sorted(told)
        (total,) = {total for _, total in told}
        assert told[-1] == (total, total)

    def test_a_full_tier_rejects_and_takes_more_after_a_discard(self, world: TierWorld) -> None:
        tier = fresh(world)
        user = BlockUser(world.pool, world.generation())
        written: list[int] = []
        for name in range(_WRITES_MAX):
            result = user.write(tier, [name])
            if result.outcomes[0] != _OK:
                break
            written.append(name)
        assert result.outcomes.tolist() == [Outcome.REJECTED]
        assert result.dst_free_nbytes == 0
        oldest = user.where[written[0]][0]
        gone = [name for name in written if user.where[name][0] == oldest]
        assert 0 < len(gone) < len(written)
        assert tier.discard(oldest) > 0
        assert set(user.read(tier, gone[:8])) == {Outcome.IO_ERROR}
        assert set(user.read(tier, written[-8:])) == {_OK}
        assert user.write(tier, [_WRITES_MAX]).outcomes.tolist() == [_OK]
        assert user.where[_WRITES_MAX][0] != oldest
        assert tier.sync().outcome is _OK
        tier = world.start()
        assert user.recover(tier.recover()) == [*written[len(gone) :], _WRITES_MAX]

    def test_a_job_that_does_not_fit_whole_is_written_as_far_as_it_fits(self, world: TierWorld) -> None:
        tier = fresh(world)
        user = BlockUser(world.pool, world.generation())
        for start in range(0, _WRITES_MAX, 100):
            result = user.write(tier, range(start, start + 100))
            outcomes = result.outcomes.tolist()
            if Outcome.REJECTED in outcomes:
                break
        fitting = outcomes.index(Outcome.REJECTED)
        assert outcomes == [_OK] * fitting + [Outcome.REJECTED] * (100 - fitting)
        assert set(user.read(tier, range(start, start + fitting) or [0])) == {_OK}

    def test_closing_keeps_what_was_written(self, world: TierWorld) -> None:
        tier = fresh(world)
        user = BlockUser(world.pool, world.generation())
        user.write(tier, [1, 2])
        tier.close()
        tier = world.start()
        assert user.recover(tier.recover()) == [1, 2]

    def test_extents_are_four_columns_of_one_length(self, world: TierWorld) -> None:
        tier = fresh(world)
        user = BlockUser(world.pool, world.generation())
        extents = user.write(tier, [1, 2, 3]).dst_locations
        assert isinstance(extents, Extents)
        assert len(extents) == len(extents.page) == len(extents.nbytes) == len(extents.checksum) == 3
        assert [c.dtype for c in (extents.file, extents.page, extents.nbytes, extents.checksum)] == [
            np.int32, np.uint32, np.uint32, np.uint32,
        ]  # fmt: skip
