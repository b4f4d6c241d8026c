"""The interfaces of eviction and admission policies. Pure; called under the engine's lock.

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
    """The facts that a policy may read of its blocks: columns of the directory, one row an entry. Read-only.

    When a verb is called, the rows of the entries that it names are up to date; the other rows mean nothing.

    Attributes:
        tag: uint64[capacity]; recognizes a block that comes back after eviction; advice, not an identity.
        depth: uint16[capacity]; known blocks before it in its chain, at most 65,535.
        hits: uint16[capacity]; gets that used the block since it came.
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
        """Make held entries young, in order. `used` false: no use, only to keep them younger than their children."""

    def remove(self, entries: Int64Array) -> None:
        """Forget held entries (evicted or discarded)."""

    def set_evictable(self, entries: Int64Array, evictable: bool) -> None:
        """Shield held entries from `victims`, or stop shielding them. Does not count as use."""

    def victims(self, count: int) -> Int64Array | None:
        """The `count` evictable entries to evict first, in order, still held; None if there are fewer."""


NewPolicy: TypeAlias = Callable[[int, BlockFacts], EvictionPolicy]
"""Makes a policy over entries 0 … capacity-1, given their number and the columns that say what they are."""


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """Blocks of one namespace, in prefix order, that could be written to a farther tier.

    Attributes:
        entries: int64[n].
        hits: int32[n]; gets that used each block since it came.
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
        """Whether to write each entry.

        Durable puts are not offered. A refused block is offered again whenever it is used.
        """
