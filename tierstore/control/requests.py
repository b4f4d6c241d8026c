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
"""Where the caller's memory may be, on the other side of the host pool."""

_DEADLINES_SPARE = 64
"""Deadlines of ended requests that are not worth looking for."""


def leading_run(chosen: NDArray[np.bool_]) -> int:
    """How many are chosen before the first that is not."""
    return len(chosen) if np.count_nonzero(chosen) == len(chosen) else int(chosen.argmin())


@dataclass(frozen=True, slots=True)
class Life:
    """A generation as the mind holds it: with the slot class of its blocks, in the device pool too if there is one."""

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
        durable: A put that must reach the disk.
        entries: int64[n]; -1 where not known (yet).
        outcomes: uint8[n] of `Outcome`.
        ready: bool[n]; the host copy is pinned for this request: to be loaded, or until all of a put is planned.
        pooled: bool[n]; of the READY ones: the copy in the device pool is pinned instead.
        opened: Blocks planned so far, from the first.
        stop: Blocks still wanted, from the first.
        frontier: Blocks handed to jobs that touch the caller's memory.
        awaiting: Blocks for which it waits on jobs.
        moving: Its own jobs that touch the caller's memory.
        syncing: A durable put whose writes have ended and whose sync has not.
        doubted: A sync has failed since it was opened: what was written for it may not last.
        begun: When its first slice was planned; infinity before.
        done: Resolved; what arrives later is of no interest.
        in_pieces: Its blocks came to the host pool, or were used, in more than one batch.
        far: Where the caller's memory is.
        lent: int64[k]; entries whose host slots count as lent until it has ended.
        depth: Blocks before its first one in their chain, as far as they are known; -1 where nobody has looked.
        priority: Of a prefetch: one with a higher number goes first.
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
        """How its sync ended; IO_ERROR too where another one had failed, for that is never tried again."""
        assert record.outcomes is not None
        return Outcome.IO_ERROR if self.doubted else Outcome(int(record.outcomes[0]))

    def leading(self) -> int:
        """Blocks from the first that are OK without a hole."""
        return int((self.outcomes != Outcome.OK.value).argmax()) if np.count_nonzero(self.outcomes) else len(self)


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
        turn: Of a write, its place among those that find no room: its id, or an earlier one that its blocks have.
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
        """Why some of its blocks, named by entry, are not there: CANCELLED for one that was deleted meanwhile."""
        assert isinstance(self.job, CopyJob) and self.outcomes is not None, f"job {self.job.job_id} has not ended"
        by_entry = dict(zip(self.job.entries.tolist(), self.outcomes.tolist(), strict=True))
        return np.array([by_entry[entry] or Outcome.CANCELLED for entry in entries.tolist()], np.uint8)


class Unasked:
    """The story of what no caller has asked for: nobody waits for it, so that nothing follows from its end."""

    verb = ""

    def open(self, request: Request, hi: int, plan: Plan, now: float) -> None:
        """It is planned as a whole."""

    def arrived(self, request: Request, positions: Int64Array, record: JobRecord, plan: Plan, now: float) -> None:
        """Whoever wants it finds it in the directory."""

    def shorten(self, request: Request, outcome: Outcome, plan: Plan, now: float) -> None:
        """It has no deadline, and nobody cancels it."""


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
    """A request for uint8[n, 32] hashes of which nothing is known yet."""
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
        """A new request for uint8[n, 32] hashes; None where too many are open."""
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
        """Forget a request that has ended, and now and then the deadlines of all that have."""
        request = self._requests.pop(request_id)
        if len(self._deadlines) > 2 * (len(self._requests) + _DEADLINES_SPARE):
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._requests]
            heapq.heapify(self._deadlines)
        return request

    def due(self, now: float) -> list[RequestId]:
        """Take out the requests whose deadline has come."""
        due = []
        while self._deadlines and self._deadlines[0][0] <= now:
            due.append(heapq.heappop(self._deadlines)[1])
        return due

    def next_deadline(self) -> float:
        """The earliest deadline of a request that has not ended; infinity where there is none."""
        while self._deadlines and self._deadlines[0][1] not in self._requests:
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else math.inf
