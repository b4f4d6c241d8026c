"""SIEVE: one queue in order of arrival, and a hand that passes over entries used since its last visit.

Zhang, Yang, Yue, Vigfusson, Rashmi: SIEVE is simpler than LRU: an efficient turn-key eviction algorithm for web
caches (NSDI 2024), https://github.com/cacheMon/NSDI24-SIEVE. Pure; called by the planner under the engine's lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.policy.queues import NOBODY, Holding, Queues

if TYPE_CHECKING:
    from tierstore.policy.base import BlockFacts
    from tierstore.types import Int64Array

__all__ = ["Sieve"]

_QUEUE, _LEAVING = 0, 1


class Sieve:
    """The queue and its hand; a named victim waits aside until it is removed, or used again.

    Args:
        capacity: Entries are 0 … capacity-1.
        facts: Not looked at.
    """

    def __init__(self, capacity: int, facts: BlockFacts | None = None) -> None:
        self._holding = Holding(capacity)
        self._queues = Queues(self._holding, 2)
        self._visited = np.zeros(capacity, np.bool_).data
        self._hand = NOBODY

    @property
    def num_evictable(self) -> int:
        """How many held entries `victims` could name."""
        return self._holding.num_evictable

    def insert(self, entries: Int64Array) -> None:
        """Add entries that are not held yet, as the newest."""
        added = self._holding.add(entries)
        for entry in added:
            self._visited[entry] = False
        self._queues.append(_QUEUE, added)

    def touch(self, entries: Int64Array, *, used: bool = True) -> None:
        """Mark entries as visited. None moves, except that named victims come back behind the hand."""
        if not used:
            return
        for entry in self._holding.named(entries):
            self._visited[entry] = True
            if self._queues.queue_of(entry) == _LEAVING:
                self._queues.unlink([entry])
                self._queues.prepend(_QUEUE, entry)

    def remove(self, entries: Int64Array) -> None:
        """Forget held entries."""
        for entry in self._holding.drop(entries):
            self._step_off(entry)
            self._queues.unlink([entry])

    def set_evictable(self, entries: Int64Array, evictable: bool) -> None:
        """Shield held entries from `victims`, or stop shielding them."""
        self._queues.set_evictable(entries, evictable)

    def victims(self, count: int) -> Int64Array | None:
        """The `count` evictable entries to evict first, in order; None if there are fewer."""
        if count > self.num_evictable:
            return None
        found = self._queues.oldest(_LEAVING, count)
        while len(found) < count:
            found.append(self._choose())
        return np.array(found, np.int64)

    def _choose(self) -> int:
        """Move the hand to the next evictable entry that was not visited; the caller has made sure there is one."""
        entry = self._hand
        if entry != NOBODY and not self._holding.is_evictable(entry):
            entry = self._queues.after(entry)
        while entry == NOBODY or self._visited[entry]:
            if entry == NOBODY:
                entry = self._queues.first(_QUEUE)
            else:
                self._visited[entry] = False
                entry = self._queues.after(entry)
        self._hand = entry
        self._step_off(entry)
        self._queues.move(_LEAVING, [entry])
        return entry

    def _step_off(self, entry: int) -> None:
        """Move the hand on if it stands on an entry that is removed."""
        if self._hand == entry:
            self._hand = self._queues.newer(entry)
