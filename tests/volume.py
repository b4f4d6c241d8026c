"""Small file systems of a test's own, what fills them from outside, and what takes rights to them away.

Skips where mounting is not permitted.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

__all__ = ["bound_by_modes", "fill", "free_nbytes", "read_only", "told", "use_up_inodes", "volume"]

_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2
_CAPABILITY_VERSION_3 = 0x20080522


@contextmanager
def volume(folder: Path, options: str) -> Iterator[Path]:
    """A tmpfs, mounted with options such as ``size=16m,nr_inodes=20``."""
    folder.mkdir()
    _mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Let nothing below a folder be created, removed or renamed: EROFS. Files that are open already are written on."""
    _mount("--bind", str(folder), str(folder))
    try:
        _mount("-o", "remount,ro,bind", str(folder))
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _mount(*arguments: str) -> None:
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting a file system needs root and mount(8)")
    mounted = subprocess.run([mount, *arguments], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.strip()}")


@contextmanager
def bound_by_modes() -> Iterator[None]:
    """Let the modes of files bind this thread, and those it starts, as they bind everybody but root."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    rights = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice 32 bits each
    if libc.capget(header, rights):
        pytest.skip(f"capabilities cannot be asked for here: {os.strerror(ctypes.get_errno())}")
    before = rights[0]
    rights[0] = before & ~(1 << _CAP_DAC_OVERRIDE | 1 << _CAP_DAC_READ_SEARCH)
    assert libc.capset(header, rights) == 0, os.strerror(ctypes.get_errno())
    try:
        yield
    finally:
        rights[0] = before
        assert libc.capset(header, rights) == 0, os.strerror(ctypes.get_errno())


def free_nbytes(folder: Path) -> int:
    """What the file system can still take."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def fill(folder: Path, *, leave_nbytes: int) -> Path:
    """Take space until so much is left; returns the file that takes it."""
    path = folder / "filler"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free_nbytes(folder) - leave_nbytes)
    return path


def use_up_inodes(folder: Path) -> Path:
    """Make files until no more can be; returns the folder that holds them."""
    fillers = folder / "fillers"
    fillers.mkdir()
    for number in range(100_000):
        try:
            (fillers / str(number)).touch()
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return fillers
    pytest.fail("the file system has no end of inodes")


@contextmanager
def told(text: str) -> Iterator[threading.Event]:
    """An event that is set when the store logs this."""
    heard = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if text in record.getMessage():
                heard.set()

    listener, logger = Listener(), logging.getLogger("tierstore")
    logger.addHandler(listener)
    try:
        yield heard
    finally:
        logger.removeHandler(listener)
