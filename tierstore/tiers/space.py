"""Accounts for the space that the chunk files of one folder take and may still take.

Called by the folder, on the SSD tier's one write worker. It keeps the hard limits: no file is begun beyond the
capacity or below the file system's free-space floor, and one clean file stays in reserve for reclaiming others.
A file counts until its bytes are known to be free.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tierstore.disk.base import Disk
from tierstore.errors import ConfigError, DiskError
from tierstore.settings import format_size
from tierstore.tiers.chunkfile import NO_SEQUENCE, TOMBSTONE_NBYTES, ChunkFile, ChunkName
from tierstore.types import PAGE_NBYTES

__all__ = ["FILES_MAX", "FILES_MIN", "FolderLimits", "Space", "default_file_nbytes"]

FILES_MAX = 1 << 16
"""File numbers of one array."""

FILES_MIN = 4
"""With fewer files, giving one back would cost too much of the tier at once."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FolderLimits:
    """What the folder may take, in bytes.

    Attributes:
        capacity_nbytes: All chunk files together.
        file_nbytes: One chunk file of an array that is begun; other arrays keep theirs.
        free_floor_nbytes: What must stay free in the file system when a file is begun.

    Raises:
        ConfigError: A capacity below four files, or a file that is not whole pages.
    """

    capacity_nbytes: int
    file_nbytes: int
    free_floor_nbytes: int

    def __post_init__(self) -> None:
        if self.file_nbytes < PAGE_NBYTES or self.file_nbytes % PAGE_NBYTES:
            raise ConfigError(
                f"a chunk file of {self.file_nbytes} bytes is not whole pages; "
                f"set [ssd] file_size to a multiple of {PAGE_NBYTES}"
            )
        if self.capacity_nbytes < FILES_MIN * self.file_nbytes:
            raise ConfigError(
                f"[ssd] size is {format_size(self.capacity_nbytes)}, less than {FILES_MIN} chunk files of "
                f"{format_size(self.file_nbytes)}; set it to at least {format_size(FILES_MIN * self.file_nbytes)}, or "
                "[ssd] file_size lower"
            )


