"""The interface between the store and the file system. Code above it makes no file calls of the operating system.

Two implementations: `tierstore.disk.posix` and the simulated disk of `tierstore.testing`. Paths are strings relative
to the disk's root, parts joined by ``/``. Every failure is a `DiskError`, also a short read or write.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from tierstore.errors import DiskError

__all__ = ["Buffer", "Disk", "Entry", "File", "Folder", "Lock", "path_parts"]

Buffer: TypeAlias = memoryview
"""A contiguous view of bytes. With direct I/O its address and length are multiples of 4 KiB."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a folder; a folder's own `nbytes` are 0."""

    name: str
    nbytes: int
    is_folder: bool


@dataclass(frozen=True, slots=True)
class Folder:
    """One look at a folder.

    Attributes:
        entries: Sorted by name; empty where the folder does not exist.
        free_nbytes: Bytes that the file system under it can still take.
    """

    entries: tuple[Entry, ...]
    free_nbytes: int


@runtime_checkable
class File(Protocol):
    """One open file. Positions and lengths are multiples of 4 KiB where `direct` is true.

    Calls from several threads at once are allowed. All of them block.
    """

    @property
    def nbytes(self) -> int:
        """Length of the file."""

    @property
    def direct(self) -> bool:
        """Whether transfers bypass the page cache (and so must be aligned)."""

    def read_into(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Fill the buffers one after another from `offset`. Raises DiskError on a short read."""

    def write_from(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write the buffers one after another at `offset`. Raises DiskError on a short write."""

    def sync(self) -> None:
        """Make every write that has returned durable (fdatasync). A failed sync must never be retried."""

    def close(self) -> None:
        """Close; a second call does nothing. Does not sync."""


@runtime_checkable
class Lock(Protocol):
    """An exclusive claim on a file, held until closed or until the process ends."""

    def stands(self) -> bool:
        """Whether the claimed file still has its name. If it was removed or replaced, another process may own the path.

        Raises:
            DiskError: The disk does not say.
        """

    def close(self) -> None:
        """Release the claim."""


@runtime_checkable
class Disk(Protocol):
    """A folder of files, all of them under one root."""

    def create(self, path: str, nbytes: int) -> File:
        """Create a file of `nbytes` allocated, zero bytes, open for reading and writing.

        Makes missing parent folders. The name is durable when this returns. Raises DiskError where the
        path exists (EEXIST) or the space is not there (ENOSPC); then nothing is left behind.
        """

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing. Raises DiskError (ENOENT and so on)."""

    def rename(self, src: str, dst: str) -> None:
        """Move a file over `dst`, atomically; the new name is durable when this returns."""

    def remove(self, path: str) -> None:
        """Unlink a file; durable when this returns. Files that are open stay readable."""

    def look(self, path: str) -> Folder:
        """List a folder (``""`` is the root) and say how much its file system can still take."""

    def lock(self, path: str, holder: bytes) -> Lock:
        """Claim `path` (created where missing) for this process and write `holder` into it.

        There is one claim at a time, even if the file is removed or replaced under its holder.

        Raises:
            FolderBusyError: A live process holds it; the message shows the text that the holder wrote.
            FolderError: The file system does not support locks.
        """


def path_parts(operation: str, path: str) -> list[str]:
    """Split a path that must stay under the root; for implementations of a disk.

    Raises:
        DiskError: EINVAL where the path is absolute or has an empty part, ``.``, ``..`` or a NUL.
    """
    parts = path.split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        detail = f"{path!r} is no path under the root; use names joined by single '/', without '.' and '..'"
        raise DiskError(operation, path, errno.EINVAL, detail)
    return parts
