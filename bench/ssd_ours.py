"""The SSD tier as a subject of `bench.ssd`: through its links alone, and through the whole store."""

from __future__ import annotations

import queue
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from bench.ssd_subjects import READ_THREADS, Subject, Work
from tierstore.benchmark.payload import Payload
from tierstore.codec.base import Codec, RawCodec
from tierstore.codec.lz4 import Lz4Codec
from tierstore.disk.posix import PosixDisk
from tierstore.keys import Namespace
from tierstore.store import Store
from tierstore.tiers.manifest import Manifest
from tierstore.tiers.ssd import SsdTier
from tierstore.transfer.tier_link import ReadLink, WriteLink
from tierstore.types import (
    PAGE_NBYTES,
    CopyJob,
    CopyResult,
    Extents,
    Generation,
    JobId,
    Outcome,
    Priority,
    RequestId,
    SyncJob,
    TierName,
)

__all__ = ["Link", "ThroughStore"]

_TIMEOUT_SECONDS = 120.0


class Link(Subject):
    """The SSD tier through its links alone: pool slots to chunk files and back."""

    def __init__(self, folder: Path, work: Work) -> None:
        super().__init__(folder, work)
        self._open = ExitStack()
        codec: Codec = Lz4Codec() if work.codec == "lz4" else RawCodec()
        disk = PosixDisk(str(folder))
        manifest = Manifest.open(disk)
        self._open.callback(manifest.close)
        file_nbytes = max(64 << 20, 8 * work.layout.block_nbytes)
        tier = SsdTier(
            disk,
            self.rows.reshape(-1),
            manifest,
            capacity_nbytes=4 * work.nbytes + 4 * file_nbytes,
            free_floor_nbytes=0,
            file_nbytes=file_nbytes,
            codec=codec,
        )
        self._open.callback(tier.close)
        list(tier.recover())
        self._writes = WriteLink(tier, name="ssd-write", capacity=64)
        self._open.callback(self._writes.close)
        self._reads = ReadLink(tier, name="ssd-read", threads=READ_THREADS, capacity=64)
        self._open.callback(self._reads.close)
        namespace = Namespace("bench", work.layout)
        self._life = Generation(0, namespace.fingerprint, manifest.register(namespace), work.layout)
        self._hashes = np.frombuffer(b"".join(Payload(8).hashes(range(work.count))), np.uint8).reshape(-1, 32)
        self._jobs: list[CopyJob] = []

    def write(self) -> None:
        """Write jobs and a sync, all submitted at once."""
        answered: queue.SimpleQueue[CopyResult] = queue.SimpleQueue()
        jobs = [self._write_job(number, part) for number, part in enumerate(self.work.parts())]
        for job in jobs:
            assert self._writes.submit(job, answered.put)
        assert self._writes.submit(SyncJob(JobId(len(jobs))), answered.put)
        where = {result.job_id: result.dst_locations for result in _all_ok(answered, len(jobs) + 1)}
        for job in jobs:
            extents, slots = where[job.job_id], job.src_locations
            assert extents is not None
            assert not isinstance(slots, Extents)
            self._jobs.append(
                replace(job, src=TierName.SSD, dst=TierName.HOST, src_locations=extents, dst_locations=slots)
            )

    def read(self) -> None:
        """Read jobs, all submitted at once."""
        answered: queue.SimpleQueue[CopyResult] = queue.SimpleQueue()
        for job in self._jobs:
            assert self._reads.submit(job, answered.put)
        _all_ok(answered, len(self._jobs))

    def close(self) -> None:
        """End the threads and close the files."""
        self._open.close()

    @property
    def stored_nbytes(self) -> int:
        """As the extents say."""
        extents = [job.src_locations for job in self._jobs]
        return sum(int(part.nbytes.sum(dtype=np.int64)) for part in extents if isinstance(part, Extents))

    def _write_job(self, number: int, part: slice) -> CopyJob:
        slot_pages = self.work.layout.block_nbytes // PAGE_NBYTES
        return CopyJob(
            job_id=JobId(number),
            generation=self._life,
            src=TierName.HOST,
            dst=TierName.SSD,
            entries=np.arange(part.start, part.stop),
            hashes=self._hashes[part],
            parents=None,
            src_locations=(np.arange(part.start, part.stop) * slot_pages).astype(np.int32),
            dst_locations=None,
            priority=Priority.GET,
            request_id=RequestId(-1),
        )


def _all_ok(answered: queue.SimpleQueue[CopyResult], count: int) -> list[CopyResult]:
    results = [answered.get(timeout=_TIMEOUT_SECONDS) for _ in range(count)]
    bad = sorted({Outcome(outcome).name for result in results for outcome in result.outcomes if outcome != Outcome.OK})
    if bad:
        raise RuntimeError(f"blocks ended as {', '.join(bad)}, so nothing can be measured")
    return results


class ThroughStore(Subject):
    """The whole store: durable puts from the caller's buffer, gets into it after the store was opened again."""

    def __init__(self, folder: Path, work: Work) -> None:
        super().__init__(folder, work)
        self._hashes = Payload(8).hashes(range(work.count))
        self._start()

    def _start(self) -> None:
        slab_nbytes = max(16 << 20, 8 * self.work.layout.block_nbytes)
        self._store = Store(
            host_size=self.work.nbytes + 4 * slab_nbytes,
            host_slab_size=slab_nbytes,
            host_populate=True,
            ssd_dir=self.folder,
            ssd_size=4 * self.work.nbytes + 4 * (64 << 20),
            ssd_file_size=64 << 20,
            ssd_free_floor="64 MiB",
            ssd_read_threads=READ_THREADS,
            codec_name=self.work.codec,
        )
        self._handle = self._store.namespace(Namespace("bench", self.work.layout))

    def write(self) -> None:
        """Durable puts, a few in flight."""
        puts = [self._handle.put(self._hashes[part], self.rows[part], durable=True) for part in self.work.parts()]
        assert all(put.result(_TIMEOUT_SECONDS).ok for put in puts), "a put was refused"

    def cool(self) -> None:
        """Open the store anew, so that its host pool is empty."""
        self._store.close()
        self._start()

    def read(self) -> None:
        """Gets, a few in flight."""
        gets = [self._handle.get(self._hashes[part], self.rows[part]) for part in self.work.parts()]
        assert all(get.result(_TIMEOUT_SECONDS).ok for get in gets), "a get missed"

    def close(self) -> None:
        """Close the store."""
        self._store.close()
