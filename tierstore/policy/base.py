"""Who goes when room is short, and who may enter a tier. Pure; called under the engine's lock.

Policies order directory entries by index (int32), never by key, and hold every entry they were told of
until it is removed. One policy instance serves one slot class of one tier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from tierstore.types import Int32Array, TierName

__all__ = ["AdmissionPolicy", "EvictionPolicy"]


@runtime_checkable
class EvictionPolicy(Protocol):
    """Order of eviction over entries 0 … capacity-1. Constructed as ``Policy(capacity)``.

    Batches arrive in the order in which they count as used: callers pass a prefix tail first, so that its
    leaves are older than their parents.

    Attributes:
        num_evictable: How many held entries `victims` could name; for others to read.
    """

    num_evictable: int

    def insert(self, entries: Int32Array) -> None:
        """Add entries that are not held yet, evictable, the last as the most recently used."""

    def touch(self, entries: Int32Array) -> None:
        """Count held entries as used, in order."""

    def remove(self, entries: Int32Array) -> None:
        """Forget held entries (evicted or discarded)."""

    def set_evictable(self, entries: Int32Array, evictable: bool) -> None:
        """Shield held entries from `victims`, or stop shielding them. Does not count as use."""

    def victims(self, count: int) -> Int32Array | None:
        """The `count` evictable entries to go first, in order, still held; None where there are fewer."""

    def oldest(self) -> int:
        """The entry that `victims` would name first, for comparing ages across classes; -1 where there is none."""


@runtime_checkable
class AdmissionPolicy(Protocol):
    """Whether blocks are worth writing to a farther tier. Constructed as ``Policy()``."""

    def admit(self, entries: Int32Array, hits: Int32Array, dst: TierName, block_nbytes: int) -> list[bool]:
        """One answer an entry; `hits` counts how often each was used since it came.

        A durable put does not ask. A block that was refused is offered again whenever it is used.
        """
