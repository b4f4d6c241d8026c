"""The types that all layers share: outcomes, priorities, jobs, results and plans.

Plain data: no behaviour beyond construction. numpy is imported for annotations only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, NewType, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tierstore.health import Fault
    from tierstore.layout import KVLayout

    Int32Array: TypeAlias = NDArray[np.int32]
    Int64Array: TypeAlias = NDArray[np.int64]
    UInt8Array: TypeAlias = NDArray[np.uint8]
    UInt16Array: TypeAlias = NDArray[np.uint16]
    UInt32Array: TypeAlias = NDArray[np.uint32]
    UInt64Array: TypeAlias = NDArray[np.uint64]

__all__ = [
    "HASH_NBYTES",
    "NO_REQUEST",
    "PAGE_NBYTES",
    "CopyJob",
    "CopyResult",
    "DiscardJob",
    "Extents",
    "Finished",
    "Generation",
    "Job",
    "JobId",
    "Outcome",
    "Plan",
    "Presence",
    "Priority",
    "ProbeJob",
    "RequestId",
    "SyncJob",
    "TierName",
    "TombstoneJob",
]

HASH_NBYTES = 32
"""Bytes of a block hash and of every fingerprint."""

PAGE_NBYTES = 4096
"""The unit of slots, extents and direct I/O. One host or disk location counts in these."""

JobId = NewType("JobId", int)
RequestId = NewType("RequestId", int)
NO_REQUEST = RequestId(-1)
"""Marks the planner's own requests, and jobs that touch no caller's pages."""


class TierName(StrEnum):
    """A tier that holds blocks, nearest to the engine first."""

    BORROWER = "borrower"
    """Memory of a borrower, who copies from and to lent slots by himself; it holds no blocks."""
    DEVICE = "device"
    DEVICE_POOL = "device-pool"
    HOST = "host"
    SSD = "ssd"


class Presence(IntEnum):
    """What `NamespaceHandle.presence` knows of one block."""

    MISS = 0
    PENDING = 1
    """Promised: a copy that will make it usable is in flight."""
    HIT = 2


class Outcome(IntEnum):
    """How one block of a request or job ended. A value, never an exception."""

    OK = 0
    MISS = 1
    REJECTED = 2
    """Refused at once for lack of room or by a limit; a later try may succeed."""
    CORRUPT = 3
    IO_ERROR = 4
    CANCELLED = 5
    """Withdrawn by the caller, by a deadline, by delete or by clear."""


class Priority(IntEnum):
    """Order of service in a link; smaller first."""

    GET = 0
    PREFETCH = 1
    WRITE_BACK = 2


@dataclass(frozen=True, slots=True)
class Generation:
    """One life of a namespace: its blocks between two `clear`s.

    Attributes:
        number: The store's own number for (fingerprint, epoch); part of the directory's keys.
        fingerprint: 32 bytes; see `tierstore.keys.Namespace.fingerprint`.
        epoch: Counts the namespace's clears; kept in the folder's manifest.
        layout: What shapes the bytes of its blocks.
    """

    number: int
    fingerprint: bytes
    epoch: int
    layout: KVLayout


@dataclass(frozen=True, slots=True, eq=False)
class Extents:
    """Where blocks lie in chunk files: four parallel columns.

    Attributes:
        file: int32[n]; the tier's own number of an open chunk file, never reused in one run.
        page: uint32[n]; offset of the record (its header page), in `PAGE_NBYTES`.
        nbytes: uint32[n]; encoded bytes without the checksum.
        checksum: uint32[n]; CRC32C of the encoded bytes.
    """

    file: Int32Array
    page: UInt32Array
    nbytes: UInt32Array
    checksum: UInt32Array

    def __len__(self) -> int:
        return len(self.file)

    def rows(self, chosen: NDArray[np.bool_] | Int64Array | slice) -> Extents:
        """The rows that a mask, positions or a slice choose."""
        return Extents(self.file[chosen], self.page[chosen], self.nbytes[chosen], self.checksum[chosen])


@dataclass(frozen=True, slots=True, eq=False)
class CopyJob:
    """Blocks to move one way between two neighbouring tiers.

    Locations are int64 positions in the request on the caller's side, int32 pages of `PAGE_NBYTES` in a pool, and
    `Extents` on SSD. A job from SSD to SSD rewrites blocks of a chunk file that is about to be reclaimed.

    Attributes:
        job_id: Unique in one run of the store.
        generation: The life of the namespace that the blocks belong to.
        src: Tier read from.
        dst: Tier written to.
        entries: int64[n]; directory entries, for the planner alone.
        hashes: uint8[n, 32]; block hashes.
        src_locations: See above.
        priority: Order in the link.
        dst_locations: See above; None for a write to SSD, whose worker chooses the place and reports it.
        request_id: The request whose pages a device job copies.
        parents: uint8[n, 32]; each block's predecessor in its chain, zeros at a chain's start or if unknown.
        checksums: int64[n]; for a write from the host pool, the CRC32C that each block's bytes must have, -1 for any.
    """

    job_id: JobId
    generation: Generation
    src: TierName
    dst: TierName
    entries: Int64Array
    hashes: UInt8Array
    src_locations: Int64Array | Int32Array | Extents
    priority: Priority
    dst_locations: Int64Array | Int32Array | None = None
    request_id: RequestId = NO_REQUEST
    parents: UInt8Array | None = None
    checksums: Int64Array | None = None

    def __len__(self) -> int:
        return len(self.entries)


@dataclass(frozen=True, slots=True)
class SyncJob:
    """Make every record written so far durable (one fdatasync for all that wait)."""

    job_id: JobId
    dst: TierName = TierName.SSD


@dataclass(frozen=True, slots=True, eq=False)
class TombstoneJob:
    """Record that blocks are deleted, so that no restart finds them.

    Attributes:
        job_id: Unique in one run; a record of the same identity counts only if its job's id is higher.
        generation: The life of the namespace that the blocks belonged to.
        hashes: uint8[n, 32].
    """

    job_id: JobId
    generation: Generation
    hashes: UInt8Array
    dst: TierName = TierName.SSD

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True, slots=True)
class DiscardJob:
    """Reclaim a whole chunk file. None of its blocks is known or pinned any more."""

    job_id: JobId
    file: int
    dst: TierName = TierName.SSD


@dataclass(frozen=True, slots=True)
class ProbeJob:
    """Find out whether a tier that was turned off can be read and written again."""

    job_id: JobId
    dst: TierName = TierName.SSD


Job: TypeAlias = CopyJob | TombstoneJob | SyncJob | DiscardJob | ProbeJob


@dataclass(frozen=True, slots=True, eq=False)
class CopyResult:
    """How a job ended.

    Attributes:
        job_id: The job.
        outcomes: uint8[n] of `Outcome` in the job's order. A sync or discard has one, a probe two: reading, writing.
        dst_locations: Where a write put its OK blocks. For tombstones only the file counts, -1 for none.
        dst_free_nbytes: Bytes the tier can still take before it must reclaim; None if unknown.
        seconds: Wall time in the worker.
        encoded_nbytes: Bytes that a write put on disk for its blocks; None if unknown.
        fault: Why part of the job failed, if the medium is at fault and the reason is known.
        in_doubt: For a sync, the files that it, or an earlier sync, could not make durable.
        checksums: uint32[n]; CRC32C of the blocks' own bytes, as reported by the borrower that filled their slots.
    """

    job_id: JobId
    outcomes: UInt8Array
    dst_locations: Extents | None = None
    dst_free_nbytes: int | None = None
    seconds: float = 0.0
    encoded_nbytes: int | None = None
    fault: Fault | None = None
    in_doubt: tuple[int, ...] = ()
    checksums: UInt32Array | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """A request that has ended.

    Attributes:
        request_id: The request.
        leading: How many blocks from the first are usable without a hole.
        outcomes: uint8[n] of `Outcome`, one a block.
    """

    request_id: RequestId
    leading: int
    outcomes: UInt8Array


@dataclass(slots=True)
class Plan:
    """What must happen next: jobs to start and requests that have ended.

    Attributes:
        jobs: Jobs to submit; one that its link has no room for ends REJECTED.
        lifts: Jobs already in a link that a get now waits for; they go before prefetches.
        withdraws: Jobs already in a link that no request wants any more; drop them if still queued.
        handed: Requests whose last job is known, with the number of blocks in their jobs. Told before `finished`.
        finished: Requests to resolve, after the jobs are submitted.
        due: Whether upkeep waits for a call of `tend`.
        expire_at: When `expire` must be called for the sake of a tier; infinity if it need not.
        notices: Messages for the operator.
    """

    jobs: list[Job] = field(default_factory=list)
    lifts: list[JobId] = field(default_factory=list)
    withdraws: list[JobId] = field(default_factory=list)
    handed: list[tuple[RequestId, int]] = field(default_factory=list)
    finished: list[Finished] = field(default_factory=list)
    due: bool = False
    expire_at: float = float("inf")
    notices: list[str] = field(default_factory=list)
