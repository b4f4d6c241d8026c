"""Appends blocks from pool slots to chunk files, as runs of records in one vectored call each.

Called by the SSD tier on its one write worker. The checksums of the next run are computed on a worker of
their own while the current run is being written. It decides nothing about files: the tier says where a run goes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from crc32c import crc32c

from tierstore.tiers.chunkfile import ChunkFile
from tierstore.tiers.frame import Frame, Pool, run_records
from tierstore.tiers.record import KIND_BLOCK, RecordShape, finish_headers
from tierstore.types import PAGE_NBYTES, CopyJob, Extents, Outcome
from tierstore.worker import Worker

if TYPE_CHECKING:
    import numpy.typing as npt

    from tierstore.layout import KVLayout
    from tierstore.types import Int32Array, UInt8Array, UInt32Array

__all__ = ["Batch", "RecordWriter"]


@dataclass(slots=True, eq=False)
class Batch:
    """Blocks of one layout on their way to SSD, the jobs' rows one after another, and what became of them.

    Attributes:
        layout: Of every block.
        jobs: In the order of the rows.
        slots: int32[n]; pool pages.
        outcomes: uint8[n] of `Outcome`; REJECTED until something else is known.
        file: int32[n]; see `Extents`, as the next two.
        page: uint32[n].
        checksum: uint32[n].
    """

    layout: KVLayout
    jobs: Sequence[CopyJob]
    shape: RecordShape = field(init=False)
    slots: Int32Array = field(init=False)
    outcomes: UInt8Array = field(init=False)
    file: Int32Array = field(init=False)
    page: UInt32Array = field(init=False)
    checksum: UInt32Array = field(init=False)

    def __post_init__(self) -> None:
        self.shape = RecordShape(self.layout.block_nbytes)
        self.slots = np.concatenate([job.src_locations for job in self.jobs]).astype(np.int32, copy=False)
        self.outcomes = np.full(len(self.slots), Outcome.REJECTED, dtype=np.uint8)
        self.file = np.full(len(self.slots), -1, dtype=np.int32)
        self.page = np.zeros(len(self.slots), dtype=np.uint32)
        self.checksum = np.zeros(len(self.slots), dtype=np.uint32)

    def __len__(self) -> int:
        return len(self.slots)

    def name_records(self, headers: npt.NDArray[np.void], rows: slice) -> None:
        """Put the identities of some rows into their headers."""
        start = 0
        for job in self.jobs:
            stop = start + len(job)
            first, last = max(start, rows.start), min(stop, rows.stop)
            if first < last:
                own, part = slice(first - start, last - start), headers[first - rows.start : last - rows.start]
                part["epoch"] = job.generation.epoch
                part["fingerprint"] = np.frombuffer(job.generation.fingerprint, dtype=np.uint8)
                part["block_hash"] = job.hashes[own]
                part["parent_hash"] = 0 if job.parents is None else job.parents[own]
            start = stop

    def results(self) -> Iterator[tuple[CopyJob, UInt8Array, Extents]]:
        """Each job with its outcomes and extents."""
        nbytes = np.full(len(self), self.shape.nbytes, dtype=np.uint32)
        start = 0
        for job in self.jobs:
            rows = slice(start, start + len(job))
            extents = Extents(self.file[rows], self.page[rows], nbytes[rows], self.checksum[rows])
            yield job, self.outcomes[rows], extents
            start = rows.stop


class RecordWriter:
    """Turns batches into records. Owns the thread that computes checksums.

    Args:
        pool: Where the blocks lie.
        codec_id: What the headers shall say.
        clock: Unix time in nanoseconds.

    Attributes:
        next_sequence: The store-wide number of the next record.
    """

    def __init__(self, pool: Pool, codec_id: int, clock: Callable[[], int]) -> None:
        self._pool = pool
        self._codec_id = codec_id
        self._clock = clock
        self._frame = Frame()
        self._worker = Worker("ssd-checksum", capacity=1)
        self.next_sequence = 0

    def runs(self, batch: Batch) -> Iterator[slice]:
        """Cut a batch into runs, each yielded when its checksums are there; blocks until then.

        The first run is short and summed up here, the others meanwhile on the checksum thread. Must be
        iterated to its end: that thread reads the slots until then.
        """
        step = run_records(batch.shape)
        edges = [0, *range(max(1, step // 4), len(batch), step), len(batch)]
        first, *others = (slice(start, stop) for start, stop in pairwise(edges))
        ready = threading.Semaphore(0)

        def compute() -> None:
            for run in others:
                self._compute_checksums(batch, run)
                ready.release()

        if others:
            accepted = self._worker.submit(compute)
            assert accepted, "one batch is written at a time, and none after close"
        self._compute_checksums(batch, first)
        yield first
        for run in others:
            ready.acquire()
            yield run

    def append(self, batch: Batch, rows: slice, chunk: ChunkFile) -> None:
        """Append some rows, whose checksums are there, to a file with room for them; blocks.

        Fills in the rows' outcomes and extents. Changes the padding of their slots.

        Raises:
            DiskError: The write failed; the rows are as before.
        """
        count, slots, checksums = rows.stop - rows.start, batch.slots[rows], batch.checksum[rows]
        headers = self._frame.headers[:count]
        headers["kind"] = KIND_BLOCK
        headers["codec_id"] = self._codec_id
        headers["slot"] = np.arange(chunk.next_slot, chunk.next_slot + count)
        headers["sequence"] = np.arange(self.next_sequence, self.next_sequence + count, dtype=np.uint64)
        headers["created_ns"] = self._clock()
        headers["raw_nbytes"] = headers["encoded_nbytes"] = batch.shape.nbytes
        headers["payload_checksum"] = checksums
        headers["file_uuid"] = np.frombuffer(chunk.name.file_uuid, dtype=np.uint8)
        batch.name_records(headers, rows)
        finish_headers(headers)
        self._frame.place_checksums(self._pool, slots, checksums, batch.shape)
        self.next_sequence += count
        first_page, pitch = chunk.end_nbytes // PAGE_NBYTES, batch.shape.pitch_nbytes // PAGE_NBYTES
        chunk.append(
            self._frame.buffers(self._pool, slots.tolist(), batch.shape),
            headers=headers,
            nbytes=count * batch.shape.pitch_nbytes,
        )
        batch.page[rows] = first_page + pitch * np.arange(count)
        batch.file[rows] = chunk.file_id
        batch.outcomes[rows] = Outcome.OK

    def _compute_checksums(self, batch: Batch, rows: slice) -> None:
        for row in range(rows.start, rows.stop):
            payload = self._pool.payload(int(batch.slots[row]), batch.shape.nbytes)
            batch.checksum[row] = crc32c(payload)

    def close(self) -> None:
        """End the checksum thread; blocks."""
        self._worker.close()
