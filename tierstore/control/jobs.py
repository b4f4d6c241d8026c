"""Jobs in flight, and the requests that wait for them. Pure; the planner's stories call it.

A job that fills blocks (FILLING in the directory) is found by entry, so that a second request for the
same block joins it instead of starting another copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from tierstore.types import CopyJob, JobId, Outcome, TierName

if TYPE_CHECKING:
    from tierstore.control.requests import Request
    from tierstore.types import Int64Array, Job, UInt8Array, UInt32Array

__all__ = ["JobRecord", "JobTable"]


@dataclass(slots=True, eq=False)
class JobRecord:
    """A job in flight.

    Attributes:
        job: What runs.
        request: Whose memory it touches (device jobs) or who caused it; None for the store's own.
        positions: int64[n]; the job's blocks as positions in the request.
        waiters: Requests that go on when it ends, each with its positions among the job's blocks.
        outcomes: uint8[n] of `Outcome`, in the job's order; None while it runs.
        checksums: uint32[n]; what whoever filled its blocks says of them.
        retry: Blocks of a write that found no room may find some once the file that is leaving has gone.
    """

    job: Job
    request: Request | None = None
    positions: Int64Array | None = None
    waiters: list[tuple[Request, Int64Array]] = field(default_factory=list)
    outcomes: UInt8Array | None = None
    checksums: UInt32Array | None = None
    retry: bool = False

    def losses(self, entries: Int64Array) -> UInt8Array:
        """Why some of its blocks, named by entry, are not there: CANCELLED for one that was deleted meanwhile."""
        assert isinstance(self.job, CopyJob) and self.outcomes is not None, f"job {self.job.job_id} has not ended"
        by_entry = dict(zip(self.job.entries.tolist(), self.outcomes.tolist(), strict=True))
        return np.array([by_entry[entry] or Outcome.CANCELLED for entry in entries.tolist()], np.uint8)


class JobTable:
    """Every job in flight. Bounded by the planner's limits."""

    def __init__(self) -> None:
        self._records: dict[JobId, JobRecord] = {}
        self._filling: dict[TierName, dict[int, JobId]] = {
            TierName.HOST: {},
            TierName.SSD: {},
            TierName.DEVICE_POOL: {},
        }
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._records)

    def next_id(self) -> JobId:
        """A fresh job id."""
        self._last_id += 1
        return JobId(self._last_id)

    def open(self, record: JobRecord, fills: TierName | None = None, entries: Int64Array | None = None) -> None:
        """Enter a job; `entries` are FILLING in `fills` until it is closed."""
        self._records[record.job.job_id] = record
        if fills is not None and entries is not None:
            self._filling[fills].update(dict.fromkeys(entries.tolist(), record.job.job_id))

    def close(self, job_id: JobId, fills: TierName | None = None, entries: Int64Array | None = None) -> JobRecord:
        """Take a job out that has ended."""
        record = self._records.pop(job_id)
        if fills is not None and entries is not None:
            filling = self._filling[fills]
            for entry in entries.tolist():
                del filling[entry]
        return record

    def get(self, job_id: JobId) -> JobRecord:
        """The record of a job in flight."""
        return self._records[job_id]

    def records(self) -> list[JobRecord]:
        """Every job in flight, oldest first."""
        return list(self._records.values())

    def num_copies(self, src: TierName, dst: TierName) -> int:
        """How many jobs copy blocks from one tier to another."""
        copies = (record.job for record in self._records.values() if isinstance(record.job, CopyJob))
        return sum((job.src, job.dst) == (src, dst) for job in copies)

    def join(self, tier: TierName, entries: Int64Array, request: Request, positions: Int64Array) -> list[JobId]:
        """Make a request wait for whatever fills these entries in `tier`; returns the jobs joined."""
        filling = self._filling[tier]
        job_ids = np.array([filling[entry] for entry in entries.tolist()], np.int64)
        joined = [JobId(job_id) for job_id in np.unique(job_ids).tolist()]
        for job_id in joined:
            self._records[job_id].waiters.append((request, positions[job_ids == job_id]))
        request.awaiting += len(positions)
        return joined

    def filling_job(self, tier: TierName, entry: int) -> CopyJob:
        """The job in flight that fills an entry in `tier`."""
        job = self._records[self._filling[tier][entry]].job
        assert isinstance(job, CopyJob), f"{job!r} fills no block"
        return job

    def filling(self, tier: TierName) -> set[int]:
        """Entries that jobs in flight fill in `tier`; for checks."""
        return set(self._filling[tier])
