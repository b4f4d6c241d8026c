"""Batches: blocks of one layout on their way into chunk files, as columns, with the outcome of each.

The SSD tier makes a batch from the jobs of one call, and fills it in while the records are written. Plain data of
the one write worker; each thread that prepares records fills in its own rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tierstore.codec.base import Codec
from tierstore.tiers.chunkfile import ChunkFile
from tierstore.tiers.record import RecordShape, record_pages
from tierstore.types import PAGE_NBYTES, CopyJob, Extents, Outcome

if TYPE_CHECKING:
    from tierstore.tiers.record import BoolArray
    from tierstore.types import Int32Array, Int64Array, UInt8Array, UInt32Array

__all__ = ["Batch", "Run"]

_JOB_BLOCKS_MAX = 1 << 16
"""Blocks of one job: each has a number of its own below those of the next job."""


class Batch:
    """The jobs' blocks, one a row, the jobs one after another.

    Args:
        jobs: At least one; all of one layout and all from the same tier, the host pool or SSD itself.
        codec: Of the records; blocks from SSD keep the codec that they have.

    Attributes:
        codec: As given.
        layout: Of every block.
        shape: Of a record that holds a block as it is.
        src: int32[n], pool pages; or where the blocks lie on SSD now.
        epochs: int64[n]; of the blocks' namespaces.
        fingerprints: uint8[n, 32]; of the namespaces.
        hashes: uint8[n, 32].
        parents: uint8[n, 32].
        created_ns: uint64[n]; Unix time.
        order: int64[n]; of two records of one identity the one with the higher number counts.
        expected: int64[n]; the CRC32C that the block's own bytes must have, -1 where it may be any.
        ready: bool[n]; whether the record's payload is there, its length and checksum known.
        nbytes: uint32[n]; encoded, once ready.
        checksum: uint32[n]; CRC32C of the encoded bytes, once ready.
        file: int32[n]; where the record was put, once OK.
        page: uint32[n].
        open: bool[n]; whether the row has no outcome yet.
        outcomes: uint8[n] of `Outcome`; valid if not open.
    """

    def __init__(self, jobs: Sequence[CopyJob], codec: Codec) -> None:
        assert max(map(len, jobs)) <= _JOB_BLOCKS_MAX, f"a job has more than {_JOB_BLOCKS_MAX} blocks"
        self._jobs = jobs
        self.codec = codec
        lives = [job.generation for job in jobs]
        counts = [len(job) for job in jobs]
        self.layout = lives[0].layout
        self.shape = RecordShape(self.layout.block_nbytes)
        self.src = _joined([job.src_locations for job in jobs])
        self.epochs: Int64Array = np.repeat([life.epoch for life in lives], counts)
        names = np.frombuffer(b"".join(life.fingerprint for life in lives), dtype=np.uint8).reshape(-1, 32)
        self.fingerprints: UInt8Array = names.repeat(counts, axis=0)
        self.hashes: UInt8Array = np.concatenate([job.hashes for job in jobs])
        self.parents: UInt8Array = np.concatenate([_parents(job) for job in jobs])
        self.created_ns = np.zeros(len(self), dtype=np.uint64)
        self.order: Int64Array = np.concatenate([(job.job_id << 16) + np.arange(len(job)) for job in jobs])
        self.expected: Int64Array = np.concatenate([_expected(job) for job in jobs])
        self.ready = np.zeros(len(self), dtype=np.bool_)
        self.nbytes = np.zeros(len(self), dtype=np.uint32)
        self.checksum = np.zeros(len(self), dtype=np.uint32)
        self.file = np.full(len(self), -1, dtype=np.int32)
        self.page = np.zeros(len(self), dtype=np.uint32)
        self.open = np.ones(len(self), dtype=np.bool_)
        self.outcomes = np.zeros(len(self), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.hashes)

    def end_spoilt(self, rows: Int64Array, checksums: UInt32Array) -> None:
        """End the rows whose blocks' own bytes have other checksums than expected."""
        expected = self.expected[rows]
        self.end(rows[(expected >= 0) & (expected != checksums)], Outcome.CORRUPT)

    def end(self, rows: int | Int64Array | BoolArray, outcomes: UInt8Array | Outcome) -> None:
        """Give some rows their outcome."""
        self.outcomes[rows] = outcomes
        self.open[rows] = False

    def reopen(self, rows: Int64Array) -> None:
        """Take back the outcome of some rows."""
        self.file[rows] = -1
        self.open[rows] = True

    def results(self) -> Iterator[tuple[CopyJob, UInt8Array, Extents]]:
        """Each job with its outcomes and extents."""
        assert not self.open.any(), "every row has ended"
        start = 0
        for job in self._jobs:
            rows = slice(start, start + len(job))
            extents = Extents(self.file[rows], self.page[rows], self.nbytes[rows], self.checksum[rows])
            yield job, self.outcomes[rows], extents
            start = rows.stop


@dataclass(slots=True, eq=False)
class Run:
    """Rows of a batch whose records are written in one call, or in a few where a file ends between them.

    Attributes:
        batch: The batch.
        rows: Side by side.
        bodies: The pages behind the header of each row, by its place in `rows`, where they are not in the pool.
    """

    batch: Batch
    rows: range
    bodies: list[memoryview] = field(default_factory=list)

    @property
    def left(self) -> Int64Array:
        """The rows that are ready and not ended yet, in order."""
        rows = slice(self.rows.start, self.rows.stop)
        left: Int64Array = rows.start + np.flatnonzero(self.batch.ready[rows] & self.batch.open[rows])
        return left

    def fitting(self, chunk: ChunkFile, *, kept_nbytes: int = 0) -> int:
        """How many of the rows left fit into a file, if `kept_nbytes` of its room are kept for others."""
        ends = np.cumsum(record_pages(self.batch.nbytes[self.left])) * PAGE_NBYTES
        return min(chunk.room_slots, int(np.searchsorted(ends, chunk.room_nbytes - kept_nbytes, side="right")))


def _joined(parts: Sequence[Int64Array | Int32Array | Extents]) -> Int32Array | Extents:
    """The jobs' locations one after another."""
    extents = [part for part in parts if isinstance(part, Extents)]
    slots = [part for part in parts if not isinstance(part, Extents)]
    assert not (extents and slots), "the jobs of one batch come from the same tier"
    if slots:
        return np.concatenate(slots).astype(np.int32, copy=False)
    return Extents(
        np.concatenate([part.file for part in extents]),
        np.concatenate([part.page for part in extents]),
        np.concatenate([part.nbytes for part in extents]),
        np.concatenate([part.checksum for part in extents]),
    )


def _parents(job: CopyJob) -> UInt8Array:
    return np.zeros_like(job.hashes) if job.parents is None else job.parents


def _expected(job: CopyJob) -> Int64Array:
    return np.full(len(job), -1, np.int64) if job.checksums is None else job.checksums
