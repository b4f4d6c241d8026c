"""A watched disk is a disk like any other, and tells each thread what failed there first."""

from __future__ import annotations

import errno
import mmap
from pathlib import Path

import pytest

from tierstore.disk.base import Disk
from tierstore.disk.posix import PosixDisk
from tierstore.disk.watched import WatchedDisk
from tierstore.errors import DiskError
from tierstore.testing.contracts.disk import DiskContract
from tierstore.testing.sim_disk import SimDisk
from tierstore.types import PAGE_NBYTES
from tierstore.worker import Worker


class TestWatchedDisk(DiskContract):
    @pytest.fixture
    def disk(self, tmp_path: Path) -> Disk:
        return WatchedDisk(PosixDisk(str(tmp_path / "root")))


@pytest.fixture
def sim() -> SimDisk:
    return SimDisk()


@pytest.fixture
def disk(sim: SimDisk) -> WatchedDisk:
    return WatchedDisk(sim)


def test_the_first_failure_is_told_once_and_by_its_own_words(sim: SimDisk, disk: WatchedDisk) -> None:
    file = disk.create("file", PAGE_NBYTES)
    sim.fail_call(1, errno=errno.ENOSPC, only="write")
    sim.fail_call(1, errno=errno.EIO, only="sync")
    with pytest.raises(DiskError):
        file.write_from([memoryview(mmap.mmap(-1, PAGE_NBYTES))], 0)
    with pytest.raises(DiskError):
        file.sync()
    fault = disk.take_fault()
    assert fault is not None
    assert fault.full
    assert "ENOSPC" in fault.text
    assert disk.take_fault() is None


def test_a_file_that_was_to_be_removed_and_is_not_there_is_no_failure(disk: WatchedDisk) -> None:
    with pytest.raises(DiskError):
        disk.remove("file")
    assert disk.take_fault() is None
    with pytest.raises(DiskError):
        disk.open("file")
    assert disk.take_fault() is not None


def test_one_thread_does_not_hear_of_anothers_failures(sim: SimDisk, disk: WatchedDisk) -> None:
    file = disk.create("file", PAGE_NBYTES)
    sim.fail_call(1, errno=errno.EIO, only="sync")
    heard: list[bool] = []

    def fail() -> None:
        with pytest.raises(DiskError):
            file.sync()
        heard.append(disk.take_fault() is not None)

    worker = Worker("watched", capacity=1, threads=1)
    assert worker.submit(fail)
    worker.close()
    assert worker.failure is None
    assert heard == [True]
    assert disk.take_fault() is None
