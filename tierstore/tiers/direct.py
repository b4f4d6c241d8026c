"""Reads blocks from chunk files into the device pool; none is OK before its bytes have been verified.

Called by the SSD tier from several read workers at once. With direct reads (such as GPUDirect Storage), only a record's
header page passes through host memory: the payload goes straight to its slot, and the device computes its checksum
there. Blocks that direct reads cannot take, or failed on, are read and verified in host scratch and then copied.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tierstore.codec.base import Codec, RawCodec
from tierstore.device.paging import bind_pool
from tierstore.errors import DeviceError, DiskError, TierstoreError
from tierstore.tiers.chunkfile import ChunkFile
from tierstore.tiers.fetching import Wanted, cut_runs, outcomes_of, read_records, verify_headers
from tierstore.tiers.frame import Pool, Scratch
from tierstore.tiers.reading import RecordReader, part_of
from tierstore.tiers.record import HEADER, RecordShape, pages_of
from tierstore.types import PAGE_NBYTES, CopyJob, Extents, Outcome

if TYPE_CHECKING:
    from tierstore.device.base import Device
    from tierstore.device.paged_kv import PagedKV
    from tierstore.types import Int32Array, Int64Array, UInt8Array, UInt32Array

__all__ = ["DirectReader", "FarReads"]

_logger = logging.getLogger(__name__)


class FarReads(Protocol):
    """Direct reads: from files into device memory."""

    def read(self, path: str, pieces: Sequence[tuple[int, int, int]]) -> None:
        """Read (position in the file, address, bytes) pieces, whole. Blocks. Raises DiskError."""


class DirectReader:
    """Reads jobs of blocks.

    Args:
        device: The device of the pool.
        pool: uint8[pool_nbytes], as `DeviceMemory.allocate` gave it.
        far: Direct reads past host memory; None if there are none.
    """

    def __init__(self, device: Device, pool: UInt8Array, far: FarReads | None) -> None:
        self._device = device
        self._pool = pool
        self._far = far
        self._stream = device.new_stream("ssd-direct")
        self._own = threading.local()

    def read(self, job: CopyJob, files: Mapping[int, ChunkFile], codecs: Mapping[str, Codec]) -> UInt8Array:
        """Fill the job's slots in the device pool; see `RecordReader.read`."""
        extents, slots = job.src_locations, job.dst_locations
        assert isinstance(extents, Extents) and slots is not None, f"job {job.job_id} does not read from SSD"
        outcomes = np.full(len(job), Outcome.IO_ERROR, np.uint8)
        if self._far is not None:
            raw = [file in files and files[file].name.codec == RawCodec.name for file in extents.file.tolist()]
            rows = np.flatnonzero(raw)
            if len(rows):
                outcomes[rows] = self._read_far(self._far, part_of(job, rows), files)
        rest = np.flatnonzero(outcomes == Outcome.IO_ERROR)
        if len(rest):
            outcomes[rest] = self._read_by_host(part_of(job, rest), files, codecs)
        return outcomes

    def close(self) -> None:
        """End its stream. Blocks."""
        self._stream.close()

    def _read_far(self, far: FarReads, job: CopyJob, files: Mapping[int, ChunkFile]) -> UInt8Array:
        """Raw blocks past host memory: uint8[n] of `Outcome`."""
        extents, slots = job.src_locations, job.dst_locations
        assert isinstance(extents, Extents) and slots is not None
        shape = RecordShape(job.generation.layout.block_nbytes)
        headers = self._scratch.take(len(job) * PAGE_NBYTES).view(HEADER).reshape(-1)
        pages = headers.view(np.uint8).reshape(-1, PAGE_NBYTES)
        one_page = np.ones(len(job), np.int64)
        filled = read_records(extents, one_page, files, lambda start, stop: [pages[start:stop].reshape(-1).data])
        wanted = Wanted(
            extents,
            np.frombuffer(job.generation.fingerprint, dtype=np.uint8)[np.newaxis],
            np.array([job.generation.epoch]),
            job.hashes,
            shape.nbytes,
            RawCodec(),
        )
        intact = filled & (extents.nbytes == shape.nbytes) & verify_headers(headers, wanted, files)
        for file in np.unique(extents.file[intact]).tolist():
            rows = np.flatnonzero(intact & (extents.file == file))
            filled[rows] = self._read_payloads(far, files[file], extents.page[rows], slots[rows], shape)
        rows = np.flatnonzero(filled & intact)
        try:
            found = self._device.checksums(self._pool, slots[rows].astype(np.int32, copy=False), shape.nbytes)
            intact[rows] = found == extents.checksum[rows]
        except DeviceError as error:
            _logger.error("blocks read past host memory cannot be verified: %s", error)
            filled[rows] = False
        return outcomes_of(filled, intact)

    def _read_payloads(
        self, far: FarReads, chunk: ChunkFile, pages: UInt32Array, slots: Int32Array | Int64Array, shape: RecordShape
    ) -> bool:
        """Whole slots behind header pages of one file; whether all of them came."""
        begin = self._pool.ctypes.data
        pieces = [
            ((page + 1) * PAGE_NBYTES, begin + slot * PAGE_NBYTES, shape.slot_nbytes)
            for page, slot in zip(pages.tolist(), slots.tolist(), strict=True)
        ]
        for _attempt in range(2):  # it may be sealed, and so renamed, between a look at its name and the reads
            try:
                far.read(chunk.name.path, pieces)
            except DiskError as error:
                _logger.debug("%s", error)
            else:
                return True
        return False

    def _read_by_host(self, job: CopyJob, files: Mapping[int, ChunkFile], codecs: Mapping[str, Codec]) -> UInt8Array:
        """Read blocks through host scratch, verified there: uint8[n] of `Outcome`."""
        slots = job.dst_locations
        assert slots is not None
        block_nbytes = job.generation.layout.block_nbytes
        slot_pages = pages_of(block_nbytes)
        outcomes = np.empty(len(job), np.uint8)
        kv = bind_pool(self._pool, block_nbytes, self._device.memory)
        for run in cut_runs([slot_pages] * len(job)):
            part = part_of(job, np.arange(run.start, run.stop))
            memory = self._scratch.take(len(part) * slot_pages * PAGE_NBYTES)
            places = np.arange(len(part), dtype=np.int32) * np.int32(slot_pages)
            reader = RecordReader(Pool(memory), reads_max=1)
            outcomes[run] = reader.read(replace(part, dst_locations=places), files, codecs)
            good = np.flatnonzero(outcomes[run] == Outcome.OK)
            if not self._copy(memory, places[good], kv, slots[run][good].astype(np.int64)):
                outcomes[run.start + good] = Outcome.IO_ERROR
        return outcomes

    def _copy(self, memory: UInt8Array, places: Int32Array, kv: PagedKV, slots: Int64Array) -> bool:
        """Copy scratch into slots; whether all of it was copied."""
        if not len(places):
            return True
        try:
            events = self._device.load(memory, places, kv, slots[np.newaxis], self._stream)
        except TierstoreError as error:
            _logger.error("blocks not copied into the device pool: %s", error)
            return False
        return all([event.wait() for event in events]) and self._stream.failure is None

    @property
    def _scratch(self) -> Scratch:
        """The calling thread's scratch."""
        scratch: Scratch | None = getattr(self._own, "scratch", None)
        if scratch is None:
            scratch = self._own.scratch = Scratch()
        return scratch
