"""ARC: balances recency and frequency by the hits on each queue's ghosts.

Megiddo, Modha: ARC: a self-tuning, low overhead replacement cache (FAST 2003),
https://doi.org/10.5555/1090694.1090708. T1 holds blocks used once, T2 blocks used again. Each has ghosts, which
are tags of evicted blocks; a ghost that comes back makes its queue larger. The cache size is the number of blocks
held when some must be evicted. Pure; called by the planner under the engine's lock.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tierstore.policy.queues import Ghosts, Holding, Queues

if TYPE_CHECKING:
    from tierstore.policy.base import BlockFacts
    from tierstore.types import Int64Array

__all__ = ["Arc"]

_ONCE, _AGAIN = 0, 1


class Arc:
    """Two queues in order of last use, each with its ghosts.

    Args:
        capacity: Entries are 0 … capacity-1.
        facts: Tags, for the ghosts.
    """

    def __init__(self, capacity: int, facts: BlockFacts) -> None:
        self._facts = facts
        self._holding = Holding(capacity)
        self._queues = Queues(self._holding, 2)
        self._ghosts = (Ghosts(), Ghosts())
        self._once_target = 0.0

    @property
    def num_evictable(self) -> int:
        """How many held entries `victims` could name."""
        return self._holding.num_evictable

    def insert(self, entries: Int64Array) -> None:
        """Add entries that are not held yet; those that a ghost knows move the balance towards its queue."""
        once, again = self._ghosts
        added, tags = self._holding.add(entries), self._facts.tag[entries].tolist()
        if not once.known(tags) and not again.known(tags):
            self._queues.append(_ONCE, added)
            return
        for entry, tag in zip(added, tags, strict=True):
            if tag in once:
                step = max(1.0, len(again) / len(once))
                self._once_target = min(float(self._holding.num_held), self._once_target + step)
                once.discard(tag)
                self._queues.append(_AGAIN, [entry])
            elif tag in again:
                step = max(1.0, len(once) / len(again))
                self._once_target = max(0.0, self._once_target - step)
                again.discard(tag)
                self._queues.append(_AGAIN, [entry])
            else:
                self._queues.append(_ONCE, [entry])

    def touch(self, entries: Int64Array, *, used: bool = True) -> None:
        """Make entries the youngest of T2; with `used` false, the youngest of their own queue."""
        queues, named = self._queues, self._holding.named(entries)
        if used:
            queues.move(_AGAIN, named)
            return
        of_each = queues.queues_of(named)
        for queue in (_ONCE, _AGAIN):
            queues.move(queue, [entry for entry, own in zip(named, of_each, strict=True) if own == queue])

    def remove(self, entries: Int64Array) -> None:
        """Forget held entries; each leaves a ghost."""
        size = self._holding.num_held
        once, again = self._ghosts
        queues = self._queues.unlink(self._holding.drop(entries))
        tags = self._facts.tag[entries].tolist()
        for queue in (_ONCE, _AGAIN):
            self._ghosts[queue].add([tag for tag, own in zip(tags, queues, strict=True) if own == queue])
        once.trim(size - self._queues.lengths[_ONCE])
        again.trim(2 * size - self._holding.num_held - len(once))

    def set_evictable(self, entries: Int64Array, evictable: bool) -> None:
        """Shield held entries from `victims`, or stop shielding them."""
        self._queues.set_evictable(entries, evictable)

    def victims(self, count: int) -> Int64Array | None:
        """The `count` evictable entries to go first, in order; None where there are fewer."""
        if count > self.num_evictable:
            return None
        queues = self._queues
        surplus = max(0, math.ceil(queues.lengths[_ONCE] - self._once_target))
        found = queues.oldest(_ONCE, min(surplus, count))
        num_once = len(found)
        found += queues.oldest(_AGAIN, count - num_once)
        if len(found) < count:
            found += queues.oldest(_ONCE, num_once + count - len(found))[num_once:]
        return np.array(found, np.int64)
