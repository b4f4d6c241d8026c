"""Whose bytes lie where: the memory and the chunk files of a simulated engine, as identities alone.

The medium of the simulated links of `tierstore.testing.engine_world`. It is as unkind as the contracts
allow: what a job will write is spoilt when the job is taken, what it reads is read when it ends, and a
block read from a place that holds another, or from a file given back, is a failed assertion.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tierstore.control.requests import FAR
from tierstore.types import CopyJob, CopyResult, DiscardJob, Extents, Outcome, TierName

if TYPE_CHECKING:
    from tierstore.types import Generation, Job, RequestId, UInt8Array

__all__ = ["Identity", "SimBytes", "identities"]

Identity: TypeAlias = tuple[int, bytes]
"""Number of the generation and hash of a block."""


def identities(generation: Generation, hashes: UInt8Array) -> list[Identity]:
    """Who the blocks of uint8[n, 32] hashes are."""
    return [(generation.number, row.tobytes()) for row in hashes]


class SimBytes:
    """Host slots, records in chunk files, and the rows of callers.

    A chunk file holds blocks of one layout; each layout has one open file.

    Args:
        file_blocks: Blocks a chunk file.
        free_nbytes: What the SSD can take.

    Attributes:
        slots: Block in each slot of each pool, by pool page; a spoilt slot is missing.
        records: Block in each record, by (file, page).
        rows: What loads brought into each request's rows.
        file_nbytes: Bytes in each chunk file.
        free_nbytes: What the SSD can still take.
    """

    def __init__(self, *, file_blocks: int, free_nbytes: int) -> None:
        self.slots: dict[TierName, dict[int, Identity]] = {TierName.HOST: {}, TierName.DEVICE_POOL: {}}
        self.records: dict[tuple[int, int], Identity] = {}
        self.rows: dict[RequestId, dict[int, Identity]] = {}
        self.file_nbytes: dict[int, int] = {}
        self.free_nbytes = free_nbytes
        self._file_blocks = file_blocks
        self._open: dict[bytes, tuple[int, int]] = {}
        self._num_files = 0
        self._reading: Counter[int] = Counter()

    def begin(self, job: Job) -> None:
        """Spoil what a job will write; see `tierstore.testing.sim_link.Medium`."""
        if not isinstance(job, CopyJob):
            return
        if job.dst in self.slots:
            assert job.dst_locations is not None
            for page in job.dst_locations.tolist():
                self.slots[job.dst].pop(page, None)
        if isinstance(job.src_locations, Extents):
            self._reading.update(job.src_locations.file.tolist())

    def end(self, job: Job, outcomes: UInt8Array) -> CopyResult:
        """Move what a job says; see `tierstore.testing.sim_link.Medium`."""
        if isinstance(job, DiscardJob):
            return CopyResult(job.job_id, outcomes, dst_free_nbytes=self._discard(job.file))
        if not isinstance(job, CopyJob):
            return CopyResult(job.job_id, outcomes)
        moved = self._read(job, outcomes)
        rows = [row for row, outcome in enumerate(outcomes.tolist()) if outcome == Outcome.OK]
        if job.dst is TierName.SSD:
            extents = self._append(job, moved, outcomes)
            encoded_nbytes = int(extents.nbytes[outcomes == Outcome.OK].sum())
            return CopyResult(job.job_id, outcomes, extents, self.free_nbytes, encoded_nbytes=encoded_nbytes)
        assert job.dst_locations is not None
        places = job.dst_locations.tolist()
        dst = self.slots.get(job.dst)
        if dst is None:
            dst = self.rows.setdefault(job.request_id, {})
        dst.update({places[row]: moved[row] for row in rows})
        return CopyResult(job.job_id, outcomes)

    def _read(self, job: CopyJob, outcomes: UInt8Array) -> list[Identity]:
        """What lies at a job's source, which must be what the job asks for where it counts."""
        wanted = identities(job.generation, job.hashes)
        if job.src in FAR:
            return wanted
        found: list[Identity | None]
        if isinstance(job.src_locations, Extents):
            files, pages = job.src_locations.file.tolist(), job.src_locations.page.tolist()
            self._reading.subtract(files)
            found = [self.records.get(place) for place in zip(files, pages, strict=True)]
        else:
            found = [self.slots[job.src].get(page) for page in job.src_locations.tolist()]
        for row, outcome in enumerate(outcomes.tolist()):
            assert outcome != Outcome.OK or found[row] == wanted[row], (
                f"{wanted[row]} wanted, {found[row]} there: {job}"
            )
        return wanted

    def place(self, generation: Generation, identity: Identity) -> tuple[int, int] | None:
        """Append one block to its layout's open file; None where the SSD is full."""
        nbytes, layout = generation.layout.block_nbytes, generation.layout.fingerprint
        if self.free_nbytes < nbytes:
            return None
        file, page = self._open.get(layout, (0, self._file_blocks))
        if page == self._file_blocks:
            file, page = self._num_files, 0
            self._num_files += 1
            self.file_nbytes[file] = 0
        self._open[layout] = file, page + 1
        self.records[file, page] = identity
        self.file_nbytes[file] += nbytes
        self.free_nbytes -= nbytes
        return file, page

    def _append(self, job: CopyJob, moved: list[Identity], outcomes: UInt8Array) -> Extents:
        """Place the OK blocks of a write; REJECTED from the first that does not fit."""
        places = []
        for row, identity in enumerate(moved):
            place = self.place(job.generation, identity) if outcomes[row] == Outcome.OK else None
            if place is None and outcomes[row] == Outcome.OK:
                outcomes[row] = Outcome.REJECTED
            places.append(place or (-1, 0))
        return as_extents(places, job.generation.layout.block_nbytes)

    def _discard(self, file: int) -> int:
        assert self._reading[file] == 0, f"file {file} is given back while {self._reading[file]} blocks are read"
        self.free_nbytes += self.file_nbytes.pop(file)
        self.records = {place: identity for place, identity in self.records.items() if place[0] != file}
        self._open = {layout: place for layout, place in self._open.items() if place[0] != file}
        return self.free_nbytes


def as_extents(places: list[tuple[int, int]], block_nbytes: int) -> Extents:
    """Extents of (file, page) places."""
    file, page = np.array(places, np.int64).reshape(-1, 2).T
    nbytes = np.full(len(places), block_nbytes, np.uint32)
    return Extents(file.astype(np.int32), page.astype(np.uint32), nbytes, np.zeros(len(places), np.uint32))
