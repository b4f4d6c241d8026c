"""A disk that keeps a bounded number of files open, and opens the others again on use.

The SSD tier puts it between itself and its disk: every chunk file has a handle for as long as it exists, and a
process has few descriptors. It implements `Disk`, so callers notice nothing. It must never close a file during a
call, nor one whose name may lead to another file or whose writes may not be durable.
"""

from __future__ import annotations

import errno
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from tierstore.disk.base import Buffer, Disk, File, Folder, Lock
from tierstore.errors import DiskError

__all__ = ["BoundedDisk", "BoundedFile", "default_files_max"]

_FILES_MAX: Final = 256
"""More open files gain nothing: opening one again costs about 20 microseconds, less than a read."""


def default_files_max() -> int:
    """The default number of files to keep open: 256, or a quarter of what this process may open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _FILES_MAX if soft == resource.RLIM_INFINITY else max(1, min(_FILES_MAX, soft // 4))


class BoundedFile:
    """A file that may be closed between calls; see `tierstore.disk.base.File`.

    Any call may open it again, and raises DiskError if that fails. `BoundedDisk` manages the attributes below.

    Attributes:
        path: Its present name.
        handle: The open file behind it; None while it is closed.
        kept: Whether it stays open: it is being written, or its name is gone or was taken by another file.
        claims: Calls in flight.
        closed: Whether `close` was called.
    """

    def __init__(self, disk: BoundedDisk, path: str, handle: File, *, kept: bool) -> None:
        self._disk = disk
        self.direct = handle.direct
        self.path = path
        self.handle: File | None = handle
        self.kept = kept
        self.claims = 0
        self.closed = False

    @property
    def nbytes(self) -> int:
        """Length of the file now."""
        with self._disk.claimed(self, "stat") as handle:
            return handle.nbytes

    def read_into(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Fill the buffers, whole or DiskError."""
        with self._disk.claimed(self, "read") as handle:
            handle.read_into(buffers, offset)

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write the buffers, whole or DiskError. The file stays open from now on until it is renamed."""
        with self._disk.claimed(self, "write") as handle:
            self.kept = True
            handle.write_from(buffers, offset)

    def sync(self) -> None:
        """Make what was written durable. Once it has failed it fails for good."""
        with self._disk.claimed(self, "sync") as handle:
            handle.sync()

    def close(self) -> None:
        """Let the file go; a second call does nothing."""
        self._disk.let_go(self)


class BoundedDisk:
    """Wraps a disk and keeps only the most recently used of its files open.

    A file that was created or written here stays open until it is renamed, which is when its writer is done with it.
    Such files, and files in use by calls, may exceed the bound.

    Args:
        disk: The disk.
        files_max: The bound; None: `default_files_max`.
    """

    def __init__(self, disk: Disk, files_max: int | None = None) -> None:
        self._disk = disk
        self._files_max = default_files_max() if files_max is None else files_max
        self._lock = threading.Lock()
        self._named: set[BoundedFile] = set()
        self._idle: OrderedDict[BoundedFile, None] = OrderedDict()
        self._num_open = 0

    def create(self, path: str, nbytes: int) -> BoundedFile:
        """Create a file, and keep it open."""
        return self._enter(path, self._opened(lambda: self._disk.create(path, nbytes)), kept=True)

    def open(self, path: str) -> BoundedFile:
        """Open an existing file."""
        return self._enter(path, self._opened(lambda: self._disk.open(path)), kept=False)

    def rename(self, src: str, dst: str) -> None:
        """Move a file over `dst`; a file that was written need not stay open any more."""
        moved, replaced = self._keep(src), self._keep(dst)
        self._disk.rename(src, dst)
        with self._lock:
            self._named -= replaced
            surplus = []
            for file in moved:
                file.path, file.kept = dst, False
                surplus += self._settle(file)
        _close(surplus)

    def remove(self, path: str) -> None:
        """Unlink a file; where it is in use it stays readable, and open."""
        nameless = self._keep(path)
        self._disk.remove(path)
        with self._lock:
            self._named -= nameless

    def look(self, path: str) -> Folder:
        """List a folder."""
        return self._disk.look(path)

    def lock(self, path: str, holder: bytes) -> Lock:
        """Claim a path."""
        return self._disk.lock(path, holder)

    # For its files.

    @contextmanager
    def claimed(self, file: BoundedFile, operation: str) -> Iterator[File]:
        """The open file behind a handle, opened again if it was closed; it stays open during use. Raises DiskError."""
        with self._lock:
            if file.closed:
                raise DiskError(operation, file.path, errno.EBADF)
            file.claims += 1
            self._idle.pop(file, None)
            handle = file.handle
        try:
            yield handle or self._reopen(file)
        finally:
            with self._lock:
                file.claims -= 1
                surplus = self._settle(file)
            _close(surplus)

    def let_go(self, file: BoundedFile) -> None:
        """Close a file for good, once the calls that use it have ended."""
        with self._lock:
            file.closed = True
            self._named.discard(file)
            self._idle.pop(file, None)
            surplus = self._settle(file)
        _close(surplus)

    def _enter(self, path: str, handle: File, *, kept: bool) -> BoundedFile:
        file = BoundedFile(self, path, handle, kept=kept)
        with self._lock:
            self._named.add(file)
            self._num_open += 1
            surplus = self._settle(file)
        _close(surplus)
        return file

    def _reopen(self, file: BoundedFile) -> File:
        """Open a claimed file again, unless another call has opened it first."""
        opened = self._opened(lambda: self._disk.open(file.path))
        with self._lock:
            if file.handle is None:
                file.handle = opened
                self._num_open += 1
                surplus = self._shed(self._files_max)
            else:
                surplus = [opened]
            handle = file.handle
        _close(surplus)
        return handle

    def _opened(self, attempt: Callable[[], File]) -> File:
        """Open a file; if the process has no descriptor left, close the idle files and try once more."""
        try:
            return attempt()
        except DiskError as error:
            with self._lock:
                surplus = self._shed(0) if error.errno in (errno.EMFILE, errno.ENFILE) else []
            if not surplus:
                raise
        _close(surplus)
        return attempt()

    def _keep(self, path: str) -> set[BoundedFile]:
        """Open the file whose name is about to go, if a handle exists, and keep it open."""
        with self._lock:
            files = {file for file in self._named if file.path == path}
        for file in files:
            with suppress(DiskError), self.claimed(file, "open"):
                file.kept = True
        return files

    # Under the lock; what they return is to be closed outside it.

    def _settle(self, file: BoundedFile) -> list[File]:
        """Allow a file to be closed if nothing uses or keeps it."""
        if file.claims or file.handle is None:
            return []
        if file.closed:
            handle, file.handle = file.handle, None
            self._num_open -= 1
            return [handle]
        if not file.kept:
            self._idle[file] = None
        return self._shed(self._files_max)

    def _shed(self, files_max: int) -> list[File]:
        """Take idle files, the one used longest ago first, until no more than `files_max` are open."""
        handles = []
        while self._num_open > files_max and self._idle:
            file, _ = self._idle.popitem(last=False)
            assert file.handle is not None, "an idle file is open"
            handles.append(file.handle)
            file.handle = None
            self._num_open -= 1
        return handles


def _close(handles: Sequence[File]) -> None:
    for handle in handles:
        handle.close()
