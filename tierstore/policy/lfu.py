"""Least frequently used, plain and with ageing.

With ageing (LFU-DA) a block's score is its uses plus the score of the last evicted block, so that a block that was
popular once does not stay for ever: Arlitt, Cherkasova, Dilley, Friedrich, Jin: Evaluating content management
techniques for web proxy caches (Performance Evaluation Review 27, 2000), https://doi.org/10.1145/346000.346003.
Among equals the least recently used is evicted first. Pure; called by the planner under the engine's lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.policy.queues import Holding
from tierstore.policy.scores import Scores

if TYPE_CHECKING:
    from tierstore.policy.base import BlockFacts
    from tierstore.types import Int64Array

__all__ = ["Lfu", "aged_lfu"]


class Lfu:
    """Entries by how often they were used since they came.

    Args:
        capacity: Entries are 0 … capacity-1.
        facts: Not used.
        ages: Blocks that were popular once are evicted in the end.
    """

    def __init__(self, capacity: int, facts: BlockFacts | None = None, *, ages: bool = False) -> None:
        self._ages = ages
        self._holding = Holding(capacity)
        self._scores = Scores(self._holding)
        self._uses = np.zeros(capacity, np.uint32).data
        self._age = 0.0

    @property
    def num_evictable(self) -> int:
        """How many held entries `victims` could name."""
        return self._holding.num_evictable

    def insert(self, entries: Int64Array) -> None:
        """Add entries that are not held yet, as used once."""
        for entry in self._holding.add(entries):
            self._uses[entry] = 1
            self._scores.put(entry, self._age + 1)

    def touch(self, entries: Int64Array, *, used: bool = True) -> None:
        """Count uses; with `used` false, entries only become the youngest of their score."""
        for entry in self._holding.named(entries):
            if used:
                self._uses[entry] += 1
                self._scores.put(entry, self._age + self._uses[entry])
            else:
                self._scores.put(entry, self._scores.of(entry))

    def remove(self, entries: Int64Array) -> None:
        """Forget held entries; with ageing, later scores start from theirs."""
        for entry in self._holding.drop(entries):
            if self._ages:
                self._age = max(self._age, self._scores.of(entry))
            self._scores.take_out(entry)

    def set_evictable(self, entries: Int64Array, evictable: bool) -> None:
        """Shield held entries from `victims`, or stop shielding them."""
        self._scores.set_evictable(entries, evictable)

    def victims(self, count: int) -> Int64Array | None:
        """The `count` evictable entries of the fewest uses, in order; None where there are fewer."""
        if count > self.num_evictable:
            return None
        return np.array(self._scores.lowest(count), np.int64)


def aged_lfu(capacity: int, facts: BlockFacts | None = None) -> Lfu:
    """`Lfu` with ageing."""
    return Lfu(capacity, facts, ages=True)
