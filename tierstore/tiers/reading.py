"""Reads records into pool slots and verifies each against its identity before anybody may use it.

Called by the SSD tier from several read workers at once; each thread has a frame of its own. Records that
lie side by side come with one vectored call. A block that does not verify is CORRUPT, one whose sectors
cannot be read is IO_ERROR; no failure of a disk or of bytes becomes an exception here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c

from tierstore.errors import DiskError
from tierstore.tiers.chunkfile import ChunkFile
from tierstore.tiers.frame import Frame, Pool, run_records
from tierstore.tiers.record import KIND_BLOCK, RecordShape, valid_headers
from tierstore.types import PAGE_NBYTES, CopyJob, Extents, Outcome

if TYPE_CHECKING:
    from tierstore.tiers.record import BoolArray
    from tierstore.types import Int32Array, Int64Array, UInt8Array

__all__ = ["RecordReader"]

_logger = logging.getLogger(__name__)


class RecordReader:
    """Reads jobs of blocks whose records hold them as they are in the pool.

    Args:
        pool: Where the blocks go.
        codec_id: What their headers must say.
    """

    def __init__(self, pool: Pool, codec_id: int) -> None:
        self._pool = pool
        self._codec_id = codec_id
        self._own = threading.local()

    def read(self, job: CopyJob, files: Mapping[int, ChunkFile]) -> UInt8Array:
        """Fill the job's slots; blocks. Slots of blocks that are not OK may hold anything.

        Args:
            job: A read; its extents may lie in any order.
            files: Chunk files by the number in the extents. An extent in no such file is an IO_ERROR.

        Returns:
            uint8[n] of `Outcome` in the job's order: OK, CORRUPT or IO_ERROR.
        """
        extents, slots = job.src_locations, job.dst_locations
        assert isinstance(extents, Extents), f"job {job.job_id} does not read from SSD"
        assert slots is not None, f"job {job.job_id} has no slots to read into"
        outcomes = np.empty(len(job), dtype=np.uint8)
        shape = RecordShape(job.generation.layout.block_nbytes)
        order = np.lexsort((extents.page, extents.file))
        for first in range(0, len(order), run_records(shape)):
            rows = order[first : first + run_records(shape)]
            group = _Group(job, _take(extents, rows), job.hashes[rows], slots[rows].astype(np.int32, copy=False), shape)
            filled = self._fill(group, files)
            intact = self._verify(group, files)
            outcomes[rows] = np.where(filled, np.where(intact, Outcome.OK, Outcome.CORRUPT), Outcome.IO_ERROR)
        return outcomes

    def _fill(self, group: _Group, files: Mapping[int, ChunkFile]) -> BoolArray:
        """Read a group, side by side records in one call each: bool[n], whether every byte came."""
        extents, pitch = group.extents, group.shape.pitch_nbytes // PAGE_NBYTES
        filled = np.zeros(len(extents), dtype=np.bool_)
        apart = (np.diff(extents.file) != 0) | (np.diff(extents.page.astype(np.int64)) != pitch)
        edges = [0, *(np.flatnonzero(apart) + 1).tolist(), len(extents)]
        for start, stop in pairwise(edges):
            filled[start:stop] = self._fill_run(group, files, start, stop)
        return filled

    def _fill_run(self, group: _Group, files: Mapping[int, ChunkFile], start: int, stop: int) -> bool | list[bool]:
        """Read one run; where that fails, each record by itself, so that a bad sector fails one block."""
        chunk = files.get(int(group.extents.file[start]))
        if chunk is None:
            return False
        buffers = self._frame.buffers(self._pool, group.slots[start:stop].tolist(), group.shape, first=start)
        try:
            chunk.file.read_into(buffers, int(group.extents.page[start]) * PAGE_NBYTES)
        except DiskError as error:
            _logger.warning("%s", error)
            if stop - start == 1:
                return False
            return [bool(self._fill_run(group, files, row, row + 1)) for row in range(start, stop)]
        return True

    def _verify(self, group: _Group, files: Mapping[int, ChunkFile]) -> BoolArray:
        """Compare header, checksum copies and payload of each record with the job: bool[n]."""
        extents, generation = group.extents, group.job.generation
        headers = self._frame.headers[: len(extents)]
        uuids = b"".join(files[file].name.file_uuid if file in files else bytes(16) for file in extents.file.tolist())
        intact: BoolArray = (
            valid_headers(headers)
            & (headers["kind"] == KIND_BLOCK)
            & (headers["codec_id"] == self._codec_id)
            & (headers["epoch"] == generation.epoch)
            & (headers["raw_nbytes"] == group.shape.nbytes)
            & (headers["encoded_nbytes"] == group.shape.nbytes)
            & (headers["payload_checksum"] == extents.checksum)
            & (extents.nbytes == group.shape.nbytes)
            & (self._frame.collect_checksums(self._pool, group.slots, group.shape) == extents.checksum)
            & _rows_equal(headers["file_uuid"], np.frombuffer(uuids, dtype=np.uint8).reshape(-1, 16))
            & _rows_equal(headers["fingerprint"], np.frombuffer(generation.fingerprint, dtype=np.uint8))
            & _rows_equal(headers["block_hash"], group.hashes)
        )
        for row in np.flatnonzero(intact).tolist():
            payload = self._pool.payload(int(group.slots[row]), group.shape.nbytes)
            intact[row] = crc32c(payload) == extents.checksum[row]
        return intact

    @property
    def _frame(self) -> Frame:
        """The calling thread's frame."""
        frame: Frame | None = getattr(self._own, "frame", None)
        if frame is None:
            frame = self._own.frame = Frame()
        return frame


@dataclass(frozen=True, slots=True)
class _Group:
    """Blocks of a job that share the frame at one time, in the order of their extents."""

    job: CopyJob
    extents: Extents
    hashes: UInt8Array
    slots: Int32Array
    shape: RecordShape


def _take(extents: Extents, rows: Int64Array) -> Extents:
    return Extents(extents.file[rows], extents.page[rows], extents.nbytes[rows], extents.checksum[rows])


def _rows_equal(found: UInt8Array, expected: UInt8Array) -> BoolArray:
    equal: BoolArray = (found == expected).all(axis=1)
    return equal