def default_file_nbytes(capacity_nbytes: int) -> int:
    """Length of a chunk file where none is set: a 128th of the capacity, 128 MiB to 4 GiB, whole pages.

    Below 4 GiB of capacity it is a 32nd, at least 64 MiB. Beginning and sealing a file costs about 12 ms of disk time,
    whatever its length; but the longer the files, the more blocks are forgotten with each. See
    docs/decisions/0025-chunk-files-are-a-128th-of-the-capacity.md.
    """
    shortest = min(max(capacity_nbytes // 32, 64 << 20), 128 << 20)
    return min(max(capacity_nbytes // 128, shortest) // PAGE_NBYTES * PAGE_NBYTES, 4 << 30)


class Space:
    """The ledger of lengths.

    Attributes:
        files: Chunk files in use, by the number that extents carry. Filled and emptied by the folder too.
        reserve_nbytes: Length of the file in reserve: the longest that may be wanted.
    """

    def __init__(self, disk: Disk, limits: FolderLimits) -> None:
        self.files: dict[int, ChunkFile] = {}
        self.reserve_nbytes = limits.file_nbytes
        self._disk = disk
        self._limits = limits
        self._ceiling_nbytes = limits.capacity_nbytes
        self._leaving: list[ChunkFile] = []
        self._ignored: list[tuple[ChunkName, int]] = []
        self._disk_free_nbytes = limits.capacity_nbytes + limits.free_floor_nbytes

    @property
    def nbytes(self) -> int:
        """Bytes of all files, those that could not be opened or removed among them."""
        return sum(nbytes for _, nbytes in self._lengths())

    @property
    def has_reserve(self) -> bool:
        """Whether the capacity still allows the clean file in reserve."""
        return self.nbytes + self.reserve_nbytes <= self._limits.capacity_nbytes

    @property
    def shortage(self) -> str:
        """Why no file can be begun even after reclaiming ours: the file system is full or too small. Else empty.

        A single file is not reclaimed.
        """
        free_nbytes, floor_nbytes = self._disk_free_nbytes, self._limits.free_floor_nbytes
        if free_nbytes < floor_nbytes:
            return (
                f"{free_nbytes} bytes are free in the file system of the SSD folder, less than the "
                f"{format_size(floor_nbytes)} that [ssd] free_floor keeps"
            )
        own = [chunk.nbytes for chunk in tuple(self.files.values())]
        going = sum(own if len(own) > 1 else ()) + sum(chunk.nbytes for chunk in self._leaving)
        needed_nbytes = min(self._limits.file_nbytes, *own, self.reserve_nbytes) + self.reserve_nbytes
        if free_nbytes - floor_nbytes + going >= needed_nbytes:
            return ""
        return (
            f"{free_nbytes} bytes are free in the file system of the SSD folder, too few for two chunk files "
            f"({needed_nbytes} bytes) beside the {format_size(floor_nbytes)} that [ssd] free_floor keeps; make room, "
            "or set [ssd] file_size lower"
        )

    def files_of(self, file_nbytes: int) -> int:
        """How many files of one length the capacity allows in all."""
        return min(FILES_MAX, self._limits.capacity_nbytes // file_nbytes)

    def files_left(self, file_nbytes: int, *, reserved: bool = False) -> int:
        """How many files of one length both limits still allow; without the reserve, or with it if `reserved`."""
        left = self._ceiling_nbytes - self.nbytes
        free = self._disk_free_nbytes - self._limits.free_floor_nbytes
        return max(0, min(left, free) - (0 if reserved else self.reserve_nbytes)) // file_nbytes

    def kept_nbytes(self, chunk: ChunkFile, going: Collection[ChunkFile]) -> int:
        """Room of a file to keep for tombstones of the file reclaimed next; 0 while there is a reserve.

        Args:
            chunk: The file of its array that is to be appended to, or begun.
            going: Files of which one is reclaimed next.
        """
        if not going or self.has_reserve:
            return 0
        rooms = {own: own.room_tombstones for own in self.files.values() if own.name.array != chunk.name.array}
        elsewhere = sum(rooms.values())
        missing = [
            len(own.tombstone_pages) + (own.room_tombstones if own is chunk else 0) - elsewhere + rooms.get(own, 0)
            for own in going
        ]
        return max(0, *missing) * TOMBSTONE_NBYTES

    @contextmanager
    def shrinking(self) -> Iterator[None]:
        """Let a folder without a clean file in reserve begin one more: reclaiming others comes first."""
        self._ceiling_nbytes = max(self._ceiling_nbytes, self.nbytes + self.reserve_nbytes)
        try:
            yield
        finally:
            self._ceiling_nbytes = self._limits.capacity_nbytes

    def numbers(self, array: str) -> set[int]:
        """The file numbers of an array that are taken."""
        return {name.number for name, _ in self._lengths() if name.array == array}

    def oldest_sequence(self, *, without: ChunkFile) -> int:
        """No block in any file but one has a lower sequence, those among them that could not be opened or removed."""
        if self._ignored:
            return 0
        others = [chunk.oldest_sequence for chunk in (*self.files.values(), *self._leaving) if chunk is not without]
        return min(others, default=NO_SEQUENCE)

    def look(self) -> None:
        """Ask the file system how much it can still take; blocks. Raises DiskError."""
        self._disk_free_nbytes = self._disk.look("").free_nbytes

    def took(self, nbytes: int) -> None:
        """Subtract bytes taken since the last look from what the file system can still take."""
        self._disk_free_nbytes -= nbytes

    def ignore(self, name: ChunkName, nbytes: int) -> None:
        """Count the bytes of a file that this run does not use."""
        self._ignored.append((name, nbytes))

    def let_go(self, chunk: ChunkFile) -> None:
        """Close a file and remove it; blocks. If that fails, its bytes still count until it succeeds."""
        del self.files[chunk.file_id]
        chunk.file.close()
        self._leaving.append(chunk)
        self.remove_leaving()

    def remove_leaving(self) -> None:
        """Try again to remove what could not be removed; blocks."""
        for chunk in tuple(self._leaving):
            try:
                for name in chunk.names:
                    self._remove(name.path)
            except DiskError as error:
                _logger.warning("chunk file not removed, its bytes still count: %s", error)
                continue
            self._leaving.remove(chunk)
            self._disk_free_nbytes += chunk.nbytes

    def _remove(self, path: str) -> None:
        try:
            self._disk.remove(path)
        except DiskError as error:
            if error.errno not in (errno.ENOENT, errno.EISDIR):  # a folder in its place is not the file
                raise

    def _lengths(self) -> list[tuple[ChunkName, int]]:
        """Every file that takes space, with how much."""
        return [(chunk.name, chunk.nbytes) for chunk in (*tuple(self.files.values()), *self._leaving)] + self._ignored
