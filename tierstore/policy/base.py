"""Who goes when room is short, and who may enter a tier. Pure; called under the engine's lock.

Policies order directory entries by index (int64), never by key, and hold every entry they were told of
until it is removed. One policy instance serves one slot class of one tier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tierstore.types import Int32Array, Int64Array, TierName, UInt16Array, UInt64Array

__all__ = ["AdmissionPolicy", "BlockFacts", "EvictionPolicy", "NewPolicy", "Offer"]


@dataclass(frozen=True, slots=True, eq=False)
class BlockFacts:
    """What a policy may read of the blocks it orders: columns of the directory, one row an entry.

    Rows of entries that a verb names are up to date when it is called; others mean nothing. Never written to.

    Attributes:
        tag: uint64[capacity]; names a block well enough to know it again when it comes back: advice, no identity.
        depth: uint16[capacity]; blocks before it in its chain as far as they are known; sticks at 65,535.
        hits: uint16[capacity]; gets that used it since it came.
    """

    tag: UInt64Array
    depth: UInt16Array
    hits: UInt16Array


@runtime_checkable
class EvictionPolicy(Protocol):
    """Order of eviction over entries 0 … capacity-1. Constructed as ``Policy(capacity, facts)``.

    Batches arrive in the order in which they count as used: callers pass a prefix tail first, so that its
    leaves are older than their parents.
    """

    @property
    def num_evictable(self) -> int:
        """How many held entries `victims` could name."""

    def insert(self, entries: Int64Array) -> None:
        """Add entries that are not held yet, evictable, the last as the most recently used."""

    def touch(self, entries: Int64Array, *, used: bool = True) -> None:
        """Make held entries young, in order. With `used` false only to stay younger than their children are."""

    def remove(self, entries: Int64Array) -> None:
        """Forget held entries (evicted or discarded)."""

    def set_evictable(self, entries: Int64Array, evictable: bool) -> None:
        """Shield held entries from `victims`, or stop shielding them. Does not count as use."""

    def victims(self, count: int) -> Int64Array | None:
        """The `count` evictable entries to go first, in order, still held; None where there are fewer."""


NewPolicy: TypeAlias = Callable[[int, BlockFacts], EvictionPolicy]
"""Makes a policy over entries 0 … capacity-1, given their number and the columns that say what they are."""


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Blocks of one namespace, in prefix order, that could be written to a farther tier.

    Attributes:
        entries: int64[n].
        hits: int32[n]; gets that used each since it came.
        again: bool[n]; a later put has named it too.
        leaving: They are about to leave the nearer tier.
        dst: The farther tier.
        block_nbytes: Of each.
    """

    entries: Int64Array
    hits: Int32Array
    again: NDArray[np.bool_]
    leaving: bool
    dst: TierName
    block_nbytes: int


@runtime_checkable
class AdmissionPolicy(Protocol):
    """Whether blocks are worth writing to a farther tier. Constructed as ``Policy()``.

    Attributes:
        asks_when_leaving: Blocks are offered before they would leave the nearer tier, too.
    """

    asks_when_leaving: bool

    def admit(self, offer: Offer) -> list[bool]:
        """One answer an entry.

        A durable put does not ask. A block that was refused is offered again whenever it is used.
        """
