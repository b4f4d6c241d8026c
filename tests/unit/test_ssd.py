"""The SSD tier's own rules: limits, files, syncs, and what a start makes of what it finds."""

from __future__ import annotations

import errno
from collections.abc import Iterator

import pytest
from crc32c import crc32c

from tierstore.errors import ConfigError
from tierstore.testing.block_user import BlockUser
from tierstore.testing.ssd_world import SsdWorld
from tierstore.tiers.base import Synced
from tierstore.tiers.chunkfile import ChunkName, slots_per_file
from tierstore.tiers.frame import aligned_buffer
from tierstore.tiers.record import RecordShape
from tierstore.tiers.ssd import default_file_nbytes
from tierstore.types import PAGE_NBYTES, Outcome

OK, REJECTED, IO_ERROR = Outcome.OK, Outcome.REJECTED, Outcome.IO_ERROR
PER_FILE = slots_per_file(64 << 10, RecordShape(100))
"""Blocks of 100 bytes in one of the world's files."""


@pytest.fixture
def world() -> Iterator[SsdWorld]:
    world = SsdWorld()
    yield world
    world.kill()


def numbers(world: SsdWorld) -> list[int]:
    parsed = [ChunkName.parse("array", path.rpartition("/")[2]) for path in world.files()]
    return sorted(name.number for name in parsed if name is not None)


class TestSettings:
    def test_a_capacity_of_less_than_four_files_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"size is 262143 B, less than 4 .* 64 KiB; set it to at least 256 KiB"):
            SsdWorld(capacity_nbytes=(256 << 10) - 1).start()

    @pytest.mark.parametrize("file_nbytes", [0, 4095, 65_537])
    def test_a_file_that_is_not_whole_pages_is_refused(self, file_nbytes: int) -> None:
        with pytest.raises(ConfigError, match=f"chunk file of {file_nbytes} bytes"):
            SsdWorld(file_nbytes=file_nbytes).start()

    @pytest.mark.parametrize(
        ("capacity_nbytes", "file_nbytes"),
        [
            *((1 << 30, 64 << 20), (3 << 30, 96 << 20), (1 << 32, 1 << 27), (1 << 34, 1 << 27)),
            *((1 << 35, 1 << 28), ((1 << 35) + 600_000, (1 << 28) + 4096), (1 << 39, 4 << 30), (1 << 40, 4 << 30)),
        ],
    )
    def test_files_are_a_128th_of_the_capacity_but_not_short(self, capacity_nbytes: int, file_nbytes: int) -> None:
        assert default_file_nbytes(capacity_nbytes) == file_nbytes


class TestLimits:
    def test_the_files_never_exceed_the_capacity_but_for_one_in_reserve(self, world: SsdWorld) -> None:
        tier, user = world.begin()
        for name in range(40 * PER_FILE):
            user.write(tier, [name])
            assert sum(world.files().values()) <= world.capacity_nbytes - world.file_nbytes
        assert sum(world.files().values()) == world.capacity_nbytes - world.file_nbytes

    def test_what_is_free_counts_down_to_nothing(self, world: SsdWorld) -> None:
        tier, user = world.begin()
        record_nbytes = RecordShape(100).pitch_nbytes
        for name in range(15 * PER_FILE):
            result = user.write(tier, [name])
            files, records = divmod(15 * PER_FILE - name - 1, PER_FILE)
            assert result.dst_free_nbytes == files * world.file_nbytes + records * record_nbytes
        assert user.write(tier, [-1 % 2**63]).outcomes.tolist() == [REJECTED]
        assert tier.discard(user.where[0][0]) == world.file_nbytes

    def test_no_file_is_begun_below_the_free_space_floor(self, world: SsdWorld) -> None:
        world.free_floor_nbytes = 1 << 20
        tier, user = world.begin()
        world.sim.capacity_nbytes = world.free_floor_nbytes + (240 << 10)
        outcomes = [user.write(tier, [name]).outcomes[0] for name in range(4 * PER_FILE)]
        assert outcomes == [OK] * 2 * PER_FILE + [REJECTED] * 2 * PER_FILE
        world.sim.capacity_nbytes += 64 << 10
        assert user.write(tier, [0]).outcomes.tolist() == [OK]

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
    def test_a_file_that_finds_no_space_is_a_rejection(self, world: SsdWorld, code: int) -> None:
        tier, user = world.begin()
        world.sim.fail_call(1, errno=code, only="create")
        assert user.write(tier, [1, 2]).outcomes.tolist() == [REJECTED, REJECTED]
        assert user.write(tier, [1, 2]).outcomes.tolist() == [OK, OK]

    def test_a_block_larger_than_a_file_is_rejected_and_nothing_is_said_to_be_free(self, world: SsdWorld) -> None:
        tier, user = world.begin(block_nbytes=64 << 10)
        result = user.write(tier, [1])
        assert (result.outcomes.tolist(), result.dst_free_nbytes) == ([REJECTED], None)

    def test_that_a_block_is_larger_than_a_file_is_said_once(
        self, world: SsdWorld, caplog: pytest.LogCaptureFixture
    ) -> None:
        tier, user = world.begin(block_nbytes=64 << 10)
        for name in range(5):
            user.write(tier, [name])
        assert [record.message for record in caplog.records] == [
            "a block of 65536 bytes fits no chunk file; raise ssd.file_size"
        ]

    def test_a_smaller_capacity_drops_the_oldest_files(self, world: SsdWorld) -> None:
        tier, user = world.begin()
        for name in range(15 * PER_FILE):
            user.write(tier, [name])
        world.close()
        world.capacity_nbytes = 256 << 10
        tier = world.start()
        assert user.recover(tier.recover()) == list(range(12 * PER_FILE, 15 * PER_FILE))
        assert sum(world.files().values()) + world.file_nbytes == world.capacity_nbytes

    def test_a_changed_file_length_counts_for_arrays_to_come(self, world: SsdWorld) -> None:
        tier, user = world.begin()
        user.write(tier, range(2))
        world.close()
        world.file_nbytes = 128 << 10
        tier = world.start()
        list(tier.recover())
        user.write(tier, range(2, PER_FILE + 1))
        BlockUser(world.pool, world.generation(block_nbytes=200)).write(tier, [1])
        assert sorted(world.files().values()) == [64 << 10, 64 << 10, 128 << 10]


