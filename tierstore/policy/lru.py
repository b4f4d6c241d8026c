"""Least recently used: the default order of eviction.

A ring of entries from oldest to newest, kept in two int32 columns. Pure; called by the planner under
the engine's lock, one instance for each slot class. It orders and never evicts: a named victim stays held.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tierstore.policy.base import BlockFacts
    from tierstore.types import Int64Array, UInt8Array

__all__ = ["Lru"]

_END = 0
"""The node that closes the ring: its newer neighbour is the oldest entry, its older one the newest."""

_ABSENT, _SHIELDED, _PASSED, _EVICTABLE = 0, 1, 2, 3
"""PASSED is shielded, and older than all that is evictable when `victims` last met it."""


class Lru:
    """Entries in order of last use.

    Entry e is node e + 1, so that zeros mean an empty ring and columns of untouched entries take no
    memory. Runs of neighbours, such as most prefixes, move as one. numpy sets links in bulk; single steps go
    through memoryviews, which are several times faster than indexing an array.

    Args:
        capacity: Entries are 0 … capacity-1.
        facts: Not used.

    Attributes:
        num_evictable: How many held entries `victims` could name; read-only.
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
        named = entries.tolist()
        assert not named or 0 <= min(named) <= max(named) < self.capacity, (
            f"entries outside 0…{self.capacity - 1}: {entries}"
        )
        assert len(set(named)) == len(named), f"an entry is inserted twice: {entries}"
        nodes = entries + 1
        states = self._states[nodes]
        assert not np.count_nonzero(states), f"already held: {entries[states != _ABSENT]}"
        self._states[nodes] = _EVICTABLE
        self.num_evictable += len(nodes)
        self._older[nodes[1:]] = nodes[:-1]
        self._newer[nodes[:-1]] = nodes[1:]
        if named:
            self._append(named[0] + 1, named[-1] + 1)

    def touch(self, entries: Int64Array, *, used: bool = True) -> None:
        """Make held entries the youngest, in order; for an entry named twice the last place counts."""
        if len(set(entries.tolist())) < len(entries):
            entries = np.array(list(dict.fromkeys(entries[::-1].tolist())), np.int64)[::-1]
        nodes, states = self._held(entries)
        self._leave_head(nodes, states)
        for oldest, newest in self._runs(nodes):
            self._cut(oldest, newest)
            self._append(oldest, newest)

    def remove(self, entries: Int64Array) -> None:
        """Forget held entries (evicted or discarded)."""
        assert len(set(entries.tolist())) == len(entries), f"an entry is removed twice: {entries}"
        nodes, states = self._held(entries)
        self._leave_head(nodes, states)
        self.num_evictable -= int(np.count_nonzero(states == _EVICTABLE))
        self._states[nodes] = _ABSENT
        for oldest, newest in self._runs(nodes):
            self._cut(oldest, newest)

    def _runs(self, nodes: Int64Array) -> list[tuple[int, int]]:
        """The first and the last of each run of distinct nodes that are neighbours already: they move as one."""
        if not len(nodes):
            return []
        named: list[int] = nodes.tolist()
        ends = (self._newer[nodes[:-1]] != nodes[1:]).nonzero()[0].tolist()
        return [(named[before + 1], named[end]) for before, end in pairwise([-1, *ends, len(named) - 1])]

    def _cut(self, oldest: int, newest: int) -> None:
        """Take a run out of the ring."""
        older, newer = self._older_than[oldest], self._newer_than[newest]
        self._newer_than[older] = newer
        self._older_than[newer] = older

    def _append(self, oldest: int, newest: int) -> None:
        """Put a run into the ring, as the youngest."""
        before = self._older_than[_END]
        self._newer_than[before] = oldest
        self._older_than[oldest] = before
        self._newer_than[newest] = _END
        self._older_than[_END] = newest

    def set_evictable(self, entries: Int64Array, evictable: bool) -> None:
        """Shield held entries from `victims`, or stop shielding them. They keep their age."""
        nodes, states = self._held(entries)
        if evictable and np.count_nonzero(states == _PASSED):
            self._begin = _END
        changed = nodes[(states == _EVICTABLE) != evictable]
        self._states[changed] = _EVICTABLE if evictable else _SHIELDED
        num_changed = len(set(changed.tolist()))
        self.num_evictable += num_changed if evictable else -num_changed

    def victims(self, count: int) -> Int64Array | None:
        """The `count` least recently used evictable entries, oldest first; None where there are fewer.

        Walking past a shielded entry costs as much as a victim. Shielded entries older than all others are passed once.
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

    def _leave_head(self, nodes: Int64Array, states: UInt8Array) -> None:
        """Move the start of searches off these nodes, which are about to leave their places."""
        passed = nodes[states == _PASSED]
        if len(passed):
            self._states[passed] = _SHIELDED
            while self._begin != _END and self._state_of[self._begin] != _PASSED:
                self._begin = self._older_than[self._begin]

    def _held(self, entries: Int64Array) -> tuple[Int64Array, UInt8Array]:
        """The nodes of held entries, and their states."""
        nodes = entries + 1
        states: UInt8Array = self._states[nodes]
        assert np.count_nonzero(states) == len(nodes), f"not held: {entries[states == _ABSENT]}"
        return nodes, states
