"""Room in the device pool: copies of blocks in device memory, for hits that cross no link. Pure; under the lock.

The directory tracks this pool in columns of its own, beside host and SSD. A block gets a copy here after a put has
stored or a get has loaded it, if the admission policy wants it, or by a direct read. The pool promises nothing: a copy
is dropped when another needs its slot and is never written elsewhere, even if no other tier holds the block. Eviction
happens when slots are taken, in the policy's order, then in that of the look-ahead window. Without a slot, no copy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.directory import AGAIN
from tierstore.control.entry import State
from tierstore.control.slabs import SLAB_SLOTS_MIN, SLABS_MIN
from tierstore.control.window import NEVER
from tierstore.errors import ConfigError
from tierstore.metrics import Metric
from tierstore.policy.base import Offer
from tierstore.types import PAGE_NBYTES, TierName

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.control.directory import Directory
    from tierstore.control.slabs import SlotAllocator
    from tierstore.metrics import Metrics
    from tierstore.policy.base import AdmissionPolicy, EvictionPolicy, NewPolicy
    from tierstore.types import Int64Array

__all__ = ["DevicePool", "DeviceRoom"]

_DRAIN_BLOCKS = 512
"""Blocks evicted from a draining slab in one step, to bound a lock hold."""


@dataclass(frozen=True, slots=True)
class DevicePool:
    """The device pool, as given to a planner.

    Attributes:
        slots: Allocator of the pool's slots.
        admission: Decides which blocks get a copy in it; `Offer.dst` names the tier it is asked for.
    """

    slots: SlotAllocator
    admission: AdmissionPolicy

    @property
    def nbytes(self) -> int:
        """Bytes of all slabs."""
        return self.slots.capacity_slabs * self.slots.slab_nbytes


class DeviceRoom:
    """Slots on the device, and the blocks in them.

    Args:
        directory: Its device columns are changed here.
        pool: The slots, and the admission policy.
        new_policy: Makes the eviction policy of one slot class.
        metrics: Where it counts.
    """

    def __init__(self, directory: Directory, pool: DevicePool, new_policy: NewPolicy, metrics: Metrics) -> None:
        self._directory = directory
        self._slots = pool.slots
        self._admission = pool.admission
        self._new_policy = new_policy
        self._metrics = metrics
        self._policies: list[EvictionPolicy] = []
        self._slot_nbytes: dict[int, int] = {}
        self._entry_at = np.zeros(pool.nbytes // PAGE_NBYTES, np.int32)
        self._draining: tuple[int, int] | None = None  # slab, the class it leaves

    def open_class(self, slot_nbytes: int) -> int:
        """The class of a slot size; ConfigError if the pool cannot hold such slots."""
        least_nbytes = SLAB_SLOTS_MIN * slot_nbytes
        if least_nbytes > self._slots.slab_nbytes:
            raise ConfigError(
                f"a block needs a slot of {slot_nbytes} bytes, more than an eighth of a slab of the device pool; set "
                f"[device] pool_size to at least {SLABS_MIN * least_nbytes} bytes, or to 0 for no device pool"
            )
        slot_class = self._slots.open_class(slot_nbytes)
        self._slot_nbytes[slot_class] = slot_nbytes
        while len(self._policies) <= slot_class:
            self._policies.append(self._new_policy(self._directory.capacity, self._directory.facts))
        return slot_class

    def admits(self, entries: Int64Array, block_nbytes: int) -> NDArray[np.bool_]:
        """Which of these distinct blocks, READY in host memory, are admitted and have no copy here."""
        directory = self._directory
        again = directory.flags[entries] & AGAIN > 0
        hits = directory.hits[entries].astype(np.int32)
        offer = Offer(entries, hits, again, leaving=False, dst=TierName.DEVICE_POOL, block_nbytes=block_nbytes)
        wanted: NDArray[np.bool_] = np.array(self._admission.admit(offer), np.bool_)
        wanted &= directory.device.state[entries] == State.ABSENT
        return wanted

    def take(self, slot_class: int, count: int, *, after_turn: int = NEVER) -> Int64Array:
        """Take up to `count` slots; evict blocks if too few are free. Returns int64[k] pool pages, k <= count.

        Of the look-ahead window, evict only blocks whose turn comes after `after_turn`; `NEVER`: none of them.
        """
        self._drain()
        pages = self._slots.take(slot_class, count)
        short = count - len(pages)
        if not short:
            return pages
        idle = self._slots.idle_slab(slot_class)
        if idle >= 0:
            self._slots.begin_drain(idle, slot_class)
            return np.concatenate([pages, self.take(slot_class, short, after_turn=after_turn)])
        policy = self._policies[slot_class]
        victims = policy.victims(min(short, policy.num_evictable))
        assert victims is not None
        if len(victims) < short:
            window, pool = self._directory.window, TierName.DEVICE_POOL
            awaited = window.victims(slot_class, short - len(victims), after_turn=after_turn, pool=pool)
            victims = np.concatenate([victims, awaited])
        if len(victims):
            self._evict(slot_class, victims)
            pages = np.concatenate([pages, self._slots.take(slot_class, short)])
        self._begin_drain(slot_class)
        return pages

    def take_all(self, slot_class: int, count: int) -> Int64Array | None:
        """`count` slots, none taken from the look-ahead window; None if there are not so many."""
        self._drain()
        if self._slots.free(slot_class) + self._policies[slot_class].num_evictable < count:
            return None
        pages = self.take(slot_class, count)
        if len(pages) == count:
            return pages
        self._slots.give_back(slot_class, pages)
        return None

    def occupy(self, entries: Int64Array, pages: Int64Array) -> None:
        """ABSENT → FILLING, in slots just taken."""
        self._directory.device.reserve(entries)
        self._directory.device_page[entries] = pages
        self._entry_at[pages] = entries

    def filled(self, slot_class: int, entries: Int64Array, *, good: Int64Array) -> None:
        """A copy has ended: its `good` entries become READY, inserted tail first; the others are given up."""
        device = self._directory.device
        gone = device.state[entries] == State.GONE
        arrived = good[device.state[good] == State.FILLING]
        device.filled(arrived)
        self._policies[slot_class].insert(arrived[::-1])
        self.await_use(slot_class, arrived[self._directory.next_use[arrived] > 0])
        self._directory.window.offer(arrived, TierName.DEVICE_POOL)
        lost = entries[device.state[entries] == State.FILLING]
        device.failed(lost)
        self._free(slot_class, lost)
        self.unpin(slot_class, entries[gone])

    def pin(self, slot_class: int, entries: Int64Array) -> None:
        """Shield READY blocks from eviction for one request."""
        self._directory.device.pin(entries)
        self._policies[slot_class].set_evictable(entries, False)

    def unpin(self, slot_class: int, entries: Int64Array) -> None:
        """Undo one `pin`, or end the copy of a block that is GONE."""
        loose, gone = self._directory.device.unpin(entries)
        awaited = self._directory.next_use[loose] > 0
        self._directory.window.offer(loose[awaited], TierName.DEVICE_POOL)
        self._policies[slot_class].set_evictable(loose[~awaited], True)
        self._free(slot_class, gone)

    def await_use(self, slot_class: int, entries: Int64Array) -> None:
        """Blocks have come into the window: the policy may not evict them any more."""
        ready = entries[self._directory.device.state[entries] == State.READY]
        self._policies[slot_class].set_evictable(ready, False)

    def release_use(self, slot_class: int, entries: Int64Array) -> None:
        """Blocks have left the window: the policy may evict them again."""
        self._policies[slot_class].set_evictable(entries[self._directory.device.loose(entries)], True)

    def touch(self, slot_class: int, entries: Int64Array) -> None:
        """Touch READY blocks, given in prefix order, tail first; skip the others."""
        ready = entries[self._directory.device.state[entries] == State.READY]
        self._policies[slot_class].touch(ready[::-1])

    def discard(self, slot_class: int, entries: Int64Array) -> None:
        """Drop blocks in any state (delete, clear). The caller detaches those that become GONE, and releases all."""
        device = self._directory.device
        held = entries[device.state[entries] == State.READY]
        if len(held):
            self._policies[slot_class].remove(held)
        freed, _gone = device.discard(entries)
        self._slots.give_back(slot_class, self._directory.device_page[freed])

    @property
    def used_nbytes(self) -> int:
        """Bytes of slots in use."""
        return sum(self._slots.used(slot_class) * nbytes for slot_class, nbytes in self._slot_nbytes.items())

    def _evict(self, slot_class: int, entries: Int64Array) -> None:
        self._policies[slot_class].remove(entries)
        self._directory.device.evict(entries)
        self._metrics.add(Metric.EVICTED_BLOCKS, len(entries), TierName.DEVICE_POOL)
        awaited = entries[self._directory.next_use[entries] > 0]
        if len(awaited):
            self._directory.window.evicted(awaited)
        self._free(slot_class, entries)

    def _free(self, slot_class: int, entries: Int64Array) -> None:
        if len(entries):
            self._slots.give_back(slot_class, self._directory.device_page[entries])
            self._directory.release(entries)

    def _begin_drain(self, slot_class: int) -> None:
        """Drain a slab of the class with most slabs for this class, if it has at least two more."""
        if self._draining is not None:
            return
        donor = max(self._slot_nbytes, key=self._slots.num_slabs)
        if self._slots.num_slabs(donor) > 1 + self._slots.num_slabs(slot_class):
            first = self._policies[donor].victims(1)
            if first is not None:
                slab = int(self._slots.slab_of(self._directory.device_page[first])[0])
                self._slots.begin_drain(slab, slot_class)
                self._draining = (slab, donor)

    def _drain(self) -> None:
        """Evict a bounded number of unpinned blocks from the draining slab; it ends when its last slot is free."""
        if self._draining is None:
            return
        slab, donor = self._draining
        if slab in self._slots.draining:
            pages = self._slots.slots_of(slab)
            entries = self._entry_at[pages].astype(np.int64)
            loose = self._directory.device.loose(entries) & (self._directory.device_page[entries] == pages)
            if np.count_nonzero(loose):
                self._evict(donor, entries[loose][:_DRAIN_BLOCKS])
        if slab not in self._slots.draining:
            self._draining = None

    def check(self) -> None:
        """Assert that slots, states and policies agree."""
        directory = self._directory
        self._slots.check()
        span = slice(0, directory.high_water)
        state = directory.device.state[span]
        used = (state != State.ABSENT).nonzero()[0]
        pages = directory.device_page[used]
        assert len(np.unique(pages)) == len(used), "two blocks in one slot of the device pool"
        assert (self._entry_at[pages] == used).all(), "a slot of the device pool does not know its block"
        num_used = sum(self._slots.used(slot_class) for slot_class in range(len(self._policies)))
        assert num_used == len(used), f"{num_used} slots of the device pool are taken, {len(used)} blocks are in them"
        loose = (state == State.READY) & (directory.device.pins[span] == 0) & (directory.next_use[span] == 0)
        num_loose = int(np.count_nonzero(loose))
        claimed = sum(policy.num_evictable for policy in self._policies)
        assert claimed == num_loose, (
            f"policies of the device pool offer {claimed} blocks, {num_loose} are READY, unpinned and not waited for"
        )
