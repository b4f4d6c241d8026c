"""Requests: what a caller asked for, how far it has come, when it must end, and the jobs that serve it.

Pure; the planner's stories call it.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tierstore.types import CopyJob, Outcome, RequestId, TierName

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.types import Generation, Int64Array, Job, Plan, UInt8Array, UInt32Array, UInt64Array

__all__ = [
    "FAR",
    "UNASKED",
    "JobRecord",
    "Life",
    "Request",
    "RequestTable",
    "Story",
    "Unasked",
    "leading_run",
    "new_request",
]

FAR = frozenset((TierName.DEVICE, TierName.BORROWER))
"""Tiers that stand for the caller's memory: the device's pages, or a borrower that copies by itself."""

_DEADLINES_SPARE = 64
"""The deadline heap is purged of ended requests once it is longer than twice the open requests and these."""


def leading_run(chosen: NDArray[np.bool_]) -> int:
    """Length of the run of true values at the start."""
    return len(chosen) if np.count_nonzero(chosen) == len(chosen) else int(chosen.argmin())


@dataclass(frozen=True, slots=True)
class Life:
    """A generation in the planner, with the slot class of its blocks in each pool; -1 if there is no device pool."""

    generation: Generation
    slot_class: int
    block_nbytes: int
    device_class: int = -1

    @property
    def number(self) -> int:
        """The generation's number."""
        return self.generation.number

    def class_in(self, pool: TierName) -> int:
        """The slot class of its blocks in one of the pools."""
        return self.slot_class if pool is TierName.HOST else self.device_class


class Story(Protocol):
    """The rules that requests of one verb follow: get, put, prefetch, delete or flush."""

    verb: str
    """Its label in the metrics; empty if its blocks are not counted."""

    def open(self, request: Request, hi: int, plan: Plan, now: float) -> None:
        """Plan blocks [request.opened, hi)."""

    def arrived(self, request: Request, positions: Int64Array, record: JobRecord, plan: Plan, now: float) -> None:
        """A job that the request waited for has ended; the directory already says where the blocks are."""

    def shorten(self, request: Request, outcome: Outcome, plan: Plan, now: float) -> None:
        """End at a deadline or cancel: start nothing more, and wait only for copies of the caller's memory."""


@dataclass(slots=True, eq=False)
class Request:
    """One verb of a caller over n blocks in prefix order.

    Attributes:
        request_id: Unique in one run of the store.
        story: The rules it follows.
        life: The generation it was opened in.
        hashes: uint8[n, 32], distinct.
        parents: uint8[n, 32]; the predecessor of each block in the chain.
        deadline: On the caller's clock; infinity where there is none.
        durable: A put that must reach the disk.
        entries: int64[n]; -1 where not known (yet).
        outcomes: uint8[n] of `Outcome`.
        ready: bool[n]; the host copy is pinned for this request: until it is loaded, or until the whole put is planned.
        pooled: bool[n]; of the ready ones: the copy in the device pool is pinned instead.
        opened: Blocks [0, opened) are planned.
        stop: Blocks [0, stop) are still wanted.
        frontier: Get: [0, frontier) are in load jobs. Put: the number of blocks in store jobs. Prefetch: [0, frontier)
            are in host memory or on their way.
        awaiting: Blocks in jobs, or parked, that it waits for.
        moving: Jobs of its own in flight that touch the caller's memory.
        syncing: A durable put or a delete waits for its sync.
        doubted: A sync has failed since it was opened: what was written for it may not be durable.
        begun: When its first slice was planned; infinity before.
        done: Resolved; results that arrive later are ignored.
        in_pieces: Its blocks came to the host pool, or were used, in more than one batch.
        far: The tier that stands for the caller's memory.
        lent: int64[k]; entries whose host slots count as lent until it has ended.
        depth: Blocks before its first one in its chain, as far as known; -1 until it is looked up.
        priority: Of a prefetch; the highest goes first.
    """

    request_id: RequestId
    story: Story
    life: Life
    hashes: UInt8Array
    parents: UInt8Array
    deadline: float
    durable: bool
    entries: Int64Array
    outcomes: UInt8Array
    ready: NDArray[np.bool_]
    pooled: NDArray[np.bool_]
    stop: int
    opened: int = 0
    frontier: int = 0
    awaiting: int = 0
    moving: int = 0
    syncing: bool = False
    doubted: bool = False
    begun: float = math.inf
    done: bool = False
    in_pieces: bool = False
    far: TierName = TierName.DEVICE
    lent: Int64Array = field(default_factory=lambda: np.empty(0, np.int64))
    depth: int = -1
    priority: int = 0

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

    def synced(self, record: JobRecord) -> Outcome:
        """How its sync ended; IO_ERROR also if another sync failed meanwhile: a failed sync is never retried."""
        assert record.outcomes is not None
        return Outcome.IO_ERROR if self.doubted else Outcome(int(record.outcomes[0]))

    def leading(self) -> int:
        """How many blocks are OK before the first hole."""
        return int((self.outcomes != Outcome.OK.value).argmax()) if np.count_nonzero(self.outcomes) else len(self)


