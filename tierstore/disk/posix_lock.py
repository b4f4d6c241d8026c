"""A claim on a folder of a local file system: flock on a file in it, and on the folder itself.

Made by `tierstore.disk.posix`; the kernel releases it when the process ends. The file can be removed or replaced
under its holder, and the next process would claim another file; so the folder is claimed too, if its file system
can do that. It must never wait for a holder, nor pass a claim on to a child.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import ExitStack
from typing import Final

from tierstore import forks
from tierstore.disk.posix_file import seam
from tierstore.errors import FolderBusyError, FolderError

__all__ = ["PosixLock", "claim"]

_FILE_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC

_CLAIMS_MAX: Final = 100
"""Times that a lock file may be replaced between its opening and its claim."""

_HOLDER_NBYTES_MAX: Final = 4096
"""What an error message shows of the text in a lock file, at most."""


class PosixLock:
    """An flock held on a file and, if the file system can, on its folder, which cannot be removed under it."""

    def __init__(self, numbers: tuple[int, ...], path: str) -> None:
        self._numbers = numbers
        self._path = path
        self._owner_pid = os.getpid()
        for number in numbers:
            forks.keep_from_children(number)

    @property
    def closed(self) -> bool:
        """Whether the claim has been given up."""
        return not self._numbers

    def stands(self) -> bool:
        """Whether the path still leads to the file claimed: two looks at what the kernel holds in memory."""
        with seam("stat", self._path):
            return not self.closed and _is_named(self._numbers[0], self._path)

    def close(self) -> None:
        """Release the claim; a second call does nothing. A forked child has none."""
        numbers, self._numbers = self._numbers, ()
        for number in numbers if os.getpid() == self._owner_pid else ():
            fcntl.flock(number, fcntl.LOCK_UN)  # a child that was forked just now has not closed its copy yet
            forks.close(number)


def claim(folder: int, name: str, holder: bytes, *, path: str) -> PosixLock:
    """Claim a file in an open folder, and the folder, and write `holder` into the file. Blocks.

    Args:
        folder: Descriptor of the folder.
        name: Name of the file; made if it is missing.
        holder: The text that others are shown.
        path: Path of the file, for messages.

    Raises:
        FolderBusyError: A live process holds the file or the folder.
        FolderError: The file system does not support such locks.
        OSError: The file system refused a call.
    """
    with ExitStack() as undo:
        claimed = os.dup(folder)
        try:
            is_free = _flock(claimed)
        except OSError:  # NFS locks no folders; there the file alone is claimed
            os.close(claimed)
            claimed, is_free = -1, True
        else:
            undo.callback(os.close, claimed)
        number = _claim_file(folder, name) if is_free else -1
        if number < 0:
            raise FolderBusyError(path, _read_holder(folder, name))
        undo.callback(os.close, number)
        os.pwrite(number, holder, 0)  # over the old text, which takes no space on a full disk
        os.ftruncate(number, len(holder))
        os.fsync(number)
        os.fsync(folder)
        undo.pop_all()
    return PosixLock((number, claimed) if claimed >= 0 else (number,), path)


def _flock(number: int) -> bool:
    """Claim what is open; False where a live process has claimed it. Raises OSError where that cannot be."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _claim_file(folder: int, name: str) -> int:
    """Open and claim a file, made if it is missing; -1 if a live process has claimed it.

    If the file is removed or replaced between opening and claiming, this starts again with the new one.

    Raises:
        FolderError: The file system does not support such locks.
    """
    for _ in range(_CLAIMS_MAX):
        number = os.open(name, _FILE_FLAGS, 0o600, dir_fd=folder)
        with ExitStack() as undo:
            undo.callback(os.close, number)
            try:
                if not _flock(number):
                    return -1
            except OSError as error:
                raise FolderError(
                    f"the file system of the SSD folder does not lock {name} ({error.strerror}), so that a second "
                    "owner could not be kept out; use a folder on a local file system, such as ext4 or xfs"
                ) from error
            if _is_named(number, name, folder):
                undo.pop_all()
                return number
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))


def _is_named(number: int, path: str, folder: int | None = None) -> bool:
    """Whether a path, in a folder where one is given, leads to what is open. Raises OSError where it cannot be told."""
    try:
        return os.path.samestat(os.fstat(number), os.stat(path, dir_fd=folder, follow_symlinks=False))
    except (FileNotFoundError, NotADirectoryError):
        return False


def _read_holder(folder: int, name: str) -> str:
    """What the holder of a claim says of itself; empty where the file is gone."""
    try:
        number = os.open(name, _READ_FLAGS, dir_fd=folder)
    except FileNotFoundError:
        return ""
    try:
        return os.pread(number, _HOLDER_NBYTES_MAX, 0).decode("utf-8", "replace").strip()
    finally:
        os.close(number)
