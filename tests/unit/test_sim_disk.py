"""The simulated disk fails as real ones do, and the same way for the same seed."""

from __future__ import annotations

import errno
from random import Random

import pytest

from tierstore.disk.base import Entry
from tierstore.errors import DiskError
from tierstore.testing.contracts.disk import aligned_buffer
from tierstore.testing.sim_disk import SimDisk, SimFile
from tierstore.testing.sim_medium import SECTOR_NBYTES
from tierstore.types import PAGE_NBYTES

OLD, NEW = aligned_buffer(PAGE_NBYTES, b"old "), aligned_buffer(PAGE_NBYTES, b"new ")


@pytest.fixture
def disk() -> SimDisk:
    return SimDisk(capacity_nbytes=16 * PAGE_NBYTES)


@pytest.fixture
def file(disk: SimDisk) -> SimFile:
    """A file of one durable page OLD."""
    file = disk.create("file", PAGE_NBYTES)
    file.write_from([OLD], 0)
    file.sync()
    return file


def sectors(contents: bytes) -> list[bytes]:
    return [contents[start : start + SECTOR_NBYTES] for start in range(0, len(contents), SECTOR_NBYTES)]


# Losing power.


def test_what_is_synced_survives_every_crash(disk: SimDisk, file: SimFile) -> None:
    file.write_from([NEW], 0)
    file.sync()
    for seed in range(20):
        disk.crash(Random(seed))
    assert disk.contents("file") == NEW


def test_a_crash_keeps_any_sectors_of_what_is_not_synced(disk: SimDisk, file: SimFile) -> None:
    seen = set()
    for seed in range(200):
        disk.replace("file", bytes(OLD))
        disk.open("file").write_from([NEW], 0)
        disk.crash(Random(seed))
        contents = disk.contents("file")
        assert set(sectors(contents)) <= {*sectors(bytes(OLD)), *sectors(bytes(NEW))}
        seen.add(contents)
    assert {bytes(OLD), bytes(NEW)} < seen
    assert len(seen) > 50


def test_a_crash_may_bring_back_any_version_since_the_last_sync(disk: SimDisk, file: SimFile) -> None:
    newest = aligned_buffer(PAGE_NBYTES, b"newest ")
    seen = set()
    for seed in range(100):
        disk.replace("file", bytes(OLD))
        again = disk.open("file")
        again.write_from([NEW], 0)
        again.write_from([newest], 0)
        disk.crash(Random(seed))
        seen.add(sectors(disk.contents("file"))[0])
    assert seen == {bytes(page[:SECTOR_NBYTES]) for page in (OLD, NEW, newest)}


def test_a_clean_crash_keeps_nothing_that_is_not_synced(disk: SimDisk, file: SimFile) -> None:
    file.write_from([NEW], 0)
    disk.crash(Random(0), torn=False)
    assert disk.contents("file") == OLD


def test_equal_seeds_crash_equally() -> None:
    def contents() -> bytes:
        disk = SimDisk()
        for name in ("b", "a"):
            disk.create(name, PAGE_NBYTES).write_from([NEW], 0)
        disk.crash(Random(7))
        return disk.contents("a") + disk.contents("b")

    assert contents() == contents()


def test_names_survive_a_crash(disk: SimDisk) -> None:
    disk.create("folder/kept", 0)
    disk.create("moved", 0)
    disk.create("removed", 0)
    disk.rename("moved", "folder/there")
    disk.remove("removed")
    disk.crash(Random(0))
    assert disk.look("").entries == (Entry("folder", 0, True),)
    assert disk.look("folder").entries == (Entry("kept", 0, False), Entry("there", 0, False))


def test_a_crash_ends_open_files_and_locks(disk: SimDisk, file: SimFile) -> None:
    lock = disk.lock("LOCK", b"first life")
    disk.crash(Random(0))
    with pytest.raises(DiskError, match="EBADF"):
        file.write_from([NEW], 0)
    assert disk.num_open == 0
    again = disk.lock("LOCK", b"second life")
    lock.close()
    assert disk.contents("LOCK") == b"second life"
    again.close()


def test_a_killed_life_leaves_what_it_wrote(disk: SimDisk, file: SimFile) -> None:
    file.write_from([NEW], 0)
    disk.kill()
    assert disk.contents("file") == NEW
    disk.crash(Random(0), torn=False)
    assert disk.contents("file") == OLD


# Failing calls.


def test_the_named_call_fails_and_only_it(disk: SimDisk, file: SimFile) -> None:
    disk.fail_call(2, errno=errno.EIO)
    file.write_from([NEW], 0)
    with pytest.raises(DiskError) as caught:
        file.write_from([OLD], 0)
    assert (caught.value.operation, caught.value.path, caught.value.errno) == ("write", "file", errno.EIO)
    assert disk.contents("file") == NEW
    file.write_from([OLD], 0)
    assert disk.contents("file") == OLD


