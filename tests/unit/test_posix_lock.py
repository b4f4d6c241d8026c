"""A lock is its process's: it goes with it and not before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tierstore.disk.posix import PosixDisk
from tierstore.errors import FolderBusyError

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
