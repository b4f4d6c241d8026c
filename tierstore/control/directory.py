"""Where every block is. Pure: no I/O, no threads, no clock.

Each block has one entry, in fixed-capacity numpy columns: its key in the index, its state and pins in each tier
(`tierstore.control.entry`), its place in each, its use, and the hint that waits for it. The planner and its rooms
call it under the engine's lock. An entry takes 115 bytes at full capacity, policy included; only a device pool
touches 9 of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.ma  # np.unique imports it when first called: 13 ms, which would be under the lock

from tierstore.control.entry import Places, State
from tierstore.control.index import HashIndex
from tierstore.control.numbers import Numbers
from tierstore.control.window import Window
from tierstore.policy.base import BlockFacts
from tierstore.types import Extents, TierName

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tierstore.types import Int64Array, UInt64Array

__all__ = [
    "AGAIN",
    "CHECKED",
    "COUNTED",
    "PARKED",
    "PREFETCHED",
    "READ_BACK",
    "REWRITING",
    "SPURNED",
    "UNREADABLE",
    "Directory",
]

PREFETCHED = np.uint16(1)
"""Flag of an entry that a prefetch or read-ahead brought into host memory and that no get has used yet."""

READ_BACK = np.uint16(2)
"""Flag of an entry whose SSD copy has been read since it was written."""

REWRITING = np.uint16(4)
"""Flag of an entry that is being written again, out of a file being reclaimed."""

UNREADABLE = np.uint16(8)
"""Flag of an entry whose last read from SSD failed."""

AGAIN = np.uint16(16)
"""Flag of an entry that a later put has named again."""

CHECKED = np.uint16(32)
"""Flag of an entry with a checksum of its bytes in the host pool, given by the writer of the slot."""

PARKED = np.uint16(64)
"""Flag of an entry that was admitted to SSD and is parked in host memory until there is room."""

SPURNED = np.uint16(128)
"""Flag of an entry that was offered to SSD before its eviction from host memory, and refused."""

COUNTED = np.uint16(256)
"""Flag of an entry that was counted as not stored on SSD during its stay in host memory."""

_FREE, _KEYED, _DETACHED = 0, 1, 2

_MENTIONS_MIN, _MENTIONS_MAX = 1 << 12, 1 << 18
_MENTIONS_PER_ENTRY = 4
"""Mentions by waiting requests for each entry, within the bounds: prompts share heads, and the queue may name
more blocks than any tier holds. Each takes 57 bytes, once it is used."""


class Directory:
    """Entries, and which of them are held, detached or free.

    An entry is held while its key is in the index. `detach` takes the key away (delete, clear); the entry
    then lives on until no tier holds anything of it, and `release` makes it free again.

    Attributes:
        parent: int32[capacity]; see `Chains`.
        next_use: uint32[capacity]; the number of the hint that an entry belongs to, 0 for none; see `Window`.
        window: The blocks that waiting requests will need, in order.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.index = HashIndex(capacity)
        self.host = Places(capacity)
        self.ssd = Places(capacity)
        self.device = Places(capacity)
        self.device_page = np.zeros(capacity, np.int32)
        self.host_page = np.zeros(capacity, np.int32)
        self.host_checksum = np.zeros(capacity, np.uint32)
        self.ssd_file = np.zeros(capacity, np.int32)
        self.ssd_page = np.zeros(capacity, np.uint32)
        self.ssd_nbytes = np.zeros(capacity, np.uint32)
        self.ssd_checksum = np.zeros(capacity, np.uint32)
        self.last_use = np.zeros(capacity, np.uint32)
        self.hits = np.zeros(capacity, np.uint16)
        self.depth = np.zeros(capacity, np.uint16)
        self.flags = np.zeros(capacity, np.uint16)
        self.parent = np.zeros(capacity, np.int32)
        self.next_use = np.zeros(capacity, np.uint32)
        mentions = min(max(_MENTIONS_MIN, _MENTIONS_PER_ENTRY * capacity), _MENTIONS_MAX)
        pools = {TierName.HOST: self.host, TierName.DEVICE_POOL: self.device}
        self.window = Window(mentions, self.next_use, pools)
        self._tie = np.zeros(capacity, np.uint8)
        self._numbers = Numbers(capacity)

    @property
    def facts(self) -> BlockFacts:
        """The columns that policies may read."""
        return BlockFacts(self.index.keys[:, 0], self.depth, self.hits)

    @property
    def num_entries(self) -> int:
        """Entries in use, detached ones included."""
        return self._numbers.num_used

    @property
    def high_water(self) -> int:
        """One more than the highest entry ever used."""
        return self._numbers.high_water

    @property
    def room(self) -> int:
        """Entries that `add` can still give."""
        return self._numbers.room

    def find(self, generation: int, keys: UInt64Array) -> Int64Array:
        """Entries of uint64[n, 4] keys, -1 where a key is not held."""
        return self.index.find(generation, keys)

    def add(self, generation: int, keys: UInt64Array) -> Int64Array:
        """New entries, ABSENT everywhere, for distinct keys that are not held. Needs `room`."""
        entries = self._numbers.take(len(keys))
        self.index.insert(generation, keys, entries)
        self._tie[entries] = _KEYED
        self.hits[entries] = 0
        self.flags[entries] = 0
        self.window.meet(generation, keys, entries)
        return entries

    def checksums(self, entries: Int64Array) -> Int64Array | None:
        """int64[n]: the checksum given for each block in the host pool, -1 for none; None if no block has one."""
        checked = self.flags[entries] & CHECKED
        if not np.count_nonzero(checked):
            return None
        return np.where(checked > 0, self.host_checksum[entries], np.int64(-1))

    def detach(self, entries: Int64Array) -> None:
        """Remove the keys of held entries, so that no verb finds them any more."""
        self._forget_keys(entries)
        self._tie[entries] = _DETACHED

    def _forget_keys(self, entries: Int64Array) -> None:
        self.index.remove(entries)
        next_use = self.next_use[entries]
        if np.count_nonzero(next_use):
            awaited = entries[next_use > 0]
            generations = self.index.generation[awaited]
            for generation in np.unique(generations).tolist():
                own = awaited[generations == generation]
                self.window.part(generation, self.index.keys[own], own)

    def release(self, entries: Int64Array) -> None:
        """Free those of these distinct entries that are ABSENT in every tier and not free yet."""
        ties = self._tie[entries]
        held = self.host.state[entries] | self.ssd.state[entries] | self.device.state[entries]
        bare = (held == State.ABSENT) & (ties != _FREE)
        num_bare = np.count_nonzero(bare)
        if not num_bare:
            return
        if num_bare < len(entries):
            entries, ties = entries[bare], ties[bare]
        keyed = ties == _KEYED
        self._forget_keys(entries if np.count_nonzero(keyed) == num_bare else entries[keyed])
        self._tie[entries] = _FREE
        self._numbers.give_back(entries)

    def only_in_host(self, entries: Int64Array) -> NDArray[np.bool_]:
        """Which of these blocks, held in host memory, are ABSENT in every other tier."""
        alone: NDArray[np.bool_] = (self.ssd.state[entries] | self.device.state[entries]) == State.ABSENT
        return alone

    def set_extents(self, entries: Int64Array, extents: Extents) -> None:
        """Store the places of blocks on SSD."""
        self.ssd_file[entries] = extents.file
        self.ssd_page[entries] = extents.page
        self.ssd_nbytes[entries] = extents.nbytes
        self.ssd_checksum[entries] = extents.checksum

    def extents(self, entries: Int64Array) -> Extents:
        """The places of blocks on SSD."""
        return Extents(
            self.ssd_file[entries], self.ssd_page[entries], self.ssd_nbytes[entries], self.ssd_checksum[entries]
        )

    def held(self, start: int, stop: int) -> Int64Array:
        """Entries in [start, stop) whose key is in the index."""
        span = slice(start, min(stop, self.high_water))
        keyed: Int64Array = (self._tie[span] == _KEYED).nonzero()[0]
        return keyed + start

    def check(self) -> None:
        """Assert the invariants between any two calls: free entries are ABSENT everywhere, held ones are found."""
        span = slice(0, self.high_water)
        in_use = self._tie[span] != _FREE
        assert np.array_equal(in_use.nonzero()[0], self._numbers.used()), "the free list is not what is free"
        bare = (self.host.state[span] | self.ssd.state[span] | self.device.state[span]) == State.ABSENT
        assert not (in_use & bare).any(), f"entries in use that no tier holds: {(in_use & bare).nonzero()[0][:8]}"
        assert not (~in_use & ~bare).any(), f"free entries that a tier holds: {(~in_use & ~bare).nonzero()[0][:8]}"
        for places in (self.host, self.ssd, self.device):
            state, pins = places.state[span], places.pins[span]
            assert (pins >= 0).all(), "negative pins"
            assert not pins[(state == State.ABSENT) | (state == State.FILLING)].any(), "pins on what is not READY"
            assert (pins[state == State.GONE] > 0).all(), "GONE without a pin"
        gone = (self.host.state[span] == State.GONE) | (self.device.state[span] == State.GONE)
        assert (self._tie[span][gone] == _DETACHED).all(), "GONE in a pool but still found by its key"
        self.window.check(self.index)
        held = self.held(0, self.high_water)
        for generation in np.unique(self.index.generation[held]).tolist():
            own = held[self.index.generation[held] == generation]
            assert (self.find(generation, self.index.keys[own]) == own).all(), "a held entry is not found by its key"
