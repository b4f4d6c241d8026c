"""The read-only SSD tier, for a folder that another store may own: it has the blocks that lay there when it was opened.

Implements `tierstore.tiers.base.Tier`. It writes nothing, holds no lock, and keeps no file open between two reads, so
that files that the owner removes free their space. If the owner seals a file meanwhile, the tier follows the new name;
blocks of a file that the owner reclaims become misses. Every block is verified as in the owner's own tier.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tierstore.codec.base import Codec
from tierstore.codec.timed import TimedCodec, Verb
from tierstore.disk.base import Disk
from tierstore.disk.bounded import BoundedDisk
from tierstore.disk.watched import WatchedDisk
from tierstore.errors import DiskError, FolderError
from tierstore.health import Fault
from tierstore.tiers.base import Probed, Progress, Recovered, Synced
from tierstore.tiers.chunkfile import ChunkFile, ChunkName
from tierstore.tiers.finding import FoundFile, batches, list_chunks, mark_alive, read_chunk
from tierstore.tiers.frame import Pool, aligned_buffer
from tierstore.tiers.living import Census
from tierstore.tiers.progress import logged_progress
from tierstore.tiers.reading import RecordReader, part_of
from tierstore.tiers.record import HEADER, valid_headers
from tierstore.tiers.zarr_metadata import Geometry, ZarrArrays
from tierstore.types import PAGE_NBYTES, CopyJob, CopyResult, Extents, Outcome, TombstoneJob

if TYPE_CHECKING:
    from tierstore.types import UInt8Array

__all__ = ["ReadOnlySsdTier"]

_LOOKS_MAX = 100
"""Times that files may be given back while the folder is being read; an owner needs longer for one than this tier."""

_logger = logging.getLogger(__name__)


class ReadOnlySsdTier:
    """Blocks on an SSD folder that may have an owner elsewhere. `recover` comes before the first `read`.

    Args:
        disk: The folder; read access is enough.
        pool: uint8[pool_nbytes]; the host pool, at a page boundary.
        epochs: The living epoch of each known namespace, by fingerprint.
        codecs: By name, what makes those that can be read.
        reads_max: Reads of the disk at once; see `RecordReader`.
    """

    def __init__(
        self,
        disk: Disk,
        pool: UInt8Array,
        epochs: Mapping[bytes, int],
        *,
        codecs: Mapping[str, Callable[[], Codec]],
        reads_max: int = 4,
    ) -> None:
        self._disk = disk
        self._passing = WatchedDisk(BoundedDisk(disk, 0))
        self._epochs = epochs
        self._new_codec = codecs
        self._codecs: dict[str, TimedCodec] = {}
        self._arrays = ZarrArrays(disk)
        self._reader = RecordReader(Pool(pool), reads_max)
        self._chunks: dict[int, ChunkFile] = {}

    @property
    def files(self) -> list[int]:
        """Every chunk file found."""
        return list(self._chunks)

    @property
    def used_nbytes(self) -> int:
        """The lengths of all files found."""
        return sum(chunk.nbytes for chunk in self._chunks.values())

    def recover(self, progress: Progress | None = None) -> Iterator[Recovered]:
        """Find the blocks in the folder now; blocks. Blocks that the owner appends later are not seen.

        Raises:
            FolderError: The owner removed files faster than they could be read.
        """
        census = Census(self._epochs)
        for _ in range(_LOOKS_MAX):
            files = self._find(census, progress or logged_progress())
            if files is not None:
                break
        else:
            raise FolderError("the owner of the SSD folder gives files back faster than they are read; try again")
        files.sort(key=lambda file: file.last_sequence)
        mark_alive(files)
        self._chunks = {file.chunk.file_id: file.chunk for file in files}
        for name in {chunk.name.codec for chunk in self._chunks.values()}:
            self._codecs[name] = TimedCodec(self._new_codec[name]())
        return iter([batch for file in files for batch in batches(file, census)])

    def read(self, job: CopyJob) -> CopyResult:
        """Fill the job's host slots and verify each block; blocks. A block whose file has gone is a MISS."""
        started = time.perf_counter()
        assert isinstance(job.src_locations, Extents), f"job {job.job_id} does not read from SSD"
        files = job.src_locations.file
        names = {file: self._chunks[file].name for file in set(files.tolist())}
        self._passing.take_fault()
        outcomes = self._read(job)
        for file in set(files[outcomes != Outcome.OK].tolist()):
            chunk = self._chunks[file]
            rows = np.flatnonzero((outcomes != Outcome.OK) & (files == file))
            if chunk.name != names[file] or self._follow(chunk):
                outcomes[rows] = self._read(part_of(job, rows))
            elif _has_gone(chunk):
                outcomes[rows] = Outcome.MISS
        fault = self._passing.take_fault() if (outcomes == Outcome.IO_ERROR).any() else None
        return CopyResult(job.job_id, outcomes, seconds=time.perf_counter() - started, fault=fault)

    def write(self, jobs: Sequence[CopyJob | TombstoneJob]) -> list[CopyResult]:
        """Write nothing: every block is REJECTED."""
        return [CopyResult(job.job_id, np.full(len(job), Outcome.REJECTED, np.uint8)) for job in jobs]

    def sync(self) -> Synced:
        """Do nothing: there are no writes to sync."""
        return Synced(Outcome.OK)

    def discard(self, file: int) -> int:
        """Do nothing: no file belongs to this tier, and none is reclaimed while it takes no block."""
        raise AssertionError(f"file {file} of a folder that is open for reading alone is to be given back")

    def probe(self) -> Probed:
        """Test whether the folder can be listed. That nothing can be written is no fault."""
        try:
            self._disk.look("arrays")
        except DiskError as error:
            return Probed(Outcome.IO_ERROR, Outcome.OK, fault=Fault(str(error)))
        return Probed(Outcome.OK, Outcome.OK)

    def take_codec_seconds(self) -> list[tuple[Verb, float]]:
        """How long threads have decoded since this was last asked; from any thread."""
        return [spent for codec in tuple(self._codecs.values()) for spent in codec.take_seconds().items()]

    def close(self) -> None:
        """Do nothing: no resource is held."""

    def _find(self, census: Census, progress: Progress) -> list[FoundFile] | None:
        """Read the folder once; None if a file was removed between listing and opening.

        Sealed files are read first, which is quick; open files are scanned and may be sealed meanwhile. So the
        tombstones of every file are read, even if the file is removed later.
        """
        listed, _complete = list_chunks(self._disk)
        known = [(name, nbytes) for name, nbytes in listed if name.codec in self._new_codec]
        if len(known) < len(listed):
            _logger.warning(
                "%d files are of codecs that are not installed: they are not read", len(listed) - len(known)
            )
        total_nbytes, done_nbytes = sum(nbytes for _name, nbytes in known), 0
        files: list[FoundFile] = []
        for name, nbytes in sorted(known, key=lambda item: (not item[0].axes, item[0].number)):
            geometry = self._geometry(name.array)
            chunk = self._open(len(files), name, nbytes, geometry)
            if chunk is None:
                return None
            files.append(read_chunk(chunk, geometry, census, lambda _nbytes: None))
            if not self._let_pass(chunk):
                chunk.file.close()
            done_nbytes += nbytes
            progress(done_nbytes, total_nbytes)
        return files

    def _geometry(self, array: str) -> Geometry | None:
        return self._arrays.get(array) or self._arrays.adopt(array, lambda _nbytes: 0)  # its shape need not grow

    def _open(self, file_id: int, name: ChunkName, nbytes: int, geometry: Geometry | None) -> ChunkFile | None:
        """Open a chunk file for the time that it is read, under the name it has now; None where it has none."""
        for now in (name, name.sealed(geometry.axes) if geometry and not name.axes else name):
            try:
                return ChunkFile(file_id, now, self._disk.open(now.path), nbytes=nbytes)
            except DiskError as error:
                if error.errno != errno.ENOENT:
                    raise
        return None

    def _let_pass(self, chunk: ChunkFile) -> bool:
        """Close a file, to be opened for each read from now on; False if it is gone and cannot be read."""
        try:
            file = self._passing.open(chunk.name.path)
        except DiskError as error:
            _logger.debug("%s", error)
            return False
        chunk.file.close()
        chunk.file = file
        return True

    def _follow(self, chunk: ChunkFile) -> bool:
        """Read an open file that the owner has sealed meanwhile under its new name."""
        geometry = self._arrays.get(chunk.name.array)
        if chunk.name.axes or geometry is None:
            return False
        open_names, chunk.names = chunk.names, (chunk.name.sealed(geometry.axes),)
        if self._let_pass(chunk) and not _has_gone(chunk):
            return True
        chunk.names = open_names
        return False

    def _read(self, job: CopyJob) -> UInt8Array:
        return self._reader.read(job, self._chunks, self._codecs)


def _has_gone(chunk: ChunkFile) -> bool:
    """Whether a file's name leads nowhere, or to another file; a look at its first header."""
    page = aligned_buffer(PAGE_NBYTES)
    try:
        chunk.file.read_into([page.data], 0)
    except DiskError as error:
        return error.errno in (errno.ENOENT, errno.EBADF)
    header = page.view(HEADER)
    return bool(valid_headers(header)[0]) and header["file_uuid"][0].tobytes() != chunk.name.file_uuid
