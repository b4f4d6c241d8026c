"""Appends blocks to chunk files, as runs of records in one vectored call each.

Called by the SSD tier on its one write worker. While one run is written, other threads compute the checksums of the
next runs, or encode their blocks. This module decides nothing about files: the tier says where a run goes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tierstore.codec.base import RawCodec
from tierstore.tiers.appending import Appender, Staged
from tierstore.tiers.batch import Batch, Run
from tierstore.tiers.chunkfile import ChunkFile
from tierstore.tiers.frame import Pool
from tierstore.tiers.payloads import UNBOUND, EncodedSlots, OldRecords, Payloads, PlainSlots
from tierstore.tiers.record import KIND_BLOCK, finish_headers, record_pages
from tierstore.types import PAGE_NBYTES, Extents, Outcome
from tierstore.worker import Worker

if TYPE_CHECKING:
    from tierstore.tiers.record import HeaderArray
    from tierstore.types import Int64Array

__all__ = ["RecordWriter"]

ENCODE_THREADS = 2
"""Blocks encoded at the same time; one thread encodes slower than an SSD writes."""


class RecordWriter:
    """Turns batches into records. Owns the threads that compute checksums or encode.

    Args:
        pool: Source of blocks.
        files: Source of older records, by the number in extents.
        clock: Unix time in nanoseconds.

    Attributes:
        sequence_base: A multiple of 65,536, above every sequence of an earlier run. A record's sequence is this plus
            its job's number times 65,536 plus its place in the job; so sequences follow the order of planning.
    """

    def __init__(self, pool: Pool, files: Mapping[int, ChunkFile], clock: Callable[[], int]) -> None:
        self._plain: Payloads = PlainSlots(pool)
        self._encoded: Payloads = EncodedSlots(pool, ENCODE_THREADS)
        self._old: Payloads = OldRecords(files)
        self._clock = clock
        self._appender = Appender(_keep, _lose)
        self._worker = Worker("ssd-encode", capacity=ENCODE_THREADS, threads=ENCODE_THREADS)
        self.sequence_base = 0

    def runs(self, batch: Batch) -> Generator[Run]:
        """Cut a batch into runs, each yielded when it is ready to be appended; blocks until then.

        The caller's thread prepares the first run, the other threads the rest. Iterate to the end, or close the
        iterator: the threads read the slots until then.
        """
        batch.created_ns[:] = self._clock()
        source = self._source(batch)
        runs = source.cut(batch)
        ahead = [_Ahead(source, runs[1:], share) for share in range(source.threads if len(runs) > 1 else 0)]
        for thread in ahead:
            accepted = self._worker.submit(thread.work)
            assert accepted, "one batch is written at a time, and none after close"
        try:
            for turn, run in enumerate(runs):
                if turn and ahead:
                    for thread in ahead:
                        thread.ready.acquire()
                else:
                    source.prepare(run, run.rows)
                yield run
                for thread in ahead:
                    thread.room.release()
        finally:
            for thread in ahead:
                thread.stop()

    def append(self, run: Run, chunk: ChunkFile, *, kept_nbytes: int = 0) -> None:
        """Begin to write the rows of a run that are left, as many as the file has room for; blocks.

        The rows then are OK and have their place, unless a later call raises. One file at a time: `drain` comes
        before the first append to another file. Changes the padding of the rows' slots, and leaves `kept_nbytes` of
        the file's room for others.

        Raises:
            DiskError: A write failed; its rows and those behind it are open again. Nothing more may be appended.
        """
        batch, source, frame = run.batch, self._source(run.batch), self._appender.frame
        rows = run.left[: run.fitting(chunk, kept_nbytes=kept_nbytes)]
        headers = frame.headers[: len(rows)]
        self._fill(headers, batch, rows)
        headers["slot"] = np.arange(chunk.next_slot, chunk.next_slot + len(rows))
        headers["file_uuid"] = np.frombuffer(chunk.name.file_uuid, dtype=np.uint8)
        finish_headers(headers)
        buffers = source.buffers(run, rows, frame)
        staged = Staged(batch, rows, chunk, headers, buffers, chunk.reserve(headers))
        pages = record_pages(batch.nbytes[rows])
        batch.page[rows] = staged.offset // PAGE_NBYTES + np.cumsum(pages) - pages
        batch.file[rows] = chunk.file_id
        batch.end(rows, Outcome.OK)
        self._appender.begin(staged)
        if source.lanes < UNBOUND:
            self._appender.drain()  # the scratch of the payloads is needed for the next run

    def drain(self) -> None:
        """Block until everything that was appended is written.

        Raises:
            DiskError: As `append` does.
        """
        self._appender.drain()

    def close(self) -> None:
        """End the threads; blocks."""
        self._worker.close()
        self._appender.close()

    def _source(self, batch: Batch) -> Payloads:
        if isinstance(batch.src, Extents):
            return self._old
        return self._plain if batch.codec.codec_id == RawCodec.codec_id else self._encoded

    def _fill(self, headers: HeaderArray, batch: Batch, rows: Int64Array) -> None:
        """Say in the headers what the records hold."""
        headers["kind"] = KIND_BLOCK
        headers["codec_id"] = batch.codec.codec_id
        headers["sequence"] = self.sequence_base + batch.order[rows]
        headers["created_ns"] = batch.created_ns[rows]
        headers["epoch"] = batch.epochs[rows]
        headers["raw_nbytes"] = batch.shape.nbytes
        headers["encoded_nbytes"] = batch.nbytes[rows]
        headers["payload_checksum"] = batch.checksum[rows]
        headers["fingerprint"] = batch.fingerprints[rows]
        headers["block_hash"] = batch.hashes[rows]
        headers["parent_hash"] = batch.parents[rows]


def _keep(staged: Staged) -> None:
    """A run is on disk."""
    staged.chunk.keep(staged.headers, staged.offset)


def _lose(staged: Staged) -> None:
    """A run is not on disk."""
    staged.chunk.lose(staged.offset)
    staged.batch.reopen(staged.rows)


class _Ahead:
    """One thread's share of the runs behind the first, prepared in order and at most as far ahead as there are lanes.

    Attributes:
        room: Counts runs that may be prepared.
        ready: Counts runs that are prepared.
    """

    def __init__(self, source: Payloads, runs: Sequence[Run], share: int) -> None:
        self._source = source
        self._runs = runs
        self._share = share
        self._stopping = False
        self._ended = threading.Event()
        self.room = threading.Semaphore(source.lanes - 1)
        self.ready = threading.Semaphore(0)

    def work(self) -> None:
        """Prepare; on the thread."""
        try:
            for run in self._runs:
                self.room.acquire()
                if self._stopping:
                    break
                self._source.prepare(run, run.rows[self._share :: self._source.threads])
                self.ready.release()
        finally:
            self.ready.release(len(self._runs))  # whatever has happened, release all waiters
            self._ended.set()

    def stop(self) -> None:
        """Begin no other run; blocks until the one that has begun is ready."""
        self._stopping = True
        self.room.release()
        self._ended.wait()
