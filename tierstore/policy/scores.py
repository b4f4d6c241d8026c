"""The building block of policies that score blocks: entries in order of score, the oldest first among equals.

It is a heap. A changed entry leaves a stale item behind; stale items are dropped as they come up, and the heap is
rebuilt when they are most of it. Shielded entries are laid aside as they come up, until they are exposed: look-ahead
shields thousands for long, and each search would meet them all. Used by the policies of this package alone.
"""

from __future__ import annotations

import heapq
from array import array
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tierstore.policy.queues import Holding
    from tierstore.types import Int64Array

__all__ = ["Scores"]

_STALE_MIN = 64


class Scores:
    """The score of every held entry."""

    def __init__(self, holding: Holding) -> None:
        self._holding = holding
        self._scores = array("d", bytes(8 * holding.capacity))
        self._stamps = np.zeros(holding.capacity, np.int64).data
        self._heap: list[tuple[float, int, int]] = []
        self._last_stamp = 0
        self._num_in = 0

    def put(self, entry: int, score: float) -> None:
        """Enter an entry, or score it anew; among equals it is the youngest."""
        self._holding.meet_again(entry)
        self._num_in += self._stamps[entry] == 0
        self._last_stamp += 1
        self._scores[entry], self._stamps[entry] = score, self._last_stamp
        self._push(entry)

    def _push(self, entry: int) -> None:
        heapq.heappush(self._heap, (self._scores[entry], self._stamps[entry], entry))
        if len(self._heap) > 2 * self._num_in + _STALE_MIN:
            self._heap = [item for item in self._heap if self._stamps[item[2]] == item[1]]
            heapq.heapify(self._heap)

    def take_out(self, entry: int) -> None:
        """Take an entry out that is in."""
        self._stamps[entry] = 0
        self._num_in -= 1

    def of(self, entry: int) -> float:
        """The score of an entry that is in."""
        return self._scores[entry]

    def set_evictable(self, entries: Int64Array, evictable: bool) -> None:
        """Shield held entries from searches, or stop shielding them; they keep their scores."""
        for entry in self._holding.set_evictable(entries, evictable):
            self._push(entry)

    def lowest(self, count: int) -> list[int]:
        """The `count` evictable entries of the lowest scores, in order; all stay in. There must be that many."""
        found: list[tuple[float, int, int]] = []
        while len(found) < count:
            item = heapq.heappop(self._heap)
            _score, stamp, entry = item
            if self._stamps[entry] != stamp:
                continue
            if self._holding.is_evictable(entry):
                found.append(item)
            else:
                self._holding.pass_over(entry)
        for item in found:
            heapq.heappush(self._heap, item)
        return [entry for _score, _stamp, entry in found]
