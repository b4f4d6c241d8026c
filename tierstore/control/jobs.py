"""Jobs in flight, and the requests that wait for them. Pure; the planner's stories call it.

The table finds the job that fills a block (FILLING in the directory) by its entry, so that a second request
for the same block joins that job instead of starting another copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.types import CopyJob, JobId, TierName

if TYPE_CHECKING:
    from tierstore.control.requests import JobRecord, Request
    from tierstore.types import Int64Array

__all__ = ["JobTable"]


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
        """Enter a job that fills `entries` in tier `fills`; they are FILLING there until it is closed."""
        self._records[record.job.job_id] = record
        if fills is not None and entries is not None:
            self._filling[fills].update(dict.fromkeys(entries.tolist(), record.job.job_id))

    def close(self, job_id: JobId, fills: TierName | None = None, entries: Int64Array | None = None) -> JobRecord:
        """Remove a job that has ended, and return its record."""
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

    def num_filling(self, tier: TierName) -> int:
        """How many blocks jobs in flight fill in `tier`."""
        return len(self._filling[tier])

    def join(self, tier: TierName, entries: Int64Array, request: Request, positions: Int64Array) -> list[JobId]:
        """Make a request wait for the jobs that fill these entries in `tier`; returns those jobs."""
        filling = self._filling[tier]
        each = [filling[entry] for entry in entries.tolist()]
        job_ids, joined = np.array(each, np.int64), sorted(set(each))
        for job_id in joined:
            self._records[job_id].waiters.append((request, positions[job_ids == job_id]))
        request.awaiting += len(positions)
        return joined

    def filling_job(self, tier: TierName, entry: int) -> CopyJob:
        """The job in flight that fills an entry in `tier`."""
        job = self._records[self._filling[tier][entry]].job
        assert isinstance(job, CopyJob), f"{job!r} fills no block"
        return job

    def fillers(self, tier: TierName, entries: Int64Array) -> set[JobId]:
        """The jobs in flight that fill these entries, all of them FILLING, in `tier`."""
        return set(map(self._filling[tier].__getitem__, entries.tolist()))

    def filling(self, tier: TierName) -> set[int]:
        """Entries that jobs in flight fill in `tier`; for checks."""
        return set(self._filling[tier])
