"""Least recently used: the default order of eviction.

A ring of entries from oldest to newest, kept in two int32 columns. Pure; called by the planner under
the engine's lock, one instance a slot class. It orders and never evicts: whom it names stays held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tierstore.policy.base import BlockFacts
    from tierstore.types import Int32Array

__all__ = ["Lru"]

_END = 0
"""The node that closes the ring: its newer neighbour is the oldest entry, its older one the newest."""

_ABSENT, _SHIELDED, _EVICTABLE = 0, 1, 2


class Lru:
    """Entries in order of last use.

    Entry e is node e + 1, so that zeros mean an empty ring and columns of untouched entries take no
    memory. Bulk links are numpy's; single steps go through memoryviews, which are several times faster
    than indexing an array.

    Args:
        capacity: Entries are 0 … capacity-1.
        facts: Not looked at.

    Attributes:
        num_evictable: How many held entries `victims` could name; for others to read.
    """

    def __init__(self, capacity: int, facts: BlockFacts | None = None) -> None:
        assert capacity >= 1, f"an Lru of {capacity} entries; it needs at least 1"
        self.capacity = capacity
        self.num_evictable = 0
        self._states = np.zeros(capacity + 1, np.uint8)
        self._older = np.zeros(capacity + 1, np.int32)
        self._newer = np.zeros(capacity + 1, np.int32)
        self._state_of = self._states.data
        self._older_than = self._older.data
        self._newer_than = self._newer.data

    def insert(self, entries: Int32Array) -> None:
        """Add entries that are not held yet, evictable, the last as the most recently used."""
        assert ((entries >= 0) & (entries < self.capacity)).all(), f"entries outside 0…{self.capacity - 1}: {entries}"
        assert len(set(entries.tolist())) == len(entries), f"an entry is inserted twice: {entries}"
        nodes = entries + 1
        assert not self._states[nodes].any(), f"already held: {entries[self._states[nodes] != _ABSENT]}"
        self._states[nodes] = _EVICTABLE
        self.num_evictable += len(nodes)
        chain = np.concatenate(([self._older_than[_END]], nodes, [_END]), dtype=np.int32)
        self._older[chain[1:]] = chain[:-1]
        self._newer[chain[:-1]] = chain[1:]

    def touch(self, entries: Int32Array, *, used: bool = True) -> None:
        """Make held entries the youngest, in order; one that is named twice counts where it is named last."""
        nodes = self._held(entries)
        older_than, newer_than = self._older_than, self._newer_than
        newest = older_than[_END]
        for node in nodes.tolist():
            if node == newest:
                continue
            older, newer = older_than[node], newer_than[node]
            newer_than[older] = newer
            older_than[newer] = older
            newer_than[newest] = node
            older_than[node] = newest
            newest = node
        newer_than[newest] = _END
        older_than[_END] = newest

    def remove(self, entries: Int32Array) -> None:
        """Forget held entries (evicted or discarded)."""
        assert len(set(entries.tolist())) == len(entries), f"an entry is removed twice: {entries}"
        nodes = self._held(entries)
        self.num_evictable -= int(np.count_nonzero(self._states[nodes] == _EVICTABLE))
        self._states[nodes] = _ABSENT
        older_than, newer_than = self._older_than, self._newer_than
        for node in nodes.tolist():
            older, newer = older_than[node], newer_than[node]
            newer_than[older] = newer
            older_than[newer] = older

    def set_evictable(self, entries: Int32Array, evictable: bool) -> None:
        """Shield held entries from `victims`, or stop shielding them. They keep their age."""
        nodes = self._held(entries)
        state = _EVICTABLE if evictable else _SHIELDED
        changed = set(nodes[self._states[nodes] != state].tolist())
        self._states[nodes] = state
        self.num_evictable += len(changed) if evictable else -len(changed)

    def victims(self, count: int) -> Int32Array | None:
        """The `count` least recently used evictable entries, oldest first; None where there are fewer.

        Walks past shielded entries that are older, at the price of a victim each.
        """
        if count > self.num_evictable:
            return None
        state_of, newer_than = self._state_of, self._newer_than
        nodes = []
        node = _END
        while count > 0:
            node = newer_than[node]
            if state_of[node] == _EVICTABLE:
                nodes.append(node)
                count -= 1
        return np.array(nodes, np.int32) - 1

    def _held(self, entries: Int32Array) -> Int32Array:
        nodes = entries + 1
        assert np.count_nonzero(self._states[nodes]) == len(nodes), (
            f"not held: {entries[self._states[nodes] == _ABSENT]}"
        )
        return nodes
