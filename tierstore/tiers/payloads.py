"""Sources of the payloads of new records: plain slots, encoded slots, or older records.

Called by `tierstore.tiers.writing`. While one run is written, the next is prepared, perhaps by several threads, each
with rows of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
from crc32c import crc32c

from tierstore.tiers.batch import Batch, Run
from tierstore.tiers.chunkfile import ChunkFile
from tierstore.tiers.fetching import RecordFetcher, Wanted, cut_runs, pages_to_read
from tierstore.tiers.frame import Frame, Pool, Scratch, run_records
from tierstore.tiers.record import CHECKSUM_NBYTES, RecordShape, pages_of, record_pages
from tierstore.types import PAGE_NBYTES, Extents, Outcome

if TYPE_CHECKING:
    from tierstore.types import Int32Array, Int64Array

__all__ = ["UNBOUND", "EncodedSlots", "OldRecords", "Payloads", "PlainSlots"]

UNBOUND = 1 << 31
"""Lanes of a source that holds nothing for a run."""

_logger = logging.getLogger(__name__)


class Payloads(Protocol):
    """One kind of source."""

    @property
    def threads(self) -> int:
        """Threads that prepare one run together; 0 if the write worker does it by itself."""

    @property
    def lanes(self) -> int:
        """How many neighbouring runs may be prepared or in use at the same time."""

    def cut(self, batch: Batch) -> list[Run]:
        """Cut a batch into runs. One batch is in use at a time."""

    def prepare(self, run: Run, rows: range) -> None:
        """Make some rows of a run ready, or end those that fail; blocks."""

    def buffers(self, run: Run, rows: Int64Array, frame: Frame) -> list[memoryview]:
        """Whole records of ready rows, one after another; their headers are the first rows of the frame."""


class PlainSlots:
    """Blocks as they are in their slots: nothing is copied, and checksums are computed faster than SSDs write."""

    threads = 0
    lanes = UNBOUND

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def cut(self, batch: Batch) -> list[Run]:
        """Runs of one length behind shorter ones."""
        return [Run(batch, rows) for rows in _growing_runs(len(batch), run_records(batch.shape))]

    def prepare(self, run: Run, rows: range) -> None:
        """Compute checksums."""
        batch, slots, nbytes = run.batch, _slots(run.batch), run.batch.shape.nbytes
        own = slice(rows.start, rows.stop, rows.step)
        batch.checksum[own] = [crc32c(self._pool.payload(slot, nbytes)) for slot in slots[own].tolist()]
        batch.nbytes[own] = nbytes
        batch.ready[own] = True
        batch.end_spoilt(np.arange(own.start, own.stop, own.step), batch.checksum[own])

    def buffers(self, run: Run, rows: Int64Array, frame: Frame) -> list[memoryview]:
        """Header pages, slots and tail pages. Changes the padding of the slots."""
        slots, shape = _slots(run.batch)[rows], run.batch.shape
        frame.place_checksums(self._pool, slots, run.batch.checksum[rows], shape)
        return frame.buffers(self._pool, slots.tolist(), shape)


class EncodedSlots:
    """Blocks encoded into scratch, each followed by its checksum and zeros up to the end of the page.

    One run is written from one scratch while the next is encoded into the other.

    Args:
        pool: Where the blocks lie.
        threads: How many encode one run together.
    """

    lanes = 2

    def __init__(self, pool: Pool, threads: int) -> None:
        self._pool = pool
        self._scratches = (Scratch(), Scratch())
        self.threads = threads

    def cut(self, batch: Batch) -> list[Run]:
        """Runs of one length behind shorter ones; in the two scratches by turns."""
        longest = RecordShape(batch.codec.max_encoded_nbytes(batch.shape.nbytes))
        body_nbytes = longest.pitch_nbytes - PAGE_NBYTES
        records = max(self.threads, run_records(longest) // self.threads * self.threads)
        bodies = []
        for scratch in self._scratches:
            memory = scratch.take(min(records, len(batch)) * body_nbytes).data
            bodies.append([memory[start : start + body_nbytes] for start in range(0, len(memory), body_nbytes)])
        return [Run(batch, rows, bodies[turn % 2]) for turn, rows in enumerate(_growing_runs(len(batch), records))]

    def prepare(self, run: Run, rows: range) -> None:
        """Encode."""
        batch, slots, item_nbytes = run.batch, _slots(run.batch), run.batch.layout.item_nbytes
        for row in rows:
            block = self._pool.payload(int(slots[row]), batch.shape.nbytes)
            if batch.expected[row] >= 0:
                batch.end_spoilt(np.array([row]), np.array([crc32c(block)], np.uint32))
            body = run.bodies[row - run.rows.start]
            try:
                nbytes = batch.codec.encode(block, body, item_nbytes=item_nbytes)
            except ValueError as error:
                _logger.warning("a block cannot be encoded: %s", error)
                batch.end(row, Outcome.REJECTED)
                continue
            checksum = crc32c(body[:nbytes])
            end = pages_of(nbytes + CHECKSUM_NBYTES) * PAGE_NBYTES
            body[nbytes:end] = checksum.to_bytes(CHECKSUM_NBYTES, "little").ljust(end - nbytes, b"\0")
            batch.nbytes[row], batch.checksum[row] = nbytes, checksum
            batch.ready[row] = True

    def buffers(self, run: Run, rows: Int64Array, frame: Frame) -> list[memoryview]:
        """Header pages and scratch."""
        return _from_bodies(run, rows, frame)


class OldRecords:
    """Records of files that are about to go, verified as a read does and written again as they are.

    Args:
        files: Chunk files by the number in extents.
    """

    threads = 0
    lanes = 1

    def __init__(self, files: Mapping[int, ChunkFile]) -> None:
        self._fetcher = RecordFetcher()
        self._files = files

    def cut(self, batch: Batch) -> list[Run]:
        """Runs that the fetcher can read at once."""
        pages = pages_to_read(_extents(batch), batch.shape.nbytes, batch.codec)
        return [Run(batch, range(rows.start, rows.stop)) for rows in cut_runs(pages.tolist())]

    def prepare(self, run: Run, rows: range) -> None:
        """Read and verify; rows that fail end as CORRUPT or IO_ERROR. Parents and times are the record's own."""
        batch, own = run.batch, np.arange(rows.start, rows.stop)
        extents = _extents(batch).rows(own)
        wanted = Wanted(
            extents, batch.fingerprints[own], batch.epochs[own], batch.hashes[own], batch.shape.nbytes, batch.codec
        )
        fetched = self._fetcher.fetch(wanted, self._files)
        run.bodies = fetched.bodies
        batch.parents[own], batch.created_ns[own] = fetched.headers["parent_hash"], fetched.headers["created_ns"]
        batch.nbytes[own], batch.checksum[own] = extents.nbytes, extents.checksum
        intact = fetched.outcomes == Outcome.OK
        batch.ready[own] = intact
        batch.end(own[~intact], fetched.outcomes[~intact])

    def buffers(self, run: Run, rows: Int64Array, frame: Frame) -> list[memoryview]:
        """Header pages and scratch."""
        return _from_bodies(run, rows, frame)


def _growing_runs(count: int, step: int) -> list[range]:
    """Cut rows into runs of `step` behind shorter ones, each twice the last, so that writing begins soon."""
    runs, start, nrows = [], 0, max(1, step // 8)
    while start < count:
        runs.append(range(start, min(start + nrows, count)))
        start, nrows = start + nrows, min(2 * nrows, step)
    return runs


def _from_bodies(run: Run, rows: Int64Array, frame: Frame) -> list[memoryview]:
    buffers: list[memoryview] = []
    body_pages = (record_pages(run.batch.nbytes[rows]) - 1).tolist()
    for header, row, pages in zip(frame.header_views, rows.tolist(), body_pages, strict=False):
        buffers += header, run.bodies[row - run.rows.start][: pages * PAGE_NBYTES]
    return buffers


def _slots(batch: Batch) -> Int32Array:
    assert not isinstance(batch.src, Extents), "these blocks come from the pool"
    return batch.src


def _extents(batch: Batch) -> Extents:
    assert isinstance(batch.src, Extents), "these blocks come from SSD"
    return batch.src
