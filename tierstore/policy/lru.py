"""Least recently used: the default order of eviction.

A ring of entries from oldest to newest, kept in two int32 columns. Pure; called by the planner under
the engine's lock, one instance a slot class. It orders and never evicts: whom it names stays held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tierstore.policy.base import BlockFacts
    from tierstore.types import Int64Array

__all__ = ["Lru"]

_END = 0
"""The node that closes the ring: its newer neighbour is the oldest entry, its older one the newest."""

_ABSENT, _SHIELDED, _PASSED, _EVICTABLE = 0, 1, 2, 3
"""PASSED is shielded, and older than all that is evictable when `victims` last met it."""


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
        self._begin = _END  # everything older is shielded, this one included
        self._states = np.zeros(capacity + 1, np.uint8)
        self._older = np.zeros(capacity + 1, np.int32)
        self._newer = np.zeros(capacity + 1, np.int32)
        self._state_of = self._states.data
        self._older_than = self._older.data
        self._newer_than = self._newer.data

    def insert(self, entries: Int64Array) -> None:
        """Add entries that are not held yet, evictable, the last as the most recently used."""
        assert ((entries >= 0) & (entries < self.capacity)).all(), f"entries outside 0…{self.capacity - 1}: {entries}"
        assert len(set(entries.tolist())) == len(entries), f"an entry is inserted twice: {entries}"
        nodes = entries + 1
        assert not self._states[nodes].any(), f"already held: {entries[self._states[nodes] != _ABSENT]}"
        self._states[nodes] = _EVICTABLE
        self.num_evictable += len(nodes)
        chain = np.concatenate(([self._older_than[_END]], nodes, [_END]), dtype=np.int64)
        self._older[chain[1:]] = chain[:-1]
        self._newer[chain[:-1]] = chain[1:]

    def touch(self, entries: Int64Array, *, used: bool = True) -> None:
        """Make held entries the youngest, in order; one that is named twice counts where it is named last."""
        nodes = self._held(entries)
        self._leave_head(nodes)
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

    def remove(self, entries: Int64Array) -> None:
        """Forget held entries (evicted or discarded)."""
        assert len(set(entries.tolist())) == len(entries), f"an entry is removed twice: {entries}"
        nodes = self._held(entries)
        self._leave_head(nodes)
        self.num_evictable -= int(np.count_nonzero(self._states[nodes] == _EVICTABLE))
        self._states[nodes] = _ABSENT
        older_than, newer_than = self._older_than, self._newer_than
        for node in nodes.tolist():
            older, newer = older_than[node], newer_than[node]
            newer_than[older] = newer
            older_than[newer] = older

    def set_evictable(self, entries: Int64Array, evictable: bool) -> None:
        """Shield held entries from `victims`, or stop shielding them. They keep their age."""
        nodes = self._held(entries)
        states = self._states[nodes]
        changed = nodes[(states == _EVICTABLE) != evictable]
        if evictable and (states == _PASSED).any():
            self._begin = _END
        self._states[changed] = _EVICTABLE if evictable else _SHIELDED
        num_changed = len(set(changed.tolist()))
        self.num_evictable += num_changed if evictable else -num_changed

    def victims(self, count: int) -> Int64Array | None:
        """The `count` least recently used evictable entries, oldest first; None where there are fewer.

        Walks past shielded entries, at the price of a victim each; past those that are older than all others once.
        """
        if count > self.num_evictable:
            return None
        state_of, newer_than = self._state_of, self._newer_than
        begin = self._begin
        while state_of[newer_than[begin]] in (_SHIELDED, _PASSED):
            begin = newer_than[begin]
            state_of[begin] = _PASSED
        self._begin = node = begin
        nodes = []
        while count > 0:
            node = newer_than[node]
            if state_of[node] == _EVICTABLE:
                nodes.append(node)
                count -= 1
        return np.array(nodes, np.int64) - 1

    def _leave_head(self, nodes: Int64Array) -> None:
        """These nodes are about to leave their places: begin with none of them."""
        passed = nodes[self._states[nodes] == _PASSED]
        if len(passed):
            self._states[passed] = _SHIELDED
            while self._begin != _END and self._state_of[self._begin] != _PASSED:
                self._begin = self._older_than[self._begin]

    def _held(self, entries: Int64Array) -> Int64Array:
        nodes = entries + 1
        assert np.count_nonzero(self._states[nodes]) == len(nodes), (
            f"not held: {entries[self._states[nodes] == _ABSENT]}"
        )
        return nodes