@dataclass(slots=True, eq=False)
class JobRecord:
    """A job in flight.

    Attributes:
        job: The job.
        request: The request whose memory it touches, or that caused it; None for the store's own jobs.
        positions: int64[n]; the job's blocks as positions in the request.
        waiters: Requests that go on when it ends, each with the positions, in the request, that the job fills.
        outcomes: uint8[n] of `Outcome`, in the job's order; None while it runs.
        checksums: uint32[n] of its blocks, as the writer of the slots gave them; None if it gave none.
        retry: Of a write: refused blocks may find room once the file being reclaimed is gone.
        turn: Of a write: its place in the order of parked batches. Its id, or a lower one that its blocks had before.
    """

    job: Job
    request: Request | None = None
    positions: Int64Array | None = None
    waiters: list[tuple[Request, Int64Array]] = field(default_factory=list)
    outcomes: UInt8Array | None = None
    checksums: UInt32Array | None = None
    retry: bool = False
    turn: int = field(init=False)

    def __post_init__(self) -> None:
        self.turn = self.job.job_id

    def losses(self, entries: Int64Array) -> UInt8Array:
        """Why these entries of the job are missing. One whose copy was OK was deleted meanwhile: CANCELLED."""
        assert isinstance(self.job, CopyJob) and self.outcomes is not None, f"job {self.job.job_id} has not ended"
        by_entry = dict(zip(self.job.entries.tolist(), self.outcomes.tolist(), strict=True))
        return np.array([by_entry[entry] or Outcome.CANCELLED for entry in entries.tolist()], np.uint8)


class Unasked:
    """The story of jobs that no caller asked for. No request waits for them, so nothing follows from their end."""

    verb = ""

    def open(self, request: Request, hi: int, plan: Plan, now: float) -> None:
        """Do nothing: the jobs are planned where they are decided."""

    def arrived(self, request: Request, positions: Int64Array, record: JobRecord, plan: Plan, now: float) -> None:
        """Do nothing: later requests find the blocks in the directory."""

    def shorten(self, request: Request, outcome: Outcome, plan: Plan, now: float) -> None:
        """Do nothing: it has no deadline and is never cancelled."""


UNASKED = Unasked()


def new_request(
    request_id: RequestId,
    story: Story,
    life: Life,
    hashes: UInt8Array,
    *,
    deadline: float = math.inf,
    priority: int = 0,
) -> Request:
    """A request for uint8[n, 32] hashes, with nothing planned yet."""
    count = len(hashes)
    entries, outcomes = np.empty(count, np.int64), np.empty(count, np.uint8)
    entries.fill(-1)
    outcomes.fill(Outcome.MISS.value)
    return Request(
        request_id=request_id,
        story=story,
        life=life,
        hashes=hashes,
        parents=hashes,
        deadline=deadline,
        durable=False,
        entries=entries,
        outcomes=outcomes,
        ready=np.zeros(count, np.bool_),
        pooled=np.zeros(count, np.bool_),
        stop=count,
        priority=priority,
    )


class RequestTable:
    """Every request that has not ended, and their deadlines."""

    def __init__(self, requests_max: int) -> None:
        self._requests_max = requests_max
        self._requests: dict[RequestId, Request] = {}
        self._deadlines: list[tuple[float, RequestId]] = []
        self._last_id = 0

    def __len__(self) -> int:
        return len(self._requests)

    def open(
        self, story: Story, life: Life, hashes: UInt8Array, *, deadline: float = math.inf, priority: int = 0
    ) -> Request | None:
        """A new request for uint8[n, 32] hashes; None if too many are open."""
        if len(self._requests) >= self._requests_max:
            return None
        self._last_id += 1
        request = new_request(RequestId(self._last_id), story, life, hashes, deadline=deadline, priority=priority)
        self._requests[request.request_id] = request
        if deadline < math.inf:
            heapq.heappush(self._deadlines, (deadline, request.request_id))
        return request

    def get(self, request_id: RequestId) -> Request | None:
        """A request, if it has not ended."""
        return self._requests.get(request_id)

    def all(self) -> list[Request]:
        """Every request that has not ended, oldest first."""
        return list(self._requests.values())

    def close(self, request_id: RequestId) -> Request:
        """Remove a request that has ended; now and then purge the deadlines of ended requests."""
        request = self._requests.pop(request_id)
        if len(self._deadlines) > 2 * (len(self._requests) + _DEADLINES_SPARE):
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._requests]
            heapq.heapify(self._deadlines)
        return request

    def due(self, now: float) -> list[RequestId]:
        """Take the ids whose deadline has come out of the heap; some may have ended already."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now:
            due.append(heapq.heappop(self._deadlines)[1])
        return due

    def next_deadline(self) -> float:
        """The earliest deadline of an open request; infinity if there is none."""
        while self._deadlines and self._deadlines[0][1] not in self._requests:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else math.inf
