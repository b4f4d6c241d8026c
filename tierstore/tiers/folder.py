"""The chunk files of one SSD folder: which exist, and which is appended to, sealed or reclaimed.

Called by the SSD tier's one write worker; read workers only look files up. It knows nothing of jobs or of the
content of records. It keeps the limits of `tierstore.tiers.space`. A failing disk never raises an exception here.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from tierstore.disk.base import Disk
from tierstore.errors import DiskError
from tierstore.tiers.base import Synced
from tierstore.tiers.chunkfile import ChunkFile, ChunkName
from tierstore.tiers.frame import Scratch
from tierstore.tiers.space import FILES_MAX, FolderLimits, Space
from tierstore.tiers.zarr_metadata import ZarrArrays
from tierstore.types import Outcome

if TYPE_CHECKING:
    from tierstore.tiers.footer import Keys
    from tierstore.tiers.zarr_metadata import ArraySpec, Geometry

__all__ = ["ChunkFolder"]

_logger = logging.getLogger(__name__)


class ChunkFolder:
    """Every chunk file under ``arrays/``; in each array at most one is being appended to.

    Attributes:
        files: By the number in extents, oldest first. Read workers look them up without a lock: entries are added
            and removed whole, and removed only when nothing reads the file.
        kept_nbytes: See `Space.kept_nbytes`; so of `look` and `shrinking`.
    """

    def __init__(self, disk: Disk, limits: FolderLimits) -> None:
        self._disk = disk
        self._limits = limits
        self._arrays = ZarrArrays(disk)
        self._space = Space(disk, limits)
        self.files = self._space.files
        self.kept_nbytes = self._space.kept_nbytes
        self.look = self._space.look
        self.shrinking = self._space.shrinking
        self._current: dict[str, ChunkFile] = {}
        self._scratch = Scratch()
        self._next_id = 0
        self._lost_records = False
        self._unfit: set[str] = set()

    @property
    def has_reserve(self) -> bool:
        """Whether a clean file may still be begun within the capacity; it is reserved for reclaiming files."""
        return self._space.has_reserve

    @property
    def used_nbytes(self) -> int:
        """The lengths of all files; may be asked for on any thread."""
        return self._space.nbytes

    @property
    def shortage(self) -> str:
        """Why nothing can be written: see `Space.shortage`. None while a single file, never given back, has room."""
        if self.has_reserve and len(self.files) == 1 and any(own.takes_more for own in tuple(self._current.values())):
            return ""
        return self._space.shortage

    def free_nbytes(self, spec: ArraySpec | None) -> int | None:
        """Bytes that can still be written, without the reserve; None if a block is larger than a file.

        Args:
            spec: The array whose current file counts too, as far as whole records fit. None: clean files alone.
        """
        geometry = self._arrays.get(spec.name) if spec else None
        file_nbytes = geometry.file_nbytes if geometry else self._limits.file_nbytes
        clean_nbytes = file_nbytes * self._space.files_left(file_nbytes)
        if spec is None:
            return clean_nbytes
        if not (geometry or spec.geometry(file_nbytes)).slots:
            return None
        current = self._current.get(spec.name)
        room = current.room(spec.longest) if current and self.has_reserve else 0
        return room * spec.longest.pitch_nbytes + clean_nbytes

    def appended(self, array: str) -> int | None:
        """The file of an array that takes its next record; None where there is none."""
        return current.file_id if (current := self._current.get(array)) else None

    def declare(self, spec: ArraySpec) -> Outcome:
        """Make an array known, in the folder too where it is new; blocks then.

        OK; REJECTED where a block is larger than a file or the disk is full, or IO_ERROR.
        """
        if self._arrays.get(spec.name) is not None:
            return Outcome.OK
        if spec.name in self._arrays.unread:
            return Outcome.OK if self.adopt_array(spec.name) else Outcome.IO_ERROR
        geometry = spec.geometry(self._limits.file_nbytes)
        if not geometry.slots:
            level = logging.DEBUG if spec.name in self._unfit else logging.WARNING
            _logger.log(level, "a block of %d bytes fits no chunk file; raise ssd.file_size", spec.layout.block_nbytes)
            self._unfit.add(spec.name)
            return Outcome.REJECTED
        highest = max(self._space.numbers(spec.name), default=0)
        try:
            self._arrays.declare(spec, geometry, files=max(self._space.files_of(geometry.file_nbytes), highest + 1))
        except DiskError as error:
            return _refused(error)
        return Outcome.OK

    def place(self, array: str, room: Callable[[ChunkFile], int], *, reserved: bool = False) -> ChunkFile | Outcome:
        """The file of a declared array with room for the next record; blocks if it must be begun.

        A full file is sealed only once the next is begun: until then it may still take tombstones.

        Args:
            array: Name of the array.
            room: How many records of one kind a file still takes.
            reserved: Whether the clean file in reserve may be begun, or filled if it has been begun.

        Returns:
            The file; or REJECTED if a limit forbids another one, or IO_ERROR if making it failed.
        """
        if not reserved and not self.has_reserve:
            self._space.remove_leaving()
            if not self.has_reserve:
                return Outcome.REJECTED
        current = self._current.get(array)
        if current is not None and room(current):
            return current
        begun = self._begin(array, reserved=reserved)
        if isinstance(begun, Outcome):
            return begun
        if not room(begun):
            self.discard(begun.file_id)
            return Outcome.REJECTED
        if current:
            self.seal(current)
        self._current[array] = begun
        return begun

    def place_tombstones(self, array: str, room: Callable[[ChunkFile], int]) -> ChunkFile | Outcome:
        """A file with room for tombstones: of their array, else of any, so that the reserve is spared; blocks."""
        open_files = (self._current.get(array), *self._current.values())
        found = next((chunk for chunk in open_files if chunk is not None and room(chunk)), None)
        return found or self.place(array if self._arrays.get(array) else self._arrays.any, room, reserved=True)

    def seal(self, chunk: ChunkFile) -> None:
        """Seal a full file: append its footer, sync, and rename it to the name by which Zarr finds it; blocks.

        Reads go on meanwhile. If the disk fails, the file stays as it is, and the next start scans it.
        """
        self.retire(chunk)
        geometry = self._arrays.get(chunk.name.array)
        assert geometry is not None, "only a file of a known array is appended to"
        sealed = chunk.name.sealed(geometry.axes)
        try:
            chunk.write_footer(self._scratch)
        except DiskError as error:
            _logger.warning("chunk file not sealed: %s", error)
            self.make_durable(chunk)
            return
        if not self.make_durable(chunk):
            return
        try:
            self._disk.rename(chunk.name.path, sealed.path)
        except DiskError as error:
            _logger.warning("chunk file not sealed: %s", error)
            chunk.names = (chunk.name, sealed)
        else:
            chunk.names = (sealed,)
            chunk.forget_keys()

    def abandon(self, chunk: ChunkFile) -> None:
        """Append nothing more to a file whose write failed; remove it if it has no record. Blocks."""
        self.retire(chunk)
        if not chunk.end_nbytes:
            self.discard(chunk.file_id)

    def retire(self, chunk: ChunkFile) -> None:
        """Append nothing more to a file."""
        chunk.appendable = False
        if self._current.get(chunk.name.array) is chunk:
            del self._current[chunk.name.array]

    def sync(self) -> Synced:
        """Make every appended record durable; blocks. See `TierWork.sync`."""
        self.make_others_durable(None)
        lost, self._lost_records = self._lost_records, False
        in_doubt = tuple(chunk.file_id for chunk in self.files.values() if chunk.in_doubt)
        return Synced(Outcome.IO_ERROR if lost else Outcome.OK, in_doubt)

    def make_durable(self, chunk: ChunkFile) -> bool:
        """Sync one file; blocks. False if that fails, which the next `sync` reports too, or has failed before."""
        try:
            chunk.sync()
        except DiskError as error:
            _logger.warning("records since the last good sync are not durable: %s", error)
            self.retire(chunk)
            self._lost_records = True
        return not chunk.in_doubt

    def make_others_durable(self, leaving: ChunkFile | None) -> bool:
        """Sync every file except one that is to be reclaimed; blocks. False if a sync fails."""
        return all([self.make_durable(chunk) for chunk in self.files.values() if chunk.dirty and chunk is not leaving])

    def discard(self, file_id: int) -> None:
        """Close and remove a file, durably; blocks. If that fails, its bytes still count, and it is tried again."""
        chunk = self.files.get(file_id)
        if chunk is not None:
            self.retire(chunk)
            self._space.let_go(chunk)

    def oldest_sequence(self, *, without: ChunkFile) -> int:
        """No block in any other file has a lower sequence."""
        return self._space.oldest_sequence(without=without)

    def adopt_array(self, array: str) -> Geometry | None:
        """Take over an array of an earlier run, its shape grown to the capacity; blocks. See `ZarrArrays.adopt`."""
        geometry = self._arrays.adopt(array, self._space.files_of)
        self._space.reserve_nbytes = max(self._limits.file_nbytes, self._arrays.longest_file_nbytes)
        return geometry

    def adopt(self, name: ChunkName, nbytes: int) -> ChunkFile | None:
        """Open a file of an earlier run for reading; None where that fails: its bytes still count. Blocks."""
        try:
            file = self._disk.open(name.path)
        except DiskError as error:
            _logger.warning("chunk file skipped: %s", error)
            self.ignore(name, nbytes)
            return None
        return self._enter(ChunkFile(self._next_id, name, file, nbytes=nbytes))

    def ignore(self, name: ChunkName, nbytes: int) -> None:
        """Count the bytes of a file that this run does not use."""
        self._space.ignore(name, nbytes)

    def disown(self, chunk: ChunkFile) -> None:
        """Leave alone a file that turned out to belong to another store; its bytes count."""
        del self.files[chunk.file_id]
        chunk.file.close()
        self.ignore(chunk.name, chunk.nbytes)

    def resume(self, chunk: ChunkFile, keys: Keys) -> bool:
        """Make an adopted open file ready for more records behind its last; False where it is not whole."""
        geometry = self._arrays.get(chunk.name.array)
        if geometry is None or geometry.file_nbytes != chunk.nbytes:
            return False
        return chunk.resume(keys, slots=geometry.slots)

    def continue_with(self, chunk: ChunkFile) -> None:
        """Append the next records of an array to a resumed file, once its records are durable. Blocks."""
        self._current[chunk.name.array] = chunk
        self.make_durable(chunk)

    def close(self) -> None:
        """Sync and close every file; blocks."""
        self.sync()
        for chunk in self.files.values():
            chunk.file.close()
        self.files.clear()
        self._current.clear()

    def _begin(self, array: str, *, reserved: bool) -> ChunkFile | Outcome:
        geometry = self._arrays.get(array)
        if geometry is None:
            return Outcome.REJECTED
        self._space.remove_leaving()
        taken = self._space.numbers(array)
        number = next(number for number in range(FILES_MAX + 1) if number not in taken)
        nbytes = geometry.file_nbytes
        try:
            self._space.look()
            if number == FILES_MAX or not self._space.files_left(nbytes, reserved=reserved):
                return Outcome.REJECTED
            name = ChunkName.new(array, number)
            file = self._disk.create(name.path, nbytes)
        except DiskError as error:
            return _refused(error)
        self._space.took(nbytes)
        chunk = self._enter(ChunkFile(self._next_id, name, file, nbytes=nbytes, slots=geometry.slots))
        chunk.begin()
        return chunk

    def _enter(self, chunk: ChunkFile) -> ChunkFile:
        self.files[chunk.file_id] = chunk
        self._next_id += 1
        return chunk


def _refused(error: DiskError) -> Outcome:
    """What a caller is told of a file that could not be made."""
    _logger.debug("no chunk file begun: %s", error)  # the store's health tells it, once
    return Outcome.REJECTED if error.errno in (errno.ENOSPC, errno.EDQUOT) else Outcome.IO_ERROR
