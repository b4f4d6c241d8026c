"""Files of a local file system under one root: the disk that the SSD tier runs on.

Tiers call it from their workers through the interface in `tierstore.disk.base`. Every call blocks and releases the
GIL. It uses direct I/O if the file system supports it. It must never follow a symbolic link below the root, raise
an OSError, or report a name as durable before its folder is synced.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from tierstore.disk.base import Entry, Folder, path_parts
from tierstore.disk.posix_file import PosixFile, seam
from tierstore.disk.posix_lock import PosixLock, claim
from tierstore.errors import DiskError, FolderError
from tierstore.types import PAGE_NBYTES

__all__ = ["PosixDisk"]

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
_READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC

_LISTINGS_MAX: Final = 8
"""Listings of a folder whose names others change all the time; the last one counts."""

_logger = logging.getLogger(__name__)


class PosixDisk:
    """A folder of a local file system; see `tierstore.disk.base.Disk`.

    Files are made with mode 0600, folders with 0700. Holds no descriptor of its own. Once a claim made through it is
    lost, it creates, renames and removes nothing: the folder may belong to another owner.

    Args:
        root: The folder; made if it is missing, but its parent must exist.
        read_only: Change nothing, not even by a probe: the root must exist, files are opened for reading, and calls
            that would write raise DiskError (EROFS). For looking at a folder that may have an owner.

    Raises:
        FolderError: The root is not a folder, cannot be made or cannot be written to.
    """

    def __init__(self, root: str, *, read_only: bool = False) -> None:
        self.root = os.path.abspath(root)
        self._read_only = read_only
        self._lock: PosixLock | None = None
        if read_only:
            if not os.path.isdir(self.root):
                raise FolderError(f"there is no folder {self.root!r}; give one that exists")
            self.direct = False  # found out file by file
            return
        try:
            _make_root(self.root)
            reason = _probe_direct(self.root)
        except (OSError, ValueError) as error:
            raise FolderError(f"cannot use folder {self.root!r}: {_advice(self.root, error)}") from error
        self.direct = reason is None
        if not self.direct:
            _logger.warning("no direct I/O in %s (%s); reads and writes go through the page cache", root, reason)

    def create(self, path: str, nbytes: int) -> PosixFile:
        """Create, allocate and name a file, durably; its parents too. Blocks."""
        *folders, name = path_parts("create", path)
        self._check_writable("create", path)
        with seam("create", self._full(path)), self._folder(folders, make=True) as folder:
            number = os.open(name, _FILE_FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder)
            with ExitStack() as undo:
                undo.callback(os.unlink, name, dir_fd=folder)
                undo.callback(os.close, number)
                if nbytes:  # before direct I/O is set: where it must emulate, it writes single bytes
                    os.posix_fallocate(number, 0, nbytes)
                file = self._file(number, path)
                os.fsync(folder)
                undo.pop_all()
        return file

    def open(self, path: str) -> PosixFile:
        """Open an existing regular file. Blocks."""
        *folders, name = path_parts("open", path)
        with seam("open", self._full(path)), self._folder(folders) as folder:
            number = os.open(name, _READ_FLAGS if self._read_only else _FILE_FLAGS, dir_fd=folder)
            with ExitStack() as undo:
                undo.callback(os.close, number)
                if not stat.S_ISREG(os.fstat(number).st_mode):
                    raise DiskError("open", self._full(path), errno.EINVAL, "is not a regular file; remove it")
                file = self._file(number, path)
                undo.pop_all()
        return file

    def rename(self, src: str, dst: str) -> None:
        """Move `src` over `dst`, then sync both folders. After a DiskError either name may hold. Blocks."""
        *src_folders, src_name = path_parts("rename", src)
        *dst_folders, dst_name = path_parts("rename", dst)
        self._check_writable("rename", src)
        with (
            seam("rename", f"{self._full(src)} to {dst}"),
            self._folder(src_folders) as src_folder,
            self._folder(dst_folders) as dst_folder,
        ):
            os.rename(src_name, dst_name, src_dir_fd=src_folder, dst_dir_fd=dst_folder)
            os.fsync(dst_folder)
            if src_folders != dst_folders:
                os.fsync(src_folder)

    def remove(self, path: str) -> None:
        """Unlink a file, then sync its folder, also if the file is gone: an earlier call may have failed to. Blocks."""
        *folders, name = path_parts("remove", path)
        self._check_writable("remove", path)
        with seam("remove", self._full(path)), self._folder(folders) as folder:
            try:
                os.unlink(name, dir_fd=folder)
            finally:
                os.fsync(folder)

    def look(self, path: str) -> Folder:
        """List a folder; names that vanish during the call are left out, links are listed as files. Blocks."""
        parts = path_parts("look", path) if path else []
        with seam("look", self._full(path)):
            try:
                with self._folder(parts) as folder:
                    return Folder(_entries(folder), _free_nbytes(folder))
            except FileNotFoundError:
                return Folder((), _free_nbytes(self.root))

    def lock(self, path: str, holder: bytes) -> PosixLock:
        """Claim `path`; see `tierstore.disk.posix_lock`. Never waits for a holder."""
        *folders, name = path_parts("lock", path)
        if self._read_only:
            self._check_writable("lock", path)
        with seam("lock", self._full(path)), self._folder(folders, make=True) as folder:
            self._lock = claim(folder, name, holder, path=self._full(path))
        return self._lock

    def _full(self, path: str) -> str:
        return os.path.join(self.root, path)

    def _check_writable(self, operation: str, path: str) -> None:
        if self._read_only:
            raise DiskError(operation, self._full(path), errno.EROFS, "the folder is open for reading alone")
        if self._lock is not None and not self._lock.closed and not self._lock.stands():
            detail = "the folder's LOCK is not the one that this process holds: another one may own the folder"
            raise DiskError(operation, self._full(path), errno.ESTALE, detail)

    def _file(self, number: int, path: str) -> PosixFile:
        if self._read_only:
            return PosixFile(number, self._full(path), _reads_directly(number))
        if self.direct:
            fcntl.fcntl(number, fcntl.F_SETFL, os.O_DIRECT)
        return PosixFile(number, self._full(path), self.direct)

    @contextmanager
    def _folder(self, parts: Sequence[str], *, make: bool = False) -> Iterator[int]:
        """Descriptor of a folder, reached part by part without following links."""
        number = os.open(self.root, _FOLDER_FLAGS)
        try:
            for part in parts:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=number)
                    os.fsync(number)  # even if it exists: its maker may have died before this
                child = os.open(part, _FOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=number)
                os.close(number)
                number = child
            yield number
        finally:
            os.close(number)


def _make_root(root: str) -> None:
    try:
        os.mkdir(root, 0o700)
    except FileExistsError:
        with suppress(OSError):  # its maker may have died before this; whose folder it lies in is not ours to say
            _sync_folder(os.path.dirname(root))
    else:
        _sync_folder(os.path.dirname(root))


def _sync_folder(path: str) -> None:
    number = os.open(path, _FOLDER_FLAGS)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _probe_direct(root: str) -> str | None:
    """Write one page directly into an unnamed file; returns why direct I/O does not work, or None."""
    with tempfile.TemporaryFile(dir=root, buffering=0) as file, mmap.mmap(-1, PAGE_NBYTES) as page:
        try:
            fcntl.fcntl(file.fileno(), fcntl.F_SETFL, os.O_DIRECT)
            os.pwrite(file.fileno(), page, 0)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):  # a full disk does not answer the question
                return os.strerror(error.errno or 0)
    return None


def _reads_directly(number: int) -> bool:
    """Turn direct I/O on for an open file if a page of it can be read that way."""
    with mmap.mmap(-1, PAGE_NBYTES) as page:
        try:
            fcntl.fcntl(number, fcntl.F_SETFL, os.O_DIRECT)
            os.preadv(number, [page], 0)
        except OSError:
            fcntl.fcntl(number, fcntl.F_SETFL, 0)
            return False
    return True


def _advice(root: str, error: OSError | ValueError) -> str:
    match error:
        case FileNotFoundError() if os.path.isdir(os.path.dirname(root)):
            return "its file system takes no files of others, as /proc does not; use a folder on a disk"
        case FileNotFoundError():
            return "its parent folder does not exist; create that, or correct the path"
        case NotADirectoryError():
            return "it, or a parent of it, is not a folder; move that away, or correct the path"
        case OSError(errno=errno.EROFS):
            return (
                "its file system is mounted read-only; remount it, use another folder, or look at it with ssd.read_only"
            )
        case PermissionError():
            return f"user {os.geteuid()} may not write there ({error}); change its owner or mode, or use another folder"
        case _:
            return f"{error}; mend that, or use another folder"


def _entries(folder: int) -> tuple[Entry, ...]:
    """The entries of a folder. Listed again if names change meanwhile: a listing may miss a file being renamed."""
    for _ in range(_LISTINGS_MAX):
        entries = []
        with os.scandir(folder) as listing:
            for found in listing:
                with suppress(FileNotFoundError):
                    status = found.stat(follow_symlinks=False)
                    is_folder = stat.S_ISDIR(status.st_mode)
                    entries.append(Entry(found.name, 0 if is_folder else status.st_size, is_folder))
        if {entry.name for entry in entries} == set(os.listdir(folder)):
            break
    return tuple(sorted(entries, key=lambda entry: entry.name))


def _free_nbytes(place: int | str) -> int:
    status = os.statvfs(place)
    return status.f_bavail * status.f_frsize
