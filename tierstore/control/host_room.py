"""Room in the host pool: which slots are free, and which blocks are evicted when none are. Pure; under the lock.

Eviction happens here, synchronously, when slots are taken: nothing waits or polls for room. Each slot size is
a class with an eviction policy of its own. Blocks outside the look-ahead window go first, in the policy's order;
then those of the window, the ones needed last first. When a class runs short and another class holds an older
block than any of its own, the slab with that block is drained and handed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.directory import CHECKED, COUNTED, SPURNED
from tierstore.control.entry import State
from tierstore.control.prefetched import Prefetched
from tierstore.metrics import Metric
from tierstore.types import PAGE_NBYTES, TierName

if TYPE_CHECKING:
    from tierstore.control.cleaning import Cleaning
    from tierstore.control.directory import Directory
    from tierstore.control.slabs import SlotAllocator
    from tierstore.metrics import Metrics
    from tierstore.policy.base import EvictionPolicy, NewPolicy
    from tierstore.types import Int64Array

__all__ = ["HostRoom", "tick"]

_DRAIN_BLOCKS = 512
"""Blocks evicted from a draining slab in one step, to bound a lock hold."""


def tick(now: float) -> int:
    """Seconds on the store's clock as the quarters kept in the directory's uint32 column."""
    return int(now * 4.0) & 0xFFFFFFFF


class HostRoom:
    """Slots of the host pool, and the blocks in them.

    Args:
        directory: Its host columns are changed here.
        slots: Allocator of the pool's slots.
        new_policy: Makes the eviction policy of one slot class, over the directory's entries.
        metrics: Where it counts.

    Attributes:
        num_changes: Grows when slots are taken or blocks come: the next victims may then be others.
        cleaning: Replaces victims that are not on SSD yet. None: victims are evicted in the policy's order.
    """

    def __init__(self, directory: Directory, slots: SlotAllocator, new_policy: NewPolicy, metrics: Metrics) -> None:
        self._directory = directory
        self.slots = slots
        self._new_policy = new_policy
        self._policies: list[EvictionPolicy] = []
        self._slot_nbytes: dict[int, int] = {}
        self._entry_at = np.zeros(slots.capacity_slabs * slots.slab_nbytes // PAGE_NBYTES, np.int32)
        self._draining: tuple[int, int] | None = None  # slab, the class it leaves
        self._metrics = metrics
        self.num_changes = 0
        self.cleaning: Cleaning | None = None
        self.prefetched = Prefetched(directory, self._slot_nbytes, metrics)

    def open_class(self, slot_nbytes: int) -> int:
        """The class of a slot size; ConfigError if the pool cannot hold such slots."""
        slot_class = self.slots.open_class(slot_nbytes)
        self._slot_nbytes[slot_class] = slot_nbytes
        while len(self._policies) <= slot_class:
            self._policies.append(self._new_policy(self._directory.capacity, self._directory.facts))
        return slot_class

    def take(
        self, slot_class: int, count: int, *, cold_before: int | None = None, after_turn: int = 0, again: bool = False
    ) -> Int64Array:
        """Take up to `count` slots; evict blocks if too few are free.

        Args:
            slot_class: The class of the slots.
            count: Slots wanted.
            cold_before: Evict only blocks last used before this tick and outside the window; None for any.
            after_turn: Of the window, evict only blocks whose turn comes later than this.
            again: The caller can do with fewer slots, and asks again for the rest.

        Returns:
            int64[k] pool pages, k <= count.
        """
        pages = self.slots.take(slot_class, count)
        self.num_changes += count
        if short := count - len(pages):
            idle = self.slots.idle_slab(slot_class)
            if idle >= 0:
                self.slots.begin_drain(idle, slot_class)
                more = self.take(slot_class, short, cold_before=cold_before, after_turn=after_turn, again=again)
                return np.concatenate([pages, more])
            victims = self.next_victims(slot_class, short)
            if cold_before is not None:
                warm = self._directory.last_use[victims] >= cold_before
                victims = victims[: int(warm.argmax())] if warm.any() else victims
            elif self.cleaning is not None:
                victims = self.cleaning.spare(slot_class, short, victims, again)
            if cold_before is None and len(victims) < short:
                awaited = self._directory.window.victims(slot_class, short - len(victims), after_turn=after_turn)
                victims = np.concatenate([victims, awaited])
            if len(victims):
                self.evict(slot_class, victims)
                pages = np.concatenate([pages, self.slots.take(slot_class, short)])
            if cold_before is None:
                self._begin_drain(slot_class)
        return pages

    def evict(self, slot_class: int, entries: Int64Array) -> None:
        """READY and unpinned → ABSENT. Frees the slots, and the entries that no other tier holds."""
        directory = self._directory
        if self.cleaning is not None:
            self.cleaning.leave(entries)
        self._policies[slot_class].remove(entries)
        directory.host.evict(entries)
        self._metrics.add(Metric.EVICTED_BLOCKS, len(entries), TierName.HOST)
        self.prefetched.evicted(slot_class, entries)
        self._free(slot_class, entries)
        next_use = directory.next_use[entries]
        if np.count_nonzero(next_use):
            directory.window.evicted(entries[next_use > 0])

    def forget(self, slot_class: int, count: int) -> None:
        """Evict, of the next `count` victims, those that only the host holds: each frees an entry of the directory."""
        victims = self.next_victims(slot_class, count)
        alone = victims[self._directory.only_in_host(victims)]
        if len(alone):
            self.evict(slot_class, alone)

    def next_victims(self, slot_class: int, count: int) -> Int64Array:
        """Up to `count` blocks that the policy would evict first."""
        policy = self._policies[slot_class]
        victims = policy.victims(min(count, policy.num_evictable))
        assert victims is not None
        return victims

    def occupy(self, entries: Int64Array, pages: Int64Array) -> None:
        """ABSENT → FILLING, in slots just taken."""
        self._directory.host.reserve(entries)
        self._directory.host_page[entries] = pages
        self._directory.flags[entries] &= ~(CHECKED | COUNTED | SPURNED)
        self._entry_at[pages] = entries

    def ready(self, slot_class: int, entries: Int64Array, now: float) -> None:
        """FILLING → READY. Given in prefix order; the policy takes them tail first, so the head is the youngest."""
        self._directory.host.filled(entries)
        self._directory.last_use[entries] = tick(now)
        self.num_changes += len(entries)
        self._policies[slot_class].insert(entries[::-1])
        next_use = self._directory.next_use[entries]
        if np.count_nonzero(next_use):
            awaited = entries[next_use > 0]
            self._policies[slot_class].set_evictable(awaited, False)
            self._directory.window.offer(awaited)

    def failed(self, slot_class: int, entries: Int64Array) -> None:
        """FILLING → ABSENT; the slots are free. The caller releases the entries."""
        self._directory.host.failed(entries)
        self.slots.give_back(slot_class, self._directory.host_page[entries])

    def pin(self, slot_class: int, entries: Int64Array) -> None:
        """Shield READY blocks from eviction for one job, request or lease."""
        self._directory.host.pin(entries)
        self._policies[slot_class].set_evictable(entries, False)

    def unpin(self, slot_class: int, entries: Int64Array) -> None:
        """Undo one `pin`, or end the copy of a block that is GONE."""
        loose, gone = self._directory.host.unpin(entries)
        if len(loose):
            self._offer(slot_class, loose)
        if len(gone):
            self._free(slot_class, gone)

    def _offer(self, slot_class: int, loose: Int64Array) -> None:
        """Make unpinned READY blocks evictable: in the window those that it names, in the policy the others."""
        next_use = self._directory.next_use[loose]
        if np.count_nonzero(next_use):
            self._directory.window.offer(loose[next_use > 0])
            loose = loose[next_use == 0]
        self._policies[slot_class].set_evictable(loose, True)

    def await_use(self, slot_class: int, entries: Int64Array) -> None:
        """Blocks have come into the window: the policy may not evict them any more."""
        ready = entries[self._directory.host.state[entries] == State.READY]
        self._policies[slot_class].set_evictable(ready, False)

    def release_use(self, slot_class: int, entries: Int64Array) -> None:
        """Blocks have left the window: the policy may evict them again."""
        self._policies[slot_class].set_evictable(entries[self._directory.host.loose(entries)], True)

    def touch(self, slot_class: int, entries: Int64Array, now: float, *, used: bool = True) -> None:
        """Make READY blocks, given in prefix order, the youngest, tail first; skip the others.

        Without `used` this is no use: they only become younger than the blocks behind them.
        """
        directory = self._directory
        ready = directory.host.state[entries] == State.READY
        if np.count_nonzero(ready) < len(entries):
            entries = entries[ready]
        directory.last_use[entries] = tick(now)
        self._policies[slot_class].touch(entries[::-1], used=used)

    def discard(self, slot_class: int, entries: Int64Array) -> None:
        """Drop blocks in any state but GONE (delete, clear). The caller detaches those that become GONE."""
        directory = self._directory
        held = entries[directory.host.state[entries] == State.READY]
        if len(held):
            self._policies[slot_class].remove(held)
            self.prefetched.dropped(slot_class, held)
        freed, _gone = directory.host.discard(entries)
        if len(freed):
            self.slots.give_back(slot_class, directory.host_page[freed])

    def _free(self, slot_class: int, entries: Int64Array) -> None:
        self.slots.give_back(slot_class, self._directory.host_page[entries])
        self._directory.release(entries)

    def _begin_drain(self, slot_class: int) -> None:
        """Drain, for this class, the slab of another class's next victim, if that is older than this class's own."""
        if self._draining is not None or len(self._policies) == 1:
            return
        last_use = self._directory.last_use
        own = self._oldest(slot_class)
        coldest, found, donor = (int(last_use[own]) if own >= 0 else 1 << 32), -1, -1
        for other in range(len(self._policies)):
            oldest = self._oldest(other)
            if other == slot_class or oldest < 0 or self.slots.num_slabs(other) < 2:
                continue
            if last_use[oldest] < coldest:
                coldest, found, donor = int(last_use[oldest]), oldest, other
        if found >= 0:
            slab = int(self.slots.slab_of(self._directory.host_page[found : found + 1])[0])
            self.slots.begin_drain(slab, slot_class)
            self._draining = (slab, donor)

    def _oldest(self, slot_class: int) -> int:
        """The block of a class that its policy would evict first, or -1."""
        first = self._policies[slot_class].victims(1)
        return -1 if first is None else int(first[0])

    @property
    def used_nbytes(self) -> int:
        """Bytes of slots in use."""
        return sum(self.slots.used(slot_class) * nbytes for slot_class, nbytes in self._slot_nbytes.items())

    @property
    def pool_nbytes(self) -> int:
        """Bytes of all slabs."""
        return self.slots.capacity_slabs * self.slots.slab_nbytes

    def num_ahead(self, slot_class: int, share: float) -> int:
        """How many blocks may be read ahead: into free slots, plus what unused prefetches leave of this pool share."""
        ahead_nbytes = self.prefetched.unused_nbytes + self.prefetched.inflight_nbytes
        free_nbytes = self.pool_nbytes - self.used_nbytes
        return (free_nbytes + max(0, int(share * self.pool_nbytes) - ahead_nbytes)) // self._slot_nbytes[slot_class]

    @property
    def draining(self) -> bool:
        """Whether a slab is on its way from one class to another."""
        return self._draining is not None

    def drain(self) -> None:
        """Evict a bounded number of unpinned blocks from the draining slab; it ends when its last slot is free."""
        if self._draining is None:
            return
        slab, donor = self._draining
        if slab in self.slots.draining:
            directory, pages = self._directory, self.slots.slots_of(slab)
            entries = self._entry_at[pages].astype(np.int64)
            loose = directory.host.loose(entries) & (directory.host_page[entries] == pages)
            victims = entries[loose][:_DRAIN_BLOCKS]
            if len(victims):
                self.evict(donor, victims)
        if slab not in self.slots.draining:
            self._draining = None

    def check(self) -> None:
        """Assert that slots, states and policies agree."""
        directory = self._directory
        self.slots.check()
        self.prefetched.check()
        state = directory.host.state[: directory.high_water]
        used = (state != State.ABSENT).nonzero()[0]
        pages = directory.host_page[used]
        assert len(np.unique(pages)) == len(pages), "two blocks in one slot"
        assert (self._entry_at[pages] == used).all(), "a slot does not know its block"
        num_used = sum(self.slots.used(slot_class) for slot_class in range(len(self._policies)))
        assert num_used == len(used), f"{num_used} slots are taken, {len(used)} blocks are in them"
        span = slice(0, directory.high_water)
        evictable = (state == State.READY) & (directory.host.pins[span] == 0) & (directory.next_use[span] == 0)
        num_evictable = int(np.count_nonzero(evictable))
        claimed = sum(policy.num_evictable for policy in self._policies)
        assert claimed == num_evictable, (
            f"policies offer {claimed} blocks, {num_evictable} are READY, unpinned and outside the window"
        )