def test_calls_are_counted_together_and_by_operation(disk: SimDisk, file: SimFile) -> None:
    calls = disk.calls
    disk.look("")
    disk.look("")
    file.read_into([aligned_buffer(PAGE_NBYTES)], 0)
    assert disk.calls == calls + 3
    assert disk.calls_of("look") == 2


def test_a_failure_may_wait_for_one_operation(disk: SimDisk, file: SimFile) -> None:
    disk.fail_call(1, errno=errno.ENOSPC, only="create")
    file.write_from([NEW], 0)
    disk.look("")
    with pytest.raises(DiskError, match="ENOSPC"):
        disk.create("other", 0)
    disk.create("other", 0)


def test_failures_go_on_until_healed(disk: SimDisk, file: SimFile) -> None:
    disk.fail_from(2, errno=errno.EIO)
    disk.look("")
    for _ in range(3):
        with pytest.raises(DiskError):
            disk.look("")
    disk.heal()
    disk.look("")


def test_a_call_that_ends_halfway_has_moved_half_of_its_bytes(disk: SimDisk, file: SimFile) -> None:
    disk.fail_call(1, errno=0)
    with pytest.raises(DiskError, match="ended short"):
        file.write_from([NEW], 0)
    half = PAGE_NBYTES // 2
    assert disk.contents("file") == bytes(NEW[:half]) + bytes(OLD[half:])
    found = aligned_buffer(PAGE_NBYTES, b"sentinel")
    disk.fail_call(1, errno=0)
    with pytest.raises(DiskError, match="ended short"):
        file.read_into([found], 0)
    assert found == bytes(NEW[:half]) + b"sentinel" * (half // 8)


def test_a_rename_or_remove_that_ends_halfway_is_done(disk: SimDisk, file: SimFile) -> None:
    disk.fail_from(1, errno=0)
    with pytest.raises(DiskError):
        disk.rename("file", "moved")
    assert disk.contents("moved") == OLD
    with pytest.raises(DiskError):
        disk.remove("moved")
    disk.heal()
    assert disk.look("").entries == ()


def test_what_a_failed_sync_dropped_is_not_saved_by_a_later_one(disk: SimDisk, file: SimFile) -> None:
    file.write_from([NEW], 0)
    disk.fail_call(1, errno=errno.EIO, only="sync")
    with pytest.raises(DiskError):
        file.sync()
    with pytest.raises(DiskError, match="an earlier sync failed"):
        file.sync()
    again = disk.open("file")
    again.sync()
    assert disk.contents("file") == NEW
    disk.crash(Random(0), torn=False)
    assert disk.contents("file") == OLD


def test_bytes_written_again_after_a_failed_sync_can_be_saved(disk: SimDisk, file: SimFile) -> None:
    file.write_from([NEW], 0)
    disk.fail_call(1, errno=errno.EIO, only="sync")
    with pytest.raises(DiskError):
        file.sync()
    again = disk.open("file")
    again.write_from([NEW], 0)
    again.sync()
    disk.crash(Random(0), torn=False)
    assert disk.contents("file") == NEW


# Space, corruption, alignment.


def test_space_ends_at_the_capacity_and_returns_with_the_last_user(disk: SimDisk) -> None:
    file = disk.create("file", 12 * PAGE_NBYTES)
    assert disk.look("").free_nbytes == 4 * PAGE_NBYTES
    with pytest.raises(DiskError, match="ENOSPC"):
        disk.create("other", 5 * PAGE_NBYTES)
    with pytest.raises(DiskError, match="ENOSPC"):
        file.write_from([aligned_buffer(5 * PAGE_NBYTES)], 12 * PAGE_NBYTES)
    disk.remove("file")
    assert disk.look("").free_nbytes == 4 * PAGE_NBYTES
    file.close()
    assert disk.look("").free_nbytes == 16 * PAGE_NBYTES


def test_the_medium_can_be_corrupted_under_an_open_file(disk: SimDisk, file: SimFile) -> None:
    disk.flip("file", 8 * 5 + 2)
    found = aligned_buffer(PAGE_NBYTES)
    file.read_into([found], 0)
    assert [(index, a ^ b) for index, (a, b) in enumerate(zip(found, OLD, strict=True)) if a != b] == [(5, 4)]
    disk.truncate("file", 100)
    assert file.nbytes == 100
    disk.truncate("file", 200)
    assert disk.contents("file")[100:] == bytes(100)
    disk.replace("file", b"other")
    assert disk.contents("file") == b"other"


def test_misaligned_transfers_are_a_mistake(file: SimFile) -> None:
    page = aligned_buffer(2 * PAGE_NBYTES)
    for buffer, offset in ((page, 512), (page[:512], 0), (page[512 : 512 + PAGE_NBYTES], 0)):
        with pytest.raises(AssertionError, match="multiple of 4096"):
            file.read_into([buffer], offset)
        with pytest.raises(AssertionError, match="multiple of 4096"):
            file.write_from([buffer], offset)
