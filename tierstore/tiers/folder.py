"""The chunk files of one SSD folder: which exist, which is appended to, and how much may still be made.

Called by the SSD tier's one write worker; read workers only look files up. Keeps the two hard limits: the
lengths of all files never exceed the capacity, and no file is begun below the file system's free-space
floor. It knows nothing of jobs or of what records say, and a failing disk never becomes an exception here.
"""

from __future__ import annotations

import errno
import logging
from dataclasses import dataclass

from tierstore.disk.base import Disk
from tierstore.errors import DiskError
from tierstore.tiers.chunkfile import ChunkFile, ChunkName, slots_per_file
from tierstore.tiers.record import RecordShape
from tierstore.types import Outcome

__all__ = ["ChunkFolder", "FolderLimits"]

_FILES_MAX = 1 << 16
"""File numbers of one array."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FolderLimits:
    """What the folder may take, in bytes.

    Attributes:
        capacity_nbytes: All chunk files together.
        file_nbytes: One chunk file that is begun; those of an earlier run keep their length.
        free_floor_nbytes: What must stay free in the file system when a file is begun.
    """

    capacity_nbytes: int
    file_nbytes: int
    free_floor_nbytes: int


class ChunkFolder:
    """Every chunk file under ``arrays/``, at most one a folder being appended to.

    Attributes:
        files: By the number that extents carry. Looked up by read workers without a lock: entries come and
            go whole, and one goes only when nothing reads it.
    """

    def __init__(self, disk: Disk, limits: FolderLimits) -> None:
        self.files: dict[int, ChunkFile] = {}
        self._disk = disk
        self._limits = limits
        self._current: dict[str, ChunkFile] = {}
        self._leaving: list[ChunkFile] = []
        self._unusable: list[tuple[ChunkName, int]] = []
        self._disk_free_nbytes = limits.capacity_nbytes + limits.free_floor_nbytes
        self._next_id = 0
        self._lost_records = False

    @property
    def nbytes(self) -> int:
        """Bytes of all files, those that could not be opened or removed among them."""
        return sum(nbytes for _, nbytes in self._lengths())

    @property
    def over_capacity(self) -> bool:
        """Whether there are more bytes than may be: the capacity was made smaller since the last run."""
        return self.nbytes > self._limits.capacity_nbytes

    @property
    def free_nbytes(self) -> int:
        """Bytes of files that may still be begun."""
        return self._limits.file_nbytes * self._files_left()

    def room_nbytes(self, array: str, shape: RecordShape) -> int | None:
        """Block bytes of one shape that an array can still take; None where a block is larger than a file."""
        slots = slots_per_file(self._limits.file_nbytes, shape)
        if not slots:
            return None
        current = self._current.get(array)
        return shape.nbytes * ((current.room(shape) if current else 0) + slots * self._files_left())

    def place(self, array: str, shape: RecordShape) -> ChunkFile | Outcome:
        """The file of an array with room for the next record; blocks where it must be begun.

        A file that has become full is synced before the next is begun.

        Returns:
            The file; or REJECTED where a limit forbids another one, or IO_ERROR where making it failed.
        """
        current = self._current.get(array)
        if current is not None:
            if current.room(shape):
                return current
            current.appendable = False
            self._sync(current)
            self._current.pop(array, None)
        return self._begin(array, shape)

    def abandon(self, chunk: ChunkFile) -> None:
        """Append nothing more to a file whose write failed; one without a record is given back. Blocks."""
        chunk.appendable = False
        self._drop_current(chunk)
        if not chunk.next_slot:
            self.discard(chunk.file_id)

    def sync(self) -> bool:
        """Make every appended record durable; blocks.

        Returns:
            Whether all records appended since the last call are durable now. False is said once: those
            that are not are known to be lost to a crash from then on.
        """
        for chunk in self.files.values():
            self._sync(chunk)
        lost, self._lost_records = self._lost_records, False
        return not lost

    def discard(self, file_id: int) -> None:
        """Close and remove a file, durably; its number is free again. Blocks.

        Where removing it fails its bytes count on, and it is tried again when they are wanted.
        """
        chunk = self.files.pop(file_id, None)
        if chunk is None:
            return
        self._drop_current(chunk)
        chunk.file.close()
        self._leaving.append(chunk)
        self._remove_leaving()

    def adopt(self, name: ChunkName, nbytes: int) -> ChunkFile | None:
        """Open a file of an earlier run for reading; None where that fails: its bytes still count. Blocks."""
        try:
            chunk = ChunkFile(self._next_id, name, self._disk.open(name.path), nbytes=nbytes)
        except DiskError as error:
            _logger.warning("chunk file skipped: %s", error)
            self._unusable.append((name, nbytes))
            return None
        return self._add(chunk)

    def resume(self, chunk: ChunkFile, *, slots: int, end_nbytes: int, next_slot: int) -> None:
        """Continue a file of an earlier run behind its last valid record, once that is durable. Blocks."""
        chunk.slots = slots
        chunk.begin(end_nbytes=end_nbytes, next_slot=next_slot)
        chunk.dirty = True
        self._current[chunk.name.array] = chunk
        self._sync(chunk)

    def close(self) -> None:
        """Sync and close every file; blocks."""
        self.sync()
        for chunk in self.files.values():
            chunk.file.close()
        self.files.clear()
        self._current.clear()

    def _begin(self, array: str, shape: RecordShape) -> ChunkFile | Outcome:
        nbytes = self._limits.file_nbytes
        slots = slots_per_file(nbytes, shape)
        if not slots:
            _logger.warning(
                "a block of %d bytes is larger than a chunk file (%d); raise [ssd] file_size", shape.nbytes, nbytes
            )
            return Outcome.REJECTED
        if self.nbytes + nbytes > self._limits.capacity_nbytes:
            self._remove_leaving()
        number = self._free_number(array)
        if number == _FILES_MAX or self.nbytes + nbytes > self._limits.capacity_nbytes:
            return Outcome.REJECTED
        try:
            self._disk_free_nbytes = self._disk.look("").free_nbytes
            if not self._files_left():
                return Outcome.REJECTED
            name = ChunkName.new(array, number)
            chunk = ChunkFile(self._next_id, name, self._disk.create(name.path, nbytes), nbytes=nbytes, slots=slots)
        except DiskError as error:
            _logger.warning("no chunk file begun: %s", error)
            return Outcome.REJECTED if error.errno in (errno.ENOSPC, errno.EDQUOT) else Outcome.IO_ERROR
        self._disk_free_nbytes -= nbytes
        chunk.begin()
        self._current[array] = chunk
        return self._add(chunk)

    def _add(self, chunk: ChunkFile) -> ChunkFile:
        self.files[chunk.file_id] = chunk
        self._next_id += 1
        return chunk

    def _sync(self, chunk: ChunkFile) -> None:
        try:
            chunk.sync()
        except DiskError as error:
            _logger.warning("records since the last good sync are not durable: %s", error)
            self._drop_current(chunk)
            self._lost_records = True

    def _drop_current(self, chunk: ChunkFile) -> None:
        if self._current.get(chunk.name.array) is chunk:
            del self._current[chunk.name.array]

    def _lengths(self) -> list[tuple[ChunkName, int]]:
        """Every file that takes space, with how much."""
        return [(chunk.name, chunk.nbytes) for chunk in (*self.files.values(), *self._leaving)] + self._unusable

    def _remove_leaving(self) -> None:
        for chunk in tuple(self._leaving):
            try:
                self._disk.remove(chunk.name.path)
            except DiskError as error:
                if error.errno != errno.ENOENT:
                    _logger.warning("chunk file not removed, its bytes still count: %s", error)
                    continue
            self._leaving.remove(chunk)
            self._disk_free_nbytes += chunk.nbytes

    def _files_left(self) -> int:
        """How many files may still be begun, by both limits."""
        left = self._limits.capacity_nbytes - self.nbytes
        free = self._disk_free_nbytes - self._limits.free_floor_nbytes
        return max(0, min(left, free) // self._limits.file_nbytes)

    def _free_number(self, array: str) -> int:
        taken = {name.number for name, _ in self._lengths() if name.array == array}
        return next(number for number in range(_FILES_MAX + 1) if number not in taken)
