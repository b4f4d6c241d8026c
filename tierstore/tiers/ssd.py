"""The SSD tier: blocks as records in append-only chunk files, verified whenever they are read.

Implements `tierstore.tiers.base.Tier` for links: `read` runs on several workers, everything else on the one
write worker of the folder. Bytes move straight between pool slots and the disk. Whatever a disk does, the verbs
return outcomes: they raise no exception, and no block that does not verify is ever OK.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from tierstore.codec.base import Codec, RawCodec
from tierstore.codec.timed import TimedCodec, Verb
from tierstore.disk.base import Disk
from tierstore.disk.bounded import BoundedDisk
from tierstore.disk.watched import WatchedDisk
from tierstore.errors import DiskError
from tierstore.health import Fault
from tierstore.tiers.base import Probed, Progress, Recovered, Synced
from tierstore.tiers.batch import Batch
from tierstore.tiers.folder import ChunkFolder
from tierstore.tiers.frame import Pool
from tierstore.tiers.manifest import Manifest
from tierstore.tiers.placing import RunPlacer
from tierstore.tiers.probing import probe_folder, probe_reading, probe_writing
from tierstore.tiers.reading import RecordReader
from tierstore.tiers.recovery import Recovery, recover
from tierstore.tiers.space import FolderLimits, default_file_nbytes
from tierstore.tiers.tombstone import Graves
from tierstore.tiers.writing import RecordWriter
from tierstore.tiers.zarr_metadata import ArraySpec
from tierstore.types import CopyJob, CopyResult, Extents, Outcome, TierName, TombstoneJob

if TYPE_CHECKING:
    from tierstore.tiers.direct import DirectReader
    from tierstore.types import UInt8Array

__all__ = ["SsdTier", "default_file_nbytes"]

_RAW = RawCodec()
_OTHER_CODECS: Mapping[str, Callable[[], Codec]] = MappingProxyType({RawCodec.name: RawCodec})

_NOT_OWNED = "LOCK of the SSD folder was removed or replaced: nothing is written to it in this run"

_NOT_LISTED = "the SSD folder could not be listed at start: nothing is written to it in this run"

_logger = logging.getLogger(__name__)


class SsdTier:
    """Blocks on one SSD folder.

    `recover` comes before the first `write`.

    Args:
        disk: The folder.
        pool: uint8[pool_nbytes]; the host pool, at a page boundary.
        manifest: The folder's manifest, held open by the caller for as long as the tier is.
        capacity_nbytes: Bytes that all chunk files together may take.
        file_nbytes: Length of one chunk file, whole pages; see `default_file_nbytes`.
        free_floor_nbytes: Bytes that must stay free in the file system when a file is begun.
        codec: Codec of blocks that are written; the raw one needs no copy.
        other_codecs: Factories, by name, of the codecs in which earlier runs may have left blocks, to be read.
        open_files_max: Files that are kept open; None: see `tierstore.disk.bounded.default_files_max`.
        reads_max: Concurrent reads of the disk; see `RecordReader`.
        direct: Reads into the device pool; None if no job asks for that.
        clock: Unix time in nanoseconds, for the records' headers.

    Raises:
        ConfigError: A capacity below four files, or a file that is not whole pages.
    """

    def __init__(
        self,
        disk: Disk,
        pool: UInt8Array,
        manifest: Manifest,
        *,
        capacity_nbytes: int,
        free_floor_nbytes: int,
        file_nbytes: int | None = None,
        codec: Codec = _RAW,
        other_codecs: Mapping[str, Callable[[], Codec]] = _OTHER_CODECS,
        open_files_max: int | None = None,
        reads_max: int = 4,
        direct: DirectReader | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        file_nbytes = default_file_nbytes(capacity_nbytes) if file_nbytes is None else file_nbytes
        self._disk = WatchedDisk(BoundedDisk(disk, open_files_max))
        self._manifest = manifest
        self._codec = TimedCodec(codec)
        self._other_codecs = other_codecs
        self._folder = ChunkFolder(self._disk, FolderLimits(capacity_nbytes, file_nbytes, free_floor_nbytes))
        self._graves = Graves(self._folder, lambda: manifest.epochs, clock)
        self._codecs = {codec.name: self._codec}
        self._readers = {TierName.HOST: RecordReader(Pool(pool), reads_max), TierName.DEVICE_POOL: direct}
        self._writer = RecordWriter(Pool(pool), self._folder.files, clock)
        self._placer = RunPlacer(self._disk, self._folder, self._writer)
        self._last: ArraySpec | None = None
        self._recovered: Recovery | None = None
        self._owned = True

    def read(self, job: CopyJob) -> CopyResult:
        """Fill the job's slots and verify each block; blocks. See `Tier.read`."""
        started = time.perf_counter()
        self._disk.take_fault()
        reader = self._readers[job.dst]
        assert reader is not None, f"job {job.job_id} is to go past host memory, and nothing here can"
        outcomes = reader.read(job, self._folder.files, self._codecs)
        fault = self._disk.take_fault() if (outcomes == Outcome.IO_ERROR).any() else None
        return CopyResult(job.job_id, outcomes, seconds=time.perf_counter() - started, fault=fault)

    def write(self, jobs: Sequence[CopyJob | TombstoneJob]) -> list[CopyResult]:
        """Append the jobs' records, neighbours in one call; blocks. Changes the padding of their slots.

        A block or deletion is OK (readable, or valid, now), REJECTED if a limit leaves no room, or IO_ERROR if the
        disk failed. The file that failed takes no more records; the next call tries another one.
        """
        assert self._recovered is not None, "recover() comes before the first write"
        self._disk.take_fault()
        groups: dict[tuple[bytes, bool, str], list[int]] = {}
        results: dict[int, CopyResult] = {}
        for position, job in enumerate(jobs):
            if isinstance(job, TombstoneJob):
                results[position] = self._delete(job)
            else:
                key = job.generation.layout.fingerprint, job.src is job.dst, self._codec_to_write(job)
                groups.setdefault(key, []).append(position)
        for (_, _, codec), positions in groups.items():
            group = self._write_group([job for at in positions if isinstance(job := jobs[at], CopyJob)], codec)
            results.update(zip(positions, group, strict=True))
        ended = [results[position] for position in range(len(jobs))]
        fault = None if all(map(_is_whole, ended)) else self._write_fault()
        return [result if _is_whole(result) else replace(result, fault=fault) for result in ended]

    def sync(self) -> Synced:
        """Make every record whose write has returned durable, one fdatasync a file written to; blocks.

        IO_ERROR is reported once: a crash may then lose records written since the last OK. The next call answers
        only for records written after it.
        """
        synced = self._folder.sync()
        return synced if self._is_owner() else replace(synced, outcome=Outcome.IO_ERROR)

    @property
    def shortage(self) -> str:
        """Why nothing can be written even after reclaiming files; empty if something can."""
        return self._folder.shortage if self._recovered and self._recovered.complete else _NOT_LISTED

    @property
    def files(self) -> list[int]:
        """Every chunk file, those without a living block among them."""
        return list(self._folder.files)

    @property
    def used_nbytes(self) -> int:
        """The lengths of all chunk files, including those that could not be opened or removed."""
        return self._folder.used_nbytes

    def take_codec_seconds(self) -> list[tuple[Verb, float]]:
        """How long threads have encoded and decoded since this was last asked; from any thread."""
        return [spent for codec in tuple(self._codecs.values()) for spent in codec.take_seconds().items()]

    def discard(self, file: int) -> int:
        """Reclaim a chunk file, durably; blocks. Nothing may read it. Returns the bytes the tier can take.

        Tombstones in it that are still needed are kept. If removing it fails, its blocks are gone all the same,
        and its bytes count until it is removed.
        """
        if self._is_owner():
            self._graves.discard(file)
        return self._folder.free_nbytes(self._last) or 0

    def probe(self) -> Probed:
        """Find out what the folder lets this tier do now; blocks. See `tierstore.tiers.probing`."""
        self._disk.take_fault()
        writing = Outcome.IO_ERROR
        if self._recovered is not None and self._recovered.complete and self._is_owner():
            writing = probe_writing(self._folder, self._last) if self._last else probe_folder(self._folder, self._disk)
        reading, fault = probe_reading(self._folder), self._write_fault()
        if writing is Outcome.REJECTED and fault is None:
            writing = Outcome.OK  # what is short is its own capacity
        return Probed(reading, writing, self._folder.free_nbytes(self._last), fault)

    def _write_fault(self) -> Fault | None:
        """Why the last call could not write, unless a limit of this tier is the reason."""
        if not self._owned:
            return Fault(_NOT_OWNED)
        fault = self._disk.take_fault(besides="read")  # of a record that was to be written again
        return fault or (Fault(self.shortage) if self.shortage else None)

    def recover(self, progress: Progress | None = None) -> Iterator[Recovered]:
        """Find what an earlier run left; blocks until everything is found. See `Tier.recover`.

        Raises:
            ConfigError: There are blocks of a codec that cannot be loaded.
        """
        assert self._recovered is None, "recover() is called once"
        self._recovered = recover(
            self._disk,
            self._folder,
            self._graves,
            self._manifest.epochs,
            codecs={self._codec.name, *self._other_codecs},
            progress=progress,
        )
        self._writer.sequence_base = self._graves.sequence_base = self._recovered.sequence_base
        for name in {chunk.name.codec for chunk in self._folder.files.values()} - set(self._codecs):
            self._codecs[name] = TimedCodec(self._other_codecs[name]())
        return iter(self._recovered.blocks)

    def close(self) -> None:
        """Sync and close every file, and end the threads; blocks."""
        self._folder.close()
        self._writer.close()

    def _write_group(self, jobs: Sequence[CopyJob], codec: str) -> Iterator[CopyResult]:
        """Write jobs of one layout, from one tier and to be of one codec."""
        started = time.perf_counter()
        batch = Batch(jobs, self._codecs[codec])
        spec = ArraySpec(batch.layout, batch.codec)
        ended = self._declare(spec)
        if ended is Outcome.OK:
            with closing(self._writer.runs(batch)) as runs:
                for run in runs:
                    ended = self._placer.append(run, spec.name)
                    if ended is not Outcome.OK:
                        break
                if not self._placer.drain(spec.name):
                    ended = Outcome.IO_ERROR
        batch.end(batch.open, Outcome.IO_ERROR if ended is Outcome.OK else ended)
        free_nbytes = self._free_nbytes(spec)
        seconds_per_block = (time.perf_counter() - started) / max(1, len(batch))
        for job, outcomes, extents in batch.results():
            yield CopyResult(
                job.job_id,
                outcomes,
                extents,
                free_nbytes,
                seconds_per_block * len(job),
                encoded_nbytes=int(extents.nbytes[outcomes == Outcome.OK].sum()),
            )

    def _delete(self, job: TombstoneJob) -> CopyResult:
        started = time.perf_counter()
        spec = ArraySpec(job.generation.layout, self._codec)
        ended = self._declare(spec)
        outcomes = self._graves.write(job, spec.name) if ended is Outcome.OK else np.full(len(job), ended, np.uint8)
        seconds = time.perf_counter() - started
        where = np.full(len(job), -1 if (file := self._folder.appended(spec.name)) is None else file, np.int32)
        nothing = np.zeros(len(job), np.uint32)
        extents = Extents(where, nothing, nothing, nothing)
        return CopyResult(job.job_id, outcomes, extents, self._free_nbytes(spec), seconds)

    def _free_nbytes(self, spec: ArraySpec) -> int | None:
        """What the tier can take, once what could go has gone."""
        if self._owned:
            self._graves.try_again()
        return self._folder.free_nbytes(spec)

    def _is_owner(self) -> bool:
        """Whether the folder still belongs to this store: a look at its LOCK. If not, nothing is written any more."""
        try:
            if self._owned and not self._manifest.stands():
                self._owned = False
                _logger.error(_NOT_OWNED)
        except DiskError as error:
            _logger.warning("nothing is written to the SSD folder before the disk is well: %s", error)
            return False
        return self._owned

    def _declare(self, spec: ArraySpec) -> Outcome:
        """Make ready to write to an array; OK, or why that cannot be."""
        self._last = spec
        if self._recovered is None or not self._recovered.complete or not self._is_owner():
            return Outcome.IO_ERROR
        return self._folder.declare(spec)

    def _codec_to_write(self, job: CopyJob) -> str:
        """The codec for a job's records. A rewritten record keeps its codec; such a job reads a single file."""
        extents = job.src_locations
        return self._codec_of(int(extents.file[0])) if isinstance(extents, Extents) and len(job) else self._codec.name

    def _codec_of(self, file: int) -> str:
        chunk = self._folder.files.get(file)
        return chunk.name.codec if chunk else self._codec.name


def _is_whole(result: CopyResult) -> bool:
    """Whether everything was written; a block that was corrupt already is no failed write."""
    return not ((result.outcomes == Outcome.REJECTED) | (result.outcomes == Outcome.IO_ERROR)).any()
