"""The account of blocks read ahead: how many there are, and whether gets used them. Pure; part of the host room.

A block counts from the read that brings it until a get uses it or it is evicted or dropped. Callers hold two bounds:
bytes in flight, and the share of the pool, beyond free slots, for blocks that no get has used yet.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from tierstore.control.directory import PREFETCHED
from tierstore.control.entry import State
from tierstore.metrics import Metric

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tierstore.control.directory import Directory
    from tierstore.metrics import Metrics
    from tierstore.types import Int64Array

__all__ = ["Prefetched"]


class Prefetched:
    """Blocks that were read ahead and that no get has used.

    Args:
        directory: Its flags are changed here.
        slot_nbytes: Slot size of each slot class; the host room's own mapping.
        metrics: Where it counts.

    Attributes:
        inflight_nbytes: Bytes of blocks being read ahead; the callers keep it.
    """

    def __init__(self, directory: Directory, slot_nbytes: Mapping[int, int], metrics: Metrics) -> None:
        self._directory = directory
        self._slot_nbytes = slot_nbytes
        self._metrics = metrics
        self.inflight_nbytes = 0
        self._unused: Counter[int] = Counter()

    @property
    def unused_nbytes(self) -> int:
        """Bytes of slots with blocks that were read ahead and not used yet."""
        return sum(count * self._slot_nbytes[slot_class] for slot_class, count in self._unused.items())

    def came(self, slot_class: int, entries: Int64Array) -> None:
        """Blocks read ahead are READY."""
        self._directory.flags[entries] |= PREFETCHED
        self._unused[slot_class] += len(entries)

    def used(self, slot_class: int, entries: Int64Array) -> None:
        """A get uses blocks."""
        self._end(slot_class, entries, "useful")

    def evicted(self, slot_class: int, entries: Int64Array) -> None:
        """Blocks are evicted."""
        self._end(slot_class, entries, "wasted")

    def dropped(self, slot_class: int, entries: Int64Array) -> None:
        """Blocks are deleted or found corrupt: neither useful nor wasted."""
        self._end(slot_class, entries, None)

    def _end(self, slot_class: int, entries: Int64Array, fate: str | None) -> None:
        if not self._unused[slot_class]:
            return
        flags = self._directory.flags[entries]
        count = int(np.count_nonzero(flags & PREFETCHED))
        if count:
            self._directory.flags[entries] = flags & ~PREFETCHED
            self._unused[slot_class] -= count
            if fate is not None:
                self._metrics.add(Metric.PREFETCHED_BLOCKS, count, fate)

    def check(self) -> None:
        """Assert that as many blocks are counted as are flagged, and that each of them is READY."""
        span = slice(0, self._directory.high_water)
        flagged = self._directory.flags[span] & PREFETCHED > 0
        num_flagged, num_counted = int(np.count_nonzero(flagged)), sum(self._unused.values())
        assert num_flagged == num_counted, f"{num_counted} blocks count as read ahead, {num_flagged} are"
        assert (self._directory.host.state[span][flagged] == State.READY).all(), "read ahead, and not there"
