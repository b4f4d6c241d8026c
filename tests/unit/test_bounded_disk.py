"""Few files of a disk are open at a time: who is closed, who stays open, and what the calls that meet say."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from tests.payload import num_descriptors
from tierstore.disk.base import Buffer, Disk, File
from tierstore.disk.bounded import BoundedDisk, default_files_max
from tierstore.disk.posix import PosixDisk
from tierstore.errors import DiskError
from tierstore.testing.sim_disk import SimDisk
from tierstore.types import PAGE_NBYTES
from tierstore.worker import Worker

D = TypeVar("D", bound=Disk)

FILES_MAX = 3


def page(text: bytes = b"") -> Buffer:
    buffer = memoryview(mmap.mmap(-1, PAGE_NBYTES))
    buffer[: len(text)] = text
    return buffer


def read(file: File) -> bytes:
    buffer = page()
    file.read_into([buffer], 0)
    return bytes(buffer).rstrip(b"\0")


def numbered(disk: D, folder: str, count: int) -> D:
    """A disk with so many files, each of which holds its name."""
    for name in range(count):
        file = disk.create(f"{folder}{name}", PAGE_NBYTES)
        file.write_from([page(b"%d" % name)], 0)
        file.close()
    return disk


@pytest.fixture
def sim() -> SimDisk:
    return numbered(SimDisk(), "", 10)


def test_those_used_longest_ago_are_closed_and_opened_again_on_demand(sim: SimDisk) -> None:
    disk = BoundedDisk(sim, FILES_MAX)
    files = [disk.open(f"{name}") for name in range(10)]
    assert sim.num_open == FILES_MAX
    opened = sim.calls_of("open")
    assert [read(files[name]) for name in (7, 8, 9)] == [b"7", b"8", b"9"]
    assert sim.calls_of("open") == opened, "those used last are still open"
    assert read(files[0]) == b"0"
    assert [read(files[name]) for name in (8, 9, 0)] == [b"8", b"9", b"0"]
    assert sim.calls_of("open") == opened + 1
    assert [files[name].nbytes for name in range(10)] == [PAGE_NBYTES] * 10
    assert sim.num_open == FILES_MAX
    for file in files:
        file.close()
    assert sim.num_open == 0


def test_a_file_stays_open_from_its_creation_until_it_has_another_name(sim: SimDisk) -> None:
    disk = BoundedDisk(sim, 1)
    written = disk.create("written", PAGE_NBYTES)
    files = [disk.open(f"{name}") for name in range(3)]
    opened = sim.calls_of("open")
    written.write_from([page(b"w")], 0)
    written.sync()
    assert sim.calls_of("open") == opened
    disk.rename("written", "sealed")
    assert read(files[0]) == b"0"
    assert sim.num_open == 1
    assert read(written) == b"w", "it is found under its new name"


def test_a_file_that_is_continued_stays_open(sim: SimDisk) -> None:
    disk = BoundedDisk(sim, 1)
    continued, other = disk.open("0"), disk.open("1")
    continued.write_from([page(b"more")], 0)
    assert read(other) == b"1"
    opened = sim.calls_of("open")
    continued.sync()
    assert read(continued) == b"more"
    assert sim.calls_of("open") == opened


def test_a_failed_sync_fails_for_good_for_its_file_is_never_opened_again(sim: SimDisk) -> None:
    disk = BoundedDisk(sim, 1)
    file = disk.open("0")
    file.write_from([page(b"lost")], 0)
    sim.fail_call(1, errno=errno.EIO, only="sync")
    for _ in range(2):
        with pytest.raises(DiskError):
            file.sync()
        assert read(disk.open("1")) == b"1"


def test_a_name_whose_change_failed_leads_nowhere_else(sim: SimDisk) -> None:
    disk = BoundedDisk(sim, 1)
    file = disk.open("0")
    sim.fail_call(1, errno=0, only="rename")  # it is done, and reported as failed
    with pytest.raises(DiskError):
        disk.rename("0", "elsewhere")
    sim.create("0", PAGE_NBYTES).close()
    assert read(disk.open("1")) == b"1"
    assert read(file) == b"0"


def test_a_file_without_a_name_stays_readable_and_its_name_is_free(sim: SimDisk) -> None:
    disk = BoundedDisk(sim, 1)
    removed, replaced = disk.open("0"), disk.open("1")
    disk.remove("0")
    disk.rename("2", "1")
    disk.create("0", PAGE_NBYTES).close()
    disk.rename("0", "zero")
    disk.rename("1", "one")
    assert [read(disk.open("one")), read(removed), read(replaced)] == [b"2", b"0", b"1"]


def test_a_file_that_is_gone_when_it_is_wanted_is_an_error_each_time(sim: SimDisk) -> None:
    disk = BoundedDisk(sim, 1)
    gone, other = disk.open("0"), disk.open("1")
    sim.remove("0")
    for _ in range(2):
        with pytest.raises(DiskError) as caught:
            read(gone)
        assert caught.value.errno == errno.ENOENT
    assert read(other) == b"1"
    gone.close()
    other.close()
    assert sim.num_open == 0


def test_reads_on_many_threads_open_and_close_under_one_another(tmp_path: Path) -> None:
    count, threads = 24, 4
    posix = numbered(PosixDisk(str(tmp_path / "root")), "arrays/", count)
    disk = BoundedDisk(posix, 2)
    files = [disk.open(f"arrays/{name}") for name in range(count)]
    together = threading.Barrier(threads)
    most = [0] * threads

    def use(own: int) -> None:
        together.wait()
        for turn in range(200):
            name = (own * 7 + turn * (own + 1)) % count
            assert read(files[name]) == b"%d" % name
            most[own] = max(most[own], num_descriptors(tmp_path / "root"))

    worker = Worker("bounded", capacity=threads, threads=threads)
    for own in range(threads):
        assert worker.submit(partial(use, own))
    worker.close()
    assert worker.failure is None
    assert max(most) <= 2 + 3 * threads  # each call may use one, and two folders while it opens it
    assert num_descriptors(tmp_path / "root") == 2
    for file in files:
        file.close()
    assert num_descriptors(tmp_path / "root") == 0


def test_a_file_that_is_closed_under_a_read_ends_with_it(sim: SimDisk) -> None:
    disk = BoundedDisk(sim, 1)
    file = disk.open("0")
    with disk.claimed(file, "read") as handle:
        file.close()
        assert read(handle) == b"0"
        assert sim.num_open == 1
    assert sim.num_open == 0


def test_where_the_process_has_no_descriptor_left_idle_files_give_theirs(tmp_path: Path) -> None:
    disk = BoundedDisk(numbered(PosixDisk(str(tmp_path)), "", 7), 100)
    files = [disk.open(f"{name}") for name in range(6)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        with pytest.raises(OSError, match="Too many open files"):
            os.dup(0)
        found = [read(disk.open("6")), disk.create("new", 0).nbytes, *map(read, files)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for number in taken:
            os.close(number)
    assert found == [b"6", 0, *(b"%d" % name for name in range(6))]


@pytest.mark.parametrize(("soft", "files_max"), [(1024, 256), (1000, 250), (64, 16)])
def test_the_bound_is_a_quarter_of_what_the_process_may_open(soft: int, files_max: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
        assert default_files_max() == files_max
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
