"""Appends blocks to chunk files, as runs of records in one vectored call each.

Called by the SSD tier on its one write worker. The checksums of the next runs are computed, or their blocks
encoded, on threads of their own while one is being written. It decides nothing about files: the tier says
where a run goes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from tierstore.codec.base import Codec, RawCodec
from tierstore.tiers.batch import Batch, Run
from tierstore.tiers.chunkfile import ChunkFile
from tierstore.tiers.fetching import record_pages
from tierstore.tiers.frame import Frame, Pool
from tierstore.tiers.payloads import EncodedSlots, OldRecords, Payloads, PlainSlots
from tierstore.tiers.record import KIND_BLOCK, finish_headers
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
        pool: Where blocks come from.
        codec: What encodes them.
        files: Where older records come from, by the number in extents.
        clock: Unix time in nanoseconds.

    Attributes:
        sequence_base: Above every sequence of an earlier run, a multiple of 65,536. A record's sequence is this,
            and its job's number times 65,536, and its place in the job: the order in which jobs were planned.
    """

    def __init__(self, pool: Pool, codec: Codec, files: Mapping[int, ChunkFile], clock: Callable[[], int]) -> None:
        raw = codec.codec_id == RawCodec.codec_id
        self._slots: Payloads = PlainSlots(pool) if raw else EncodedSlots(pool, codec, ENCODE_THREADS)
        self._old: Payloads = OldRecords(codec, files)
        self._codec_id = codec.codec_id
        self._clock = clock
        self._frame = Frame()
        threads = self._slots.threads
        self._worker = Worker("ssd-encode", capacity=2 * threads, threads=threads)
        self.sequence_base = 0

    def runs(self, batch: Batch) -> Generator[Run]:
        """Cut a batch into runs, each yielded when it is ready to be appended; blocks until then.

        The next two runs are prepared meanwhile, the first one here. To be iterated to its end or closed:
        the threads read the slots until then.
        """
        batch.created_ns[:] = self._clock()
        source = self._source(batch)
        runs = source.cut(batch)
        if not source.threads:
            for run in runs:
                source.prepare(run, run.rows)
                yield run
            return
        ready: list[list[threading.Event]] = [[]]
        try:
            ready += [self._start(source, run) for run in runs[1:2]]
            source.prepare(runs[0], runs[0].rows)
            for turn, run in enumerate(runs):
                for event in ready[turn]:
                    event.wait()
                yield run
                ready += [self._start(source, later) for later in runs[turn + 2 : turn + 3]]
        finally:
            for event in chain.from_iterable(ready):
                event.wait()

    def append(self, run: Run, chunk: ChunkFile) -> None:
        """Append the rows of a run that are left, as many as the file has room for; blocks.

        They are OK then, and it is known where they are. Changes the padding of their slots.

        Raises:
            DiskError: The write failed; the rows are left as before.
        """
        batch = run.batch
        rows = run.left[: run.fitting(chunk)]
        headers = self._frame.headers[: len(rows)]
        self._fill(headers, batch, rows)
        headers["slot"] = np.arange(chunk.next_slot, chunk.next_slot + len(rows))
        headers["file_uuid"] = np.frombuffer(chunk.name.file_uuid, dtype=np.uint8)
        finish_headers(headers)
        ends = np.cumsum(record_pages(batch.nbytes[rows]))
        first_page = chunk.end_nbytes // PAGE_NBYTES
        buffers = self._source(batch).buffers(run, rows, self._frame)
        chunk.append(buffers, headers=headers, nbytes=int(ends[-1]) * PAGE_NBYTES)
        batch.page[rows] = first_page + np.array([0, *ends[:-1]])
        batch.file[rows] = chunk.file_id
        batch.end(rows, Outcome.OK)

    def close(self) -> None:
        """End the threads; blocks."""
        self._worker.close()

    def _source(self, batch: Batch) -> Payloads:
        return self._old if isinstance(batch.src, Extents) else self._slots

    def _start(self, source: Payloads, run: Run) -> list[threading.Event]:
        """Let the threads prepare a run; the events say when each of them is done with it."""

        def prepare(rows: range, done: threading.Event) -> None:
            try:
                source.prepare(run, rows)
            finally:
                done.set()

        events = [threading.Event() for _ in range(source.threads)]
        for share, event in enumerate(events):
            accepted = self._worker.submit(partial(prepare, run.rows[share :: source.threads], event))
            assert accepted, "one batch is written at a time, and none after close"
        return events

    def _fill(self, headers: HeaderArray, batch: Batch, rows: Int64Array) -> None:
        """Say in the headers what the records hold."""
        headers["kind"] = KIND_BLOCK
        headers["codec_id"] = self._codec_id
        headers["sequence"] = self.sequence_base + batch.order[rows]
        headers["created_ns"] = batch.created_ns[rows]
        headers["epoch"] = batch.epochs[rows]
        headers["raw_nbytes"] = batch.shape.nbytes
        headers["encoded_nbytes"] = batch.nbytes[rows]
        headers["payload_checksum"] = batch.checksum[rows]
        headers["fingerprint"] = batch.fingerprints[rows]
        headers["block_hash"] = batch.hashes[rows]
        headers["parent_hash"] = batch.parents[rows]
