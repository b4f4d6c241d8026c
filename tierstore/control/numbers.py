"""Allocates the numbers 0 … capacity-1, the rows of the planner's column tables. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tierstore.types import Int64Array

__all__ = ["Numbers"]


class Numbers:
    """The free numbers. Those given back last are reused first, so that a table touches no more memory than it needs.

    Attributes:
        high_water: One more than the highest number ever out; for others to read.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.high_water = 0
        self._free = np.zeros(capacity, np.int32)
        self._num_free = 0

    @property
    def room(self) -> int:
        """Numbers that `take` can still give."""
        return self.capacity - self.num_used

    @property
    def num_used(self) -> int:
        """Numbers that are out."""
        return self.high_water - self._num_free

    def take(self, count: int) -> Int64Array:
        """`count` numbers, as int64[count]; needs `room`."""
        assert count <= self.room, f"{count} numbers wanted, room for {self.room}"
        reused = min(count, self._num_free)
        numbers = np.empty(count, np.int64)
        numbers[:reused] = self._free[self._num_free - reused : self._num_free][::-1]
        self._num_free -= reused
        if reused < count:
            numbers[reused:] = np.arange(self.high_water, self.high_water + count - reused)
            self.high_water += count - reused
        return numbers

    def give_back(self, numbers: Int64Array) -> None:
        """Take back distinct numbers that are out."""
        self._free[self._num_free : self._num_free + len(numbers)] = numbers
        self._num_free += len(numbers)

    def used(self) -> Int64Array:
        """Every number that is out, ascending. Costs a pass over the column; for checks."""
        out = np.ones(self.high_water, np.bool_)
        free = self._free[: self._num_free]
        assert len(np.unique(free)) == len(free), "a number is free twice"
        out[free] = False
        return out.nonzero()[0]
