"""The interface of a tier below the host pool: an SSD folder, later a remote store.

Every method blocks and is called on a link's worker: `read` from several at once, the others from the one write
worker. Bytes move between the tier and slots of the host pool, which the tier gets at construction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from tierstore.types import Outcome

if TYPE_CHECKING:
    from tierstore.health import Fault
    from tierstore.types import CopyJob, CopyResult, Extents, TombstoneJob, UInt8Array

__all__ = ["Probed", "Progress", "Recovered", "Synced", "Tier", "TierWork"]

Progress: TypeAlias = Callable[[int, int], None]
"""Told how many bytes are done with, of how many; from any thread, but from one at a time."""


@dataclass(frozen=True, slots=True, eq=False)
class Recovered:
    """Blocks of one namespace and epoch that a tier still holds from an earlier run, oldest first.

    Attributes:
        fingerprint: Of the namespace.
        epoch: As recorded; blocks of an epoch that is over have been left out.
        hashes: uint8[n, 32].
        extents: Where the blocks lie.
    """

    fingerprint: bytes
    epoch: int
    hashes: UInt8Array
    extents: Extents


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of a probe.

    Attributes:
        reading: OK, or how the read failed.
        writing: OK; REJECTED for lack of room, or IO_ERROR.
        free_nbytes: Bytes that the tier can take; None if unknown.
        fault: The operation that the medium refused, if any.
    """

    reading: Outcome
    writing: Outcome
    free_nbytes: int | None = None
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Synced:
    """The result of a sync.

    Attributes:
        outcome: OK if everything that the sync covers is durable, else IO_ERROR.
        in_doubt: Files that this or an earlier sync could not make durable: a power loss may take their records.
    """

    outcome: Outcome
    in_doubt: tuple[int, ...] = ()


class TierWork(Protocol):
    """What links ask of a tier. A failing medium raises nothing here: results say how and why."""

    def read(self, job: CopyJob) -> CopyResult:
        """Fill the job's slots and verify identity, length and checksum of each block.

        A block that does not verify is CORRUPT, one that cannot be read is IO_ERROR, and one whose file the folder's
        owner has removed is MISS. Never an exception.
        """

    def write(self, jobs: Sequence[CopyJob | TombstoneJob]) -> list[CopyResult]:
        """Append the jobs' records in order; readable when this returns, durable after the next `sync`.

        Blocks come from host slots, or from a file of the tier that is about to be discarded. Of two records of one
        identity, the one whose job has the higher id counts, whichever was appended first.
        """

    def sync(self) -> Synced:
        """Make every record durable whose write has returned.

        A failure is reported as IO_ERROR once; the file that could not be synced stays in doubt while it exists.
        """

    def discard(self, file: int) -> int:
        """Reclaim a whole chunk file, durably; returns the bytes the tier can now take."""

    def probe(self) -> Probed:
        """Test reading and writing: read an old page, write and sync a new one, and leave no trace of it."""


@runtime_checkable
class Tier(TierWork, Protocol):
    """Holds blocks below the host pool."""

    def recover(self, progress: Progress | None = None) -> Iterator[Recovered]:
        """Blocks found from an earlier run, oldest file first; the highest sequence of one identity wins."""

    def close(self) -> None:
        """Sync and close every file."""
