"""One open file of a local file system: whole transfers, or a DiskError.

Made by `tierstore.disk.posix`, used by tiers through the interface in `tierstore.disk.base`. Every call blocks and
releases the GIL. It must never report a part of a transfer as the whole, nor use a descriptor number that now
belongs to another file.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from tierstore import forks
from tierstore.disk.base import Buffer
from tierstore.errors import DiskError
from tierstore.types import PAGE_NBYTES

__all__ = ["PosixFile", "seam"]

_IOVECS_MAX: Final = 1024
"""IOV_MAX of Linux: buffers that one preadv or pwritev takes."""

_STALLS_MAX: Final = 16
"""Calls in a row that may move nothing (EINTR, EAGAIN, less than a page) before a transfer has failed."""


@contextmanager
def seam(operation: str, path: str) -> Iterator[None]:
    """Map OSError to DiskError."""
    try:
        yield
    except OSError as error:
        raise DiskError(operation, path, error.errno or 0) from error


class _Descriptor:
    """An open descriptor that is closed only when no call uses it, so that no call sees its number reused."""

    def __init__(self, number: int) -> None:
        self._number = number
        forks.keep_from_children(number)
        self._claims = 1
        self._closed = False
        self._lock = threading.Lock()

    def __enter__(self) -> int:
        with self._lock:
            if self._closed:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            self._claims += 1
        return self._number

    def __exit__(self, *_: object) -> None:
        self._drop()

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._drop()

    def _drop(self) -> None:
        with self._lock:
            self._claims -= 1
            last = self._claims == 0
        if last:
            forks.close(self._number)


class PosixFile:
    """One open file of a `PosixDisk`; see `tierstore.disk.base.File`.

    A call in flight when `close` comes ends on its own file; a later one is a DiskError (EBADF).
    """

    def __init__(self, number: int, path: str, direct: bool) -> None:
        self._descriptor = _Descriptor(number)
        self._path = path
        self._direct = direct
        self._sync_errno = 0

    @property
    def nbytes(self) -> int:
        """Length of the file now: one fstat, no disk access. Raises DiskError once closed."""
        with seam("stat", self._path), self._descriptor as number:
            return os.fstat(number).st_size

    @property
    def direct(self) -> bool:
        """Whether transfers bypass the page cache."""
        return self._direct

    def read_into(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Fill the buffers from `offset`, whole or DiskError; after an error their contents mean nothing. Blocks."""
        self._transfer("read", os.preadv, buffers, offset)

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write the buffers at `offset`, whole or DiskError; after an error any part may be written. Blocks."""
        self._transfer("write", os.pwritev, buffers, offset)

    def sync(self) -> None:
        """Make every write that has returned durable. Blocks.

        After a failed sync every later one fails at once: the kernel has dropped the pages that it could not
        write, so that a second fdatasync would report success.
        """
        if self._sync_errno:
            raise DiskError("sync", self._path, self._sync_errno, "an earlier sync failed; write the data anew")
        try:
            with seam("sync", self._path), self._descriptor as number:
                os.fdatasync(number)
        except DiskError as error:
            self._sync_errno = error.errno
            raise

    def close(self) -> None:
        """Let the file go, without a sync."""
        self._descriptor.close()

    def _transfer(
        self,
        operation: str,
        call: Callable[[int, Sequence[Buffer], int], int],
        buffers: Sequence[Buffer],
        offset: int,
    ) -> None:
        """Repeat `call` until every byte has moved; under direct I/O only whole pages count as moved."""
        views = [buffer for buffer in buffers if buffer.nbytes]
        unit = PAGE_NBYTES if self._direct else 1
        first = stalls = 0
        with seam(operation, self._path), self._descriptor as number:
            while first < len(views):
                reason = 0
                try:
                    moved = call(number, views[first : first + _IOVECS_MAX], offset)
                except (BlockingIOError, InterruptedError) as error:
                    moved, reason = 0, error.errno or 0
                moved -= moved % unit
                stalls = 0 if moved else stalls + 1
                if stalls > _STALLS_MAX:
                    raise DiskError(operation, self._path, reason)
                offset += moved
                while first < len(views) and moved >= views[first].nbytes:
                    moved -= views[first].nbytes
                    first += 1
                if moved:
                    views[first] = views[first].cast("B")[moved:]