class TestFiles:
    def test_the_lowest_free_number_goes_to_the_next_file(self, world: SsdWorld) -> None:
        tier, user = world.begin()
        for name in range(3 * PER_FILE):
            user.write(tier, [name])
        assert numbers(world) == [0, 1, 2]
        tier.discard(user.where[PER_FILE][0])
        assert numbers(world) == [0, 2]
        user.write(tier, [0])
        assert numbers(world) == [0, 1, 2]
        assert user.where[0][0] == 3

    def test_a_file_that_is_full_is_synced_before_the_next_is_begun(self, world: SsdWorld) -> None:
        tier, user = world.begin()
        user.write(tier, range(PER_FILE))
        assert world.sim.calls_of("sync") == world.sim.calls_of("rename")
        user.write(tier, [PER_FILE])
        world.crash()
        tier = world.start()
        assert user.recover(tier.recover()) == list(range(PER_FILE))

    def test_one_job_may_end_one_file_and_begin_another(self, world: SsdWorld) -> None:
        tier, user = world.begin()
        names = range(3 * PER_FILE + 1)
        user.write(tier, names)
        assert len(world.files()) == 4
        assert [user.where[name][1] for name in names[-2:]] == [2 * (PER_FILE - 1), 0]
        assert set(user.read(tier, names)) == {OK}

    def test_a_payload_is_followed_by_its_checksum_and_zeros_on_disk(self, world: SsdWorld) -> None:
        tier, user = world.begin(block_nbytes=4094)
        user.write(tier, [1, 2])
        (path,) = world.files()
        for name, record in ((1, 0), (2, 3 * PAGE_NBYTES)):
            start = record + PAGE_NBYTES
            payload = world.sim.contents(path)[start : start + 4094]
            assert payload == user.payload(name)
            after = world.sim.contents(path)[start + 4094 : start + 2 * PAGE_NBYTES]
            assert after == crc32c(payload).to_bytes(4, "little") + bytes(4094)

    def test_neighbours_move_in_one_call(self, world: SsdWorld) -> None:
        tier, user = world.begin()
        user.write(tier, [9])
        jobs = [user.write_job([name], first_page=name) for name in range(4)]
        writes = world.sim.calls_of("write")
        for name, result in enumerate(tier.write(jobs)):
            user.remember([name], result)
        assert world.sim.calls_of("write") - writes == 1
        reads = world.sim.calls_of("read")
        assert user.read(tier, [2, 0, 3, 1]) == [OK] * 4
        assert world.sim.calls_of("read") - reads == 1

    def test_runs_longer_than_one_call_come_back(self) -> None:
        world = SsdWorld(capacity_nbytes=64 << 20, file_nbytes=16 << 20)
        world.pool = aligned_buffer(8 << 20)
        tier, user = world.begin()
        names = range(1000)
        assert set(user.write(tier, names).outcomes) == {OK}
        assert set(user.read(tier, names)) == {OK}
        tier = world.start()
        assert user.recover(tier.recover()) == list(names)
        world.kill()


