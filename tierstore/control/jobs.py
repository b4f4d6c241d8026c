"""Jobs in flight, the requests they serve, and who waits for them. Pure; the planner's stories call it.

A job that fills blocks (FILLING in the directory) is found by entry, so that a second request for the
same block joins it instead of starting another copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tierstore.types import CopyJob, JobId, Outcome, TierName

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.control.index import UInt64Array
    from tierstore.types import Generation, Int32Array, Int64Array, Job, Plan, Priority, RequestId, UInt8Array

__all__ = ["JobRecord", "JobTable", "Life", "Request", "Story"]


@dataclass(frozen=True, slots=True)
class Life:
    """A generation as the mind holds it: with the slot class of its blocks."""

    generation: Generation
    slot_class: int
    block_nbytes: int

    @property
    def number(self) -> int:
        """The generation's number."""
        return self.generation.number


class Story(Protocol):
    """What a request follows: a get, a put, a prefetch or a flush."""

    verb: str
    """As in the metrics; empty where its blocks are not counted."""

    def open(self, request: Request, hi: int, plan: Plan, now: float) -> None:
        """Plan blocks [request.opened, hi)."""

    def arrived(self, request: Request, positions: Int64Array, record: JobRecord, plan: Plan, now: float) -> None:
        """A job that the request waited for has ended; the directory already says where the blocks are."""

    def shorten(self, request: Request, outcome: Outcome, plan: Plan, now: float) -> None:
        """Deadline or cancel: want nothing more than what is already moving into the caller's memory."""


@dataclass(slots=True, eq=False)
class Request:
    """One verb of a caller over n blocks in prefix order.

    Attributes:
        request_id: Unique in one run of the store.
        story: Whose rules it follows.
        life: The generation it was opened in.
        hashes: uint8[n, 32], distinct.
        parents: uint8[n, 32]; the predecessor of each block in the chain.
        deadline: On the caller's clock; infinity where there is none.
        priority: Order in the links.
        durable: A put that must reach the disk.
        entries: int32[n]; -1 where not known (yet).
        outcomes: uint8[n] of `Outcome`.
        ready: bool[n]; the host copy is pinned for this request.
        opened: Blocks planned so far, from the first.
        stop: Blocks still wanted, from the first.
        frontier: Blocks handed to load jobs.
        awaiting: Blocks for which it waits on jobs.
        moving: Its own jobs that touch the caller's memory.
        syncing: A durable put whose writes have ended and whose sync has not.
        done: Resolved; what arrives later is of no interest.
    """

    request_id: RequestId
    story: Story
    life: Life
    hashes: UInt8Array
    parents: UInt8Array
    deadline: float
    priority: Priority
    durable: bool
    entries: Int32Array
    outcomes: UInt8Array
    ready: NDArray[np.bool_]
    stop: int
    opened: int = 0
    frontier: int = 0
    awaiting: int = 0
    moving: int = 0
    syncing: bool = False
    done: bool = False

    @property
    def planned(self) -> bool:
        """Whether nothing is left to open."""
        return self.done or self.opened >= self.stop

    @property
    def keys(self) -> UInt64Array:
        """The hashes as uint64[n, 4]."""
        return self.hashes.view(np.uint64)

    def __len__(self) -> int:
        return len(self.hashes)

    def leading(self) -> int:
        """Blocks from the first that are OK without a hole."""
        return int((self.outcomes != Outcome.OK).argmax()) if np.count_nonzero(self.outcomes) else len(self)


@dataclass(slots=True, eq=False)
class JobRecord:
    """A job in flight.

    Attributes:
        job: What runs.
        request: Whose memory it touches (device jobs) or who caused it; None for the store's own.
        positions: int64[n]; the job's blocks as positions in the request.
        waiters: Requests that go on when it ends, each with its positions among the job's blocks.
        outcomes: uint8[n] of `Outcome`, in the job's order; None while it runs.
    """

    job: Job
    request: Request | None = None
    positions: Int64Array | None = None
    waiters: list[tuple[Request, Int64Array]] = field(default_factory=list)
    outcomes: UInt8Array | None = None

    def outcomes_of(self, entries: Int32Array) -> UInt8Array:
        """How the job ended for some of its blocks, named by entry."""
        assert isinstance(self.job, CopyJob) and self.outcomes is not None, f"job {self.job.job_id} has not ended"
        by_entry = dict(zip(self.job.entries.tolist(), self.outcomes.tolist(), strict=True))
        return np.array([by_entry[entry] for entry in entries.tolist()], np.uint8)


class JobTable:
    """Every job in flight. Bounded by the planner's limits."""

    def __init__(self) -> None:
        self._records: dict[JobId, JobRecord] = {}
        self._filling: dict[TierName, dict[int, JobId]] = {TierName.HOST: {}, TierName.SSD: {}}
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._records)

    def next_id(self) -> JobId:
        """A fresh job id."""
        self._last_id += 1
        return JobId(self._last_id)

    def open(self, record: JobRecord, fills: TierName | None = None, entries: Int32Array | None = None) -> None:
        """Enter a job; `entries` are FILLING in `fills` until it is closed."""
        self._records[record.job.job_id] = record
        if fills is not None and entries is not None:
            self._filling[fills].update(dict.fromkeys(entries.tolist(), record.job.job_id))

    def close(self, job_id: JobId, fills: TierName | None = None, entries: Int32Array | None = None) -> JobRecord:
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

    def join(self, tier: TierName, entries: Int32Array, request: Request, positions: Int64Array) -> list[JobId]:
        """Make a request wait for whatever fills these entries in `tier`; returns the jobs joined."""
        filling = self._filling[tier]
        job_ids = np.array([filling[entry] for entry in entries.tolist()], np.int64)
        joined = [JobId(job_id) for job_id in np.unique(job_ids).tolist()]
        for job_id in joined:
            self._records[job_id].waiters.append((request, positions[job_ids == job_id]))
        request.awaiting += len(positions)
        return joined

    def filling(self, tier: TierName) -> set[int]:
        """Entries that jobs in flight fill in `tier`; for checks."""
        return set(self._filling[tier])
