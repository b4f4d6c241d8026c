"""The seam of a tier below the host pool: an SSD folder, later a remote store.

Every method blocks and is called on a link's worker: `read` from several at once, the others from the
one write worker. Bytes move between the tier and host-pool slots; the tier got the pool at construction.
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
    """Blocks that a tier still holds from an earlier run, of one namespace and epoch, oldest first.

    Attributes:
        fingerprint: The namespace's.
        epoch: As recorded; blocks of an epoch that is over have been left out.
        hashes: uint8[n, 32].
        extents: Where they lie.
    """

    fingerprint: bytes
    epoch: int
    hashes: UInt8Array
    extents: Extents


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe has found.

    Attributes:
        reading: OK, or how it failed.
        writing: OK; REJECTED for want of room, or IO_ERROR.
        free_nbytes: What the tier can take; None where unknown.
        fault: What the medium refused, if it did.
    """

    reading: Outcome
    writing: Outcome
    free_nbytes: int | None = None
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Synced:
    """How a sync has ended.

    Attributes:
        outcome: OK where all that it was to make durable now is, else IO_ERROR.
        in_doubt: Files that it, or one before it, could not make durable: a power loss may take what is in them.
    """

    outcome: Outcome
    in_doubt: tuple[int, ...] = ()


class TierWork(Protocol):
    """What links ask of a tier. Nothing here raises for a medium that fails: results say how and why."""

    def read(self, job: CopyJob) -> CopyResult:
        """Fill the job's slots and verify identity, length and checksum of each block.

        A block that does not verify is CORRUPT, one that cannot be read IO_ERROR, and one whose file another owner
        has given back MISS; never an exception.
        """

    def write(self, jobs: Sequence[CopyJob | TombstoneJob]) -> list[CopyResult]:
        """Append the jobs' records in order; readable when this returns, durable after the next `sync`.

        Blocks come from host slots, or from the tier's own files where one is about to be discarded. Of two
        records of one identity the one whose job has the higher id counts, whichever was appended first.
        """

    def sync(self) -> Synced:
        """Make every record durable whose write has returned.

        What could not be made durable is IO_ERROR once, and its file in doubt for as long as it is there.
        """

    def discard(self, file: int) -> int:
        """Give a whole chunk file back, durably; returns the bytes the tier can now take."""

    def probe(self) -> Probed:
        """Read something old and write something new, really and durably, and leave no trace of it."""


@runtime_checkable
class Tier(TierWork, Protocol):
    """Holds blocks below the host pool."""

    def recover(self, progress: Progress | None = None) -> Iterator[Recovered]:
        """Blocks found from an earlier run, oldest file first; the highest sequence of one identity wins."""

    def close(self) -> None:
        """Sync and let go of every file."""