class TestFailures:
    def test_a_failed_write_closes_its_file_and_the_next_write_takes_another(self, world: SsdWorld) -> None:
        tier, user = world.begin()
        user.write(tier, [1])
        world.sim.fail_call(1, errno=errno.EIO, only="write")
        assert user.write(tier, [2, 3]).outcomes.tolist() == [IO_ERROR, IO_ERROR]
        assert user.write(tier, [2, 3]).outcomes.tolist() == [OK, OK]
        assert user.where[2][0] != user.where[1][0]
        assert user.read(tier, [1, 2, 3]) == [OK] * 3
        assert tier.sync().outcome is OK
        world.crash()
        assert user.recover(world.start().recover()) == [1, 2, 3]

    def test_a_file_without_a_record_is_given_back_when_its_first_write_fails(self, world: SsdWorld) -> None:
        tier, user = world.begin()
        world.sim.fail_from(1, errno=errno.EROFS, only="write")
        for _ in range(100):
            assert user.write(tier, [1]).outcomes.tolist() == [IO_ERROR]
        assert world.files() == {}
        world.sim.heal()
        assert user.write(tier, [1]).outcomes.tolist() == [OK]

    def test_a_failed_sync_is_said_once_and_never_retried(self, world: SsdWorld) -> None:
        tier, user = world.begin()
        user.write(tier, [1])
        assert tier.sync().outcome is OK
        user.write(tier, [2])
        world.sim.fail_call(1, errno=errno.EIO, only="sync")
        assert tier.sync().outcome is IO_ERROR
        calls = world.sim.calls_of("sync")
        assert tier.sync().outcome is OK
        assert world.sim.calls_of("sync") == calls
        user.write(tier, [3])
        assert user.where[3][0] != user.where[1][0]
        assert tier.sync().outcome is OK
        assert user.read(tier, [1, 2, 3]) == [OK] * 3
        world.crash()
        assert user.recover(world.start().recover()) == [1, 3]

    def test_a_failed_sync_of_a_full_file_is_said_by_the_next_sync(self, world: SsdWorld) -> None:
        tier, user = world.begin()
        user.write(tier, range(PER_FILE))
        world.sim.fail_call(1, errno=errno.EIO, only="sync")
        assert user.write(tier, [PER_FILE]).outcomes.tolist() == [OK]
        assert tier.sync().outcome is IO_ERROR
        assert tier.sync().outcome is OK

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_block_written_again_is_durable_before_its_old_file_goes(self, world: SsdWorld, fails: bool) -> None:
        tier, user = world.begin()
        user.write(tier, range(2 * PER_FILE + 1))
        assert tier.sync().outcome is OK
        old = [user.where[0][0], user.where[PER_FILE][0]]
        user.rewrite(tier, [0])
        if fails:
            world.sim.fail_call(1, errno=errno.EIO, only="sync")
        for file in old:
            tier.discard(file)
        world.crash()
        left = [*range(PER_FILE if fails else 1), 2 * PER_FILE]
        assert sorted(user.recover(world.start().recover())) == left

    def test_a_block_written_again_into_a_file_in_doubt_keeps_its_old_file(self, world: SsdWorld) -> None:
        tier, user = world.begin()
        user.write(tier, range(2 * PER_FILE + 1))
        assert tier.sync().outcome is OK
        old = [user.where[0][0], user.where[PER_FILE][0]]
        user.rewrite(tier, [0])
        doubtful = user.where[0][0]
        world.sim.fail_call(1, errno=errno.EIO, only="sync")
        assert tier.sync() == Synced(IO_ERROR, (doubtful,))
        for file in old:
            tier.discard(file)
        assert tier.sync() == Synced(OK, (doubtful,))
        world.crash()
        assert sorted(user.recover(world.start().recover())) == [*range(PER_FILE), 2 * PER_FILE]

    def test_a_file_is_in_doubt_until_it_goes(self, world: SsdWorld) -> None:
        tier, user = world.begin()
        user.write(tier, [1])
        world.sim.fail_call(1, errno=errno.EIO, only="sync")
        assert tier.sync().in_doubt == (user.where[1][0],)
        user.write(tier, [2])
        tier.discard(user.where[1][0])
        assert tier.sync() == Synced(OK)

    def test_one_bad_sector_fails_one_block(self, world: SsdWorld) -> None:
        tier, user = world.begin()
        user.write(tier, range(6))
        world.sim.fail_call(1, errno=errno.EIO, only="read")
        world.sim.fail_call(4, errno=errno.EIO, only="read")
        assert user.read(tier, range(6)) == [OK, OK, IO_ERROR, OK, OK, OK]

    @pytest.mark.parametrize("code", [errno.EIO, 0])
    def test_a_file_that_cannot_be_removed_counts_until_it_can(self, world: SsdWorld, code: int) -> None:
        tier, user = world.begin()
        user.write(tier, range(15 * PER_FILE))
        world.sim.fail_from(1, errno=code, only="remove")
        assert tier.discard(user.where[0][0]) == 0
        assert user.read(tier, [0, PER_FILE]) == [IO_ERROR, OK]
        if code:
            assert user.write(tier, [0]).outcomes.tolist() == [REJECTED]
        world.sim.heal()
        assert user.write(tier, [0]).outcomes.tolist() == [OK]
        assert numbers(world) == list(range(15))
