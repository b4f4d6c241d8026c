"""What policies that score blocks are made of: entries in order of score, the oldest first among equals.

A heap in which changed entries leave stale items behind; these are dropped as they come up, and the heap is
built anew when they are most of it. Used by the policies of this room alone.
"""

from __future__ import annotations

import heapq
from array import array
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Scores"]

_STALE_MIN = 64


class Scores:
    """The score of every entry that is in."""

    def __init__(self, capacity: int) -> None:
        self._scores = array("d", bytes(8 * capacity))
        self._stamps = np.zeros(capacity, np.int64).data
        self._heap: list[tuple[float, int, int]] = []
        self._last_stamp = 0
        self._num_in = 0

    def put(self, entry: int, score: float) -> None:
        """Enter an entry, or score it anew; among equals it is the youngest."""
        self._num_in += self._stamps[entry] == 0
        self._last_stamp += 1
        self._scores[entry], self._stamps[entry] = score, self._last_stamp
        heapq.heappush(self._heap, (score, self._last_stamp, entry))
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

    def lowest(self, count: int, eligible: Callable[[int], bool]) -> list[int]:
        """The `count` eligible entries of the lowest scores, in order; all stay in. There are so many."""
        found: list[int] = []
        passed: list[tuple[float, int, int]] = []
        while len(found) < count:
            item = heapq.heappop(self._heap)
            if self._stamps[item[2]] != item[1]:
                continue
            passed.append(item)
            if eligible(item[2]):
                found.append(item[2])
        for item in passed:
            heapq.heappush(self._heap, item)
        return found
