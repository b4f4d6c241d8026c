"""A lock is its process's: it goes with it and not before."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tierstore.disk import posix_lock
from tierstore.disk.posix import PosixDisk
from tierstore.errors import DiskError, FolderBusyError, FolderError

PATIENCE_SECONDS = 10


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


@pytest.fixture
def disk(root: Path) -> PosixDisk:
    return PosixDisk(str(root))


def python(script: str, root: Path) -> subprocess.Popen[str]:
    head = f"import os\nfrom tierstore.disk.posix import PosixDisk\ndisk = PosixDisk({str(root)!r})\n"
    command = [sys.executable, "-c", head + textwrap.dedent(script)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_killed_process_loses_its_lock(disk: PosixDisk, root: Path) -> None:
    with python('lock = disk.lock("LOCK", b"pid 17 of boot 3"); print("locked", flush=True); input()', root) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(FolderBusyError, match=rf"{root}/LOCK is held .*\(pid 17 of boot 3\).*use another folder"):
            disk.lock("LOCK", b"")
        os.kill(other.pid, signal.SIGKILL)
        other.wait(PATIENCE_SECONDS)
    disk.lock("LOCK", b"").close()


def test_a_forked_child_cannot_give_its_parents_lock_away(root: Path) -> None:
    script = """
        from tierstore.errors import FolderBusyError
        lock = disk.lock("LOCK", b"parent")
        child = os.fork()
        if child == 0:
            lock.close()
            os._exit(0)
        os.waitpid(child, 0)
        try:
            disk.lock("LOCK", b"")
        except FolderBusyError:
            print("still held")
    """
    assert python(script, root).communicate(timeout=PATIENCE_SECONDS)[0] == "still held\n"


def test_a_forked_child_cannot_keep_its_parents_lock(root: Path) -> None:
    script = """
        lock = disk.lock("LOCK", b"parent")
        end, other_end = os.pipe()
        if os.fork() == 0:
            os.close(other_end)
            os.read(end, 1)
            os._exit(0)
        lock.close()
        disk.lock("LOCK", b"").close()
        print("taken again")
    """
    assert python(script, root).communicate(timeout=PATIENCE_SECONDS)[0] == "taken again\n"


def test_a_lock_file_replaced_before_it_was_claimed_is_not_the_one_claimed(
    disk: PosixDisk, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replaced: list[int] = []

    class Meddling:
        LOCK_EX, LOCK_NB, LOCK_UN = fcntl.LOCK_EX, fcntl.LOCK_NB, fcntl.LOCK_UN

        @staticmethod
        def flock(number: int, operation: int) -> None:
            status = os.fstat(number)
            if (root / "LOCK").exists() and os.path.samestat(status, os.stat(root / "LOCK")) and len(replaced) < 3:
                replaced.append(status.st_ino)
                (root / "LOCK").unlink()
                (root / "LOCK").touch()
            fcntl.flock(number, operation)

    monkeypatch.setattr(posix_lock, "fcntl", Meddling)
    lock = disk.lock("LOCK", b"pid 17")
    assert len(replaced) == 3
    assert lock.stands()
    assert (root / "LOCK").read_bytes() == b"pid 17"
    lock.close()


@pytest.mark.parametrize("meddle", ["remove", "replace"])
def test_a_lock_file_removed_or_replaced_under_its_holder_lets_no_second_one_in(
    disk: PosixDisk, root: Path, meddle: str
) -> None:
    with python(
        'lock = disk.lock("LOCK", b"pid 17"); print("locked", flush=True); input(); lock.close()', root
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        (root / "LOCK").unlink()
        if meddle == "replace":
            (root / "LOCK").write_text("pid 18")
        with pytest.raises(FolderBusyError, match=r"pid 18" if meddle == "replace" else "did not say who it is"):
            disk.lock("LOCK", b"")
        other.communicate("end\n", timeout=PATIENCE_SECONDS)
    disk.lock("LOCK", b"").close()


def test_a_holder_whose_folder_was_moved_away_changes_nothing_in_the_one_in_its_place(
    disk: PosixDisk, root: Path
) -> None:
    lock = disk.lock("LOCK", b"pid 17")
    file = disk.create("file", 4096)
    shutil.move(root, root.with_name("moved"))
    other = PosixDisk(str(root))
    other.lock("LOCK", b"pid 18")
    other.create("file", 0).close()
    assert not lock.stands()
    for attempt in (
        lambda: disk.create("new", 0),
        lambda: disk.rename("file", "new"),
        lambda: disk.remove("file"),
    ):
        with pytest.raises(DiskError, match="another one may own the folder") as caught:
            attempt()
        assert caught.value.errno == errno.ESTALE
    assert sorted(path.name for path in root.iterdir()) == ["LOCK", "file"]
    file.close()
    lock.close()
    disk.remove("file")


def refuse(code: int, *, folders_alone: bool) -> type:
    """The calls of a file system that cannot lock files, or folders."""

    class Refusing:
        LOCK_EX, LOCK_NB, LOCK_UN = fcntl.LOCK_EX, fcntl.LOCK_NB, fcntl.LOCK_UN

        @staticmethod
        def flock(number: int, operation: int) -> None:
            if os.path.isdir(f"/proc/self/fd/{number}") or not folders_alone:
                raise OSError(code, os.strerror(code))
            fcntl.flock(number, operation)

    return Refusing


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused_by_name(
    disk: PosixDisk, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posix_lock, "fcntl", refuse(code, folders_alone=False))
    open_before = os.listdir("/proc/self/fd")
    with pytest.raises(FolderError, match=rf"does not lock LOCK \({os.strerror(code)}\).*use a folder on a local file"):
        disk.lock("LOCK", b"")
    assert len(os.listdir("/proc/self/fd")) == len(open_before)


def test_a_file_system_that_locks_files_alone_will_do(disk: PosixDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posix_lock, "fcntl", refuse(errno.EBADF, folders_alone=True))
    lock = disk.lock("LOCK", b"pid 17")
    with pytest.raises(FolderBusyError, match="pid 17"):
        disk.lock("LOCK", b"")
    lock.close()
    disk.lock("LOCK", b"").close()
