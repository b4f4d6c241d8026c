"""S3-FIFO: a small queue for new blocks, a main queue for blocks used again, and ghosts of evicted blocks.

Yang, Zhang, Qiu, Yue, Rashmi: FIFO queues are all you need for cache eviction (SOSP 2023),
https://doi.org/10.1145/3600006.3613147. As published: a tenth of the cache is the small queue, uses are counted
up to three, a block used more than once in the small queue (its arrival counts) goes to the main one, and as many
ghosts are kept as the main queue has blocks. Pure; called by the planner under the engine's lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tierstore.policy.queues import NOBODY, Ghosts, Holding, Queues

if TYPE_CHECKING:
    from tierstore.policy.base import BlockFacts
    from tierstore.types import Int64Array

__all__ = ["S3Fifo"]

_SMALL, _MAIN, _LEAVING = 0, 1, 2
_SMALL_SHARE = 0.1
_USES_MAX = 3
_USES_TO_STAY = 1


class S3Fifo:
    """Two queues; a named victim waits in a third until it is removed, or used again.

    Args:
        capacity: Entries are 0 … capacity-1.
        facts: Tags, for the ghosts.
    """

    def __init__(self, capacity: int, facts: BlockFacts) -> None:
        self._facts = facts
        self._holding = Holding(capacity)
        self._queues = Queues(self._holding, 3)
        self._uses = np.zeros(capacity, np.uint8).data
        self._was_small = np.zeros(capacity, np.bool_).data
        self._ghosts = Ghosts()

    @property
    def num_evictable(self) -> int:
        """How many held entries `victims` could name."""
        return self._holding.num_evictable

    def insert(self, entries: Int64Array) -> None:
        """Add entries that are not held yet: to the small queue, or to the main one where a ghost knows them."""
        for entry, tag in zip(self._holding.add(entries), self._facts.tag[entries].tolist(), strict=True):
            known = tag in self._ghosts
            self._ghosts.discard(tag)
            self._uses[entry] = 0
            self._queues.append(_MAIN if known else _SMALL, [entry])

    def touch(self, entries: Int64Array, *, used: bool = True) -> None:
        """Count uses; no entry moves, but those named before come back."""
        if not used:
            return
        for entry in self._holding.named(entries):
            self._uses[entry] = min(_USES_MAX, self._uses[entry] + 1)
            if self._queues.queue_of(entry) == _LEAVING:
                self._queues.unlink([entry])
                self._queues.prepend(_SMALL if self._was_small[entry] else _MAIN, entry)

    def remove(self, entries: Int64Array) -> None:
        """Forget held entries; those of the small queue leave a ghost."""
        dropped = self._holding.drop(entries)
        queues = self._queues.unlink(dropped)
        for entry, queue, tag in zip(dropped, queues, self._facts.tag[entries].tolist(), strict=True):
            if queue == _SMALL or (queue == _LEAVING and self._was_small[entry]):
                self._ghosts.add([tag])
        self._ghosts.trim(self._queues.lengths[_MAIN])

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
        """Choose one more victim; the caller has made sure that there is one."""
        small = self._queues.lengths[_SMALL] >= _SMALL_SHARE * self._holding.num_held
        entry = self._leave_small() if small else self._leave_main()
        while entry == NOBODY:
            small = not small
            entry = self._leave_small() if small else self._leave_main()
        self._was_small[entry] = self._queues.queue_of(entry) == _SMALL
        self._queues.move(_LEAVING, [entry])
        return entry

    def _leave_small(self) -> int:
        entry = self._queues.first(_SMALL)
        while entry != NOBODY:
            newer = self._queues.after(entry)
            if self._uses[entry] < _USES_TO_STAY:
                return entry
            self._uses[entry] = 0
            self._queues.move(_MAIN, [entry])
            entry = newer
        return NOBODY

    def _leave_main(self) -> int:
        entry = self._queues.first(_MAIN)
        while entry != NOBODY:
            newer = self._queues.after(entry)
            if not self._uses[entry]:
                return entry
            self._uses[entry] -= 1
            self._queues.move(_MAIN, [entry])
            entry = entry if newer == NOBODY else newer
        return NOBODY
