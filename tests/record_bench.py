"""A record writer and a reader over two chunk files of a simulated disk. Called by the tests of both."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from typing import cast

import numpy as np

from tests.gaussian import GaussianUser, namespace
from tierstore.codec.base import Codec
from tierstore.testing.sim_disk import SimDisk
from tierstore.tiers.base import Tier
from tierstore.tiers.batch import Batch
from tierstore.tiers.chunkfile import ChunkFile, ChunkName
from tierstore.tiers.frame import Pool, aligned_buffer
from tierstore.tiers.reading import RecordReader
from tierstore.tiers.record import HEADER, valid_headers
from tierstore.tiers.writing import RecordWriter
from tierstore.types import PAGE_NBYTES, CopyJob, CopyResult, Generation, JobId, Outcome, TierName

__all__ = ["BLOCK_NBYTES", "CREATED_NS", "Bench", "header_of"]

BLOCK_NBYTES = 8192
CREATED_NS = 1_700_000_000_000_000_000


class Bench:
    """A writer and a reader over two chunk files, and a user of 8 KiB blocks or longer ones."""

    def __init__(self, codec: Codec, *, block_tokens: int = 16, num_blocks: int = 40) -> None:
        self.file_nbytes = 2 * num_blocks * block_tokens * 512
        self.disk = SimDisk()
        self.pool = aligned_buffer((num_blocks + 2) * block_tokens * 512)
        self.files = {number: self.file(number) for number in range(2)}
        self.clock_ns = CREATED_NS
        self.writer = RecordWriter(Pool(self.pool), self.files, lambda: self.clock_ns)
        self.reader = RecordReader(Pool(self.pool), reads_max=1)
        self.codec = codec
        self.space = namespace(block_tokens)
        self.user = GaussianUser(self.pool, Generation(0, self.space.fingerprint, 3, self.space.layout))

    def file(self, number: int) -> ChunkFile:
        name = ChunkName("array", number, bytes([1 + number]) * 16)
        file = self.disk.create(name.path, self.file_nbytes)
        chunk = ChunkFile(number, name, file, nbytes=self.file_nbytes, slots=60)
        chunk.begin()
        return chunk

    def append(self, job: CopyJob, to: int = 0) -> CopyResult:
        """Append a job to one file as the tier does; what does not fit is REJECTED."""
        batch = Batch([job], self.codec)
        with closing(self.writer.runs(batch)) as runs:
            for run in runs:
                while len(run.left) and run.fitting(self.files[to]):
                    self.writer.append(run, self.files[to])
            self.writer.drain()
        batch.end(batch.open, Outcome.REJECTED)
        ((_job, outcomes, extents),) = batch.results()
        return CopyResult(job.job_id, outcomes, extents)

    def write(self, names: Sequence[int], to: int = 0) -> list[Outcome]:
        """Write blocks and remember where they are."""
        result = self.append(self.user.write_job(names), to)
        self.user.remember(names, result)
        return [Outcome(outcome) for outcome in result.outcomes]

    def rewrite(self, names: Sequence[int]) -> list[Outcome]:
        """Write known blocks again, into the other file, and remember where they are then."""
        job = replace(self.user.read_job(names), dst=TierName.SSD, dst_locations=None, job_id=JobId(77))
        result = self.append(job, to=1)
        self.user.remember(names, result)
        return [Outcome(outcome) for outcome in result.outcomes]

    def read(self, job: CopyJob) -> CopyResult:
        """Read as the tier does."""
        return CopyResult(job.job_id, self.reader.read(job, self.files, {self.codec.name: self.codec}))

    def check(self, names: Sequence[int]) -> list[Outcome]:
        """Read known blocks; the user compares every byte."""
        return self.user.read(cast(Tier, self), names)

    def record(self, name: int) -> bytes:
        """A block's record on disk, from its header page to where the next one may begin."""
        file, page, nbytes, _ = self.user.where[name]
        num_pages = 1 - -(nbytes + 4) // PAGE_NBYTES
        return self.disk.contents(self.files[file].name.path)[page * PAGE_NBYTES :][: num_pages * PAGE_NBYTES]

    def flip(self, name: int, byte: int) -> None:
        """Flip a bit of a block's record."""
        file, page, *_ = self.user.where[name]
        self.disk.flip(self.files[file].name.path, 8 * (page * PAGE_NBYTES + byte))


def header_of(record: bytes) -> np.void:
    """A record's header, which must be valid."""
    headers = np.frombuffer(record[:PAGE_NBYTES], dtype=HEADER)
    assert valid_headers(headers).all()
    header: np.void = headers[0]
    return header
