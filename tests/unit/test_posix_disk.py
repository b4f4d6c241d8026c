"""What only a real file system can do to a disk."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from tierstore.disk.base import Entry
from tierstore.disk.posix import PosixDisk
from tierstore.errors import DiskError, FolderBusyError, FolderError
from tierstore.types import PAGE_NBYTES


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def disk(root: Path) -> PosixDisk:
    return PosixDisk(str(root))


@pytest.fixture
def open_umask() -> Iterator[None]:
    old = os.umask(0)
    yield
    os.umask(old)


def refuse(code: int) -> Callable[..., NoReturn]:
    def call(*_: object, **__: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return call


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


# Its root.


@pytest.mark.parametrize("there", [False, True], ids=["made", "found"])
def test_the_name_of_a_root_is_synced_whoever_has_made_it(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, there: bool
) -> None:
    """Its maker may have died before that, and durable blocks would go with the name."""
    if there:
        root.mkdir()
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.readlink(f"/proc/self/fd/{number}")))
    PosixDisk(str(root))
    assert str(root.parent) in synced


def test_a_root_that_is_a_file_is_named(root: Path) -> None:
    root.write_bytes(b"")
    with pytest.raises(FolderError, match=rf"{root}.*is not a folder"):
        PosixDisk(str(root))


def test_a_root_below_a_file_is_named(root: Path) -> None:
    root.write_bytes(b"")
    with pytest.raises(FolderError, match=r"root/below.*is not a folder"):
        PosixDisk(str(root / "below"))


def test_a_root_whose_parent_is_missing_is_not_made(root: Path) -> None:
    with pytest.raises(FolderError, match="parent folder does not exist; create that"):
        PosixDisk(str(root / "below"))
    assert not root.exists()


def test_a_root_with_a_nul_is_named(root: Path) -> None:
    with pytest.raises(FolderError, match="null byte"):
        PosixDisk(f"{root}\0")


@pytest.mark.parametrize("code", [errno.EACCES, errno.EPERM])
def test_a_root_that_may_not_be_written_says_whose_it_must_be(
    root: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "mkdir", refuse(code))
    with pytest.raises(FolderError, match=rf"user {os.geteuid()} may not write there.*use another folder"):
        PosixDisk(str(root))


@pytest.mark.usefixtures("open_umask")
def test_what_it_makes_is_open_to_its_user_alone(root: Path) -> None:
    disk = PosixDisk(str(root))
    disk.create("folder/file", 0).close()
    disk.lock("LOCK", b"").close()
    modes = [(root / name).stat().st_mode & 0o777 for name in (".", "folder", "folder/file", "LOCK")]
    assert modes == [0o700, 0o700, 0o600, 0o600]


def test_the_probe_for_direct_io_leaves_nothing_behind(root: Path) -> None:
    before = num_descriptors()
    PosixDisk(str(root))
    assert list(root.iterdir()) == []
    assert num_descriptors() == before


def test_a_file_system_without_direct_io_is_used_through_the_page_cache(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fcntl, "fcntl", refuse(errno.EINVAL))
    with caplog.at_level(logging.WARNING):
        file = PosixDisk(str(root)).create("file", PAGE_NBYTES)
    assert [f"no direct I/O in {root}" in record.getMessage() for record in caplog.records] == [True]
    assert not file.direct
    odd = memoryview(bytearray(b"seven.."))
    file.write_from([odd], 3)
    found = memoryview(bytearray(7))
    file.read_into([found], 3)
    assert found == odd


def test_a_full_disk_does_not_turn_direct_io_off(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    direct = PosixDisk(str(root)).direct
    monkeypatch.setattr(os, "pwrite", refuse(errno.ENOSPC))
    assert PosixDisk(str(root)).direct == direct


# Names.


def test_names_are_synced_before_a_call_returns(disk: PosixDisk, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def record(number: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{number}"), root))
        fsync(number)

    monkeypatch.setattr(os, "fsync", record)
    disk.create("a/b/file", 0)
    disk.create("c/file", 0)
    assert synced == [".", "a", "a/b", ".", "c"]
    synced.clear()
    disk.rename("a/b/file", "c/moved")
    disk.rename("c/moved", "c/again")
    disk.remove("c/again")
    assert synced == ["c", "a/b", "c", "c"]
    with pytest.raises(DiskError, match="ENOENT"):
        disk.remove("c/again")  # as after a call that had removed it and could not sync
    assert synced == ["c", "a/b", "c", "c", "c"]


def test_a_create_without_space_leaves_neither_file_nor_descriptor(
    disk: PosixDisk, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = num_descriptors()
    monkeypatch.setattr(os, "posix_fallocate", refuse(errno.ENOSPC))
    with pytest.raises(DiskError) as caught:
        disk.create("file", PAGE_NBYTES)
    assert caught.value.errno == errno.ENOSPC
    assert list(root.iterdir()) == []
    assert num_descriptors() == before


def test_created_files_take_their_space_at_once(disk: PosixDisk, root: Path) -> None:
    disk.create("file", 64 * PAGE_NBYTES)
    assert (root / "file").stat().st_blocks * 512 >= 64 * PAGE_NBYTES


def test_failures_leave_no_descriptors(disk: PosixDisk, root: Path) -> None:
    (root / "folder").mkdir()
    (root / "link").symlink_to(root)
    held = disk.lock("LOCK", b"me")
    before = num_descriptors()
    for attempt in (
        lambda: disk.open("missing"),
        lambda: disk.open("folder"),
        lambda: disk.open("link"),
        lambda: disk.create("folder", 0),
        lambda: disk.rename("missing", "folder/x"),
        lambda: disk.lock("LOCK", b"you"),
    ):
        with pytest.raises((DiskError, FolderBusyError)):
            attempt()
    assert num_descriptors() == before
    held.close()


def test_links_are_never_followed(disk: PosixDisk, root: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"private")
    (root / "folder").symlink_to(outside)
    (root / "file").symlink_to(outside / "file")
    for attempt in (
        lambda: disk.open("file"),
        lambda: disk.open("folder/file"),
        lambda: disk.create("file", 0),
        lambda: disk.create("folder/new", 0),
        lambda: disk.rename("folder/file", "stolen"),
        lambda: disk.remove("folder/file"),
        lambda: disk.look("folder"),
        lambda: disk.lock("file", b"overwritten"),
    ):
        with pytest.raises(DiskError):
            attempt()
    disk.remove("file")
    assert [path.read_bytes() for path in outside.iterdir()] == [b"private"]
    assert disk.look("").entries == (Entry("folder", len(str(outside)), False),)


def test_a_name_that_vanishes_during_a_look_is_left_out(
    disk: PosixDisk, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    @contextmanager
    def lose_one(number: int) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(number) as listing:
            entries = list(listing)
        (root / "gone").unlink()
        yield entries

    disk.create("gone", 0)
    disk.create("kept", 0)
    monkeypatch.setattr(os, "scandir", lose_one)
    assert disk.look("").entries == (Entry("kept", 0, False),)


@pytest.mark.parametrize("listed", [True, False])
def test_a_file_that_is_renamed_during_a_look_is_found(
    disk: PosixDisk, root: Path, monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    scandir = os.scandir

    @contextmanager
    def rename_once(number: int) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(number) as listing:
            entries = list(listing)
        if (root / "open").exists():
            (root / "open").rename(root / "sealed")
            entries = entries if listed else []  # a long listing is read in parts, and may pass by both names
        yield entries

    disk.create("open", 0).close()
    monkeypatch.setattr(os, "scandir", rename_once)
    assert disk.look("").entries == (Entry("sealed", 0, False),)


def test_a_fifo_in_place_of_a_file_is_an_error_and_no_wait(disk: PosixDisk, root: Path) -> None:
    os.mkfifo(root / "file")
    with pytest.raises(DiskError, match="is not a regular file"):
        disk.open("file")


def test_a_folder_replaced_by_a_file_is_an_error(disk: PosixDisk, root: Path) -> None:
    disk.create("folder/file", 0)
    shutil.rmtree(root / "folder")
    (root / "folder").write_bytes(b"")
    attempts: list[Callable[[], object]] = [
        lambda: disk.open("folder/file"),
        lambda: disk.create("folder/file", 0),
    ]
    for attempt in attempts:
        with pytest.raises(DiskError) as caught:
            attempt()
        assert caught.value.errno == errno.ENOTDIR


def test_a_root_that_has_gone_is_an_error(disk: PosixDisk, root: Path) -> None:
    root.rmdir()
    for attempt in (lambda: disk.look(""), lambda: disk.create("file", 0)):
        with pytest.raises(DiskError) as caught:
            attempt()
        assert caught.value.errno == errno.ENOENT
