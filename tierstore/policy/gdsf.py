"""GreedyDual-Size-Frequency for blocks: blocks that cost more to recompute stay longer.

Cherkasova: Improving WWW proxies performance with Greedy-Dual-Size-Frequency caching policy (HP Laboratories
HPL-98-69R1, 1998). A block's score is its uses times its cost, plus the score of the last evicted block. All blocks
have one size; the cost of computing a block grows with the number of tokens it attends to, and so with its depth.
A parent scores at least as high as its child, which is useless without it. So leaves are evicted first; depth alone
would reverse that. Pure; called by the planner under the engine's lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.policy.queues import Holding
from tierstore.policy.scores import Scores

if TYPE_CHECKING:
    from tierstore.policy.base import BlockFacts
    from tierstore.types import Int64Array

__all__ = ["Gdsf"]

_DEPTH_OF_DOUBLE_COST = 2048
"""Blocks before one that make it twice as dear as the first: of 16 tokens, in a dense model of 8 billion
parameters (32 layers, width 4096), attention over 32,768 tokens takes as many operations as all else."""


class Gdsf:
    """Entries by uses and cost.

    Args:
        capacity: Entries are 0 … capacity-1.
        facts: Depths, for the costs.
    """

    def __init__(self, capacity: int, facts: BlockFacts) -> None:
        self._facts = facts
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
        added = self._holding.add(entries)
        for entry in added:
            self._uses[entry] = 0
        self._score(added, entries, used=True)

    def touch(self, entries: Int64Array, *, used: bool = True) -> None:
        """Count uses and score anew; with `used` false, only score, so that parents keep up with their children."""
        self._score(self._holding.named(entries), entries, used=used)

    def _score(self, named: list[int], entries: Int64Array, *, used: bool) -> None:
        """Score a prefix, tail first: no block lower than the one before it in that order."""
        costs = 1.0 + self._facts.depth[entries] / _DEPTH_OF_DOUBLE_COST
        least = 0.0
        for entry, cost in zip(named, costs.tolist(), strict=True):
            self._uses[entry] += used
            least = max(least, self._age + self._uses[entry] * cost)
            self._scores.put(entry, least)

    def remove(self, entries: Int64Array) -> None:
        """Forget held entries; later scores start from theirs."""
        for entry in self._holding.drop(entries):
            self._age = max(self._age, self._scores.of(entry))
            self._scores.take_out(entry)

    def set_evictable(self, entries: Int64Array, evictable: bool) -> None:
        """Shield held entries from `victims`, or stop shielding them."""
        self._scores.set_evictable(entries, evictable)

    def victims(self, count: int) -> Int64Array | None:
        """The `count` evictable entries of the lowest scores, in order; None where there are fewer."""
        if count > self.num_evictable:
            return None
        return np.array(self._scores.lowest(count), np.int64)
