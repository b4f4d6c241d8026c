"""Reads blocks into pool slots; none is OK before it has been verified against its identity.

Called by the SSD tier from several read workers at once; each thread has scratch of its own. Raw blocks are read
straight into their slots. Encoded blocks are read into scratch, verified, and then decoded into their slots. Disk
failures and corrupt bytes raise no exception here.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c

from tierstore.codec.base import Codec, RawCodec
from tierstore.tiers.chunkfile import ChunkFile
from tierstore.tiers.fetching import (
    RecordFetcher,
    Wanted,
    cut_runs,
    outcomes_of,
    pages_to_read,
    read_records,
    verify_headers,
)
from tierstore.tiers.frame import Frame, Pool
from tierstore.tiers.record import RecordShape
from tierstore.types import PAGE_NBYTES, CopyJob, Extents, Outcome

if TYPE_CHECKING:
    from tierstore.types import Int32Array, Int64Array, UInt8Array

__all__ = ["RecordReader", "part_of"]

_logger = logging.getLogger(__name__)


def part_of(job: CopyJob, rows: Int64Array) -> CopyJob:
    """Some rows of a read."""
    assert isinstance(job.src_locations, Extents) and job.dst_locations is not None
    return replace(
        job,
        entries=job.entries[rows],
        hashes=job.hashes[rows],
        src_locations=job.src_locations.rows(rows),
        dst_locations=job.dst_locations[rows],
    )


class RecordReader:
    """Reads jobs of blocks.

    Args:
        pool: Receives the blocks.
        reads_max: Concurrent disk calls. With more threads than that, the disk goes on reading while blocks are
            verified; else threads that begin together also end together, and leave it idle.
    """

    def __init__(self, pool: Pool, reads_max: int) -> None:
        self._pool = pool
        self._turns = threading.Semaphore(reads_max)
        self._own = threading.local()

    def read(self, job: CopyJob, files: Mapping[int, ChunkFile], codecs: Mapping[str, Codec]) -> UInt8Array:
        """Fill the job's slots; blocks. The slot of a block that is not OK may hold anything.

        Args:
            job: A read; its extents may lie in any order.
            files: Chunk files by the number in the extents. An extent in no such file is an IO_ERROR.
            codecs: By name, those of the files.

        Returns:
            uint8[n] of `Outcome` in the job's order: OK, CORRUPT or IO_ERROR.
        """
        first = next(iter(codecs))
        if len(codecs) == 1:
            return self._read(job, files, codecs[first])
        extents = job.src_locations
        assert isinstance(extents, Extents), f"job {job.job_id} does not read from SSD"
        names = [files[file].name.codec if file in files else first for file in extents.file.tolist()]
        outcomes = np.empty(len(job), dtype=np.uint8)
        for name in dict.fromkeys(names):
            rows = np.flatnonzero([own == name for own in names])
            outcomes[rows] = self._read(part_of(job, rows), files, codecs[name])
        return outcomes

    def _read(self, job: CopyJob, files: Mapping[int, ChunkFile], codec: Codec) -> UInt8Array:
        """Read records of one codec."""
        extents, slots = job.src_locations, job.dst_locations
        assert isinstance(extents, Extents), f"job {job.job_id} does not read from SSD"
        assert slots is not None, f"job {job.job_id} has no slots to read into"
        layout = job.generation.layout
        straight = codec.codec_id == RawCodec.codec_id
        raw_pages = RecordShape(layout.block_nbytes).pitch_nbytes // PAGE_NBYTES
        pages = np.full(len(job), raw_pages) if straight else pages_to_read(extents, layout.block_nbytes, codec)
        outcomes = np.empty(len(job), dtype=np.uint8)
        order = np.lexsort((extents.page, extents.file))
        for run in cut_runs(pages[order].tolist()):
            rows = order[run]
            wanted = Wanted(
                extents.rows(rows),
                np.frombuffer(job.generation.fingerprint, dtype=np.uint8)[np.newaxis],
                np.array([job.generation.epoch]),
                job.hashes[rows],
                layout.block_nbytes,
                codec,
            )
            if straight:
                outcomes[rows] = self._read_straight(
                    wanted, pages[rows], slots[rows].astype(np.int32, copy=False), files
                )
            else:
                outcomes[rows] = self._decode(wanted, slots[rows].tolist(), files, layout.item_nbytes)
        return outcomes

    def _read_straight(
        self, wanted: Wanted, pages: Int64Array, slots: Int32Array, files: Mapping[int, ChunkFile]
    ) -> UInt8Array:
        """Read raw blocks into their slots and verify them there: uint8[n] of `Outcome`."""
        pool, frame, shape = self._pool, self._frame, RecordShape(wanted.raw_nbytes)

        def buffers(start: int, stop: int) -> list[memoryview]:
            return frame.buffers(pool, slots[start:stop].tolist(), shape, first=start)

        filled = read_records(wanted.extents, pages, files, buffers, turns=self._turns)
        # first of all, since it lets go of the interpreter: the next read begins meanwhile
        found = np.array([crc32c(pool.payload(slot, shape.nbytes)) for slot in slots.tolist()], np.uint32)
        checksums = wanted.extents.checksum
        intact = (
            filled
            & (found == checksums)
            & (wanted.extents.nbytes == shape.nbytes)
            & verify_headers(frame.headers[: len(slots)], wanted, files)
            & (frame.collect_checksums(pool, slots, shape) == checksums)
        )
        return outcomes_of(filled, intact)

    def _decode(self, wanted: Wanted, slots: list[int], files: Mapping[int, ChunkFile], item_nbytes: int) -> UInt8Array:
        """Read encoded blocks into scratch, verify them there and decode them into their slots: uint8[n]."""
        fetched = self._fetcher.fetch(wanted, files)
        for row in np.flatnonzero(fetched.outcomes == Outcome.OK).tolist():
            encoded = fetched.bodies[row][: wanted.extents.nbytes[row]]
            block = self._pool.payload(slots[row], wanted.raw_nbytes)
            try:
                wanted.codec.decode(encoded, block, item_nbytes=item_nbytes)
            except ValueError as error:
                _logger.warning("a record with a right checksum cannot be decoded: %s", error)
                fetched.outcomes[row] = Outcome.CORRUPT
        return fetched.outcomes

    @property
    def _frame(self) -> Frame:
        """The calling thread's frame."""
        frame: Frame | None = getattr(self._own, "frame", None)
        if frame is None:
            frame = self._own.frame = Frame()
        return frame

    @property
    def _fetcher(self) -> RecordFetcher:
        """The calling thread's fetcher."""
        fetcher: RecordFetcher | None = getattr(self._own, "fetcher", None)
        if fetcher is None:
            fetcher = self._own.fetcher = RecordFetcher(self._turns)
        return fetcher
