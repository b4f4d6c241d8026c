"""A disk that remembers, for each thread, the first failed call since `take_fault` was last called.

The SSD tier puts it between itself and its disk, so that a result can carry the disk's own error text, however deep
the call was. It implements `Disk` and changes no call and no error.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tierstore.disk.base import Buffer, Disk, File, Folder, Lock
from tierstore.errors import DiskError
from tierstore.health import Fault

__all__ = ["WatchedDisk", "WatchedFile"]


class WatchedFile:
    """A file of a `WatchedDisk`; see `tierstore.disk.base.File`."""

    def __init__(self, disk: WatchedDisk, file: File) -> None:
        self._disk = disk
        self._file = file
        self.direct = file.direct

    @property
    def nbytes(self) -> int:
        """Length of the file now."""
        with self._disk.watching():
            return self._file.nbytes

    def read_into(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Fill the buffers, whole or DiskError."""
        with self._disk.watching():
            self._file.read_into(buffers, offset)

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write the buffers, whole or DiskError."""
        with self._disk.watching():
            self._file.write_from(buffers, offset)

    def sync(self) -> None:
        """Make what was written durable. Once it has failed it fails for good."""
        with self._disk.watching():
            self._file.sync()

    def close(self) -> None:
        """Let the file go; a second call does nothing."""
        self._file.close()


class WatchedDisk:
    """See `tierstore.disk.base.Disk`.

    Args:
        disk: The disk that does the work.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._own = threading.local()

    def take_fault(self, *, besides: str = "") -> Fault | None:
        """The first failure on this thread since the last call, of any operation except `besides`; None if none."""
        failure: DiskError | None = getattr(self._own, "failure", None)
        self._own.failure = None
        if failure is None or failure.operation == besides:
            return None
        return Fault(str(failure), full=failure.errno in (errno.ENOSPC, errno.EDQUOT))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Remember the first DiskError raised inside, and let it pass."""
        try:
            yield
        except DiskError as error:
            nothing_to_remove = error.operation == "remove" and error.errno == errno.ENOENT  # an answer, no failure
            if not nothing_to_remove and getattr(self._own, "failure", None) is None:
                self._own.failure = error
            raise

    def create(self, path: str, nbytes: int) -> WatchedFile:
        """Create a file; blocks."""
        with self.watching():
            return WatchedFile(self, self._disk.create(path, nbytes))

    def open(self, path: str) -> WatchedFile:
        """Open a file; blocks."""
        with self.watching():
            return WatchedFile(self, self._disk.open(path))

    def rename(self, src: str, dst: str) -> None:
        """Move a file; blocks."""
        with self.watching():
            self._disk.rename(src, dst)

    def remove(self, path: str) -> None:
        """Unlink a file; blocks."""
        with self.watching():
            self._disk.remove(path)

    def look(self, path: str) -> Folder:
        """List a folder; blocks."""
        with self.watching():
            return self._disk.look(path)

    def lock(self, path: str, holder: bytes) -> Lock:
        """Claim a path; never waits for a holder."""
        with self.watching():
            return self._disk.lock(path, holder)
