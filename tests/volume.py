"""Small file systems of a test's own, and what fills them from outside. Skips where mounting is not permitted."""

from __future__ import annotations

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

__all__ = ["fill", "free_nbytes", "told", "use_up_inodes", "volume"]


@contextmanager
def volume(folder: Path, options: str) -> Iterator[Path]:
    """A tmpfs, mounted with options such as ``size=16m,nr_inodes=20``."""
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("mounting a file system needs root and mount(8)")
    mounted = subprocess.run(
        [mount, "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


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
